"""How records map to tables: one description that every SQL store follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from flowfabric.model.budget_records import (
    Budget,
    BudgetAsk,
    BudgetDedup,
    BudgetSpend,
    BudgetUsage,
    QuotaAdmitted,
    QuotaPolicy,
    QuotaWindow,
    Reservation,
)
from flowfabric.model.changes import Key
from flowfabric.model.credentials import Credential
from flowfabric.model.doors import AuditEntry, KeptAnswer
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent, SignalEvent
from flowfabric.model.leases import PastLease
from flowfabric.model.records import (
    Attempt,
    Binding,
    CancelBacklog,
    CancelBacklogMember,
    Edge,
    EdgeGroup,
    Execution,
    Flow,
    FlowCounts,
    FrameRow,
    Grant,
    Lane,
    PendingCancelGroup,
    Signal,
    SignalDedup,
    SigningKey,
    StreamHead,
    StreamSummary,
    SuspendDedup,
    Suspension,
    Waitpoint,
    Worker,
    WorkerEvent,
)
from flowfabric.model.start_records import Burst, EnqueueRequest, Schedule
from flowfabric.model.steps import Step

# Column types. Stores translate them; "names" is a sorted tuple of texts, "requirement" the set a worker must cover.
TEXT = "text"
SMALL = "small"
INT = "int"
BIG = "big"
REAL = "real"
BOOL = "bool"
UUID = "uuid"
BYTES = "bytes"
JSON = "json"
NAMES = "names"
REQUIREMENT = "requirement"


class Column(Struct, frozen=True):
    """A record's field and the column it lives in."""

    field: str
    name: str
    type: str


class Table(Struct, frozen=True):
    """A record kind and its table. ``key`` names the fields of the primary key."""

    kind: Any
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    #: Inserting a row that exists is not an error.
    repeatable: bool = False

    def column(self, field: str) -> Column | None:
        """The column of a field; ``None`` for fields that are worked out rather than stored."""
        for column in self.columns:
            if column.field == field:
                return column
        return None


def _columns(**types: str) -> tuple[Column, ...]:
    renamed = {"partition": "partition_key", "uuid": "execution_id", "upstream": "upstream_eid"}
    renamed |= {"downstream": "downstream_eid", "parent": "parent_eid"}
    return tuple(Column(field, renamed.get(field, field), kind) for field, kind in types.items())


EXECUTION = Table(
    Execution,
    "ff_exec_core",
    _columns(
        partition=SMALL,
        uuid=UUID,
        flow_id=UUID,
        lane_id=TEXT,
        required_capabilities=REQUIREMENT,
        attempt_index=INT,
        lifecycle_phase=TEXT,
        ownership_state=TEXT,
        eligibility_state=TEXT,
        public_state=TEXT,
        attempt_state=TEXT,
        blocking_reason=TEXT,
        priority=INT,
        created_at_ms=BIG,
        terminal_at_ms=BIG,
        deadline_at_ms=BIG,
        started_at_ms=BIG,
        lease_reclaim_count=INT,
        delay_until_ms=BIG,
        policy=JSON,
        namespace=TEXT,
        instance_tag=TEXT,
        last_mutation_at_ms=BIG,
        total_attempt_count=INT,
        retry_count=INT,
        budget_ids=TEXT,
        quota_policy_id=TEXT,
        blocked_by=TEXT,
        signal_count=INT,
        admitted_at_ms=BIG,
        fair_rank=BIG,
        fair_key=TEXT,
        parent=UUID,
        payload=BYTES,
        result=BYTES,
        raw_fields=JSON,
        cancellation_reason=TEXT,
        cancelled_by=TEXT,
        terminal_outcome=TEXT,
        failure_reason=TEXT,
        last_failure_message=TEXT,
        blocking_detail=TEXT,
        lease_expired_at_ms=BIG,
        lease_revoke_reason=TEXT,
        purge_at_ms=BIG,
        pending_retry_reason=TEXT,
        pending_previous_attempt_index=INT,
    ),
    ("partition", "uuid"),
)

