"""Timer intervals and the rest that rows which keep failing are given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.engine.timers import loop as loops
from flowfabric.engine.timers.loop import (
    MIN_INTERVAL_MS,
    POISON_AFTER,
    POISON_FORGET,
    POISON_KEPT,
    POISON_REST,
    TIMERS,
    Poison,
    Timer,
    TimerLoop,
    interval_ms,
)
from flowfabric.model.errors import Validation

#: Full batches that a timer of the fake engine finds.
FULL = 10
IN_SECONDS = Timer("unblock", 5_000, 100, "FF_UNBLOCK_INTERVAL_S")
IN_MILLISECONDS = Timer("grant_sweep", 1_000, 1_000, "FF_GRANT_SWEEP_INTERVAL_MS")


def test_defaults() -> None:
    assert {timer.name: interval_ms(timer, {}) for timer in TIMERS} == {
        "lease_expiry": 1_500,
        "delayed_promoter": 750,
        "intake": 750,
        "attempt_timeout": 2_000,
        "execution_deadline": 5_000,
        "suspension_timeout": 2_000,
        "pending_wp_expiry": 5_000,
        "budget_reset": 15_000,
        "quota_window": 5_000,
        "budget_reconciler": 30_000,
        "quota_reconciler": 30_000,
        "idle_gates": 60_000,
        "unblock": 5_000,
        "lane_fairness": 5_000,
        "schedules": 1_000,
        "enqueue_requests": 1_000,
        "grant_sweep": 1_000,
        "worker_registry_ttl_sweep": 30_000,
        "dependency_reconciler": 15_000,
        "edge_cancel_dispatcher": 1_000,
        "edge_cancel_reconciler": 10_000,
        "cancel_reconciler": 15_000,
        "orphan_reconciler": 15_000,
        "flow_projector": 15_000,
        "index_reconciler": 45_000,
        "retention_trimmer": 60_000,
    }


@pytest.mark.parametrize(
    ("timer", "text", "interval"),
    [
        (IN_SECONDS, "7", 7_000),
        (IN_SECONDS, "0", 0),
        (IN_MILLISECONDS, "300", 300),
        (IN_MILLISECONDS, "1", MIN_INTERVAL_MS),
        (IN_MILLISECONDS, "-5", 0),
    ],
)
def test_the_environment(monkeypatch: pytest.MonkeyPatch, timer: Timer, text: str, interval: int) -> None:
    monkeypatch.setenv(timer.variable, text)
    assert interval_ms(timer, {}) == interval
    assert interval_ms(timer, {timer.name: 400}) == 400
    assert interval_ms(timer, {timer.name: 0}) == 0


def test_a_number_that_is_none_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FF_UNBLOCK_INTERVAL_S", "soon")
    with pytest.raises(Validation, match="FF_UNBLOCK_INTERVAL_S"):
        interval_ms(IN_SECONDS, {})


def test_what_keeps_failing_rests() -> None:
    poison = Poison()
    for _ in range(POISON_AFTER - 1):
        poison.failed("bad")
        assert poison.tick() == frozenset()
    poison.failed("bad")
    assert [poison.tick() for _ in range(POISON_REST)] == [frozenset({"bad"})] * POISON_REST
    assert poison.tick() == frozenset()


def test_success_forgives() -> None:
    poison = Poison()
    for _ in range(5):
        poison.failed("flaky")
        poison.failed("flaky")
        poison.succeeded("flaky")
    assert poison.tick() == frozenset()


def test_old_failures_are_forgotten_once_there_are_many() -> None:
    poison = Poison()
    for number in range(POISON_KEPT + 1):
        poison.failed(f"gone {number}")
    for _ in range(2 * POISON_FORGET - 1):
        poison.tick()
        poison.failed("recent")
        poison.succeeded("recent")
    poison.failed("recent")
    poison.tick()
    assert len(poison) == 1


class FakeEngine:
    """Timers that note when they ran; one of them fails in a way nobody expected."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.both = asyncio.Event()

    async def _ask(self, question: Any) -> None:
        return None

    async def now_ms(self) -> int:
        return 0

    async def run_timer(self, name: str) -> int:
        self.ran.append(name)
        if self.ran.count("grant_sweep") == FULL + 1:
            self.both.set()
        if name == "delayed_promoter":
            raise RuntimeError("nobody expected this")
        return next(timer.batch for timer in TIMERS if timer.name == name) if self.ran.count(name) <= FULL else 0


async def test_one_timers_accident_does_not_stop_the_others() -> None:
    engine = FakeEngine()
    intervals = dict.fromkeys((timer.name for timer in TIMERS if timer.by_itself), 0)
    loop = TimerLoop(engine, {**intervals, "delayed_promoter": 100, "grant_sweep": 100})
    await asyncio.wait_for(engine.both.wait(), 20)
    await loop.stop()
    assert engine.ran[0] == "delayed_promoter", "the first tick comes at once"
    assert engine.ran.count("delayed_promoter") == 1, "it rests"
    assert engine.ran[1 : 1 + FULL] == ["grant_sweep"] * FULL, "full batches are repeated"


class SlowEngine(FakeEngine):
    """A timer that never finds an end, and one that never comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.hang: str | None = None

    async def run_timer(self, name: str) -> int:
        self.ran.append(name)
        if name == self.hang:
            await asyncio.Event().wait()
        if "flow_projector" in self.ran and self.ran.count("retention_trimmer") > 3:
            self.both.set()
        if self.ran.count("lease_expiry") == 3:
            self.both.set()
        await asyncio.sleep(0)
        return 500 if name == "retention_trimmer" else 0


OFF = dict.fromkeys((timer.name for timer in TIMERS if timer.by_itself), 0)


async def test_what_finds_no_end_lets_the_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "SLICE_S", 0)
    engine = SlowEngine()
    day_ms = 86_400_000
    on = {"retention_trimmer": day_ms, "flow_projector": day_ms}
    loop = TimerLoop(engine, {**OFF, **on})
    await asyncio.wait_for(engine.both.wait(), 20)
    await loop.stop()
    assert engine.ran.count("flow_projector") == 1


async def test_what_work_waits_for_never_waits_for_a_timer_that_deletes() -> None:
    engine = SlowEngine()
    engine.hang = "budget_reconciler"
    loop = TimerLoop(engine, {**OFF, "budget_reconciler": 100, "lease_expiry": 100})
    await asyncio.wait_for(engine.both.wait(), 20)
    loop._others._task.cancel()
    await loop.stop()
    assert engine.ran.count("budget_reconciler") == 1
