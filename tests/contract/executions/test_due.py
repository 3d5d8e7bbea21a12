"""What falls due by itself: intake, delays, attempt timeouts, deadlines; and running the timers by hand."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from flowfabric import HandleKind, ScannerFilter, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.engine.timers.loop import TIMERS
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.ids import ExecutionId
from flowfabric.model.records.executions import Suspension, Waitpoint
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
WAITING = ("runnable", "unowned", "eligible_now", "pending", "waiting", None)
PROMOTED = ("runnable", "unowned", "eligible_now", "pending", "waiting", "waiting_for_worker")
EXPIRED = ("terminal", "unowned", "not_applicable", "attempt_terminal", "expired", None)


# -------------------------------------------------------------------------------------------------------------- intake


async def test_promote_submitted(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE)
    delayed = await create(engine, lane_id=LANE, delay_until=START_MS + 1_000)
    now = clock.advance(5)
    assert await engine.promote_submitted() == 2
    assert await probe.stored(eid) == WAITING
    assert await probe.stored(delayed) == (
        "runnable",
        "unowned",
        "not_eligible_until_time",
        "pending",
        "delayed",
        "waiting_for_delay",
    )
    assert (await probe.execution(eid)).last_mutation_at_ms == now
    assert await probe.lease_events(eid) == []
    async with unchanged(probe):
        assert await engine.promote_submitted() == 0


async def test_the_oldest_first_within_the_limit(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    made = []
    for priority in (0, 5, 9):
        made.append(await create(engine, lane_id=LANE, priority=priority))
        clock.advance(1)
    assert await engine.promote_submitted(limit=2) == 2
    assert [(await probe.execution(eid)).lifecycle_phase for eid in made] == ["runnable", "runnable", "submitted"]


async def test_one_lane_or_partition(engine: Engine, probe: Probe) -> None:
    one, two = await create(engine, lane_id="one"), await create(engine, lane_id="two")
    assert await engine.promote_submitted(lane="two") == 1
    assert (await probe.execution(one)).lifecycle_phase == "submitted"
    assert await engine.promote_submitted(partition=one.partition + 1) == 0
    assert await engine.promote_submitted(partition=one.partition, lane="one") == 1
    assert (await probe.execution(two)).lifecycle_phase == "runnable"


@pytest.mark.parametrize("running", [None, 0, 2])
async def test_members_wait_for_their_parents(engine: Engine, probe: Probe, running: int | None) -> None:
    flow = seeding.flow_of(engine)
    await seeding.seed(engine, flow)
    eid = await seeding.member(engine, flow)
    if running is not None:
        await seeding.seed(engine, seeding.group(flow, eid, running_count=running))
    assert await engine.promote_submitted() == 1
    blocked = ("blocked_by_dependencies", "pending", "waiting_children", "waiting_for_children")
    assert await probe.stored(eid) == ((*WAITING[:2], *blocked) if running else WAITING)


# -------------------------------------------------------------------------------------------------------------- delays


async def test_promote_delayed(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE, delay_until=START_MS + 10, execution_deadline_at=START_MS + 99)
    clock.advance(9)
    async with unchanged(probe):
        await engine.promote_delayed(execution_id=eid)
        assert await engine.run_timer("delayed_promoter") == 0
    now = clock.advance(1)
    await engine.promote_delayed(0, LANE, eid)
    assert await probe.stored(eid) == PROMOTED
    row = await probe.execution(eid)
    assert (row.delay_until_ms, row.deadline_at_ms, row.last_mutation_at_ms) == (None, START_MS + 99, now)
    assert await probe.lease_events(eid) == []
    async with unchanged(probe):
        await engine.promote_delayed(execution_id=eid)
        await engine.promote_delayed(execution_id=MISSING)


@pytest.mark.parametrize("how", ["retry", "delay", "resume"])
async def test_promotion_keeps_the_attempt_state(engine: Engine, probe: Probe, clock: ManualClock, how: str) -> None:
    fixed = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 500}}}
    handle = await claimed(engine, lane_id=LANE, policy=fixed)
    eid = id_of(handle)
    if how == "retry":
        await engine.fail(handle, "boom")
    else:
        await engine.delay(handle, START_MS + 500)
    if how == "resume":
        await seeding.alter(engine, eid, blocking_reason="waiting_for_resume_delay")
    clock.advance(500)
    assert await engine.run_timer("delayed_promoter") == 1
    state = "pending_retry_attempt" if how == "retry" else "attempt_interrupted"
    public = "resumable" if how == "resume" else "waiting"
    assert await probe.stored(eid) == ("runnable", "unowned", "eligible_now", state, public, "waiting_for_worker")
    again = await engine.claim(LANE, (), policy())
    assert again is not None
    assert again.kind is (HandleKind.FRESH if how == "retry" else HandleKind.RESUMED)


async def test_only_what_is_delayed_is_promoted(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE, delay_until=START_MS + 10)
    clock.advance(10)
    for fields in ({"eligibility_state": "blocked_by_operator"}, {"lifecycle_phase": "suspended"}):
        before = await probe.execution(eid)
        await seeding.alter(engine, eid, **fields)
        async with unchanged(probe):
            await engine.promote_delayed(execution_id=eid)
        await seeding.alter(engine, eid, **{name: getattr(before, name) for name in fields})


# ---------------------------------------------------------------------------------------------------- attempt timeouts


def timing(max_retries: int | None = None, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"timeout_policy": {"attempt_timeout_ms": 700}, **more}
    if max_retries is not None:
        given["retry_policy"] = {"max_retries": max_retries}
    return given


async def test_a_timeout_is_retried(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE, policy=timing(1), namespace="tenant")
    eid = id_of(handle)
    clock.advance(699)
    async with unchanged(probe):
        assert await engine.expire_execution(None, eid, "attempt_timeout") is False
        assert await engine.run_timer("attempt_timeout") == 0
    now = clock.advance(1)
    assert await engine.expire_execution(None, eid, "attempt_timeout") is True
    assert await probe.stored(eid) == (
        "runnable",
        "unowned",
        "eligible_now",
        "pending_retry_attempt",
        "waiting",
        "waiting_for_worker",
    )
    row = await probe.execution(eid)
    assert (row.attempt_index, row.retry_count, row.last_failure_message) == (1, 1, "attempt_timeout")
    assert (row.pending_retry_reason, row.pending_previous_attempt_index) == ("attempt_timeout", 0)
    assert (row.last_mutation_at_ms, row.terminal_at_ms, row.delay_until_ms) == (now, None, None)
    [attempt] = await probe.attempts(eid)
    assert (attempt.outcome, attempt.terminal_at_ms, attempt.lease_epoch) == ("expired", now, 2)
    assert (attempt.worker_instance_id, attempt.lease_expires_at_ms) == (None, None)
    assert attempt.attempt_timeout_at_ms is None
    assert (await probe.events(LeaseEvent, eid))[1:] == [
        LeaseEvent(
            eid.partition,
            eid.uuid_text,
            probe.lease_id(eid, 0, 1),
            "expired",
            now,
            "tenant",
            None,
            "w1-i1",
            "reconciler",
        )
    ]
    assert await probe.completions(eid) == []
    async with unchanged(probe):
        assert await engine.expire_execution(None, eid, "attempt_timeout") is False
    second = await engine.claim(LANE, (), policy())
    assert second is not None
    assert (payload_of(second).attempt_index, payload_of(second).lease_epoch) == (1, 3)
    now = clock.advance(700)
    assert await engine.run_timer("attempt_timeout") == 1
    assert await probe.stored(eid) == EXPIRED
    assert [attempt.outcome for attempt in await probe.attempts(eid)] == ["expired", "expired"]


@pytest.mark.parametrize("max_retries", [None, 0])
async def test_a_timeout_without_retries_ends(
    engine: Engine, probe: Probe, clock: ManualClock, max_retries: int | None
) -> None:
    eid = id_of(await claimed(engine, lane_id=LANE, policy=timing(max_retries), namespace="tenant"))
    now = clock.advance(700)
    assert await engine.run_timer("attempt_timeout") == 1
    assert await probe.stored(eid) == EXPIRED
    assert (await probe.vector(eid))[-1] == "expired"
    row = await probe.execution(eid)
    assert (row.terminal_at_ms, row.terminal_outcome, row.failure_reason) == (now, "expired", "attempt_timeout")
    assert (row.last_failure_message, row.attempt_index) == ("attempt_timeout", 0)
    [attempt] = await probe.attempts(eid)
    assert (attempt.outcome, attempt.terminal_at_ms, attempt.lease_epoch) == ("expired", now, 2)
    assert attempt.worker_instance_id is attempt.lease_expires_at_ms is None
    assert await probe.lease_events(eid) == ["acquired", "expired"]
    assert await probe.events(CompletionEvent) == [
        CompletionEvent(eid.partition, eid.uuid_text, None, "expired", "tenant", None, now, now)
    ]


async def test_only_a_running_attempt_times_out(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Stepping back disarms the timer, the next claim arms it anew; without one there is never a timeout."""
    handle = await claimed(engine, lane_id=LANE, policy=timing(3))
    eid = id_of(handle)
    await engine.delay(handle, START_MS)
    untimed = id_of(await claimed(engine, lane_id="other", ttl_ms=2**32 - 1))
    clock.advance(10**9)
    async with unchanged(probe):
        for each in (eid, untimed, MISSING):
            assert await engine.expire_execution(None, each, "attempt_timeout") is False
        assert await engine.run_timer("attempt_timeout") == 0
    await engine.run_timer("delayed_promoter")
    assert await engine.claim(LANE, (), policy()) is not None
    [attempt] = await probe.attempts(eid)
    assert attempt.attempt_timeout_at_ms == clock.now_ms + 700


