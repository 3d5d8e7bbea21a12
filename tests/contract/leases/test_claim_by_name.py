"""``claim_execution`` redeems a claim grant; ``issue_grant_and_claim`` is the operator's short way."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from flowfabric import (
    Claimed,
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    ExecutionId,
    HandleKind,
    HandlePayload,
    NotFound,
    OperatorLease,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.events import LeaseEvent
from flowfabric.model.records.executions import Grant
from tests.contract import seeding
from tests.contract.probe import (
    RUNNING,
    START_MS,
    ManualClock,
    Probe,
    claimed,
    create,
    id_of,
    needing,
    payload_of,
    policy,
    refused,
)

LANE = "lane"
MISSING = "{fp:0}:11111111-1111-4111-8111-111111111111"
LEASE, ATTEMPT = str(uuid4()), str(uuid4())


async def promise(engine: Engine, eid: str, worker: str = "w1", ttl_ms: int = 5_000) -> None:
    await engine.issue_claim_grant(
        execution_id=eid, lane_id=LANE, worker_id=worker, worker_instance_id=f"{worker}-i1", grant_ttl_ms=ttl_ms
    )


async def redeem(engine: Engine, eid: str, worker: str = "w1", **more: Any) -> Claimed:
    given = {
        "execution_id": eid,
        "worker_id": worker,
        "worker_instance_id": f"{worker}-i1",
        "lane_id": LANE,
        "lease_id": LEASE,
        "lease_ttl_ms": 30_000,
        "attempt_id": ATTEMPT,
        "expected_attempt_index": 0,
    }
    return await engine.claim_execution(**given | more)


async def take(engine: Engine, eid: str) -> OperatorLease:
    return await engine.issue_grant_and_claim(execution_id=eid, lane_id=LANE, lease_duration_ms=7_000)


# ------------------------------------------------------------------------------------------------------ claim_execution


async def test_a_grant_is_redeemed(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE, namespace="tenant")
    await promise(engine, eid)
    now = clock.advance(4_999)
    answer = await redeem(engine, eid, expected_attempt_index=9, worker_instance_id="another-process")
    assert answer == Claimed(eid, LEASE, 1, 0, ATTEMPT, "initial", now + 30_000, answer.handle)
    assert answer.handle.kind is HandleKind.FRESH
    assert payload_of(answer.handle) == HandlePayload(eid, 0, ATTEMPT, LEASE, 1, 30_000, LANE, "another-process")
    assert await probe.grants(eid) == []
    assert await probe.stored(eid) == RUNNING
    [attempt] = await probe.attempts(eid)
    assert (attempt.attempt_id, attempt.lease_id, attempt.attempt_type) == (ATTEMPT, LEASE, "initial")
    assert (attempt.worker_id, attempt.worker_instance_id, attempt.lease_epoch) == ("w1", "another-process", 1)
    assert (attempt.lease_expires_at_ms, attempt.started_at_ms, attempt.outcome) == (now + 30_000, now, None)
    row = await probe.execution(eid)
    assert (row.started_at_ms, row.total_attempt_count, row.attempt_index) == (now, 1, 0)
    lease_id = probe.lease_id(eid, 0, 1)
    assert await probe.events(LeaseEvent) == [
        LeaseEvent(eid.partition, eid.uuid_text, lease_id, "acquired", now, "tenant", None, "another-process", None)
    ]
    await engine.complete(answer.handle, b"done")
    assert await engine.get_execution_result(eid) == b"done"


async def test_an_eligible_row_with_a_grant(engine: Engine, probe: Probe) -> None:
    """The grant counts, not whether the row still says that one is outstanding. Expiry 0 means never."""
    eid = await create(engine, lane_id=LANE)
    await promise(engine, eid)
    await seeding.alter(engine, eid, eligibility_state="eligible_now", lifecycle_phase="submitted")
    [grant] = await probe.grants(eid)
    await seeding.remove(engine, Grant, grant.key)
    await seeding.seed(engine, replace(grant, expires_at_ms=0))
    assert (await redeem(engine, eid)).lease_epoch == 1
    assert await probe.grants(eid) == []


@pytest.mark.parametrize("how", ["retry", "replay"])
async def test_the_type_of_the_attempt(engine: Engine, probe: Probe, how: str) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    if how == "retry":
        await engine.fail(handle, "boom")
    else:
        await engine.complete(handle, None)
        await engine.replay_execution(execution_id=eid)
    await promise(engine, eid)
    answer = await redeem(engine, eid)
    expected = {"retry": ("retry", 1, 2), "replay": ("replay", 0, 3)}[how]
    assert (answer.attempt_type, answer.attempt_index, answer.lease_epoch) == expected
    assert (await probe.attempts(eid))[-1].attempt_type == how
    assert (await probe.execution(eid)).total_attempt_count == 2


@pytest.mark.parametrize(
    ("own_ms", "argument", "armed"),
    [(None, None, None), (None, 9_000, 9_000), (4_000, None, 4_000), (4_000, 9_000, 9_000), (4_000, 0, None)],
)
async def test_the_attempt_timer(
    engine: Engine, probe: Probe, own_ms: int | None, argument: int | None, armed: int | None
) -> None:
    given = {"timeout_policy": {"attempt_timeout_ms": own_ms}} if own_ms else None
    eid = await create(engine, lane_id=LANE, policy=given)
    await promise(engine, eid)
    await redeem(engine, eid, attempt_timeout_ms=argument)
    [attempt] = await probe.attempts(eid)
    assert attempt.attempt_timeout_at_ms == (None if armed is None else START_MS + armed)


@pytest.mark.parametrize(("argument", "stored"), [("", None), ('{"model": "small"}', {"model": "small"})])
async def test_the_attempt_keeps_its_policy(engine: Engine, probe: Probe, argument: str, stored: Any) -> None:
    eid = await create(engine, lane_id=LANE)
    await promise(engine, eid)
    await redeem(engine, eid, attempt_policy_json=argument)
    assert await probe.attempt_policies(eid) == [stored]


@pytest.mark.parametrize(("argument", "stored"), [(None, START_MS + 100), (START_MS + 7, START_MS + 7)])
async def test_the_deadline_can_be_moved(engine: Engine, probe: Probe, argument: int | None, stored: int) -> None:
    eid = await create(engine, lane_id=LANE, execution_deadline_at=START_MS + 100)
    await promise(engine, eid)
    await redeem(engine, eid, execution_deadline_at=argument)
    assert (await probe.execution(eid)).deadline_at_ms == stored


async def test_the_gates_in_order(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """One execution that offends every gate; each is lifted in turn and the next one speaks."""
    eid = await create(engine, lane_id=LANE)
    await promise(engine, eid, "w2")
    await engine.run_timer("intake")
    clock.advance(5_000)

    async def alter(**fields: Any) -> None:
        await seeding.alter(engine, eid, **fields)

    await alter(
        lifecycle_phase="active", ownership_state="leased", eligibility_state="blocked_by_quota",
        attempt_state="running_attempt",
    )  # fmt: skip
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE) as caught:
        await redeem(engine, eid)
    assert (caught.value.lifecycle_phase, caught.value.terminal_outcome) == ("active", "none")
    await alter(lifecycle_phase="runnable")
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await redeem(engine, eid)
    await alter(ownership_state="unowned")
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_LEASEABLE):
        await redeem(engine, eid)
    await alter(eligibility_state="eligible_now")
    async with refused(probe, Conflict, ConflictKind.ACTIVE_ATTEMPT_EXISTS):
        await redeem(engine, eid)
    await alter(attempt_state="attempt_interrupted")
    async with refused(probe, Contention, ContentionKind.USE_CLAIM_RESUMED_EXECUTION):
        await redeem(engine, eid)
    await alter(attempt_state="pending")
    async with refused(probe, Contention, ContentionKind.INVALID_CLAIM_GRANT):
        await redeem(engine, eid)
    async with refused(probe, Contention, ContentionKind.CLAIM_GRANT_EXPIRED):
        await redeem(engine, eid, "w2")


@pytest.mark.parametrize("state", ["terminal", "cancelled", "suspended"])
async def test_phases_that_cannot_be_claimed(engine: Engine, probe: Probe, state: str) -> None:
    eid = await create(engine, lane_id=LANE)
    await seeding.alter(engine, eid, lifecycle_phase=state)
    for call in (redeem, take):
        async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE) as caught:
            await call(engine, eid)
        assert caught.value.lifecycle_phase == state


async def test_what_not_active_tells(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    await engine.complete(handle, None)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE) as caught:
        await redeem(engine, eid)
    error = caught.value
    told = (error.terminal_outcome, error.lease_epoch, error.lifecycle_phase, error.attempt_id)
    assert told == ("success", 1, "terminal", payload_of(handle).attempt_id)


async def test_without_an_execution_or_a_grant(engine: Engine, probe: Probe) -> None:
    for call in (redeem, take):
        async with refused(probe, NotFound, "execution"):
            await call(engine, MISSING)
    eid = await create(engine, lane_id=LANE)
    async with refused(probe, Contention, ContentionKind.INVALID_CLAIM_GRANT):
        await redeem(engine, eid)


async def test_a_grant_serves_once(engine: Engine, probe: Probe) -> None:
    eid = await create(engine, lane_id=LANE)
    await promise(engine, eid)
    await redeem(engine, eid)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE):
        await redeem(engine, eid)


@pytest.mark.parametrize(
    "bad", [{"lease_id": "no-uuid"}, {"attempt_id": ""}, {"lease_ttl_ms": 0}, {"attempt_policy_json": "{"}]
)
async def test_bad_arguments(engine: Engine, probe: Probe, bad: dict[str, Any]) -> None:
    eid = await create(engine, lane_id=LANE)
    await promise(engine, eid)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await redeem(engine, eid, **bad)


# ------------------------------------------------------------------------------------------------ issue_grant_and_claim


async def test_an_operator_takes_it(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Capabilities do not count; the worker is called operator."""
    eid = await create(engine, lane_id=LANE, policy=needing("gpu"))
    now = clock.advance(5)
    answer = await take(engine, eid)
    assert answer == OperatorLease(probe.lease_id(eid, 0, 1), 1, 0)
    assert await probe.stored(eid) == RUNNING
    [attempt] = await probe.attempts(eid)
    assert (attempt.worker_id, attempt.worker_instance_id, attempt.attempt_type) == ("operator", "operator", "initial")
    assert (attempt.lease_epoch, attempt.lease_expires_at_ms, attempt.outcome) == (1, now + 7_000, None)
    row = await probe.execution(eid)
    assert (row.started_at_ms, row.total_attempt_count) == (now, 1)
    assert await probe.grants(eid) == []
    [event] = await probe.events(LeaseEvent, eid)
    assert (event.event_type, event.lease_id, event.worker_instance_id) == ("acquired", answer.lease_id, "operator")


