"""Stepping back without ending: until a time, or until the members an execution depends on are done."""

from __future__ import annotations

import pytest

from flowfabric import Delayed, Handle, HandleKind, Moved, PublicState
from flowfabric.engine import Engine
from flowfabric.model.events import LeaseEvent
from flowfabric.model.states import legal
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, fence_of, id_of, payload_of, policy
from tests.contract.seeding import edge, flow_of, group, lane_of, member, seed

DELAYED = "runnable / unowned / not_eligible_until_time / attempt_interrupted / delayed"
BLOCKED = "runnable / unowned / blocked_by_dependencies / attempt_interrupted / waiting_children"
QUEUED = "runnable / unowned / eligible_now / attempt_interrupted / waiting"


async def _delay(engine: Engine, way: str, handle: Handle, until: int) -> None:
    if way == "delay":
        assert await engine.delay(handle, until) is None
    else:
        answer = await engine.delay_execution(
            execution_id=id_of(handle), attempt_index=0, fence=fence_of(handle), delay_until=until
        )
        assert answer == Delayed(id_of(handle), PublicState.DELAYED)


by_handle_and_fence = pytest.mark.parametrize("way", ["delay", "delay_execution"])


@by_handle_and_fence
async def test_a_delayed_execution_lets_go_of_its_lease(
    engine: Engine, probe: Probe, clock: ManualClock, way: str
) -> None:
    handle = await claimed(engine, instance="box-1", execution_deadline_at=START_MS + 99_000)
    clock.advance(5)
    await _delay(engine, way, handle, START_MS + 60_000)
    assert await probe.state(id_of(handle)) == DELAYED
    row = await probe.execution(id_of(handle))
    assert (row.delay_until_ms, row.blocking_reason) == (START_MS + 60_000, "waiting_for_delay")
    assert (row.deadline_at_ms, row.attempt_index, row.terminal_at_ms) == (START_MS + 99_000, 0, None)
    (attempt,) = await probe.attempts(id_of(handle))
    assert (attempt.outcome, attempt.terminal_at_ms, attempt.lease_expires_at_ms) == ("interrupted", None, None)
    assert (attempt.lease_epoch, attempt.worker_id, attempt.worker_instance_id) == (1, "w1", None)
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]
    event: LeaseEvent = (await probe.events(LeaseEvent, id_of(handle)))[1]
    assert (event.lease_id, event.worker_instance_id) == (probe.lease_id(id_of(handle), 0, 1), "box-1")
    assert event.occurred_at_ms == START_MS + 5
    assert await probe.completions(id_of(handle)) == []
    info = await engine.read_execution_info(id_of(handle))
    assert info is not None
    assert legal(info.state_vector)
    assert info.state_vector.is_consistent()


@by_handle_and_fence
async def test_the_same_attempt_goes_on_at_its_time(engine: Engine, probe: Probe, clock: ManualClock, way: str) -> None:
    handle = await claimed(engine, lane_id="delayed")
    await _delay(engine, way, handle, START_MS + 60_000)
    clock.advance(59_999)
    await engine.promote_delayed(execution_id=id_of(handle))
    assert await probe.state(id_of(handle)) == DELAYED
    assert await engine.claim("delayed", (), policy()) is None
    clock.advance(1)
    await engine.promote_delayed(execution_id=id_of(handle))
    assert await probe.state(id_of(handle)) == QUEUED
    row = await probe.execution(id_of(handle))
    assert (row.delay_until_ms, row.blocking_reason) == (None, "waiting_for_worker")
    again = await engine.claim("delayed", (), policy("w1-i2"))
    assert again is not None
    assert (again.kind, payload_of(again).attempt_index, payload_of(again).lease_epoch) == (HandleKind.RESUMED, 0, 2)
    (attempt,) = await probe.attempts(id_of(handle))
    assert (attempt.outcome, attempt.attempt_type, attempt.worker_instance_id) == (None, "initial", "w1-i2")
    assert await engine.read_total_attempt_count(id_of(handle)) == 1
    await engine.complete(again, b"done")


