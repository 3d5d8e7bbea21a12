-- Executions, their attempts, grants and streams, the registries, and the outboxes.
-- Tables are flat: partition_key is a column like any other, because ids carry it.

-- Registries and configuration -------------------------------------------------------------------------------------

CREATE TABLE ff_lane_registry (
    lane_id          text NOT NULL PRIMARY KEY,
    registered_at_ms bigint NOT NULL,
    registered_by    text NOT NULL,
    state            text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'draining', 'disabled'))
);

CREATE TABLE ff_partition_config (
    singleton_lock        boolean NOT NULL DEFAULT true PRIMARY KEY CHECK (singleton_lock = true),
    num_flow_partitions   integer NOT NULL,
    num_budget_partitions integer NOT NULL,
    num_quota_partitions  integer NOT NULL,
    ff_version            text NOT NULL
);

INSERT INTO ff_partition_config (num_flow_partitions, num_budget_partitions, num_quota_partitions, ff_version)
VALUES (256, 32, 32, '0.1.0');

CREATE TABLE ff_waitpoint_hmac (
    kid           text NOT NULL PRIMARY KEY,
    secret        bytea NOT NULL,
    rotated_at_ms bigint NOT NULL,
    active        boolean NOT NULL DEFAULT true,
    expires_at_ms bigint
);

-- Executions -------------------------------------------------------------------------------------------------------
-- Columns behind raw_fields hold what changes often, so that a busy row never rewrites its document. Left empty, they
-- mean "look in raw_fields".

-- One short key per requirement set: a set itself may be longer than an index entry can be.
CREATE FUNCTION ff_requirement_key(required text[]) RETURNS text IMMUTABLE PARALLEL SAFE LANGUAGE sql AS
    $$ SELECT CASE WHEN cardinality(required) = 0 THEN '' ELSE md5(array_to_string(required, ',')) END $$;

CREATE TABLE ff_exec_core (
    partition_key           smallint NOT NULL,
    execution_id            uuid NOT NULL,
    flow_id                 uuid,
    lane_id                 text NOT NULL,
    required_capabilities   text[] NOT NULL DEFAULT '{}',
    attempt_index           integer NOT NULL DEFAULT 0,
    lifecycle_phase         text NOT NULL,
    ownership_state         text NOT NULL,
    eligibility_state       text NOT NULL,
    public_state            text NOT NULL,
    attempt_state           text NOT NULL,
    blocking_reason         text,
    cancellation_reason     text,
    cancelled_by            text,
    priority                integer NOT NULL DEFAULT 0,
    created_at_ms           bigint NOT NULL,
    terminal_at_ms          bigint,
    deadline_at_ms          bigint,
    payload                 bytea,
    result                  bytea,
    policy                  jsonb,
    raw_fields              jsonb NOT NULL DEFAULT '{}'::jsonb,
    started_at_ms           bigint,
    lease_reclaim_count     integer NOT NULL DEFAULT 0,
    delay_until_ms          bigint,
    namespace               text,
    instance_tag            text,
    last_mutation_at_ms     bigint,
    total_attempt_count     integer,
    retry_count             integer,
    budget_ids              text,
    quota_policy_id         text,
    blocked_by              text,
    signal_count            integer,
    admitted_at_ms          bigint,
    fair_rank               bigint NOT NULL DEFAULT 0,
    fair_key                text,
    terminal_outcome        text,
    failure_reason          text,
    last_failure_message    text,
    blocking_detail         text,
    lease_expired_at_ms     bigint,
    lease_revoke_reason     text,
    purge_at_ms             bigint,
    pending_retry_reason    text,
    pending_previous_attempt_index integer,
    requirement_key text GENERATED ALWAYS AS (ff_requirement_key(required_capabilities)) STORED,
    claimable boolean GENERATED ALWAYS AS
        (eligibility_state = 'eligible_now' AND lifecycle_phase IN ('runnable', 'submitted', 'pending', 'eligible', 'blocked')) STORED,
    PRIMARY KEY (partition_key, execution_id)
) WITH (fillfactor = 80);

