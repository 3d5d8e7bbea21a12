"""The epoch rule: it rises with every grant and whenever a lease is taken away, and never falls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import Contention, ContentionKind, Frame, Handle, ResumeGrant, ResumeToken
from flowfabric.engine import Engine
from flowfabric.model.records.executions import Attempt
from tests.contract import seeding
from tests.contract.probe import ManualClock, Probe, claimed, create, id_of, payload_of, policy, refused

LANE = "lane"
TTL_MS = 1_000
Step = Callable[[Engine, ManualClock, Handle], Awaitable[Any]]


def elapsed(timer: str) -> Step:
    async def step(engine: Engine, clock: ManualClock, handle: Handle) -> None:
        clock.advance(TTL_MS)
        assert await engine.run_timer(timer) == 1

    return step


async def cancel_after_delay(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.delay(handle, clock.now_ms)
    await engine.cancel_execution(execution_id=id_of(handle))


async def replay(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.complete(handle, None)
    await engine.replay_execution(execution_id=id_of(handle))


async def deadline_after_delay(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.delay(handle, clock.now_ms)
    await elapsed("execution_deadline")(engine, clock, handle)


async def capped(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    clock.advance(TTL_MS)
    eid = id_of(handle)
    await engine.issue_reclaim_grant(execution_id=eid, worker_id="w", worker_instance_id="i", lane_id=LANE)
    answer = await engine.reclaim_execution(
        execution_id=eid,
        worker_id="w",
        worker_instance_id="i",
        lane_id=LANE,
        lease_id=str(uuid4()),
        lease_ttl_ms=1,
        attempt_id=str(uuid4()),
        max_reclaim_count=0,
    )
    assert type(answer).__name__ == "ReclaimCapExceeded"


TIMED = {"timeout_policy": {"attempt_timeout_ms": TTL_MS}}
RETRIED = {**TIMED, "retry_policy": {"max_retries": 1}}
NO_RECLAIM = {"max_reclaim_count": 0}

#: What happens to a lease with epoch 1, the policy it needs, and the epoch its attempt row has afterwards.
STEPS: dict[str, tuple[Step, dict[str, Any] | None, int]] = {
    "renew": (lambda e, c, h: e.renew(h), None, 1),
    "progress": (lambda e, c, h: e.progress(h, 5), None, 1),
    "frame": (lambda e, c, h: e.append_frame(h, Frame(b"x")), None, 1),
    "tag": (lambda e, c, h: e.set_execution_tag(id_of(h), "a.b", "c"), None, 1),
    "complete": (lambda e, c, h: e.complete(h, None), None, 1),
    "fail, retried": (lambda e, c, h: e.fail(h, "boom"), None, 1),
    "fail, ended": (lambda e, c, h: e.fail(h, "boom", "permanent"), None, 1),
    "delay": (lambda e, c, h: e.delay(h, c.now_ms), None, 1),
    "wait_children": (lambda e, c, h: e.wait_children(h), None, 1),
    "cancel without a lease": (cancel_after_delay, None, 1),
    "deadline without a lease": (deadline_after_delay, None, 1),
    "revoke": (lambda e, c, h: e.revoke_lease(execution_id=id_of(h)), None, 2),
    "cancel": (lambda e, c, h: e.cancel_execution(execution_id=id_of(h)), None, 2),
    "cancel by the holder": (lambda e, c, h: e.cancel(h, "enough"), None, 2),
    "lease expiry": (elapsed("lease_expiry"), None, 2),
    "lease expiry at the cap": (elapsed("lease_expiry"), NO_RECLAIM, 2),
    "reclaim cap": (capped, None, 2),
    "attempt timeout, retried": (elapsed("attempt_timeout"), RETRIED, 2),
    "attempt timeout, ended": (elapsed("attempt_timeout"), TIMED, 2),
    "deadline": (elapsed("execution_deadline"), None, 2),
    "replay": (replay, None, 2),
}


@pytest.mark.parametrize("name", STEPS)
async def test_what_a_step_does_to_the_epoch(engine: Engine, probe: Probe, clock: ManualClock, name: str) -> None:
    step, own, epoch = STEPS[name]
    deadline = clock.now_ms + TTL_MS if name.startswith("deadline") else None
    handle = await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS, policy=own, execution_deadline_at=deadline)
    assert payload_of(handle).lease_epoch == 1
    await step(engine, clock, handle)
    [attempt] = await probe.attempts(id_of(handle))
    assert attempt.lease_epoch == epoch
    # Whoever comes next is above everything there was.
    await engine.run_timer("delayed_promoter")
    if (await probe.execution(id_of(handle))).lifecycle_phase == "runnable":
        successor = await engine.claim(LANE, (), policy())
        assert successor is not None
        assert payload_of(successor).lease_epoch == epoch + 1
        async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
            await engine.renew(handle)


async def resumed(engine: Engine, eid: str) -> Handle:
    answer = await engine.claim_resumed_execution(
        execution_id=eid,
        worker_id="w",
        worker_instance_id="i",
        lane_id=LANE,
        lease_id=str(uuid4()),
        lease_ttl_ms=TTL_MS,
    )
    return answer.handle


async def from_grant(engine: Engine, eid: str) -> Handle:
    grant = ResumeGrant(eid, "{fp:0}", "key", 2**63 - 1, LANE)
    handle = await engine.claim_from_resume_grant(ResumeToken(grant, "w", "i", TTL_MS))
    assert handle is not None
    return handle


async def plain(engine: Engine, eid: str) -> Handle:
    handle = await engine.claim(LANE, (), policy(ttl_ms=TTL_MS))
    assert handle is not None
    return handle


async def reclaimed(engine: Engine, eid: str) -> Handle:
    await engine.issue_reclaim_grant(execution_id=eid, worker_id="w", worker_instance_id="i", lane_id=LANE)
    answer = await engine.reclaim_execution(
        execution_id=eid,
        worker_id="w",
        worker_instance_id="i",
        lane_id=LANE,
        lease_id=str(uuid4()),
        lease_ttl_ms=TTL_MS,
        attempt_id=str(uuid4()),
    )
    return answer.handle


async def test_it_rises_over_all_attempts(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """A long life: each grant is one above the highest epoch of any attempt, and no earlier holder can act."""
    handles = [await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS)]
    eid = id_of(handles[0])
    await engine.fail(handles[-1], "boom")
    handles.append(await plain(engine, eid))
    clock.advance(TTL_MS)
    handles.append(await reclaimed(engine, eid))
    await engine.revoke_lease(execution_id=eid)
    handles.append(await resumed(engine, eid))
    await engine.delay(handles[-1], clock.now_ms)
    handles.append(await from_grant(engine, eid))
    await engine.fail(handles[-1], "boom")
    handles.append(await plain(engine, eid))
    await engine.complete(handles[-1], None)
    await engine.replay_execution(execution_id=eid)
    handles.append(await plain(engine, eid))
    held = [(payload_of(handle).attempt_index, payload_of(handle).lease_epoch) for handle in handles]
    assert held == [(0, 1), (1, 2), (2, 3), (2, 5), (2, 6), (3, 7), (3, 9)]
    assert [attempt.lease_epoch for attempt in await probe.attempts(eid)] == [1, 2, 6, 9]
    for stale in handles[:-1]:
        async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
            await engine.renew(stale)
    assert (await engine.renew(handles[-1])).lease_epoch == 9


async def test_rows_that_people_wrote(engine: Engine, probe: Probe) -> None:
    """Whatever the attempt rows say, the next lease is above all of them; a row that had none has not been started."""
    eid = await create(engine, lane_id=LANE)
    where = (str.__str__(eid), eid.partition, eid.uuid_text)
    await seeding.seed(engine, Attempt(*where, 0, lease_epoch=5), Attempt(*where, 1, lease_epoch=0))
    await seeding.alter(engine, eid, attempt_index=1, attempt_state="pending_retry_attempt")
    assert payload_of(await plain(engine, eid)).lease_epoch == 6
    assert [attempt.lease_epoch for attempt in await probe.attempts(eid)] == [5, 6]
    assert (await probe.execution(eid)).total_attempt_count == 1
