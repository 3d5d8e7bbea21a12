"""Overviews for operators: how much of what there is, the history of an execution, who waits."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.model.ids import ExecutionId, FlowId
from flowfabric.model.reads.search import QueueDepth
from flowfabric.model.records.past_leases import LeaseEnd
from flowfabric.model.states import PublicState

#: The line of a traceback behind which the frames of libraries follow.
FRAMES_OF_OTHERS = "All frames, with those of libraries:"


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
    #: For how long the ended execution is due to be deleted that is due longest; 0 if none is.
    retention_late_ms: int = 0


class Ended(Struct, frozen=True):
    """How many executions ended in one way in one stretch of time."""

    from_ms: int
    outcome: str
    count: int


class EndedCounts(Struct, frozen=True):
    """Ends behind a place, by time and outcome; ``place`` continues. Commits in flight may be missed."""

    place: int
    counts: tuple[Ended, ...]


class KindLine(Struct, frozen=True):
    """Executions of one kind: how many were created, what became of them, and how long those took that ran."""

    execution_kind: str
    created: int
    completed: int
    #: Expired ones too.
    failed: int
    #: Cancelled or skipped.
    other: int
    unended: int
    #: From the first start to the end, of those that completed or failed; ``None`` if none did.
    p50_ms: int | None
    p95_ms: int | None


class KindFigures(Struct, frozen=True):
    """Executions created from ``since_ms`` to ``until_ms`` by kind, the most frequent first. If there are more than
    ``MAX_KINDS_SAMPLED`` in the window asked for, these are the newest (``complete`` is false) and ``since_ms`` is
    later."""

    since_ms: int
    until_ms: int
    complete: bool
    kinds: tuple[KindLine, ...]


class FlowLine(Struct, frozen=True):
    """One line of a list of flows."""

    flow_id: FlowId
    flow_kind: str
    namespace: str
    public_flow_state: str
    node_count: int
    created_at: int
    ended_at: int | None
    #: The execution that has founded it for its children, its kind, and the key it was started with.
    root: ExecutionId | None = None
    root_kind: str = ""
    root_key: str | None = None


class Relative(Struct, frozen=True):
    """A member of a flow: who has started it, and under which name its parent's code knows it."""

    execution_id: ExecutionId
    execution_kind: str
    parent: ExecutionId | None
    step: str | None
    lane_id: str
    public_state: PublicState
    blocking_reason: str | None
    created_at: int
    started_at: int | None
    completed_at: int | None


class FlowTree(Struct, frozen=True):
    """A flow in one line, and members of it, newest first; ``next_cursor`` leads on."""

    flow: FlowLine
    members: tuple[Relative, ...]
    next_cursor: str | None


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


class AttemptError(Struct, frozen=True):
    """The error that an attempt failed with, as its worker told it. ``traceback`` begins with the frames of the user's
    own code; those of libraries and of the worker come behind ``FRAMES_OF_OTHERS``."""

    attempt_index: int
    at: int
    type: str
    message: str
    category: str
    traceback: str


class AttemptErrors(Struct, frozen=True):
    """Errors of attempts, oldest first."""

    errors: tuple[AttemptError, ...]


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
    #: Ids of its waitpoints, the primary one first.
    waitpoints: tuple[str, ...] = ()


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
    waitpoint_id: str = ""


class SpendLine(Struct, frozen=True):
    """What an execution has spent of one dimension of a budget since the budget was last reset."""

    budget_id: str
    dimension: str
    amount: int
    #: Whose budget it is; ``None`` means the operator's.
    namespace: str | None = None
    #: What people call it, if it has a name and the caller may know it.
    name: str | None = None


class NamedBudget(Struct, frozen=True):
    """A budget that an execution names, and whose it is; ``None`` means the operator's. ``name`` is what people call
    it, if it has a name."""

    budget_id: str
    namespace: str | None
    name: str | None = None


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
    #: What ``budget_ids`` mean here, and budgets that it asked to allow more: those that exist and the caller may see.
    budgets: tuple[NamedBudget, ...] = ()


class SuspendedLine(Struct, frozen=True):
    """An execution that waits for somebody, and what it is."""

    execution_id: ExecutionId
    namespace: str
    execution_kind: str
    blocking_reason: str
    created_at: int
    #: When it was suspended last; servers of earlier releases do not say.
    suspended_at: int = 0


class SuspendedSearchPage(Struct, frozen=True):
    """Suspended executions, those that were suspended last first; ``next_cursor`` leads on."""

    executions: tuple[SuspendedLine, ...]
    next_cursor: str | None
