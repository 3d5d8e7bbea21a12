"""Apps on every store, and through a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from flowfabric import App
from tests.contract.conftest import STORES, address
from tests.contract.probe import ManualClock
from tests.sdk.serving import serving


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every store, and a server; tests on a clock of their own need the store itself."""
    if "store_url" not in metafunc.fixturenames:
        return
    if any("store_url" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        return
    direct = "clock" in metafunc.fixturenames
    metafunc.parametrize("store_url", [*STORES] if direct else [*STORES, "remote"], indirect=True)


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a fresh, empty store, or of a server that has one."""
    if request.param == "remote":
        with serving(address("sqlite", request)) as url:
            yield url
    else:
        yield address(request.param, request)


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
