"""A worker process full of workflows that sleep: ``python -m tests.sdk.sleepers URL COUNT``. Says what it has seen."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc

from flowfabric import App, days, sleep
from flowfabric.sdk.definitions.tasks import Workflow
from flowfabric.stores.questions import CountRows
from tests.chaos.processes import say
from tests.contract.probe import ManualClock

CHUNK = 500
SLOTS = 64
FIRST = 1_000
ENDED = "terminal"
PARKED = "suspended"


def traced_bytes() -> int:
    """Memory that was taken since tracing began and is still held."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def phases(app: App) -> dict[str, int]:
    """How many runs are in each phase."""
    found: dict[str, int] = await app.engine._ask(CountRows())
    return found


async def until(app: App, phase: str, count: int) -> None:
    """Wait until so many are there."""
    while (await phases(app)).get(phase, 0) < count:  # noqa: ASYNC110 (the store is asked)
        await asyncio.sleep(0.1)


async def put_to_sleep(app: App, workflow: Workflow[[int], int], count: int) -> None:
    """Start so many and wait until all of them sleep."""
    for first in range(0, count, CHUNK):
        await workflow.start_many([(number,) for number in range(first, first + CHUNK)])
    await until(app, PARKED, count)


async def main(url: str, count: int) -> None:
    """Some first, so that whatever the process needs for itself is there when it is measured."""
    clock = ManualClock()
    app = App(url, engine_options={"clock": clock})

    @app.workflow
    async def sleeper(number: int) -> int:
        await sleep(days(30))
        return number

    worker = app.worker(concurrency=SLOTS)
    async with worker:
        await put_to_sleep(app, sleeper, FIRST)
        clock.advance(31 * 86_400_000)
        await until(app, ENDED, FIRST)
        tracemalloc.start()
        await put_to_sleep(app, sleeper, count)
        while worker.running:  # noqa: ASYNC110 (what was committed last is known to the store before its slot is free)
            await asyncio.sleep(0.01)
        held = {"running": worker.running, "bytes": traced_bytes(), "phases": await phases(app)}
        tracemalloc.stop()
        clock.advance(31 * 86_400_000)
        await until(app, ENDED, FIRST + count)
        say({**held, "after": await phases(app)})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
