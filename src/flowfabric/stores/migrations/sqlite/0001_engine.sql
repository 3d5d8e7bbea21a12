-- Executions, their attempts, grants and streams, the registries, and the outboxes.
-- Tables are flat: partition_key is a column like any other, because ids carry it.

-- Registries and configuration -------------------------------------------------------------------------------------

CREATE TABLE ff_lane_registry (
    lane_id          TEXT NOT NULL PRIMARY KEY,
    registered_at_ms INTEGER NOT NULL,
    registered_by    TEXT NOT NULL,
    state            TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'draining', 'disabled'))
);

CREATE TABLE ff_partition_config (
    singleton_lock        INTEGER NOT NULL DEFAULT 1 PRIMARY KEY CHECK (singleton_lock = 1),
    num_flow_partitions   INTEGER NOT NULL,
    num_budget_partitions INTEGER NOT NULL,
    num_quota_partitions  INTEGER NOT NULL,
    ff_version            TEXT NOT NULL
);

INSERT INTO ff_partition_config (num_flow_partitions, num_budget_partitions, num_quota_partitions, ff_version)
VALUES (1, 1, 1, '0.1.0');

CREATE TABLE ff_waitpoint_hmac (
    kid           TEXT NOT NULL PRIMARY KEY,
    secret        BLOB NOT NULL,
    rotated_at_ms INTEGER NOT NULL,
    active        INTEGER NOT NULL DEFAULT 1,
    expires_at_ms INTEGER
);

-- Executions -------------------------------------------------------------------------------------------------------
-- Columns behind raw_fields hold what changes often, so that a busy row never rewrites its document. Left empty, they
-- mean "look in raw_fields".

CREATE TABLE ff_exec_core (
    partition_key           INTEGER NOT NULL,
    execution_id            BLOB NOT NULL,
    flow_id                 BLOB,
    lane_id                 TEXT NOT NULL,
    requirement_key         TEXT NOT NULL DEFAULT '', -- follows ff_execution_capabilities, by trigger
    attempt_index           INTEGER NOT NULL DEFAULT 0,
    lifecycle_phase         TEXT NOT NULL,
    ownership_state         TEXT NOT NULL,
    eligibility_state       TEXT NOT NULL,
    public_state            TEXT NOT NULL,
    attempt_state           TEXT NOT NULL,
    blocking_reason         TEXT,
    cancellation_reason     TEXT,
    cancelled_by            TEXT,
    priority                INTEGER NOT NULL DEFAULT 0,
    created_at_ms           INTEGER NOT NULL,
    terminal_at_ms          INTEGER,
    deadline_at_ms          INTEGER,
    payload                 BLOB,
    result                  BLOB,
    policy                  TEXT,
    raw_fields              TEXT NOT NULL DEFAULT '{}',
    started_at_ms           INTEGER,
    lease_reclaim_count     INTEGER NOT NULL DEFAULT 0,
    delay_until_ms          INTEGER,
    namespace               TEXT,
    instance_tag            TEXT,
    last_mutation_at_ms     INTEGER,
    total_attempt_count     INTEGER,
    retry_count             INTEGER,
    budget_ids              TEXT,
    quota_policy_id         TEXT,
    blocked_by              TEXT,
    signal_count            INTEGER,
    admitted_at_ms          INTEGER,
    fair_rank               INTEGER NOT NULL DEFAULT 0,
    fair_key                TEXT,
    terminal_outcome        TEXT,
    failure_reason          TEXT,
    last_failure_message    TEXT,
    blocking_detail         TEXT,
    lease_expired_at_ms     INTEGER,
    lease_revoke_reason     TEXT,
    purge_at_ms             INTEGER,
    pending_retry_reason    TEXT,
    pending_previous_attempt_index INTEGER,
    claimable INTEGER GENERATED ALWAYS AS
        (eligibility_state = 'eligible_now' AND lifecycle_phase IN ('runnable', 'submitted', 'pending', 'eligible', 'blocked')) VIRTUAL,
    PRIMARY KEY (partition_key, execution_id)
);

