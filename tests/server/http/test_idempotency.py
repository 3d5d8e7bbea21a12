"""``Idempotency-Key`` and the account of acts."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from tests.server.conftest import client_of
from tests.server.making import at, created, creation

KEY = {"idempotency-key": "once"}


async def test_a_repeated_request_gets_its_answer_again(client: httpx.AsyncClient, engine: Engine) -> None:
    first = await client.post("/v1/executions", json=creation(), headers=KEY)
    again = await client.post("/v1/executions", json=creation(), headers=KEY)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert len((await engine.search_executions()).executions) == 1
    other = await client.post("/v1/executions", json=creation(priority=1), headers=KEY)
    assert (other.status_code, other.json()["kind"]) == (422, "conflict")
    elsewhere = await client.post("/v1/flows", json={"flow_kind": "dag", "namespace": "acme"}, headers=KEY)
    assert elsewhere.status_code == 422
    assert (await client.post("/v1/executions", json=creation(), headers={"idempotency-key": "two"})).status_code == 201


async def test_a_lost_answer_doubles_nothing(
    client: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(**_: object) -> None:
        raise ConnectionError

    bodies = {
        "/v1/executions": creation(),
        "/v1/flows": {"flow_kind": "dag", "namespace": "acme"},
        "/v1/quotas": {"window_seconds": 60, "max_requests_per_window": 5, "max_concurrent": 1},
    }
    for path, body in bodies.items():
        headers = {"idempotency-key": path}
        with monkeypatch.context() as patch:
            patch.setattr(engine, "keep_answer", lost)
            assert (await client.post(path, json=body, headers=headers)).status_code == 500
        repeated = await client.post(path, json=body, headers=headers)
        assert repeated.status_code == 200
        assert next(iter(repeated.json())) in ("Duplicate", "AlreadySatisfied")
    assert len((await engine.search_executions()).executions) == 1


async def test_keys_belong_to_their_callers(engine: Engine) -> None:
    server = create_app(engine, ServerConfig(api_token="token-of-this-test"))
    token = (await engine.create_credential(name="other", scopes=["submit"])).token.reveal()
    async with client_of(server, "token-of-this-test") as root, client_of(server, token) as other:
        mine = await root.post("/v1/executions", json=creation(), headers=KEY)
        theirs = await other.post("/v1/executions", json=creation(), headers=KEY)
    assert (mine.status_code, theirs.status_code) == (201, 201)
    assert mine.json() != theirs.json()


async def test_errors_are_not_remembered(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client)
    refused = await client.post(at(identity, "replay"), headers=KEY)
    assert refused.status_code == 409
    await engine.cancel_execution(execution_id=identity)
    assert (await client.post(at(identity, "cancel"), json={"reason": ""}, headers=KEY)).status_code == 200


async def test_two_at_once(client: httpx.AsyncClient, server: Server) -> None:
    answers = await asyncio.gather(*(client.post("/v1/executions", json=creation(), headers=KEY) for _ in range(5)))
    assert sorted({each.status_code for each in answers}) in ([201], [201, 409])
    assert not server.keys_at_work


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there"])
async def test_bad_keys(client: httpx.AsyncClient, key: str) -> None:
    response = await client.post("/v1/executions", json=creation(), headers={"idempotency-key": key})
    assert response.status_code == 400


async def test_secrets_are_not_remembered(client: httpx.AsyncClient, engine: Engine) -> None:
    body = {"name": "ci", "scopes": ["admin"]}
    made = await client.post("/v1/admin/credentials", json=body, headers=KEY)
    assert made.status_code == 201
    assert await engine.find_answer("anybody", "once") is None


async def test_answers_go_after_a_day(engine: Engine, client: httpx.AsyncClient) -> None:
    kept = {"fingerprint": "f", "status": 200, "media": "m", "body": b"1"}
    first = await engine.keep_answer(owner="o", idempotency_key="k", **kept)  # type: ignore[arg-type]
    assert first.expires_at_ms > await engine.now_ms() + 86_000_000
    other = await engine.keep_answer(owner="o", idempotency_key="k", **{**kept, "body": b"2"})  # type: ignore[arg-type]
    assert other.body == b"1"
    await engine.keep_answer(owner="o", idempotency_key="gone", kept_ms=0, **kept)  # type: ignore[arg-type]
    assert await engine.find_answer("o", "gone") is None
    again = await engine.keep_answer(owner="o", idempotency_key="gone", **{**kept, "body": b"3"})  # type: ignore[arg-type]
    assert again.body == b"3"


async def test_acts_are_accounted_for(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "audit")
    identity = await created(client)
    await client.post(at(identity, "cancel"), json={"reason": "secret words"})
    await client.put("/v1/lanes/default/state", json={"state": "paused"})
    entries = (await client.get("/v1/admin/audit")).json()["entries"]
    assert [each["act"] for each in entries] == ["set_lane_state", "cancel_execution"]
    assert identity in entries[1]["subject"]
    assert (entries[1]["who"], entries[1]["status"]) == ("anybody", 200)
    page = (await client.get("/v1/admin/audit", params={"limit": 1})).json()
    rest = (await client.get("/v1/admin/audit", params={"after": page["next_cursor"]})).json()
    assert [each["act"] for each in rest["entries"]] == ["cancel_execution"]
    assert "cancel_execution" in caplog.text
    assert "secret words" not in caplog.text
