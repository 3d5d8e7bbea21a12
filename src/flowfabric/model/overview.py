"""What people who look after a system ask: how much of what there is, what an execution went through, who waits."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.model.ids import ExecutionId, FlowId
from flowfabric.model.leases import LeaseEnd
from flowfabric.model.search import QueueDepth


class Pulse(Struct, frozen=True):
    """How much there is of what has not ended. Counts stop at ``MAX_COUNTED``."""

    at_ms: int
    active: int
    suspended: int
    delayed: int
    #: Set aside by a budget, a quota, a lane or for want of a worker.
    blocked: int
    #: Members of flows that wait for others.
    dependent: int
    #: Members of cancelled flows that have not been reached yet.
    cancel_backlog: int
    workers: int
    queues: tuple[QueueDepth, ...]


class Ended(Struct, frozen=True):
    """How many executions ended in one way in one stretch of time."""

    from_ms: int
    outcome: str
    count: int


class EndedCounts(Struct, frozen=True):
    """Ends behind a place, by time and outcome; ``place`` continues. Commits in flight may be missed."""

    place: int
    counts: tuple[Ended, ...]


class FlowLine(Struct, frozen=True):
    """One line of a list of flows."""

    flow_id: FlowId
    flow_kind: str
    namespace: str
    public_flow_state: str
    node_count: int
    created_at: int
    ended_at: int | None


class FlowSearchPage(Struct, frozen=True):
    """Flows, newest first; ``next_cursor`` leads on, ``None`` says there is no more."""

    flows: tuple[FlowLine, ...]
    next_cursor: str | None


class AttemptLine(Struct, frozen=True):
    """One attempt: who ran it, under which lease, and what came of it."""

    attempt_index: int
    attempt_type: str
    worker_id: str | None
    worker_instance_id: str | None
    lease_epoch: int
    lease_expires_at: int | None
    renewed_at: int | None
    started_at: int | None
    ended_at: int | None
    outcome: str | None
    retry_at: int | None


class LeaseLine(Struct, frozen=True):
    """One stretch in which a worker held the execution; without ``ended_at`` it holds it still."""

    attempt_index: int
    worker_id: str | None
    worker_instance_id: str | None
    began_at: int
    ended_at: int | None
    expires_at: int | None
    ended: LeaseEnd | None
    #: What a suspension waited for, or what the operator said who revoked it.
    reason: str | None


class SuspensionLine(Struct, frozen=True):
    """The suspension an execution is in, or was in last."""

    reason: str
    suspended_at: int
    timeout_at: int | None
    timeout_behavior: str | None
    closed_at: int | None
    close_reason: str | None
    attempt_index: int | None


class WaitpointLine(Struct, frozen=True):
    """A mailbox for signals, without its token."""

    waitpoint_id: str
    waitpoint_key: str
    state: str
    created_at: int
    expires_at: int | None
    closed_at: int | None
    signal_count: int
    last_signal_at: int | None


class SignalLine(Struct, frozen=True):
    """A signal that was delivered."""

    signal_id: str
    waitpoint_key: str
    signal_name: str
    source_type: str
    source_identity: str
    accepted_at: int
    effect: str
    payload: bytes | None
    payload_encoding: str


class SpendLine(Struct, frozen=True):
    """What an execution has spent of one dimension of a budget since the budget began anew."""

    budget_id: str
    dimension: str
    amount: int


class History(Struct, frozen=True, kw_only=True):
    """What an execution went through, as far as it is stored."""

    execution_id: ExecutionId
    created_at: int
    started_at: int | None
    ended_at: int | None
    deadline_at: int | None
    delay_until: int | None
    retry_count: int
    lease_reclaim_count: int
    failure_reason: str | None
    cancellation_reason: str | None
    cancelled_by: str | None
    creator_identity: str
    payload_encoding: str | None
    parent: ExecutionId | None
    forked_from: str | None
    budget_ids: tuple[str, ...]
    quota_policy_id: str | None
    required_capabilities: tuple[str, ...]
    policy: str | None
    #: Whether the current attempt keeps a rolling document.
    has_summary: bool
    attempts: tuple[AttemptLine, ...]
    #: Oldest first; the newest ``MAX_LEASES_SHOWN`` of them.
    leases: tuple[LeaseLine, ...]
    suspension: SuspensionLine | None
    waitpoints: tuple[WaitpointLine, ...]
    signals: tuple[SignalLine, ...]
    spends: tuple[SpendLine, ...]


class SuspendedLine(Struct, frozen=True):
    """An execution that waits for somebody, and what it is."""

    execution_id: ExecutionId
    namespace: str
    execution_kind: str
    blocking_reason: str
    created_at: int


class SuspendedSearchPage(Struct, frozen=True):
    """Suspended executions, newest first; ``next_cursor`` leads on."""

    executions: tuple[SuspendedLine, ...]
    next_cursor: str | None
