"""How soon idle workers pick up new work: from the call that creates it until ``claim`` returns it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time

from bench import goals
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.measure import percentile
from bench.processes import Worker
from bench.rows import Row, Series
from bench.shape import KIND, LANE, PAYLOAD
from bench.system import open_engine
from bench.workers.pickup import pick_up
from flowfabric.engine import Engine

#: Pauses between creations, in seconds: everybody is idle again when the next one comes.
PAUSE_S = (0.05, 0.1)
#: A window is never so short that it says nothing.
LEAST_WINDOW_S = 1.0
PATIENCE_S = 10.0
WHERE = {"here": "in the process that creates", "elsewhere": "in another process"}


def cases() -> list[Case]:
    """By store and place of the worker."""
    return [
        Case(
            f"pickup/{store}/{place}",
            f"idle pick-up on {STORE_NAMES[store]}, the worker {where}",
            functools.partial(run, store, place),
            windows=1,
        )
        for store in STORES
        for place, where in WHERE.items()
    ]


class Picked:
    """When each execution was picked up."""

    def __init__(self) -> None:
        self.moments: dict[str, float] = {}
        self._news = asyncio.Event()

    def __call__(self, execution_id: str, moment: float) -> None:
        self.moments[execution_id] = moment
        self._news.set()

    async def wait_for(self, wanted: set[str]) -> None:
        """Until all of them were picked up."""
        async with asyncio.timeout(PATIENCE_S):
            while not wanted <= self.moments.keys():
                self._news.clear()
                await self._news.wait()


async def run(store: str, place: str, bench: Bench) -> list[Row]:
    """Create now and then, and see when the worker has it."""
    database = await bench.places.database(store)
    picked = Picked()
    engine = await open_engine(database.url)
    worker: Worker | None = None
    try:
        if place == "here":
            listening = asyncio.create_task(pick_up(engine, picked))
        else:
            worker = await Worker.start("pickup", database.url)
            listening = asyncio.create_task(_listen(worker, picked))
        await asyncio.sleep(0.3)
        await _window(engine, picked, 0.5)
        found = await bench.interleaved({place: lambda: _window(engine, picked, max(bench.seconds, LEAST_WINDOW_S))})
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
    finally:
        if worker is not None:
            await worker.close()
        await engine.close()
    return _rows(store, place, found[place])


async def _listen(worker: Worker, picked: Picked) -> None:
    while True:
        execution_id, moment = await worker.hear()
        picked(execution_id, moment)


async def _window(engine: Engine, picked: Picked, seconds: float) -> list[tuple[float, float]]:
    """Milliseconds from the call to the pick-up, and from its answer to the pick-up, of each execution."""
    calls: dict[str, tuple[float, float]] = {}
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        await asyncio.sleep(random.uniform(*PAUSE_S))
        called = time.monotonic()
        created = await engine.create_execution(lane_id=LANE, execution_kind=KIND, input_payload=PAYLOAD)
        calls[str(created.execution_id)] = (called, time.monotonic())
    await picked.wait_for(set(calls))
    return [
        ((picked.moments[name] - called) * 1000, (picked.moments[name] - answered) * 1000)
        for name, (called, answered) in calls.items()
    ]


def _rows(store: str, place: str, found: list[list[tuple[float, float]]]) -> list[Row]:
    windows = [[since_call for since_call, _ in window] for window in found]
    together = [value for window in windows for value in window]
    since_answer = [percentile([value for _, value in window], 0.5) for window in found]
    label = f"{STORE_NAMES[store]}, {WHERE[place]}"
    name = f"pickup/{store}/{place}"
    return [
        Row(
            case=name,
            label=f"{label}, p50",
            unit="ms",
            better="lower",
            ours=Series("engine", [percentile(window, 0.5) for window in windows]),
            target=goals.PICKUP_P50_MS,
            extra={"ms after create has returned": since_answer},
        ),
        Row(
            case=name,
            label=f"{label}, p99",
            unit="ms",
            better="lower",
            # One window has too few for a percentile as rare as this.
            ours=Series("engine", [percentile(together, 0.99)]),
            target=goals.PICKUP_P99_MS,
            extra={"largest of a window": [max(window) for window in windows]},
            note=f"of {len(together)} pick-ups together",
        ),
    ]
