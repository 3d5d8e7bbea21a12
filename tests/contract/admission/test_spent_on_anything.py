"""Whoever spends names what is counted and for whom; what a budget keeps of that is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import HardBreach, Ok, ReservationReleased, Reserved, Settled
from flowfabric.engine import Engine
from flowfabric.model.errors import LimitReached
from flowfabric.model.limits import MAX_COUNTED_DIMENSIONS, MAX_DIMENSIONS
from flowfabric.model.records.budgets import BudgetSpend, BudgetUsage
from tests.contract.admission.test_budgets import ONE, THREE, TWO, budget, usage
from tests.contract.probe import Probe, claimed, create, id_of, refused, unchanged

NOBODY = "{fp:7}:00000000-0000-4000-8000-0000000000aa"


async def charge(engine: Engine, budget_id: str = ONE, namespace: str | None = None, **amounts: int) -> Any:
    names = list(amounts)
    return await engine.report_usage_admin(
        budget_id=budget_id, dimensions=names, deltas=[amounts[name] for name in names], namespace=namespace
    )


async def fill(engine: Engine, budget_id: str = ONE, namespace: str | None = None) -> None:
    """Spend on as many dimensions as a budget counts."""
    names = [f"d{number}" for number in range(MAX_COUNTED_DIMENSIONS)]
    for first in range(0, len(names), MAX_DIMENSIONS):
        wanted = dict.fromkeys(names[first : first + MAX_DIMENSIONS], 1)
        assert await charge(engine, budget_id, namespace, **wanted) == Ok()


async def counters(probe: Probe, budget_id: str = ONE) -> int:
    return len(await probe.select(BudgetUsage, budget_id=budget_id))


async def test_a_budget_counts_only_so_many_dimensions(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"usd": 10}, {"calls": 1})
    handle = await claimed(engine)
    held = await engine.reserve_budget(handle, ONE, {"usd": 1})
    assert isinstance(held, Reserved)
    await fill(engine)
    for wanted in ({"more": 1}, {"usd": 1, "more": 1}):
        async with refused(probe, LimitReached):
            await charge(engine, **wanted)
        async with refused(probe, LimitReached):
            await engine.record_spend(budget_id=ONE, execution_id=id_of(handle), deltas=wanted)
        async with refused(probe, LimitReached):
            await engine.reserve_budget(handle, ONE, wanted)
        async with refused(probe, LimitReached):
            await engine.settle_reservation(held.reservation_id, wanted)
    assert await charge(engine, d0=1, d200=2, usd=3, calls=1) == Ok(), "what it counts and what it limits go on"
    assert isinstance(await engine.settle_reservation(held.reservation_id, {"usd": 1, "d0": 1}), Settled)
    assert isinstance(await charge(engine, usd=7), HardBreach)
    found = await usage(engine)
    assert (found["d0"], found["d200"], found["usd"], found["calls"]) == (3, 3, 4, 1)
    assert len(found) == MAX_COUNTED_DIMENSIONS + 2


async def test_a_limit_makes_room_for_its_dimension(engine: Engine) -> None:
    await budget(engine)
    await fill(engine)
    await engine.set_budget_limits(budget_id=ONE, hard_limits={"usd": 5}, soft_limits={"d1": 100})
    assert await charge(engine, usd=5, d1=1) == Ok()
    assert await charge(engine, more=1) == Ok(), "d1 is no longer among those without a limit"
    with pytest.raises(LimitReached):
        await charge(engine, another=1)


async def test_a_budget_has_limits_for_only_so_many(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"usd": 10})
    names = [f"d{number}" for number in range(MAX_COUNTED_DIMENSIONS)]
    for first in range(1, len(names), MAX_DIMENSIONS):
        limits = dict.fromkeys(names[first : first + MAX_DIMENSIONS], 1)
        await engine.set_budget_limits(budget_id=ONE, hard_limits=limits)
    async with refused(probe, LimitReached):
        await engine.set_budget_limits(budget_id=ONE, soft_limits={"more": 1})
    await engine.set_budget_limits(budget_id=ONE, soft_limits={"d1": 1, "usd": 2})


async def test_nobody_uses_up_what_the_operator_counts(engine: Engine, probe: Probe) -> None:
    """The operator's budget above those of two namespaces leaves out what is too much, and refuses neither."""
    await budget(engine, ONE, {"usd": 100})
    await budget(engine, TWO, namespace="loud", parent_budget_id=ONE)
    await budget(engine, THREE, {"mine": 9}, namespace="quiet", parent_budget_id=ONE)
    await fill(engine, TWO, "loud")
    full = MAX_COUNTED_DIMENSIONS + 1
    assert await counters(probe) == full
    handle = await claimed(engine, namespace="quiet")
    execution = id_of(handle)
    assert await charge(engine, THREE, "quiet", mine=1, usd=2, d1=1) == Ok()
    assert await engine.record_spend(budget_id=THREE, execution_id=execution, deltas={"mine": 1, "new": 1}) == Ok()
    first = await engine.reserve_budget(handle, THREE, {"mine": 2, "other": 2})
    second = await engine.reserve_budget(handle, THREE, {"mine": 1, "usd": 1})
    assert isinstance(first, Reserved)
    assert isinstance(second, Reserved)
    assert isinstance(await engine.settle_reservation(first.reservation_id, {"mine": 1, "third": 1}), Settled)
    assert isinstance(await engine.release_reservation(second.reservation_id), ReservationReleased)
    await engine.release_budget(budget_id=THREE, execution_id=execution)
    status = await engine.get_budget_status(THREE, namespace="quiet")
    assert status.usage == {"d1": 1, "mine": 2, "new": 0, "other": 0, "third": 1, "usd": 2}
    above = await usage(engine)
    assert (above["usd"], above["d1"], len(above)) == (2, 2, full)
    assert await counters(probe) == full


async def test_what_is_given_back_makes_no_counter(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"usd": 10})
    handle = await claimed(engine)
    held = await engine.reserve_budget(handle, ONE, {"usd": 1, "calls": 2})
    assert isinstance(held, Reserved)
    await engine.settle_reservation(held.reservation_id, {"usd": 1})
    assert await usage(engine) == {"calls": 0, "usd": 1}
    assert await counters(probe) == 2


async def test_an_id_that_never_existed_leaves_no_ledger(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"usd": 10})
    assert await engine.record_spend(budget_id=ONE, execution_id=NOBODY, deltas={"usd": 3}, idempotency_key="k") == Ok()
    assert await probe.select(BudgetSpend, budget_id=ONE) == []
    assert await usage(engine) == {"usd": 3}, "it was spent all the same"
    async with unchanged(probe):
        await engine.record_spend(budget_id=ONE, execution_id=NOBODY, deltas={"usd": 3}, idempotency_key="k")
        await engine.release_budget(budget_id=ONE, execution_id=NOBODY)
    known = await create(engine)
    await engine.record_spend(budget_id=ONE, execution_id=known, deltas={"usd": 3})
    await engine.release_budget(budget_id=ONE, execution_id=known)
    assert await usage(engine) == {"usd": 3}
