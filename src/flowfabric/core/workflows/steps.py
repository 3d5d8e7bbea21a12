"""Durable functions: what they remember, the children they start, and how they park until something ends.

One command carries all that a function has to say since it last said something, in one commit under its lease's fence:
steps that have ended, children to start, and, if it can do nothing more for now, what it waits for. A step is written
once; a later call with the same name is told what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.create import CreateExecution, create_execution
from flowfabric.core.flows import build
from flowfabric.core.flows.submit import joined
from flowfabric.core.leases import lease
from flowfabric.core.suspension.bound_waitpoints import Wait
from flowfabric.core.suspension.suspend import parked_without_waitpoints
from flowfabric.model.conditions import OperatorOnly, TimeoutOnly
from flowfabric.model.decisions import Act, Change, Decision, EndedAmong, Get, Need, Select, insert
from flowfabric.model.errors import LimitReached, NotFound, Validation, ValidationKind
from flowfabric.model.events import Event
from flowfabric.model.handles import HandlePayload
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_FLOW_NODES, MAX_STEPS_PER_EXECUTION
from flowfabric.model.operations.executions import Created
from flowfabric.model.operations.suspension import SuspensionReason, TimeoutBehavior
from flowfabric.model.operations.workflows import (
    CANCEL_MARK,
    Advanced,
    ChildWait,
    Forked,
    NewStep,
    Step,
    StepOutcome,
    StepRecord,
    called,
    without_branch,
)
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import Execution, Suspension


class Advance(Struct, gc=False):
    """Everything the holder of a durable function has to say at once. ``flow`` is the one it founds if it has none."""

    handle: HandlePayload
    partition: int
    uuid: str
    brought: Brought
    children: tuple[CreateExecution, ...]
    wait: ChildWait | None
    flow: build.CreateFlow
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
    if acts and execution.lease_reclaim_count:
        # It gets on: only workers that it loses without that count against it.
        execution = replace(execution, lease_reclaim_count=0)
        acts.append(Change(execution, ("lease_reclaim_count",)))
    executions, events, execution = _started(command, view, context, execution)
    acts += executions
    wait = command.wait
    asked = execution.cancel_at_ms is not None
    if wait is None or (asked and not command.cancel_known):
        # One that does not know yet that it was asked to cancel must not be parked meanwhile.
        return Decision(Advanced(tuple(steps), False, (), asked), tuple(acts), tuple(events))
    ended = view.ended_among(EndedAmong(wait.awaited)) if wait.awaited else ()
    # Whether those that have ended have succeeded is for the holder to see.
    left = 0 if ended and wait.or_failure else wait.wake_after - len(ended)
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
    more_needed = -left if wait.or_failure else max(left, 0)
    parked = parked_without_waitpoints(view, context, execution, attempt, terms, more_needed, command.handle)
    return Decision(
        Advanced(tuple(steps), True, tuple(map(ExecutionId.unchecked, ended)), asked),
        (*acts, *parked.acts),
        (*events, *parked.events),
        ((execution.execution_id, attempt.attempt_index),),
    )


def _started(
    command: Advance, view: View, context: Context, execution: Execution
) -> tuple[list[Act], list[Event], Execution]:
    """The children that do not exist yet, in the parent's flow, which is created if it has none yet."""
    new = [child for child in command.children if view.execution(child.execution_id) is None]
    if not new:
        return [], [], execution
    acts: list[Act] = []
    if execution.flow_id is None:
        # Whatever the parent pays from, its children pay from too.
        flow = replace(command.flow, budget_ids=build.listed(execution.budget_ids))
        acts.append(insert(build.new_flow(flow, context.now, 1 + len(new), founder=execution.uuid)))
        execution = replace(execution, flow_id=flow.flow_id)
    else:
        stored = build.open_flow(view, execution.partition, execution.flow_id)
        grown, count = build.grown(stored, context.now, "node_count", len(new))
        if count > MAX_FLOW_NODES:
            raise LimitReached("MAX_FLOW_NODES", MAX_FLOW_NODES)
        acts.append(grown)
        flow = replace(command.flow, flow_id=stored.flow_id, budget_ids=build.budgets_of(stored))
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
        last = _place(steps, command.at, command.source_id) - 1
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


def _place(steps: Sequence[Step], at: str, source_id: str) -> int:
    """Where the step stands. One that failed is found by the name of its call, and stands where it failed last; the
    branch that makes the call need not be named if there is no other call of that name."""
    found = [step.sequence for step in steps if step.name == at]
    if found:
        return found[0]
    calls: dict[str, int] = {}
    for step in sorted(steps, key=lambda each: each.sequence):
        name = called(step.name)
        if not name.startswith("!") and (step.outcome != StepOutcome.OK or step.name == name):
            calls[name] = step.sequence
    meant = [name for name in calls if name == at] or [name for name in calls if without_branch(name) == at]
    if len(meant) != 1:
        known = ", ".join((meant or list(calls))[:20]) or "none"
        said = "calls of that name" if meant else "calls"
        raise NotFound("step", f"{quoted(at)}; {said} that execution {source_id} remembers: {known}")
    return calls[meant[0]]


# -- what durable functions remember: each step once, under the fence of its caller ----------------------------------

StepKey = tuple[int, str, str]


class Brought(Struct, frozen=True, gc=False):
    """Steps that have ended, as the holder of an execution brings them. ``known`` is how many are remembered already,
    as far as the holder knows; without that number the rule looks how many there are."""

    partition: int
    uuid: str
    steps: tuple[NewStep, ...]
    known: int | None

    def step_keys(self) -> list[StepKey]:
        """Keys of their rows."""
        return [(self.partition, self.uuid, step.name) for step in self.steps]

    def needs(self) -> list[Need]:
        """The rows that may be there already."""
        return [*(Get(Step, key) for key in self.step_keys()), *(self._all() if self.known is None else ())]

    def _all(self) -> tuple[Need, ...]:
        return (Select(Step, ("partition", "uuid"), (self.partition, self.uuid)),) if self.steps else ()


def remembered(
    brought: Brought, handle: HandlePayload, view: View, context: Context
) -> tuple[list[StepRecord], list[Act]]:
    """The steps as they stand remembered, and the rows of those that are new."""
    answers: list[StepRecord] = []
    acts: list[Act] = []
    sequence = brought.known
    if sequence is None:
        known = view.select(Step, partition=brought.partition, uuid=brought.uuid) if brought.steps else []
        sequence = max((row.sequence for row in known), default=0)
    for step, key in zip(brought.steps, brought.step_keys(), strict=True):
        row = view.get(Step, key)
        if row is None:
            sequence += 1
            if sequence > MAX_STEPS_PER_EXECUTION:
                raise LimitReached("MAX_STEPS_PER_EXECUTION", MAX_STEPS_PER_EXECUTION)
            row = Step(
                *key,
                sequence,
                handle.attempt_index,
                handle.lease_epoch,
                str(step.outcome),
                step.value,
                context.now,
                step.arguments,
            )
            acts.append(insert(row))
        answers.append(shown(row))
    return answers, acts


def shown(row: Step) -> StepRecord:
    """A step as people see it."""
    try:
        outcome = StepOutcome(row.outcome)
    except ValueError:
        raise Validation(ValidationKind.CORRUPTION, f"ff_step.outcome: unknown value {row.outcome!r}") from None
    return StepRecord(row.name, row.sequence, outcome, row.value, row.attempt_index, row.recorded_at_ms, row.arguments)
