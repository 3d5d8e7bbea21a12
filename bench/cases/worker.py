"""The SDK's worker draining tasks that do nothing: one process, two, and one against peers and the bare engine."""

from __future__ import annotations

import functools

from bench import goals
from bench.cases.drain import Drained, window
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.processes import Worker
from bench.rows import Row, Series


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"worker/{store}",
            f"SDK workers that drain tasks on {STORE_NAMES[store]}: two against one, one against the engine and peers",
            functools.partial(run, store),
            windows=3,
        )
        for store in STORES
    ]


async def run(store: str, bench: Bench) -> list[Row]:
    """The same two processes, used one at a time or both, and one that uses the engine alone."""
    database = await bench.places.database(store)
    workers = [await Worker.start("sdk", database.url) for _ in range(2)]
    bare = await Worker.start("drain", database.url)
    try:
        for worker in (*workers, bare):
            await window(database, [worker], 0.3)  # connections, plans and caches
        found = await bench.interleaved(
            {
                "engine": lambda: window(database, [bare], bench.seconds),
                "one": lambda: window(database, workers[:1], bench.seconds),
                "two": lambda: window(database, workers, bench.seconds),
            }
        )
    finally:
        for worker in (*workers, bare):
            await worker.close()
    name = STORE_NAMES[store]
    one = _series("one worker", found["one"])
    rows = [
        Row(
            case=f"worker/{store}",
            label=f"{name}, a worker drains tasks, against the engine",
            unit="tasks/s",
            better="higher",
            ours=one,
            yardstick=_series("claim_many and complete", found["engine"]),
            target=goals.WORKER,
            extra={
                "client µs": [each.client_us for each in found["one"]],
                "client µs of the engine": [each.client_us for each in found["engine"]],
            },
        ),
        Row(
            case=f"worker/{store}",
            label=f"{name}, two workers drain tasks",
            unit="tasks/s",
            better="higher",
            ours=_series("two workers", found["two"]),
            yardstick=one,
            target=goals.TWO_PROCESSES if store == "postgres" else None,
        ),
    ]
    rows += [
        Row(
            case=f"worker/{store}",
            label=f"{name}, a worker drains tasks, against {peer}",
            unit="tasks/s",
            better="higher",
            ours=one,
            yardstick=Series(f"{peer}, recorded elsewhere", [float(rate)] * len(one.values)),
            target=target,
            note="recorded once on a machine like the floors'; compare only there",
        )
        for peer, (rate, target) in goals.PEERS[store].items()
    ]
    return rows


def _series(label: str, found: list[Drained]) -> Series:
    return Series(label, [each.per_second for each in found])
