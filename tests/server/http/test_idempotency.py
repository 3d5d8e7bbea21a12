"""``Idempotency-Key`` and the account of acts."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import httpx
import pytest

from flowfabric.conditions import Count, CountKind, Wildcard
from flowfabric.engine import Engine
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.model.operations.executions import ClaimPolicy, FailureClass
from flowfabric.model.operations.schedules import Every
from flowfabric.model.operations.suspension import Fresh, SuspendArgs
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from tests.server.conftest import client_of
from tests.server.making import at, claimed, created, creation

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
        "/v1/quotas": {"window_seconds": 60, "max_requests_per_window": 5, "max_concurrent": 1},
    }
    for path, body in bodies.items():
        headers = {"idempotency-key": path}
        with monkeypatch.context() as patch:
            patch.setattr(engine, "keep_answer", lost)
            assert (await client.post(path, json=body, headers=headers)).status_code == 500
        repeated = await client.post(path, json=body, headers=headers)
        assert repeated.status_code == 201
        assert next(iter(repeated.json())) == "Created"
    assert len((await engine.search_executions()).executions) == 1


class Lost:
    """A server that cannot keep its answer, and another one that is asked again."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self._monkeypatch = monkeypatch
        self._keys = count()

    async def twice(self, path: str, body: object = None, method: str = "POST") -> httpx.Response:
        """The answer of the second server, which is the one that the first could not keep."""
        told: list[tuple[int, bytes]] = []

        async def keep(**answer: Any) -> None:
            told.append((answer["status"], answer["body"]))
            raise ConnectionError

        request: dict[str, Any] = {"json": body, "headers": {"idempotency-key": f"key {next(self._keys)}"}}
        with self._monkeypatch.context() as patch:
            patch.setattr(self.engine, "keep_answer", keep)
            async with client_of(create_app(self.engine)) as first:
                assert (await first.request(method, path, **request)).status_code == 500
        async with client_of(create_app(self.engine)) as second:
            again = await second.request(method, path, **request)
            assert [(again.status_code, again.content)] == told, path
            kept = await second.request(method, path, **request)
            assert (kept.content, kept.headers["idempotency-replayed"]) == (again.content, "true")
        return again

    async def states(self, kind: str) -> list[str]:
        """The states of the executions of a kind."""
        found = await self.engine.search_executions(execution_kind=kind)
        return [each.public_state for each in found.executions]


