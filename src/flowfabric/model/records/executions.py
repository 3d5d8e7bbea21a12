"""Records of executions, attempts and leases: one small struct per row.

A record holds stored literals as plain ``str``, exactly as the row has them, because rows may be written by people with
SQL; rules read them through the sets of ``model.states``. Hot records are narrow: fields that few rules read
(``payload``, ``result``, ``raw_fields`` and texts for people) stay ``UNSET`` until a rule asks for the full record,
and are written without ever being read.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from flowfabric.model.operations.access import AuditEntry, Credential, KeptAnswer
from flowfabric.model.operations.kinds import KindDefinition
from flowfabric.model.operations.workflows import Step
from flowfabric.model.reads.samples import SampleRow
from flowfabric.model.records.budgets import (
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
from flowfabric.model.records.flows import (
    CancelBacklog,
    CancelBacklogMember,
    Edge,
    EdgeGroup,
    Flow,
    FlowCounts,
    PendingCancelGroup,
)
from flowfabric.model.records.past_leases import PastLease
from flowfabric.model.records.starts import Burst, EnqueueRequest, Schedule
from flowfabric.model.records.streams import FrameRow, StreamHead, StreamSummary
from flowfabric.model.secrets import Discreet

Text: TypeAlias = str | None | UnsetType
Number: TypeAlias = int | None | UnsetType


class Execution(Struct, gc=False):
    """The authority record of one execution (``ff_exec_core``)."""

    execution_id: str
    partition: int
    uuid: str
    flow_id: str | None
    lane_id: str
    required_capabilities: tuple[str, ...]
    attempt_index: int
    lifecycle_phase: str
    ownership_state: str
    eligibility_state: str
    public_state: str
    attempt_state: str
    blocking_reason: str | None
    priority: int
    created_at_ms: int
    terminal_at_ms: int | None
    deadline_at_ms: int | None
    started_at_ms: int | None
    lease_reclaim_count: int
    delay_until_ms: int | None
    policy: str | None
    namespace: str | None
    instance_tag: str | None
    last_mutation_at_ms: int | None
    total_attempt_count: int
    retry_count: int
    #: Names of the budgets its claims and charges must fit, comma separated: its policy's and those of its flow.
    budget_ids: str | None = None
    quota_policy_id: str | None = None
    #: The budget or quota that keeps it blocked, for those that make room there. Means nothing in any other state.
    blocked_by: str | None = None
    #: Signals recorded so far; ``None`` until the execution has its first waitpoint.
    signal_count: int | None = None
    #: When its quota admitted it; empty while it takes no slot there.
    admitted_at_ms: int | None = None
    #: Whether it may hold slots of quotas that it does not name, which its end gives back.
    guarded: bool | None = None
    #: Its place among waiting executions of equal priority, and whose turn it takes; see ``core.lanes.fairness``.
    fair_rank: int = 0
    fair_key: str | None = None
    #: Bare UUID of the execution that started this one and is told when it ends; it lives in the same partition.
    parent: str | None = None
    #: When an execution that was asked to cancel is ended anyway; empty unless it was asked.
    cancel_at_ms: int | None = None
    #: Signals recorded before its last replay, which counts from zero again; their numbers continue.
    earlier_signals: int | None = None
    #: When it was suspended last; empty if it never was, or by an earlier release.
    suspended_at_ms: int | None = None
    #: Highest epoch among earlier attempts; worked out when the row is read, never stored.
    epoch_floor: int = 0
    payload: bytes | None | UnsetType = UNSET
    result: bytes | None | UnsetType = UNSET
    raw_fields: str | UnsetType = UNSET
    cancellation_reason: Text = UNSET
    cancelled_by: Text = UNSET
    terminal_outcome: Text = UNSET
    failure_reason: Text = UNSET
    last_failure_message: Text = UNSET
    blocking_detail: Text = UNSET
    lease_expired_at_ms: Number = UNSET
    lease_revoke_reason: Text = UNSET
    #: When an ended execution goes, if its own policy says so; empty means the operator's retention decides.
    purge_at_ms: Number = UNSET
    pending_retry_reason: Text = UNSET
    pending_previous_attempt_index: Number = UNSET

    @property
    def key(self) -> str:
        return self.execution_id


#: Fields of an execution that are loaded only when a rule or a reader asks for the full record.
EXECUTION_WIDE_FIELDS = (
    "payload",
    "result",
    "raw_fields",
    "cancellation_reason",
    "cancelled_by",
    "terminal_outcome",
    "failure_reason",
    "last_failure_message",
    "blocking_detail",
    "lease_expired_at_ms",
    "lease_revoke_reason",
    "purge_at_ms",
    "pending_retry_reason",
    "pending_previous_attempt_index",
)


class Attempt(Struct, gc=False):
    """One attempt and, while it runs, its lease (``ff_attempt``)."""

    execution_id: str
    partition: int
    uuid: str
    attempt_index: int
    worker_id: str | None = None
    worker_instance_id: str | None = None
    lease_epoch: int = 0
    lease_expires_at_ms: int | None = None
    started_at_ms: int | None = None
    terminal_at_ms: int | None = None
    outcome: str | None = None
    attempt_id: str | None = None
    lease_id: str | None = None
    attempt_type: str | None = None
    attempt_timeout_at_ms: int | None = None
    #: When the retry that this failed attempt scheduled falls due; kept for repeated ``fail`` calls.
    retry_at_ms: int | None = None
    renewed_at_ms: int | None = None
    #: Open reservations under this lease, so that one without any costs nothing when it ends.
    reservation_count: int = 0
    #: The instance its last lease was held by, once that is over; for people, so no rule that runs often reads it.
    last_instance_id: Text = UNSET
    policy: Text = UNSET

    @property
    def key(self) -> tuple[str, int]:
        return (self.execution_id, self.attempt_index)


class Grant(Struct, gc=False):
    """Permission for one worker to claim or reclaim one execution (``ff_claim_grant``)."""

    partition: int
    grant_id: bytes
    uuid: str
    kind: str
    worker_id: str
    worker_instance_id: str
    lane_id: str | None
    capability_hash: str | None
    worker_capabilities: str
    route_snapshot_json: str | None
    admission_summary: str | None
    grant_ttl_ms: int
    issued_at_ms: int
    expires_at_ms: int

    @property
    def key(self) -> tuple[int, bytes]:
        return (self.partition, self.grant_id)


class Binding(Struct, gc=False):
    """An idempotency key bound to the execution it created (``ff_exec_idempotency``)."""

    namespace: str
    idempotency_key: str
    partition: int
    uuid: str
    created_at_ms: int
    expires_at_ms: int

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.idempotency_key)


class Lane(Struct, gc=False):
    """A lane that has been seen (``ff_lane_registry``)."""

    lane_id: str
    registered_at_ms: int
    registered_by: str
    state: str = "active"
    state_reason: str | None = None
    state_changed_at_ms: int | None = None
    fair_by: str | None = None
    fair_pending: bool = False
    fair_changed_at_ms: int | None = None

    @property
    def key(self) -> str:
        return self.lane_id


class SigningKey(Discreet, Struct, gc=False):
    """A secret that signs waitpoint tokens and grant keys (``ff_waitpoint_hmac``)."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"secret"})

    kid: str
    secret: bytes
    rotated_at_ms: int
    active: bool
    #: Until when a key that signs no longer still verifies; empty means for ever.
    expires_at_ms: int | None = None

    @property
    def key(self) -> str:
        return self.kid


