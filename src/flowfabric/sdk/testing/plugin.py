"""A pytest plugin: the fixture ``flowfabric_testing`` gives the testing kit of the app that ``flowfabric_app`` names.

    @pytest.fixture
    def flowfabric_app():
        from shop.work import app
        return app

    async def test_order(flowfabric_testing):
        run = await order.start("book")
        assert await run.result() == "shipped"

Async tests need a plugin that runs them, such as pytest-asyncio or anyio.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest

try:
    runner: Any = import_module("pytest_asyncio")
except ImportError:  # anyio runs ordinary fixtures that are asynchronous
    runner = pytest


@pytest.fixture
def flowfabric_app() -> Any:
    """The app under test: override this fixture in your ``conftest.py``."""
    raise pytest.UsageError("override the fixture flowfabric_app so that it returns your App")


@runner.fixture  # type: ignore[untyped-decorator]
async def flowfabric_testing(flowfabric_app: Any) -> AsyncIterator[Any]:
    """``app.testing()`` for the length of one test."""
    async with flowfabric_app.testing() as kit:
        yield kit
