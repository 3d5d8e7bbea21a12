"""HTTP/1.1 connections: read strictly, answered in one write, and bounded in number, time and memory.

uvicorn listens and shuts down; this is what it makes of each connection. A connection has so long to say what it wants:
from when it is opened, or from the first byte after its last answer. One that trickles headers, or a body that nobody
reads any more, is closed then. A body that is read has a time of its own, and no more of it is taken in than somebody
reads. Whatever could be understood in two ways is refused, and the connection closed.

No request is begun before the last answer is out, and little is taken in meanwhile: one that does not read cannot make
the server hold more. ``outgoing`` says what becomes of them.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from flowfabric.server.http.exchange import Exchange
from flowfabric.server.http.head import BadHead, Head, Heads, refusal
from flowfabric.server.http.limits import AnswerRoom
from flowfabric.server.http.outgoing import Outgoing
from flowfabric.telemetry.metrics import Counter

_BUSY = refusal(503, "Service Unavailable", "too many connections; try again later", b"retry-after: 1\r\n", retry=True)
_LATE = refusal(408, "Request Timeout", "the request did not arrive in time")
#: Bytes of a first line and headers; bytes that are taken in ahead of their reader, and at least at a time.
MAX_HEAD_BYTES = 65_536
AHEAD_BYTES = 65_536
_LEAST_BYTES = 4_096
#: How long what a client still sends is thrown away, once it was told that nobody will read it.
LINGER_S = 5.0


class Bounds(NamedTuple):
    """What one connection, and all of them together, may take."""

    connections: int
    header_timeout_s: float
    write_timeout_s: float
    answers: AnswerRoom


class Guarded(asyncio.BufferedProtocol):
    """One connection. ``guard`` makes a class of its own for a server's limits."""

    bounds: Bounds
    turned_away: Counter
    #: Where bytes arrive before they are taken apart, for all connections: each is done with it at once.
    inbox: memoryview
    #: The application with what a proxy of this machine says about its clients; asked only if one says something.
    behind_proxy: Any

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        self.app = config.loaded_app
        self.loop = _loop or asyncio.get_running_loop()
        self.state = server_state
        self.app_state = app_state
        self.root_path = config.root_path
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.out: Outgoing = None  # type: ignore[assignment]
        self.ends: tuple[tuple[str, int] | None, tuple[str, int] | None] = (None, None)
        self._keep_alive_s = config.timeout_keep_alive
        self._buffer = bytearray()
        self._heads = Heads(MAX_HEAD_BYTES)
        self._exchange: Exchange | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._goodbye: asyncio.TimerHandle | None = None
        self._reading = True
        self._leaving = False
        #: How the connection goes on once the answer is out.
        self._after: tuple[bool, bool] | None = None
        #: Whether all is said, and what still comes is thrown away.
        self._deaf = False

    # -- asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Take the connection, or say that there are too many."""
        self.transport = transport
        bounds = self.bounds
        self.out = Outgoing(transport, self.loop, bounds.answers, bounds.write_timeout_s, self.turned_away)
        self.state.connections.add(self)
        self.ends = (_address(transport, "sockname"), _address(transport, "peername"))
        if len(self.state.connections) > bounds.connections:
            self.turned_away.add(("connections",))
            transport.write(_BUSY)
            transport.close()
            return
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; the handler is told that nobody listens."""
        self.state.connections.discard(self)
        self._relax()
        self._stay()
        self.out.close()
        self._after = None
        if self._exchange is not None:
            self._exchange.disconnected()

    def eof_received(self) -> bool:
        """The other side says no more: it is gone."""
        return False

    def pause_writing(self) -> None:
        """What was written is not taken in."""
        self.out.pause()

    def resume_writing(self) -> None:
        """It is now."""
        if self.out.resume() and self._after is not None:
            (keep, whole), self._after = self._after, None
            self.answered(keep=keep, whole=whole)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: never many more than are taken in ahead."""
        return self.inbox[: max(AHEAD_BYTES - len(self._buffer), _LEAST_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        """Go on with the request; if it is not complete yet, not for ever."""
        if self._deaf or self.transport.is_closing():
            return
        self._stay()
        self._buffer += self.inbox[:nbytes]
        self._go_on()

    # -- requests ------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Make of what has come what can be made of it."""
        try:
            exchange = self._exchange
            if exchange is None:
                head = self._heads.take(self._buffer)
                if head is None:
                    if self._deadline is None:
                        self._expect()
                    self._pace(True)
                    return
                exchange = self._begin(head)
            exchange.feed(self._buffer)
            # What is more than somebody reads, of this request or of those after it, stays with the client.
            self._pace(len(self._buffer) + exchange.held < AHEAD_BYTES)
        except BadHead as problem:
            self._refuse(problem)

    def _begin(self, head: Head) -> Exchange:
        self._relax()
        self.state.total_requests += 1
        exchange = self._exchange = Exchange(self, head)
        task = self.loop.create_task(exchange.run())
        self.state.tasks.add(task)
        task.add_done_callback(self.state.tasks.discard)
        return exchange

    def _refuse(self, problem: BadHead) -> None:
        exchange = self._exchange
        if exchange is not None:
            # A malformed body: its reader is told that it ended.
            exchange.disconnected()
        self._turn_away(refusal(problem.status, problem.phrase, str(problem)))

    def answered(self, *, keep: bool, whole: bool) -> None:
        """An answer is said: once it is out, what comes next is another request, or what is left of this one."""
        if self.out.waiting and not self.transport.is_closing():
            self._after = (keep, whole)
            return
        self._exchange = None
        if not whole:
            self._hang_up()
            return
        if not keep or self._leaving or self.transport.is_closing():
            self.transport.close()
            return
        self._pace(len(self._buffer) < AHEAD_BYTES)
        if self._buffer:
            self.loop.call_soon(self._next)
        else:
            self._goodbye = self.loop.call_later(self._keep_alive_s, self.transport.close)

    def _next(self) -> None:
        if self._exchange is None and not self._deaf and not self.transport.is_closing():
            self._go_on()

    def read_on(self) -> None:
        """The reader of a body has taken what there was."""
        exchange = self._exchange
        if exchange is None:
            return
        if self._buffer:
            self._go_on()
        self._pace(len(self._buffer) + exchange.held < AHEAD_BYTES)

    def _pace(self, reading: bool) -> None:
        if reading is not self._reading and not self.transport.is_closing():
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    # -- time ----------------------------------------------------------------------------------------------------

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(self.bounds.header_timeout_s, self._late)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stay(self) -> None:
        if self._goodbye is not None:
            self._goodbye.cancel()
            self._goodbye = None

    def _late(self) -> None:
        self._deadline = None
        if self._exchange is not None or self.transport.is_closing():
            return
        self.turned_away.add(("slow",))
        if self._buffer:
            self._turn_away(_LATE)
        else:
            self.transport.close()

    def _turn_away(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            if self._exchange is None or not self._exchange.begun:
                self.out.write(answer)
            self._hang_up()

    def _hang_up(self) -> None:
        """Say no more. A client that is still sending would lose the answer if the connection were cut at once."""
        transport = self.transport
        if self._deaf or transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()
            return
        self._deaf = True
        self._buffer.clear()
        transport.write_eof()
        self._pace(True)
        self._stay()
        self._goodbye = self.loop.call_later(LINGER_S, transport.abort)

    # -- stopping ------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """The server stops: what is being answered is still answered."""
        self._leaving = True
        if self._exchange is None:
            self.transport.close()
        else:
            self._exchange.last()


def _address(transport: Any, name: str) -> tuple[str, int] | None:
    found = transport.get_extra_info(name)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple | list) and len(found) >= 2 else None


def behind(application: Any, proxies: str) -> Any:
    """The application as a proxy asks it: the client is whom the proxy names, if the proxy is one of these."""
    return ProxyHeadersMiddleware(application, proxies)


def guard(bounds: Bounds, turned_away: Counter, behind_proxy: Any) -> Any:
    """The protocol with these limits, for one event loop. uvicorn's types know of no buffered ones; its loop does."""
    own = {
        "bounds": bounds,
        "turned_away": turned_away,
        "inbox": memoryview(bytearray(AHEAD_BYTES)),
        "behind_proxy": staticmethod(behind_proxy),
    }
    return type("GuardedConnection", (Guarded,), own)
