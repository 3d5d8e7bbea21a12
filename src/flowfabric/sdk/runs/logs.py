"""``ctx.log``: lines go to Python's logging, and are stored beside the run.

Stored lines are bounded, share their writes, and never decide anything: a line that cannot be stored is only missing
beside the run. They are written before the attempt ends or its lease is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowfabric.model.streams.frames import MAX_FRAME_BYTES, Frame, FrameContent
from flowfabric.model.streams.logs import LOG_FRAME, MAX_LINE, MAX_LINES, MAX_LOG, LogLine, packed, read_lines
from flowfabric.sdk.errors import BadOptions

if TYPE_CHECKING:
    from flowfabric.sdk.runs.run import Run
    from flowfabric.sdk.worker.attempt import Job

_log = logging.getLogger("flowfabric.worker")
#: How long lines wait for others that are written with them.
LINGER_S = 0.2
_OMITTED = (
    f"further lines of this attempt are not stored: more than {MAX_LINES:,} lines or {MAX_LOG // 1024} kB. The "
    "worker's own log has them"
)


@dataclass(frozen=True, slots=True)
class RunLog:
    """A stored line of a run. ``attempt`` counts from 1; ``step`` names the step of a workflow that wrote it."""

    at_ms: int
    level: str
    text: str
    attempt: int
    step: str | None = None


def level_of(wanted: str | int | None) -> int | None:
    """The number of a level; ``None`` stores nothing."""
    if wanted is None or (isinstance(wanted, int) and not isinstance(wanted, bool)):
        return wanted
    found = logging.getLevelNamesMapping().get(wanted.upper()) if isinstance(wanted, str) else None
    if found is None:
        raise BadOptions(
            f'stored_logs: {wanted!r} is not a level of logging; use "DEBUG", "INFO", "WARNING", "ERROR" or None',
            option="stored_logs",
        )
    return found


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records carry facts of the attempt; ``keep`` also gets the level and text of each line."""

    def __init__(
        self, name: str, known: dict[str, Any], least: int | None, keep: Callable[[LogLine], None], step: str | None
    ) -> None:
        super().__init__(logging.getLogger(name), known)
        self._least = least
        self._keep = keep
        self._step = step

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if self._least is not None and level >= self._least:
            self._keep(LogLine(time.time_ns() // 1_000_000, logging.getLevelName(level), _text(msg, args), self._step))
        # The caller of `info` and the like is looked up two frames above.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *args, **kwargs)


def _text(msg: object, args: tuple[Any, ...]) -> str:
    """The line as ``logging`` would write it; arguments that do not fit do not harm the caller."""
    try:
        text = logging.LogRecord("", 0, "", 0, msg, args, None).getMessage()
    except Exception:
        text = str(msg)
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def _running() -> asyncio.AbstractEventLoop | None:
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


class Logs:
    """The stored lines of one lease."""

    def __init__(self, job: Job) -> None:
        self._job = job
        assert job.task is not None
        self._loop = job.task.get_loop()
        self._waiting: list[LogLine] = []
        self._lines = self._characters = 0
        self._writer: asyncio.Task[None] | None = None
        #: Lines of a workflow's function that runs again up to where it stood: whether they are old shows later.
        self._doubtful: list[LogLine] | None = None

    def add(self, line: LogLine) -> None:
        """Take a line, in whichever thread it was written."""
        if _running() is self._loop:
            self._add(line)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._add, line)

    def _add(self, line: LogLine) -> None:
        if self._doubtful is not None and line.step is None:
            if len(self._doubtful) < MAX_LINES:
                self._doubtful.append(line)
            return
        if self._lines > MAX_LINES:
            return
        self._lines += 1
        self._characters += len(line.text)
        if self._lines > MAX_LINES or self._characters > MAX_LOG:
            self._lines = MAX_LINES + 1
            line = LogLine(line.at_ms, "WARNING", _OMITTED)
        self._waiting.append(line)
        if self._writer is None:
            self._writer = self._loop.create_task(self._write(), name="flowfabric-logs")

    # -- functions that run again ----------------------------------------------------------------------------------

    def doubt(self) -> None:
        """From now on the workflow's function may repeat what it did before."""
        self._doubtful = []

    def forget(self) -> None:
        """The function has made a call that it had made before: what it wrote up to here is stored already."""
        if self._doubtful is not None:
            self._doubtful.clear()

    def believe(self) -> None:
        """The function does something that it had not done before."""
        doubtful, self._doubtful = self._doubtful, None
        for line in doubtful or ():
            self._add(line)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        await asyncio.sleep(LINGER_S)
        self._writer = None
        await self._store()

    async def settle(self) -> None:
        """Write everything, before the lease goes."""
        # What other threads have written arrives in the next turn of the loop.
        await asyncio.sleep(0)
        self.believe()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
        await self._store()

    async def _store(self) -> None:
        lines, self._waiting = self._waiting, []
        frames = [
            Frame(data, frame_type=LOG_FRAME, content=FrameContent.JSON) for data in packed(lines, MAX_FRAME_BYTES)
        ]
        if not frames:
            return
        try:
            await self._job.appends.all(frames)
        except Exception as error:
            _log.debug("%r: %d log lines were not stored: %s", self._job, len(lines), error)


# -- reading -----------------------------------------------------------------------------------------------------------


async def lines_of(run: Run[Any], *, follow: bool = False) -> AsyncIterator[RunLog]:
    """The stored lines, oldest first; with ``follow`` until the run has ended."""
    from flowfabric.sdk.runs.frames import all_frames

    async for frame in all_frames(run, live=follow):
        for line in read_lines(frame.data) if frame.type == LOG_FRAME else ():
            yield RunLog(line.at_ms, line.level, line.text, frame.attempt, line.step)
