"""A tenant finds no trace of another one, whatever it reads and whatever ids it guesses.

One tenant's texts are all marked. The other calls everything that can be read, over HTTP and from remote, with ids of
its own, of the marked tenant and of nobody. No answer may hold the mark, and what is somebody else's must look exactly
like what is not there. An unlimited credential makes the same calls, to prove that the marks can be found at all.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec
import pytest

from flowfabric.engine import Engine
from flowfabric.engine.operation_table import REMOTE, Subject
from flowfabric.engine.wire.codec import body_of
from flowfabric.model.operations.access import Scope
from flowfabric.model.operations.executions import ScannerFilter
from flowfabric.model.reads.subscriptions import EventFamily, cursor_to_text
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.operations import Route
from flowfabric.server.routes import ROUTES
from tests.contract.probe import ManualClock
from tests.server.attacks.world.planting import Planted, Planter, entangle, unknown
from tests.server.conftest import client_of
from tests.server.listening import events, listening

FOLLOWED = ("follow_events", "follow_stream", "follow_run", "follow_changes")
#: Asks for no credential and tells of all lanes: it is to be kept inside.
INSIDE = "metrics"
READS = {each.name: each for each in ROUTES if each.method == "GET" and each.name not in (*FOLLOWED, INSIDE)}
#: Fields of queries and arguments that name something a tenant has, and what it has under that name.
NAMED = {
    "parent": "running", "upstream": "member", "downstream": "dependent", "upstream_execution_id": "member",
    "execution_id": "waiting", "after_execution_id": "waiting",
}  # fmt: skip
FILTERS = {"kind": "kind", "execution_kind": "kind", "flow_kind": "flow-kind", "instance_tag": "instance-tag"}
#: Marked texts that nobody can read: names of credentials are told to administrators, keys to nobody.
UNREAD = {"idempotency-key"}


class World(NamedTuple):
    """Two tenants and nobody, and two who call: one for the first tenant alone, one for all."""

    engine: Engine
    mine: Planted
    theirs: Planted
    nobody: Planted
    limited: httpx.AsyncClient
    everywhere: httpx.AsyncClient
    tokens: Mapping[str, str]
    #: Where each outbox stood before anything happened.
    began: Mapping[EventFamily, bytes]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = ManualClock()
    async with await Engine.open("memory://", clock=clock) as engine:
        began = {each: (await engine.read_events(each)).cursor for each in EventFamily}
        # One after the other, so that what belongs to the tenants lies between each other's.
        planted = [
            await Planter(engine, f"{mark}{number}", f"{mark}-namespace").plant()
            for number in (1, 2)
            for mark in ("own-a", "canary-b")
        ]
        mine, theirs = planted[:2]
        await entangle(engine, mine, theirs)
        theirs.executions |= {f"{role}-2": each for role, each in planted[3].executions.items()}
        clock.advance(1_000)
        tokens = {}
        for name, namespaces in (("limited", [mine.namespace]), ("everywhere", None)):
            made = await engine.create_credential(name=name, scopes=list(Scope), namespaces=namespaces)
            tokens[name] = made.token.reveal()
        server = create_app(engine, ServerConfig(require_credential=True))
        async with client_of(server, tokens["limited"]) as limited, client_of(server, tokens["everywhere"]) as all_of:
            yield World(engine, mine, theirs, unknown(theirs), limited, all_of, tokens, began)


class Asked(NamedTuple):
    """One request, and the values in it that the caller may well be told again."""

    path: str
    params: dict[str, str]
    body: Any
    sent: tuple[str, ...]


def told(asked: Asked, response: httpx.Response) -> str:
    """The answer without what was sent: status, body, and all headers but the one that numbers the request."""
    headers = sorted((name, value) for name, value in response.headers.items() if name != "x-request-id")
    text = f"{response.status_code} {headers} {response.text}"
    for value in sorted(asked.sent, key=len, reverse=True):
        text = re.sub(f"{re.escape(json.dumps(value)[1:-1])}|{re.escape(value)}", "?", text)
    return re.sub(r"\('content-length', '\d+'\)", "", text)


async def answer_to(client: httpx.AsyncClient, asked: Asked) -> str:
    if asked.body is None:
        response = await client.get(asked.path, params=asked.params)
    else:
        response = await client.post(asked.path, json=asked.body)
    return told(asked, response)


def assert_clean(text: str, theirs: Planted) -> None:
    for mark in theirs.marks():
        found = text.find(mark)
        assert found < 0, text[max(0, found - 200) : found + 200]
    for identity in theirs.executions.values():
        assert identity not in text, identity


def mixed(tenant: Planted) -> Planted:
    """The tenant with the flow that has members of both."""
    return msgspec.structs.replace(tenant, names={**tenant.names, "flow_id": tenant.names["mixed"]})


# -- what is asked -----------------------------------------------------------------------------------------------------


def value_of(name: str, tenant: Planted, role: str) -> str | None:
    """What a tenant has under this name."""
    if name in FILTERS:
        return tenant.text(FILTERS[name])
    if name == "tag":
        return f"who.tag={tenant.text('tag')}"
    if name in NAMED:
        return tenant.executions[role if name == "execution_id" else NAMED[name]]
    return tenant.names.get(name)


def path_of(operation: Route, tenant: Planted, role: str) -> tuple[str, list[str]]:
    """The address of one of a tenant's things, and what is named in it."""
    owned = {"flow": tenant.names["flow_id"], "budget": tenant.names["budget_id"]}
    values = {"id": owned.get(operation.owner or "", tenant.executions[role]), "idx": "0", **tenant.names}
    values |= {"execution_id": tenant.executions[role], "kind": tenant.text("kind")}
    named = re.findall(r"{(\w+)}", operation.path)
    path = operation.path
    for each in named:
        path = path.replace(f"{{{each}}}", quote(values.get(each, "nothing"), safe=""))
    return path, [values[each] for each in named if each in values and each != "idx"]