-- Rows change a few times within seconds and leave dead entries at the head of the queue: clean up early.
ALTER TABLE ff_exec_core SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

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

CREATE TABLE ff_attempt (
    partition_key         smallint NOT NULL,
    execution_id          uuid NOT NULL,
    attempt_index         integer NOT NULL,
    worker_id             text,
    worker_instance_id    text,
    lease_epoch           bigint NOT NULL DEFAULT 0,
    lease_expires_at_ms   bigint,
    started_at_ms         bigint,
    terminal_at_ms        bigint,
    outcome               text,
    usage                 jsonb,
    policy                jsonb,
    raw_fields            jsonb NOT NULL DEFAULT '{}'::jsonb,
    attempt_id            text,
    lease_id              text,
    attempt_type          text,
    attempt_timeout_at_ms bigint,
    retry_at_ms           bigint,
    renewed_at_ms         bigint,
    reservation_count     integer NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_key, execution_id, attempt_index)
) WITH (fillfactor = 80);

ALTER TABLE ff_attempt SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

CREATE INDEX ff_attempt_lease_expiry_idx ON ff_attempt (lease_expires_at_ms) WHERE lease_expires_at_ms IS NOT NULL;
CREATE INDEX ff_attempt_timeout_idx ON ff_attempt (attempt_timeout_at_ms) WHERE attempt_timeout_at_ms IS NOT NULL;

CREATE TABLE ff_claim_grant (
    partition_key       smallint NOT NULL,
    grant_id            bytea NOT NULL,
    execution_id        uuid NOT NULL,
    kind                text NOT NULL CHECK (kind IN ('claim', 'reclaim')),
    worker_id           text NOT NULL,
    worker_instance_id  text NOT NULL,
    lane_id             text,
    capability_hash     text,
    worker_capabilities jsonb NOT NULL DEFAULT '[]'::jsonb,
    route_snapshot_json text,
    admission_summary   text,
    grant_ttl_ms        bigint NOT NULL,
    issued_at_ms        bigint NOT NULL,
    expires_at_ms       bigint NOT NULL,
    PRIMARY KEY (partition_key, grant_id)
);

CREATE INDEX ff_claim_grant_execution_idx ON ff_claim_grant (partition_key, execution_id);
CREATE INDEX ff_claim_grant_expiry_idx ON ff_claim_grant (expires_at_ms);

CREATE TABLE ff_exec_idempotency (
    namespace       text NOT NULL,
    idempotency_key text NOT NULL,
    partition_key   smallint NOT NULL,
    execution_id    uuid NOT NULL,
    created_at_ms   bigint NOT NULL,
    expires_at_ms   bigint NOT NULL,
    PRIMARY KEY (namespace, idempotency_key)
);

CREATE INDEX ff_exec_idempotency_expiry_idx ON ff_exec_idempotency (expires_at_ms);
CREATE INDEX ff_exec_idempotency_execution_idx ON ff_exec_idempotency (execution_id);

-- Flows ------------------------------------------------------------------------------------------------------------

CREATE TABLE ff_flow_core (
    partition_key     smallint NOT NULL,
    flow_id           uuid NOT NULL,
    graph_revision    bigint NOT NULL DEFAULT 0,
    public_flow_state text NOT NULL,
    created_at_ms     bigint NOT NULL,
    terminal_at_ms    bigint,
    raw_fields        jsonb NOT NULL DEFAULT '{}'::jsonb,
    PRIMARY KEY (partition_key, flow_id)
);

