"""A small HTTP/1.1 client: connections that are kept, one request at a time on each, several servers to choose from."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import urlsplit

from flowfabric.model.waitpoint_tokens import revealed
from flowfabric.telemetry.logs import redacted

#: A connection that was not used for so long is not used again: the server may be closing it right now.
MAX_IDLE_S = 4.0
CONNECT_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 65_536


#: An answer that goes on is read no further while so many of its bytes wait to be taken.
MAX_WAITING_BYTES = 1_048_576


class Chunks:
    """What came of an answer that goes on, until it is taken; ``None`` is its end."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._bytes = 0
        self._paused: asyncio.Transport | None = None

    def put(self, data: bytes | None, transport: asyncio.Transport | None = None) -> None:
        """Add some; the connection they came on waits while there are too many."""
        self._queue.put_nowait(data)
        self._bytes += len(data or b"")
        if self._paused is None and transport is not None and self._bytes > MAX_WAITING_BYTES:
            transport.pause_reading()
            self._paused = transport

    async def get(self) -> bytes | None:
        """The next ones."""
        data = await self._queue.get()
        self._bytes -= len(data or b"")
        if self._paused is not None and self._bytes <= MAX_WAITING_BYTES // 2:
            self._paused.resume_reading()
            self._paused = None
        return data


class NotReached(Exception):
    """No connection could be made: nothing was asked."""


class Lost(Exception):
    """The connection ended before the answer was there: what was asked may have been done."""


