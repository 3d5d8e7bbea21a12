"""Taking over by name: ``issue_reclaim_grant``, ``reclaim_execution`` and the cap on both."""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import (
    Contention,
    ContentionKind,
    Granted,
    GrantNotFound,
    Handle,
    HandleKind,
    HandlePayload,
    NotFound,
    NotReclaimable,
    ReclaimCapExceeded,
    Reclaimed,
    ReclaimGrant,
    ResumeGrant,
    ResumeToken,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.ids import ExecutionId
from flowfabric.model.records.executions import Execution, Grant
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
    refused,
    unchanged,
)

LANE = "lane"
MISSING = ExecutionId.parse("{fp:0}:11111111-1111-4111-8111-111111111111")
LEASE, ATTEMPT = str(uuid4()), str(uuid4())
CAPPED = ("terminal", "unowned", "not_applicable", "attempt_terminal", "failed", None)


async def promise(engine: Engine, eid: str, worker: str = "w2", **more: Any) -> Any:
    given = {"worker_id": worker, "worker_instance_id": f"{worker}-i1", "lane_id": "new lane", "grant_ttl_ms": 5_000}
    return await engine.issue_reclaim_grant(execution_id=eid, **given | more)


async def reclaim(engine: Engine, eid: str, worker: str = "w2", **more: Any) -> Any:
    given = {
        "execution_id": eid,
        "worker_id": worker,
        "worker_instance_id": f"{worker}-i1",
        "lane_id": "new lane",
        "lease_id": LEASE,
        "lease_ttl_ms": 9_000,
        "attempt_id": ATTEMPT,
        "old_worker_instance_id": "advisory",
        "current_attempt_index": 77,
    }
    return await engine.reclaim_execution(**given | more)


async def lost(engine: Engine, clock: ManualClock, **arguments: Any) -> Handle:
    """A handle whose lease has just run out, nobody having noticed yet."""
    handle = await claimed(engine, lane_id=LANE, ttl_ms=1_000, **arguments)
    clock.advance(1_000)
    return handle


# -------------------------------------------------------------------------------------------------- issue_reclaim_grant


