"""One line for each request: what was asked, how it went, how long it took. Never a path, a header or a body."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping

from flowfabric.model.trace import TraceContext

_log = logging.getLogger("flowfabric.access")

#: What is asked by machines every few seconds is told only to those who want to hear everything.
_QUIET = frozenset({"/livez", "/healthz", "/readyz", "/metrics"})
MAX_ID_BYTES = 128
_ALLOWED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+=")


def identity_of(headers: Mapping[bytes, bytes]) -> str:
    """The caller's ``X-Request-Id`` if it can be used, else a new one."""
    given = headers.get(b"x-request-id")
    if given and len(given) <= MAX_ID_BYTES and _ALLOWED.issuperset(given):
        return given.decode()
    return f"{random.getrandbits(128):032x}"


def trace_of(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """The trace that the caller's headers name."""
    parent = headers.get(b"traceparent")
    if parent is None:
        return None
    return TraceContext.read(parent.decode("latin-1"), headers.get(b"tracestate", b"").decode("latin-1"))


class Asked:
    """One request, for its line in the log."""

    __slots__ = ("began", "identity", "method", "route", "status", "told", "who")

    def __init__(self, method: str, route: str, status: int, identity: str) -> None:
        self.began = time.perf_counter()
        self.identity = identity
        self.method = method
        self.route = route
        self.status = status
        self.who: str | None = None
        self.told = False

    def tell(self) -> float:
        """Write the line; how long the request took."""
        seconds = time.perf_counter() - self.began
        level = logging.DEBUG if self.route in _QUIET else logging.INFO
        if _log.isEnabledFor(level):
            facts = {
                "method": self.method,
                "route": self.route,
                "status": self.status,
                "duration_ms": round(seconds * 1000, 3),
                "who": self.who,
            }
            _log.log(level, "%s %s %s", self.method, self.route, self.status, extra=facts)
        return seconds
