"""What limits by key cost: tasks of fifty customers that a worker drains, with room for all of them."""

from __future__ import annotations

import functools

from bench import goals
from bench.cases.drain import Drained
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database
from bench.processes import Worker
from bench.rows import Row, Series

#: Tasks per second of a window: more than a process drains on the machines we know.
PER_SECOND = 6_000
CHUNK = 1_000
KINDS = {"limit": "at most so many at once", "rate": "at most so many a minute"}


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"limits/{store}",
            f"tasks with limits by key that an SDK worker drains on {STORE_NAMES[store]}, against the same without",
            functools.partial(run, store),
            windows=3,
        )
        for store in STORES
    ]


async def run(store: str, bench: Bench) -> list[Row]:
    """Each kind waits in a lane of its own, so that what a window leaves behind does not disturb the next."""
    database = await bench.places.database(store)
    worker = await Worker.start("limits", database.url)
    try:
        for kind in ("plain", *KINDS):
            await _window(database, worker, kind, 0.3)
        found = await bench.interleaved(
            {kind: functools.partial(_window, database, worker, kind, bench.seconds) for kind in ("plain", *KINDS)}
        )
    finally:
        await worker.close()
    return [
        Row(
            case=f"limits/{store}",
            label=f"{STORE_NAMES[store]}, {what} for each key",
            unit="tasks/s",
            better="higher",
            ours=Series(kind, [each.per_second for each in found[kind]]),
            yardstick=Series("without", [each.per_second for each in found["plain"]]),
            target=goals.LIMITED,
            extra={
                "client µs": [each.client_us for each in found[kind]],
                "client µs without": [each.client_us for each in found["plain"]],
            },
        )
        for kind, what in KINDS.items()
    ]


async def _window(database: Database, worker: Worker, kind: str, seconds: float) -> Drained:
    count = max(int(PER_SECOND * seconds) // CHUNK, 1) * CHUNK
    await worker.ask([kind, count])
    await database.tidy()
    found = await worker.ask([kind, float(seconds) + 1e-9])
    return Drained(per_second=found["done"] / found["seconds"], client_us=found["cpu"] / max(found["done"], 1) * 1e6)
