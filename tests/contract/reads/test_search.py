"""Finding executions by what they are, newest first, on every store."""

from __future__ import annotations

import uuid
from typing import Any

from flowfabric import ClaimPolicy, FlowEdge, FlowGraph
from flowfabric.engine import Engine
from tests.contract.probe import ManualClock


async def filled(engine: Engine, clock: ManualClock) -> dict[str, str]:
    """One execution of each sort, each a millisecond after the other."""
    sorts: dict[str, dict[str, Any]] = {
        "plain": {},
        "kind": {"execution_kind": "resize"},
        "lane": {"lane_id": "other"},
        "tag": {"tags": {"acme.team": "blue"}},
        "other tag": {"tags": {"acme.team": "red"}},
        "namespace": {"namespace": "elsewhere"},
    }
    ids = {}
    for name, arguments in sorts.items():
        clock.advance(1)
        created = await engine.create_execution(**{"namespace": "acme", "execution_kind": "op", **arguments})
        ids[name] = str(created.execution_id)
    return ids


async def found(engine: Engine, **filters: Any) -> list[str]:
    return [str(each.execution_id) for each in (await engine.search_executions(**filters)).executions]


async def test_filters(engine: Engine, clock: ManualClock) -> None:
    ids = await filled(engine, clock)
    everything = list(reversed(ids.values()))
    assert await found(engine) == everything
    assert await found(engine, namespaces=["elsewhere"]) == [ids["namespace"]]
    assert await found(engine, namespaces=["acme", "elsewhere"]) == everything
    assert await found(engine, namespaces=[]) == []
    assert await found(engine, namespaces=["nobody's"]) == []
    assert await found(engine, lane_id="other") == [ids["lane"]]
    assert await found(engine, execution_kind="resize") == [ids["kind"]]
    assert await found(engine, tag=("acme.team", "blue")) == [ids["tag"]]
    assert await found(engine, tag=("acme.team", "green")) == []
    assert await found(engine, states=["completed"]) == []
    await engine.cancel_execution(execution_id=ids["plain"])
    assert await found(engine, states=["cancelled", "completed"]) == [ids["plain"]]
    assert await found(engine, namespaces=["acme"], states=["waiting"], execution_kind="op", lane_id="default") == [
        ids["other tag"],
        ids["tag"],
    ]
    page = await engine.search_executions(limit=1, execution_kind="resize")
    summary = page.executions[0]
    assert page.next_cursor is None
    assert (summary.namespace, summary.lane_id, summary.execution_kind) == ("acme", "default", "resize")
    assert (summary.public_state, summary.flow_id, summary.completed_at) == ("waiting", None, None)


async def test_counts(engine: Engine, clock: ManualClock) -> None:
    ids = await filled(engine, clock)
    await engine.create_execution(namespace="acme", execution_kind="$ask", tags={"acme.team": "red", "acme.size": "l"})
    await engine.create_execution(namespace="acme", execution_kind="$", tags={"acme.size": "l"})
    await engine.create_execution(namespace="acme", execution_kind="a$")
    count = engine.count_executions
    assert await count() == 9
    assert await count(leaving_out="$") == 7
    assert await count(leaving_out="$a") == 8
    assert await count(namespaces=["acme"]) == 8
    assert await count(namespaces=["acme", "elsewhere"], leaving_out="$") == 7
    assert await count(namespaces=[]) == await count(namespaces=["nobody's"]) == 0
    assert await count(lane_id="other") == await count(execution_kind="resize") == 1
    assert await count(tags={"acme.team": "red"}) == await count(tags={"acme.size": "l"}) == 2
    assert await count(tags={"acme.team": "red", "acme.size": "l"}) == 1
    assert await count(tags={"acme.team": "red", "acme.size": "l"}, leaving_out="$") == 0
    assert await count(states=["cancelled"]) == 0
    await engine.cancel_execution(execution_id=ids["plain"])
    assert await count(states=["cancelled", "completed"]) == 1
    assert await count(states=["waiting"], namespaces=["acme"], leaving_out="$") == 5


