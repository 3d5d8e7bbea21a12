"""What can be looked at: flows, lanes, workers, schedules, budgets, quotas, tags, reasons; and many at once."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.model.streams.frames import DurableSummary, Frame
from tests.server.making import at, claimed, created, creation

NODES: dict[str, Any] = {
    "a": {"execution_kind": "one", "input_payload": [1]},
    "b": {"execution_kind": "two", "lane_id": "other", "tags": {"x.y": "z"}},
    "c": {"execution_kind": "three", "input_payload": "AQI="},
}


async def test_many_executions_at_once(client: httpx.AsyncClient) -> None:
    known = await created(client)
    body = {"executions": [creation(), creation(execution_id=known), creation(priority=3)]}
    response = await client.post("/v1/executions/bulk", json=body)
    assert [next(iter(each)) for each in response.json()["results"]] == ["Created", "Duplicate", "Created"]
    broken = {"executions": [creation(), creation(lane_id="")]}
    refused = await client.post("/v1/executions/bulk", json=broken)
    assert refused.status_code == 400
    assert "item 1" in refused.json()["error"]


async def test_a_whole_flow_at_once(client: httpx.AsyncClient, engine: Engine) -> None:
    body = {
        "namespace": "acme",
        "flow_id": str(uuid.uuid4()),
        "nodes": NODES,
        "edges": [{"upstream": "a", "downstream": "c", "data_passing_ref": "x"}, {"upstream": "b", "downstream": "c"}],
        "groups": {"c": {"kind": "quorum", "k": 1, "on_satisfied": "let_run"}},
    }
    first = await client.post("/v1/flows/submit", json=body)
    assert first.status_code == 201
    assert (await client.post("/v1/flows/submit", json=body)).json() == first.json()
    flow, ids = first.json()["flow_id"], first.json()["execution_ids"]
    assert set(ids) == {"a", "b", "c"}
    found = (await client.get(f"/v1/flows/{flow}")).json()
    assert (found["namespace"], found["node_count"], found["edge_count"]) == ("acme", 3, 2)
    group = found["edge_groups"][0]
    assert group["downstream_execution_id"] == ids["c"]
    assert group["policy"] == {"kind": "quorum", "k": 1, "on_satisfied": "let_run"}
    edges = (await client.get(f"/v1/flows/{flow}/edges", params={"downstream": ids["c"]})).json()["edges"]
    assert {each["upstream_execution_id"] for each in edges} == {ids["a"], ids["b"]}
    outgoing = (await client.get(f"/v1/flows/{flow}/edges", params={"upstream": ids["a"]})).json()["edges"]
    assert [each["data_passing_ref"] for each in outgoing] == ["x"]
    assert (await client.get(f"/v1/flows/{flow}/edges")).status_code == 400
    partition = int(ids["a"].partition("}")[0][4:])
    listed = (await client.get("/v1/flows", params={"partition": partition})).json()
    assert [each["flow_id"] for each in listed["flows"]] == [flow]
    assert (await client.get(f"/v1/flows/{flow}/summary")).status_code == 404
    await engine.run_timer("flow_projector")
    assert (await client.get(f"/v1/flows/{flow}/summary")).json()["total_members"] == 3


async def test_policies_and_tags_of_flows(client: httpx.AsyncClient) -> None:
    made = await client.post("/v1/flows/submit", json={"namespace": "acme", "nodes": NODES})
    flow, ids = made.json()["flow_id"], made.json()["execution_ids"]
    path = f"/v1/flows/{flow}/groups/{ids['a']}"
    assert (await client.put(path, json={"policy": {"kind": "any_of"}})).json() == "Set"
    assert (await client.put(path, json={"policy": {"kind": "any_of"}})).json() == "AlreadySet"
    assert (await client.put(path, json={"policy": {"kind": "some_of"}})).status_code == 400
    tags = {"tags": {"acme.team": "blue"}}
    assert (await client.put(f"/v1/flows/{flow}/tags", json=tags)).json() == tags
    assert (await client.get(f"/v1/flows/{flow}/tags")).json() == tags
    assert (await client.get(f"/v1/flows/{uuid.uuid4()}")).status_code == 404


async def test_looking_closely_at_an_execution(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client, tags={"acme.team": "blue"})
    snapshot = (await client.get(at(identity, "snapshot"))).json()
    assert (snapshot["execution_id"], snapshot["tags"]) == (identity, {"acme.team": "blue"})
    reason = (await client.get(at(identity, "explain"))).json()
    assert (reason["gate"], reason["execution_id"]) == ("waiting_for_worker", identity)
    changed = await client.put(at(identity, "tags"), json={"tags": {"acme.size": "xl"}})
    assert changed.json() == {"tags": {"acme.team": "blue", "acme.size": "xl"}}
    assert (await client.get(at(identity, "tags"))).json() == changed.json()
    assert (await client.put(at(identity, "tags"), json={"tags": {"No": "x"}})).status_code == 400
    summary = at(identity, "attempts", "0", "summary")
    assert (await client.get(summary)).status_code == 404
    await engine.append_frame(await claimed(engine), Frame(b'{"done": 3}', mode=DurableSummary()))
    assert (await client.get(summary)).json()["document_json"] == '{"done":3}'
    unknown = "{fp:1}:00000000-0000-4000-8000-000000000000"
    for rest in ("snapshot", "explain", "tags"):
        assert (await client.get(at(unknown, rest))).status_code == 404


async def test_lanes(client: httpx.AsyncClient) -> None:
    await created(client, lane_id="a/b")
    await created(client, lane_id="second")
    first = (await client.get("/v1/lanes", params={"limit": 1})).json()
    assert (first["lanes"], first["states"], first["next_cursor"]) == (["a/b"], ["active"], "a/b")
    rest = (await client.get("/v1/lanes", params={"cursor": "a/b"})).json()
    assert rest["lanes"] == ["second"]
    path = "/v1/lanes/a%2Fb"
    changed = await client.put(f"{path}/state", json={"state": "draining", "reason": "moving"})
    assert changed.json() == {"LaneStateChanged": {"lane_id": "a/b", "previous": "active", "state": "draining"}}
    assert (await client.get(path)).json()["state_reason"] == "moving"
    closed = await client.post("/v1/executions", json=creation(lane_id="a/b"))
    assert (closed.status_code, closed.json()["kind"]) == (409, "state_conflict")
    unknown = await client.put(f"{path}/state", json={"state": "open"})
    expected = "invalid_input: state: expected one of active, paused, draining, disabled"
    assert (unknown.status_code, unknown.json()) == (400, {"error": expected})
    fair = await client.put(f"{path}/fairness", json={"by": "namespace"})
    assert fair.json() == {"LaneFairnessChanged": {"lane_id": "a/b", "fair_by": "namespace"}}
    assert (await client.get("/v1/lanes/unknown")).status_code == 404


async def test_workers_suspended_and_expired(client: httpx.AsyncClient, engine: Engine) -> None:
    await engine.register_worker(worker_id="w", worker_instance_id="w-1", lanes=["default"], namespace="acme")
    page = (await client.get("/v1/workers", params={"namespace": "acme"})).json()
    assert [each["worker_instance_id"] for each in page["entries"]] == ["w-1"]
    assert (await client.get("/v1/workers", params={"namespace": "other"})).json()["entries"] == []
    assert (await client.get("/v1/suspended", params={"partition": 1})).json() == {"entries": [], "next_cursor": None}
    await created(client)
    await claimed(engine)
    expired = (await client.get("/v1/leases/expired", params={"as_of": 2**50, "limit": 1})).json()
    assert len(expired["entries"]) == 1
    cursor = expired["cursor"]
    after = {"after_expires_at_ms": cursor["expires_at_ms"], "after_execution_id": cursor["execution_id"]}
    assert (await client.get("/v1/leases/expired", params={"as_of": 2**50, **after})).json()["entries"] == []


async def test_schedules(client: httpx.AsyncClient) -> None:
    path = "/v1/schedules/nightly"
    where = {"namespace": "acme"}
    body = {"execution_kind": "report", "cron": "0 3 * * *", "time_zone": "Europe/Berlin", "input_payload": [1]}
    made = await client.put(path, params=where, json=body)
    assert made.status_code == 201
    assert (await client.put(path, params=where, json=body)).json()["Unchanged"]["schedule_id"] == "nightly"
    changed = await client.put(path, params=where, json={"execution_kind": "report", "every_ms": 60_000})
    assert changed.json()["Changed"]["revision"] == 2
    found = (await client.get(path, params=where)).json()
    assert found["spec"] == {"every_ms": 60_000, "anchor_ms": 0}
    assert [each["schedule_id"] for each in (await client.get("/v1/schedules", params=where)).json()["schedules"]] == [
        "nightly"
    ]
    assert set((await client.post(f"{path}/pause", params=where)).json()) == {"SchedulePaused"}
    assert set((await client.post(f"{path}/resume", params=where)).json()) == {"ScheduleResumed"}
    assert set((await client.post(f"{path}/trigger", params=where, json={})).json()) == {"Started"}
    assert (await client.delete(path, params=where)).json() == {"ScheduleDeleted": {"schedule_id": "nightly"}}
    assert (await client.get(path, params=where)).status_code == 404
    assert (await client.put(path, params=where, json={"execution_kind": "report"})).status_code == 400


async def test_lists_of_budgets_and_quotas(client: httpx.AsyncClient) -> None:
    body = {
        "scope_type": "lane",
        "scope_id": "default",
        "enforcement_mode": "strict",
        "on_hard_limit": "fail",
        "on_soft_limit": "warn",
        "reset_interval_ms": 0,
        "dimensions": ["tokens"],
        "hard_limits": [100],
        "soft_limits": [0],
    }
    ids = sorted([(await client.post("/v1/budgets", json=body)).json()["Created"]["budget_id"] for _ in range(2)])
    page = (await client.get("/v1/budgets", params={"limit": 1})).json()
    assert ([each["budget_id"] for each in page["budgets"]], page["next_cursor"]) == (ids[:1], ids[0])
    raised = await client.put(f"/v1/budgets/{ids[0]}/limits", json={"hard_limits": {"tokens": 200}})
    assert raised.json()["hard_limits"] == {"tokens": 200}
    quota = {"window_seconds": 60, "max_requests_per_window": 5, "max_concurrent": 1}
    await client.post("/v1/quotas", json=quota)
    policies = (await client.get("/v1/quotas")).json()["policies"]
    assert policies[0]["limits"]["max_requests_per_window"] == 5


async def test_the_description(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]["/v1/executions"]) == {"get", "post"}
    text = (await client.get("/openapi.json")).text
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/flows/submit" in page.text


@pytest.mark.parametrize("path", ["/v1/lanes?limit=0", "/v1/budgets?limit=1001", "/v1/flows?partition=1&cursor=x"])
async def test_bad_pages(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 400


async def test_queues(client: httpx.AsyncClient) -> None:
    await created(client)
    queues = (await client.get("/v1/queues")).json()["queues"]
    assert [(each["lane_id"], each["waiting"]) for each in queues] == [("default", 1)]
    assert (await client.get("/v1/queues", params={"namespace": "acme"})).json()["queues"] != []
    assert (await client.get("/v1/queues", params={"namespace": "nobody's"})).json()["queues"] == []
    metrics = (await client.get("/metrics")).text
    assert 'ff_queue_depth{lane="default"} 1' in metrics
    assert 'ff_queue_oldest_age_seconds{lane="default"}' in metrics
