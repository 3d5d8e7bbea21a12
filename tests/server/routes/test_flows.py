"""Flows over HTTP."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import CancelFlowResult
from tests.server.making import at, claimed, creation


async def a_flow(client: httpx.AsyncClient, engine: Engine, members: int = 2) -> tuple[str, list[str]]:
    flow = str(uuid.uuid4())
    made = await client.post("/v1/flows", json={"flow_id": flow, "flow_kind": "dag", "namespace": "acme", "now": 1})
    assert (made.status_code, made.json()) == (201, {"Created": {"flow_id": flow}})
    ids = []
    for count in range(1, members + 1):
        identity = ExecutionId.for_flow(flow, engine.partitions)
        assert (await client.post("/v1/executions", json=creation(execution_id=identity))).status_code == 201
        joined = await client.post(f"/v1/flows/{flow}/members", json={"flow_id": flow, "execution_id": identity})
        assert (joined.status_code, joined.json()) == (
            201,
            {"Added": {"execution_id": identity, "new_node_count": count}},
        )
        ids.append(str(identity))
    return flow, ids


async def connected(
    client: httpx.AsyncClient, flow: str, upstream: str, downstream: str, revision: int
) -> httpx.Response:
    body: dict[str, Any] = {
        "edge_id": str(uuid.uuid4()),
        "upstream_execution_id": upstream,
        "downstream_execution_id": downstream,
    }
    staged = await client.post(f"/v1/flows/{flow}/edges", json={**body, "expected_graph_revision": revision})
    assert staged.status_code == 201, staged.text
    new = staged.json()["Staged"]["new_graph_revision"]
    return await client.post(f"/v1/flows/{flow}/edges/apply", json={**body, "graph_revision": new})


async def test_a_flow_from_end_to_end(client: httpx.AsyncClient, engine: Engine) -> None:
    flow, (first, second) = await a_flow(client, engine)
    again = await client.post("/v1/flows", json={"flow_id": flow, "flow_kind": "dag", "namespace": "acme"})
    assert (again.status_code, again.json()) == (200, {"AlreadySatisfied": {"flow_id": flow}})
    member = await client.post(f"/v1/flows/{flow}/members", json={"execution_id": first})
    assert (member.status_code, member.json()) == (200, {"AlreadyMember": {"execution_id": first, "node_count": 2}})
    applied = await connected(client, flow, first, second, 2)
    assert (applied.status_code, applied.json()) == (200, {"Applied": {"unsatisfied_count": 1}})
    assert (await client.get(at(second, "state"))).json() == "waiting_children"
    await engine.complete(await claimed(engine), b"1")
    assert (await client.get(at(second, "state"))).json() == "waiting"


async def test_edges_are_refused_with_their_reason(client: httpx.AsyncClient, engine: Engine) -> None:
    flow, (first, second) = await a_flow(client, engine)
    body = {"upstream_execution_id": first, "downstream_execution_id": second, "expected_graph_revision": 99}
    stale = await client.post(f"/v1/flows/{flow}/edges", json=body)
    assert stale.status_code == 409
    assert stale.json()["kind"] == "contention"
    assert stale.json()["error"].startswith("contention: StaleGraphRevision")
    assert (await connected(client, flow, first, second, 2)).status_code == 200
    loop = {"upstream_execution_id": second, "downstream_execution_id": first, "expected_graph_revision": 3}
    cycle = await client.post(f"/v1/flows/{flow}/edges", json=loop)
    assert (cycle.status_code, cycle.json()["kind"], cycle.json()["retryable"]) == (409, "cycle_detected", False)
    other = await client.post(f"/v1/flows/{flow}/edges", json={**body, "flow_id": str(uuid.uuid4())})
    assert other.json() == {"error": "path flow_id does not match body flow_id"}


async def test_cancelling_a_flow(client: httpx.AsyncClient, engine: Engine) -> None:
    flow, ids = await a_flow(client, engine)
    body = {"flow_id": flow, "reason": "enough", "cancellation_policy": "cancel_all", "now": 1}
    response = await client.post(f"/v1/flows/{flow}/cancel?wait=true", json=body)
    cancelled = response.json()["Cancelled"]
    assert cancelled["cancellation_policy"] == "cancel_all"
    assert sorted(cancelled["member_execution_ids"]) == sorted(ids)
    assert [(await client.get(at(each, "state"))).json() for each in ids] == ["cancelled", "cancelled"]
    found = await engine.describe_flow(flow)
    assert found is not None
    assert found.cancel_reason == "enough"
    again = await client.post(f"/v1/flows/{flow}/cancel", json={**body, "cancellation_policy": "flow_only"})
    assert again.json()["Cancelled"]["cancellation_policy"] == "cancel_all"
    wrong = await client.post(f"/v1/flows/{flow}/cancel", json={**body, "cancellation_policy": "all"})
    expected = "invalid_input: cancellation_policy: expected one of cancel_all, cancel_pending, flow_only"
    assert (wrong.status_code, wrong.json()) == (400, {"error": expected})


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending", "flow_only"])
async def test_cancelling_a_flow_without_waiting(client: httpx.AsyncClient, engine: Engine, policy: str) -> None:
    flow, ids = await a_flow(client, engine)
    path, body = f"/v1/flows/{flow}/cancel", {"reason": "enough", "cancellation_policy": policy}
    first = (await client.post(path, json=body)).json()
    members = [] if policy == "flow_only" else sorted(ids)
    if policy == "cancel_all":
        scheduled = first["CancellationScheduled"]
        assert sorted(scheduled.pop("member_execution_ids")) == members
        assert scheduled == {"cancellation_policy": policy, "member_count": 2}
    else:
        assert sorted(first["Cancelled"]["member_execution_ids"]) == members
    again = (await client.post(path, json={**body, "cancellation_policy": "cancel_all"})).json()
    assert again["Cancelled"]["cancellation_policy"] == policy
    assert sorted(again["Cancelled"]["member_execution_ids"]) == sorted(ids)


async def test_only_the_route_says_that_a_cancellation_is_scheduled(client: httpx.AsyncClient, engine: Engine) -> None:
    """Programs get one answer, on a store and through a server; the route has that of the reference's server."""
    flow, ids = await a_flow(client, engine)
    assert await engine.cancel_flow(flow) == CancelFlowResult.Cancelled("cancel_all", tuple(sorted(ids)))
    flow, ids = await a_flow(client, engine)
    calls = {"calls": [{"op": "cancel_flow", "arguments": {"flow_id": flow}}]}
    [answer] = (await client.post("/v1/remote/calls", json=calls)).json()["answers"]
    told = {"cancellation_policy": "cancel_all", "member_execution_ids": sorted(ids)}
    assert answer == {"ok": {"CancelFlowResult.Cancelled": told}}
    flow, ids = await a_flow(client, engine)
    body = {"reason": "", "cancellation_policy": "cancel_all"}
    route = (await client.post(f"/v1/flows/{flow}/cancel", json=body)).json()
    told = {"cancellation_policy": "cancel_all", "member_execution_ids": sorted(ids)}
    assert route == {"CancellationScheduled": {**told, "member_count": 2}}


