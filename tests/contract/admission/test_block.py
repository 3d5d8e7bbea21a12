"""Keeping an execution out of the queue for a reason, and letting it go again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import (
    Blocked,
    Contention,
    ContentionKind,
    HandleKind,
    NotFound,
    NoWork,
    PublicState,
    Rejected,
    Unblocked,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from tests.contract import seeding
from tests.contract.probe import (
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
MISSING = "{fp:0}:11111111-1111-4111-8111-111111111111"
FREE = ("runnable", "unowned", "eligible_now", "pending", "waiting", "waiting_for_worker")
REASONS = [
    ("waiting_for_budget", "blocked_by_budget", "rate_limited"),
    ("waiting_for_quota", "blocked_by_quota", "rate_limited"),
    ("waiting_for_capable_worker", "blocked_by_route", "waiting"),
    ("paused_by_operator", "blocked_by_operator", "waiting"),
    ("paused_by_policy", "blocked_by_lane_state", "waiting"),
]


async def block(engine: Engine, eid: str, reason: str = "paused_by_operator", detail: str = "") -> Any:
    return await engine.block_execution_for_admission(execution_id=eid, reason=reason, detail=detail)


async def register(engine: Engine, instance: str, *capabilities: str, lanes: tuple[str, ...] = (LANE,)) -> None:
    await engine.register_worker(
        worker_id=instance, worker_instance_id=instance, lanes=lanes, capabilities=capabilities, liveness_ttl_ms=1_000
    )


# ------------------------------------------------------------------------------------------------------------- blocking


@pytest.mark.parametrize("promoted", [False, True], ids=["submitted", "runnable"])
@pytest.mark.parametrize(("reason", "eligibility", "public"), REASONS)
async def test_block_and_unblock(
    engine: Engine, probe: Probe, clock: ManualClock, reason: str, eligibility: str, public: str, promoted: bool
) -> None:
    eid = await create(engine, lane_id=LANE)
    if promoted:
        await engine.promote_submitted()
    now = clock.advance(5)
    assert await block(engine, eid, reason, "because") == Blocked(eid, eligibility, reason)
    assert await probe.stored(eid) == ("runnable", "unowned", eligibility, "pending", public, reason)
    assert (await probe.vector(eid))[2:6] == (eligibility, "pending_first_attempt", public, reason)
    row = await probe.execution(eid)
    assert (row.blocking_detail, row.last_mutation_at_ms) == ("because", now)
    info = await engine.read_execution_info(eid)
    assert info is not None
    assert info.blocking_detail == "because"
    async with unchanged(probe):
        assert await engine.claim(LANE, (), policy()) is None
        assert await engine.claim_for_worker(lane_id=LANE, worker_id="w", worker_instance_id="i") == NoWork()
        assert await engine.scan_eligible_executions(LANE) == ()
    later = clock.advance(5)
    answer = await engine.unblock_execution(execution_id=eid, expected_blocking_reason=reason)
    assert answer == Unblocked(eid, PublicState.WAITING)
    assert await probe.stored(eid) == FREE
    row = await probe.execution(eid)
    assert (row.blocking_detail, row.last_mutation_at_ms) == (None, later)
    assert await probe.lease_events(eid) == []
    assert await probe.operator_events(eid) == []
    handle = await engine.claim(LANE, (), policy())
    assert handle is not None
    assert (await probe.execution(eid)).blocking_reason is None


async def test_block_route(engine: Engine, probe: Probe) -> None:
    eid = await create(engine, lane_id=LANE)
    answer = await engine.block_route(execution_id=eid, detail="nobody has a gpu")
    assert answer == Blocked(eid, "blocked_by_route", "waiting_for_capable_worker")
    shown = await engine.describe_execution(eid)
    assert shown is not None
    assert (shown.blocking_reason, shown.blocking_detail) == ("waiting_for_capable_worker", "nobody has a gpu")


@pytest.mark.parametrize(
    "reason", ["", "none", "waiting_for_worker", "waiting_for_children", "Paused_by_operator", "x"]
)
async def test_reasons_that_do_not_block(engine: Engine, probe: Probe, reason: str) -> None:
    eid = await create(engine, lane_id=LANE)
    async with refused(probe, Validation, ValidationKind.INVALID_BLOCKING_REASON):
        await block(engine, eid, reason)


async def test_blocking_nothing(engine: Engine, probe: Probe) -> None:
    async with refused(probe, NotFound, "execution"):
        await block(engine, MISSING)
    async with refused(probe, NotFound, "execution"):
        await engine.unblock_execution(execution_id=MISSING)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("completed", "execution_not_active"),
        ("cancelled", "execution_not_active"),
        ("active", "execution_not_eligible"),
        ("suspended", "execution_not_eligible"),
    ],
)
async def test_a_rejection_is_an_answer(engine: Engine, probe: Probe, state: str, text: str) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    if state == "completed":
        await engine.complete(handle, None)
    elif state == "cancelled":
        await engine.cancel_execution(execution_id=eid)
    elif state == "suspended":
        await seeding.alter(engine, eid, lifecycle_phase="suspended")
    async with unchanged(probe):
        assert await block(engine, eid) == Rejected(text)
        assert await engine.block_route(execution_id=eid) == Rejected(text)


async def test_a_block_takes_an_outstanding_grant_along(engine: Engine, probe: Probe) -> None:
    eid = await create(engine, lane_id=LANE)
    await engine.claim_for_worker(lane_id=LANE, worker_id="w", worker_instance_id="i")
    await block(engine, eid)
    assert await probe.grants(eid) == []


@pytest.mark.parametrize("how", ["retry", "interrupted"])
async def test_the_attempt_state_is_kept(engine: Engine, probe: Probe, how: str) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    if how == "retry":
        await engine.fail(handle, "boom")
    else:
        await engine.revoke_lease(execution_id=eid)
    state = "pending_retry_attempt" if how == "retry" else "attempt_interrupted"
    await block(engine, eid)
    assert (await probe.execution(eid)).attempt_state == state
    await engine.unblock_execution(execution_id=eid)
    assert await probe.stored(eid) == (*FREE[:3], state, *FREE[4:])
    again = await engine.claim(LANE, (), policy())
    assert again is not None
    assert again.kind is (HandleKind.FRESH if how == "retry" else HandleKind.RESUMED)


async def test_a_block_ends_a_delay(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Unblocked, it is eligible at once; in between its old wake time moves nothing."""
    eid = await create(engine, lane_id=LANE, delay_until=START_MS + 10)
    await block(engine, eid)
    assert (await probe.execution(eid)).delay_until_ms is None
    clock.advance(10)
    async with unchanged(probe):
        assert await engine.run_timer("delayed_promoter") == 0
    await engine.unblock_execution(execution_id=eid)
    assert await probe.stored(eid) == FREE


