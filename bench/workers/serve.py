"""A server on a database, in a process of its own: tells its port, and what it has cost when it is asked."""

from __future__ import annotations

import asyncio
import sys
import time

from bench.workers import answer, next_order
from bench.workers.memory import settled_mib
from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.serving import Running


async def so_many_wait(engine: Engine, count: int) -> None:
    """Return when so many claims wait."""
    for _ in range(600):
        if len(engine._lanes) >= count:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"{len(engine._lanes)} claims wait, {count} should")


async def main(url: str, timers: bool) -> None:
    """One answer per order: processor seconds and memory so far; an order that is a number waits for so many claims."""
    async with await Engine.open(url, single_node=True, timers=timers) as engine:
        config = ServerConfig(port=0, max_followers=10_000, keep_alive_s=600)
        server = create_app(engine, config)
        running = Running(server, config, server)
        task = asyncio.create_task(running.run())
        await running.started()
        answer({"port": running.port})
        while (order := await next_order()) is not None:
            await so_many_wait(engine, order if isinstance(order, int) else 0)
            # Counting memory costs time, and so it is not done where that is measured.
            answer({"cpu": time.process_time()} if order == "cpu" else {"mib": settled_mib()})
        running.stop()
        await task


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:] == ["timers"]))
