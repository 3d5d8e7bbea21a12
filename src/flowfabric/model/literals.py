"""The texts stored in state columns, as plain ``str``, and the sets rules test them against.

Rows keep a few texts beside the canonical ones; the sets below accept both, so that a rule never has to know which
writer a row came from. ``docs/states.md`` is the glossary.
"""

from __future__ import annotations

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
