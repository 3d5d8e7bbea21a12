-- Which instance of a worker held an attempt's last lease, once that is over.

ALTER TABLE ff_attempt ADD COLUMN last_instance_id text;