CREATE TABLE ff_edge (
    partition_key  smallint NOT NULL,
    flow_id        uuid NOT NULL,
    edge_id        uuid NOT NULL,
    upstream_eid   uuid NOT NULL,
    downstream_eid uuid NOT NULL,
    policy         jsonb NOT NULL,
    policy_version integer NOT NULL DEFAULT 0,
    edge_state     text NOT NULL DEFAULT 'pending',
    applied_at_ms  bigint,
    resolved_at_ms bigint,
    PRIMARY KEY (partition_key, flow_id, edge_id)
) WITH (fillfactor = 70);

CREATE INDEX ff_edge_downstream_idx ON ff_edge (partition_key, flow_id, downstream_eid);
-- What changes when an edge is resolved is in no index.
CREATE INDEX ff_edge_upstream_idx ON ff_edge (partition_key, flow_id, upstream_eid, edge_id);

CREATE TABLE ff_edge_group (
    partition_key    smallint NOT NULL,
    flow_id          uuid NOT NULL,
    downstream_eid   uuid NOT NULL,
    policy           jsonb NOT NULL,
    k_target         integer NOT NULL DEFAULT 0,
    success_count    integer NOT NULL DEFAULT 0,
    fail_count       integer NOT NULL DEFAULT 0,
    skip_count       integer NOT NULL DEFAULT 0,
    running_count    integer NOT NULL DEFAULT 0,
    cancel_siblings_pending_flag    boolean NOT NULL DEFAULT false,
    cancel_siblings_pending_members text[] NOT NULL DEFAULT '{}',
    group_state            text NOT NULL DEFAULT 'pending',
    satisfied_at_ms        bigint,
    cancel_siblings_reason text,
    -- How many edges count; empty in rows written by hand, where the counters tell.
    applied_count          integer,
    PRIMARY KEY (partition_key, flow_id, downstream_eid)
) WITH (fillfactor = 70);

CREATE INDEX ff_edge_group_flag_idx ON ff_edge_group (partition_key, flow_id, downstream_eid)
    WHERE cancel_siblings_pending_flag;

CREATE TABLE ff_pending_cancel_groups (
    partition_key  smallint NOT NULL,
    flow_id        uuid NOT NULL,
    downstream_eid uuid NOT NULL,
    enqueued_at_ms bigint NOT NULL,
    PRIMARY KEY (partition_key, flow_id, downstream_eid)
);

CREATE INDEX ff_pending_cancel_groups_enqueued_idx ON ff_pending_cancel_groups (partition_key, enqueued_at_ms);

CREATE TABLE ff_cancel_dispatch_outbox (
    partition_key  smallint NOT NULL,
    flow_id        uuid NOT NULL,
    downstream_eid uuid NOT NULL,
    target_exec_id uuid NOT NULL,
    reason         text NOT NULL,
    enqueued_at_ms bigint NOT NULL,
    PRIMARY KEY (partition_key, flow_id, downstream_eid, target_exec_id)
);

CREATE INDEX ff_cancel_dispatch_outbox_enqueued_idx ON ff_cancel_dispatch_outbox (partition_key, enqueued_at_ms);

CREATE TABLE ff_cancel_backlog (
    partition_key       smallint NOT NULL,
    flow_id             uuid NOT NULL,
    requested_at_ms     bigint NOT NULL,
    requester           text NOT NULL DEFAULT '',
    reason              text NOT NULL DEFAULT '',
    grace_until_ms      bigint,
    cancellation_policy text NOT NULL,
    status              text NOT NULL DEFAULT 'pending',
    PRIMARY KEY (partition_key, flow_id)
);

CREATE INDEX ff_cancel_backlog_grace_idx ON ff_cancel_backlog (partition_key, grace_until_ms)
    WHERE grace_until_ms IS NOT NULL;

CREATE TABLE ff_cancel_backlog_member (
    partition_key smallint NOT NULL,
    flow_id       uuid NOT NULL,
    execution_id  text NOT NULL,
    PRIMARY KEY (partition_key, flow_id, execution_id)
);

-- Suspension -------------------------------------------------------------------------------------------------------

