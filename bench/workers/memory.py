"""How large a process gets: while commands queue, after it has stored much, and on a database that holds much."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
from pathlib import Path

from bench.shape import KIND, LANE, PAYLOAD, RESULT, lifecycle
from bench.system import POLICY, EngineSystem, open_engine
from bench.workers import answer, next_order
from flowfabric.engine import Engine

CHUNK = 1_000
CLAIM = 50
SAMPLE_S = 0.002
MIB = 1024 * 1024


def resident_mib() -> float:
    """Memory this process holds now (where the system does not tell: held at most)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def settled_mib() -> float:
    """Memory held after everything that is unused was let go."""
    gc.collect()
    return resident_mib()


async def work(engine: Engine, count: int) -> None:
    """Create, claim and complete this many, so that all code has run once."""
    for _ in range(0, count, CHUNK):
        await engine.create_executions(_items(CHUNK))
    for _ in range(0, count, CLAIM):
        handles = await engine.claim_many(LANE, None, POLICY, CLAIM)
        await asyncio.gather(*(engine.complete(handle, RESULT) for handle in handles))
    system = EngineSystem(engine)
    await asyncio.gather(*(lifecycle(system) for _ in range(200)))


def _items(count: int) -> list[dict[str, object]]:
    return [{"lane_id": LANE, "execution_kind": KIND, "input_payload": PAYLOAD} for _ in range(count)]


async def queued(engine: Engine, count: int) -> float:
    """Growth while this many commands wait at once."""
    before = peak = settled_mib()
    system = EngineSystem(engine)
    tasks = [asyncio.create_task(system.create()) for _ in range(count)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(SAMPLE_S)
        peak = max(peak, resident_mib())
    await asyncio.gather(*tasks)
    return peak - before


async def queued_again(engine: Engine, count: int) -> float:
    """Growth by queueing twice more what was queued before: the memory is there already, unless some was lost."""
    before = settled_mib()
    for _ in range(2):
        await queued(engine, count)
    return settled_mib() - before


async def stored(engine: Engine, count: int) -> float:
    """Growth after this process has stored so many."""
    before = settled_mib()
    for _ in range(0, count, CHUNK):
        await engine.create_executions(_items(CHUNK))
    return settled_mib() - before


async def main(url: str, commands: int, creates: int) -> None:
    """Measure everything once. Without commands only: what working on this database costs."""
    bare = settled_mib()
    async with await open_engine(url) as engine:
        answer("ready")
        opened = settled_mib()
        await work(engine, 2 * CHUNK)
        found = {"opened": opened - bare, "worked": settled_mib() - opened}
        if commands:
            found["queued"] = await queued(engine, commands)
            found["queued again"] = await queued_again(engine, commands)
            found["stored"] = await stored(engine, creates)
        found["resident"] = settled_mib()
        answer(found)
        await next_order()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
