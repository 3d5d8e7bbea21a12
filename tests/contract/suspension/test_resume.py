"""Going on with the same attempt: ``claim_resumed_execution`` and ``claim_from_resume_grant``."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from flowfabric import (
    Claimed,
    Contention,
    ContentionKind,
    Handle,
    HandleKind,
    HandlePayload,
    NotFound,
    ResumeGrant,
    ResumeToken,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.events import LeaseEvent
from flowfabric.model.records.executions import Execution
from tests.contract import seeding
from tests.contract.probe import (
    RUNNING,
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

LANE = "lane"
MISSING = "{fp:0}:11111111-1111-4111-8111-111111111111"
LEASE = str(uuid4())
FOREVER = 2**63 - 1


async def resume(engine: Engine, eid: str, worker: str = "w2", **more: Any) -> Claimed:
    given = {
        "execution_id": eid,
        "worker_id": worker,
        "worker_instance_id": f"{worker}-i1",
        "lane_id": LANE,
        "lease_id": LEASE,
        "lease_ttl_ms": 9_000,
        "current_attempt_index": 4,
    }
    return await engine.claim_resumed_execution(**given | more)


async def interrupted(engine: Engine, **arguments: Any) -> Handle:
    """A handle whose lease was revoked: its attempt waits to be continued at epoch 3."""
    handle = await claimed(engine, lane_id=LANE, **arguments)
    await engine.revoke_lease(execution_id=id_of(handle))
    return handle


# ---------------------------------------------------------------------------------------------- claim_resumed_execution


async def test_the_same_attempt_goes_on(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    old = await interrupted(engine, namespace="tenant")
    eid = id_of(old)
    now = clock.advance(70)
    answer = await resume(engine, eid)
    kept = payload_of(old).attempt_id
    assert answer == Claimed(eid, LEASE, 3, 0, kept, "initial", now + 9_000, answer.handle)
    assert answer.handle.kind is HandleKind.RESUMED
    assert payload_of(answer.handle) == HandlePayload(eid, 0, kept, LEASE, 3, 9_000, LANE, "w2-i1")
    [attempt] = await probe.attempts(eid)
    assert (attempt.worker_id, attempt.worker_instance_id, attempt.lease_id) == ("w2", "w2-i1", LEASE)
    assert (attempt.lease_epoch, attempt.lease_expires_at_ms, attempt.started_at_ms) == (3, now + 9_000, now)
    assert (attempt.outcome, attempt.terminal_at_ms, attempt.attempt_timeout_at_ms) == (None, None, None)
    assert await probe.stored(eid) == RUNNING
    row = await probe.execution(eid)
    assert (row.started_at_ms, row.total_attempt_count, row.attempt_index) == (START_MS, 1, 0)
    assert await probe.lease_events(eid) == ["acquired", "revoked", "acquired"]
    assert (await probe.events(LeaseEvent, eid))[-1] == LeaseEvent(
        eid.partition, eid.uuid_text, probe.lease_id(eid, 0, 3), "acquired", now, "tenant", None, "w2-i1", None
    )
    with pytest.raises(Contention) as caught:
        await engine.complete(old, None)
    assert caught.value.kind is ContentionKind.LEASE_CONFLICT
    await engine.complete(answer.handle, b"done")


@pytest.mark.parametrize(
    ("own_ms", "remaining", "armed"),
    [(None, None, None), (None, 4_000, 4_000), (7_000, 4_000, 4_000), (7_000, None, 7_000)],
)
async def test_the_attempt_timer(
    engine: Engine, probe: Probe, own_ms: int | None, remaining: int | None, armed: int | None
) -> None:
    given = {"timeout_policy": {"attempt_timeout_ms": own_ms}} if own_ms else None
    eid = id_of(await interrupted(engine, policy=given))
    assert (await probe.attempts(eid))[0].attempt_timeout_at_ms is None
    await resume(engine, eid, remaining_attempt_timeout_ms=remaining)
    [attempt] = await probe.attempts(eid)
    assert attempt.attempt_timeout_at_ms == (None if armed is None else START_MS + armed)


async def test_the_type_stays_with_the_attempt(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    await engine.fail(handle, "boom")
    assert await engine.claim(LANE, (), policy()) is not None
    await engine.revoke_lease(execution_id=eid)
    answer = await resume(engine, eid)
    assert (answer.attempt_type, answer.attempt_index, answer.lease_epoch) == ("retry", 1, 4)
    assert (await probe.execution(eid)).total_attempt_count == 2


async def test_after_a_delay(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    await engine.delay(handle, START_MS + 10)
    clock.advance(10)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_LEASEABLE):
        await resume(engine, eid)
    await engine.promote_delayed(execution_id=eid)
    assert (await resume(engine, eid)).lease_epoch == 2


async def test_gates_in_order(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    async with refused(probe, NotFound, "execution"):
        await resume(engine, MISSING)
    eid = await create(engine, lane_id=LANE)
    await engine.issue_claim_grant(execution_id=eid, lane_id=LANE, worker_id="w1", worker_instance_id="i")

    async def alter(**fields: Any) -> None:
        await seeding.alter(engine, eid, **fields)

    for phase in ("active", "suspended", "terminal", "cancelled"):
        await alter(lifecycle_phase=phase)
        async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_LEASEABLE):
            await resume(engine, eid)
    await alter(lifecycle_phase="runnable", eligibility_state="blocked_by_operator")
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_LEASEABLE):
        await resume(engine, eid)
    await alter(eligibility_state="pending_claim")
    for state in ("pending", "pending_retry_attempt", "pending_replay_attempt", "running_attempt"):
        await alter(attempt_state=state)
        async with refused(probe, Contention, ContentionKind.NOT_A_RESUMED_EXECUTION):
            await resume(engine, eid)
    await alter(attempt_state="attempt_interrupted")
    async with refused(probe, Contention, ContentionKind.INVALID_CLAIM_GRANT):
        await resume(engine, eid, "w2")
    assert (await resume(engine, eid, "w1")).lease_epoch == 1


@pytest.mark.parametrize("expired", [False, True])
async def test_a_grant_is_used_up(engine: Engine, probe: Probe, clock: ManualClock, expired: bool) -> None:
    """A live grant must be the caller's and is consumed; an expired one is removed and counts as none."""
    eid = id_of(await interrupted(engine))
    answer = await engine.claim_for_worker(lane_id=LANE, worker_id="w1", worker_instance_id="w1-i1", grant_ttl_ms=1_000)
    assert answer.grant.execution_id == eid
    with pytest.raises(Contention) as caught:
        await engine.claim_execution(
            execution_id=eid,
            worker_id="w1",
            worker_instance_id="w1-i1",
            lane_id=LANE,
            lease_id=LEASE,
            lease_ttl_ms=1,
            attempt_id=LEASE,
        )
    assert caught.value.kind is ContentionKind.USE_CLAIM_RESUMED_EXECUTION
    if expired:
        clock.advance(1_000)
    await resume(engine, eid, "w2" if expired else "w1")
    assert await probe.grants(eid) == []
    assert await probe.stored(eid) == RUNNING


