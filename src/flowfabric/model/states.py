"""The states of an execution: their literals, which combinations are legal, and what is derived from them.

Records in the hot path hold plain `str` (the constants below name them); the enums are for people and typed reads.
A store may hold a few literals that are no enum value (`running`, `cancelled` as a phase, …): the
``canonical_…`` functions map them, and only there does an unknown literal become `Validation(Corruption)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind


class LifecyclePhase(StrEnum):
    """The major phase."""

    SUBMITTED = "submitted"
    RUNNABLE = "runnable"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    TERMINAL = "terminal"


class OwnershipState(StrEnum):
    """Who may change the execution."""

    UNOWNED = "unowned"
    LEASED = "leased"
    LEASE_EXPIRED_RECLAIMABLE = "lease_expired_reclaimable"
    LEASE_REVOKED = "lease_revoked"


class EligibilityState(StrEnum):
    """Whether it can be claimed now."""

    ELIGIBLE_NOW = "eligible_now"
    NOT_ELIGIBLE_UNTIL_TIME = "not_eligible_until_time"
    BLOCKED_BY_DEPENDENCIES = "blocked_by_dependencies"
    BLOCKED_BY_BUDGET = "blocked_by_budget"
    BLOCKED_BY_QUOTA = "blocked_by_quota"
    BLOCKED_BY_ROUTE = "blocked_by_route"
    BLOCKED_BY_LANE_STATE = "blocked_by_lane_state"
    BLOCKED_BY_OPERATOR = "blocked_by_operator"
    NOT_APPLICABLE = "not_applicable"


class BlockingReason(StrEnum):
    """The most specific explanation of why it waits."""

    NONE = "none"
    WAITING_FOR_WORKER = "waiting_for_worker"
    WAITING_FOR_RETRY_BACKOFF = "waiting_for_retry_backoff"
    WAITING_FOR_RESUME_DELAY = "waiting_for_resume_delay"
    WAITING_FOR_DELAY = "waiting_for_delay"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_CALLBACK = "waiting_for_callback"
    WAITING_FOR_TOOL_RESULT = "waiting_for_tool_result"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    WAITING_FOR_BUDGET = "waiting_for_budget"
    WAITING_FOR_QUOTA = "waiting_for_quota"
    WAITING_FOR_CAPABLE_WORKER = "waiting_for_capable_worker"
    WAITING_FOR_LOCALITY_MATCH = "waiting_for_locality_match"
    PAUSED_BY_OPERATOR = "paused_by_operator"
    PAUSED_BY_POLICY = "paused_by_policy"
    PAUSED_BY_FLOW_CANCEL = "paused_by_flow_cancel"


class TerminalOutcome(StrEnum):
    """How it ended."""

    NONE = "none"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


class AttemptState(StrEnum):
    """Where the attempt layer stands."""

    NONE = "none"
    PENDING_FIRST_ATTEMPT = "pending_first_attempt"
    RUNNING_ATTEMPT = "running_attempt"
    ATTEMPT_INTERRUPTED = "attempt_interrupted"
    PENDING_RETRY_ATTEMPT = "pending_retry_attempt"
    PENDING_REPLAY_ATTEMPT = "pending_replay_attempt"
    ATTEMPT_TERMINAL = "attempt_terminal"


class PublicState(StrEnum):
    """The label users see, derived from the other dimensions."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RATE_LIMITED = "rate_limited"
    WAITING_CHILDREN = "waiting_children"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    RESUMABLE = "resumable"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


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

    INITIAL = "initial"
    RETRY = "retry"
    RECLAIM = "reclaim"
    REPLAY = "replay"
    FALLBACK = "fallback"


class LaneState(StrEnum):
    """Whether a lane grants and accepts work."""

    ACTIVE = "active"
    PAUSED = "paused"
    DRAINING = "draining"
    DISABLED = "disabled"


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


def stored_public_states(state: PublicState) -> tuple[str, ...]:
    """Every literal that a store may hold for a public state: what a search has to look for."""
    return tuple(text for text, means in _PUBLIC_STATES.items() if means is state)


