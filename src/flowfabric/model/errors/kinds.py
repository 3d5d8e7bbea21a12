"""The kinds of each family of errors, and for each kind what happened and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ErrorClass(StrEnum):
    """What a caller may do about an error."""

    TERMINAL = "terminal"
    RETRYABLE = "retryable"
    COOPERATIVE = "cooperative"
    INFORMATIONAL = "informational"
    ADVISORY = "advisory"
    BUG = "bug"
    EXPECTED = "expected"
    SOFT_ERROR = "soft_error"


HINT_RETRYABLE_ELSEWHERE = "retryable_elsewhere"
"""Hint: the same execution can be had by another operation."""

HINT_RETRYABLE_NEW_GRANT = "retryable_new_grant"
"""Hint: ask the scheduler for a new grant first."""


class ValidationKind(StrEnum):
    """Why an input was refused."""

    INVALID_INPUT = "invalid_input"
    CAPABILITY_MISMATCH = "capability_mismatch"
    INVALID_CAPABILITIES = "invalid_capabilities"
    INVALID_POLICY_JSON = "invalid_policy_json"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    SIGNAL_LIMIT_EXCEEDED = "signal_limit_exceeded"
    INVALID_WAITPOINT_KEY = "invalid_waitpoint_key"
    INVALID_TOKEN = "invalid_token"
    WAITPOINT_NOT_TOKEN_BOUND = "waitpoint_not_token_bound"
    RETENTION_LIMIT_EXCEEDED = "retention_limit_exceeded"
    INVALID_LEASE_FOR_SUSPEND = "invalid_lease_for_suspend"
    INVALID_DEPENDENCY = "invalid_dependency"
    INVALID_WAITPOINT_FOR_EXECUTION = "invalid_waitpoint_for_execution"
    INVALID_BLOCKING_REASON = "invalid_blocking_reason"
    INVALID_OFFSET = "invalid_offset"
    UNAUTHORIZED = "unauthorized"
    INVALID_BUDGET_SCOPE = "invalid_budget_scope"
    BUDGET_OVERRIDE_NOT_ALLOWED = "budget_override_not_allowed"
    INVALID_QUOTA_SPEC = "invalid_quota_spec"
    INVALID_KID = "invalid_kid"
    INVALID_SECRET_HEX = "invalid_secret_hex"
    INVALID_GRACE_MS = "invalid_grace_ms"
    INVALID_TAG_KEY = "invalid_tag_key"
    INVALID_FRAME_TYPE = "invalid_frame_type"
    CORRUPTION = "corruption"
    HANDLE_FROM_OTHER_BACKEND = "handle_from_other_backend"


class ContentionKind(StrEnum):
    """Which race was lost, or what has moved."""

    USE_CLAIM_RESUMED_EXECUTION = "use_claim_resumed_execution"
    NOT_A_RESUMED_EXECUTION = "not_a_resumed_execution"
    EXECUTION_NOT_LEASEABLE = "execution_not_leaseable"
    LEASE_CONFLICT = "lease_conflict"
    INVALID_CLAIM_GRANT = "invalid_claim_grant"
    CLAIM_GRANT_EXPIRED = "claim_grant_expired"
    NO_ELIGIBLE_EXECUTION = "no_eligible_execution"
    WAITPOINT_NOT_FOUND = "waitpoint_not_found"
    WAITPOINT_PENDING_USE_BUFFER_SCRIPT = "waitpoint_pending_use_buffer_script"
    STALE_GRAPH_REVISION = "stale_graph_revision"
    EXECUTION_NOT_ACTIVE = "execution_not_active"
    EXECUTION_NOT_ELIGIBLE = "execution_not_eligible"
    EXECUTION_NOT_IN_ELIGIBLE_SET = "execution_not_in_eligible_set"
    EXECUTION_NOT_RECLAIMABLE = "execution_not_reclaimable"
    NO_ACTIVE_LEASE = "no_active_lease"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    CONCURRENCY_LIMIT_EXCEEDED = "concurrency_limit_exceeded"
    RETRY_EXHAUSTED = "retry_exhausted"


class ConflictKind(StrEnum):
    """Which existing record stands in the way."""

    DEPENDENCY_ALREADY_EXISTS = "dependency_already_exists"
    CYCLE_DETECTED = "cycle_detected"
    SELF_REFERENCING_EDGE = "self_referencing_edge"
    EXECUTION_ALREADY_IN_FLOW = "execution_already_in_flow"
    WAITPOINT_ALREADY_EXISTS = "waitpoint_already_exists"
    BUDGET_ATTACH_CONFLICT = "budget_attach_conflict"
    QUOTA_ATTACH_CONFLICT = "quota_attach_conflict"
    ROTATION_CONFLICT = "rotation_conflict"
    ACTIVE_ATTEMPT_EXISTS = "active_attempt_exists"


class StateKind(StrEnum):
    """Which state forbids the operation."""

    STALE_LEASE = "stale_lease"
    LEASE_EXPIRED = "lease_expired"
    LEASE_REVOKED = "lease_revoked"
    TARGET_NOT_SIGNALABLE = "target_not_signalable"
    RESUME_CONDITION_NOT_MET = "resume_condition_not_met"
    EXECUTION_NOT_TERMINAL = "execution_not_terminal"
    MAX_REPLAYS_EXHAUSTED = "max_replays_exhausted"
    REPLAY_NOT_ALLOWED = "replay_not_allowed"
    MAX_RETRIES_EXHAUSTED = "max_retries_exhausted"
    STREAM_CLOSED = "stream_closed"
    STALE_OWNER_CANNOT_APPEND = "stale_owner_cannot_append"
    EXECUTION_NOT_IN_FLOW = "execution_not_in_flow"
    FLOW_ALREADY_TERMINAL = "flow_already_terminal"
    NOT_RUNNABLE = "not_runnable"
    TERMINAL = "terminal"
    ATTEMPT_NOT_STARTED = "attempt_not_started"
    EXECUTION_NOT_ELIGIBLE_FOR_ATTEMPT = "execution_not_eligible_for_attempt"
    EXECUTION_NOT_SUSPENDED = "execution_not_suspended"
    ALREADY_SUSPENDED = "already_suspended"
    ALREADY_SATISFIED = "already_satisfied"
    WAITPOINT_CLOSED = "waitpoint_closed"
    WAITPOINT_NOT_OPEN = "waitpoint_not_open"
    WAITPOINT_NOT_PENDING = "waitpoint_not_pending"
    PENDING_WAITPOINT_EXPIRED = "pending_waitpoint_expired"
    DUPLICATE_SIGNAL = "duplicate_signal"
    OK_ALREADY_APPLIED = "ok_already_applied"
    STREAM_ALREADY_CLOSED = "stream_already_closed"
    ATTEMPT_ALREADY_TERMINAL = "attempt_already_terminal"
    GRANT_ALREADY_EXISTS = "grant_already_exists"
    DEPS_NOT_SATISFIED = "deps_not_satisfied"
    NOT_BLOCKED_BY_DEPS = "not_blocked_by_deps"
    BUDGET_SOFT_EXCEEDED = "budget_soft_exceeded"
    BUDGET_EXCEEDED = "budget_exceeded"
    LANE_CLOSED = "lane_closed"
    LANE_PAUSED = "lane_paused"


class BugKind(StrEnum):
    """Which invariant of the engine is broken."""

    ATTEMPT_NOT_IN_CREATED_STATE = "attempt_not_in_created_state"
    INTERNAL_ERROR = "internal_error"


class TransportKind(StrEnum):
    """What failed between the engine and its store."""

    TRANSPORT = "transport"
    PROTOCOL = "protocol"
    TIMEOUT = "timeout"
    AUTH = "auth"
    CLUSTER = "cluster"
    BUSY_LOADING = "busy_loading"
    SCRIPT_NOT_LOADED = "script_not_loaded"
    NOT_UNDERSTOOD = "not_understood"
    OTHER = "other"


_V, _C, _F, _S, _T = ValidationKind, ContentionKind, ConflictKind, StateKind, TransportKind

# What happened, and what to do about it, for every kind. One table serves all families: no two kinds share a text.
SENTENCES: Mapping[str, tuple[str, str]] = {
    _V.INVALID_INPUT: ("an argument was refused", "Correct the argument and call again."),
    _V.CAPABILITY_MISMATCH: ("the worker lacks required capabilities", "Offer them, or leave it to another worker."),
    _V.INVALID_CAPABILITIES: (
        "a capability list is malformed or too large",
        "Use at most 256 non-empty tokens without commas, spaces or control characters.",
    ),
    _V.INVALID_POLICY_JSON: ("the execution policy is malformed", "Send a JSON object with the documented members."),
    _V.PAYLOAD_TOO_LARGE: ("a payload is larger than allowed", "Store it elsewhere and send a reference."),
    _V.SIGNAL_LIMIT_EXCEEDED: ("the execution has reached its signal limit", "Raise the limit."),
    _V.INVALID_WAITPOINT_KEY: ("the waitpoint key is not valid", "Use the key the waitpoint was created with."),
    _V.INVALID_TOKEN: ("the waitpoint token was refused", "Use the token that came with the waitpoint, unchanged."),
    _V.WAITPOINT_NOT_TOKEN_BOUND: ("the waitpoint has no token", "Deliver to a waitpoint that was created with one."),
    _V.RETENTION_LIMIT_EXCEEDED: ("the frame is larger than 65,536 bytes", "Split it into smaller frames."),
    _V.INVALID_LEASE_FOR_SUSPEND: ("the lease does not belong to this execution", "Suspend with the current handle."),
    _V.INVALID_DEPENDENCY: ("an edge or reference is unknown", "Check the ids of the edge and of its two ends."),
    _V.INVALID_WAITPOINT_FOR_EXECUTION: ("the waitpoint belongs to another execution", "Check both ids."),
    _V.INVALID_BLOCKING_REASON: ("the blocking reason is unknown", "Use one of the documented reasons."),
    _V.INVALID_OFFSET: ("the stream offset is not valid", "Read the stream again from a cursor it gave you."),
    _V.UNAUTHORIZED: ("the caller may not do this", "Use credentials that carry the needed scope."),
    _V.INVALID_BUDGET_SCOPE: ("the budget scope is not valid", "Use a documented scope type with its scope id."),
    _V.BUDGET_OVERRIDE_NOT_ALLOWED: ("this budget may not be overridden", "Raise the limit of the budget instead."),
    _V.INVALID_QUOTA_SPEC: ("the quota policy is not valid", "Correct its window, rate or concurrency limit."),
    _V.INVALID_KID: ("the key id is not valid", "Use a non-empty key id without a colon."),
    _V.INVALID_SECRET_HEX: ("the secret is not valid hexadecimal", "Send a non-empty even number of hex digits."),
    _V.INVALID_GRACE_MS: ("the grace period is not valid", "Send milliseconds within the documented range."),
    _V.INVALID_TAG_KEY: ("a tag key is not valid", "Use lower-case words joined by dots, such as 'team.name'."),
    _V.INVALID_FRAME_TYPE: ("the frame type is unknown", "Use one of the documented frame types."),
    _V.CORRUPTION: ("a stored or returned value cannot be decoded", "Do not retry; inspect the value named here."),
    _V.HANDLE_FROM_OTHER_BACKEND: (
        "the handle was minted by another backend",
        "Give the handle back to the engine it came from.",
    ),
    _C.USE_CLAIM_RESUMED_EXECUTION: ("the attempt was interrupted, not new", "Call claim_resumed_execution."),
    _C.NOT_A_RESUMED_EXECUTION: ("the attempt was not interrupted", "Call claim_execution."),
    _C.EXECUTION_NOT_LEASEABLE: ("the execution changed after it was granted", "Ask for other work."),
    _C.LEASE_CONFLICT: ("another holder owns the lease", "Stop this attempt: its result can no longer be recorded."),
    _C.INVALID_CLAIM_GRANT: ("the grant is missing or belongs to someone else", "Ask for a new grant."),
    _C.CLAIM_GRANT_EXPIRED: ("the grant has expired", "Ask for a new grant."),
    _C.NO_ELIGIBLE_EXECUTION: ("there is no work to claim", "Wait and claim again."),
    _C.WAITPOINT_NOT_FOUND: ("the waitpoint does not exist (yet, or any more)", "Try again shortly."),
    _C.WAITPOINT_PENDING_USE_BUFFER_SCRIPT: ("the waitpoint is not active yet", "Buffer the signal and try again."),
    _C.STALE_GRAPH_REVISION: ("the flow graph has changed", "Read the flow again and repeat with its new revision."),
    _C.EXECUTION_NOT_ACTIVE: ("the execution is not active", "Read it again; stop if it has ended."),
    _C.EXECUTION_NOT_ELIGIBLE: ("the execution is not eligible now", "Read what it is waiting for; nothing is lost."),
    _C.EXECUTION_NOT_IN_ELIGIBLE_SET: ("another scheduler took the execution", "Continue with other work."),
    _C.EXECUTION_NOT_RECLAIMABLE: ("the execution can no longer be reclaimed", "Continue with other work."),
    _C.NO_ACTIVE_LEASE: ("there is no lease", "There is nothing to revoke."),
    _C.RATE_LIMIT_EXCEEDED: ("the rate limit is used up", "Try again in the next window."),
    _C.CONCURRENCY_LIMIT_EXCEEDED: ("all concurrency slots are taken", "Try again when one is free."),
    _C.RETRY_EXHAUSTED: ("the transaction conflicted with others on every try", "Try again after a short pause."),
    _F.DEPENDENCY_ALREADY_EXISTS: ("this edge already exists", "Use the existing edge."),
    _F.CYCLE_DETECTED: ("the edge would close a cycle", "Remove one edge of the cycle."),
    _F.SELF_REFERENCING_EDGE: ("an edge cannot connect an execution to itself", "Name two different executions."),
    _F.EXECUTION_ALREADY_IN_FLOW: ("the execution belongs to another flow", "Create a new execution for this flow."),
    _F.WAITPOINT_ALREADY_EXISTS: ("a waitpoint with this id or key exists", "Use it, or choose another."),
    _F.BUDGET_ATTACH_CONFLICT: ("another budget is already attached", "Detach it first."),
    _F.QUOTA_ATTACH_CONFLICT: ("another quota policy is already attached", "Detach it first."),
    _F.ROTATION_CONFLICT: ("this key id exists with another secret", "Rotate to a new key id."),
    _F.ACTIVE_ATTEMPT_EXISTS: ("the execution has a live attempt", "Wait until it has ended, or revoke its lease."),
    _S.STALE_LEASE: ("the lease, epoch or attempt given is no longer current", "Read the execution again."),
    _S.LEASE_EXPIRED: ("the lease has expired", "Stop this attempt; another worker will get the execution."),
    _S.LEASE_REVOKED: ("the lease was revoked", "Stop this attempt."),
    _S.TARGET_NOT_SIGNALABLE: ("the execution accepts no signals now", "Signal it while it is suspended."),
    _S.RESUME_CONDITION_NOT_MET: ("the resume condition is not met", "Deliver the signals it still waits for."),
    _S.EXECUTION_NOT_TERMINAL: ("the execution has not ended", "Wait until it ends, or cancel it first."),
    _S.MAX_REPLAYS_EXHAUSTED: ("the execution has no replays left", "Create a new execution."),
    _S.REPLAY_NOT_ALLOWED: ("the execution cannot be replayed", "Create a new execution."),
    _S.MAX_RETRIES_EXHAUSTED: ("the execution has no retries left", "Replay it, or raise max_retries."),
    _S.STREAM_CLOSED: ("the stream is closed", "Append to the stream of the current attempt."),
    _S.STALE_OWNER_CANNOT_APPEND: ("a former owner may not append", "Stop this attempt."),
    _S.EXECUTION_NOT_IN_FLOW: ("the execution is not in this flow", "Add it to the flow first."),
    _S.FLOW_ALREADY_TERMINAL: ("the flow has ended", "Create a new flow."),
    _S.NOT_RUNNABLE: ("the execution is not runnable", "Read its state and what it is waiting for."),
    _S.TERMINAL: ("the execution has ended", "Replay it, or create a new one."),
    _S.ATTEMPT_NOT_STARTED: ("the attempt has not started", "Claim the execution first."),
    _S.EXECUTION_NOT_ELIGIBLE_FOR_ATTEMPT: (
        "the execution cannot start an attempt now",
        "Read what it is waiting for.",
    ),
    _S.EXECUTION_NOT_SUSPENDED: ("the execution is not suspended", "There is nothing to resume."),
    _S.ALREADY_SUSPENDED: ("the execution is already suspended", "Wait for it to be resumed."),
    _S.ALREADY_SATISFIED: ("the condition is already satisfied", "There is nothing to do."),
    _S.WAITPOINT_CLOSED: ("the waitpoint is closed", "There is nothing to do; its execution went on."),
    _S.WAITPOINT_NOT_OPEN: ("the waitpoint is not open", "Signal it after its execution has suspended."),
    _S.WAITPOINT_NOT_PENDING: ("the waitpoint is not pending", "Use a pending waitpoint, or a fresh one."),
    _S.PENDING_WAITPOINT_EXPIRED: ("the pending waitpoint has expired", "Create a new one."),
    _S.DUPLICATE_SIGNAL: ("this signal was delivered before", "There is nothing to do."),
    _S.OK_ALREADY_APPLIED: ("this was applied before", "There is nothing to do."),
    _S.STREAM_ALREADY_CLOSED: ("the stream was closed before", "There is nothing to do."),
    _S.ATTEMPT_ALREADY_TERMINAL: ("the attempt has already ended", "There is nothing to do."),
    _S.GRANT_ALREADY_EXISTS: ("the execution is already granted to a worker", "Continue with other work."),
    _S.DEPS_NOT_SATISFIED: ("dependencies are not satisfied yet", "Wait for the upstream executions."),
    _S.NOT_BLOCKED_BY_DEPS: ("the execution is not blocked by dependencies", "There is nothing to do."),
    _S.BUDGET_SOFT_EXCEEDED: ("a soft budget limit is exceeded", "Continue, and tell the owner of the budget."),
    _S.BUDGET_EXCEEDED: ("a hard budget limit is exceeded", "Stop spending; raise the limit or end the work."),
    _S.LANE_CLOSED: ("the lane accepts no new work", "Use another lane, or open it again with set_lane_state."),
    _S.LANE_PAUSED: ("the lane grants no work", "Wait until the lane is resumed, or serve another one."),
    BugKind.INTERNAL_ERROR: ("the engine met an unexpected case", "Report this bug with the log."),
    BugKind.ATTEMPT_NOT_IN_CREATED_STATE: ("an attempt to start was not in state created", "Report this bug."),
    _T.TRANSPORT: ("the connection failed", "Retry the call."),
    _T.PROTOCOL: ("the reply or the configuration was not as expected", "Check versions and configuration."),
    _T.TIMEOUT: ("no reply came in time", "Retry the call: a repeated terminal call returns the first answer."),
    _T.AUTH: ("the store refused the credentials", "Correct the credentials."),
    _T.CLUSTER: ("the cluster is moving keys", "Retry the call."),
    _T.BUSY_LOADING: ("the store is still loading", "Retry the call after a short pause."),
    _T.SCRIPT_NOT_LOADED: ("a server-side script is missing", "Reopen the engine to load it."),
    _T.NOT_UNDERSTOOD: (
        "the server is older than its caller and does not know the call or an argument",
        "Nothing was done; upgrade servers before workers and apps, and retry the call.",
    ),
    _T.OTHER: ("the store failed", "See the cause."),
}