@pytest.fixture
def lost(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Lost:
    return Lost(engine, monkeypatch)


async def test_many_that_are_created_twice(lost: Lost, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [creation(input_payload=[48 + number]) for number in range(10)]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "keep_answer", None)
        async with client_of(create_app(engine)) as first:
            made = await first.post("/v1/executions/bulk", json={"executions": bodies}, headers=KEY)
            assert made.status_code == 500
    async with client_of(create_app(engine)) as second:
        again = (await second.post("/v1/executions/bulk", json={"executions": bodies}, headers=KEY)).json()
    assert [next(iter(each)) for each in again["results"]] == ["Created"] * 10
    handles = [await claimed(engine) for _ in range(10)]
    contexts = await engine.read_execution_contexts([each.execution_id for each in handles])
    inputs = [contexts[each.execution_id].input_payload for each in handles]
    assert inputs == [b"%d" % number for number in range(10)], "in the order given"
    assert await engine.claim("default", policy=ClaimPolicy("w", "w-1")) is None


async def test_flows_that_are_made_twice(lost: Lost, engine: Engine) -> None:
    nodes = {name: {"execution_kind": name} for name in "ab"}
    body = {"namespace": "acme", "nodes": nodes, "edges": [{"upstream": "a", "downstream": "b"}]}
    made = (await lost.twice("/v1/flows/submit", body)).json()
    flow = (await lost.twice("/v1/flows", {"flow_kind": "dag", "namespace": "acme"})).json()["Created"]["flow_id"]
    found = await engine.search_flows(namespaces=["acme"])
    assert {each.flow_id for each in found.flows} == {made["flow_id"], flow}
    assert await lost.states("a") == ["waiting"]


async def test_signals_that_are_delivered_twice(lost: Lost, engine: Engine, client: httpx.AsyncClient) -> None:
    identity = await created(client)
    point = "0bf9d4a8-7c2e-4a4b-9a55-0a7b6d2f6c11"
    condition = Count(2, CountKind.DISTINCT_SIGNALS, ("legal",), Wildcard())
    asked = SuspendArgs(waitpoints=[Fresh(point, "legal")], resume_condition=condition)
    outcome = await engine.suspend(await claimed(engine), asked)
    signal = {
        "waitpoint_id": point,
        "waitpoint_token": outcome.details.waitpoint_token.reveal(),
        "signal_category": "",
        "source_type": "",
        "source_identity": "",
        "target_scope": "waitpoint",
    }
    effects = []
    for name in ("first", "second"):
        answer = await lost.twice(at(identity, "signal"), {**signal, "signal_name": name})
        effects.append(answer.json()["Accepted"]["effect"])
    assert effects == ["appended_to_waitpoint", "resume_condition_satisfied"]
    assert len((await engine.read_history(identity)).signals) == 2


async def test_schedules_that_are_triggered_twice(lost: Lost, engine: Engine) -> None:
    await engine.put_schedule("tick", execution_kind="tick", spec=Every(10**9), overlap="queue")
    for times in (1, 2):
        await lost.twice("/v1/schedules/tick/trigger", {})
        assert await lost.states("tick") == ["waiting"] * times
    body = {"from_ms": 0, "before_ms": 3 * 10**9}
    assert (await lost.twice("/v1/schedules/tick/backfill", body)).json()["Started"]["execution_ids"]


async def test_budgets_that_are_charged_and_reset_twice(lost: Lost, engine: Engine) -> None:
    budget = "1fd8a6be-3a5c-4f5a-8d5a-51b1c6f2a0de"
    await engine.create_budget(budget_id=budget, dimensions=["tokens"], hard_limits=[0], soft_limits=[0])
    for used in (5, 10):
        await lost.twice(f"/v1/budgets/{budget}/usage", {"dimensions": {"tokens": 5}})
        assert (await engine.get_budget_status(budget)).usage == {"tokens": used}
    await lost.twice(f"/v1/budgets/{budget}/reset")


async def test_executions_that_are_run_again_twice(lost: Lost, engine: Engine, client: httpx.AsyncClient) -> None:
    async def fail() -> None:
        await engine.fail(await claimed(engine), "no", FailureClass.PERMANENT)

    identity = await created(client)
    await fail()
    told: list[bytes] = []
    real = engine.keep_answer

    async def keep(**answer: Any) -> Any:
        if not answer["media"]:
            return await real(**answer)  # what a bulk request is about
        # It fails again before the request is repeated.
        told.append(answer["body"])
        await fail()
        raise ConnectionError

    for path, body in ((at(identity, "replay"), None), ("/v1/bulk/replay", {"filter": {"kind": "resize"}})):
        headers = {"idempotency-key": path}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "keep_answer", keep)
            assert (await client.post(path, json=body, headers=headers)).status_code == 500
        async with client_of(create_app(engine)) as second:
            assert (await second.post(path, json=body, headers=headers)).content == told.pop()
        assert await lost.states("resize") == ["failed"], "once is once"


async def test_a_fork_that_is_made_twice(lost: Lost, engine: Engine, client: httpx.AsyncClient) -> None:
    identity = await created(client)
    forked = (await lost.twice(at(identity, "fork"), {})).json()
    assert forked["execution_id"] != identity
    assert await lost.states("resize") == ["waiting"] * 2


async def test_a_lease_that_is_revoked_twice(lost: Lost, engine: Engine, client: httpx.AsyncClient) -> None:
    identity = await created(client)
    await claimed(engine)
    real = engine.keep_answer

    async def keep(**answer: Any) -> None:
        # The next worker takes it before the request is repeated.
        await claimed(engine)
        raise ConnectionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "keep_answer", keep)
        assert (await client.post(at(identity, "revoke-lease"), headers=KEY)).status_code == 500
    assert engine.keep_answer == real
    again = await client.post(at(identity, "revoke-lease"), headers=KEY)
    assert next(iter(again.json())) == "Revoked"
    assert await lost.states("resize") == ["active"], "the next worker keeps its lease"


