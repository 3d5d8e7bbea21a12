"""A server in a thread of its own, so that blocking tests can call it, too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.serving import Running
from tests.contract.conftest import STORES

#: For tests that need the store itself: its timers, its tables, its transactions.
direct = pytest.mark.parametrize("store_url", list(STORES), indirect=True)


class _Thread(threading.Thread):
    def __init__(self, url: str, config: ServerConfig) -> None:
        super().__init__(name="server", daemon=True)
        self._url = url
        self._config = config
        self.ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.running: Any = None
        self.engine: Any = None

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        async with await Engine.open(self._url, single_node=True, timers=True) as engine:
            self.engine = engine
            server = create_app(engine, self._config)
            self.running = Running(server, self._config, server)
            task = asyncio.create_task(self.running.run())
            await self.running.started()
            self.ready.set()
            await task


@contextmanager
def serving(url: str, config: ServerConfig | None = None) -> Iterator[str]:
    """The address of a server on a store, until the end of the block."""
    thread = _Thread(url, config or ServerConfig(port=0))
    thread.start()
    assert thread.ready.wait(30), "the server did not start"
    try:
        yield f"http://127.0.0.1:{thread.running.port}"
    finally:
        assert thread.loop is not None
        thread.loop.call_soon_threadsafe(thread.running.stop)
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
