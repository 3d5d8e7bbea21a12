"""Which operations of the engine can be called from elsewhere, by whom, and which may be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from flowfabric.model.credentials import Scope


class Gate(StrEnum):
    """What keeps a credential to its namespaces."""

    #: A signed handle says whose execution it is.
    HANDLE = "handle"
    #: The executions that are named must be the caller's; others look absent.
    EXECUTION = "execution"
    #: The namespace that is named must be the caller's.
    NAMESPACE = "namespace"
    #: The budget that is named must be scoped to a namespace of the caller's, or be named by the handle's execution.
    BUDGET = "budget"
    #: The flow that is named must be the caller's.
    FLOW = "flow"
    #: About all namespaces: not for credentials that are limited to some.
    EVERYWHERE = "everywhere"
    #: Nothing in it belongs to anybody.
    OPEN = "open"


class RemoteCall(NamedTuple):
    """An operation that can be called from elsewhere. Any one of ``scopes`` suffices.

    ``repeatable`` says that asking again after a lost answer does no harm: it changes nothing, or the same thing once,
    and gives the same answer. ``repeatable_with`` is an argument that makes it so.
    """

    scopes: frozenset[Scope]
    gate: Gate
    repeatable: bool = True
    repeatable_with: str | None = None

    def may_repeat(self, options: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments may be made again after a lost answer."""
        return self.repeatable or (self.repeatable_with is not None and options.get(self.repeatable_with) is not None)


def _calls(gate: Gate, *scopes: Scope, repeatable: bool = True) -> RemoteCall:
    return RemoteCall(frozenset(scopes), gate, repeatable)


_SUBMIT, _WORKER, _READ = Scope.SUBMIT, Scope.WORKER, Scope.READ
_SIGNAL, _OPERATOR = Scope.SIGNAL, Scope.OPERATOR
_LOOKS = _calls(Gate.EXECUTION, _READ, _WORKER)
_HELD = _calls(Gate.HANDLE, _WORKER)
_HELD_ONCE = _calls(Gate.HANDLE, _WORKER, repeatable=False)
_NUMBERED = _HELD_ONCE._replace(repeatable_with="number")

