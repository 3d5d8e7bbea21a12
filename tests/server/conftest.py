"""A server without a socket: an engine in memory, and a client that calls the application itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import unquote

import httpx
import msgspec
import pytest

from flowfabric.engine import Engine
from flowfabric.model.ids import decode_hook
from flowfabric.model.waitpoint_tokens import revealed
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from flowfabric.server.http.response import variant_name
from flowfabric.server.operations import Variants


def client_of(server: Server, token: str | None = None) -> httpx.AsyncClient:
    """Calls an application; with a credential if one is given."""
    headers = {} if token is None else {"authorization": f"Bearer {revealed(token)}"}

    async def check(response: httpx.Response) -> None:
        await response.aread()
        fits(server, response)

    transport = httpx.ASGITransport(server, raise_app_exceptions=True)
    return httpx.AsyncClient(
        transport=transport, base_url="http://server", headers=headers, event_hooks={"response": [check]}
    )


def fits(server: Server, response: httpx.Response) -> None:
    """Every answer is one that its operation says it gives."""
    request = response.request
    segments = [unquote(each) for each in request.url.raw_path.decode().partition("?")[0].strip("/").split("/")]
    found = server._routes.find(segments)
    if found is None or response.status_code >= 400:
        if response.status_code >= 400 and request.method != "HEAD":
            assert set(response.json()) <= {"error", "kind", "retryable", "started", "limit_bytes", "route"}
        return
    operation = found[0][request.method.replace("HEAD", "GET")]
    assert response.status_code in operation.answers, (operation.name, response.status_code)
    promised = operation.answers[response.status_code]
    if promised is None or request.method == "HEAD" or operation.media != "application/json":
        return
    body = response.json()
    if isinstance(promised, Variants):
        name = body if isinstance(body, str) else next(iter(body))
        kind = next(each for each in promised.kinds if variant_name(each) == name)
        assert isinstance(body, str) is not bool(kind.__struct_fields__)
        body, promised = ({} if isinstance(body, str) else body[name]), kind
    msgspec.convert(body, promised, dec_hook=decode_hook)


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
