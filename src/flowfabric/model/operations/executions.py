"""Results of operations on executions: one small frozen type per variant, made to be used with ``match``."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId
from flowfabric.model.secrets import Discreet
from flowfabric.model.states import LaneState, PublicState, StateVector


class Created(Struct, frozen=True):
    """The execution is new."""

    execution_id: ExecutionId
    public_state: PublicState


class Duplicate(Struct, frozen=True):
    """The execution existed, or its idempotency key led to another one; nothing changed."""

    execution_id: ExecutionId


CreateResult: TypeAlias = Created | Duplicate


class ClaimPolicy(Discreet, Struct, frozen=True):
    """Who claims, for how long, and how long to wait for work.

    ``max_wait`` is a number of milliseconds or a ``timedelta``; ``None`` returns at once.

    ``key`` is a text of the caller's that nobody can guess, another one for each claim. If the answer to a claim was
    lost, the same claim with its key and ``again`` gives what that answer held, while those leases stand; if there is
    nothing, it claims.
    """

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"key"})

    worker_id: str
    worker_instance_id: str
    lease_ttl_ms: int = 30_000
    max_wait: Any = None
    key: str | None = None
    again: bool = False


class ClaimGrant(Discreet, Struct, frozen=True):
    """Permission to claim one execution by name."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"grant_key"})

    execution_id: ExecutionId
    partition_key: str
    grant_key: str
    expires_at_ms: int


class NoWork(Struct, frozen=True):
    """Nothing to claim."""


class Granted(Struct, frozen=True):
    """A grant was issued."""

    grant: ClaimGrant | ReclaimGrant


class GrantIssued(Struct, frozen=True):
    """``issue_claim_grant``: the grant is stored."""

    execution_id: ExecutionId
    grant: ClaimGrant


class ReclaimGrant(Discreet, Struct, frozen=True):
    """Permission to take over an execution whose holder is gone."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"grant_key"})

    execution_id: ExecutionId
    partition_key: str
    grant_key: str
    expires_at_ms: int
    lane_id: str


class NotReclaimable(Struct, frozen=True):
    """The execution has a live owner or is not running."""

    execution_id: ExecutionId
    detail: str


class ReclaimCapExceeded(Struct, frozen=True):
    """The execution has been reclaimed as often as its policy allows."""

    execution_id: ExecutionId
    reclaim_count: int


class GrantNotFound(Struct, frozen=True):
    """No usable reclaim grant."""

    execution_id: ExecutionId


class Reclaimed(Struct, frozen=True):
    """The execution runs on under a new attempt."""

    handle: Handle


class ResumeGrant(Discreet, Struct, frozen=True):
    """What a resume token names."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"grant_key"})

    execution_id: str
    partition_key: str
    grant_key: str
    expires_at_ms: int
    lane_id: str


class ResumeToken(Struct, frozen=True):
    """A resume grant in the hands of one worker."""

    grant: ResumeGrant
    worker_id: str
    worker_instance_id: str
    lease_ttl_ms: int


class Claimed(Struct, frozen=True):
    """A lease was granted."""

    execution_id: ExecutionId
    lease_id: str
    lease_epoch: int
    attempt_index: int
    attempt_id: str
    attempt_type: str
    lease_expires_at: int
    handle: Handle


class OperatorLease(Struct, frozen=True):
    """``issue_grant_and_claim``: the lease the operator now holds."""

    lease_id: str
    lease_epoch: int
    attempt_index: int


class LeaseRenewal(Struct, frozen=True):
    """The lease lasts until ``expires_at_ms``."""

    expires_at_ms: int
    lease_epoch: int


class Renewed(Struct, frozen=True):
    """``renew_lease``: the lease lasts until ``expires_at``."""

    expires_at: int


class FailureClass(StrEnum):
    """What kind of failure a worker reports."""

    TRANSIENT = "transient"
    INFRA_CRASH = "infra_crash"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class RetryScheduled(Struct, frozen=True):
    """The failure will be tried again at ``delay_until``."""

    delay_until: int
    next_attempt_index: int | None = None


class TerminalFailed(Struct, frozen=True):
    """The failure ended the execution."""


FailOutcome: TypeAlias = RetryScheduled | TerminalFailed


class Completed(Struct, frozen=True):
    """``complete_execution``: the execution ended with success."""

    execution_id: ExecutionId
    public_state: PublicState


class Delayed(Struct, frozen=True):
    """The execution waits for a point in time."""

    execution_id: ExecutionId
    public_state: PublicState


