-- How much a worker takes at once, and workers that are gone, for a day.
ALTER TABLE ff_worker_registry ADD COLUMN slots integer;

CREATE TABLE ff_worker_gone (
    namespace          text NOT NULL,
    worker_instance_id text NOT NULL,
    worker_id          text NOT NULL,
    lanes              text[] NOT NULL,
    capabilities_csv   text NOT NULL,
    last_heartbeat_ms  bigint NOT NULL,
    registered_at_ms   bigint NOT NULL,
    gone_at_ms         bigint NOT NULL,
    reason             text,
    slots              integer,
    PRIMARY KEY (namespace, worker_instance_id)
);
CREATE INDEX ff_worker_gone_at_idx ON ff_worker_gone (gone_at_ms);
