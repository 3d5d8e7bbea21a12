"""Checks of what durable functions hand in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowfabric.core.workflows.steps import Brought
from flowfabric.engine.checks import values
from flowfabric.model.errors import Validation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_BULK, MAX_NAME_BYTES
from flowfabric.model.operations.workflows import ChildWait, NewStep, StepOutcome
from flowfabric.model.quoting import quoted

_OUTCOMES = tuple(StepOutcome)


def brought(identity: ExecutionId, steps: Iterable[NewStep], known_steps: int | None) -> Brought:
    """Steps that have ended, each of another name."""
    told = tuple(_step(step) for step in values.sequence(steps, "steps"))
    if len({step.name for step in told}) < len(told):
        raise values.invalid("steps: a name is used twice")
    known = None if known_steps is None else values.integer(known_steps, "known_steps", 0, 2**31 - 1)
    return Brought(identity.partition, identity.uuid_text, told, known)


def _step(step: Any) -> NewStep:
    if not isinstance(step, NewStep):
        raise values.invalid(f"steps: expected NewStep, got {type(step).__name__}")
    name = values.text(step.name, "step name")
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        raise values.invalid(f"step name: between 1 and {MAX_NAME_BYTES} bytes, got {quoted(name)}")
    if step.outcome not in _OUTCOMES:
        raise values.invalid(
            f"step {quoted(name)}: outcome {quoted(step.outcome)} is not one of {', '.join(StepOutcome)}"
        )
    try:
        value = values.payload(step.value, "value")
    except Validation as error:
        raise Validation(error.kind, f"step {quoted(name)}: {error.detail}") from None
    arguments = values.optional_text(step.arguments, "arguments")
    return NewStep(name, value, str(step.outcome), arguments)


def wait_for(wait: Any) -> ChildWait:
    """What a durable function waits for: children, a time, or both."""
    if not isinstance(wait, ChildWait):
        raise values.invalid(f"wait: expected ChildWait, got {type(wait).__name__}")
    awaited = tuple(dict.fromkeys(str.__str__(values.execution_id(each, "wait.awaited")) for each in wait.awaited))
    after = values.integer(wait.wake_after, "wake_after", 0, MAX_BULK)
    if after > len(awaited) or (awaited and not after):
        raise values.invalid(f"wake_after: {after} of {len(awaited)} awaited executions; expected 1 to {len(awaited)}")
    until = values.optional_time_ms(wait.until_ms, "until_ms")
    if not awaited and until is None:
        raise values.invalid("wait: name executions or a time to wait for")
    return ChildWait(awaited, after, until, values.flag(wait.or_failure, "or_failure"))
