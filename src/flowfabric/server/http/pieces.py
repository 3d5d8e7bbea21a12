"""Answers that are made and sent piece by piece, so that none is ever held whole.

A piece is made once the last one is out: a slow reader makes the server hold no more than one. What is read for
a piece and does not go into it is let go and read again, and nothing that was read is kept while a piece waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

from flowfabric.model.streams.frames import StreamFrame, StreamFrames
from flowfabric.server.http.limits import Made
from flowfabric.server.http.response import JSON, Answer, Fallen, Streamed

Pieces = AsyncGenerator[bytes, None]

#: Bytes from which on an answer is sent in pieces, and that a piece has if it can be cut there.
PIECE_BYTES = 65_536
#: Bytes of inputs that are read at a time; the last one may go beyond.
STEP_BYTES = 262_144
#: Frames that are read at a time, at first and at most.
FIRST_FRAMES, MOST_FRAMES = 8, 64
#: Steps that are made at once.
_AT_ONCE = 4
#: Remembered steps, of up to a megabyte each, that those who act have in hand at once.
MOST_STEPS = 16
#: Calls that are made at once, for all requests together.
MOST_CALLS = 1_024
_OPENED = b'{"frames":['


class Turns:
    """Lets a few large reads go on at once, in the order they came; the loop looks at others in between."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_AT_ONCE)

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncGenerator[None, None]:
        """Wait for a turn, and hold it."""
        async with self._free:
            await asyncio.sleep(0)
            yield


class Loads:
    """Keeps low what all who act have in hand at once: each has a weight, and they come in the order they asked."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def some(self, weight: int) -> AsyncGenerator[None, None]:
        """Wait for room, and hold it. What weighs more than there is goes alone."""
        if not weight:
            yield
            return
        weight = min(weight, self.most)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((weight, turn))
        self._admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._free += weight
            else:
                self._waiting.remove((weight, turn))
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            weight, turn = self._waiting[0]
            if not turn.done():
                self._waiting.popleft()
                self._free -= weight
                turn.set_result(None)
            else:  # somebody who has given up, and is about to leave
                return


async def in_pieces(pieces: Pieces, made: Made | None = None, fallen: Fallen | None = None) -> Answer | Streamed:
    """The answer that these pieces of JSON make. A small one is sent whole; what is refused before there is more than
    that is refused as always. ``made`` is what they are made of, ``fallen`` what is done if the caller's credential
    goes before they are sent."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if len(held) > PIECE_BYTES:
            return Streamed(_gathered(held, pieces), JSON, made=made, fallen=fallen)
    return Answer(200, bytes(held))


async def _gathered(held: bytearray, pieces: Pieces) -> Pieces:
    async with contextlib.aclosing(pieces):
        yield _taken(held)
        async for piece in pieces:
            held += piece
            del piece
            if len(held) > PIECE_BYTES:
                yield _taken(held)
                # A reader that keeps up must not keep others from their turn.
                await asyncio.sleep(0)
        if held:
            yield _taken(held)


def _taken(held: bytearray) -> bytes:
    data = bytes(held)
    held.clear()
    return data


async def frame_pieces(
    read: Callable[[str | None, int], Awaitable[StreamFrames]],
    limit: int,
    write: Callable[[StreamFrame], bytes],
    finish: Callable[[int, StreamFrames], bytes],
) -> Pieces:
    """A page of frames. ``read`` gives so many behind a frame, ``finish`` the whole answer without any frame, of which
    what comes behind the frames is sent last."""
    sent, after, count = 0, None, FIRST_FRAMES
    begun = _OPENED
    while True:
        wanted = min(count, limit - sent)
        page = await read(after, wanted)
        taken, data = _written(page.frames, write)
        whole = taken == len(page.frames)
        sent += taken
        if taken:
            after = page.frames[taken - 1].id
        if whole and (taken < wanted or sent == limit):
            ready = [begun + (b"," if sent > taken and taken else b"") + data + finish(sent, page)[len(_OPENED) :]]
            del page, data
            yield ready.pop()
            return
        count = min(4 * taken, MOST_FRAMES) if whole and len(data) < PIECE_BYTES // 4 else taken
        ready = [begun + (b"," if sent > taken else b"") + data]
        del page, data
        yield ready.pop()
        begun = b""


def _written(frames: Sequence[StreamFrame], write: Callable[[StreamFrame], bytes]) -> tuple[int, bytes]:
    """As many frames as one piece holds, at least one; how many, and as JSON."""
    data = bytearray()
    for taken, frame in enumerate(frames):
        written = write(frame)
        if data and len(data) + len(written) > PIECE_BYTES:
            return taken, bytes(data)
        data += b"," + written if data else written
    return len(frames), bytes(data)


async def list_pieces(lists: AsyncGenerator[bytes, None]) -> Pieces:
    """One list as JSON, made of several."""
    begun = b"["
    async with contextlib.aclosing(lists):
        async for each in lists:
            if len(each) > 2:
                ready = [begun + each[1:-1]]
                begun = b","
                del each
                yield ready.pop()
    yield b"]" if begun == b"," else b"[]"


def sliced(data: bytes) -> Iterator[bytes]:
    """Something that is held whole, so that no more of it is sent at a time than a piece has."""
    view = memoryview(data)
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])


def behind(frame_id: str) -> str:
    """The place right behind a frame."""
    ts_ms, _, seq = frame_id.partition("-")
    return f"{ts_ms}-{int(seq) + 1}" if int(seq) < 2**31 - 1 else f"{int(ts_ms) + 1}-0"