# ------------------------------------------------------------------------------------------------------------ deadlines

DEADLINE_MS = START_MS + 1_000


async def waiting(engine: Engine, **arguments: Any) -> ExecutionId:
    return await create(engine, lane_id=LANE, execution_deadline_at=DEADLINE_MS, **arguments)


@pytest.mark.parametrize(
    "state", ["submitted", "runnable", "delayed", "blocked", "granted", "active", "marked", "interrupted", "suspended"]
)
async def test_a_deadline_ends_whatever_has_not_ended(open_engine: Any, clock: ManualClock, state: str) -> None:
    engine = await open_engine(reclaim_grace_ms=10_000)
    probe = Probe(engine)
    eid = await waiting(engine, delay_until=START_MS + 5_000 if state == "delayed" else None)
    leases: list[str] = []
    if state == "runnable":
        await engine.promote_submitted()
    elif state == "blocked":
        await engine.block_execution_for_admission(execution_id=eid, reason="waiting_for_quota")
    elif state == "granted":
        await engine.claim_for_worker(lane_id=LANE, worker_id="w", worker_instance_id="i")
    elif state in ("active", "marked", "interrupted", "suspended"):
        handle = await engine.claim(LANE, (), policy(ttl_ms=500))
        assert handle is not None
        leases = ["acquired", "expired"]
        if state == "interrupted":
            await engine.revoke_lease(execution_id=eid)
            leases = ["acquired", "revoked"]
        elif state == "suspended":
            await suspend(engine, eid)
            leases = ["acquired"]
    clock.advance(999)
    if state == "marked":
        assert await engine.run_timer("lease_expiry") == 1
    async with unchanged(probe):
        assert await engine.expire_execution(None, eid, "execution_deadline") is False
        assert await engine.run_timer("execution_deadline") == 0
    now = clock.advance(1)
    assert await engine.run_timer("execution_deadline") == 1
    assert await probe.stored(eid) == EXPIRED
    assert (await probe.vector(eid))[-1] == "expired"
    row = await probe.execution(eid)
    assert (row.terminal_at_ms, row.terminal_outcome, row.failure_reason) == (now, "expired", "execution_deadline")
    assert (row.last_failure_message, row.delay_until_ms) == ("execution_deadline", None)
    assert await probe.completions(eid) == ["expired"]
    assert await probe.lease_events(eid) == leases
    assert await probe.grants(eid) == []
    attempts = await probe.attempts(eid)
    if leases:
        [attempt] = attempts
        epoch = {"active": 2, "marked": 2, "interrupted": 2, "suspended": 1}[state]
        assert (attempt.outcome, attempt.terminal_at_ms, attempt.lease_epoch) == ("expired", now, epoch)
        assert attempt.worker_instance_id is attempt.lease_expires_at_ms is None
    else:
        assert attempts == []
    if state == "suspended":
        assert await probe.select(Suspension, partition=eid.partition, uuid=eid.uuid_text) == []
        found = await probe.select(Waitpoint, partition=eid.partition, uuid=eid.uuid_text)
        assert sorted((each.state, each.closed_at_ms, each.close_reason) for each in found) == [
            ("closed", START_MS, "satisfied"),
            ("closed", now, "expired"),
            ("closed", now, "expired"),
        ]
    async with unchanged(probe):
        assert await engine.expire_execution(None, eid, "execution_deadline") is False