-- The queue: one ordered run per lane and requirement set. Workers ask for the sets they cover.
CREATE INDEX ff_exec_core_claim_idx ON ff_exec_core (lane_id, requirement_key, priority DESC, fair_rank, created_at_ms, execution_id)
    WHERE claimable;
-- The same by namespace, for workers that take work of some namespaces only.
CREATE INDEX ff_exec_core_claim_within_idx
    ON ff_exec_core (lane_id, namespace, requirement_key, priority DESC, fair_rank, created_at_ms, execution_id)
    WHERE claimable;
CREATE INDEX ff_exec_core_intake_idx ON ff_exec_core (created_at_ms) WHERE lifecycle_phase = 'submitted';
CREATE INDEX ff_exec_core_blocked_idx ON ff_exec_core (eligibility_state, lane_id, created_at_ms)
    WHERE eligibility_state IN ('blocked_by_budget', 'blocked_by_quota', 'blocked_by_route', 'blocked_by_lane_state');
-- Who holds a slot of a quota.
CREATE INDEX ff_exec_core_slots_idx ON ff_exec_core (quota_policy_id) WHERE admitted_at_ms > 0;
-- Who waits for room in a budget or quota, in claim order.
CREATE INDEX ff_exec_core_waiting_idx ON ff_exec_core (blocked_by, priority DESC, created_at_ms, execution_id)
    WHERE eligibility_state IN ('blocked_by_budget', 'blocked_by_quota');
-- Who names a budget and has not ended.
CREATE INDEX ff_exec_core_budget_idx ON ff_exec_core (budget_ids) WHERE budget_ids IS NOT NULL AND terminal_at_ms IS NULL;
CREATE INDEX ff_exec_core_flow_idx ON ff_exec_core (partition_key, flow_id, execution_id) WHERE flow_id IS NOT NULL;
CREATE INDEX ff_exec_core_waiting_children_idx ON ff_exec_core (partition_key, execution_id)
    WHERE eligibility_state = 'blocked_by_dependencies';
CREATE INDEX ff_exec_core_deadline_idx ON ff_exec_core (deadline_at_ms)
    WHERE deadline_at_ms IS NOT NULL AND terminal_at_ms IS NULL;
-- A member that waits for others keeps its own wake time; it counts from when nothing else holds the member back.
CREATE INDEX ff_exec_core_delay_idx ON ff_exec_core (delay_until_ms)
    WHERE delay_until_ms IS NOT NULL AND eligibility_state <> 'blocked_by_dependencies';
CREATE INDEX ff_exec_core_terminal_idx ON ff_exec_core (terminal_at_ms)
    WHERE terminal_at_ms IS NOT NULL AND purge_at_ms IS NULL;
CREATE INDEX ff_exec_core_purge_idx ON ff_exec_core (purge_at_ms) WHERE purge_at_ms IS NOT NULL;

CREATE TABLE ff_execution_capabilities (
    execution_id BLOB NOT NULL,
    capability   TEXT NOT NULL,
    PRIMARY KEY (execution_id, capability)
) WITHOUT ROWID;

CREATE INDEX ff_execution_capabilities_capability_idx ON ff_execution_capabilities (capability, execution_id);

-- requirement_key follows the junction, whoever writes to it and in whatever order.
CREATE TRIGGER ff_execution_capabilities_added AFTER INSERT ON ff_execution_capabilities BEGIN
    UPDATE ff_exec_core SET requirement_key = coalesce((
        SELECT group_concat(capability, ',') FROM
            (SELECT capability FROM ff_execution_capabilities WHERE execution_id = NEW.execution_id ORDER BY capability)), '')
    WHERE execution_id = NEW.execution_id AND partition_key = 0;
END;

CREATE TRIGGER ff_execution_capabilities_removed AFTER DELETE ON ff_execution_capabilities BEGIN
    UPDATE ff_exec_core SET requirement_key = coalesce((
        SELECT group_concat(capability, ',') FROM
            (SELECT capability FROM ff_execution_capabilities WHERE execution_id = OLD.execution_id ORDER BY capability)), '')
    WHERE execution_id = OLD.execution_id AND partition_key = 0;
END;

