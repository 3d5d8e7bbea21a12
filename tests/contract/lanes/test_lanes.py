"""The states of a lane: gates at the entrance and the exit of the queue. What runs goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import (
    AlreadySatisfied,
    Created,
    Duplicate,
    ExecutionId,
    FlowGraph,
    Granted,
    LaneSnapshot,
    LaneState,
    LaneStateChanged,
    NotReclaimable,
    NoWork,
    State,
    StateKind,
)
from flowfabric.engine import Engine
from flowfabric.engine.operations import claim
from flowfabric.model.events import OperatorEvent
from flowfabric.model.partitions import lane_partition
from tests.contract.leases.test_claim_waiting import Sleeper
from tests.contract.probe import (
    INTERRUPTED,
    START_MS,
    ManualClock,
    Probe,
    claimed,
    create,
    id_of,
    policy,
    refused,
    shared_stores_only,
    unchanged,
)

LANE = "lane"
GRANTING = ("active", "draining")
WITHHOLDING = ("paused", "disabled")
ACCEPTING = ("active", "paused")
CLOSED = ("draining", "disabled")
PLACES = (("a", "other"), ("b", LANE))
EVENT = {"active": "lane_activated", "paused": "lane_paused", "draining": "lane_draining", "disabled": "lane_disabled"}
#: Long enough for a slow machine; nobody who is woken waits that long.
SOON_S = 20


async def in_state(engine: Engine, state: str) -> None:
    """Bring the lane into a state, whatever it was in."""
    await engine.set_lane_state(LANE, state)


def by_name(eid: ExecutionId) -> dict[str, Any]:
    return {"execution_id": eid, "lane_id": LANE, "worker_id": "w1", "worker_instance_id": "w1-i1"}


# -- setting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", LaneState)
@pytest.mark.parametrize("after", LaneState)
async def test_every_change_is_told_once(engine: Engine, probe: Probe, before: LaneState, after: LaneState) -> None:
    await create(engine, lane_id=LANE)
    await in_state(engine, before)
    told = len(await probe.operator_events(LANE))
    answer = await engine.set_lane_state(LANE, after, "because")
    events = (await probe.operator_events(LANE))[told:]
    if before == after:
        assert answer == AlreadySatisfied(f"lane_is_{after}")
        assert events == []
    else:
        assert answer == LaneStateChanged(LANE, before, after)
        assert events == [(EVENT[after], {"previous": before, "state": after, "reason": "because"})]
    assert (await engine.list_lanes()).states == (after,)


async def test_a_lane_that_nobody_has_used(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    assert await engine.describe_lane(LANE) is None
    async with unchanged(probe):
        assert await engine.set_lane_state(LANE, "active") == AlreadySatisfied("lane_is_active")
    assert await engine.set_lane_state(LANE, "paused", "deploy", now=5) == LaneStateChanged(
        LANE, LaneState.ACTIVE, LaneState.PAUSED
    )
    [(event_type, details)] = await probe.operator_events(LANE)
    assert (event_type, details["reason"]) == ("lane_paused", "deploy")
    [event] = await probe.events(OperatorEvent, LANE)
    assert event.occurred_at_ms == 5, "the given time is recorded"
    assert event.partition == lane_partition(LANE, engine.partitions)
    found = await engine.describe_lane(LANE)
    assert found == LaneSnapshot(LANE, LaneState.PAUSED, "deploy", START_MS, START_MS, "set_lane_state")
    assert (found.grants, found.accepts) == (False, True)
    await create(engine, lane_id=LANE)
    assert await engine.claim(LANE, (), policy()) is None


async def test_implicit_lanes_are_active(engine: Engine) -> None:
    await create(engine, lane_id=LANE)
    found = await engine.describe_lane(LANE)
    assert found == LaneSnapshot(LANE, LaneState.ACTIVE, None, None, START_MS, "create_execution")
    assert (found.grants, found.accepts) == (True, True)


# -- the exit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", LaneState)
async def test_claims(engine: Engine, probe: Probe, state: LaneState) -> None:
    eid = await create(engine, lane_id=LANE)
    await in_state(engine, state)
    if state in GRANTING:
        [handle] = await engine.claim_many(LANE, (), policy(), 5)
        assert id_of(handle) == eid
        return
    async with unchanged(probe):
        assert await engine.claim(LANE, (), policy()) is None
        assert await engine.claim_many(LANE, ("gpu",), policy(), 5) == []
        answer = await engine.claim_for_worker(lane_id=LANE, worker_id="w1", worker_instance_id="w1-i1")
        assert answer == NoWork()
    assert await engine.scan_eligible_executions(LANE) == (eid,), "the queue itself stays as it is"


async def test_claim_for_worker_in_granting_lanes(engine: Engine) -> None:
    for state in GRANTING:
        await in_state(engine, "active")
        await create(engine, lane_id=LANE)
        await in_state(engine, state)
        answer = await engine.claim_for_worker(lane_id=LANE, worker_id="w1", worker_instance_id="w1-i1")
        assert isinstance(answer, Granted)


@pytest.mark.parametrize("state", LaneState)
async def test_grants_by_name(engine: Engine, probe: Probe, state: LaneState) -> None:
    eid = await create(engine, lane_id=LANE)
    await in_state(engine, state)
    # The stored lane counts, not the one the caller names.
    call = {**by_name(eid), "lane_id": "another"}
    if state in GRANTING:
        assert (await engine.issue_claim_grant(**call)).execution_id == eid
        return
    async with refused(probe, State, StateKind.LANE_PAUSED, f"lane {LANE} is {state}"):
        await engine.issue_claim_grant(**call)


@pytest.mark.parametrize("state", WITHHOLDING)
async def test_a_promise_made_before_is_kept(engine: Engine, state: str) -> None:
    eid = await create(engine, lane_id=LANE)
    await engine.issue_claim_grant(**by_name(eid))
    await in_state(engine, state)
    answer = await engine.claim_execution(
        **by_name(eid), lease_id=str(uuid4()), attempt_id=str(uuid4()), lease_ttl_ms=1_000
    )
    assert answer.execution_id == eid


@pytest.mark.parametrize("state", LaneState)
async def test_continuing_by_name(engine: Engine, probe: Probe, state: LaneState) -> None:
    eid = id_of(await claimed(engine, lane_id=LANE))
    await engine.revoke_lease(execution_id=eid)
    await in_state(engine, state)
    call = {**by_name(eid), "lease_id": str(uuid4()), "lease_ttl_ms": 1_000}
    if state in GRANTING:
        assert (await engine.claim_resumed_execution(**call)).execution_id == eid
        return
    async with refused(probe, State, StateKind.LANE_PAUSED):
        await engine.claim_resumed_execution(**call)


@pytest.mark.parametrize("state", LaneState)
async def test_taking_over_by_name(engine: Engine, probe: Probe, clock: ManualClock, state: LaneState) -> None:
    eid = id_of(await claimed(engine, lane_id=LANE, ttl_ms=1_000))
    await in_state(engine, state)
    clock.advance(1_000)
    answer = await engine.issue_reclaim_grant(**by_name(eid))
    if state in GRANTING:
        assert isinstance(answer, Granted)
    else:
        assert answer == NotReclaimable(eid, f"lane_paused: lane {LANE} grants no work")
        assert await probe.grants(eid) == []


@pytest.mark.parametrize("state", LaneState)
async def test_an_operator_takes_what_he_wants(engine: Engine, state: LaneState) -> None:
    eid = await create(engine, lane_id=LANE)
    await in_state(engine, state)
    answer = await engine.issue_grant_and_claim(execution_id=eid, lane_id=LANE, lease_duration_ms=1_000)
    assert answer.attempt_index == 0


@pytest.mark.parametrize("state", WITHHOLDING)
async def test_what_runs_goes_on_and_what_comes_back_waits(engine: Engine, probe: Probe, state: str) -> None:
    done, back = await claimed(engine, lane_id=LANE), await claimed(engine, lane_id=LANE)
    await in_state(engine, state)
    await engine.renew(done)
    await engine.complete(done)
    await engine.revoke_lease(execution_id=id_of(back))
    assert await probe.stored(id_of(back)) == INTERRUPTED
    assert await engine.claim(LANE, (), policy()) is None
    await in_state(engine, "active")
    assert await engine.claim(LANE, (), policy()) is not None


# -- the entrance --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", LaneState)
async def test_creation(engine: Engine, probe: Probe, state: LaneState) -> None:
    await in_state(engine, state)
    if state in ACCEPTING:
        assert isinstance(await engine.create_execution(lane_id=LANE), Created)
        assert len(await engine.create_executions([{"lane_id": LANE}, {"lane_id": "other"}])) == 2
        return
    async with refused(probe, State, StateKind.LANE_CLOSED, f"lane {LANE} is {state}"):
        await engine.create_execution(lane_id=LANE, idempotency_key="key")
    async with refused(probe, State, StateKind.LANE_CLOSED, f"lane {LANE} is {state}"):
        await engine.create_executions([{"lane_id": "other"}, {"lane_id": LANE}])
    assert isinstance(await engine.create_execution(lane_id="other"), Created), "other lanes are not concerned"


@pytest.mark.parametrize("state", CLOSED)
async def test_flows_with_a_member_there(engine: Engine, probe: Probe, state: str) -> None:
    graph = FlowGraph({"a": {"lane_id": "other"}, "b": {"lane_id": LANE}}, [("a", "b")], flow_id=str(uuid4()))
    first = await engine.submit_flow(graph)
    await in_state(engine, state)
    async with refused(probe, State, StateKind.LANE_CLOSED):
        await engine.submit_flow(FlowGraph({"a": {"lane_id": "other"}, "b": {"lane_id": LANE}}, [("a", "b")]))
    members = {name: {"lane_id": lane, "execution_id": first.execution_ids[name]} for name, lane in PLACES}
    repeated = await engine.submit_flow(FlowGraph(members, [("a", "b")], flow_id=graph.flow_id))
    assert repeated == first


@pytest.mark.parametrize("state", CLOSED)
async def test_repeated_creations_get_their_first_answer(engine: Engine, probe: Probe, state: str) -> None:
    by_id = await create(engine, lane_id=LANE)
    by_key = await create(engine, lane_id=LANE, idempotency_key="key")
    await in_state(engine, state)
    async with unchanged(probe):
        assert await engine.create_execution(execution_id=by_id, lane_id=LANE) == Duplicate(by_id)
        assert await engine.create_execution(idempotency_key="key", lane_id=LANE) == Duplicate(by_key)
        both = [{"execution_id": by_id, "lane_id": LANE}, {"idempotency_key": "key", "lane_id": LANE}]
        assert await engine.create_executions(both) == [Duplicate(by_id), Duplicate(by_key)]
    async with refused(probe, State, StateKind.LANE_CLOSED):
        await engine.create_executions([*both, {"lane_id": LANE}])


@pytest.mark.parametrize("state", CLOSED)
async def test_a_key_that_has_expired_is_new_work(engine: Engine, probe: Probe, clock: ManualClock, state: str) -> None:
    await create(engine, lane_id=LANE, idempotency_key="key", policy={"dedup_window_ms": 1_000})
    await in_state(engine, state)
    clock.advance(1_000)
    async with refused(probe, State, StateKind.LANE_CLOSED):
        await engine.create_execution(idempotency_key="key", lane_id=LANE)
    async with refused(probe, State, StateKind.LANE_CLOSED):
        await engine.create_executions([{"idempotency_key": "key", "lane_id": LANE}])


async def test_draining_runs_dry(engine: Engine) -> None:
    first = await claimed(engine, lane_id=LANE)
    await in_state(engine, "draining")
    await engine.revoke_lease(execution_id=id_of(first))
    again = await engine.claim(LANE, (), policy())
    assert again is not None, "what was there before goes on"
    await engine.complete(again)
    await engine.replay_execution(execution_id=id_of(first))
    assert await engine.claim(LANE, (), policy()) is not None, "running it again is no new work"


# -- what a change lets go -----------------------------------------------------------------------------------------


@pytest.fixture
def only_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safety poll, a wake-up that is lost is a test that fails."""
    monkeypatch.setattr(claim, "SAFETY_POLL_S", 3600.0)


