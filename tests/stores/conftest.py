"""Filled databases for tests of plans: filled once by each worker, and copied for tests that write."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from flowfabric.engine import Engine
from flowfabric.stores.postgres.store import WRITER_SETTINGS
from tests.conftest import ExternalPostgreSQL
from tests.databases import Administrator, with_database
from tests.servers import PostgreSQL

Fill: TypeAlias = Callable[[Engine], Awaitable[None]]


class Filled:
    """Databases by what has filled them."""

    def __init__(self, server: PostgreSQL | ExternalPostgreSQL, administrator: Administrator, template: str) -> None:
        self._server = server
        self._administrator = administrator
        self._template = template
        self._names: dict[Fill, str] = {}

    def shared(self, fill: Fill) -> str:
        """The address of the database with this content, for those who only read."""
        if fill not in self._names:
            name = self._made(self._template)
            self._administrator.run(_filled(with_database(self._server.dsn, name), fill))
            self._names[fill] = name
        return with_database(self._server.dsn, self._names[fill])

    @contextlib.contextmanager
    def copy(self, fill: Fill) -> Iterator[str]:
        """The address of a database of one's own with this content, gone after the block."""
        self.shared(fill)
        name = self._made(self._names[fill])
        try:
            yield with_database(self._server.dsn, name)
        finally:
            self._drop(name)

    def close(self) -> None:
        """Drop them all."""
        for name in self._names.values():
            self._drop(name)

    def _made(self, template: str) -> str:
        name = f"ff_test_{secrets.token_hex(8)}"
        self._administrator.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def _drop(self, name: str) -> None:
        self._administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def _filled(dsn: str, fill: Fill) -> None:
    async with await Engine.open(dsn) as engine:
        await fill(engine)
        async with engine.store.raw() as connection:
            await connection.execute("ANALYZE")


@pytest.fixture(scope="session")
def filled_databases(postgres_server: Any, postgres_administrator: Any, postgres_template: str) -> Iterator[Filled]:
    """PostgreSQL databases that tests of plans have filled."""
    filled = Filled(postgres_server, postgres_administrator, postgres_template)
    yield filled
    filled.close()


@contextlib.asynccontextmanager
async def planner_of(filled: Filled, fill: Fill) -> AsyncIterator[Any]:
    """A connection with the settings of a writer that can only plan, to the database with this content."""
    async with _writer(filled.shared(fill)) as connection:
        await connection.execute("SET default_transaction_read_only = on")
        yield connection


@contextlib.asynccontextmanager
async def writer_of(filled: Filled, fill: Fill) -> AsyncIterator[Any]:
    """A connection with the settings of a writer, to a database of its own with this content."""
    with filled.copy(fill) as dsn:
        async with _writer(dsn) as connection:
            yield connection


@contextlib.asynccontextmanager
async def _writer(dsn: str) -> AsyncIterator[Any]:
    async with await Engine.open(dsn) as engine, engine.store.raw() as connection:
        for name, value in WRITER_SETTINGS.items():
            await connection.execute(f"SET {name} = '{value}'")
        yield connection


class FilledFiles:
    """SQLite files by what has filled them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: dict[Fill, Path] = {}

    async def path(self, fill: Fill) -> Path:
        """The file with this content, filled when it is first asked for."""
        if fill not in self._paths:
            path = self._folder / f"{len(self._paths)}.db"
            async with await Engine.open(f"sqlite:///{path}", single_node=True) as engine:
                await fill(engine)
            self._paths[fill] = path
        return self._paths[fill]


@pytest.fixture(scope="session")
def filled_files(tmp_path_factory: pytest.TempPathFactory) -> FilledFiles:
    """SQLite files that tests of plans have filled; they outlive the tests that did."""
    return FilledFiles(tmp_path_factory.mktemp("filled"))


@contextlib.asynccontextmanager
async def sqlite_of(files: FilledFiles, fill: Fill, folder: Path) -> AsyncIterator[Any]:
    """A connection to a copy of the file with this content."""
    shutil.copy(await files.path(fill), folder / "ff.db")
    async with await Engine.open(f"sqlite:///{folder}/ff.db", single_node=True) as engine:
        yield engine.store.raw()
