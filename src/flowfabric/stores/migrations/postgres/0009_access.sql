-- What callers from outside need: lists of a namespace, newest first, and credentials.

CREATE INDEX ff_exec_core_search_idx ON ff_exec_core (namespace, created_at_ms, partition_key, execution_id);

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
