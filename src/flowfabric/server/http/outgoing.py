"""The outgoing side of a connection: what waits to be sent, and readers that do not read.

An answer goes to the transport in pieces, the next one when the last is out, so that no large body is copied whole into
another buffer. A small answer is one write. A reader that takes in nothing at all for the write timeout is cut off; one
that reads slowly is not. All answers that wait share one room: when it is full, the longest waiting one is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from flowfabric.server.http.limits import AnswerRoom, Made
from flowfabric.telemetry.metrics import Counter

#: Bytes that are handed to the transport at a time.
PIECE_BYTES = 65_536


class Outgoing:
    """Bytes on their way to one reader."""

    __slots__ = (
        "_drained",
        "_loop",
        "_rest",
        "_room",
        "_size",
        "_timeout_s",
        "_timer",
        "_transport",
        "_unread",
        "clogged",
        "kept",
    )

    def __init__(
        self, transport: Any, loop: asyncio.AbstractEventLoop, room: AnswerRoom, timeout_s: float, unread: Counter
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._room = room
        self._timeout_s = timeout_s
        self._unread = unread
        #: What was made for the answer and is not handed over yet.
        self.kept: Made | None = None
        #: Whether the transport still holds something.
        self.clogged = False
        #: What the transport has not got yet, and how much memory the whole takes.
        self._rest: memoryview | None = None
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        # Whatever the system does not take at once is waited for.
        transport.set_write_buffer_limits(high=0)
        self._limit_system()

    def _limit_system(self) -> None:
        """Let the system hold little that is not sent: it saves its memory, and shows sooner that a reader reads."""
        door = self._transport.get_extra_info("socket")
        option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
        if door is not None and option is not None and door.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                door.setsockopt(socket.IPPROTO_TCP, option, PIECE_BYTES)

    @property
    def waiting(self) -> bool:
        """Whether something is not out yet."""
        return self.clogged or self._rest is not None

    def write(self, head: bytes, body: bytes = b"", *, shared: bool = False) -> None:
        """Send this. A shared body is held by others as well, and takes no memory of its own."""
        if self._transport.is_closing():
            return
        whole = len(head) + len(body)
        if whole <= PIECE_BYTES:
            self._size = whole
            self._transport.write(head + body if body else head)
            return
        self._size = PIECE_BYTES if shared else whole
        first = max(PIECE_BYTES - len(head), 0)
        self._rest = memoryview(body)[first:] or None
        self._transport.write(head + body[:first])
        self._push()

    def _push(self) -> None:
        while self._rest is not None and not self.clogged and not self._transport.is_closing():
            piece, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:] or None
            self._transport.write(piece)

    async def drained(self) -> None:
        """Wait until everything is out, or nobody is there any more."""
        if self.waiting:
            self._drained = self._loop.create_future()
            await self._drained

    # -- the transport tells -------------------------------------------------------------------------------------

    def pause(self) -> None:
        """The other side does not take in what there is."""
        if not self.clogged:
            self.clogged = True
            self._watch()
            self._room.wait(self, self._size)

    def resume(self) -> bool:
        """It has taken in what the transport held; whether that was all."""
        self._go_on()
        self._push()
        if self.waiting:
            return False
        self._wake()
        return True

    def close(self) -> None:
        """Nobody is there any more."""
        self._go_on()
        self._rest = None
        self._wake()

    def cut(self) -> None:
        """Give up a reader that does not read."""
        self._unread.add(("unread",))
        self._rest = None
        if self.kept is not None:
            self.kept.close()
        self._room.leave(self)
        self._transport.abort()

    def _go_on(self) -> None:
        if self.clogged:
            self.clogged = False
            self._room.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # -- time ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        held = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._timeout_s, self._look, held)

    def _look(self, held: int) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() < held:
            self._watch()
        else:
            self.cut()
