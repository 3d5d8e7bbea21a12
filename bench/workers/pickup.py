"""Wait for work in a process of its own, and tell when which execution was picked up."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable

from bench.shape import INSTANCE, LANE, LEASE_MS, RESULT, WORKER
from bench.system import open_engine
from bench.workers import answer, next_order
from flowfabric.engine import Engine
from flowfabric.model.handles import decode_for
from flowfabric.model.operations.executions import ClaimPolicy

PATIENT = ClaimPolicy(WORKER, INSTANCE, LEASE_MS, max_wait=10_000)


async def pick_up(engine: Engine, picked: Callable[[str, float], None]) -> None:
    """Claim whatever comes, for ever; say what it was and when it came (the clock is the same in all processes)."""
    while True:
        handle = await engine.claim(LANE, None, PATIENT)
        if handle is not None:
            moment = time.monotonic()
            picked(str(decode_for(handle, handle.backend).execution_id), moment)
            await engine.complete(handle, RESULT)


async def main(url: str) -> None:
    """Until the benchmark closes our standard input."""
    async with await open_engine(url) as engine:
        waiting = asyncio.create_task(pick_up(engine, lambda name, moment: answer([name, moment])))
        answer("ready")
        await next_order()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