def canonical_attempt_state(text: str) -> AttemptState:
    """The value a stored `attempt_state` means."""
    return _read(_ATTEMPT_STATES, "attempt_state", text)


def canonical_blocking_reason(text: str | None) -> BlockingReason:
    """The value a stored `blocking_reason` means; NULL and the empty text mean none."""
    return _read(_BLOCKING_REASONS, "blocking_reason", text or "")


def canonical_attempt_outcome(text: str | None) -> str | None:
    """The stored `outcome` of an attempt with its one alias resolved; never raises, because it has no enum."""
    return "failed" if text == "failure" else text


_BY_OUTCOME: Mapping[str, PublicState] = {
    "success": PublicState.COMPLETED,
    "failed": PublicState.FAILED,
    "cancelled": PublicState.CANCELLED,
    "expired": PublicState.EXPIRED,
    "skipped": PublicState.SKIPPED,
}
_BY_ELIGIBILITY: Mapping[str, PublicState] = {
    "not_eligible_until_time": PublicState.DELAYED,
    "blocked_by_dependencies": PublicState.WAITING_CHILDREN,
    "blocked_by_budget": PublicState.RATE_LIMITED,
    "blocked_by_quota": PublicState.RATE_LIMITED,
}


def derive_public_state(
    lifecycle_phase: str, eligibility_state: str, terminal_outcome: str, stored_public_state: str | None = None
) -> PublicState:
    """The label that follows from the other dimensions. Takes any stored text and never raises.

    `resumable` cannot be derived: it is kept when it is what is stored and the execution can be claimed.
    """
    phase = _PHASES.get(lifecycle_phase)
    if phase is LifecyclePhase.TERMINAL:
        outcome = "cancelled" if lifecycle_phase == "cancelled" else terminal_outcome
        return _BY_OUTCOME.get(outcome, PublicState.FAILED)
    if phase is LifecyclePhase.SUSPENDED:
        return PublicState.SUSPENDED
    if phase is LifecyclePhase.ACTIVE:
        return PublicState.ACTIVE
    if phase is LifecyclePhase.SUBMITTED:
        waits = eligibility_state == "not_eligible_until_time"
        return PublicState.DELAYED if waits else PublicState.WAITING
    eligible = _ELIGIBILITIES.get(eligibility_state) is EligibilityState.ELIGIBLE_NOW
    if eligible and phase is LifecyclePhase.RUNNABLE and stored_public_state == "resumable":
        return PublicState.RESUMABLE
    return _BY_ELIGIBILITY.get(eligibility_state, PublicState.WAITING)


def derive_terminal_outcome(
    stored_phase: str, attempt_outcome: str | None, raw_terminal_outcome: str | None, public_state: str | None
) -> TerminalOutcome:
    """How an execution ended, from what its row and its current attempt say. Never raises."""
    if stored_phase == "cancelled":
        return TerminalOutcome.CANCELLED
    if stored_phase != "terminal":
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


# -- the texts stored in state columns, as plain ``str``, and the sets rules test them against -----------------------
#
# Rows keep a few texts beside the canonical ones; the sets below accept both, so that a rule never has to know which
# writer a row came from. ``docs/states.md`` is the glossary.

# lifecycle_phase
SUBMITTED = "submitted"
RUNNABLE = "runnable"
ACTIVE = "active"
SUSPENDED = "suspended"
TERMINAL = "terminal"
CANCELLED = "cancelled"

#: Phases that wait for a worker. "submitted" is fresh and counts as runnable everywhere but in priority changes.
WAITING_PHASES = frozenset({RUNNABLE, SUBMITTED, "pending", "eligible", "blocked"})
#: Phases an execution never leaves by itself.
ENDED_PHASES = frozenset({TERMINAL, CANCELLED})

