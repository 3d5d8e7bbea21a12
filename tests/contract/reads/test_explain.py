"""``explain``: every state an execution can be in has a gate, and the gate agrees with what is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import (
    AnyOf,
    ExecutionId,
    ExhaustedBudget,
    FailureClass,
    FullQuota,
    Gate,
    LeaseHolder,
    NotFound,
    OpenChildren,
    OpenDependencies,
    OpenSuspension,
    OpenWaitpoint,
    QueuePlace,
    Quorum,
)
from flowfabric.engine import Engine
from flowfabric.model.operations.workflows import ChildWait
from flowfabric.model.records.executions import Execution
from tests.contract.graphs import Flowing
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, needing, policy, unchanged
from tests.contract.seeding import seed
from tests.contract.suspending import asking

LANE = "lane"
State = tuple[str, str, str]


class World:
    """What the cases below build in."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock


async def fresh(w: World) -> ExecutionId:
    return await create(w.engine, lane_id=LANE)


async def queued(w: World) -> ExecutionId:
    eid = await create(w.engine, lane_id=LANE)
    await w.engine.run_timer("intake")
    return eid


async def running(w: World) -> ExecutionId:
    return id_of(await claimed(w.engine, lane_id=LANE))


async def overdue(w: World) -> ExecutionId:
    eid = id_of(await claimed(w.engine, lane_id=LANE, ttl_ms=10))
    w.clock.advance(10)
    return eid


async def requeued(w: World) -> ExecutionId:
    eid = await overdue(w)
    await w.engine.run_timer("lease_expiry")
    return eid


async def completed(w: World) -> ExecutionId:
    handle = await claimed(w.engine, lane_id=LANE)
    await w.engine.complete(handle)
    return id_of(handle)


async def failed(w: World) -> ExecutionId:
    handle = await claimed(w.engine, lane_id=LANE)
    await w.engine.fail(handle, "broken", FailureClass.PERMANENT)
    return id_of(handle)


async def cancelled(w: World) -> ExecutionId:
    eid = await fresh(w)
    await w.engine.cancel_execution(execution_id=eid, reason="enough")
    return eid


async def expired(w: World) -> ExecutionId:
    eid = await create(w.engine, lane_id=LANE, execution_deadline_at=w.clock.now_ms + 5)
    w.clock.advance(5)
    await w.engine.run_timer("execution_deadline")
    return eid


async def skipped(w: World) -> ExecutionId:
    flow = await Flowing.submit(w.engine, "ab", [("a", "b")])
    await flow.fail("a")
    return flow.members["b"]


async def delayed(w: World) -> ExecutionId:
    return await create(w.engine, lane_id=LANE, delay_until=w.clock.now_ms + 500)


async def stepped_back(w: World) -> ExecutionId:
    handle = await claimed(w.engine, lane_id=LANE)
    await w.engine.delay(handle, w.clock.now_ms + 500)
    return id_of(handle)


async def backing_off(w: World) -> ExecutionId:
    retry = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 500}}}
    handle = await claimed(w.engine, lane_id=LANE, policy=retry)
    await w.engine.fail(handle, "again")
    return id_of(handle)


async def promised(w: World) -> ExecutionId:
    eid = await fresh(w)
    await w.engine.claim_for_worker(lane_id=LANE, worker_id="w2", worker_instance_id="w2-i1", grant_ttl_ms=500)
    return eid


async def forgotten(w: World) -> ExecutionId:
    eid = await promised(w)
    w.clock.advance(500)
    return eid


async def replayed(w: World) -> ExecutionId:
    eid = await completed(w)
    await w.engine.replay_execution(execution_id=eid)
    return eid


def lane_in(state: str) -> Callable[[World], Awaitable[ExecutionId]]:
    async def make(w: World) -> ExecutionId:
        eid = await fresh(w)
        await w.engine.set_lane_state(LANE, state, "deploy")
        return eid

    return make


def blocked(reason: str) -> Callable[[World], Awaitable[ExecutionId]]:
    async def make(w: World) -> ExecutionId:
        eid = await fresh(w)
        await w.engine.block_execution_for_admission(execution_id=eid, reason=reason, detail="by hand")
        return eid

    return make


