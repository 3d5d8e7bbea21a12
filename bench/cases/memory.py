"""What a process grows by: while commands queue, and by what the database holds (which should be nothing)."""

from __future__ import annotations

import functools
from typing import Any

from bench.cases.backlog import sizes
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database, ValkeyDatabase
from bench.processes import Worker
from bench.rows import Row, Series
from bench.shape import PAYLOAD

COMMANDS = 10_000
CREATES = 100_000
_QUICK_CREATES = 10_000
#: Executions that a Valkey server is given, to see what it takes for each.
KEPT, _QUICK_KEPT = 100_000, 10_000


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"memory/{store}",
            f"memory of a process on {STORE_NAMES[store]}: {COMMANDS:,} queued commands, and up to a million stored",
            functools.partial(run, store),
            windows=0,
        )
        for store in STORES
    ]


async def run(store: str, bench: Bench) -> list[Row]:
    """Each in a process of its own, once: memory hardly depends on what else the machine does."""
    creates = _QUICK_CREATES if bench.quick else CREATES
    small, _, large = sizes(bench)
    bench.say("queueing")
    busy = await _measure(await bench.places.database(store), COMMANDS, creates)
    few = await _measure(await bench.backlog(store, small))
    much = await _measure(await bench.backlog(store, large))
    name = STORE_NAMES[store]
    note = "its page cache may take up to 64 MiB" if store == "sqlite" else ""

    def row(label: str, value: float, **more: Any) -> Row:
        return Row(
            case=f"memory/{store}",
            label=f"{name}, {label}",
            unit="MiB",
            better="lower",
            ours=Series("engine", [value]),
            **more,
        )

    rows = [
        row(f"growth while {COMMANDS:,} commands are queued", busy["queued"]),
        row("growth by queueing them twice more", busy["queued again"], note=note),
        row(f"growth by {creates:,} executions created", busy["stored"], note=note),
        row(
            f"growth by work on {large:,} stored",
            much["worked"],
            extra={f"by the same work on {small:,}": [few["worked"]], "whole process": [much["resident"]]},
            note=note,
        ),
    ]
    database = await bench.places.database(store)
    if isinstance(database, ValkeyDatabase):
        bench.say("server")
        rows += await _kept(database, _QUICK_KEPT if bench.quick else KEPT)
    return rows


async def _kept(database: ValkeyDatabase, count: int) -> list[Row]:
    """What the server takes for an execution that waits, and for the same one when it has ended."""
    before = await database.facts()
    await database.fill(count)
    waiting = await database.facts()
    await database.finish_waiting()
    ended = await database.facts()

    def row(label: str, facts: dict[str, str]) -> Row:
        def each(name: str) -> float:
            return (int(facts[name]) - int(before[name])) / count

        return Row(
            case="memory/valkey",
            label=f"Valkey, memory of the server for each execution that {label}",
            unit="bytes",
            better="lower",
            ours=Series("used_memory", [each("used_memory")]),
            extra={"of the process": [each("used_memory_rss")], "of the log": [each("aof_current_size")]},
            note=f"of {count:,}, payload of {len(PAYLOAD)}",
        )

    return [row("waits", waiting), row("has ended", ended)]


async def _measure(database: Database, commands: int = 0, creates: int = 0) -> dict[str, float]:
    worker = await Worker.start("memory", database.url, str(commands), str(creates))
    try:
        found: dict[str, float] = await worker.hear()
    finally:
        await worker.close()
    return found
