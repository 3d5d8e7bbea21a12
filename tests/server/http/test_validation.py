"""Every refusal of a body or a query names the field and what was expected there.

What the server itself refuses it never repeats; what the engine repeats is short and escaped.

The cases are made from the types of all operations: what a new field forgets is found here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import httpx
import msgspec
import pytest
from msgspec import Meta, Struct, inspect

from flowfabric.engine import Engine
from flowfabric.engine.operation_table import REMOTE
from flowfabric.engine.wire.codec import body_of
from flowfabric.model.ids import FlowId, LaneId, decode_hook
from flowfabric.server.http.problems import Refused
from flowfabric.server.http.request import Blob, decode, read_query
from flowfabric.server.http.validation import flaw_of
from flowfabric.server.routes import ROUTES
from tests.server.making import at, created, creation

#: What callers send, and must not be told again.
MARK = "marked-9417"
UUID = "11111111-1111-4111-8111-111111111111"
WRONG: tuple[Any, ...] = (True, 41, 4.5, MARK, [MARK], {MARK: MARK}, None)
SHAPES = {
    inspect.BoolType: (bool,),
    inspect.IntType: (int,),
    inspect.FloatType: (int, float),
    inspect.StrType: (str,),
    inspect.EnumType: (str,),
    inspect.LiteralType: (str,),
    inspect.BytesType: (str,),
    inspect.CustomType: (str, list),
    inspect.ListType: (list,),
    inspect.TupleType: (list,),
    inspect.VarTupleType: (list,),
    inspect.DictType: (dict,),
    inspect.StructType: (dict,),
    inspect.NoneType: (type(None),),
    inspect.AnyType: tuple({type(each) for each in WRONG}),
    inspect.RawType: tuple({type(each) for each in WRONG}),
}
SAMPLES = {
    inspect.BoolType: True,
    inspect.FloatType: 1.0,
    inspect.BytesType: "",
    inspect.CustomType: "",
    inspect.NoneType: None,
    inspect.AnyType: {},
    inspect.RawType: {},
}


class Case(NamedTuple):
    """A document with one thing wrong: where, and with which status it is refused."""

    document: Any
    place: str
    status: int


def members(node: inspect.Type) -> tuple[inspect.Type, ...]:
    return node.types if isinstance(node, inspect.UnionType) else (node,)


def sample(node: inspect.Type) -> Any:
    """Something that fits."""
    node = next((each for each in members(node) if not isinstance(each, inspect.NoneType)), node)
    match node:
        case inspect.StructType():
            return {each.encode_name: sample(each.type) for each in node.fields}
        case inspect.IntType():
            return node.ge or 0
        case inspect.StrType():
            return "w" * (node.min_length or 1)
        case inspect.EnumType():
            return next(iter(node.cls)).value
        case inspect.LiteralType():
            return node.values[0]
        case inspect.ListType() | inspect.VarTupleType():
            return [sample(node.item_type)]
        case inspect.TupleType():
            return [sample(each) for each in node.item_types]
        case inspect.DictType():
            return {"a": sample(node.value_type)}
        case inspect.CustomType() if node.cls is not Blob:
            return f"{{fp:1}}:{UUID}"
    return SAMPLES[type(node)]


def out_of_range(node: inspect.Type) -> Iterator[Any]:
    """Values of the right kind that go too far."""
    match node:
        case inspect.IntType():
            if node.ge is not None:
                yield from (node.ge - 1, -(2**63) - 1, -(2**80))
            if node.le is not None:
                yield from (node.le + 1, 2**63, 2**64 - 1, 2**64, 2**80)
        case inspect.StrType():
            yield from [MARK * (node.max_length or 0)] * (node.max_length is not None)
            yield from [""] * (node.min_length is not None)
            yield from [f"{MARK} {MARK}"] * (node.pattern is not None)
        case inspect.ListType() if node.max_length is not None:
            yield [sample(node.item_type)] * (node.max_length + 1)
        case inspect.DictType() if node.max_length is not None:
            yield {f"{each}": sample(node.value_type) for each in range(node.max_length + 1)}
        case inspect.EnumType() | inspect.LiteralType():
            yield MARK
        case inspect.BytesType():
            yield "#"
        case inspect.CustomType():
            yield MARK
            if node.cls is Blob:
                yield from ([256], [-1], "#")


def wrong(node: inspect.Type, place: str) -> Iterator[Case]:
    """Everything that can be wrong at this place and below it."""
    fitting = {kind for each in members(node) for kind in SHAPES[type(each)]}
    yield from (Case(each, place, 422) for each in WRONG if type(each) not in fitting)
    for each in members(node):
        yield from (Case(value, place, 400) for value in out_of_range(each))
        match each:
            case inspect.StructType():
                yield from wrong_fields(each, place)
            case inspect.ListType() | inspect.VarTupleType():
                for below in wrong(each.item_type, f"{place}[0]"):
                    yield below._replace(document=[below.document])
            case inspect.DictType():
                for below in wrong(each.value_type, f"{place}[...]"):
                    yield below._replace(document={"a": below.document})


def wrong_fields(node: inspect.StructType, place: str) -> Iterator[Case]:
    whole = sample(node)
    for field in node.fields:
        name = field.encode_name
        there = f"{place}.{name}" if place else name
        if field.required:
            yield Case({each: value for each, value in whole.items() if each != name}, there, 422)
        for below in wrong(field.type, there):
            yield below._replace(document={**whole, name: below.document})


def said(text: str, case: Case) -> None:
    """A refusal says where, and what was expected, in words."""
    assert MARK not in text, text
    assert case.place in text, (case, text)
    assert any(each in text for each in ("expected ", "this field is required", "unknown field")), text
    for word in ("`", "$", "got ", "int ", "str ", "regex"):
        assert word not in text, text


BODIES = {each.name: each.body for each in ROUTES if each.body is not None}
QUERIES = {each.name: each.query for each in ROUTES if each.query is not None}


@pytest.mark.parametrize("name", BODIES)
def test_every_refusal_of_a_body_names_the_field(name: str) -> None:
    node = inspect.type_info(BODIES[name])
    decode(msgspec.json.encode(sample(node)), BODIES[name])
    for case in wrong(node, ""):
        with pytest.raises(Refused) as refusal:
            decode(msgspec.json.encode(case.document), BODIES[name])
        assert refusal.value.answer.status == case.status, case
        text = refusal.value.body["error"]
        said(text, case)
        assert text.startswith("invalid JSON: Unprocessable " if case.status == 422 else "invalid_input: ")


@pytest.mark.parametrize("name", BODIES)
def test_every_whole_number_of_a_body_has_bounds(name: str) -> None:
    """What a store cannot hold is refused at the door."""

    def check(node: inspect.Type, place: str) -> None:
        for each in members(node):
            match each:
                case inspect.IntType():
                    assert (-(2**80) if each.ge is None else each.ge) >= -(2**63), place
                    assert (2**80 if each.le is None else each.le) < 2**63, place
                case inspect.StructType():
                    for field in each.fields:
                        check(field.type, f"{place}.{field.name}")
                case inspect.ListType() | inspect.VarTupleType():
                    check(each.item_type, f"{place}[0]")
                case inspect.DictType():
                    check(each.value_type, f"{place}[...]")

    check(inspect.type_info(BODIES[name]), name)


@pytest.mark.parametrize("name", QUERIES)
def test_every_refusal_of_a_query_names_the_field(name: str) -> None:
    node = inspect.type_info(QUERIES[name])
    assert isinstance(node, inspect.StructType)
    whole = {key: value for key, value in sample(node).items() if value is not None}
    for field in node.fields:
        number = any(isinstance(each, inspect.IntType) for each in members(field.type))
        values = [value for each in members(field.type) for value in out_of_range(each)] + [MARK, ""] * number
        for value in values:
            query = httpx.QueryParams({**whole, field.encode_name: value})
            with pytest.raises(Refused) as refusal:
                read_query(str(query).encode(), QUERIES[name])
            assert refusal.value.answer.status == 400
            text = refusal.value.body["error"]
            assert text.startswith(f"invalid query: {field.encode_name}: expected "), text
            assert "null" not in text
            said(text, Case(value, field.encode_name, 400))


@pytest.mark.parametrize("name", REMOTE)
def test_every_refusal_of_a_remote_call_names_the_field(name: str) -> None:
    kind = body_of(name).kind
    decoder = msgspec.json.Decoder(kind, dec_hook=decode_hook)
    node = inspect.type_info(kind)
    assert isinstance(node, inspect.StructType)
    extra = Case({**sample(node), "nobody": 1}, "nobody", 422)
    for case in (extra, *wrong(node, "")):
        with pytest.raises(msgspec.ValidationError) as error:
            decoder.decode(msgspec.json.encode(case.document))
        flaw = flaw_of(error.value, kind)
        assert flaw.of_value is (case.status == 400), case
        said(str(flaw), case)


@pytest.mark.parametrize(
    ("op", "arguments", "status", "text"),
    [
        ("suspend", {"args": 1}, 422, "args: expected an object"),
        ("suspend", {"args": {"resume_condition": {}}}, 422, "args.waitpoints: this field is required"),
        ("append_frame", {"frame": {"bytes": 5}}, 422, "frame.bytes: expected base64 text"),
        ("append_frame", {"frame": {"bytes": "", "x": 5}}, 422, "frame.x: unknown field"),
        ("append_frames", {"frames": [{"bytes": ""}, {"bytes": 5}]}, 422, "frames[1].bytes: expected base64 text"),
        ("put_schedule", {"spec": {}}, 422, "spec: expected an object with one of the fields Cron, Every"),
        ("put_schedule", {"spec": {"Never": {}}}, 422, "spec: expected an object with one of the fields Cron, Every"),
        ("put_schedule", {"spec": {"Every": {"every_ms": MARK}}}, 422, "spec.Every.every_ms: expected a whole number"),
        ("read_execution_state", {"execution_id": 7}, 422, "execution_id: expected text"),
        ("read_execution_state", {}, 422, "execution_id: this field is required"),
        ("read_execution_state", {"execution_id": "x", "y": 1}, 422, "y: unknown field"),
        ("complete", {"handle": "x", "payload": "#"}, 400, "payload: expected base64 text"),
    ],
)
async def test_remote_calls_that_are_read_by_hand(
    client: httpx.AsyncClient, op: str, arguments: dict[str, Any], status: int, text: str
) -> None:
    whole = {} if op == "read_execution_state" else sample(inspect.type_info(body_of(op).kind))
    response = await client.post("/v1/remote/calls", json={"calls": [{"op": op, "arguments": {**whole, **arguments}}]})
    [answer] = response.json()["answers"]
    assert (answer["error"]["status"], answer["error"]["error"]) == (status, f"{op}: {text}")


class _All(Struct, kw_only=True):
    """One field for each way in which ``msgspec`` refuses a value."""

    more: Annotated[float, Meta(gt=1)] = 2
    less: Annotated[float, Meta(lt=1)] = 0
    pattern: Annotated[str, Meta(pattern="^a$")] = "a"
    items: Annotated[tuple[int, ...], Meta(min_length=1)] = (1,)
    pair: tuple[int, int] = (1, 1)
    keys: dict[Annotated[str, Meta(max_length=1)], int] = {}
    whole: Annotated[float, Meta(ge=0)] = 0
    flow: FlowId | None = None
    lane: LaneId | None = None
    anything: Any = None


@pytest.mark.parametrize(
    ("document", "text", "of_value"),
    [
        ('{"more": 1}', "more: expected a number of more than 1", True),
        ('{"less": 1}', "less: expected a number of less than 1", True),
        ('{"pattern": "b"}', "pattern: expected text that matches '^a$'", True),
        ('{"items": []}', "items: expected an array of at least 1 item", True),
        ('{"pair": [1]}', "pair: expected an array of 2 items", False),
        ('{"keys": {"ab": 1}}', "a key of keys: expected text of at most 1 character", True),
        ('{"whole": 1e999}', "whole: expected a number in range", True),
        ('{"anything": 1' + "0" * 5_000 + "}", "anything: expected a number in range", True),
        ('{"flow": "x"}', "flow: expected a UUID", True),
        ('{"flow": 1}', "flow: expected text", False),
        ('{"lane": ""}', "lane: expected 1 to 64 printable ASCII characters", True),
        ("[]", "expected an object", False),
    ],
)
def test_every_way_to_be_wrong_has_words(document: str, text: str, of_value: bool) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(document, type=_All, dec_hook=decode_hook)
    flaw = flaw_of(error.value, _All)
    assert (str(flaw), flaw.of_value) == (text, of_value)


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"grant_ttl_ms": 0}, 400, "invalid_input: grant_ttl_ms: expected a whole number of at least 1"),
        ({"grant_ttl_ms": 60_001}, 400, "invalid_input: grant_ttl_ms: expected a whole number of at most 60000"),
        ({"worker_id": ""}, 400, "invalid_input: worker_id: expected text of at least 1 character"),
        ({"worker_id": "a b"}, 400, "invalid_input: worker_id: expected text without spaces or control characters"),
        (
            {"worker_capabilities": ["gpu", 1]},
            422,
            "invalid JSON: Unprocessable Entity: worker_capabilities[1]: expected text",
        ),
        ({"lane_id": ...}, 422, "invalid JSON: Unprocessable Entity: lane_id: this field is required"),
    ],
)
async def test_what_a_client_reads(client: httpx.AsyncClient, change: dict[str, Any], status: int, text: str) -> None:
    identity = await created(client)
    body = {"worker_id": "w", "worker_instance_id": "w-1", "lane_id": "default", "grant_ttl_ms": 5000, **change}
    body = {key: value for key, value in body.items() if value is not ...}
    response = await client.post(at(identity, "reclaim"), json=body)
    assert (response.status_code, response.json()) == (status, {"error": text})


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"budget_ids": [UUID, MARK]}, "policy.budget_ids[1] must be a UUID"),
        ({"retry_policy": {"max_retries": MARK}}, "policy.retry_policy.max_retries must be an integer"),
        ({"suspension_policy": {"default_timeout_ms": -1}}, "policy.suspension_policy.default_timeout_ms must not be"),
        ({"stream_policy": [MARK]}, "policy.stream_policy must be an object"),
    ],
)
async def test_policies_are_refused_with_the_field(client: httpx.AsyncClient, policy: Any, text: str) -> None:
    for path, body, item in (
        ("/v1/executions", creation(policy=policy), ""),
        ("/v1/executions/bulk", {"executions": [creation(), creation(policy=policy)]}, "item 1: "),
    ):
        response = await client.post(path, json=body)
        assert response.status_code == 400
        assert response.json()["error"].startswith(f"invalid_policy_json: {item}malformed: {text}")
        assert MARK not in response.text


LONG = "x" * 3_000


@pytest.mark.parametrize(
    ("method", "path", "options", "text"),
    [
        ("PUT", "/v1/schedules/s", {"json": {"execution_kind": "k", "cron": LONG}}, "cron: 3000 bytes"),
        ("PUT", "/v1/schedules/s", {"json": {"execution_kind": "k", "cron": "a b"}}, "cron: 'a b': expected five"),
        (
            "PUT",
            "/v1/schedules/s",
            {"json": {"execution_kind": "k", "cron": "* * * * *", "time_zone": "Mars"}},
            "time_zone: 'Mars' is unknown",
        ),
        ("PUT", "/v1/schedules/s", {"json": {"execution_kind": "k", "every_ms": 1}}, "every_ms: 1 is not between"),
        ("PUT", "/v1/lanes/default/fairness", {"json": {"by": LONG[:99]}}, f"by: '{LONG[:64]}'… is neither"),
        ("GET", "/v1/search/executions", {"params": {"state": LONG}}, f"state: '{LONG[:64]}'… is not one of"),
        ("GET", "/v1/search/executions", {"params": {"state": "a\nb"}}, r"state: 'a\nb' is not one of"),
        ("GET", "/v1/search/executions", {"params": {"kind": LONG}}, "kind: 3000 bytes"),
        ("GET", "/v1/search/executions", {"params": {"parent": "p"}}, "parent: MissingTag: 'p' is not"),
        ("GET", "/v1/search/flows", {"params": {"kind": LONG}}, "kind: 3000 bytes"),
        ("POST", "/v1/bulk/cancel", {"json": {"filter": {"kind": LONG}}}, "filter.kind: 3000 bytes"),
        ("POST", "/v1/bulk/cancel", {"json": {"filter": {"flow_id": "f"}}}, "filter.flow_id: not a UUID"),
    ],
)
async def test_refusals_of_the_engine_name_the_field_that_was_sent(
    client: httpx.AsyncClient, method: str, path: str, options: dict[str, Any], text: str
) -> None:
    response = await client.request(method, path, **options)
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"invalid_input: {text}"), response.text


@pytest.mark.parametrize("name", ["from", "to", "after"])
async def test_places_in_streams_are_refused_by_their_names(client: httpx.AsyncClient, name: str) -> None:
    path = at(await created(client), "attempts", "0", "stream") + ("/tail" if name == "after" else "")
    response = await client.get(path, params={name: "x"})
    assert response.json()["error"].startswith(f"invalid_input: {name}: Malformed: 'x' is not a cursor")


async def test_a_rejected_body_changes_nothing(client: httpx.AsyncClient, engine: Engine) -> None:
    body = {
        "scope_type": "flow",
        "scope_id": "f",
        "enforcement_mode": "strict",
        "on_hard_limit": "fail",
        "on_soft_limit": "warn",
        "reset_interval_ms": 0,
        "dimensions": ["tokens"],
        "hard_limits": [2**63],
        "soft_limits": [0],
        "budget_id": UUID,
    }
    response = await client.post("/v1/budgets", json=body)
    expected = "invalid_input: hard_limits[0]: expected a whole number of at most 9223372036854775807"
    assert (response.status_code, response.json()) == (400, {"error": expected})
    assert (await engine.list_budgets()).budgets == ()
