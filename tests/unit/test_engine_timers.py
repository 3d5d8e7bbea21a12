"""Timer intervals and the rest that rows which keep failing are given."""

from __future__ import annotations

import pytest

from flowfabric.engine.timers import MIN_INTERVAL_MS, POISON_AFTER, POISON_REST, TIMERS, Timer, _Poison, interval_ms
from flowfabric.model.errors import Validation

IN_SECONDS = Timer("unblock", 5_000, 100, "FF_UNBLOCK_INTERVAL_S")
IN_MILLISECONDS = Timer("intake", 750, 1_000, "FF_INTAKE_INTERVAL_MS")


def test_defaults() -> None:
    assert {timer.name: interval_ms(timer, {}) for timer in TIMERS} == {
        "lease_expiry": 1_500,
        "delayed_promoter": 750,
        "intake": 750,
        "attempt_timeout": 2_000,
        "execution_deadline": 5_000,
        "unblock": 5_000,
        "grant_sweep": 1_000,
        "worker_registry_ttl_sweep": 30_000,
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
    poison = _Poison()
    for _ in range(POISON_AFTER - 1):
        poison.failed("bad")
        assert poison.tick() == frozenset()
    poison.failed("bad")
    assert [poison.tick() for _ in range(POISON_REST)] == [frozenset({"bad"})] * POISON_REST
    assert poison.tick() == frozenset()


def test_success_forgives() -> None:
    poison = _Poison()
    for _ in range(5):
        poison.failed("flaky")
        poison.failed("flaky")
        poison.succeeded("flaky")
    assert poison.tick() == frozenset()
