"""Executions over HTTP: fields, variants, status codes, error bodies."""

from __future__ import annotations

import base64

import httpx
import pytest

from flowfabric.engine import Engine
from tests.server.making import at, claimed, created, creation


async def test_creation_is_idempotent(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/executions", json=creation())
    assert first.status_code == 201
    assert set(first.json()) == {"Created"}
    assert first.json()["Created"]["public_state"] == "waiting"
    identity = first.json()["Created"]["execution_id"]
    again = await client.post("/v1/executions", json=creation(execution_id=identity))
    assert (again.status_code, again.json()) == (200, {"Duplicate": {"execution_id": identity}})


async def test_all_fields_of_a_creation(client: httpx.AsyncClient, engine: Engine) -> None:
    now = await engine.now_ms()
    body = creation(
        execution_id="{fp:7}:6f9f4a0c-9d7e-4b8f-8d2e-0f3f5a1c2b3d",
        payload_encoding="json",
        priority=3,
        idempotency_key="once",
        tags={"cairn.session_id": "s-1"},
        policy={"max_replay_count": 2},
        delay_until=now + 60_000,
        execution_deadline_at=now + 120_000,
        partition_id=7,
        now=now,
    )
    response = await client.post("/v1/executions", json=body)
    identity = body["execution_id"]
    assert response.json() == {"Created": {"execution_id": identity, "public_state": "delayed"}}
    found = (await client.get(at(identity))).json()
    assert found["execution_id"] == identity
    assert found["namespace"] == "acme"
    assert found["lane_id"] == "default"
    assert found["priority"] == 3
    assert found["execution_kind"] == "resize"
    assert found["public_state"] == found["state_vector"]["public_state"] == "delayed"
    assert found["created_at"].isdigit()
    assert found["flow_id"] is None
    assert set(found) == {
        "execution_id",
        "namespace",
        "lane_id",
        "priority",
        "execution_kind",
        "state_vector",
        "public_state",
        "created_at",
        "started_at",
        "completed_at",
        "current_attempt_index",
        "flow_id",
        "blocking_detail",
    }


async def test_bytes_in_either_spelling(client: httpx.AsyncClient, engine: Engine) -> None:
    data = bytes(range(256))
    for spelling in (list(data), base64.b64encode(data).decode()):
        identity = await created(client, input_payload=spelling)
        assert (await engine.read_execution_context(identity)).input_payload == data
    for wrong, status in (([256], 400), ([-1], 400), ("###", 400), (["a"], 422), (7, 422), ({"a": 1}, 422)):
        response = await client.post("/v1/executions", json=creation(input_payload=wrong))
        assert response.status_code == status
        expected = "input_payload: expected an array of numbers from 0 to 255, or base64 text"
        assert response.json()["error"].endswith(f": {expected}")


async def test_from_claim_to_result(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client)
    assert (await client.get(at(identity, "result"))).status_code == 404
    handle = await claimed(engine)
    assert (await client.get(at(identity, "state"))).json() == "active"
    await engine.complete(handle, b"\x00\xffbytes")
    assert (await client.get(at(identity, "state"))).text == '"completed"'
    result = await client.get(at(identity, "result"))
    assert result.content == b"\x00\xffbytes"
    assert result.headers["content-type"] == "application/octet-stream"


async def test_a_completion_without_a_payload_has_no_result(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client)
    await engine.complete(await claimed(engine))
    response = await client.get(at(identity, "result"))
    assert (response.status_code, response.json()) == (404, {"error": f"execution result not found: {identity}"})


async def test_cancel_replay_and_priority(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client)
    await engine.promote_submitted()
    moved = await client.put(at(identity, "priority"), json={"new_priority": 9})
    assert (moved.status_code, moved.json()) == (200, {"Changed": {"execution_id": identity}})
    refused = await client.post(at(identity, "replay"))
    assert refused.status_code == 409
    assert refused.json()["kind"] == "execution_not_terminal"
    assert refused.json()["retryable"] is False
    for _ in range(2):
        cancelled = await client.post(at(identity, "cancel"), json={"execution_id": identity, "reason": "enough"})
        assert cancelled.json() == {"Cancelled": {"execution_id": identity, "public_state": "cancelled"}}


async def test_replaying_what_failed(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client)
    await engine.fail(await claimed(engine), "no", "permanent")
    assert (await client.get(at(identity, "state"))).json() == "failed"
    assert (await client.post(at(identity, "replay"))).json() == {"Replayed": {"public_state": "waiting"}}


async def test_cancelling_what_ended_otherwise(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client)
    await engine.complete(await claimed(engine))
    response = await client.post(at(identity, "cancel"), json={"reason": ""})
    assert response.status_code == 400
    assert response.json()["error"].startswith("invalid_input")


async def test_a_body_that_names_another_execution(client: httpx.AsyncClient) -> None:
    identity, other = await created(client), await created(client)
    response = await client.post(at(identity, "cancel"), json={"execution_id": other, "reason": ""})
    expected = {"error": "path execution_id does not match body execution_id"}
    assert (response.status_code, response.json()) == (400, expected)


async def test_revoking_a_lease(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client)
    nothing = await client.post(at(identity, "revoke-lease"))
    assert (nothing.status_code, nothing.json()) == (200, {"AlreadySatisfied": {"reason": "no_active_lease"}})
    await claimed(engine)
    revoked = (await client.post(at(identity, "revoke-lease"))).json()["Revoked"]
    assert isinstance(revoked["lease_id"], str)
    assert revoked["lease_epoch"].isdigit()


async def test_reclaim_says_why_not(client: httpx.AsyncClient) -> None:
    identity = await created(client)
    body = {"worker_id": "w", "worker_instance_id": "w-1", "lane_id": "default", "grant_ttl_ms": 5000}
    response = await client.post(at(identity, "reclaim"), json=body)
    assert response.status_code == 200
    assert response.json()["status"] == "not_reclaimable"
    assert set(response.json()) == {"status", "execution_id", "detail"}
    for wrong in ({"grant_ttl_ms": 0}, {"grant_ttl_ms": 60_001}, {"worker_id": "a b"}, {"worker_id": ""}):
        refused = await client.post(at(identity, "reclaim"), json={**body, **wrong})
        assert refused.status_code == 400
        assert refused.json()["error"].startswith(f"invalid_input: {next(iter(wrong))}: expected ")


async def test_pages_of_a_partition(client: httpx.AsyncClient) -> None:
    ids = sorted([await created(client) for _ in range(3)])
    partition = int(ids[0].partition("}")[0][4:])
    seen: list[str] = []
    cursor = ""
    while True:
        page = (
            await client.get("/v1/executions", params={"partition": partition, "limit": 2, "cursor": cursor})
        ).json()
        seen += page["executions"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids
    empty = await client.get("/v1/executions", params={"partition": partition, "limit": 0})
    assert empty.json() == {"executions": [], "next_cursor": None}
    many = await client.get("/v1/executions", params={"partition": partition, "limit": 100_000})
    assert len(many.json()["executions"]) == 3


@pytest.mark.parametrize(
    "query", ["", "partition=x", "partition=65536", "partition=-1", "partition=1&limit=x", "partition=1&cursor=nope"]
)
async def test_bad_queries(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/v1/executions?{query}")
    assert response.status_code == 400
    assert response.json()["error"].startswith("invalid ")


@pytest.mark.parametrize("rest", [(), ("state",), ("result",), ("pending-waitpoints",)])
async def test_unknown_and_unreadable_ids(client: httpx.AsyncClient, rest: tuple[str, ...]) -> None:
    unknown = "{fp:1}:00000000-0000-4000-8000-000000000000"
    assert (await client.get(at(unknown, *rest))).status_code == 404
    response = await client.get(at("nonsense", *rest))
    assert response.status_code == 400
    assert response.json()["error"].startswith("invalid execution_id: ")


async def test_unknown_executions_cannot_be_changed(client: httpx.AsyncClient) -> None:
    unknown = "{fp:1}:00000000-0000-4000-8000-000000000000"
    for method, rest, body in (
        ("POST", "cancel", {"reason": ""}),
        ("POST", "replay", None),
        ("POST", "revoke-lease", None),
        ("PUT", "priority", {"new_priority": 1}),
    ):
        response = await client.request(method, at(unknown, rest), json=body)
        assert (response.status_code, response.json()) == (404, {"error": "not found: execution"}), rest


async def test_asking_an_execution_to_end(client: httpx.AsyncClient, engine: Engine) -> None:
    plain = await engine.create_execution(execution_kind="op")
    answer = await client.post(at(plain.execution_id, "request-cancel"), json={"reason": "enough"})
    assert answer.json() == {"Cancelled": {"execution_id": plain.execution_id, "public_state": "cancelled"}}
    patient = await engine.create_execution(execution_kind="op", lane_id="patient", policy={"cancel_grace_ms": 60_000})
    await claimed(engine, "patient")
    where = at(patient.execution_id, "request-cancel")
    first = await client.post(where, json={"reason": "enough"})
    until = first.json()["Cancelling"]["until"]
    assert first.json() == {"Cancelling": {"execution_id": patient.execution_id, "until": until}}
    assert (await engine.read_execution_context(patient.execution_id)).cancel_at == until
    assert (await client.post(where, json={})).json() == first.json()
    at_once = await client.post(at(patient.execution_id, "cancel"), json={"reason": "now"})
    assert set(at_once.json()) == {"Cancelled"}
