-- What callers from outside need: lists of a namespace, newest first, credentials, answers that are given again, and
-- an account of what operators do.

CREATE INDEX ff_exec_core_search_idx ON ff_exec_core (namespace, created_at_ms, partition_key, execution_id);
-- Who waits for somebody, and for what.
CREATE INDEX ff_exec_core_suspended_idx ON ff_exec_core (blocking_reason, created_at_ms, partition_key, execution_id)
    WHERE lifecycle_phase = 'suspended';
CREATE INDEX ff_flow_core_created_idx ON ff_flow_core (created_at_ms, partition_key, flow_id);

-- Secrets are not here, only their digests.
CREATE TABLE ff_credential (
    credential_id text NOT NULL PRIMARY KEY,
    name          text NOT NULL,
    digest        text NOT NULL,
    scopes        text NOT NULL,
    namespaces    text,
    created_at_ms bigint NOT NULL,
    expires_at_ms bigint,
    revoked_at_ms bigint
);

CREATE TABLE ff_kept_answer (
    owner           text NOT NULL,
    idempotency_key text NOT NULL,
    fingerprint     text NOT NULL,
    status          integer NOT NULL,
    media           text NOT NULL,
    body            bytea,
    expires_at_ms   bigint NOT NULL,
    PRIMARY KEY (owner, idempotency_key)
);

CREATE INDEX ff_kept_answer_expiry_idx ON ff_kept_answer (expires_at_ms);

CREATE TABLE ff_audit (
    audit_id text NOT NULL PRIMARY KEY,
    at_ms    bigint NOT NULL,
    who      text NOT NULL,
    act      text NOT NULL,
    subject  text NOT NULL,
    status   integer NOT NULL
);