CREATE TRIGGER ff_execution_capabilities_changed AFTER UPDATE ON ff_execution_capabilities BEGIN
    UPDATE ff_exec_core SET requirement_key = coalesce((
        SELECT group_concat(capability, ',') FROM
            (SELECT capability FROM ff_execution_capabilities WHERE execution_id = OLD.execution_id ORDER BY capability)), '')
    WHERE execution_id = OLD.execution_id AND partition_key = 0;
    UPDATE ff_exec_core SET requirement_key = coalesce((
        SELECT group_concat(capability, ',') FROM
            (SELECT capability FROM ff_execution_capabilities WHERE execution_id = NEW.execution_id ORDER BY capability)), '')
    WHERE execution_id = NEW.execution_id AND partition_key = 0;
END;

CREATE TRIGGER ff_exec_core_added AFTER INSERT ON ff_exec_core
WHEN NEW.requirement_key = '' AND EXISTS (SELECT 1 FROM ff_execution_capabilities WHERE execution_id = NEW.execution_id)
BEGIN
    UPDATE ff_exec_core SET requirement_key = coalesce((
        SELECT group_concat(capability, ',') FROM
            (SELECT capability FROM ff_execution_capabilities WHERE execution_id = NEW.execution_id ORDER BY capability)), '')
    WHERE execution_id = NEW.execution_id AND partition_key = 0;
END;

CREATE TABLE ff_attempt (
    partition_key         INTEGER NOT NULL,
    execution_id          BLOB NOT NULL,
    attempt_index         INTEGER NOT NULL,
    worker_id             TEXT,
    worker_instance_id    TEXT,
    lease_epoch           INTEGER NOT NULL DEFAULT 0,
    lease_expires_at_ms   INTEGER,
    started_at_ms         INTEGER,
    terminal_at_ms        INTEGER,
    outcome               TEXT,
    usage                 TEXT,
    policy                TEXT,
    raw_fields            TEXT NOT NULL DEFAULT '{}',
    attempt_id            TEXT,
    lease_id              TEXT,
    attempt_type          TEXT,
    attempt_timeout_at_ms INTEGER,
    retry_at_ms           INTEGER,
    renewed_at_ms         INTEGER,
    reservation_count     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_key, execution_id, attempt_index)
);

CREATE INDEX ff_attempt_lease_expiry_idx ON ff_attempt (lease_expires_at_ms) WHERE lease_expires_at_ms IS NOT NULL;
CREATE INDEX ff_attempt_timeout_idx ON ff_attempt (attempt_timeout_at_ms) WHERE attempt_timeout_at_ms IS NOT NULL;

CREATE TABLE ff_claim_grant (
    partition_key       INTEGER NOT NULL,
    grant_id            BLOB NOT NULL,
    execution_id        BLOB NOT NULL,
    kind                TEXT NOT NULL CHECK (kind IN ('claim', 'reclaim')),
    worker_id           TEXT NOT NULL,
    worker_instance_id  TEXT NOT NULL,
    lane_id             TEXT,
    capability_hash     TEXT,
    worker_capabilities TEXT NOT NULL DEFAULT '[]',
    route_snapshot_json TEXT,
    admission_summary   TEXT,
    grant_ttl_ms        INTEGER NOT NULL,
    issued_at_ms        INTEGER NOT NULL,
    expires_at_ms       INTEGER NOT NULL,
    PRIMARY KEY (partition_key, grant_id)
);

CREATE INDEX ff_claim_grant_execution_idx ON ff_claim_grant (partition_key, execution_id);
CREATE INDEX ff_claim_grant_expiry_idx ON ff_claim_grant (expires_at_ms);

CREATE TABLE ff_exec_idempotency (
    namespace       TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    partition_key   INTEGER NOT NULL,
    execution_id    BLOB NOT NULL,
    created_at_ms   INTEGER NOT NULL,
    expires_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (namespace, idempotency_key)
);

CREATE INDEX ff_exec_idempotency_expiry_idx ON ff_exec_idempotency (expires_at_ms);
CREATE INDEX ff_exec_idempotency_execution_idx ON ff_exec_idempotency (execution_id);

-- Flows ------------------------------------------------------------------------------------------------------------

