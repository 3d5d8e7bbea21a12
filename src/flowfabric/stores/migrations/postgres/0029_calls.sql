-- What the calls of durable functions are recognised by, besides their names.

ALTER TABLE ff_step ADD COLUMN arguments TEXT;