# ownership_state
UNOWNED = "unowned"
LEASED = "leased"
LEASE_EXPIRED_RECLAIMABLE = "lease_expired_reclaimable"
LEASE_REVOKED = "lease_revoked"
UNOWNED_STATES = frozenset({UNOWNED, "released"})
RECLAIMABLE_STATES = frozenset({LEASE_EXPIRED_RECLAIMABLE, LEASE_REVOKED})

# eligibility_state
ELIGIBLE_NOW = "eligible_now"
PENDING_CLAIM = "pending_claim"
NOT_ELIGIBLE_UNTIL_TIME = "not_eligible_until_time"
BLOCKED_BY_DEPENDENCIES = "blocked_by_dependencies"
BLOCKED_BY_BUDGET = "blocked_by_budget"
BLOCKED_BY_QUOTA = "blocked_by_quota"
BLOCKED_BY_ROUTE = "blocked_by_route"
BLOCKED_BY_LANE_STATE = "blocked_by_lane_state"
BLOCKED_BY_OPERATOR = "blocked_by_operator"
NOT_APPLICABLE = "not_applicable"
GRANTABLE_STATES = frozenset({ELIGIBLE_NOW, PENDING_CLAIM})
ADMISSION_BLOCKS = frozenset(
    {BLOCKED_BY_BUDGET, BLOCKED_BY_QUOTA, BLOCKED_BY_ROUTE, BLOCKED_BY_OPERATOR, BLOCKED_BY_LANE_STATE}
)
#: Blocks that end when a budget or a quota has room again.
ROOM_BLOCKS = frozenset({BLOCKED_BY_BUDGET, BLOCKED_BY_QUOTA})

# public_state
PUBLIC_WAITING = "waiting"
PUBLIC_DELAYED = "delayed"
PUBLIC_RATE_LIMITED = "rate_limited"
PUBLIC_WAITING_CHILDREN = "waiting_children"
PUBLIC_RUNNING = "running"
PUBLIC_SUSPENDED = "suspended"
PUBLIC_RESUMABLE = "resumable"
PUBLIC_COMPLETED = "completed"
PUBLIC_FAILED = "failed"
PUBLIC_CANCELLED = "cancelled"
PUBLIC_EXPIRED = "expired"
PUBLIC_SKIPPED = "skipped"
#: Ends that take along what the execution has started.
TAKING_CHILDREN_ALONG = frozenset({PUBLIC_CANCELLED, PUBLIC_EXPIRED})

# state of a waitpoint
WAITPOINT_PENDING = "pending"
WAITPOINT_OPEN = "active"
WAITPOINT_CLOSED = "closed"
WAITPOINT_EXPIRED = "expired"
#: Waitpoints that somebody may still answer.
LIVE_WAITPOINTS = frozenset({WAITPOINT_PENDING, WAITPOINT_OPEN})

# attempt_state
ATTEMPT_NONE = "none"
ATTEMPT_PENDING = "pending"
PENDING_FIRST_ATTEMPT = "pending_first_attempt"
RUNNING_ATTEMPT = "running_attempt"
ATTEMPT_INTERRUPTED = "attempt_interrupted"
PENDING_RETRY_ATTEMPT = "pending_retry_attempt"
PENDING_REPLAY_ATTEMPT = "pending_replay_attempt"
ATTEMPT_TERMINAL = "attempt_terminal"
ATTEMPT_CANCELLED = "cancelled"
RUNNING_ATTEMPT_STATES = frozenset({RUNNING_ATTEMPT, "running"})
FIRST_ATTEMPT_STATES = frozenset({ATTEMPT_NONE, ATTEMPT_PENDING, PENDING_FIRST_ATTEMPT, "initial", PENDING_CLAIM})
#: Attempt states from which a lease can begin.
CLAIMABLE_ATTEMPT_STATES = FIRST_ATTEMPT_STATES | {ATTEMPT_INTERRUPTED, PENDING_RETRY_ATTEMPT, PENDING_REPLAY_ATTEMPT}

