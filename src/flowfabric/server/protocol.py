"""Connections that may be refused, and requests that must arrive: what uvicorn itself leaves open.

A connection has so long to say what it wants: from when it is opened, or from the first byte after its last answer.
One that trickles headers, or a body that nobody reads any more, is closed then. A body that is read has a time of its
own.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from flowfabric.telemetry.metrics import Counter

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 87\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\n"
    b'{"error":"too many connections; try again later","kind":"unavailable","retryable":true}'
)
_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: 46\r\n"
    b"connection: close\r\n\r\n"
    b'{"error":"the request did not arrive in time"}'
)


class Guarded(H11Protocol):
    """One connection. ``guard`` makes a class of its own for a server's limits."""

    max_connections = 5_000
    header_timeout_s = 10.0
    turned_away: Counter

    _deadline: asyncio.TimerHandle | None = None
    _heard = False

    def connection_made(self, transport: Any) -> None:
        """Take the connection, or say that there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self.turned_away.add(("connections",))
            transport.write(_BUSY)
            transport.close()
            return
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Go on with the request; if it is not complete yet, not for ever."""
        if self.transport.is_closing():
            return
        self._heard = True
        super().data_received(data)
        if self._is_answering():
            self._relax()
        elif self._deadline is None:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._relax()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """The answer is out: what comes next is not part of this request."""
        self._heard = False
        super().on_response_complete()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(self.header_timeout_s, self._late)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self._is_answering() or self.transport.is_closing():
            return
        self.turned_away.add(("slow",))
        cycle: Any = self.cycle
        if self._heard and cycle is None:
            self.transport.write(_LATE)
        self.transport.close()


def guard(most: int, timeout_s: float, turned_away: Counter) -> type[Guarded]:
    """The protocol with these limits."""
    limits = {"max_connections": most, "header_timeout_s": timeout_s, "turned_away": turned_away}
    return type("GuardedConnection", (Guarded,), limits)
