"""Remembered steps, a few at a time: each may have a large value."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Iterable, Iterator
from typing import TYPE_CHECKING

from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.workflows import StepPlace, StepRecord
from flowfabric.server.http.pieces import STEP_BYTES

if TYPE_CHECKING:
    from flowfabric.server.operations import Call

#: Steps that are read at a time.
MOST_AT_ONCE = 256


def portions(places: Iterable[StepPlace]) -> Iterator[list[str]]:
    """Names of steps that are read together: their values have so many bytes, or there is one."""
    names: list[str] = []
    size = 0
    for place in places:
        if names and (size + place.size > STEP_BYTES or len(names) == MOST_AT_ONCE):
            yield names
            names, size = [], 0
        names.append(place.name)
        size += place.size
    if names:
        yield names


async def step_portions(
    call: Call, execution_id: ExecutionId | str, places: Iterable[StepPlace]
) -> AsyncGenerator[list[StepRecord], None]:
    """These steps with their values."""
    for names in portions(places):
        async with call.server.turns.one():
            found = [await call.engine.read_steps(execution_id, names)]
        yield found.pop()


async def all_steps(
    call: Call, execution_id: ExecutionId | str, names: Container[str] | None = None
) -> AsyncGenerator[list[StepRecord], None]:
    """All that an execution remembers, or what has one of these names."""
    after: StepPlace | None = None
    while True:
        async with call.server.turns.one():
            places = await call.engine.list_steps(execution_id, after)
        wanted = [each for each in places if names is None or each.name in names]
        async for found in step_portions(call, execution_id, wanted):
            ready = [found]
            del found
            yield ready.pop()
        if len(places) < MAX_PAGE:
            return
        after = places[-1]