ATTEMPT = Table(
    Attempt,
    "ff_attempt",
    _columns(
        partition=SMALL,
        uuid=UUID,
        attempt_index=INT,
        worker_id=TEXT,
        worker_instance_id=TEXT,
        lease_epoch=BIG,
        lease_expires_at_ms=BIG,
        started_at_ms=BIG,
        terminal_at_ms=BIG,
        outcome=TEXT,
        attempt_id=TEXT,
        lease_id=TEXT,
        attempt_type=TEXT,
        attempt_timeout_at_ms=BIG,
        retry_at_ms=BIG,
        renewed_at_ms=BIG,
        reservation_count=INT,
        policy=JSON,
    ),
    ("partition", "uuid", "attempt_index"),
)

TABLES: Mapping[Any, Table] = {
    table.kind: table
    for table in (
        EXECUTION,
        ATTEMPT,
        Table(
            Grant,
            "ff_claim_grant",
            _columns(
                partition=SMALL,
                grant_id=BYTES,
                uuid=UUID,
                kind=TEXT,
                worker_id=TEXT,
                worker_instance_id=TEXT,
                lane_id=TEXT,
                capability_hash=TEXT,
                worker_capabilities=JSON,
                route_snapshot_json=TEXT,
                admission_summary=TEXT,
                grant_ttl_ms=BIG,
                issued_at_ms=BIG,
                expires_at_ms=BIG,
            ),
            ("partition", "grant_id"),
        ),
        Table(
            Binding,
            "ff_exec_idempotency",
            _columns(
                namespace=TEXT,
                idempotency_key=TEXT,
                partition=SMALL,
                uuid=UUID,
                created_at_ms=BIG,
                expires_at_ms=BIG,
            ),
            ("namespace", "idempotency_key"),
        ),
        Table(
            Lane,
            "ff_lane_registry",
            _columns(
                lane_id=TEXT,
                registered_at_ms=BIG,
                registered_by=TEXT,
                state=TEXT,
                state_reason=TEXT,
                state_changed_at_ms=BIG,
                fair_by=TEXT,
                fair_pending=BOOL,
                fair_changed_at_ms=BIG,
            ),
            ("lane_id",),
        ),
        Table(
            SigningKey,
            "ff_waitpoint_hmac",
            _columns(kid=TEXT, secret=BYTES, rotated_at_ms=BIG, active=BOOL, expires_at_ms=BIG),
            ("kid",),
        ),
        Table(
            Flow,
            "ff_flow_core",
            _columns(
                partition=SMALL,
                flow_id=UUID,
                graph_revision=BIG,
                public_flow_state=TEXT,
                created_at_ms=BIG,
                terminal_at_ms=BIG,
                raw_fields=JSON,
            ),
            ("partition", "flow_id"),
        ),
        Table(
            Edge,
            "ff_edge",
            _columns(
                partition=SMALL,
                flow_id=UUID,
                edge_id=UUID,
                upstream=UUID,
                downstream=UUID,
                policy=JSON,
                policy_version=INT,
                edge_state=TEXT,
                applied_at_ms=BIG,
                resolved_at_ms=BIG,
            ),
            ("partition", "flow_id", "edge_id"),
        ),
        Table(
            EdgeGroup,
            "ff_edge_group",
            _columns(
                partition=SMALL,
                flow_id=UUID,
                downstream=UUID,
                policy=JSON,
                k_target=INT,
                success_count=INT,
                fail_count=INT,
                skip_count=INT,
                running_count=INT,
                group_state=TEXT,
                satisfied_at_ms=BIG,
                applied_count=INT,
                cancel_siblings_pending_flag=BOOL,
                cancel_siblings_pending_members=NAMES,
                cancel_siblings_reason=TEXT,
            ),
            ("partition", "flow_id", "downstream"),
        ),
        Table(
            PendingCancelGroup,
            "ff_pending_cancel_groups",
            _columns(partition=SMALL, flow_id=UUID, downstream=UUID, enqueued_at_ms=BIG),
            ("partition", "flow_id", "downstream"),
            repeatable=True,
        ),
        Table(
            FlowCounts,
            "ff_flow_summary",
            _columns(
                partition=SMALL,
                flow_id=UUID,
                total_members=BIG,
                sampled_members=INT,
                members_completed=INT,
                members_failed=INT,
                members_cancelled=INT,
                members_expired=INT,
                members_skipped=INT,
                members_active=INT,
                members_suspended=INT,
                members_waiting=INT,
                members_delayed=INT,
                members_rate_limited=INT,
                members_waiting_children=INT,
                public_flow_state=TEXT,
                last_summary_update_at=BIG,
            ),
            ("partition", "flow_id"),
        ),
        Table(
            CancelBacklog,
            "ff_cancel_backlog",
            _columns(
                partition=SMALL,
                flow_id=UUID,
                requested_at_ms=BIG,
                requester=TEXT,
                reason=TEXT,
                grace_until_ms=BIG,
                cancellation_policy=TEXT,
                status=TEXT,
            ),
            ("partition", "flow_id"),
        ),
        Table(
            CancelBacklogMember,
            "ff_cancel_backlog_member",
            _columns(partition=SMALL, flow_id=UUID, execution_id=TEXT),
            ("partition", "flow_id", "execution_id"),
        ),
        Table(
            Suspension,
            "ff_suspension_current",
            _columns(
                partition=SMALL,
                uuid=UUID,
                suspension_id=UUID,
                suspended_at_ms=BIG,
                timeout_at_ms=BIG,
                reason_code=TEXT,
                condition=JSON,
                satisfied_set=JSON,
                member_map=JSON,
                timeout_behavior=TEXT,
                closed_at_ms=BIG,
                close_reason=TEXT,
                closer_signal_id=TEXT,
                attempt_index=INT,
                wake_after=INT,
            ),
            ("partition", "uuid"),
        ),
        Table(
            PastLease,
            "ff_past_lease",
            _columns(
                partition=SMALL,
                uuid=UUID,
                lease_epoch=BIG,
                attempt_index=INT,
                lease_id=TEXT,
                worker_id=TEXT,
                worker_instance_id=TEXT,
                began_at_ms=BIG,
                ended_at_ms=BIG,
                ended=TEXT,
                reason=TEXT,
            ),
            ("partition", "uuid", "lease_epoch"),
        ),
        Table(
            Step,
            "ff_step",
            _columns(
                partition=SMALL,
                uuid=UUID,
                name=TEXT,
                sequence=INT,
                attempt_index=INT,
                lease_epoch=BIG,
                outcome=TEXT,
                value=BYTES,
                recorded_at_ms=BIG,
            ),
            ("partition", "uuid", "name"),
        ),
        Table(
            Waitpoint,
            "ff_waitpoint_pending",
            _columns(
                partition=SMALL,
                waitpoint_id=UUID,
                uuid=UUID,
                state=TEXT,
                closed_at_ms=BIG,
                close_reason=TEXT,
                token_kid=TEXT,
                token=TEXT,
                created_at_ms=BIG,
                expires_at_ms=BIG,
                waitpoint_key=TEXT,
                required_signal_names=NAMES,
                activated_at_ms=BIG,
                attempt_index=INT,
                signal_count=INT,
                matched_signal_count=INT,
                last_signal_at_ms=BIG,
            ),
            ("partition", "waitpoint_id"),
        ),
        Table(
            Signal,
            "ff_signal",
            _columns(
                partition=SMALL,
                uuid=UUID,
                signal_id=UUID,
                sequence=INT,
                waitpoint_id=UUID,
                waitpoint_key=TEXT,
                signal_name=TEXT,
                signal_category=TEXT,
                source_type=TEXT,
                source_identity=TEXT,
                correlation_id=TEXT,
                idempotency_key=TEXT,
                payload=BYTES,
                payload_encoding=TEXT,
                target_scope=TEXT,
                created_at_ms=BIG,
                accepted_at_ms=BIG,
                effect=TEXT,
            ),
            ("partition", "uuid", "signal_id"),
        ),
        Table(
            SignalDedup,
            "ff_signal_dedup",
            _columns(partition=SMALL, waitpoint_id=UUID, idempotency_key=TEXT, signal_id=UUID, expires_at_ms=BIG),
            ("partition", "waitpoint_id", "idempotency_key"),
        ),
        Table(
            SuspendDedup,
            "ff_suspend_dedup",
            _columns(partition=SMALL, idempotency_key=TEXT, outcome_json=JSON, created_at_ms=BIG),
            ("partition", "idempotency_key"),
        ),
        Table(
            FrameRow,
            "ff_stream_frame",
            _columns(
                partition=SMALL,
                uuid=UUID,
                attempt_index=INT,
                ts_ms=BIG,
                seq=INT,
                fields=JSON,
                mode=TEXT,
                created_at_ms=BIG,
            ),
            ("partition", "uuid", "attempt_index", "ts_ms", "seq"),
        ),
        Table(
            StreamHead,
            "ff_stream_meta",
            _columns(
                partition=SMALL,
                uuid=UUID,
                attempt_index=INT,
                ema_rate_hz=REAL,
                last_append_ts_ms=BIG,
                maxlen_applied_last=INT,
                frame_count=INT,
                last_ts_ms=BIG,
                last_seq=INT,
                last_numbered=TEXT,
            ),
            ("partition", "uuid", "attempt_index"),
        ),
        Table(
            StreamSummary,
            "ff_stream_summary",
            _columns(
                partition=SMALL,
                uuid=UUID,
                attempt_index=INT,
                document_json=JSON,
                version=INT,
                patch_kind=TEXT,
                last_updated_ms=BIG,
                first_applied_ms=BIG,
            ),
            ("partition", "uuid", "attempt_index"),
        ),
        Table(
            Worker,
            "ff_worker_registry",
            _columns(
                namespace=TEXT,
                worker_instance_id=TEXT,
                worker_id=TEXT,
                lanes=NAMES,
                capabilities_csv=TEXT,
                last_heartbeat_ms=BIG,
                liveness_ttl_ms=BIG,
                registered_at_ms=BIG,
            ),
            ("namespace", "worker_instance_id"),
        ),
        Table(
            WorkerEvent,
            "ff_worker_registry_event",
            _columns(namespace=TEXT, worker_instance_id=TEXT, event_kind=TEXT, event_at_ms=BIG, reason=TEXT),
            ("namespace", "worker_instance_id", "event_at_ms", "event_kind"),
            repeatable=True,
        ),
        Table(
            Budget,
            "ff_budget_policy",
            _columns(
                partition=SMALL,
                budget_id=TEXT,
                policy_json=JSON,
                created_at_ms=BIG,
                updated_at_ms=BIG,
                scope_type=TEXT,
                scope_id=TEXT,
                enforcement_mode=TEXT,
                breach_count=BIG,
                soft_breach_count=BIG,
                last_breach_at_ms=BIG,
                last_breach_dim=TEXT,
                next_reset_at_ms=BIG,
                ancestor_ids=TEXT,
                reset_count=BIG,
                last_reset_at_ms=BIG,
                breached_at_ms=BIG,
                waiting_since_ms=BIG,
                cancelling_since_ms=BIG,
            ),
            ("budget_id",),
        ),
        Table(
            BudgetUsage,
            "ff_budget_usage",
            _columns(
                partition=SMALL,
                budget_id=TEXT,
                dimensions_key=TEXT,
                current_value=BIG,
                last_reset_at_ms=BIG,
                updated_at_ms=BIG,
                reserved_value=BIG,
                granted_value=BIG,
            ),
            ("partition", "budget_id", "dimensions_key"),
        ),
        Table(
            BudgetDedup,
            "ff_budget_usage_dedup",
            _columns(partition=SMALL, dedup_key=TEXT, outcome_json=JSON, applied_at_ms=BIG, expires_at_ms=BIG),
            ("partition", "dedup_key"),
        ),
        Table(
            BudgetSpend,
            "ff_budget_usage_by_exec",
            _columns(
                partition=SMALL,
                budget_id=TEXT,
                uuid=UUID,
                dimensions_key=TEXT,
                delta_total=BIG,
                updated_at_ms=BIG,
                reset_count=BIG,
                levels=JSON,
            ),
            ("partition", "budget_id", "uuid", "dimensions_key"),
        ),
        Table(
            Reservation,
            "ff_budget_reservation",
            _columns(
                reservation_id=UUID,
                partition=SMALL,
                uuid=UUID,
                attempt_index=INT,
                lease_epoch=BIG,
                budget_id=TEXT,
                amounts=JSON,
                state=TEXT,
                created_at_ms=BIG,
                closed_at_ms=BIG,
                granted=JSON,
            ),
            ("reservation_id",),
        ),
        Table(
            BudgetAsk,
            "ff_budget_ask",
            _columns(partition=SMALL, uuid=UUID, budget_id=TEXT, amounts=JSON, suspension_id=UUID, asked_at_ms=BIG),
            ("partition", "uuid", "budget_id"),
        ),
        Table(
            QuotaPolicy,
            "ff_quota_policy",
            _columns(
                partition=SMALL,
                quota_policy_id=TEXT,
                requests_per_window_seconds=BIG,
                max_requests_per_window=BIG,
                active_concurrency_cap=BIG,
                active_concurrency=BIG,
                created_at_ms=BIG,
                updated_at_ms=BIG,
                waiting_since_ms=BIG,
                next_room_at_ms=BIG,
                uneven=BOOL,
            ),
            ("quota_policy_id",),
        ),
        Table(
            QuotaWindow,
            "ff_quota_window",
            _columns(
                partition=SMALL,
                quota_policy_id=TEXT,
                dimension=TEXT,
                admitted_at_ms=BIG,
                execution_id=TEXT,
                expires_at_ms=BIG,
                number=BIG,
            ),
            ("partition", "quota_policy_id", "dimension", "admitted_at_ms", "execution_id"),
            repeatable=True,
        ),
        Table(
            QuotaAdmitted,
            "ff_quota_admitted",
            _columns(
                partition=SMALL,
                quota_policy_id=TEXT,
                execution_id=TEXT,
                admitted_at_ms=BIG,
                expires_at_ms=BIG,
                dimension=TEXT,
                counted=BOOL,
            ),
            ("partition", "quota_policy_id", "execution_id"),
        ),
        Table(
            Schedule,
            "ff_schedule",
            _columns(
                namespace=TEXT,
                schedule_id=TEXT,
                partition=SMALL,
                lane_id=TEXT,
                execution_kind=TEXT,
                payload=BYTES,
                payload_encoding=TEXT,
                priority=INT,
                policy=JSON,
                tags=JSON,
                cron=TEXT,
                time_zone=TEXT,
                every_ms=BIG,
                anchor_ms=BIG,
                overlap=TEXT,
                catch_up=TEXT,
                catch_up_limit=INT,
                jitter_ms=BIG,
                paused=BOOL,
                next_at_ms=BIG,
                revision=BIG,
                created_at_ms=BIG,
                updated_at_ms=BIG,
                source=TEXT,
                last_slot_ms=BIG,
                last_execution_id=TEXT,
                last_started_at_ms=BIG,
                started_count=BIG,
                last_skipped_ms=BIG,
                last_skip_reason=TEXT,
                skipped_count=BIG,
            ),
            ("namespace", "schedule_id"),
        ),
        Table(
            EnqueueRequest,
            "ff_enqueue_request",
            _columns(
                request_id=UUID,
                requested_at_ms=BIG,
                execution_id=TEXT,
                command=JSON,
                error=TEXT,
                refused_at_ms=BIG,
            ),
            ("request_id",),
        ),
        Table(
            KeptAnswer,
            "ff_kept_answer",
            _columns(
                owner=TEXT,
                idempotency_key=TEXT,
                fingerprint=TEXT,
                status=INT,
                media=TEXT,
                body=BYTES,
                expires_at_ms=BIG,
            ),
            ("owner", "idempotency_key"),
        ),
        Table(
            AuditEntry,
            "ff_audit",
            _columns(audit_id=TEXT, at_ms=BIG, who=TEXT, act=TEXT, subject=TEXT, status=INT),
            ("audit_id",),
        ),
        Table(
            Credential,
            "ff_credential",
            _columns(
                credential_id=TEXT,
                name=TEXT,
                digest=TEXT,
                scopes=TEXT,
                namespaces=TEXT,
                created_at_ms=BIG,
                expires_at_ms=BIG,
                revoked_at_ms=BIG,
            ),
            ("credential_id",),
        ),
        Table(
            Burst,
            "ff_debounce",
            _columns(
                namespace=TEXT,
                debounce_key=TEXT,
                partition=SMALL,
                uuid=UUID,
                first_at_ms=BIG,
                until_ms=BIG,
            ),
            ("namespace", "debounce_key"),
        ),
    )
}

