"""Tests run the code of a workflow once more, from memory alone, before it ends.

What would go wrong only after a crash, a deploy or a long wait goes wrong in its first test then: calls with other
arguments each time, calls that depend on chance, another result.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from flowfabric.model.operations.workflows import StepOutcome, StepRecord
from flowfabric.sdk.errors import BadStep
from flowfabric.sdk.workflows.conductor import Conductor
from flowfabric.sdk.workflows.recorded_steps import Call, Memory

if TYPE_CHECKING:
    from flowfabric.sdk.worker.attempt import Job

#: Whether the code runs a second time.
IS_SECOND: ContextVar[bool] = ContextVar("flowfabric_second_pass", default=False)
_WHY = (
    "When a workflow continues its code is called again and must do the same. app.testing() has called it again before "
    "its end to find this; second_pass=False switches that off"
)


class SecondPass(Conductor):
    """Gives what is remembered, and does nothing."""

    def __init__(self, job: Job, memory: Memory, first: Conductor) -> None:
        super().__init__(job, memory)
        self._first = first

    async def remembered(self, call: Call, read: Callable[[bytes | None], Any]) -> tuple[Any] | None:
        """What a call gave. One that the first pass has begun and left is waited for."""
        known = await super().remembered(call, read)
        if known is None:
            if self._first.memory.was_called(call.name):
                await self._never()
            await self.refuse(f"{call.name!r} is called only the second time. {_WHY}", call)
        return known

    async def at_work(self, doing: Coroutine[Any, Any, Any]) -> None:
        """What the first pass has emitted or reported stands."""
        doing.close()

    async def _park(self) -> bool:
        name = next(iter(self._sleeping), "")
        self.note_refusal(f"it waits for {name!r} only the second time. {_WHY}", name)
        return False


def remembered_at_the_end(conductor: Conductor) -> list[StepRecord]:
    """What a run remembers once it has ended."""
    last = conductor.memory.count
    return conductor.memory.steps() + [
        StepRecord(each.name, last + place, StepOutcome(each.outcome), each.value, 0, 0, each.arguments)
        for place, each in enumerate(conductor.done_last(), 1)
    ]


def compare(job: Job, before: bytes, after: bytes) -> None:
    """Both passes have the same result."""
    if before != after:
        first, second = (each[:200].decode("utf-8", "replace") for each in (before, after))
        raise BadStep(
            f"run {job.execution_id}: it returned {first}, and {second} the second time. {_WHY}", run=job.execution_id
        )