class Declined(Struct, frozen=True):
    """``decline``: the execution is offered again at ``until_ms``. ``None`` if there is no use in that any more: then
    nothing has changed, and the holder is to fail it."""

    until_ms: int | None
    #: The workers that have declined it, this one last.
    workers: tuple[str, ...]


class Moved(Struct, frozen=True):
    """The execution waits for its children."""

    execution_id: ExecutionId
    public_state: PublicState


class Cancelled(Struct, frozen=True):
    """The execution is cancelled."""

    execution_id: ExecutionId
    public_state: PublicState


class Cancelling(Struct, frozen=True):
    """The execution was asked to cancel: it may clean up until then, and is ended anyway afterwards."""

    execution_id: ExecutionId
    until: int


class Revoked(Struct, frozen=True):
    """The lease was taken away; the execution is runnable again."""

    lease_id: str
    lease_epoch: str


class AlreadySatisfied(Struct, frozen=True):
    """Nothing to do, and why."""

    reason: str


class PriorityChanged(Struct, frozen=True):
    """The priority is stored."""

    execution_id: ExecutionId


class Replayed(Struct, frozen=True):
    """The execution starts over."""

    public_state: PublicState


class Blocked(Struct, frozen=True):
    """The execution is kept from being claimed."""

    execution_id: ExecutionId
    eligibility_state: str
    reason: str


class Rejected(Struct, frozen=True):
    """The execution could not be blocked, and why."""

    reason: str


class Unblocked(Struct, frozen=True):
    """The execution is claimable again."""

    execution_id: ExecutionId
    public_state: PublicState


class CancelFlowHeader:
    """Answers of ``cancel_flow_header``."""

    class Cancelled(Struct, frozen=True):
        """The flow and its members are cancelled."""

        cancellation_policy: str
        member_execution_ids: tuple[str, ...]

    class AlreadyTerminal(Struct, frozen=True):
        """The flow had ended before."""

        stored_cancellation_policy: str | None
        stored_cancel_reason: str | None
        member_execution_ids: tuple[str, ...]


class CancelFlowResult:
    """Answers of ``cancel_flow``."""

    class Cancelled(Struct, frozen=True):
        """The flow is cancelled, with the members its policy names."""

        cancellation_policy: str
        member_execution_ids: tuple[str, ...]

    class CancellationScheduled(Struct, frozen=True):
        """The flow is cancelled and so are these members; the others follow, the record of them is stored."""

        cancellation_policy: str
        member_count: int
        member_execution_ids: tuple[str, ...]

    class PartiallyCancelled(Struct, frozen=True):
        """The flow is cancelled; some members could not be, and stay in the backlog."""

        cancellation_policy: str
        member_execution_ids: tuple[str, ...]
        failed_member_execution_ids: tuple[str, ...]


class Registered(Struct, frozen=True):
    """The worker instance is new."""


class Refreshed(Struct, frozen=True):
    """The worker instance was known; it counts as alive until ``next_expiry_ms``."""

    next_expiry_ms: int


class NotRegistered(Struct, frozen=True):
    """The worker instance is unknown or past its time; register again."""


class Marked(Struct, frozen=True):
    """The worker instance is gone from the registry."""


class ExpiryMark(Struct, frozen=True):
    """What looking at a lease did: ``marked``, ``requeued``, ``failed``, ``cleared``, or why nothing was done."""

    status: str


class ExecutionInfo(Struct, frozen=True):
    """State and identity of an execution."""

    execution_id: ExecutionId
    namespace: str
    lane_id: str
    priority: int
    execution_kind: str
    state_vector: StateVector
    public_state: PublicState
    created_at: str
    started_at: str | None
    completed_at: str | None
    current_attempt_index: int
    flow_id: str | None
    blocking_detail: str


class AttemptSummary(Struct, frozen=True):
    """The attempt an execution is at."""

    attempt_id: str | None
    attempt_index: int


class LeaseSummary(Struct, frozen=True):
    """The lease an execution is under."""

    lease_epoch: int
    worker_instance_id: str
    expires_at: int | None
    lease_id: str
    attempt_index: int
    last_heartbeat_at: int | None


class ExecutionSnapshot(Struct, frozen=True):
    """Everything a person asks first about an execution."""

    execution_id: ExecutionId
    flow_id: str | None
    lane_id: str
    namespace: str
    public_state: PublicState
    blocking_reason: str | None
    blocking_detail: str | None
    current_attempt: AttemptSummary | None
    current_lease: LeaseSummary | None
    current_waitpoint: str | None
    created_at: int
    last_mutation_at: int
    total_attempt_count: int
    tags: dict[str, str]