async def test_blocked_work_keeps_its_place(engine: Engine, clock: ManualClock) -> None:
    made = []
    for _ in range(3):
        made.append(await create(engine, lane_id=LANE))
        clock.advance(1)
    await block(engine, made[0])
    await engine.unblock_execution(execution_id=made[0])
    assert await engine.scan_eligible_executions(LANE) == tuple(made)


# ----------------------------------------------------------------------------------------------------------- unblocking


@pytest.mark.parametrize("expected", ["waiting_for_quota", "paused_by_policy", "none"])
async def test_the_expected_reason_must_fit(engine: Engine, probe: Probe, expected: str) -> None:
    eid = await create(engine, lane_id=LANE)
    await block(engine, eid)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ELIGIBLE):
        await engine.unblock_execution(execution_id=eid, expected_blocking_reason=expected)
    await engine.unblock_execution(execution_id=eid, expected_blocking_reason="")
    assert await probe.stored(eid) == FREE


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"eligibility_state": "blocked_by_dependencies"},
        {"eligibility_state": "not_eligible_until_time"},
        {"eligibility_state": "pending_claim"},
        {"eligibility_state": "blocked_by_operator", "lifecycle_phase": "active"},
        {"eligibility_state": "blocked_by_operator", "lifecycle_phase": "terminal"},
    ],
)
async def test_only_an_admission_block_is_lifted(engine: Engine, probe: Probe, fields: dict[str, str]) -> None:
    eid = await create(engine, lane_id=LANE)
    await seeding.alter(engine, eid, lifecycle_phase="runnable")
    await seeding.alter(engine, eid, **fields)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ELIGIBLE):
        await engine.unblock_execution(execution_id=eid)


