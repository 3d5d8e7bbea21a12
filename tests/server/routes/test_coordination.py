"""Budgets, quotas, grants, streams, signals and keys over HTTP."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.model.conditions import ByName, Single
from flowfabric.model.handles import Handle
from flowfabric.model.operations.suspension import Fresh, SuspendArgs, Suspended
from flowfabric.model.streams.frames import Frame
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from tests.server.conftest import client_of
from tests.server.making import at, claimed, created, until


def budget(**changes: Any) -> dict[str, Any]:
    return {
        "budget_id": str(uuid.uuid4()),
        "scope_type": "lane",
        "scope_id": "default",
        "enforcement_mode": "strict",
        "on_hard_limit": "fail",
        "on_soft_limit": "warn",
        "reset_interval_ms": 0,
        "dimensions": ["tokens"],
        "hard_limits": [100],
        "soft_limits": [50],
        "now": 1,
        **changes,
    }


async def test_a_budget(client: httpx.AsyncClient) -> None:
    body = budget()
    identity = body["budget_id"]
    first = await client.post("/v1/budgets", json=body)
    assert (first.status_code, first.json()) == (201, {"Created": {"budget_id": identity}})
    again = await client.post("/v1/budgets", json=body)
    assert (again.status_code, again.json()) == (200, {"AlreadySatisfied": {"budget_id": identity}})

    async def charged(amount: int, key: str | None = None) -> Any:
        usage = {"dimensions": {"tokens": amount}, "dedup_key": key, "now": 1}
        response = await client.post(f"/v1/budgets/{identity}/usage", json=usage)
        assert response.status_code == 200
        return response.json()

    assert await charged(40, "k") == "Ok"
    assert await charged(40, "k") == "AlreadyApplied"
    soft = (await charged(20))["SoftBreach"]
    assert (soft["dimension"], soft["current_usage"], soft["soft_limit"]) == ("tokens", 60, 50)
    hard = (await charged(50))["HardBreach"]
    assert (hard["dimension"], hard["current_usage"], hard["hard_limit"]) == ("tokens", 60, 100)
    status = (await client.get(f"/v1/budgets/{identity}")).json()
    assert status["usage"] == {"tokens": 60}
    assert status["hard_limits"] == {"tokens": 100}
    assert status["breach_count"] == 1
    assert status["created_at"].isdigit()
    assert (await client.post(f"/v1/budgets/{identity}/reset")).json() == {"Reset": {"next_reset_at": 0}}
    assert (await client.get(f"/v1/budgets/{identity}")).json()["usage"] == {"tokens": 0}


async def test_budgets_that_are_not_there(client: httpx.AsyncClient) -> None:
    response = await client.get(f"/v1/budgets/{uuid.uuid4()}")
    assert (response.status_code, response.json()) == (404, {"error": "not found: budget"})
    assert (await client.get("/v1/budgets/nonsense")).json()["error"].startswith("invalid budget_id: ")


async def test_a_quota(client: httpx.AsyncClient) -> None:
    body = {
        "quota_policy_id": str(uuid.uuid4()),
        "window_seconds": 60,
        "max_requests_per_window": 5,
        "max_concurrent": 1,
        "now": 1,
    }
    first = await client.post("/v1/quotas", json=body)
    expected = {"quota_policy_id": body["quota_policy_id"]}
    assert (first.status_code, first.json()) == (201, {"Created": expected})
    assert (await client.post("/v1/quotas", json=body)).json() == {"AlreadySatisfied": expected}
    minted = await client.post("/v1/quotas", json={**body, "quota_policy_id": None})
    assert minted.status_code == 201


async def test_a_grant(client: httpx.AsyncClient, engine: Engine) -> None:
    body = {"lane_id": "default", "worker_instance_id": "w-1", "grant_ttl_ms": 5000}
    nothing = await client.post("/v1/workers/w/claim", json=body)
    assert (nothing.status_code, nothing.content) == (204, b"")
    identity = await created(client)
    granted = await client.post("/v1/workers/w/claim", json={**body, "capabilities": ["gpu"]})
    assert granted.status_code == 200
    assert set(granted.json()) == {"execution_id", "partition_key", "grant_key", "expires_at_ms"}
    assert granted.json()["execution_id"] == identity
    lease = await engine.claim_execution(
        execution_id=identity,
        worker_id="w",
        worker_instance_id="w-1",
        lane_id="default",
        lease_id=str(uuid.uuid4()),
        lease_ttl_ms=1000,
        attempt_id=str(uuid.uuid4()),
    )
    assert lease.execution_id == identity
    for wrong in ({"grant_ttl_ms": 0}, {"grant_ttl_ms": 60_001}, {"worker_instance_id": "a b"}):
        refused = await client.post("/v1/workers/w/claim", json={**body, **wrong})
        assert refused.status_code == 400
        assert refused.json()["error"].startswith(f"invalid_input: {next(iter(wrong))}: expected ")
    refused = await client.post("/v1/workers/a%20b/claim", json=body)
    expected = "invalid worker_id: expected text without spaces or control characters"
    assert (refused.status_code, refused.json()) == (400, {"error": expected})


async def test_reading_and_tailing_a_stream(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client)
    handle = await claimed(engine)
    stream = at(identity, "attempts", "0", "stream")
    assert (await client.get(stream)).json() == {"frames": [], "count": 0}
    await engine.append_frame(handle, Frame(b"one", frame_type="log", correlation_id="c"))
    page = (await client.get(stream)).json()
    assert page["count"] == 1
    fields = page["frames"][0]["fields"]
    assert (fields["frame_type"], fields["payload"], fields["mode"]) == ("log", "one", "durable")
    after = page["frames"][0]["id"]
    waiting = asyncio.create_task(client.get(f"{stream}/tail", params={"after": after, "block_ms": 20_000}))
    await until(lambda: engine._tails > 0)
    await engine.append_frame(handle, Frame(b"two"))
    assert [each["fields"]["payload"] for each in (await waiting).json()["frames"]] == ["two"]
    await engine.complete(handle)
    closed = (await client.get(f"{stream}/tail")).json()
    assert closed["count"] == 2
    assert closed["closed_reason"] == "attempt_success"
    assert isinstance(closed["closed_at"], int)


@pytest.mark.parametrize(
    "query",
    [
        "?from=-",
        "?to=+",
        "?limit=0",
        "?limit=1001",
        "?from=",
        "/tail?after=start",
        "/tail?block_ms=30001",
        "/tail?limit=x",
    ],
)
async def test_bad_stream_queries(client: httpx.AsyncClient, query: str) -> None:
    identity = await created(client)
    response = await client.get(at(identity, "attempts", "0", "stream") + query)
    assert response.status_code == 400
    assert "error" in response.json()
    assert (await client.get(at(identity, "attempts", "x", "stream"))).status_code == 400


async def test_streams_share_a_ceiling(engine: Engine) -> None:
    server = create_app(engine, ServerConfig(max_stream_ops=1))
    async with client_of(server) as client:
        identity = await created(client)
        stream = at(identity, "attempts", "0", "stream")
        waiting = asyncio.create_task(client.get(f"{stream}/tail", params={"block_ms": 20_000}))
        await until(lambda: engine._tails > 0)
        full = await client.get(stream)
        assert full.status_code == 429
        assert full.json() == {
            "error": "too many concurrent stream_ops calls (server max: 1); retry with backoff",
            "kind": "resource_exhausted",
            "retryable": True,
        }
        await engine.complete(await claimed(engine))
        assert (await waiting).status_code == 200
        server.close()
        closed = await client.get(stream)
        assert (closed.status_code, closed.json()["kind"]) == (503, "unavailable")
        assert (await client.get("/readyz")).status_code == 503


async def suspended(client: httpx.AsyncClient, engine: Engine) -> tuple[str, Suspended]:
    identity = await created(client)
    handle: Handle = await claimed(engine)
    waitpoint = Fresh(waitpoint_key="approval")
    outcome = await engine.suspend(
        handle,
        SuspendArgs(waitpoints=[waitpoint], resume_condition=Single("approval", ByName("approved"))),
    )
    assert isinstance(outcome, Suspended)
    return identity, outcome


async def test_a_signal_with_its_token(client: httpx.AsyncClient, engine: Engine) -> None:
    identity, outcome = await suspended(client, engine)
    entries = (await client.get(at(identity, "pending-waitpoints"))).json()
    assert len(entries) == 1
    entry = entries[0]
    assert entry["state"] == "active"
    assert entry["required_signal_names"] == ["approved"]
    assert len(entry["token_fingerprint"]) == 16
    assert outcome.details.waitpoint_token.reveal() not in str(entries)
    token = await client.get(at(identity, "waitpoints", entry["waitpoint_id"], "token"))
    assert token.json() == {"token": outcome.details.waitpoint_token.reveal()}
    assert token.headers["cache-control"] == "no-store"
    body = {
        "execution_id": identity,
        "waitpoint_id": entry["waitpoint_id"],
        "signal_id": str(uuid.uuid4()),
        "signal_name": "approved",
        "signal_category": "approval",
        "source_type": "user",
        "source_identity": "ann",
        "target_scope": "waitpoint",
        "waitpoint_token": token.json()["token"],
        "payload": [1, 2],
        "now": 1,
    }
    for wrong, error in (("", "missing_token"), ("k1:" + "0" * 64, "invalid_token"), ("x", "invalid_token")):
        refused = await client.post(at(identity, "signal"), json={**body, "waitpoint_token": wrong})
        assert (refused.status_code, refused.json()) == (400, {"error": error})
    elsewhere = {**body, "waitpoint_id": str(uuid.uuid4())}
    assert (await client.post(at(identity, "signal"), json=elsewhere)).json() == {"error": "invalid_token"}
    accepted = await client.post(at(identity, "signal"), json=body)
    assert accepted.json() == {"Accepted": {"signal_id": body["signal_id"], "effect": "resume_condition_satisfied"}}
    gone = await client.get(at(identity, "waitpoints", entry["waitpoint_id"], "token"))
    assert (gone.status_code, gone.headers["cache-control"]) == (404, "no-store")
    assert (await client.get(at(identity, "pending-waitpoints"))).json() == []


async def test_a_token_is_given_for_its_own_execution_only(client: httpx.AsyncClient, engine: Engine) -> None:
    _, outcome = await suspended(client, engine)
    other = await created(client)
    response = await client.get(at(other, "waitpoints", outcome.details.waitpoint_id, "token"))
    assert response.status_code == 404


async def test_rotating_keys(client: httpx.AsyncClient, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "audit")
    path = "/v1/admin/rotate-waitpoint-secret"
    body = {"new_kid": "k2", "new_secret_hex": "cd" * 32}
    for _ in range(2):
        done = await client.post(path, json=body)
        assert (done.status_code, done.json()) == (200, {"rotated": 1, "failed": [], "new_kid": "k2"})
    conflict = await client.post(path, json={**body, "new_secret_hex": "ee" * 32})
    assert (conflict.status_code, conflict.json()["kind"]) == (409, "rotation_conflict")
    for wrong in ({"new_kid": ""}, {"new_kid": "a:b"}, {"new_secret_hex": ""}, {"new_secret_hex": "ab" * 31}):
        assert (await client.post(path, json={**body, **wrong})).status_code == 400
    with server.rotations.one():
        busy = await client.post(path, json=body)
    text = "too many concurrent admin_rotate calls (server max: 1); retry with backoff"
    assert (busy.status_code, busy.json()) == (429, {"error": text, "retryable": True})
    assert "waitpoint_hmac_rotation_complete" in caplog.text
    assert "waitpoint_hmac_rotation_failed" in caplog.text
    assert "cd" * 32 not in caplog.text
