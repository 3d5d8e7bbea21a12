"""Budgets that ask: a signed waitpoint, a decision, and exactly what was asked for, once."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import BudgetAsked, Contention, Handle, HardBreach, Ok, Reserved, Settled
from flowfabric.engine import Engine
from flowfabric.model.records.budgets import BudgetAsk
from tests.contract.admission.test_budget_ledger import violations
from tests.contract.admission.test_budgets import ONE, TWO, budget, report, usage
from tests.contract.admission.test_reservations import reserved
from tests.contract.probe import Probe, claimed, id_of, policy, refused


async def asked(engine: Engine, handle: Handle, budget_id: str = ONE, **amounts: int) -> BudgetAsked:
    """A reservation that must be asked for."""
    answer = await engine.reserve_budget(handle, budget_id, amounts)
    assert isinstance(answer, BudgetAsked), answer
    return answer


async def decide(engine: Engine, handle: Handle, ask: BudgetAsked, name: str) -> Handle:
    """Signal, and claim the execution again."""
    await engine.deliver_signal(
        execution_id=id_of(handle),
        waitpoint_id=ask.details.waitpoint_id,
        waitpoint_token=ask.details.waitpoint_token,
        signal_name=name,
        signal_category="decision",
        source_type="user",
        source_identity="owner",
    )
    again = await engine.claim("lane-of-one", (), policy())
    assert again is not None
    return again


async def test_the_execution_waits_for_a_decision(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10}, on_hard_limit="ask")
    handle = await claimed(engine)
    await engine.reserve_budget(handle, ONE, {"a": 4})
    ask = await asked(engine, handle, a=8)
    assert ask.breach == HardBreach("a", 0, 10, ONE, 4)
    row = await probe.execution(id_of(handle))
    assert (row.lifecycle_phase, row.public_state, row.blocking_reason) == (
        "suspended",
        "suspended",
        "waiting_for_budget",
    )
    # What was held before came back with the lease.
    assert await reserved(engine) == {}
    assert (await engine.get_budget_status(ONE)).breach_count == 1
    async with refused(probe, Contention):
        await engine.reserve_budget(handle, ONE, {"a": 1})
    [entry] = (await engine.list_suspended(id_of(handle).partition)).entries
    assert entry.reason == "paused_by_budget"


async def test_an_approval_lets_the_asked_amount_through_once(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10}, on_hard_limit="ask")
    await report(engine, a=7)
    handle = await claimed(engine)
    again = await decide(engine, handle, await asked(engine, handle, a=8), "approved")
    found = await engine.reserve_budget(again, ONE, {"a": 8})
    assert isinstance(found, Reserved)
    assert await reserved(engine) == {"a": 8}
    assert await violations(probe, (ONE,)) == []
    # Nobody else gets any of it, and the approval is used up.
    assert isinstance(await report(engine, a=1), HardBreach)
    assert await engine.settle_reservation(found.reservation_id, {"a": 8}) == Settled(
        found.reservation_id, {"a": 8}, {}
    )
    assert await usage(engine) == {"a": 15}
    assert await probe.select(BudgetAsk, budget_id=ONE) == []
    assert await violations(probe, (ONE,)) == []
    await asked(engine, again, a=8)


async def test_what_was_allowed_and_not_used_is_gone(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10}, on_hard_limit="ask")
    await report(engine, a=7)
    handle = await claimed(engine)
    again = await decide(engine, handle, await asked(engine, handle, a=8), "approved")
    found = await engine.reserve_budget(again, ONE, {"a": 8})
    assert isinstance(found, Reserved)
    await engine.settle_reservation(found.reservation_id, {"a": 5})
    assert await usage(engine) == {"a": 12}
    assert await violations(probe, (ONE,)) == []
    assert isinstance(await report(engine, a=1), HardBreach)
    await engine.reset_budget(budget_id=ONE)
    assert await report(engine, a=10) == Ok()
    assert isinstance(await report(engine, a=1), HardBreach)


async def test_a_lost_lease_takes_the_allowance_back(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10}, on_hard_limit="ask")
    handle = await claimed(engine)
    again = await decide(engine, handle, await asked(engine, handle, a=11), "approved")
    assert isinstance(await engine.reserve_budget(again, ONE, {"a": 11}), Reserved)
    await engine.complete(again, None)
    assert await reserved(engine) == {}
    assert isinstance(await report(engine, a=11), HardBreach)
    assert await report(engine, a=10) == Ok()
    assert await violations(probe, (ONE,)) == []


@pytest.mark.parametrize("how", ["refused", "resume"])
async def test_a_refusal_is_the_hard_breach_once(engine: Engine, probe: Probe, how: str) -> None:
    await budget(engine, ONE, {"a": 10}, on_hard_limit="ask")
    handle = await claimed(engine)
    ask = await asked(engine, handle, a=11)
    if how == "refused":
        again: Any = await decide(engine, handle, ask, "refused")
    else:
        await engine.resume_execution(execution_id=id_of(handle))
        again = await engine.claim("lane-of-one", (), policy())
    assert await engine.reserve_budget(again, ONE, {"a": 11}) == HardBreach("a", 0, 10, ONE)
    assert (await probe.execution(id_of(handle))).public_state == "running"
    await asked(engine, again, a=11)


async def test_an_approval_is_for_the_amounts_that_were_asked(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10}, on_hard_limit="ask")
    handle = await claimed(engine)
    again = await decide(engine, handle, await asked(engine, handle, a=11), "approved")
    assert isinstance(await engine.reserve_budget(again, ONE, {"a": 10}), Reserved)
    await asked(engine, again, a=12)


async def test_every_level_that_asks_is_satisfied_and_one_that_refuses_is_not(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 20})
    await budget(engine, TWO, {"a": 10}, on_hard_limit="ask", parent_budget_id=ONE)
    handle = await claimed(engine)
    again = await decide(engine, handle, await asked(engine, handle, TWO, a=15), "approved")
    await report(engine, ONE, a=6)
    assert await engine.reserve_budget(again, TWO, {"a": 15}) == HardBreach("a", 6, 20, ONE)
    assert await reserved(engine, TWO) == {}
    assert await violations(probe, (ONE, TWO)) == []


async def test_a_report_is_refused_without_asking(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10}, on_hard_limit="ask")
    assert await report(engine, a=11) == HardBreach("a", 0, 10, ONE)


async def test_a_budget_that_is_used_up_still_asks(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10}, on_hard_limit="ask")
    assert isinstance(await report(engine, ONE, a=10), Ok)
    handle = await claimed(engine, policy={"budget_ids": [ONE]})
    ask = await asked(engine, handle, a=1)
    again = await decide(engine, handle, ask, "approved")
    assert isinstance(await engine.reserve_budget(again, ONE, {"a": 1}), Reserved)