def http_of(operation: Route, tenant: Planted, own: Planted) -> Iterator[Asked]:
    """Calls of an operation that name what a tenant has: one thing at a time, the rest is the caller's own."""
    fields = [] if operation.query is None else [each.encode_name for each in msgspec.structs.fields(operation.query)]
    required = {"partition": "0"} if "partition" in fields else {}
    for role in own.executions:
        path, sent = path_of(operation, tenant, role)
        params = dict(required)
        if "upstream" in fields:
            params["upstream"] = own.executions["member"]
        elif "namespace" in fields and re.search(r"{(schedule_id|kind)}", operation.path):
            params["namespace"] = own.namespace
        yield Asked(path, params, None, tuple(sent))
        if "{id}" not in operation.path or operation.owner is not Subject.EXECUTION:
            break
    path, _ = path_of(operation, own, "waiting")
    for field in fields:
        value = value_of(field, tenant, "waiting")
        if value is not None:
            yield Asked(
                path, {**required, field: value}, None, tuple(filter(None, (value, *value.partition("=")[::2])))
            )


#: Arguments that have to be there and name nothing.
PLAIN: dict[str, Any] = {
    "fields": ["lane_id"], "amounts": {}, "wait_ms": 1, "at_most_ms": 1, "frames": [], "frame": {"bytes": ""},
    "spec": {"Every": {"every_ms": 60_000, "anchor_ms": 0}}, "lanes": ["shared"], "partition": 0, "delay_until": 1,
    "new_priority": 1, "state": "paused", "args": {"waitpoints": [], "resume_condition": {"type": "OperatorOnly"}},
    "tags": {}, "reasons": ["waiting_for_approval"], "family": "completion", "attempt_index": 0,
}  # fmt: skip


def remote_of(name: str, tenant: Planted, own: Planted) -> Iterator[Asked]:
    """The same for an operation that is called from remote."""
    fields = [each for each in msgspec.structs.fields(body_of(name).kind) if each.name != "handle"]
    for role in own.executions:
        sent: list[str] = []
        basis: dict[str, Any] = {}
        for each in fields:
            if each.name == "execution_ids":
                basis[each.name] = [tenant.executions[role]]
                sent.append(tenant.executions[role])
            elif each.name in ("executions", "execution"):
                one = {"namespace": tenant.namespace}
                basis[each.name] = [one] if each.name == "executions" else one
                sent.append(tenant.namespace)
            elif each.required or each.name == "namespace":
                value = value_of(each.name, tenant, role)
                basis[each.name] = PLAIN.get(each.name, "x") if value is None else value
                sent += [] if value is None else [value]
        yield _call(name, basis, sent)
        if not {"execution_id", "execution_ids"} & basis.keys():
            break
    own_basis = {
        each.name: PLAIN.get(each.name) or value_of(each.name, own, "waiting") or "x"
        for each in fields
        if each.required and each.name not in ("executions", "execution", "execution_ids")
    }
    for each in fields:
        named = tenant.namespace if each.name == "namespaces" else value_of(each.name, tenant, "waiting")
        if named is None or each.name in ("executions", "execution"):
            continue
        value: Any = [named] if each.name == "namespaces" else named
        if each.name == "tag":
            named = tenant.text("tag")
            value = ["who.tag", named]
        yield _call(name, {**own_basis, each.name: value}, [named])


