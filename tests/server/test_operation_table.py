"""One description of every operation: each door offers what it says, to whom it says, and audits what it says."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from flowfabric import App
from flowfabric.engine import Engine
from flowfabric.engine.operation_table import NAMED_BY, OPERATIONS, REMOTE, Operation, Subject
from flowfabric.engine.wire.codec import body_of
from flowfabric.model.operations.access import Scope
from flowfabric.model.operations.schedules import Every
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from flowfabric.server.operations import Route
from flowfabric.server.routes import ROUTES
from tests.server.access.test_roles import FOLLOWED, called, things
from tests.server.acts import ACTS, SECRET, Act, World
from tests.server.conftest import client_of
from tests.server.routes.test_remote import SAMPLES

BY_NAME = {each.name: each for each in ROUTES}
BOTH = sorted(name for name, each in OPERATIONS.items() if each.http and each.remote)
ROOT = "root-token-of-this-test"
AUDITED = sorted(name for name, each in OPERATIONS.items() if each.audited)
DOORS = [
    (name, door)
    for name in AUDITED
    for door, there in (("http", OPERATIONS[name].http), ("remote", OPERATIONS[name].remote))
    if there
]


# -- the table -------------------------------------------------------------------------------------------------------


def arguments(name: str) -> set[str]:
    """What an operation of the engine takes."""
    return {each.name for each in msgspec.structs.fields(body_of(name).kind)}


def test_every_entry_is_reachable_as_it_says() -> None:
    assert len(BY_NAME) == len(ROUTES), "two routes to one operation"
    assert BY_NAME.keys() == {name for name, each in OPERATIONS.items() if each.http}
    assert all(callable(getattr(Engine, name)) for name in REMOTE)
    assert all(each.http or each.remote for each in OPERATIONS.values())


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda each: each.name)
def test_every_entry_makes_sense(operation: Operation) -> None:
    assert operation.audited or not operation.tells
    assert operation.everywhere or operation.subject is not Subject.EVERYTHING
    assert operation.scopes or not operation.audited, "nobody could be named"
    # Whatever operators may do as well is an act, whoever does it.
    if Scope.WORKER in operation.scopes and Scope.OPERATOR not in operation.scopes:
        assert not operation.audited, "work is not audited"
    if operation.remote:
        taken = arguments(operation.name)
        assert set(operation.tells) <= taken
        assert operation.repeatable_with is None or operation.repeatable_with in taken
        if operation.audited:
            assert set(NAMED_BY[operation.subject]) <= taken
    if operation.http and "{id}" in BY_NAME[operation.name].path:
        assert operation.subject in (Subject.EXECUTION, Subject.FLOW, Subject.BUDGET)


# -- who may ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(engine: Engine) -> Server:
    return create_app(engine, ServerConfig(require_credential=True))


async def remotely(client: httpx.AsyncClient, name: str, options: dict[str, Any]) -> dict[str, Any]:
    response = await client.post("/v1/remote/calls", json={"calls": [{"op": name, "arguments": options}]})
    assert response.status_code == 200, response.text
    [answer] = response.json()["answers"]
    found: dict[str, Any] = answer
    return found


def verdict(status: int | None, error: str) -> str:
    """What a door says of a caller; whatever else it says, the caller may."""
    gate = re.search(r"lacks the scope .*|covers all of them", error) if status == 403 else None
    return gate[0] if gate else "may"


@pytest.mark.parametrize("name", BOTH)
async def test_every_role_is_told_the_same_at_both_doors(guarded: Server, engine: Engine, name: str) -> None:
    mine = await things(engine, "mine")
    about = {"execution_id": mine.execution, "flow_id": mine.flow, "budget_id": mine.budget, "namespace": "mine"}
    required = {each.name for each in msgspec.structs.fields(body_of(name).kind) if each.required}
    options = {each: about.get(each, SAMPLES.get(each, "x")) for each in required}
    for scope in Scope:
        for namespaces in (None, ["mine"]):
            made = await engine.create_credential(name="role", scopes=[scope], namespaces=namespaces)
            over_http = await called(guarded, made.token, BY_NAME[name], mine)
            told = over_http.json() if over_http.status_code >= 400 else {}
            async with client_of(guarded, made.token) as client:
                answer = (await remotely(client, name, options)).get("error", {})
                me = (await client.get("/v1/me")).json()
            said = verdict(over_http.status_code, told.get("error", ""))
            assert said == verdict(answer.get("status"), answer.get("error", "")), (scope, namespaces)
            allowed = OPERATIONS[name].is_open_to(frozenset([scope]), limited=namespaces is not None)
            assert (said == "may", name in me["operations"]) == (allowed, allowed)


# -- the audit -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(App("memory://", namespace="acme"))
        yield World(app, app.engine, stack)


async def acted(client: httpx.AsyncClient, name: str, door: str, act: Act) -> tuple[int, str]:
    """Make an act at one of the doors: status and answer."""
    if door == "remote":
        answer = await remotely(client, name, act.arguments)
        return answer.get("error", {"status": 200}).get("status", 400), json.dumps(answer)
    route: Route = BY_NAME[name]
    path = re.sub(r"{(\w+)}", lambda found: quote(act.path[found[1]], safe=""), route.path)
    response = await client.request(route.method, path, params=act.query, json=act.body)
    return response.status_code, response.text


def test_there_is_an_act_of_every_audited_operation() -> None:
    assert sorted(ACTS) == AUDITED


@pytest.mark.parametrize(("name", "door"), DOORS)
async def test_every_act_leaves_one_line_at_every_door(
    world: World, name: str, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "audit")
    engine = world.engine
    act = await ACTS[name](world)
    guarded = create_app(engine, ServerConfig(require_credential=True))
    stranger = await engine.create_credential(name="eve", scopes=[Scope.SIGNAL])
    scopes = [min(OPERATIONS[name].scopes)]
    ann = await engine.create_credential(name="ann", scopes=scopes)
    async with client_of(guarded, stranger.token) as client:
        assert (await acted(client, name, door, act))[0] == 403
    assert (await engine.list_audit()).entries == (), "what was refused is no act"
    async with client_of(guarded, ann.token) as client:
        status, answer = await acted(client, name, door, act)
    assert status in (200, 201), answer
    [entry] = (await engine.list_audit()).entries
    assert (entry.who, entry.act) == (f"ann ({ann.credential.credential_id})", name)
    told = json.loads(entry.subject)
    assert told == {key: told.get(key) if value is ... else value for key, value in act.told.items()}
    assert all(told.values())
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "audit"]
    assert [each for each in lines if each["event"] == name] == [
        {"event": name, "who": entry.who, "status": entry.status, **told}
    ]
    assert SECRET not in caplog.text + entry.subject
    for token in re.findall(r'"(?:token|link|ok)": ?"([^"]{20,})"', answer):
        assert token not in caplog.text + entry.subject


#: Acts that find everything as it should be when they are made again.
SETTLED = (
    "revoke_lease", "set_lane_state", "set_lane_fairness", "create_budget", "create_quota_policy", "put_schedule",
    "pause_schedule", "resume_schedule", "delete_schedule", "revoke_credential",
    "rotate_waitpoint_secret",
)  # fmt: skip


@pytest.mark.parametrize(("name", "door"), [each for each in DOORS if each[0] in SETTLED])
async def test_what_changes_nothing_is_no_act(world: World, name: str, door: str) -> None:
    act = await ACTS[name](world)
    async with client_of(create_app(world.engine, ServerConfig(api_token=ROOT)), ROOT) as client:
        for _ in range(2):
            assert (await acted(client, name, door, act))[0] in (200, 201)
            assert len((await world.engine.list_audit()).entries) == 1


@pytest.mark.parametrize(("name", "door"), DOORS)
async def test_what_cannot_be_done_is_no_act(world: World, engine: Engine, name: str, door: str) -> None:
    act = await ACTS[name](world)
    async with client_of(create_app(engine, ServerConfig())) as client:
        status, _ = await acted(client, name, door, act)
    if OPERATIONS[name].subject in (Subject.EXECUTION, Subject.FLOW):
        assert status >= 400 or name == "read_waitpoint_token", "it is about something that is not there"
    assert len((await engine.list_audit()).entries) <= (status < 400)


async def test_nothing_else_leaves_a_line(server: Server, engine: Engine) -> None:
    mine = await things(engine, "mine")
    for route in ROUTES:
        if not route.operation.audited and route.name not in FOLLOWED:
            await called(server, None, route, mine)
    about = {"execution_id": mine.execution, "flow_id": mine.flow, "budget_id": mine.budget, "namespace": "mine"}
    async with client_of(server) as client:
        for name, operation in REMOTE.items():
            if not operation.audited:
                required = [each.name for each in msgspec.structs.fields(body_of(name).kind) if each.required]
                await remotely(client, name, {each: about.get(each, SAMPLES.get(each, "x")) for each in required})
    assert (await engine.list_audit()).entries == ()


async def test_a_long_reason_is_cut_and_a_token_that_is_not_there_is_no_act(server: Server, engine: Engine) -> None:
    async with client_of(server) as client:
        body = {"state": "paused", "reason": "\N{SNOWMAN}" * 5_000}
        assert (await client.put("/v1/lanes/default/state", json=body)).status_code == 200
        [entry] = (await engine.list_audit()).entries
        assert json.loads(entry.subject)["reason"] == "\N{SNOWMAN}" * 250
        nowhere = {"partition": 0, "waitpoint_id": "00000000-0000-4000-8000-000000000000"}
        assert await remotely(client, "read_waitpoint_token", nowhere) == {"ok": None}
        assert len((await engine.list_audit()).entries) == 1


async def test_a_schedule_is_told_with_its_namespace_even_if_that_was_left_out(server: Server, engine: Engine) -> None:
    await engine.put_schedule("nightly", spec=Every(60_000, 0), execution_kind="etl")
    async with client_of(server) as client:
        assert (await client.post("/v1/schedules/nightly/pause")).status_code == 200
        assert "ok" in await remotely(client, "resume_schedule", {"schedule_id": "nightly"})
    subjects = [json.loads(each.subject) for each in (await engine.list_audit()).entries]
    assert subjects == [{"schedule_id": "nightly", "namespace": "default"}] * 2


async def test_a_credential_that_is_revoked_by_name_ends_at_once(guarded: Server, engine: Engine) -> None:
    admin = await engine.create_credential(name="root", scopes=[Scope.ADMIN])
    reader = await engine.create_credential(name="ci", scopes=[Scope.READ])
    async with client_of(guarded, admin.token) as root, client_of(guarded, reader.token) as client:
        assert (await client.get("/v1/lanes")).status_code == 200
        await remotely(root, "revoke_credential", {"credential_id": reader.credential.credential_id})
        assert (await client.get("/v1/lanes")).status_code == 401


async def test_a_limited_operator_reads_tokens_of_its_own_executions_alone(world: World) -> None:
    act = await ACTS["read_waitpoint_token"](world)
    guarded = create_app(world.engine, ServerConfig(require_credential=True))
    unnamed = {key: value for key, value in act.arguments.items() if key != "execution_id"}
    for namespace, own in (("acme", True), ("shop", False)):
        made = await world.engine.create_credential(name="o", scopes=[Scope.OPERATOR], namespaces=[namespace])
        async with client_of(guarded, made.token) as client:
            assert (await acted(client, "read_waitpoint_token", "http", act))[0] == (200 if own else 404)
            answer = await remotely(client, "read_waitpoint_token", act.arguments)
            assert answer.get("error", {}).get("code") == (None if own else "execution_not_found")
            assert bool(answer.get("ok")) is own
            assert (await remotely(client, "read_waitpoint_token", unnamed))["error"]["status"] == 403
