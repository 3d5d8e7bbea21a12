-- Leases that ended before their attempt did: suspended, stepped back, expired, revoked, taken over, replayed. What runs
-- through in one go leaves nothing here.

CREATE TABLE ff_past_lease (
    partition_key      INTEGER NOT NULL,
    execution_id       BLOB NOT NULL,
    lease_epoch        INTEGER NOT NULL,
    attempt_index      INTEGER NOT NULL,
    lease_id           TEXT,
    worker_id          TEXT,
    worker_instance_id TEXT,
    began_at_ms        INTEGER NOT NULL,
    ended_at_ms        INTEGER NOT NULL,
    ended              TEXT NOT NULL,
    reason             TEXT,
    PRIMARY KEY (partition_key, execution_id, attempt_index, lease_epoch)
) WITHOUT ROWID;
