"""The work itself, as a user of the engine would write it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from demo.plan import STORY, Job
from flowfabric import FailureClass, Frame, FrameKind, Handle
from flowfabric.engine import Engine


class Trouble(Exception):
    """The work failed; ``failure_class`` says whether another attempt makes sense."""

    def __init__(self, reason: str, failure_class: FailureClass = FailureClass.TRANSIENT) -> None:
        super().__init__(reason)
        self.failure_class = failure_class


@dataclass
class Attempt:
    """One attempt at one job, in the hands of one worker."""

    engine: Engine
    handle: Handle
    job: Job
    worker: str
    percent: int | None = None

    async def report_progress(self, percent: int, message: str) -> None:
        """Tell everybody how far it is."""
        await self.engine.progress(self.handle, percent, message)
        self.percent = percent


#: What the outside world is like. The import works once somebody has repaired it.
repaired = asyncio.Event()


async def report(attempt: Attempt) -> None:
    """Write line by line to the stream. After a take-over: read what is there, and go on behind it."""
    engine, handle = attempt.engine, attempt.handle
    written = await engine.read_stream(handle.execution_id, handle.payload.attempt_index)
    for line in STORY[len(written.frames) :]:
        await asyncio.sleep(0.35)
        await engine.append_frame(handle, Frame(line.encode(), FrameKind.STDOUT, correlation_id=attempt.worker))


async def transcode(attempt: Attempt) -> None:
    """Slow, and says how far it is."""
    for percent in (25, 50, 75):
        await asyncio.sleep(0.25)
        await attempt.report_progress(percent, f"{percent} of 100 frames")
    await asyncio.sleep(0.25)


async def index(attempt: Attempt) -> None:
    """Depends on a service that does not always answer."""
    await asyncio.sleep(0.2)
    if attempt.handle.payload.attempt_index < attempt.job.failures:
        raise Trouble("connection reset")


async def import_(attempt: Attempt) -> None:
    """Cannot work until somebody has repaired something; trying again does not help."""
    await asyncio.sleep(0.4)
    if not repaired.is_set():
        raise Trouble("the password has expired", FailureClass.PERMANENT)


async def crawl(attempt: Attempt) -> None:
    """Would go on for ever."""
    page = 0
    while True:
        await asyncio.sleep(0.2)
        page += 1
        await attempt.report_progress(min(page, 99), f"page {page}")


async def scan(attempt: Attempt) -> None:
    """Hangs. Its worker lives and keeps the lease, so only a timeout ends it."""
    await asyncio.Event().wait()


async def quick(attempt: Attempt) -> None:
    """Most work is like this."""
    await asyncio.sleep(0.25)


_WORK: dict[str, Callable[[Attempt], Awaitable[None]]] = {
    "report": report,
    "transcode": transcode,
    "index": index,
    "mail": index,
    "import": import_,
    "crawl": crawl,
    "scan": scan,
}


async def perform(attempt: Attempt) -> bytes:
    """Do the work of an attempt; its result, or ``Trouble``."""
    await _WORK.get(attempt.job.kind, quick)(attempt)
    return attempt.job.result
