"""Time that does not run backwards, and the time of a server, known between its answers."""

from __future__ import annotations

import logging
import time

from flowfabric.model.limits import CLOCK_STEP_MS

_log = logging.getLogger("flowfabric.stores")

#: How long an estimate of the server's time is good without hearing from it.
_CLOCK_GOOD_S = 1.0
#: How much later than the server wrote it an answer can be heard, with a busy machine on either side.
_MOST_DELAY_MS = 5_000


class RisingClock:
    """Time that does not run backwards, unless the clock was set right."""

    def __init__(self) -> None:
        self._last = 0

    def risen(self, now_ms: int) -> int:
        """The time, when a clock shows ``now_ms``."""
        if now_ms < self._last - CLOCK_STEP_MS:
            # To wait for it would freeze this process, while others already live in the true time.
            _log.warning("the clock went back by %.1f s and is followed", (self._last - now_ms) / 1000)
            self._last = now_ms
        self._last = max(self._last, now_ms)
        return self._last

    def process_ms(self) -> int:
        """The time of this machine."""
        return self.risen(time.time_ns() // 1_000_000)


class ServerClock(RisingClock):
    """The server's time, estimated between answers that carry it."""

    def __init__(self) -> None:
        super().__init__()
        self._offsets = [float("-inf"), float("-inf")]
        self._bucket = 0
        self._heard_at = float("-inf")

    def heard(self, server_ms: float) -> None:
        """An answer said what time it is. The estimate least delayed in the last seconds is kept."""
        local = time.monotonic()
        self._heard_at = local
        bucket = int(local / 2)
        if bucket != self._bucket:
            self._offsets = [float("-inf"), self._offsets[0] if bucket == self._bucket + 1 else float("-inf")]
            self._bucket = bucket
        self._offsets[0] = max(self._offsets[0], server_ms - local * 1000)

    @property
    def good(self) -> bool:
        return time.monotonic() - self._heard_at < _CLOCK_GOOD_S

    def now(self, written_ms: int = 0) -> int:
        """The time now. The process that wrote ``written_ms`` heard the server with less delay than this one: that
        time has come, and what follows must not be dated before it. A time further ahead than any delay is no clue:
        the server's clock was set back since."""
        local = time.monotonic() * 1000
        if 0 < written_ms - local - max(self._offsets) < _MOST_DELAY_MS:
            self._offsets[0] = written_ms - local
            self._last = max(self._last, written_ms)
        return self.risen(int(local + max(self._offsets)))
