"""Operations that change nothing, so that nothing of them can be done twice."""

from __future__ import annotations

#: Their answers are still either right or none, however the store comes and goes.
_NAMES = (
    "attention capabilities count_executions count_states describe_ask describe_execution describe_flow "
    "describe_lane docs examine explain find_execution get_budget_status get_execution_namespace "
    "get_execution_result get_execution_tag get_execution_tags get_flow_summary get_flow_tag get_flow_tags "
    "get_schedule group_failures healthz list_asks list_audit list_budgets list_credentials list_edges "
    "list_executions list_expired_leases list_flow_edges list_flow_members list_flows list_kind_definitions "
    "list_lanes list_live_steps list_namespaces list_pending_waitpoints list_quota_policies list_schedule_runs "
    "list_schedules list_suspended list_waitpoint_keys list_workers livez look_at_link me metrics now_ms openapi "
    "overview ping preview_actions queue_depths read_current_attempt_index read_ends read_errors read_events "
    "read_exec_core_fields read_execution_context read_execution_contexts read_execution_info "
    "read_execution_kinds read_execution_state read_flow_tree read_history read_input read_kind_definition "
    "read_kinds read_pulse read_quota_policy_limits read_steps read_stream read_summary read_total_attempt_count "
    "read_worker_load readyz remote_hello resolve_execution_flow_id scan_eligible_executions search_executions "
    "search_flows search_schedules search_suspended search_workers server_time_ms tail_stream version "
)
READING = frozenset(_NAMES.split())
#: Streams that do not end.
FOLLOWING = frozenset({"follow_changes", "follow_events", "follow_run", "follow_stream"})
#: What tells of the process itself, and of the moment.
OF_THE_MOMENT = frozenset({"metrics", "overview", "read_pulse"})
