"""What durable functions remember: each step once, under the fence of whoever brings it."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.context import Context
from flowfabric.core.view import View
from flowfabric.model.changes import Act, Get, Need, insert
from flowfabric.model.errors import ResourceExhausted, Validation, ValidationKind
from flowfabric.model.handles import HandlePayload
from flowfabric.model.limits import MAX_STEPS_PER_EXECUTION
from flowfabric.model.steps import NewStep, Step, StepOutcome, StepRecord

StepKey = tuple[int, str, str]


class Brought(Struct, frozen=True, gc=False):
    """Steps that have ended, as the holder of an execution brings them. ``known`` is how many are remembered already,
    as far as the holder knows."""

    partition: int
    uuid: str
    steps: tuple[NewStep, ...]
    known: int

    def step_keys(self) -> list[StepKey]:
        """Keys of their rows."""
        return [(self.partition, self.uuid, step.name) for step in self.steps]

    def needs(self) -> list[Need]:
        """The rows that may be there already."""
        return [Get(Step, key) for key in self.step_keys()]


def remembered(
    brought: Brought, handle: HandlePayload, view: View, context: Context
) -> tuple[list[StepRecord], list[Act]]:
    """The steps as they stand remembered, and the rows of those that are new."""
    answers: list[StepRecord] = []
    acts: list[Act] = []
    sequence = brought.known
    for step, key in zip(brought.steps, brought.step_keys(), strict=True):
        row = view.get(Step, key)
        if row is None:
            sequence += 1
            if sequence > MAX_STEPS_PER_EXECUTION:
                raise ResourceExhausted("steps", MAX_STEPS_PER_EXECUTION)
            row = Step(
                *key,
                sequence,
                handle.attempt_index,
                handle.lease_epoch,
                str(step.outcome),
                step.value,
                context.now,
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
    return StepRecord(row.name, row.sequence, outcome, row.value, row.attempt_index, row.recorded_at_ms)
