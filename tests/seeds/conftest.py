"""The acceptance tests the project was created from, each on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowfabric.engine import Engine
from tests.seeds.support import Database, uuid_like


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a fresh, empty database; SQLite is opened as the originals open it."""
    if request.param == "postgres":
        return request.getfixturevalue("prepared_postgres_dsn")
    monkeypatch.setenv("FF_DEV_MODE", "1")
    return f"file:shared-{uuid_like()}?mode=memory&cache=shared"


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    """An engine on a fresh database: real time, no timers, nothing opted in."""
    async with await Engine.open(store_url) as opened:
        yield opened


@pytest.fixture
def database(engine: Engine) -> Database:
    """The engine's database, past the engine."""
    return Database(engine)
