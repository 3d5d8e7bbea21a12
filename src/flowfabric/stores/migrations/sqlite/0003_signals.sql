-- Signals: what was delivered to waitpoints, and which idempotency keys that used up.

CREATE TABLE ff_signal (
    partition_key    INTEGER NOT NULL,
    execution_id     BLOB NOT NULL,
    signal_id        BLOB NOT NULL,
    sequence         INTEGER NOT NULL,
    waitpoint_id     BLOB NOT NULL,
    waitpoint_key    TEXT NOT NULL,
    signal_name      TEXT NOT NULL,
    signal_category  TEXT NOT NULL,
    source_type      TEXT NOT NULL,
    source_identity  TEXT NOT NULL,
    correlation_id   TEXT,
    idempotency_key  TEXT,
    payload          BLOB,
    payload_encoding TEXT NOT NULL,
    target_scope     TEXT NOT NULL,
    created_at_ms    INTEGER NOT NULL,
    accepted_at_ms   INTEGER NOT NULL,
    effect           TEXT NOT NULL,
    PRIMARY KEY (partition_key, execution_id, signal_id)
);

CREATE TABLE ff_signal_dedup (
    partition_key   INTEGER NOT NULL,
    waitpoint_id    BLOB NOT NULL,
    idempotency_key TEXT NOT NULL,
    signal_id       BLOB NOT NULL,
    expires_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (partition_key, waitpoint_id, idempotency_key)
);

CREATE INDEX ff_signal_dedup_expiry_idx ON ff_signal_dedup (expires_at_ms);
CREATE INDEX ff_suspend_dedup_age_idx ON ff_suspend_dedup (created_at_ms);
