"""What people ask who look after the whole, on every store."""

from __future__ import annotations

import pytest

from flowfabric import ClaimPolicy, Cron, FlowEdge, FlowGraph, Fresh, NotFound, SuspendArgs
from flowfabric.conditions import ByName, Single
from flowfabric.engine import Engine
from flowfabric.model.operations.suspension import SuspensionReason
from tests.contract.probe import ManualClock

WORKER = ClaimPolicy("w", "w-1")


async def test_namespaces(engine: Engine) -> None:
    assert await engine.list_namespaces() == ()
    for namespace in ("beta", "alpha", "gamma", "alpha", "Ünter"):
        await engine.create_execution(namespace=namespace)
    found = await engine.list_namespaces()
    assert sorted(found) == ["alpha", "beta", "gamma", "Ünter"]
    assert await engine.list_namespaces(limit=2) == found[:2]
    assert await engine.list_namespaces(found[1]) == found[2:]
    assert await engine.list_namespaces(found[-1]) == ()


async def test_namespaces_without_executions(engine: Engine) -> None:
    """One that has a schedule or a worker only is found, and so are all schedules and workers."""
    await engine.create_execution(namespace="middle")
    for namespace, name in (("zoo", "feed"), ("ark", "sail"), ("ark", "land")):
        await engine.put_schedule(name, spec=Cron("0 0 1 1 *", "UTC"), execution_kind=name, namespace=namespace)
    for namespace, instance in (("bay", "w-2"), ("middle", "w-1"), ("bay", "w-1")):
        await engine.register_worker(
            worker_id="w", worker_instance_id=instance, lanes=["x"], liveness_ttl_ms=60_000, namespace=namespace
        )
    assert await engine.list_namespaces() == ("ark", "bay", "middle", "zoo")
    assert await engine.list_namespaces("ark", 2) == ("bay", "middle")
    schedules, workers = [], []
    cursor = None
    while True:
        page = await engine.search_schedules(limit=2, cursor=cursor)
        schedules += [(each.namespace, each.schedule_id) for each in page.schedules]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert schedules == [("ark", "land"), ("ark", "sail"), ("zoo", "feed")]
    while True:
        found = await engine.search_workers(limit=2, cursor=cursor)
        workers += [(each.namespace, each.worker_instance_id) for each in found.entries]
        cursor = found.cursor
        if cursor is None:
            break
    assert workers == [("bay", "w-1"), ("bay", "w-2"), ("middle", "w-1")]
    assert [each.schedule_id for each in (await engine.search_schedules(namespaces=["zoo", "bay"])).schedules] == [
        "feed"
    ]
    assert [each.namespace for each in (await engine.search_workers(namespaces=["middle"])).entries] == ["middle"]
    assert (await engine.search_workers(namespaces=[])).entries == ()


async def test_search_reads_namespaces_side_by_side(engine: Engine, clock: ManualClock) -> None:
    ids = []
    for number in range(30):
        clock.advance(1)
        created = await engine.create_execution(namespace=f"n{number % 7}")
        ids.append(str(created.execution_id))
    whole, cursor = [], None
    while True:
        page = await engine.search_executions(limit=4, cursor=cursor)
        whole += [str(each.execution_id) for each in page.executions]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert whole == ids[::-1]


async def test_flows(engine: Engine, clock: ManualClock) -> None:
    ids = []
    for number in range(5):
        clock.advance(1)
        made = await engine.create_flow(flow_kind="etl" if number % 2 else "report", namespace=f"n{number % 2}")
        ids.append(str(made.flow_id))
    page = await engine.search_flows()
    assert [str(each.flow_id) for each in page.flows] == ids[::-1]
    assert page.next_cursor is None
    first = page.flows[0]
    assert (first.flow_kind, first.namespace, first.node_count, first.ended_at) == ("report", "n0", 0, None)
    pages = [await engine.search_flows(limit=2)]
    while pages[-1].next_cursor is not None:
        pages.append(await engine.search_flows(limit=2, cursor=pages[-1].next_cursor))
    assert [str(flow.flow_id) for each in pages for flow in each.flows] == ids[::-1]
    assert [str(each.flow_id) for each in (await engine.search_flows(namespaces=["n1"])).flows] == [ids[3], ids[1]]
    assert [str(each.flow_id) for each in (await engine.search_flows(flow_kind="etl")).flows] == [ids[3], ids[1]]
    await engine.cancel_flow(ids[2], "cancel_all")
    cancelled = (await engine.search_flows(states=["cancelled"])).flows
    assert [(str(each.flow_id), each.ended_at is not None) for each in cancelled] == [(ids[2], True)]


