"""Apps on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric import App
from tests.contract.conftest import STORES
from tests.contract.probe import ManualClock


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a fresh, empty store."""
    return STORES[request.param](request, tmp_path)


@pytest.fixture
def clock() -> ManualClock:
    """Time that stands still until a test moves it."""
    return ManualClock()


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[App]:
    """An open app on a fresh store, in real time."""
    async with App(store_url) as opened:
        yield opened


@pytest.fixture
async def still_app(store_url: str, clock: ManualClock) -> AsyncIterator[App]:
    """An open app on the test's clock."""
    async with App(store_url, engine_options={"clock": clock}) as opened:
        yield opened
