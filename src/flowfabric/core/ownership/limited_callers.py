"""Calls of those who are limited to namespaces: everything that a call names must be theirs.

Each kind of command has one check, made in the commit that carries the command out. What belongs to somebody else is
refused exactly as what does not exist, and a command without a check here is refused as a whole. Budgets and quotas
that the call names become names of its own namespace (``model.ownership``), so that they never mean anybody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core import access, kind_definitions, schedules
from flowfabric.core.admission import block, budgets, quotas, reservations
from flowfabric.core.batch.notes import Note, noted, remembered
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.documents import parse_document
from flowfabric.core.executions import cancel, complete, create, debounce, operator, tags
from flowfabric.core.flows import build, cancel as flow_cancel, submit
from flowfabric.core.lanes import workers
from flowfabric.core.leases import claim, decline, grants, hold, reclaim
from flowfabric.core.streams import append
from flowfabric.core.suspension import pending_waitpoints, resume, signals, suspend
from flowfabric.core.workflows import steps
from flowfabric.model.decisions import Decision, EndedAmong, Get, Need
from flowfabric.model.errors import NotFound, Validation, ValidationKind
from flowfabric.model.ownership import owned_name
from flowfabric.model.policy import read_policy
from flowfabric.model.quoting import quoted
from flowfabric.model.records.budgets import Reservation
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Flow
from flowfabric.model.remembering import remembered_by_text

Within = frozenset[str]
_Command = TypeVar("_Command", bound=Struct)
Check = Callable[[Any, View, Within], Any]


class FromOutside(Struct, gc=False):
    """A command of a caller from outside, the namespaces that the caller is limited to, and what is stored with it."""

    command: Any
    namespaces: Within | None
    note: Note | None = None

    def needs(self) -> tuple[Need, ...]:
        """What the note needs; the command is asked itself."""
        return () if self.note is None else self.note.needs()

    def decided(self, rule: Callable[[Any, View, Context], Decision], view: View, context: Context) -> Decision:
        """What the rule decides for this caller."""
        note = self.note
        if note is not None and (known := remembered(note, view, context)) is not None:
            return known
        folds = view.folds
        own = self.command if self.namespaces is None else checked(self.command, view, self.namespaces)
        decision = rule(own, view, context)
        return decision if note is None else noted(note, decision, view, context, folded=view.folds != folds)


Callers: TypeAlias = Sequence[FromOutside | None] | None


def unwrapped(commands: Sequence[Any]) -> tuple[Sequence[Any], Callers]:
    """The commands of a batch, and the callers of those that come from outside, if any do."""
    if not any(type(each) is FromOutside for each in commands):
        return commands, None
    callers = [each if type(each) is FromOutside else None for each in commands]
    return [each.command if type(each) is FromOutside else each for each in commands], callers


def checked(command: Any, view: View, within: Within) -> Any:
    """The command with its names confined to the caller's namespaces; raises if it names what is not the caller's."""
    check = CHECKS.get(type(command))
    if check is None:
        raise Validation(ValidationKind.UNAUTHORIZED, "this call covers all namespaces; the caller is limited to some")
    return check(command, view, within)


# -- single things -----------------------------------------------------------------------------------------------------


def _own_namespace(namespace: str | None, within: Within) -> None:
    if namespace not in within:
        raise Validation(ValidationKind.UNAUTHORIZED, f"the caller has no access to namespace {quoted(namespace)}")


def _own_execution(execution_id: str, view: View, within: Within) -> Execution:
    execution = view.execution(execution_id)
    if execution is None or execution.namespace not in within:
        raise NotFound("execution")
    return execution


def _own_flow(command: Any, view: View, within: Within) -> None:
    flow = view.get(Flow, (command.partition, command.flow_id))
    if flow is None or _namespace_of(flow) not in within:
        raise NotFound("flow")


def _namespace_of(flow: Flow) -> Any:
    return parse_document(flow.raw_fields, "ff_flow_core.raw_fields").get("namespace")


def _taken(what: str) -> Validation:
    """Says nothing about the row that has the id."""
    return Validation(ValidationKind.INVALID_INPUT, f"{what}: this id is in use; choose another one, or leave it out")


# -- creating ----------------------------------------------------------------------------------------------------------


def _creation(command: create.CreateExecution, view: View, within: Within) -> create.CreateExecution:
    _own_namespace(command.namespace, within)
    taken = view.execution(command.execution_id)
    if taken is not None and taken.namespace not in within:
        raise _taken("execution_id")
    policy = owned_policy(command.policy, command.namespace)
    return command if policy is command.policy else replace(command, policy=policy)


def _creations(
    commands: Sequence[create.CreateExecution], view: View, within: Within
) -> tuple[create.CreateExecution, ...]:
    view.require(Get(Execution, each.execution_id) for each in commands)
    return tuple(_creation(each, view, within) for each in commands)


@remembered_by_text(8_192)
def owned_policy(policy: str | None, namespace: str) -> str | None:
    """A policy whose budgets and quota are those of a namespace."""
    named = read_policy(policy)
    if policy is None or not (named.budget_ids or named.quota_policy_id):
        return policy
    document = msgspec.json.decode(policy)
    if named.budget_ids:
        document["budget_ids"] = _owned(named.budget_ids, namespace)
    if named.quota_policy_id:
        document["quota_policy_id"] = owned_name(named.quota_policy_id, namespace)
    return msgspec.json.encode(document).decode()


def _owned(names: Iterable[str], namespace: str) -> tuple[str, ...]:
    return tuple(owned_name(each, namespace) for each in names)


def _many(command: create.CreateExecutions, view: View, within: Within) -> create.CreateExecutions:
    return replace(command, items=_creations(command.items, view, within))


def _debounced(command: debounce.DebounceExecution, view: View, within: Within) -> debounce.DebounceExecution:
    return replace(command, creation=_creation(command.creation, view, within))


def _new_flow(command: build.CreateFlow, view: View, within: Within) -> build.CreateFlow:
    _own_namespace(command.namespace, within)
    taken = view.get(Flow, (command.partition, command.flow_id))
    if taken is not None and _namespace_of(taken) not in within:
        raise _taken("flow_id")
    return replace(command, budget_ids=_owned(command.budget_ids, command.namespace))


def _whole_flow(command: submit.SubmitFlow, view: View, within: Within) -> submit.SubmitFlow:
    nodes = _creations(command.nodes, view, within)
    return replace(command, flow=_new_flow(command.flow, view, within), nodes=nodes)


def _schedule(command: schedules.PutSchedule, view: View, within: Within) -> schedules.PutSchedule:
    wanted = command.wanted
    _own_namespace(wanted.namespace, within)
    return schedules.PutSchedule(replace(wanted, policy=owned_policy(wanted.policy, wanted.namespace)))


def _fork(command: steps.ForkExecution, view: View, within: Within) -> steps.ForkExecution:
    """Its policy is the old execution's, with the names that stand there."""
    _own_execution(command.source_id, view, within)
    _creation(command.create, view, within)
    return command


