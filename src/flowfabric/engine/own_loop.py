"""The event loop that an engine belongs to."""

from __future__ import annotations

import asyncio

from flowfabric.model.errors import WrongLoop


class OwnLoop:
    """Remembers the loop that it was first used on, and refuses others: what waits there would never be woken."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Fail at once on another loop than the first one, also in a process that was forked off since."""
        running = asyncio.get_running_loop()
        if self._loop is not running:
            if self._loop is not None:
                raise WrongLoop()
            self._loop = running
