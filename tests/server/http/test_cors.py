"""Which pages may call: nobody's, unless they are named."""

from __future__ import annotations

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.http.cors import with_cors

ALLOWED = "access-control-allow-origin"


def client(engine: Engine, **options: object) -> httpx.AsyncClient:
    config = ServerConfig(**options)  # type: ignore[arg-type]
    application = with_cors(create_app(engine, config), config)
    return httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://server")


async def preflight(caller: httpx.AsyncClient, origin: str, headers: str = "content-type") -> httpx.Response:
    asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": headers}
    return await caller.options("/v1/executions", headers=asked)


async def test_without_a_list_nothing_is_allowed(engine: Engine) -> None:
    async with client(engine) as caller:
        assert (await preflight(caller, "https://evil.example")).status_code == 405
        answer = await caller.get("/healthz", headers={"origin": "https://evil.example"})
        assert ALLOWED not in answer.headers


async def test_a_list_allows_those_it_names(engine: Engine) -> None:
    async with client(engine, cors_origins=("https://good.example",), api_token="token-of-this-test") as caller:
        good = await preflight(caller, "https://good.example", "authorization, content-type")
        assert (good.status_code, good.headers[ALLOWED]) == (200, "https://good.example")
        for origin in ("https://evil.example", "https://good.example.evil.example", "http://good.example", "null"):
            evil = await preflight(caller, origin)
            assert evil.status_code == 400
            assert ALLOWED not in evil.headers
        read = await caller.get("/healthz", headers={"origin": "https://evil.example"})
        assert ALLOWED not in read.headers


async def test_authorization_is_allowed_only_where_it_is_asked_for(engine: Engine) -> None:
    async with client(engine, cors_origins=("https://good.example",)) as caller:
        assert (await preflight(caller, "https://good.example", "authorization")).status_code == 400


async def test_everybody(engine: Engine) -> None:
    async with client(engine, cors_origins=("*",)) as caller:
        assert (await preflight(caller, "https://any.example", "x-any")).headers[ALLOWED] == "*"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9090", "127.0.0.1.evil.example", "[::2]", "10.0.0.1"])
async def test_names_of_others_do_not_lead_to_an_open_server(engine: Engine, host: str) -> None:
    """A page may make its own name point here; an open server answers only to names of this machine."""
    async with client(engine, guard_host=True) as caller:
        answer = await caller.get("/v1/lanes", headers={"host": host})
        assert (answer.status_code, "error" in answer.json()) == (403, True)
        for good in ("127.0.0.1:9090", "localhost", "[::1]:1"):
            assert (await caller.get("/v1/lanes", headers={"host": good})).status_code == 200
