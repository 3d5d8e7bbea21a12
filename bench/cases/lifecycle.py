"""Create, claim, complete: by 1 to 256 callers at once, against the limits."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from bench import goals
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database, SqliteDatabase
from bench.limits import postgres, sqlite
from bench.measure import Window, closed_loop
from bench.rows import Row, Series
from bench.shape import System, lifecycle
from bench.system import EngineSystem, open_engine

CALLERS = (1, 16, 64, 256)
#: With this many callers the limit without callers is shown too: what batching by hand would bring.
_WITH_BATCH_LIMIT = 256


def cases() -> list[Case]:
    """One per store and number of callers."""
    return [
        Case(
            f"lifecycle/{store}/{callers}",
            f"lifecycles of {_callers(callers)} on {STORE_NAMES[store]}, against {_limit_name(store, callers)}",
            functools.partial(run, store, callers),
            windows=3 if callers == _WITH_BATCH_LIMIT else 2,
        )
        for store in STORES
        for callers in CALLERS
    ]


def _callers(count: int) -> str:
    return "1 caller" if count == 1 else f"{count} callers"


def _limit_name(store: str, callers: int) -> str:
    if store == "sqlite":
        return "group-commit limit"
    return "one statement per operation" if callers == 1 else "coalesced limit"


async def open_limit(database: Database, callers: int) -> System:
    """The limit that fits the number of callers."""
    if isinstance(database, SqliteDatabase):
        return sqlite.GroupCommit(database.path)
    if callers == 1:
        return await postgres.OneByOne.open(database.url, database.partition)
    return await postgres.Coalesced.open(database.url, database.partition)


async def open_batches(database: Database) -> sqlite.Batches | postgres.Batches:
    """The limit without callers."""
    if isinstance(database, SqliteDatabase):
        return sqlite.Batches(database.path)
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
    return [_row(store, callers, found)]


async def _window(bench: Bench, database: Database, system: System, callers: int) -> Window:
    await database.tidy()
    return await closed_loop(lambda _: lifecycle(system), callers, bench.seconds, database.server)


async def _batch_window(bench: Bench, database: Database, batches: sqlite.Batches | postgres.Batches) -> Window:
    await database.tidy()
    runners = 1 if database.store == "sqlite" else postgres.CONNECTIONS
    return await closed_loop(batches.lifecycles, runners, bench.seconds, database.server)


def _row(store: str, callers: int, found: dict[str, list[Window]]) -> Row:
    ours, limit = found["engine"], found["limit"]
    extra = {
        "client µs": [window.client_us for window in ours],
        "client µs of the limit": [window.client_us for window in limit],
    }
    if store == "postgres":
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
