"""What a run emits, as readers see it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from flowfabric.model.frames import StreamFrame, StreamFrames
from flowfabric.model.states import PublicState
from flowfabric.sdk.errors import BadOptions

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.sdk.run import Run

#: How long one look at a stream waits for its next frame.
_BLOCK_MS = 30_000
_PAGE = 1_000
#: How long to wait between attempts, when there is nothing to wait at: at first, and at most.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0
#: The status of a run that was asked for in a transaction and is not there yet: it has no stream.
PENDING = "pending"
#: Frames of these types are ours, not the user's.
ERROR_FRAME = "error"


@dataclass(frozen=True, slots=True)
class RunFrame:
    """One piece of output. ``id`` names its place: ``run.frames(after=frame.id)`` goes on behind it."""

    id: str
    type: str
    data: bytes
    attempt: int
    fields: dict[str, str]

    @property
    def text(self) -> str:
        """The frame as text."""
        return self.data.decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        """The frame as the JSON value it holds."""
        return msgspec.json.decode(self.data)


def read_frame(frame: StreamFrame, attempt: int) -> RunFrame:
    """A stored frame, decoded."""
    fields = dict(frame.fields)
    payload, encoding = fields.pop("payload", ""), fields.pop("encoding", "utf8")
    data = base64.b64decode(payload) if encoding == "base64" else payload.encode()
    return RunFrame(f"{attempt}:{frame.id}", fields.pop("frame_type", ""), data, attempt, fields)


def _place(after: str | int) -> tuple[int, str]:
    """The attempt and the cursor that an id names."""
    if after == 0:
        return 0, "0-0"
    attempt, colon, cursor = str(after).partition(":")
    if not colon or not attempt.isdigit():
        raise BadOptions(f"after: {after!r} is not the id of a frame; 0 begins at the first", option="after")
    return int(attempt), cursor


async def follow(run: Run[Any], after: str | int, *, errors: bool = False) -> AsyncIterator[RunFrame]:
    """Frames of an attempt and the ones after it, until the run has ended and all of them were read."""
    from flowfabric.sdk.ends import ENDED

    engine, completions = run.app.engine, run.app.completions
    attempt, cursor = _place(after)
    pause = _FIRST_PAUSE_S
    while True:
        # Waiting for the end starts before looking, so that an end in between is not missed.
        with completions.parked(run.id) as told:
            await completions.started()
            # Looked at before the stream: what was written before the run ended is then certain to be read.
            state = await run.status()
            ended, pending = state in ENDED, state == PENDING
            current = attempt if pending else await engine.read_current_attempt_index(run.id)
            waiting = not ended and not pending and current == attempt and state is not PublicState.DELAYED
            page = (
                StreamFrames() if pending else await _page(engine, run.id, attempt, cursor, told if waiting else None)
            )
        for frame in page.frames:
            cursor = frame.id
            shown = read_frame(frame, attempt)
            if errors or shown.type != ERROR_FRAME:
                yield shown
        if page.frames:
            pause = _FIRST_PAUSE_S
        elif current > attempt:
            attempt, cursor, pause = attempt + 1, "0-0", _FIRST_PAUSE_S
        elif ended:
            return
        elif page.is_closed() or not waiting:
            # The next attempt has not begun.
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE_S)


async def _page(
    engine: Engine, run_id: str, attempt: int, cursor: str, told: asyncio.Future[None] | None
) -> StreamFrames:
    """The next frames; with ``told``, wait for the first of them until the run may have ended."""
    if told is None:
        return await engine.tail_stream(run_id, attempt, after=cursor, count_limit=_PAGE)
    tail = asyncio.ensure_future(
        engine.tail_stream(run_id, attempt, after=cursor, block_ms=_BLOCK_MS, count_limit=_PAGE)
    )
    try:
        await asyncio.wait((tail, told), return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            told.result()
        return await tail if tail.done() else StreamFrames()
    finally:
        if not tail.done():
            tail.cancel()
            await asyncio.gather(tail, return_exceptions=True)