# blocking_reason
WAITING_FOR_WORKER = "waiting_for_worker"
WAITING_FOR_RETRY_BACKOFF = "waiting_for_retry_backoff"
WAITING_FOR_RESUME_DELAY = "waiting_for_resume_delay"
WAITING_FOR_DELAY = "waiting_for_delay"
WAITING_FOR_CHILDREN = "waiting_for_children"
WAITING_FOR_SIGNAL = "waiting_for_signal"
WAITING_FOR_APPROVAL = "waiting_for_approval"
WAITING_FOR_CALLBACK = "waiting_for_callback"
WAITING_FOR_TOOL_RESULT = "waiting_for_tool_result"
WAITING_FOR_BUDGET = "waiting_for_budget"
WAITING_FOR_QUOTA = "waiting_for_quota"
WAITING_FOR_CAPABLE_WORKER = "waiting_for_capable_worker"
PAUSED_BY_OPERATOR = "paused_by_operator"
PAUSED_BY_POLICY = "paused_by_policy"
PAUSED_BY_FLOW_CANCEL = "paused_by_flow_cancel"

# ff_attempt.outcome
OUTCOME_SUCCESS = "success"
OUTCOME_FAILED = "failed"
OUTCOME_RETRY = "retry"
OUTCOME_CANCELLED = "cancelled"
OUTCOME_INTERRUPTED = "interrupted"
OUTCOME_SUSPENDED = "attempt_interrupted"
OUTCOME_WAITING_CHILDREN = "waiting_children"
OUTCOME_LEASE_EXPIRED = "lease_expired_reclaimable"
OUTCOME_RECLAIMED = "interrupted_reclaimed"
OUTCOME_EXPIRED = "expired"
OUTCOME_SKIPPED = "skipped"

# terminal_outcome
ENDED_SUCCESS = "success"
ENDED_FAILED = "failed"
ENDED_CANCELLED = "cancelled"
ENDED_EXPIRED = "expired"
ENDED_SKIPPED = "skipped"
ENDED_NONE = "none"

# attempt type
TYPE_INITIAL = "initial"
TYPE_RETRY = "retry"
TYPE_RECLAIM = "reclaim"
TYPE_REPLAY = "replay"

# ff_lease_event.event_type
LEASE_ACQUIRED = "acquired"
LEASE_RENEWED = "renewed"
LEASE_EXPIRED = "expired"
LEASE_RECLAIMED = "reclaimed"
LEASE_ENDED = "revoked"

# who ended a lease (ff_lease_event.revoked_by)
BY_OPERATOR = "operator"
BY_RECONCILER = "reconciler"
BY_HOLDER = "backend"

# ff_lane_registry.state
LANE_ACTIVE = "active"
LANE_PAUSED = "paused"
LANE_DRAINING = "draining"
LANE_DISABLED = "disabled"
#: Lanes that grant nothing, and lanes that accept no new work.
WITHHOLDING_LANES = frozenset({LANE_PAUSED, LANE_DISABLED})
CLOSED_LANES = frozenset({LANE_DRAINING, LANE_DISABLED})

# ff_instance_tag_event.event_type
TAG_ATTACHED = "attached"
TAG_CLEARED = "cleared"

# ff_claim_grant.kind
GRANT_CLAIM = "claim"
GRANT_RECLAIM = "reclaim"

# flow states that end a flow
ENDED_FLOW_STATES = frozenset({"cancelled", "completed", "failed", "terminal"})

#: ``scope_type`` of a budget that is called by its ``scope_id``.
SCOPE_NAMED = "named"

#: The waitpoint of a question that is answered by anyone who has its link, and the tag that holds a question's text.
ANYONE = "anyone"
QUESTION_TAG = "ff.ask"

#: The tag whose value fills the ``instance_tag`` column of later events.
INSTANCE_TAG = "cairn.instance_id"


def is_claimable(lifecycle_phase: str, eligibility_state: str) -> bool:
    """Whether a worker may take the row right now. The claim index of every store is built on the same two columns."""
    return eligibility_state == ELIGIBLE_NOW and lifecycle_phase in WAITING_PHASES
