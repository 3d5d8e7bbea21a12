-- What callers from outside need: lists of a namespace, newest first, credentials, answers that are given again, and
-- an account of what operators do.

CREATE INDEX ff_exec_core_search_idx ON ff_exec_core (namespace, created_at_ms, partition_key, execution_id);
-- Who waits for somebody, and for what.
CREATE INDEX ff_exec_core_suspended_idx ON ff_exec_core (blocking_reason, created_at_ms, partition_key, execution_id)
    WHERE lifecycle_phase = 'suspended';
CREATE INDEX ff_flow_core_created_idx ON ff_flow_core (created_at_ms, partition_key, flow_id);

-- Secrets are not here, only their digests.
CREATE TABLE ff_credential (
    credential_id TEXT NOT NULL PRIMARY KEY,
    name          TEXT NOT NULL,
    digest        TEXT NOT NULL,
    scopes        TEXT NOT NULL,
    namespaces    TEXT,
    created_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER,
    revoked_at_ms INTEGER
);

CREATE TABLE ff_kept_answer (
    owner           TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    fingerprint     TEXT NOT NULL,
    status          INTEGER NOT NULL,
    media           TEXT NOT NULL,
    body            BLOB,
    expires_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (owner, idempotency_key)
);

CREATE INDEX ff_kept_answer_expiry_idx ON ff_kept_answer (expires_at_ms);

CREATE TABLE ff_audit (
    audit_id TEXT NOT NULL PRIMARY KEY,
    at_ms    INTEGER NOT NULL,
    who      TEXT NOT NULL,
    act      TEXT NOT NULL,
    subject  TEXT NOT NULL,
    status   INTEGER NOT NULL
);