CREATE TABLE ff_suspension_current (
    partition_key    smallint NOT NULL,
    execution_id     uuid NOT NULL,
    suspension_id    uuid NOT NULL,
    suspended_at_ms  bigint NOT NULL,
    timeout_at_ms    bigint,
    reason_code      text,
    condition        jsonb NOT NULL,
    satisfied_set    jsonb NOT NULL DEFAULT '[]'::jsonb,
    member_map       jsonb NOT NULL DEFAULT '{}'::jsonb,
    timeout_behavior text,
    closed_at_ms     bigint,
    close_reason     text,
    closer_signal_id text,
    attempt_index    integer,
    PRIMARY KEY (partition_key, execution_id)
);

CREATE INDEX ff_suspension_current_suspended_idx ON ff_suspension_current (partition_key, suspended_at_ms);
CREATE INDEX ff_suspension_current_timeout_idx ON ff_suspension_current (timeout_at_ms)
    WHERE timeout_at_ms IS NOT NULL AND closed_at_ms IS NULL;

CREATE TABLE ff_waitpoint_pending (
    partition_key         smallint NOT NULL,
    waitpoint_id          uuid NOT NULL,
    execution_id          uuid NOT NULL,
    token_kid             text NOT NULL,
    token                 text NOT NULL,
    created_at_ms         bigint NOT NULL,
    expires_at_ms         bigint,
    condition             jsonb,
    waitpoint_key         text NOT NULL DEFAULT '',
    state                 text NOT NULL DEFAULT 'pending',
    required_signal_names text[] NOT NULL DEFAULT '{}',
    activated_at_ms       bigint,
    closed_at_ms          bigint,
    close_reason          text,
    attempt_index         integer,
    signal_count          integer NOT NULL DEFAULT 0,
    matched_signal_count  integer NOT NULL DEFAULT 0,
    last_signal_at_ms     bigint,
    PRIMARY KEY (partition_key, waitpoint_id)
);

CREATE INDEX ff_waitpoint_pending_expiry_idx ON ff_waitpoint_pending (expires_at_ms)
    WHERE expires_at_ms IS NOT NULL AND state = 'pending';
CREATE INDEX ff_waitpoint_pending_execution_idx ON ff_waitpoint_pending (partition_key, execution_id);

CREATE TABLE ff_suspend_dedup (
    partition_key   smallint NOT NULL,
    idempotency_key text NOT NULL,
    outcome_json    jsonb NOT NULL,
    created_at_ms   bigint NOT NULL,
    PRIMARY KEY (partition_key, idempotency_key)
);

-- Streams ----------------------------------------------------------------------------------------------------------

CREATE TABLE ff_stream_frame (
    partition_key smallint NOT NULL,
    execution_id  uuid NOT NULL,
    attempt_index integer NOT NULL,
    ts_ms         bigint NOT NULL,
    seq           integer NOT NULL,
    fields        jsonb NOT NULL,
    mode          text NOT NULL,
    created_at_ms bigint NOT NULL,
    PRIMARY KEY (partition_key, execution_id, attempt_index, ts_ms, seq)
);

CREATE TABLE ff_stream_summary (
    partition_key    smallint NOT NULL,
    execution_id     uuid NOT NULL,
    attempt_index    integer NOT NULL,
    document_json    jsonb NOT NULL,
    version          integer NOT NULL DEFAULT 0,
    patch_kind       text,
    last_updated_ms  bigint NOT NULL,
    first_applied_ms bigint NOT NULL,
    PRIMARY KEY (partition_key, execution_id, attempt_index)
);

-- frame_count, last_ts_ms and last_seq are counted from the frames while they are empty.
CREATE TABLE ff_stream_meta (
    partition_key       smallint NOT NULL,
    execution_id        uuid NOT NULL,
    attempt_index       integer NOT NULL,
    ema_rate_hz         double precision NOT NULL DEFAULT 0,
    last_append_ts_ms   bigint NOT NULL DEFAULT 0,
    maxlen_applied_last integer NOT NULL DEFAULT 0,
    frame_count         integer,
    last_ts_ms          bigint,
    last_seq            integer,
    last_numbered       text,
    PRIMARY KEY (partition_key, execution_id, attempt_index)
);

