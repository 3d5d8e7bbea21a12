"""Search and bulk acts over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

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


async def test_searching_in_words(client: httpx.AsyncClient, engine: Engine) -> None:
    red = await created(client, execution_kind="charge_card", tags={"user.team": "red"})
    await created(client, lane_id="other", execution_kind="refund")
    await claimed(engine, "other")
    path = "/v1/search/executions"

    async def found(**query: str | int) -> list[str]:
        return [each["execution_id"] for each in (await client.get(path, params=query)).json()["executions"]]

    assert await found(q="tag:team=red") == await found(tag="team=red") == [red]
    assert await found(q=f"{red.split(':')[-1][:8]} charge") == [red]
    assert len(await found(state="active")) == len(await found(q="state:active")) == 1
    assert await found(q="refund", roots="true", ended_from=1) == []
    refused = await client.get(path, params={"q": "colour:red"})
    assert refused.status_code == 400
    assert "q: unknown word 'colour:'; known words are kind:" in refused.json()["error"]
    counts = (await client.get("/v1/search/states", params={"q": "namespace:acme"})).json()
    assert counts == {"counts": {"waiting": 1, "active": 1}, "total": 2, "oldest": None}


async def test_what_has_succeeded_meanwhile_is_not_run_again(
    client: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = await created(client)
    await engine.fail(await claimed(engine), "no", "permanent")
    real = engine.search_executions

    async def found(**wanted: Any) -> Any:
        page = await real(**wanted)
        await engine.replay_execution(execution_id=identity)
        await engine.complete(await claimed(engine), b"done")
        return page

    monkeypatch.setattr(engine, "search_executions", found)
    answer = (await client.post("/v1/bulk/replay", json={"filter": {"kind": "resize"}})).json()
    assert (answer["matched"], answer["done"]) == (1, [])
    assert "replay_not_allowed" in answer["failed"][0]["error"]
    assert await engine.get_execution_result(identity) == b"done"


async def test_bulk_acts_mean_what_the_list_shows(client: httpx.AsyncClient, engine: Engine) -> None:
    """The same words, the same states: those that run, too."""
    running = await created(client, lane_id="busy", execution_kind="busy")
    await claimed(engine, "busy")
    failing = await created(client, lane_id="failing", execution_kind="charge")
    await engine.fail(await claimed(engine, "failing"), "Declined: order 7", "permanent")
    await created(client, lane_id="failing", execution_kind="refund")
    await engine.fail(await claimed(engine, "failing"), "Declined: order 8", "permanent")
    groups = (await client.get("/v1/search/failures")).json()
    assert [(each["execution_kind"], each["count"]) for each in groups["groups"]] == [("refund", 1), ("charge", 1)]
    body = {"filter": {"q": "kind:charge error:declined"}}
    assert (await client.post("/v1/bulk/replay", json=body)).json()["done"] == [failing]
    body = {"filter": {"states": ["active"], "roots": True}, "dry_run": True}
    assert (await client.post("/v1/bulk/cancel", json=body)).json()["matched"] == 1
    done = (await client.post("/v1/bulk/cancel", json={"filter": {"states": ["active"]}})).json()
    assert [*done["done"], *(each["execution_id"] for each in done["failed"])] == [running]
    wrong = await client.post("/v1/bulk/cancel", json={"filter": {"q": "colour:red"}})
    assert wrong.status_code in (400, 422)
    assert "filter.q: unknown word" in wrong.json()["error"]
