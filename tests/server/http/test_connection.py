"""Connections byte by byte: what is read, what is refused, and what is written."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from flowfabric.server.http.connection import AHEAD_BYTES, MAX_HEAD_BYTES, Bounds, behind, guard
from flowfabric.server.http.head import MAX_HEADERS, BadHead, Heads
from flowfabric.server.http.limits import AnswerRoom
from flowfabric.telemetry.metrics import Counter

HOST = b"host: here\r\n"
Application = Callable[[Any, Any, Any], Awaitable[None]]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was asked."""
    body = bytearray()
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    said = b"%s %s %s" % (scope["method"].encode(), scope["raw_path"], body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


async def stream(scope: Any, receive: Any, send: Any) -> None:
    """Answers in three pieces."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in (b"one", b"", b"two"):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"three"})


class _Listener(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@asynccontextmanager
async def serving(application: Application, **options: Any) -> AsyncIterator[int]:
    """The port of a server that runs an application."""
    room = AnswerRoom(options.get("answer_bytes", 2**26))
    bounds = Bounds(100, 10.0, options.get("write_timeout_s", 60.0), room)
    behind_proxy = behind(application, options.get("proxies", "127.0.0.1"))
    http: Any = guard(bounds, options.get("turned_away", Counter("turned_away", "", ("why",))), behind_proxy)
    config = uvicorn.Config(
        application,
        port=0,
        http=http,
        lifespan="off",
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
    )
    listener = _Listener(config)
    task = asyncio.create_task(listener.serve())
    await listener.listening.wait()
    try:
        yield listener.servers[0].sockets[0].getsockname()[1]
    finally:
        listener.should_exit = True
        await task


async def said(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Everything that is answered to some bytes until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


def request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([line, b"host: here", *headers, b"connection: close", b"", b""]) + body


async def test_one_write_for_an_answer() -> None:
    async with serving(echo) as port:
        answer = await said(port, request(b"GET /a%20b HTTP/1.1"))
        assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\nconnection: close\r\n\r\nGET /a%20b "


async def test_a_proxy_is_believed_if_it_is_one_of_ours() -> None:
    async def tell(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"{scope['client'][0]} {scope['scheme']}".encode()})

    forwarded = request(b"GET / HTTP/1.1", b"x-forwarded-for: 192.0.2.7", b"x-forwarded-proto: https")
    for proxies, heard in (("127.0.0.1", b"192.0.2.7 https"), ("192.0.2.1", b"127.0.0.1 http")):
        async with serving(tell, proxies=proxies) as port:
            assert (await said(port, forwarded)).endswith(heard)
            assert (await said(port, request(b"GET / HTTP/1.1"))).endswith(b"127.0.0.1 http")


async def test_bodies_however_they_come() -> None:
    async with serving(echo) as port:
        whole = request(b"POST / HTTP/1.1", b"content-length: 5", body=b"hello")
        chunks = request(
            b"POST / HTTP/1.1",
            b"transfer-encoding: chunked",
            body=b"2\r\nhe\r\n3;name=value\r\nllo\r\n0\r\ntrailer: x\r\n\r\n",
        )
        for data in (whole, chunks):
            assert (await said(port, data)).endswith(b"POST / hello")
            pieces = [data[at : at + 1] for at in range(len(data))]
            assert (await said(port, *pieces)).endswith(b"POST / hello")


async def test_requests_one_after_the_other_and_all_at_once() -> None:
    first = b"POST /1 HTTP/1.1\r\n" + HOST + b"content-length: 1\r\n\r\nx"
    second = b"\r\nGET /2 HTTP/1.1\r\n" + HOST + b"\r\n"
    last = request(b"GET /3 HTTP/1.1")
    async with serving(echo) as port:
        for pieces in ((first + second + last,), (first, second, last)):
            answer = await said(port, *pieces, pause=0.01)
            assert [each for each in (b"POST /1 x", b"GET /2 ", b"GET /3 ") if each in answer] == [
                b"POST /1 x",
                b"GET /2 ",
                b"GET /3 ",
            ]
            assert answer.count(b"HTTP/1.1 200 OK") == 3


async def test_answers_in_pieces() -> None:
    async with serving(stream) as port:
        chunked = await said(port, request(b"GET / HTTP/1.1"))
        assert b"transfer-encoding: chunked\r\n" in chunked
        assert chunked.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n")
        older = await said(port, b"GET / HTTP/1.0\r\n\r\n")
        assert older.endswith(b"connection: close\r\n\r\nonetwothree")


async def test_an_answer_to_head_has_no_body() -> None:
    async with serving(echo) as port:
        answer = await said(port, request(b"HEAD / HTTP/1.1"))
        assert answer.endswith(b"\r\n\r\n")
        assert b"content-length: 7" in answer


async def test_a_body_that_is_waited_for() -> None:
    async with serving(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"POST / HTTP/1.1", b"content-length: 2", b"expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert (await reader.read()).endswith(b"POST / ok")
        writer.close()


MALFORMED = {
    "two lengths": request(b"POST / HTTP/1.1", b"content-length: 1", b"content-length: 2"),
    "the same length twice": request(b"POST / HTTP/1.1", b"content-length: 1", b"content-length: 1"),
    "a length and chunks": request(b"POST / HTTP/1.1", b"content-length: 1", b"transfer-encoding: chunked"),
    "a length that is none": request(b"POST / HTTP/1.1", b"content-length: +1"),
    "a length of many digits": request(b"POST / HTTP/1.1", b"content-length: " + b"9" * 30),
    "another coding": request(b"POST / HTTP/1.1", b"transfer-encoding: gzip, chunked"),
    "a chunk that is none": request(b"POST / HTTP/1.1", b"transfer-encoding: chunked", body=b"zz\r\n"),
    "a chunk that is too long": request(b"POST / HTTP/1.1", b"transfer-encoding: chunked", body=b"1\r\nxy\r\n"),
    "a negative chunk": request(b"POST / HTTP/1.1", b"transfer-encoding: chunked", body=b"-1\r\n"),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": request(b"GET / HTTP/1.1", b"host: there"),
    "a folded header": request(b"GET / HTTP/1.1", b"a: b", b" c: d"),
    "a space before the colon": request(b"GET / HTTP/1.1", b"a : b"),
    "a bare line end": request(b"GET / HTTP/1.1", b"a: b\nc: d"),
    "a control character": request(b"GET / HTTP/1.1", b"a: b\x00"),
    "another protocol": request(b"GET / HTTP/2.0"),
    "no method": request(b" / HTTP/1.1"),
    "a space in the path": request(b"GET /a b HTTP/1.1"),
    "no HTTP at all": b"\x16\x03\x01\r\n\r\n",
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_what_could_be_understood_in_two_ways_is_refused(what: str) -> None:
    async with serving(echo) as port:
        answer = await said(port, MALFORMED[what] + request(b"GET /smuggled HTTP/1.1"))
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501"))
        assert b"smuggled" not in answer
        assert answer.count(b"\r\n\r\n") == 1, "one answer, and the connection ends"


async def test_headers_that_never_end() -> None:
    async with serving(echo) as port:
        answer = await said(port, b"GET / HTTP/1.1\r\na: " + b"x" * (MAX_HEAD_BYTES + 10))
        assert answer.startswith(b"HTTP/1.1 431")


async def test_a_body_that_nobody_reads_is_no_next_request() -> None:
    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with serving(hasty) as port:
        data = b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 100\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
        answer = await said(port, data)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answer


async def test_no_more_is_taken_in_than_somebody_reads() -> None:
    taken: list[int] = []
    go_on = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await go_on.wait()
        await echo(scope, receive, send)

    async with serving(slow) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        size = 64 * 1024 * 1024
        writer.write(request(b"POST / HTTP/1.1", b"content-length: %d" % size))

        async def pour() -> None:
            for _ in range(size // AHEAD_BYTES):
                writer.write(b"x" * AHEAD_BYTES)
                await writer.drain()
                taken.append(AHEAD_BYTES)

        pouring = asyncio.create_task(pour())
        await asyncio.sleep(0.5)
        assert sum(taken) < size / 2, "the rest stays with the client"
        go_on.set()
        await pouring
        answer = await reader.read()
        assert len(answer) > size / 2
        writer.close()


async def test_a_slow_reader_slows_the_answer_down() -> None:
    sent = 0

    async def flood(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1_000):
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b""})

    async with serving(flood) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
        writer.write(request(b"GET / HTTP/1.1"))
        await asyncio.sleep(0.5)
        assert sent < 1_000
        received = 0
        while data := await reader.read(1_048_576):
            received += len(data)
        assert received > 65_536_000
        writer.close()


async def test_an_application_that_fails() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/half":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("secret")

    async with serving(broken) as port:
        answer = await said(port, request(b"GET / HTTP/1.1"))
        assert answer.startswith(b"HTTP/1.1 500")
        assert b"secret" not in answer
        half = await said(port, request(b"GET /half HTTP/1.1"))
        assert not half.endswith(b"0\r\n\r\n"), "a reader can tell that it is not all"


async def test_who_waits_is_told_when_the_client_hangs_up() -> None:
    told = asyncio.Event()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        told.set()

    async with serving(waiting) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"GET / HTTP/1.1"))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(20):
            await told.wait()


def test_a_head_is_read_in_any_pieces() -> None:
    data = b"GET http://here/a?b=c HTTP/1.1\r\nhost: here\r\nX-Name:  v \r\n\r\nrest"
    for cut in range(len(data) - 4):
        buffer = bytearray(data[:cut])
        assert Heads(100).take(buffer) is None
        assert bytes(buffer) == data[:cut]
    buffer = bytearray(data)
    head = Heads(100).take(buffer)
    assert head is not None
    assert (head.path, head.query, head.headers[1]) == ("/a", b"b=c", (b"x-name", b"v"))
    assert buffer == b"rest"
    with pytest.raises(BadHead):
        Heads(100).take(bytearray(b"x" * 101))


@pytest.mark.parametrize("line", [b"a:\r\n", b"x-name: value\r\n"])
def test_a_head_of_many_headers_is_not_taken_apart(line: bytes) -> None:
    """Their bytes are few, but what is made of them would be held for as long as nobody reads the answer."""
    first = b"GET / HTTP/1.1\r\nhost: here\r\n"
    head = Heads(MAX_HEAD_BYTES).take(bytearray(first + line * (MAX_HEADERS - 1) + b"\r\n"))
    assert head is not None
    assert len(head.headers) == MAX_HEADERS
    many = bytearray(first + line * ((MAX_HEAD_BYTES - 100) // len(line)) + b"\r\n")
    tracemalloc.start()
    try:
        with pytest.raises(BadHead) as refused:
            Heads(MAX_HEAD_BYTES).take(many)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_HEAD_BYTES
    finally:
        tracemalloc.stop()
    assert refused.value.status == 431


def test_a_head_that_is_said_again_is_the_same_and_another_is_another() -> None:
    heads = Heads(2_000)
    seen = []
    long = b"x-long: " + b"y" * 1_500 + b"\r\n"
    for path, more in ((b"/a", b""), (b"/a", b""), (b"/b", b""), (b"/a", long), (b"/a", long), (b"/a", b"")):
        head = heads.take(bytearray(b"GET " + path + b" HTTP/1.1\r\nhost: here\r\n" + more + b"\r\n"))
        assert head is not None
        seen.append((head.raw_path, len(head.headers)))
    assert seen == [(b"/a", 1), (b"/a", 1), (b"/b", 1), (b"/a", 2), (b"/a", 2), (b"/a", 1)]
    refused = bytearray(b"GET / HTTP/1.1\r\nx: y\r\n\r\n")
    for _ in range(2):
        with pytest.raises(BadHead):
            heads.take(refused)
