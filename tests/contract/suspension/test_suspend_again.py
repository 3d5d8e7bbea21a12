"""Suspending on a waitpoint that was created before, and suspending again after a lost reply."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from flowfabric import (
    Contention,
    ContentionKind,
    Fresh,
    State,
    StateKind,
    Suspended,
    SuspendOutcome,
    UsePending,
    Validation,
    ValidationKind,
)
from flowfabric.conditions import AllOf, ByName, Count, CountKind, OperatorOnly, Single
from flowfabric.core.suspension import forgetting
from flowfabric.engine import Engine
from flowfabric.model.records.executions import SuspendDedup, Waitpoint
from tests.contract.probe import (
    RUNNING,
    START_MS,
    ManualClock,
    Probe,
    claimed,
    fence_of,
    id_of,
    policy,
    refused,
    unchanged,
)
from tests.contract.seeding import seed
from tests.contract.suspending import (
    KEY,
    asking,
    closings,
    effect,
    on_pending,
    signal,
    suspended,
    suspension_of,
    waitpoint_of,
)

SOURCES, POINTS = CountKind.DISTINCT_SOURCES, CountKind.DISTINCT_WAITPOINTS
_TWO = ("a", "b")


async def test_who_waits_again_and_again_keeps_the_latest_waitpoints(
    engine: Engine, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an execution that never ends would have more of them one day than can be closed at once."""
    monkeypatch.setattr(forgetting, "WAITPOINTS_KEPT", 3)
    handle = await claimed(engine)
    eid = id_of(handle)
    pending = await engine.create_waitpoint(handle, "open", 60_000)
    made = []
    for number in range(20):
        args = asking(Single(KEY), suspension_id=f"00000000-0000-4000-8000-{number % 2:012d}")
        outcome = await engine.suspend(handle, args)
        assert isinstance(outcome, Suspended)
        made.append(outcome.details.waitpoint_id)
        await signal(engine, handle, outcome.details, "yes")
        resumed = await engine.claim("lane-of-one", (), policy())
        assert resumed is not None
        handle = resumed
    rows = await probe.select(Waitpoint, partition=eid.partition, uuid=eid.uuid_text)
    kept = {row.waitpoint_id for row in rows}
    assert pending.waitpoint_id in kept, "it was never closed"
    assert kept - {pending.waitpoint_id} == set(made[-len(kept) + 1 :])
    assert len(kept) <= 3 + 3
    await engine.cancel_execution(execution_id=eid)


# --------------------------------------------------------------------------------------------------- pending waitpoints