def _advance(command: steps.Advance, view: View, within: Within) -> steps.Advance:
    _held(command, view, within)
    if command.children:
        command = replace(command, children=_creations(command.children, view, within))
    wait = command.wait
    ended = view.ended_among(EndedAmong(wait.awaited)) if wait is not None and wait.awaited else ()
    if wait is None or not ended:
        return command
    view.require(Get(Execution, each) for each in ended)
    # Whether somebody else's execution has ended is not told: it never ends for this caller.
    foreign = {each for each in ended if (found := view.execution(each)) is None or found.namespace not in within}
    if not foreign:
        return command
    awaited = tuple(each for each in wait.awaited if each not in foreign)
    return replace(command, wait=replace(wait, awaited=awaited))


# -- acting ------------------------------------------------------------------------------------------------------------


def _held(command: _Command, view: View, within: Within) -> _Command:
    _own_execution(command.handle.execution_id, view, within)  # type: ignore[attr-defined]
    return command


def _fenced(command: _Command, view: View, within: Within) -> _Command:
    _own_execution(command.fence.execution_id, view, within)  # type: ignore[attr-defined]
    return command


def _one(command: _Command, view: View, within: Within) -> _Command:
    _own_execution(command.execution_id, view, within)  # type: ignore[attr-defined]
    return command


