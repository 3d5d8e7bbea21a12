"""Following events: whether a subscriber keeps up with 10,000 a second, and what it costs those who write them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database
from bench.goals import FOLLOWED, WRITING_WHILE_FOLLOWED
from bench.measure import Window, closed_loop, percentile
from bench.rows import Row, Series
from bench.shape import LANE
from bench.system import POLICY, open_engine
from flowfabric.engine import Engine

LEASES = 1_000
#: Events a second that are written, in steps of so many seconds.
RATE, STEP_S = 10_000, 0.02
#: Steps that may be under way at the same time; a slower machine writes less.
AT_ONCE = 4


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"events/{store}",
            f"one subscriber follows {RATE:,} lease events a second on {STORE_NAMES[store]}",
            functools.partial(run, store),
            windows=3,
        )
        for store in STORES
    ]


class Followed(Struct):
    """What one subscriber made of one window."""

    written_per_second: float
    delivered_per_second: float
    #: Events not yet delivered when the last one was written.
    behind: float
    #: Milliseconds from the commit's answer to the delivery, and MiB the process grew by.
    delay_p50_ms: float
    delay_p99_ms: float
    grown_mib: float


async def run(store: str, bench: Bench) -> list[Row]:
    """A steady rate with a subscriber; then as fast as it goes, with and without one."""
    database = await bench.places.database(store)
    await database.fill(LEASES)
    await database.settle()
    engine = await open_engine(database.url)
    try:
        handles = await engine.claim_many(LANE, None, POLICY, LEASES)
        steady: list[Followed] = []

        async def steadily() -> Window:
            await database.tidy()
            steady.append(await _steady(bench, engine, handles))
            return Window(0.0, 0.0)

        found = await bench.interleaved(
            {
                "steady": steadily,
                "followed": lambda: _flat_out(bench, database, engine, handles, followed=True),
                "alone": lambda: _flat_out(bench, database, engine, handles, followed=False),
            }
        )
    finally:
        await engine.close()
    name = STORE_NAMES[store]
    return [
        Row(
            case=f"events/{store}",
            label=f"{name}, {RATE:,} events/s followed by one subscriber",
            unit="events/s",
            better="higher",
            ours=Series("delivered", [each.delivered_per_second for each in steady]),
            yardstick=Series("written", [each.written_per_second for each in steady]),
            target=FOLLOWED,
            extra={
                "behind at the end": [each.behind for each in steady],
                "delay p50 ms": [each.delay_p50_ms for each in steady],
                "delay p99 ms": [each.delay_p99_ms for each in steady],
                "grown MiB": [each.grown_mib for each in steady],
            },
        ),
        Row(
            case=f"events/{store}",
            label=f"{name}, renewals while somebody follows",
            unit="renewals/s",
            better="higher",
            ours=Series("with a subscriber", [each.per_second for each in found["followed"]]),
            yardstick=Series("without", [each.per_second for each in found["alone"]]),
            target=WRITING_WHILE_FOLLOWED,
            extra={
                "client µs": [each.client_us for each in found["followed"]],
                "client µs without": [each.client_us for each in found["alone"]],
            },
        ),
    ]


@contextlib.asynccontextmanager
async def _following(engine: Engine, noted: list[tuple[str, float]] | None = None) -> AsyncIterator[list[int]]:
    """A subscriber beside the block; how many events it has had so far."""
    counted = [0]
    events = await engine.subscribe_lease_history()

    async def follow() -> None:
        async for event in events:
            counted[0] += 1
            if noted is not None:
                noted.append((event.execution_id, time.perf_counter()))

    task = asyncio.create_task(follow())
    try:
        yield counted
    finally:
        await events.aclose()
        await task


async def _flat_out(
    bench: Bench, database: Database, engine: Engine, handles: Sequence[Any], *, followed: bool
) -> Window:
    async def all_at_once(_: int) -> int:
        await asyncio.gather(*(engine.renew(handle) for handle in handles))
        return len(handles)

    await database.tidy()
    async with _following(engine) if followed else contextlib.nullcontext():
        return await closed_loop(all_at_once, 1, bench.seconds, database.server)


async def _steady(bench: Bench, engine: Engine, handles: Sequence[Any]) -> Followed:
    """Write at a fixed rate, whatever happens to the subscriber."""
    answered: list[tuple[str, float]] = []
    delivered: list[tuple[str, float]] = []
    size = int(RATE * STEP_S)

    async def renew(handle: Any) -> None:
        await engine.renew(handle)
        answered.append((handle.execution_id, time.perf_counter()))

    async with _following(engine, delivered) as counted:
        grown = _resident_mib()
        started = time.perf_counter()
        steps = max(1, int(bench.seconds / STEP_S))
        under_way: deque[asyncio.Future[Any]] = deque()
        for step in range(steps):
            first = step * size % len(handles)
            under_way.append(asyncio.gather(*(renew(handle) for handle in handles[first : first + size])))
            if len(under_way) == AT_ONCE:
                await under_way.popleft()
            await asyncio.sleep(max(0.0, started + (step + 1) * STEP_S - time.perf_counter()))
        await asyncio.gather(*under_way)
        written_s = time.perf_counter() - started
        behind = len(answered) - counted[0]
        async with asyncio.timeout(60):
            while counted[0] < len(answered):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        delivered_s = time.perf_counter() - started
        grown = _resident_mib() - grown
    delays = [late - at for (_, at), (_, late) in zip(sorted(answered), sorted(delivered), strict=True)]
    return Followed(
        written_per_second=len(answered) / written_s,
        delivered_per_second=len(answered) / delivered_s,
        behind=behind,
        delay_p50_ms=percentile(delays, 0.5) * 1e3,
        delay_p99_ms=percentile(delays, 0.99) * 1e3,
        grown_mib=grown,
    )


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20