def _call(name: str, arguments: Any, sent: list[str]) -> Asked:
    return Asked("/v1/remote/calls", {}, {"calls": [{"op": name, "arguments": arguments}]}, tuple(sent))


# -- the tests ---------------------------------------------------------------------------------------------------------

REMOTE_READS = [name for name, each in REMOTE.items() if Scope.READ in each.scopes]


@pytest.mark.parametrize("name", READS)
async def test_no_read_over_http_tells_of_others(world: World, name: str) -> None:
    operation = READS[name]
    for tenant in (world.mine, mixed(world.mine)):
        for asked in http_of(operation, tenant, world.mine):
            assert_clean(await answer_to(world.limited, asked), world.theirs)
    foreign, absent = (http_of(operation, each, world.mine) for each in (world.theirs, world.nobody))
    for theirs, nobodys in zip(foreign, absent, strict=True):
        answer = await answer_to(world.limited, theirs)
        assert_clean(answer, world.theirs)
        assert answer == await answer_to(world.limited, nobodys), theirs


@pytest.mark.parametrize("name", REMOTE)
async def test_no_call_from_remote_tells_of_others(world: World, name: str) -> None:
    if name in REMOTE_READS:
        for tenant in (world.mine, mixed(world.mine)):
            for asked in remote_of(name, tenant, world.mine):
                assert_clean(await answer_to(world.limited, asked), world.theirs)
    if REMOTE[name].subject is Subject.HANDLE:
        return
    foreign, absent = (remote_of(name, each, world.mine) for each in (world.theirs, world.nobody))
    for theirs, nobodys in zip(foreign, absent, strict=True):
        answer = await answer_to(world.limited, theirs)
        assert_clean(answer, world.theirs)
        assert answer == await answer_to(world.limited, nobodys), theirs


async def test_every_mark_can_be_found_by_those_who_may(world: World) -> None:
    found = ""
    for tenant in (world.theirs, mixed(world.theirs)):
        for operation in READS.values():
            for asked in http_of(operation, tenant, tenant):
                found += await answer_to(world.everywhere, asked._replace(sent=()))
        for name in REMOTE_READS:
            for asked in remote_of(name, tenant, tenant):
                found += await answer_to(world.everywhere, asked._replace(sent=()))
    hidden = set()
    for field in world.theirs.fields - UNREAD:
        text = world.theirs.text(field)
        encoded = base64.b64encode(text.encode()).decode().rstrip("=")[:-1]
        if text not in found and encoded not in found:
            hidden.add(field)
    assert not hidden


class Listing(NamedTuple):
    """A read that comes in pages."""

    path: str
    items: str
    cursor: str
    following: str


LISTINGS = {
    "executions": Listing("/v1/search/executions", "executions", "cursor", "next_cursor"),
    "flows": Listing("/v1/search/flows", "flows", "cursor", "next_cursor"),
    "workers": Listing("/v1/search/workers", "entries", "cursor", "cursor"),
    "schedules": Listing("/v1/search/schedules", "schedules", "cursor", "next_cursor"),
    "lanes": Listing("/v1/lanes", "lanes", "cursor", "next_cursor"),
    "asks": Listing("/v1/asks", "asks", "cursor", "next_cursor"),
    "members": Listing("/v1/flows/{mixed}/members", "executions", "cursor", "next_cursor"),
    "workers of one": Listing("/v1/workers?namespace={namespace}", "entries", "after", "cursor"),
    "schedules of one": Listing("/v1/schedules?namespace={namespace}", "schedules", "cursor", "next_cursor"),
}