def _held_or_fenced(command: _Command, view: View, within: Within) -> _Command:
    handle = command.handle  # type: ignore[attr-defined]
    return _fenced(command, view, within) if handle is None else _held(command, view, within)


def _approval(command: signals.DeliverApproval, view: View, within: Within) -> signals.DeliverApproval:
    _one(command.signal, view, within)
    return command


def _closing(
    command: pending_waitpoints.CloseWaitpoint, view: View, within: Within
) -> pending_waitpoints.CloseWaitpoint:
    _own_execution(f"{{fp:{command.partition}}}:{command.uuid}", view, within)
    return command


def _in_flow(command: _Command, view: View, within: Within) -> _Command:
    _own_flow(command, view, within)
    return command


def _member(command: build.AddExecutionToFlow, view: View, within: Within) -> build.AddExecutionToFlow:
    _own_flow(command, view, within)
    return _one(command, view, within)


def _edge(command: _Command, view: View, within: Within) -> _Command:
    _own_flow(command, view, within)
    for end in (command.upstream_execution_id, command.downstream_execution_id):  # type: ignore[attr-defined]
        _own_execution(end, view, within)
    return command


def _claiming(command: _Command, view: View, within: Within) -> _Command:
    namespaces = command.namespaces  # type: ignore[attr-defined]
    if namespaces is None or not namespaces <= within:
        raise Validation(ValidationKind.UNAUTHORIZED, "namespaces: pass the namespaces the caller is limited to")
    return command


def _in_namespace(command: _Command, view: View, within: Within) -> _Command:
    _own_namespace(command.namespace, within)  # type: ignore[attr-defined]
    return command


def _open(command: _Command, view: View, within: Within) -> _Command:
    return command


# -- budgets and quotas ------------------------------------------------------------------------------------------------


def _new_budget(command: budgets.CreateBudget, view: View, within: Within) -> budgets.CreateBudget:
    _own_namespace(command.namespace, within)
    assert command.namespace is not None
    if command.parent_budget_id is None:
        return command
    return replace(command, parent_budget_id=owned_name(command.parent_budget_id, command.namespace))


def _charge(command: _Command, view: View, within: Within) -> _Command:
    """With an execution, the budget is the execution's to name; else it is the namespace's."""
    execution_id = command.execution_id  # type: ignore[attr-defined]
    if execution_id is None:
        return _in_namespace(command, view, within)
    return _as_own(command, _own_execution(execution_id, view, within))


def _reserve(command: reservations.ReserveBudget, view: View, within: Within) -> reservations.ReserveBudget:
    return _as_own(command, _own_execution(command.handle.execution_id, view, within))


def _as_own(command: _Command, execution: Execution) -> _Command:
    assert execution.namespace is not None
    return replace(command, budget_id=owned_name(command.budget_id, execution.namespace))  # type: ignore[attr-defined]


def _reserved(command: _Command, view: View, within: Within) -> _Command:
    _own_reservation(command.reservation_id, view, within)  # type: ignore[attr-defined]
    return command


def _settling(command: reservations.SettleReservation, view: View, within: Within) -> reservations.SettleReservation:
    for each in (command.reservation_id, *command.also):
        _own_reservation(each, view, within)
    return command


