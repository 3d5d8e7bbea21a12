"""Kinds that workers have announced over HTTP: who sees them, and what becomes of starting them."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from tests.server.conftest import client_of

QUOTA = "00000000-0000-4000-8000-00000000000c"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order": {"$ref": "#/$defs/Order"},
        "copies": {"type": "integer", "minimum": 1, "default": 1},
    },
    "required": ["order"],
    "additionalProperties": False,
    "$defs": {
        "Order": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}
SEND: dict[str, Any] = {
    "noun": "task",
    "description": "Sends an order.",
    "lane_id": "mail",
    "priority": 5,
    "tags": {"user.team": "shop"},
    "policy": {"max_reclaim_count": 7, "quota_policy_id": QUOTA},
    "input": SCHEMA,
    "id": "order:{order.number}:{copies}",
}
START = "/v1/kinds/send/start"


@pytest.fixture
async def announced(engine: Engine) -> None:
    keyed = {"noun": "task", "by_code": "its limits apply to each value of 'x' by itself"}
    await engine.announce_kinds("default", {"send": SEND, "keyed": keyed, "free": {"noun": "workflow"}})


@pytest.mark.usefixtures("announced")
async def test_reading(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/search/kinds", params={"limit": 2})).json()
    assert [each["kind"] for each in listed["kinds"]] == ["free", "keyed"]
    rest = await client.get("/v1/search/kinds", params={"cursor": listed["next_cursor"], "namespace": "default"})
    assert [each["kind"] for each in rest.json()["kinds"]] == ["send"]
    found = (await client.get("/v1/kinds/send")).json()
    assert (found["kind"], found["definition"]["input"], found["definition"]["lane_id"]) == ("send", SCHEMA, "mail")
    absent = await client.get("/v1/kinds/none")
    assert (absent.status_code, absent.json()["error"]) == (
        404, "kind not found: 'none': no worker of this namespace has announced it",
    )  # fmt: skip


@pytest.mark.usefixtures("announced")
async def test_starting(client: httpx.AsyncClient, engine: Engine) -> None:
    made = await client.post(START, content=b'{"input": {"order": {"number": 7}, "copies": 2}}', headers=JSON)
    assert made.status_code == 201
    identity = made.json()["Created"]["execution_id"]
    info = await engine.read_execution_info(identity)
    assert info is not None
    assert (info.execution_kind, info.lane_id, info.priority) == ("send", "mail", 5)
    context = await engine.read_execution_context(identity)
    assert context.input_payload == b'{"order": {"number": 7}, "copies": 2}', "byte by byte"
    assert context.tags["user.team"] == "shop"
    history = await engine.read_history(identity)
    assert (history.quota_policy_id, history.payload_encoding) == (QUOTA, "json")
    assert msgspec.json.decode(history.policy or "")["max_reclaim_count"] == 7
    assert history.creator_identity == "anybody"
    # The same id is the same execution, also where a default stands for a part of it.
    again = await client.post(START, json={"input": {"order": {"number": 7}, "copies": 2}})
    assert (again.status_code, again.json()["Duplicate"]["execution_id"]) == (200, identity)
    one = await client.post(START, json={"input": {"order": {"number": 7}}})
    same = await client.post(START, json={"input": {"order": {"number": 7}, "copies": 1}})
    assert one.json()["Created"]["execution_id"] == same.json()["Duplicate"]["execution_id"]


@pytest.mark.usefixtures("announced")
async def test_starting_otherwise(client: httpx.AsyncClient, engine: Engine) -> None:
    body = {
        "input": {"order": {"number": 1}}, "lane_id": "other", "priority": 9, "tags": {"user.who": "me"},
        "idempotency_key": "mine",
    }  # fmt: skip
    made = (await client.post(START, json=body)).json()["Created"]["execution_id"]
    info = await engine.read_execution_info(made)
    assert info is not None
    assert (info.lane_id, info.priority) == ("other", 9)
    assert (await engine.read_execution_context(made)).tags == {"user.team": "shop", "user.who": "me"}
    assert (await client.post(START, json=body)).json()["Duplicate"]["execution_id"] == made
    assert (await client.post(START, json={**body, "idempotency_key": "x"})).status_code == 201
    assert (await client.post(START, json={**body, "lane_id": "a\nb"})).status_code == 400
    assert (await client.post("/v1/kinds/free/start", json={})).status_code == 201
    later = await client.post(START, json={**body, "idempotency_key": "y", "delay_until": 2**50})
    assert await engine.read_execution_state(later.json()["Created"]["execution_id"]) == "delayed"


JSON = {"content-type": "application/json"}


@pytest.mark.usefixtures("announced")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "order is missing"),
        ({"order": {"number": "7"}}, "order.number is not integer"),
        ({"order": {"number": 7}, "copies": 0}, "copies is less than 1"),
        ({"order": {"number": 7}, "more": 0}, "more is unknown"),
        ([], "it is not object"),
        (None, "it is not object"),
    ],
)
async def test_inputs_that_do_not_fit(client: httpx.AsyncClient, engine: Engine, given: Any, told: str) -> None:
    refused = await client.post(START, json={"input": given})
    assert (refused.status_code, refused.json()) == (
        422, {"error": f"invalid input: {told}", "kind": "validation", "retryable": False},
    )  # fmt: skip
    assert (await engine.search_executions()).executions == ()


@pytest.mark.usefixtures("announced")
async def test_what_only_code_can_start(client: httpx.AsyncClient, engine: Engine) -> None:
    refused = await client.post("/v1/kinds/keyed/start", json={})
    assert refused.status_code == 409
    assert refused.json() == {
        "error": "keyed can be started only by its code: its limits apply to each value of 'x' by itself; start it "
        "from code, or with `flowfabric submit APP keyed`",
        "kind": "by_code",
        "retryable": False,
    }
    for template in ("{", "{nothing}", "{order}", "{0}", "{}"):
        await engine.announce_kinds("default", {"send": {**SEND, "id": template}})
        odd = await client.post(START, json={"input": {"order": {"number": 7}}})
        assert (odd.status_code, odd.json()["kind"]) == (409, "by_code"), template
    assert (await engine.search_executions()).executions == ()
    assert (await client.post("/v1/kinds/none/start", json={})).status_code == 404


async def test_schemas_that_nobody_can_use(client: httpx.AsyncClient, engine: Engine) -> None:
    await engine.announce_kinds("default", {"k": {"noun": "task", "input": {"type": 7}}})
    refused = await client.post("/v1/kinds/k/start", json={})
    assert (refused.status_code, refused.json()["error"]) == (
        422, "invalid input: the schema of the kind cannot be used: its 'type' is malformed",
    )  # fmt: skip


@pytest.mark.usefixtures("announced")
async def test_ids_that_are_taken(client: httpx.AsyncClient, engine: Engine) -> None:
    body = {"input": {"order": {"number": 1}}}
    await engine.announce_kinds("default", {"send": {**SEND, "reuse": "reject"}})
    key = {"idempotency-key": "once"}
    first = await client.post(START, json=body, headers=key)
    again = await client.post(START, json=body, headers=key)
    assert (first.status_code, again.json()) == (201, first.json())
    taken = await client.post(START, json=body)
    assert (taken.status_code, taken.json()["kind"]) == (409, "id_conflict")
    identity = first.json()["Created"]["execution_id"]
    assert taken.json()["error"] == f"an execution with the id 'order:1:1' exists: {identity}"
    await engine.announce_kinds("default", {"other": {**SEND, "reuse": "existing"}})
    foreign = await client.post("/v1/kinds/other/start", json=body)
    assert (foreign.status_code, foreign.json()["kind"]) == (409, "id_conflict")
    await engine.announce_kinds("default", {"send": {**SEND, "reuse": "after_completion"}})
    assert (await client.post(START, json=body)).json() == {"Duplicate": {"execution_id": identity}}
    await engine.cancel_execution(execution_id=identity)
    assert (await client.post(START, json=body)).status_code == 201


async def test_tenants(engine: Engine) -> None:
    for space in ("mine", "theirs"):
        await engine.announce_kinds(space, {"send": SEND})
    made = await engine.create_credential(name="t", scopes=["read", "submit", "worker"], namespaces=["mine"])
    server = create_app(engine, ServerConfig(require_credential=True))
    body = {"input": {"order": {"number": 1}}}
    async with client_of(server, made.token.reveal()) as client:
        listed = (await client.get("/v1/search/kinds")).json()["kinds"]
        assert [each["namespace"] for each in listed] == ["mine"]
        assert (await client.get("/v1/search/kinds", params={"namespace": "theirs"})).json()["kinds"] == []
        for space, status in (("mine", 201), ("theirs", 403)):
            where = {"namespace": space}
            assert (await client.post(START, params=where, json=body)).status_code == status
            assert (await client.get("/v1/kinds/send", params=where)).status_code == (200 if status == 201 else 403)
            announced = {"op": "announce_kinds", "arguments": {"namespace": space, "definitions": {"k": SEND}}}
            answer = await client.post("/v1/remote/calls", json={"calls": [announced]})
            assert ('"ok"' in answer.text) is (status == 201), answer.text
    assert await engine.read_kind_definition("theirs", "k") is None
    assert await engine.read_kind_definition("mine", "k") is not None
