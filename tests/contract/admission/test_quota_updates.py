"""A quota that exists gets other numbers: those who run and those who wait are counted by the new ones."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import CreateQuotaPolicyResult, QuotaPolicyLimits
from flowfabric.engine import Engine
from flowfabric.model.limits import QUOTA_IDLE_MS
from flowfabric.model.records.budgets import QuotaPolicy
from tests.contract.admission.test_admit import FREE, blocked, by_quota, claim, named, settled, take
from tests.contract.admission.test_budgets import ONE
from tests.contract.probe import ManualClock, Probe, unchanged


async def numbers(engine: Engine, window: int = 60, rate: int = 0, cap: int = 0, **more: Any) -> Any:
    """Say what the quota is, whether or not it exists."""
    return await engine.create_quota_policy(
        quota_policy_id=ONE,
        window_seconds=window,
        max_requests_per_window=rate,
        max_concurrent=cap,
        **{"update": True, **more},
    )


async def test_the_numbers_are_the_latest(engine: Engine, probe: Probe) -> None:
    assert await numbers(engine, 60, 5, 10) == CreateQuotaPolicyResult.Created(ONE)
    assert await numbers(engine, 30, 6, 2) == CreateQuotaPolicyResult.Updated(ONE)
    assert await engine.read_quota_policy_limits(ONE) == QuotaPolicyLimits(6, 30, 2, 0)
    async with unchanged(probe):
        assert await numbers(engine, 30, 6, 2) == CreateQuotaPolicyResult.AlreadySatisfied(ONE)
        assert await numbers(engine, 1, 1, 1, update=False) == CreateQuotaPolicyResult.AlreadySatisfied(ONE)


async def test_no_window_given_is_a_minute(engine: Engine, probe: Probe) -> None:
    await numbers(engine, 60, 5)
    async with unchanged(probe):
        assert await numbers(engine, 0, 5) == CreateQuotaPolicyResult.AlreadySatisfied(ONE)


async def test_owners_have_numbers_of_their_own(engine: Engine) -> None:
    for namespace in ("a", "b"):
        await numbers(engine, cap=10, namespace=namespace)
    assert await numbers(engine, cap=2, namespace="b") == CreateQuotaPolicyResult.Updated(ONE)
    caps = [(await engine.read_quota_policy_limits(ONE, each)) for each in ("a", "b")]
    assert [each and each.active_concurrency_cap for each in caps] == [10, 2]


async def test_a_smaller_limit_counts_those_that_run(engine: Engine, probe: Probe) -> None:
    await numbers(engine, cap=3)
    for _ in range(3):
        await named(engine, quota=ONE)
    running = [await take(engine) for _ in range(3)]
    await numbers(engine, cap=2)
    waiting = [await named(engine, quota=ONE) for _ in range(2)]
    assert await claim(engine) == []
    await engine.complete(running[0], None)
    await settled(engine)
    assert await claim(engine) == []
    await engine.complete(running[1], None)
    await settled(engine)
    assert await claim(engine, 2) == waiting[:1]
    assert (await blocked(probe, waiting[1]))[:3] == by_quota()[:3]


async def test_a_larger_limit_lets_go_at_once(engine: Engine, probe: Probe) -> None:
    await numbers(engine, cap=1)
    first, *rest = [await named(engine, quota=ONE) for _ in range(4)]
    assert await claim(engine, 4) == [first]
    await numbers(engine, cap=3)
    await settled(engine)
    assert [await blocked(probe, each) for each in rest] == [FREE, FREE, by_quota()]
    assert await claim(engine, 4) == rest[:2]


async def test_a_timer_lets_go_if_the_process_dies_in_between(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await numbers(engine, cap=1)
    first, second = [await named(engine, quota=ONE) for _ in range(2)]
    assert await claim(engine, 2) == [first]
    monkeypatch.setattr(engine, "_go_on", lambda command: None)
    await numbers(engine, cap=2)
    assert await claim(engine) == []
    await engine.run_timer("quota_window")
    assert await claim(engine) == [second]


async def test_a_limit_where_only_a_rate_was_counts_those_that_run(engine: Engine) -> None:
    await numbers(engine, rate=100)
    for _ in range(3):
        await named(engine, quota=ONE)
    running = [await take(engine) for _ in range(2)]
    await numbers(engine, rate=100, cap=2)
    assert await claim(engine) == []
    await engine.complete(running[0], None)
    await settled(engine)
    assert len(await claim(engine)) == 1


async def test_a_limit_that_is_taken_away_keeps_nobody(engine: Engine) -> None:
    await numbers(engine, cap=1)
    for _ in range(3):
        await named(engine, quota=ONE)
    await take(engine)
    assert await claim(engine) == []
    await numbers(engine, cap=0)
    await settled(engine)
    assert len(await claim(engine, 5)) == 2


async def test_another_rate_counts_what_began_before(engine: Engine, clock: ManualClock) -> None:
    await numbers(engine, 60, 2)
    for _ in range(6):
        await named(engine, quota=ONE)
    assert len(await claim(engine, 6)) == 2
    clock.advance(10_000)
    await numbers(engine, 60, 3)
    await settled(engine)
    assert len(await claim(engine, 6)) == 1
    await numbers(engine, 60, 1)
    clock.advance(50_000)
    await engine.run_timer("quota_window")
    assert await claim(engine, 6) == []
    clock.advance(10_000)
    await engine.run_timer("quota_window")
    assert len(await claim(engine, 6)) == 1


async def test_a_shorter_window_lets_go_when_it_ends(engine: Engine, clock: ManualClock) -> None:
    await numbers(engine, 3_600, 1)
    first, second = [await named(engine, quota=ONE) for _ in range(2)]
    assert await claim(engine, 2) == [first]
    clock.advance(30_000)
    await numbers(engine, 60, 1)
    await settled(engine)
    assert await claim(engine) == []
    clock.advance(30_000)
    await engine.run_timer("quota_window")
    assert await claim(engine) == [second]


async def test_windows_of_several_lengths_are_counted_one_by_one(engine: Engine, clock: ManualClock) -> None:
    await numbers(engine, 3_600, 2)
    for _ in range(4):
        await named(engine, quota=ONE)
    assert len(await claim(engine)) == 1
    clock.advance(20_000)
    await numbers(engine, 10, 2)
    assert len(await claim(engine)) == 1
    # The second one leaves its short window, while the first one is still known.
    clock.advance(20_000)
    await engine.run_timer("quota_reconciler")
    await numbers(engine, 3_600, 3)
    assert len(await claim(engine)) == 1
    assert len(await claim(engine, 5)) == 1


async def test_numbers_and_the_next_look_change_together(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await numbers(engine, cap=1, kept=False)
    clock.advance(QUOTA_IDLE_MS // 2)
    await numbers(engine, cap=2, kept=False)
    [row] = await probe.select(QuotaPolicy, quota_policy_id=ONE)
    assert (row.active_concurrency_cap, row.idle_check_at_ms) == (2, clock() + QUOTA_IDLE_MS)
    await numbers(engine, cap=3, kept=True)
    [row] = await probe.select(QuotaPolicy, quota_policy_id=ONE)
    assert (row.active_concurrency_cap, row.idle_check_at_ms) == (3, None)
