"""Worker processes that drain a backlog: how fast one is, and what a second one adds."""

from __future__ import annotations

import asyncio
import functools

from msgspec import Struct

from bench import goals
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database
from bench.processes import Worker
from bench.rows import Row, Series

#: Executions per process and second of a window: more than a process drains on the machines we know.
PER_SECOND = 12_000


class Drained(Struct):
    """What some workers did in one window."""

    per_second: float
    client_us: float


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"drain/{store}",
            f"two worker processes that drain a backlog on {STORE_NAMES[store]}, against one; and one against peers",
            functools.partial(run, store),
        )
        for store in STORES
    ]


async def run(store: str, bench: Bench) -> list[Row]:
    """The same two processes, used one at a time or both."""
    database = await bench.places.database(store)
    workers = [await Worker.start("drain", database.url) for _ in range(2)]
    try:
        for worker in workers:
            await window(database, [worker], 0.3)  # connections, plans and caches
        found = await bench.interleaved(
            {
                "one process": lambda: window(database, workers[:1], bench.seconds),
                "two processes": lambda: window(database, workers, bench.seconds),
            }
        )
    finally:
        for worker in workers:
            await worker.close()
    one, two = found["one process"], found["two processes"]
    rows = [
        Row(
            case=f"drain/{store}",
            label=f"{STORE_NAMES[store]}, two processes drain",
            unit="executions/s",
            better="higher",
            ours=Series("two processes", [each.per_second for each in two]),
            yardstick=Series("one process", [each.per_second for each in one]),
            target=goals.TWO_PROCESSES if store == "postgres" else None,
            extra={"client µs": [each.client_us for each in two], "client µs of one": [each.client_us for each in one]},
        )
    ]
    rows += [
        Row(
            case=f"drain/{store}",
            label=f"{STORE_NAMES[store]}, one process drains, against {peer}",
            unit="executions/s",
            better="higher",
            ours=Series("one process", [each.per_second for each in one]),
            yardstick=Series(f"{peer}, recorded elsewhere", [float(rate)] * len(one)),
            target=target,
            note="recorded once on a machine like the floors'; compare only there",
        )
        for peer, (rate, target) in goals.PEERS[store].items()
    ]
    return rows


async def window(database: Database, workers: list[Worker], seconds: float) -> Drained:
    """Fill, let the workers drain for so long, and add up what they say."""
    await database.finish_waiting()
    await database.fill(int(PER_SECOND * seconds * len(workers)))
    await database.tidy()
    found = await asyncio.gather(*(worker.ask(seconds) for worker in workers))
    done = sum(each["done"] for each in found)
    return Drained(
        per_second=sum(each["done"] / each["seconds"] for each in found),
        client_us=sum(each["cpu"] for each in found) / max(done, 1) * 1e6,
    )
