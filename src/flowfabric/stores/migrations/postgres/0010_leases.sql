-- Leases that ended before their attempt did: suspended, stepped back, expired, revoked, taken over, replayed. What runs
-- through in one go leaves nothing here.

CREATE TABLE ff_past_lease (
    partition_key      smallint NOT NULL,
    execution_id       uuid NOT NULL,
    lease_epoch        bigint NOT NULL,
    attempt_index      integer NOT NULL,
    lease_id           text,
    worker_id          text,
    worker_instance_id text,
    began_at_ms        bigint NOT NULL,
    ended_at_ms        bigint NOT NULL,
    ended              text NOT NULL,
    reason             text,
    PRIMARY KEY (partition_key, execution_id, attempt_index, lease_epoch)
);
