"""Admission is part of every claim: what has no room waits, stands in nobody's way, and goes on when there is room."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import CancelSource, ExecutionId, Granted, Handle, NoWork, Reserved
from flowfabric.core.admission import admit
from flowfabric.engine import Engine
from flowfabric.model.records.budgets import Budget, QuotaAdmitted, QuotaPolicy
from tests.contract.admission.test_budgets import ONE, THREE, TWO, budget, report, usage
from tests.contract.admission.test_quotas import active, quota
from tests.contract.probe import ManualClock, Probe, create, id_of, policy

#: Priorities that put executions in the order in which they are made, since the clock stands still.
_LATER = itertools.count(8_000, -1)
NOBODY = "99999999-9999-4999-8999-999999999999"
SPENDER = ExecutionId.parse(f"{{fp:0}}:{ONE}")


async def named(engine: Engine, *budgets: str, quota: str | None = None, **more: Any) -> ExecutionId:
    """A new execution that names budgets and a quota."""
    terms: dict[str, Any] = {"budget_ids": list(budgets)}
    if quota is not None:
        terms["quota_policy_id"] = quota
    return await create(engine, policy=terms, **{"lane_id": "work", "priority": next(_LATER), **more})


async def claim(engine: Engine, limit: int = 1) -> list[ExecutionId]:
    """The ids of what a claim gets."""
    return [id_of(handle) for handle in await engine.claim_many("work", (), policy(), limit)]


async def take(engine: Engine) -> Handle:
    """One claim that must succeed."""
    handle = await engine.claim("work", (), policy())
    assert handle is not None
    return handle


async def settled(engine: Engine) -> None:
    """Everything that commits have set going is done."""
    while engine._going_on:
        await asyncio.wait(engine._going_on)


async def blocked(probe: Probe, eid: ExecutionId) -> tuple[Any, ...]:
    """Eligibility, public state, reason and who blocks."""
    row = await probe.execution(eid)
    return (row.eligibility_state, row.public_state, row.blocking_reason, row.blocked_by)


def by_budget(budget_id: str = ONE) -> tuple[Any, ...]:
    return ("blocked_by_budget", "rate_limited", "waiting_for_budget", budget_id)


def by_quota(quota_id: str = ONE) -> tuple[Any, ...]:
    return ("blocked_by_quota", "rate_limited", "waiting_for_quota", quota_id)


#: An execution that was let go.
FREE = ("eligible_now", "waiting", "waiting_for_worker", None)


# -------------------------------------------------------------------------------------------------------------- budgets


async def test_a_budget_with_room_admits(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 1})
    eid = await named(engine, ONE, TWO)
    assert await claim(engine) == [eid]
    [row] = await probe.select(Budget, budget_id=ONE)
    assert row.waiting_since_ms is None


async def test_a_budget_used_up_blocks_and_the_next_one_is_claimed(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10})
    await report(engine, a=10)
    kept = [await named(engine, ONE, priority=9_000) for _ in range(3)]
    free = await create(engine, lane_id="work")
    assert await claim(engine) == [free]
    for eid in kept:
        assert await blocked(probe, eid) == by_budget()
        assert (
            await probe.execution(eid)
        ).blocking_detail == f"budget {ONE}: a is used up (10 spent, 0 reserved of 10)"
    assert await claim(engine) == []


async def test_claim_for_worker_tests_the_same(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 1})
    await report(engine, a=1)
    kept, free = await named(engine, ONE, priority=9_000), await create(engine, lane_id="work")
    who = {"lane_id": "work", "worker_id": "w1", "worker_instance_id": "w1-i1"}
    granted = await engine.claim_for_worker(**who)
    assert isinstance(granted, Granted)
    assert granted.grant.execution_id == free
    assert await blocked(probe, kept) == by_budget()
    assert await engine.claim_for_worker(**who) == NoWork()


async def test_what_is_reserved_is_taken(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10})
    await named(engine, ONE)
    handle = await take(engine)
    assert isinstance(await engine.reserve_budget(handle, ONE, {"a": 10}), Reserved)
    eid = await named(engine, ONE)
    assert await claim(engine) == []
    await engine.complete(handle, None)
    await settled(engine)
    assert await blocked(probe, eid) == FREE
    assert await claim(engine) == [eid]


@pytest.mark.parametrize("how", [{"enforcement_mode": "warn"}, {"on_hard_limit": "warn"}])
async def test_a_budget_that_only_warns_admits(engine: Engine, how: Any) -> None:
    await budget(engine, ONE, {"a": 1}, **how)
    await report(engine, a=5)
    eid = await named(engine, ONE)
    assert await claim(engine) == [eid]


async def test_budgets_that_do_not_exist_admit(engine: Engine) -> None:
    eid = await named(engine, NOBODY, quota=NOBODY)
    assert await claim(engine) == [eid]


async def test_a_level_above_blocks_under_its_own_name(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10})
    await budget(engine, TWO, {"a": 100}, parent_budget_id=ONE)
    await report(engine, ONE, a=10)
    eid = await named(engine, TWO)
    assert await claim(engine) == []
    assert await blocked(probe, eid) == by_budget(ONE)
    await engine.reset_budget(budget_id=ONE)
    await settled(engine)
    assert await claim(engine) == [eid]


async def _raise(engine: Engine) -> None:
    await engine.set_budget_limits(budget_id=ONE, hard_limits={"a": 11})


async def _remove(engine: Engine) -> None:
    await engine.set_budget_limits(budget_id=ONE, hard_limits={"a": 0})


async def _reset(engine: Engine) -> None:
    await engine.reset_budget(budget_id=ONE)


async def _release(engine: Engine) -> None:
    await engine.release_budget(budget_id=ONE, execution_id=SPENDER)


ROOM: dict[str, Callable[[Engine], Awaitable[None]]] = {
    "raised limit": _raise,
    "removed limit": _remove,
    "reset": _reset,
    "release": _release,
}


@pytest.mark.parametrize("room", ROOM)
async def test_room_lets_go_without_a_scan(engine: Engine, probe: Probe, room: str) -> None:
    await budget(engine, ONE, {"a": 10})
    await create(engine, execution_id=SPENDER, lane_id="elsewhere")
    await engine.record_spend(budget_id=ONE, execution_id=SPENDER, deltas={"a": 10})
    low, high = await named(engine, ONE), await named(engine, ONE, priority=9_000)
    assert await claim(engine) == []
    await ROOM[room](engine)
    await settled(engine)
    assert await claim(engine) == [high]
    await settled(engine)
    assert await claim(engine) == [low]
    [row] = await probe.select(Budget, budget_id=ONE)
    assert row.waiting_since_ms is None


async def test_a_waiting_claim_is_woken_by_room(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    await report(engine, a=10)
    eid = await named(engine, ONE)
    waiting = asyncio.create_task(engine.claim("work", (), policy(max_wait=60_000)))
    assert await claim(engine) == []
    await engine.reset_budget(budget_id=ONE)
    handle = await asyncio.wait_for(waiting, 30)
    assert handle is not None
    assert id_of(handle) == eid


async def test_one_free_unit_lets_one_go(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 50})
    await report(engine, a=50)
    waiting = [await named(engine, ONE) for _ in range(100)]
    assert await claim(engine, 10) == []
    await engine.set_budget_limits(budget_id=ONE, hard_limits={"a": 51})
    await settled(engine)
    states = [(await blocked(probe, eid))[0] for eid in waiting]
    assert states == ["eligible_now"] + 99 * ["blocked_by_budget"]
    handle = await take(engine)
    await report(engine, a=1)
    await engine.complete(handle, None)
    await settled(engine)
    # The next one was let go when the first was claimed; there is no room any more when it asks.
    assert await claim(engine) == []
    assert await usage(engine) == {"a": 51}


async def test_everybody_goes_on_as_they_are_claimed(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    await report(engine, a=10)
    waiting = {await named(engine, ONE) for _ in range(150)}
    assert await claim(engine, 10) == []
    await engine.reset_budget(budget_id=ONE)
    seen: set[ExecutionId] = set()
    for _ in range(400):
        await settled(engine)
        found = await claim(engine, 7)
        if not found:
            break
        seen.update(found)
    assert seen == waiting


async def test_many_that_are_denied_do_not_hide_one(engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setattr(admit, "DENIED_AT_ONCE", 20)
    await budget(engine, ONE, {"a": 1})
    await report(engine, a=1)
    await engine.create_executions(
        [
            {"execution_kind": "op", "lane_id": "work", "priority": 9, "policy": {"budget_ids": [ONE]}}
            for _ in range(150)
        ]
    )
    free = await create(engine, lane_id="work")
    assert await claim(engine) == [free]


async def test_blocked_by_the_next_gate_after_the_first(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 1})
    await budget(engine, TWO, {"a": 1})
    await quota(engine, THREE, cap=1)
    for each in (ONE, TWO):
        await report(engine, each, a=1)
    first = await named(engine, quota=THREE)
    handle = await take(engine)
    assert id_of(handle) == first
    eid = await named(engine, ONE, TWO, quota=THREE)
    assert await claim(engine) == []
    assert await blocked(probe, eid) == by_budget(ONE)
    await engine.reset_budget(budget_id=ONE)
    await settled(engine)
    assert await blocked(probe, eid) == by_budget(TWO)
    await engine.reset_budget(budget_id=TWO)
    await settled(engine)
    assert await blocked(probe, eid) == by_quota(THREE)
    await engine.complete(handle, None)
    await settled(engine)
    assert await claim(engine) == [eid]


# --------------------------------------------------------------------------------------------------------------- quotas


async def test_slots_are_taken_and_given_back(engine: Engine, probe: Probe) -> None:
    await quota(engine, ONE, cap=2)
    ids = [await named(engine, quota=ONE) for _ in range(4)]
    handles = await engine.claim_many("work", (), policy(), 4)
    assert [id_of(handle) for handle in handles] == ids[:2]
    assert await active(probe) == 2
    assert [await blocked(probe, eid) for eid in ids[2:]] == [by_quota(), by_quota()]
    assert (await probe.execution(ids[2])).blocking_detail == f"quota {ONE}: 2 slots are taken"
    await settled(engine)
    await engine.complete(handles[0], None)
    await settled(engine)
    assert await blocked(probe, ids[2]) == FREE
    assert await blocked(probe, ids[3]) == by_quota()
    await engine.fail(handles[1], "again")
    assert await active(probe) == 1  # a retry keeps its slot
    assert await claim(engine, 4) == [ids[1], ids[2]]
    assert await active(probe) == 2


@pytest.mark.parametrize("end", ["cancel", "expire"])
async def test_every_end_gives_the_slot_back(engine: Engine, probe: Probe, clock: ManualClock, end: str) -> None:
    await quota(engine, ONE, cap=1)
    more = {"execution_deadline_at": clock() + 1_000} if end == "expire" else {}
    eid = await named(engine, quota=ONE, **more)
    after = await named(engine, quota=ONE)
    assert await claim(engine, 2) == [eid]
    if end == "expire":
        clock.advance(1_000)
        await engine.run_timer("execution_deadline")
    else:
        await engine.cancel_execution(execution_id=eid, reason="x", source=CancelSource.OPERATOR_OVERRIDE)
    await settled(engine)
    assert await active(probe) == 0
    assert await probe.select(QuotaAdmitted, quota_policy_id=ONE) == []
    assert (await probe.execution(eid)).admitted_at_ms is None
    assert await claim(engine) == [after]


async def test_a_replayed_execution_asks_again(engine: Engine, probe: Probe) -> None:
    await quota(engine, ONE, cap=1)
    eid = await named(engine, quota=ONE)
    await engine.complete(await take(engine), None)
    other = await named(engine, quota=ONE, priority=9_000)
    await engine.replay_execution(execution_id=eid)
    assert await claim(engine, 2) == [other]
    await engine.cancel_execution(execution_id=eid, reason="x", source=CancelSource.OPERATOR_OVERRIDE)
    assert await active(probe) == 1


async def test_a_window_slides(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await quota(engine, ONE, window=10, rate=2)
    ids = [await named(engine, quota=ONE) for _ in range(5)]
    assert await claim(engine) == ids[:1]
    clock.advance(4_000)
    assert await claim(engine, 5) == ids[1:2]
    assert (await probe.execution(ids[2])).blocking_detail == f"quota {ONE}: 2 admissions in the window"
    [row] = await probe.select(QuotaPolicy, quota_policy_id=ONE)
    assert row.next_room_at_ms == clock() + 6_000
    clock.advance(5_999)
    assert await engine.run_timer("quota_window") == 0
    clock.advance(1)
    assert await engine.run_timer("quota_window") == 1
    assert await claim(engine, 5) == ids[2:3]
    [row] = await probe.select(QuotaPolicy, quota_policy_id=ONE)
    assert row.next_room_at_ms == clock() + 4_000
    clock.advance(4_000)
    assert await engine.run_timer("quota_window") == 1
    assert await claim(engine, 5) == ids[3:4]
    clock.advance(20_000)
    assert await engine.run_timer("quota_window") == 1
    assert await claim(engine, 5) == ids[4:]
    [row] = await probe.select(QuotaPolicy, quota_policy_id=ONE)
    assert row.waiting_since_ms is None


async def test_whoever_is_let_go_and_waits_for_a_worker_keeps_the_window_moving(
    engine: Engine, clock: ManualClock
) -> None:
    await quota(engine, ONE, window=10, rate=2)
    ids = [await named(engine, quota=ONE) for _ in range(6)]
    assert await claim(engine, 6) == ids[:2]
    clock.advance(10_000)
    assert await engine.run_timer("quota_window") == 2
    clock.advance(3_000)
    assert await claim(engine, 6) == ids[2:4]
    clock.advance(10_000)
    assert await engine.run_timer("quota_window") == 2
    assert await claim(engine, 6) == ids[4:]


async def test_the_loop_wakes_when_the_window_has_room(open_engine: Any) -> None:
    engine = await open_engine(clock=None, timers=True)
    await quota(engine, ONE, window=1, rate=1)
    ids = [await named(engine, quota=ONE) for _ in range(3)]
    for eid in ids:
        handle = await engine.claim("work", (), policy(max_wait=30_000))
        assert handle is not None
        assert id_of(handle) == eid


async def test_a_grant_that_was_not_used_keeps_its_place(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await quota(engine, ONE, cap=1, rate=1)
    eid = await named(engine, quota=ONE)
    granted = await engine.claim_for_worker(
        lane_id="work", worker_id="w1", worker_instance_id="w1-i1", grant_ttl_ms=1_000
    )
    assert isinstance(granted, Granted)
    assert await active(probe) == 1
    clock.advance(1_000)
    assert await claim(engine) == [eid]
    assert await active(probe) == 1


async def test_one_free_slot_lets_one_go(engine: Engine, probe: Probe) -> None:
    await quota(engine, ONE, cap=1)
    waiting = [await named(engine, quota=ONE) for _ in range(50)]
    handle = await take(engine)
    assert await claim(engine, 3) == []
    await settled(engine)
    await engine.complete(handle, None)
    await settled(engine)
    states = [(await blocked(probe, eid))[0] for eid in waiting[1:]]
    assert states == ["eligible_now"] + 48 * ["blocked_by_quota"]
    await engine.cancel_execution(execution_id=waiting[1], reason="x", source=CancelSource.OPERATOR_OVERRIDE)
    await settled(engine)
    assert await claim(engine, 3) == [waiting[2]]


async def test_an_unlimited_quota_is_no_quota(engine: Engine, probe: Probe) -> None:
    await quota(engine, ONE)
    eid = await named(engine, quota=ONE)
    assert await claim(engine) == [eid]
    assert await probe.select(QuotaAdmitted, quota_policy_id=ONE) == []


async def test_concurrent_claims_never_take_more_slots_than_there_are(engine: Engine, probe: Probe) -> None:
    await quota(engine, ONE, cap=7)
    await engine.create_executions(
        [{"execution_kind": "op", "lane_id": "work", "policy": {"quota_policy_id": ONE}} for _ in range(60)]
    )
    done = 0

    async def worker() -> None:
        nonlocal done
        while done < 60:
            handle = await engine.claim("work", (), policy())
            if handle is None:
                await asyncio.sleep(0)
                continue
            running.add(id_of(handle))
            assert len(running) <= 7
            await asyncio.sleep(0)
            running.discard(id_of(handle))
            await engine.complete(handle, None)
            done += 1

    running: set[ExecutionId] = set()
    await asyncio.wait_for(asyncio.gather(*(worker() for _ in range(12))), 60)
    await settled(engine)
    assert await active(probe) == 0


async def test_nobody_is_forgotten_when_ends_and_blocks_cross(open_engine: Any) -> None:
    """Executions end without a lock on their quota; no timer helps here."""
    engines = [await open_engine(clock=None) for _ in range(2)]
    await quota(engines[0], ONE, cap=2)
    total = 80
    await engines[0].create_executions(
        [{"execution_kind": "op", "lane_id": "work", "policy": {"quota_policy_id": ONE}} for _ in range(total)]
    )
    done = 0
    running: set[ExecutionId] = set()

    async def worker(engine: Engine) -> None:
        nonlocal done
        while done < total:
            handle = await engine.claim("work", (), policy(max_wait=200))
            if handle is None:
                continue
            running.add(id_of(handle))
            assert len(running) <= 2
            running.discard(id_of(handle))
            await engine.complete(handle, None)
            done += 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(worker(engine) for engine in engines for _ in range(4)))
    assert await active(Probe(engines[0])) == 0


# ---------------------------------------------------------------------------------------------------------------- timer


async def test_the_timer_finds_those_who_were_forgotten(engine: Engine, probe: Probe, monkeypatch: Any) -> None:
    await budget(engine, ONE, {"a": 1})
    await quota(engine, TWO, cap=1)
    await report(engine, a=1)
    await named(engine, quota=TWO, priority=9_000)
    handle = await take(engine)
    mine = [await named(engine, ONE), await named(engine, quota=TWO)]
    by_hand = await create(engine, lane_id="other")
    await engine.block_execution_for_admission(execution_id=by_hand, reason="waiting_for_budget")
    assert await claim(engine, 5) == []
    assert await engine.run_timer("unblock") == 1  # by hand, and nothing keeps it back
    monkeypatch.setattr(engine, "_go_on", lambda command: None)
    await engine.reset_budget(budget_id=ONE)
    await engine.complete(handle, None)
    assert [await blocked(probe, eid) for eid in mine] == [by_budget(ONE), by_quota(TWO)]
    assert await engine.run_timer("unblock") == 2
    assert await claim(engine, 5) == mine


# ------------------------------------------------------------------------------------------------------- cancel pending


async def test_a_breach_may_cancel_what_waits(engine: Engine, probe: Probe, monkeypatch: Any) -> None:
    monkeypatch.setattr("flowfabric.core.admission.budgets.CANCELLED_AT_ONCE", 10)
    await budget(engine, ONE, {"a": 10}, on_hard_limit="cancel_pending")
    await named(engine, ONE, priority=9_000)
    handle = await take(engine)
    waiting = [await named(engine, TWO, ONE) for _ in range(25)]
    delayed = await named(engine, ONE, delay_until=2**50)
    others = [await named(engine, TWO), await create(engine, lane_id="work")]
    await report(engine, a=11)
    await settled(engine)
    for eid in (*waiting, delayed):
        row = await probe.execution(eid)
        assert (row.public_state, row.cancelled_by) == ("cancelled", "budget")
        assert row.cancellation_reason == f"budget {ONE} is exhausted"
        assert await probe.completions(eid) == ["cancelled"]
    [row] = await probe.select(Budget, budget_id=ONE)
    assert row.cancelling_since_ms is None
    assert await claim(engine, 5) == others
    await engine.complete(handle, None)


async def test_cancelling_goes_on_after_a_crash(engine: Engine, probe: Probe, monkeypatch: Any) -> None:
    await budget(engine, ONE, {"a": 10}, on_hard_limit="cancel_pending")
    eid = await named(engine, ONE)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_go_on", lambda command: None)
        await report(engine, a=11)
    assert await claim(engine) == []
    assert await blocked(probe, eid) == by_budget()
    await engine.run_timer("budget_reconciler")
    await settled(engine)
    assert (await probe.execution(eid)).public_state == "cancelled"


async def test_many_budgets_used_up_at_once(engine: Engine, probe: Probe) -> None:
    """Each of them is held when it blocks; however many there are, that takes a few looks, not one each."""
    ids = [f"{number:08}-1111-4111-8111-111111111111" for number in range(60)]
    for each in ids:
        await budget(engine, each, {"a": 1})
        await report(engine, each, a=1)
    waiting = [await named(engine, each, ids[-1 - number]) for number, each in enumerate(ids)]
    free = await create(engine, lane_id="work")
    assert await claim(engine, 5) == [free]
    assert [(await blocked(probe, eid))[3] for eid in waiting] == ids
    for each in ids[:30]:
        await engine.reset_budget(budget_id=each)
    await settled(engine)
    # Each waits for its other budget now, unless that has room too.
    assert [(await blocked(probe, eid))[3] for eid in waiting[:30]] == ids[:29:-1]
    for each in ids[30:]:
        await engine.reset_budget(budget_id=each)
    await settled(engine)
    assert await claim(engine, 100) == waiting[:30]
    await settled(engine)
    assert await claim(engine, 100) == waiting[30:]


async def test_one_budget_lets_those_go_who_then_wait_for_many(engine: Engine, probe: Probe) -> None:
    first, *others = [f"{number:08}-1111-4111-8111-111111111111" for number in range(40)]
    for each in (first, *others):
        await budget(engine, each, {"a": 100})
        await report(engine, each, a=100)
    waiting = [await named(engine, first, each) for each in others]
    assert await claim(engine, 5) == []
    await engine.reset_budget(budget_id=first)
    await settled(engine)
    assert [(await blocked(probe, eid))[3] for eid in waiting] == others
