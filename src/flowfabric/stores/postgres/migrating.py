"""Bringing a PostgreSQL schema up to date, safely when several processes start at once."""

from __future__ import annotations

from typing import Any

from flowfabric.stores import migrate

#: The advisory lock that lets one process migrate while the others wait.
_LOCK = 0x666C6F77


async def apply_migrations(connection: Any) -> tuple[int, ...]:
    """Apply what is missing, all in one transaction; the versions applied."""
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
    return tuple(migration.version for migration in missing)
