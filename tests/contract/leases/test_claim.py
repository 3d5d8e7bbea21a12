"""``claim`` and ``claim_many``: what a claim writes, which execution it takes, and what it leaves alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from flowfabric import BackendTag, ExecutionId, Handle, HandleKind, HandlePayload, LaneId, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, LeaseEvent, OperatorEvent
from flowfabric.model.operations.executions import AttemptSummary, LeaseSummary
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
    shared_stores_only,
    unchanged,
)
from tests.contract.seeding import alter

TAGS = {
    "memory": BackendTag.MEMORY,
    "sqlite": BackendTag.SQLITE,
    "postgres": BackendTag.POSTGRES,
    "valkey": BackendTag.VALKEY,
}
LANE = "lane"


async def claim(engine: Engine, *capabilities: str) -> Handle | None:
    return await engine.claim(LANE, capabilities, policy())


async def claim_all(engine: Engine, *capabilities: str) -> list[ExecutionId]:
    """Everything there is to claim, one by one."""
    found = []
    while (handle := await claim(engine, *capabilities)) is not None:
        found.append(id_of(handle))
    return found


# -------------------------------------------------------------------------------------------------- what a claim writes


@pytest.mark.parametrize("promoted", [False, True], ids=["submitted", "runnable"])
async def test_a_first_claim(engine: Engine, probe: Probe, clock: ManualClock, promoted: bool) -> None:
    eid = await create(engine, lane_id=LANE, namespace="tenant", tags={"cairn.instance_id": "i-7"})
    if promoted:
        assert await engine.promote_submitted() == 1
    now = clock.advance(50)
    handle = await engine.claim(LANE, (), policy("w1-i1", "w1", 30_000))
    assert handle is not None
    assert (handle.kind, handle.backend) == (HandleKind.FRESH, TAGS[engine.backend_label])
    [attempt] = await probe.attempts(eid)
    assert payload_of(handle) == HandlePayload(eid, 0, attempt.attempt_id, attempt.lease_id, 1, 30_000, LANE, "w1-i1")
    assert len({UUID(attempt.attempt_id or ""), UUID(attempt.lease_id or "")}) == 2
    assert (attempt.attempt_index, attempt.worker_id, attempt.worker_instance_id) == (0, "w1", "w1-i1")
    assert (attempt.lease_epoch, attempt.lease_expires_at_ms, attempt.started_at_ms) == (1, now + 30_000, now)
    assert (attempt.terminal_at_ms, attempt.outcome, attempt.attempt_type) == (None, None, "initial")
    assert attempt.attempt_timeout_at_ms is None
    row = await probe.execution(eid)
    assert await probe.stored(eid) == RUNNING
    assert await probe.vector(eid) == (
        "active",
        "leased",
        "not_applicable",
        "running_attempt",
        "active",
        "none",
        "none",
    )
    assert (row.attempt_index, row.total_attempt_count, row.lease_reclaim_count) == (0, 1, 0)
    assert (row.created_at_ms, row.started_at_ms, row.last_mutation_at_ms) == (START_MS, now, now)
    lease_id = probe.lease_id(eid, 0, 1)
    assert await probe.events(LeaseEvent) == [
        LeaseEvent(eid.partition, eid.uuid_text, lease_id, "acquired", now, "tenant", "i-7", "w1-i1", None)
    ]
    assert await probe.events(CompletionEvent) == await probe.events(OperatorEvent) == []
    shown = await engine.describe_execution(eid)
    assert shown is not None
    assert shown.current_attempt == AttemptSummary(attempt.attempt_id, 0)
    assert shown.current_lease == LeaseSummary(1, "w1-i1", now + 30_000, lease_id, 0, now)
    assert (shown.blocking_reason, shown.total_attempt_count, shown.last_mutation_at) == (None, 1, now)


async def test_nothing_to_claim(engine: Engine, probe: Probe) -> None:
    await create(engine, lane_id="other")
    async with unchanged(probe):
        assert await engine.claim(LANE, ("gpu",), policy()) is None
        assert await engine.claim_many(LANE, (), policy(), 10) == []


async def test_the_attempt_timer_is_armed_from_the_policy(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, policy={"timeout_policy": {"attempt_timeout_ms": 7_000}})
    [attempt] = await probe.attempts(id_of(handle))
    assert attempt.attempt_timeout_at_ms == START_MS + 7_000


async def test_a_retry_is_a_new_attempt(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Started once, counted twice, and the next epoch over the whole execution."""
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    await engine.fail(handle, "boom")
    now = clock.advance(1_000)
    second = await engine.claim(LANE, (), policy("w2-i1", "w2", 5_000))
    assert second is not None
    assert (second.kind, payload_of(second).attempt_index, payload_of(second).lease_epoch) == (HandleKind.FRESH, 1, 2)
    first, latest = await probe.attempts(eid)
    assert (first.outcome, first.lease_epoch, first.attempt_type) == ("retry", 1, "initial")
    assert (latest.outcome, latest.lease_epoch, latest.attempt_type) == (None, 2, "retry")
    assert (latest.started_at_ms, latest.lease_expires_at_ms, latest.worker_id) == (now, now + 5_000, "w2")
    row = await probe.execution(eid)
    assert (row.attempt_index, row.total_attempt_count, row.started_at_ms) == (1, 2, START_MS)
    assert (row.pending_retry_reason, row.pending_previous_attempt_index) == (None, None)
    assert await probe.stored(eid) == RUNNING
    assert await probe.lease_events(eid) == ["acquired", "revoked", "acquired"]
    assert (await probe.events(LeaseEvent, eid))[-1].lease_id == probe.lease_id(eid, 1, 2)


