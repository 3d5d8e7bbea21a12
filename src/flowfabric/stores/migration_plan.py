"""The effect of a migration, found out without migrating."""

from __future__ import annotations

import sqlite3
from typing import Any

from msgspec import Struct

from flowfabric.model.errors import Transport, TransportKind
from flowfabric.stores import migrate
from flowfabric.stores.kinds import kind_of, needed
from flowfabric.stores.postgres.address import bad_address
from flowfabric.stores.postgres.errors import cannot_open
from flowfabric.stores.sqlite.location import locate


class MigrationPlan(Struct, frozen=True):
    """Migrations as ``0001_engine``: those that a database has, and those that it lacks."""

    dialect: str
    applied: tuple[str, ...]
    pending: tuple[str, ...]
    #: The statements of those that it lacks.
    script: str


async def plan(url: str) -> MigrationPlan:
    """The plan for the database behind a URL. One that does not exist lacks everything; none is made."""
    dialect = kind_of(url)
    if dialect == "memory":
        return MigrationPlan(dialect, (), (), "")
    if dialect == "valkey":
        return await _valkey(url)
    applied = await _postgres(url) if dialect == "postgres" else _sqlite(url)
    missing = migrate.pending(dialect, applied)
    there = tuple(f"{each.version:04}_{each.name}" for each in migrate.migrations(dialect) if each.version in applied)
    return MigrationPlan(
        dialect,
        there,
        tuple(f"{each.version:04}_{each.name}" for each in missing),
        "\n".join(f"-- {each.version:04}_{each.name}\n{each.sql}" for each in missing),
    )


def _sqlite(url: str) -> dict[int, Any]:
    location = locate(url)
    if location.in_memory:
        return {}
    try:
        connection = sqlite3.connect(f"{location.uri}{'&' if '?' in location.uri else '?'}mode=ro", uri=True)
    except sqlite3.OperationalError:
        return {}
    try:
        return migrate.binding("sqlite", connection.execute(migrate.APPLIED).fetchall())
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return {}
        raise Transport("sqlite", TransportKind.OTHER, str(error)) from error
    except sqlite3.DatabaseError as error:
        raise Transport("sqlite", TransportKind.OTHER, f"{location.identity}: {error}") from error
    finally:
        connection.close()


async def _postgres(url: str) -> dict[int, Any]:
    with needed("postgres"):
        import asyncpg

    try:
        connection = await asyncpg.connect(url.replace("postgres://", "postgresql://", 1), timeout=30)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise cannot_open(error) from error
    except ValueError:
        raise bad_address() from None
    try:
        if await connection.fetchval("SELECT to_regclass('ff_migration_annotation')") is None:
            return {}
        return migrate.binding("postgres", await connection.fetch(migrate.APPLIED))
    except asyncpg.PostgresError as error:
        raise cannot_open(error) from error
    finally:
        await connection.close()


async def _valkey(url: str) -> MigrationPlan:
    """There is no schema; what may be missing is the beginning of a store, which says how it is laid out."""
    with needed("valkey"):
        from flowfabric.stores.valkey.layout import LAYOUT, is_begun

    layout = (f"{LAYOUT:04}_layout",)
    begun = await is_begun(url)
    return MigrationPlan("valkey", layout if begun else (), () if begun else layout, "")
