"""What an operator does to one execution: take its lease away, move it in the queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import (
    AlreadySatisfied,
    Contention,
    ContentionKind,
    ExecutionId,
    HandleKind,
    NotFound,
    PriorityChanged,
    Revoked,
    Validation,
)
from flowfabric.engine import Engine
from flowfabric.model.events import LeaseEvent, OperatorEvent
from flowfabric.model.limits import INTAKE_MS
from flowfabric.model.states import legal
from tests.contract.probe import (
    START_MS,
    ManualClock,
    Probe,
    claimed,
    create,
    id_of,
    payload_of,
    policy,
    refused,
    unchanged,
)
from tests.contract.seeding import alter

QUEUED = "runnable / unowned / eligible_now / attempt_interrupted / waiting"
NOBODY = "{fp:0}:00000000-0000-4000-8000-000000000000"


# -- revoke_lease ----------------------------------------------------------------------------------------------------


async def test_a_revoked_execution_is_back_in_the_queue(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, instance="box-1", lane_id="revoked")
    identity = id_of(handle)
    clock.advance(8)
    answer = await engine.revoke_lease(execution_id=identity, reason="maintenance")
    assert answer == Revoked(probe.lease_id(identity, 0, 1), "2")
    assert await probe.state(identity) == QUEUED
    row = await probe.execution(identity)
    assert (row.attempt_index, row.lease_revoke_reason, row.blocking_reason) == (0, "maintenance", "waiting_for_worker")
    assert (row.last_mutation_at_ms, row.terminal_at_ms) == (START_MS + 8, None)
    (attempt,) = await probe.attempts(identity)
    assert (attempt.worker_id, attempt.worker_instance_id, attempt.lease_expires_at_ms) == ("w1", None, None)
    assert (attempt.lease_epoch, attempt.outcome, attempt.terminal_at_ms) == (2, None, None)
    assert await probe.lease_events(identity) == ["acquired", "revoked"]
    event: LeaseEvent = (await probe.events(LeaseEvent, identity))[1]
    assert (event.lease_id, event.worker_instance_id) == (probe.lease_id(identity, 0, 1), "box-1")
    assert event.occurred_at_ms == START_MS + 8
    assert await probe.operator_events(identity) == []
    assert await probe.completions(identity) == []
    info = await engine.read_execution_info(identity)
    assert info is not None
    assert legal(info.state_vector)
    assert info.state_vector.is_consistent()


async def test_the_attempt_goes_on_with_another_worker(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, lane_id="revoked")
    await engine.revoke_lease(execution_id=id_of(handle))
    again = await engine.claim("revoked", (), policy("w2-i1", worker="w2"))
    assert again is not None
    assert (again.kind, payload_of(again).attempt_index, payload_of(again).lease_epoch) == (HandleKind.RESUMED, 0, 3)
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.renew(handle)
    await engine.complete(again)


async def test_nothing_to_revoke(engine: Engine, probe: Probe) -> None:
    fresh = await create(engine)
    delayed = await claimed(engine)
    await engine.delay(delayed, START_MS)
    ended = await claimed(engine, lane_id="ended")
    await engine.complete(ended)
    async with unchanged(probe):
        for identity in (fresh, id_of(delayed), id_of(ended)):
            answer = await engine.revoke_lease(execution_id=identity, worker_instance_id="x", expected_lease_id="y")
            assert answer == AlreadySatisfied("no_active_lease")


async def test_revoking_twice(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.revoke_lease(execution_id=id_of(handle))
    async with unchanged(probe):
        assert await engine.revoke_lease(execution_id=id_of(handle)) == AlreadySatisfied("no_active_lease")


async def test_revoking_at_once(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    answers = await asyncio.gather(*(engine.revoke_lease(execution_id=id_of(handle)) for _ in range(4)))
    assert sorted(type(answer).__name__ for answer in answers) == ["AlreadySatisfied"] * 3 + ["Revoked"]
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]


async def test_the_holder_and_the_lease_must_be_the_ones_meant(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, instance="box-1")
    identity = id_of(handle)
    shown = probe.lease_id(identity, 0, 1)
    async with unchanged(probe):
        for arguments, why in (
            ({"worker_instance_id": "box-2"}, "different_worker_instance_id"),
            ({"worker_instance_id": "box-2", "expected_lease_id": "odd"}, "different_worker_instance_id"),
            ({"expected_lease_id": "odd"}, "lease_id_mismatch"),
            ({"expected_lease_id": payload_of(handle).lease_id}, "lease_id_mismatch"),
            ({"expected_lease_id": shown + "0", "worker_instance_id": "box-1"}, "lease_id_mismatch"),
        ):
            answer: Any = await engine.revoke_lease(execution_id=identity, **arguments)
            assert (arguments, answer) == (arguments, AlreadySatisfied(why))
    answer = await engine.revoke_lease(execution_id=identity, expected_lease_id=shown, worker_instance_id="box-1")
    assert answer == Revoked(shown, "2")


@pytest.mark.parametrize("expected", [None, ""])
async def test_empty_means_any(engine: Engine, expected: str | None) -> None:
    handle = await claimed(engine)
    answer = await engine.revoke_lease(execution_id=id_of(handle), expected_lease_id=expected, worker_instance_id="")
    assert isinstance(answer, Revoked)


async def test_a_lease_past_its_time_can_still_be_revoked(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    clock.advance(90_000)
    assert isinstance(await engine.revoke_lease(execution_id=id_of(handle)), Revoked)
    assert await probe.state(id_of(handle)) == QUEUED


async def test_a_row_that_does_not_run_keeps_its_state(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    ended = {"lifecycle_phase": "terminal", "ownership_state": "unowned", "public_state": "completed"}
    await alter(engine, id_of(handle), **ended, attempt_state="attempt_terminal")
    before = await probe.state(id_of(handle))
    assert isinstance(await engine.revoke_lease(execution_id=id_of(handle)), Revoked)
    assert await probe.state(id_of(handle)) == before
    (attempt,) = await probe.attempts(id_of(handle))
    assert (attempt.worker_instance_id, attempt.lease_expires_at_ms, attempt.lease_epoch) == (None, None, 2)


async def test_whose_lease(engine: Engine, probe: Probe) -> None:
    async with refused(probe, NotFound, "execution"):
        await engine.revoke_lease(execution_id=NOBODY)


# -- change_priority -------------------------------------------------------------------------------------------------


async def _queued(engine: Engine, **arguments: Any) -> ExecutionId:
    execution_id = await create(engine, **arguments)
    await engine.promote_submitted()
    return execution_id


async def test_a_new_priority_is_stored_and_announced(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    identity = await _queued(engine, priority=5, namespace="acme", tags={"cairn.instance_id": "blue"})
    before = await probe.state(identity)
    clock.advance(4)
    assert await engine.change_priority(execution_id=identity, new_priority=42) == PriorityChanged(identity)
    row = await probe.execution(identity)
    assert (row.priority, row.last_mutation_at_ms) == (42, START_MS + 4)
    assert await probe.state(identity) == before
    assert await probe.operator_events(identity) == [("priority_changed", {"old_priority": 5, "new_priority": 42})]
    (event,) = await probe.events(OperatorEvent, identity)
    assert (event.partition, event.occurred_at_ms) == (identity.partition, START_MS + 4)
    assert (event.namespace, event.instance_tag) == ("acme", "blue")
    assert await probe.lease_events(identity) == []


@pytest.mark.parametrize(
    ("wanted", "stored"),
    [(0, 0), (9_000, 9_000), (9_001, 9_000), (-1, 0), (2**31, 9_000), (-(2**80), 0), (2**80, 9_000)],
)
async def test_priorities_are_clamped(engine: Engine, probe: Probe, wanted: int, stored: int) -> None:
    identity = await _queued(engine, priority=7)
    await engine.change_priority(execution_id=identity, new_priority=wanted)
    assert (await probe.execution(identity)).priority == stored
    assert await probe.operator_events(identity) == [("priority_changed", {"old_priority": 7, "new_priority": stored})]


async def test_the_same_priority_is_an_event_too(engine: Engine, probe: Probe) -> None:
    identity = await _queued(engine, priority=7)
    for _ in range(2):
        await engine.change_priority(execution_id=identity, new_priority=7)
    assert await probe.operator_events(identity) == [("priority_changed", {"old_priority": 7, "new_priority": 7})] * 2


async def test_the_stored_lane_is_the_one_that_counts(engine: Engine, probe: Probe) -> None:
    identity = await _queued(engine, lane_id="mine")
    await engine.change_priority(execution_id=identity, new_priority=3, lane_id="another")
    row = await probe.execution(identity)
    assert (row.priority, row.lane_id) == (3, "mine")


async def test_the_time_given_is_the_time_of_the_event(engine: Engine, probe: Probe) -> None:
    identity = await _queued(engine)
    await engine.change_priority(execution_id=identity, new_priority=3, now=123)
    (event,) = await probe.events(OperatorEvent, identity)
    assert event.occurred_at_ms == 123


async def test_claims_follow_the_new_order(engine: Engine, clock: ManualClock) -> None:
    first = await _queued(engine, lane_id="ordered", priority=5)
    clock.advance(1)
    second = await _queued(engine, lane_id="ordered", priority=1)
    await engine.change_priority(execution_id=second, new_priority=6)
    claims = await engine.claim_many("ordered", (), policy(), 2)
    assert [id_of(claim) for claim in claims] == [second, first]


async def test_only_what_waits_in_the_queue_can_move_in_it(engine: Engine, probe: Probe) -> None:
    submitted = await create(engine)
    active = id_of(await claimed(engine))
    delayed = await _queued(engine, delay_until=START_MS + 9)
    blocked = await _queued(engine)
    await engine.block_route(execution_id=blocked)
    cancelled = await _queued(engine)
    await engine.cancel_execution(execution_id=cancelled)
    ended = await claimed(engine, lane_id="ended")
    await engine.complete(ended)
    granted = await _queued(engine, lane_id="granted")
    await engine.issue_claim_grant(execution_id=granted, lane_id="granted", worker_id="w1", worker_instance_id="w1-i1")
    suspended = await _queued(engine)
    await alter(engine, suspended, lifecycle_phase="suspended", eligibility_state="not_applicable")
    # Promotion above has moved everything fresh; the first one was fresh before it and is not any more.
    await alter(engine, submitted, lifecycle_phase="submitted")
    for identity in (submitted, active, delayed, blocked, cancelled, id_of(ended), granted, suspended):
        async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ELIGIBLE):
            await engine.change_priority(execution_id=identity, new_priority=1)


async def test_what_is_fresh_cannot_move_yet(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    identity = await create(engine, priority=5)
    clock.advance(INTAKE_MS - 1)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ELIGIBLE):
        await engine.change_priority(execution_id=identity, new_priority=1)
    clock.advance(1)
    await engine.change_priority(execution_id=identity, new_priority=1)
    row = await probe.execution(identity)
    assert (row.lifecycle_phase, row.eligibility_state, row.priority) == ("runnable", "eligible_now", 1)
    assert await probe.operator_events(identity) == [("priority_changed", {"old_priority": 5, "new_priority": 1})]


async def test_how_long_something_is_fresh(open_engine: Any, clock: ManualClock, monkeypatch: Any) -> None:
    monkeypatch.setenv("FF_INTAKE_INTERVAL_MS", "0")
    engine = await open_engine()
    await engine.change_priority(execution_id=await create(engine), new_priority=1)
    monkeypatch.setenv("FF_INTAKE_INTERVAL_MS", "soon")
    with pytest.raises(Validation, match="FF_INTAKE_INTERVAL_MS"):
        await open_engine()


async def test_nothing_fresh_is_moved_by_the_clock(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    identity = await create(engine, lane_id="default")
    clock.advance(10 * INTAKE_MS)
    assert "intake" not in await engine.run_due()
    assert (await probe.execution(identity)).lifecycle_phase == "submitted"
    handle = await engine.claim("default", (), policy())
    assert handle is not None
    assert id_of(handle) == identity


async def test_whose_priority(engine: Engine, probe: Probe) -> None:
    async with refused(probe, NotFound, "execution"):
        await engine.change_priority(execution_id=NOBODY, new_priority=1)
