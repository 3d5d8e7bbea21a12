"""What was taken away is away: whatever waits or listens with a credential ends with it, on every server of a store."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from flowfabric import ClaimPolicy, FlowGraph
from flowfabric.engine import Engine
from flowfabric.engine.operation_table import REMOTE
from flowfabric.model.handles import Handle
from flowfabric.model.operations.workflows import NewStep
from flowfabric.model.records.executions import SigningKey
from flowfabric.model.streams.frames import Frame
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.access import principals
from flowfabric.server.access.principals import Scope
from flowfabric.server.app import Server
from flowfabric.server.operations import Route
from flowfabric.server.routes import ROUTES
from flowfabric.server.routes.remote import WAITING
from tests.contract.conftest import STORES
from tests.contract.probe import ManualClock, id_of
from tests.contract.seeding import overwrite
from tests.server.attacks.test_connections import MIB, unread
from tests.server.attacks.world.asking import PATIENCE_S, Asking, eventually
from tests.server.conftest import client_of
from tests.server.listening import listening
from tests.server.making import at, claimed, creation

ROOT = "root-of-these-servers"
#: How often whoever is not told looks.
SOON_S = 0.2
#: Names of fields that say how long to wait; and those that say how long something else does.
WAITED = re.compile(r"(^|_)(wait|block|timeout)(_|$)")
LATER = {"debounce_execution:wait_ms", "advance:wait"}
LONG_MS = 30_000


class World(NamedTuple):
    """Two servers, which may be on two engines, and something that runs."""

    here: Server
    there: Server
    handle: Handle
    token: str
    flow: str
    #: Set when the members of the flow are cancelled at last.
    cancelled: asyncio.Event

    async def stir(self) -> None:
        """Let something happen that everybody waits for, through the first server's engine."""
        self.cancelled.set()
        engine = self.here.engine
        await engine.append_frame(self.handle, Frame(b"news"))
        await engine.create_execution(lane_id="quiet", input_payload=b"news")
        await engine.create_execution(lane_id="other")
        await engine.complete(await claimed(engine, "other"))


class Case(NamedTuple):
    """A request that waits, and what says that it does not do so in vain."""

    method: str
    path: Callable[[World], str]
    body: Callable[[World], Any] = lambda world: None


def _frames(*rest: str) -> Callable[[World], str]:
    return lambda world: at(str(id_of(world.handle)), "attempts", "0", "stream", *rest)


def _tail(world: World) -> Any:
    options = {"execution_id": str(id_of(world.handle)), "attempt_index": 0, "after": "0-0", "block_ms": LONG_MS}
    return {"op": "tail_stream", "arguments": options}


def _calling(*calls: Callable[[World], Any]) -> Callable[[World], Any]:
    return lambda world: {"calls": [each(world) for each in calls], "claim": CLAIM}


def _cancel(world: World) -> Any:
    return {"op": "cancel_flow", "arguments": {"flow_id": world.flow, "wait_ms": None}}


CLAIM = {"worker_id": "w", "worker_instance_id": "w-1", "lanes": {"quiet": 1}}
CALLS = "/v1/remote/calls"
CANCEL = {"reason": "enough", "cancellation_policy": "cancel_all"}
CASES: dict[str, Case] = {
    "follow_stream": Case("GET", _frames("events")),
    "follow_run": Case("GET", lambda world: f"{at(str(id_of(world.handle)), 'stream', 'events')}?children=true"),
    "follow_events": Case("GET", lambda world: "/v1/events/completion"),
    "follow_changes": Case("GET", lambda world: "/v1/changes"),
    "tail_stream": Case("GET", _frames(f"tail?block_ms={LONG_MS}")),
    "remote_claim": Case("POST", lambda world: "/v1/remote/claim", lambda world: {**CLAIM, "wait_ms": LONG_MS}),
    "cancel_flow": Case("POST", lambda world: f"/v1/flows/{world.flow}/cancel?wait=true", lambda world: CANCEL),
    "remote tail_stream": Case("POST", lambda world: CALLS, _calling(_tail)),
    "remote tail_stream among others": Case("POST", lambda world: CALLS, _calling(_tail, _tail)),
    "remote cancel_flow": Case("POST", lambda world: CALLS, _calling(_cancel)),
}
STREAMS = {each.name for each in ROUTES if each.media == "text/event-stream"}


def _waits(operation: Route) -> bool:
    for shape in (operation.body, operation.query):
        if shape is not None:
            _, parts = msgspec.json.schema_components([shape], schema_hook=lambda kind: {"type": "string"})
            if any(WAITED.search(name) for part in parts.values() for name in part.get("properties", {})):
                return True
    return False


