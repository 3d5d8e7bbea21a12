"""What a server refuses so that it can go on: callers that ask too often, connections that say nothing, large heads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.model.operations.access import Scope
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.http import limits as limiting
from flowfabric.server.http.limits import Body, BodyRoom, RateLimits
from flowfabric.server.http.problems import Refused
from flowfabric.server.serving import Running
from tests.server.conftest import client_of
from tests.server.making import created, creation


def test_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(limiting.time, "monotonic", lambda: now)
    rates = RateLimits(10, 3)
    assert [rates.take("a") for _ in range(3)] == [0, 0, 0]
    assert rates.take("a") == pytest.approx(0.1)
    assert rates.take("b") == 0
    now += 0.1
    assert rates.take("a") == 0
    assert rates.take("a") > 0
    now += 3_600
    assert [rates.take("a") > 0 for _ in range(4)] == [False, False, False, True]


def test_callers_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiting, "MAX_CALLERS", 10)
    rates = RateLimits(1, 1)
    for number in range(100):
        rates.take(str(number))
    assert len(rates) == 10


async def test_each_caller_has_a_rate_of_its_own(engine: Engine) -> None:
    one = await engine.create_credential(name="one", scopes=[Scope.READ])
    two = await engine.create_credential(name="two", scopes=[Scope.READ])
    server = create_app(engine, ServerConfig(rate_limit=0.001, rate_burst=2))
    async with client_of(server, one.token) as first, client_of(server, two.token) as second:
        assert [(await first.get("/v1/lanes")).status_code for _ in range(2)] == [200, 200]
        refused = await first.get("/v1/lanes")
        assert refused.status_code == 429
        assert refused.json()["kind"] == "rate_limit_exceeded"
        assert refused.json()["retryable"] is True
        assert int(refused.headers["retry-after"]) >= 1
        assert (await second.get("/v1/lanes")).status_code == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await first.get(path)).status_code == 200
        assert 'ff_http_limited_total{limit="rate"} 1' in (await first.get("/metrics")).text
    async with client_of(server, "ff_guess_guess") as guessing:
        answers = [(await guessing.get("/v1/lanes")).status_code for _ in range(4)]
        assert answers == [401, 401, 429, 429]
        assert (await guessing.get("/nowhere")).status_code == 429


async def test_no_limit_unless_it_is_asked_for(client: httpx.AsyncClient) -> None:
    for _ in range(200):
        assert (await client.get("/v1/lanes")).status_code == 200


async def test_too_many_headers(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/lanes", headers=[(f"x-{number}", "1") for number in range(101)])
    assert response.status_code == 431


async def test_bodies_share_one_room(engine: Engine) -> None:
    server = create_app(engine, ServerConfig(max_body_bytes=1_000))
    async with client_of(server) as client:
        assert await created(client)
        full = await client.post("/v1/executions", json=creation(input_payload=[0] * 2_000))
        assert (full.status_code, full.json()["kind"]) == (503, "resource_exhausted")
        assert full.headers["retry-after"] == "1"
        assert server.bodies.held == 0
        assert await created(client)
        for bad in (b"{", b"[]", b"\xff"):
            await client.post("/v1/executions", content=bad, headers={"content-type": "application/json"})
    assert server.bodies.held == 0


def test_a_room_is_given_back() -> None:
    room = BodyRoom(10)
    body, other = Body(room), Body(room)
    body.take(10)
    with pytest.raises(Refused):
        other.take(1)
    body.close()
    other.take(10)


# -- connections -------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listening(engine: Engine, **limits: float) -> AsyncIterator[Running]:
    config = ServerConfig(port=0, **limits)  # type: ignore[arg-type]
    server = create_app(engine, config)
    running = Running(server, config, server)
    task = asyncio.create_task(running.run())
    await running.started()
    try:
        yield running
    finally:
        running.stop()
        await task


_writers: list[asyncio.StreamWriter] = []


async def opened(running: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that is closed after the test."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    _writers.append(writer)
    return reader, writer


@pytest.fixture(autouse=True)
async def _close() -> AsyncIterator[None]:
    yield
    while _writers:
        writer = _writers.pop()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        return await reader.read()


async def test_heads_that_do_not_arrive(engine: Engine) -> None:
    async with listening(engine, header_timeout_s=0.2) as running:
        silent, _ = await opened(running)
        reader, writer = await opened(running)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: ")
        assert (await answer(reader)).startswith(b"HTTP/1.1 408 ")
        assert await answer(silent) == b""
        trickling, writer = await opened(running)
        reading = asyncio.create_task(answer(trickling))
        with contextlib.suppress(ConnectionError):
            for letter in b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 10_000:
                writer.write(bytes([letter]))
                await writer.drain()
                if reading.done():
                    break
                await asyncio.sleep(0.01)
        assert (await reading).startswith(b"HTTP/1.1 408 ")
        text = running.server.metrics.text().decode()
        assert 'ff_http_limited_total{limit="slow"} 3' in text


async def test_a_body_that_nobody_reads_is_not_waited_for(engine: Engine) -> None:
    async with listening(engine, header_timeout_s=0.2) as running:
        reader, writer = await opened(running)
        writer.write(b"POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2000000\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        reading = asyncio.create_task(answer(reader))
        with contextlib.suppress(ConnectionError):
            while not reading.done():
                writer.write(b"y")
                await writer.drain()
                await asyncio.sleep(0.01)
        await reading


async def test_a_body_that_does_not_arrive(engine: Engine) -> None:
    async with listening(engine, body_timeout_s=0.2) as running:
        reader, writer = await opened(running)
        head = b"POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(head + b'content-length: 1000\r\n\r\n{"namespace": ')
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        assert running.server.bodies.held == 0
        writer.close()


async def test_a_request_that_works_for_long_is_left_alone(engine: Engine) -> None:
    async with listening(engine, header_timeout_s=0.1) as running:
        reader, writer = await opened(running)
        writer.write(b"GET /v1/events/completion HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(0.5)
        async with httpx.AsyncClient(base_url=f"http://localhost:{running.port}") as client:
            identity = await created(client)
            await engine.cancel_execution(execution_id=identity, reason="seen")
        async with asyncio.timeout(60):
            while b"event:" not in await reader.readline():
                pass
        writer.close()


async def test_connections_beyond_the_limit(engine: Engine) -> None:
    async with listening(engine, max_connections=2) as running:
        kept = [await opened(running) for _ in range(2)]
        for _, writer in kept:
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        for reader, _ in kept:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        reader, _ = await opened(running)
        refused = await answer(reader)
        assert refused.startswith(b"HTTP/1.1 503 ")
        head, _, body = refused.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        kept[0][1].close()
        await kept[0][1].wait_closed()
        async with asyncio.timeout(60):
            while True:
                reader, writer = await opened(running)
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                if (await answer(reader)).startswith(b"HTTP/1.1 200 "):
                    break
        for _, writer in kept:
            writer.close()


async def test_a_head_that_is_too_large(engine: Engine) -> None:
    async with listening(engine) as running:
        reader, writer = await opened(running)
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " if _ == 0 else b"y" * 1_000)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            assert (await answer(reader)).startswith(b"HTTP/1.1 431 ")