async def test_suspended_and_history(engine: Engine, clock: ManualClock) -> None:
    created = await engine.create_execution(namespace="acme", execution_kind="review", creator_identity="ann")
    clock.advance(5)
    handle = await engine.claim("default", policy=WORKER)
    assert handle is not None
    wait = SuspendArgs(
        waitpoints=[Fresh(None, "ann")],
        resume_condition=Single("ann", ByName("approve")),
        reason_code=SuspensionReason.WAITING_FOR_APPROVAL,
    )
    await engine.suspend(handle, wait)
    page = await engine.search_suspended()
    [line] = page.executions
    assert (line.execution_id, line.namespace, line.execution_kind) == (created.execution_id, "acme", "review")
    assert line.blocking_reason == "waiting_for_approval"
    assert page.next_cursor is None
    assert (await engine.search_suspended(namespaces=["other"])).executions == ()
    assert (await engine.search_suspended(reasons=["waiting_for_budget"])).executions == ()
    assert (await engine.search_suspended(reasons=["waiting_for_approval", "none"])).executions == (line,)
    history = await engine.read_history(created.execution_id)
    assert [each.outcome for each in history.attempts] == ["attempt_interrupted"]
    assert history.suspension is not None
    assert (history.suspension.reason, history.suspension.closed_at) == ("waiting_for_approval", None)
    [waitpoint] = history.waitpoints
    assert (waitpoint.waitpoint_key, waitpoint.signal_count) == ("ann", 0)
    token = await engine.read_waitpoint_token(created.execution_id.partition, waitpoint.waitpoint_id)
    assert token is not None
    await engine.deliver_signal(
        execution_id=created.execution_id,
        waitpoint_id=waitpoint.waitpoint_id,
        waitpoint_token=token,
        signal_name="approve",
        source_type="approver",
        source_identity="ann@example.org",
        payload=b"true",
    )
    after = await engine.read_history(created.execution_id)
    [signal] = after.signals
    assert (signal.signal_name, signal.source_identity, signal.payload) == ("approve", "ann@example.org", b"true")
    assert (await engine.search_suspended()).executions == ()
    assert (after.creator_identity, after.parent, after.spends) == ("ann", None, ())


async def test_history_of_attempts_and_spending(engine: Engine, clock: ManualClock) -> None:
    budget = "11111111-1111-4111-8111-111111111111"
    await engine.create_budget(
        budget_id=budget, scope_type="x", scope_id="y", dimensions=["tokens"], hard_limits=[100], soft_limits=[0]
    )
    policy = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 10}}, "budget_ids": [budget]}
    created = await engine.create_execution(execution_kind="op", policy=policy)
    for attempt in range(2):
        handle = await engine.claim("default", policy=WORKER)
        assert handle is not None
        await engine.record_spend(budget_id=budget, execution_id=created.execution_id, deltas={"tokens": 7 + attempt})
        clock.advance(3)
        await engine.fail(handle, reason=f"broken {attempt}")
        clock.advance(100)
        await engine.run_due()
    history = await engine.read_history(created.execution_id)
    assert [each.attempt_index for each in history.attempts] == [0, 1]
    assert [each.worker_id for each in history.attempts] == ["w", "w"]
    assert history.attempts[0].retry_at is not None
    assert history.failure_reason == "broken 1"
    assert history.ended_at is not None
    assert [(each.budget_id, each.dimension, each.amount) for each in history.spends] == [(budget, "tokens", 15)]
    with pytest.raises(NotFound):
        await engine.read_history("{fp:0}:33333333-3333-4333-8333-333333333333")


