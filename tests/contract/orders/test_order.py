"""In the order in which it happened: what is created first is claimed first, also within one millisecond."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from flowfabric import BackfillResult, Every, ExecutionId, FlowGraph, FlowId, FlowSubmitted
from flowfabric.ascending import ascending_uuid
from flowfabric.core.flows.submit import name_uuid
from flowfabric.engine import Engine
from flowfabric.model.decisions import BLOCKED, Listed
from flowfabric.model.operations.schedules import former_slot_uuid
from flowfabric.model.records.starts import EnqueueRequest
from tests.contract import seeding
from tests.contract.probe import (
    START_MS,
    ManualClock,
    Probe,
    create,
    id_of,
    needing,
    payload_of,
    policy,
    sql_stores_only,
    unchanged,
)

LANE = "lane"
HOUR = 3_600_000
MANY = 40


async def claimed_one_by_one(engine: Engine) -> list[ExecutionId]:
    """The executions of the lane in the order in which single claims get them."""
    found = []
    while (handle := await engine.claim(LANE, (), policy())) is not None:
        found.append(id_of(handle))
    return found


async def quiet(engine: Engine) -> None:
    """Until nothing goes on by itself."""
    while engine._going_on:
        await asyncio.gather(*engine._going_on)


# -- first in, first out ----------------------------------------------------------------------------------------------


async def test_bulk_and_single_creates(engine: Engine) -> None:
    made = [await create(engine, lane_id=LANE) for _ in range(5)]
    made += [each.execution_id for each in await engine.create_executions([{"lane_id": LANE}] * MANY)]
    made += [await create(engine, lane_id=LANE) for _ in range(5)]
    assert await claimed_one_by_one(engine) == made


async def test_ids_that_others_mint(engine: Engine) -> None:
    made = [ExecutionId.solo(LANE, engine.partitions) for _ in range(10)]
    for each in made:
        await create(engine, execution_id=each, lane_id=LANE)
    assert await claimed_one_by_one(engine) == made


async def test_members_of_flows_in_the_order_of_the_nodes(engine: Engine) -> None:
    nodes = {f"node {n}": {"lane_id": LANE} for n in random.Random(1).sample(range(MANY), MANY)}
    flows = [await engine.submit_flow(FlowGraph(nodes, [])) for _ in range(3)]
    assert await claimed_one_by_one(engine) == [each for flow in flows for each in flow.execution_ids.values()]


async def test_missed_slots_oldest_first(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await engine.put_schedule(
        "s", spec=Every(HOUR), execution_kind="op", lane_id=LANE, overlap="queue", catch_up="all", catch_up_limit=20
    )
    clock.advance(15 * HOUR)
    await engine.run_timer("schedules")
    made = await claimed_one_by_one(engine)
    slots = [int((await probe.raw_fields(each))["tags"]["flowfabric.slot_ms"]) for each in made]
    assert len(slots) >= 14
    assert slots == sorted(slots)


async def test_past_slots_oldest_first(engine: Engine) -> None:
    await engine.put_schedule("s", spec=Every(HOUR), execution_kind="op", lane_id=LANE, overlap="queue")
    answer = await engine.backfill_schedule("s", START_MS - 20 * HOUR, START_MS)
    assert isinstance(answer, BackfillResult.Started)
    assert await claimed_one_by_one(engine) == list(answer.execution_ids)


async def test_requests_in_the_order_they_were_made(engine: Engine) -> None:
    """Made minutes apart, by several processes, and taken up in one go."""
    drafts = [engine.draft_request({"lane_id": LANE}) for _ in range(MANY)]
    for n, draft in enumerate(drafts):
        at_ms = START_MS - (MANY - n) // 3 * 60_000
        await seeding.seed(engine, EnqueueRequest(draft.request_id, at_ms, draft.execution_id, draft.command))
    assert await engine.run_timer("enqueue_requests") == MANY
    assert await claimed_one_by_one(engine) == [draft.execution_id for draft in drafts]


async def test_a_refused_request_holds_nobody_up(engine: Engine) -> None:
    drafts = [engine.draft_request({"lane_id": LANE}) for _ in range(6)]
    for n, draft in enumerate(drafts):
        command = draft.command if n != 2 else '{"nonsense": 1}'
        await seeding.seed(engine, EnqueueRequest(draft.request_id, 5, draft.execution_id, command))
    assert await engine.run_timer("enqueue_requests") == 6
    assert [each.request_id for each in (await engine.list_requests(refused=True)).requests] == [drafts[2].request_id]
    assert await claimed_one_by_one(engine) == [each.execution_id for each in drafts[:2] + drafts[3:]]


@sql_stores_only
async def test_requests_left_by_sql(engine: Engine) -> None:
    if engine.backend_label != "postgres":
        pytest.skip("SQLite has no functions to store")
    async with engine.store.raw() as connection:
        left = [await connection.fetchval("""SELECT ff_enqueue('{"lane_id": "lane"}')::text""") for _ in range(MANY)]
    assert await engine.run_timer("enqueue_requests") == MANY
    assert [each.uuid_text for each in await claimed_one_by_one(engine)] == left


async def test_leases_and_attempts_ascend(engine: Engine) -> None:
    await engine.create_executions([{"lane_id": LANE}] * 6)
    handles = [*await engine.claim_many(LANE, (), policy(), 3), *await engine.claim_many(LANE, (), policy(), 3)]
    for name in ("lease_id", "attempt_id"):
        ids = [getattr(payload_of(handle), name) for handle in handles]
        assert ids == sorted(ids)


# -- who waits for room ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fair", [False, True])
async def test_a_quota_lets_go_in_the_order_of_the_lane(engine: Engine, fair: bool) -> None:
    quota = ascending_uuid()
    await engine.create_quota_policy(quota_policy_id=quota, window_seconds=60, max_concurrent=1)
    if fair:
        await engine.set_lane_fairness(LANE, "namespace")
    item = {"lane_id": LANE, "policy": {"quota_policy_id": quota}}
    made = [await create(engine, **item, namespace=name) for name in "aaaabb"]
    assert [id_of(each) for each in await engine.claim_many(LANE, (), policy(), 10)] == made[:1]
    waiting = (await engine._view(Listed(BLOCKED, quota, 10))).listed(BLOCKED, quota, 10)
    order = [4, 1, 5, 2, 3] if fair else range(1, 6)
    assert [each.execution_id for each in waiting] == [made[n] for n in order]


async def test_work_blocked_by_route_is_not_passed_over(engine: Engine, probe: Probe) -> None:
    """Among many rows of one millisecond, those that somebody can run are all found."""
    wanted = [{"lane_id": LANE, "policy": needing("gpu" if n % 9 == 4 else "nobody")} for n in range(90)]
    made = [each.execution_id for each in await engine.create_executions(wanted)]
    shuffled = random.Random(2).sample(made, len(made))
    await asyncio.gather(*(engine.block_route(execution_id=each) for each in shuffled))
    await engine.register_worker(
        worker_id="able", worker_instance_id="able", lanes=[LANE], capabilities=["gpu"], liveness_ttl_ms=60_000
    )
    await quiet(engine)
    for n in range(4, 90, 9):
        await engine.block_route(execution_id=made[n])
    freed = [await engine.run_timer("unblock", 5) for _ in range(3)]
    assert freed == [5, 5, 0]


# -- what earlier releases have made -----------------------------------------------------------------------------------


async def test_a_flow_of_an_earlier_release_is_recognised(engine: Engine, probe: Probe) -> None:
    flow = FlowId.new()
    partition = ExecutionId.for_flow(flow, engine.partitions).partition
    ids = {name: ExecutionId.of(partition, name_uuid(flow.uuid.bytes, name)) for name in "abc"}
    nodes: dict[str, Any] = {name: {"execution_id": each} for name, each in ids.items()}
    assert await engine.submit_flow(FlowGraph(nodes, [("a", "b")], flow_id=flow)) == FlowSubmitted(flow, ids)
    async with unchanged(probe):
        repeated = FlowGraph({name: {} for name in "abc"}, [("a", "b")], flow_id=flow)
        assert await engine.submit_flow(repeated) == FlowSubmitted(flow, ids)


async def test_a_slot_of_an_earlier_release_is_recognised(engine: Engine, clock: ManualClock) -> None:
    await engine.put_schedule("s", spec=Every(HOUR), execution_kind="op", lane_id=LANE, overlap="queue")
    slot = START_MS - START_MS % HOUR - 2 * HOUR
    before = await create(engine, execution_id=ExecutionId.of(0, former_slot_uuid("default", "s", slot)), lane_id=LANE)
    partition = ExecutionId.solo(LANE, engine.partitions).partition
    if partition:
        before = await create(engine, execution_id=ExecutionId.of(partition, before.uuid_text), lane_id=LANE)
    answer = await engine.backfill_schedule("s", slot, slot + 2 * HOUR)
    assert isinstance(answer, BackfillResult.Started)
    assert (len(answer.execution_ids), answer.existing) == (1, 1)
    runs = {each.slot_ms: each.execution_id for each in (await engine.list_schedule_runs("s")).past}
    assert runs[slot] == before