CREATE TABLE ff_flow_core (
    partition_key     INTEGER NOT NULL,
    flow_id           BLOB NOT NULL,
    graph_revision    INTEGER NOT NULL DEFAULT 0,
    public_flow_state TEXT NOT NULL,
    created_at_ms     INTEGER NOT NULL,
    terminal_at_ms    INTEGER,
    raw_fields        TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (partition_key, flow_id)
);

CREATE TABLE ff_edge (
    partition_key  INTEGER NOT NULL,
    flow_id        BLOB NOT NULL,
    edge_id        BLOB NOT NULL,
    upstream_eid   BLOB NOT NULL,
    downstream_eid BLOB NOT NULL,
    policy         TEXT NOT NULL,
    policy_version INTEGER NOT NULL DEFAULT 0,
    edge_state     TEXT NOT NULL DEFAULT 'pending',
    applied_at_ms  INTEGER,
    resolved_at_ms INTEGER,
    PRIMARY KEY (partition_key, flow_id, edge_id)
);

CREATE INDEX ff_edge_downstream_idx ON ff_edge (partition_key, flow_id, downstream_eid);
-- What changes when an edge is resolved is in no index.
CREATE INDEX ff_edge_upstream_idx ON ff_edge (partition_key, flow_id, upstream_eid, edge_id);

CREATE TABLE ff_edge_group (
    partition_key    INTEGER NOT NULL,
    flow_id          BLOB NOT NULL,
    downstream_eid   BLOB NOT NULL,
    policy           TEXT NOT NULL,
    k_target         INTEGER NOT NULL DEFAULT 0,
    success_count    INTEGER NOT NULL DEFAULT 0,
    fail_count       INTEGER NOT NULL DEFAULT 0,
    skip_count       INTEGER NOT NULL DEFAULT 0,
    running_count    INTEGER NOT NULL DEFAULT 0,
    cancel_siblings_pending_flag    INTEGER NOT NULL DEFAULT 0,
    cancel_siblings_pending_members TEXT NOT NULL DEFAULT '[]',
    group_state            TEXT NOT NULL DEFAULT 'pending',
    satisfied_at_ms        INTEGER,
    cancel_siblings_reason TEXT,
    -- How many edges count; empty in rows written by hand, where the counters tell.
    applied_count          INTEGER,
    PRIMARY KEY (partition_key, flow_id, downstream_eid)
) WITHOUT ROWID;

CREATE INDEX ff_edge_group_flag_idx ON ff_edge_group (partition_key, flow_id, downstream_eid)
    WHERE cancel_siblings_pending_flag;

CREATE TABLE ff_pending_cancel_groups (
    partition_key  INTEGER NOT NULL,
    flow_id        BLOB NOT NULL,
    downstream_eid BLOB NOT NULL,
    enqueued_at_ms INTEGER NOT NULL,
    PRIMARY KEY (partition_key, flow_id, downstream_eid)
);

CREATE INDEX ff_pending_cancel_groups_enqueued_idx ON ff_pending_cancel_groups (partition_key, enqueued_at_ms);

CREATE TABLE ff_cancel_dispatch_outbox (
    partition_key  INTEGER NOT NULL,
    flow_id        BLOB NOT NULL,
    downstream_eid BLOB NOT NULL,
    target_exec_id BLOB NOT NULL,
    reason         TEXT NOT NULL,
    enqueued_at_ms INTEGER NOT NULL,
    PRIMARY KEY (partition_key, flow_id, downstream_eid, target_exec_id)
);

CREATE INDEX ff_cancel_dispatch_outbox_enqueued_idx ON ff_cancel_dispatch_outbox (partition_key, enqueued_at_ms);

CREATE TABLE ff_cancel_backlog (
    partition_key       INTEGER NOT NULL,
    flow_id             BLOB NOT NULL,
    requested_at_ms     INTEGER NOT NULL,
    requester           TEXT NOT NULL DEFAULT '',
    reason              TEXT NOT NULL DEFAULT '',
    grace_until_ms      INTEGER,
    cancellation_policy TEXT NOT NULL,
    status              TEXT NOT NULL DEFAULT 'pending',
    PRIMARY KEY (partition_key, flow_id)
);

CREATE INDEX ff_cancel_backlog_grace_idx ON ff_cancel_backlog (partition_key, grace_until_ms)
    WHERE grace_until_ms IS NOT NULL;