# --------------------------------------------------------------------------------------------------- the unblock timer


async def test_a_worker_that_can_frees_it(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """One live worker of the lane must cover all of it: two halves make no whole."""
    eid = await create(engine, lane_id=LANE, policy=needing("gpu", "arm64"))
    await engine.block_route(execution_id=eid, detail="nobody")
    before = await probe.execution(eid)
    await register(engine, "half-1", "gpu")
    await register(engine, "half-2", "arm64")
    await register(engine, "elsewhere", "gpu", "arm64", lanes=("other",))
    assert await engine.run_timer("unblock") == 0
    assert await probe.execution(eid) == before
    await register(engine, "whole", "arm64", "gpu", "more", lanes=("x", LANE))
    assert await probe.stored(eid) == FREE, "arrival frees it at once"


async def test_a_dead_worker_frees_nothing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await register(engine, "able", "gpu")
    clock.advance(1_000)
    eid = await create(engine, lane_id=LANE, policy=needing("gpu"))
    await engine.block_route(execution_id=eid)
    assert await engine.run_timer("unblock") == 0
    await register(engine, "able", "gpu")
    assert await probe.stored(eid) == FREE


async def test_the_timer_finds_what_was_blocked_later(engine: Engine, probe: Probe) -> None:
    await register(engine, "able", "gpu")
    eid = await create(engine, lane_id=LANE, policy=needing("gpu"))
    await engine.block_route(execution_id=eid)
    assert await engine.run_timer("unblock") == 1
    assert await probe.stored(eid) == FREE


async def test_other_blocks_are_not_the_workers_business(engine: Engine, probe: Probe) -> None:
    made = {}
    for reason, eligibility, _ in REASONS:
        if reason != "waiting_for_capable_worker":
            made[eligibility] = await create(engine, lane_id=LANE)
            await block(engine, made[eligibility], reason)
    await register(engine, "able", "gpu")
    for eligibility, eid in made.items():
        assert (await probe.execution(eid)).eligibility_state == eligibility
    # The timer lets go what waits for room in budgets and quotas it does not even name; nobody else.
    assert await engine.run_timer("unblock") == 2
    for eligibility, eid in made.items():
        free = eligibility in ("blocked_by_budget", "blocked_by_quota")
        assert (await probe.execution(eid)).eligibility_state == ("eligible_now" if free else eligibility)


async def test_blocked_crowds_hide_nothing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """However many rows wait for what nobody offers, the ones behind them are freed, all of them."""
    crowd = await engine.create_executions([{"lane_id": LANE, "policy": needing("nobody")}] * 1_100)
    clock.advance(1)
    wanted = await engine.create_executions([{"lane_id": LANE, "policy": needing("gpu")}] * 1_050)
    await asyncio.gather(*(engine.block_route(execution_id=each.execution_id) for each in crowd + wanted))
    await register(engine, "able", "gpu")
    eligible = await engine.scan_eligible_executions(LANE, limit=1_000)
    assert len(eligible) == 1_000
    handles = await engine.claim_many(LANE, ("gpu", "nobody"), policy(), 1_000)
    handles += await engine.claim_many(LANE, ("gpu", "nobody"), policy(), 1_000)
    assert {id_of(handle) for handle in handles} == {each.execution_id for each in wanted}
    assert (await probe.execution(crowd[0].execution_id)).last_mutation_at_ms == START_MS + 1
