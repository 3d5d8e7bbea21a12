"""Everything that a caller can do from outside, described once: who may, what it is about, whether it may be repeated,
whether it is audited.

HTTP routes, remote calls, the console's menus and the documentation read this table, so they cannot disagree. Most
entries are operations of the engine under their own names; the others are made of several, or are about the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from flowfabric.model.operations.access import Scope


class Subject(StrEnum):
    """What an operation is about, and with it what keeps a credential to its namespaces."""

    #: An execution that the caller holds; a signed handle says which.
    HANDLE = "handle"
    #: The executions that are named must be the caller's; others look absent.
    EXECUTION = "execution"
    #: The flow that is named must be the caller's.
    FLOW = "flow"
    #: A budget or quota is named together with its namespace, or by the execution of a handle. It must be the caller's,
    #: which is checked in the commit; others look absent.
    BUDGET = "budget"
    QUOTA = "quota"
    #: The namespace that is named must be the caller's.
    NAMESPACE = "namespace"
    #: As above: a schedule is named together with its namespace.
    SCHEDULE = "schedule"
    #: Namespaces share lanes: a caller sees those that its own use, with what its own do there.
    LANE = "lane"
    #: About all namespaces.
    EVERYTHING = "everything"
    #: Nothing in it belongs to anybody.
    NOTHING = "nothing"


#: The arguments that name a subject.
NAMED_BY: Mapping[Subject, tuple[str, ...]] = {
    Subject.HANDLE: ("handle",),
    Subject.EXECUTION: ("execution_id",),
    Subject.FLOW: ("flow_id",),
    Subject.BUDGET: ("budget_id", "namespace"),
    Subject.QUOTA: ("quota_policy_id", "namespace"),
    Subject.NAMESPACE: ("namespace",),
    Subject.SCHEDULE: ("schedule_id", "namespace"),
    Subject.LANE: ("lane_id",),
    Subject.EVERYTHING: (),
    Subject.NOTHING: (),
}


class Operation(Struct, frozen=True, kw_only=True):
    """One thing that a caller can do.

    Any one of ``scopes`` suffices; without any, no credential is asked for. ``everywhere`` closes it to credentials
    that are limited to namespaces. ``repeatable`` says that asking again after a lost answer does no harm: it changes
    nothing, or the same thing once, and gives the same answer. ``repeatable_with`` is an argument that makes it so.
    ``tells`` are the arguments that the audit tells beside those that name the subject: never payloads or tokens.
    """

    name: str
    scopes: frozenset[Scope]
    subject: Subject
    #: Whether there is a route for it.
    http: bool
    #: Whether it can be called by name through ``/v1/remote/calls``.
    remote: bool
    everywhere: bool = False
    repeatable: bool = True
    repeatable_with: str | None = None
    audited: bool = False
    tells: tuple[str, ...] = ()
    #: Whether it is made of many acts, each with a commit of its own.
    many: bool = False

    def may_repeat(self, options: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments may be made again after a lost answer."""
        return self.repeatable or (self.repeatable_with is not None and options.get(self.repeatable_with) is not None)

    def is_open_to(self, scopes: frozenset[Scope], *, limited: bool) -> bool:
        """Whether a credential with these scopes may call it; ``limited`` ones are for some namespaces only."""
        return not self.scopes or (bool(self.scopes & scopes) and not (limited and self.everywhere))


def _table(*groups: tuple[Operation, ...]) -> dict[str, Operation]:
    found: dict[str, Operation] = {}
    for each in (operation for group in groups for operation in group):
        if each.name in found:
            raise ValueError(f"{each.name} is described twice")
        found[each.name] = each
    return found


def _both(names: str, subject: Subject, *scopes: Scope, **facts: Any) -> tuple[Operation, ...]:
    """Operations that have a route and can be called by name."""
    given = {"subject": subject, "scopes": frozenset(scopes), "http": True, "remote": True, **facts}
    return tuple(Operation(name=name, **given) for name in names.split())


def _routed(names: str, subject: Subject, *scopes: Scope, **facts: Any) -> tuple[Operation, ...]:
    """Operations that have a route only."""
    return _both(names, subject, *scopes, remote=False, **facts)


def _called(names: str, subject: Subject, *scopes: Scope, **facts: Any) -> tuple[Operation, ...]:
    """Operations that can be called by name only."""
    return _both(names, subject, *scopes, http=False, **facts)


_SUBMIT, _WORKER, _READ = Scope.SUBMIT, Scope.WORKER, Scope.READ
_SIGNAL, _OPERATOR, _ADMIN = Scope.SIGNAL, Scope.OPERATOR, Scope.ADMIN
_EXECUTION, _FLOW, _BUDGET, _QUOTA = Subject.EXECUTION, Subject.FLOW, Subject.BUDGET, Subject.QUOTA
_HANDLE, _NAMESPACE, _SCHEDULE, _LANE = Subject.HANDLE, Subject.NAMESPACE, Subject.SCHEDULE, Subject.LANE
_EVERYTHING, _NOTHING = Subject.EVERYTHING, Subject.NOTHING
_ONCE: dict[str, Any] = {"repeatable": False}
_AUDITED: dict[str, Any] = {"audited": True}
_EVERYWHERE: dict[str, Any] = {"everywhere": True}


