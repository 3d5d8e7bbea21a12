"""The states of an execution: their literals, which combinations are legal, and what is derived from them.

Records in the hot path hold plain `str`, so every stored literal is also a constant here; the enums are for people and
typed reads. A store may hold a few literals that are no enum value (`running`, `cancelled` as a phase, …): the
``canonical_…`` functions map them, and only there does an unknown literal become `Validation(Corruption)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind

# lifecycle_phase
PHASE_SUBMITTED: Final = "submitted"
PHASE_RUNNABLE: Final = "runnable"
PHASE_ACTIVE: Final = "active"
PHASE_SUSPENDED: Final = "suspended"
PHASE_TERMINAL: Final = "terminal"
PHASE_CANCELLED: Final = "cancelled"  # how SQL stores write a cancelled terminal phase

# ownership_state
OWNERSHIP_UNOWNED: Final = "unowned"
OWNERSHIP_LEASED: Final = "leased"
OWNERSHIP_LEASE_EXPIRED_RECLAIMABLE: Final = "lease_expired_reclaimable"
OWNERSHIP_LEASE_REVOKED: Final = "lease_revoked"

# eligibility_state
ELIGIBILITY_ELIGIBLE_NOW: Final = "eligible_now"
ELIGIBILITY_NOT_ELIGIBLE_UNTIL_TIME: Final = "not_eligible_until_time"
ELIGIBILITY_BLOCKED_BY_DEPENDENCIES: Final = "blocked_by_dependencies"
ELIGIBILITY_BLOCKED_BY_BUDGET: Final = "blocked_by_budget"
ELIGIBILITY_BLOCKED_BY_QUOTA: Final = "blocked_by_quota"
ELIGIBILITY_BLOCKED_BY_ROUTE: Final = "blocked_by_route"
ELIGIBILITY_BLOCKED_BY_LANE_STATE: Final = "blocked_by_lane_state"
ELIGIBILITY_BLOCKED_BY_OPERATOR: Final = "blocked_by_operator"
ELIGIBILITY_NOT_APPLICABLE: Final = "not_applicable"
ELIGIBILITY_PENDING_CLAIM: Final = "pending_claim"  # a grant is outstanding
ELIGIBILITY_CANCELLED: Final = "cancelled"  # written by flow cancel

# blocking_reason
BLOCKING_NONE: Final = "none"
BLOCKING_WAITING_FOR_WORKER: Final = "waiting_for_worker"
BLOCKING_WAITING_FOR_RETRY_BACKOFF: Final = "waiting_for_retry_backoff"
BLOCKING_WAITING_FOR_RESUME_DELAY: Final = "waiting_for_resume_delay"
BLOCKING_WAITING_FOR_DELAY: Final = "waiting_for_delay"
BLOCKING_WAITING_FOR_SIGNAL: Final = "waiting_for_signal"
BLOCKING_WAITING_FOR_APPROVAL: Final = "waiting_for_approval"
BLOCKING_WAITING_FOR_CALLBACK: Final = "waiting_for_callback"
BLOCKING_WAITING_FOR_TOOL_RESULT: Final = "waiting_for_tool_result"
BLOCKING_WAITING_FOR_CHILDREN: Final = "waiting_for_children"
BLOCKING_WAITING_FOR_BUDGET: Final = "waiting_for_budget"
BLOCKING_WAITING_FOR_QUOTA: Final = "waiting_for_quota"
BLOCKING_WAITING_FOR_CAPABLE_WORKER: Final = "waiting_for_capable_worker"
BLOCKING_WAITING_FOR_LOCALITY_MATCH: Final = "waiting_for_locality_match"
BLOCKING_PAUSED_BY_OPERATOR: Final = "paused_by_operator"
BLOCKING_PAUSED_BY_POLICY: Final = "paused_by_policy"
BLOCKING_PAUSED_BY_FLOW_CANCEL: Final = "paused_by_flow_cancel"

# terminal_outcome
TERMINAL_NONE: Final = "none"
TERMINAL_SUCCESS: Final = "success"
TERMINAL_FAILED: Final = "failed"
TERMINAL_CANCELLED: Final = "cancelled"
TERMINAL_EXPIRED: Final = "expired"
TERMINAL_SKIPPED: Final = "skipped"

# attempt_state
ATTEMPT_NONE: Final = "none"
ATTEMPT_PENDING_FIRST: Final = "pending_first_attempt"
ATTEMPT_RUNNING: Final = "running_attempt"
ATTEMPT_INTERRUPTED: Final = "attempt_interrupted"
ATTEMPT_PENDING_RETRY: Final = "pending_retry_attempt"
ATTEMPT_PENDING_REPLAY: Final = "pending_replay_attempt"
ATTEMPT_TERMINAL: Final = "attempt_terminal"
ATTEMPT_PENDING: Final = "pending"  # written by create
ATTEMPT_CANCELLED: Final = "cancelled"  # written by cancel

# public_state
PUBLIC_WAITING: Final = "waiting"
PUBLIC_DELAYED: Final = "delayed"
PUBLIC_RATE_LIMITED: Final = "rate_limited"
PUBLIC_WAITING_CHILDREN: Final = "waiting_children"
PUBLIC_ACTIVE: Final = "active"
PUBLIC_RUNNING: Final = "running"  # how SQL stores write `active`
PUBLIC_SUSPENDED: Final = "suspended"
PUBLIC_RESUMABLE: Final = "resumable"
PUBLIC_COMPLETED: Final = "completed"
PUBLIC_FAILED: Final = "failed"
PUBLIC_CANCELLED: Final = "cancelled"
PUBLIC_EXPIRED: Final = "expired"
PUBLIC_SKIPPED: Final = "skipped"

# ff_attempt.outcome; no enum, because readers keep what they do not know
OUTCOME_SUCCESS: Final = "success"
OUTCOME_FAILED: Final = "failed"
OUTCOME_RETRY: Final = "retry"
OUTCOME_CANCELLED: Final = "cancelled"
OUTCOME_INTERRUPTED: Final = "interrupted"
OUTCOME_WAITING_CHILDREN: Final = "waiting_children"
OUTCOME_ATTEMPT_INTERRUPTED: Final = "attempt_interrupted"
OUTCOME_LEASE_EXPIRED_RECLAIMABLE: Final = "lease_expired_reclaimable"
OUTCOME_INTERRUPTED_RECLAIMED: Final = "interrupted_reclaimed"
OUTCOME_EXPIRED: Final = "expired"
OUTCOME_SKIPPED: Final = "skipped"

# attempt type
ATTEMPT_TYPE_INITIAL: Final = "initial"
ATTEMPT_TYPE_RETRY: Final = "retry"
ATTEMPT_TYPE_RECLAIM: Final = "reclaim"
ATTEMPT_TYPE_REPLAY: Final = "replay"
ATTEMPT_TYPE_FALLBACK: Final = "fallback"

# lane state
LANE_ACTIVE: Final = "active"
LANE_PAUSED: Final = "paused"
LANE_DRAINING: Final = "draining"
LANE_DISABLED: Final = "disabled"


class LifecyclePhase(StrEnum):
    """The major phase."""

    SUBMITTED = PHASE_SUBMITTED
    RUNNABLE = PHASE_RUNNABLE
    ACTIVE = PHASE_ACTIVE
    SUSPENDED = PHASE_SUSPENDED
    TERMINAL = PHASE_TERMINAL


class OwnershipState(StrEnum):
    """Who may change the execution."""

    UNOWNED = OWNERSHIP_UNOWNED
    LEASED = OWNERSHIP_LEASED
    LEASE_EXPIRED_RECLAIMABLE = OWNERSHIP_LEASE_EXPIRED_RECLAIMABLE
    LEASE_REVOKED = OWNERSHIP_LEASE_REVOKED


class EligibilityState(StrEnum):
    """Whether it can be claimed now."""

    ELIGIBLE_NOW = ELIGIBILITY_ELIGIBLE_NOW
    NOT_ELIGIBLE_UNTIL_TIME = ELIGIBILITY_NOT_ELIGIBLE_UNTIL_TIME
    BLOCKED_BY_DEPENDENCIES = ELIGIBILITY_BLOCKED_BY_DEPENDENCIES
    BLOCKED_BY_BUDGET = ELIGIBILITY_BLOCKED_BY_BUDGET
    BLOCKED_BY_QUOTA = ELIGIBILITY_BLOCKED_BY_QUOTA
    BLOCKED_BY_ROUTE = ELIGIBILITY_BLOCKED_BY_ROUTE
    BLOCKED_BY_LANE_STATE = ELIGIBILITY_BLOCKED_BY_LANE_STATE
    BLOCKED_BY_OPERATOR = ELIGIBILITY_BLOCKED_BY_OPERATOR
    NOT_APPLICABLE = ELIGIBILITY_NOT_APPLICABLE


class BlockingReason(StrEnum):
    """The most specific explanation of why it waits."""

    NONE = BLOCKING_NONE
    WAITING_FOR_WORKER = BLOCKING_WAITING_FOR_WORKER
    WAITING_FOR_RETRY_BACKOFF = BLOCKING_WAITING_FOR_RETRY_BACKOFF
    WAITING_FOR_RESUME_DELAY = BLOCKING_WAITING_FOR_RESUME_DELAY
    WAITING_FOR_DELAY = BLOCKING_WAITING_FOR_DELAY
    WAITING_FOR_SIGNAL = BLOCKING_WAITING_FOR_SIGNAL
    WAITING_FOR_APPROVAL = BLOCKING_WAITING_FOR_APPROVAL
    WAITING_FOR_CALLBACK = BLOCKING_WAITING_FOR_CALLBACK
    WAITING_FOR_TOOL_RESULT = BLOCKING_WAITING_FOR_TOOL_RESULT
    WAITING_FOR_CHILDREN = BLOCKING_WAITING_FOR_CHILDREN
    WAITING_FOR_BUDGET = BLOCKING_WAITING_FOR_BUDGET
    WAITING_FOR_QUOTA = BLOCKING_WAITING_FOR_QUOTA
    WAITING_FOR_CAPABLE_WORKER = BLOCKING_WAITING_FOR_CAPABLE_WORKER
    WAITING_FOR_LOCALITY_MATCH = BLOCKING_WAITING_FOR_LOCALITY_MATCH
    PAUSED_BY_OPERATOR = BLOCKING_PAUSED_BY_OPERATOR
    PAUSED_BY_POLICY = BLOCKING_PAUSED_BY_POLICY
    PAUSED_BY_FLOW_CANCEL = BLOCKING_PAUSED_BY_FLOW_CANCEL


class TerminalOutcome(StrEnum):
    """How it ended."""

    NONE = TERMINAL_NONE
    SUCCESS = TERMINAL_SUCCESS
    FAILED = TERMINAL_FAILED
    CANCELLED = TERMINAL_CANCELLED
    EXPIRED = TERMINAL_EXPIRED
    SKIPPED = TERMINAL_SKIPPED


class AttemptState(StrEnum):
    """Where the attempt layer stands."""

    NONE = ATTEMPT_NONE
    PENDING_FIRST_ATTEMPT = ATTEMPT_PENDING_FIRST
    RUNNING_ATTEMPT = ATTEMPT_RUNNING
    ATTEMPT_INTERRUPTED = ATTEMPT_INTERRUPTED
    PENDING_RETRY_ATTEMPT = ATTEMPT_PENDING_RETRY
    PENDING_REPLAY_ATTEMPT = ATTEMPT_PENDING_REPLAY
    ATTEMPT_TERMINAL = ATTEMPT_TERMINAL


class PublicState(StrEnum):
    """The label users see, derived from the other dimensions."""

    WAITING = PUBLIC_WAITING
    DELAYED = PUBLIC_DELAYED
    RATE_LIMITED = PUBLIC_RATE_LIMITED
    WAITING_CHILDREN = PUBLIC_WAITING_CHILDREN
    ACTIVE = PUBLIC_ACTIVE
    SUSPENDED = PUBLIC_SUSPENDED
    RESUMABLE = PUBLIC_RESUMABLE
    COMPLETED = PUBLIC_COMPLETED
    FAILED = PUBLIC_FAILED
    CANCELLED = PUBLIC_CANCELLED
    EXPIRED = PUBLIC_EXPIRED
    SKIPPED = PUBLIC_SKIPPED


class AttemptLifecycle(StrEnum):
    """The life of one attempt; the last four values are terminal."""

    CREATED = "created"
    STARTED = "started"
    SUSPENDED = "suspended"
    ENDED_SUCCESS = "ended_success"
    ENDED_FAILURE = "ended_failure"
    ENDED_CANCELLED = "ended_cancelled"
    INTERRUPTED_RECLAIMED = "interrupted_reclaimed"

    @property
    def is_terminal(self) -> bool:
        """Whether the attempt has ended."""
        return self not in (AttemptLifecycle.CREATED, AttemptLifecycle.STARTED, AttemptLifecycle.SUSPENDED)


class AttemptType(StrEnum):
    """Why an attempt exists."""

    INITIAL = ATTEMPT_TYPE_INITIAL
    RETRY = ATTEMPT_TYPE_RETRY
    RECLAIM = ATTEMPT_TYPE_RECLAIM
    REPLAY = ATTEMPT_TYPE_REPLAY
    FALLBACK = ATTEMPT_TYPE_FALLBACK


class LaneState(StrEnum):
    """Whether a lane grants and accepts work."""

    ACTIVE = LANE_ACTIVE
    PAUSED = LANE_PAUSED
    DRAINING = LANE_DRAINING
    DISABLED = LANE_DISABLED


_Literal = TypeVar("_Literal", bound=StrEnum)


def _readings(kind: type[_Literal], **also: _Literal) -> Mapping[str, _Literal]:
    """Every literal that may be read, with the canonical value it means."""
    return {**{member.value: member for member in kind}, **also}


_PHASES = _readings(
    LifecyclePhase,
    cancelled=LifecyclePhase.TERMINAL,
    pending=LifecyclePhase.RUNNABLE,
    eligible=LifecyclePhase.RUNNABLE,
    blocked=LifecyclePhase.RUNNABLE,
)
_OWNERSHIPS = _readings(OwnershipState, released=OwnershipState.UNOWNED)
_ELIGIBILITIES = _readings(
    EligibilityState,
    pending_claim=EligibilityState.ELIGIBLE_NOW,
    cancelled=EligibilityState.NOT_APPLICABLE,
)
_PUBLIC_STATES = _readings(
    PublicState,
    running=PublicState.ACTIVE,
    claimed=PublicState.ACTIVE,
    pending=PublicState.WAITING,
    success=PublicState.COMPLETED,
)
_ATTEMPT_STATES = _readings(
    AttemptState,
    pending=AttemptState.PENDING_FIRST_ATTEMPT,
    initial=AttemptState.PENDING_FIRST_ATTEMPT,
    pending_claim=AttemptState.PENDING_FIRST_ATTEMPT,
    running=AttemptState.RUNNING_ATTEMPT,
    cancelled=AttemptState.ATTEMPT_TERMINAL,
    terminated=AttemptState.ATTEMPT_TERMINAL,
    terminal_failed=AttemptState.ATTEMPT_TERMINAL,
)
_BLOCKING_REASONS: Mapping[str, BlockingReason] = {**_readings(BlockingReason), "": BlockingReason.NONE}


def _read(readings: Mapping[str, _Literal], column: str, text: str) -> _Literal:
    found = readings.get(text)
    if found is None:
        raise Validation(ValidationKind.CORRUPTION, f"{column}: unknown value {text!r}")
    return found


def canonical_phase(text: str) -> LifecyclePhase:
    """The phase a stored `lifecycle_phase` means."""
    return _read(_PHASES, "lifecycle_phase", text)


def canonical_ownership(text: str) -> OwnershipState:
    """The value a stored `ownership_state` means."""
    return _read(_OWNERSHIPS, "ownership_state", text)


def canonical_eligibility(text: str) -> EligibilityState:
    """The value a stored `eligibility_state` means."""
    return _read(_ELIGIBILITIES, "eligibility_state", text)


def canonical_public_state(text: str) -> PublicState:
    """The value a stored `public_state` means."""
    return _read(_PUBLIC_STATES, "public_state", text)


def canonical_attempt_state(text: str) -> AttemptState:
    """The value a stored `attempt_state` means."""
    return _read(_ATTEMPT_STATES, "attempt_state", text)


def canonical_blocking_reason(text: str | None) -> BlockingReason:
    """The value a stored `blocking_reason` means; NULL and the empty text mean none."""
    return _read(_BLOCKING_REASONS, "blocking_reason", text or "")


def canonical_attempt_outcome(text: str | None) -> str | None:
    """The stored `outcome` of an attempt with its one alias resolved; never raises, because it has no enum."""
    return OUTCOME_FAILED if text == "failure" else text


_BY_OUTCOME: Mapping[str, PublicState] = {
    TERMINAL_SUCCESS: PublicState.COMPLETED,
    TERMINAL_FAILED: PublicState.FAILED,
    TERMINAL_CANCELLED: PublicState.CANCELLED,
    TERMINAL_EXPIRED: PublicState.EXPIRED,
    TERMINAL_SKIPPED: PublicState.SKIPPED,
}
_BY_ELIGIBILITY: Mapping[str, PublicState] = {
    ELIGIBILITY_NOT_ELIGIBLE_UNTIL_TIME: PublicState.DELAYED,
    ELIGIBILITY_BLOCKED_BY_DEPENDENCIES: PublicState.WAITING_CHILDREN,
    ELIGIBILITY_BLOCKED_BY_BUDGET: PublicState.RATE_LIMITED,
    ELIGIBILITY_BLOCKED_BY_QUOTA: PublicState.RATE_LIMITED,
}


def derive_public_state(
    lifecycle_phase: str, eligibility_state: str, terminal_outcome: str, stored_public_state: str | None = None
) -> PublicState:
    """The label that follows from the other dimensions. Takes any stored text and never raises.

    `resumable` cannot be derived: it is kept when it is what is stored and the execution can be claimed.
    """
    phase = _PHASES.get(lifecycle_phase)
    if phase is LifecyclePhase.TERMINAL:
        outcome = TERMINAL_CANCELLED if lifecycle_phase == PHASE_CANCELLED else terminal_outcome
        return _BY_OUTCOME.get(outcome, PublicState.FAILED)
    if phase is LifecyclePhase.SUSPENDED:
        return PublicState.SUSPENDED
    if phase is LifecyclePhase.ACTIVE:
        return PublicState.ACTIVE
    if phase is LifecyclePhase.SUBMITTED:
        waits = eligibility_state == ELIGIBILITY_NOT_ELIGIBLE_UNTIL_TIME
        return PublicState.DELAYED if waits else PublicState.WAITING
    eligible = _ELIGIBILITIES.get(eligibility_state) is EligibilityState.ELIGIBLE_NOW
    if eligible and phase is LifecyclePhase.RUNNABLE and stored_public_state == PUBLIC_RESUMABLE:
        return PublicState.RESUMABLE
    return _BY_ELIGIBILITY.get(eligibility_state, PublicState.WAITING)


def derive_terminal_outcome(
    stored_phase: str, attempt_outcome: str | None, raw_terminal_outcome: str | None, public_state: str | None
) -> TerminalOutcome:
    """How an execution ended, from what its row and its current attempt say. Never raises."""
    if stored_phase == PHASE_CANCELLED:
        return TerminalOutcome.CANCELLED
    if stored_phase != PHASE_TERMINAL:
        return TerminalOutcome.NONE
    for text in (canonical_attempt_outcome(attempt_outcome), raw_terminal_outcome):
        if text is not None and text in _BY_OUTCOME:
            return TerminalOutcome(text)
    shown = _PUBLIC_STATES.get(public_state or "")
    for outcome, state in _BY_OUTCOME.items():
        if state is shown:
            return TerminalOutcome(outcome)
    return TerminalOutcome.NONE


class StateVector(Struct, frozen=True, gc=False):
    """The state of one execution in all its dimensions, canonical values only."""

    lifecycle_phase: LifecyclePhase
    ownership_state: OwnershipState
    eligibility_state: EligibilityState
    blocking_reason: BlockingReason
    terminal_outcome: TerminalOutcome
    attempt_state: AttemptState
    public_state: PublicState

    def is_consistent(self) -> bool:
        """Whether the stored label is the one that follows from the other dimensions."""
        derived = derive_public_state(
            self.lifecycle_phase, self.eligibility_state, self.terminal_outcome, self.public_state
        )
        return derived is self.public_state


_UNOWNED = frozenset({OwnershipState.UNOWNED})
_NOT_APPLICABLE = frozenset({EligibilityState.NOT_APPLICABLE})
_INTERRUPTED = frozenset({AttemptState.ATTEMPT_INTERRUPTED})

# phase, ownerships, eligibilities, attempt states; the outcome follows from the phase.
_LEGAL: tuple[
    tuple[LifecyclePhase, frozenset[OwnershipState], frozenset[EligibilityState], frozenset[AttemptState]], ...
] = (
    (
        LifecyclePhase.SUBMITTED,
        _UNOWNED,
        frozenset({EligibilityState.ELIGIBLE_NOW, EligibilityState.NOT_ELIGIBLE_UNTIL_TIME}),
        frozenset({AttemptState.PENDING_FIRST_ATTEMPT}),
    ),
    (
        LifecyclePhase.RUNNABLE,
        _UNOWNED,
        frozenset(EligibilityState) - _NOT_APPLICABLE,
        frozenset(
            {
                AttemptState.PENDING_FIRST_ATTEMPT,
                AttemptState.PENDING_RETRY_ATTEMPT,
                AttemptState.PENDING_REPLAY_ATTEMPT,
                AttemptState.ATTEMPT_INTERRUPTED,
            }
        ),
    ),
    (
        LifecyclePhase.ACTIVE,
        frozenset({OwnershipState.LEASED}),
        _NOT_APPLICABLE,
        frozenset({AttemptState.RUNNING_ATTEMPT}),
    ),
    (
        LifecyclePhase.ACTIVE,
        frozenset({OwnershipState.LEASE_EXPIRED_RECLAIMABLE, OwnershipState.LEASE_REVOKED}),
        _NOT_APPLICABLE,
        _INTERRUPTED,
    ),
    (LifecyclePhase.SUSPENDED, _UNOWNED, _NOT_APPLICABLE, _INTERRUPTED),
    (
        LifecyclePhase.TERMINAL,
        _UNOWNED,
        _NOT_APPLICABLE,
        # An execution that ended before anyone claimed it never had an attempt.
        frozenset({AttemptState.ATTEMPT_TERMINAL, AttemptState.NONE, AttemptState.PENDING_FIRST_ATTEMPT}),
    ),
)


def legal(vector: StateVector) -> bool:
    """Whether the dimensions may occur together; every rule must leave a legal vector behind."""
    ended = vector.lifecycle_phase is LifecyclePhase.TERMINAL
    if ended == (vector.terminal_outcome is TerminalOutcome.NONE):
        return False
    return any(
        vector.lifecycle_phase is phase
        and vector.ownership_state in ownerships
        and vector.eligibility_state in eligibilities
        and vector.attempt_state in attempts
        for phase, ownerships, eligibilities, attempts in _LEGAL
    )
