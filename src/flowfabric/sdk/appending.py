"""Writing frames of an attempt: numbered, one append after the other, so that one whose answer is lost can be made
again and is written once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flowfabric.model.errors import EngineError
from flowfabric.model.frames import Frame
from flowfabric.sdk.patience import Patience

if TYPE_CHECKING:
    from flowfabric.sdk.worker.handling import Job


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
        """Write one frame."""
        async with self._turn:
            self._number += 1
            await self._job.engine.append_frame(self._job.handle, frame, self._number)

    async def all(self, frames: list[Frame]) -> None:
        """Write some frames together, however often that has to be tried."""
        async with self._turn:
            self._number += 1
            await self._patiently(frames, self._number)

    async def _patiently(self, frames: list[Frame], number: int) -> None:
        from flowfabric.sdk.worker.renewal import is_passing

        patience = Patience()
        while True:
            try:
                await self._job.engine.append_frames(self._job.handle, frames, number)
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
