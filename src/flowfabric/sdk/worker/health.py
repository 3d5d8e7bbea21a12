"""Is the event loop alive? A thread asks it, and shows what it is doing when it does not answer."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

_log = logging.getLogger("flowfabric.worker")

LOOK_S = 0.1
#: Lines of a stack that are shown.
STACK_LINES = 12


class LoopWatch:
    """Warns when the loop has not answered for ``after_s``, once per blockage, with the stack that blocks it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        after_s: float = 1.0,
        stalled: Callable[[float, str], None] | None = None,
    ) -> None:
        self._loop = loop
        self._after_s = after_s
        self._stalled = stalled
        self._thread_id = threading.get_ident()
        self._answered = time.monotonic()
        self._asked = self._answered
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flowfabric-loop-watch", daemon=True)
        #: The longest time the loop was seen not to answer, in seconds.
        self.worst_lag_s = 0.0

    def start(self) -> None:
        """Begin to watch the loop this was made in."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()

    def _answer(self) -> None:
        self._answered = time.monotonic()
        self.worst_lag_s = max(self.worst_lag_s, self._answered - self._asked)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return  # the loop is closed
            told = False
            while self._answered < self._asked and not self._stop.is_set():
                self._stop.wait(min(LOOK_S, self._after_s / 4))
                lag = time.monotonic() - self._asked
                if self._answered < self._asked and lag >= self._after_s and not told:
                    told = True
                    self._warn(lag)
            self._stop.wait(LOOK_S)

    def _warn(self, lag: float) -> None:
        frame = sys._current_frames().get(self._thread_id)
        stack = "".join(traceback.format_stack(frame, STACK_LINES)) if frame is not None else "(no stack)\n"
        running = self._running()
        _log.warning(
            "the event loop was blocked for %.1f s; it runs %s. Put blocking code into a `def` handler, which "
            "gets a thread, or call it with asyncio.to_thread.\n%s",
            lag,
            running,
            stack,
        )
        if self._stalled is not None:
            self._stalled(lag, running)

    def _running(self) -> str:
        try:
            task = asyncio.current_task(self._loop)
        except RuntimeError:
            task = None
        return "no task" if task is None else task.get_name()
