"""Reserve, then settle: what is set aside counts, and comes back exactly, however its lease ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import (
    AlreadyApplied,
    CancelSource,
    Contention,
    FailureClass,
    Handle,
    HardBreach,
    NotFound,
    Ok,
    ReservationReleased,
    Reserved,
    Settled,
    SoftBreach,
    State,
    Validation,
)
from flowfabric.core.batch.view import View
from flowfabric.engine import Engine
from flowfabric.model.records.budgets import Reservation
from flowfabric.model.records.executions import Attempt, Execution, Lane
from tests.contract.admission.test_budgets import ONE, THREE, TWO, budget, report, usage
from tests.contract.probe import ManualClock, Probe, claimed, fence_of, id_of, policy, refused, unchanged

NONE = "99999999-9999-4999-8999-999999999999"


async def reserved(engine: Engine, budget_id: str = ONE) -> dict[str, int]:
    """What is set aside in a budget."""
    return (await engine.get_budget_status(budget_id)).reserved


async def reserve(engine: Engine, handle: Handle, budget_id: str = ONE, **amounts: int) -> str:
    """The id of a new reservation."""
    answer = await engine.reserve_budget(handle, budget_id, amounts)
    assert isinstance(answer, Reserved), answer
    return answer.reservation_id


async def states(probe: Probe, handle: Handle) -> list[str]:
    """The states of an execution's reservations, sorted."""
    identity = id_of(handle)
    rows = await probe.select(Reservation, partition=identity.partition, uuid=identity.uuid_text)
    return sorted(row.state for row in rows)


# -------------------------------------------------------------------------------------------------------------- reserve


