-- Signals: what was delivered to waitpoints, and which idempotency keys that used up.

CREATE TABLE ff_signal (
    partition_key    smallint NOT NULL,
    execution_id     uuid NOT NULL,
    signal_id        uuid NOT NULL,
    sequence         integer NOT NULL,
    waitpoint_id     uuid NOT NULL,
    waitpoint_key    text NOT NULL,
    signal_name      text NOT NULL,
    signal_category  text NOT NULL,
    source_type      text NOT NULL,
    source_identity  text NOT NULL,
    correlation_id   text,
    idempotency_key  text,
    payload          bytea,
    payload_encoding text NOT NULL,
    target_scope     text NOT NULL,
    created_at_ms    bigint NOT NULL,
    accepted_at_ms   bigint NOT NULL,
    effect           text NOT NULL,
    PRIMARY KEY (partition_key, execution_id, signal_id)
);

CREATE TABLE ff_signal_dedup (
    partition_key   smallint NOT NULL,
    waitpoint_id    uuid NOT NULL,
    idempotency_key text NOT NULL,
    signal_id       uuid NOT NULL,
    expires_at_ms   bigint NOT NULL,
    PRIMARY KEY (partition_key, waitpoint_id, idempotency_key)
);

CREATE INDEX ff_signal_dedup_expiry_idx ON ff_signal_dedup (expires_at_ms);
CREATE INDEX ff_suspend_dedup_age_idx ON ff_suspend_dedup (created_at_ms);
