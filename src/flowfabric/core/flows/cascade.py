"""The cascade: when a member ends, what waits for it moves in the same commit.

An end resolves the edges out of its member; each resolution counts in the group of the edge's child; a group that
fires lets its child go or skips it, and may cancel the members that still work for it; those ends resolve edges in
turn. All of it goes level by level through a work list, up to a bound per transaction. What lies beyond the bound is
on record, as a completion event that is not marked dispatched or as a group with its losers listed, and is carried on
at once by a command of its own; a timer finds it if that is lost.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from flowfabric.core.admission import release
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.terminal import (
    cancelled_row,
    completion,
    current_attempt,
    ended,
    leftover_needs,
    leftovers,
    lost_lease,
)
from flowfabric.core.flows import edges
from flowfabric.core.leases import lease
from flowfabric.core.workflows import parents
from flowfabric.model import states as lit
from flowfabric.model.decisions import DOWNSTREAM_LIMIT, Act, Decision, Downstream, Get, Need, change, insert
from flowfabric.model.events import CompletionEvent, Event
from flowfabric.model.operations.flows import EdgeState, GroupState
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.flows import Edge, EdgeGroup, PendingCancelGroup

#: Edges resolved and members ended by one command in one transaction.
MAX_MOVES = 1_000
#: Loads one command may cause by following edges: a batch gives up after a fixed number of rounds.
MAX_STEPS = 10
#: What stands on a member that was cancelled because others were quicker, or could no longer be enough.
SIBLING_SATISFIED = "sibling_quorum_satisfied"
SIBLING_IMPOSSIBLE = "sibling_quorum_impossible"
BY_ENGINE = "engine"
DEPENDENCY_IMPOSSIBLE = "dependency_impossible"


class DispatchCompletion(Struct, gc=False):
    """Resolve what an ended member still has to resolve. ``strict`` refuses what has not ended."""

    execution_id: str
    strict: bool = False

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


class CancelSiblings(Struct, gc=False):
    """Cancel the losers that a fired group still lists."""

    partition: int
    flow_id: str
    downstream: str

    def needs(self) -> tuple[Need, ...]:
        key = (self.partition, self.flow_id, self.downstream)
        return (Get(EdgeGroup, key), Get(PendingCancelGroup, key))


class Moved(Struct, gc=False):
    """What an end set in motion. ``complete`` says that no outgoing edge is left to resolve."""

    acts: tuple[Act, ...] = ()
    events: tuple[Event, ...] = ()
    wakes: tuple[tuple[str, int], ...] = ()
    then: tuple[Any, ...] = ()
    complete: bool = True
    resolved: int = 0
    children: int = 0


def advance(view: View, context: Context, execution: Execution, outcome: str, result: Any) -> Moved:
    """Resolve the outgoing edges of a member that has ended; its end is folded already. A result that is ``UNSET`` is
    read if an edge carries it.

    Everything that follows is folded here, so the caller may not refuse afterwards.
    """
    if execution.flow_id is None:
        return Moved()
    cascade = Cascade(view, context)
    end = cascade.follow(execution, outcome, result)
    cascade.run()
    return cascade.moved(end.complete)


class End(Struct, gc=False):
    """A member whose end is being followed."""

    execution: Execution
    outcome: str
    result: Any
    #: Its announcement, if it is made here.
    event: CompletionEvent | None = None
    complete: bool = False


class Cascade:
    """One run of the work list. Changes are folded as they are made; events are kept in order."""

    def __init__(self, view: View, context: Context) -> None:
        self._view = view
        self._context = context
        self._level: list[End] = []
        self._events: list[Event] = []
        self._wakes: list[tuple[str, int]] = []
        self._then: list[Any] = []
        self._moves = MAX_MOVES
        self._steps = MAX_STEPS
        self._cancelled_here = False
        self.resolved = 0
        self.children = 0
        #: Losers that there was nothing to do about.
        self.already_ended = 0
        self.not_found = 0

    def follow(self, execution: Execution, outcome: str, result: Any, event: CompletionEvent | None = None) -> End:
        """Put a member that has ended on the list."""
        end = End(execution, outcome, result, event)
        self._level.append(end)
        return end

    def moved(self, complete: bool = True) -> Moved:
        """What has come of it."""
        return Moved(
            (), tuple(self._events), tuple(self._wakes), tuple(self._then), complete, self.resolved, self.children
        )

    @property
    def moves_left(self) -> int:
        """How many more members may end in this transaction."""
        return self._moves

    def run(self) -> None:
        """Follow every end, and every end that comes of it, up to the bounds."""
        view = self._view
        while self._level:
            level, self._level = self._level, []
            if self._steps <= 0 or self._moves <= 0:
                self._then += [DispatchCompletion(end.execution.execution_id) for end in level]
                return
            self._steps -= 2
            view.require(
                Downstream(end.execution.partition, end.execution.flow_id or "", end.execution.uuid) for end in level
            )
            self._cancelled_here = False
            self._require_leftovers(level)
            for end in level:
                self._follow_edges(end)
            if self._cancelled_here:
                self._steps -= 2

    def _require_leftovers(self, level: list[End]) -> None:
        """Ask together for what children that may be skipped now would leave behind."""
        view = self._view
        ends = [end.execution for end in level]
        edges_out = [edge for each in ends for edge in view.unresolved(each.partition, each.flow_id or "", each.uuid)]
        wires = dict.fromkeys(_wire(edge.partition, edge.downstream) for edge in edges_out)
        children = [child for wire in wires if (child := view.execution(wire)) is not None]
        needs = list(leftover_needs(children))
        if needs:
            self._steps -= 1
            view.require(needs)

    def _follow_edges(self, end: End) -> None:
        execution = end.execution
        found = self._view.unresolved(execution.partition, execution.flow_id or "", execution.uuid)
        taken = found[: max(self._moves, 0)]
        for edge in taken:
            self.resolve(edge, end)
        end.complete = len(taken) == len(found) < DOWNSTREAM_LIMIT
        if not end.complete:
            self._then.append(DispatchCompletion(execution.execution_id))
        elif end.event is not None:
            end.event.dispatched_at_ms = self._context.now

    # -- one edge ------------------------------------------------------------------------------------------------

    def resolve(self, edge: Edge, end: End) -> None:
        """Count one edge and do what its group says."""
        view, now = self._view, self._context.now
        self._moves -= 1
        self.resolved += 1
        group = view.get(EdgeGroup, (edge.partition, edge.flow_id, edge.downstream))
        child = view.execution(_wire(edge.partition, edge.downstream))
        acts: list[Act] = [edges.resolved(edge, end.outcome, now)]
        fields = None if group is None else edges.counted(group, end.outcome)
        if group is None or fields is None or child is None:
            view.fold(Decision(None, tuple(acts)))
            return
        if end.outcome == lit.ENDED_SUCCESS and child.lifecycle_phase not in lit.ENDED_PHASES:
            payload = self._passed(edge, end)
            if payload is not None:
                child = replace(child, payload=payload)
                acts.append(change(child, payload=payload))
        self.judge(group, child, fields, acts)

    def judge(self, group: EdgeGroup, child: Execution, fields: dict[str, Any], acts: list[Act]) -> None:
        """Write a group's counters and, if that fires it, what follows. A group that has fired only counts."""
        found = edges.Verdict(GroupState.PENDING)
        if group.group_state == GroupState.PENDING:
            found = edges.verdict(replace(group, **fields))
        if found.state is not GroupState.PENDING:
            fields["group_state"] = str(found.state)
            if found.state is GroupState.SATISFIED:
                fields["satisfied_at_ms"] = self._context.now
        if fields:
            acts.append(change(group, **fields))
        if found.state is GroupState.SATISFIED and is_held_back(child):
            self.children += 1
            acts.append(unblocked(child, self._context.now))
        self._view.fold(Decision(None, tuple(acts)))
        if found.state is GroupState.IMPOSSIBLE and child.lifecycle_phase not in lit.ENDED_PHASES:
            self._skip(child)
        if found.cancels_rest:
            self._cancel_rest(group.partition, group.flow_id, group.downstream, found.state)

    def _passed(self, edge: Edge, end: End) -> bytes | None:
        """The upstream's result, if the edge carries it."""
        if not edges.passes_data(edge):
            return None
        if end.result is UNSET:
            stored = self._view.full(end.execution.execution_id)
            end.result = None if stored is None else stored.result
        return end.result if isinstance(end.result, bytes) else None

    def release(self, child: Execution, state: GroupState) -> None:
        """The child of a group that has fired may run, or never will."""
        if state is GroupState.IMPOSSIBLE:
            if child.lifecycle_phase not in lit.ENDED_PHASES:
                self._skip(child)
        elif state is GroupState.SATISFIED and is_held_back(child):
            self.children += 1
            self._view.fold(Decision(None, (unblocked(child, self._context.now),)))

    # -- ends ----------------------------------------------------------------------------------------------------

    def _skip(self, child: Execution) -> None:
        now = self._context.now
        attempt = current_attempt(self._view, child)
        began = child.attempt_state in lit.RUNNING_ATTEMPT_STATES or child.attempt_state == lit.ATTEMPT_INTERRUPTED
        row = ended(child, now, lit.PUBLIC_SKIPPED, lit.ENDED_SKIPPED, failure_reason=DEPENDENCY_IMPOSSIBLE)
        if not began:
            row.record.attempt_state = lit.ATTEMPT_NONE  # type: ignore[union-attr]
        acts: list[Act] = [row]
        if attempt is not None:
            close = lease.taken if lease.is_live(attempt) else lease.closed
            acts.append(close(attempt, outcome=lit.OUTCOME_SKIPPED, terminal_at_ms=now))
        self._end(child, attempt, acts, lit.ENDED_SKIPPED, "skipped")

    def cancel(self, execution: Execution, reason: str) -> None:
        """A member that lost is cancelled as if an operator had done it."""
        attempt = current_attempt(self._view, execution)
        acts: list[Act] = [cancelled_row(execution, self._context.now, reason, BY_ENGINE, lit.NOT_APPLICABLE)]
        if attempt is not None and lease.is_live(attempt):
            acts.append(lease.taken(attempt, outcome=lit.OUTCOME_CANCELLED, terminal_at_ms=self._context.now))
        self._end(execution, attempt, acts, lit.ENDED_CANCELLED, "cancelled")

    def _end(
        self, execution: Execution, attempt: Attempt | None, acts: list[Act], outcome: str, close_reason: str
    ) -> None:
        view, context = self._view, self._context
        self._moves -= 1
        self.children += 1
        acts += leftovers(view, execution, context.now, close_reason)
        acts += release.freed(view, context, execution, attempt)
        acts += parents.parent_told(view, context, execution, outcome)
        view.fold(Decision(None, tuple(acts)))
        self._events += lost_lease(context, execution, attempt, lit.LEASE_ENDED, lit.BY_RECONCILER)
        event = completion(execution, context.now, outcome, dispatched=False)
        self._events.append(event)
        if attempt is not None:
            self._wakes.append((execution.execution_id, execution.attempt_index))
        self.follow(execution, outcome, None, event)

    # -- losers --------------------------------------------------------------------------------------------------

    def _cancel_rest(self, partition: int, flow_id: str, downstream: str, state: GroupState) -> None:
        """Cancel the members a fired group no longer needs; those beyond the bound are written down."""
        view = self._view
        incoming = view.select(Edge, partition=partition, flow_id=flow_id, downstream=downstream)
        losers = list(dict.fromkeys(edge.upstream for edge in incoming if edge.edge_state == EdgeState.APPLIED))
        reason = SIBLING_SATISFIED if state is GroupState.SATISFIED else SIBLING_IMPOSSIBLE
        left = self.cancel_members(partition, flow_id, losers, reason)
        if not left:
            return
        group = view.get(EdgeGroup, (partition, flow_id, downstream))
        assert group is not None
        marked = change(
            group,
            cancel_siblings_pending_flag=True,
            cancel_siblings_pending_members=tuple(left),
            cancel_siblings_reason=reason,
        )
        item = PendingCancelGroup(partition, flow_id, downstream, self._context.now)
        view.fold(Decision(None, (marked, insert(item))))
        self._then.append(CancelSiblings(partition, flow_id, downstream))

    def cancel_members(self, partition: int, flow_id: str, uuids: list[str], reason: str) -> list[str]:
        """Cancel as many as the bound allows; those that are left."""
        self._cancelled_here = True
        # Each may have to resolve an edge as well.
        taken, left = uuids[: max(self._moves // 2, 0)], uuids[max(self._moves // 2, 0) :]
        wires = [_wire(partition, uuid) for uuid in taken]
        # Most of them will end, so what waits for them is asked for in the same round.
        needs: list[Need] = [Get(Execution, wire) for wire in wires]
        self._view.require(needs + [Downstream(partition, flow_id, uuid) for uuid in taken])
        found = [self._view.execution(wire) for wire in wires]
        self._view.require(leftover_needs(execution for execution in found if execution is not None))
        for wire in wires:
            execution = self._view.execution(wire)
            if execution is None:
                self.not_found += 1
            elif execution.lifecycle_phase in lit.ENDED_PHASES:
                self.already_ended += 1
            else:
                self.cancel(execution, reason)
        return left


def is_held_back(child: Execution) -> bool:
    """Whether nothing but its dependencies keeps a member from running."""
    return (
        child.lifecycle_phase in lit.WAITING_PHASES
        and child.ownership_state in lit.UNOWNED_STATES
        and child.eligibility_state == lit.BLOCKED_BY_DEPENDENCIES
    )


def unblocked(child: Execution, now: int) -> Act:
    """The member may run, or waits for its own time if that lies ahead."""
    delayed = child.delay_until_ms is not None and child.delay_until_ms > now
    fields: dict[str, Any] = {
        "lifecycle_phase": lit.RUNNABLE,
        "eligibility_state": lit.NOT_ELIGIBLE_UNTIL_TIME if delayed else lit.ELIGIBLE_NOW,
        "public_state": lit.PUBLIC_DELAYED if delayed else lit.PUBLIC_WAITING,
        "blocking_reason": lit.WAITING_FOR_DELAY if delayed else lit.WAITING_FOR_WORKER,
        "blocking_detail": "",
        "last_mutation_at_ms": now,
    }
    if child.delay_until_ms is not None and not delayed:
        fields["delay_until_ms"] = None
    if child.attempt_state == lit.ATTEMPT_NONE:
        fields["attempt_state"] = lit.PENDING_FIRST_ATTEMPT
    return change(child, **fields)


def _wire(partition: int, uuid: str) -> str:
    return f"{{fp:{partition}}}:{uuid}"