class Suspension(Struct, gc=False):
    """The suspension an execution is in, or was in last (``ff_suspension_current``). One with ``closed_at_ms`` is over.

    ``member_map`` holds the signals that count towards the condition, by waitpoint key; everything that was ever
    delivered is in ``Signal`` rows.
    """

    partition: int
    uuid: str
    suspension_id: str
    suspended_at_ms: int
    timeout_at_ms: int | None
    reason_code: str | None
    condition: str = "{}"
    satisfied_set: str = "[]"
    member_map: str = "{}"
    timeout_behavior: str | None = None
    closed_at_ms: int | None = None
    close_reason: str | None = None
    closer_signal_id: str | None = None
    attempt_index: int | None = None
    #: Set while a durable function is parked: how many more of its children must end to wake it; 0 if only time does.
    #: Below 0 the first that does not succeed wakes it, too.
    wake_after: int | None = None

    @property
    def key(self) -> tuple[int, str]:
        return (self.partition, self.uuid)


class Waitpoint(Discreet, Struct, gc=False):
    """A mailbox for signals (``ff_waitpoint_pending``, which holds the others too)."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"token"})

    partition: int
    waitpoint_id: str
    uuid: str
    state: str
    closed_at_ms: int | None
    close_reason: str | None
    token_kid: str = ""
    token: str = ""
    created_at_ms: int = 0
    expires_at_ms: int | None = None
    waitpoint_key: str = ""
    required_signal_names: tuple[str, ...] = ()
    activated_at_ms: int | None = None
    attempt_index: int | None = None
    signal_count: int = 0
    matched_signal_count: int = 0
    last_signal_at_ms: int | None = None

    @property
    def key(self) -> tuple[int, str]:
        return (self.partition, self.waitpoint_id)


class Signal(Struct, gc=False):
    """One delivered signal (``ff_signal``). ``sequence`` numbers those of an execution in the order of acceptance."""

    partition: int
    uuid: str
    signal_id: str
    sequence: int
    waitpoint_id: str
    waitpoint_key: str
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    correlation_id: str | None
    idempotency_key: str | None
    payload: bytes | None
    payload_encoding: str
    target_scope: str
    created_at_ms: int
    accepted_at_ms: int
    effect: str

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.uuid, self.signal_id)


class SignalDedup(Struct, gc=False):
    """An idempotency key that a signal used up on one waitpoint (``ff_signal_dedup``)."""

    partition: int
    waitpoint_id: str
    idempotency_key: str
    signal_id: str
    expires_at_ms: int

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.waitpoint_id, self.idempotency_key)


class SuspendDedup(Discreet, Struct, gc=False):
    """The answer to a ``suspend`` with an idempotency key (``ff_suspend_dedup``), tokens included."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"outcome_json"})

    partition: int
    #: ``<execution uuid>:<key>``.
    idempotency_key: str
    outcome_json: str
    created_at_ms: int

    @property
    def key(self) -> tuple[int, str]:
        return (self.partition, self.idempotency_key)


