"""Servers as processes: killed, stopped under load, attacked, and several on one store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.model.streams.frames import Frame
from tests.conftest import full_run
from tests.server.listening import events
from tests.server.making import at, creation
from tests.server.process import ServerProcess

STORES: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "sqlite": lambda request, folder: f"sqlite:///{folder}/ff.db",
    "postgres": lambda request, folder: request.getfixturevalue("prepared_postgres_dsn"),
    "valkey": lambda request, folder: request.getfixturevalue("valkey_url"),
}
POLICY = ClaimPolicy("w", "w-1", 3_600_000)
MIB = 1_048_576
HEAD = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a fresh, empty store."""
    return STORES[request.param](request, tmp_path)


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    """An engine beside the server, on the same store."""
    async with await Engine.open(store_url, single_node=True) as opened:
        yield opened


class Follower:
    """A client that comes back with the last id it has seen, whatever becomes of the server."""

    def __init__(self, url: str, path: str, kind: str) -> None:
        self.url = url
        self.kind = kind
        self.path = path
        self.seen: list[Any] = []
        self.returned = -1
        self._last: str | None = None

    async def follow(self) -> None:
        while True:
            self.returned += 1
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient(base_url=self.url, timeout=30) as client:
                    async for event in events(client, self.path, self._last):
                        if event.identity is not None:
                            self._last = event.identity
                        if event.name == self.kind:
                            self.seen.append(event.data)
            await asyncio.sleep(0.02)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(90):
            while len(self.seen) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_followers_lose_nothing_when_a_server_is_killed(engine: Engine, store_url: str, tmp_path: Path) -> None:
    rounds, each = (8, 200) if full_run() else (3, 40)
    made = await engine.create_execution(lane_id="frames")
    holder = await engine.claim("frames", (), POLICY)
    assert holder is not None
    server = ServerProcess(store_url, tmp_path)
    ends = Follower(server.url, "/v1/events/completion", "completion")
    frames = Follower(server.url, at(str(made.execution_id), "attempts", "0", "stream", "events"), "frame")
    following = [asyncio.create_task(follower.follow()) for follower in (ends, frames)]
    ended: list[str] = []
    try:
        # Who begins to follow now is told of what happens from now on.
        async with httpx.AsyncClient(base_url=server.url) as client:
            async with asyncio.timeout(60):
                while "ff_http" in (await client.get("/metrics")).text and not ends.seen:
                    probe = await engine.create_execution(lane_id="work")
                    await engine.cancel_execution(execution_id=probe.execution_id, reason="seen?")
                    ended.append(probe.execution_id)
                    await asyncio.sleep(0.05)
        known = len(ended) - len(ends.seen)
        for number in range(rounds):
            for position in range(each):
                if position == each // 2:
                    server.close()
                    server = ServerProcess(store_url, tmp_path, server.port)
                made = await engine.create_execution(lane_id="work")
                await engine.cancel_execution(execution_id=made.execution_id, reason="over")
                ended.append(made.execution_id)
                await engine.append_frame(holder, Frame(f"{number}.{position}".encode(), frame_type="line"))
        await ends.until(len(ended) - known)
        await frames.until(rounds * each)
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        server.close()
    assert ends.returned >= rounds
    counts = Counter(str(event["execution_id"]) for event in ends.seen)
    assert set(counts.values()) == {1}
    assert [str(event["execution_id"]) for event in ends.seen] == [str(each) for each in ended][-len(ends.seen) :]
    assert len(frames.seen) == rounds * each
    shown = json.dumps(frames.seen)
    assert len({json.dumps(frame) for frame in frames.seen}) == rounds * each, shown[:500]