async def suspend(engine: Engine, eid: ExecutionId) -> None:
    """A suspension as it is left in the tables: no lease, one row, waitpoints."""
    await seeding.alter(
        engine, eid, lifecycle_phase="suspended", ownership_state="unowned", attempt_state="attempt_interrupted"
    )
    await seeding.alter_attempt(engine, eid, worker_id=None, worker_instance_id=None, lease_expires_at_ms=None)
    where = (eid.partition, eid.uuid_text)
    await seeding.seed(
        engine,
        Suspension(*where, str(uuid4()), START_MS, None, "why"),
        Waitpoint(where[0], str(uuid4()), where[1], "active", None, None),
        Waitpoint(where[0], str(uuid4()), where[1], "pending", None, None),
        Waitpoint(where[0], str(uuid4()), where[1], "closed", START_MS, "satisfied"),
    )


async def test_the_end_is_the_end(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE, execution_deadline_at=DEADLINE_MS)
    await engine.complete(handle, None)
    clock.advance(1_000)
    async with unchanged(probe):
        for each in (id_of(handle), MISSING):
            assert await engine.expire_execution(None, each, "execution_deadline") is False
        assert await engine.run_timer("execution_deadline") == 0


async def test_phases_of_expiry(engine: Engine, probe: Probe) -> None:
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.expire_execution(None, MISSING, "lease")


