-- What callers from outside need: lists of a namespace, newest first, and credentials.

CREATE INDEX ff_exec_core_search_idx ON ff_exec_core (namespace, created_at_ms, partition_key, execution_id);

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
