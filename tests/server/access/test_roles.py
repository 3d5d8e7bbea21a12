"""Every route × every role × own and foreign namespaces, made from the routes and the table of operations."""

from __future__ import annotations

import re
import uuid
from typing import Any, NamedTuple, get_args
from urllib.parse import quote

import httpx
import msgspec
import pytest
from msgspec import NODEFAULT, UNSET

from flowfabric.engine import Engine
from flowfabric.engine.operation_table import Subject
from flowfabric.model.ids import ExecutionId
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.access.principals import KNOWN_S, Scope
from flowfabric.server.app import Server
from flowfabric.server.http.request import Blob
from flowfabric.server.operations import Route
from flowfabric.server.routes import ROUTES
from tests.server.conftest import client_of

#: Streams never end, and one call of this table should.
FOLLOWED = ("follow_events", "follow_stream", "follow_run", "follow_changes")
#: What is called with a link instead of a credential; a wrong one leads nowhere.
LINKED = ("look_at_link", "answer_link")
CALLED = [each for each in ROUTES if each.name not in FOLLOWED]
BY_NAME = {each.name: each for each in CALLED}
#: Fields whose names say more than their types.
TEXTS = {
    "lane_id": "default",
    "cancellation_policy": "flow_only",
    "kind": "all_of",
    "new_kid": "k9",
    "new_secret_hex": "ab" * 32,
    "enforcement_mode": "strict",
    "reason": "",
}


class Things(NamedTuple):
    """What a namespace holds."""

    namespace: str
    execution: str
    flow: str
    budget: str


async def things(engine: Engine, namespace: str) -> Things:
    created = await engine.create_execution(namespace=namespace, lane_id="default")
    flow = await engine.create_flow(namespace=namespace)
    budget = str(uuid.uuid4())
    await engine.create_budget(budget_id=budget, namespace=namespace)
    return Things(namespace, str(created.execution_id), str(flow.flow_id), budget)


NOTHING = Things(
    "mine",
    "{fp:3}:00000000-0000-4000-8000-000000000000",
    "00000000-0000-4000-8000-000000000001",
    "00000000-0000-4000-8000-000000000002",
)


def sample(name: str, kind: Any, about: Things) -> Any:
    """A value for a field that has to be there."""
    if name in ("execution_id", "upstream_execution_id", "downstream_execution_id"):
        return about.execution
    if name.endswith("_id") and name not in TEXTS and name not in ("worker_id", "worker_instance_id", "scope_id"):
        return str(uuid.uuid4())
    if name in ("namespace", "scope_id"):
        return about.namespace
    if name == "scope_type":
        return "namespace"
    if name in TEXTS:
        return TEXTS[name]
    if kind is Blob:
        return [1]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return body_of(kind, about)
    origin = getattr(kind, "__origin__", None)
    if hasattr(kind, "__metadata__"):
        return sample(name, origin, about)
    if origin in (list, tuple):
        return []
    if origin is dict:
        return {}
    if kind in (int, bool):
        return 1
    if isinstance(kind, type) and issubclass(kind, str) and hasattr(kind, "__members__"):
        return next(iter(kind)).value  # type: ignore[call-overload]
    return None if type(None) in get_args(kind) else "x"


def body_of(kind: Any, about: Things) -> Any:
    return {
        field.encode_name: sample(field.name, field.type, about)
        for field in msgspec.structs.fields(kind)
        if field.default in (NODEFAULT, UNSET) and field.default_factory is NODEFAULT
    }


def request_of(route: Route, about: Things) -> tuple[str, dict[str, Any]]:
    """A call of a route that is about these things."""
    owned = {Subject.EXECUTION: about.execution, Subject.FLOW: about.flow, Subject.BUDGET: about.budget}
    named = {"id": owned[route.owner or Subject.EXECUTION], "idx": "0", "execution_id": about.execution}
    path = re.sub(r"{(\w+)}", lambda found: quote(named.get(found[1]) or str(uuid.uuid4()), safe=""), route.path)
    options: dict[str, Any] = {}
    if route.body is not None:
        options["json"] = body_of(route.body, about)
    if route.query is not None:
        query = body_of(route.query, about)
        if any(each.name == "namespace" for each in msgspec.structs.fields(route.query)):
            query["namespace"] = about.namespace
        options["params"] = query
    return path, options


@pytest.fixture
def guarded(engine: Engine) -> Server:
    return create_app(engine, ServerConfig(require_credential=True))


async def credential(engine: Engine, scopes: list[Scope], namespaces: list[str] | None) -> str:
    return (await engine.create_credential(name="role", scopes=scopes, namespaces=namespaces)).token.reveal()


async def called(server: Server, token: str | None, route: Route, about: Things) -> httpx.Response:
    path, options = request_of(route, about)
    async with client_of(server, token) as client:
        return await client.request(route.method, path, **options)


