"""Servers, databases and run options for every test.

`FF_TEST_PG_DSN` and `FF_TEST_VALKEY_URL` name servers that already run; without them each test worker starts its own
on first use. `FF_TEST_FULL=1` (`./dev test --full`) asks for long counts.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Awaitable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from hypothesis import HealthCheck, settings

from flowfabric.engine import Engine
from tests.servers import PostgreSQL, Valkey, die_with_parent

FULL_RUN_TIMEOUT_S = 1800

# How quick a machine is says nothing about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker, and with it the servers it started, end with the run, even if that is killed."""
    bind = die_with_parent(signal.SIGKILL)
    if hasattr(config, "workerinput") and bind is not None:
        bind()


# ------------------------------------------------------------------------------------------------------------ full runs


def full_run() -> bool:
    """Does this run ask for long counts?"""
    return os.environ.get("FF_TEST_FULL", "") not in ("", "0")


@pytest.fixture(scope="session")
def full() -> bool:
    """`full_run()` as a fixture, for tests that scale their counts."""
    return full_run()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests time in a full run. Every test runs in both: those with long counts ask ``full_run()`` how long."""
    for item in items:
        if full_run() and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(FULL_RUN_TIMEOUT_S))


# ----------------------------------------------------------------------------------------------------------- PostgreSQL


@dataclass(frozen=True)
class ExternalPostgreSQL:
    """A server that somebody else runs; its account must be allowed to create databases."""

    dsn: str


class Administrator:
    """Runs statements on a thread and event loop of its own, so that a fixture never meets the loop of a test."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="postgres-administrator")

    def execute(self, statement: str) -> None:
        """Run one statement on a connection that is kept."""
        self.run(self._execute(statement))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine here."""
        self._thread.submit(lambda: self._runner.run(work)).result()

    def close(self) -> None:
        """Give up the connection and the thread."""
        self._thread.submit(lambda: self._runner.run(self._disconnect())).result()
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    async def _execute(self, statement: str) -> None:
        # A test may have restarted the server.
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._dsn)
        await self._connection.execute(statement)

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._connection.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgreSQL | ExternalPostgreSQL]:
    """This worker's PostgreSQL. Tests that kill a server start one of their own instead."""
    if dsn := os.environ.get("FF_TEST_PG_DSN"):
        yield ExternalPostgreSQL(dsn)
    else:
        with PostgreSQL() as server:
            yield server


@pytest.fixture(scope="session")
def postgres_administrator(postgres_server: PostgreSQL | ExternalPostgreSQL) -> Iterator[Administrator]:
    """Makes and drops databases on this worker's PostgreSQL."""
    administrator = Administrator(postgres_server.dsn)
    yield administrator
    administrator.close()


@pytest.fixture
def postgres_dsn(
    postgres_server: PostgreSQL | ExternalPostgreSQL, postgres_administrator: Administrator
) -> Iterator[str]:
    """The address of a fresh, empty database that only this test uses."""
    yield from _database(postgres_server, postgres_administrator, "template0")


def _database(
    postgres_server: PostgreSQL | ExternalPostgreSQL, postgres_administrator: Administrator, template: str
) -> Iterator[str]:
    name = f"ff_test_{secrets.token_hex(8)}"
    # Copying files beats writing them through the log by a third, but needs checkpoints: only cheap without fsync.
    strategy = "STRATEGY file_copy" if isinstance(postgres_server, PostgreSQL) else ""
    postgres_administrator.execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}")
    try:
        yield with_database(postgres_server.dsn, name)
    finally:
        postgres_administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_template(
    postgres_server: PostgreSQL | ExternalPostgreSQL, postgres_administrator: Administrator
) -> Iterator[str]:
    """The name of a database with all tables and no rows: copying it is quicker than making them again."""
    name = f"ff_template_{secrets.token_hex(8)}"
    postgres_administrator.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    engine_once = Engine.open(with_database(postgres_server.dsn, name))
    postgres_administrator.run(_open_and_close(engine_once))
    try:
        yield name
    finally:
        postgres_administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def _open_and_close(opening: Awaitable[Engine]) -> None:
    await (await opening).close()


@pytest.fixture
def prepared_postgres_dsn(
    postgres_server: PostgreSQL | ExternalPostgreSQL, postgres_administrator: Administrator, postgres_template: str
) -> Iterator[str]:
    """The address of a database that only this test uses, with tables and without rows."""
    yield from _database(postgres_server, postgres_administrator, postgres_template)


def with_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    parts = urlsplit(dsn)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{name}{query}"


# --------------------------------------------------------------------------------------------------------------- Valkey


@dataclass(frozen=True)
class ExternalValkey:
    """A server that somebody else runs."""

    url: str


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey | ExternalValkey]:
    """This worker's Valkey. Its content is shared by the worker's tests: they choose keys of their own."""
    if url := os.environ.get("FF_TEST_VALKEY_URL"):
        yield ExternalValkey(url)
    else:
        with Valkey() as server:
            yield server