def _tells(*arguments: str) -> dict[str, Any]:
    return {"audited": True, "tells": arguments}


_STARTING = (
    *_both("create_execution create_executions", _NAMESPACE, _SUBMIT),
    *_routed("start_kind", _NAMESPACE, _SUBMIT, repeatable=False, repeatable_with="idempotency_key"),
    *_called("debounce_execution", _NAMESPACE, _SUBMIT, **_ONCE),
    *_called("find_execution", _NAMESPACE, _READ, _SUBMIT, _WORKER),
    *_both("create_flow", _NAMESPACE, _SUBMIT, **_ONCE),
    *_routed("submit_flow", _NAMESPACE, _SUBMIT, repeatable=False, repeatable_with="flow_id"),
    *_routed("add_execution_to_flow apply_dependency_to_child set_edge_group_policy", _FLOW, _SUBMIT),
    *_routed("stage_dependency_edge", _FLOW, _SUBMIT, **_ONCE),
)

#: Workers read what their runs need.
_READING = (
    # A caller that starts a run under an id that is taken is told if another task has it.
    *_called("read_execution_kinds", _EXECUTION, _READ, _SUBMIT, _WORKER),
    *_both(
        "read_execution_state read_execution_info get_execution_result describe_execution read_steps read_stream "
        "tail_stream read_summary explain preview_actions read_history read_errors list_pending_waitpoints",
        _EXECUTION,
        _READ,
        _WORKER,
    ),
    *_routed("get_execution_tags read_input follow_stream follow_run", _EXECUTION, _READ, _WORKER),
    *_called(
        "read_exec_core_fields read_execution_context read_execution_contexts read_current_attempt_index "
        "read_total_attempt_count read_ends get_execution_namespace get_execution_tag resolve_execution_flow_id",
        _EXECUTION,
        _READ,
        _WORKER,
    ),
    *_both("describe_flow", _FLOW, _READ, _WORKER),
    *_both("list_flow_edges get_flow_summary read_flow_tree", _FLOW, _READ),
    *_routed("list_flow_members list_edges get_flow_tags", _FLOW, _READ),
    *_called("get_flow_tag", _FLOW, _READ),
    *_both("list_executions list_suspended", _EVERYTHING, _READ, **_EVERYWHERE),
    *_routed("list_flows overview follow_changes", _EVERYTHING, _READ, **_EVERYWHERE),
    *_called("scan_eligible_executions list_live_steps read_events read_pulse", _EVERYTHING, _READ, **_EVERYWHERE),
    *_both(
        "search_executions search_flows search_workers search_schedules list_expired_leases list_workers "
        "list_namespaces queue_depths read_kinds list_kind_definitions read_kind_definition read_worker_load",
        _NAMESPACE,
        _READ,
    ),
    *_routed("attention follow_events", _NAMESPACE, _READ),
    *_both("count_states group_failures", _NAMESPACE, _READ),
    *_called("search_suspended count_executions", _NAMESPACE, _READ),
    *_both("list_lanes describe_lane", _LANE, _READ),
)

_STEERING = (
    *_both("cancel_execution request_cancel", _EXECUTION, _OPERATOR, **_AUDITED),
    # Without a lease's id, a repetition would take the next one away.
    *_both("revoke_lease", _EXECUTION, _OPERATOR, **_AUDITED, repeatable=False, repeatable_with="expected_lease_id"),
    *_both("replay_execution", _EXECUTION, _OPERATOR, **_AUDITED, **_ONCE),
    *_called("resume_execution", _EXECUTION, _OPERATOR, **_AUDITED, **_ONCE),
    *_both("fork_execution", _EXECUTION, _OPERATOR, **_tells("at"), **_ONCE),
    *_both("change_priority", _EXECUTION, _OPERATOR, **_tells("new_priority")),
    *_both("set_execution_tags", _EXECUTION, _OPERATOR, **_tells("tags")),
    *_both("cancel_flow", _FLOW, _OPERATOR, **_tells("policy")),
    *_both("set_flow_tags", _FLOW, _OPERATOR, **_tells("tags")),
    *_routed("cancel_executions", _NAMESPACE, _OPERATOR, **_AUDITED, many=True),
    *_routed("replay_executions", _NAMESPACE, _OPERATOR, **_AUDITED, **_ONCE, many=True),
    *_both("set_lane_state", _LANE, _OPERATOR, **_tells("state", "reason"), **_EVERYWHERE),
    *_both("set_lane_fairness", _LANE, _OPERATOR, **_tells("by"), **_EVERYWHERE),
)