async def test_a_replay_starts_the_same_row_again(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE)
    eid = id_of(handle)
    await engine.complete(handle, b"result")
    await engine.replay_execution(execution_id=eid)
    now = clock.advance(1_000)
    again = await claim(engine)
    assert again is not None
    assert (again.kind, payload_of(again).attempt_index, payload_of(again).lease_epoch) == (HandleKind.FRESH, 0, 3)
    [attempt] = await probe.attempts(eid)
    assert (attempt.attempt_type, attempt.started_at_ms, attempt.outcome) == ("replay", now, None)
    row = await probe.execution(eid)
    assert (row.total_attempt_count, row.started_at_ms) == (2, START_MS)


@pytest.mark.parametrize("how", ["delay", "revoke", "expire"])
async def test_an_interrupted_attempt_is_continued(engine: Engine, probe: Probe, clock: ManualClock, how: str) -> None:
    handle = await claimed(engine, lane_id=LANE, ttl_ms=1_000)
    eid = id_of(handle)
    now = clock.advance(1_000 if how == "expire" else 500)
    if how == "delay":
        await engine.delay(handle, now)
        await engine.promote_delayed(execution_id=eid)
    elif how == "revoke":
        await engine.revoke_lease(execution_id=eid)
    else:
        await engine.mark_lease_expired_if_due(None, eid)
    taken = 0 if how == "delay" else 1
    again = await engine.claim(LANE, (), policy("w2-i1", "w2", 9_000))
    assert again is not None
    assert (again.kind, payload_of(again).attempt_index) == (HandleKind.RESUMED, 0)
    assert payload_of(again).lease_epoch == 2 + taken
    [attempt] = await probe.attempts(eid)
    assert (attempt.attempt_type, attempt.outcome, attempt.terminal_at_ms) == ("initial", None, None)
    assert (attempt.worker_id, attempt.worker_instance_id) == ("w2", "w2-i1")
    assert (attempt.started_at_ms, attempt.lease_expires_at_ms) == (now, now + 9_000)
    row = await probe.execution(eid)
    assert (row.total_attempt_count, row.started_at_ms, row.attempt_index) == (1, START_MS, 0)
    assert await probe.stored(eid) == RUNNING
    assert (await probe.lease_events(eid))[-1] == "acquired"


# --------------------------------------------------------------------------------------------- which execution it takes


async def test_order_over_the_whole_lane(engine: Engine, clock: ManualClock) -> None:
    """Priority, then age, then id; partitions play no part."""
    rng = random.Random(7)
    made = []
    for _ in range(4):
        clock.advance(1)
        for priority in rng.sample([0, 0, 5, 5, 9000], 5):
            partition = rng.randrange(engine.partitions.flow)
            eid = ExecutionId.of(partition, str(UUID(int=rng.getrandbits(128))))
            await create(engine, execution_id=eid, lane_id=LANE, priority=priority)
            made.append((-priority, clock.now_ms, eid.uuid_text, eid))
    in_order = [entry[-1] for entry in sorted(made)]
    assert list(await engine.scan_eligible_executions(LANE)) == in_order
    first = [id_of(handle) for handle in await engine.claim_many(LANE, ("any",), policy(), 7)]
    assert first == in_order[:7]
    assert await claim_all(engine) == in_order[7:]


async def test_promotion_and_priority_keep_one_order(engine: Engine, clock: ManualClock) -> None:
    """Submitted and runnable rows stand in the same queue; a retry keeps its place."""
    old = await create(engine, lane_id=LANE)
    await engine.promote_submitted()
    clock.advance(1)
    young = await create(engine, lane_id=LANE)
    handle = await claim(engine)
    assert handle is not None
    assert id_of(handle) == old
    await engine.fail(handle, "again")
    assert await claim_all(engine) == [old, young]