@pytest.mark.parametrize("name", BY_NAME)
async def test_every_role(guarded: Server, engine: Engine, name: str) -> None:
    route = BY_NAME[name]
    mine, theirs = await things(engine, "mine"), await things(engine, "theirs")
    anonymous = await called(guarded, None, route, mine)
    scopes, closed = route.operation.scopes, route.operation.everywhere
    if not scopes:
        assert anonymous.status_code == (404 if name in LINKED else 200)
        return
    assert anonymous.status_code == 401
    assert (await called(guarded, "ff_0000000000000000_" + "0" * 64, route, mine)).status_code == 401
    for scope in Scope:
        everywhere = await credential(engine, [scope], None)
        limited = await credential(engine, [scope], ["mine"])
        if scope not in scopes:
            for each in (everywhere, limited):
                refused = await called(guarded, each, route, mine)
                assert (refused.status_code, refused.json()["kind"]) == (403, "forbidden")
            continue
        # What is not mine looks like what is not there, byte for byte, and is not touched.
        before = await snapshot(engine, theirs)
        # A budget is named together with its namespace, and one's own is the only one that may be named.
        named = theirs._replace(namespace="mine") if route.owner is Subject.BUDGET else theirs
        foreign = await called(guarded, limited, route, named)
        if named is not theirs:
            assert (await called(guarded, limited, route, theirs)).status_code == 403
        if closed:
            assert foreign.status_code == 403
        elif route.owner is not None:
            absent = await called(guarded, limited, route, NOTHING)
            assert (foreign.status_code, plainly(foreign, theirs)) == (404, plainly(absent, NOTHING))
        else:
            assert theirs.execution not in foreign.text
        assert await snapshot(engine, theirs) == before
        own = await called(guarded, limited, route, mine)
        assert own.status_code != 401
        assert (own.status_code == 403) is closed, own.text
        assert (await called(guarded, everywhere, route, theirs)).status_code not in (401, 403)


def plainly(response: httpx.Response, about: Things) -> str:
    text = response.text
    for each in about:
        text = text.replace(each, "?")
    return text


async def snapshot(engine: Engine, about: Things) -> Any:
    return (
        await engine.read_execution_info(about.execution),
        await engine.describe_flow(about.flow),
        await engine.get_budget_status(about.budget, about.namespace),
    )


async def test_work_cannot_be_put_into_other_namespaces(guarded: Server, engine: Engine) -> None:
    theirs = await things(engine, "theirs")
    token = await credential(engine, [Scope.SUBMIT, Scope.OPERATOR], ["mine"])
    for name in (
        "create_execution",
        "create_flow",
        "create_budget",
        "create_quota_policy",
        "submit_flow",
        "put_schedule",
    ):
        path, options = request_of(BY_NAME[name], theirs)
        options["json"]["namespace"] = "theirs"
        async with client_of(guarded, token) as client:
            refused = await client.request(BY_NAME[name].method, path, **options)
        assert (refused.status_code, refused.json()["kind"]) == (403, "forbidden"), name
    async with client_of(guarded, token) as client:
        body = {"executions": [body_of(BY_NAME["create_execution"].body, theirs)]}
        assert (await client.post("/v1/executions/bulk", json=body)).status_code == 403
        done = await client.post("/v1/bulk/cancel", json={"filter": {"namespace": "theirs"}})
        assert done.json()["matched"] == 0
        assert (await client.post("/v1/bulk/cancel", json={"filter": {}})).json()["matched"] == 0


async def test_members_of_other_namespaces_cannot_be_taken_in(guarded: Server, engine: Engine) -> None:
    mine = await things(engine, "mine")
    other = ExecutionId.for_flow(mine.flow, engine.partitions)
    await engine.create_execution(execution_id=other, namespace="theirs")
    token = await credential(engine, [Scope.SUBMIT], ["mine"])
    async with client_of(guarded, token) as client:
        response = await client.post(f"/v1/flows/{mine.flow}/members", json={"execution_id": other})
    assert (response.status_code, response.json()) == (404, {"error": f"execution not found: {other}"})


async def test_credentials_over_http(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    server = create_app(engine, ServerConfig(api_token="token-of-this-test"))
    async with client_of(server, "token-of-this-test") as root:
        made = await root.post("/v1/admin/credentials", json={"name": "ci", "scopes": ["read"], "namespaces": ["mine"]})
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        token, identity = made.json()["token"], made.json()["credential"]["credential_id"]
        listed = await root.get("/v1/admin/credentials")
        assert [each["credential_id"] for each in listed.json()["credentials"]] == [identity]
        assert token not in listed.text
        async with client_of(server, token) as client:
            assert (await client.get("/v1/search/executions")).status_code == 200
            assert (await client.get("/v1/admin/credentials")).status_code == 403
            revoked = await root.delete(f"/v1/admin/credentials/{identity}")
            gone = {"credential_id": identity, "name": "ci", "scopes": ["read"], "namespaces": ["mine"]}
            assert revoked.json() == {"CredentialRevoked": gone}
            assert (await client.get("/v1/search/executions")).status_code == 401
        wrong = await root.post("/v1/admin/credentials", json={"name": "ci", "scopes": ["everything"]})
        assert wrong.status_code == 400
        assert wrong.json()["error"].startswith("invalid_input: scopes[0]: expected one of ")
        assert (await root.delete("/v1/admin/credentials/nobody")).status_code == 404
    assert "create_credential" in caplog.text
    assert token not in caplog.text
    assert token.rpartition("_")[2] not in caplog.text


async def test_the_first_credential_closes_an_open_server(engine: Engine) -> None:
    server = create_app(engine, ServerConfig())
    async with client_of(server) as client:
        assert (await client.get("/v1/lanes")).status_code == 200
        await client.post("/v1/admin/credentials", json={"name": "first", "scopes": ["admin"]})
        assert (await client.get("/v1/lanes")).status_code == 401


async def test_a_revocation_elsewhere_arrives(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    server = create_app(engine, ServerConfig(require_credential=True))
    token = await credential(engine, [Scope.READ], None)
    seconds = 1_000.0
    monkeypatch.setattr("flowfabric.server.access.principals.time.monotonic", lambda: seconds)
    assert await server.gate.principal(b"Bearer " + token.encode()) is not None
    await engine.revoke_credential(token.split("_")[1])
    seconds += KNOWN_S + 1
    assert await server.gate.principal(b"Bearer " + token.encode()) is None
