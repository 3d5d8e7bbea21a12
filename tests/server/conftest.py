"""A server without a socket: an engine in memory, and a client that calls the application itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server


def client_of(server: Server, token: str | None = None) -> httpx.AsyncClient:
    """Calls an application; with a credential if one is given."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(server, raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """An engine without timers."""
    async with await Engine.open("memory://") as opened:
        yield opened


@pytest.fixture
def server(engine: Engine) -> Server:
    """A server that asks for no credential."""
    return create_app(engine, ServerConfig())


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """Calls that server."""
    async with client_of(server) as opened:
        yield opened
