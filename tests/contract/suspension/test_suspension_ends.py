"""The end of an execution that waits, or once waited: nothing of it stays open."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import FailureClass, FlowGraph, Handle, PublicState, State, StateKind, Suspended
from flowfabric.conditions import OperatorOnly
from flowfabric.engine import Engine
from flowfabric.model.records.executions import Signal, SignalDedup, Suspension, Waitpoint
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, id_of, policy, refused
from tests.contract.seeding import alter, flow_of, member, seed
from tests.contract.suspending import KEY, asking, closings, effect, signal, suspended, suspension_of, used_keys


async def test_cancelled(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(engine)
    await engine.cancel_execution(execution_id=id_of(handle))
    assert await suspension_of(probe, handle) is None
    assert await closings(probe, handle) == [("closed", "cancelled")]
    [attempt] = await probe.attempts(id_of(handle))
    assert (attempt.lease_epoch, attempt.outcome) == (2, "attempt_interrupted")
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]
    async with refused(probe, State, StateKind.TARGET_NOT_SIGNALABLE):
        await signal(engine, handle, details)


@pytest.mark.parametrize("by", ["flow", "header"])
async def test_cancelled_with_its_flow(engine: Engine, probe: Probe, by: str) -> None:
    flow = flow_of(engine)
    await seed(engine, flow)
    eid = await member(engine, flow, lane_id="lane")
    handle = await engine.claim("lane", (), policy())
    assert handle is not None
    outcome = await engine.suspend(handle, asking())
    if by == "flow":
        await engine.cancel_flow(flow.flow_id)
    else:
        await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="cancel_all")
    assert await engine.read_execution_state(eid) is PublicState.CANCELLED
    assert await suspension_of(probe, handle) is None
    assert await closings(probe, handle) == [("closed", "cancelled")]
    async with refused(probe, State, StateKind.TARGET_NOT_SIGNALABLE):
        await signal(engine, handle, outcome.details)


@pytest.mark.parametrize("by", ["flow", "header", "skip"])
async def test_many_members_at_once(engine: Engine, probe: Probe, by: str) -> None:
    """However many of them wait: what they leave behind is looked up together."""
    names = [f"member {number}" for number in range(40)]
    edges = [("first", name) for name in names] if by == "skip" else []
    graph = FlowGraph({name: {"lane_id": name} for name in ("first", *names)}, edges)
    flow = await engine.submit_flow(graph)
    handles = []
    for name in names:
        if by == "skip":
            await alter(engine, flow.execution_ids[name], eligibility_state="eligible_now", blocking_reason=None)
        handle = await engine.claim(name, (), policy())
        assert handle is not None
        await engine.suspend(handle, asking())
        handles.append(handle)
    if by == "flow":
        await engine.cancel_flow(flow.flow_id)
    elif by == "header":
        await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="cancel_all")
    else:
        await engine.cancel_execution(execution_id=flow.execution_ids["first"])
    for handle in handles:
        assert await suspension_of(probe, handle) is None
        assert await closings(probe, handle) == [("closed", "skipped" if by == "skip" else "cancelled")]


async def test_past_its_deadline(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, execution_deadline_at=START_MS + 100)
    outcome = await engine.suspend(handle, asking(timeout_at=START_MS + 200))
    clock.advance(100)
    assert await engine.run_timer("execution_deadline") == 1
    assert await suspension_of(probe, handle) is None
    assert await closings(probe, handle) == [("closed", "expired")]
    assert await probe.completions(id_of(handle)) == ["expired"]
    async with refused(probe, State, StateKind.TARGET_NOT_SIGNALABLE):
        await signal(engine, handle, outcome.details)
    clock.advance(1_000)
    assert await engine.run_timer("suspension_timeout") == 0


async def _running_with_everything(engine: Engine) -> tuple[Handle, Any]:
    """Held again after a suspension, with a waitpoint that nobody has suspended on yet."""
    first, details = await suspended(engine, lane_id="lane")
    await effect(engine, first, details)
    handle = await engine.claim("lane", (), policy())
    assert handle is not None
    return handle, await engine.create_waitpoint(handle, "pending", 60_000)


@pytest.mark.parametrize("end", ["complete", "complete_execution", "fail", "cancel", "revoked and cancelled"])
async def test_the_holder_ends_it(engine: Engine, probe: Probe, end: str) -> None:
    handle, pending = await _running_with_everything(engine)
    assert await suspension_of(probe, handle) is not None
    if end == "complete":
        await engine.complete(handle)
    elif end == "complete_execution":
        await engine.complete_execution(execution_id=id_of(handle), source="operator_override")
    elif end == "fail":
        await engine.fail(handle, "boom", FailureClass.PERMANENT)
    elif end == "cancel":
        await engine.cancel(handle)
    else:
        await engine.revoke_lease(execution_id=id_of(handle))
        await engine.cancel_execution(execution_id=id_of(handle))
    assert await suspension_of(probe, handle) is None
    reason = "cancelled" if "cancel" in end else "never_committed"
    assert await closings(probe, handle) == [("closed", "resumed"), ("closed", reason)]
    async with refused(probe, State, StateKind.TARGET_NOT_SIGNALABLE):
        await signal(engine, handle, pending)


async def test_taken_over_too_often(open_engine: Any, clock: ManualClock) -> None:
    engine = await open_engine()
    probe = Probe(engine)
    handle = await claimed(engine, ttl_ms=10, policy={"max_reclaim_count": 0})
    await engine.create_waitpoint(handle, KEY, 60_000)
    clock.advance(10)
    await engine.run_timer("lease_expiry")
    assert await engine.read_execution_state(id_of(handle)) is PublicState.FAILED
    assert await closings(probe, handle) == [("closed", "never_committed")]


async def test_a_retry_does_not_see_the_suspension(engine: Engine, probe: Probe) -> None:
    handle, pending = await _running_with_everything(engine)
    assert len(await engine.observe_signals(handle)) == 1
    await engine.fail(handle, "boom")
    again = await engine.claim("lane", (), policy())
    assert again is not None
    assert await engine.observe_signals(again) == ()
    assert await effect(engine, again, pending) == "buffered_for_pending_waitpoint"
    outcome = await engine.suspend(again, asking())
    assert isinstance(outcome, Suspended)


async def test_a_new_life_begins_without_the_old_one(engine: Engine, probe: Probe) -> None:
    handle, _ = await _running_with_everything(engine)
    await engine.complete(handle)
    await engine.replay_execution(execution_id=id_of(handle))
    assert (await probe.execution(id_of(handle))).signal_count is None
    again = await engine.claim("lane", (), policy())
    assert again is not None
    assert await engine.observe_signals(again) == ()
    outcome = await engine.suspend(again, asking())
    assert isinstance(outcome, Suspended)
    assert await effect(engine, again, outcome.details) == "resume_condition_satisfied"
    held = await engine.claim("lane", (), policy())
    assert held is not None
    assert len(await engine.observe_signals(held)) == 1


async def test_retention_takes_everything(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, details = await suspended(engine, OperatorOnly())
    keeper, kept = await suspended(engine, OperatorOnly(), lane_id="keeper")
    for one, point in ((handle, details), (keeper, kept)):
        await effect(engine, one, point, idempotency_key="k", dedup_ttl_ms=2**40, payload=b"x")
    await engine.cancel_execution(execution_id=id_of(handle))
    clock.advance(24 * 3_600_000)
    assert await engine.trim_retention() == 1
    where = {"partition": id_of(handle).partition, "uuid": id_of(handle).uuid_text}
    for kind in (Suspension, Waitpoint, Signal):
        assert await probe.select(kind, **where) == []
    assert await used_keys(probe, handle, details.waitpoint_id) == []
    assert len(await probe.select(SignalDedup, partition=id_of(keeper).partition)) == 1
    assert len(await probe.select(Signal, partition=id_of(keeper).partition, uuid=id_of(keeper).uuid_text)) == 1


async def test_nothing_else_moves_what_is_suspended(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, _ = await suspended(engine, timeout_at=START_MS + 10**9)
    before = await probe.stored(id_of(handle))
    clock.advance(10**6)
    assert set((await engine.run_due()).values()) == {0}
    assert await engine.claim("lane-of-one", (), policy()) is None
    assert (await engine.list_expired_leases()).entries == ()
    assert await probe.stored(id_of(handle)) == before
