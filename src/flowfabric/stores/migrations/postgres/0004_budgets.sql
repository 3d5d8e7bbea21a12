-- Budgets, quotas, and what executions hold of them.
-- Executions name budgets and quotas by id alone, so ids are unique over all partitions.

CREATE TABLE ff_budget_policy (
    partition_key       smallint NOT NULL,
    budget_id           text NOT NULL,
    policy_json         jsonb NOT NULL,
    created_at_ms       bigint NOT NULL,
    updated_at_ms       bigint NOT NULL,
    scope_type          text NOT NULL DEFAULT '',
    scope_id            text NOT NULL DEFAULT '',
    enforcement_mode    text NOT NULL DEFAULT '',
    breach_count        bigint NOT NULL DEFAULT 0,
    soft_breach_count   bigint NOT NULL DEFAULT 0,
    last_breach_at_ms   bigint,
    last_breach_dim     text,
    next_reset_at_ms    bigint,
    ancestor_ids        text NOT NULL DEFAULT '',
    reset_count         bigint NOT NULL DEFAULT 0,
    last_reset_at_ms    bigint,
    breached_at_ms      bigint,
    waiting_since_ms    bigint,
    cancelling_since_ms bigint,
    PRIMARY KEY (partition_key, budget_id)
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX ff_budget_policy_id_idx ON ff_budget_policy (budget_id);
CREATE INDEX ff_budget_policy_reset_due_idx ON ff_budget_policy (next_reset_at_ms) WHERE next_reset_at_ms IS NOT NULL;

-- reserved_value is what open reservations hold; it counts against the hard limit like current_value.
-- granted_value is what approvals allow beyond that limit.
CREATE TABLE ff_budget_usage (
    partition_key    smallint NOT NULL,
    budget_id        text NOT NULL,
    dimensions_key   text NOT NULL,
    current_value    bigint NOT NULL DEFAULT 0,
    last_reset_at_ms bigint,
    updated_at_ms    bigint NOT NULL,
    reserved_value   bigint NOT NULL DEFAULT 0,
    granted_value    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_key, budget_id, dimensions_key)
) WITH (fillfactor = 50);

CREATE TABLE ff_budget_usage_dedup (
    partition_key smallint NOT NULL,
    dedup_key     text NOT NULL,
    outcome_json  jsonb NOT NULL,
    applied_at_ms bigint NOT NULL,
    expires_at_ms bigint NOT NULL,
    PRIMARY KEY (partition_key, dedup_key)
);

CREATE INDEX ff_budget_usage_dedup_expires_idx ON ff_budget_usage_dedup (expires_at_ms);

-- A row counts only while reset_count is that of its budget: what was spent before a reset is not there to give back.
CREATE TABLE ff_budget_usage_by_exec (
    partition_key  smallint NOT NULL,
    budget_id      text NOT NULL,
    execution_id   uuid NOT NULL,
    dimensions_key text NOT NULL,
    delta_total    bigint NOT NULL DEFAULT 0,
    updated_at_ms  bigint NOT NULL,
    reset_count    bigint NOT NULL DEFAULT 0,
    levels         jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (partition_key, budget_id, execution_id, dimensions_key)
);

CREATE INDEX ff_budget_usage_by_exec_execution_idx ON ff_budget_usage_by_exec (execution_id);

-- An amount set aside under one lease; only open ones count.
CREATE TABLE ff_budget_reservation (
    reservation_id uuid NOT NULL PRIMARY KEY,
    partition_key  smallint NOT NULL,
    execution_id   uuid NOT NULL,
    attempt_index  integer NOT NULL,
    lease_epoch    bigint NOT NULL,
    budget_id      text NOT NULL,
    amounts        jsonb NOT NULL,
    state          text NOT NULL CHECK (state IN ('open', 'settled', 'released', 'lapsed')),
    created_at_ms  bigint NOT NULL,
    closed_at_ms   bigint,
    granted        jsonb NOT NULL DEFAULT '{}'
);

CREATE INDEX ff_budget_reservation_execution_idx ON ff_budget_reservation (partition_key, execution_id, state);

-- What an execution asked for beyond a limit; gone once the answer is used.
CREATE TABLE ff_budget_ask (
    partition_key smallint NOT NULL,
    execution_id  uuid NOT NULL,
    budget_id     text NOT NULL,
    amounts       jsonb NOT NULL,
    suspension_id uuid NOT NULL,
    asked_at_ms   bigint NOT NULL,
    PRIMARY KEY (partition_key, execution_id, budget_id)
);

CREATE TABLE ff_quota_policy (
    partition_key               smallint NOT NULL,
    quota_policy_id             text NOT NULL,
    requests_per_window_seconds bigint NOT NULL,
    max_requests_per_window     bigint NOT NULL,
    active_concurrency_cap      bigint NOT NULL,
    active_concurrency          bigint NOT NULL DEFAULT 0,
    created_at_ms               bigint NOT NULL,
    updated_at_ms               bigint NOT NULL,
    waiting_since_ms            bigint,
    next_room_at_ms             bigint,
    uneven                      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (partition_key, quota_policy_id)
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX ff_quota_policy_id_idx ON ff_quota_policy (quota_policy_id);
-- Policies that somebody waits for: few, and asked for at every end.
CREATE INDEX ff_quota_policy_waiting_idx ON ff_quota_policy (quota_policy_id) WHERE waiting_since_ms IS NOT NULL;
CREATE INDEX ff_quota_policy_room_idx ON ff_quota_policy (next_room_at_ms) WHERE next_room_at_ms IS NOT NULL;

CREATE TABLE ff_quota_window (
    partition_key   smallint NOT NULL,
    quota_policy_id text NOT NULL,
    dimension       text NOT NULL DEFAULT '',
    admitted_at_ms  bigint NOT NULL,
    execution_id    text NOT NULL,
    expires_at_ms   bigint NOT NULL DEFAULT 0,
    number          bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_key, quota_policy_id, dimension, admitted_at_ms, execution_id)
);

CREATE INDEX ff_quota_window_expires_idx ON ff_quota_window (expires_at_ms);

CREATE TABLE ff_quota_admitted (
    partition_key   smallint NOT NULL,
    quota_policy_id text NOT NULL,
    execution_id    text NOT NULL,
    admitted_at_ms  bigint NOT NULL,
    expires_at_ms   bigint NOT NULL,
    dimension       text NOT NULL DEFAULT '',
    counted         boolean NOT NULL DEFAULT false,
    PRIMARY KEY (partition_key, quota_policy_id, execution_id)
);

CREATE INDEX ff_quota_admitted_expires_idx ON ff_quota_admitted (expires_at_ms);
CREATE INDEX ff_quota_admitted_execution_idx ON ff_quota_admitted (execution_id);