async def test_grants_that_are_asked_for_twice(lost: Lost, client: httpx.AsyncClient) -> None:
    await created(client)
    await created(client)
    body = {"lane_id": "default", "worker_instance_id": "w-1", "grant_ttl_ms": 1_000}
    first, second = [(await lost.twice("/v1/workers/w/claim", body)).json() for _ in range(2)]
    assert first["execution_id"] != second["execution_id"]


async def test_a_key_whose_answer_came_between(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server has done the same and answered, between the look for an answer and the act."""
    path, find = "/v1/schedules/tick/trigger", engine.find_answer
    await engine.put_schedule("tick", execution_kind="tick", spec=Every(10**9), overlap="queue")

    async def look(owner: str, key: str) -> Any:
        found = await find(owner, key)
        monkeypatch.setattr(engine, "find_answer", find)
        async with client_of(create_app(engine)) as other:
            assert (await other.post(path, json={}, headers=KEY)).status_code == 200
        return found

    monkeypatch.setattr(engine, "find_answer", look)
    async with client_of(create_app(engine)) as client:
        told = await client.post(path, json={}, headers=KEY)
        assert (told.status_code, told.json()["retryable"]) == (503, True)
        assert (await client.post(path, json={}, headers=KEY)).headers["idempotency-replayed"] == "true"
    assert len((await engine.search_executions(execution_kind="tick")).executions) == 1


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


async def away(**_: object) -> None:
    raise Transport("memory", TransportKind.TRANSPORT, "the connection was lost")


async def test_an_act_and_its_account_are_one_commit(
    client: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "record_act", away)
    budget = {"budget_id": "1fd8a6be-3a5c-4f5a-8d5a-51b1c6f2a0de", "dimensions": ["tokens"]}
    calls = [
        {"op": "set_lane_state", "arguments": {"lane_id": "l", "state": "paused"}},
        {"op": "set_lane_state", "arguments": {"lane_id": "l", "state": "paused"}},
        {"op": "create_budget", "arguments": {**budget, "hard_limits": [1], "soft_limits": [0]}},
    ]
    answers = (await client.post("/v1/remote/calls", json={"calls": calls})).json()["answers"]
    assert all("ok" in each for each in answers)
    made = await client.post("/v1/admin/credentials", json={"name": "ci", "scopes": ["read"]})
    assert made.status_code == 201
    acts = {each.act: (each.status, each.subject) for each in (await engine.list_audit()).entries}
    assert len((await engine.list_audit()).entries) == 3, "what changes nothing is no act"
    status, subject = acts["create_credential"]
    assert status == 201
    assert made.json()["credential"]["credential_id"] in subject
    assert '"previous":"active"' in acts["set_lane_state"][1]
    assert budget["budget_id"] in acts["create_budget"][1]


async def test_a_refused_act_is_not_accounted_for(client: httpx.AsyncClient, engine: Engine) -> None:
    identity = await created(client)
    assert (await client.post(at(identity, "replay"))).status_code == 409
    assert (await engine.list_audit()).entries == ()


async def test_an_account_that_cannot_be_stored(
    client: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    identity = await created(client)
    monkeypatch.setattr(engine, "record_act", away)
    bulk = await client.post("/v1/bulk/cancel", json={"filter": {"kind": "resize"}, "reason": ""})
    assert (bulk.status_code, bulk.json()["done"]) == (200, [identity])
    assert "cancel_executions was done, but is not in the audit log" in caplog.text
    point = "0bf9d4a8-7c2e-4a4b-9a55-0a7b6d2f6c11"
    await created(client)
    asked = SuspendArgs(waitpoints=[Fresh(point, "k")], resume_condition=Count(1, CountKind.DISTINCT_SIGNALS, ("k",)))
    held = await claimed(engine)
    await engine.suspend(held, asked)
    token = await client.get(at(str(held.execution_id), "waitpoints", point, "token"))
    assert token.status_code == 500, "what only reveals something is told once it is accounted for"
