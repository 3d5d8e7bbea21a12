"""The acceptance tests the project was created from, each on SQLite and on PostgreSQL; those of workers, which need no
SQL of their own, on Valkey too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowfabric.engine import Engine
from tests.seeds.support import Database, KeyedDatabase, uuid_like

#: Stores of servers, and the fixtures that make them.
ELSEWHERE = {"postgres": "prepared_postgres_dsn", "valkey": "valkey_url"}


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a fresh, empty database; SQLite is opened as the originals open it."""
    if request.param in ELSEWHERE:
        return request.getfixturevalue(ELSEWHERE[request.param])
    monkeypatch.setenv("FF_DEV_MODE", "1")
    return f"file:shared-{uuid_like()}?mode=memory&cache=shared"


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    """An engine on a fresh database: real time, no timers, nothing opted in."""
    async with await Engine.open(store_url) as opened:
        yield opened


@pytest.fixture
def database(engine: Engine) -> Database | KeyedDatabase:
    """The engine's database, past the engine."""
    return KeyedDatabase(engine) if engine.backend_label == "valkey" else Database(engine)