@pytest.mark.usefixtures("only_wake_ups")
@pytest.mark.parametrize("after", GRANTING)
@pytest.mark.parametrize("before", WITHHOLDING)
async def test_parked_claims_are_woken(engine: Engine, before: str, after: str) -> None:
    eids = {await create(engine, lane_id=LANE) for _ in range(2)}
    await in_state(engine, before)
    sleepers = [await Sleeper(engine).asleep() for _ in eids]
    await in_state(engine, after)
    assert {id_of(handle) for each in sleepers for handle in await each.found()} == eids


@shared_stores_only
@pytest.mark.usefixtures("only_wake_ups")
async def test_other_processes_see_the_gate_and_are_woken(engine: Engine, open_engine: Callable[..., Any]) -> None:
    other = await open_engine()
    await create(engine, lane_id=LANE)
    await create(engine, lane_id=LANE)
    assert await other.claim(LANE, (), policy()) is not None, "the lane is known there, as active"
    await in_state(engine, "disabled")
    assert await other.claim(LANE, (), policy()) is None
    with pytest.raises(State) as caught:
        await other.create_execution(lane_id=LANE)
    assert caught.value.kind is StateKind.LANE_CLOSED
    sleeper = await Sleeper(other).asleep()
    # The listener may only just be connecting: what it missed, the next change tells again.
    async with asyncio.timeout(SOON_S):
        while not sleeper.task.done():
            await in_state(engine, "active")
            await asyncio.wait([sleeper.task], timeout=0.2)
    assert len(await sleeper.found()) == 1
    assert isinstance(await other.create_execution(lane_id=LANE), Created)


