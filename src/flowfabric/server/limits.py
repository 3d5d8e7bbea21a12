"""How much one caller may ask for, and how much all of them together may bring at once."""

from __future__ import annotations

import math
import time
from collections import OrderedDict

from flowfabric.server.problems import Refused, refused

#: Callers whose rate is remembered; whoever has not called for longest is forgotten first.
MAX_CALLERS = 10_000
#: Headers of one request.
MAX_HEADERS = 100


class RateLimits:
    """A bucket of tokens for each caller: so many requests a second, and a burst of some more."""

    def __init__(self, per_second: float, burst: int) -> None:
        self.per_second = per_second
        self.burst = max(burst, 1)
        #: Caller -> tokens left, and when that was.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, caller: str) -> float:
        """0 if the caller may go on, else seconds until it may."""
        now = time.monotonic()
        tokens, at = self._buckets.pop(caller, (float(self.burst), now))
        tokens = min(self.burst, tokens + (now - at) * self.per_second)
        # What is rounded away must not cost anybody a turn.
        wait = 0.0 if tokens >= 1 - 1e-9 else (1 - tokens) / self.per_second
        self._buckets[caller] = (tokens if wait else tokens - 1, now)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        return wait

    def check(self, caller: str) -> None:
        """Refuse a caller that asks too often."""
        wait = self.take(caller)
        if wait:
            text = f"more than {self.per_second:g} requests a second; try again later"
            after = str(max(1, math.ceil(wait))).encode()
            raise refused(429, text, ((b"retry-after", after),), kind="rate_limit_exceeded", retryable=True)


class BodyRoom:
    """Bytes of bodies that are held for all requests together, so that many large ones cannot fill the memory."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def take(self, size: int) -> None:
        """Hold some more."""
        if self.held + size > self.most:
            raise _no_room()
        self.held += size

    def give(self, size: int) -> None:
        """Let go."""
        self.held -= size


def _no_room() -> Refused:
    text = "too many large requests at once; try again later"
    return refused(503, text, ((b"retry-after", b"1"),), kind="resource_exhausted", retryable=True)


def check_headers(count: int) -> None:
    """Refuse a request with more headers than anybody needs."""
    if count > MAX_HEADERS:
        raise refused(431, f"more than {MAX_HEADERS} headers")