async def dependent(w: World) -> ExecutionId:
    return (await Flowing.submit(w.engine, "ab", [("a", "b")])).members["b"]


async def waiting_for_children(w: World) -> ExecutionId:
    flow = await Flowing.build(w.engine, "ab")
    handle = await flow.start("b")
    await flow.join("a", "b")
    await w.engine.wait_children(handle)
    return flow.members["b"]


async def suspended(w: World) -> ExecutionId:
    handle = await claimed(w.engine, lane_id=LANE)
    await w.engine.suspend(handle, asking())
    return id_of(handle)


async def out_of_budget(w: World) -> ExecutionId:
    return await budget_case(w, at_claim=True)


async def about_to_meet_its_budget(w: World) -> ExecutionId:
    return await budget_case(w, at_claim=False)


async def budget_case(w: World, *, at_claim: bool) -> ExecutionId:
    budget = str(uuid4())
    await w.engine.create_budget(budget_id=budget, dimensions=["tokens"], hard_limits=[10], soft_limits=[0])
    await w.engine.report_usage_admin(budget_id=budget, dimensions=["tokens"], deltas=[10])
    eid = await create(w.engine, lane_id=LANE, policy={"budget_ids": [budget]})
    if at_claim:
        assert await w.engine.claim(LANE, (), policy()) is None
    return eid


async def out_of_quota(w: World) -> ExecutionId:
    quota = str(uuid4())
    await w.engine.create_quota_policy(
        quota_policy_id=quota, window_seconds=60, max_requests_per_window=1, max_concurrent=0
    )
    for priority in (9, 1):
        eid = await create(w.engine, lane_id=LANE, priority=priority, policy={"quota_policy_id": quota})
    assert len(await w.engine.claim_many(LANE, (), policy(), 2)) == 1
    return eid


async def parent(w: World) -> ExecutionId:
    handle = await claimed(w.engine)
    eid = id_of(handle)
    children = [{"execution_id": f"{{fp:{eid.partition}}}:{uuid4()}", "lane_id": LANE} for _ in range(2)]
    awaited = tuple(each["execution_id"] for each in children)
    assert (await w.engine.advance(handle, children=children, wait=ChildWait(awaited, 2))).parked
    return eid


async def asleep(w: World) -> ExecutionId:
    handle = await claimed(w.engine)
    assert (await w.engine.advance(handle, wait=ChildWait((), 0, START_MS + 10))).parked
    return id_of(handle)


CASES: dict[str, tuple[Callable[[World], Awaitable[ExecutionId]], Gate]] = {
    case.__name__: (case, gate)
    for case, gate in (
        (fresh, Gate.WAITING_FOR_WORKER),
        (queued, Gate.WAITING_FOR_WORKER),
        (requeued, Gate.WAITING_FOR_WORKER),
        (forgotten, Gate.WAITING_FOR_WORKER),
        (replayed, Gate.WAITING_FOR_WORKER),
        (running, Gate.RUNNING),
        (overdue, Gate.LEASE_EXPIRED),
        (completed, Gate.TERMINAL),
        (failed, Gate.TERMINAL),
        (cancelled, Gate.TERMINAL),
        (expired, Gate.TERMINAL),
        (skipped, Gate.TERMINAL),
        (delayed, Gate.DELAYED),
        (stepped_back, Gate.DELAYED),
        (backing_off, Gate.RETRY_BACKOFF),
        (promised, Gate.GRANTED),
        (dependent, Gate.DEPENDENCIES),
        (waiting_for_children, Gate.DEPENDENCIES),
        (suspended, Gate.SUSPENDED),
        (parent, Gate.CHILDREN),
        (asleep, Gate.ASLEEP),
        (out_of_budget, Gate.BUDGET),
        (about_to_meet_its_budget, Gate.BUDGET),
        (out_of_quota, Gate.QUOTA),
    )
}
CASES |= {
    "lane paused": (lane_in("paused"), Gate.LANE_PAUSED),
    "lane disabled": (lane_in("disabled"), Gate.LANE_DISABLED),
    "lane draining": (lane_in("draining"), Gate.WAITING_FOR_WORKER),
    "blocked by budget": (blocked("waiting_for_budget"), Gate.BUDGET),
    "blocked by quota": (blocked("waiting_for_quota"), Gate.QUOTA),
    "blocked by route": (blocked("waiting_for_capable_worker"), Gate.ROUTE),
    "blocked by operator": (blocked("paused_by_operator"), Gate.OPERATOR),
    "blocked by lane state": (blocked("paused_by_policy"), Gate.LANE_STATE),
}


