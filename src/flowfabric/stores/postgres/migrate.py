"""Bringing a PostgreSQL schema up to date, safely when several processes start at once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg

from flowfabric.model.partitions import PartitionCounts
from flowfabric.stores import migrate

_log = logging.getLogger("flowfabric.stores.postgres")

#: How long a migration waits for a table that others use, how long it steps aside then, and how often it tries.
LOCK_TIMEOUT_MS, LOCK_PAUSE_S, LOCK_TRIES = 5_000, 5.0, 30
#: The advisory lock that lets one process migrate while the others wait.
_LOCK = 0x666C6F77


async def apply_migrations(connection: Any, partitions: PartitionCounts | None = None) -> tuple[int, ...]:
    """Apply what is missing, all in one transaction; the versions applied. An empty database gets the partitions. One
    that lacks nothing is only read, which needs no rights beyond that."""
    if await _is_begun(connection) and not migrate.pending("postgres", await _applied(connection)):
        return ()
    for left in reversed(range(LOCK_TRIES)):
        try:
            return await _apply(connection, partitions)
        except asyncpg.LockNotAvailableError:
            # A wait for a table's lock keeps everybody else from the table: better to step aside.
            if not left:
                raise
            _log.info("a table that a migration changes is in use; retrying in %s s", LOCK_PAUSE_S)
        await asyncio.sleep(LOCK_PAUSE_S)
    raise AssertionError


async def _apply(connection: Any, partitions: PartitionCounts | None) -> tuple[int, ...]:
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS ff_migration_annotation (version integer NOT NULL PRIMARY KEY, "
            "name text NOT NULL, applied_at_ms bigint NOT NULL, backward_compatible boolean NOT NULL, checksum text)"
        )
        missing = migrate.pending("postgres", await _applied(connection))
        for migration in missing:
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO ff_migration_annotation VALUES "
                "($1, $2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $3, $4)",
                migration.version,
                migration.name,
                migration.backward_compatible,
                migration.checksum,
            )
            migrate.applied(migration)
        if partitions is not None and any(migration.version == 1 for migration in missing):
            await connection.execute(
                "UPDATE ff_partition_config SET num_flow_partitions = $1, num_budget_partitions = $2, "
                "num_quota_partitions = $3",
                partitions.flow,
                partitions.budget,
                partitions.quota,
            )
    return tuple(migration.version for migration in missing)


async def check_migrations(connection: Any) -> None:
    """Refuse a database whose tables are not those of this release."""
    applied = await _applied(connection) if await _is_begun(connection) else {}
    migrate.refuse_pending("postgres", applied)


async def _is_begun(connection: Any) -> bool:
    found: bool = await connection.fetchval("SELECT to_regclass('ff_migration_annotation') IS NOT NULL")
    return found


async def _applied(connection: Any) -> dict[int, str]:
    return migrate.binding("postgres", await connection.fetch(migrate.APPLIED))
