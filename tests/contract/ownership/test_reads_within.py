"""Reads for some namespaces: executions and workers of others are neither named nor counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowfabric import ExecutionId, FlowGraph, Incoming, Outgoing
from flowfabric.engine import Engine
from flowfabric.model.operations.workflows import ChildWait
from flowfabric.model.reads.explain import Gate, OpenChildren, OpenDependencies, QueuePlace
from flowfabric.model.reads.search import QueueDepth
from tests.contract.probe import ManualClock, create, policy

MINE = ["mine"]


async def test_depths_of_queues(engine: Engine, clock: ManualClock) -> None:
    await create(engine, lane_id="shared", namespace="theirs")
    await create(engine, lane_id="other", namespace="theirs")
    clock.advance(5)
    for _ in range(2):
        await create(engine, lane_id="shared", namespace="mine")
    clock.advance(5)
    assert await engine.queue_depths(namespaces=MINE) == (QueueDepth("shared", 2, 5),)
    assert await engine.queue_depths(namespaces=["mine", "theirs"]) == await engine.queue_depths()
    assert await engine.queue_depths(namespaces=[]) == ()


async def test_who_waits_for_a_worker(engine: Engine, clock: ManualClock) -> None:
    worker = {"worker_id": "w", "lanes": ["lane"], "capabilities": ["gpu"]}
    await create(engine, lane_id="lane", namespace="theirs")
    clock.advance(1)
    first = await create(engine, lane_id="lane", namespace="mine")
    clock.advance(1)
    second = await create(engine, lane_id="lane", namespace="mine")
    await engine.register_worker(worker_instance_id="theirs-1", namespace="theirs", **worker)
    assert (await engine.explain(second)).detail == QueuePlace(2, 1, 1)
    found = await engine.explain(second, namespaces=MINE)
    assert found.detail == QueuePlace(1, 0, 0)
    assert found.sentence == (
        "It is waiting for a worker; none of your namespaces is registered for lane lane, 1 of yours is ahead of it."
    )
    await engine.register_worker(worker_instance_id="mine-1", namespace="mine", **worker)
    found = await engine.explain(first, namespaces=MINE)
    assert (found.gate, found.detail) == (Gate.WAITING_FOR_WORKER, QueuePlace(0, 1, 1))
    assert found.sentence == (
        "It is waiting for a worker: 1 registered worker of your namespaces could run it, "
        "none of yours are ahead of it."
    )


async def test_what_no_worker_offers(engine: Engine) -> None:
    for namespace, able in (("theirs", "gpu"), ("mine", "cpu")):
        await engine.register_worker(
            worker_id="w", worker_instance_id=namespace, namespace=namespace, lanes=["lane"], capabilities=[able]
        )
    routing = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    eid = await create(engine, lane_id="lane", namespace="mine", policy=routing)
    assert (await engine.explain(eid)).detail == QueuePlace(0, 2, 1)
    found = await engine.explain(eid, namespaces=MINE)
    assert (found.gate, found.detail) == (Gate.MISSING_CAPABILITY, QueuePlace(0, 1, 0, ("gpu",)))


@pytest.fixture
async def mixed(engine: Engine) -> tuple[str, Callable[[str], ExecutionId]]:
    """A flow of ours with members of theirs: its id, and its members by name. Only what begins with m is mine."""
    nodes = {name: {"namespace": "mine" if name.startswith("m") else "theirs"} for name in ("m1", "t1", "m2", "t2")}
    edges = [("m1", "m2"), ("t1", "m2"), ("m1", "t2"), ("t1", "t2")]
    made = await engine.submit_flow(FlowGraph(nodes=nodes, edges=edges, flow_kind="f", namespace="mine"))
    return str(made.flow_id), lambda name: ExecutionId(made.execution_ids[name])


async def test_members_of_others_in_ones_own_flow(
    engine: Engine, mixed: tuple[str, Callable[[str], ExecutionId]]
) -> None:
    flow, named = mixed
    edges = await engine.list_flow_edges(flow, namespaces=MINE)
    assert [(each.upstream_execution_id, each.downstream_execution_id) for each in edges] == [
        (named("m1"), named("m2"))
    ]
    assert len(await engine.list_flow_edges(flow)) == 4
    assert await engine.list_edges(flow, Incoming(named("m2")), namespaces=MINE) == edges
    assert await engine.list_edges(flow, Outgoing(named("m1")), namespaces=MINE) == edges
    assert await engine.list_edges(flow, Outgoing(named("t1")), namespaces=MINE) == []
    assert len(await engine.list_edges(flow, Outgoing(named("t1")))) == 2
    described = await engine.describe_flow(flow, namespaces=MINE)
    assert described is not None
    assert [each.downstream_execution_id for each in described.edge_groups] == [named("m2")]
    members = (await engine.search_executions(flow_id=flow, namespaces=MINE)).executions
    assert {each.execution_id for each in members} == {named("m1"), named("m2")}
    found = await engine.explain(named("m2"), namespaces=MINE)
    assert isinstance(found.detail, OpenDependencies)
    assert found.detail.open == (named("m1"),)
    assert [each.execution_id for each in found.chain] == [named("m2"), named("m1")]


async def test_children_in_other_namespaces(engine: Engine) -> None:
    eid = await create(engine, lane_id="lane", namespace="mine")
    handle = await engine.claim("lane", policy=policy())
    assert handle is not None
    ids = [ExecutionId.of(eid.partition, f"00000000-0000-4000-8000-00000000000{number}") for number in range(2)]
    children = [
        {"execution_id": each, "namespace": namespace} for each, namespace in zip(ids, ("mine", "theirs"), strict=True)
    ]
    await engine.advance(handle, children=children, wait=ChildWait(tuple(map(str, ids)), 2))
    everything, own = await engine.explain(eid), await engine.explain(eid, namespaces=MINE)
    assert isinstance(everything.detail, OpenChildren)
    assert isinstance(own.detail, OpenChildren)
    assert set(everything.detail.execution_ids) == set(ids)
    assert own.detail.execution_ids == (ids[0],)