CREATE TABLE ff_cancel_backlog_member (
    partition_key INTEGER NOT NULL,
    flow_id       BLOB NOT NULL,
    execution_id  TEXT NOT NULL,
    PRIMARY KEY (partition_key, flow_id, execution_id)
);

-- Suspension -------------------------------------------------------------------------------------------------------

CREATE TABLE ff_suspension_current (
    partition_key    INTEGER NOT NULL,
    execution_id     BLOB NOT NULL,
    suspension_id    BLOB NOT NULL,
    suspended_at_ms  INTEGER NOT NULL,
    timeout_at_ms    INTEGER,
    reason_code      TEXT,
    condition        TEXT NOT NULL,
    satisfied_set    TEXT NOT NULL DEFAULT '[]',
    member_map       TEXT NOT NULL DEFAULT '{}',
    timeout_behavior TEXT,
    closed_at_ms     INTEGER,
    close_reason     TEXT,
    closer_signal_id TEXT,
    attempt_index    INTEGER,
    PRIMARY KEY (partition_key, execution_id)
);

CREATE INDEX ff_suspension_current_suspended_idx ON ff_suspension_current (partition_key, suspended_at_ms);
CREATE INDEX ff_suspension_current_timeout_idx ON ff_suspension_current (timeout_at_ms)
    WHERE timeout_at_ms IS NOT NULL AND closed_at_ms IS NULL;

CREATE TABLE ff_waitpoint_pending (
    partition_key         INTEGER NOT NULL,
    waitpoint_id          BLOB NOT NULL,
    execution_id          BLOB NOT NULL,
    token_kid             TEXT NOT NULL,
    token                 TEXT NOT NULL,
    created_at_ms         INTEGER NOT NULL,
    expires_at_ms         INTEGER,
    condition             TEXT,
    waitpoint_key         TEXT NOT NULL DEFAULT '',
    state                 TEXT NOT NULL DEFAULT 'pending',
    required_signal_names TEXT NOT NULL DEFAULT '[]',
    activated_at_ms       INTEGER,
    closed_at_ms          INTEGER,
    close_reason          TEXT,
    attempt_index         INTEGER,
    signal_count          INTEGER NOT NULL DEFAULT 0,
    matched_signal_count  INTEGER NOT NULL DEFAULT 0,
    last_signal_at_ms     INTEGER,
    PRIMARY KEY (partition_key, waitpoint_id)
);

CREATE INDEX ff_waitpoint_pending_expiry_idx ON ff_waitpoint_pending (expires_at_ms)
    WHERE expires_at_ms IS NOT NULL AND state = 'pending';
CREATE INDEX ff_waitpoint_pending_execution_idx ON ff_waitpoint_pending (partition_key, execution_id);

CREATE TABLE ff_suspend_dedup (
    partition_key   INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    outcome_json    TEXT NOT NULL,
    created_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (partition_key, idempotency_key)
);

-- Streams ----------------------------------------------------------------------------------------------------------

CREATE TABLE ff_stream_frame (
    partition_key INTEGER NOT NULL,
    execution_id  BLOB NOT NULL,
    attempt_index INTEGER NOT NULL,
    ts_ms         INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    fields        TEXT NOT NULL,
    mode          TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (partition_key, execution_id, attempt_index, ts_ms, seq)
);

CREATE TABLE ff_stream_summary (
    partition_key    INTEGER NOT NULL,
    execution_id     BLOB NOT NULL,
    attempt_index    INTEGER NOT NULL,
    document_json    TEXT NOT NULL,
    version          INTEGER NOT NULL DEFAULT 0,
    patch_kind       TEXT,
    last_updated_ms  INTEGER NOT NULL,
    first_applied_ms INTEGER NOT NULL,
    PRIMARY KEY (partition_key, execution_id, attempt_index)
);