@pytest.mark.parametrize(
    ("required", "offered", "taken"),
    [
        ([], [], True),
        ([], ["gpu"], True),
        (["gpu"], [], False),
        (["gpu"], ["gpu"], True),
        (["gpu"], ["cpu"], False),
        (["gpu"], ["GPU"], False),
        (["gpu"], ["gpu2", "gp"], False),
        (["arm64", "gpu"], ["gpu"], False),
        (["arm64", "gpu"], ["gpu", "arm64"], True),
        (["arm64", "gpu"], ["gpu", "zz", "arm64", "aa"], True),
        (["ümlaut"], ["ümlaut"], True),
    ],
)
async def test_capabilities_must_be_covered(
    engine: Engine, probe: Probe, required: list[str], offered: list[str], taken: bool
) -> None:
    eid = await create(engine, lane_id=LANE, policy=needing(*required))
    if taken:
        handle = await claim(engine, *offered)
        assert handle is not None
        assert id_of(handle) == eid
        return
    async with unchanged(probe):
        assert await claim(engine, *offered) is None


async def test_two_thousand_mismatches_hide_nothing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    mismatches = [{"lane_id": LANE, "priority": 9000, "policy": needing(f"token-{n % 50}")} for n in range(2_000)]
    passed = await engine.create_executions(mismatches)
    clock.advance(1)
    plain = await create(engine, lane_id=LANE)
    able = await create(engine, lane_id=LANE, policy=needing("gpu", "token-0"))
    before = [await probe.execution(passed[n].execution_id) for n in (0, 1_999)]
    handle = await claim(engine, "gpu")
    assert handle is not None
    assert id_of(handle) == plain
    assert await claim(engine, "gpu") is None
    grant = await engine.claim_for_worker(
        lane_id=LANE, worker_id="w", worker_instance_id="i", worker_capabilities=["none"]
    )
    assert type(grant).__name__ == "NoWork"
    assert [await probe.execution(passed[n].execution_id) for n in (0, 1_999)] == before
    # Whoever offers more still takes the oldest of the highest priority first.
    rows = await engine.claim_many(LANE, ("gpu", "token-0"), policy(), 41)
    assert [id_of(each) for each in rows[:-1]] == sorted(
        (answer.execution_id for answer in passed[::50]), key=lambda each: each.uuid_text
    )
    assert id_of(rows[-1]) == able


async def test_a_lower_match_behind_a_higher_mismatch(engine: Engine, probe: Probe) -> None:
    high = await create(engine, lane_id=LANE, priority=100, policy=needing("gpu"))
    low = await create(engine, lane_id=LANE, priority=1)
    before = await probe.execution(high)
    handle = await claim(engine, "cpu")
    assert handle is not None
    assert id_of(handle) == low
    assert await probe.execution(high) == before


NOT_CLAIMABLE = ["delayed", "blocked", "granted", "running", "expired_lease", "ended", "cancelled"]


@pytest.mark.parametrize("state", NOT_CLAIMABLE)
async def test_what_is_no_candidate(engine: Engine, probe: Probe, clock: ManualClock, state: str) -> None:
    eid = await create(engine, lane_id=LANE, delay_until=START_MS + 1 if state == "delayed" else None)
    if state == "blocked":
        await engine.block_execution_for_admission(execution_id=eid, reason="paused_by_operator")
    elif state == "granted":
        await engine.claim_for_worker(lane_id=LANE, worker_id="w", worker_instance_id="i")
    elif state in ("running", "expired_lease", "ended"):
        handle = await claim(engine)
        assert handle is not None
        if state == "expired_lease":
            clock.advance(30_000)
        elif state == "ended":
            await engine.complete(handle, None)
    elif state == "cancelled":
        await engine.cancel_execution(execution_id=eid)
    async with unchanged(probe):
        assert await claim(engine, "any") is None
        assert await engine.scan_eligible_executions(LANE) == ()


async def test_a_due_delay_needs_promotion(engine: Engine, clock: ManualClock) -> None:
    """The promoter makes a delayed row claimable; until then it is none of the claim's candidates."""
    eid = await create(engine, lane_id=LANE, delay_until=START_MS + 5)
    clock.advance(5)
    assert await claim(engine) is None
    assert await engine.run_timer("delayed_promoter") == 1
    assert await claim_all(engine) == [eid]


# ------------------------------------------------------------------------------------------------------ many, and races


