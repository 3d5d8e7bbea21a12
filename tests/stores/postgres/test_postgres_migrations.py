"""Each migration is a transaction of its own, and indexes can be made while others write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Engine
from flowfabric.stores import migrate
from flowfabric.stores.postgres import migrate as postgres_migrate

TABLE = "CREATE TABLE later (id integer)"
INDEX = "-- concurrently\n\n-- For lookups.\nCREATE INDEX CONCURRENTLY later_idx ON later (id);\n"
Later = Callable[..., list[int]]


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Any]:
    async with await Engine.open(postgres_dsn):
        pass
    async with opened(postgres_dsn) as found:
        yield found


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Any]:
    found = await asyncpg.connect(dsn)
    try:
        yield found
    finally:
        await found.close()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Adds files of a later release, and returns their versions."""
    known = migrate.migrations("postgres")

    def add(*texts: str) -> list[int]:
        files = [migrate.Migration(9_900 + place, "later", text) for place, text in enumerate(texts)]
        monkeypatch.setattr(migrate, "migrations", lambda dialect: (*known, *files))
        return [each.version for each in files]

    return add


async def is_there(connection: Any, name: str) -> bool:
    return bool(await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", name))


async def is_valid(connection: Any, name: str) -> Any:
    return await connection.fetchval("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", name)


async def test_what_went_well_stays_when_a_later_file_fails(connection: Any, later: Later) -> None:
    first, second, third = later(TABLE, "ALTER TABLE nowhere ADD COLUMN x integer", "CREATE TABLE last (id integer)")
    with pytest.raises(asyncpg.UndefinedTableError):
        await postgres_migrate.apply_migrations(connection)
    assert await is_there(connection, "later")
    assert not await is_there(connection, "last")
    applied = {version for version, *_ in await connection.fetch(migrate.APPLIED)}
    assert (first in applied, second in applied, third in applied) == (True, False, False)
    assert later(TABLE, "SELECT 1", "CREATE TABLE last (id integer)") == [first, second, third]
    assert await postgres_migrate.apply_migrations(connection) == (second, third), "it goes on where it was"
    assert await postgres_migrate.apply_migrations(connection) == ()


async def test_a_file_is_applied_whole_or_not_at_all(connection: Any, later: Later) -> None:
    later(f"{TABLE}; ALTER TABLE nowhere ADD COLUMN x integer")
    with pytest.raises(asyncpg.UndefinedTableError):
        await postgres_migrate.apply_migrations(connection)
    assert not await is_there(connection, "later")


async def test_an_index_is_made_while_others_write(connection: Any, postgres_dsn: str, later: Later) -> None:
    later(TABLE, INDEX)
    async with opened(postgres_dsn) as writer, opened(postgres_dsn) as other:
        await connection.execute(TABLE)
        await connection.execute(
            "INSERT INTO ff_migration_annotation VALUES (9900, 'later', 0, true, $1)",
            migrate.migrations("postgres")[-2].checksum,
        )
        writing = writer.transaction()
        await writing.start()
        await writer.execute("INSERT INTO later VALUES (1)")
        migrating = asyncio.ensure_future(postgres_migrate.apply_migrations(connection))
        waits = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted"
        while not await other.fetchval(waits, connection.get_server_pid()):
            assert not migrating.done()
        # It waits for the writer, and keeps nobody else from writing.
        await other.execute("SET lock_timeout = '10s'; INSERT INTO later VALUES (2)")
        await writing.commit()
        assert await migrating == (9_901,)
    assert await is_valid(connection, "later_idx")


async def test_an_index_that_was_begun_is_made_anew(connection: Any, later: Later) -> None:
    unique = "-- concurrently\nCREATE UNIQUE INDEX CONCURRENTLY later_idx ON later (id);"
    later(f"{TABLE}; INSERT INTO later VALUES (1), (1)", unique)
    with pytest.raises(asyncpg.UniqueViolationError):
        await postgres_migrate.apply_migrations(connection)
    assert await is_valid(connection, "later_idx") is False
    await connection.execute("DELETE FROM later")
    assert await postgres_migrate.apply_migrations(connection) == (9_901,)
    assert await is_valid(connection, "later_idx")


async def test_indexes_that_were_made_before_an_interruption_stay(connection: Any, later: Later) -> None:
    both = INDEX + "DROP INDEX CONCURRENTLY IF EXISTS older_idx;"
    later(f"{TABLE}; CREATE INDEX older_idx ON later (id); CREATE INDEX later_idx ON later (id)", both)
    assert await postgres_migrate.apply_migrations(connection) == (9_900, 9_901)
    assert await is_valid(connection, "later_idx")
    assert not await is_there(connection, "older_idx")


async def test_several_start_at_once(connection: Any, postgres_dsn: str, later: Later) -> None:
    """Those that wait for their turn hold nothing that an index would have to wait for."""
    versions = later(TABLE, INDEX, "CREATE TABLE last (id integer)")
    async with opened(postgres_dsn) as second, opened(postgres_dsn) as third:
        done = await asyncio.gather(*map(postgres_migrate.apply_migrations, (connection, second, third)))
    assert sorted(done) == [(), (), tuple(versions)]
    assert await is_valid(connection, "later_idx")


@pytest.mark.parametrize("failed", [asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError])
async def test_who_is_in_the_way_for_ever_is_told_of(
    connection: Any, later: Later, failed: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    later(TABLE)
    tries = 0

    async def refuse(*_: Any) -> None:
        nonlocal tries
        tries += 1
        raise failed("in use")

    async def at_once(_: float) -> None:
        return None

    monkeypatch.setattr(postgres_migrate, "_at_once", refuse)
    monkeypatch.setattr(postgres_migrate.asyncio, "sleep", at_once)
    with pytest.raises(failed):
        await postgres_migrate.apply_migrations(connection)
    assert tries == postgres_migrate.LOCK_TRIES
    assert not await connection.fetchval(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )


def test_only_indexes_can_be_made_concurrently() -> None:
    released = [each for each in migrate.migrations("postgres") if each.concurrent]
    assert all(each.indexes() for each in released)
    wrong = migrate.Migration(1, "wrong", "-- concurrently\nALTER TABLE later ADD COLUMN x integer;")
    with pytest.raises(ValueError, match="0001_wrong: only indexes"):
        wrong.indexes()
    found = migrate.Migration(2, "both", INDEX + "DROP INDEX CONCURRENTLY IF EXISTS older_idx").indexes()
    assert [(each.name, each.made) for each in found] == [("later_idx", True), ("older_idx", False)]