async def test_bad_arguments(engine: Engine, probe: Probe) -> None:
    eid = id_of(await interrupted(engine))
    for bad in ({"lease_id": "x"}, {"lease_ttl_ms": 0}, {"worker_id": ""}, {"lane_id": ""}):
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
            await resume(engine, eid, **bad)


# ---------------------------------------------------------------------------------------------- claim_from_resume_grant


def token(eid: str, expires_at_ms: int = FOREVER, lane_id: str = "lane of the grant") -> ResumeToken:
    """Nobody looks the grant up: any key will do."""
    return ResumeToken(ResumeGrant(eid, "{fp:0}", "any key", expires_at_ms, lane_id), "w2", "w2-i1", 9_000)


@pytest.mark.parametrize("marked", [False, True])
async def test_an_expired_lease_is_taken_over(open_engine: Any, clock: ManualClock, marked: bool) -> None:
    engine = await open_engine(reclaim_grace_ms=60_000)
    probe = Probe(engine)
    old = await claimed(engine, lane_id=LANE, ttl_ms=1_000, namespace="tenant")
    eid = id_of(old)
    now = clock.advance(1_000)
    if marked:
        assert (await engine.mark_lease_expired_if_due(None, eid)).status == "marked"
    handle = await engine.claim_from_resume_grant(token(eid))
    assert handle is not None
    assert handle.kind is HandleKind.RESUMED
    told = payload_of(handle)
    assert (told.execution_id, told.attempt_index, told.lease_epoch) == (eid, 0, 2)
    assert (told.lease_ttl_ms, told.lane_id, told.worker_instance_id) == (9_000, "lane of the grant", "w2-i1")
    assert told.attempt_id == payload_of(old).attempt_id
    assert told.lease_id != payload_of(old).lease_id
    [attempt] = await probe.attempts(eid)
    assert (attempt.worker_id, attempt.worker_instance_id, attempt.lease_epoch) == ("w2", "w2-i1", 2)
    assert (attempt.lease_expires_at_ms, attempt.started_at_ms, attempt.outcome) == (now + 9_000, now, None)
    assert await probe.stored(eid) == RUNNING
    row = await probe.execution(eid)
    assert (row.lane_id, row.total_attempt_count, row.started_at_ms) == (LANE, 1, START_MS)
    assert row.lease_reclaim_count == 0
    between = ["expired"] if marked else []
    assert await probe.lease_events(eid) == ["acquired", *between, "reclaimed"]
    assert (await probe.events(LeaseEvent, eid))[-1] == LeaseEvent(
        eid.partition, eid.uuid_text, probe.lease_id(eid, 0, 2), "reclaimed", now, "tenant", None, "w2-i1", None
    )
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.renew(old)


