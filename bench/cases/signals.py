"""How soon a suspended execution goes on: from the call that signals it until a waiting ``claim`` returns it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time

from bench import goals
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.measure import percentile
from bench.rows import Row, Series
from bench.shape import KIND, LANE, PAYLOAD, RESULT
from bench.system import open_engine
from bench.workers.pickup import PATIENT
from flowfabric import Fresh, Handle, HandleKind, SuspendArgs, Suspended, SuspendOutcomeDetails
from flowfabric.conditions import ByName, Single
from flowfabric.engine import Engine

#: Pauses between signals, in seconds: everybody is idle again when the next one comes.
PAUSE_S = (0.03, 0.06)
LEAST_WINDOW_S = 1.0
PATIENCE_S = 10.0
NAME, KEY = "approved", "approval"


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"signals/{store}",
            f"signal to resumed claim on {STORE_NAMES[store]}, everybody idle",
            functools.partial(run, store),
            windows=1,
        )
        for store in STORES
    ]


class Resuming:
    """A worker that suspends what is fresh and completes what was resumed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.suspended: asyncio.Queue[tuple[Handle, SuspendOutcomeDetails, float]] = asyncio.Queue()
        self.resumed: asyncio.Queue[float] = asyncio.Queue()

    async def work(self) -> None:
        """For ever."""
        wanted = Single(KEY, ByName(NAME))
        while True:
            handle = await self._engine.claim(LANE, None, PATIENT)
            moment = time.monotonic()
            if handle is None:
                continue
            if handle.kind is HandleKind.RESUMED:
                self.resumed.put_nowait(moment)
                await self._engine.complete(handle, RESULT)
                continue
            asked = SuspendArgs(waitpoints=[Fresh(waitpoint_key=KEY)], resume_condition=wanted)
            outcome = await self._engine.suspend(handle, asked)
            assert isinstance(outcome, Suspended)
            self.suspended.put_nowait((handle, outcome.details, (time.monotonic() - moment) * 1000))


class Signalled:
    """What one signal took, in milliseconds: until it was answered, until the claim had it, and the suspend before."""

    def __init__(self, answered: float, resumed: float, suspend: float) -> None:
        self.answered = answered
        self.resumed = resumed
        self.suspend = suspend


async def run(store: str, bench: Bench) -> list[Row]:
    """Suspend and signal, one after the other."""
    database = await bench.places.database(store)
    engine = await open_engine(database.url)
    worker = Resuming(engine)
    working = asyncio.create_task(worker.work())
    try:
        await _window(engine, worker, 0.5)
        found = await bench.interleaved({store: lambda: _window(engine, worker, max(bench.seconds, LEAST_WINDOW_S))})
    finally:
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        await engine.close()
    return _rows(store, found[store])


async def _window(engine: Engine, worker: Resuming, seconds: float) -> list[Signalled]:
    found = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        await engine.create_execution(lane_id=LANE, execution_kind=KIND, input_payload=PAYLOAD)
        async with asyncio.timeout(PATIENCE_S):
            handle, details, suspend = await worker.suspended.get()
        await asyncio.sleep(random.uniform(*PAUSE_S))
        called = time.monotonic()
        await engine.deliver_signal(
            execution_id=handle.execution_id,
            waitpoint_id=details.waitpoint_id,
            waitpoint_token=details.waitpoint_token,
            signal_name=NAME,
            source_type="user",
            source_identity="alice",
            payload=PAYLOAD,
        )
        answered = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            resumed = await worker.resumed.get()
        found.append(Signalled((answered - called) * 1000, (resumed - called) * 1000, suspend))
    return found


def _rows(store: str, found: list[list[Signalled]]) -> list[Row]:
    windows = [[each.resumed for each in window] for window in found]
    together = [value for window in windows for value in window]
    label = f"{STORE_NAMES[store]}, signal to resumed claim"
    return [
        Row(
            case=f"signals/{store}",
            label=f"{label}, p50",
            unit="ms",
            better="lower",
            ours=Series("engine", [percentile(window, 0.5) for window in windows]),
            target=goals.SIGNAL_P50_MS,
            extra={
                "ms until the signal was answered": [percentile([s.answered for s in window], 0.5) for window in found],
                "ms of the suspend": [percentile([s.suspend for s in window], 0.5) for window in found],
            },
        ),
        Row(
            case=f"signals/{store}",
            label=f"{label}, p99",
            unit="ms",
            better="lower",
            ours=Series("engine", [percentile(together, 0.99)]),
            note=f"of {len(together)} signals together",
        ),
    ]