@pytest.mark.parametrize("how", ["retry", "resume"])
async def test_an_operator_takes_it_again(engine: Engine, probe: Probe, how: str) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    if how == "retry":
        await engine.fail(handle, "boom")
        index, epoch, kind, count = 1, 2, "retry", 2
    else:
        await engine.revoke_lease(execution_id=eid)
        index, epoch, kind, count = 0, 3, "initial", 1
    assert await take(engine, eid) == OperatorLease(probe.lease_id(eid, index, epoch), epoch, index)
    assert (await probe.attempts(eid))[-1].attempt_type == kind
    assert (await probe.execution(eid)).total_attempt_count == count
    assert await probe.lease_events(eid) == ["acquired", "revoked", "acquired"]


async def test_a_live_grant_stands_in_the_way(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE)
    await promise(engine, eid)
    clock.advance(4_999)
    async with refused(probe, State, StateKind.GRANT_ALREADY_EXISTS):
        await take(engine, eid)
    clock.advance(1)
    assert (await take(engine, eid)).lease_epoch == 1
    assert await probe.grants(eid) == []


@pytest.mark.parametrize("interrupted", [False, True])
async def test_operator_gates_in_order(engine: Engine, probe: Probe, interrupted: bool) -> None:
    """The resume branch passes the same gates: it never steals a live lease."""
    eid = await create(engine, lane_id=LANE)
    running = "attempt_interrupted" if interrupted else "running_attempt"

    async def alter(**fields: Any) -> None:
        await seeding.alter(engine, eid, **fields)

    await alter(lifecycle_phase="active", ownership_state="leased", eligibility_state="blocked_by_route")
    await alter(attempt_state=running)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE):
        await take(engine, eid)
    await alter(lifecycle_phase="runnable")
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await take(engine, eid)
    await alter(ownership_state="unowned")
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_LEASEABLE):
        await take(engine, eid)
    await alter(eligibility_state="eligible_now")
    if not interrupted:
        async with refused(probe, Conflict, ConflictKind.ACTIVE_ATTEMPT_EXISTS):
            await take(engine, eid)
    else:
        assert (await take(engine, eid)).lease_epoch == 1