async def test_charts_outlive_the_server_that_sampled_them(engine: Engine, store_url: str, tmp_path: Path) -> None:
    await engine.create_executions([{"lane_id": "mail"}] * 3)

    async def overview(url: str) -> Any:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            return (await client.get("/v1/overview")).json()

    with ServerProcess(store_url, tmp_path) as server:
        before = await overview(server.url)
        server.kill()
    begun = before["series"]["sampled_from"]
    assert begun is not None
    kept = (await engine.list_samples()).samples
    assert kept[0].pulse.at_ms == begun
    assert kept[0].waiting("mail")[0] == 3
    with ServerProcess(store_url, tmp_path) as server:
        after = await overview(server.url)
    series = after["series"]
    assert after["now"]["at_ms"] > begun
    assert series["sampled_from"] == begun
    shown = {moment for moment, count in zip(series["times"], series["lanes_waiting"]["mail"], strict=True) if count}
    assert begun - begun % series["step_ms"] in shown


# -- stopping ----------------------------------------------------------------------------------------------------------


async def test_nothing_that_was_acknowledged_is_lost_by_a_stop_under_load(
    engine: Engine, store_url: str, tmp_path: Path
) -> None:
    acknowledged: list[str] = []
    odd: list[Any] = []

    async def create(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            while True:
                identity = f"{{fp:0}}:{uuid.uuid4()}"
                try:
                    response = await client.post("/v1/executions", json=creation(execution_id=identity))
                except httpx.HTTPError:
                    # Not accepted any more, or the connection was closed before the request was begun.
                    return
                if response.status_code == 201:
                    acknowledged.append(identity)
                else:
                    odd.append((response.status_code, response.text))

    with ServerProcess(store_url, tmp_path) as server:
        clients = [asyncio.create_task(create(server.url)) for _ in range(16)]
        async with asyncio.timeout(60):
            while len(acknowledged) < 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        server.signal()
        await asyncio.gather(*clients)
        assert await asyncio.to_thread(server.wait) == 0
    assert odd == []
    for identity in acknowledged:
        assert await engine.get_execution_namespace(identity) == "acme"


async def test_a_request_under_way_is_finished(engine: Engine, store_url: str, tmp_path: Path) -> None:
    body = json.dumps(creation()).encode()
    head = (HEAD % b"/v1/executions") + b"content-length: %d\r\n\r\n" % len(body)
    with ServerProcess(store_url, tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head + body[:10])
        await writer.drain()
        async with httpx.AsyncClient(base_url=server.url) as client:
            assert (await client.get("/readyz")).status_code == 200
        server.signal()
        async with asyncio.timeout(60):
            while True:
                try:
                    _, refused = await asyncio.open_connection("127.0.0.1", server.port)
                except OSError:
                    break
                refused.close()
                await asyncio.sleep(0.02)
        writer.write(body[10:])
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith(b"HTTP/1.1 201 ")
        identity = json.loads(answer.partition(b"\r\n\r\n")[2])["Created"]["execution_id"]
        writer.close()
        assert await asyncio.to_thread(server.wait) == 0
    assert await engine.get_execution_namespace(identity) == "acme"


# -- several -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", ["postgres_dsn", "valkey_url"])
async def test_two_servers_begin_on_one_empty_database(
    empty: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue(empty)
    headers = {"authorization": "Bearer token-of-this-test"}
    # A process lives no longer than the thread that has started it.
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(
            lambda _: ServerProcess(url, tmp_path, FF_API_TOKEN="token-of-this-test", FF_LANES="a,b"), range(2)
        )
        async with (
            httpx.AsyncClient(base_url=first.url, headers=headers, timeout=60) as one,
            httpx.AsyncClient(base_url=second.url, headers=headers, timeout=60) as two,
        ):
            assert (await two.get("/v1/lanes")).json()["lanes"] == ["a", "b"]
            sampled = [(await each.get("/v1/overview")).json()["series"]["sampled_from"] for each in (one, two)]
            assert sampled[0] is not None
            assert sampled[0] == sampled[1], "they share the sample of the one that was first"
            heard = asyncio.create_task(anext(events(two, "/v1/events/completion")))
            async with asyncio.timeout(60):
                while not heard.done():
                    made = await one.post("/v1/executions", json=creation(lane_id="a"))
                    identity = made.json()["Created"]["execution_id"]
                    assert (await two.get(at(identity, "state"))).json() == "waiting"
                    body = {"execution_id": identity, "reason": "over", "source": "operator_override"}
                    assert (await two.post(at(identity, "cancel"), json=body)).status_code == 200
                    assert (await one.get(at(identity, "state"))).json() == "cancelled"
                    await asyncio.sleep(0.05)
            first.kill()
            soon = await two.post("/v1/executions", json=creation(lane_id="b"))
            assert soon.status_code == 201
            assert (await two.get("/readyz")).status_code == 200
        first.close()
        second.close()


async def test_what_ended_goes_when_its_time_is_over(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:///{tmp_path}/ff.db", tmp_path, FF_RETENTION_TRIMMER_INTERVAL_S="1") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            kept, gone = [
                (await client.post("/v1/executions", json=creation(policy=policy))).json()["Created"]["execution_id"]
                for policy in ({}, {"stream_policy": {"retention_ttl_ms": 1}})
            ]
            for identity in (kept, gone):
                body = {"execution_id": identity, "reason": "over", "source": "operator_override"}
                assert (await client.post(at(identity, "cancel"), json=body)).status_code == 200
            async with asyncio.timeout(60):
                while (await client.get(at(gone, "state"))).status_code != 404:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert (await client.get(at(kept, "state"))).json() == "cancelled"


# -- attacks -----------------------------------------------------------------------------------------------------------


async def sent(port: int, data: bytes, times: int = 1) -> bytes:
    """What is answered to bytes, however they are received."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            for _ in range(times):
                writer.write(data)
                await writer.drain()
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                return await reader.readline()
    finally:
        writer.close()
    return b""


async def test_attacks_cost_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    limits = {"FF_MAX_BODY_BYTES": str(24 * MIB), "FF_BODY_TIMEOUT_S": "2", "FF_HEADER_TIMEOUT_S": "2"}
    with ServerProcess("memory://", tmp_path, **limits) as server:
        port = server.port
        before = server.resident_bytes(peak=True)
        bulk, one = HEAD % b"/v1/executions/bulk", HEAD % b"/v1/executions"

        # Large bodies that stop halfway: all of them together hold no more than there is room for.
        half = bulk + b"content-length: %d\r\n\r\n" % (15 * MIB) + b'{"executions": [' + b" " * (10 * MIB)
        halves = await asyncio.gather(*(sent(port, half) for _ in range(20)))
        answers = Counter(each.split()[1] for each in halves if each)
        assert set(answers) <= {b"408", b"503"}
        assert answers[b"503"] >= 10

        # Depth, and brackets that are never closed.
        deep = b"[" * (15 * MIB)
        for path in (bulk, one):
            answer = await sent(port, path + b"content-length: %d\r\n\r\n" % len(deep) + deep)
            assert answer.split()[1] in (b"400", b"413")

        # Bodies without an end, in chunks.
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        endless = await asyncio.gather(
            *(sent(port, one + b"transfer-encoding: chunked\r\n\r\n" + chunk * 17, times=1) for _ in range(20))
        )
        assert {each.split()[1] for each in endless} == {b"413"}

        # Many small things in one body, heads without an end, and connections that say nothing.
        wide = b'{"executions":[' + b"{}," * (4 * MIB) + b"{}]}"
        assert (await sent(port, bulk + b"content-length: %d\r\n\r\n" % len(wide) + wide)).split()[1] in (
            b"400",
            b"422",
        )
        await asyncio.gather(*(sent(port, b"GET / HTTP/1.1\r\nx: " + b"y" * MIB) for _ in range(50)))
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.post("/v1/executions", json=creation())).status_code == 201
        for each in silent:
            each.close()
        grown = server.resident_bytes(peak=True) - before
        assert grown < 128 * MIB, f"{grown / MIB:.0f} MiB"
        assert not [line for line in server.lines if line.get("level") in ("error", "critical")], server.lines