# -------------------------------------------------------------------------------------------------------------- by hand


async def test_run_due_runs_each_timer_once(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await engine.register_worker(worker_id="w", worker_instance_id="i", lanes=[LANE], liveness_ttl_ms=10)
    doomed = await waiting(engine)
    delayed = await create(engine, lane_id="delayed", delay_until=START_MS + 10)
    timed = id_of(await claimed(engine, lane_id="timed", policy=timing()))
    leased = id_of(await claimed(engine, lane_id="leased", ttl_ms=10))
    promised = await create(engine, lane_id="promised")
    await engine.claim_for_worker(lane_id="promised", worker_id="w", worker_instance_id="i", grant_ttl_ms=10)
    fresh = await create(engine, lane_id="fresh")
    clock.advance(1_000)
    assert await engine.run_due() == {
        "lease_expiry": 1,
        "delayed_promoter": 1,
        "attempt_timeout": 1,
        "execution_deadline": 1,
        "suspension_timeout": 0,
        "pending_wp_expiry": 0,
        "budget_reset": 0,
        "quota_window": 0,
        "budget_reconciler": 0,
        "quota_reconciler": 0,
        "idle_gates": 0,
        "unblock": 0,
        "lane_fairness": 0,
        "schedules": 0,
        "enqueue_requests": 0,
        "grant_sweep": 1,
        "worker_registry_ttl_sweep": 1,
        "dependency_reconciler": 0,
        "edge_cancel_dispatcher": 0,
        "edge_cancel_reconciler": 0,
        "cancel_reconciler": 0,
        "orphan_reconciler": 0,
        "flow_projector": 0,
        "index_reconciler": 0,
        "retention_trimmer": 0,
    }
    assert (await probe.execution(fresh)).lifecycle_phase == "submitted", "nothing moves it but a claim"
    states = [(await probe.execution(eid)).public_state for eid in (doomed, delayed, timed, leased, promised)]
    assert states == ["expired", "waiting", "expired", "waiting", "waiting"]
    async with unchanged(probe):
        assert set((await engine.run_due()).values()) == {0}


async def test_timers_by_name(engine: Engine) -> None:
    for timer in TIMERS:
        assert await engine.run_timer(timer.name) == 0
    with pytest.raises(Validation) as caught:
        await engine.run_timer("nobody")
    assert caught.value.kind is ValidationKind.INVALID_INPUT


@pytest.mark.parametrize(
    "wanted",
    [
        ScannerFilter(namespace="mine"),
        ScannerFilter(instance_tag=("zone.name", "a")),
        ScannerFilter("mine", ("zone.name", "a")),
    ],
)
async def test_a_filter_narrows_every_timer(open_engine: Any, clock: ManualClock, wanted: ScannerFilter) -> None:
    """A missing value never matches."""
    engine = await open_engine()
    engine.start_timers(dict.fromkeys((timer.name for timer in TIMERS if timer.by_itself), 0), wanted)
    probe = Probe(engine)
    mine = await create(engine, lane_id="a", namespace="mine", tags={"zone.name": "a"})
    theirs = await create(engine, lane_id="a", namespace="theirs", tags={"zone.name": "b"})
    untagged = await create(engine, lane_id="a", namespace="")
    assert await engine.run_timer("intake") == 1
    leases = [await engine.claim("a", (), policy(ttl_ms=5)) for _ in range(3)]
    assert None not in leases
    clock.advance(5)
    assert await engine.run_timer("lease_expiry") == 1
    assert await probe.stored(theirs) == await probe.stored(untagged) == RUNNING
    assert (await probe.execution(mine)).lifecycle_phase == "runnable"
