"""Quotas: sliding windows, slots, guards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import (
    Admitted,
    AlreadyAdmitted,
    ConcurrencyExceeded,
    CreateQuotaPolicyResult,
    ExecutionId,
    QuotaPolicyLimits,
    RateExceeded,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.records.budgets import QuotaAdmitted, QuotaPolicy, QuotaWindow
from flowfabric.model.records.executions import Execution
from tests.contract.admission.test_budgets import ONE, THREE, TWO
from tests.contract.probe import ManualClock, Probe, create, id_of, policy, refused, unchanged
from tests.contract.seeding import overwrite


async def quota(engine: Engine, quota_id: str = ONE, window: int = 60, rate: int = 0, cap: int = 0) -> str:
    """A new quota policy."""
    answer = await engine.create_quota_policy(
        quota_policy_id=quota_id, window_seconds=window, max_requests_per_window=rate, max_concurrent=cap
    )
    assert answer == CreateQuotaPolicyResult.Created(quota_id)
    return quota_id


async def check(engine: Engine, eid: ExecutionId, quota_id: str = ONE, dimension: str = "", **numbers: Any) -> Any:
    """Ask for admission."""
    numbers = {"window_seconds": 60, **numbers}
    return await engine.check_admission(quota_id, dimension, execution_id=eid, **numbers)


async def active(probe: Probe, quota_id: str = ONE) -> int:
    """How many slots are taken."""
    [row] = await probe.select(QuotaPolicy, quota_policy_id=quota_id)
    holders = await probe.select(Execution, quota_policy_id=quota_id)
    return int(row.active_concurrency) + sum(bool(each.admitted_at_ms) for each in holders)


async def test_policies_are_made_once(engine: Engine, probe: Probe) -> None:
    await quota(engine, ONE, 30, 2, 3)
    async with unchanged(probe):
        again = await engine.create_quota_policy(quota_policy_id=ONE, window_seconds=1)
    assert again == CreateQuotaPolicyResult.AlreadySatisfied(ONE)
    assert await engine.read_quota_policy_limits(ONE) == QuotaPolicyLimits(2, 30, 3, 0)
    assert await engine.read_quota_policy_limits(TWO) is None


@pytest.mark.parametrize("name", ["window_seconds", "max_requests_per_window", "max_concurrent"])
async def test_negative_numbers_are_refused(engine: Engine, probe: Probe, name: str) -> None:
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.create_quota_policy(**{"quota_policy_id": ONE, name: -1})


async def test_policies_are_listed_in_pages(engine: Engine) -> None:
    for each in (THREE, ONE, TWO):
        await quota(engine, each, 60, 1)
    first = await engine.list_quota_policies(limit=2)
    assert ([each.quota_policy_id for each in first.policies], first.next_cursor) == ([ONE, TWO], TWO)
    rest = await engine.list_quota_policies(after=TWO)
    assert ([each.quota_policy_id for each in rest.policies], rest.next_cursor) == ([THREE], None)
    assert rest.policies[0].limits == QuotaPolicyLimits(1, 60, 0)


async def test_two_in_a_minute(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    one, two, three = [await create(engine) for _ in range(3)]
    assert await check(engine, one, rate_limit=2) == Admitted()
    clock.advance(10_000)
    assert await check(engine, two, rate_limit=2) == Admitted()
    clock.advance(10_000)
    async with unchanged(probe):
        assert await check(engine, three, rate_limit=2) == RateExceeded(40_000)
    clock.advance(39_999)
    assert await check(engine, three, rate_limit=2) == RateExceeded(1)
    clock.advance(1)
    assert await check(engine, three, rate_limit=2) == Admitted()


async def test_jitter_is_added_within_its_bound(engine: Engine) -> None:
    one, two = [await create(engine) for _ in range(2)]
    await check(engine, one, rate_limit=1)
    waits = [(await check(engine, two, rate_limit=1, jitter_ms=50)).retry_after_ms for _ in range(50)]
    assert min(waits) >= 60_000
    assert max(waits) <= 60_050
    assert len(set(waits)) > 1


async def test_the_same_execution_is_admitted_once_per_window(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid, other = [await create(engine) for _ in range(2)]
    assert await check(engine, eid, rate_limit=1, concurrency_cap=1) == Admitted()
    clock.advance(59_999)
    async with unchanged(probe):
        assert await check(engine, eid, rate_limit=1, concurrency_cap=1) == AlreadyAdmitted()
    clock.advance(1)
    assert await check(engine, eid, rate_limit=1, concurrency_cap=1) == Admitted()
    assert await active(probe) == 1
    [entry] = await probe.select(QuotaWindow, execution_id=eid)
    assert entry.admitted_at_ms == clock()
    assert await check(engine, other, rate_limit=1) == RateExceeded(60_000)


async def test_slots(engine: Engine, probe: Probe) -> None:
    one, two = [await create(engine) for _ in range(2)]
    assert await check(engine, one, concurrency_cap=1) == Admitted()
    async with unchanged(probe):
        assert await check(engine, two, concurrency_cap=1) == ConcurrencyExceeded()
    await engine.release_admission(quota_policy_id=ONE, execution_id=one)
    assert await active(probe) == 0
    async with unchanged(probe):
        await engine.release_admission(quota_policy_id=ONE, execution_id=one)
        await engine.release_admission(quota_policy_id=TWO, execution_id=one)
    assert await check(engine, two, concurrency_cap=1) == Admitted()
    assert len(await probe.select(QuotaWindow, quota_policy_id=ONE)) == 2


async def test_a_rate_alone_takes_no_slot(engine: Engine, probe: Probe) -> None:
    eid = await create(engine)
    assert await check(engine, eid, rate_limit=5) == Admitted()
    assert await active(probe) == 0
    await engine.release_admission(quota_policy_id=ONE, execution_id=eid)
    assert await active(probe) == 0


async def test_windows_have_names(engine: Engine) -> None:
    one, two, three = [await create(engine) for _ in range(3)]
    assert await check(engine, one, dimension="mail", rate_limit=1) == Admitted()
    assert await check(engine, two, rate_limit=1) == Admitted()
    assert isinstance(await check(engine, three, dimension="default", rate_limit=1), RateExceeded)
    assert isinstance(await check(engine, three, dimension="mail", rate_limit=1), RateExceeded)


async def test_the_callers_numbers_decide_and_never_change_a_policy(engine: Engine) -> None:
    one, two = [await create(engine) for _ in range(2)]
    await quota(engine, ONE, 60, 1)
    assert await check(engine, one, rate_limit=9) == Admitted()
    assert await check(engine, two, rate_limit=9) == Admitted()
    assert await engine.read_quota_policy_limits(ONE) == QuotaPolicyLimits(1, 60, 0)
    assert await check(engine, one, TWO, rate_limit=3, concurrency_cap=4, window_seconds=5) == Admitted()
    assert await engine.read_quota_policy_limits(TWO) == QuotaPolicyLimits(3, 5, 4)


async def test_concurrent_admissions_never_exceed_the_numbers(engine: Engine, probe: Probe) -> None:
    ids = [await create(engine) for _ in range(60)]
    answers = await asyncio.gather(*(check(engine, eid, rate_limit=40, concurrency_cap=25) for eid in ids))
    assert answers.count(Admitted()) == 25
    assert await active(probe) == 25


async def test_the_reconciler_spares_whoever_still_runs(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await quota(engine, ONE, 60, 0, 5)
    running = await create(engine, lane_id="a", policy={"quota_policy_id": ONE})
    handle = await engine.claim("a", (), policy(ttl_ms=3_600_000))
    assert handle is not None
    waiting, gone = await create(engine, lane_id="b"), ExecutionId.parse(str(running)[:-4] + "0000")
    assert await check(engine, waiting, concurrency_cap=5) == Admitted()
    assert await check(engine, gone, concurrency_cap=5) == Admitted()
    assert await active(probe) == 3
    clock.advance(60_000)
    assert await engine.run_timer("quota_reconciler") == 1
    assert await active(probe) == 2
    assert [each.execution_id for each in await probe.select(QuotaAdmitted, quota_policy_id=ONE)] == [waiting]
    assert (await probe.execution(running)).admitted_at_ms
    assert await probe.select(QuotaWindow, quota_policy_id=ONE) == []
    await engine.complete(handle, None)
    assert await active(probe) == 1


async def test_slots_of_whoever_still_runs_hide_nothing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await quota(engine, ONE, 60, 0, 9)
    for number in range(3):
        running = await create(engine, lane_id=f"lane {number}")
        assert await check(engine, running, concurrency_cap=9) == Admitted()
        clock.advance(1)
    assert await check(engine, ExecutionId.parse(str(running)[:-4] + "0000"), concurrency_cap=9) == Admitted()
    clock.advance(60_000)
    assert sum([await engine.run_timer("quota_reconciler", 2) for _ in range(3)]) == 1
    assert await active(probe) == 3


async def test_the_reconciler_counts_slots_again(engine: Engine, probe: Probe) -> None:
    eid = await create(engine)
    await check(engine, eid, concurrency_cap=5)
    await _leak(engine, ONE, 4)
    assert await engine.run_timer("quota_reconciler") == 1
    assert await active(probe) == 1


async def _leak(engine: Engine, quota_id: str, number: int) -> None:
    """So many slots are taken, whoever took them."""
    await overwrite(engine, QuotaPolicy, quota_id, active_concurrency=number)


async def test_admissions_count_in_their_window_after_their_execution_is_gone(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    await quota(engine, ONE, 10**6, 1, 5)
    eid = await create(engine, lane_id="a", policy={"quota_policy_id": ONE})
    handle = await engine.claim("a", (), policy())
    assert handle is not None
    await engine.complete(handle, None)
    assert await probe.select(QuotaAdmitted, execution_id=eid) == []
    assert len(await probe.select(QuotaWindow, execution_id=eid)) == 1
    clock.advance(86_400_000)
    assert await engine.trim_retention() == 1
    await create(engine, lane_id="a", policy={"quota_policy_id": ONE})
    assert await engine.claim("a", (), policy()) is None
    clock.advance(10**9 - 86_400_000)
    await engine.run_timer("quota_window")
    assert await engine.claim("a", (), policy()) is not None


async def test_an_admission_by_hand_and_one_by_a_claim(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await quota(engine, ONE, 60, 0, 2)
    eid = await create(engine, lane_id="a", policy={"quota_policy_id": ONE})
    terms = {"window_seconds": 60, "concurrency_cap": 2}
    assert await check(engine, eid, **terms) == Admitted()
    assert await check(engine, eid, **terms) == AlreadyAdmitted()
    handle = await engine.claim("a", (), policy(ttl_ms=3_600_000))
    assert handle is not None
    assert await active(probe) == 1
    # The guard of the first has run out: the next admission takes its place, and never a second slot.
    clock.advance(60_000)
    assert await check(engine, eid, **terms) == Admitted()
    assert await active(probe) == 1
    other = await create(engine, lane_id="a", policy={"quota_policy_id": ONE})
    second = await engine.claim("a", (), policy(ttl_ms=3_600_000))
    assert second is not None
    assert id_of(second) == other
    assert await check(engine, other, **terms) == AlreadyAdmitted()
    assert await check(engine, await create(engine), **terms) == ConcurrencyExceeded()
    [shown] = (await engine.list_quota_policies()).policies
    assert shown.active_concurrency == 2
    clock.advance(60_000)
    assert await check(engine, other, **terms) == Admitted()
    assert await active(probe) == 2
    await engine.release_admission(quota_policy_id=ONE, execution_id=other)
    await engine.complete(handle, None)
    assert await active(probe) == 0


async def test_releasing_what_a_claim_has_taken(engine: Engine, probe: Probe) -> None:
    await quota(engine, ONE, 60, 0, 1)
    eid = await create(engine, lane_id="a", policy={"quota_policy_id": ONE})
    assert await engine.claim("a", (), policy()) is not None
    for _ in range(2):
        await engine.release_admission(quota_policy_id=ONE, execution_id=eid)
        assert await active(probe) == 0


async def test_windows_of_another_length_leave_no_wrong_counts(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    """Their admissions leave early: what is left is counted one by one."""
    await quota(engine, ONE, 60, 3, 0)
    for _ in range(4):
        await create(engine, lane_id="a", policy={"quota_policy_id": ONE})
    first = await engine.claim_many("a", (), policy(ttl_ms=10**9), 1)
    short = await create(engine)
    assert await check(engine, short, window_seconds=10, rate_limit=9) == Admitted()
    second = await engine.claim_many("a", (), policy(ttl_ms=10**9), 1)
    assert len(first + second) == 2
    clock.advance(10_000)
    # The short one asks again: its first admission, in the middle, is gone.
    assert await check(engine, short, window_seconds=10, rate_limit=9) == Admitted()
    assert len(await probe.select(QuotaWindow, quota_policy_id=ONE)) == 3
    assert await engine.claim_many("a", (), policy(), 1) == []
    clock.advance(50_000)
    await engine.run_timer("quota_window")
    assert len(await engine.claim_many("a", (), policy(), 4)) == 2


async def test_times_of_admissions_never_go_back(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await quota(engine, ONE, 60, 100, 0)
    ids = [await create(engine, lane_id="a", policy={"quota_policy_id": ONE}) for _ in range(3)]
    assert len(await engine.claim_many("a", (), policy(), 1)) == 1
    clock.advance(-500)  # another writer's clock
    assert len(await engine.claim_many("a", (), policy(), 2)) == 2
    entries = sorted(await probe.select(QuotaWindow, quota_policy_id=ONE), key=lambda each: each.number)
    assert [each.number for each in entries] == [1, 2, 3]
    assert len({each.admitted_at_ms for each in entries}) == 1
    assert {each.execution_id for each in entries} == set(ids)
