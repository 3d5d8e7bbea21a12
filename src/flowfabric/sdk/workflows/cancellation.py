"""A workflow that was asked to cancel: which of its calls are told of it, and that they are told once.

When nothing is under way here, every call that waits raises ``CancelRequested``. Which calls these are is remembered
before they raise, so code that runs again comes the same way: a call that was told raises at once, and whatever was
done afterwards is remembered as anything else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flowfabric.sdk.errors import CancelRequested

if TYPE_CHECKING:
    from flowfabric.sdk.worker.attempt import Job
    from flowfabric.sdk.workflows.recorded_steps import Memory


class Cancellation:
    """The request, as one attempt of the code meets it."""

    def __init__(self, job: Job, memory: Memory) -> None:
        self._job = job
        self._memory = memory
        self._reason: str | None = job.context.cancel_reason if job.context.cancel_at is not None else None
        #: Whether the calls that waited have been told.
        self.told = memory.told
        #: Steps that were called while the others had yet to be told. They are not begun any more.
        self.held: dict[str, asyncio.Future[None]] = {}

    @property
    def due(self) -> bool:
        """Whether the next call that waits is to raise."""
        return self._job.asked and not self.told

    def check(self, name: str) -> None:
        """A call that was told in an earlier attempt of the code is told again."""
        if name in self._memory.cut:
            raise CancelRequested(self._reason or "")

    def hold(self, name: str) -> asyncio.Future[None]:
        """Wait to be told."""
        future = self.held[name] = asyncio.get_running_loop().create_future()
        return future

    async def reason(self) -> str:
        """Why it was asked to cancel."""
        if self._reason is None:
            identity = self._job.handle.execution_id
            found = (await self._job.engine.read_execution_contexts([identity])).get(identity)
            self._reason = "" if found is None else found.cancel_reason
        return self._reason


def raised_by(error: BaseException) -> BaseException | None:
    """What is left of an error if requests to end are taken out of it; nothing if it is one, or a group of them."""
    if isinstance(error, CancelRequested):
        return None
    if isinstance(error, BaseExceptionGroup):
        return error.split(CancelRequested)[1]
    return error
