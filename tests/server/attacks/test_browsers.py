"""Pages of other sites: what a browser lets them send, and what its answers let it do."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.model.operations.access import Scope
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from flowfabric.server.console import assets
from flowfabric.server.http.cors import with_cors
from flowfabric.server.http.cross_site import SAFE
from flowfabric.server.http.head import ONCE
from flowfabric.server.routes import ROUTES
from tests.server.access.test_roles import NOTHING, credential, request_of, things
from tests.server.http.test_connection import request, said
from tests.server.listening import listening
from tests.server.making import at, created

OWN, LISTED, EVIL = "http://server", "https://listed.example", "https://evil.example"
TOKEN = "t" * 32

# -- who may call ------------------------------------------------------------------------------------------------------

ORIGINS = (None, OWN, "https://server", LISTED, EVIL, "null", "http://server:81", "http://server.evil.example", "")
SITES = (None, "same-origin", "same-site", "cross-site", "none", "odd")
SETTINGS: dict[str, tuple[str, ...] | None] = {"none": None, "list": (LISTED,), "all": ("*",)}


def allowed(origin: str | None, site: str | None, setting: str) -> bool:
    """The rule, in other words than the server's."""
    if setting == "all" or (setting == "list" and origin == LISTED):
        return True
    if site == "same-origin":
        return True
    return site in (None, "none") and origin in (None, OWN, "https://server")


def headers_of(origin: str | None, site: str | None, token: str | None = None) -> dict[str, str]:
    found = {"origin": origin, "sec-fetch-site": site, "authorization": None if token is None else f"Bearer {token}"}
    return {name: value for name, value in found.items() if value is not None}


def client_of(server: Server) -> httpx.AsyncClient:
    application = with_cors(server, server.config)
    return httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://server")


UNSAFE = {each.name: each for each in ROUTES if each.method not in SAFE}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("token", [None, TOKEN], ids=["open", "token"])
async def test_every_operation_that_changes_something(engine: Engine, setting: str, token: str | None) -> None:
    """Refused before anything is looked at; otherwise whatever a call about nothing gets."""
    server = create_app(engine, ServerConfig(api_token=token, cors_origins=SETTINGS[setting]))
    seen = set()
    async with client_of(server) as client:
        for operation, origin, site in product(UNSAFE.values(), ORIGINS, SITES):
            path, options = request_of(operation, NOTHING)
            good = allowed(origin, site, setting)
            if good and operation.name == "create_credential":
                continue
            if good and (origin, site) != (OWN, "same-origin") and operation.name != "pause_schedule":
                continue  # what is allowed is like any other call; one of each is enough
            answer = await client.request(
                operation.method, path, headers=headers_of(origin, site, token), **(options if good else {})
            )
            refused = answer.status_code == 403 and "other origins" in answer.text
            assert refused is not good, (operation.name, origin, site, answer.text)
            seen.add(good)
    assert seen == ({True} if setting == "all" else {True, False})


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "QUERY", "TRACE"])
async def test_whatever_the_method_and_the_path(server: Server, method: str) -> None:
    async with client_of(server) as client:
        for path in ("/", "/nowhere", "/healthz", "/v1/executions", "/console/app.js"):
            for evil in (headers_of(EVIL, None), headers_of(None, "cross-site"), headers_of(EVIL, "same-site")):
                assert (await client.request(method, path, headers=evil)).status_code == 403


async def test_nothing_is_done_for_other_origins(server: Server, engine: Engine) -> None:
    async with client_of(server) as client:
        identity = await created(client)
        body = {"content-type": "application/json", "origin": EVIL}
        assert (await client.post("/v1/executions", content=b"{}", headers=body)).status_code == 403
        assert (await client.post(at(identity, "cancel"), headers={"origin": EVIL})).status_code == 403
        assert (await client.get(at(identity, "state"))).json() == "waiting"


async def test_what_is_costly_is_not_for_other_origins(engine: Engine) -> None:
    server = create_app(engine, ServerConfig(cors_origins=(LISTED,)))
    costly = [each for each in ROUTES if each.costly]
    assert {each.name for each in costly} >= {each.name for each in ROUTES if each.media == "text/event-stream"}
    async with client_of(server) as client:
        for operation in costly:
            path, _ = request_of(operation, NOTHING)
            for evil in (headers_of(EVIL, "cross-site"), headers_of(None, "cross-site"), headers_of(EVIL, None)):
                assert (await client.get(path, headers=evil)).status_code == 403
        path, _ = request_of(next(each for each in costly if each.name == "tail_stream"), NOTHING)
        assert (await client.get(path, headers=headers_of(LISTED, "cross-site"))).status_code == 200


