"""Claim grants: issuing them, what they hide, and how they go away unused."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from flowfabric import (
    ClaimGrant,
    Contention,
    ContentionKind,
    ExecutionId,
    Granted,
    GrantIssued,
    HandleKind,
    NotFound,
    NoWork,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.records.executions import Grant, SigningKey
from tests.contract import seeding
from tests.contract.probe import (
    INTERRUPTED,
    RUNNING,
    START_MS,
    ManualClock,
    Probe,
    claimed,
    create,
    id_of,
    needing,
    policy,
    refused,
    unchanged,
)

LANE = "lane"
PROMISED = ("runnable", "unowned", "pending_claim", "pending", "waiting", None)
WAITING = ("runnable", "unowned", "eligible_now", "pending", "waiting", None)


async def ask(engine: Engine, worker: str = "w1", **more: Any) -> Granted | NoWork:
    """``claim_for_worker`` with defaults."""
    given = {"lane_id": LANE, "worker_id": worker, "worker_instance_id": f"{worker}-i1", "grant_ttl_ms": 5_000}
    return await engine.claim_for_worker(**given | more)


async def issue(engine: Engine, eid: str, worker: str = "w1", **more: Any) -> GrantIssued:
    """``issue_claim_grant`` with defaults."""
    given = {"lane_id": LANE, "worker_id": worker, "worker_instance_id": f"{worker}-i1", "grant_ttl_ms": 5_000}
    return await engine.issue_claim_grant(execution_id=eid, **given | more)


# ------------------------------------------------------------------------------------------------------------- issuing


@pytest.mark.parametrize("by_name", [False, True], ids=["claim_for_worker", "issue_claim_grant"])
async def test_a_grant(engine: Engine, probe: Probe, clock: ManualClock, by_name: bool) -> None:
    eid = await create(engine, lane_id=LANE, policy=needing("gpu"))
    now = clock.advance(10)
    if by_name:
        answer = await issue(
            engine,
            eid,
            worker_capabilities=["gpu", "arm64"],
            capability_hash="h",
            route_snapshot_json='{"r":1}',
            admission_summary="ok",
            partition=eid.partition,
        )
        assert answer == GrantIssued(eid, answer.grant)
    else:
        answer = await ask(engine, worker_capabilities=["gpu", "arm64"])
    grant = answer.grant
    assert grant == ClaimGrant(eid, f"{{fp:{eid.partition}}}", grant.grant_key, now + 5_000)
    [stored] = await probe.grants(eid)
    extra = ("h", '["arm64","gpu"]', '{"r":1}', "ok") if by_name else (None, '["arm64","gpu"]', None, None)
    assert stored == Grant(
        eid.partition,
        hashlib.sha256(grant.grant_key.encode()).digest(),
        eid.uuid_text,
        "claim",
        "w1",
        "w1-i1",
        None,
        extra[0],
        stored.worker_capabilities,
        extra[2],
        extra[3],
        5_000,
        now,
        now + 5_000,
    )
    assert stored.worker_capabilities.replace(" ", "") == extra[1]
    assert grant.grant_key == await probe.grant_key(stored)
    assert await probe.stored(eid) == PROMISED
    assert (await probe.vector(eid))[:3] == ("runnable", "unowned", "eligible_now")
    assert (await probe.execution(eid)).last_mutation_at_ms == now
    assert await probe.attempts(eid) == []
    assert await probe.lease_events(eid) == []


async def test_the_first_key_is_made_when_it_is_needed(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await create(engine, lane_id=LANE)
    await create(engine, lane_id=LANE)
    assert await probe.select(SigningKey, active=True) == []
    await ask(engine)
    [key] = await probe.select(SigningKey, active=True)
    assert (key.kid, len(key.secret), key.rotated_at_ms) == ("k1", 32, START_MS)
    clock.advance(5)
    await ask(engine)
    assert await probe.select(SigningKey, active=True) == [key]


async def test_the_current_key_signs(engine: Engine, probe: Probe) -> None:
    await seeding.seed(
        engine,
        SigningKey("old", b"o" * 32, 10, True),
        SigningKey("new", b"n" * 32, 20, True),
        SigningKey("gone", b"g" * 32, 30, False),
    )
    eid = await create(engine, lane_id=LANE)
    grant = (await ask(engine)).grant
    assert grant.grant_key.split(":")[-2] == "new"
    [stored] = await probe.grants(eid)
    message = f"new:{{fp:{eid.partition}}}|{eid.uuid_text}|w1|w1-i1|{stored.expires_at_ms}".encode()
    assert grant.grant_key.endswith(hmac.new(b"n" * 32, message, hashlib.sha256).hexdigest())


async def test_claim_for_worker_takes_the_claim_order(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    mismatch = await create(engine, lane_id=LANE, priority=9, policy=needing("gpu"))
    low = await create(engine, lane_id=LANE)
    clock.advance(1)
    high = await create(engine, lane_id=LANE, priority=5)
    before = await probe.execution(mismatch)
    assert [(await ask(engine)).grant.execution_id for _ in range(2)] == [high, low]
    assert await probe.execution(mismatch) == before
    async with unchanged(probe):
        assert await ask(engine) == NoWork()
        assert await ask(engine, lane_id="other", worker_capabilities=["gpu"]) == NoWork()
    assert (await ask(engine, worker_capabilities=["gpu"])).grant.execution_id == mismatch


@pytest.mark.parametrize("call", [ask, issue])
async def test_worker_capabilities_are_checked(engine: Engine, probe: Probe, call: Any) -> None:
    eid = await create(engine, lane_id=LANE)
    arguments = (engine,) if call is ask else (engine, eid)
    for tokens, problem in ((["a,b"], "comma_in_token"), ([""], "empty_token"), (["x" * 4097], "too_many_bytes")):
        async with refused(probe, Validation, ValidationKind.INVALID_CAPABILITIES, f"worker:{problem}"):
            await call(*arguments, worker_capabilities=tokens)


# ------------------------------------------------------------------------------------------- gates of issue_claim_grant


async def test_grant_for_nothing(engine: Engine, probe: Probe) -> None:
    async with refused(probe, NotFound, "execution"):
        await issue(engine, "{fp:0}:11111111-1111-4111-8111-111111111111")


async def test_one_grant_at_a_time(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """A live grant refuses the next one, also for the same worker; an expired one gives way in the same commit."""
    eid = await create(engine, lane_id=LANE)
    await issue(engine, eid)
    clock.advance(4_999)
    for worker in ("w1", "w2"):
        async with refused(probe, State, StateKind.GRANT_ALREADY_EXISTS):
            await issue(engine, eid, worker)
    now = clock.advance(1)
    await issue(engine, eid, "w2")
    [grant] = await probe.grants(eid)
    assert (grant.worker_id, grant.issued_at_ms, grant.expires_at_ms) == ("w2", now, now + 5_000)
    assert await probe.stored(eid) == PROMISED


@pytest.mark.parametrize("state", ["delayed", "blocked", "running", "ended", "cancelled"])
async def test_only_what_is_eligible(engine: Engine, probe: Probe, state: str) -> None:
    eid = await create(engine, lane_id=LANE, delay_until=START_MS + 1 if state == "delayed" else None)
    if state == "blocked":
        await engine.block_route(execution_id=eid)
    elif state == "cancelled":
        await engine.cancel_execution(execution_id=eid)
    elif state != "delayed":
        handle = await engine.claim(LANE, (), policy())
        assert handle is not None
        if state == "ended":
            await engine.complete(handle, None)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ELIGIBLE):
        await issue(engine, eid)


@pytest.mark.parametrize("phase", ["active", "suspended", "terminal", "cancelled"])
async def test_the_phase_counts_whatever_the_eligibility(engine: Engine, probe: Probe, phase: str) -> None:
    eid = await create(engine, lane_id=LANE)
    await seeding.alter(engine, eid, lifecycle_phase=phase)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ELIGIBLE):
        await issue(engine, eid)


async def test_capabilities_must_cover(engine: Engine, probe: Probe) -> None:
    eid = await create(engine, lane_id=LANE, policy=needing("zeta", "gpu", "alpha"))
    async with refused(probe, Validation, ValidationKind.CAPABILITY_MISMATCH, "alpha,zeta"):
        await issue(engine, eid, worker_capabilities=["gpu"])
    async with refused(probe, Validation, ValidationKind.CAPABILITY_MISMATCH, "alpha,gpu,zeta"):
        await issue(engine, eid)


# ----------------------------------------------------------------------------------------------------- expiry and sweep


async def test_a_live_grant_hides_an_expired_one_does_not(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """No sweep stands between expiry and claim; the claim removes the stale grant in its own commit."""
    eid = await create(engine, lane_id=LANE)
    await ask(engine)
    clock.advance(4_999)
    async with unchanged(probe):
        assert await engine.claim(LANE, (), policy("w2-i1", "w2")) is None
        assert await ask(engine, "w2") == NoWork()
        assert await engine.scan_eligible_executions(LANE) == ()
    clock.advance(1)
    assert await engine.scan_eligible_executions(LANE) == (eid,)
    handle = await engine.claim(LANE, (), policy("w2-i1", "w2"))
    assert handle is not None
    assert (id_of(handle), handle.kind) == (eid, HandleKind.FRESH)
    assert await probe.grants(eid) == []
    assert await probe.stored(eid) == RUNNING


async def test_an_expired_grant_keeps_its_place_in_the_queue(engine: Engine, clock: ManualClock) -> None:
    made = []
    for _ in range(3):
        made.append(await create(engine, lane_id=LANE))
        clock.advance(1)
    await issue(engine, made[1], grant_ttl_ms=10)
    await issue(engine, made[2], grant_ttl_ms=20)
    clock.advance(10)
    assert await engine.scan_eligible_executions(LANE) == (made[0], made[1])
    assert (await ask(engine)).grant.execution_id == made[0]
    assert (await ask(engine, grant_ttl_ms=20)).grant.execution_id == made[1]
    clock.advance(10)
    handles = await engine.claim_many(LANE, (), policy(), 5)
    assert [id_of(handle) for handle in handles] == made[2:]


async def test_an_expired_grant_must_match_too(engine: Engine, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE, policy=needing("gpu"))
    await ask(engine, worker_capabilities=["gpu"])
    clock.advance(5_000)
    assert await engine.claim(LANE, ("cpu",), policy()) is None
    assert await engine.claim("other", ("gpu",), policy()) is None
    handle = await engine.claim(LANE, ("gpu",), policy())
    assert handle is not None
    assert id_of(handle) == eid


async def test_the_sweep_only_cleans_up(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    early, late, gone = [await create(engine, lane_id=LANE) for _ in range(3)]
    await issue(engine, early, grant_ttl_ms=10)
    await issue(engine, late, grant_ttl_ms=20)
    await issue(engine, gone, grant_ttl_ms=10)
    await engine.cancel_execution(execution_id=gone)
    clock.advance(9)
    async with unchanged(probe):
        assert await engine.run_timer("grant_sweep") == 0
    now = clock.advance(1)
    assert await engine.run_timer("grant_sweep") == 1
    assert await probe.stored(early) == WAITING
    assert await probe.stored(late) == PROMISED
    assert [len(await probe.grants(eid)) for eid in (early, late, gone)] == [0, 1, 0]
    assert (await probe.execution(early)).last_mutation_at_ms == now
    async with unchanged(probe):
        assert await engine.run_timer("grant_sweep") == 0


async def test_the_sweep_keeps_an_interrupted_attempt(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    await engine.revoke_lease(execution_id=eid)
    await ask(engine)
    assert await probe.stored(eid) == (*INTERRUPTED[:2], "pending_claim", *INTERRUPTED[3:])
    clock.advance(5_000)
    await engine.run_timer("grant_sweep")
    assert await probe.stored(eid) == INTERRUPTED


def forged(eid: ExecutionId, name: bytes, kind: str, expires_at_ms: int) -> Grant:
    """A grant that no operation would issue beside the others."""
    who = (eid.partition, name + eid.uuid_text.encode(), eid.uuid_text, kind, "w9", "i9", LANE)
    return Grant(*who, None, "[]", None, None, 1, START_MS, expires_at_ms)


async def test_the_sweep_looks_at_every_grant(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Only expired claim grants go, and a row is freed only if it was hidden and no live grant stands."""
    hidden, blocked = await create(engine, lane_id=LANE), await create(engine, lane_id=LANE)
    await issue(engine, hidden, grant_ttl_ms=10)
    await engine.block_route(execution_id=blocked)
    now = clock.advance(10)
    for eid in (hidden, blocked):
        await seeding.seed(engine, forged(eid, b"s", "claim", now), forged(eid, b"r", "reclaim", now))
    forever = forged(hidden, b"n", "claim", 0)
    await seeding.seed(engine, forever)
    before = [await probe.execution(eid) for eid in (hidden, blocked)]
    assert await engine.run_timer("grant_sweep") == 3
    assert [await probe.execution(eid) for eid in (hidden, blocked)] == before
    assert [[grant.grant_id[:1] for grant in await probe.grants(eid)] for eid in (hidden, blocked)] == [
        [b"n", b"r"],
        [b"r"],
    ]
    async with refused(probe, State, StateKind.GRANT_ALREADY_EXISTS):
        await issue(engine, hidden)


