"""Budgets: what is charged, what is refused, what begins anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import (
    AlreadyApplied,
    BudgetStatus,
    CreateBudgetResult,
    HardBreach,
    NotFound,
    Ok,
    Reset,
    SoftBreach,
    UsageDimensions,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.engine.timers import budgets
from flowfabric.model.records.budgets import Budget, BudgetDedup, BudgetSpend, BudgetUsage
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, refused, unchanged

ONE, TWO, THREE = (f"{digit * 8}-1111-4111-8111-111111111111" for digit in "123")
DAY_MS = 86_400_000


async def budget(engine: Engine, budget_id: str = ONE, hard: Any = None, soft: Any = None, **more: Any) -> str:
    """A new budget with these limits by dimension."""
    hard, soft = hard or {}, soft or {}
    names = sorted({*hard, *soft})
    answer = await engine.create_budget(
        budget_id=budget_id,
        dimensions=names,
        hard_limits=[hard.get(name, 0) for name in names],
        soft_limits=[soft.get(name, 0) for name in names],
        **more,
    )
    assert answer == CreateBudgetResult.Created(budget_id)
    return budget_id


async def report(engine: Engine, budget_id: str = ONE, key: str | None = None, **deltas: int) -> Any:
    """A report by an administrator."""
    return await engine.report_usage_admin(
        budget_id=budget_id, dimensions=list(deltas), deltas=list(deltas.values()), dedup_key=key
    )


async def usage(engine: Engine, budget_id: str = ONE) -> dict[str, int]:
    """The counters of a budget."""
    return (await engine.get_budget_status(budget_id)).usage


# --------------------------------------------------------------------------------------------------------------- create


async def test_a_new_budget_has_counters_at_zero(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"tokens": 100}, {"tokens": 80, "calls": 5}, scope_type="tenant", scope_id="t1")
    assert await engine.get_budget_status(ONE) == BudgetStatus(
        budget_id=ONE,
        scope_type="tenant",
        scope_id="t1",
        enforcement_mode="strict",
        usage={"calls": 0, "tokens": 0},
        hard_limits={"calls": 0, "tokens": 100},
        soft_limits={"calls": 5, "tokens": 80},
        breach_count=0,
        soft_breach_count=0,
        created_at=str(START_MS),
        on_hard_limit="fail",
        on_soft_limit="warn",
    )
    [row] = await probe.select(Budget, budget_id=ONE)
    assert row.next_reset_at_ms is None


async def test_a_budget_that_exists_stays_as_it_is(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"tokens": 100})
    async with unchanged(probe):
        answer = await engine.create_budget(budget_id=ONE, dimensions=["tokens"], hard_limits=[1], soft_limits=[1])
    assert answer == CreateBudgetResult.AlreadySatisfied(ONE)


@pytest.mark.parametrize("lists", [(["a"], [], [0]), (["a"], [0], []), ([], [0], [0]), (["a", "a"], [0, 0], [0, 0])])
async def test_limits_must_stand_beside_their_dimensions(engine: Engine, probe: Probe, lists: Any) -> None:
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.create_budget(budget_id=ONE, dimensions=lists[0], hard_limits=lists[1], soft_limits=lists[2])


async def test_other_texts_are_stored_and_act_as_fail(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 1}, on_hard_limit="page the owner", on_soft_limit="shrug", enforcement_mode="soso")
    status = await engine.get_budget_status(ONE)
    assert (status.on_hard_limit, status.on_soft_limit, status.enforcement_mode) == ("page the owner", "shrug", "soso")
    assert isinstance(await report(engine, a=2), HardBreach)


# -------------------------------------------------------------------------------------------------------------- reports


async def test_reports_add_up(engine: Engine) -> None:
    await budget(engine, ONE, {"tokens": 100})
    assert await report(engine, tokens=40, calls=1) == Ok()
    assert await report(engine, tokens=60) == Ok()
    assert await usage(engine) == {"calls": 1, "tokens": 100}


async def test_a_hard_limit_refuses_everything_and_keeps_a_record(engine: Engine, clock: ManualClock) -> None:
    await budget(engine, ONE, {"b": 10})
    await report(engine, b=10)
    clock.advance(5)
    assert await report(engine, a=1, b=1) == HardBreach("b", 10, 10, ONE)
    status = await engine.get_budget_status(ONE)
    assert status.usage == {"b": 10}
    assert (status.breach_count, status.last_breach_at, status.last_breach_dim) == (1, str(START_MS + 5), "b")
    assert status.soft_breach_count == 0


async def test_the_first_dimension_in_order_is_the_one_named(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 1, "b": 1})
    assert await report(engine, b=2, a=2) == HardBreach("a", 0, 1, ONE)


async def test_a_soft_limit_lets_through_and_says_so(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 100}, {"a": 10, "b": 10})
    assert await report(engine, a=10) == Ok()
    assert await report(engine, a=1, b=11) == SoftBreach("a", 11, 10, ONE)
    assert (await engine.get_budget_status(ONE)).soft_breach_count == 1
    assert await report(engine, a=90) == HardBreach("a", 11, 100, ONE)
    assert (await engine.get_budget_status(ONE)).soft_breach_count == 1


@pytest.mark.parametrize("how", [{"enforcement_mode": "warn"}, {"on_hard_limit": "warn"}])
async def test_a_budget_that_only_warns(engine: Engine, how: Any, caplog: pytest.LogCaptureFixture) -> None:
    await budget(engine, ONE, {"a": 10}, **how)
    with caplog.at_level("WARNING", logger="flowfabric.budgets"):
        assert await report(engine, a=11) == SoftBreach("a", 11, 10, ONE)
    assert f"budget {ONE}: a is at 11" in caplog.text
    status = await engine.get_budget_status(ONE)
    assert (status.usage, status.breach_count, status.soft_breach_count) == ({"a": 11}, 0, 1)


async def test_a_dimension_without_limit_is_counted(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    assert await report(engine, other=1_000_000) == Ok()
    assert await usage(engine) == {"a": 0, "other": 1_000_000}


async def test_a_counter_does_not_overflow(engine: Engine, probe: Probe) -> None:
    await budget(engine)
    await report(engine, a=2**63 - 1)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await report(engine, a=1)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await report(engine, a=2**63)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await report(engine, a=-1)


async def test_unknown_budgets_are_not_found(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    for call in (
        lambda: report(engine, a=1),
        lambda: engine.report_usage(handle, ONE, UsageDimensions(custom={"a": 1})),
        lambda: engine.record_spend(budget_id=ONE, execution_id=id_of(handle), deltas={"a": 1}),
        lambda: engine.reset_budget(budget_id=ONE),
        lambda: engine.get_budget_status(ONE),
        lambda: engine.set_budget_limits(budget_id=ONE, hard_limits={"a": 1}),
        lambda: engine.reserve_budget(handle, ONE, {"a": 1}),
    ):
        async with refused(probe, NotFound) as caught:
            await call()
        assert caught.value.entity == "budget"


async def test_a_workers_report_charges_what_the_budget_defines(engine: Engine) -> None:
    await budget(engine, ONE, {"input_tokens": 100}, {"wall_ms": 0})
    handle = await claimed(engine)
    used = UsageDimensions(input_tokens=7, output_tokens=9, wall_ms=11, custom={"calls": 1})
    assert await engine.report_usage(handle, ONE, used) == Ok()
    assert await usage(engine) == {"calls": 1, "input_tokens": 7, "wall_ms": 11}
    await engine.report_usage(handle, ONE, UsageDimensions(input_tokens=7, custom={"input_tokens": 1}))
    assert (await usage(engine))["input_tokens"] == 8


async def test_a_lost_lease_still_reports(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    await engine.complete(handle, None)
    assert await engine.report_usage(handle, ONE, UsageDimensions(custom={"a": 3})) == Ok()


# ----------------------------------------------------------------------------------------------------------------- keys


async def test_a_key_is_applied_once_for_a_day(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await budget(engine, ONE, {"a": 100})
    assert await report(engine, key="k", a=1) == Ok()
    clock.advance(DAY_MS - 1)
    async with unchanged(probe):
        assert await report(engine, key="k", a=1) == AlreadyApplied()
    clock.advance(1)
    assert await report(engine, key="k", a=1) == Ok()
    assert await usage(engine) == {"a": 2}
    [kept] = await probe.select(BudgetDedup, dedup_key=f"{ONE}:k")
    assert kept.expires_at_ms == clock() + DAY_MS
    assert await report(engine, key="k", a=1) == AlreadyApplied()


async def test_keys_belong_to_their_budget_and_empty_ones_are_none(engine: Engine) -> None:
    await budget(engine, ONE)
    await budget(engine, TWO)
    assert await report(engine, ONE, key="k", a=1) == Ok()
    assert await report(engine, TWO, key="k", a=1) == Ok()
    assert await report(engine, ONE, key="", a=1) == Ok()
    assert await report(engine, ONE, key="", a=1) == Ok()


async def test_a_refused_report_may_be_tried_again_with_its_key(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    await report(engine, a=10)
    assert isinstance(await report(engine, key="k", a=1), HardBreach)
    await engine.reset_budget(budget_id=ONE)
    assert await report(engine, key="k", a=1) == Ok()
    assert await report(engine, key="k", a=1) == AlreadyApplied()


async def test_expired_keys_are_trimmed(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await budget(engine)
    await report(engine, key="old", a=1)
    clock.advance(DAY_MS)
    await report(engine, key="new", a=1)
    await engine.run_timer("quota_reconciler")
    assert await probe.select(BudgetDedup, dedup_key=f"{ONE}:old") == []
    assert len(await probe.select(BudgetDedup, dedup_key=f"{ONE}:new")) == 1


# --------------------------------------------------------------------------------------------------------------- ledger


async def test_what_an_execution_spent_is_given_back_once(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10})
    eid = await create(engine)
    other = await create(engine)
    assert await engine.record_spend(budget_id=ONE, execution_id=eid, deltas={"a": 3}, idempotency_key="1") == Ok()
    assert await engine.record_spend(budget_id=ONE, execution_id=eid, deltas={"a": 3, "b": 1}) == Ok()
    again = await engine.record_spend(budget_id=ONE, execution_id=eid, deltas={"a": 3}, idempotency_key="1")
    assert again == AlreadyApplied()
    assert await engine.record_spend(budget_id=ONE, execution_id=other, deltas={"a": 1}) == Ok()
    await report(engine, a=2)
    await engine.release_budget(budget_id=ONE, execution_id=eid)
    assert await usage(engine) == {"a": 3, "b": 0}
    async with unchanged(probe):
        await engine.release_budget(budget_id=ONE, execution_id=eid)
        await engine.release_budget(budget_id=TWO, execution_id=eid)


async def test_a_refused_spend_leaves_no_ledger(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"b": 1})
    eid = await create(engine)
    assert isinstance(await engine.record_spend(budget_id=ONE, execution_id=eid, deltas={"a": 1, "b": 2}), HardBreach)
    assert await probe.select(BudgetSpend, uuid=eid.uuid_text) == []


async def test_a_release_after_a_reset_gives_back_nothing_of_before(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 100})
    eid = await create(engine)
    await engine.record_spend(budget_id=ONE, execution_id=eid, deltas={"a": 30})
    await engine.reset_budget(budget_id=ONE)
    await report(engine, a=40)
    await engine.release_budget(budget_id=ONE, execution_id=eid)
    assert await usage(engine) == {"a": 40}
    await engine.record_spend(budget_id=ONE, execution_id=eid, deltas={"a": 5})
    await engine.release_budget(budget_id=ONE, execution_id=eid)
    assert await usage(engine) == {"a": 40}


async def test_the_ledger_goes_with_the_execution(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await budget(engine)
    handle = await claimed(engine)
    await engine.record_spend(budget_id=ONE, execution_id=id_of(handle), deltas={"a": 5})
    await engine.reserve_budget(handle, ONE, {"a": 1})
    await engine.complete(handle, None)
    clock.advance(DAY_MS)
    assert await engine.trim_retention() == 1
    assert await probe.select(BudgetSpend, uuid=id_of(handle).uuid_text) == []
    assert await usage(engine) == {"a": 5}


# ---------------------------------------------------------------------------------------------------------------- reset


async def test_a_reset_begins_anew(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await budget(engine, ONE, {"a": 10}, {"a": 5})
    await report(engine, a=6)
    await report(engine, a=6)
    clock.advance(7)
    assert await engine.reset_budget(budget_id=ONE) == Reset(0)
    status = await engine.get_budget_status(ONE)
    assert status.usage == {"a": 0}
    assert (status.last_breach_at, status.last_breach_dim, status.next_reset_at) == (None, None, None)
    assert (status.breach_count, status.soft_breach_count) == (1, 1)
    [row] = await probe.select(BudgetUsage, budget_id=ONE)
    assert row.last_reset_at_ms == START_MS + 7


async def test_scheduled_resets_happen_once_and_collapse(engine: Engine, clock: ManualClock) -> None:
    await budget(engine, ONE, {"a": 10}, reset_interval_ms=1_000)
    assert (await engine.get_budget_status(ONE)).next_reset_at == str(START_MS + 1_000)
    await report(engine, a=10)
    clock.advance(999)
    assert await engine.run_timer("budget_reset") == 0
    assert await usage(engine) == {"a": 10}
    clock.advance(5_001)
    ticks = await asyncio.gather(*(engine.run_timer("budget_reset") for _ in range(3)))
    assert sum(ticks) >= 1
    assert await usage(engine) == {"a": 0}
    assert (await engine.get_budget_status(ONE)).next_reset_at == str(clock() + 1_000)
    assert await engine.run_timer("budget_reset") == 0
    assert await engine.reset_budget(budget_id=ONE) == Reset(clock() + 1_000)


# --------------------------------------------------------------------------------------------------------------- limits


async def test_limits_can_be_raised_and_lowered(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10}, {"a": 5})
    await report(engine, a=10)
    answer = await engine.set_budget_limits(budget_id=ONE, hard_limits={"a": 20, "b": 1}, soft_limits={"a": 0})
    assert (answer.hard_limits, answer.soft_limits) == ({"a": 20, "b": 1}, {"a": 0})
    assert await report(engine, a=10) == Ok()
    assert isinstance(await report(engine, b=2), HardBreach)
    await engine.set_budget_limits(budget_id=ONE, hard_limits={"a": 5})
    assert await report(engine, a=1) == HardBreach("a", 20, 5, ONE)
    await engine.run_timer("budget_reconciler")
    assert (await engine.get_budget_status(ONE)).breached_at == str(START_MS)
    assert await engine.run_timer("budget_reconciler") == 0
    await engine.set_budget_limits(budget_id=ONE, hard_limits={"a": 0, "b": 0})
    assert await engine.run_timer("budget_reconciler") == 1
    assert (await engine.get_budget_status(ONE)).breached_at is None


async def test_many_budgets_are_looked_at_some_at_a_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "BUDGETS_LOOKED_AT", 2)
    for number in range(5):
        name = f"00000000-0000-4000-8000-00000000000{number}"
        await budget(engine, name, {"a": 10})
        await report(engine, name, a=10)
        await engine.set_budget_limits(budget_id=name, hard_limits={"a": 5})
    assert [await engine.run_timer("budget_reconciler", 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_budget_that_will_be_reset_is_not_marked(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10}, reset_interval_ms=1_000)
    await report(engine, a=10)
    await engine.set_budget_limits(budget_id=ONE, hard_limits={"a": 5})
    assert await engine.run_timer("budget_reconciler") == 0


# ---------------------------------------------------------------------------------------------------------------- reads


async def test_usage_and_limits_as_texts(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10}, {"a": 5, "b": 1})
    await report(engine, a=3)
    found = await engine.read_budget_usage_and_limits(ONE)
    assert found.usage == {"a": "3", "b": "0"}
    assert found.limits == {"hard:a": "10", "hard:b": "0", "soft:a": "5", "soft:b": "1"}
    nothing = await engine.read_budget_usage_and_limits(TWO)
    assert (nothing.limits, nothing.usage) == ({}, {})


async def test_budgets_are_listed_in_pages(engine: Engine) -> None:
    for each in (TWO, ONE, THREE):
        await budget(engine, each)
    first = await engine.list_budgets(limit=2)
    assert ([each.budget_id for each in first.budgets], first.next_cursor) == ([ONE, TWO], TWO)
    rest = await engine.list_budgets(after=first.next_cursor, limit=2)
    assert ([each.budget_id for each in rest.budgets], rest.next_cursor) == ([THREE], None)


# -------------------------------------------------------------------------------------------------------------- nesting


async def test_a_charge_must_fit_every_level(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    await budget(engine, TWO, {"a": 100}, parent_budget_id=ONE)
    await budget(engine, THREE, {"a": 100}, parent_budget_id=TWO)
    assert (await engine.get_budget_status(THREE)).parent_budget_id == TWO
    assert await report(engine, THREE, a=6) == Ok()
    assert [await usage(engine, each) for each in (ONE, TWO, THREE)] == [{"a": 6}] * 3
    assert await report(engine, THREE, a=5) == HardBreach("a", 6, 10, ONE)
    assert [await usage(engine, each) for each in (ONE, TWO, THREE)] == [{"a": 6}] * 3
    assert (await engine.get_budget_status(ONE)).breach_count == 1
    assert (await engine.get_budget_status(THREE)).breach_count == 0
    assert await report(engine, ONE, a=4) == Ok()
    assert [await usage(engine, each) for each in (ONE, TWO, THREE)] == [{"a": 10}, {"a": 6}, {"a": 6}]


async def test_every_level_counts_its_own_soft_breach(engine: Engine) -> None:
    await budget(engine, ONE, None, {"a": 5})
    await budget(engine, TWO, None, {"a": 8}, parent_budget_id=ONE)
    assert await report(engine, TWO, a=6) == SoftBreach("a", 6, 5, ONE)
    assert await report(engine, TWO, a=6) == SoftBreach("a", 12, 8, TWO)
    counts = [(await engine.get_budget_status(each)).soft_breach_count for each in (ONE, TWO)]
    assert counts == [2, 1]


async def test_a_release_goes_up_as_far_as_no_reset_was_between(engine: Engine) -> None:
    await budget(engine, ONE)
    await budget(engine, TWO, parent_budget_id=ONE)
    await budget(engine, THREE, parent_budget_id=ONE)
    eid = await create(engine)
    await engine.record_spend(budget_id=TWO, execution_id=eid, deltas={"a": 5})
    await engine.reset_budget(budget_id=ONE)
    await engine.record_spend(budget_id=TWO, execution_id=eid, deltas={"a": 2})
    await engine.record_spend(budget_id=THREE, execution_id=eid, deltas={"a": 3})
    await engine.release_budget(budget_id=TWO, execution_id=eid)
    assert [await usage(engine, each) for each in (ONE, TWO, THREE)] == [{"a": 3}, {"a": 0}, {"a": 3}]
    await engine.release_budget(budget_id=THREE, execution_id=eid)
    assert [await usage(engine, each) for each in (ONE, TWO, THREE)] == [{"a": 0}] * 3


async def test_parents_must_exist_and_be_others_and_not_too_many(engine: Engine, probe: Probe) -> None:
    async with refused(probe, NotFound):
        await engine.create_budget(budget_id=ONE, parent_budget_id=TWO)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.create_budget(budget_id=ONE, parent_budget_id=ONE)
    above = None
    for number in range(8):
        above = await budget(engine, f"{number}0000000-1111-4111-8111-111111111111", parent_budget_id=above)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.create_budget(budget_id=ONE, parent_budget_id=above)


# ---------------------------------------------------------------------------------------------------------- concurrency


async def test_concurrent_reports_never_exceed_a_limit(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 100})
    await budget(engine, TWO, {"a": 1_000}, parent_budget_id=ONE)
    answers = await asyncio.gather(*(report(engine, (ONE, TWO)[number % 2], a=1) for number in range(200)))
    assert answers.count(Ok()) == 100
    assert await usage(engine, ONE) == {"a": 100}
    assert (await engine.get_budget_status(ONE)).breach_count == 100
