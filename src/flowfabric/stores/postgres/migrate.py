"""Bringing a PostgreSQL schema up to date, safely when several processes start at once."""

from __future__ import annotations

from typing import Any

from flowfabric.model.partitions import PartitionCounts
from flowfabric.stores import migrate

#: The advisory lock that lets one process migrate while the others wait.
_LOCK = 0x666C6F77


async def apply_migrations(connection: Any, partitions: PartitionCounts | None = None) -> tuple[int, ...]:
    """Apply what is missing, all in one transaction; the versions applied. An empty database gets the partitions."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS ff_migration_annotation (version integer NOT NULL PRIMARY KEY, "
            "name text NOT NULL, applied_at_ms bigint NOT NULL, backward_compatible boolean NOT NULL, checksum text)"
        )
        rows = await connection.fetch("SELECT version, checksum FROM ff_migration_annotation")
        missing = migrate.pending("postgres", {row[0]: row[1] for row in rows})
        for migration in missing:
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO ff_migration_annotation VALUES "
                "($1, $2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, true, $3)",
                migration.version,
                migration.name,
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
    there = await connection.fetchval("SELECT to_regclass('ff_migration_annotation') IS NOT NULL")
    rows = await connection.fetch("SELECT version, checksum FROM ff_migration_annotation") if there else []
    migrate.refuse_pending("postgres", {row[0]: row[1] for row in rows})