-- frame_count, last_ts_ms and last_seq are counted from the frames while they are empty.
CREATE TABLE ff_stream_meta (
    partition_key       INTEGER NOT NULL,
    execution_id        BLOB NOT NULL,
    attempt_index       INTEGER NOT NULL,
    ema_rate_hz         REAL NOT NULL DEFAULT 0,
    last_append_ts_ms   INTEGER NOT NULL DEFAULT 0,
    maxlen_applied_last INTEGER NOT NULL DEFAULT 0,
    frame_count         INTEGER,
    last_ts_ms          INTEGER,
    last_seq            INTEGER,
    last_numbered       TEXT,
    PRIMARY KEY (partition_key, execution_id, attempt_index)
);

-- Outboxes ---------------------------------------------------------------------------------------------------------
-- Written in the transaction of the change they tell of; event_id is the only order.

CREATE TABLE ff_completion_event (
    event_id         INTEGER PRIMARY KEY AUTOINCREMENT,
    partition_key    INTEGER NOT NULL,
    execution_id     BLOB NOT NULL,
    flow_id          BLOB,
    outcome          TEXT NOT NULL,
    namespace        TEXT,
    instance_tag     TEXT,
    occurred_at_ms   INTEGER NOT NULL,
    committed_at_ms  INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    dispatched_at_ms INTEGER
);

CREATE INDEX ff_completion_event_pending_dispatch_idx ON ff_completion_event (partition_key, committed_at_ms)
    WHERE dispatched_at_ms IS NULL;
CREATE INDEX ff_completion_event_undispatched_idx ON ff_completion_event (partition_key, execution_id)
    WHERE dispatched_at_ms IS NULL;

CREATE TABLE ff_lease_event (
    event_id           INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id       TEXT NOT NULL,
    lease_id           TEXT,
    event_type         TEXT NOT NULL,
    occurred_at_ms     INTEGER NOT NULL,
    partition_key      INTEGER NOT NULL,
    namespace          TEXT,
    instance_tag       TEXT,
    worker_instance_id TEXT,
    revoked_by         TEXT
);

CREATE TABLE ff_operator_event (
    event_id       INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id   TEXT NOT NULL,
    event_type     TEXT NOT NULL CHECK (event_type IN
        ('priority_changed', 'replayed', 'flow_cancel_requested',
         'lane_activated', 'lane_paused', 'lane_draining', 'lane_disabled',
         'schedule_created', 'schedule_changed', 'schedule_paused', 'schedule_resumed', 'schedule_deleted')),
    details        TEXT,
    occurred_at_ms INTEGER NOT NULL,
    partition_key  INTEGER NOT NULL,
    namespace      TEXT,
    instance_tag   TEXT
);

CREATE TABLE ff_signal_event (
    event_id        INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id    TEXT NOT NULL,
    signal_id       TEXT NOT NULL,
    waitpoint_id    TEXT,
    source_identity TEXT,
    delivered_at_ms INTEGER NOT NULL,
    partition_key   INTEGER NOT NULL,
    namespace       TEXT,
    instance_tag    TEXT,
    effect          TEXT NOT NULL DEFAULT 'satisfied'
);

CREATE TABLE ff_instance_tag_event (
    event_id       INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id   TEXT NOT NULL,
    event_type     TEXT NOT NULL,
    tag            TEXT NOT NULL,
    occurred_at_ms INTEGER NOT NULL,
    partition_key  INTEGER NOT NULL,
    namespace      TEXT
);

-- Workers ----------------------------------------------------------------------------------------------------------

CREATE TABLE ff_worker_registry (
    namespace          TEXT NOT NULL,
    worker_instance_id TEXT NOT NULL,
    worker_id          TEXT NOT NULL,
    lanes              TEXT NOT NULL,
    capabilities_csv   TEXT NOT NULL,
    last_heartbeat_ms  INTEGER NOT NULL,
    liveness_ttl_ms    INTEGER NOT NULL,
    registered_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (namespace, worker_instance_id)
);

CREATE INDEX ff_worker_registry_ns_inst_idx ON ff_worker_registry (namespace, worker_instance_id);

CREATE TABLE ff_worker_registry_event (
    namespace          TEXT NOT NULL,
    worker_instance_id TEXT NOT NULL,
    event_at_ms        INTEGER NOT NULL,
    event_kind         TEXT NOT NULL,
    reason             TEXT,
    PRIMARY KEY (namespace, worker_instance_id, event_at_ms, event_kind)
);