def _own_reservation(reservation_id: str, view: View, within: Within) -> None:
    reservation = view.get(Reservation, reservation_id)
    execution = None
    if reservation is not None:
        execution = view.execution(f"{{fp:{reservation.partition}}}:{reservation.uuid}")
    if execution is None or execution.namespace not in within:
        raise NotFound("reservation")


def _admission(command: quotas.CheckAdmission, view: View, within: Within) -> quotas.CheckAdmission:
    _own_namespace(command.policy.namespace, within)
    return _one(command, view, within)


def _admission_end(command: quotas.ReleaseAdmission, view: View, within: Within) -> quotas.ReleaseAdmission:
    _own_namespace(command.namespace, within)
    return _one(command, view, within)


def _each(check: Check, *kinds: type) -> dict[type, Check]:
    return dict.fromkeys(kinds, check)


#: What is checked of each command. Those that are missing are not for callers who are limited to namespaces.
CHECKS: Mapping[type, Check] = {
    create.CreateExecution: _creation,
    create.CreateExecutions: _many,
    debounce.DebounceExecution: _debounced,
    steps.ForkExecution: _fork,
    steps.Advance: _advance,
    build.CreateFlow: _new_flow,
    submit.SubmitFlow: _whole_flow,
    build.AddExecutionToFlow: _member,
    **_each(_edge, build.StageDependencyEdge, build.ApplyDependencyToChild),
    **_each(
        _in_flow,
        build.SetEdgeGroupPolicy,
        flow_cancel.CancelFlow,
        flow_cancel.CancelFlowHeaderCommand,
        flow_cancel.AckCancelMembers,
        tags.SetFlowTags,
    ),
    **_each(
        _held,
        hold.Renew,
        hold.Progress,
        decline.Decline,
        append.AppendFrame,
        append.AppendFrames,
        complete.Complete,
        complete.Fail,
        cancel.CancelChild,
        cancel.CancelHeld,
        pending_waitpoints.CreateWaitpoint,
    ),
    **_each(_held_or_fenced, hold.Delay, hold.WaitChildren),
    **_each(_fenced, hold.RenewLease, complete.CompleteExecution, complete.FailExecution),
    **_each(
        _one,
        suspend.Suspend,
        cancel.CancelExecution,
        cancel.RequestCancel,
        operator.RevokeLease,
        operator.ChangePriority,
        operator.ReplayExecution,
        resume.ResumeExecution,
        signals.DeliverSignal,
        tags.SetExecutionTags,
        block.BlockExecution,
        block.UnblockExecution,
        claim.ClaimExecution,
        claim.ClaimResumedExecution,
        claim.IssueGrantAndClaim,
        grants.IssueClaimGrant,
        reclaim.IssueReclaimGrant,
        reclaim.ReclaimExecution,
    ),
    signals.DeliverApproval: _approval,
    pending_waitpoints.CloseWaitpoint: _closing,
    **_each(_claiming, claim.Claim, grants.ClaimForWorker, claim.ClaimFromLanes),
    **_each(
        _in_namespace,
        kind_definitions.AnnounceKinds,
        workers.RegisterWorker,
        workers.HeartbeatWorker,
        workers.MarkWorkerDead,
        schedules.PauseSchedule,
        schedules.ResumeSchedule,
        schedules.DeleteSchedule,
        schedules.TriggerSchedule,
        schedules.BackfillSchedule,
        budgets.SetBudgetLimits,
        budgets.ResetBudget,
        quotas.CreateQuotaPolicy,
    ),
    schedules.PutSchedule: _schedule,
    budgets.CreateBudget: _new_budget,
    **_each(_charge, budgets.ReportUsage, budgets.RecordSpend, budgets.ReleaseBudget),
    reservations.ReserveBudget: _reserve,
    reservations.SettleReservation: _settling,
    reservations.ReleaseReservation: _reserved,
    quotas.CheckAdmission: _admission,
    quotas.ReleaseAdmission: _admission_end,
    # What a server keeps about the calls themselves.
    **_each(_open, access.KeepAnswer, access.RecordAct),
}
