-- Budgets, quotas, and what executions hold of them.
-- Executions name budgets and quotas by id alone, so ids are unique over all partitions.

CREATE TABLE ff_budget_policy (
    partition_key       INTEGER NOT NULL,
    budget_id           TEXT NOT NULL,
    policy_json         TEXT NOT NULL,
    created_at_ms       INTEGER NOT NULL,
    updated_at_ms       INTEGER NOT NULL,
    scope_type          TEXT NOT NULL DEFAULT '',
    scope_id            TEXT NOT NULL DEFAULT '',
    enforcement_mode    TEXT NOT NULL DEFAULT '',
    breach_count        INTEGER NOT NULL DEFAULT 0,
    soft_breach_count   INTEGER NOT NULL DEFAULT 0,
    last_breach_at_ms   INTEGER,
    last_breach_dim     TEXT,
    next_reset_at_ms    INTEGER,
    ancestor_ids        TEXT NOT NULL DEFAULT '',
    reset_count         INTEGER NOT NULL DEFAULT 0,
    last_reset_at_ms    INTEGER,
    breached_at_ms      INTEGER,
    waiting_since_ms    INTEGER,
    cancelling_since_ms INTEGER,
    PRIMARY KEY (partition_key, budget_id)
);

CREATE UNIQUE INDEX ff_budget_policy_id_idx ON ff_budget_policy (budget_id);
CREATE INDEX ff_budget_policy_reset_due_idx ON ff_budget_policy (next_reset_at_ms) WHERE next_reset_at_ms IS NOT NULL;

-- reserved_value is what open reservations hold; it counts against the hard limit like current_value.
-- granted_value is what approvals allow beyond that limit.
CREATE TABLE ff_budget_usage (
    partition_key    INTEGER NOT NULL,
    budget_id        TEXT NOT NULL,
    dimensions_key   TEXT NOT NULL,
    current_value    INTEGER NOT NULL DEFAULT 0,
    last_reset_at_ms INTEGER,
    updated_at_ms    INTEGER NOT NULL,
    reserved_value   INTEGER NOT NULL DEFAULT 0,
    granted_value    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_key, budget_id, dimensions_key)
);

CREATE TABLE ff_budget_usage_dedup (
    partition_key INTEGER NOT NULL,
    dedup_key     TEXT NOT NULL,
    outcome_json  TEXT NOT NULL,
    applied_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (partition_key, dedup_key)
);

CREATE INDEX ff_budget_usage_dedup_expires_idx ON ff_budget_usage_dedup (expires_at_ms);

-- A row counts only while reset_count is that of its budget: what was spent before a reset is not there to give back.
CREATE TABLE ff_budget_usage_by_exec (
    partition_key  INTEGER NOT NULL,
    budget_id      TEXT NOT NULL,
    execution_id   BLOB NOT NULL,
    dimensions_key TEXT NOT NULL,
    delta_total    INTEGER NOT NULL DEFAULT 0,
    updated_at_ms  INTEGER NOT NULL,
    reset_count    INTEGER NOT NULL DEFAULT 0,
    levels         TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (partition_key, budget_id, execution_id, dimensions_key)
);

CREATE INDEX ff_budget_usage_by_exec_execution_idx ON ff_budget_usage_by_exec (execution_id);

-- An amount set aside under one lease; only open ones count.
CREATE TABLE ff_budget_reservation (
    reservation_id BLOB NOT NULL PRIMARY KEY,
    partition_key  INTEGER NOT NULL,
    execution_id   BLOB NOT NULL,
    attempt_index  INTEGER NOT NULL,
    lease_epoch    INTEGER NOT NULL,
    budget_id      TEXT NOT NULL,
    amounts        TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('open', 'settled', 'released', 'lapsed')),
    created_at_ms  INTEGER NOT NULL,
    closed_at_ms   INTEGER,
    granted        TEXT NOT NULL DEFAULT '{}'
);

CREATE INDEX ff_budget_reservation_execution_idx ON ff_budget_reservation (partition_key, execution_id, state);

-- What an execution asked for beyond a limit; gone once the answer is used.
CREATE TABLE ff_budget_ask (
    partition_key INTEGER NOT NULL,
    execution_id  BLOB NOT NULL,
    budget_id     TEXT NOT NULL,
    amounts       TEXT NOT NULL,
    suspension_id BLOB NOT NULL,
    asked_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (partition_key, execution_id, budget_id)
);

CREATE TABLE ff_quota_policy (
    partition_key               INTEGER NOT NULL,
    quota_policy_id             TEXT NOT NULL,
    requests_per_window_seconds INTEGER NOT NULL,
    max_requests_per_window     INTEGER NOT NULL,
    active_concurrency_cap      INTEGER NOT NULL,
    active_concurrency          INTEGER NOT NULL DEFAULT 0,
    created_at_ms               INTEGER NOT NULL,
    updated_at_ms               INTEGER NOT NULL,
    waiting_since_ms            INTEGER,
    next_room_at_ms             INTEGER,
    uneven                      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_key, quota_policy_id)
);

CREATE UNIQUE INDEX ff_quota_policy_id_idx ON ff_quota_policy (quota_policy_id);
-- Policies that somebody waits for: few, and asked for at every end.
CREATE INDEX ff_quota_policy_waiting_idx ON ff_quota_policy (quota_policy_id) WHERE waiting_since_ms IS NOT NULL;
CREATE INDEX ff_quota_policy_room_idx ON ff_quota_policy (next_room_at_ms) WHERE next_room_at_ms IS NOT NULL;

CREATE TABLE ff_quota_window (
    partition_key   INTEGER NOT NULL,
    quota_policy_id TEXT NOT NULL,
    dimension       TEXT NOT NULL DEFAULT '',
    admitted_at_ms  INTEGER NOT NULL,
    execution_id    TEXT NOT NULL,
    expires_at_ms   INTEGER NOT NULL DEFAULT 0,
    number          INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_key, quota_policy_id, dimension, admitted_at_ms, execution_id)
);

CREATE INDEX ff_quota_window_expires_idx ON ff_quota_window (expires_at_ms);

CREATE TABLE ff_quota_admitted (
    partition_key   INTEGER NOT NULL,
    quota_policy_id TEXT NOT NULL,
    execution_id    TEXT NOT NULL,
    admitted_at_ms  INTEGER NOT NULL,
    expires_at_ms   INTEGER NOT NULL,
    dimension       TEXT NOT NULL DEFAULT '',
    counted         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_key, quota_policy_id, execution_id)
);

CREATE INDEX ff_quota_admitted_expires_idx ON ff_quota_admitted (expires_at_ms);
CREATE INDEX ff_quota_admitted_execution_idx ON ff_quota_admitted (execution_id);