async def test_reclaim_grants_are_another_kind(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """One that was left behind neither hides a row, nor refuses a grant, nor goes with a claim."""
    eid = await create(engine, lane_id=LANE)
    live, stale = forged(eid, b"l", "reclaim", START_MS + 99), forged(eid, b"s", "reclaim", START_MS)
    await seeding.seed(engine, live, stale)
    await issue(engine, eid, grant_ttl_ms=5)
    clock.advance(5)
    assert await engine.claim(LANE, (), policy()) is not None
    assert await probe.grants(eid) == [live, stale]


async def test_a_cancel_takes_the_grant_along(engine: Engine, probe: Probe) -> None:
    eid = await create(engine, lane_id=LANE)
    await ask(engine)
    await engine.cancel_execution(execution_id=eid)
    assert await probe.grants(eid) == []


# ----------------------------------------------------------------------------------------------------------------- scan


async def test_scan(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Claim order, capabilities play no part, nothing is written."""
    first = await create(engine, lane_id=LANE, policy=needing("gpu"))
    clock.advance(1)
    second = await create(engine, lane_id=LANE)
    top = await create(engine, lane_id=LANE, priority=1)
    await engine.promote_submitted()
    await create(engine, lane_id="other")
    async with unchanged(probe):
        assert await engine.scan_eligible_executions(LANE) == (top, first, second)
        assert await engine.scan_eligible_executions(LANE, first.partition, 2) == (top, first)
        assert await engine.scan_eligible_executions(LANE, (first.partition + 1) % 65_536) == ()
        assert await engine.scan_eligible_executions(LANE, limit=0) == ()
        assert await engine.scan_eligible_executions("nobody") == ()