-- Outboxes ---------------------------------------------------------------------------------------------------------
-- Written in the transaction of the change they tell of; event_id is the only order.

CREATE TABLE ff_completion_event (
    event_id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    partition_key    smallint NOT NULL,
    execution_id     uuid NOT NULL,
    flow_id          uuid,
    outcome          text NOT NULL,
    namespace        text,
    instance_tag     text,
    occurred_at_ms   bigint NOT NULL,
    committed_at_ms  bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    dispatched_at_ms bigint
);

CREATE INDEX ff_completion_event_pending_dispatch_idx ON ff_completion_event (partition_key, committed_at_ms)
    WHERE dispatched_at_ms IS NULL;
CREATE INDEX ff_completion_event_undispatched_idx ON ff_completion_event (partition_key, execution_id)
    WHERE dispatched_at_ms IS NULL;

CREATE TABLE ff_lease_event (
    event_id           bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    execution_id       text NOT NULL,
    lease_id           text,
    event_type         text NOT NULL,
    occurred_at_ms     bigint NOT NULL,
    partition_key      integer NOT NULL,
    namespace          text,
    instance_tag       text,
    worker_instance_id text,
    revoked_by         text
);

CREATE TABLE ff_operator_event (
    event_id       bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    execution_id   text NOT NULL,
    event_type     text NOT NULL CHECK (event_type IN
        ('priority_changed', 'replayed', 'flow_cancel_requested',
         'lane_activated', 'lane_paused', 'lane_draining', 'lane_disabled',
         'schedule_created', 'schedule_changed', 'schedule_paused', 'schedule_resumed', 'schedule_deleted')),
    details        jsonb,
    occurred_at_ms bigint NOT NULL,
    partition_key  integer NOT NULL,
    namespace      text,
    instance_tag   text
);

CREATE TABLE ff_signal_event (
    event_id        bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    execution_id    text NOT NULL,
    signal_id       text NOT NULL,
    waitpoint_id    text,
    source_identity text,
    delivered_at_ms bigint NOT NULL,
    partition_key   integer NOT NULL,
    namespace       text,
    instance_tag    text,
    effect          text NOT NULL DEFAULT 'satisfied'
);

CREATE TABLE ff_instance_tag_event (
    event_id       bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    execution_id   text NOT NULL,
    event_type     text NOT NULL,
    tag            text NOT NULL,
    occurred_at_ms bigint NOT NULL,
    partition_key  integer NOT NULL,
    namespace      text
);

-- Workers ----------------------------------------------------------------------------------------------------------

CREATE TABLE ff_worker_registry (
    partition_key      smallint NOT NULL,
    namespace          text NOT NULL,
    worker_instance_id text NOT NULL,
    worker_id          text NOT NULL,
    lanes              text[] NOT NULL,
    capabilities_csv   text NOT NULL,
    last_heartbeat_ms  bigint NOT NULL,
    liveness_ttl_ms    bigint NOT NULL,
    registered_at_ms   bigint NOT NULL,
    PRIMARY KEY (partition_key, namespace, worker_instance_id)
);

CREATE INDEX ff_worker_registry_ns_inst_idx ON ff_worker_registry (namespace, worker_instance_id);

CREATE TABLE ff_worker_registry_event (
    partition_key      smallint NOT NULL,
    namespace          text NOT NULL,
    worker_instance_id text NOT NULL,
    event_at_ms        bigint NOT NULL,
    event_kind         text NOT NULL,
    reason             text,
    PRIMARY KEY (partition_key, namespace, worker_instance_id, event_at_ms, event_kind)
);