async def test_history_says_whose_budgets_are(engine: Engine) -> None:
    """One id in several hands: what an execution names and spends is what its name means there."""
    own, shared = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
    unknown = "33333333-3333-4333-8333-333333333333"
    for budget, namespace in ((own, "shop"), (own, "other"), (shared, "shop"), (shared, None)):
        await engine.create_budget(
            budget_id=budget, namespace=namespace, dimensions=["usd"], hard_limits=[9], soft_limits=[0]
        )
    limited = engine.limited_to({"shop"})
    policy = {"budget_ids": [own, shared, unknown]}
    for by, owners in ((engine, ("shop", None)), (limited, ("shop", "shop"))):
        run = (await by.create_execution(namespace="shop", policy=policy)).execution_id
        for budget in (own, shared):
            await by.record_spend(budget_id=budget, execution_id=run, deltas={"usd": 1})
        history = await engine.read_history(run)
        assert history.budget_ids == (own, shared, unknown)
        assert [(each.budget_id, each.namespace) for each in history.budgets] == [(own, owners[0]), (shared, owners[1])]
        spends = {each.budget_id: (each.amount, each.namespace) for each in history.spends}
        assert spends == {own: (1, owners[0]), shared: (1, owners[1])}
        seen = {(each.budget_id, each.namespace) for each in (await limited.read_history(run)).budgets}
        assert seen == {(own, "shop"), (shared, "shop")} & set(zip((own, shared), owners, strict=True))


async def test_pulse(engine: Engine, clock: ManualClock) -> None:
    pulse = await engine.read_pulse()
    assert (pulse.active, pulse.suspended, pulse.delayed, pulse.blocked, pulse.dependent) == (0, 0, 0, 0, 0)
    assert (pulse.workers, pulse.queues) == (0, ())
    await engine.create_execution(lane_id="busy")
    await engine.create_execution(lane_id="busy")
    await engine.create_execution(delay_until=clock() + 10_000)
    graph = FlowGraph(
        nodes={"a": {"lane_id": "graph"}, "b": {"lane_id": "graph"}}, edges=[FlowEdge("a", "b")], namespace="default"
    )
    await engine.submit_flow(graph)
    await engine.claim("busy", policy=WORKER)
    await engine.register_worker(
        worker_id="w", worker_instance_id="w-1", lanes=["busy"], capabilities=[], liveness_ttl_ms=1_000
    )
    pulse = await engine.read_pulse()
    assert (pulse.active, pulse.suspended, pulse.delayed, pulse.blocked, pulse.dependent) == (1, 0, 1, 0, 1)
    assert pulse.workers == 1
    assert [(each.lane_id, each.waiting) for each in pulse.queues] == [("busy", 1), ("graph", 1)]


async def test_ended(engine: Engine, clock: ManualClock) -> None:
    start = await engine.count_ended()
    assert start.counts == ()
    minute = clock() - clock() % 60_000
    clock.advance(minute + 60_000 - clock())
    for outcome in ("ok", "ok", "bad"):
        await engine.create_execution()
        handle = await engine.claim("default", policy=WORKER)
        assert handle is not None
        if outcome == "ok":
            await engine.complete(handle)
        else:
            await engine.fail(handle, "no", "permanent")
    clock.advance(60_000)
    last = await engine.create_execution()
    await engine.cancel_execution(execution_id=last.execution_id)
    found = await engine.count_ended(start.place)
    counted = {(each.from_ms - minute, each.outcome): each.count for each in found.counts}
    assert counted == {(60_000, "success"): 2, (60_000, "failed"): 1, (120_000, "cancelled"): 1}
    assert (await engine.count_ended()).counts == found.counts
    assert (await engine.count_ended(found.place)).counts == ()
