"""Layers over the engine: everything goes through them, in their order, and each does what it says."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.engine.engine import OPERATIONS
from flowfabric.model.errors import (
    Contention,
    ContentionKind,
    Contextual,
    EngineError,
    NotFound,
    Transport,
    TransportKind,
    Validation,
)
from flowfabric.sdk.app import App
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.middleware import (
    TRIAL_S,
    CircuitBreaker,
    CircuitOpen,
    Hooks,
    Metrics,
    RateLimit,
    RateLimited,
    Tracing,
    layer,
)

SOON = seconds(20)


class Fake:
    """An engine whose every operation answers as it is told."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in OPERATIONS:
            raise AttributeError(name)

        async def operation(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            if self.error is not None:
                raise self.error
            return f"answer of {name}"

        return operation


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def broken() -> Transport:
    return Transport("sqlite", TransportKind.TRANSPORT, "on purpose")


async def test_every_operation_goes_through() -> None:
    seen: list[tuple[str, str]] = []
    hooks = Hooks(
        before=lambda method: seen.append(("before", method)),
        after=lambda method, elapsed, outcome: seen.append(("after", method)),
    )
    fake = Fake()
    engine: Any = hooks(fake)
    for name in OPERATIONS:
        assert await getattr(engine, name)(1, two=2) == f"answer of {name}"
        assert fake.calls[-1] == (name, (1,), {"two": 2})
        if name not in ("close", "drain"):
            assert seen[-2:] == [("before", name), ("after", name)]
    assert len(seen) == 2 * (len(OPERATIONS) - 2)


async def test_the_rest_of_the_engine_is_there() -> None:
    async with await Engine.open("memory://") as bare:
        engine: Any = Hooks()(Hooks()(bare))
        for name in dir(Engine):
            if not name.startswith("_"):
                assert hasattr(engine, name)
        assert engine.store is bare.store
        assert engine.backend_label == "memory"
        assert inspect.signature(engine.complete) == inspect.signature(bare.complete)
        with pytest.raises(AttributeError):
            _ = engine.no_such_operation


async def test_limited_callers_go_through_as_well() -> None:
    seen: list[str] = []
    async with await Engine.open("memory://") as engine:
        layered = layer(Hooks(before=seen.append))(engine)
        own = layered.limited_to({"a"})
        await own.create_execution(namespace="a")
        with pytest.raises(Validation):
            await own.create_execution(namespace="b")
    assert seen == ["create_execution", "create_execution"]


async def test_the_last_layer_is_outermost_and_refusals_are_told() -> None:
    order: list[str] = []

    def named(name: str, refuse: bool = False) -> Hooks:
        def before(method: str) -> None:
            order.append(f"{name} before")
            if refuse:
                raise NotFound("patience")

        def after(method: str, elapsed: float, outcome: BaseException | None) -> None:
            order.append(f"{name} after {elapsed == 0} {type(outcome).__name__}")

        return Hooks(before, after)

    app = App("memory://", layers=[named("inner"), layer(named("outer"))])
    async with app:
        await app.engine.ping()
        assert order == ["outer before", "inner before", "inner after False NoneType", "outer after False NoneType"]
        order.clear()
        refusing: Any = named("refusing", refuse=True)(app.engine)
        with pytest.raises(NotFound):
            await refusing.ping()
        assert order == ["refusing before", "refusing after True NotFound"]


async def test_a_worker_behind_layers() -> None:
    counted: list[str] = []

    class Sink:
        def record_call(self, method: str, elapsed_s: float, category: str | None) -> None:
            counted.append(method)

    app = App("memory://", layers=[Tracing(), Metrics(Sink()), CircuitBreaker(), RateLimit(20)])

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(concurrency=8):
        runs = []
        for n in range(10):
            while True:
                try:
                    runs.append(await double.start(n))
                    break
                except RateLimited as error:
                    await asyncio.sleep((error.retry_after_ms or 0) / 1000)
        states: set[str] = set()
        async with asyncio.timeout(30):
            while len(states) < 10:
                for run in runs:
                    try:
                        if (await run.status()).value == "completed":
                            states.add(run.id)
                    except RateLimited:
                        await asyncio.sleep(0.05)
    assert counted.count("complete") >= 10
    assert {"claim_many", "create_execution", "read_execution_contexts"} <= set(counted)


# -- tracing and metrics ---------------------------------------------------------------------------------------------


async def test_tracing_by_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.sdk.middleware._opentelemetry", lambda: None)
    fake = Fake()
    engine: Any = Tracing(logging.WARNING)(fake)
    with caplog.at_level(logging.WARNING, "flowfabric.trace"):
        await engine.ping()
        fake.error = broken()
        with pytest.raises(Transport):
            await engine.complete()
    first, second = [each for each in caplog.records if each.name == "flowfabric.trace"]
    assert (first.method, first.ok) == ("ping", True)  # type: ignore[attr-defined]
    assert (second.method, second.ok) == ("complete", False)  # type: ignore[attr-defined]
    assert second.elapsed_us >= 0  # type: ignore[attr-defined]


async def test_tracing_by_spans() -> None:
    told: list[Any] = []

    class Span:
        def add_event(self, name: str, attributes: Any, timestamp: int) -> None:
            told.append((name, attributes["method"], attributes["ok"]))

        def record_exception(self, error: Exception) -> None:
            told.append(type(error))

        def end(self, end_time: int) -> None:
            told.append("end")

    class Tracer:
        def start_span(self, name: str, attributes: Any, start_time: int) -> Span:
            told.append((name, attributes))
            return Span()

    fake = Fake()
    engine: Any = Tracing(tracer=Tracer())(fake)
    fake.error = broken()
    with pytest.raises(Transport):
        await engine.renew()
    assert told == [
        ("ff_sdk.backend", {"method": "renew"}), ("engine_backend.call", "renew", False), Transport, "end",
    ]  # fmt: skip
    told.clear()
    fake.error = None
    named: Any = Tracing(tracer=Tracer(), by_operation=True)(fake)
    await named.renew()
    assert told[0] == ("ff.renew", {"method": "renew"})


async def test_metrics_by_family() -> None:
    found: list[tuple[str, str | None]] = []

    class Sink:
        def record_call(self, method: str, elapsed_s: float, category: str | None) -> None:
            assert elapsed_s >= 0
            found.append((method, category))

    fake = Fake()
    engine: Any = Metrics(Sink())(fake)
    await engine.ping()
    errors: list[tuple[BaseException, str]] = [
        (NotFound("execution"), "not_found"),
        (Contention(ContentionKind.LEASE_CONFLICT), "contention"),
        (Contextual("claim", broken()), "transport"),
        (RateLimited("m", "b", 1, 1), "unknown"),
        (ValueError(), "unknown"),
    ]
    for fake.error, _ in errors:
        with pytest.raises((EngineError, ValueError)):
            await engine.complete()
    assert found == [("ping", None), *[("complete", category) for _, category in errors]]


# -- rate limit ------------------------------------------------------------------------------------------------------


async def test_one_bucket_for_all() -> None:
    clock = Clock()
    engine: Any = RateLimit(3, clock=clock)(Fake())
    for name in ("ping", "renew", "claim"):
        await getattr(engine, name)()
    with pytest.raises(RateLimited, match="rate-limit: method complete bucket default") as caught:
        await engine.complete()
    assert caught.value.retryable
    assert caught.value.retry_after_ms == 333
    clock.now += 0.34
    await engine.complete()
    with pytest.raises(RateLimited):
        await engine.complete()
    clock.now += 3600
    for _ in range(3):  # a burst is a second's worth, however long nobody called
        await engine.complete()
    with pytest.raises(RateLimited):
        await engine.complete()


async def test_buckets_by_class() -> None:
    clock = Clock()
    limit = RateLimit(
        classify=lambda method: "claims" if method.startswith("claim") else "others",
        buckets={"claims": 0.001},  # less than one per second counts as one
        clock=clock,
    )
    engine: Any = limit(Fake())
    await engine.claim()
    with pytest.raises(RateLimited, match="bucket claims"):
        await engine.claim_many()
    for _ in range(10):
        await engine.renew()


# -- circuit breaker -------------------------------------------------------------------------------------------------


async def test_the_breaker_opens_after_failures_in_a_row_and_closes_after_a_trial() -> None:
    clock, fake = Clock(), Fake()
    breaker = CircuitBreaker(failures=3, cool_down_s=30, clock=clock)
    engine: Any = breaker(fake)

    async def call(error: BaseException | None, expected: type[BaseException] | None) -> None:
        fake.error = error
        if expected is None:
            await engine.ping()
        else:
            with pytest.raises(expected) as caught:
                await engine.ping()
            assert type(caught.value) is expected

    await call(broken(), Transport)
    await call(broken(), Transport)
    await call(None, None)  # resets
    await call(broken(), Transport)
    await call(NotFound("execution"), NotFound)  # an answer: the count stays
    await call(Contextual("claim", broken()), Contextual)
    assert not breaker.is_open
    await call(broken(), Transport)
    assert breaker.is_open
    made = len(fake.calls)
    await call(None, CircuitOpen)
    clock.now += 29
    await call(None, CircuitOpen)
    assert len(fake.calls) == made
    clock.now += 1
    await call(broken(), Transport)  # the trial fails: the wait begins anew
    await call(None, CircuitOpen)
    clock.now += 30
    await call(NotFound("execution"), NotFound)  # an answer closes it
    assert not breaker.is_open
    for _ in range(2):
        await call(broken(), Transport)
    assert not breaker.is_open


async def test_a_trial_that_waits_for_something_lets_another_one_try() -> None:
    clock, go = Clock(), asyncio.Event()
    answers: list[Any] = [go.wait, None, broken()]

    class Waiting(Fake):
        async def ping(self) -> str:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                await answer()
                raise broken()
            return "pong"

    breaker = CircuitBreaker(failures=2, cool_down_s=1, clock=clock)
    breaker._opened_at = clock()
    clock.now += 1
    engine: Any = breaker(Waiting())
    poll = asyncio.ensure_future(engine.ping())
    await asyncio.sleep(0)
    with pytest.raises(CircuitOpen):
        await engine.ping()
    clock.now += TRIAL_S
    assert await engine.ping() == "pong"
    assert not breaker.is_open
    go.set()
    with pytest.raises(Transport):
        await poll
    assert not breaker.is_open, "what the first one met is one failure like any other"
    with pytest.raises(Transport):
        await engine.ping()
    assert breaker.is_open


async def test_calls_beside_the_trial_are_refused_and_change_nothing() -> None:
    clock = Clock()
    go = asyncio.Event()
    calls = 0

    class Slow(Fake):
        async def ping(self) -> str:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise broken()
            await go.wait()
            return "pong"

    breaker = CircuitBreaker(failures=1, cool_down_s=1, clock=clock)
    engine: Any = breaker(Slow())
    with pytest.raises(Transport):
        await engine.ping()
    clock.now += 1
    trial = asyncio.ensure_future(engine.ping())
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(CircuitOpen) as caught:
            await engine.ping()
        assert (caught.value.backend, caught.value.retryable) == ("ff-sdk-layer", True)
    go.set()
    assert await trial == "pong"
    assert not breaker.is_open
    assert calls == 2


async def test_a_trial_that_is_given_up_leaves_room_for_another() -> None:
    clock, fake = Clock(), Fake()
    breaker = CircuitBreaker(failures=1, cool_down_s=1, clock=clock)
    engine: Any = breaker(fake)
    fake.error = broken()
    with pytest.raises(Transport):
        await engine.ping()
    clock.now += 1
    fake.error = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await engine.ping()
    assert breaker.is_open
    fake.error = None
    await engine.ping()
    assert not breaker.is_open
