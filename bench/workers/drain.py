"""Drain a backlog: ``claim_many(50)`` and ``complete``, as a worker does whose jobs take no time."""

from __future__ import annotations

import asyncio
import sys
import time

from bench.shape import LANE, RESULT
from bench.system import POLICY, open_engine
from bench.workers import answer, next_order
from flowfabric.engine import Engine

CLAIM = 50
#: Loops in one process: while one completes, the next one claims.
LOOPS = 4


async def drain(engine: Engine, seconds: float) -> dict[str, float]:
    """Work for a while, or until nothing is left."""
    done = 0
    started, cpu = time.monotonic(), time.process_time()

    async def loop() -> None:
        nonlocal done
        while time.monotonic() - started < seconds:
            handles = await engine.claim_many(LANE, None, POLICY, CLAIM)
            if not handles:
                return
            await asyncio.gather(*(engine.complete(handle, RESULT) for handle in handles))
            done += len(handles)

    await asyncio.gather(*(loop() for _ in range(LOOPS)))
    return {"done": done, "seconds": time.monotonic() - started, "cpu": time.process_time() - cpu}


async def main(url: str) -> None:
    """One answer per order; an order is a number of seconds."""
    async with await open_engine(url) as engine:
        answer("ready")
        while (seconds := await next_order()) is not None:
            answer(await drain(engine, seconds))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
