"""One suite for every store. A store joins by one line in ``STORES``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.engine.reads import examine
from tests.conftest import prepared_sqlite_url
from tests.contract.probe import ManualClock, Probe

#: Store name -> URL maker, given the test's request and temporary folder.
STORES: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "memory": lambda request, folder: "memory://",
    "sqlite": lambda request, folder: prepared_sqlite_url(request.getfixturevalue("sqlite_template"), folder),
    "postgres": lambda request, folder: request.getfixturevalue("prepared_postgres_dsn"),
    "valkey": lambda request, folder: request.getfixturevalue("valkey_url"),
}


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest) -> str:
    """The address of a fresh, empty store."""
    return address(request.param, request)


def address(kind: str, request: pytest.FixtureRequest) -> str:
    """The same for a store of this kind; thousands of tests need no folder, and are not given one."""
    return STORES[kind](request, request.getfixturevalue("tmp_path") if kind == "sqlite" else Path())


@pytest.fixture
def clock() -> ManualClock:
    """Time that stands still until a test moves it."""
    return ManualClock()


@pytest.fixture
async def engine(store_url: str, clock: ManualClock) -> AsyncIterator[Engine]:
    """An engine on a fresh store, on the test's clock, without timers."""
    async with await Engine.open(store_url, single_node=True, clock=clock) as opened:
        yield opened


@pytest.fixture
async def open_engine(store_url: str, clock: ManualClock) -> AsyncIterator[Callable[..., Any]]:
    """Opens further engines on the same store (in memory: a store of its own), with options."""
    opened: list[Engine] = []

    async def open_one(**options: Any) -> Engine:
        options.setdefault("clock", clock)
        one = await Engine.open(store_url, single_node=True, **options)
        opened.append(one)
        return one

    yield open_one
    for one in opened:
        await one.close()


@pytest.fixture
def probe(engine: Engine) -> Probe:
    """Looks at stored rows and events, the same way on every store."""
    return Probe(engine)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examinations look again at once: nothing else is under way."""
    monkeypatch.setattr(examine, "_PAUSES_S", (0.0, 0.0))
