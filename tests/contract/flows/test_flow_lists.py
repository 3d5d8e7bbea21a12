"""Flows in lists: what their roots are and how far they are, and who belongs to whom; on every store."""

from __future__ import annotations

from uuid import uuid4

import pytest

from flowfabric import ClaimPolicy, FlowEdge, FlowGraph, Handle, NotFound
from flowfabric.core.flows.status import FLOW_STATES
from flowfabric.engine import Engine
from flowfabric.model.errors import Validation
from flowfabric.model.operations.workflows import ChildWait
from tests.contract.probe import ManualClock

WORKER = ClaimPolicy("w", "w-1", 600_000)


async def _claim(engine: Engine, lane: str) -> Handle:
    [handle] = await engine.claim_many(lane, policy=WORKER)
    return handle


async def _founded(engine: Engine, key: str, *, kind: str = "ship", child: str | None = None) -> tuple[str, str]:
    """A workflow that waits for two children: the ids of its flow and of itself."""
    made = await engine.create_execution(
        lane_id=f"{key}-root", execution_kind=kind, idempotency_key=key, namespace="shop"
    )
    root = made.execution_id
    children = [
        {
            "execution_id": f"{{fp:{root.partition}}}:{uuid4()}",
            "execution_kind": "pick",
            "lane_id": f"{key}-child",
            "namespace": child or "shop",
            "tags": {"ff.step": f"pick[{number}]", "ff.run": str(root)},
        }
        for number in range(2)
    ]
    wait = ChildWait(tuple(str(each["execution_id"]) for each in children), 2)
    assert (await engine.advance(await _claim(engine, f"{key}-root"), children=children, wait=wait)).parked
    flow = (await engine.read_execution_info(root)).flow_id
    assert flow is not None
    return str(flow), str(root)


async def _end(engine: Engine, key: str, how: str) -> None:
    """Both children end well, then the root as it is told."""
    for _ in range(2):
        await engine.complete(await _claim(engine, f"{key}-child"), b"1")
    root = await _claim(engine, f"{key}-root")
    if how == "completed":
        await engine.complete(root, b"1")
    elif how == "failed":
        await engine.fail(root, "no good", "permanent")
    else:
        await engine.cancel(root, "no need")


async def test_every_state_of_a_workflow_is_seen_and_found(engine: Engine, clock: ManualClock) -> None:
    """The root says what it is called and how it ended; while it goes on, its members say how far it is."""
    flows: dict[str, str] = {}
    for state in ("blocked", "running", "completed", "failed", "cancelled"):
        clock.advance(1)
        flows[state], _ = await _founded(engine, state)
        if state == "running":
            await _claim(engine, "running-child")
        elif state != "blocked":
            await _end(engine, state, state)
    clock.advance(1)
    graph = FlowGraph(nodes={"a": {}, "b": {}}, edges=[FlowEdge("a", "b")], flow_kind="dag", namespace="shop")
    submitted = await engine.submit_flow(graph)
    flows["open"] = str((await engine.create_flow(flow_kind="empty", namespace="shop")).flow_id)
    found = {str(each.flow_id): each for each in (await engine.search_flows()).flows}
    assert {state: found[flow].public_flow_state for state, flow in flows.items()} == {each: each for each in flows}
    assert set(flows) == set(FLOW_STATES)
    for state, flow in flows.items():
        assert flow in [str(each.flow_id) for each in (await engine.search_flows(states=[state])).flows], state
        others = [each.public_flow_state for each in (await engine.search_flows(states=[state])).flows]
        assert set(others) == {state}
    ended = found[flows["failed"]]
    assert (ended.flow_kind, ended.root_kind, ended.root_key) == ("workflow", "ship", "failed")
    assert ended.root is not None
    assert ended.ended_at == (await engine.read_history(ended.root)).ended_at
    assert found[flows["running"]].ended_at is None
    dag = found[str(submitted.flow_id)]
    assert (dag.root, dag.root_kind, dag.root_key) == (None, "", None)
    with pytest.raises(Validation):
        await engine.search_flows(states=["active"])


async def test_kinds_by_part_and_pages_that_are_not_full(engine: Engine, clock: ManualClock) -> None:
    flows = []
    for number in range(5):
        clock.advance(1)
        flow, _ = await _founded(engine, f"k{number}", kind="ship_order" if number % 2 else "refund")
        flows.append(flow)
    wanted = [flows[3], flows[1]]
    assert [str(each.flow_id) for each in (await engine.search_flows(flow_kind="Order")).flows] == wanted
    assert [str(each.flow_id) for each in (await engine.search_flows(flow_kind="workflow")).flows] == flows[::-1]
    assert (await engine.search_flows(flow_kind="nobody")).flows == ()
    seen, cursor = [], None
    while True:
        page = await engine.search_flows(flow_kind="order", limit=1, cursor=cursor)
        seen += [str(each.flow_id) for each in page.flows]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == wanted


async def test_the_tree_of_a_workflow(engine: Engine) -> None:
    flow, root = await _founded(engine, "one")
    found = await engine.read_flow_tree(flow)
    assert (found.flow.root_kind, found.flow.root_key, str(found.flow.root)) == ("ship", "one", root)
    by_step = {each.step: each for each in found.members}
    assert set(by_step) == {None, "pick[0]", "pick[1]"}
    assert str(by_step[None].execution_id) == root
    assert by_step[None].parent is None
    assert str(by_step["pick[0]"].parent) == root
    assert by_step["pick[0]"].execution_kind == "pick"
    children = await engine.read_flow_tree(flow, parent=root, limit=1)
    assert len(children.members) == 1
    rest = await engine.read_flow_tree(flow, parent=root, cursor=children.next_cursor)
    assert {each.step for each in (*children.members, *rest.members)} == {"pick[0]", "pick[1]"}
    assert rest.next_cursor is None
    with pytest.raises(NotFound):
        await engine.read_flow_tree(str(uuid4()))


async def test_roots_and_members_of_other_namespaces_are_not_told_of(engine: Engine) -> None:
    """A workflow's flow is in the namespace of its first child."""
    flow, root = await _founded(engine, "two", child="depot")
    [line] = (await engine.search_flows(namespaces=["depot"])).flows
    assert (str(line.flow_id), line.root, line.root_kind, line.root_key) == (flow, None, "", None)
    assert (await engine.search_flows(namespaces=["depot"], flow_kind="ship")).flows == ()
    tree = await engine.read_flow_tree(flow, namespaces=["depot"])
    assert root not in [str(each.execution_id) for each in tree.members]
    assert len(tree.members) == 2
    assert {each.parent for each in tree.members} == {None}