async def test_a_reclaim_grant(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = id_of(await lost(engine, clock))
    now = clock.now_ms
    before = await probe.execution(eid)
    answer = await promise(
        engine,
        eid,
        worker_capabilities=["gpu"],
        capability_hash="h",
        route_snapshot_json="r",
        admission_summary="a",
        now=5,
    )
    grant = answer.grant
    assert answer == Granted(ReclaimGrant(eid, f"{{fp:{eid.partition}}}", grant.grant_key, now + 5_000, "new lane"))
    [stored] = await probe.grants(eid)
    assert stored == Grant(
        eid.partition,
        hashlib.sha256(grant.grant_key.encode()).digest(),
        eid.uuid_text,
        "reclaim",
        "w2",
        "w2-i1",
        "new lane",
        "h",
        '["gpu"]',
        "r",
        "a",
        5_000,
        now,
        now + 5_000,
    )
    assert grant.grant_key == await probe.grant_key(stored)
    assert await probe.execution(eid) == before
    assert await probe.lease_events(eid) == ["acquired"]


async def test_a_grant_for_nothing(engine: Engine, probe: Probe) -> None:
    async with refused(probe, NotFound, "execution"):
        await promise(engine, MISSING)


async def test_what_is_not_reclaimable(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    fresh = await create(engine, lane_id="other")
    handle = await claimed(engine, lane_id=LANE, ttl_ms=1_000)
    eid = id_of(handle)
    clock.advance(999)
    async with unchanged(probe):
        for each, phase, owner in ((fresh, "submitted", "unowned"), (eid, "active", "leased")):
            answer = await promise(engine, each)
            assert isinstance(answer, NotReclaimable)
            assert answer.execution_id == each
            assert f"lifecycle_phase={phase} ownership_state={owner}" in answer.detail
    clock.advance(1)
    await engine.mark_lease_expired_if_due(None, eid)
    async with unchanged(probe):
        assert isinstance(await promise(engine, eid), NotReclaimable), "requeued: any worker may take it"


@pytest.mark.parametrize("ownership", ["lease_expired_reclaimable", "lease_revoked"])
async def test_ownership_that_is_reclaimable(engine: Engine, probe: Probe, ownership: str) -> None:
    eid = id_of(await claimed(engine, lane_id=LANE))
    await seeding.alter(engine, eid, ownership_state=ownership, attempt_state="attempt_interrupted")
    assert isinstance(await promise(engine, eid), Granted)
    assert isinstance(await reclaim(engine, eid), Reclaimed)


async def test_the_gates_of_a_grant_in_order(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    given = {**needing("gpu", "arm64"), "max_reclaim_count": 2}
    handle = await lost(engine, clock, policy=given, capabilities=["gpu", "arm64"])
    eid = id_of(handle)
    await promise(engine, eid, worker_capabilities=["arm64", "gpu"], grant_ttl_ms=1_000)
    await seeding.alter(engine, eid, lease_reclaim_count=2)
    async with unchanged(probe):
        assert await promise(engine, eid) == ReclaimCapExceeded(eid, 2)
    await seeding.alter(engine, eid, lease_reclaim_count=1)
    async with refused(probe, State, StateKind.GRANT_ALREADY_EXISTS):
        await promise(engine, eid)
    now = clock.advance(1_000)
    async with unchanged(probe):
        assert await promise(engine, eid) == NotReclaimable(eid, "capability_mismatch: arm64,gpu")
        assert await promise(engine, eid, worker_capabilities=["gpu"]) == NotReclaimable(
            eid, "capability_mismatch: arm64"
        )
    await promise(engine, eid, worker_capabilities=["gpu", "arm64"])
    [grant] = await probe.grants(eid)
    assert grant.issued_at_ms == now, "the expired grant is gone"


async def test_bad_capabilities(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = id_of(await lost(engine, clock))
    async with refused(probe, Validation, ValidationKind.INVALID_CAPABILITIES, "worker:empty_token"):
        await promise(engine, eid, worker_capabilities=[""])


# ---------------------------------------------------------------------------------------------------- reclaim_execution


async def test_a_take_over(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    old = await lost(engine, clock, namespace="tenant")
    eid = id_of(old)
    await promise(engine, eid)
    now = clock.advance(4_999)
    answer = await reclaim(engine, eid, worker_instance_id="another process", attempt_policy_json='{"a": 1}')
    assert answer == Reclaimed(answer.handle)
    assert answer.handle.kind is HandleKind.RECLAIMED
    assert payload_of(answer.handle) == HandlePayload(eid, 1, ATTEMPT, LEASE, 2, 9_000, "new lane", "another process")
    first, second = await probe.attempts(eid)
    assert (first.outcome, first.terminal_at_ms, first.lease_epoch) == ("interrupted_reclaimed", now, 1)
    assert (first.worker_id, first.worker_instance_id, first.lease_expires_at_ms) == ("w1", None, None)
    assert (second.attempt_index, second.lease_epoch, second.attempt_type) == (1, 2, "reclaim")
    assert (second.worker_id, second.worker_instance_id) == ("w2", "another process")
    assert (second.attempt_id, second.lease_id, second.outcome) == (ATTEMPT, LEASE, None)
    assert (second.started_at_ms, second.lease_expires_at_ms) == (now, now + 9_000)
    assert await probe.attempt_policies(eid) == [None, {"a": 1}]
    assert await probe.stored(eid) == RUNNING
    row = await probe.execution(eid)
    assert (row.attempt_index, row.lease_reclaim_count, row.total_attempt_count) == (1, 1, 2)
    assert (row.started_at_ms, row.lane_id, row.last_mutation_at_ms) == (START_MS, LANE, now)
    assert await probe.grants(eid) == []
    assert await probe.lease_events(eid) == ["acquired", "reclaimed"]
    assert (await probe.events(LeaseEvent, eid))[-1] == LeaseEvent(
        eid.partition,
        eid.uuid_text,
        probe.lease_id(eid, 1, 2),
        "reclaimed",
        now,
        "tenant",
        None,
        "another process",
        None,
    )
    assert await probe.completions(eid) == []
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.complete(old, None)
    await engine.complete(answer.handle, b"done")
    assert await engine.get_execution_result(eid) == b"done"


async def test_without_a_grant(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = id_of(await lost(engine, clock))
    async with unchanged(probe):
        assert await reclaim(engine, MISSING) == GrantNotFound(MISSING)
        assert await reclaim(engine, eid) == GrantNotFound(eid)
    await promise(engine, eid)
    assert isinstance(await reclaim(engine, eid), Reclaimed)
    async with unchanged(probe):
        assert await reclaim(engine, eid) == GrantNotFound(eid)


async def test_a_claim_grant_is_no_reclaim_grant(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE)
    await engine.claim_for_worker(lane_id=LANE, worker_id="w2", worker_instance_id="i")
    async with unchanged(probe):
        assert await reclaim(engine, eid) == GrantNotFound(eid)


async def test_somebody_elses_grant(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Whose grant it is counts before whether it has expired."""
    eid = id_of(await lost(engine, clock))
    await promise(engine, eid)
    for pause in (0, 5_000):
        clock.advance(pause)
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
            await reclaim(engine, eid, "w3")


async def test_an_expired_grant_is_removed(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = id_of(await lost(engine, clock))
    await promise(engine, eid)
    clock.advance(5_000)
    before = await probe.execution(eid)
    assert await reclaim(engine, eid) == GrantNotFound(eid)
    assert await probe.grants(eid) == []
    assert await probe.execution(eid) == before
    assert await probe.lease_events(eid) == ["acquired"]


async def test_a_grant_without_its_execution(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = id_of(await lost(engine, clock))
    await promise(engine, eid)
    await seeding.remove(engine, Execution, eid)
    async with refused(probe, NotFound, "execution"):
        await reclaim(engine, eid)


@pytest.mark.parametrize("state", ["taken", "requeued", "cancelled"])
async def test_what_moved_on_is_left_alone(engine: Engine, probe: Probe, clock: ManualClock, state: str) -> None:
    """The gate is looked at again; the grant stays for when it opens once more."""
    eid = id_of(await lost(engine, clock))
    await promise(engine, eid)
    if state == "taken":
        grant = ResumeGrant(eid, "{fp:0}", "key", 2**63 - 1, LANE)
        assert await engine.claim_from_resume_grant(ResumeToken(grant, "w3", "w3-i1", 9_000)) is not None
    elif state == "requeued":
        assert await engine.run_timer("lease_expiry") == 1
    else:
        await engine.cancel_execution(execution_id=eid)
    async with unchanged(probe):
        answer = await reclaim(engine, eid)
        assert isinstance(answer, NotReclaimable)
        assert answer.execution_id == eid
        assert len(await probe.grants(eid)) == 1


# ----------------------------------------------------------------------------------------------------------------- caps


@pytest.mark.parametrize(
    ("own", "argument", "stored", "reclaimed"),
    [
        (None, None, 999, True),
        (None, None, 1_000, False),
        (None, 3, 2, True),
        (None, 3, 3, False),
        (None, 0, 0, False),
        ({}, None, 99, True),
        ({}, 1_000, 100, False),
        ({"max_reclaim_count": 5}, 1_000, 4, True),
        ({"max_reclaim_count": 5}, 1_000, 5, False),
        ({"max_reclaim_count": 0}, None, 0, False),
        ({"timeout_policy": {"max_reclaim_count": 2}}, None, 2, False),
        (None, 1, -4, True),
    ],
)
async def test_which_cap_counts(
    engine: Engine,
    probe: Probe,
    clock: ManualClock,
    own: dict[str, Any] | None,
    argument: int | None,
    stored: int,
    reclaimed: bool,
) -> None:
    """The execution's policy, else the argument, else 1000; a negative count is none."""
    eid = id_of(await lost(engine, clock, policy=own))
    await promise_anyway(engine, probe, eid)
    await seeding.alter(engine, eid, lease_reclaim_count=stored)
    answer = await reclaim(engine, eid, max_reclaim_count=argument)
    if reclaimed:
        assert isinstance(answer, Reclaimed)
        assert (await probe.execution(eid)).lease_reclaim_count == max(stored, 0) + 1
    else:
        assert answer == ReclaimCapExceeded(eid, stored)
        assert await probe.stored(eid) == CAPPED


async def promise_anyway(engine: Engine, probe: Probe, eid: ExecutionId) -> None:
    """A reclaim grant, also where the cap would refuse it."""
    now = await engine.now_ms()
    grant = (eid.partition, b"g" * 32, eid.uuid_text, "reclaim", "w2", "w2-i1", LANE, None, "[]", None, None)
    await seeding.seed(engine, Grant(*grant, 5_000, now, now + 5_000))


async def test_the_cap_ends_the_execution(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await lost(engine, clock, namespace="tenant", tags={"cairn.instance_id": "i-7"})
    eid = id_of(handle)
    await promise(engine, eid)
    now = clock.advance(10)
    assert await reclaim(engine, eid, max_reclaim_count=0) == ReclaimCapExceeded(eid, 0)
    assert await probe.stored(eid) == CAPPED
    assert (await probe.vector(eid))[3:] == ("attempt_terminal", "failed", "none", "failed")
    row = await probe.execution(eid)
    assert (row.terminal_at_ms, row.terminal_outcome, row.failure_reason) == (now, "failed", "max_reclaims_exceeded")
    assert (row.lease_reclaim_count, row.attempt_index, row.total_attempt_count) == (0, 0, 1)
    [attempt] = await probe.attempts(eid)
    assert (attempt.outcome, attempt.terminal_at_ms) == ("interrupted_reclaimed", now)
    assert (attempt.worker_instance_id, attempt.lease_expires_at_ms, attempt.lease_epoch) == (None, None, 2)
    assert await probe.grants(eid) == []
    assert await probe.lease_events(eid) == ["acquired", "revoked"]
    revoked = (await probe.events(LeaseEvent, eid))[-1]
    assert (revoked.lease_id, revoked.worker_instance_id) == (probe.lease_id(eid, 0, 1), "w1-i1")
    assert await probe.events(CompletionEvent) == [
        CompletionEvent(eid.partition, eid.uuid_text, None, "failed", "tenant", "i-7", now, now)
    ]
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.renew(handle)
