-- How much a worker takes at once, and workers that are gone, for a day.
ALTER TABLE ff_worker_registry ADD COLUMN slots INTEGER;

CREATE TABLE ff_worker_gone (
    namespace          TEXT NOT NULL,
    worker_instance_id TEXT NOT NULL,
    worker_id          TEXT NOT NULL,
    lanes              TEXT NOT NULL,
    capabilities_csv   TEXT NOT NULL,
    last_heartbeat_ms  INTEGER NOT NULL,
    registered_at_ms   INTEGER NOT NULL,
    gone_at_ms         INTEGER NOT NULL,
    reason             TEXT,
    slots              INTEGER,
    PRIMARY KEY (namespace, worker_instance_id)
);
CREATE INDEX ff_worker_gone_at_idx ON ff_worker_gone (gone_at_ms);
