"""Workers elsewhere: claims, handles that cannot be forged, many calls in a request, and who may make them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.engine.operation_table import REMOTE, Subject
from flowfabric.engine.wire.codec import Shapes, body_of, result_of
from flowfabric.engine.wire.error_codec import error_from_wire, error_to_wire
from flowfabric.model.errors import (
    Bug,
    BugKind,
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    Contextual,
    EngineError,
    LimitReached,
    NotFound,
    ResourceExhausted,
    State,
    StateKind,
    StreamGap,
    Timeout,
    Transport,
    TransportKind,
    Unavailable,
    Validation,
    ValidationKind,
)
from flowfabric.model.states import PublicState
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.access.principals import Scope
from flowfabric.server.access.signed_handles import Envelopes
from flowfabric.server.app import Server
from tests.server.conftest import client_of
from tests.server.listening import listening
from tests.server.making import until

WORKER = {"worker_id": "w", "worker_instance_id": "w-1"}


@pytest.fixture
def guarded(engine: Engine) -> Server:
    return create_app(engine, ServerConfig(require_credential=True))


async def token(engine: Engine, *scopes: Scope, namespaces: list[str] | None = None) -> str:
    made = await engine.create_credential(name="t", scopes=scopes or list(Scope), namespaces=namespaces)
    return made.token.reveal()


async def claim(client: httpx.AsyncClient, **options: Any) -> list[dict[str, Any]]:
    response = await client.post("/v1/remote/claim", json={**WORKER, **options})
    assert response.status_code == 200, response.text
    work: list[dict[str, Any]] = response.json()["work"]
    return work


async def calls(client: httpx.AsyncClient, *wanted: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    body = {"calls": [{"op": op, "arguments": arguments} for op, arguments in wanted]}
    response = await client.post("/v1/remote/calls", json=body)
    assert response.status_code == 200, response.text
    answers: list[dict[str, Any]] = response.json()["answers"]
    return answers


async def soon(condition: Callable[[], bool]) -> None:
    """Wait until something has come true in a server that listens."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


# -- working ---------------------------------------------------------------------------------------------------------


async def test_a_worker_with_a_url_alone(client: httpx.AsyncClient, engine: Engine) -> None:
    await engine.create_executions([{"execution_kind": "op", "input_payload": b"%d" % n} for n in range(3)])
    hello = (await client.get("/v1/remote")).json()
    assert (hello["backend"], hello["partitions"]["flow"]) == (engine.backend_label, engine.partitions.flow)
    work = await claim(client, limit=10)
    assert sorted(base64.b64decode(each["input_payload"]) for each in work) == [b"0", b"1", b"2"]
    one, two, three = (each["handle"] for each in work)
    renewed = (await client.post("/v1/remote/renew", json={"handles": [one, two, three]})).json()["answers"]
    assert [set(each) for each in renewed] == [{"ok"}] * 3
    assert (await client.post("/v1/remote/lost", json={"handles": [one, two]})).json() == {
        "lost": [],
        "cancelling": [],
    }
    answers = await calls(
        client,
        ("progress", {"handle": one, "percent": 50}),
        ("append_frames", {"handle": two, "frames": [{"bytes": "aGk=", "frame_type": "text"}]}),
        ("fail", {"handle": three, "reason": "no", "failure_class": "permanent"}),
    )
    assert [set(each) for each in answers] == [{"ok"}] * 3
    assert answers[2]["ok"] == {"TerminalFailed": {}}
    ended = await calls(client, ("complete", {"handle": one, "payload": "Mg=="}), ("complete", {"handle": two}))
    assert ended == [{"ok": None}, {"ok": None}]
    again = await calls(client, ("complete", {"handle": one, "payload": "Mg=="}))
    assert again == [{"ok": None}], "a repeated end gets its answer again"
    assert await engine.get_execution_result(work[0]["execution_id"]) == b"2"
    assert (await client.post("/v1/remote/lost", json={"handles": [one, three]})).json() == {
        "lost": [0, 1],
        "cancelling": [],
    }