async def test_a_released_lease_is_taken_over(engine: Engine, probe: Probe) -> None:
    eid = id_of(await interrupted(engine))
    handle = await engine.claim_from_resume_grant(token(eid))
    assert handle is not None
    assert payload_of(handle).lease_epoch == 3
    assert await probe.lease_events(eid) == ["acquired", "revoked", "reclaimed"]
    assert await probe.stored(eid) == RUNNING


async def test_a_delay_is_over_with_the_take_over(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    await engine.delay(handle, START_MS + 1_000)
    assert await engine.claim_from_resume_grant(token(eid)) is not None
    assert (await probe.execution(eid)).delay_until_ms is None
    clock.advance(1_000)
    assert await engine.run_timer("delayed_promoter") == 0
    assert await probe.stored(eid) == RUNNING


async def test_a_live_lease_is_left_alone(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE, ttl_ms=1_000)
    clock.advance(999)
    async with unchanged(probe):
        assert await engine.claim_from_resume_grant(token(id_of(handle))) is None


async def test_the_newest_attempt_is_the_one(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    first = await claimed(engine, lane_id=LANE)
    eid = id_of(first)
    await engine.fail(first, "boom")
    assert await engine.claim(LANE, (), policy(ttl_ms=10)) is not None
    clock.advance(10)
    handle = await engine.claim_from_resume_grant(token(eid))
    assert handle is not None
    assert (payload_of(handle).attempt_index, payload_of(handle).lease_epoch) == (1, 3)
    assert [attempt.outcome for attempt in await probe.attempts(eid)] == ["retry", None]


async def test_without_an_attempt(engine: Engine, probe: Probe) -> None:
    never_claimed = await create(engine, lane_id=LANE)
    for eid in (MISSING, never_claimed):
        async with refused(probe, NotFound, "attempt"):
            await engine.claim_from_resume_grant(token(eid))


@pytest.mark.parametrize("state", ["completed", "cancelled", "suspended", "gone"])
async def test_nobody_takes_what_does_not_run(engine: Engine, probe: Probe, state: str) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    if state == "completed":
        await engine.complete(handle, None)
    elif state == "cancelled":
        await engine.cancel_execution(execution_id=eid)
    elif state == "gone":
        await engine.revoke_lease(execution_id=eid)
        await seeding.remove(engine, Execution, eid)
    else:
        await seeding.alter_attempt(engine, eid, lease_expires_at_ms=None, worker_instance_id=None)
        await seeding.alter(engine, eid, lifecycle_phase="suspended")
    async with unchanged(probe):
        assert await engine.claim_from_resume_grant(token(eid)) is None


async def test_an_expired_resume_grant(engine: Engine, probe: Probe) -> None:
    eid = id_of(await interrupted(engine))
    async with unchanged(probe):
        assert await engine.claim_from_resume_grant(token(eid, START_MS)) is None
    assert await engine.claim_from_resume_grant(token(eid, START_MS + 1)) is not None


async def test_only_one_of_two(engine: Engine, probe: Probe) -> None:
    eid = id_of(await interrupted(engine))
    assert await engine.claim_from_resume_grant(token(eid)) is not None
    async with unchanged(probe):
        assert await engine.claim_from_resume_grant(token(eid)) is None