async def test_cancelling_a_flow_without_members(client: httpx.AsyncClient, engine: Engine) -> None:
    flow, _ = await a_flow(client, engine, 0)
    response = await client.post(f"/v1/flows/{flow}/cancel", json={"reason": "", "cancellation_policy": "cancel_all"})
    assert response.json() == {"Cancelled": {"cancellation_policy": "cancel_all", "member_execution_ids": []}}


async def test_a_repeated_cancellation_names_a_thousand_members(client: httpx.AsyncClient) -> None:
    nodes = {f"n{count}": {"execution_kind": "k"} for count in range(1_001)}
    flow = (await client.post("/v1/flows/submit", json={"namespace": "acme", "nodes": nodes})).json()["flow_id"]
    for variant, count in (("CancellationScheduled", 1_001), ("Cancelled", 1_000)):
        body = {"reason": "", "cancellation_policy": "cancel_all"}
        answer = (await client.post(f"/v1/flows/{flow}/cancel", json=body)).json()
        assert len(set(answer[variant]["member_execution_ids"])) == count


async def test_members_of_another_partition(client: httpx.AsyncClient, engine: Engine) -> None:
    flow, _ = await a_flow(client, engine, 0)
    other = next(
        each
        for each in (ExecutionId.solo(f"lane-{n}", engine.partitions) for n in range(1000))
        if each.partition != ExecutionId.for_flow(flow, engine.partitions).partition
    )
    await client.post("/v1/executions", json=creation(execution_id=other))
    assert (await client.post(f"/v1/flows/{flow}/members", json={"execution_id": other})).status_code == 400


async def test_unknown_flows(client: httpx.AsyncClient) -> None:
    body = {"reason": "", "cancellation_policy": "cancel_all"}
    response = await client.post(f"/v1/flows/{uuid.uuid4()}/cancel", json=body)
    assert (response.status_code, response.json()) == (404, {"error": "not found: flow"})
    wrong = await client.post("/v1/flows/nonsense/cancel", json=body)
    assert wrong.status_code == 400
    assert wrong.json()["error"].startswith("invalid flow_id: ")
