"""``tx=`` under ``app.testing(store=…)``: a run exists if and only if the test commits, and time is skipped."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flowfabric import App, BadOptions, NotCommitted, days, sleep

Connect = Callable[[str], Any]


def sqlite_store(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Connect]:
    return f"sqlite:///{folder}/test.db", lambda url: sqlite3.connect(url.removeprefix("sqlite:///"))


def postgres_store(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Connect]:
    return request.getfixturevalue("prepared_postgres_dsn"), psycopg.connect


@pytest.fixture(params=[sqlite_store, postgres_store], ids=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Connect]:
    """A database, and how a program connects to it."""
    found: tuple[str, Connect] = request.param(request, tmp_path)
    return found


@pytest.fixture
def app() -> App:
    made = App("postgresql://production/not-there")

    @made.workflow
    async def remind(name: str) -> str:
        await sleep(days(30))
        return f"dear {name}"

    return made


async def test_a_run_begins_with_the_commit(app: App, store: tuple[str, Connect]) -> None:
    url, connect = store
    remind = app.definitions["remind"]
    async with app.testing(store=url):
        with closing(connect(url)) as connection:
            run = await remind.using(tx=connection).start("ann")  # type: ignore[attr-defined]
            with pytest.raises(NotCommitted):
                await run.status()
            connection.commit()
            assert await run.result() == "dear ann", "a month is skipped"
            lost = await remind.using(tx=connection).start("bob")  # type: ignore[attr-defined]
            connection.rollback()
        with pytest.raises(NotCommitted):
            await lost.result()
        assert await app.runs().count() == 1
    assert app.url == "postgresql://production/not-there"


async def test_memory_says_what_to_do(app: App) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        async with app.testing():
            start = app.definitions["remind"].using(tx=connection).start  # type: ignore[attr-defined]
            with pytest.raises(BadOptions, match=r"app\.testing\(store="):
                await start("ann")
