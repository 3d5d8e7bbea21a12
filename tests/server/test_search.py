"""Search and bulk acts over HTTP."""

from __future__ import annotations

import httpx
import msgspec

from flowfabric.engine import Engine
from tests.server.making import at, claimed, created


async def test_search(client: httpx.AsyncClient) -> None:
    first = await created(client, tags={"acme.team": "blue"})
    second = await created(client, lane_id="other", execution_kind="other kind")
    path = "/v1/search/executions"

    async def found(**query: str | int) -> list[str]:
        return [each["execution_id"] for each in (await client.get(path, params=query)).json()["executions"]]

    assert set(await found()) == {first, second}
    assert await found(tag="acme.team=blue") == [first]
    assert await found(kind="other kind", namespace="acme", state="waiting,completed") == [second]
    assert await found(namespace="nobody's") == []
    page = (await client.get(path, params={"limit": 1})).json()
    rest = (await client.get(path, params={"limit": 1, "cursor": page["next_cursor"]})).json()
    assert {page["executions"][0]["execution_id"], rest["executions"][0]["execution_id"]} == {first, second}
    for wrong in ("state=odd", "tag=x", "cursor=x", "limit=0", "limit=1001", "lane_id=", "flow_id=x"):
        assert (await client.get(f"{path}?{wrong}")).status_code == 400, wrong


async def test_members(client: httpx.AsyncClient) -> None:
    nodes = {name: {"execution_kind": name} for name in "ab"}
    body = {"namespace": "acme", "nodes": nodes, "edges": [{"upstream": "a", "downstream": "b"}]}
    made = (await client.post("/v1/flows/submit", json=body)).json()
    members = (await client.get(f"/v1/flows/{made['flow_id']}/members")).json()["executions"]
    assert {each["execution_kind"]: each["execution_id"] for each in members} == made["execution_ids"]
    edges = (await client.get(f"/v1/flows/{made['flow_id']}/graph")).json()["edges"]
    assert [each["downstream_execution_id"] for each in edges] == [made["execution_ids"]["b"]]
    for rest in ("members", "graph"):
        assert (await client.get(f"/v1/flows/00000000-0000-4000-8000-000000000000/{rest}")).status_code == 404


async def test_cancelling_and_replaying_by_filter(client: httpx.AsyncClient, engine: Engine) -> None:
    ids = {await created(client) for _ in range(3)}
    other = await created(client, lane_id="other")
    for _ in range(2):
        await engine.fail(await claimed(engine), "no", "permanent")
    trial = await client.post("/v1/bulk/replay", json={"filter": {"lane_id": "default"}, "dry_run": True})
    assert (trial.json()["matched"], trial.json()["done"]) == (2, [])
    replayed = (await client.post("/v1/bulk/replay", json={"filter": {"lane_id": "default"}})).json()
    assert len(replayed["done"]) == 2
    body = {"filter": {"namespace": "acme", "lane_id": "default"}, "reason": "enough", "limit": 2}
    first = (await client.post("/v1/bulk/cancel", json=body)).json()
    assert (len(first["done"]), first["next_cursor"] is None) == (2, False)
    second = (await client.post("/v1/bulk/cancel", json={**body, "cursor": first["next_cursor"]})).json()
    assert {*first["done"], *second["done"]} == ids
    assert (await client.get(at(other, "state"))).json() == "waiting"
    completed = await client.post("/v1/bulk/replay", json={"filter": {"states": ["waiting"]}})
    assert [each["execution_id"] for each in completed.json()["failed"]] == [other]
    assert (await client.post("/v1/bulk/cancel", json={})).status_code == 422
    entries = (await client.get("/v1/admin/audit")).json()["entries"]
    acts = [(each["act"], msgspec.json.decode(each["subject"])) for each in reversed(entries)]
    assert acts == [
        ("replay_executions", {"lane_id": "default", "done": "2"}),
        ("cancel_executions", {"namespace": "acme", "lane_id": "default", "done": "2"}),
        ("cancel_executions", {"namespace": "acme", "lane_id": "default", "done": "1"}),
        ("replay_executions", {"states": "waiting", "done": "0"}),
    ], "with what it was about; a preview is no act"