def test_the_table_names_whatever_waits() -> None:
    routes = STREAMS | {each.name for each in ROUTES if _waits(each)}
    calls = {
        f"remote {name}"
        for name in REMOTE
        for each in inspect.signature(getattr(Engine, name)).parameters
        if WAITED.search(each) and f"{name}:{each}" not in LATER
    }
    # What the calls of a request wait for is looked at one by one; its claim does not wait.
    assert {name.removesuffix(" among others") for name in CASES} == routes - {"remote_calls"} | calls
    assert {f"remote {name}" for name in WAITING} == calls


# -- the doors through which a credential is taken away --------------------------------------------------------------


async def _by_http(world: World, identity: str) -> None:
    async with Asking(world.here, "DELETE", f"/v1/admin/credentials/{identity}", ROOT, {}) as asking:
        await asking.end()
        assert asking.status == 200


async def _by_remote_call(world: World, identity: str) -> None:
    body = {"calls": [{"op": "revoke_credential", "arguments": {"credential_id": identity}}]}
    async with Asking(world.here, "POST", "/v1/remote/calls", ROOT, body) as asking:
        await asking.end()
        assert "ok" in json.loads(asking.text)["answers"][0]


async def _by_the_engine(world: World, identity: str) -> None:
    await world.here.engine.revoke_credential(identity)


DOORS: dict[str, Callable[[World, str], Awaitable[None]]] = {
    "http": _by_http,
    "remote call": _by_remote_call,
    "engine": _by_the_engine,
}


async def world_of(here: Engine, there: Engine, expires_at: int | None = None) -> World:
    config = ServerConfig(api_token=ROOT)
    made = await here.create_credential(name="worker", scopes=list(Scope), expires_at=expires_at)
    return await begun(create_app(here, config), create_app(there, config), made.token.reveal())


async def begun(here: Server, there: Server, token: str) -> World:
    """Something that runs, and a flow whose members take their time to be cancelled."""
    engine, cancelled = here.engine, asyncio.Event()
    await engine.create_execution()
    handle = await claimed(engine)
    flow = await engine.submit_flow(FlowGraph(nodes={"one": {"lane_id": "members"}}))

    async def slowly(*_: Any) -> None:
        await cancelled.wait()

    vars(there.engine)["_until_cancelled"] = slowly
    return World(here, there, handle, token, str(flow.flow_id), cancelled)


def identity_of(token: str) -> str:
    return token.split("_")[1]


async def waiting(world: World, name: str, token: str | None) -> Asking:
    """A request that waits at the second server, and has shown that it hears of things if it is a stream."""
    case = CASES[name]
    asking = Asking(world.there, case.method, case.path(world), token, case.body(world))
    if name in STREAMS:
        await asking.has(lambda each: bool(each.chunks))
        begun = len(asking.chunks)
        await world.here.engine.append_frame(world.handle, Frame(b"before"))
        await world.here.engine.create_execution(lane_id="other")
        await world.here.engine.complete(await claimed(world.here.engine, "other"))
        await asking.has(lambda each: len(each.chunks) > begun)
    else:
        shown = None if token is None else token.encode()
        await eventually(lambda: shown in world.there.gate._standing)
    assert not asking.task.done(), asking.text
    return asking