@pytest.mark.parametrize("state", ["pending", "initial", "pending_first_attempt", "none"])
async def test_first_attempts_by_any_name(engine: Engine, probe: Probe, state: str) -> None:
    eid = await create(engine, lane_id=LANE)
    await seeding.alter(engine, eid, attempt_state=state)
    assert (await take(engine, eid)).attempt_index == 0


@pytest.mark.parametrize("state", ["attempt_terminal", "terminated", "cancelled", "whatever"])
async def test_an_attempt_state_that_makes_no_sense(engine: Engine, probe: Probe, state: str) -> None:
    eid = await create(engine, lane_id=LANE)
    await seeding.alter(engine, eid, attempt_state=state)
    async with refused(probe, Validation, ValidationKind.CORRUPTION, f"attempt_state: unexpected value {state!r}"):
        await take(engine, eid)


async def test_an_operator_lease_is_like_any_other(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid: ExecutionId = await create(engine, lane_id=LANE)
    await take(engine, eid)
    assert await engine.claim(LANE, (), policy()) is None
    clock.advance(7_000)
    assert (await engine.mark_lease_expired_if_due(None, eid)).status == "requeued"
    handle = await engine.claim(LANE, (), policy())
    assert handle is not None
    assert (handle.kind, payload_of(handle).lease_epoch) == (HandleKind.RESUMED, 3)
