"""Answers that the examples must meet. One that goes cold is a fault of the generator, not a comfort."""

from __future__ import annotations

_ANSWERS: dict[str, str] = {
    "append_frame": "AppendFrameOutcome|attempt|execution_not_active|invalid_input|lease_conflict|lease_expired",
    "block_execution": (
        "execution|execution_not_active|execution_not_eligible|invalid_blocking_reason|paused_by_operator|"
        "paused_by_policy|waiting_for_budget|waiting_for_capable_worker|waiting_for_quota"
    ),
    "cancel": "Cancelled|again|attempt|execution_not_active|lease_conflict|lease_expired",
    "cancel_execution": "Cancelled|execution|invalid_input|stale_lease",
    "change_priority": "PriorityChanged|execution|execution_not_eligible",
    "claim": "0 found|1 found|2 found",
    "claim_execution": (
        "Claimed|claim_grant_expired|execution|execution_not_active|execution_not_leaseable|invalid_claim_grant|"
        "use_claim_resumed_execution"
    ),
    "claim_for_worker": "Granted|NoWork",
    "claim_from_resume_grant": "None|Resumed|attempt",
    "claim_resumed_execution": "Claimed|execution|execution_not_leaseable|invalid_claim_grant|not_a_resumed_execution",
    "complete": "None|again|attempt|execution_not_active|lease_conflict|lease_expired",
    "complete_execution": "Completed|execution|execution_not_active|lease_expired|stale_lease",
    "create": "Created|Duplicate",
    "create_many": "1 found|2 found|3 found",
    "delay": "None|attempt|execution_not_active|lease_conflict|lease_expired",
    "delay_execution": "Delayed|execution|execution_not_active|lease_expired|stale_lease",
    "expire attempt_timeout": "False",
    "expire execution_deadline": "False|True",
    "fail": "RetryScheduled|TerminalFailed|again|attempt|execution_not_active|lease_conflict|lease_expired",
    "fail_execution": "RetryScheduled|TerminalFailed|attempt|execution_not_active|lease_expired|stale_lease",
    "heartbeat_worker": "NotRegistered|Refreshed",
    "issue_claim_grant": "GrantIssued|capability_mismatch|execution|execution_not_eligible|grant_already_exists",
    "issue_grant_and_claim": "OperatorLease|execution|execution_not_active|execution_not_leaseable",
    "issue_reclaim_grant": "Granted|NotReclaimable|ReclaimCapExceeded|execution|grant_already_exists",
    "mark_lease_expired": "execution_not_found|failed|marked|not_active|not_yet_expired|requeued",
    "mark_worker_dead": "Marked|NotRegistered",
    "progress": "None|attempt|execution_not_active|lease_conflict|lease_expired",
    "reclaim_execution": "GrantNotFound|NotReclaimable|ReclaimCapExceeded|Reclaimed|invalid_input",
    "register_worker": "Refreshed|Registered|invalid_input",
    "renew": "LeaseRenewal|attempt|execution_not_active|lease_conflict|lease_expired",
    "renew_lease": "Renewed|attempt|execution_not_active|lease_expired|stale_lease",
    "replay_execution": "Replayed|execution|execution_not_terminal|max_replays_exhausted",
    "revoke_lease": "Revoked|different_worker_instance_id|execution|lease_id_mismatch|no_active_lease",
    "set_tag": "None|execution",
    "timer attempt_timeout": "1",
    "timer delayed_promoter": "1",
    "timer execution_deadline": "1",
    "timer grant_sweep": "1",
    "timer intake": "1",
    "timer lease_expiry": "1",
    "timer unblock": "1",
    "timer worker_registry_ttl_sweep": "1",
    "trim": "0|1|2",
    "unblock_execution": "Unblocked|execution|execution_not_eligible",
    "wait_children": "None|attempt|execution_not_active|lease_conflict|lease_expired",
}
MARKS = [(label, answer) for label, answers in _ANSWERS.items() for answer in answers.split("|")]
