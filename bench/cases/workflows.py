"""The SDK's worker draining workflows of one and of ten steps: one process, two, against peers; what a step costs."""

from __future__ import annotations

import asyncio
import functools

from bench import goals
from bench.cases.drain import Drained
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database
from bench.processes import Worker
from bench.rows import Row, Series

STEPS = (1, 10)
#: Executions per process and second of a window: more than a process drains on the machines we know.
PER_SECOND = {1: 6_000, 10: 1_500}
COUNT_S = 0.5


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"workflows/{store}",
            f"SDK workers that drain workflows of 1 and of 10 steps on {STORE_NAMES[store]}: one, two, against peers",
            functools.partial(run, store),
            windows=4,
        )
        for store in STORES
    ]


async def run(store: str, bench: Bench) -> list[Row]:
    """The same two processes, used one at a time or both."""
    database = await bench.places.database(store)
    workers = [await Worker.start("workflows", database.url) for _ in range(2)]
    try:
        for worker in workers:
            for steps in STEPS:
                await _window(database, [worker], steps, 0.3)  # connections, plans and caches
        found = await bench.interleaved(
            {
                (steps, count): functools.partial(_window, database, workers[:count], steps, bench.seconds)
                for steps in STEPS
                for count in (1, 2)
            }
        )
        await _fill(database, 10, COUNT_S, 1)
        counted = await workers[0].ask({"steps": 10, "seconds": COUNT_S, "count": True})
    finally:
        for worker in workers:
            await worker.close()
    rows = [row for steps in STEPS for row in _drained(store, steps, found[steps, 1], found[steps, 2])]
    for number, name in enumerate(("one process", "two processes")):
        rows += _against_peers(store, name, number, found[1, number + 1])
    rows.append(
        Row(
            case=f"workflows/{store}",
            label=f"{STORE_NAMES[store]}, commits for each remembered step",
            unit="commits",
            better="lower",
            ours=Series("one process", [counted["commits"] / counted["steps"]]),
            target=goals.COMMITS_PER_STEP,
            extra={"rows for each step": [counted["steps"] / max(counted["done"] * 10, 1)]},
        )
    )
    return rows


def _drained(store: str, steps: int, one: list[Drained], two: list[Drained]) -> list[Row]:
    return [
        Row(
            case=f"workflows/{store}",
            label=f"{STORE_NAMES[store]}, two processes drain workflows of {steps} step{'s' * (steps > 1)}",
            unit="workflows/s",
            better="higher",
            ours=_series("two processes", two),
            yardstick=_series("one process", one),
            extra={"client µs": [each.client_us for each in two], "client µs of one": [each.client_us for each in one]},
        )
    ]


def _against_peers(store: str, name: str, number: int, found: list[Drained]) -> list[Row]:
    return [
        Row(
            case=f"workflows/{store}",
            label=f"{STORE_NAMES[store]}, {name}, workflows of 1 step, against {peer}",
            unit="workflows/s",
            better="higher",
            ours=_series(name, found),
            yardstick=Series(f"{peer}, recorded elsewhere", [float(rates[number])] * len(found)),
            target=target,
            note="recorded once on a machine like the floors'; compare only there",
        )
        for peer, (rates, target) in goals.WORKFLOW_PEERS[store].items()
    ]


async def _fill(database: Database, steps: int, seconds: float, workers: int) -> None:
    await database.finish_waiting()
    await database.fill(int(PER_SECOND[steps] * seconds * workers))
    await database.tidy()


async def _window(database: Database, workers: list[Worker], steps: int, seconds: float) -> Drained:
    await _fill(database, steps, seconds, len(workers))
    found = await asyncio.gather(*(worker.ask({"steps": steps, "seconds": seconds}) for worker in workers))
    done = sum(each["done"] for each in found)
    return Drained(
        per_second=sum(each["done"] / each["seconds"] for each in found),
        client_us=sum(each["cpu"] for each in found) / max(done, 1) * 1e6,
    )


def _series(label: str, found: list[Drained]) -> Series:
    return Series(label, [each.per_second for each in found])