class Response(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes


class Address(NamedTuple):
    """Where a server is."""

    scheme: str
    host: str
    port: int
    prefix: str
    #: What the ``Host`` header says.
    name: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address that a URL names; ``ValueError`` if it names none."""
        parts = urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{redacted(url)!r} is not a server URL such as https://flowfabric.example")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                f"{parts.hostname}: pass the token as token=; the URL may hold only a host, a port and a path"
            )
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:  # Python tells what was there instead, which may be a password.
            raise ValueError("the port must be a number, as in https://flowfabric.example:8443") from None
        name = parts.netloc
        return cls(parts.scheme, parts.hostname, port, parts.path.rstrip("/"), name)


class Connection(asyncio.Protocol):
    """One connection. Answers have a length, come in chunks, or last until the end of the connection."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.used_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[Response] | None = None
        self._stream: Chunks | None = None
        self._status = 0
        #: Bytes still to come; -1 for chunks, -2 until the end.
        self._left: int | None = None
        self._body: list[bytes] = []
        self._keep = True
        self.closed = False

    # -- asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self.closed = True
        if self._left == -2 and exc is None:
            self._finish()
        self._fail(Lost(str(exc) if exc is not None else "the server closed the connection"))

    def eof_received(self) -> bool:
        """The server says no more."""
        return False

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        self._buffer += data
        try:
            self._parse()
        except (ValueError, IndexError) as error:
            self._fail(Lost(f"not an HTTP response: {error}"))
            self.close()

    # -- parsing -------------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        buffer = self._buffer
        if self._left is None and not self._head():
            return
        left = self._left
        if left is not None and left >= 0:
            if len(buffer) < left:
                return
            self._body.append(bytes(buffer[:left]))
            del buffer[:left]
            self._finish()
        elif left == -1:
            self._chunks()
        elif left == -2:
            self._take(bytes(buffer))
            buffer.clear()

    def _head(self) -> bool:
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > MAX_HEAD_BYTES:
                raise ValueError("its headers are too long")
            return False
        lines = bytes(buffer[:end]).split(b"\r\n")
        del buffer[: end + 4]
        version, status, *_ = lines[0].split(b" ", 2)
        if not version.startswith(b"HTTP/1."):
            raise ValueError("it does not speak HTTP/1")
        self._status = int(status)
        self._keep = version == b"HTTP/1.1"
        length: int | None = None
        chunked = False
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                chunked = b"chunked" in value.lower()
            elif name == b"connection" and b"close" in value.lower():
                self._keep = False
        if self._status in (204, 304):
            length, chunked = 0, False
        self._left = -1 if chunked else -2 if length is None else length
        return True

    def _chunks(self) -> None:
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n")
            if end < 0:
                return
            size = int(bytes(buffer[:end]).partition(b";")[0], 16)
            if len(buffer) < end + size + 4:
                return
            chunk = bytes(buffer[end + 2 : end + 2 + size])
            del buffer[: end + size + 4]
            if not size:
                self._finish()
                return
            self._take(chunk)

    def _take(self, data: bytes) -> None:
        if self._stream is not None and self._status == 200:
            self._stream.put(data, self._transport)
        else:
            self._body.append(data)

    def _finish(self) -> None:
        self._left = None
        answer, self._answer = self._answer, None
        stream, self._stream = self._stream, None
        body, self._body = b"".join(self._body), []
        if not self._keep:
            self.close()
        if stream is not None:
            stream.put(None)
        if answer is not None and not answer.done():
            answer.set_result(Response(self._status, body))

    def _fail(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.put(None)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    # -- asking --------------------------------------------------------------------------------------------------

    def ask(self, head: bytes, body: bytes, stream: Chunks | None = None) -> asyncio.Future[Response]:
        """Send a request; the future is its answer."""
        transport = self._transport
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        if transport is None or self.closed:
            answer.set_exception(Lost("the connection is closed"))
            return answer
        self._answer, self._stream = answer, stream
        transport.write(head + body)
        return answer

    def close(self) -> None:
        """End it."""
        self.closed = True
        if self._transport is not None:
            self._transport.close()


class Servers:
    """Connections to one of several servers; if it cannot be reached, to the next."""

    def __init__(self, urls: str, token: str | None) -> None:
        addresses = [Address.parse(each) for each in urls.split(",") if each.strip()]
        if not addresses:
            raise ValueError("no address was given")
        self._addresses = deque(addresses)
        token = None if token is None else revealed(token)
        credential = "" if token is None else f"authorization: Bearer {token}\r\n"
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise ValueError("token: expected printable ASCII without spaces")
        self._common = f"{credential}user-agent: flowfabric\r\naccept: application/json, text/event-stream\r\n"
        self._heads: dict[tuple[Address, str, str], bytes] = {}
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._secure: ssl.SSLContext | None = None
        self.closed = False

    def _head(self, address: Address, method: str, path: str) -> bytes:
        key = (address, method, path)
        found = self._heads.get(key)
        if found is None:
            text = f"{method} {address.prefix}{path} HTTP/1.1\r\nhost: {address.name}\r\n{self._common}"
            if method != "GET":
                text += "content-type: application/json\r\n"
            found = text.encode()
            if len(self._heads) < 1_000:
                self._heads[key] = found
        return found

    def give_up(self, connection: Connection) -> None:
        """This server failed: the next one comes first from now on."""
        self._discard(connection)
        self._turn(connection.address)

    def _turn(self, address: Address) -> None:
        if self._addresses[0] == address:
            self._addresses.rotate(-1)
            for idle in list(self._idle):
                if idle.address == address:
                    self._idle.remove(idle)
                    self._discard(idle)

    def _discard(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)

    async def _connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and loop.time() - connection.used_at < MAX_IDLE_S:
                return connection
            self._discard(connection)
        if self.closed:
            raise NotReached("closed")
        problems = []
        for _ in range(len(self._addresses)):
            address = self._addresses[0]
            try:
                return await self._connect(address)
            except (OSError, TimeoutError) as error:
                problems.append(f"{address.name}: {str(error) or type(error).__name__}")
                self._addresses.rotate(-1)
        raise NotReached("; ".join(problems))

    async def _connect(self, address: Address) -> Connection:
        secure = None
        if address.scheme == "https":
            secure = self._secure = self._secure or ssl.create_default_context()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: Connection(address), address.host, address.port, ssl=secure
            )
        self._open.add(connection)
        return connection

    async def request(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Response:
        """Ask one of the servers. ``NotReached`` if none could be asked, ``Lost`` if the answer did not come."""
        connection = await self._connection()
        head = self._head(connection.address, method, path)
        if body is not None:
            head += b"content-length: %d\r\n" % len(body)
        done = False
        try:
            async with asyncio.timeout(timeout_s):
                answer = await connection.ask(head + b"\r\n", body or b"")
            done = True
        except TimeoutError:
            raise Lost(f"no response within {timeout_s:.0f} s") from None
        except Lost:
            self._turn(connection.address)
            raise
        finally:
            if not done:
                self._discard(connection)
        if connection.closed:
            self._open.discard(connection)
        else:
            connection.used_at = asyncio.get_running_loop().time()
            self._idle.append(connection)
        return answer

    @contextlib.asynccontextmanager
    async def stream(self, path: str, extra: str) -> AsyncIterator[tuple[Chunks, asyncio.Future[Response]]]:
        """Follow an answer that goes on, on a connection of its own: what comes, ``None`` at its end."""
        connection = await self._connect(self._addresses[0]) if not self.closed else None
        if connection is None:
            raise NotReached("closed")
        chunks = Chunks()
        head = self._head(connection.address, "GET", path) + extra.encode() + b"\r\n"
        answer = connection.ask(head, b"", chunks)
        try:
            yield chunks, answer
        finally:
            if not answer.done():
                answer.cancel()
            elif not answer.cancelled():
                answer.exception()
            self._discard(connection)

    def close(self) -> None:
        """End all connections."""
        self.closed = True
        for connection in list(self._open):
            self._discard(connection)
        self._idle.clear()