#: Outboxes. In the lease, operator and tag outboxes the id column is text; in the completion outbox it is a UUID.
OUTBOXES: Mapping[Any, Table] = {
    table.kind: table
    for table in (
        Table(
            LeaseEvent,
            "ff_lease_event",
            (
                Column("partition", "partition_key", INT),
                Column("uuid", "execution_id", TEXT),
                Column("lease_id", "lease_id", TEXT),
                Column("event_type", "event_type", TEXT),
                Column("occurred_at_ms", "occurred_at_ms", BIG),
                Column("namespace", "namespace", TEXT),
                Column("instance_tag", "instance_tag", TEXT),
                Column("worker_instance_id", "worker_instance_id", TEXT),
                Column("revoked_by", "revoked_by", TEXT),
            ),
            ("event_id",),
        ),
        Table(
            CompletionEvent,
            "ff_completion_event",
            (
                Column("partition", "partition_key", SMALL),
                Column("uuid", "execution_id", UUID),
                Column("flow_id", "flow_id", UUID),
                Column("outcome", "outcome", TEXT),
                Column("namespace", "namespace", TEXT),
                Column("instance_tag", "instance_tag", TEXT),
                Column("occurred_at_ms", "occurred_at_ms", BIG),
                Column("dispatched_at_ms", "dispatched_at_ms", BIG),
            ),
            ("event_id",),
        ),
        Table(
            OperatorEvent,
            "ff_operator_event",
            (
                Column("partition", "partition_key", INT),
                Column("subject", "execution_id", TEXT),
                Column("event_type", "event_type", TEXT),
                Column("details", "details", JSON),
                Column("occurred_at_ms", "occurred_at_ms", BIG),
                Column("namespace", "namespace", TEXT),
                Column("instance_tag", "instance_tag", TEXT),
            ),
            ("event_id",),
        ),
        Table(
            SignalEvent,
            "ff_signal_event",
            (
                Column("partition", "partition_key", INT),
                Column("uuid", "execution_id", TEXT),
                Column("signal_id", "signal_id", TEXT),
                Column("waitpoint_id", "waitpoint_id", TEXT),
                Column("source_identity", "source_identity", TEXT),
                Column("occurred_at_ms", "delivered_at_ms", BIG),
                Column("namespace", "namespace", TEXT),
                Column("instance_tag", "instance_tag", TEXT),
                Column("effect", "effect", TEXT),
            ),
            ("event_id",),
        ),
        Table(
            InstanceTagEvent,
            "ff_instance_tag_event",
            (
                Column("partition", "partition_key", INT),
                Column("uuid", "execution_id", TEXT),
                Column("tag", "tag", TEXT),
                Column("event_type", "event_type", TEXT),
                Column("occurred_at_ms", "occurred_at_ms", BIG),
                Column("namespace", "namespace", TEXT),
            ),
            ("event_id",),
        ),
    )
}

