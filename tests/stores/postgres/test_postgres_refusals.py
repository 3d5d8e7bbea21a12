"""What a PostgreSQL server refuses for good is permanent, and the error says what to do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from flowfabric import Transport
from flowfabric.engine import Engine
from flowfabric.model.errors import TransportKind
from flowfabric.stores import migrate
from flowfabric.stores.migration_plan import plan
from flowfabric.stores.postgres import migrate as postgres_migrate
from flowfabric.stores.postgres.store import _translated
from tests.databases import Administrator


def with_user(dsn: str, user: str) -> str:
    """The same database for another account."""
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}").geturl()


async def refused(url: str, kind: TransportKind, advice: str) -> None:
    """Opening and planning are refused in the same way, and nobody is told to repeat it."""
    for look in (Engine.open(url), plan(url)):
        with pytest.raises(Transport, match=advice) as caught:
            await look
        assert caught.value.kind is kind
        assert not caught.value.retryable
        assert "Retry the call" not in str(caught.value)


async def test_a_database_that_is_not_there(postgres_dsn: str) -> None:
    await refused(postgres_dsn + "x", TransportKind.PROTOCOL, r"does not exist: create the database \(createdb NAME\)")


async def test_an_account_that_is_not_there(postgres_dsn: str) -> None:
    await refused(with_user(postgres_dsn, "nobody-of-ours"), TransportKind.AUTH, "correct the user and the password")


async def test_a_wrong_password(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise asyncpg.InvalidPasswordError('password authentication failed for user "ff"')

    engine = await Engine.open(postgres_dsn)
    async with engine:
        # As if every connection had to be made anew.
        monkeypatch.setattr(asyncpg, "connect", refuse)
        with pytest.raises(Transport, match="correct the user and the password") as caught:
            await engine.create_execution()
        assert caught.value.kind is TransportKind.AUTH
        with pytest.raises(Transport, match="correct the user and the password"):
            await plan(postgres_dsn)


@pytest.fixture
def stranger(postgres_dsn: str, postgres_administrator: Administrator) -> Iterator[str]:
    """The database for an account that may do nothing there."""
    name = f"ff_stranger_{secrets.token_hex(4)}"
    postgres_administrator.execute(f"CREATE ROLE {name} LOGIN")
    yield with_user(postgres_dsn, name)
    postgres_administrator.execute(f"DROP ROLE {name}")


async def test_missing_rights(postgres_dsn: str, stranger: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    await connection.close()
    with pytest.raises(Transport, match=r"permission denied for schema public: give the account .* GRANT") as caught:
        await Engine.open(stranger)
    assert caught.value.kind is TransportKind.AUTH
    async with await Engine.open(postgres_dsn):
        pass
    await refused(stranger, TransportKind.AUTH, r"permission denied for .*: give the account .* the right")


async def test_tables_that_lack_nothing_ask_for_no_right_to_make_some(postgres_dsn: str, stranger: str) -> None:
    async with await Engine.open(postgres_dsn):
        pass
    connection = await asyncpg.connect(postgres_dsn)
    name = urlsplit(stranger).username
    await connection.execute(
        f"REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name}; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}"
    )
    async with await Engine.open(stranger) as engine:
        await engine.create_execution()
    await connection.execute(f"DROP OWNED BY {name}")
    await connection.close()


async def test_a_migration_steps_aside_for_those_who_use_a_table(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Engine.open(postgres_dsn):
        pass
    later = migrate.Migration(9_998, "later", "ALTER TABLE ff_exec_core ADD COLUMN later integer")
    known = migrate.migrations("postgres")
    monkeypatch.setattr(migrate, "migrations", lambda dialect: (*known, later))
    monkeypatch.setattr(postgres_migrate, "LOCK_TIMEOUT_MS", 50)
    reader = await asyncpg.connect(postgres_dsn)
    reading = reader.transaction()
    await reading.start()
    await reader.execute("SELECT 1 FROM ff_exec_core")
    tries = 0

    async def step_aside(seconds: float) -> None:
        nonlocal tries
        tries += 1
        await reading.rollback()

    monkeypatch.setattr(postgres_migrate.asyncio, "sleep", step_aside)
    connection = await asyncpg.connect(postgres_dsn)
    assert await postgres_migrate.apply_migrations(connection) == (9_998,)
    assert tries == 1
    await connection.close()
    await reader.close()


async def test_a_server_that_is_not_there_may_come_back() -> None:
    with pytest.raises(Transport, match="cannot open the database") as caught:
        await Engine.open("postgresql://127.0.0.1:1/x")
    assert caught.value.retryable


@pytest.mark.parametrize("committing", [False, True])
def test_an_unknown_completion_is_an_unknown_outcome(committing: bool) -> None:
    found = _translated(asyncpg.StatementCompletionUnknownError("x"), committing)
    assert isinstance(found, Transport)
    assert found.kind is TransportKind.TRANSPORT, "another kind would be tried again, command by command"
