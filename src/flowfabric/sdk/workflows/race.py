"""``first``: several calls, the first that succeeds wins, the others are cancelled.

Which one has won is remembered, so that code that runs again after a pause goes the same way. The losers are cancelled
before the winner is remembered: after a crash in between the winner is found to be the only one that has succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from flowfabric.model.operations.workflows import NewStep
from flowfabric.sdk.errors import CancelRequested

if TYPE_CHECKING:
    from flowfabric.sdk.workflows.conductor import Conductor


async def race(calls: Sequence[Awaitable[Any]]) -> tuple[int, Any]:
    """Which call succeeded first, and what it gave. The others are cancelled and have let go when this returns. If
    none succeeds the first call's error is raised, or that the workflow was asked to end, if one of them met that."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    pending = set(tasks)
    try:
        while pending:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for place, task in enumerate(tasks):
                if task.done() and not task.cancelled() and task.exception() is None:
                    return place, task.result()
        for task in tasks:
            if not task.cancelled() and isinstance(error := task.exception(), CancelRequested):
                raise error
        return 0, await tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def durable_race(conductor: Conductor, name: str, calls: Sequence[Awaitable[Any]]) -> Any:
    """The same in a workflow."""
    won = conductor.remembered(name, lambda value: msgspec.json.decode(value or b"0", type=int))
    if won is not None:
        for place, call in enumerate(calls):
            if place != won[0] and asyncio.iscoroutine(call):
                call.close()
        return await calls[won[0]]
    place, value = await race(calls)
    conductor.check()
    with conductor.work():
        await conductor.saved(NewStep(name, msgspec.json.encode(place)))
    return value