@pytest.mark.parametrize("name", CASES)
async def test_every_state_has_its_gate(engine: Engine, probe: Probe, clock: ManualClock, name: str) -> None:
    make, gate = CASES[name]
    eid = await make(World(engine, clock))
    async with unchanged(probe):
        found = await engine.explain(eid)
    assert found.gate is gate, found.sentence
    assert found.execution_id == eid
    assert found.sentence.endswith("."), "one plain sentence"
    assert START_MS <= found.since_ms <= clock.now_ms
    assert found.until_ms is None or found.until_ms >= START_MS
    row = await probe.execution(eid)
    assert found.lane_id == row.lane_id


async def test_unknown_ids(engine: Engine) -> None:
    with pytest.raises(NotFound) as caught:
        await engine.explain(f"{{fp:0}}:{uuid4()}")
    assert caught.value.code == "execution_not_found"


# -- details -------------------------------------------------------------------------------------------------------


async def test_who_has_it_and_until_when(engine: Engine, clock: ManualClock) -> None:
    found = await engine.explain(await running(World(engine, clock)))
    assert found.detail == LeaseHolder("w1", "w1-i1", START_MS + 30_000)
    assert (found.since_ms, found.until_ms) == (START_MS, START_MS + 30_000)
    eid = await create(engine, lane_id="other")
    await engine.issue_claim_grant(
        execution_id=eid, lane_id="other", worker_id="w2", worker_instance_id="w2-i1", grant_ttl_ms=500
    )
    found = await engine.explain(eid)
    assert found.detail == LeaseHolder("w2", "w2-i1", START_MS + 500)
    assert found.until_ms == START_MS + 500


async def test_ends_say_why(engine: Engine, clock: ManualClock) -> None:
    w = World(engine, clock)
    assert "broken" in (await engine.explain(await failed(w))).sentence
    assert "enough" in (await engine.explain(await cancelled(w))).sentence


async def test_parents_name_their_children(engine: Engine, clock: ManualClock) -> None:
    found = await engine.explain(await parent(World(engine, clock)))
    assert isinstance(found.detail, OpenChildren)
    assert (len(found.detail.execution_ids), found.detail.more_needed) == (2, 2)
    assert found.chain[0].sentence == "It is waiting for 2 executions it started."


async def test_delays_say_until_when(engine: Engine, clock: ManualClock) -> None:
    eid = await delayed(World(engine, clock))
    found = await engine.explain(eid)
    assert found.until_ms == START_MS + 500
    assert "500 ms" in found.sentence
    clock.advance(500)
    assert (await engine.explain(eid)).gate is Gate.DELAYED, "until a timer fires"
    await engine.run_timer("delayed_promoter")
    assert (await engine.explain(eid)).gate is Gate.WAITING_FOR_WORKER
    spans = {1_000: "1 s", 61_500: "1 min 1 s", 3 * 3_600_000: "3 h", 90_000_000: "1 d 1 h"}
    for span_ms, words in spans.items():
        later = await create(engine, delay_until=clock() + span_ms)
        assert (await engine.explain(later)).sentence == f"It is delayed and starts in {words}."


async def test_the_place_in_the_queue(engine: Engine, clock: ManualClock) -> None:
    eids = []
    for _ in range(3):
        eids.append(await create(engine, lane_id=LANE))
        clock.advance(1)
    for number, eid in enumerate(eids):
        assert (await engine.explain(eid)).detail == QueuePlace(number, 0, 0)
    await engine.register_worker(worker_id="w", worker_instance_id="i", lanes=[LANE])
    await engine.register_worker(worker_id="w", worker_instance_id="elsewhere", lanes=["other"])
    assert (await engine.explain(eids[1])).detail == QueuePlace(1, 1, 1)
    high = await create(engine, lane_id=LANE, priority=9)
    assert (await engine.explain(high)).detail == QueuePlace(0, 1, 1)


