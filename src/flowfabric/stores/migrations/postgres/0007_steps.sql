-- Durable functions: what they remember, who started whom, and how many children a parked one waits for.

CREATE TABLE ff_step (
    partition_key  smallint NOT NULL,
    execution_id   uuid NOT NULL,
    name           text NOT NULL,
    sequence       integer NOT NULL,
    attempt_index  integer NOT NULL,
    lease_epoch    bigint NOT NULL,
    outcome        text NOT NULL,
    value          bytea,
    recorded_at_ms bigint NOT NULL,
    PRIMARY KEY (partition_key, execution_id, name)
);

ALTER TABLE ff_exec_core ADD COLUMN parent_eid uuid;
ALTER TABLE ff_suspension_current ADD COLUMN wake_after integer;

-- Children that live, for whoever looks whether their parents do.
CREATE INDEX ff_exec_core_children_idx ON ff_exec_core (partition_key, parent_eid)
    WHERE parent_eid IS NOT NULL AND terminal_at_ms IS NULL;
