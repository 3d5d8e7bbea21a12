"""Drain a backlog with the SDK's worker: tasks that do nothing, with all that a worker does for them."""

from __future__ import annotations

import asyncio
import sys
import time

from bench.shape import KIND
from bench.workers import answer, next_order
from flowfabric.sdk.app import App


async def drain(
    app: App, done: list[int], seconds: float, lanes: list[str] | None = None, concurrency: int = 64
) -> dict[str, float]:
    """Work for a while, and finish what was begun."""
    worker = app.worker(lanes=lanes, concurrency=concurrency)
    async with worker:
        before, started, cpu = done[0], time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        worker.stop()
    return {
        "done": done[0] - before,
        "seconds": time.monotonic() - started,
        "cpu": time.process_time() - cpu,
    }


async def main(url: str) -> None:
    """One answer per order; an order is a number of seconds."""
    app = App(url)
    done = [0]

    @app.task(name=KIND)
    async def noop(order: int, customer: str, note: str) -> dict[str, bool]:
        done[0] += 1
        return {"done": True}

    async with app:
        answer("ready")
        while (seconds := await next_order()) is not None:
            answer(await drain(app, done, seconds))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
