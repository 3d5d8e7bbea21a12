"""A run's output, as readers see it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from flowfabric.model.errors import EngineError
from flowfabric.model.states import PublicState
from flowfabric.model.streams.frames import MODE_SUMMARY, Frame, StreamFrame, StreamFrames
from flowfabric.model.streams.logs import LOG_FRAME
from flowfabric.model.streams.restarts import RestartReason, is_restart, read_restart
from flowfabric.sdk.backoff import Patience
from flowfabric.sdk.errors import BadOptions

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.sdk.runs.run import Run
    from flowfabric.sdk.worker.attempt import Job


#: How long one look at a stream waits for its next frame.
_BLOCK_MS = 30_000
_PAGE = 1_000
#: How long to wait between attempts, when there is nothing to wait at: at first, and at most.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0
#: The status of a run that was asked for in a transaction and is not there yet: it has no stream.
PENDING = "pending"
#: Frames of these types are ours, not the user's.
ERROR_FRAME = "error"
OUR_FRAMES = frozenset({ERROR_FRAME, LOG_FRAME})


@dataclass(frozen=True, slots=True)
class RunFrame:
    """One piece of output. ``id`` is its position: ``run.frames(after=frame.id)`` continues after it. ``attempt``
    counts from 1, as ``ctx.attempt`` does; ``step`` names the step of a workflow that emitted it; ``run_id`` is the run
    it belongs to, which may be a child."""

    id: str
    type: str
    data: bytes
    attempt: int
    fields: dict[str, str]
    step: str | None = None
    run_id: str = ""
    #: Whether it was emitted as text, not as bytes or as a value.
    is_text: bool = True

    @property
    def text(self) -> str:
        """The frame as text."""
        return self.data.decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        """The frame as the JSON value it holds."""
        return msgspec.json.decode(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRestart(RunFrame):
    """Output starts over: what the run, or one step of it, emitted before this frame no longer counts. It has no text
    of its own. ``Output`` applies it; readers without ``Output`` use ``forgets``."""

    reason: RestartReason

    def forgets(self, frame: RunFrame) -> bool:
        """Whether a frame that came before this one no longer counts."""
        return frame.run_id == self.run_id and frame.step == self.step

    @property
    def sentence(self) -> str:
        """For people: what runs again, and why."""
        what = f"attempt {self.attempt}" if self.step is None else f"step {self.step} in attempt {self.attempt}"
        return f"output starts over: {what} {_AGAIN[self.reason]}"


_AGAIN = {
    RestartReason.RETRY: "after a failure",
    RestartReason.WORKER_LOST: "again after its worker was lost",
    RestartReason.GIVEN_BACK: "again on another worker",
    RestartReason.RESUMED: "again after a pause",
    RestartReason.REPLAYED: "again as a replay",
}


def read_frame(frame: StreamFrame, index: int, run_id: str = "") -> RunFrame:
    """A stored frame of the attempt with that index, decoded."""
    fields = dict(frame.fields)
    payload, encoding = fields.pop("payload", ""), fields.pop("encoding", "utf8")
    place, kind, step = f"{index + 1}:{frame.id}", fields.pop("frame_type", ""), fields.pop("step", None)
    if is_restart(frame.fields):
        told = read_restart(payload)
        return RunRestart(place, kind, b"", told.attempt, fields, step, run_id, False, reason=told.reason)
    data = base64.b64decode(payload) if encoding == "base64" else payload.encode()
    is_text = fields.pop("content", None) is None and encoding != "base64" and frame.mode != MODE_SUMMARY
    return RunFrame(place, kind, data, index + 1, fields, step, run_id, is_text)


class Output:
    """The part of a run's output that counts: ``add`` every frame, and restarts remove the frames that no longer
    count."""

    def __init__(self) -> None:
        #: The frames that count, in order.
        self.frames: list[RunFrame] = []
        #: The last frame of each run: ``run.frames(after=output.places, children=True)`` goes on behind them.
        self.places: dict[str, str] = {}

    def add(self, frame: RunFrame) -> bool:
        """Add the next frame. Returns whether it removed others, so that what is shown has to be redrawn."""
        self.places[frame.run_id] = frame.id
        if not isinstance(frame, RunRestart):
            self.frames.append(frame)
            return False
        kept = [each for each in self.frames if not frame.forgets(each)]
        forgotten = len(kept) < len(self.frames)
        self.frames = kept
        return forgotten

    @property
    def text(self) -> str:
        """All text that counts, in one string."""
        return "".join(frame.text for frame in self.frames if frame.is_text)


def place_of(after: str | int | Mapping[str, str]) -> tuple[int, str]:
    """The attempt's index and the cursor that an id names."""
    if after == 0:
        return 0, "0-0"
    attempt, colon, cursor = str(after).partition(":")
    if not colon or not attempt.isdecimal() or int(attempt) < 1:
        raise BadOptions(f"after: {after!r} is not the id of a frame; 0 starts at the first", option="after")
    return int(attempt) - 1, cursor


