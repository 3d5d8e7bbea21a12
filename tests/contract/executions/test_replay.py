"""Running an ended execution again: the plain branch, skipped members of flows, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import (
    Cancelled,
    Contention,
    ContentionKind,
    ExecutionId,
    ExecutionPolicy,
    FailureClass,
    HandleKind,
    NotFound,
    PublicState,
    Replayed,
    State,
    StateKind,
)
from flowfabric.engine import Engine
from flowfabric.model.events import OperatorEvent
from flowfabric.model.records.flows import EdgeGroup, Flow
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
)
from tests.contract.seeding import (
    alter,
    alter_attempt,
    bare_execution,
    edge,
    flow_of,
    group,
    lane_of,
    member,
    member_id,
    seed,
)

QUEUED = "runnable / unowned / eligible_now / pending_replay_attempt / waiting"
BLOCKED = "runnable / unowned / blocked_by_dependencies / pending_replay_attempt / waiting_children"
NOBODY = "{fp:0}:00000000-0000-4000-8000-000000000000"


# -- the plain branch ------------------------------------------------------------------------------------------------


async def test_everything_an_end_wrote_is_taken_back(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    retries = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}}}
    handle = await claimed(engine, policy=retries, namespace="acme", tags={"cairn.instance_id": "blue"})
    identity = id_of(handle)
    await engine.fail(handle, "boom")
    second = await engine.claim("lane-of-one", (), policy())
    assert second is not None
    await engine.complete(second, b"result")
    await alter(engine, identity, lease_reclaim_count=4, cancellation_reason="odd", cancelled_by="odd")
    clock.advance(77)
    assert await engine.replay_execution(execution_id=identity) == Replayed(PublicState.WAITING)
    assert await probe.state(identity) == QUEUED
    row = await probe.execution(identity)
    assert (row.attempt_index, row.terminal_at_ms, row.result, row.terminal_outcome) == (1, None, None, "none")
    assert (row.cancellation_reason, row.cancelled_by, row.delay_until_ms) == (None, None, None)
    assert (row.retry_count, row.lease_reclaim_count, row.started_at_ms) == (0, 0, START_MS)
    assert (row.blocking_reason, row.payload, row.last_mutation_at_ms) == ("waiting_for_worker", b"in", START_MS + 77)
    fields = await probe.raw_fields(identity)
    assert (fields["replay_count"], type(fields["replay_count"])) == (1, int)
    first, attempt = await probe.attempts(identity)
    assert first.outcome == "retry"
    assert (attempt.attempt_index, attempt.outcome, attempt.terminal_at_ms) == (1, None, None)
    assert (attempt.worker_id, attempt.worker_instance_id, attempt.lease_expires_at_ms) == (None, None, None)
    assert attempt.lease_epoch == 3
    assert await probe.operator_events(identity) == [("replayed", {"branch": "normal"})]
    (event,) = await probe.events(OperatorEvent, identity)
    assert (event.occurred_at_ms, event.namespace, event.instance_tag) == (START_MS + 77, "acme", "blue")
    assert await probe.completions(identity) == ["success"]
    assert await engine.get_execution_result(identity) is None
    info = await engine.read_execution_info(identity)
    assert info is not None
    assert legal(info.state_vector)
    assert info.state_vector.is_consistent()


async def test_the_replay_is_claimed_as_one(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    identity = id_of(handle)
    await engine.fail(handle, "broken", FailureClass.PERMANENT)
    await engine.replay_execution(execution_id=identity)
    again = await engine.claim("lane-of-one", (), policy("w1-i2"))
    assert again is not None
    assert (again.kind, payload_of(again).attempt_index, payload_of(again).lease_epoch) == (HandleKind.FRESH, 0, 3)
    (attempt,) = await probe.attempts(identity)
    assert (attempt.attempt_type, attempt.worker_instance_id) == ("replay", "w1-i2")
    assert await engine.read_total_attempt_count(identity) == 2
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.complete(handle)
    await engine.complete(again, b"second time")
    assert await engine.get_execution_result(identity) == b"second time"
    assert await probe.completions(identity) == ["failed", "success"]


async def test_an_execution_that_ended_before_it_ran(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    identity = await create(engine, execution_deadline_at=START_MS + 10)
    clock.advance(10)
    await engine.expire_execution(None, identity, "execution_deadline")
    assert await engine.replay_execution(execution_id=identity, now=55) == Replayed(PublicState.WAITING)
    assert await probe.state(identity) == QUEUED
    assert await probe.attempts(identity) == []
    (event,) = await probe.events(OperatorEvent, identity)
    assert event.occurred_at_ms == 55


@pytest.mark.parametrize(("epoch", "after"), [(3, 4), (1, 2), (41, 42)])
async def test_the_attempt_row_is_reset_in_place(engine: Engine, probe: Probe, epoch: int, after: int) -> None:
    handle = await claimed(engine)
    await engine.complete(handle)
    await alter_attempt(engine, id_of(handle), lease_epoch=epoch)
    await engine.replay_execution(execution_id=id_of(handle))
    (attempt,) = await probe.attempts(id_of(handle))
    assert (attempt.lease_epoch, attempt.outcome) == (after, None)


# -- gates -----------------------------------------------------------------------------------------------------------


async def test_only_what_has_ended_is_replayed(engine: Engine, probe: Probe) -> None:
    fresh = await create(engine)
    active = id_of(await claimed(engine))
    cancelled = await create(engine)
    assert isinstance(await engine.cancel_execution(execution_id=cancelled), Cancelled)
    suspended = await create(engine)
    await alter(engine, suspended, lifecycle_phase="suspended")
    for identity in (fresh, active, cancelled, suspended):
        async with refused(probe, State, StateKind.EXECUTION_NOT_TERMINAL):
            await engine.replay_execution(execution_id=identity)


async def test_what_is_not_there_is_not_replayed(engine: Engine, probe: Probe) -> None:
    for nobody in (NOBODY, f"{{fp:65535}}:{NOBODY[7:]}"):
        async with refused(probe, NotFound, "execution"):
            await engine.replay_execution(execution_id=nobody)


@pytest.mark.parametrize(
    ("limits", "replays"),
    [(None, 10), ({}, 10), ({"max_replay_count": 2}, 2), (ExecutionPolicy(max_replay_count=0), 0)],
)
async def test_replays_are_bounded(engine: Engine, probe: Probe, limits: Any, replays: int) -> None:
    handle = await claimed(engine, policy=limits)
    identity = id_of(handle)
    for count in range(1, replays + 1):
        await engine.complete(handle)
        await engine.replay_execution(execution_id=identity)
        assert (await probe.raw_fields(identity))["replay_count"] == count
        claim = await engine.claim("lane-of-one", (), policy())
        assert claim is not None
        handle = claim
    await engine.complete(handle)
    async with refused(probe, State, StateKind.MAX_REPLAYS_EXHAUSTED):
        await engine.replay_execution(execution_id=identity)


# -- skipped members -------------------------------------------------------------------------------------------------

COUNTS = {"success_count": 2, "fail_count": 1, "skip_count": 3, "running_count": 4}


async def _skipped(engine: Engine, flow: Flow, how: str) -> ExecutionId:
    """A member that was skipped: its attempt says so, or, having none, its row."""
    if how == "attempt":
        identity = await member(engine, flow)
        handle = await engine.claim(lane_of(identity), (), policy())
        assert handle is not None
        await engine.fail(handle, "boom", FailureClass.PERMANENT)
        await alter_attempt(engine, identity, outcome="skipped")
        return identity
    identity = member_id(engine, flow)
    ended: dict[str, Any] = {"lifecycle_phase": "terminal", "eligibility_state": "not_applicable"}
    ended |= {"public_state": "skipped"} if how == "public_state" else {"terminal_outcome": "skipped"}
    await seed(engine, bare_execution(engine, identity, flow_id=flow.flow_id, **ended))
    return identity


async def _group(probe: Probe, flow: Flow, downstream: ExecutionId) -> EdgeGroup:
    where = {"partition": flow.partition, "flow_id": flow.flow_id, "downstream": downstream.uuid_text}
    (found,) = await probe.select(EdgeGroup, **where)
    assert isinstance(found, EdgeGroup)
    return found


@pytest.mark.parametrize("how", ["attempt", "public_state", "terminal_outcome"])
async def test_a_skipped_member_waits_for_its_parents_again(engine: Engine, probe: Probe, how: str) -> None:
    flow = flow_of(engine)
    identity = await _skipped(engine, flow, how)
    parent, other = member_id(engine, flow), member_id(engine, flow)
    await seed(engine, edge(flow, parent, identity), edge(flow, other, identity))
    await seed(engine, group(flow, identity, **COUNTS, group_state="impossible"))
    assert await engine.replay_execution(execution_id=identity) == Replayed(PublicState.WAITING_CHILDREN)
    assert await probe.state(identity) == BLOCKED
    assert (await probe.execution(identity)).blocking_reason == "waiting_for_children"
    found = await _group(probe, flow, identity)
    assert (found.success_count, found.fail_count, found.skip_count, found.running_count) == (2, 0, 0, 0)
    assert found.group_state == "pending"
    assert await probe.operator_events(identity) == [("replayed", {"branch": "skipped_flow_member", "groups_reset": 1})]
    assert await engine.evaluate_flow_eligibility(identity) == "blocked_by_dependencies"
    assert (await probe.raw_fields(identity))["replay_count"] == 1


async def test_a_group_without_edges_is_left_alone(engine: Engine, probe: Probe) -> None:
    flow = flow_of(engine)
    identity = await _skipped(engine, flow, "attempt")
    await seed(engine, group(flow, identity, **COUNTS))
    assert await engine.replay_execution(execution_id=identity) == Replayed(PublicState.WAITING_CHILDREN)
    found = await _group(probe, flow, identity)
    assert (found.success_count, found.fail_count, found.skip_count, found.running_count) == (2, 1, 3, 4)
    assert await probe.operator_events(identity) == [("replayed", {"branch": "skipped_flow_member", "groups_reset": 0})]


async def test_other_members_keep_their_counters(engine: Engine, probe: Probe) -> None:
    flow = flow_of(engine)
    identity, sibling = await _skipped(engine, flow, "attempt"), member_id(engine, flow)
    await seed(engine, edge(flow, sibling, identity), edge(flow, identity, sibling))
    await seed(engine, group(flow, identity, **COUNTS), group(flow, sibling, **COUNTS))
    await engine.replay_execution(execution_id=identity)
    found = await _group(probe, flow, sibling)
    assert (found.success_count, found.fail_count, found.skip_count, found.running_count) == (2, 1, 3, 4)


async def test_groups_are_found_beside_the_execution(engine: Engine, probe: Probe) -> None:
    """There may be no flow row, and the flow id may hash to another partition than the execution's own."""
    flow = flow_of(engine)
    partition = (flow.partition + 1) % engine.partitions.flow
    identity = ExecutionId.of(partition, member_id(engine, flow).uuid_text)
    strange = Flow(partition, flow.flow_id, 0, "open", START_MS, None, "{}")
    ended = {"lifecycle_phase": "terminal", "public_state": "skipped", "flow_id": flow.flow_id}
    await seed(engine, bare_execution(engine, identity, **ended))
    await seed(engine, edge(strange, member_id(engine, flow), identity), group(strange, identity, **COUNTS))
    assert await engine.replay_execution(execution_id=identity) == Replayed(PublicState.WAITING_CHILDREN)
    assert (await _group(probe, strange, identity)).skip_count == 0