async def test_a_pending_waitpoint_becomes_active(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    now = clock.advance(999)
    outcome = await engine.suspend(handle, on_pending(pending, Single(KEY, ByName("yes"))))
    assert isinstance(outcome, Suspended)
    assert outcome.details.waitpoint_token == pending.hmac_token
    assert outcome.details.waitpoint_key == KEY
    waitpoint = await waitpoint_of(probe, handle, pending.waitpoint_id)
    assert (waitpoint.state, waitpoint.activated_at_ms, waitpoint.expires_at_ms) == ("active", now, None)
    assert waitpoint.required_signal_names == ("yes",)
    clock.advance(10_000)
    assert await engine.run_timer("pending_wp_expiry") == 0
    assert await effect(engine, handle, pending, "yes") == "resume_condition_satisfied"


async def test_early_signals_are_enough(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    eid = id_of(handle)
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    for name in ("no", "yes", "no"):
        assert await effect(engine, handle, pending, name) == "buffered_for_pending_waitpoint"
    events = await probe.lease_events(eid)
    now = clock.advance(10)
    outcome = await engine.suspend(handle, on_pending(pending, Single(KEY, ByName("yes"))))
    assert isinstance(outcome, SuspendOutcome.AlreadySatisfied)
    assert outcome.handle == handle
    assert outcome.details.waitpoint_token == pending.hmac_token
    assert await probe.stored(eid) == RUNNING
    assert await probe.lease_events(eid) == events
    stored = await suspension_of(probe, handle)
    assert stored is not None
    assert (stored.closed_at_ms, stored.close_reason) == (now, "resumed")
    [observed] = await engine.observe_signals(handle)
    assert (observed.signal_id, observed.signal_name) == (stored.closer_signal_id, "yes")
    assert await closings(probe, handle) == [("closed", "resumed")]
    assert (await engine.list_suspended(eid.partition)).entries == ()
    await engine.renew(handle)
    await engine.complete(handle, b"done")
    assert await suspension_of(probe, handle) is None


async def test_early_signals_that_are_not_enough_count_later(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    for source in ("alice", "alice"):
        await effect(engine, handle, pending, source_identity=source)
    outcome = await engine.suspend(handle, on_pending(pending, Count(2, SOURCES, (KEY,))))
    assert isinstance(outcome, Suspended)
    assert await effect(engine, handle, pending, source_identity="alice") == "appended_to_waitpoint_duplicate"
    assert await effect(engine, handle, pending, source_identity="bob") == "resume_condition_satisfied"
    assert (await waitpoint_of(probe, handle, pending.waitpoint_id)).matched_signal_count == 4


async def test_early_signals_with_further_waitpoints(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, "a", 1_000)
    await effect(engine, handle, pending)
    waitpoints = [UsePending(pending.waitpoint_id), Fresh(waitpoint_key="b")]
    outcome = await engine.suspend(handle, asking(Count(1, POINTS, ("a", "b")), waitpoints=waitpoints))
    assert isinstance(outcome, SuspendOutcome.AlreadySatisfied)
    assert await closings(probe, handle) == [("closed", "resumed")] * 2
    async with refused(probe, State, StateKind.WAITPOINT_CLOSED):
        await signal(engine, handle, outcome.details.additional_waitpoints[0])


async def test_which_pending_waitpoints_may_be_used(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    where = (id_of(handle).partition, id_of(handle).uuid_text)

    async def at(**fields: Any) -> Any:
        one = str(uuid4())
        values = {"state": "pending", "token": "k1:x", "token_kid": "k1", "waitpoint_key": KEY, **fields}
        uuid = values.pop("uuid", where[1])
        await seed(engine, Waitpoint(where[0], one, uuid, values.pop("state"), None, None, **values))
        return asking(waitpoints=[UsePending(one)])

    cases: list[tuple[Any, Any, Any]] = [
        (asking(waitpoints=[UsePending(str(uuid4()))]), Contention, ContentionKind.WAITPOINT_NOT_FOUND),
        (await at(uuid=str(uuid4())), Validation, ValidationKind.INVALID_WAITPOINT_FOR_EXECUTION),
        (await at(attempt_index=3), Validation, ValidationKind.INVALID_WAITPOINT_FOR_EXECUTION),
        (await at(state="active"), State, StateKind.WAITPOINT_NOT_PENDING),
        (await at(state="closed"), State, StateKind.WAITPOINT_NOT_PENDING),
        (await at(expires_at_ms=START_MS), State, StateKind.PENDING_WAITPOINT_EXPIRED),
        (await at(token=""), Validation, ValidationKind.WAITPOINT_NOT_TOKEN_BOUND),
    ]
    for arguments, family, kind in cases:
        async with refused(probe, family, kind):
            await engine.suspend(handle, arguments)
    clock.advance(1_000)
    async with refused(probe, State, StateKind.PENDING_WAITPOINT_EXPIRED):
        await engine.suspend(handle, on_pending(pending))


async def test_keys_are_checked_once_the_pending_one_is_known(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, "stored", 1_000)
    missing = "referenced_waitpoint_key_missing_binding: other"
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, missing):
        await engine.suspend(handle, on_pending(pending, Single("other")))
    two = [UsePending(pending.waitpoint_id), Fresh(waitpoint_key="b")]
    idle = "extra_binding_not_referenced_by_condition: b"
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, idle):
        await engine.suspend(handle, asking(Single("stored"), waitpoints=two))
    assert isinstance(
        await engine.suspend(handle, asking(AllOf((Single("stored"), Single("b"))), waitpoints=two)), Suspended
    )


# ------------------------------------------------------------------------------------------------------- repeated calls


async def test_repeated_with_a_key_the_first_answer(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id="lane")
    arguments = asking(Count(1, POINTS, _TWO), _TWO, idempotency_key="step 1")
    first = await engine.suspend(handle, arguments)
    other = asking(OperatorOnly(), idempotency_key="step 1")

    async def repeats() -> None:
        for again in (arguments, other):
            async with unchanged(probe):
                answer = await engine.suspend(handle, again)
                assert answer == first
                assert answer.details.waitpoint_token == first.details.waitpoint_token
            async with unchanged(probe):
                assert await engine.suspend_by_triple(id_of(handle), fence_of(handle), again) == first

    await repeats()
    await effect(engine, handle, first.details)
    await repeats()
    held = await engine.claim("lane", (), policy())
    assert held is not None
    await repeats()
    await engine.complete(held)
    clock.advance(7 * 24 * 3_600_000 - 1)
    await repeats()
    clock.advance(1)
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.suspend(handle, arguments)


async def test_a_key_belongs_to_its_execution(engine: Engine) -> None:
    _, first = await suspended(engine, lane_id="one", idempotency_key="same")
    _, second = await suspended(engine, lane_id="two", idempotency_key="same")
    assert first.suspension_id != second.suspension_id


@pytest.mark.parametrize("key", [None, ""])
async def test_without_a_key_nothing_is_remembered(engine: Engine, probe: Probe, key: str | None) -> None:
    handle, _ = await suspended(engine, idempotency_key=key)
    where = id_of(handle).partition
    assert await probe.select(SuspendDedup, partition=where) == []
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.suspend(handle, asking(idempotency_key=key))


async def test_an_old_answer_makes_room(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id="lane")
    first = await engine.suspend(handle, asking(idempotency_key="k"))
    await engine.resume_execution(execution_id=id_of(handle))
    clock.advance(7 * 24 * 3_600_000)
    held = await engine.claim("lane", (), policy())
    assert held is not None
    second = await engine.suspend(held, asking(idempotency_key="k"))
    assert second.details.suspension_id != first.details.suspension_id
    assert await engine.suspend(held, asking(idempotency_key="k")) == second
    await engine.run_timer("retention_trimmer")
    assert len(await probe.select(SuspendDedup, partition=id_of(handle).partition)) == 1
    clock.advance(7 * 24 * 3_600_000 + 1)
    await engine.run_timer("retention_trimmer")
    assert await probe.select(SuspendDedup, partition=id_of(handle).partition) == []


async def test_an_early_satisfaction_is_repeated_too(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    await effect(engine, handle, pending)
    first = await engine.suspend(handle, on_pending(pending, idempotency_key="k"))
    assert isinstance(first, SuspendOutcome.AlreadySatisfied)
    async with unchanged(probe):
        again = await engine.suspend(handle, on_pending(pending, idempotency_key="k"))
    assert again == first
    assert again.handle.kind is handle.kind
    await engine.complete(again.handle)