async def test_one_refusal_spoils_no_other_call(client: httpx.AsyncClient, engine: Engine) -> None:
    created = await engine.create_execution()
    answers = await calls(
        client,
        ("read_execution_state", {"execution_id": created.execution_id}),
        ("read_execution_state", {"execution_id": "nonsense"}),
        ("read_execution_state", {"nonsense": 1}),
        ("close", {}),
        ("replay_execution", {"execution_id": created.execution_id}),
    )
    assert answers[0] == {"ok": "waiting"}
    assert answers[1]["error"]["family"] == "validation"
    assert [answers[n]["error"]["status"] for n in (2, 3)] == [422, 422]
    assert answers[4]["error"]["code"] == "execution_not_terminal"


async def test_claims_wait_and_are_woken(engine: Engine) -> None:
    async with listening(engine) as client:
        waiting = asyncio.create_task(claim(client, wait_ms=60_000, lanes={"a": 1, "b": 2}))
        await soon(lambda: len(engine._lanes) > 0)
        created = await engine.create_execution(lane_id="b")
        [work] = await asyncio.wait_for(waiting, 20)
        assert work["execution_id"] == created.execution_id


async def test_a_claimant_that_hangs_up_leaves_no_lease_behind(engine: Engine) -> None:
    async with listening(engine) as client:
        waiting = asyncio.create_task(claim(client, wait_ms=60_000))
        await soon(lambda: len(engine._lanes) > 0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await soon(lambda: not len(engine._lanes))
        created = await engine.create_execution()
        [work] = await claim(client)
        assert work["execution_id"] == created.execution_id


@pytest.mark.parametrize("limit", [1, 2])
async def test_what_cannot_be_read_is_given_back(
    client: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    for _ in range(limit):
        await engine.create_execution()

    async def away(*_: Any) -> Any:
        raise Transport("memory", TransportKind.TRANSPORT, "the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "read_execution_contexts", away)
        body = {**WORKER, "limit": limit, "key": "k" * 16}
        assert (await client.post("/v1/remote/claim", json=body)).status_code == 500
        assert (await client.post("/v1/remote/calls", json={"calls": [], "claim": body})).status_code == 500
    assert len(await claim(client, limit=limit, key="k" * 16, again=True)) == limit


async def test_what_a_claim_was_given_goes_back(client: httpx.AsyncClient, engine: Engine) -> None:
    for _ in range(3):
        await engine.create_execution()
    [kept] = await claim(client, key="a" * 16)
    first, second = await claim(client, limit=2, key="b" * 16)
    for _ in range(2):
        assert await claim(client, limit=2, key="b" * 16, give_back=True) == []
    states = [await engine.read_execution_state(each["execution_id"]) for each in (kept, first, second)]
    assert states == [PublicState.ACTIVE, PublicState.WAITING, PublicState.WAITING]
    assert await claim(client, limit=2, key="c" * 16, give_back=True) == [], "nothing is claimed by it"
    refused = await client.post("/v1/remote/claim", json={**WORKER, "give_back": True})
    assert (refused.status_code, "key" in refused.text) == (400, True)
    assert len(await claim(client, limit=3)) == 2


async def test_a_closing_server_sends_claimants_away(server: Server, client: httpx.AsyncClient, engine: Engine) -> None:
    waiting = asyncio.create_task(client.post("/v1/remote/claim", json={**WORKER, "wait_ms": 60_000}))
    await until(lambda: len(engine._lanes) > 0)
    server.close()
    assert (await waiting).status_code == 503


# -- handles ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def held(guarded: Server, engine: Engine) -> dict[str, Any]:
    """An execution in the hands of a worker of its own namespace."""
    await engine.create_execution(namespace="mine")
    async with client_of(guarded, await token(engine, Scope.WORKER, namespaces=["mine"])) as client:
        [work] = await claim(client)
    return work


def changed(envelope: str, at: int) -> str:
    letter = "A" if envelope[at] != "A" else "B"
    return envelope[:at] + letter + envelope[at + 1 :]


async def test_a_handle_that_was_changed_is_none(guarded: Server, engine: Engine, held: dict[str, Any]) -> None:
    envelope = held["handle"]
    kid, content, signature = envelope.split(".")
    raw = base64.urlsafe_b64decode(content)
    bare = base64.urlsafe_b64encode(raw[:5] + raw[5:]).decode()
    bad = [changed(envelope, at) for at in range(0, len(envelope) - 2, 7)]
    bad += [f"{kid}.{bare}.", f"{kid}.{content}", f"k9.{content}.{signature}", "", "...", f"{kid}..{signature}"]
    async with client_of(guarded, await token(engine, Scope.WORKER, namespaces=["mine"])) as client:
        for each in bad:
            [answer] = await calls(client, ("complete", {"handle": each}))
            assert answer["error"]["code"] == "invalid_input", each
            assert "not issued by a server of this store" in answer["error"]["detail"]
        renewed = (await client.post("/v1/remote/renew", json={"handles": bad[:3]})).json()["answers"]
        assert {each["error"]["code"] for each in renewed} == {"invalid_input"}
        assert await calls(client, ("complete", {"handle": envelope})) == [{"ok": None}]


async def test_a_handle_is_of_no_use_in_other_namespaces(guarded: Server, engine: Engine, held: dict[str, Any]) -> None:
    before = await engine.read_execution_info(held["execution_id"])
    async with client_of(guarded, await token(engine, Scope.WORKER, namespaces=["theirs"])) as client:
        for op in ("complete", "renew", "cancel", "give_back", "observe_signals"):
            [answer] = await calls(client, (op, {"handle": held["handle"]}))
            assert answer["error"]["code"] == "execution_not_found", op
        [renewed] = (await client.post("/v1/remote/renew", json={"handles": [held["handle"]]})).json()["answers"]
        assert renewed["error"]["code"] == "execution_not_found"
        assert (await client.post("/v1/remote/lost", json={"handles": [held["handle"]]})).status_code == 404
        assert await claim(client) == []
        foreign = await client.post("/v1/remote/claim", json={**WORKER, "namespaces": ["mine"]})
        assert foreign.status_code == 403
    assert await engine.read_execution_info(held["execution_id"]) == before


async def test_children_stay_within_the_workers_namespaces(
    guarded: Server, engine: Engine, held: dict[str, Any]
) -> None:
    prefix = held["execution_id"].split(":")[:2]
    async with client_of(guarded, await token(engine, Scope.WORKER, namespaces=["mine"])) as client:
        for namespace, status in (("theirs", 403), (None, 403), ("mine", None)):
            child_id = ":".join((*prefix, str(uuid.uuid4())))
            child = {"execution_id": child_id, "execution_kind": "k"} | ({"namespace": namespace} if namespace else {})
            [answer] = await calls(client, ("advance", {"handle": held["handle"], "children": [child]}))
            assert answer.get("error", {}).get("status") == status
            assert (await engine.read_execution_state(child_id) is None) == (status is not None)


async def test_what_was_claimed_in_all_namespaces_belongs_to_one(guarded: Server, engine: Engine) -> None:
    for name in ("mine", "theirs"):
        await engine.create_execution(namespace=name, lane_id=name)
    async with client_of(guarded, await token(engine, Scope.WORKER)) as everywhere:
        work = await claim(everywhere, lanes={"mine": 1, "theirs": 1}, limit=2)
    by_lane = {(await engine.read_execution_info(each["execution_id"])).lane_id: each["handle"] for each in work}
    async with client_of(guarded, await token(engine, Scope.WORKER, namespaces=["mine"])) as client:
        own, foreign = await calls(
            client, ("complete", {"handle": by_lane["mine"]}), ("complete", {"handle": by_lane["theirs"]})
        )
    assert own == {"ok": None}
    assert foreign["error"]["code"] == "execution_not_found"


async def test_a_handle_is_good_on_every_replica_and_after_a_rotation(engine: Engine) -> None:
    await engine.create_execution()
    first, second = create_app(engine, ServerConfig()), create_app(engine, ServerConfig())
    async with client_of(first) as one, client_of(second) as other:
        [work] = await claim(one)
        await calls(other, ("renew", {"handle": work["handle"]}))
        await engine.rotate_waitpoint_hmac_secret_all(new_kid="k7", new_secret_hex="ab" * 32)
        assert [set(each) for each in await calls(other, ("renew", {"handle": work["handle"]}))] == [{"ok"}]
        third = create_app(engine, ServerConfig())
        async with client_of(third) as fresh:
            assert await calls(fresh, ("complete", {"handle": work["handle"]})) == [{"ok": None}]


# -- who may ---------------------------------------------------------------------------------------------------------

#: Arguments that have to be there, by name.
SAMPLES: dict[str, Any] = {
    "execution_ids": [],
    "executions": [{"namespace": "theirs"}],
    "execution": {"namespace": "theirs"},
    "namespace": "theirs",
    "namespaces": ["theirs"],
    "fields": ["lane_id"],
    "amounts": {},
    "from_ms": 1,
    "before_ms": 2,
    "wait_ms": 1,
    "at_most_ms": 1,
    "frames": [],
    "frame": {"bytes": ""},
    "spec": {"Every": {"every_ms": 60_000, "anchor_ms": 0}},
    "lanes": ["default"],
    "partition": 0,
    "delay_until": 1,
    "new_priority": 1,
    "state": "paused",
    "args": {"waitpoints": [], "resume_condition": {"type": "OperatorOnly"}},
    "tags": {},
    "definitions": {},
    "reasons": [],
    "family": "completion",
}


async def arguments_of(name: str, engine: Engine, handle: str, theirs: dict[str, str]) -> dict[str, Any]:
    """A call that is about somebody else's things."""
    required = {
        each.name: SAMPLES.get(each.name, "x")
        for each in msgspec.structs.fields(body_of(name).kind)
        if each.required or each.name in ("namespace", "namespaces", "handle")
    }
    known = {"handle": handle, "execution_ids": [theirs["execution_id"]], **theirs}
    return {each: known.get(each, value) for each, value in required.items()}


@pytest.mark.parametrize("name", REMOTE)
async def test_every_call_keeps_to_its_scopes_and_namespaces(guarded: Server, engine: Engine, name: str) -> None:
    remote = REMOTE[name]
    created = await engine.create_execution(namespace="theirs")
    flow = await engine.create_flow(namespace="theirs")
    budget = "00000000-0000-4000-8000-00000000000b"
    await engine.create_budget(budget_id=budget, scope_type="namespace", scope_id="theirs")
    held = await engine.create_execution(namespace="theirs", lane_id="held")
    async with client_of(guarded, await token(engine, Scope.WORKER, namespaces=["theirs"])) as owner:
        [work] = await claim(owner, lanes={"held": 1})
    about = {"execution_id": str(created.execution_id), "flow_id": str(flow.flow_id), "budget_id": budget}
    arguments = await arguments_of(name, engine, work["handle"], about)
    before = [await engine.read_execution_info(each) for each in (created.execution_id, held.execution_id)]
    for scope in Scope:
        async with client_of(guarded, await token(engine, scope, namespaces=["mine"])) as client:
            [answer] = await calls(client, (name, arguments))
            if "execution_ids" in arguments and scope in remote.scopes:
                assert answer["error"]["status"] == 403, "it names a namespace of others"
                unnamed = {key: value for key, value in arguments.items() if key != "namespaces"}
                [answer] = await calls(client, (name, unnamed))
        if scope not in remote.scopes:
            assert (answer["error"]["status"], answer["error"]["kind"]) == (403, "forbidden"), scope
        elif name == "list_namespaces":
            assert answer["ok"] == ["mine"]
        elif remote.everywhere or remote.subject in (Subject.NAMESPACE, Subject.SCHEDULE):
            assert answer["error"]["status"] == 403, answer
        elif "execution_ids" in arguments:
            assert not answer["ok"], "what belongs to others looks as if it were not there"
        elif remote.subject not in (Subject.NOTHING, Subject.LANE):
            error = answer["error"]
            assert error.get("status") in (403, 404) or error["code"].endswith("_not_found"), answer
        assert str(created.execution_id) not in json.dumps(answer) or "not found" in json.dumps(answer)
    assert [await engine.read_execution_info(each) for each in (created.execution_id, held.execution_id)] == before


# -- the wire --------------------------------------------------------------------------------------------------------


def test_every_call_can_be_sent_and_its_answer_read() -> None:
    shapes = Shapes(lambda handle: "", lambda text: None)  # type: ignore[arg-type, return-value]
    for name in REMOTE:
        body_of(name)
        shapes.codec(result_of(name))


@pytest.mark.parametrize(
    "error",
    [
        NotFound("execution", "x"),
        Validation(ValidationKind.INVALID_INPUT, "lane: bad"),
        StreamGap(b"\x01", b"\x02"),
        Contention(ContentionKind.LEASE_CONFLICT, "x"),
        Contention(ContentionKind.EXECUTION_NOT_ACTIVE, "x", terminal_outcome="success", lease_epoch=3),
        Conflict(ConflictKind.ROTATION_CONFLICT, kid="k1"),
        State(StateKind.TERMINAL, "x"),
        Bug(BugKind.INTERNAL_ERROR, "x"),
        Transport("postgres", TransportKind.TIMEOUT, "late"),
        Unavailable("close"),
        ResourceExhausted("stream_ops", 3, 10),
        LimitReached("MAX_BULK", 3),
        Timeout("cancel_flow", 12),
        Contextual("while claiming", Transport("sqlite", TransportKind.BUSY_LOADING, "x")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_arrive_as_they_were(error: EngineError) -> None:
    again = error_from_wire(json.loads(json.dumps(error_to_wire(error))))
    assert type(again) is type(error)
    assert (str(again), again.code, again.kind, again.retryable) == (
        str(error),
        error.code,
        error.kind,
        error.retryable,
    )


def test_an_error_from_the_future_is_still_an_error() -> None:
    found = error_from_wire({"family": "contention", "kind": "brand_new", "code": "brand_new", "detail": ""})
    assert isinstance(found, Transport)
    assert "brand_new" in str(found)


async def test_operators_are_on_record_whichever_way_they_act(client: httpx.AsyncClient, engine: Engine) -> None:
    created = await engine.create_execution()
    await calls(client, ("cancel_execution", {"execution_id": created.execution_id}))
    acts = (await engine.list_audit()).entries
    [act] = acts
    assert (act.act, json.loads(act.subject)) == ("cancel_execution", {"execution_id": created.execution_id})


def test_policies_of_claims_have_no_other_fields() -> None:
    """What a claim says is written out by hand in the protocol: a new field has to be added there."""
    assert set(ClaimPolicy.__struct_fields__) == {
        "worker_id", "worker_instance_id", "lease_ttl_ms", "max_wait", "key", "again",
    }  # fmt: skip


async def test_a_key_that_another_server_has_just_made(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Envelopes(engine), Envelopes(engine)
    await engine.create_execution()
    handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1"))
    assert handle is not None
    await here.ready()
    await engine.rotate_waitpoint_hmac_secret_all(new_kid="k9", new_secret_hex="ab" * 32)
    await there.ready()
    envelope = there.seal(handle, None)
    # It has looked right before the rotation, and may not look again at once.
    here._looked_at = time.monotonic()
    assert await here.open(envelope) == (handle, None)

    looks = 0
    real = engine.derived_keys

    async def look(purpose: str) -> Any:
        nonlocal looks
        looks += 1
        return await real(purpose)

    monkeypatch.setattr(engine, "derived_keys", look)
    forged = [here.open(f"k{number}{envelope[2:]}") for number in range(10, 60)]
    assert {type(each) for each in await asyncio.gather(*forged, return_exceptions=True)} == {Validation}
    assert looks <= 2, "one look answers all who ask meanwhile"
