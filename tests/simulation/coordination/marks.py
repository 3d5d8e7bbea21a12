"""Answers and situations that the examples must meet. One that goes cold is a fault of the generator, not a comfort."""

from __future__ import annotations

_ANSWERS: dict[str, str] = {
    "add_execution_to_flow": "Added|AlreadyMember|execution|flow|flow_already_terminal|invalid_input",
    "apply_dependency_to_child": "AlreadyApplied|Applied|execution|execution_already_in_flow|invalid_input",
    "ack_cancel_member": "None",
    "cancel_flow": "Cancelled|flow",
    "cancel_flow_header": "AlreadyTerminal|Cancelled|flow",
    "create_flow": "AlreadySatisfied|Created",
    "replay_execution": "Replayed|execution_not_terminal|max_replays_exhausted",
    "set_edge_group_policy": "AlreadySet|Set|flow|invalid_input",
    "stage_dependency_edge": (
        "Staged|cycle_detected|dependency_already_exists|execution_not_in_flow|flow|flow_already_terminal|"
        "self_referencing_edge|stale_graph_revision"
    ),
    "submit_flow": "FlowSubmitted|cycle_detected",
    "wait_children": "None|execution_not_active|lease_conflict",
    "create_waitpoint": "PendingWaitpoint|execution_not_active",
    "suspend": "Suspended|AlreadySatisfied|already_suspended|lease_conflict|waitpoint_already_exists",
    "deliver_signal": (
        "Accepted|Duplicate|invalid_token|pending_waitpoint_expired|signal_limit_exceeded|target_not_signalable|"
        "waitpoint_closed"
    ),
    "deliver_approval_signal": "Accepted|Duplicate|waitpoint",
    "resume_execution": "Resumed|execution_not_suspended",
    "rotate": "Rotated|Noop|rotation_conflict",
    "report_usage_admin": "Ok|SoftBreach|HardBreach|AlreadyApplied|budget",
    "record_spend": "Ok|SoftBreach|HardBreach|budget",
    "reserve_budget": "Reserved|HardBreach|lease_conflict",
    "settle_reservation": "Settled|AlreadyApplied|HardBreach|reservation",
    "release_reservation": "ReservationReleased",
    "reset_budget": "Reset|budget",
    "check_admission": "Admitted|AlreadyAdmitted|RateExceeded|ConcurrencyExceeded",
    "met": (
        "a holder waits for members|a skipped member replayed|all_of  impossible|all_of  satisfied|"
        "any_of cancel_remaining impossible|any_of cancel_remaining satisfied|any_of let_run impossible|"
        "any_of let_run satisfied|cancel_all of a member active|cancel_all of a member runnable|"
        "cancel_all of a member submitted|cancel_pending of a member runnable|cancel_pending of a member submitted|"
        "counted after the group had fired|data passed|edge from an ended parent: impossible|"
        "edge from an ended parent: satisfied|let go before its own time|let go, but members are at work|"
        "loser cancelled while active|loser cancelled while runnable|loser cancelled while submitted|"
        "quorum cancel_remaining impossible|quorum cancel_remaining satisfied|quorum let_run impossible|"
        "quorum let_run satisfied|skipped while active|skipped while runnable|"
        "early signals were enough|early signals were not enough|refused: missing_token|refused: token_expired|"
        "signal: appended_to_waitpoint|signal: appended_to_waitpoint_duplicate|signal: no_op|"
        "signal: buffered_for_pending_waitpoint|signal: resume_condition_satisfied|"
        "signal: signal_ignored_matcher_failed|timed out: auto_resume_with_timeout_signal|timed out: cancel|"
        "timed out: escalate|timed out: expire|timed out: fail|cancelled with a waitpoint active|"
        "a full window|a hard limit|a reservation came back with its lease|a slot given back at the end|"
        "denied: waiting_for_budget|denied: waiting_for_quota|given back by name|let go when there was room|"
        "no free slot|settled while lapsed|settled while open"
    ),
}
MARKS = [(label, answer) for label, answers in _ANSWERS.items() for answer in answers.split("|")]
