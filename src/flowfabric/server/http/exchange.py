"""One request and its answer: the application's side of a connection."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flowfabric.server.http.head import BadHead, Head, refusal
from flowfabric.server.http.reasons import REASONS
from flowfabric.server.http.request import Gone

if TYPE_CHECKING:
    from flowfabric.server.http.connection import Guarded
    from flowfabric.server.http.limits import Made

_log = logging.getLogger("flowfabric.server")

_STATUS = {status: f"HTTP/1.1 {status} {reason}\r\n".encode() for status, reason in REASONS.items()}
_FAILED = refusal(500, "Internal Server Error", "internal error")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_WITHOUT_BODY = (204, 304)
#: Bytes of a line that says how long a chunk is, and of what may follow the last one.
_MAX_LINE, _MAX_TRAILER = 256, 8_192
#: Where between two chunks a body is.
_ENDED, _TRAILER = -1, -2


class Exchange:
    """Reads the body as the application asks for it, and writes its answer."""

    __slots__ = (
        "_body",
        "_chunked",
        "_complete",
        "_connection",
        "_done",
        "_head",
        "_keep",
        "_left",
        "_length",
        "_start",
        "_streams",
        "_waiting",
        "begun",
        "gone",
        "held",
    )

    def __init__(self, connection: Guarded, head: Head) -> None:
        self._connection = connection
        self._head = head
        self._keep = head.keep
        #: Bytes of the body, or of its chunk, that are still to come; of chunks also where in between we are.
        self._chunked = head.length is None
        self._left = 0 if head.length is None else head.length
        self._complete = head.length == 0
        #: One buffer, since many small pieces would take far more than their bytes.
        self._body = bytearray()
        #: Bytes that came and were not read.
        self.held = 0
        self._waiting: asyncio.Future[None] | None = None
        #: Whether the client has hung up.
        self.gone = False
        self._start: Any = None
        self._streams = False
        self._length: int | None = None
        #: Whether something of the answer is written, and whether all of it is.
        self.begun = False
        self._done = False

    # -- the body ------------------------------------------------------------------------------------------------

    def feed(self, buffer: bytearray) -> None:
        """Take what belongs to the body."""
        if self._complete:
            return
        if self._chunked:
            self._feed_chunks(buffer)
        elif buffer:
            self._take(buffer, min(len(buffer), self._left))
            self._complete = self._left == 0
        if self._body or self._complete:
            self._wake()

    def _take(self, buffer: bytearray, size: int) -> None:
        self._body += buffer if size == len(buffer) else buffer[:size]
        del buffer[:size]
        self.held += size
        self._left -= size

    def _taken(self) -> bytes:
        data = bytes(self._body)
        self._body.clear()
        self.held = -1 if self._complete else 0
        return data

    def _feed_chunks(self, buffer: bytearray) -> None:
        while buffer and not self._complete:
            if self._left > 0:
                self._take(buffer, min(len(buffer), self._left))
                if self._left == 0:
                    self._left = _ENDED
                continue
            end = buffer.find(b"\r\n")
            if end < 0:
                if len(buffer) > (_MAX_TRAILER if self._left == _TRAILER else _MAX_LINE):
                    raise BadHead("a chunk of the body is malformed")
                return
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            self._line(line)

    def _line(self, line: bytes) -> None:
        if self._left == _ENDED:
            if line:
                raise BadHead("a chunk of the body is longer than its declared length")
            self._left = 0
        elif self._left == _TRAILER:
            # Headers behind the body mean nothing here; an empty line ends them.
            self._complete = not line
        else:
            found = _CHUNK.fullmatch(line)
            if found is None:
                raise BadHead("a chunk of the body is malformed")
            self._left = int(found[1], 16) or _TRAILER

    async def receive(self) -> dict[str, Any]:
        """What the client sends: its body, then that it has hung up."""
        while not self.gone and not self._done:
            if self._body or (self._complete and self.held >= 0):
                data = self._taken()
                if not self._complete:
                    self._connection.read_on()
                return {"type": "http.request", "body": data, "more_body": not self._complete}
            if self._head.waits and not self.begun and not self._complete:
                self._head = self._head._replace(waits=False)
                self._connection.out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if self._waiting is None:
                self._waiting = self._connection.loop.create_future()
            # Several may wait for the end; one that gives up must not take the others along.
            await asyncio.wait((self._waiting,))
        return {"type": "http.disconnect"}

    def whole(self) -> bytes | None:
        """The whole body, if all of it is there and nobody has read any of it."""
        if not self._complete or self.held < 0 or self.gone:
            return None
        return self._taken()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def disconnected(self) -> None:
        """Nobody listens any more."""
        self.gone = True
        self._wake()

    def last(self) -> None:
        """After this answer the connection ends."""
        self._keep = False

    # -- the answer ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let the application answer."""
        head, connection = self._head, self._connection
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "server": connection.ends[0],
            "client": connection.ends[1],
            "scheme": "https" if connection.transport.get_extra_info("sslcontext") else "http",
            "method": head.method,
            "root_path": connection.root_path,
            "path": connection.root_path + head.path,
            "raw_path": connection.root_path.encode() + head.raw_path,
            "query_string": head.query,
            "headers": head.headers,
            "state": connection.app_state.copy(),
        }
        try:
            await (connection.behind_proxy if head.forwarded else connection.app)(scope, self.receive, self.send)
        except Gone:
            return
        except Exception:
            _log.exception("%s failed", head.method)
        except BaseException:
            # Cancelled by a server that stops: the waiting client hears at once that there will be no answer.
            connection.transport.abort()
            raise
        if self._done or self.gone:
            return
        # Without an answer, or with half of one, nothing can follow on this connection.
        if not self.begun:
            connection.out.write(_FAILED)
        self._end(keep=False)

    async def send(self, message: dict[str, Any]) -> None:
        """What the application answers: a start, then a body in one piece or several; ``Gone`` if nobody is there any
        more and it would go on."""
        if self.gone:
            if message.get("more_body"):
                raise Gone
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, more = message.pop("body", b""), message.get("more_body", False)
        out = self._connection.out
        if self.begun:
            out.write(self._framed(body, more))
        else:
            out.write(*self._first(self._start["status"], self._start.get("headers", ()), body, more))
        del body
        if not more:
            self._end(keep=self._keep)
        elif out.waiting:
            await out.drained()

    def keep(self, made: Made | None) -> None:
        """This is held for the answer until it is sent: it goes if the reader is given up."""
        self._connection.out.kept = made

    def drop(self) -> None:
        """End an answer that may not be sent to its end: its reader sees that something is missing."""
        self._connection.transport.abort()

    def respond(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, shared: bool = False
    ) -> None:
        """A whole answer, for an application that knows whom it talks to: the same as two messages."""
        if self.gone:
            return
        self._connection.out.write(*self._first(status, headers, body, False), shared=shared)
        self._end(keep=self._keep)

    def _first(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, more: bool
    ) -> tuple[bytes, bytes]:
        """The head and the first piece of the body: one write for most answers."""
        parts = [_STATUS.get(status) or f"HTTP/1.1 {status} \r\n".encode()]
        length: int | None = None
        for name, value in (*self._connection.state.default_headers, *headers):
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value.lower() == b"close":
                self._keep = False
                continue
            parts += (name, b": ", value, b"\r\n")
        bodiless = status in _WITHOUT_BODY or self._head.method == "HEAD"
        if length is None and not bodiless:
            if not more:
                length = len(body)
                parts.append(b"content-length: %d\r\n" % length)
            elif self._head.version == "1.1":
                self._streams = True
                parts.append(b"transfer-encoding: chunked\r\n")
            else:
                self._keep = False
        if not self._complete:
            # What of the body is still to come would be taken for the next request.
            self._keep = False
        if not self._keep:
            parts.append(b"connection: close\r\n")
        elif self._head.version == "1.0":
            parts.append(b"connection: keep-alive\r\n")
        parts.append(b"\r\n")
        self.begun = True
        self._length = 0 if bodiless else length
        return b"".join(parts), self._framed(body, more)

    def _framed(self, body: bytes, more: bool) -> bytes:
        if self._streams:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        if self._length is None:
            return body
        if len(body) > self._length:
            body = body[: self._length]
        self._length -= len(body)
        if not more and self._length:
            self._keep = False  # shorter than it says
        return body

    def _end(self, *, keep: bool) -> None:
        self._done = True
        self._connection.out.kept = None
        self._wake()
        self._connection.answered(keep=keep, whole=self._complete)
