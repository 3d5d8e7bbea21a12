"""``mark_lease_expired_if_due``: a lost lease is marked, and after the grace the work goes back to the queue."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import Contention, ContentionKind, ExpiryMark, State, StateKind
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, LeaseEvent
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
    payload_of,
    policy,
    refused,
    unchanged,
)

LANE = "lane"
TTL_MS, GRACE_MS = 1_000, 400
MARKED = (
    "active",
    "lease_expired_reclaimable",
    "not_applicable",
    "attempt_interrupted",
    "running",
    "waiting_for_worker",
)
CAPPED = ("terminal", "unowned", "not_applicable", "attempt_terminal", "failed", None)


async def look(engine: Engine, eid: str) -> str:
    answer = await engine.mark_lease_expired_if_due(None, eid)
    assert answer == ExpiryMark(answer.status)
    return answer.status


async def test_without_grace_the_work_is_requeued_at_once(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS, namespace="tenant", tags={"cairn.instance_id": "i-7"})
    eid = id_of(handle)
    clock.advance(TTL_MS - 1)
    async with unchanged(probe):
        assert await look(engine, eid) == "not_yet_expired"
    now = clock.advance(1)
    assert await look(engine, eid) == "requeued"
    assert await probe.stored(eid) == INTERRUPTED
    assert (await probe.vector(eid))[-1] == "none"
    row = await probe.execution(eid)
    assert (row.lease_reclaim_count, row.lease_expired_at_ms, row.last_mutation_at_ms) == (1, now, now)
    assert (row.attempt_index, row.total_attempt_count, row.started_at_ms) == (0, 1, START_MS)
    [attempt] = await probe.attempts(eid)
    assert (attempt.outcome, attempt.lease_epoch) == ("lease_expired_reclaimable", 2)
    assert (attempt.worker_id, attempt.worker_instance_id, attempt.lease_expires_at_ms) == ("w1", None, None)
    lease_id = probe.lease_id(eid, 0, 1)
    assert (await probe.events(LeaseEvent, eid))[1:] == [
        LeaseEvent(eid.partition, eid.uuid_text, lease_id, "expired", now, "tenant", "i-7", "w1-i1", "reconciler")
    ]
    assert await probe.completions(eid) == []
    async with unchanged(probe):
        assert await look(engine, eid) == "not_active"
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.renew(handle)


async def test_with_a_grace_there_are_two_stages(open_engine: Any, clock: ManualClock) -> None:
    engine = await open_engine(reclaim_grace_ms=GRACE_MS)
    probe = Probe(engine)
    handle = await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS)
    eid = id_of(handle)
    [before] = await probe.attempts(eid)
    expired_at = clock.advance(TTL_MS)
    assert await look(engine, eid) == "marked"
    assert await probe.stored(eid) == MARKED
    assert (await probe.vector(eid))[:5] == (*MARKED[:4], "active")
    row = await probe.execution(eid)
    assert (row.lease_reclaim_count, row.lease_expired_at_ms, row.last_mutation_at_ms) == (0, expired_at, expired_at)
    assert await probe.attempts(eid) == [before]
    assert await probe.lease_events(eid) == ["acquired", "expired"]
    assert [entry.execution_id for entry in (await engine.list_expired_leases()).entries] == [eid]
    async with refused(probe, State, StateKind.LEASE_EXPIRED):
        await engine.complete(handle, None)
    clock.advance(GRACE_MS - 1)
    async with unchanged(probe):
        assert await look(engine, eid) == "already_expired"
        assert await engine.claim(LANE, (), policy()) is None
    clock.advance(1)
    assert await look(engine, eid) == "requeued"
    assert await probe.stored(eid) == INTERRUPTED
    [attempt] = await probe.attempts(eid)
    assert (attempt.outcome, attempt.lease_epoch, attempt.worker_instance_id) == ("lease_expired_reclaimable", 2, None)
    assert (await probe.execution(eid)).lease_reclaim_count == 1
    assert await probe.lease_events(eid) == ["acquired", "expired"], "once per expiry"


async def test_whoever_looks_late_does_both_stages(open_engine: Any, clock: ManualClock) -> None:
    engine = await open_engine(reclaim_grace_ms=GRACE_MS)
    probe = Probe(engine)
    eid = id_of(await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS))
    clock.advance(TTL_MS + GRACE_MS)
    assert await look(engine, eid) == "requeued"
    assert await probe.stored(eid) == INTERRUPTED
    assert await probe.lease_events(eid) == ["acquired", "expired"]


async def test_a_renewal_that_came_first_wins(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS)
    clock.advance(TTL_MS - 1)
    await engine.renew(handle)
    clock.advance(1)
    async with unchanged(probe):
        assert await look(engine, id_of(handle)) == "not_yet_expired"
        assert await engine.run_timer("lease_expiry") == 0


@pytest.mark.parametrize("grace_ms", [0, GRACE_MS])
@pytest.mark.parametrize(
    ("own", "count", "requeued"),
    [({"max_reclaim_count": 0}, 0, False), ({"max_reclaim_count": 3}, 2, True), ({"max_reclaim_count": 3}, 3, False)],
)
async def test_the_reclaim_cap(
    open_engine: Any, clock: ManualClock, grace_ms: int, own: dict[str, int], count: int, requeued: bool
) -> None:
    """At the cap the execution fails; the one ``expired`` is its only lease event."""
    engine = await open_engine(reclaim_grace_ms=grace_ms)
    probe = Probe(engine)
    eid = id_of(await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS, policy=own, namespace="tenant"))
    await seeding.alter(engine, eid, lease_reclaim_count=count)
    clock.advance(TTL_MS)
    if grace_ms:
        assert await look(engine, eid) == "marked"
    now = clock.advance(grace_ms)
    assert await look(engine, eid) == ("requeued" if requeued else "failed")
    assert await probe.lease_events(eid) == ["acquired", "expired"]
    if requeued:
        assert await probe.stored(eid) == INTERRUPTED
        assert (await probe.execution(eid)).lease_reclaim_count == count + 1
        return
    assert await probe.stored(eid) == CAPPED
    row = await probe.execution(eid)
    assert (row.terminal_at_ms, row.terminal_outcome, row.failure_reason) == (now, "failed", "max_reclaims_exceeded")
    assert row.lease_reclaim_count == count
    [attempt] = await probe.attempts(eid)
    assert (attempt.outcome, attempt.terminal_at_ms, attempt.lease_epoch) == ("interrupted_reclaimed", now, 2)
    assert (attempt.worker_instance_id, attempt.lease_expires_at_ms) == (None, None)
    assert await probe.events(CompletionEvent) == [
        CompletionEvent(eid.partition, eid.uuid_text, None, "failed", "tenant", None, now, now)
    ]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"ownership_state": "lease_revoked"}, "already_revoked"),
        ({"ownership_state": "unowned"}, "unowned"),
        ({"ownership_state": "released"}, "unowned"),
    ],
)
async def test_owners_that_are_none(
    engine: Engine, probe: Probe, clock: ManualClock, fields: dict[str, str], status: str
) -> None:
    eid = id_of(await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS))
    await seeding.alter(engine, eid, **fields)
    clock.advance(TTL_MS)
    async with unchanged(probe):
        assert await look(engine, eid) == status


async def test_nothing_to_look_at(engine: Engine, probe: Probe) -> None:
    fresh = await create(engine, lane_id=LANE)
    async with unchanged(probe):
        assert await look(engine, "{fp:0}:11111111-1111-4111-8111-111111111111") == "execution_not_found"
        assert await look(engine, fresh) == "not_active"


async def test_a_stale_lease_is_just_cleared(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """A lease that somebody left on an execution that does not run."""
    eid = id_of(await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS))
    await seeding.alter(engine, eid, lifecycle_phase="suspended", ownership_state="unowned")
    clock.advance(TTL_MS)
    before = await probe.execution(eid)
    assert await engine.run_timer("lease_expiry") == 1
    [attempt] = await probe.attempts(eid)
    assert (attempt.worker_instance_id, attempt.lease_expires_at_ms, attempt.outcome) == (None, None, None)
    assert await probe.execution(eid) == before
    assert await probe.lease_events(eid) == ["acquired"]
    assert await look(engine, eid) == "not_active"


async def test_the_timer_takes_what_is_due(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    due = [id_of(await claimed(engine, lane_id=LANE, ttl_ms=100 + n)) for n in range(5)]
    later = id_of(await claimed(engine, lane_id=LANE, ttl_ms=200))
    await engine.run_timer("intake")
    clock.advance(104)
    assert await engine.run_timer("lease_expiry", limit=2) == 2
    assert [(await probe.stored(eid)) == INTERRUPTED for eid in due] == [True, True, False, False, False]
    assert await engine.run_timer("lease_expiry") == 3
    assert await engine.run_timer("lease_expiry") == 0
    assert await probe.stored(later) == RUNNING


async def test_a_row_that_cannot_be_read_stops_nobody(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """It is logged, left as it is, and left alone for a while."""
    bad = id_of(await claimed(engine, lane_id="bad", ttl_ms=1))
    await seeding.alter(engine, bad, policy="[]")
    good = id_of(await claimed(engine, lane_id=LANE, ttl_ms=2))
    clock.advance(5)
    for done in (1, 0, 0, 0):
        assert await engine.run_timer("lease_expiry") == done
    assert await probe.stored(good) == INTERRUPTED
    assert await probe.stored(bad) == RUNNING
    assert await engine.run_timer("lease_expiry", limit=1) == 0
    behind = id_of(await claimed(engine, lane_id="behind", ttl_ms=1))
    clock.advance(1)
    assert await engine.run_timer("lease_expiry", limit=1) == 1, "the resting row takes nobody's place"
    assert await probe.stored(behind) == INTERRUPTED


async def test_the_next_holder_goes_on(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Again and again: each take-over counts, each holder is fenced off by the next."""
    handle = await claimed(engine, lane_id=LANE, ttl_ms=TTL_MS)
    eid = id_of(handle)
    for turn in range(1, 4):
        clock.advance(TTL_MS)
        assert await engine.run_timer("lease_expiry") == 1
        successor = await engine.claim(LANE, (), policy(f"w{turn}", ttl_ms=TTL_MS))
        assert successor is not None
        assert payload_of(successor).lease_epoch == 1 + 2 * turn
        async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
            await engine.complete(handle, None)
        assert (await probe.execution(eid)).lease_reclaim_count == turn
        handle = successor
    await engine.complete(handle, None)
    assert await probe.lease_events(eid) == ["acquired", *["expired", "acquired"] * 3, "revoked"]