REMOTE_CALLS: dict[str, RemoteCall] = {
    # starting
    "create_execution": _calls(Gate.NAMESPACE, _SUBMIT),
    "create_executions": _calls(Gate.NAMESPACE, _SUBMIT),
    "debounce_execution": _calls(Gate.NAMESPACE, _SUBMIT, repeatable=False),
    "find_execution": _calls(Gate.NAMESPACE, _READ, _SUBMIT, _WORKER),
    # reading
    "read_execution_state": _LOOKS,
    "read_execution_info": _LOOKS,
    "read_exec_core_fields": _LOOKS,
    "get_execution_result": _LOOKS,
    "read_execution_context": _LOOKS,
    "read_execution_contexts": _LOOKS,
    "describe_execution": _LOOKS,
    "read_current_attempt_index": _LOOKS,
    "read_total_attempt_count": _LOOKS,
    "read_steps": _LOOKS,
    "read_ends": _LOOKS,
    "read_stream": _LOOKS,
    "tail_stream": _LOOKS,
    "read_summary": _LOOKS,
    "explain": _LOOKS,
    "now_ms": _calls(Gate.OPEN, *Scope),
    "list_executions": _calls(Gate.EVERYWHERE, _READ),
    "scan_eligible_executions": _calls(Gate.EVERYWHERE, _READ),
    "list_suspended": _calls(Gate.EVERYWHERE, _READ),
    "list_live_steps": _calls(Gate.EVERYWHERE, _READ),
    "search_executions": _calls(Gate.NAMESPACE, _READ),
    "list_expired_leases": _calls(Gate.NAMESPACE, _READ),
    "list_workers": _calls(Gate.NAMESPACE, _READ),
    "list_lanes": _calls(Gate.OPEN, _READ),
    "describe_lane": _calls(Gate.OPEN, _READ),
    "get_execution_namespace": _LOOKS,
    "get_execution_tag": _LOOKS,
    "resolve_execution_flow_id": _LOOKS,
    "read_history": _LOOKS,
    "read_events": _calls(Gate.EVERYWHERE, _READ),
    "read_pulse": _calls(Gate.EVERYWHERE, _READ),
    "queue_depths": _calls(Gate.EVERYWHERE, _READ),
    "list_namespaces": _calls(Gate.EVERYWHERE, _READ),
    "search_flows": _calls(Gate.NAMESPACE, _READ),
    "search_suspended": _calls(Gate.NAMESPACE, _READ),
    "search_workers": _calls(Gate.NAMESPACE, _READ),
    "search_schedules": _calls(Gate.NAMESPACE, _READ),
    "ping": _calls(Gate.OPEN, *Scope),
    "server_time_ms": _calls(Gate.OPEN, *Scope),
    "capabilities": _calls(Gate.OPEN, *Scope),
    # administering
    "create_credential": _calls(Gate.EVERYWHERE, Scope.ADMIN, repeatable=False),
    "list_credentials": _calls(Gate.EVERYWHERE, Scope.ADMIN),
    "revoke_credential": _calls(Gate.EVERYWHERE, Scope.ADMIN),
    "examine": _calls(Gate.EVERYWHERE, Scope.ADMIN),
    # flows
    "create_flow": _calls(Gate.NAMESPACE, _SUBMIT, repeatable=False),
    "describe_flow": _calls(Gate.FLOW, _READ, _WORKER),
    "list_flow_edges": _calls(Gate.FLOW, _READ),
    "get_flow_summary": _calls(Gate.FLOW, _READ),
    "get_flow_tag": _calls(Gate.FLOW, _READ),
    "set_flow_tags": _calls(Gate.FLOW, _OPERATOR),
    "cancel_flow": _calls(Gate.FLOW, _OPERATOR),
    # steering
    "cancel_execution": _calls(Gate.EXECUTION, _OPERATOR, _WORKER),
    "replay_execution": _calls(Gate.EXECUTION, _OPERATOR, repeatable=False),
    "fork_execution": _calls(Gate.EXECUTION, _OPERATOR, repeatable=False),
    "change_priority": _calls(Gate.EXECUTION, _OPERATOR),
    "revoke_lease": _calls(Gate.EXECUTION, _OPERATOR),
    "resume_execution": _calls(Gate.EXECUTION, _OPERATOR, repeatable=False),
    "set_execution_tags": _calls(Gate.EXECUTION, _OPERATOR),
    "set_lane_state": _calls(Gate.EVERYWHERE, _OPERATOR),
    "set_lane_fairness": _calls(Gate.EVERYWHERE, _OPERATOR),
    # questions and signals
    "list_pending_waitpoints": _LOOKS,
    "read_waitpoint_token": _calls(Gate.EVERYWHERE, _OPERATOR),
    "deliver_signal": _calls(Gate.EXECUTION, _SIGNAL),
    # budgets and quotas
    "create_budget": _calls(Gate.BUDGET, _SUBMIT, _OPERATOR),
    "get_budget_status": _calls(Gate.BUDGET, _READ, _WORKER),
    "set_budget_limits": _calls(Gate.BUDGET, _OPERATOR),
    "reset_budget": _calls(Gate.BUDGET, _OPERATOR),
    "list_budgets": _calls(Gate.EVERYWHERE, _READ),
    "list_quota_policies": _calls(Gate.EVERYWHERE, _READ),
    "read_quota_policy_limits": _calls(Gate.EVERYWHERE, _READ),
    "create_quota_policy": _calls(Gate.EVERYWHERE, _SUBMIT, _OPERATOR),
    # schedules
    "put_schedule": _calls(Gate.NAMESPACE, _SUBMIT),
    "get_schedule": _calls(Gate.NAMESPACE, _READ),
    "list_schedules": _calls(Gate.NAMESPACE, _READ),
    "pause_schedule": _calls(Gate.NAMESPACE, _OPERATOR),
    "resume_schedule": _calls(Gate.NAMESPACE, _OPERATOR),
    "trigger_schedule": _calls(Gate.NAMESPACE, _OPERATOR, repeatable=False),
    "delete_schedule": _calls(Gate.NAMESPACE, _OPERATOR),
    # working
    "register_worker": _calls(Gate.NAMESPACE, _WORKER),
    "heartbeat_worker": _calls(Gate.NAMESPACE, _WORKER),
    "mark_worker_dead": _calls(Gate.NAMESPACE, _WORKER),
    "renew": _HELD,
    "progress": _HELD,
    "complete": _HELD,
    "fail": _HELD,
    "cancel": _HELD,
    "give_back": _HELD,
    "advance": _HELD,
    "suspend": _HELD,
    "observe_signals": _HELD,
    "append_frame": _NUMBERED,
    "append_frames": _NUMBERED,
    "delay": _HELD_ONCE,
    "wait_children": _HELD_ONCE,
    "reserve_budget": _calls(Gate.BUDGET, _WORKER, repeatable=False),
    "settle_reservation": _HELD,
    "release_reservation": _HELD,
}
