"""Servers, databases and run options for every test.

`FF_TEST_PG_DSN` and `FF_TEST_VALKEY_URL` name servers that already run; without them each test worker starts its own
on first use. `FF_TEST_FULL=1` (`./dev test --full`) asks for long counts.
"""

import asyncio
import contextlib
import gc
import os
import secrets
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from flowfabric.engine import Engine
from tests.databases import Administrator, Shelf, with_database
from tests.distribution import Units
from tests.reporting import listen
from tests.selection import left_to_full, longest_first
from tests.servers import PostgreSQL, Valkey, die_with_parent, scratch_parent

FULL_RUN_TIMEOUT_S = 1800


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker and its servers end with the run, even if that is killed; keep files in memory."""
    bind = die_with_parent(signal.SIGKILL)
    if hasattr(config, "workerinput") and bind is not None:
        bind()
    listen(config)
    # Tests that commit to files wait for a disk otherwise; pytest reads this when it makes the first directory.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch_parent(in_memory=True)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and do not look through these again: none of it ever goes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Units | None:
    """Spread tests over the workers as ``tests.distribution`` says."""
    return Units(config, log) if config.getvalue("dist") == "load" else None


# ------------------------------------------------------------------------------------------------------------ full runs


def full_run() -> bool:
    """Does this run ask for long counts?"""
    return os.environ.get("FF_TEST_FULL", "") not in ("", "0")


@pytest.fixture(scope="session")
def full() -> bool:
    """`full_run()` as a fixture, for tests that scale their counts."""
    return full_run()


# How quick a machine is says nothing about the code. A plain run finds the same each time, a full one looks further.
settings.register_profile(
    "untimed", deadline=None, derandomize=not full_run(), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests time in a full run, and leave some to it. Others with long counts ask ``full_run()`` how long."""
    if full_run():
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(FULL_RUN_TIMEOUT_S))
    elif not any("::" in argument for argument in config.args):
        left = set(left_to_full(items))
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    longest_first(items)


# --------------------------------------------------------------------------------------------------------------- SQLite


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all tables and no rows: copying it is much quicker than making them again."""
    path = tmp_path_factory.mktemp("template") / "ff.db"
    opening = _open_and_close(Engine.open(f"sqlite:///{path}", single_node=True))
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, opening).result()
    return path


def prepared_sqlite_url(template: Path, folder: Path) -> str:
    """The address of a new file in a folder, with tables and without rows."""
    folder.mkdir(exist_ok=True)
    shutil.copy(template, folder / "ff.db")
    return f"sqlite:///{folder}/ff.db"


# ----------------------------------------------------------------------------------------------------------- PostgreSQL


@dataclass(frozen=True)
class ExternalPostgreSQL:
    """A server that somebody else runs; its account must be allowed to create databases."""

    dsn: str


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
    name = f"ff_test_{secrets.token_hex(8)}"
    postgres_administrator.execute(f"CREATE DATABASE {name} TEMPLATE template0 {_strategy(postgres_server)}")
    try:
        yield with_database(postgres_server.dsn, name)
    finally:
        postgres_administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _strategy(server: PostgreSQL | ExternalPostgreSQL) -> str:
    """Copying files beats writing them through the log by a third, but needs checkpoints: only cheap without fsync."""
    return "STRATEGY file_copy" if isinstance(server, PostgreSQL) else ""


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


@pytest.fixture(scope="session")
def postgres_shelf(
    postgres_server: PostgreSQL | ExternalPostgreSQL, postgres_administrator: Administrator, postgres_template: str
) -> Iterator[Shelf]:
    """Databases with tables and without rows, for this worker's tests."""
    shelf = Shelf(postgres_administrator, postgres_template, _strategy(postgres_server))
    yield shelf
    shelf.close()


@pytest.fixture
def prepared_postgres_dsn(postgres_server: PostgreSQL | ExternalPostgreSQL, postgres_shelf: Shelf) -> Iterator[str]:
    """The address of a database that only this test uses, with tables and without rows."""
    with postgres_shelf.lent() as name:
        yield with_database(postgres_server.dsn, name)


NewDatabase: TypeAlias = Callable[[], contextlib.AbstractContextManager[str]]


@pytest.fixture
def new_postgres_database(postgres_server: PostgreSQL | ExternalPostgreSQL, postgres_shelf: Shelf) -> NewDatabase:
    """Lends as many databases as a test needs, each with tables and without rows."""

    @contextlib.contextmanager
    def lent() -> Iterator[str]:
        with postgres_shelf.lent() as name:
            yield with_database(postgres_server.dsn, name)

    return lent


# --------------------------------------------------------------------------------------------------------------- Valkey


@dataclass(frozen=True)
class ExternalValkey:
    """A server that somebody else runs."""

    url: str


@pytest.fixture
def valkey_url(valkey_server: Valkey | ExternalValkey) -> Iterator[str]:
    """The address of an empty place on this worker's Valkey that only this test uses."""
    with valkey_place(valkey_server.url) as url:
        yield url


@contextlib.contextmanager
def valkey_place(server_url: str) -> Iterator[str]:
    """The address of an empty place on a server, gone with the block."""
    prefix = f"ff-test-{secrets.token_hex(8)}"
    yield f"{server_url}?prefix={prefix}"
    address = urlsplit(server_url)
    with socket.create_connection((address.hostname or "", address.port or 6379), 10) as connection:
        # One function call takes everything away, however much it is.
        each = "redis.call('UNLINK', unpack(keys, i, math.min(i + 999, #keys)))"
        script = f"local keys = redis.call('KEYS', ARGV[1]) for i = 1, #keys, 1000 do {each} end"
        words = ("EVAL", script, "0", "{" + prefix + "}:*")
        text = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        connection.sendall(f"*{len(words)}\r\n{text}".encode())
        assert connection.recv(64).startswith((b"$-1", b"_"))


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey | ExternalValkey]:
    """This worker's Valkey. Its content is shared by the worker's tests: they choose keys of their own."""
    if url := os.environ.get("FF_TEST_VALKEY_URL"):
        yield ExternalValkey(url)
    else:
        with Valkey(in_memory=True) as server:
            yield server