async def test_what_is_set_aside_counts_against_the_limit(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    answer = await engine.reserve_budget(handle, ONE, {"a": 6, "b": 1})
    assert isinstance(answer, Reserved)
    assert (answer.budget_id, answer.amounts) == (ONE, {"a": 6, "b": 1})
    assert await usage(engine) == {"a": 0, "b": 0}
    assert await reserved(engine) == {"a": 6, "b": 1}
    assert await engine.reserve_budget(handle, ONE, {"a": 5}) == HardBreach("a", 0, 10, ONE, 6)
    assert await report(engine, a=5) == HardBreach("a", 0, 10, ONE, 6)
    assert await report(engine, a=4) == Ok()
    assert (await engine.get_budget_status(ONE)).breach_count == 2
    [attempt] = await probe.attempts(id_of(handle))
    assert attempt.reservation_count == 1


async def test_a_reservation_must_fit_every_level(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    await budget(engine, TWO, {"a": 100}, parent_budget_id=ONE)
    await budget(engine, THREE, {"a": 100}, parent_budget_id=ONE)
    handle = await claimed(engine)
    await reserve(engine, handle, TWO, a=8)
    assert await engine.reserve_budget(handle, THREE, {"a": 3}) == HardBreach("a", 0, 10, ONE, 8)
    assert [await reserved(engine, each) for each in (ONE, TWO, THREE)] == [{"a": 8}, {"a": 8}, {}]


async def test_only_the_holder_reserves(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    clock.advance(30_000)
    async with refused(probe, State):
        await engine.reserve_budget(handle, ONE, {"a": 1})
    await engine.run_timer("lease_expiry")
    async with refused(probe, Contention):
        await engine.reserve_budget(handle, ONE, {"a": 1})


async def test_a_key_reserves_once_per_lease(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    first = await engine.reserve_budget(handle, ONE, {"a": 4}, "step")
    assert isinstance(first, Reserved)
    async with unchanged(probe):
        assert await engine.reserve_budget(handle, ONE, {"a": 4}, "step") == first
    clock.advance(30_000)
    await engine.run_timer("lease_expiry")
    assert await reserved(engine) == {}
    again = await engine.claim("lane-of-one", (), policy("w2-i1", "w2"))
    assert again is not None
    second = await engine.reserve_budget(again, ONE, {"a": 4}, "step")
    assert isinstance(second, Reserved)
    assert second.reservation_id != first.reservation_id
    await engine.settle_reservation(second.reservation_id, {"a": 1}, again)
    async with unchanged(probe):
        assert await engine.reserve_budget(again, ONE, {"a": 4}, "step") == AlreadyApplied()


# --------------------------------------------------------------------------------------------------------------- settle


async def test_less_than_reserved_frees_the_rest(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    which = await reserve(engine, handle, a=10)
    assert await engine.settle_reservation(which, {"a": 7}) == Settled(which, {"a": 7}, {"a": 3})
    assert (await usage(engine), await reserved(engine)) == ({"a": 7}, {})
    async with unchanged(probe):
        assert await engine.settle_reservation(which, {"a": 7}) == AlreadyApplied()
        assert await engine.release_reservation(which) == ReservationReleased(which, {})
    [attempt] = await probe.attempts(id_of(handle))
    assert attempt.reservation_count == 0


async def test_more_than_reserved_is_charged_if_it_fits(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10}, {"a": 8})
    handle = await claimed(engine)
    which = await reserve(engine, handle, a=4)
    settled = Settled(which, {"a": 9, "b": 2}, {}, SoftBreach("a", 9, 8, ONE))
    assert await engine.settle_reservation(which, {"a": 9, "b": 2}, handle) == settled
    assert (await usage(engine), await reserved(engine)) == ({"a": 9, "b": 2}, {})


async def test_more_than_fits_charges_the_reservation_and_no_more(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    which = await reserve(engine, handle, a=4)
    await report(engine, a=5)
    assert await engine.settle_reservation(which, {"a": 6, "b": 1}) == HardBreach("a", 5, 10, ONE)
    assert (await usage(engine), await reserved(engine)) == ({"a": 9}, {})
    assert (await engine.get_budget_status(ONE)).breach_count == 1
    assert await engine.settle_reservation(which, {"a": 6}) == AlreadyApplied()


async def test_several_budgets_are_charged_in_one_commit(engine: Engine, probe: Probe) -> None:
    """They share the budget above them, which is charged for each."""
    await budget(engine, THREE, {"a": 100})
    for each in (ONE, TWO):
        await budget(engine, each, {"a": 10}, parent_budget_id=THREE)
    handle = await claimed(engine)
    one, two = [await reserve(engine, handle, each, a=8) for each in (ONE, TWO)]
    for also in ([NONE], [one], [two, two]):
        async with unchanged(probe):
            with pytest.raises((NotFound, Validation)):
                await engine.settle_reservation(one, {"a": 5}, handle, also)
    settled = Settled(one, {"a": 5}, {"a": 3})
    assert await engine.settle_reservation(one, {"a": 5}, handle, [two]) == settled
    async with unchanged(probe):
        assert await engine.settle_reservation(one, {"a": 5}, handle, [two]) == AlreadyApplied()
    assert [await usage(engine, each) for each in (ONE, TWO, THREE)] == [{"a": 5}, {"a": 5}, {"a": 10}]
    assert [await reserved(engine, each) for each in (ONE, TWO, THREE)] == [{}, {}, {}]
    [attempt] = await probe.attempts(id_of(handle))
    assert attempt.reservation_count == 0


async def test_of_several_budgets_the_one_without_room_is_told(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 100})
    await budget(engine, TWO, {"a": 10})
    handle = await claimed(engine)
    one, two = [await reserve(engine, handle, each, a=8) for each in (ONE, TWO)]
    assert await engine.settle_reservation(one, {"a": 12}, handle, [two]) == HardBreach("a", 0, 10, TWO)
    assert [await usage(engine, each) for each in (ONE, TWO)] == [{"a": 12}, {"a": 8}]


async def test_what_was_used_after_the_lease_was_lost_is_charged_if_it_fits(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    first, second = [await reserve(engine, handle, a=4) for _ in range(2)]
    await engine.complete(handle, None)
    assert await reserved(engine) == {}
    assert await engine.settle_reservation(first, {"a": 8}) == Settled(first, {"a": 8}, {})
    assert await engine.settle_reservation(second, {"a": 4}) == HardBreach("a", 8, 10, ONE)
    assert await usage(engine) == {"a": 8}


async def test_a_reset_leaves_reservations_alone(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    which = await reserve(engine, handle, a=8)
    await engine.reset_budget(budget_id=ONE)
    assert await reserved(engine) == {"a": 8}
    assert isinstance(await report(engine, a=3), HardBreach)
    await engine.settle_reservation(which, {"a": 8})
    assert (await usage(engine), await reserved(engine)) == ({"a": 8}, {})


async def test_reservations_are_found_by_their_owner_only(engine: Engine, probe: Probe) -> None:
    await budget(engine, ONE, {"a": 10})
    mine, other = await claimed(engine), await claimed(engine, lane_id="other")
    which = await reserve(engine, mine, a=1)
    for call in (
        lambda: engine.settle_reservation(NONE, {"a": 1}),
        lambda: engine.settle_reservation(which, {"a": 1}, other),
        lambda: engine.release_reservation(NONE),
        lambda: engine.release_reservation(which, other),
    ):
        async with refused(probe, NotFound) as caught:
            await call()
        assert caught.value.entity == "reservation"


async def test_a_released_reservation_is_free_again(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    which = await reserve(engine, handle, a=10)
    assert await engine.release_reservation(which, handle) == ReservationReleased(which, {"a": 10})
    assert (await usage(engine), await reserved(engine)) == ({"a": 0}, {})
    assert await engine.settle_reservation(which, {"a": 1}) == AlreadyApplied()


# ------------------------------------------------------------------------------------------------------- ends of leases


async def _complete(engine: Engine, handle: Handle, clock: ManualClock) -> None:
    await engine.complete(handle, None)


async def _fail(engine: Engine, handle: Handle, clock: ManualClock) -> None:
    await engine.fail(handle, "no", FailureClass.PERMANENT)


async def _retry(engine: Engine, handle: Handle, clock: ManualClock) -> None:
    await engine.fail(handle, "again", FailureClass.TRANSIENT)


async def _expire(engine: Engine, handle: Handle, clock: ManualClock) -> None:
    clock.advance(30_000)
    assert await engine.run_timer("lease_expiry") == 1


async def _revoke(engine: Engine, handle: Handle, clock: ManualClock) -> None:
    await engine.revoke_lease(execution_id=id_of(handle), reason="stop")


async def _cancel(engine: Engine, handle: Handle, clock: ManualClock) -> None:
    await engine.cancel_execution(execution_id=id_of(handle), reason="no", source=CancelSource.OPERATOR_OVERRIDE)


async def _delay(engine: Engine, handle: Handle, clock: ManualClock) -> None:
    await engine.delay(handle, clock() + 1_000)


async def _complete_by_name(engine: Engine, handle: Handle, clock: ManualClock) -> None:
    await engine.complete_execution(execution_id=id_of(handle), attempt_index=0, fence=fence_of(handle))


async def _deadline(engine: Engine, handle: Handle, clock: ManualClock) -> None:
    clock.advance(20_000)
    assert await engine.run_timer("execution_deadline") == 1


ENDS: dict[str, Callable[[Engine, Handle, ManualClock], Awaitable[None]]] = {
    "complete": _complete,
    "complete by name": _complete_by_name,
    "fail": _fail,
    "retry": _retry,
    "expiry": _expire,
    "revoke": _revoke,
    "cancel": _cancel,
    "delay": _delay,
    "deadline": _deadline,
}


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_gives_back_exactly_what_was_held(
    engine: Engine, probe: Probe, clock: ManualClock, end: str
) -> None:
    await budget(engine, ONE, {"a": 100})
    await budget(engine, TWO, {"a": 100}, parent_budget_id=ONE)
    timed = {"execution_deadline_at": clock() + 20_000} if end == "deadline" else {}
    handle = await claimed(engine, **timed)
    other = await claimed(engine, lane_id="other", ttl_ms=3_600_000)
    await reserve(engine, other, TWO, a=11)
    await reserve(engine, handle, TWO, a=5)
    await reserve(engine, handle, ONE, a=7)
    settled = await reserve(engine, handle, ONE, a=20)
    await engine.settle_reservation(settled, {"a": 2})
    assert (await reserved(engine, ONE), await reserved(engine, TWO)) == ({"a": 23}, {"a": 16})
    await ENDS[end](engine, handle, clock)
    assert (await reserved(engine, ONE), await reserved(engine, TWO)) == ({"a": 11}, {"a": 11})
    assert await states(probe, handle) == ["lapsed", "lapsed", "settled"]
    assert (await usage(engine, ONE), await usage(engine, TWO)) == ({"a": 2}, {"a": 0})
    assert {each.reservation_count for each in await probe.attempts(id_of(handle))} == {0}


async def test_an_execution_without_reservations_loads_no_budget(engine: Engine, monkeypatch: Any) -> None:
    seen: set[Any] = set()
    put = View.put_loaded

    def watched(self: View, kind: Any, key: Any, record: Any) -> None:
        seen.add(kind)
        put(self, kind, key, record)

    monkeypatch.setattr(View, "put_loaded", watched)
    handle = await claimed(engine)
    await engine.complete(handle, None)
    assert Execution in seen
    assert seen <= {Execution, Attempt, Lane}


# ---------------------------------------------------------------------------------------------------------- concurrency


async def test_two_hundred_reservers_at_the_edge(engine: Engine) -> None:
    await budget(engine, ONE, {"a": 100})
    await budget(engine, TWO, {"a": 150}, parent_budget_id=ONE)
    handles = [await claimed(engine, lane_id=f"lane-{number}") for number in range(10)]
    calls = [engine.reserve_budget(handles[number % 10], (ONE, TWO)[number % 2], {"a": 1}) for number in range(200)]
    answers = await asyncio.gather(*calls)
    granted = [each for each in answers if isinstance(each, Reserved)]
    assert len(granted) == 100
    assert all(isinstance(each, HardBreach) for each in answers if each not in granted)
    assert await reserved(engine, ONE) == {"a": 100}
    half = granted[:50]
    await asyncio.gather(*(engine.settle_reservation(each.reservation_id, {"a": 1}) for each in half))
    assert (await usage(engine), await reserved(engine)) == ({"a": 50}, {"a": 50})
    await asyncio.gather(*(engine.complete(handle, None) for handle in handles))
    assert (await usage(engine), await reserved(engine)) == ({"a": 50}, {})
