"""Databases to measure on: the tables of our migrations, a past, and as much waiting work as a case wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from bench.limits import sqlite as sqlite_limit, valkey as valkey_limit
from bench.limits.batcher import MAX_BATCH
from bench.shape import LANE, NAMESPACE, NEW_COLUMNS, PAYLOAD, RAW_FIELDS, lifecycle, now_ms
from bench.stamps import Filler
from bench.system import EngineSystem, open_engine
from flowfabric.model.partitions import lane_partition
from flowfabric.stores.valkey.address import parse
from flowfabric.stores.valkey.connection import info_facts
from flowfabric.stores.valkey.errors import checked
from flowfabric.stores.valkey.keys import Keys

#: Finished executions in every database before anything is measured: a table that was never filled has no
#: statistics, and PostgreSQL would keep plans that suit an empty one.
HISTORY = 10_000
#: Executions one statement inserts while a backlog is filled, and those that a few commands to Valkey do.
FILL_CHUNK, VALKEY_FILL_CHUNK = 250_000, 1_000
#: The lane exists beforehand, as in any database that has seen work.
REGISTER_LANE = f"""
INSERT INTO ff_lane_registry (lane_id, registered_at_ms, registered_by, state)
VALUES ('{LANE}', 0, 'bench', 'active')
"""
#: Makes everything that waits look finished.
FINISH = """
UPDATE ff_exec_core SET lifecycle_phase = 'terminal', eligibility_state = 'not_applicable',
    public_state = 'completed', attempt_state = 'attempt_terminal', started_at_ms = created_at_ms + 1,
    terminal_at_ms = created_at_ms + 2, last_mutation_at_ms = created_at_ms + 2, total_attempt_count = 1,
    terminal_outcome = 'success', result = payload
WHERE claimable
"""
#: What else the finished ones would have left behind.
PAST = (
    """
    INSERT INTO ff_attempt (partition_key, execution_id, attempt_index, worker_id, lease_epoch, started_at_ms,
        terminal_at_ms, outcome, attempt_type)
    SELECT partition_key, execution_id, 0, 'bench', 1, started_at_ms, terminal_at_ms, 'success', 'initial'
    FROM ff_exec_core
    """,
    """
    INSERT INTO ff_lease_event (partition_key, execution_id, event_type, occurred_at_ms)
    SELECT partition_key, 'history', 'acquired', started_at_ms FROM ff_exec_core
    """,
    """
    INSERT INTO ff_completion_event (partition_key, execution_id, outcome, occurred_at_ms, dispatched_at_ms)
    SELECT partition_key, execution_id, 'success', terminal_at_ms, terminal_at_ms FROM ff_exec_core
    """,
)
SQLITE_FILL = f"""
WITH RECURSIVE numbers(n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM numbers WHERE n < :count - 1)
INSERT INTO ff_exec_core ({NEW_COLUMNS}, requirement_key)
SELECT 0, randomblob(16), '{LANE}', 0, 'submitted', 'unowned', 'eligible_now', 'waiting', 'pending', :priority,
    :first + n, 0, '{NAMESPACE}', :first + n, 0, 0, :payload, :raw,
    coalesce(json_extract(:required, '$[' || (n % max(json_array_length(:required), 1)) || ']'), '')
FROM numbers
"""
SQLITE_REQUIRE = """
INSERT OR IGNORE INTO ff_execution_capabilities (execution_id, capability)
SELECT execution_id, requirement_key FROM ff_exec_core WHERE claimable AND requirement_key <> ''
"""
POSTGRES_FILL = f"""
INSERT INTO ff_exec_core ({NEW_COLUMNS}, required_capabilities)
SELECT $1::smallint, gen_random_uuid(), '{LANE}', 0, 'submitted', 'unowned', 'eligible_now', 'waiting', 'pending',
    $2::integer, $3::bigint + n, 0, '{NAMESPACE}', $3::bigint + n, 0, 0, $4::bytea, $5::text::jsonb,
    array_remove(ARRAY[($6::text[])[1 + n % greatest(cardinality($6::text[]), 1)]], NULL)
