"""Carrying on what an end began: edges left to resolve, members left to let go, losers left to cancel.

All of it rests on what is stored, looks again under lock and does nothing twice, so any number of processes may try.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.terminal import current_attempt
from flowfabric.core.flows import edges
from flowfabric.core.flows.cascade import CancelSiblings, Cascade, DispatchCompletion, End, Moved, advance, is_held_back
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, Drop, Get, MarkDispatched, Need, change, insert
from flowfabric.model.errors import NotFound, State, StateKind, Validation, ValidationKind
from flowfabric.model.operations.flows import (
    CascadeOutcome,
    EdgeState,
    GroupState,
    ResolveDependencyResult,
    SiblingsCancelled,
)
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Edge, EdgeGroup, PendingCancelGroup
from flowfabric.model.states import derive_terminal_outcome


def outcome_of(view: View, execution: Execution) -> str:
    """How an ended execution counts for those that wait for it."""
    attempt = current_attempt(view, execution)
    return str(
        derive_terminal_outcome(
            execution.lifecycle_phase, attempt.outcome if attempt else None, None, execution.public_state
        )
    )


def dispatch_completion(command: DispatchCompletion, view: View, context: Context) -> Decision:
    """Resolve the next edges of an ended member; mark its announcement once none are left."""
    execution = view.execution(command.execution_id)
    if execution is None:
        if command.strict:
            raise NotFound("execution")
        return Decision(CascadeOutcome(0, 0, True))
    done = MarkDispatched(execution.partition, execution.uuid, context.now)
    if execution.lifecycle_phase not in lit.ENDED_PHASES:
        # It was replayed: its next end will resolve what is left.
        if command.strict:
            raise State(StateKind.EXECUTION_NOT_TERMINAL, f"execution {execution.execution_id}")
        return Decision(CascadeOutcome(0, 0, True), (done,))
    moved = advance(view, context, execution, outcome_of(view, execution), UNSET)
    answer = CascadeOutcome(moved.resolved, moved.children, moved.complete and not moved.then)
    return _decision(answer, moved, (done,) if moved.complete else ())


def _decision(result: Any, moved: Moved, acts: tuple[Act, ...] = ()) -> Decision:
    return Decision(result, acts, moved.events, moved.wakes, moved.then)


class ResolveDependency(Struct, gc=False):
    """Count one edge with the outcome the caller names."""

    partition: int
    flow_id: str
    edge_id: str
    upstream_execution_id: str
    downstream_execution_id: str
    outcome: str

    def needs(self) -> tuple[Need, ...]:
        child = self.downstream_execution_id
        return (
            Get(Edge, (self.partition, self.flow_id, self.edge_id)),
            Get(EdgeGroup, (self.partition, self.flow_id, child[child.index(":", 4) + 1 :])),
            Get(Execution, child),
            Get(Execution, self.upstream_execution_id),
        )


def resolve_dependency(command: ResolveDependency, view: View, context: Context) -> Decision:
    """The edge is counted once; what its group makes of that happens in the same step."""
    edge = view.get(Edge, (command.partition, command.flow_id, command.edge_id))
    if edge is None or not _joins(edge, command):
        raise Validation(ValidationKind.INVALID_DEPENDENCY, f"edge_not_found: {command.edge_id}")
    if edge.edge_state == EdgeState.PENDING:
        raise Validation(ValidationKind.INVALID_DEPENDENCY, f"edge_not_applied: {command.edge_id}")
    if edge.edge_state != EdgeState.APPLIED:
        return Decision(ResolveDependencyResult.AlreadyResolved())
    upstream = view.execution(command.upstream_execution_id)
    if upstream is None:
        raise NotFound("execution")
    cascade = Cascade(view, context)
    cascade.resolve(edge, End(upstream, command.outcome, UNSET))
    cascade.run()
    good = command.outcome == lit.ENDED_SUCCESS
    result = ResolveDependencyResult.Satisfied() if good else ResolveDependencyResult.Impossible()
    return _decision(result, cascade.moved())


def _joins(edge: Edge, command: ResolveDependency) -> bool:
    """Whether the edge joins the two members that a command names."""
    tag = f"{{fp:{edge.partition}}}:"
    ends = (tag + edge.upstream, tag + edge.downstream)
    return ends == (command.upstream_execution_id, command.downstream_execution_id)


class SettleDependencies(Struct, gc=False):
    """Look at a member that waits: edges whose upstream has ended are counted, a lost release is made up for."""

    execution_id: str
    only_success: bool = False

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def settle_dependencies(command: SettleDependencies, view: View, context: Context) -> Decision:
    """Whether anything had been left undone."""
    child = view.execution(command.execution_id)
    if child is None or child.flow_id is None or child.lifecycle_phase in lit.ENDED_PHASES:
        return Decision(False)
    key = (child.partition, child.flow_id, child.uuid)
    incoming = view.select(Edge, partition=child.partition, flow_id=child.flow_id, downstream=child.uuid)
    open_edges = [edge for edge in incoming if edge.edge_state == EdgeState.APPLIED]
    tag = f"{{fp:{child.partition}}}:"
    view.require([Get(EdgeGroup, key), *(Get(Execution, tag + edge.upstream) for edge in open_edges)])
    cascade = Cascade(view, context)
    for edge in open_edges:
        upstream = view.execution(tag + edge.upstream)
        if upstream is not None and upstream.lifecycle_phase in lit.ENDED_PHASES and cascade.moves_left > 0:
            outcome = outcome_of(view, upstream)
            if outcome == lit.ENDED_SUCCESS or not command.only_success:
                cascade.resolve(edge, End(upstream, outcome, UNSET))
    _make_up(cascade, view, command.execution_id, key, without_edges=not command.only_success)
    cascade.run()
    moved = cascade.moved()
    return _decision(bool(moved.resolved or moved.children), moved)


def _make_up(
    cascade: Cascade, view: View, execution_id: str, key: tuple[int, str, str], *, without_edges: bool
) -> None:
    """Let a member go that its group should have let go, and, if asked, one that no edge holds back."""
    child = view.execution(execution_id)
    if child is None or not is_held_back(child):
        return
    group = view.get(EdgeGroup, key)
    if group is None or edges.applied_total(group) == 0:
        # A member that was just replayed is told to wait; a timer lets it go if there is nothing to wait for.
        if without_edges:
            cascade.release(child, GroupState.SATISFIED)
    elif group.group_state != GroupState.PENDING:
        cascade.release(child, GroupState(group.group_state))
    elif not edges.is_waiting(group):
        cascade.judge(group, child, {}, [])


# -- losers ----------------------------------------------------------------------------------------------------------


def cancel_siblings(command: CancelSiblings, view: View, context: Context) -> Decision:
    """Cancel the next losers of a group; with the last one its work item goes."""
    key = (command.partition, command.flow_id, command.downstream)
    group, item = view.get(EdgeGroup, key), view.get(PendingCancelGroup, key)
    if group is None:
        return Decision(SiblingsCancelled(), () if item is None else (Drop(item),))
    if not group.cancel_siblings_pending_flag:
        return Decision(SiblingsCancelled())
    cascade = Cascade(view, context)
    members = list(group.cancel_siblings_pending_members)
    left = cascade.cancel_members(group.partition, group.flow_id, members, group.cancel_siblings_reason or "")
    cascade.run()
    moved = cascade.moved()
    group = view.get(EdgeGroup, key)
    assert group is not None
    acts: tuple[Act, ...] = (
        change(group, cancel_siblings_pending_flag=bool(left), cancel_siblings_pending_members=tuple(left)),
    )
    if left:
        moved.then += (command,)
    elif item is not None:
        acts += (Drop(item),)
    taken = len(members) - len(left)
    return _decision(SiblingsCancelled(taken, cascade.already_ended, cascade.not_found), moved, acts)


class ReconcileSiblings(CancelSiblings, gc=False):
    """See whether a group's work item and its flag still belong together."""


def reconcile_siblings(command: ReconcileSiblings, view: View, context: Context) -> Decision:
    """What was done about it, as one word."""
    key = (command.partition, command.flow_id, command.downstream)
    group, item = view.get(EdgeGroup, key), view.get(PendingCancelGroup, key)
    if group is None or not group.cancel_siblings_pending_flag:
        return Decision("no_op") if item is None else Decision("sremmed_stale", (Drop(item),))
    tag = f"{{fp:{group.partition}}}:"
    wires = [tag + uuid for uuid in group.cancel_siblings_pending_members]
    view.require(Get(Execution, wire) for wire in wires)
    if any(
        execution is not None and execution.lifecycle_phase not in lit.ENDED_PHASES
        for execution in map(view.execution, wires)
    ):
        if item is not None:
            return Decision("no_op")
        return Decision("re_enqueued", (insert(PendingCancelGroup(*key, context.now)),))
    cleared = change(group, cancel_siblings_pending_flag=False, cancel_siblings_pending_members=())
    return Decision("completed_drain", (cleared,) if item is None else (cleared, Drop(item)))
