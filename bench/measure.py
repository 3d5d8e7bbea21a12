"""Windows: run callers for a while, count what they finish, and what it cost."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

Found = TypeVar("Found")

#: How long callers run before the clock starts, in seconds: connections, plans and caches are ready then.
WARM_UP_S = 0.3
#: How long a window may last in which nothing is finished, and how often it is looked at, in seconds.
PATIENCE_S, _LOOK_S = 30.0, 0.01
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Window(Struct):
    """What one window found."""

    per_second: float
    #: Processor time per unit of work, in microseconds: of this process, and of the database server if there is one.
    client_us: float
    database_us: float | None = None


async def closed_loop(
    work: Callable[[int], Awaitable[int]], callers: int, seconds: float, server: int | None = None
) -> Window:
    """Run callers that each do one piece of work after the other; ``work`` returns how many units it has done."""
    done = 0
    running = True

    async def call(number: int) -> None:
        nonlocal done
        while running:
            units = await work(number)
            done += units  # in two steps: the counter must be read after the wait

    gc.collect()
    tasks = [asyncio.create_task(call(number)) for number in range(callers)]
    try:
        await _sleep_beside(tasks, WARM_UP_S)
        before, started = (done, time.process_time(), server_cpu_s(server)), time.perf_counter()
        await _sleep_beside(tasks, seconds)
        while done == before[0] and time.perf_counter() - started < PATIENCE_S:
            # A window shorter than one piece of work lasts until there is something to count.
            await _sleep_beside(tasks, _LOOK_S)
        after, ended = (done, time.process_time(), server_cpu_s(server)), time.perf_counter()
    finally:
        running = False
        await asyncio.gather(*tasks, return_exceptions=True)
    units = after[0] - before[0]
    if not units:
        raise RuntimeError(f"nothing was finished within {max(seconds, PATIENCE_S)} s")
    return Window(
        per_second=units / (ended - started),
        client_us=(after[1] - before[1]) / units * 1e6,
        database_us=None if server is None else (after[2] - before[2]) / units * 1e6,
    )


async def _sleep_beside(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    """Wait, unless a caller fails: then tell."""
    finished, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in finished:
        task.result()


async def interleaved(
    repeat: int, sides: Mapping[str, Callable[[], Awaitable[Found]]], tick: Callable[[], None]
) -> dict[str, list[Found]]:
    """Run the sides one after the other, repeatedly, and each time in the opposite order: neighbours are comparable."""
    found: dict[str, list[Found]] = {name: [] for name in sides}
    for repetition in range(repeat):
        for name in list(sides)[:: 1 if repetition % 2 == 0 else -1]:
            found[name].append(await sides[name]())
            tick()
    return found


async def timed(times: int, action: Callable[[], Awaitable[object]]) -> list[float]:
    """Seconds that an action takes, each time it is done."""
    found = []
    for _ in range(times):
        started = time.perf_counter()
        await action()
        found.append(time.perf_counter() - started)
    return found


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def server_cpu_s(server: int | None) -> float:
    """Processor seconds of a server process and its children, the finished ones too (Linux; elsewhere 0)."""
    if server is None:
        return 0.0
    total = _cpu_ticks(server, with_finished_children=True)
    for task in Path(f"/proc/{server}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        total += sum(_cpu_ticks(int(child)) for child in children)
    return total / _TICKS_PER_SECOND


def _cpu_ticks(process: int, *, with_finished_children: bool = False) -> int:
    try:
        # The name in parentheses may contain spaces; what follows it does not.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11 : 15 if with_finished_children else 13]))
