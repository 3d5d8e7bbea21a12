"""Storing many executions: ``create_executions`` a thousand at a time, against five hundred at a time by hand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from bench import goals
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database, SqliteDatabase
from bench.limits import postgres, sqlite, valkey
from bench.measure import Window, closed_loop
from bench.rows import Row, Series
from bench.shape import KIND, LANE, PAYLOAD
from bench.system import open_engine

CHUNK = 1_000
LIMIT_CHUNK = 500
_LIMITS = {
    "sqlite": f"INSERTs of {LIMIT_CHUNK}",
    "postgres": f"INSERTs of {LIMIT_CHUNK}",
    "valkey": f"calls of {LIMIT_CHUNK}",
}


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"bulk/{store}",
            f"bulk creation on {STORE_NAMES[store]}, {CHUNK:,} per call, against {_LIMITS[store]}",
            functools.partial(run, store),
        )
        for store in STORES
    ]


async def run(store: str, bench: Bench) -> list[Row]:
    """One caller, one chunk after the other."""
    ours, other = await bench.places.database(store), await bench.places.database(store)
    engine = await open_engine(ours.url)
    insert, close = await _limit(other)

    async def create(_: int) -> int:
        # The caller's items are part of what a call costs.
        items = [{"lane_id": LANE, "execution_kind": KIND, "input_payload": PAYLOAD} for _ in range(CHUNK)]
        return len(await engine.create_executions(items))

    async def window(work: Callable[[int], Awaitable[int]], database: Database) -> Window:
        await database.tidy()
        return await closed_loop(work, 1, bench.seconds, database.server)

    try:
        found = await bench.interleaved(
            {"engine": lambda: window(create, ours), "limit": lambda: window(insert, other)}
        )
    finally:
        await engine.close()
        await close()
    return [
        Row(
            case=f"bulk/{store}",
            label=f"{STORE_NAMES[store]}, bulk create",
            unit="executions/s",
            better="higher",
            ours=Series("engine", [each.per_second for each in found["engine"]]),
            yardstick=Series(_LIMITS[store], [each.per_second for each in found["limit"]]),
            target=goals.BULK[store],
            extra={
                "client µs": [each.client_us for each in found["engine"]],
                "client µs of the limit": [each.client_us for each in found["limit"]],
            },
        )
    ]


async def _limit(database: Database) -> tuple[Callable[[int], Awaitable[int]], Callable[[], Awaitable[None]]]:
    """Something that inserts, and something that ends it."""
    payloads = [PAYLOAD] * LIMIT_CHUNK
    if isinstance(database, SqliteDatabase):
        plain = sqlite.Statements(sqlite.connect(database.path))

        async def insert_sqlite(_: int) -> int:
            # As many rows per commit as in one call of the engine: the limit must not lose by waiting for the disk.
            plain.connection.execute("BEGIN IMMEDIATE")
            for _ in range(CHUNK // LIMIT_CHUNK):
                plain.create(payloads)
            plain.connection.execute("COMMIT")
            await asyncio.sleep(0)  # the clock of the window looks at the time
            return CHUNK

        async def close_sqlite() -> None:
            plain.connection.close()

        return insert_sqlite, close_sqlite
    statements = (
        await valkey.Statements.open(database.url, database.partition)
        if database.store == "valkey"
        else postgres.Statements(await postgres.connect(database.url), database.partition)
    )

    async def insert(_: int) -> int:
        await statements.create(payloads)
        return LIMIT_CHUNK

    return insert, statements.close
