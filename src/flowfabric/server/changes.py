"""Where the outboxes stand, for all who want to know when something has happened: one look serves them all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextvars import Context
from typing import TYPE_CHECKING

from flowfabric.model.errors import EngineError
from flowfabric.model.reads.subscriptions import EventFamily, cursor_to_text

if TYPE_CHECKING:
    from flowfabric.engine import Engine

#: How often the outboxes are looked at while anybody listens.
LOOK_S = 0.5


class Changes:
    """Where the outboxes stand, as long as somebody wants to know."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._place: dict[str, str] = {}
        self._moved = asyncio.Condition()
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None

    async def place(self) -> dict[str, str]:
        """The end of each outbox right now."""
        found = {}
        for family in EventFamily:
            batch = await self._engine.read_events(family)
            found[family.value] = cursor_to_text(batch.cursor)
        return found

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[None, None]:
        """Look at the outboxes until the last one has left."""
        self._listeners += 1
        try:
            # Before anything is waited for: those who come together share one task.
            if self._task is None:
                self._task = asyncio.create_task(self._look(), context=Context())
            if not self._place:
                self._place = await self.place()
            yield
        finally:
            self._listeners -= 1
            if self._listeners == 0 and self._task is not None:
                task, self._task, self._place = self._task, None, {}
                task.cancel()
                await asyncio.wait((task,))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            # A store that is away has nothing to tell; what happens meanwhile shows when it is back.
            with contextlib.suppress(EngineError):
                place = await self.place()
                if place != self._place:
                    async with self._moved:
                        self._place = place
                        self._moved.notify_all()

    async def after(self, known: dict[str, str]) -> dict[str, str]:
        """Where the outboxes stand as soon as they stand elsewhere."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._place != known)
            return self._place
