"""Connections in memory: what is written arrives at the next turn of the loop, in order."""

from __future__ import annotations

import asyncio
from contextvars import Context
from types import SimpleNamespace
from typing import Any


class Network:
    """Who listens, and every end of every connection that was made."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._doors: dict[int, Any] = {}
        self.ends: list[End] = []
        #: The context in which a server's side runs.
        self.context = Context()

    def listen(self, factory: Any, port: int) -> Any:
        """A server on a port."""
        self._doors[port] = factory
        door = SimpleNamespace(getsockname=lambda: ("127.0.0.1", port), family=0)

        async def closed() -> None:
            await asyncio.sleep(0)

        return SimpleNamespace(sockets=[door], close=lambda: self._doors.pop(port, None), wait_closed=closed)

    async def connect(self, factory: Any, port: int) -> tuple[End, Any]:
        """Both ends of a new connection; the client's is returned."""
        await asyncio.sleep(0)
        accept = self._doors.get(port)
        if accept is None:
            raise ConnectionRefusedError(f"nobody listens on {port}")
        near, far = End(self._loop, Context()), End(self._loop, self.context)
        near.other, far.other = far, near
        self.ends += (near, far)
        near.protocol = factory()
        far.protocol = self.context.copy().run(accept)
        far.context.copy().run(far.protocol.connection_made, far)
        near.protocol.connection_made(near)
        return near, near.protocol

    def open(self) -> list[End]:
        """Ends that nobody has closed."""
        return [end for end in self.ends if not end.lost]


class End(asyncio.Transport):
    """One end of a connection."""

    other: End
    protocol: Any

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        super().__init__()
        self.loop = loop
        self.context = context
        self.lost = False
        self._closing = False
        self._paused = False
        self._ended = False
        self._arrived: list[bytes] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else default

    def _soon(self, call: Any, *arguments: Any) -> None:
        # In a context of its own: that of whoever writes is not the reader's.
        self.loop.call_soon(call, *arguments, context=self.context.copy())

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._closing and data:
            self.other._soon(self.other._take, bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.other._soon(self.other._eof)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    # -- reading -------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        if self._closing:
            return
        if self._paused:
            self._arrived.append(data)
            return
        if isinstance(self.protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view and not self._closing:
                room = self.protocol.get_buffer(len(view))
                size = min(len(room), len(view))
                room[:size] = view[:size]  # type: ignore[index]
                self.protocol.buffer_updated(size)
                view = view[size:]
        else:
            self.protocol.data_received(data)

    def _eof(self) -> None:
        if self._closing:
            return
        if self._paused:
            self._ended = True
        elif not self.protocol.eof_received():
            self.close()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        arrived, self._arrived = self._arrived, []
        for data in arrived:
            self._soon(self._take, data)
        if self._ended:
            self._soon(self._eof)

    # -- the end -------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._soon(self._lose)
            self.other._soon(self.other._eof)

    def abort(self) -> None:
        self.close()

    def _lose(self) -> None:
        self.lost = True
        self.protocol.connection_lost(None)
