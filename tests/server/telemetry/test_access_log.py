"""What a server says about requests, and what it never says."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from flowfabric.telemetry.logs import configure
from tests.server.conftest import client_of
from tests.server.making import at, created, creation

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
#: Something that stands in every field where a caller could put a secret.
PLANTED = "hush-5f3a9c-5f3a9c"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Everything that is logged, down to the last detail."""
    names = ("", "flowfabric", "audit")
    before = {name: logging.getLogger(name or None).level for name in names}
    stream = io.StringIO()
    handler = configure("debug,asyncio=info,httpx=warning,httpcore=warning", stream)
    yield stream
    logging.getLogger().removeHandler(handler)
    for name, level in before.items():
        logging.getLogger(name or None).setLevel(level)


def lines(stream: io.StringIO, logger: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in found if line["logger"] == logger]


async def test_one_line_for_each_request(client: httpx.AsyncClient, written: io.StringIO) -> None:
    identity = await created(client)
    response = await client.get(at(identity, "state"), headers={"x-request-id": "mine-1", "traceparent": PARENT})
    assert response.headers["x-request-id"] == "mine-1"
    unknown = await client.get("/nowhere/at/all")
    first, second, third = lines(written, "flowfabric.access")
    assert (first["method"], first["route"], first["status"]) == ("POST", "/v1/executions", 201)
    assert first["who"] == "anybody"
    assert first["duration_ms"] > 0
    assert (second["route"], second["status"]) == ("/v1/executions/{id}/state", 200)
    assert (second["request_id"], second["trace_id"]) == ("mine-1", "0af7651916cd43dd8448eb211c80319c")
    assert (third["route"], third["status"]) == ("unknown", 404)
    assert third["request_id"] == unknown.headers["x-request-id"]
    assert "trace_id" not in third
    assert identity not in written.getvalue()


@pytest.mark.parametrize("given", ["", "a b", "ä", "x" * 129, 'q"'])
async def test_an_id_that_cannot_be_used_is_replaced(client: httpx.AsyncClient, given: str) -> None:
    response = await client.get("/healthz", headers={"x-request-id": given.encode()})
    assert len(response.headers["x-request-id"]) == 32


async def test_probes_are_quiet(server: Server, written: io.StringIO) -> None:
    logging.getLogger().setLevel(logging.INFO)
    async with client_of(server) as client:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200
    assert lines(written, "flowfabric.access") == []


@pytest.fixture
async def guarded(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the token of the configuration."""
    server = create_app(engine, ServerConfig(api_token=PLANTED))
    async with client_of(server, PLANTED) as client:
        yield client


def planted(value: Any) -> Any:
    """A body with the secret in every text."""
    if isinstance(value, dict):
        return {key: planted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [planted(each) for each in value]
    return PLANTED if isinstance(value, str) else value


def bodies(server: Server) -> Iterator[tuple[str, str, Any]]:
    """Requests to every route that takes a body: the secret as every field, as the only one, and around it."""
    for route in server.routes:
        if route.name == "follow_changes":
            # Takes nothing that could be planted, and never ends.
            continue
        path = route.path
        for name in ("id", "name", "idx", "family", "kid", "instance"):
            path = path.replace(f"{{{name}}}", PLANTED)
        path = path.replace("{", "").replace("}", "")
        fields = getattr(route.body, "__struct_fields__", ())
        yield route.method, path, dict.fromkeys(fields, PLANTED)
        yield route.method, path, {PLANTED: PLANTED}
        yield route.method, path, {field: {PLANTED: [PLANTED]} for field in fields}


async def test_secrets_in_every_field_never_reach_a_line(
    guarded: httpx.AsyncClient, engine: Engine, written: io.StringIO
) -> None:
    server: Any = guarded._transport.app  # type: ignore[attr-defined]
    for method, path, body in bodies(server):
        headers = {"idempotency-key": PLANTED, "x-other": PLANTED, "last-event-id": PLANTED, "tracestate": PLANTED}
        response = await guarded.request(method, path, json=body, headers=headers, params={"cursor": PLANTED})
        assert response.status_code < 500, (path, response.text)
        await guarded.request(
            method, path, content=f'{{"{PLANTED}": '.encode(), headers={"content-type": "application/json"}
        )
    payload = list(PLANTED.encode())
    identity = await created(guarded, input_payload=payload, tags={"app.secret": PLANTED}, idempotency_key=PLANTED)
    await guarded.post("/v1/executions", json=planted(creation()))
    await guarded.post(
        at(identity, "cancel"), json={"execution_id": identity, "reason": PLANTED, "source": "operator_override"}
    )
    wrong = await guarded.get(at(identity, "state"), headers={"authorization": f"Bearer no-{PLANTED}"})
    assert wrong.status_code == 401
    assert lines(written, "flowfabric.access")
    assert lines(written, "audit")
    assert PLANTED not in written.getvalue()
