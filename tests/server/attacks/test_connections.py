"""Clients that do not read, do not finish or send without end: whatever they do, the server's memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.engine.reads.subscriptions import Subscription
from flowfabric.model.reads.subscriptions import cursor_to_text
from flowfabric.model.streams.frames import Frame
from flowfabric.server import ServerConfig
from flowfabric.server.console import assets
from flowfabric.server.http.connection import AHEAD_BYTES
from flowfabric.server.http.limits import AnswerRoom
from flowfabric.server.http.outgoing import PIECE_BYTES
from flowfabric.server.operations import Route
from flowfabric.server.routes import ROUTES
from flowfabric.server.routes.live.events import HELD_EVENTS
from flowfabric.telemetry.metrics import Counter
from tests.server.access.test_roles import NOTHING, request_of
from tests.server.http.test_connection import request, said, serving
from tests.server.listening import events, listening
from tests.server.making import at
from tests.server.process import ServerProcess

MIB = 1_048_576
#: What docs/server.md promises.
CONNECTIONS, PROMISED = 1_000, 300 * MIB
#: The same for one connection.
ONE = 256 * 1_024
LARGEST = "/" + max(assets(), key=lambda path: len(assets()[path].body))


# -- a process of its own, whose memory can be read --------------------------------------------------------------------


@pytest.fixture
def files() -> Iterator[None]:
    """Room for a thousand sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ff.db"


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    """An engine beside the server, on the same store."""
    async with await Engine.open(store_url, single_node=True) as opened:
        yield opened