async def refuses(server: Server, token: str) -> None:
    """Wait until a server does not honour a token."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with Asking(server, "GET", "/v1/remote", token) as asking:
                await asking.end()
            if asking.status == 401:
                return
            await asyncio.sleep(0.005)


async def nothing_more(world: World, name: str, asking: Asking) -> None:
    """Whatever happens now, it is not told; and no work is given away or lost."""
    told = list(asking.chunks)
    await world.stir()
    await asking.end()
    if name in STREAMS:
        assert asking.chunks == told
    elif name.startswith("remote "):
        answer = json.loads(asking.text)
        assert {each["error"]["status"] for each in answer["answers"]} == {401}
        assert answer["work"] == []
    else:
        assert asking.status == 401
    assert "news" not in asking.text
    # A claim that was given up gives back what it was just getting.
    left = await world.here.engine.claim("quiet", policy=ClaimPolicy("x", "x-1", max_wait=LONG_MS))
    assert left is not None


# -- one engine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", CASES)
async def test_a_revocation_here_is_known_before_it_is_answered(engine: Engine, name: str, door: str) -> None:
    world = await world_of(engine, engine)
    async with await waiting(world, name, world.token) as asking:
        await DOORS[door](world, identity_of(world.token))
        await nothing_more(world, name, asking)
        for server in (world.here, world.there):
            assert await server.gate.principal(b"Bearer " + world.token.encode()) is None


@pytest.mark.parametrize("name", CASES)
async def test_whoever_waits_goes_home_although_nothing_happens(engine: Engine, name: str) -> None:
    world = await world_of(engine, engine)
    async with await waiting(world, name, world.token) as asking:
        await engine.revoke_credential(identity_of(world.token))
        await asking.end()


@pytest.mark.parametrize("name", CASES)
async def test_another_credential_is_not_concerned(engine: Engine, name: str) -> None:
    world = await world_of(engine, engine)
    other = await engine.create_credential(name="other", scopes=["read"])
    async with await waiting(world, name, world.token) as asking:
        begun = len(asking.chunks)
        await engine.revoke_credential(other.credential.credential_id)
        await world.stir()
        await asking.has(lambda each: len(each.chunks) > begun)
        assert asking.status == 200


@pytest.mark.parametrize("name", CASES)
async def test_a_credential_that_expires_ends_too(name: str) -> None:
    clock = ManualClock()
    async with await Engine.open("memory://", clock=clock) as engine:
        world = await world_of(engine, engine, expires_at=clock() + 5_000)
        async with await waiting(world, name, world.token) as asking:
            clock.advance(5_000)
            await refuses(world.there, world.token)
            await nothing_more(world, name, asking)


async def test_work_that_is_claimed_meanwhile_goes_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last moment: the lease is taken, the answer is being written."""
    world = await world_of(engine, engine)
    reading = engine.read_execution_contexts

    async def revoked_meanwhile(ids: Any) -> Any:
        await engine.revoke_credential(identity_of(world.token))
        return await reading(ids)

    monkeypatch.setattr(engine, "read_execution_contexts", revoked_meanwhile)
    async with await waiting(world, "remote_claim", world.token) as asking:
        await nothing_more(world, "remote_claim", asking)


