"""Create, claim, complete: by 1 to 256 callers at once, against the limits."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from bench import goals
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database, SqliteDatabase
from bench.limits import postgres, sqlite, valkey
from bench.measure import Window, closed_loop
from bench.rows import Row, Series
from bench.shape import System, lifecycle
from bench.system import EngineSystem, open_engine

CALLERS = (1, 16, 64, 256)
#: With this many callers the limit without callers is shown too: what batching by hand would bring.
_WITH_BATCH_LIMIT = 256


def cases() -> list[Case]:
    """One per store and number of callers, and one for the middle way that Valkey knows."""
    found = [
        Case(
            f"lifecycle/{store}/{callers}",
            f"lifecycles of {_callers(callers)} on {STORE_NAMES[store]}, against {_limit_name(store, callers)}",
            functools.partial(run, store, callers),
            windows=3 if callers == _WITH_BATCH_LIMIT else 2,
        )
        for store in STORES
        for callers in CALLERS
    ]
    about = "lifecycles of 256 callers on Valkey, forced to the disk every second, against before every answer"
    return [*found, Case("everysec/valkey", about, everysec)]


def _callers(count: int) -> str:
    return "1 caller" if count == 1 else f"{count} callers"


def _limit_name(store: str, callers: int) -> str:
    if store == "sqlite":
        return "group-commit limit"
    if callers > 1:
        return "coalesced limit"
    return "one function call per operation" if store == "valkey" else "one statement per operation"


async def open_limit(database: Database, callers: int) -> System:
    """The limit that fits the number of callers."""
    if isinstance(database, SqliteDatabase):
        return sqlite.GroupCommit(database.path)
    limits: Any = valkey if database.store == "valkey" else postgres
    kind = limits.OneByOne if callers == 1 else limits.Coalesced
    opened: System = await kind.open(database.url, database.partition)
    return opened


Batches = sqlite.Batches | postgres.Batches | valkey.Batches


async def open_batches(database: Database) -> Batches:
    """The limit without callers."""
    if isinstance(database, SqliteDatabase):
        return sqlite.Batches(database.path)
    if database.store == "valkey":
        return await valkey.Batches.open(database.url, database.partition)
    return await postgres.Batches.open(database.url, database.partition)


async def run(store: str, callers: int, bench: Bench) -> list[Row]:
    """Ours and the limit in turns, each in its own database."""
    ours, other = await bench.places.database(store), await bench.places.database(store)
    system = EngineSystem(await open_engine(ours.url))
    limit = await open_limit(other, callers)
    batches = await open_batches(other) if callers == _WITH_BATCH_LIMIT else None
    sides: dict[str, Callable[[], Awaitable[Window]]] = {
        "engine": functools.partial(_window, bench, ours, system, callers),
        "limit": functools.partial(_window, bench, other, limit, callers),
    }
    if batches is not None:
        sides["batches"] = functools.partial(_batch_window, bench, other, batches)
    try:
        found = await bench.interleaved(sides)
    finally:
        await system.close()
        await limit.close()
        if batches is not None:
            await batches.close()
    rows = [_row(store, callers, found)]
    if store == "valkey" and callers == _WITH_BATCH_LIMIT:
        rows += _costs(store, callers, found)
    return rows


async def everysec(bench: Bench) -> list[Row]:
    """Each with a server of its own."""
    soon = await bench.places.valkey_database("--appendfsync", "everysec")
    always = await bench.places.valkey_database()
    ours = EngineSystem(await open_engine(f"{soon.url}?durability=relaxed"))
    other = EngineSystem(await open_engine(always.url))
    try:
        found = await bench.interleaved(
            {
                "everysec": functools.partial(_window, bench, soon, ours, 256),
                "always": functools.partial(_window, bench, always, other, 256),
            }
        )
    finally:
        await ours.close()
        await other.close()
    return [
        Row(
            case="everysec/valkey",
            label="Valkey, 256 callers, on disk within a second",
            unit="lifecycles/s",
            better="higher",
            ours=Series("everysec", [window.per_second for window in found["everysec"]]),
            yardstick=Series("always", [window.per_second for window in found["always"]]),
            target=goals.VALKEY_EVERYSEC,
            extra={
                "client µs": [window.client_us for window in found["everysec"]],
                "database µs": [window.database_us or 0.0 for window in found["everysec"]],
            },
        )
    ]


async def _window(bench: Bench, database: Database, system: System, callers: int) -> Window:
    await database.tidy()
    return await closed_loop(lambda _: lifecycle(system), callers, bench.seconds, database.server)


async def _batch_window(bench: Bench, database: Database, batches: Batches) -> Window:
    await database.tidy()
    runners = 1 if database.store == "sqlite" else postgres.CONNECTIONS
    return await closed_loop(batches.lifecycles, runners, bench.seconds, database.server)


def _row(store: str, callers: int, found: dict[str, list[Window]]) -> Row:
    ours, limit = found["engine"], found["limit"]
    extra = {
        "client µs": [window.client_us for window in ours],
        "client µs of the limit": [window.client_us for window in limit],
    }
    if ours[0].database_us is not None:
        extra["database µs"] = [window.database_us or 0.0 for window in ours]
        extra["database µs of the limit"] = [window.database_us or 0.0 for window in limit]
    if "batches" in found:
        extra["batch limit per second"] = [window.per_second for window in found["batches"]]
    return Row(
        case=f"lifecycle/{store}/{callers}",
        label=f"{STORE_NAMES[store]}, {_callers(callers)}",
        unit="lifecycles/s",
        better="higher",
        ours=Series("engine", [window.per_second for window in ours]),
        yardstick=Series(_limit_name(store, callers), [window.per_second for window in limit]),
        target=goals.LIFECYCLE.get((store, callers)),
        extra=extra,
    )


def _costs(store: str, callers: int, found: dict[str, list[Window]]) -> list[Row]:
    """Processor time by itself, where it has a goal of its own: one thread of the server works for everybody."""

    def row(who: str, series: Callable[[Window], float]) -> Row:
        return Row(
            case=f"lifecycle/{store}/{callers}",
            label=f"{STORE_NAMES[store]}, {_callers(callers)}, processor time of the {who}",
            unit="µs per lifecycle",
            better="lower",
            ours=Series("engine", [series(window) for window in found["engine"]]),
            yardstick=Series(_limit_name(store, callers), [series(window) for window in found["limit"]]),
            target=goals.VALKEY_LIFECYCLE_US[who],
        )

    return [row("client", lambda window: window.client_us), row("server", lambda window: window.database_us or 0.0)]