#: A waitpoint's token lets its reader answer in somebody's place, so reading one is an act.
_ANSWERING = (
    *_routed("list_asks", _NAMESPACE, _READ),
    *_routed("describe_ask", _EXECUTION, _READ),
    *_routed("give_answer", _EXECUTION, _OPERATOR, **_tells("by"), **_ONCE),
    *_routed("make_link", _EXECUTION, _OPERATOR, **_tells("by")),
    *_both("read_waitpoint_token", _EXECUTION, _OPERATOR, **_tells("waitpoint_id")),
    *_both("deliver_signal", _EXECUTION, _SIGNAL, repeatable=False, repeatable_with="signal_id"),
    *_routed("look_at_link", _NOTHING),
    *_routed("answer_link", _NOTHING, **_ONCE),
)

#: Workers create what their runs name, when it is first used.
_BUDGETS = (
    *_both(
        "create_budget",
        _BUDGET,
        _SUBMIT,
        _WORKER,
        _OPERATOR,
        **_tells("scope_type", "scope_id", "dimensions", "hard_limits", "soft_limits"),
    ),
    *_both("set_budget_limits", _BUDGET, _OPERATOR, **_tells("hard_limits", "soft_limits")),
    *_both("reset_budget", _BUDGET, _OPERATOR, **_AUDITED, **_ONCE),
    *_both("get_budget_status", _BUDGET, _READ, _WORKER),
    *_both("list_budgets list_quota_policies", _NAMESPACE, _READ),
    *_both(
        "create_quota_policy",
        _QUOTA,
        _SUBMIT,
        _WORKER,
        _OPERATOR,
        **_tells("window_seconds", "max_requests_per_window", "max_concurrent"),
    ),
    *_called("read_quota_policy_limits", _QUOTA, _READ),
    *_routed("report_usage_admin", _BUDGET, _WORKER, repeatable=False, repeatable_with="dedup_key"),
)

_SCHEDULES = (
    *_both("put_schedule", _SCHEDULE, _SUBMIT, **_tells("execution_kind", "spec", "lane_id")),
    *_both("get_schedule list_schedule_runs", _SCHEDULE, _READ),
    *_both("list_schedules", _NAMESPACE, _READ),
    *_both("pause_schedule resume_schedule delete_schedule", _SCHEDULE, _OPERATOR, **_AUDITED),
    *_both("backfill_schedule", _SCHEDULE, _OPERATOR, **_tells("from_ms", "before_ms"), **_ONCE),
    *_both("trigger_schedule", _SCHEDULE, _OPERATOR, **_tells("overlap"), **_ONCE),
)

_WORKING = (
    *_called("register_worker heartbeat_worker mark_worker_dead announce_kinds", _NAMESPACE, _WORKER),
    *_called(
        "renew progress complete fail cancel cancel_child give_back advance suspend observe_signals settle_reservation "
        "release_reservation",
        _HANDLE,
        _WORKER,
    ),
    *_called("append_frame append_frames", _HANDLE, _WORKER, repeatable=False, repeatable_with="number"),
    *_called("delay wait_children decline", _HANDLE, _WORKER, **_ONCE),
    *_called("reserve_budget", _BUDGET, _WORKER, repeatable=False, repeatable_with="idempotency_key"),
    *_routed("claim_for_worker", _NAMESPACE, _WORKER, **_ONCE),
    *_routed("issue_reclaim_grant", _EXECUTION, _WORKER, **_ONCE),
    *_routed("remote_claim", _NAMESPACE, _WORKER, repeatable=False, repeatable_with="key"),
    *_routed("remote_renew remote_lost", _HANDLE, _WORKER),
)

_ADMINISTERING = (
    *_both(
        "create_credential",
        _EVERYTHING,
        _ADMIN,
        **_tells("name", "scopes", "namespaces", "expires_at"),
        **_EVERYWHERE,
        **_ONCE,
    ),
    *_both("revoke_credential", _EVERYTHING, _ADMIN, **_tells("credential_id"), **_EVERYWHERE),
    *_both("list_credentials examine", _EVERYTHING, _ADMIN, **_EVERYWHERE),
    *_routed("list_audit list_waitpoint_keys", _EVERYTHING, _ADMIN, **_EVERYWHERE),
    *_routed("rotate_waitpoint_secret", _EVERYTHING, _ADMIN, **_tells("new_kid"), **_EVERYWHERE),
)

_SERVER = (
    *_called("ping now_ms server_time_ms capabilities", _NOTHING, *Scope),
    # Each of its calls asks for scopes of its own.
    *_routed("remote_hello remote_calls", _NOTHING, *Scope),
    *_routed("version", _NOTHING, _READ),
    *_routed("me openapi docs livez healthz readyz metrics", _NOTHING),
)

OPERATIONS: Mapping[str, Operation] = _table(
    _STARTING,
    _READING,
    _STEERING,
    _ANSWERING,
    _BUDGETS,
    _SCHEDULES,
    _WORKING,
    _ADMINISTERING,
    _SERVER,
)

#: Those that can be called by name from elsewhere.
REMOTE: Mapping[str, Operation] = {name: each for name, each in OPERATIONS.items() if each.remote}
