"""Threads for handlers that block. They are daemons: one that never returns cannot keep the process from ending."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Work = tuple[contextvars.Context, Callable[[], Any], "asyncio.Future[_Outcome]"]


class _Outcome:
    """What became of a function. Its error is not the future's: some of them may not be thrown into a coroutine."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self.value = value
        self.error = error


class Threads:
    """At most so many functions at once; more wait their turn."""

    def __init__(self, most: int, name: str, loop: asyncio.AbstractEventLoop, freed: Callable[[], None]) -> None:
        self._most = most
        self._name = name
        self._loop = loop
        self._freed = freed
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0
        #: Functions that still run although nobody waits for them any more.
        self.abandoned = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in a thread, in the caller's context. Giving up on the answer does not stop the function."""
        future: asyncio.Future[_Outcome] = self._loop.create_future()
        future.add_done_callback(self._given_up)
        self._busy += 1
        if self._busy > self._threads and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._queue.put((contextvars.copy_context(), function, future))
        outcome = await future
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def close(self) -> None:
        """Let threads end when they have nothing to do. Functions that run are not waited for."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _given_up(self, future: asyncio.Future[_Outcome]) -> None:
        if future.cancelled():
            self.abandoned += 1

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            context, function, future = item
            outcome = _Outcome(None, None)
            if not future.cancelled():
                try:
                    outcome.value = context.run(function)
                except BaseException as raised:
                    outcome.error = raised
            try:
                self._loop.call_soon_threadsafe(self._done, future, outcome)
            except RuntimeError:
                return  # the loop is closed: nobody is left to be told
            del item, context, function, future, outcome

    def _done(self, future: asyncio.Future[_Outcome], outcome: _Outcome) -> None:
        self._busy -= 1
        if future.cancelled():
            self.abandoned -= 1
            self._freed()
        else:
            future.set_result(outcome)
