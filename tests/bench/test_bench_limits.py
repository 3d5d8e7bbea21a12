"""A limit is an honest yardstick only while it writes what the engine writes."""

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg

from bench.databases import PostgresDatabase, SqliteDatabase
from bench.limits import postgres, sqlite
from bench.shape import LANE, System, lifecycle
from bench.system import EngineSystem, open_engine

TABLES = ("ff_exec_core", "ff_attempt", "ff_lease_event", "ff_completion_event")
#: Order of the two lifecycles: the first is the engine's.
ORDERS = {"ff_exec_core": "created_at_ms, terminal_at_ms", "ff_attempt": "started_at_ms", "ff_lease_event": "event_id"}


def plain(row: Mapping[str, Any], identity: str) -> dict[str, object]:
    """A row without what differs between any two lifecycles: ids and times. What is empty stays empty."""
    found: dict[str, object] = {}
    for name, value in row.items():
        if value is None:
            found[name] = None
        elif name.endswith("_ms"):
            found[name] = "time"
        elif name in ("event_id", "execution_id", "attempt_id") or (name == "lease_id" and len(str(value)) == 36):
            found[name] = type(value).__name__
        elif name == "raw_fields":
            found[name] = json.loads(value)
        elif isinstance(value, str):
            found[name] = value.replace(identity, "<id>")
        else:
            found[name] = value
    return found


def compare(tables: dict[str, list[tuple[str, Mapping[str, Any]]]]) -> None:
    """The rows of the engine's lifecycle equal those of the limit's."""
    for table, rows in tables.items():
        ids = list(dict.fromkeys(identity for identity, _ in rows))
        assert len(ids) == 2, table
        engine, limit = ([plain(row, each) for identity, row in rows if identity == each] for each in ids)
        assert engine == limit, table


async def lifecycles(*systems: System) -> None:
    for system in systems:
        assert await lifecycle(system) == 1
        await system.close()


async def test_sqlite_rows_are_the_same(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "rows.sqlite")
    engine = EngineSystem(await open_engine(database.url))
    await engine.engine.create_execution(lane_id=LANE)
    await engine.claim()  # out of the way: the lane is registered now
    connection = sqlite3.connect(database.path)
    for table in TABLES:
        connection.execute(f"DELETE FROM {table}")
    connection.commit()
    await lifecycles(engine, sqlite.GroupCommit(database.path))
    connection.row_factory = sqlite3.Row
    tables: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for table in TABLES:
        rows = [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]
        tables[table] = [(_identity(row["execution_id"]), row) for row in rows]
    connection.close()
    compare(tables)


async def test_postgres_rows_are_the_same(postgres_dsn: str) -> None:
    database = PostgresDatabase(postgres_dsn, 0)
    await database.prepare()
    await database.execute(f"TRUNCATE {', '.join(TABLES)}")
    engine = EngineSystem(await open_engine(database.url))
    await lifecycles(engine, await postgres.Coalesced.open(database.url, database.partition))
    connection = await asyncpg.connect(postgres_dsn)
    tables: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for table in TABLES:
        order = ORDERS.get(table, "event_id")
        rows = [dict(row) for row in await connection.fetch(f"SELECT * FROM {table} ORDER BY {order}")]
        tables[table] = [(_identity(row["execution_id"]), row) for row in rows]
    await connection.close()
    compare(tables)


def _identity(value: object) -> str:
    if isinstance(value, bytes):
        digits = value.hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return str(value)