async def test_capabilities_nobody_has(engine: Engine, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE, policy=needing("gpu", "eu"))
    found = await engine.explain(eid)
    assert found.gate is Gate.WAITING_FOR_WORKER, "workers need not register"
    assert "eu, gpu" in found.sentence
    for instance, able in (("i1", ["gpu"]), ("i2", ["eu", "big"]), ("i3", [])):
        await engine.register_worker(worker_id="w", worker_instance_id=instance, lanes=[LANE], capabilities=able)
    found = await engine.explain(eid)
    assert found.gate is Gate.MISSING_CAPABILITY
    assert isinstance(found.detail, QueuePlace)
    assert (found.detail.workers, found.detail.capable) == (3, 0)
    assert found.detail.missing in (("eu",), ("gpu",))
    await engine.register_worker(worker_id="w", worker_instance_id="i4", lanes=[LANE], capabilities=["eu", "gpu"])
    assert (await engine.explain(eid)).gate is Gate.WAITING_FOR_WORKER
    clock.advance(60_000)
    assert (await engine.explain(eid)).detail == QueuePlace(0, 0, 0), "whoever is silent too long does not count"


@pytest.mark.parametrize(
    ("groups", "policy_name", "needed"),
    [({}, "all_of", 3), ({"d": AnyOf()}, "any_of", 1), ({"d": Quorum(2)}, "quorum", 2)],
)
async def test_dependencies(engine: Engine, groups: Any, policy_name: str, needed: int) -> None:
    flow = await Flowing.submit(engine, "abcd", [("a", "d"), ("b", "d"), ("c", "d")], groups)
    found = await engine.explain(flow.members["d"])
    assert isinstance(found.detail, OpenDependencies)
    assert (found.detail.policy, found.detail.needed, found.detail.succeeded) == (policy_name, needed, 0)
    assert set(found.detail.open) == {flow.members[name] for name in "abc"}
    if policy_name == "all_of":
        await flow.complete("a")
        found = await engine.explain(flow.members["d"])
        assert isinstance(found.detail, OpenDependencies)
        assert set(found.detail.open) == {flow.members[name] for name in "bc"}
        assert "2 more of 3" in found.chain[0].sentence


async def test_suspensions(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id=LANE)
    await engine.suspend(handle, asking(timeout_at=clock.now_ms + 1_000, timeout_behavior="cancel"))
    found = await engine.explain(id_of(handle))
    assert isinstance(found.detail, OpenSuspension)
    assert found.detail.timeout_at_ms == found.until_ms == START_MS + 1_000
    [waitpoint] = found.detail.waitpoints
    assert isinstance(waitpoint, OpenWaitpoint)
    assert waitpoint.signals == 0
    assert found.since_ms == START_MS


async def test_budgets(engine: Engine, clock: ManualClock) -> None:
    for case in (out_of_budget, about_to_meet_its_budget):
        found = await engine.explain(await case(World(engine, clock)))
        assert isinstance(found.detail, ExhaustedBudget)
        assert (found.detail.dimension, found.detail.spent, found.detail.limit) == ("tokens", 10, 10)
        assert found.detail.budget_id in found.sentence


async def test_quotas(engine: Engine, clock: ManualClock) -> None:
    found = await engine.explain(await out_of_quota(World(engine, clock)))
    assert isinstance(found.detail, FullQuota)
    assert found.detail.retry_at_ms == found.until_ms == START_MS + 60_000


async def test_lanes_say_why(engine: Engine, clock: ManualClock) -> None:
    eid = await fresh(World(engine, clock))
    clock.advance(7)
    await engine.set_lane_state(LANE, "paused", "deploy")
    found = await engine.explain(eid)
    assert found.since_ms == START_MS + 7
    assert "deploy" in found.sentence


async def test_rows_nobody_understands(engine: Engine, probe: Probe) -> None:
    odd = f"{{fp:0}}:{uuid4()}"
    row = Execution(
        odd, 0, odd[7:], None, LANE, (), 0, "runnable", "unowned", "odd", "waiting", "pending", None, 0, START_MS,
        None, None, None, 0, None, None, "default", None, None, 0, 0,
    )  # fmt: skip
    await seed(engine, row)
    assert (await engine.explain(odd)).gate is Gate.UNKNOWN
