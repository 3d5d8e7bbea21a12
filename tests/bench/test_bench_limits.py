"""A limit is an honest yardstick only while it writes what the engine writes."""

import json
import re
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from bench.databases import PostgresDatabase, SqliteDatabase, ValkeyDatabase
from bench.limits import postgres, sqlite, valkey
from bench.shape import LANE, System, lifecycle, now_ms
from bench.stamps import TIME, time_bytes
from bench.system import POLICY, EngineSystem, open_engine
from flowfabric.engine import Engine
from flowfabric.model.partitions import lane_partition
from flowfabric.model.records.executions import Attempt, Execution, Lane
from flowfabric.stores.valkey.address import parse
from flowfabric.stores.valkey.codec import VERSION, shape_of
from flowfabric.stores.valkey.errors import checked
from flowfabric.stores.valkey.keys import Keys
from tests.conftest import ExternalValkey, valkey_place
from tests.servers import Valkey

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


# --------------------------------------------------------------------------------------------------------------- Valkey

#: How the server tells what is under a key, by its type.
READS: dict[bytes, tuple[str, tuple[str, ...]]] = {
    b"hash": ("HGETALL", ()),
    b"zset": ("ZRANGE", ("0", "-1")),
    b"stream": ("XRANGE", ("-", "+")),
    b"set": ("SMEMBERS", ()),
}


class Places:
    """Two places on one server, alike to the last byte but for ids and times: for the engine, and for somebody else."""

    def __init__(self, ours: str, other: str, engine: Engine) -> None:
        self.ours, self.other, self.engine = ours, other, EngineSystem(engine)
        self.partition = lane_partition(LANE, engine.partitions)

    async def compare(self) -> None:
        """What is in both."""
        ours, other = await contents(self.ours), await contents(self.other)
        assert ours.keys() == other.keys()
        for key, found in ours.items():
            assert other[key] == found, key


@pytest.fixture
async def places(valkey_server: Valkey | ExternalValkey) -> AsyncIterator[Places]:
    with valkey_place(valkey_server.url) as ours, valkey_place(valkey_server.url) as other:
        async with await open_engine(ours) as engine, await open_engine(other) as second:
            for each in (engine, second):  # the lane is known afterwards
                await lifecycle(EngineSystem(each))
            yield Places(ours, other, engine)


async def contents(url: str) -> dict[bytes, list[bytes]]:
    """Everything in a place by its key, without what differs between any two lifecycles: ids, versions and times."""
    prefix = parse(url).prefix
    keys, wire = Keys(prefix), await valkey.connect(url)
    try:
        found: dict[bytes, Any] = {}
        (names,) = checked(await wire.ask(("KEYS", keys.every())))
        for name in names:
            (kind,) = checked(await wire.ask(("TYPE", name)))
            command, rest = READS[kind]
            (found[name],) = checked(await wire.ask((command, name, *rest)))
    finally:
        wire.abort()
        await wire.closed
    ids = list(identities(keys, found))
    times = re.escape(time_bytes(now_ms())[:3]) + b".{%d}" % (TIME - 3)
    differing = re.compile(b"|".join([*map(re.escape, ids), times]), re.DOTALL)
    return {
        name.replace(prefix.encode(), b"<prefix>"): sorted(differing.sub(b"<>", each) for each in texts(value))
        for name, value in found.items()
    }


def identities(keys: Keys, found: Mapping[bytes, Any]) -> Iterator[bytes]:
    for kind in (Execution, Attempt, Lane):
        shape, rows = shape_of(kind), found[keys.rows(kind)]
        for field, value in zip(rows[::2], rows[1::2], strict=True):
            yield value[:VERSION]
            record = shape.unpacked(shape.key(field), value)
            if kind is not Lane:
                yield from (record.uuid.encode(), uuid.UUID(record.uuid).bytes)
            if kind is Attempt:
                yield from (record.attempt_id.encode(), record.lease_id.encode())
    facts = found[keys.meta]
    yield facts[facts.index(b"id") + 1]


def texts(value: Any) -> Iterator[bytes]:
    """Members and values; fields of hashes stand among them."""
    for each in value:
        if isinstance(each, list):
            yield b" ".join(texts(each))
        else:
            yield each


async def test_valkey_keeps_the_same(places: Places) -> None:
    limit = await valkey.Coalesced.open(places.other, places.partition)

    async def claimed() -> tuple[Any, Any]:
        for system in (places.engine, limit):
            await system.create()
        await places.compare()
        found = await places.engine.claim(), await limit.claim()
        await places.compare()
        return found

    try:
        ours, other = await claimed()
        await places.engine.complete(ours)
        await limit.complete(other)
        await places.compare()
        ours, other = await claimed()
        for _ in range(2):  # the second time from another value
            await places.engine.engine.renew(ours)
            await limit.renew(other)
            await places.compare()
    finally:
        await limit.close()


async def test_a_backlog_on_valkey_is_what_the_engine_creates(places: Places) -> None:
    database = ValkeyDatabase(places.other, 0, places.partition)
    await places.engine.create()
    await database.fill(1)
    await places.compare()
    for _ in range(2):
        await database.fill(3, required=["gpu", "tpu"], priority=5)
    async with await open_engine(places.other) as engine:
        assert len(await engine.claim_many(LANE, ["gpu"], POLICY, 10)) == 5
        assert len(await engine.claim_many(LANE, ["tpu"], POLICY, 10)) == 2
        await database.fill(2)
        (first, second) = await engine.claim_many(LANE, [], POLICY, 10)
        await engine.complete(first)
        await engine.complete(second)
        await database.fill(300)
        await database.finish_waiting()
        assert await engine.claim_many(LANE, [], POLICY, 1) == []
