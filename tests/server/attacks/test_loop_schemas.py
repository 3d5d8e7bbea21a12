"""Whatever schema a question was stored with: listing it, looking at it and answering it take little time."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from flowfabric import App, RunFailed, seconds
from flowfabric.conditions import Single
from flowfabric.model.operations.executions import ClaimPolicy
from flowfabric.model.operations.suspension import Fresh, SuspendArgs, SuspensionReason
from flowfabric.model.states import PublicState
from flowfabric.sdk.asks.ask import ANYONE, ASK_KIND, waitpoint_of
from flowfabric.sdk.definitions.codec import codec_for
from flowfabric.sdk.schemas.from_types import schema_of
from flowfabric.server import ServerConfig, create_app
from tests.sdk.asks.test_answer_checks import HOSTILE, SIZED, TABLE
from tests.server.attacks.world.watching import Request

CEILING_S = 2.0


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App("memory://") as made:
        yield made


async def store(app: App, payload: bytes, lane: str | None = None) -> str:
    """An execution that asks, made by somebody who needs no SDK for it."""
    made = await app.engine.create_execution(
        namespace=app.namespace, lane_id=lane or app.lane, execution_kind=ASK_KIND, input_payload=payload
    )
    return str(made.execution_id)


async def asked(app: App, payload: bytes) -> str:
    """The same, waiting for its answer; whoever holds it decides how."""
    lane = secrets.token_hex(8)
    identity = await store(app, payload, lane)
    handle = await app.engine.claim(lane, policy=ClaimPolicy("w", "w-1"))
    assert handle is not None
    waitpoint = Fresh(waitpoint_of(identity, payload, ANYONE), ANYONE)
    reason = SuspensionReason.WAITING_FOR_APPROVAL
    await app.engine.suspend(
        handle, SuspendArgs(waitpoints=[waitpoint], resume_condition=Single(ANYONE), reason_code=reason)
    )
    return identity


def question(schema: Any) -> bytes:
    said = {"question": "q", "show": None, "of": [], "need": 1, "within_ms": None, "schema": schema, "approves": None}
    return msgspec.json.encode(said)


#: Of those that come in sizes, some that an answer was refused for only after seconds.
SOME = ["a large class", "unique texts", "an empty pattern", "one large choice", "patterns to be read"]
WORST = [*SOME, *(each for each in HOSTILE if each not in SIZED and not each.startswith("malformed"))]


@pytest.mark.parametrize("name", WORST)
async def test_hostile_schemas(app: App, name: str) -> None:
    schema, value = HOSTILE[name]
    identity = await asked(app, question(schema))
    [ask] = await app.asks(identity, wait=seconds(30))
    server = create_app(app.engine, ServerConfig())
    at = f"/v1/asks/{quote(identity, safe='')}"
    link = await ask.link()
    requests = {
        "list": (Request("GET", "/v1/asks"), 200),
        "describe": (Request("GET", at), 200),
        "look": (Request("POST", "/v1/answers/look", body=msgspec.json.encode({"link": link})), 200),
        "give": (Request("POST", f"{at}/answer", body=msgspec.json.encode({"value": value})), 422),
        "answer": (Request("POST", "/v1/answers", body=msgspec.json.encode({"link": link, "value": value})), 422),
    }
    for what, (request, wanted) in requests.items():
        status, held = await request.held(server)
        assert (what, status) == (what, wanted)
        assert held.longest < CEILING_S, (what, held.longest)
    assert len(await app.asks(identity)) == 1


async def test_whoever_lacks_the_token_has_nothing_checked(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def checks(*_: Any) -> str | None:
        raise AssertionError("the token comes first")

    monkeypatch.setattr("flowfabric.sdk.asks.ask.check_against", checks)
    schema, value = HOSTILE["a large class"]
    payload = question(schema)
    waiting, other = await asked(app, payload), await asked(app, question({}))
    server = create_app(app.engine, ServerConfig())
    [ask] = await app.asks(waiting)
    [elsewhere] = await app.asks(other)
    good = (await ask.token()).reveal()
    tokens = ["", "k1", good[:-1] + ("0" if good[-1] != "0" else "1"), (await elsewhere.token()).reveal()]
    # The token of another question's waitpoint is good there, and nowhere else.
    signals = [(waiting, ask.waitpoint(None), each) for each in tokens]
    signals += [(waiting, elsewhere.waitpoint(None), tokens[-1])]
    idle = await store(app, payload)
    signals += [(idle, waitpoint_of(idle, payload, ANYONE), each) for each in tokens]
    rest = dict.fromkeys(("signal_category", "source_type", "source_identity", "target_scope"), "x")
    data = list(json.dumps(value[:30_000]).encode())
    for identity, waitpoint, token in signals:
        told = {"waitpoint_id": waitpoint, "waitpoint_token": token, "signal_name": "approve", "payload": data}
        path = f"/v1/executions/{quote(identity, safe='')}/signal"
        status, said = await Request("POST", path, body=json.dumps(told | rest).encode()).ask(server)
        assert status in (400, 404, 409), said


@pytest.mark.parametrize(("kind", "good", "bad"), TABLE, ids=[str(each[0]) for each in TABLE])
async def test_every_type_over_http(app: App, kind: Any, good: list[Any], bad: list[tuple[Any, str]]) -> None:
    server = create_app(app.engine, ServerConfig())
    for fitting in good:
        identity = await asked(app, question(schema_of(kind)))
        [ask] = await app.asks(identity)
        path = f"/v1/asks/{quote(identity, safe='')}/answer"
        link = {"link": await ask.link()}
        for value, place in bad:
            for at, body in ((path, {"value": value}), ("/v1/answers", {"value": value, **link})):
                status, said = await Request("POST", at, body=json.dumps(body).encode()).ask(server)
                # A number that no parser takes is no JSON to begin with.
                assert status == 422 or (status == 400 and abs(value) > 1e308), (value, said)
                assert status == 400 or f"is not valid: {place} " in json.loads(said)["error"]
        status, said = await Request("POST", path, body=json.dumps({"value": fitting}).encode()).ask(server)
        assert status == 200, (fitting, said)
        [given] = (await app.engine.read_history(identity)).signals
        codec_for(kind).decode(given.payload or b"null")


NONE = [b"", b"{", b"[]", b"null", b'{"question":' + b"[" * 2_000 + b"]" * 2_000 + b"}"]
NONE += [question({"not": {}}), question({"items": {"if": {}}}), question({"pattern": r"(a)\1"})]
NONE += [question(HOSTILE[each][0]) for each in ("circle", "nowhere", "wide", "malformed type None")]


@pytest.mark.parametrize("payload", NONE)
async def test_a_question_that_nothing_answers_is_not_asked(app: App, payload: bytes) -> None:
    identity = await store(app, payload)
    async with app.worker():
        with pytest.raises(RunFailed, match="cannot be asked"):
            await app.run(identity).result(timeout=seconds(30))
    info = await app.engine.read_execution_info(identity)
    assert info is not None
    assert info.public_state is PublicState.FAILED