async def emitted(engine: Engine, run_id: str, attempts: int, step: str | None) -> str:
    """The text that counts of what one step of a run (or no step of it) has emitted in its first ``attempts``."""
    output = Output()
    for index in range(attempts):
        cursor = "0-0"
        while page := (await engine.tail_stream(run_id, index, after=cursor, count_limit=_PAGE)).frames:
            cursor = page[-1].id
            for frame in page:
                shown = read_frame(frame, index, run_id)
                if shown.step == step and shown.type not in OUR_FRAMES:
                    output.add(shown)
    return output.text


async def follow(run: Run[Any], after: str | int | Mapping[str, str]) -> AsyncIterator[RunFrame]:
    """The output of an attempt and the ones after it, until the run has ended and all of it was read."""
    async for frame in all_frames(run, after):
        if frame.type not in OUR_FRAMES:
            yield frame


async def all_frames(
    run: Run[Any], after: str | int | Mapping[str, str] = 0, *, live: bool = True
) -> AsyncIterator[RunFrame]:
    """Frames of an attempt and the ones after it, ours included; unless ``live``, only those that are there now."""
    from flowfabric.sdk.errors import ENDED

    engine, completions = run.app.engine, run.app.completions
    attempt, cursor = place_of(after.get(run.id, 0) if isinstance(after, Mapping) else after)
    pause = _FIRST_PAUSE_S
    while True:
        # Waiting for the end starts before looking, so that an end in between is not missed.
        with completions.parked(run.id) as told:
            await completions.started()
            # Looked at before the stream: what was written before the run ended is then certain to be read.
            state = await run.status()
            ended, pending = state in ENDED, state == PENDING
            current = attempt if pending else await engine.read_current_attempt_index(run.id)
            waiting = live and not (ended or pending) and current == attempt and state is not PublicState.DELAYED
            page = (
                StreamFrames() if pending else await _page(engine, run.id, attempt, cursor, told if waiting else None)
            )
        for frame in page.frames:
            cursor = frame.id
            yield read_frame(frame, attempt, run.id)
        if page.frames:
            pause = _FIRST_PAUSE_S
        elif current > attempt:
            attempt, cursor, pause = attempt + 1, "0-0", _FIRST_PAUSE_S
        elif ended or not live:
            return
        elif page.is_closed() or not waiting:
            # The next attempt has not begun.
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE_S)


async def follow_with_children(run: Run[Any], after: str | int | Mapping[str, str]) -> AsyncIterator[RunFrame]:
    """Frames of a run and of all that it has started, until the run has ended."""
    from flowfabric.sdk.runs.family_stream import Family

    places = after if isinstance(after, Mapping) else {}
    if after != 0 and not isinstance(after, Mapping):
        raise BadOptions(
            f"after: {after!r} names a frame of one run; with children=True name one of each: after=output.places",
            option="after",
        )
    pause = _FIRST_PAUSE_S
    while await run.status() == PENDING:
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LAST_PAUSE_S)
    async with aclosing(Family(run.app.engine, run.id, places).rounds()) as rounds:
        async for found in rounds:
            for each in found:
                yield read_frame(each.frame, each.attempt_index, each.run_id)


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


# --------------------------------------------------------------------------------------------------------------------
# Writing frames of an attempt: numbered, one append after the other, so that one whose answer is lost can be made again
# and is written once.


class Appends:
    """The appends of one lease, whichever part of its work they come from."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._number = 0
        self._turn = asyncio.Lock()

    @property
    def begun(self) -> bool:
        """Whether anything was written under this lease."""
        return self._number > 0

    async def one(self, frame: Frame) -> None:
        """Write one frame, however often that has to be tried."""
        engine, handle = self._job.engine, self._job.handle
        async with self._turn:
            self._number = number = self._number + 1
            await self._patiently(lambda: engine.append_frame(handle, frame, number))

    async def all(self, frames: list[Frame]) -> None:
        """Write some frames together, however often that has to be tried."""
        engine, handle = self._job.engine, self._job.handle
        async with self._turn:
            self._number = number = self._number + 1
            await self._patiently(lambda: engine.append_frames(handle, frames, number))

    async def _patiently(self, append: Callable[[], Awaitable[Any]]) -> None:
        from flowfabric.sdk.worker.renewal import is_passing

        patience = Patience()
        while True:
            try:
                await append()
            except EngineError as error:
                if not is_passing(error) or self._job.is_lost:
                    raise
                if not self._job.lease.healthy:
                    # Out of reach until the lease had run out: that is no failure of the task.
                    self._job.lose(error)
                    raise
                await patience.rest()
            else:
                return