async def test_a_skipped_execution_outside_any_flow_is_replayed_plainly(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.fail(handle, "boom", FailureClass.PERMANENT)
    await alter_attempt(engine, id_of(handle), outcome="skipped")
    assert await engine.replay_execution(execution_id=id_of(handle)) == Replayed(PublicState.WAITING)
    assert await probe.operator_events(id_of(handle)) == [("replayed", {"branch": "normal"})]


async def test_a_failed_member_is_replayed_plainly(engine: Engine, probe: Probe) -> None:
    flow = flow_of(engine)
    identity = await member(engine, flow)
    await seed(engine, flow, edge(flow, member_id(engine, flow), identity), group(flow, identity, **COUNTS))
    handle = await engine.claim(lane_of(identity), (), policy())
    assert handle is not None
    await engine.fail(handle, "boom", FailureClass.PERMANENT)
    assert await engine.replay_execution(execution_id=identity) == Replayed(PublicState.WAITING)
    assert (await _group(probe, flow, identity)).fail_count == 1


async def test_a_replay_leaves_only_the_states_it_names(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    identity = id_of(handle)
    await engine.fail(handle, "broken", FailureClass.PERMANENT)
    async with refused(probe, State, StateKind.REPLAY_NOT_ALLOWED):
        await engine.replay_execution(execution_id=identity, states=["expired"])
    await engine.replay_execution(execution_id=identity, states=["expired", PublicState.FAILED])
    again = await engine.claim("lane-of-one", (), policy())
    assert again is not None
    await engine.complete(again, b"done")
    async with refused(probe, State, StateKind.REPLAY_NOT_ALLOWED):
        await engine.replay_execution(execution_id=identity, states=["expired", "failed"])
    assert await engine.get_execution_result(identity) == b"done"
