"""A timer decides on rows it found a moment ago. Its rule looks again, and does nothing if it comes too late."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import ExpiryMark, NotReclaimable
from flowfabric.core.executions.due import ExpireExecution, MarkLeaseExpired, PromoteDelayed, PromoteSubmitted
from flowfabric.core.executions.retention import TrimExecution
from flowfabric.core.lanes.workers import SweepWorker
from flowfabric.core.leases.grants import SweepGrants
from flowfabric.engine import Engine
from flowfabric.model.ids import ExecutionId
from tests.contract import seeding
from tests.contract.probe import ManualClock, Probe, claimed, create, id_of, unchanged

MISSING = ExecutionId.parse("{fp:0}:11111111-1111-4111-8111-111111111111")

#: Commands on an execution, and what each answers when there is nothing for it to do.
ON_EXECUTIONS: dict[str, tuple[Any, Any]] = {
    "intake": (PromoteSubmitted, False),
    "delay": (PromoteDelayed, False),
    "attempt timeout": (lambda eid: ExpireExecution(eid, "attempt_timeout"), False),
    "deadline": (lambda eid: ExpireExecution(eid, "execution_deadline"), False),
    "grants": (SweepGrants, 0),
    "retention": (lambda eid: TrimExecution(eid, 0), False),
}


@pytest.mark.parametrize("name", ON_EXECUTIONS)
async def test_somebody_was_faster(engine: Engine, probe: Probe, clock: ManualClock, name: str) -> None:
    make, answer = ON_EXECUTIONS[name]
    running = id_of(await claimed(engine, ttl_ms=1))
    clock.advance(10)
    async with unchanged(probe):
        for eid in (running, MISSING):
            assert await engine._submit(make(eid)) == answer


async def test_an_expired_lease_of_nothing(engine: Engine, probe: Probe) -> None:
    async with unchanged(probe):
        assert await engine._submit(MarkLeaseExpired(MISSING)) == ExpiryMark("execution_not_found")


async def test_a_worker_that_came_back(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await engine.register_worker(worker_id="w", worker_instance_id="i", lanes=["lane"], liveness_ttl_ms=10)
    clock.advance(9)
    async with unchanged(probe):
        assert await engine._submit(SweepWorker("default", "i")) is False
        assert await engine._submit(SweepWorker("default", "gone")) is False
        assert await engine._submit(SweepWorker("other", "i")) is False
    clock.advance(1)
    assert await engine._submit(SweepWorker("default", "i")) is True


async def test_a_timer_left_on_what_does_not_run(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = id_of(await claimed(engine, policy={"timeout_policy": {"attempt_timeout_ms": 1}}))
    await seeding.alter(engine, eid, lifecycle_phase="suspended")
    clock.advance(1)
    async with unchanged(probe):
        assert await engine.run_timer("attempt_timeout") == 0


@pytest.mark.parametrize("fields", [{"worker_instance_id": None}, {"lease_expires_at_ms": None}])
async def test_half_a_lease_is_cleared(engine: Engine, probe: Probe, fields: dict[str, None]) -> None:
    eid = id_of(await claimed(engine))
    await seeding.alter(engine, eid, lifecycle_phase="suspended")
    await seeding.alter_attempt(engine, eid, **fields)
    assert (await engine.mark_lease_expired_if_due(None, eid)).status == "cleared"
    [attempt] = await probe.attempts(eid)
    assert attempt.worker_instance_id is attempt.lease_expires_at_ms is None


# Rows that people wrote: running, says the execution, but there is no attempt, or no lease on it.


async def test_running_without_an_attempt(engine: Engine, probe: Probe) -> None:
    eid = ExecutionId.parse("{fp:0}:22222222-2222-4222-8222-222222222222")
    row = seeding.bare_execution(
        engine, eid, lifecycle_phase="active", ownership_state="leased", attempt_state="running_attempt"
    )
    await seeding.seed(engine, row)
    async with unchanged(probe):
        assert (await engine.mark_lease_expired_if_due(None, eid)).status == "not_yet_expired"
        assert await engine.expire_execution(None, eid, "attempt_timeout") is False
        assert isinstance(await promise(engine, eid), NotReclaimable)


async def test_running_without_an_expiry(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = id_of(await claimed(engine))
    await seeding.alter_attempt(engine, eid, lease_expires_at_ms=None)
    clock.advance(10**9)
    async with unchanged(probe):
        assert (await engine.mark_lease_expired_if_due(None, eid)).status == "not_yet_expired"
        assert isinstance(await promise(engine, eid), NotReclaimable)


async def promise(engine: Engine, eid: ExecutionId) -> Any:
    return await engine.issue_reclaim_grant(execution_id=eid, worker_id="w", worker_instance_id="i", lane_id="lane")


async def test_delayed_without_a_time(engine: Engine, probe: Probe) -> None:
    """Nobody knows until when: it is due."""
    eid = await create(engine)
    await seeding.alter(engine, eid, lifecycle_phase="runnable", eligibility_state="not_eligible_until_time")
    await engine.promote_delayed(execution_id=eid)
    assert (await probe.execution(eid)).eligibility_state == "eligible_now"