async def test_reads_are_what_they_were(server: Server) -> None:
    async with client_of(server) as client:
        for path in ("/", "/healthz", "/v1/lanes", "/docs"):
            answer = await client.get(path, headers=headers_of(EVIL, "cross-site"))
            assert answer.status_code == 200
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("origin", "host", "more", "same"),
    [
        ("https://ff.example", "ff.example", {}, True),
        ("https://ff.example", "ff.example:443", {}, True),
        ("https://FF.example", "ff.EXAMPLE", {}, True),
        ("http://localhost:9090", "localhost:9090", {}, True),
        ("http://[::1]:9090", "[::1]:9090", {}, True),
        ("http://localhost:3000", "localhost:9090", {}, False),
        ("http://127.0.0.1:9090", "localhost:9090", {}, False),
        ("https://ff.example", "ff.example:80", {}, False),
        ("https://ff.example", "backend:9090", {}, False),
        ("https://ff.example", "backend:9090", {"x-forwarded-host": "ff.example"}, True),
        ("https://ff.example", "backend:9090", {"x-forwarded-host": "ff.example, inner"}, True),
        ("https://ff.example", "backend:9090", {"x-forwarded-host": "other.example"}, False),
        ("https://ff.example", "backend:9090", {"sec-fetch-site": "same-origin"}, True),
        ("https://ff.example@server", "server", {}, False),
        ("file://", "", {}, False),
        ("https://", "", {}, False),
        ("https://ff.example:x", "ff.example:x", {}, False),
    ],
)
async def test_what_the_same_origin_is(
    server: Server, origin: str, host: str, more: dict[str, str], same: bool
) -> None:
    """A proxy may speak TLS where this server does not, and may say whom it was asked for."""
    async with client_of(server) as client:
        answer = await client.post("/nowhere", headers={"origin": origin, "host": host, **more})
        assert answer.status_code == (404 if same else 403)


async def test_mounted_below_a_path(engine: Engine) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/flows", app=create_app(engine))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://server") as client:
        good = await client.put("/flows/v1/lanes/default/state", json={"state": "paused"}, headers={"origin": OWN})
        assert good.status_code != 403
        assert (await client.post("/flows/v1/executions", headers={"origin": EVIL})).status_code == 403


# -- headers that are there twice --------------------------------------------------------------------------------------


async def test_headers_that_are_there_twice(engine: Engine) -> None:
    for name in ("authorization", "content-type", "idempotency-key", "origin", "host", "content-length"):
        assert name.encode() in ONCE
    async with listening(engine) as client:
        port = client.base_url.port
        assert port is not None
        for name in ONCE - {b"host"}:
            line = name.title() + b": 0"
            answer = await said(port, request(b"POST /v1/executions HTTP/1.1", line, name + b": 1"))
            assert answer.startswith(b"HTTP/1.1 400 "), name


async def test_headers_that_are_there_twice_behind_another_server(server: Server) -> None:
    async with client_of(server) as client:
        for name in ONCE:
            twice = [(name.decode(), "0"), (name.decode(), "1")]
            answer = await client.post("/v1/executions", headers=twice)
            assert (answer.status_code, name.decode() in answer.text) == (400, True), name
        several = [("x-forwarded-for", "1.2.3.4"), ("x-forwarded-for", "5.6.7.8"), ("accept", "a"), ("accept", "b")]
        assert (await client.get("/v1/lanes", headers=several)).status_code == 200


# -- what every answer says --------------------------------------------------------------------------------------------


def check(headers: Any, where: Any) -> None:
    """Nothing is guessed, framed or kept, and pages run only what they should."""
    assert headers["x-content-type-options"] == "nosniff", where
    assert headers["x-frame-options"] == "DENY", where
    assert headers["referrer-policy"] == "no-referrer", where
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy, where
    assert "frame-ancestors 'none'" in policy, where
    assert "unsafe" not in policy, where
    for name in ("x-content-type-options", "content-security-policy", "cache-control"):
        assert "," not in headers[name], (where, "said twice")


