"""Drain a backlog of workflows with the SDK's worker: steps that do nothing, each of them remembered."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from bench.shape import KIND
from bench.workers import answer, next_order
from bench.workers.sdk import drain
from flowfabric.engine import Engine
from flowfabric.model.decisions import Writes
from flowfabric.model.operations.workflows import Step
from flowfabric.sdk.app import App

#: A workflow waits for the store once per step. That many at once keep the store busy, and share its commits.
CONCURRENCY = 512


def app_of(url: str, steps: int, done: list[int]) -> App:
    """An app whose only workflow has so many steps."""
    app = App(url)

    @app.step
    async def step(number: int) -> int:
        return number + 1

    @app.workflow(name=KIND)
    async def workflow(order: int, customer: str, note: str) -> dict[str, bool]:
        value = 0
        for _ in range(steps):
            value = await step(value)
        done[0] += 1
        return {"done": value == steps}

    return app


@contextlib.contextmanager
def counting(engine: Engine) -> Any:
    """Count commits that remember steps, and the steps they remember."""
    found = {"commits": 0, "steps": 0}
    store: Any = engine.store
    transaction: Callable[..., Any] = store.transaction

    @contextlib.asynccontextmanager
    async def counted(**options: Any) -> AsyncIterator[Any]:
        async with transaction(**options) as begun:
            commit = begun.commit

            async def committed(writes: Writes, held: Any) -> Any:
                version = await commit(writes, held)
                steps = len(writes.puts.get(Step, ()))
                found["commits"] += bool(steps)
                found["steps"] += steps
                return version

            begun.commit = committed
            yield begun

    store.transaction = counted
    try:
        yield found
    finally:
        del store.transaction


async def main(url: str) -> None:
    """One answer per order: how many steps the workflows have, for how many seconds, and whether to count writes."""
    done = [0]
    apps = {steps: app_of(url, steps, done) for steps in (1, 10)}
    async with contextlib.AsyncExitStack() as stack:
        for app in apps.values():
            await stack.enter_async_context(app)
        answer("ready")
        while (order := await next_order()) is not None:
            app = apps[order["steps"]]
            if order.get("count"):
                with counting(app.engine) as counts:
                    found = await drain(app, done, order["seconds"], concurrency=CONCURRENCY)
                answer({**found, **counts})
            else:
                answer(await drain(app, done, order["seconds"], concurrency=CONCURRENCY))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