async def test_many_in_one_call(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    made = []
    for _ in range(5):
        made.append(await create(engine, lane_id=LANE))
        clock.advance(1)
    handles = await engine.claim_many(LANE, (), policy("w9-i9", "w9", 1_000), 3)
    assert [id_of(handle) for handle in handles] == made[:3]
    assert {handle.kind for handle in handles} == {HandleKind.FRESH}
    payloads = [payload_of(handle) for handle in handles]
    assert len({each.lease_id for each in payloads} | {each.attempt_id for each in payloads}) == 6
    events = await probe.events(LeaseEvent)
    assert [(event.event_type, event.uuid, event.worker_instance_id) for event in events] == [
        ("acquired", eid.uuid_text, "w9-i9") for eid in made[:3]
    ]
    for eid in made[:3]:
        assert await probe.stored(eid) == RUNNING
    assert len(await engine.claim_many(LANE, (), policy(), 1_000)) == 2


async def test_concurrent_claims_never_share(engine: Engine) -> None:
    await engine.create_executions([{"lane_id": LANE}] * 30)
    found = await asyncio.gather(
        *(engine.claim_many(LANE, (), policy(f"i{n}"), 2) for n in range(10)),
        *(engine.claim(LANE, ("cap",), policy(f"j{n}")) for n in range(20)),
    )
    handles = [each for item in found for each in (item if isinstance(item, list) else [item]) if each is not None]
    assert len(handles) == 30
    assert len({id_of(handle) for handle in handles}) == 30


@shared_stores_only
async def test_claims_of_two_processes_never_share(engine: Engine, open_engine: Any) -> None:
    other = await open_engine()
    await engine.create_executions([{"lane_id": LANE}] * 40)
    found = await asyncio.gather(*(each.claim(LANE, (), policy()) for each in (engine, other) * 25))
    taken = [id_of(handle) for handle in found if handle is not None]
    assert len(taken) == len(set(taken)) == 40


async def test_create_and_claim_at_the_same_time(engine: Engine) -> None:
    """In one batch a claim sees what was created before it, and nobody sees anything twice."""
    creates = [engine.create_execution(lane_id=LANE, priority=n) for n in range(10)]
    claims = [claim(engine) for _ in range(10)]
    answers = await asyncio.gather(*(each for pair in zip(creates, claims, strict=True) for each in pair))
    early = [id_of(handle) for handle in answers[1::2] if handle is not None]
    late = await claim_all(engine)
    assert sorted(early + late) == sorted(answer.execution_id for answer in answers[::2])


@pytest.mark.parametrize(
    ("arguments", "kind", "detail"),
    [
        ((LANE, ["a b"], policy()), ValidationKind.INVALID_CAPABILITIES, "worker:control_or_whitespace"),
        ((LANE, [""], policy()), ValidationKind.INVALID_CAPABILITIES, "worker:empty_token"),
        ((LANE, ["a,b"], policy()), ValidationKind.INVALID_CAPABILITIES, "worker:comma_in_token"),
        ((LANE, [1], policy()), ValidationKind.INVALID_CAPABILITIES, "worker:non_string_token"),
        ((LANE, "gpu", policy()), ValidationKind.INVALID_CAPABILITIES, "worker:not_array"),
        (
            (LANE, [f"t{n}" for n in range(257)], policy()),
            ValidationKind.INVALID_CAPABILITIES,
            "worker:too_many_tokens",
        ),
        ((LANE, ["x" * 4097], policy()), ValidationKind.INVALID_CAPABILITIES, "worker:too_many_bytes"),
        (("", (), policy()), ValidationKind.INVALID_INPUT, None),
        ((LANE, (), None), ValidationKind.INVALID_INPUT, None),
        ((LANE, (), policy(ttl_ms=0)), ValidationKind.INVALID_INPUT, None),
        ((LANE, (), policy(instance="")), ValidationKind.INVALID_INPUT, None),
        ((LANE, (), policy(worker="")), ValidationKind.INVALID_INPUT, None),
    ],
)
async def test_bad_input(
    engine: Engine, probe: Probe, arguments: tuple[Any, ...], kind: ValidationKind, detail: str | None
) -> None:
    await create(engine, lane_id=LaneId(LANE))
    async with refused(probe, Validation, kind, detail):
        await engine.claim(*arguments)


async def test_the_largest_requirement_set_is_stored_and_claimed(engine: Engine) -> None:
    """Sets may be larger than an index entry of some stores."""
    tokens = [f"{number:03}-{number * 7919 % 10**9:09}-{number * 104729 % 10**1:01}" for number in range(256)]
    policy_of_many = {"routing_requirements": {"required_capabilities": tokens}}
    assert 3_500 < len(",".join(tokens)) <= 4_096
    created = await create(engine, lane_id="many", policy=policy_of_many)
    assert await engine.claim("many", tokens[:-1], policy()) is None
    handle = await engine.claim("many", tokens, policy())
    assert handle is not None
    assert handle.execution_id == created


@shared_stores_only
async def test_a_policy_nobody_can_read_does_not_stop_the_lane(engine: Engine) -> None:
    """A row written by hand at the head of the queue is served like any other."""
    broken = await create(engine, lane_id="hand", priority=9, policy={})
    healthy = await create(engine, lane_id="hand")
    await alter(engine, broken, policy="[]")
    handles = await engine.claim_many("hand", (), policy(), 2)
    assert [handle.execution_id for handle in handles] == [broken, healthy]
