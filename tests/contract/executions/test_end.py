"""Every end is announced exactly once, however it comes about, and leaves a legal row behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import ExecutionId, ExpiryMark, FailureClass, Granted, ReclaimCapExceeded
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent
from flowfabric.model.states import legal
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, fence_of, id_of, policy
from tests.contract.seeding import flow_of, lane_of, member, seed

OTHER_ID = "00000000-0000-4000-8000-000000000000"
Ending = Callable[[Engine, ManualClock], Awaitable[ExecutionId]]


async def _complete(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    await engine.complete(handle)
    await engine.complete(handle)
    return id_of(handle)


async def _complete_execution(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    await engine.complete_execution(execution_id=id_of(handle), fence=fence_of(handle))
    return id_of(handle)


async def _fail(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    for _ in range(2):
        await engine.fail(handle, "boom", FailureClass.PERMANENT)
    return id_of(handle)


async def _fail_execution(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    await engine.fail_execution(execution_id=id_of(handle), fence=fence_of(handle), failure_reason="boom")
    return id_of(handle)


async def _cancel(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    for _ in range(2):
        await engine.cancel(handle)
    return id_of(handle)


async def _cancel_standalone(engine: Engine, clock: ManualClock) -> ExecutionId:
    identity = await create(engine)
    for _ in range(2):
        await engine.cancel_execution(execution_id=identity)
    return identity


async def _cancel_for_a_flow(engine: Engine, clock: ManualClock) -> ExecutionId:
    identity = await create(engine)
    await engine.cancel_execution(execution_id=identity, source="flow_cascade")
    return identity


async def _member(engine: Engine) -> tuple[str, ExecutionId]:
    flow = flow_of(engine)
    await seed(engine, flow)
    identity = await member(engine, flow)
    assert await engine.claim(lane_of(identity), (), policy()) is not None
    return flow.flow_id, identity


async def _cancel_flow(engine: Engine, clock: ManualClock) -> ExecutionId:
    flow_id, identity = await _member(engine)
    for _ in range(2):
        await engine.cancel_flow(flow_id)
    return identity


async def _cancel_flow_header(engine: Engine, clock: ManualClock) -> ExecutionId:
    flow_id, identity = await _member(engine)
    for _ in range(2):
        await engine.cancel_flow_header(flow_id=flow_id, cancellation_policy="cancel_all")
    await engine.cancel_execution(execution_id=identity)
    await engine.ack_cancel_member(flow_id, identity)
    return identity


async def _deadline(engine: Engine, clock: ManualClock) -> ExecutionId:
    identity = await create(engine, execution_deadline_at=START_MS + 5)
    clock.advance(5)
    for _ in range(2):
        await engine.expire_execution(None, identity, "execution_deadline")
    return identity


async def _attempt_timeout(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine, policy={"timeout_policy": {"attempt_timeout_ms": 5}})
    clock.advance(5)
    assert await engine.expire_execution(None, id_of(handle), "attempt_timeout") is True
    return id_of(handle)


async def _reclaim_cap(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine, policy={"max_reclaim_count": 0})
    clock.advance(30_000)
    assert await engine.mark_lease_expired_if_due(None, id_of(handle)) == ExpiryMark("failed")
    return id_of(handle)


async def _reclaim_cap_by_name(engine: Engine, clock: ManualClock) -> ExecutionId:
    handle = await claimed(engine)
    clock.advance(30_000)
    names = {"execution_id": id_of(handle), "worker_id": "w2", "worker_instance_id": "i2", "lane_id": "lane-of-one"}
    assert isinstance(await engine.issue_reclaim_grant(**names), Granted)
    answer: Any = await engine.reclaim_execution(
        **names, lease_id=OTHER_ID, lease_ttl_ms=1, attempt_id=OTHER_ID, max_reclaim_count=0
    )
    assert answer == ReclaimCapExceeded(id_of(handle), 0)
    return id_of(handle)


#: Ending -> (outcome announced, terminal outcome read, lease events).
ENDINGS: dict[Ending, tuple[str, list[str]]] = {
    _complete: ("success", ["acquired", "revoked"]),
    _complete_execution: ("success", ["acquired", "revoked"]),
    _fail: ("failed", ["acquired", "revoked"]),
    _fail_execution: ("failed", ["acquired", "revoked"]),
    _cancel: ("cancelled", ["acquired", "revoked"]),
    _cancel_standalone: ("cancelled", []),
    _cancel_for_a_flow: ("cancelled", []),
    _cancel_flow: ("cancelled", ["acquired", "revoked"]),
    _cancel_flow_header: ("cancelled", ["acquired"]),
    _deadline: ("expired", []),
    _attempt_timeout: ("expired", ["acquired", "expired"]),
    _reclaim_cap: ("failed", ["acquired", "expired"]),
    _reclaim_cap_by_name: ("failed", ["acquired", "revoked"]),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_end_is_announced_once(engine: Engine, probe: Probe, clock: ManualClock, ending: Any) -> None:
    identity = await ending(engine, clock)
    outcome, leases = ENDINGS[ending]
    (event,) = await probe.events(CompletionEvent, identity)
    assert (event.outcome, event.occurred_at_ms, event.namespace) == (outcome, clock.now_ms, "default")
    assert await probe.lease_events(identity) == leases
    info = await engine.read_execution_info(identity)
    assert info is not None
    assert legal(info.state_vector)
    assert info.state_vector.is_consistent()
    assert info.state_vector.terminal_outcome == outcome
    assert info.completed_at == str(clock.now_ms)
    snapshot = await engine.describe_execution(identity)
    assert snapshot is not None
    assert (snapshot.current_lease, snapshot.last_mutation_at) == (None, clock.now_ms)