async def page(
    client: httpx.AsyncClient, listing: Listing, tenant: Planted, cursor: str | None, limit: int
) -> httpx.Response:
    path, _, query = listing.path.format(**tenant.names).partition("?")
    params = dict([query.split("=")] if query else [], limit=str(limit))
    return await client.get(path, params=params if cursor is None else {**params, listing.cursor: cursor})


async def walked(client: httpx.AsyncClient, listing: Listing, tenant: Planted) -> tuple[list[Any], list[str]]:
    """Everything, one by one, and the cursors in between."""
    found, cursors = [], []
    cursor = None
    while True:
        answer = (await page(client, listing, tenant, cursor, 1)).json()
        found += answer[listing.items]
        cursor = answer[listing.following]
        if cursor is None:
            return found, cursors
        cursors.append(cursor)


@pytest.mark.parametrize("name", LISTINGS)
async def test_cursors_neither_tell_nor_skip(world: World, name: str) -> None:
    listing, chance = LISTINGS[name], random.Random(name)
    whole = (await page(world.limited, listing, world.mine, None, 100)).json()[listing.items]
    own, cursors = await walked(world.limited, listing, world.mine)
    assert own == whole
    assert len(own) >= 2, "otherwise nothing of theirs could lie between"
    assert_clean(json.dumps([own, cursors]), world.theirs)
    _, foreign = await walked(world.everywhere, listing, world.theirs)
    assert foreign
    forged = [chance.choice((*cursors, *foreign)) for _ in range(60)]
    for cursor in (*foreign, *(changed(each, chance) for each in forged), "", "x", "[]", "\x00", "0.0.0"):
        response = await page(world.limited, listing, world.mine, cursor, 100)
        assert_clean(told(Asked("", {}, None, (cursor,) if cursor else ()), response), world.theirs)
        if response.status_code != 400:
            behind = response.json()[listing.items]
            assert behind == whole[len(whole) - len(behind) :], "a place is a place, whoever was shown it"


def changed(cursor: str, chance: random.Random) -> str:
    """A cursor with one character lost, doubled or turned into another."""
    at = chance.randrange(len(cursor))
    return cursor[:at] + chance.choice(("", cursor[at] * 2, chance.choice('0129af."[],-{}~'))) + cursor[at + 1 :]


async def test_streams_of_others_cannot_be_followed(world: World) -> None:
    for follow in [each for each in ROUTES if each.name in ("follow_stream", "follow_run")]:
        for theirs, nobodys in zip(
            *(http_of(follow, each, world.mine) for each in (world.theirs, world.nobody)), strict=True
        ):
            answer = await answer_to(world.limited, theirs)
            assert answer.startswith("404 ")
            assert answer == await answer_to(world.limited, nobodys)
    assert (await world.limited.get("/v1/changes")).status_code == 403


@pytest.mark.parametrize("family", EventFamily)
async def test_events_are_of_ones_own_namespace(world: World, family: EventFamily) -> None:
    own, foreign = [
        await world.engine.read_events(family, world.began[family], ScannerFilter(tenant.namespace), 1_000)
        for tenant in (world.mine, world.theirs)
    ]
    assert own.events
    assert foreign.events, "otherwise there is nothing to leave out"
    last = cursor_to_text(own.events[-1].cursor)
    path = f"/v1/events/{family.value}?namespace={world.mine.namespace}"
    async with listening(world.engine, ServerConfig(port=0, require_credential=True)) as client:
        client.headers["authorization"] = f"Bearer {world.tokens['limited']}"
        # The place that the other tenant was shown last serves as well as one's own.
        for start in (world.began[family], foreign.events[0].cursor):
            seen = []
            async for each in events(client, path, cursor_to_text(start)):
                seen.append(each)
                if each.identity == last:
                    break
            assert_clean(str(seen), world.theirs)
            assert len(seen) - 1 == sum(each.cursor > start for each in own.events), "none is left out"
        for namespace in (world.theirs.namespace, world.nobody.namespace):
            refused = await client.get("/v1/events/completion", params={"namespace": namespace})
            assert refused.json() == {
                "error": f"this credential has no access to namespace {namespace!r}",
                "kind": "forbidden",
                "retryable": False,
            }