@by_handle_and_fence
@pytest.mark.parametrize(("until", "stored"), [(0, 0), (START_MS - 1, START_MS - 1), (-5, 0)])
async def test_a_time_in_the_past_is_due_at_the_next_tick(
    engine: Engine, probe: Probe, way: str, until: int, stored: int
) -> None:
    handle = await claimed(engine)
    await _delay(engine, way, handle, until)
    assert await probe.state(id_of(handle)) == DELAYED
    assert (await probe.execution(id_of(handle))).delay_until_ms == stored
    assert await engine.run_timer("delayed_promoter") == 1
    assert await probe.state(id_of(handle)) == QUEUED


@by_handle_and_fence
async def test_a_delay_stops_at_the_end_of_time(engine: Engine, probe: Probe, way: str) -> None:
    handle = await claimed(engine)
    await _delay(engine, way, handle, 2**80)
    assert (await probe.execution(id_of(handle))).delay_until_ms == 2**63 - 1
    assert await engine.run_timer("delayed_promoter") == 0


# -- children --------------------------------------------------------------------------------------------------------


async def _wait(engine: Engine, way: str, handle: Handle) -> Moved | None:
    if way == "wait_children":
        assert await engine.wait_children(handle) is None
        return None
    answer = await engine.move_to_waiting_children(execution_id=id_of(handle), attempt_index=0, fence=fence_of(handle))
    assert answer.execution_id == id_of(handle)
    return answer


both_ways = pytest.mark.parametrize("way", ["wait_children", "move_to_waiting_children"])


@both_ways
async def test_open_dependencies_block(engine: Engine, probe: Probe, clock: ManualClock, way: str) -> None:
    flow = flow_of(engine)
    parent, child = await member(engine, flow), await member(engine, flow)
    await seed(engine, flow, edge(flow, child, parent), group(flow, parent, running_count=1))
    handle = await engine.claim(lane_of(parent), (), policy("box-1"))
    assert handle is not None
    clock.advance(5)
    answer = await _wait(engine, way, handle)
    assert answer is None or answer == Moved(parent, PublicState.WAITING_CHILDREN)
    assert await probe.state(parent) == BLOCKED
    row = await probe.execution(parent)
    assert (row.blocking_reason, row.delay_until_ms, row.attempt_index) == ("waiting_for_children", None, 0)
    (attempt,) = await probe.attempts(parent)
    assert (attempt.outcome, attempt.terminal_at_ms, attempt.lease_expires_at_ms) == ("waiting_children", None, None)
    assert (attempt.lease_epoch, attempt.worker_instance_id) == (1, None)
    assert await probe.lease_events(parent) == ["acquired", "revoked"]
    assert await probe.completions(parent) == []
    assert await engine.claim(lane_of(parent), (), policy()) is None
    assert await engine.evaluate_flow_eligibility(parent) == "blocked_by_dependencies"
    info = await engine.read_execution_info(parent)
    assert info is not None
    assert legal(info.state_vector)
    assert info.state_vector.is_consistent()


@both_ways
@pytest.mark.parametrize("standing", ["alone", "no group", "nothing open", "no flow row"])
async def test_without_open_dependencies_it_is_eligible_at_once(
    engine: Engine, probe: Probe, way: str, standing: str
) -> None:
    flow = flow_of(engine)
    if standing == "alone":
        handle = await claimed(engine, lane_id="alone")
        lane = "alone"
    else:
        execution_id = await member(engine, flow)
        if standing != "no flow row":
            await seed(engine, flow)
        if standing == "nothing open":
            await seed(engine, group(flow, execution_id, success_count=2))
        lane = lane_of(execution_id)
        claim = await engine.claim(lane, (), policy())
        assert claim is not None
        handle = claim
    await _wait(engine, way, handle)
    assert await probe.state(id_of(handle)) == QUEUED
    assert (await probe.execution(id_of(handle))).blocking_reason == "waiting_for_worker"
    assert [attempt.outcome for attempt in await probe.attempts(id_of(handle))] == ["waiting_children"]
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]
    again = await engine.claim(lane, (), policy("w1-i2"))
    assert again is not None
    assert (again.kind, payload_of(again).attempt_index, payload_of(again).lease_epoch) == (HandleKind.RESUMED, 0, 2)