async def test_a_long_list_is_counted_to_its_end(engine: Engine) -> None:
    for _ in range(3):
        await engine.create_executions([{"namespace": "many", "execution_kind": "op"}] * 900)
    assert await engine.count_executions(namespaces=["many"], leaving_out="$") == 2_700


async def test_times(engine: Engine, clock: ManualClock) -> None:
    ids = await filled(engine, clock)
    page = (await engine.search_executions()).executions
    third = page[2].created_at
    assert await found(engine, created_from=third) == [str(each.execution_id) for each in page[:3]]
    assert await found(engine, created_before=third) == [str(each.execution_id) for each in page[3:]]
    assert await found(engine, created_from=third, created_before=third + 1) == [ids["tag"]]


async def test_whom_an_execution_has_started(engine: Engine) -> None:
    """Its children, without theirs and without others of the same flow."""
    parent = str((await engine.create_execution(lane_id="above")).execution_id)

    async def start(lane: str, number: int) -> str:
        handle = await engine.claim(lane, policy=ClaimPolicy("w", "w-1", 60_000))
        assert handle is not None
        own = f"{parent[: parent.index(':', 4)]}:{uuid.uuid4()}"
        more = f"{parent[: parent.index(':', 4)]}:{uuid.uuid4()}"
        names = (own, more)[:number]
        await engine.advance(handle, children=[{"execution_id": each, "lane_id": f"{lane} below"} for each in names])
        return names[0]

    first = await start("above", 2)
    children = await found(engine, parent=parent)
    assert len(children) == 2
    assert first in children
    below = await start("above below", 1)
    assert sorted(await found(engine, parent=parent)) == sorted(children)
    context = await engine.describe_execution(parent)
    assert context is not None
    grandchildren = [await found(engine, parent=each, flow_id=context.flow_id) for each in children]
    assert sorted(grandchildren) == [[], [below]]
    assert await found(engine, parent=below) == []
    assert await found(engine, parent=parent, namespaces=["elsewhere"]) == []


async def test_pages_show_everything_once_whatever_is_created_meanwhile(engine: Engine) -> None:
    ids = {str((await engine.create_execution(lane_id=f"lane-{number}")).execution_id) for number in range(25)}
    seen: list[str] = []
    cursor = None
    while True:
        page = await engine.search_executions(cursor=cursor, limit=4, namespaces=["default"])
        seen += [str(each.execution_id) for each in page.executions]
        cursor = page.next_cursor
        if cursor is None:
            break
        await engine.create_execution(lane_id="meanwhile", namespace="other")
    assert len(seen) == len(set(seen))
    assert set(seen) == ids


async def test_members_and_edges_of_a_flow(engine: Engine) -> None:
    nodes: dict[str, dict[str, Any]] = {name: {} for name in "abc"}
    graph = FlowGraph(nodes, [FlowEdge("a", "b"), FlowEdge("b", "c")])
    flow = await engine.submit_flow(graph)
    await engine.submit_flow(FlowGraph(nodes))
    assert set(await found(engine, flow_id=flow.flow_id)) == set(flow.execution_ids.values())
    assert [each.flow_id for each in (await engine.search_executions(flow_id=flow.flow_id)).executions] == [
        flow.flow_id
    ] * 3
    pairs = {
        (edge.upstream_execution_id, edge.downstream_execution_id)
        for edge in await engine.list_flow_edges(flow.flow_id)
    }
    ids = flow.execution_ids
    assert pairs == {(ids["a"], ids["b"]), (ids["b"], ids["c"])}


async def test_depths_of_queues(engine: Engine, clock: ManualClock) -> None:
    assert await engine.queue_depths() == ()
    for lane in ("a", "a", "B"):
        await engine.create_execution(lane_id=lane)
        clock.advance(1_000)
    await engine.create_execution(lane_id="late", delay_until=clock() + 5)
    found = {each.lane_id: (each.waiting, each.oldest_age_ms) for each in await engine.queue_depths()}
    assert found == {"a": (2, 3_000), "B": (1, 1_000)}
    await engine.claim("a", policy=ClaimPolicy("w", "w-1"))
    assert {each.lane_id: each.waiting for each in await engine.queue_depths()} == {"a": 1, "B": 1}
