-- Durable functions: what they remember, who started whom, and how many children a parked one waits for.

CREATE TABLE ff_step (
    partition_key  INTEGER NOT NULL,
    execution_id   BLOB NOT NULL,
    name           TEXT NOT NULL,
    sequence       INTEGER NOT NULL,
    attempt_index  INTEGER NOT NULL,
    lease_epoch    INTEGER NOT NULL,
    outcome        TEXT NOT NULL,
    value          BLOB,
    recorded_at_ms INTEGER NOT NULL,
    PRIMARY KEY (partition_key, execution_id, name)
) WITHOUT ROWID;

ALTER TABLE ff_exec_core ADD COLUMN parent_eid BLOB;
ALTER TABLE ff_suspension_current ADD COLUMN wake_after INTEGER;

-- Children that live, for whoever looks whether their parents do.
CREATE INDEX ff_exec_core_children_idx ON ff_exec_core (partition_key, parent_eid)
    WHERE parent_eid IS NOT NULL AND terminal_at_ms IS NULL;