class ExecutionContext(Struct, frozen=True):
    """What a worker needs to start."""

    input_payload: bytes
    execution_kind: str
    tags: dict[str, str]
    #: Until when it may go on, if it was asked to cancel, and why it was.
    cancel_at: int | None = None
    cancel_reason: str = ""
    #: How often it was replayed.
    replays: int = 0


class ExecutionPage(Struct, frozen=True):
    """Ids of one partition, ascending."""

    executions: tuple[ExecutionId, ...]
    next_cursor: ExecutionId | None


class LanePage(Struct, frozen=True):
    """Names of lanes, ascending, and of each its state, why, and who takes turns in it."""

    lanes: tuple[str, ...]
    next_cursor: str | None
    states: tuple[LaneState, ...] = ()
    reasons: tuple[str | None, ...] = ()
    fair_by: tuple[str | None, ...] = ()


class SuspendedEntry(Struct, frozen=True):
    """An execution that waits for a signal."""

    execution_id: ExecutionId
    suspended_at_ms: int
    reason: str


class SuspendedPage(Struct, frozen=True):
    """Suspended executions, longest waiting first."""

    entries: tuple[SuspendedEntry, ...]
    #: Behind the last entry, also if that one is suspended again or ends meanwhile.
    next_cursor: str | None


class WorkerEntry(Struct, frozen=True):
    """A live worker."""

    worker_id: str
    worker_instance_id: str
    namespace: str
    lanes: tuple[str, ...]
    capabilities: tuple[str, ...]
    last_heartbeat_ms: int
    liveness_ttl_ms: int
    registered_at_ms: int
    #: How many executions it runs at once; nothing if it did not say.
    slots: int | None = None


class GoneWorkerEntry(Struct, frozen=True):
    """A worker that is gone: marked dead for a reason, or silent for too long."""

    worker_id: str
    worker_instance_id: str
    namespace: str
    lanes: tuple[str, ...]
    capabilities: tuple[str, ...]
    last_heartbeat_ms: int
    registered_at_ms: int
    gone_at_ms: int
    reason: str | None
    slots: int | None


class WorkerLoad(Struct, frozen=True):
    """How many executions each worker instance holds, and who has gone within ``kept_ms``, the latest first."""

    held: dict[str, int]
    gone: tuple[GoneWorkerEntry, ...]
    kept_ms: int


class WorkerPage(Struct, frozen=True):
    """Live workers by instance id."""

    entries: tuple[WorkerEntry, ...]
    cursor: str | None


class ExpiredLease(Struct, frozen=True):
    """A lease past its time."""

    execution_id: ExecutionId
    lease_id: str
    lease_epoch: int
    worker_instance_id: str
    expires_at_ms: int
    attempt_index: int


class ExpiredLeaseCursor(Struct, frozen=True):
    """The position after the last expired lease of a page."""

    expires_at_ms: int
    execution_id: str


class ExpiredLeasePage(Struct, frozen=True):
    """Leases past their time, oldest first."""

    entries: tuple[ExpiredLease, ...]
    cursor: ExpiredLeaseCursor | None


class NoOp(Struct, frozen=True):
    """``prepare``: there was nothing to do."""


class Applied(Struct, frozen=True):
    """``prepare``: what was brought up to date."""

    description: str


class StoreCapabilities(Struct, frozen=True):
    """What a store is, and which operations it offers."""

    family: str
    version: str
    stage: str
    operations: dict[str, bool]


class ScannerFilter(Struct, frozen=True):
    """Narrows timers and subscriptions to one namespace and, or, one tag value."""

    namespace: str | None = None
    instance_tag: tuple[str, str] | None = None


# -- what the key of a grant turns out to be -------------------------------------------------------------------------


class GrantCheck(StrEnum):
    """The answer to "is this grant key good?"."""

    VALID = "valid"
    #: Not the text of a grant key of this store.
    MALFORMED = "malformed"
    #: Signed by a key that is not there, or whose grace is over.
    UNKNOWN_KID = "unknown_kid"
    #: Not signed for this worker, or changed since.
    SIGNATURE_MISMATCH = "signature_mismatch"
    EXPIRED = "expired"
    #: Genuine, and used up or withdrawn.
    UNKNOWN_GRANT = "unknown_grant"
