"""Durable functions: what they remember, the children they start, and how they park until something ends.

One command carries all that a function has to say since it last said something, in one commit under its lease's fence:
steps that have ended, children to start, and, if it can do nothing more for now, what it waits for. A step is written
once; whoever comes later with the same name is told what stands there.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core import graph, lease
from flowfabric.core.context import Context
from flowfabric.core.create import CreateExecution, create_execution
from flowfabric.core.mailboxes import Wait
from flowfabric.core.remembering import Brought, remembered
from flowfabric.core.submit import joined
from flowfabric.core.suspend import parked_without_waitpoints
from flowfabric.core.view import View
from flowfabric.model.changes import Act, Change, Decision, EndedAmong, Get, Need, Select, insert
from flowfabric.model.conditions import OperatorOnly, TimeoutOnly
from flowfabric.model.errors import NotFound, ResourceExhausted, Validation, ValidationKind
from flowfabric.model.events import Event
from flowfabric.model.handles import HandlePayload
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_FLOW_NODES
from flowfabric.model.quoting import quoted
from flowfabric.model.records import Execution, Suspension
from flowfabric.model.results import Created
from flowfabric.model.steps import CANCEL_MARK, Advanced, ChildWait, Forked, Step
from flowfabric.model.suspension import SuspensionReason, TimeoutBehavior


class Advance(Struct, gc=False):
    """Everything the holder of a durable function has to say at once. ``flow`` is the one it founds if it has none."""

    handle: HandlePayload
    partition: int
    uuid: str
    brought: Brought
    children: tuple[CreateExecution, ...]
    wait: ChildWait | None
    flow: graph.CreateFlow
    suspension_id: str
    #: Whether the holder knows that the execution was asked to cancel.
    cancel_known: bool = False

    def needs(self) -> tuple[Need, ...]:
        needs: list[Need] = [Get(Execution, self.handle.execution_id)]
        needs += self.brought.needs()
        for child in self.children:
            needs += child.needs()
        if self.wait is not None:
            needs.append(Get(Suspension, (self.partition, self.uuid)))
        return tuple(needs)


def advance(command: Advance, view: View, context: Context) -> Decision:
    """Remember, start, park. Children that exist already were started by an earlier try and stay as they are."""
    execution, attempt = lease.held(view, command.handle, context)
    steps, acts = remembered(command.brought, command.handle, view, context)
    executions, events, execution = _started(command, view, context, execution)
    acts += executions
    wait = command.wait
    asked = execution.cancel_at_ms is not None
    if wait is None or (asked and not command.cancel_known):
        # Whoever does not know yet that it was asked to cancel must not go to sleep over it.
        return Decision(Advanced(tuple(steps), False, (), asked), tuple(acts), tuple(events))
    ended = view.ended_among(EndedAmong(wait.awaited)) if wait.awaited else ()
    left = wait.wake_after - len(ended)
    due = wait.until_ms is not None and wait.until_ms <= context.now
    if (wait.awaited and left <= 0) or due:
        answer = Advanced(tuple(steps), False, tuple(map(ExecutionId.unchecked, ended)), asked)
        return Decision(answer, tuple(acts), tuple(events))
    terms = Wait(
        command.suspension_id,
        (),
        OperatorOnly() if wait.until_ms is None else TimeoutOnly(),
        SuspensionReason.STEP_BOUNDARY,
        timeout_at_ms=wait.until_ms,
        timeout_behavior=TimeoutBehavior.AUTO_RESUME,
    )
    parked = parked_without_waitpoints(view, context, execution, attempt, terms, max(left, 0), command.handle)
    return Decision(
        Advanced(tuple(steps), True, tuple(map(ExecutionId.unchecked, ended)), asked),
        (*acts, *parked.acts),
        (*events, *parked.events),
        ((execution.execution_id, attempt.attempt_index),),
    )


def _started(
    command: Advance, view: View, context: Context, execution: Execution
) -> tuple[list[Act], list[Event], Execution]:
    """The children that do not exist yet, in the parent's flow; one is founded if there is none."""
    new = [child for child in command.children if view.execution(child.execution_id) is None]
    if not new:
        return [], [], execution
    acts: list[Act] = []
    if execution.flow_id is None:
        # Whatever the parent pays from, its children pay from too.
        flow = replace(command.flow, budget_ids=graph.listed(execution.budget_ids))
        acts.append(insert(graph.new_flow(flow, context.now, 1 + len(new), founder=execution.uuid)))
        execution = replace(execution, flow_id=flow.flow_id)
    else:
        stored = graph.open_flow(view, execution.partition, execution.flow_id)
        grown, count = graph.grown(stored, context.now, "node_count", len(new))
        if count > MAX_FLOW_NODES:
            raise ResourceExhausted("flow_nodes", MAX_FLOW_NODES)
        acts.append(grown)
        flow = replace(command.flow, flow_id=stored.flow_id, budget_ids=graph.budgets_of(stored))
    # From here on its end has to look for children; see ``orphans``.
    execution = replace(execution, signal_count=execution.signal_count or 0)
    acts.append(Change(execution, ("flow_id", "signal_count")))
    events: list[Event] = []
    lanes: set[str] = set()
    for child in new:
        decision = create_execution(child, view, context)
        if not isinstance(decision.result, Created):
            raise Validation(
                ValidationKind.INVALID_INPUT,
                f"child {quoted(child.execution_kind)}: its idempotency key belongs to {decision.result.execution_id}; "
                "give each child its own key",
            )
        acts += joined(decision, flow, None, lanes, parent=execution.uuid)
        events += decision.events
    return acts, events, execution


# -- forking --------------------------------------------------------------------------------------------------------


class ForkExecution(Struct, gc=False):
    """A new execution that goes on where another stood before a step; without a step, behind all of them."""

    create: CreateExecution
    source_id: str
    source_partition: int
    source_uuid: str
    at: str | None

    def needs(self) -> tuple[Need, ...]:
        return (
            *self.create.needs(),
            Get(Execution, self.source_id),
            Select(Step, ("partition", "uuid"), (self.source_partition, self.source_uuid)),
        )


def fork_execution(command: ForkExecution, view: View, context: Context) -> Decision:
    """The new execution and its copy of the steps, in one commit."""
    if view.execution(command.source_id) is None:
        raise NotFound("execution")
    steps = view.select(Step, partition=command.source_partition, uuid=command.source_uuid)
    last = max((step.sequence for step in steps), default=0)
    if command.at is None:
        # What was done after a request to cancel belongs to that end.
        asked = [step.sequence for step in steps if step.name.startswith(CANCEL_MARK)]
        last = min([last, *(sequence - 1 for sequence in asked)])
    if command.at is not None:
        found = [step.sequence for step in steps if step.name == command.at]
        if not found:
            known = ", ".join(step.name for step in sorted(steps, key=lambda each: each.sequence)[:20]) or "none"
            raise NotFound("step", f"{quoted(command.at)}; execution {command.source_id} remembers {known}")
        last = found[0] - 1
    decision = create_execution(command.create, view, context)
    if not isinstance(decision.result, Created):
        raise Validation(ValidationKind.INVALID_INPUT, f"execution {command.create.execution_id} exists already")
    kept = [
        replace(step, partition=command.create.partition, uuid=command.create.uuid, attempt_index=0, lease_epoch=0)
        for step in steps
        if step.sequence <= last
    ]
    answer = Forked(ExecutionId.unchecked(command.create.execution_id), len(kept))
    return Decision(answer, (*decision.acts, *map(insert, kept)), decision.events)