class Worker(Struct, gc=False):
    """A registered worker process (``ff_worker_registry``)."""

    namespace: str
    worker_instance_id: str
    worker_id: str
    lanes: tuple[str, ...]
    capabilities_csv: str
    last_heartbeat_ms: int
    liveness_ttl_ms: int
    registered_at_ms: int
    #: How many executions it runs at once; nothing if it did not say.
    slots: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.worker_instance_id)


class GoneWorker(Struct, gc=False):
    """A worker process that has left the registry, for a while (``ff_worker_gone``)."""

    namespace: str
    worker_instance_id: str
    worker_id: str
    lanes: tuple[str, ...]
    capabilities_csv: str
    last_heartbeat_ms: int
    registered_at_ms: int
    gone_at_ms: int
    #: What it was marked dead for; nothing if it fell silent.
    reason: str | None
    slots: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.worker_instance_id)


class WorkerEvent(Struct, gc=False):
    """One line of the registry's history (``ff_worker_registry_event``); repeats are ignored."""

    namespace: str
    worker_instance_id: str
    event_kind: str
    event_at_ms: int
    reason: str | None

    @property
    def key(self) -> tuple[str, str, int, str]:
        return (self.namespace, self.worker_instance_id, self.event_at_ms, self.event_kind)


Record: TypeAlias = (
    Execution
    | Attempt
    | Grant
    | Binding
    | Lane
    | SigningKey
    | Flow
    | Edge
    | EdgeGroup
    | PendingCancelGroup
    | FlowCounts
    | CancelBacklog
    | CancelBacklogMember
    | Suspension
    | Waitpoint
    | Signal
    | SignalDedup
    | SuspendDedup
    | FrameRow
    | StreamHead
    | StreamSummary
    | Worker
    | WorkerEvent
    | GoneWorker
    | Budget
    | BudgetAsk
    | BudgetUsage
    | BudgetDedup
    | BudgetSpend
    | Reservation
    | QuotaPolicy
    | QuotaWindow
    | QuotaAdmitted
    | Step
    | PastLease
    | Schedule
    | EnqueueRequest
    | Burst
    | Credential
    | KeptAnswer
    | AuditEntry
    | SampleRow
    | KindDefinition
)