@pytest.fixture
def process(files: None, engine: Engine, store_url: str, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(store_url, tmp_path) as started:
        yield started


def asking(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def unread(port: int, data: bytes) -> socket.socket:
    """A connection that asks, has little room for the answer, and does not look at it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    client.setblocking(True)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        client.send(data)
    return client


@contextlib.contextmanager
def thousand(port: int, *asked: bytes) -> Iterator[None]:
    """A thousand such connections, in turn for each of these."""
    clients = [unread(port, asked[number % len(asked)]) for number in range(CONNECTIONS)]
    try:
        yield
    finally:
        for each in clients:
            each.close()


async def settled(process: ServerProcess) -> None:
    """Wait until the server has come to everything that was asked before, and answers others."""
    async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
        for _ in range(3):
            assert (await client.get("/healthz")).status_code == 200
            await asyncio.sleep(0.2)


async def with_executions(engine: Engine) -> str:
    await engine.create_executions([{"namespace": "acme", "lane_id": "later"}] * 1_000)
    return "/v1/search/executions?limit=1000"


async def with_result(engine: Engine) -> str:
    made = await engine.create_execution(namespace="acme", lane_id="default")
    handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1", 3_600_000))
    assert handle is not None
    await engine.complete(handle, b"x" * MIB)
    return at(str(made.execution_id), "result")


async def with_frames(engine: Engine) -> str:
    made = await engine.create_execution(namespace="acme", lane_id="default")
    handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1", 3_600_000))
    assert handle is not None
    for _ in range(60):
        await engine.append_frame(handle, Frame(b"x" * 60_000))
    return at(str(made.execution_id), "attempts", "0", "stream", "events")


async def with_events(engine: Engine) -> str:
    first = (await engine.read_events("completion")).cursor
    made = await engine.create_executions([{"namespace": "acme", "lane_id": "later"}] * 1_000)
    await asyncio.gather(*(engine.cancel_execution(execution_id=each.execution_id, reason="seen") for each in made))
    return f"/v1/events/completion?cursor={quote(cursor_to_text(first))}"


async def with_file(engine: Engine) -> str:
    return LARGEST


WANTED = {each.__name__: each for each in (with_file, with_executions, with_result, with_frames, with_events)}


@pytest.mark.parametrize("wanted", [["with_file"], ["with_result"], [*WANTED]], ids=["file", "result", "everything"])
async def test_a_thousand_that_do_not_read(engine: Engine, process: ServerProcess, wanted: list[str]) -> None:
    paths = [await WANTED[each](engine) for each in wanted]
    async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
        for path in paths:
            async with client.stream("GET", path, headers={"accept-encoding": "identity"}) as answer:
                assert answer.status_code == 200, await answer.aread()
                size = 0
                async for chunk in answer.aiter_raw():
                    size += len(chunk)
                    if size > PIECE_BYTES:
                        break
                assert size > PIECE_BYTES, "there must be enough to wait for"
    before = process.resident_bytes()
    with thousand(process.port, *map(asking, paths)):
        await settled(process)
        assert process.resident_bytes(peak=True) - before < PROMISED
    await settled(process)


async def test_requests_behind_an_answer_that_nobody_reads(process: ServerProcess) -> None:
    await settled(process)
    before = process.resident_bytes()
    client = unread(process.port, b"")
    try:
        sent = memoryview(asking(LARGEST) * 20_000)
        for _ in range(40):
            with contextlib.suppress(BlockingIOError):
                sent = sent[client.send(sent) :]
            await asyncio.sleep(0.01)
        await settled(process)
        # Each of those answers alone has more than a hundred kilobytes.
        assert process.resident_bytes(peak=True) - before < 16 * MIB
    finally:
        client.close()


# -- within this process, byte by byte ---------------------------------------------------------------------------------


class Busy:
    """An application that answers when it is told to, and shows what its connections hold."""

    def __init__(self, answer: bytes = b"done") -> None:
        self.answer = answer
        self.asked = 0
        self.go_on = asyncio.Event()
        self.connections: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        self.connections.append(receive.__self__._connection)
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.answer})

    def held(self) -> int:
        """Bytes that wait for the last connection, but for those that are counted with all other answers."""
        connection = self.connections[-1]
        body = 0 if connection._exchange is None else sys.getsizeof(connection._exchange._body)
        waiting = int(connection.transport.get_write_buffer_size()) + len(connection.out._rest or b"")
        return sys.getsizeof(connection._buffer) + body + max(waiting - self.counted(), 0)

    def counted(self) -> int:
        """Bytes that count for all connections together."""
        counted: int = self.connections[-1].bounds.answers.held
        return counted


async def poured(writer: asyncio.StreamWriter, data: bytes, times: int) -> None:
    """Send something again and again, as far as it is taken."""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0.7):
            for _ in range(times):
                writer.write(data)
                await writer.drain()


async def asked(busy: Busy) -> None:
    async with asyncio.timeout(20):
        while not busy.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_requests_behind_one_that_takes_long() -> None:
    busy = Busy()
    async with serving(busy) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await poured(writer, asking("/") * 1_000, 1_000)
        await asked(busy)
        assert busy.asked == 1
        assert busy.held() < ONE
        busy.go_on.set()
        for _ in range(10):
            assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 OK")
        # Closing would wait until all that was asked is answered to nobody.
        writer.transport.abort()


async def test_bodies_in_single_bytes_take_no_more_than_others() -> None:
    busy = Busy()
    async with serving(busy) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"POST / HTTP/1.1", b"transfer-encoding: chunked"))
        await poured(writer, b"1\r\nx\r\n" * 10_000, 100)
        await asked(busy)
        assert busy.connections[-1]._exchange.held > AHEAD_BYTES / 2
        assert busy.held() < ONE
        busy.go_on.set()
        writer.close()


async def test_answers_wait_in_pieces_and_arrive_whole() -> None:
    busy = Busy(bytes(range(256)) * 4_096 * 16)
    busy.go_on.set()
    async with serving(busy) as port:
        client = unread(port, asking("/") * 3)
        reader, writer = await asyncio.open_connection(sock=client, limit=4_096)
        await asked(busy)
        await asyncio.sleep(0.3)
        assert busy.asked == 1, "no other request is begun before the first is answered"
        assert busy.held() < ONE
        assert busy.counted() >= len(busy.answer), "an answer that is made whole waits whole, and counts"
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            assert f"content-length: {len(busy.answer)}".encode() in head
            assert await reader.readexactly(len(busy.answer)) == busy.answer
        assert busy.asked == 3
        writer.close()


async def test_who_reads_nothing_is_cut_off_and_who_reads_slowly_is_not() -> None:
    away = Counter("turned_away", "", ("why",))
    busy = Busy(b"x" * (MIB // 2))
    busy.go_on.set()
    async with serving(busy, write_timeout_s=0.5, turned_away=away) as port:
        slow, writer = await asyncio.open_connection(sock=unread(port, request(b"GET / HTTP/1.1")), limit=4_096)
        idle = unread(port, request(b"GET / HTTP/1.1"))
        taken = 0
        while data := await slow.read(PIECE_BYTES):
            taken += len(data)
            await asyncio.sleep(0.05)
        assert taken > len(busy.answer)
        async with asyncio.timeout(20):
            while len(_open(busy)) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert 'why="unread"} 1' in "\n".join(away.lines())
        idle.close()
        writer.close()


def _open(busy: Busy) -> list[Any]:
    return [each for each in busy.connections if not each.transport.is_closing()]


async def test_answers_that_wait_share_one_room() -> None:
    busy = Busy(b"x" * MIB)
    busy.go_on.set()
    async with serving(busy, answer_bytes=4 * MIB + 100_000) as port:
        clients = []
        for number in range(8):
            clients.append(unread(port, asking("/")))
            async with asyncio.timeout(20):
                while busy.asked <= number:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert [each.transport.is_closing() for each in busy.connections] == [True] * 4 + [False] * 4
        answer = await said(port, request(b"GET / HTTP/1.1"))
        assert answer.endswith(busy.answer), "whoever reads gets the whole"
        for each in clients:
            each.close()


def test_a_room_of_answers() -> None:
    class Reader:
        def __init__(self) -> None:
            self.is_cut = False

        def cut(self) -> None:
            self.is_cut = True
            room.leave(self)

    room = AnswerRoom(10)
    first, second, third = Reader(), Reader(), Reader()
    room.wait(first, 5)
    room.wait(second, 5)
    room.leave(first)
    room.wait(first, 5)
    room.wait(third, 5)
    assert [each.is_cut for each in (first, second, third)] == [False, True, False]
    assert (room.held, len(room)) == (10, 2)
    room.wait(second, 100)
    assert (room.held, len(room)) == (100, 1), "a single one that is too large may still be read"
    room.leave(second)
    assert (room.held, len(room)) == (0, 0)


# -- bodies that do not come, on every route ---------------------------------------------------------------------------

STOPPED = {
    "nothing of it": ([b"content-length: 10"], b""),
    "half of it": ([b"content-length: 10"], b'{"a'),
    "no last chunk": ([b"transfer-encoding: chunked"], b"2\r\n{}\r\n"),
    "half a chunk": ([b"transfer-encoding: chunked"], b"ff\r\n{"),
    "no end of trailers": ([b"transfer-encoding: chunked"], b"0\r\na: b\r\n"),
    "not what it was asked for": ([b"content-length: 10", b"expect: 100-continue"], b""),
}


@pytest.mark.parametrize("what", STOPPED)
async def test_bodies_that_stop(what: str) -> None:
    headers, body = STOPPED[what]
    config = ServerConfig(port=0, header_timeout_s=0.3, body_timeout_s=0.3)
    async with await Engine.open("memory://") as engine, listening(engine, config) as client:
        port = client.base_url.port
        assert port is not None

        async def ask(operation: Route) -> None:
            path, _ = request_of(operation, NOTHING)
            line = f"{operation.method} {path} HTTP/1.1".encode()
            lines = [line, b"host: localhost", b"content-type: application/json", *headers, b"", body]
            answer = await said(port, b"\r\n".join(lines))
            last = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
            assert last.startswith(b"HTTP/1.1 408 " if operation.body is not None else b"HTTP/1.1 "), answer
            assert b"connection: close" in last, answer

        await asyncio.gather(*(ask(each) for each in ROUTES if each.media != "text/event-stream"))


@pytest.mark.parametrize("path", ["/v1/changes", "/v1/events/completion"])
async def test_followers_that_send_without_end(path: str) -> None:
    async with await Engine.open("memory://") as engine, listening(engine) as client:
        port = client.base_url.port
        assert port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        pouring = asyncio.create_task(poured(writer, b"400\r\n" + b"x" * 1_024 + b"\r\n", 10_000))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                await reader.read()
        await pouring
        writer.close()


# -- followers hold little, and miss nothing for it --------------------------------------------------------------------


async def test_frames_of_all_sizes_arrive_in_order() -> None:
    sizes = [1, 60_000, 30_000, 10, 65_000, *[5] * 150, 40_000, 40_000, *[20_000] * 10]
    async with await Engine.open("memory://") as engine, listening(engine) as client:
        made = await engine.create_execution(namespace="acme", lane_id="default")
        handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1", 3_600_000))
        assert handle is not None
        for size in sizes:
            await engine.append_frame(handle, Frame(b"x" * size))
        await engine.complete(handle, b"")
        path = at(str(made.execution_id), "attempts", "0", "stream", "events")
        found = [event async for event in events(client, path)]
        assert [len(each.data["fields"]["payload"]) for each in found[:-1]] == sizes
        assert found[-1].name == "closed"


async def test_few_events_are_held_for_one_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[int] = []

    async with await Engine.open("memory://") as engine, listening(engine) as client:
        first = (await engine.read_events("completion")).cursor
        made = await engine.create_executions([{"namespace": "acme", "lane_id": "later"}] * 300)
        for each in made:
            await engine.cancel_execution(execution_id=each.execution_id, reason="seen")
        take = Subscription._take

        def taken(self: Any, page: Any) -> None:
            pages.append(len(page.rows))
            take(self, page)

        monkeypatch.setattr(Subscription, "_take", taken)
        path = f"/v1/events/completion?cursor={quote(cursor_to_text(first))}"
        seen = []
        async for event in events(client, path):
            if event.name == "completion":
                seen.append(event.data["execution_id"])
            if len(seen) == len(made):
                break
        assert seen == [each.execution_id for each in made]
        assert 0 < max(pages) <= HELD_EVENTS