@pytest.mark.parametrize("name", ["tail_stream", "remote tail_stream", "remote tail_stream among others"])
async def test_what_is_read_meanwhile_is_not_told(engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_of(engine, engine)
    tail = engine.tail_stream

    async def revoked_meanwhile(*arguments: Any, **options: Any) -> Any:
        found = await tail(*arguments, **options)
        # A look without a wait comes before: what is meant is the moment at which a wait ends.
        if inspect.signature(tail).bind(*arguments, **options).arguments.get("block_ms"):
            await engine.revoke_credential(identity_of(world.token))
        return found

    monkeypatch.setattr(engine, "tail_stream", revoked_meanwhile)
    async with await waiting(world, name, world.token) as asking:
        await nothing_more(world, name, asking)


async def test_what_was_read_for_a_slow_reader_is_not_sent(engine: Engine) -> None:
    world = await world_of(engine, engine)
    for number in range(5):
        await engine.append_frame(world.handle, Frame(b"frame %d" % number))
    case = CASES["follow_stream"]
    async with Asking(world.there, case.method, case.path(world), world.token) as asking:
        asking.takes.clear()
        await asking.has(lambda each: each.status is not None)
        await engine.revoke_credential(identity_of(world.token))
        asking.takes.set()
        await asking.end()
        assert "frame" not in asking.text


# -- answers that are sent piece by piece ----------------------------------------------------------------------------

LARGE = 100_000


async def _large(world: World) -> None:
    """Enough of everything to be sent in pieces."""
    engine = world.here.engine
    await engine.append_frames(world.handle, [Frame(b"x" * 60_000)] * 10)
    await engine.create_executions([{"lane_id": "large", "input_payload": b"x" * LARGE}] * 10)
    await engine.create_executions([{"lane_id": "ended"}] * 2)
    await engine.advance(world.handle, steps=[NewStep(f"step {number}", b"x" * LARGE) for number in range(10)])


def _stream_call(name: str, **more: Any) -> Callable[[World], Any]:
    return lambda world: {
        "op": name,
        "arguments": {"execution_id": str(id_of(world.handle)), "attempt_index": 0, **more},
    }


LARGE_CLAIM = {"worker_id": "w", "worker_instance_id": "w-1", "lanes": {"large": 1}, "limit": 10}
#: Whatever is answered in pieces of JSON.
PIECES: dict[str, Case] = {
    "read_stream": Case("GET", _frames("?limit=1000")),
    "tail_stream": Case("GET", _frames("tail?limit=1000")),
    "read_steps": Case("GET", lambda world: at(str(id_of(world.handle)), "steps")),
    "remote_claim": Case("POST", lambda world: "/v1/remote/claim", lambda world: LARGE_CLAIM),
    "remote_claim that waits": Case(
        "POST", lambda world: "/v1/remote/claim", lambda world: {**LARGE_CLAIM, "wait_ms": LONG_MS}
    ),
    "remote_calls": Case(
        "POST", lambda world: CALLS, lambda world: {"calls": [_stream_call("read_stream")(world)] * 3}
    ),
    "remote_calls with a tail": Case(
        "POST", lambda world: CALLS, lambda world: {"calls": [_stream_call("tail_stream", block_ms=LONG_MS)(world)]}
    ),
    "remote_calls with a claim": Case("POST", lambda world: CALLS, lambda world: {"calls": [], "claim": LARGE_CLAIM}),
}


def test_the_table_names_whatever_is_sent_in_pieces() -> None:
    """Questions, which take an app to be asked, go the same way."""
    streamed = {each.name for each in ROUTES if "Streamed" in str(inspect.signature(each.handler).return_annotation)}
    assert {name.partition(" ")[0] for name in PIECES} == streamed - STREAMS - {"list_asks"}


@pytest.mark.parametrize("name", PIECES)
async def test_nothing_is_read_for_somebody_who_may_not_ask(engine: Engine, name: str) -> None:
    """A slow reader gets no more than what was on its way, and keeps no lease."""
    world = await world_of(engine, engine)
    await _large(world)
    case = PIECES[name]
    async with Asking(world.there, case.method, case.path(world), world.token, case.body(world)) as asking:
        asking.takes.clear()
        await asking.has(lambda each: each.status is not None)
        asking.takes.set()
        await asking.has(lambda each: bool(each.chunks))
        asking.takes.clear()
        told = len(asking.chunks)
        await engine.revoke_credential(identity_of(world.token))
        asking.takes.set()
        await asking.end()
        assert told <= len(asking.chunks) <= told + 1
        with pytest.raises(json.JSONDecodeError):
            json.loads(asking.text)
    left = await engine.claim_many("large", policy=ClaimPolicy("x", "x-1"), limit=100)
    assert len(left) == 10


async def test_a_reader_that_does_not_read_is_cut_off_with_its_credential() -> None:
    """What waits for it is not sent, and its work goes back although it has taken in nothing."""
    async with await Engine.open("memory://") as engine:
        config = ServerConfig(port=0, api_token=ROOT)
        made = await engine.create_credential(name="worker", scopes=list(Scope))
        for _ in range(10):
            await engine.create_execution(lane_id="large", input_payload=b"x" * MIB)
        async with listening(engine, config) as client:
            assert client.base_url.port is not None
            data = json.dumps(LARGE_CLAIM).encode()
            head = (
                "POST /v1/remote/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                f"authorization: Bearer {made.token.reveal()}\r\ncontent-length: {len(data)}\r\n\r\n"
            )
            idle = unread(client.base_url.port, head.encode() + data)
            async with asyncio.timeout(PATIENCE_S):
                while await engine.queue_depths():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await engine.revoke_credential(made.credential.credential_id)
            async with asyncio.timeout(PATIENCE_S):
                while sum(each.waiting for each in await engine.queue_depths()) < 10:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            idle.close()


async def test_a_look_that_was_under_way_is_not_remembered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_of(engine, engine)
    verify = engine.verify_credential

    async def slowly(token: str) -> Any:
        found = await verify(token)
        await engine.revoke_credential(identity_of(world.token))
        return found

    monkeypatch.setattr(engine, "verify_credential", slowly)
    shown = b"Bearer " + world.token.encode()
    await world.there.gate.principal(shown)
    monkeypatch.setattr(engine, "verify_credential", verify)
    assert await world.there.gate.principal(shown) is None


async def test_a_body_that_takes_its_time(engine: Engine) -> None:
    """The credential was good when the head was read."""
    world = await world_of(engine, engine)
    before = await engine.list_executions(0, None, 100)
    async with Asking(world.there, "POST", "/v1/executions", world.token) as asking:
        body = json.dumps(creation()).encode()
        asking.feed(body[:10], more=True)
        await eventually(lambda: world.there.gate._known)
        await engine.revoke_credential(identity_of(world.token))
        asking.feed(body[10:], more=False)
        await asking.end()
        assert asking.status == 401
    assert await engine.list_executions(0, None, 100) == before


async def test_an_answer_is_not_given_again_to_somebody_who_may_not_ask(engine: Engine) -> None:
    server = create_app(engine, ServerConfig(api_token=ROOT))
    made = await engine.create_credential(name="submitter", scopes=["submit"])
    headers = {"authorization": f"Bearer {made.token.reveal()}", "idempotency-key": "k"}
    async with client_of(server) as client:
        first = await client.post("/v1/executions", json=creation(), headers=headers)
        assert first.status_code == 201
        await engine.revoke_credential(made.credential.credential_id)
        assert (await client.post("/v1/executions", json=creation(), headers=headers)).status_code == 401


async def test_a_handle_whose_key_is_over_opens_nothing(engine: Engine) -> None:
    """Also on a server that has opened it before."""
    world = await world_of(engine, engine)
    await engine.create_execution(lane_id="quiet")
    async with Asking(world.there, "POST", "/v1/remote/claim", world.token, CLAIM) as asking:
        await asking.end()
        [work] = json.loads(asking.text)["work"]

    async def renewed() -> Any:
        body = {"handles": [work["handle"]]}
        async with Asking(world.there, "POST", "/v1/remote/renew", world.token, body) as renewing:
            await renewing.end()
            return json.loads(renewing.text)["answers"][0]

    await engine.rotate_waitpoint_hmac_secret_all(new_kid="k2", new_secret_hex="ab" * 32, grace_ms=86_400_000)
    assert "ok" in await renewed()
    await overwrite(engine, SigningKey, "k1", expires_at_ms=1)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await renewed()
            if "ok" not in answer:
                break
            await asyncio.sleep(0.01)
    assert answer["error"]["code"] == "invalid_input"


# -- two engines on one store ----------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
async def engines(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[tuple[Engine, Engine, str]]:
    url = STORES[request.param](request, tmp_path)
    async with (
        await Engine.open(url, single_node=True) as here,
        await Engine.open(url, single_node=True) as there,
    ):
        yield here, there, url


#: Who is not told finds out by looking, which takes its time and is the same on every store.
either_way = pytest.mark.parametrize(
    ("engines", "told"),
    [("sqlite", True), ("sqlite", False), ("postgres", True), ("postgres", False), ("valkey", True)],
    indirect=["engines"],
    ids=["sqlite-told", "sqlite-deaf", "postgres-told", "postgres-deaf", "valkey-told"],
)


def deafen(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an engine hear no hints, and look more often than it would."""

    async def hear() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(engine, "_hear", hear)
    monkeypatch.setattr(principals, "KNOWN_S", SOON_S)
    monkeypatch.setattr(type(engine.store), "event_poll_s", SOON_S)


@either_way
@pytest.mark.parametrize("name", CASES)
async def test_a_revocation_elsewhere_arrives(
    engines: tuple[Engine, Engine, str], name: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a hint, if there is one; and by looking, if it is lost. Whoever is refused once hears nothing more."""
    here, there, _ = engines
    if told:
        monkeypatch.setattr(principals, "KNOWN_S", 1e9)
    else:
        deafen(there, monkeypatch)
    world = await world_of(here, there)
    async with await waiting(world, name, world.token) as asking:
        await _by_http(world, identity_of(world.token))
        await refuses(world.there, world.token)
        await nothing_more(world, name, asking)


async def test_a_process_that_ends_at_once_tells_too(
    engines: tuple[Engine, Engine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the command line does."""
    monkeypatch.setattr(principals, "KNOWN_S", 1e9)
    here, there, url = engines
    world = await world_of(here, there)
    async with await waiting(world, "follow_changes", world.token) as asking:
        async with await Engine.open(url, single_node=True) as brief:
            await brief.revoke_credential(identity_of(world.token))
        await asking.end()


@either_way
@pytest.mark.parametrize("name", CASES)
async def test_the_first_credential_ends_what_nobody_in_particular_waits_for(
    engines: tuple[Engine, Engine, str], name: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, _ = engines
    if told:
        monkeypatch.setattr(principals, "KNOWN_S", 1e9)
    else:
        deafen(there, monkeypatch)
    world = await begun(create_app(here, ServerConfig()), create_app(there, ServerConfig()), "")
    async with await waiting(world, name, None) as asking:
        await here.create_credential(name="first", scopes=["admin"])
        assert await world.here.gate.principal(None) is None
        await asking.end()
        await nothing_more(world, name, asking)
