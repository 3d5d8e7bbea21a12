"""Bringing a PostgreSQL schema up to date, safely when several processes start at once.

Each file is a transaction of its own, so that no lock is held for longer than one of them takes and a start that is
interrupted goes on where it was. Indexes of large tables are built without keeping anybody from writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from flowfabric.model.partitions import PartitionCounts
from flowfabric.stores import migrate
from flowfabric.stores.migrate import Migration
from flowfabric.stores.postgres.connect import DRIVER_ERRORS

_log = logging.getLogger("flowfabric.stores.postgres")

#: How long a migration waits for a table that others use, how long it steps aside then, and how often it tries.
LOCK_TIMEOUT_MS, LOCK_PAUSE_S, LOCK_TRIES = 5_000, 5.0, 30
#: The advisory lock that lets one process migrate while the others look every so often whether it has finished. They
#: do not wait inside a statement: an index that is built beside writers waits for every statement that began before.
_LOCK, TURN_PAUSE_S = 0x666C6F77, 0.2
#: What ends a try and nothing else.
_IN_THE_WAY = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
_BEGIN = (
    "CREATE TABLE IF NOT EXISTS ff_migration_annotation (version integer NOT NULL PRIMARY KEY, "
    "name text NOT NULL, applied_at_ms bigint NOT NULL, backward_compatible boolean NOT NULL, checksum text)"
)
#: Whether an index is there, and whether building it came to an end.
_INDEX = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)"


async def apply_migrations(connection: Any, partitions: PartitionCounts | None = None) -> tuple[int, ...]:
    """Apply what is missing, file by file; the versions applied. An empty database gets the partitions. One that lacks
    nothing is only read, which needs no rights beyond that."""
    if await _is_begun(connection) and not migrate.pending("postgres", await _applied(connection)):
        return ()
    async with _own_turn(connection):
        if not await _is_begun(connection):
            await connection.execute(_BEGIN)
        missing = migrate.pending("postgres", await _applied(connection))
        for migration in missing:
            await _patiently(connection, migration, partitions)
            migrate.applied(migration)
    return tuple(migration.version for migration in missing)


@contextlib.asynccontextmanager
async def _own_turn(connection: Any) -> AsyncIterator[None]:
    """Nobody else migrates meanwhile. If this process dies, its connection does, and the next one goes on."""
    while True:
        if await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
            break
        await asyncio.sleep(TURN_PAUSE_S)
    try:
        yield
    finally:
        with contextlib.suppress(*DRIVER_ERRORS):
            await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)


async def _patiently(connection: Any, migration: Migration, partitions: PartitionCounts | None) -> None:
    for left in reversed(range(LOCK_TRIES)):
        try:
            if migration.concurrent:
                await _beside_writers(connection, migration)
            else:
                await _at_once(connection, migration, partitions)
        except _IN_THE_WAY:
            # A wait for a table's lock keeps everybody else from the table: better to step aside.
            if not left:
                raise
            _log.info("a table that a migration changes is in use; retrying in %s s", LOCK_PAUSE_S)
        else:
            return
        await asyncio.sleep(LOCK_PAUSE_S)


async def _at_once(connection: Any, migration: Migration, partitions: PartitionCounts | None) -> None:
    """One file, in a transaction."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
        await connection.execute(migration.sql)
        if partitions is not None and migration.version == 1:
            await connection.execute(
                "UPDATE ff_partition_config SET num_flow_partitions = $1, num_budget_partitions = $2, "
                "num_quota_partitions = $3",
                partitions.flow,
                partitions.budget,
                partitions.quota,
            )
        await _note(connection, migration)


async def _beside_writers(connection: Any, migration: Migration) -> None:
    """A file of indexes, which no transaction may hold, statement by statement. What an interrupted try has left is
    made again, and what it has finished stays."""
    await connection.execute("SET lock_timeout = 0")
    for index in migration.indexes():
        finished = await connection.fetchval(_INDEX, index.name)
        if finished is False:
            await connection.execute(f"DROP INDEX CONCURRENTLY {index.name}")
        if not (finished and index.made):
            await connection.execute(index.statement)
    await _note(connection, migration)


async def _note(connection: Any, migration: Migration) -> None:
    await connection.execute(
        "INSERT INTO ff_migration_annotation VALUES "
        "($1, $2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $3, $4)",
        migration.version,
        migration.name,
        migration.backward_compatible,
        migration.checksum,
    )


async def check_migrations(connection: Any) -> None:
    """Refuse a database whose tables are not those of this release."""
    applied = await _applied(connection) if await _is_begun(connection) else {}
    migrate.refuse_pending("postgres", applied)


async def _is_begun(connection: Any) -> bool:
    found: bool = await connection.fetchval("SELECT to_regclass('ff_migration_annotation') IS NOT NULL")
    return found


async def _applied(connection: Any) -> dict[int, str]:
    return migrate.binding("postgres", await connection.fetch(migrate.APPLIED))