@pytest.mark.parametrize("state", GRANTING)
async def test_what_was_blocked_by_the_lanes_state_is_let_go(engine: Engine, probe: Probe, state: str) -> None:
    blocked, elsewhere, stopped = (
        await create(engine, lane_id=LANE),
        await create(engine, lane_id="other"),
        await create(engine, lane_id=LANE),
    )
    await in_state(engine, "paused")
    for eid in (blocked, elsewhere):
        await engine.block_execution_for_admission(execution_id=eid, reason="paused_by_policy")
    await engine.block_execution_for_admission(execution_id=stopped, reason="paused_by_operator")
    await in_state(engine, state)
    assert (await probe.stored(blocked))[2] == "eligible_now"
    assert (await probe.stored(elsewhere))[2] == "blocked_by_lane_state"
    assert (await probe.stored(stopped))[2] == "blocked_by_operator"


async def test_racing_changes_of_a_new_lane_leave_one_state(engine: Engine, probe: Probe) -> None:
    creations = [engine.create_execution(lane_id=LANE) for _ in range(5)]
    answers = await asyncio.gather(engine.set_lane_state(LANE, "paused"), *creations)
    assert isinstance(answers[0], LaneStateChanged)
    found = await engine.describe_lane(LANE)
    assert found is not None
    assert found.state is LaneState.PAUSED
    assert [event for event, _ in await probe.operator_events(LANE)] == ["lane_paused"]
