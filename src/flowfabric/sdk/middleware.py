"""Layers over the engine: tracing, metrics, rate limits, a circuit breaker, hooks of your own.

``App(url, layers=[a, b])`` wraps the engine in ``a`` and that in ``b``: the last one is outermost. A layer is anything
that takes an engine and returns one. Those here are made of a ``Hook``, and every public operation of the engine goes
through it, those of later releases too. Layers are of one process: they protect it, and cannot keep others from
anything. The engine's own timers, and the renewal of leases on a thread of its own, go past them.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from flowfabric.engine import Engine
from flowfabric.engine.engine import OPERATIONS
from flowfabric.model.errors import Contextual, EngineError, ResourceExhausted, Transport, TransportKind

Outcome = BaseException | None


class Hook(Protocol):
    """What happens around an operation. Both are plain functions and must not block."""

    def before(self, method: str) -> None:
        """Raise to refuse the call."""

    def after(self, method: str, elapsed_s: float, outcome: Outcome) -> None:
        """Told about every call, refused ones (elapsed 0) included; ``outcome`` is the error, if there was one."""


class Layered:
    """An engine behind a hook. What is no operation is the engine's own."""

    def __init__(self, inner: Any, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name.startswith("_") or name not in _HOOKED:
            return found
        wrapped = self._wrap(name, found)
        self.__dict__[name] = wrapped
        return wrapped

    @property
    def inner(self) -> Any:
        """What is behind it."""
        return self._inner

    def limited_to(self, namespaces: Iterable[str]) -> Layered:
        """The engine for a caller who is limited to some namespaces, behind the same hook."""
        return Layered(self._inner.limited_to(namespaces), self._hook)

    def __repr__(self) -> str:
        return f"<{type(self._hook).__name__} over {self._inner!r}>"

    def _wrap(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        before, after = self._hook.before, self._hook.after

        async def layered(*args: Any, **kwargs: Any) -> Any:
            try:
                before(name)
            except BaseException as refusal:
                after(name, 0.0, refusal)
                raise
            began = time.perf_counter()
            try:
                answer = await call(*args, **kwargs)
            except BaseException as error:
                after(name, time.perf_counter() - began, error)
                raise
            after(name, time.perf_counter() - began, None)
            return answer

        layered.__name__ = name
        layered.__doc__ = call.__doc__
        layered.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
        return layered

    async def __aenter__(self) -> Layered:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._inner.close()


#: Operations that hooks see: all of them, but for closing, which nobody may refuse.
_HOOKED = frozenset(OPERATIONS) - {"close", "drain"}


def layer(hook: Hook) -> Callable[[Any], Engine]:
    """The layer that a hook makes."""

    def wrap(inner: Any) -> Engine:
        wrapped: Any = Layered(inner, hook)
        return wrapped  # type: ignore[no-any-return]

    return wrap


class _Layer:
    """A hook that is a layer itself: ``layers=[RateLimit(100)]``."""

    def __call__(self, inner: Any) -> Engine:
        return layer(self)(inner)

    def before(self, method: str) -> None:
        """Let the call through."""

    def after(self, method: str, elapsed_s: float, outcome: Outcome) -> None:
        """Nothing to note."""


class Hooks(_Layer):
    """Two functions of your own."""

    def __init__(
        self,
        before: Callable[[str], None] | None = None,
        after: Callable[[str, float, Outcome], None] | None = None,
    ) -> None:
        self._before = before
        self._after = after

    def before(self, method: str) -> None:
        """Ask the first."""
        if self._before is not None:
            self._before(method)

    def after(self, method: str, elapsed_s: float, outcome: Outcome) -> None:
        """Tell the second."""
        if self._after is not None:
            self._after(method, elapsed_s, outcome)


# -- tracing -----------------------------------------------------------------------------------------------------------


class Tracing(_Layer):
    """After each call a span ``ff_sdk.backend`` with the event ``engine_backend.call`` (method, elapsed_us, ok): by
    OpenTelemetry if it is installed, else as a line in the log ``flowfabric.trace``. With ``by_operation`` spans are
    named after what was called, ``ff.complete`` for example."""

    def __init__(self, level: int = logging.INFO, *, tracer: Any = None, by_operation: bool = False) -> None:
        self._level = level
        self._by_operation = by_operation
        self._log = logging.getLogger("flowfabric.trace")
        self._tracer = tracer if tracer is not None else _opentelemetry()

    def after(self, method: str, elapsed_s: float, outcome: Outcome) -> None:
        """Tell."""
        facts = {"method": method, "elapsed_us": round(elapsed_s * 1_000_000), "ok": outcome is None}
        if self._tracer is None:
            if self._log.isEnabledFor(self._level):
                self._log.log(self._level, "%(method)s took %(elapsed_us)d us, ok=%(ok)s", facts, extra=facts)
            return
        now = time.time_ns()
        span = self._tracer.start_span(
            f"ff.{method}" if self._by_operation else "ff_sdk.backend",
            attributes={"method": method},
            start_time=now - round(elapsed_s * 1_000_000_000),
        )
        span.add_event("engine_backend.call", facts, now)
        if isinstance(outcome, Exception):
            span.record_exception(outcome)
        span.end(now)


def _opentelemetry() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("flowfabric")


# -- metrics -----------------------------------------------------------------------------------------------------------


class Sink(Protocol):
    """Where figures go."""

    def record_call(self, method: str, elapsed_s: float, category: str | None) -> None:
        """One call; ``category`` is the family of its error, ``None`` if it went well."""


#: Families of errors that metrics tell apart; others are ``unknown``.
CATEGORIES = frozenset(
    {"not_found", "validation", "contention", "conflict", "state", "bug", "transport", "unavailable"}
)


def category_of(error: BaseException) -> str:
    """The family of an error, for metrics."""
    bare = unwrapped(error)
    family = bare.family if isinstance(bare, EngineError) else "unknown"
    return family if family in CATEGORIES else "unknown"


class Metrics(_Layer):
    """Hands every call to a sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def after(self, method: str, elapsed_s: float, outcome: Outcome) -> None:
        """Count."""
        self._sink.record_call(method, elapsed_s, None if outcome is None else category_of(outcome))


# -- rate limit --------------------------------------------------------------------------------------------------------


class RateLimited(ResourceExhausted):
    """A layer of this process has let enough calls through for now; the same call can be made again."""

    def __init__(self, method: str, bucket: str, per_second: float, retry_after_ms: int) -> None:
        super().__init__(f"rate-limit: method {method} bucket {bucket}", int(per_second), retry_after_ms)


class _Bucket:
    def __init__(self, per_second: float, now: float) -> None:
        self.rate = max(float(per_second), 1.0)
        self.tokens = self.rate
        self.at = now

    def take(self, now: float) -> float:
        """0 if there was a token, else how long until there is one."""
        self.tokens = min(self.rate, self.tokens + (now - self.at) * self.rate)
        self.at = now
        if self.tokens >= 1:
            self.tokens -= 1
            return 0.0
        return (1 - self.tokens) / self.rate


class RateLimit(_Layer):
    """At most so many calls per second, with bursts of a second's worth. A call too many is refused at once, with an
    error that says to try again; nothing waits here.

    ``RateLimit(100)`` has one bucket for all operations. ``classify`` names the bucket of an operation, ``buckets``
    their rates; what is in none of them is let through, or counted in the ``default`` bucket if there is one.
    """

    def __init__(
        self,
        default: float | None = None,
        *,
        classify: Callable[[str], str] | None = None,
        buckets: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._classify = classify
        self._lock = threading.Lock()
        now = clock()
        self._default = None if default is None else _Bucket(default, now)
        self._buckets = {name: _Bucket(rate, now) for name, rate in (buckets or {}).items()}

    def before(self, method: str) -> None:
        """Take a token or refuse."""
        name = "default" if self._classify is None else self._classify(method)
        bucket = self._buckets.get(name)
        if bucket is None:
            name, bucket = "default", self._default
        if bucket is None:
            return
        with self._lock:
            wait_s = bucket.take(self._clock())
        if wait_s:
            raise RateLimited(method, name, bucket.rate, max(1, round(wait_s * 1000)))


# -- circuit breaker ---------------------------------------------------------------------------------------------------


#: How long the others wait for the call that tries.
TRIAL_S = 5.0


class CircuitOpen(Transport):
    """The circuit breaker refuses calls for a while, because the store did not answer the last ones."""

    def __init__(self) -> None:
        super().__init__("ff-sdk-layer", TransportKind.TRANSPORT, "circuit open")


class CircuitBreaker(_Layer):
    """Stops calling a store that does not answer. After ``failures`` transport errors in a row calls are refused for
    ``cool_down_s``; then one call tries, while others are still refused: if it meets a transport error the wait begins
    again, else all is well again. A call that waits for something may take long to tell: after some seconds another one
    may try as well. Errors of other kinds are answers and change nothing; refusals of the breaker itself
    count for nothing."""

    def __init__(
        self, failures: int = 5, cool_down_s: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = max(1, failures)
        self._cool_down_s = cool_down_s
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._opened_at: float | None = None
        #: When the call that tries began.
        self._trying: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls are refused now."""
        return self._opened_at is not None

    def __call__(self, inner: Any) -> Engine:
        wrapped: Any = _Broken(inner, self)
        return wrapped  # type: ignore[no-any-return]

    def admit(self) -> bool:
        """Whether this call is the one that tries; raises if it may not be made."""
        with self._lock:
            if self._opened_at is None:
                return False
            now = self._clock()
            trying = self._trying is not None and now - self._trying < TRIAL_S
            if trying or now - self._opened_at < self._cool_down_s:
                raise CircuitOpen
            self._trying = now
            return True

    def heard(self, outcome: Outcome, trial: bool) -> None:
        """How an admitted call went."""
        failed = outcome is not None and isinstance(unwrapped(outcome), Transport)
        unknown = outcome is not None and not isinstance(outcome, Exception)
        with self._lock:
            if trial and self._opened_at is not None:
                self._trying = None
                if unknown:
                    return  # given up before it was answered: the next call tries
                self._opened_at = self._clock() if failed else None
                self._count = 0
            elif failed:
                self._count += 1
                if self._count >= self._threshold and self._opened_at is None:
                    self._opened_at = self._clock()
                    self._count = 0
            elif outcome is None:
                self._count = 0


class _Broken(Layered):
    """A breaker has to know which of the calls was its trial."""

    def __init__(self, inner: Any, breaker: CircuitBreaker) -> None:
        super().__init__(inner, breaker)
        self._breaker = breaker

    def _wrap(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        breaker = self._breaker

        async def layered(*args: Any, **kwargs: Any) -> Any:
            trial = breaker.admit()
            try:
                answer = await call(*args, **kwargs)
            except BaseException as error:
                breaker.heard(error, trial)
                raise
            breaker.heard(None, trial)
            return answer

        layered.__name__ = name
        layered.__doc__ = call.__doc__
        return layered


def unwrapped(error: BaseException) -> BaseException:
    """The error under the labels that were put around it."""
    while isinstance(error, Contextual):
        error = error.inner
    return error
