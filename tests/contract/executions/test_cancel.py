"""Cancelling one execution: by an operator, on behalf of something larger, by the holder itself."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from flowfabric import (
    Cancelled,
    CancelSource,
    ExecutionId,
    NotFound,
    PublicState,
    State,
    StateKind,
    TerminalOutcome,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.records.executions import Suspension, Waitpoint
from flowfabric.model.states import legal
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, policy, refused, unchanged
from tests.contract.seeding import alter, alter_attempt, flow_of, lane_of, member, seed

ENDED = "cancelled / unowned / not_applicable / cancelled / cancelled"
NOBODY = "{fp:0}:00000000-0000-4000-8000-000000000000"


# -- from every state ------------------------------------------------------------------------------------------------


async def _submitted(engine: Engine, clock: ManualClock) -> ExecutionId:
    return await create(engine)


async def _runnable(engine: Engine, clock: ManualClock) -> ExecutionId:
    execution_id = await create(engine)
    await engine.promote_submitted()
    return execution_id


async def _created_delayed(engine: Engine, clock: ManualClock) -> ExecutionId:
    return await create(engine, delay_until=START_MS + 60_000)


async def _blocked(engine: Engine, clock: ManualClock) -> ExecutionId:
    execution_id = await create(engine)
    await engine.block_route(execution_id=execution_id, detail="no gpu")
    return execution_id


async def _granted(engine: Engine, clock: ManualClock) -> ExecutionId:
    execution_id = await create(engine)
    await engine.issue_claim_grant(
        execution_id=execution_id, lane_id="default", worker_id="w1", worker_instance_id="w1-i1"
    )
    return execution_id


async def _delayed_by_holder(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    await engine.delay(handle, START_MS + 60_000)
    return id_of(handle)


async def _waiting_for_retry(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    await engine.fail(handle, "boom")
    return id_of(handle)


async def _active(engine: Engine, clock: ManualClock) -> ExecutionId:
    return id_of(await claimed(engine))


async def _active_and_expired(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    clock.advance(30_000)
    return id_of(handle)


async def _reclaimable(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    await alter(engine, id_of(handle), ownership_state="lease_expired_reclaimable", attempt_state="attempt_interrupted")
    return id_of(handle)


#: Standing -> (lease events before the cancel, whether it takes a lease away).
STANDINGS: dict[Any, tuple[list[str], bool]] = {
    _submitted: ([], False),
    _runnable: ([], False),
    _created_delayed: ([], False),
    _blocked: ([], False),
    _granted: ([], False),
    _delayed_by_holder: (["acquired", "revoked"], False),
    _waiting_for_retry: (["acquired", "revoked"], False),
    _active: (["acquired"], True),
    _active_and_expired: (["acquired"], True),
    _reclaimable: (["acquired"], True),
}


@pytest.mark.parametrize("standing", STANDINGS)
async def test_from_any_state(engine: Engine, probe: Probe, clock: ManualClock, standing: Any) -> None:
    execution_id = await standing(engine, clock)
    events, leased = STANDINGS[standing]
    before = await probe.attempts(execution_id)
    clock.advance(3)
    answer = await engine.cancel_execution(execution_id=execution_id, reason="enough")
    assert answer == Cancelled(execution_id, PublicState.CANCELLED)
    assert await probe.state(execution_id) == ENDED
    row = await probe.execution(execution_id)
    assert (row.cancellation_reason, row.cancelled_by, row.terminal_outcome) == (
        "enough",
        "operator_override",
        "cancelled",
    )
    assert (row.terminal_at_ms, row.blocking_reason, row.delay_until_ms) == (clock.now_ms, None, None)
    assert await probe.grants(execution_id) == []
    assert await probe.lease_events(execution_id) == events + ["revoked"] * leased
    assert await probe.operator_events(execution_id) == []
    (end,) = await probe.events(CompletionEvent, execution_id)
    assert (end.outcome, end.flow_id, end.occurred_at_ms) == ("cancelled", None, clock.now_ms)
    after = await probe.attempts(execution_id)
    if not leased:
        assert after == before
    else:
        (attempt,) = after
        assert (attempt.outcome, attempt.terminal_at_ms, attempt.lease_epoch) == ("cancelled", clock.now_ms, 2)
        assert (attempt.worker_id, attempt.worker_instance_id, attempt.lease_expires_at_ms) == ("w1", None, None)
        lease: LeaseEvent = (await probe.events(LeaseEvent, execution_id))[-1]
        assert (lease.lease_id, lease.worker_instance_id) == (probe.lease_id(execution_id, 0, 1), "w1-i1")
    info = await engine.read_execution_info(execution_id)
    assert info is not None
    assert legal(info.state_vector)
    assert info.state_vector.is_consistent()
    assert info.state_vector.terminal_outcome is TerminalOutcome.CANCELLED
    assert await engine.claim(row.lane_id, (), policy()) is None


async def test_a_suspended_execution_leaves_nothing_behind(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    identity = id_of(handle)
    where = (identity.partition, identity.uuid_text)
    await engine.delay(handle, START_MS)
    await alter(
        engine, identity, lifecycle_phase="suspended", eligibility_state="not_applicable", public_state="suspended"
    )
    suspension = Suspension(*where, str(uuid.uuid4()), START_MS, None, "waiting_for_signal")
    waitpoints = [
        Waitpoint(where[0], str(uuid.uuid4()), where[1], state, None, None) for state in ("pending", "active", "closed")
    ]
    await seed(engine, suspension, *waitpoints)
    clock.advance(9)
    await engine.cancel_execution(execution_id=identity)
    assert await probe.select(Suspension, partition=where[0], uuid=where[1]) == []
    found = {each.waitpoint_id: each for each in await probe.select(Waitpoint, partition=where[0], uuid=where[1])}
    closed = [
        (found[each.waitpoint_id].state, found[each.waitpoint_id].closed_at_ms, found[each.waitpoint_id].close_reason)
        for each in waitpoints
    ]
    assert closed == [
        ("closed", START_MS + 9, "cancelled"),
        ("closed", START_MS + 9, "cancelled"),
        ("closed", None, None),
    ]
    assert await probe.completions(identity) == ["cancelled"]


# -- gates -----------------------------------------------------------------------------------------------------------


async def test_who_is_not_there(engine: Engine, probe: Probe) -> None:
    for nobody in (NOBODY, f"{{fp:65535}}:{NOBODY[7:]}"):
        async with refused(probe, NotFound, "execution"):
            await engine.cancel_execution(execution_id=nobody, source="lease_holder")


async def test_cancelling_again_changes_nothing(engine: Engine, probe: Probe) -> None:
    identity = id_of(await claimed(engine))
    first = await engine.cancel_execution(execution_id=identity, reason="first")
    async with unchanged(probe):
        again = await engine.cancel_execution(execution_id=identity, reason="second", source="lease_holder")
        assert again == first
    assert (await probe.execution(identity)).cancellation_reason == "first"


async def test_a_row_in_phase_terminal_may_be_cancelled_too(engine: Engine, probe: Probe) -> None:
    identity = await create(engine)
    await alter(engine, identity, lifecycle_phase="terminal", public_state="cancelled")
    async with unchanged(probe):
        answer = await engine.cancel_execution(execution_id=identity)
    assert answer == Cancelled(identity, PublicState.CANCELLED)


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("terminal", "completed"),
        ("terminal", "failed"),
        ("terminal", "expired"),
        ("terminal", "skipped"),
        ("terminal", "success"),
        ("cancelled", "odd"),
    ],
)
async def test_what_ended_otherwise_stays_so(engine: Engine, probe: Probe, phase: str, state: str) -> None:
    identity = id_of(await claimed(engine))
    await alter(engine, identity, lifecycle_phase=phase, public_state=state)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
        await engine.cancel_execution(execution_id=identity, source="lease_holder")
    assert f"already terminal in state '{state}'" in caught.value.detail


@pytest.mark.parametrize("source", [CancelSource.LEASE_HOLDER, CancelSource.FLOW_CASCADE, "system_timeout", "my own"])
async def test_a_standing_lease_needs_its_epoch(engine: Engine, probe: Probe, clock: ManualClock, source: str) -> None:
    identity = id_of(await claimed(engine))
    clock.advance(60_000)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.cancel_execution(execution_id=identity, source=source)
    for epoch in (0, 2, 2**63 - 1, 2**70):
        async with refused(probe, State, StateKind.STALE_LEASE):
            await engine.cancel_execution(execution_id=identity, source=source, lease_epoch=epoch)
    await engine.cancel_execution(execution_id=identity, source=source, lease_epoch=1)
    row = await probe.execution(identity)
    assert (row.lifecycle_phase, row.cancelled_by) == ("cancelled", str(source))


async def test_an_operator_is_asked_for_no_epoch(engine: Engine, probe: Probe) -> None:
    identity = id_of(await claimed(engine))
    await engine.cancel_execution(execution_id=identity, lease_epoch=99, lease_id="x", attempt_id="y")
    assert await probe.state(identity) == ENDED


async def test_without_a_lease_nobody_is_asked_for_an_epoch(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.delay(handle, START_MS)
    await engine.cancel_execution(execution_id=id_of(handle), source="lease_holder")
    assert await probe.state(id_of(handle)) == ENDED


async def test_the_first_writer_of_reason_and_name_wins(engine: Engine, probe: Probe) -> None:
    identity = id_of(await claimed(engine))
    await alter(engine, identity, cancellation_reason="earlier", cancelled_by="somebody")
    await engine.cancel_execution(execution_id=identity, reason="later")
    row = await probe.execution(identity)
    assert (row.lifecycle_phase, row.cancellation_reason, row.cancelled_by) == ("cancelled", "earlier", "somebody")


async def test_two_cancels_at_once_are_one_cancellation(engine: Engine, probe: Probe) -> None:
    identity = id_of(await claimed(engine))
    answers = await asyncio.gather(*(engine.cancel_execution(execution_id=identity) for _ in range(5)))
    assert answers == [Cancelled(identity, PublicState.CANCELLED)] * 5
    assert await probe.lease_events(identity) == ["acquired", "revoked"]
    assert await probe.completions(identity) == ["cancelled"]


async def test_cancel_and_complete_at_once(engine: Engine, probe: Probe) -> None:
    """The first commit wins; the other one sees that it was late."""
    handle = await claimed(engine)
    answers = await asyncio.gather(
        engine.complete(handle), engine.cancel_execution(execution_id=id_of(handle)), return_exceptions=True
    )
    assert sum(isinstance(answer, Exception) for answer in answers) == 1
    assert len(await probe.completions(id_of(handle))) == 1
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]


# -- members of flows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["operator_override", "flow_cascade"])
async def test_a_member_without_dependents_has_nothing_to_dispatch(engine: Engine, probe: Probe, source: str) -> None:
    flow = flow_of(engine)
    await seed(engine, flow)
    identity = await member(engine, flow)
    handle = await engine.claim(lane_of(identity), (), policy())
    assert handle is not None
    await engine.cancel_execution(execution_id=identity, source=source, lease_epoch=1)
    (end,) = await probe.events(CompletionEvent, identity)
    assert (end.flow_id, end.outcome, end.dispatched_at_ms) == (flow.flow_id, "cancelled", START_MS)


# -- by the holder ---------------------------------------------------------------------------------------------------


async def test_the_holder_cancels_its_own_execution(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    clock.advance(11)
    answer = await engine.cancel(handle, "not needed")
    assert answer == Cancelled(id_of(handle), PublicState.CANCELLED)
    assert await probe.state(id_of(handle)) == ENDED
    row = await probe.execution(id_of(handle))
    assert (row.cancellation_reason, row.cancelled_by, row.terminal_at_ms) == ("not needed", "worker", START_MS + 11)
    (attempt,) = await probe.attempts(id_of(handle))
    assert (attempt.outcome, attempt.lease_epoch, attempt.worker_instance_id) == ("cancelled", 2, None)
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]
    assert await probe.completions(id_of(handle)) == ["cancelled"]
    assert await probe.operator_events(id_of(handle)) == []


async def test_an_attempt_without_a_name_has_no_lease(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await alter_attempt(engine, id_of(handle), worker_instance_id="")
    await engine.cancel_execution(execution_id=id_of(handle), source="lease_holder")
    assert await probe.lease_events(id_of(handle)) == ["acquired"]
    assert [attempt.lease_epoch for attempt in await probe.attempts(id_of(handle))] == [1]
