"""A call that is cancelled, at whichever of its waits, takes nothing of its store along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.model.states import PublicState
from tests.cancelling.loop import CALLED, Cancels, Watched
from tests.contract.probe import create, policy

#: More than there are connections.
MANY = 40
#: More waits than any call has.
MOST_WAITS = 200


async def cancelled(call: Callable[[], Coroutine[Any, Any, Any]], at: int, *, late: bool) -> bool:
    """Make a call and cancel it at one of its waits; whether it has so many."""
    hook = Cancels(at, late=late, again=False)
    context = copy_context()
    context.run(CALLED.set, True)
    task = asyncio.get_running_loop().create_task(Watched(call(), hook), context=context)
    async with asyncio.timeout(60):
        await asyncio.wait((task,))
    if hook.victim is None or not task.cancelled():
        task.result()
    return hook.victim is not None


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "name", ["reads", "reads some", "lists", "explains", "creates", "creates some", "claims", "asks the time", "pings"]
)
async def test_it_leaves_the_store_whole(engine: Engine, name: str, late: bool) -> None:
    made = await create(engine, lane_id="kept")
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "reads": lambda: engine.read_execution_state(made),
        "reads some": lambda: engine.read_execution_contexts([made] * 3),
        "lists": lambda: engine.list_executions(made.partition, None, 10),
        "explains": lambda: engine.explain(made),
        "creates": lambda: engine.create_execution(lane_id="lane"),
        "creates some": lambda: engine.create_executions([{"lane_id": "lane"}] * 3),
        "claims": lambda: engine.claim_many("lane", (), policy(), 2),
        "asks the time": engine.server_time_ms,
        "pings": engine.ping,
    }
    await create(engine, lane_id="lane")
    for at in range(MOST_WAITS):
        if not await cancelled(calls[name], at, late=late):
            break
    else:
        raise AssertionError("it has no end")
    async with asyncio.timeout(60):
        found = await asyncio.gather(*(engine.read_execution_state(made) for _ in range(MANY)))
        await create(engine, lane_id="lane")
    assert set(found) == {PublicState.WAITING}
