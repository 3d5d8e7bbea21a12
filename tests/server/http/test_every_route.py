"""What every route has in common: credentials, limits, malformed input, error bodies, metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.model.errors import (
    Bug,
    BugKind,
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    Contextual,
    EngineError,
    LimitReached,
    NotFound,
    ResourceExhausted,
    State,
    StateKind,
    Timeout,
    Transport,
    TransportKind,
    Unavailable,
    Validation,
    ValidationKind,
)
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from flowfabric.server.http.problems import told
from tests.server.conftest import client_of
from tests.server.making import at, created, creation

UNAUTHORISED = {"error": "missing or invalid Authorization header"}


@pytest.fixture
def guarded(engine: Engine) -> Server:
    return create_app(engine, ServerConfig(api_token="token-of-this-test"))


async def test_a_token_is_asked_for(guarded: Server) -> None:
    async with client_of(guarded) as client:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "bearer secret"},
            {"authorization": "token-of-this-test"},
        ):
            response = await client.get("/v1/executions?partition=1", headers=headers)
            assert (response.status_code, response.json()) == (401, UNAUTHORISED)
        assert (await client.get("/nowhere")).status_code == 401
        for path in ("/livez", "/healthz", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200
    async with client_of(guarded, "token-of-this-test") as client:
        assert (await client.get("/v1/executions?partition=1")).status_code == 200


async def test_paths_and_methods(client: httpx.AsyncClient) -> None:
    unknown = await client.get("/v1/nowhere")
    assert (unknown.status_code, unknown.json()) == (404, {"error": "not found"})
    wrong = await client.delete("/v1/executions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, POST")
    head = await client.head("/healthz")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("content", "media", "status", "why"),
    [
        (b"{", "application/json", 400, "it ends too early"),
        (b"", "application/json", 400, "it ends too early"),
        (b"\xff", "application/json", 400, "invalid character (byte 0)"),
        (b'{"reason": "\xff"}', "application/json", 400, "not UTF-8"),
        (b"[" * 65, "application/json", 400, "nested deeper than 64 levels"),
        (b'{"reason": 1}', "application/json", 422, "reason: expected text"),
        (b"[]", "application/json", 422, "expected an object"),
        (b"{}", "application/json", 422, "reason: this field is required"),
        (b'{"reason": ""}', "text/plain", 415, "expected Content-Type: application/json"),
        (b'{"reason": ""}', None, 415, "expected Content-Type: application/json"),
        (b'{"reason": ""}', "application/json; charset=utf-8", 200, ""),
        (b'{"reason": ""}', "application/vnd.some+json", 200, ""),
        (b'{"reason": "", "unknown": 1}', "application/json", 200, ""),
    ],
)
async def test_malformed_bodies(
    client: httpx.AsyncClient, content: bytes, media: str | None, status: int, why: str
) -> None:
    identity = await created(client)
    headers = {} if media is None else {"content-type": media}
    response = await client.post(at(identity, "cancel"), content=content, headers=headers)
    assert response.status_code == status
    if status != 200:
        phrase = {400: "Bad Request", 415: "Unsupported Media Type", 422: "Unprocessable Entity"}[status]
        assert response.json() == {"error": f"invalid JSON: {phrase}: {why}"}


@pytest.mark.parametrize(
    "field", ["namespace", "lane_id", "execution_kind", "input_payload", "priority", "creator_identity"]
)
async def test_what_must_be_said(client: httpx.AsyncClient, field: str) -> None:
    assert (await client.post("/v1/executions", json=creation(**{field: ...}))).status_code == 422


async def _pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 1024):
        yield b" " * 1024


@pytest.mark.parametrize(
    ("rest", "limit", "route"),
    [
        (("cancel",), 65_536, "/v1/executions/{id}/cancel"),
        (("signal",), 262_144, "/v1/executions/{id}/signal"),
        (("replay",), 65_536, "/v1/executions/{id}/replay"),
    ],
)
async def test_limits_of_bodies(client: httpx.AsyncClient, rest: tuple[str, ...], limit: int, route: str) -> None:
    identity = await created(client)
    headers = {"content-type": "application/json"}
    expected = {"error": "payload_too_large", "limit_bytes": limit, "route": route}
    response = await client.post(at(identity, *rest), content=b" " * (limit + 1), headers=headers)
    assert (response.status_code, response.json()) == (413, expected)
    if rest != ("replay",):
        response = await client.post(at(identity, *rest), content=_pieces(limit + 2048), headers=headers)
        assert (response.status_code, response.json()) == (413, expected)
        assert (await client.post(at(identity, *rest), content=b" " * limit, headers=headers)).status_code == 400


async def test_the_limit_of_a_creation(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    response = await client.post("/v1/executions", content=b" " * 1_048_577, headers=headers)
    assert response.json() == {"error": "payload_too_large", "limit_bytes": 1_048_576, "route": "/v1/executions"}


async def test_deep_json_is_refused(client: httpx.AsyncClient) -> None:
    for depth, status in ((20, 201), (65, 400), (100_000, 400)):
        text = json.dumps(creation(policy="@")).replace('"@"', '{"a":' * depth + "1" + "}" * depth)
        response = await client.post("/v1/executions", content=text, headers={"content-type": "application/json"})
        assert response.status_code == status
        assert ("invalid JSON" in response.text) is (depth > 64)


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (NotFound("flow", "x"), 404, {"error": "not found: flow"}),
        (Validation(ValidationKind.INVALID_INPUT, "why"), 400, {"error": "invalid_input: why"}),
        (Validation(ValidationKind.INVALID_KID), 400, {"error": "invalid_kid"}),
        (Validation(ValidationKind.INVALID_TOKEN, "invalid_token"), 400, {"error": "invalid_token"}),
        (Validation(ValidationKind.INVALID_TOKEN, "token_expired"), 400, {"error": "token_expired"}),
        (Validation(ValidationKind.INVALID_TOKEN, "missing_token"), 400, {"error": "missing_token"}),
        (
            Validation(ValidationKind.CORRUPTION, "column"),
            500,
            {"error": "corruption: column", "kind": "corruption", "retryable": False},
        ),
        (
            Conflict(ConflictKind.CYCLE_DETECTED),
            409,
            {"error": "cycle_detected: CycleDetected", "kind": "cycle_detected", "retryable": False},
        ),
        (
            Contention(ContentionKind.STALE_GRAPH_REVISION),
            409,
            {"error": "contention: StaleGraphRevision", "kind": "contention", "retryable": True},
        ),
        (
            Contention(ContentionKind.RATE_LIMIT_EXCEEDED),
            429,
            {"error": "rate_limit_exceeded: RateLimitExceeded", "kind": "rate_limit_exceeded", "retryable": True},
        ),
        (
            Contention(ContentionKind.RETRY_EXHAUSTED),
            503,
            {"error": "retry_exhausted: RetryExhausted", "kind": "retry_exhausted", "retryable": True},
        ),
        (
            State(StateKind.NOT_RUNNABLE),
            409,
            {"error": "not_runnable: NotRunnable", "kind": "not_runnable", "retryable": False},
        ),
        (
            State(StateKind.LEASE_EXPIRED),
            409,
            {"error": "already_satisfied: LeaseExpired", "kind": "already_satisfied", "retryable": False},
        ),
        (
            State(StateKind.STALE_LEASE),
            409,
            {"error": "state_conflict: StaleLease", "kind": "state_conflict", "retryable": False},
        ),
        (
            ResourceExhausted("stream_ops", 64),
            429,
            {
                "error": "too many concurrent stream_ops calls (server max: 64); retry with backoff",
                "kind": "resource_exhausted",
                "retryable": True,
            },
        ),
        (
            LimitReached("MAX_FLOW_NODES", 3),
            400,
            {"error": "limit_reached: MAX_FLOW_NODES=3", "kind": "limit_reached", "retryable": False},
        ),
        (
            Unavailable("x"),
            503,
            {"error": "backend op unavailable: x", "kind": "unavailable", "retryable": False},
        ),
        (
            Contextual("here", Transport("postgres", TransportKind.TIMEOUT, "secret detail")),
            500,
            {"error": "postgres: timeout", "kind": "timeout", "retryable": True},
        ),
        (
            Transport("sqlite", TransportKind.OTHER),
            500,
            {"error": "sqlite: other", "kind": "other", "retryable": False},
        ),
        (Timeout("cancel_flow", 5), 500, {"error": "operation_timeout", "retryable": False}),
        (Bug(BugKind.INTERNAL_ERROR, "x"), 500, {"error": "internal_error", "retryable": False}),
    ],
)
def test_errors_as_bodies(error: EngineError, status: int, body: dict[str, object]) -> None:
    assert told(error) == (status, body)


async def test_a_bug_is_answered_without_a_traceback(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("secret")

    server.engine.ping = broken  # type: ignore[method-assign]
    async with client_of(server) as client:
        response = await client.get("/healthz")
    assert (response.status_code, response.json()) == (500, {"error": "internal error", "retryable": False})
    assert "ZeroDivisionError" in caplog.text


async def test_metrics_count_by_route(client: httpx.AsyncClient) -> None:
    identity = await created(client)
    await client.get(at(identity, "state"))
    await client.get("/nowhere")
    response = await client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = response.text.splitlines()
    assert 'ff_http_requests_total{method="GET",path="/v1/executions/{id}/state",status="200"} 1' in lines
    assert 'ff_http_requests_total{method="GET",path="unknown",status="404"} 1' in lines
    assert 'ff_http_request_duration_seconds_count{method="POST",path="/v1/executions",status="201"} 1' in lines
    assert "/metrics" not in response.text


async def test_metrics_can_be_switched_off(engine: Engine) -> None:
    async with client_of(create_app(engine, ServerConfig(metrics=False))) as client:
        assert (await client.get("/metrics")).status_code == 404


async def test_a_server_lives_whatever_its_store_does(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone() -> None:
        raise Transport("postgres", TransportKind.TRANSPORT, "gone")

    monkeypatch.setattr(engine, "ping", gone)
    async with client_of(create_app(engine, ServerConfig())) as client:
        assert (await client.get("/livez")).json() == {"status": "alive"}
        assert (await client.get("/readyz")).status_code == 503


async def test_health_and_version(client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ready"}
    assert (await client.get("/version")).json()["store"] == "memory"