async def test_every_route(engine: Engine) -> None:
    """Refused, about nothing, and about what is there: the successful answers are the ones with something in them."""
    there = await things(engine, NOTHING.namespace)
    token = await credential(engine, list(Scope), None)
    limited = await credential(engine, [Scope.READ], [NOTHING.namespace])
    good = set()
    async with listening(engine, ServerConfig(port=0, require_credential=True)) as client:
        for operation, about in product(ROUTES, (NOTHING, there)):
            path, options = request_of(operation, about)
            for authorization in (None, "Bearer wrong", f"Bearer {limited}", f"Bearer {token}"):
                headers = {} if authorization is None else {"authorization": authorization}
                async with client.stream(operation.method, path, headers=headers, **options) as answer:
                    check(answer.headers, (operation.name, authorization))
                    assert answer.headers["cache-control"] == "no-store"
                    if answer.is_success and operation.operation.scopes:
                        good.add((operation.name, authorization))
    assert {each for _, each in good} == {f"Bearer {limited}", f"Bearer {token}"}, "nobody else gets anything"
    assert len({name for name, _ in good}) > len(ROUTES) / 2, "most routes have to be seen answering"


async def test_files_keep_their_caching(server: Server) -> None:
    async with client_of(server) as client:
        for path in assets():
            answer = await client.get(f"/{path}")
            check(answer.headers, path)
            assert answer.headers["cache-control"] == "no-cache"
            again = await client.get(f"/{path}", headers={"if-none-match": answer.headers["etag"]})
            assert again.status_code == 304
            check(again.headers, path)


async def test_every_kind_of_refusal(engine: Engine) -> None:
    config = ServerConfig(api_token=TOKEN, cors_origins=(LISTED,), rate_limit=0.001, rate_burst=8)
    server = create_app(engine, config)
    json = {"content-type": "application/json"}
    wanted: list[tuple[int, str, str, dict[str, Any]]] = [
        (401, "GET", "/v1/lanes", {"headers": {"authorization": ""}}),
        (403, "POST", "/v1/executions", {"headers": {"origin": EVIL}}),
        (404, "GET", "/nowhere", {}),
        (405, "DELETE", "/v1/executions", {}),
        (400, "POST", "/v1/executions", {"content": b"{", "headers": json}),
        (413, "POST", "/v1/executions", {"content": b" " * 2_000_000, "headers": json}),
        (415, "POST", "/v1/executions", {"content": b"{}"}),
        (422, "POST", "/v1/executions", {"content": b"[]", "headers": json}),
        (431, "GET", "/v1/lanes", {"headers": [(f"x-{number}", "1") for number in range(101)]}),
        (429, "GET", "/v1/lanes", {}),
        (200, "OPTIONS", "/v1/lanes", {"headers": {"origin": LISTED, "access-control-request-method": "GET"}}),
        (400, "OPTIONS", "/v1/lanes", {"headers": {"origin": EVIL, "access-control-request-method": "GET"}}),
    ]
    async with client_of(server) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        for status, method, path, options in wanted:
            answer = await client.request(method, path, **options)
            if status == 429:
                while answer.status_code != status:
                    answer = await client.request(method, path, **options)
            assert answer.status_code == status, (path, answer.text)
            check(answer.headers, (status, path))
            assert answer.headers["cache-control"] == "no-store"


async def test_a_failure_of_ours(server: Server, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> None:
        raise RuntimeError

    monkeypatch.setattr(engine, "ping", broken)
    async with client_of(server) as client:
        answer = await client.get("/healthz")
        assert answer.status_code == 500
        check(answer.headers, "500")


RAW = {
    b"400": b"nothing\r\n\r\n",
    b"408": b"GET / HTTP/1.1\r\n",
    b"431": b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000,
    b"501": request(b"POST / HTTP/1.1", b"transfer-encoding: gzip"),
}


@pytest.mark.parametrize("status", RAW)
async def test_refusals_before_a_request_is_one(engine: Engine, status: bytes) -> None:
    async with listening(engine, ServerConfig(port=0, header_timeout_s=0.2)) as client:
        port = client.base_url.port
        assert port is not None
        answer = await said(port, RAW[status])
        assert answer.startswith(b"HTTP/1.1 " + status)
        lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines)
        check(headers, status)
        assert headers["cache-control"] == "no-store"


async def test_connections_beyond_the_limit_are_told_so_with_care(engine: Engine) -> None:
    async with listening(engine, ServerConfig(port=0, max_connections=1)) as client:
        assert (await client.get("/healthz")).status_code == 200
        port = client.base_url.port
        assert port is not None
        answer = await said(port)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"x-content-type-options: nosniff\r\n" in answer


async def test_the_page_of_routes_is_styled_by_itself_alone(server: Server) -> None:
    import base64
    import hashlib

    async with client_of(server) as client:
        answer = await client.get("/docs")
        check(answer.headers, "/docs")
        style = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)
        assert style is not None
        digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
        assert f"style-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
        assert "<script" not in answer.text