#: Tables that hold rows of one execution, children first, with the column that names it.
EXECUTION_SCOPED = (
    "ff_stream_frame",
    "ff_stream_summary",
    "ff_stream_meta",
    "ff_claim_grant",
    "ff_suspension_current",
    "ff_waitpoint_pending",
    "ff_signal",
    "ff_step",
    "ff_past_lease",
    "ff_attempt",
    "ff_exec_idempotency",
    "ff_budget_reservation",
    "ff_budget_ask",
    "ff_debounce",
)
#: Tables that name an execution in rows of their own partition: the table, and how it spells the execution.
EXECUTION_NAMED = (
    ("ff_budget_usage_by_exec", "uuid"),
    ("ff_quota_admitted", "wire"),
)

#: What its signals used up goes by the execution's waitpoints, so it goes before them.
DROP_SIGNAL_KEYS = (
    "DELETE FROM ff_signal_dedup WHERE partition_key = {} AND waitpoint_id IN "
    "(SELECT w.waitpoint_id FROM ff_waitpoint_pending w WHERE w.partition_key = {} AND w.execution_id = {})"
)

#: Tables that hold rows of one flow.
FLOW_SCOPED = (
    "ff_edge",
    "ff_edge_group",
    "ff_pending_cancel_groups",
    "ff_cancel_dispatch_outbox",
    "ff_cancel_backlog_member",
    "ff_cancel_backlog",
    "ff_flow_summary",
    "ff_flow_core",
)

_WIRE_KEYED = frozenset({Execution, Attempt, StreamHead, StreamSummary, FrameRow})


def split_wire(execution_id: str) -> tuple[int, str]:
    """Partition and bare UUID of an execution id."""
    close = execution_id.index("}")
    return int(execution_id[4:close]), execution_id[close + 2 :]


def key_values(kind: Any, key: Key) -> tuple[Any, ...]:
    """The values of the primary key's columns, in the order of ``Table.key``."""
    if kind not in _WIRE_KEYED:
        return key if isinstance(key, tuple) else (key,)
    if isinstance(key, tuple):
        return (*split_wire(key[0]), *key[1:])
    return split_wire(key)


def is_wire_keyed(kind: Any) -> bool:
    """Whether records of a kind begin with the wire id, which no column holds."""
    return kind in _WIRE_KEYED