FROM generate_series($7::bigint, $8::bigint) AS n
"""


class Database:
    """A database of one store."""

    store: str
    url: str
    #: The process whose processor time the database costs, if it is not ours.
    server: int | None = None
    partition: int = 0

    async def prepare(self) -> None:
        """Make what the store needs by opening the engine once, and give it a past."""
        raise NotImplementedError

    async def fill(self, count: int, *, required: Sequence[str] = (), priority: int = 0) -> None:
        """Add claimable executions, as if the engine had created them, one per millisecond until now.

        Each needs one of the required capabilities, taken in turn.
        """
        raise NotImplementedError

    async def finish_waiting(self) -> None:
        """Make everything that waits look finished."""
        raise NotImplementedError

    async def settle(self) -> None:
        """Bring statistics up to date after a fill."""

    async def tidy(self) -> None:
        """Remove what earlier repetitions left behind, so that the next one starts alike."""

    async def stop_tidying(self) -> None:
        """Let what was removed stay in the indexes until somebody tidies up."""


class SqlDatabase(Database):
    """Tables of our migrations."""

    async def prepare(self) -> None:
        async with await open_engine(self.url) as engine:
            self.partition = lane_partition(LANE, engine.partitions)
        await self.execute(REGISTER_LANE)
        await self.fill(HISTORY)
        await self.execute(FINISH, *PAST)
        await self.settle()

    async def execute(self, *statements: str) -> None:
        """Run plain statements in one transaction."""
        raise NotImplementedError

    async def finish_waiting(self) -> None:
        await self.execute(FINISH)


class SqliteDatabase(SqlDatabase):
    """A file with write-ahead log."""

    store = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def _run(self, *statements: tuple[str, dict[str, Any]]) -> None:
        with contextlib.closing(sqlite_limit.connect(self.path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement, values in statements:
                connection.execute(statement, values)
            connection.execute("COMMIT")
            with contextlib.suppress(sqlite3.OperationalError):  # a reader may be in the way, which does no harm
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    async def execute(self, *statements: str) -> None:
        await asyncio.to_thread(self._run, *((statement, {}) for statement in statements))

    async def fill(self, count: int, *, required: Sequence[str] = (), priority: int = 0) -> None:
        values = {
            "count": count,
            "first": now_ms() - count,
            "priority": priority,
            "payload": PAYLOAD,
            "raw": RAW_FIELDS,
            "required": json.dumps(list(required)),
        }
        statements: list[tuple[str, dict[str, Any]]] = [(SQLITE_FILL, values), (SQLITE_REQUIRE, {})]
        await asyncio.to_thread(self._run, *statements[: 2 if required else 1])

    async def analyze(self) -> None:
        """Gather statistics, as somebody with a shell might: by itself SQLite never does, so `settle` does not."""
        await self.execute("ANALYZE")


class PostgresDatabase(SqlDatabase):
    """A database on the durable server."""

    store = "postgres"

    def __init__(self, dsn: str, server: int, partition: int = 0) -> None:
        self.url = dsn
        self.server = server
        self.partition = partition

    async def _run(self, statement: str, *arguments: Any) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(statement, *arguments)
        finally:
            await connection.close()

    async def execute(self, *statements: str) -> None:
        while True:
            try:
                return await self._run(";".join(statements))
            except asyncpg.DeadlockDetectedError:
                continue  # an engine at work on the same rows; it has been let go by now

    async def fill(self, count: int, *, required: Sequence[str] = (), priority: int = 0) -> None:
        oldest = now_ms() - count
        for first in range(0, count, FILL_CHUNK):
            last = min(first + FILL_CHUNK, count) - 1
            values = (self.partition, priority, oldest, PAYLOAD, RAW_FIELDS, list(required), first, last)
            await self._run(POSTGRES_FILL, *values)

    async def settle(self) -> None:
        # Also what autovacuum would otherwise do in the middle of a window.
        await self._run("VACUUM (ANALYZE) ff_exec_core, ff_attempt, ff_lease_event, ff_completion_event")

    async def tidy(self) -> None:
        # The faster side leaves more dead rows; without this it would be slowed down for it.
        await self._run("VACUUM ff_exec_core, ff_attempt")

    async def stop_tidying(self) -> None:
        await self._run("ALTER TABLE ff_exec_core SET (autovacuum_enabled = off)")


class ValkeyDatabase(Database):
    """A server of its own: what it holds is in its memory, and can be told apart and given back."""

    store = "valkey"

    def __init__(self, url: str, server: int, partition: int = 0) -> None:
        self.url = url
        self.server = server
        self.partition = partition

    @contextlib.asynccontextmanager
    async def _statements(self) -> AsyncIterator[valkey_limit.Statements]:
        statements = await valkey_limit.Statements.open(self.url, self.partition)
        try:
            yield statements
        finally:
            await statements.close()

    async def prepare(self) -> None:
        async with await open_engine(self.url) as engine:
            self.partition = lane_partition(LANE, engine.partitions)
            await lifecycle(EngineSystem(engine))  # the lane is known now
        async with self._statements() as statements:
            for _ in range(0, HISTORY, MAX_BATCH):
                await statements.create([PAYLOAD] * MAX_BATCH)
            await statements.finish_waiting()

    async def fill(self, count: int, *, required: Sequence[str] = (), priority: int = 0) -> None:
        keys = Keys(parse(self.url).prefix)
        sets: list[tuple[str, ...]] = [(each,) for each in required] or [()]
        fillers = [Filler(keys, self.partition, priority, each) for each in sets]
        oldest = now_ms() - count
        async with self._statements() as statements:
            for number in range(len(fillers)):
                times = range(oldest + number, oldest + count, len(fillers))
                for first in range(0, len(times), VALKEY_FILL_CHUNK):
                    commands = fillers[number].commands(times[first : first + VALKEY_FILL_CHUNK], statements.version())
                    checked(await statements.wire.ask(*commands))

    async def finish_waiting(self) -> None:
        async with self._statements() as statements:
            await statements.finish_waiting()

    async def facts(self) -> dict[str, str]:
        """What the server tells of itself."""
        async with self._statements() as statements:
            return info_facts(*checked(await statements.wire.ask(("INFO",))))

    async def compact(self) -> None:
        """Rewrite the server's file, so that another server reads it sooner."""
        async with self._statements() as statements:
            checked(await statements.wire.ask(("BGREWRITEAOF",)))
        while (await self.facts())["aof_rewrite_in_progress"] != "0":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
