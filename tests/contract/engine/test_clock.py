"""The store's clock decides; a caller's ``now`` never does."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from flowfabric import Contention, ContentionKind, Refreshed
from flowfabric.engine import Engine
from flowfabric.model.records.executions import WorkerEvent
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, policy, refused, unchanged

LANE = "lane"
FAR = 2**62


async def test_what_is_not_due_does_not_become_due(engine: Engine, probe: Probe) -> None:
    delayed = await create(engine, lane_id="delayed", delay_until=START_MS + 1, execution_deadline_at=START_MS + 1)
    timed = {"timeout_policy": {"attempt_timeout_ms": 1}}
    running = id_of(await claimed(engine, lane_id="running", policy=timed, ttl_ms=1))
    ended = await claimed(engine, lane_id="ended")
    await engine.complete(ended, None)
    async with unchanged(probe):
        await engine.promote_delayed(execution_id=delayed, now=FAR)
        assert await engine.expire_execution(None, delayed, "execution_deadline", now=FAR) is False
        assert await engine.expire_execution(None, running, "attempt_timeout", now=FAR) is False
        assert await engine.trim_retention(now=FAR) == 0


async def test_what_is_due_stays_due(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    delayed = await create(engine, lane_id="delayed", delay_until=START_MS + 1)
    doomed = await create(engine, lane_id="doomed", execution_deadline_at=START_MS + 1)
    clock.advance(1)
    await engine.promote_delayed(execution_id=delayed, now=0)
    assert (await probe.execution(delayed)).eligibility_state == "eligible_now"
    assert await engine.expire_execution(None, doomed, "execution_deadline", now=0) is True
    assert (await probe.execution(doomed)).terminal_at_ms == START_MS + 1


@pytest.mark.parametrize("now", [0, FAR])
async def test_grants_and_leases(engine: Engine, probe: Probe, clock: ManualClock, now: int) -> None:
    eid = await create(engine, lane_id=LANE, now=now)
    names = {"worker_id": "w", "worker_instance_id": "i", "lane_id": LANE}
    issued = await engine.issue_claim_grant(execution_id=eid, grant_ttl_ms=10, now=now, **names)
    assert issued.grant.expires_at_ms == START_MS + 10
    lease = {"lease_id": str(uuid4()), "lease_ttl_ms": 10, "attempt_id": str(uuid4()), **names}
    clock.advance(9)
    answer = await engine.claim_execution(execution_id=eid, now=now, **lease)
    assert answer.lease_expires_at == START_MS + 19
    clock.advance(10)
    promised = await engine.issue_reclaim_grant(execution_id=eid, grant_ttl_ms=10, now=now, **names)
    assert promised.grant.expires_at_ms == START_MS + 29
    row = await probe.execution(eid)
    assert (row.created_at_ms, row.started_at_ms) == (START_MS, START_MS + 9)


async def test_an_expired_grant_stays_expired(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE)
    names = {"worker_id": "w", "worker_instance_id": "i", "lane_id": LANE}
    await engine.issue_claim_grant(execution_id=eid, grant_ttl_ms=10, **names)
    clock.advance(10)
    async with refused(probe, Contention, ContentionKind.CLAIM_GRANT_EXPIRED):
        await engine.claim_execution(
            execution_id=eid, lease_id=str(uuid4()), lease_ttl_ms=10, attempt_id=str(uuid4()), now=0, **names
        )


@pytest.mark.parametrize("now", [0, FAR])
async def test_workers(engine: Engine, probe: Probe, clock: ManualClock, now: int) -> None:
    await engine.register_worker(worker_id="w", worker_instance_id="i", lanes=[LANE], liveness_ttl_ms=10, now=now)
    clock.advance(9)
    answer = await engine.heartbeat_worker(worker_instance_id="i", now=now)
    assert answer == Refreshed(START_MS + 19)
    assert len((await engine.list_workers(namespace="default")).entries) == 1
    assert len(await probe.select(WorkerEvent, namespace="default")) == 2


async def test_without_a_clock_the_store_tells_the_time(open_engine: Any) -> None:
    engine = await open_engine(clock=None)
    before = await engine.server_time_ms()
    eid = await create(engine, lane_id=LANE, now=7)
    assert await engine.claim(LANE, (), policy()) is not None
    after = await engine.server_time_ms()
    row = await Probe(engine).execution(eid)
    assert before - 1 <= row.created_at_ms <= row.started_at_ms <= after + 1
    assert before > 1_600_000_000_000
