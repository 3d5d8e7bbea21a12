"""Tenants cannot touch each other: whatever a call names of somebody else's is as good as unknown.

Every field that names something, of every route and every remote call, is found by its type. In a call that is
otherwise valid it gets one's own thing, one of another tenant's and one that nobody has. The last two answers must be
the same, byte by byte but for the name itself, and nothing of the other tenant's may change.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flowfabric import App, ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.engine.operation_table import REMOTE
from flowfabric.model.ids import ExecutionId
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import RunFailed
from flowfabric.sdk.options import Budget, Limit
from flowfabric.sdk.runs.limits import budget_id, quota_id
from flowfabric.server import ServerConfig
from tests.contract.conftest import STORES
from tests.sdk.serving import serving
from tests.server.attacks.world.asking_tenants import IN_USE, PLACES, SAID, asked, succeeded, value_of
from tests.server.attacks.world.naming import CHOSEN, NAMELESS, NAMES, NEW, places, sounds_naming
from tests.server.attacks.world.tenants import (
    WHOSE,
    World,
    assert_alive,
    assert_silent,
    assert_untouched,
    belongings,
    opened,
    plainly,
    unknown,
    work_on,
)
from tests.server.conftest import client_of

FOUND = {str(each): each for each in places()}
NAMING = {text: each for text, each in FOUND.items() if each.role() is not None}


def test_every_field_that_names_something_is_known() -> None:
    """A new field has to be put into one table or the other."""
    unknown = [text for text, each in FOUND.items() if sounds_naming(each) and not each.found_in({*NAMES, *NAMELESS})]
    assert unknown == [], "say in naming.py what they name, or that they name nothing of anybody"


def test_the_tables_of_fields_hold_nothing_else() -> None:
    used = {each.found_in({*NAMES, *NAMELESS}) for each in FOUND.values()}
    assert {*NAMES, *NAMELESS} - used == set()
    assert set(CHOSEN) - {each.found_in(CHOSEN) for each in FOUND.values()} == set()


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        (text, whose)
        for text, each in NAMING.items()
        for whose in (WHOSE if each.role() in ("budget_id", "parent_budget_id", "quota_policy_id") else WHOSE[:1])
    ],
)
async def test_a_foreign_name_is_as_good_as_an_unknown_one(text: str, whose: str) -> None:
    place = NAMING[text]
    role = place.role() or ""
    said = role in SAID or place.found_in(SAID) is not None
    async with opened(whose=whose) as world, opened(whose=whose) as another:
        # What a call leaves behind must not show in the next; but places lie where ids of one store put them.
        worlds = (world, world if role in PLACES else another)
        answers = []
        for at, foreign in zip(worlds, (True, False), strict=True):
            theirs = await value_of(at, place, at.b)
            value = theirs if foreign else unknown(at, role, theirs)
            before = await belongings(at)
            response = await asked(at.client, place, at.a, value)
            answers.append(plainly(response, value))
            assert_silent(at, answers[-1])
            if role not in PLACES:
                await work_on(at, value)
            await assert_untouched(at, before, value if said else "")
        for at in {id(each): each for each in worlds}.values():
            await assert_alive(at)
    if place.found_in(CHOSEN) is not None:
        assert IN_USE.search(answers[0]), answers[0]
        assert succeeded(response), response.text
    else:
        assert answers[0] == answers[1]


@pytest.mark.parametrize("text", [text for text, each in NAMING.items() if each.found_in(NEW) is None])
async def test_what_is_ones_own_may_be_named(text: str) -> None:
    """Otherwise the calls above would be refused for another reason."""
    place = NAMING[text]
    async with opened() as world:
        response = await asked(world.client, place, world.a, await value_of(world, place, world.a))
        assert succeeded(response), response.text


async def test_what_is_about_all_namespaces_is_closed() -> None:
    async with opened() as world:
        for name in (each.name for each in REMOTE.values() if each.everywhere):
            answer = await remote(world.client, name)
            assert (answer["error"]["status"], answer["error"]["kind"]) == (403, "forbidden"), name


@pytest.mark.parametrize("why", ["scope", "namespace"])
async def test_whoever_may_not_claim_has_done_nothing_either(why: str) -> None:
    """A claim along with calls is looked at before any of them is made."""
    async with opened() as world:
        scopes = ["submit", "read"] if why == "scope" else ["submit", "worker"]
        made = await world.engine.create_credential(name="some", scopes=scopes, namespaces=[world.a.namespace])
        create = {"op": "create_execution", "arguments": {"namespace": world.a.namespace, "lane_id": "attack"}}
        claim = {"worker_id": "w", "worker_instance_id": "wi", "lanes": {"attack": 1}}
        if why == "namespace":
            claim["namespaces"] = [world.b.namespace]
        async with client_of(world.server, made.token.reveal()) as client:
            refused = await client.post("/v1/remote/calls", json={"calls": [create], "claim": claim})
            assert (refused.status_code, refused.json()["kind"]) == (403, "forbidden")
            assert await world.engine.claim("attack", policy=ClaimPolicy("w", "w-1")) is None
            done = await client.post("/v1/remote/calls", json={"calls": [create]})
            assert "ok" in done.json()["answers"][0]
        assert await world.engine.claim("attack", policy=ClaimPolicy("w", "w-1")) is not None


# -- attacks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](request, tmp_path)


@pytest.fixture(params=["own"])
async def world(store: str, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with opened(store, request.param) as made:
        yield made


#: For attacks that name a budget or quota in passing, which may be the operator's, too.
of_all_owners = pytest.mark.parametrize("world", WHOSE, indirect=True)


TASK = "think"
on_both_doors = pytest.mark.parametrize("door", ["http", "remote"])


async def remote(client: httpx.AsyncClient, op: str, **arguments: Any) -> dict[str, Any]:
    """The answer to a remote call."""
    response = await client.post("/v1/remote/calls", json={"calls": [{"op": op, "arguments": arguments}]})
    answer: dict[str, Any] = response.json()["answers"][0]
    return answer


async def start(world: World, door: str, **policy: Any) -> None:
    """Tenant a starts something under a policy."""
    given = {"namespace": world.a.namespace, "lane_id": "attack", "execution_kind": "op", "policy": policy}
    if door == "remote":
        assert "ok" in await remote(world.client, "create_execution", **given)
    else:
        body = {**given, "input_payload": [], "priority": 0, "creator_identity": "a"}
        assert (await world.client.post("/v1/executions", json=body)).status_code == 201


async def start_flow(world: World, door: str, budget_id: str) -> None:
    """Tenant a starts a flow whose members spend from a budget."""
    given = {"namespace": world.a.namespace, "flow_kind": "dag"}
    if door == "http":
        nodes = {"one": {"execution_kind": "op", "lane_id": "attack"}}
        body = {**given, "nodes": nodes, "budget_ids": [budget_id]}
        assert (await world.client.post("/v1/flows/submit", json=body)).status_code == 201
        return
    made = await remote(world.client, "create_flow", **given, budget_ids=[budget_id])
    flow = made["ok"]["CreateFlowResult.Created"]["flow_id"]
    member = str(ExecutionId.for_flow(flow, world.engine.partitions))
    await remote(world.client, "create_execution", execution_id=member, namespace=world.a.namespace, lane_id="attack")
    added = await world.client.post(f"/v1/flows/{flow}/members", json={"execution_id": member})
    assert added.status_code == 201, added.text


async def claim(client: httpx.AsyncClient, lane: str) -> str:
    """The handle of something that a tenant can claim."""
    body = {"worker_id": "w", "worker_instance_id": "wi", "lanes": {lane: 1}}
    [work] = (await client.post("/v1/remote/claim", json=body)).json()["work"]
    handle: str = work["handle"]
    return handle


def is_unknown(answer: dict[str, Any]) -> bool:
    return bool(answer.get("error", {}).get("code") == "budget_not_found")


@of_all_owners
@on_both_doors
@pytest.mark.parametrize("way", ["execution", "flow"])
async def test_nobody_drains_a_foreign_budget(world: World, door: str, way: str) -> None:
    budget = world.b.things["budget_id"]
    before = await belongings(world)
    if way == "flow":
        await start_flow(world, door, budget)
    else:
        await start(world, door, budget_ids=[budget])
    handle = await claim(world.client, "attack")
    for amount in (1, 9, 1_000):
        assert is_unknown(
            await remote(world.client, "reserve_budget", handle=handle, budget_id=budget, amounts={"usd": amount})
        )
        charged = await world.client.post(f"/v1/budgets/{budget}/usage", json={"dimensions": {"usd": amount}})
        assert charged.status_code == 404
    assert "ok" in await remote(world.client, "complete", handle=handle)
    await assert_untouched(world, before, budget)
    await assert_alive(world)


@on_both_doors
async def test_a_used_up_foreign_budget_does_not_show(world: World, door: str) -> None:
    """Work that names it is claimed at once, as if it named a budget that nobody has."""
    b = world.b
    await world.engine.report_usage_admin(
        budget_id=b.things["budget_id"], namespace=b.namespace, dimensions=["usd"], deltas=[8]
    )
    await start(world, door, budget_ids=[b.things["budget_id"]])
    await claim(world.client, "attack")


@of_all_owners
@on_both_doors
async def test_nobody_takes_a_foreign_slot(world: World, door: str) -> None:
    quota = world.b.things["quota_policy_id"]
    before = await belongings(world)
    for _ in range(2):
        await start(world, door, quota_policy_id=quota)
        await claim(world.client, "attack")
    await assert_untouched(world, before, quota)
    await assert_alive(world)
    # The other way round: b holds its only slot, and a does not notice.
    await start(world, door, quota_policy_id=quota)
    await claim(world.client, "attack")


@of_all_owners
@on_both_doors
async def test_nobody_stands_under_a_foreign_budget(world: World, door: str) -> None:
    above, own = world.b.things["budget_id"], str(uuid.uuid4())
    before = await belongings(world)
    given = {
        "budget_id": own, "parent_budget_id": above, "scope_type": "", "scope_id": "", "enforcement_mode": "strict",
        "on_hard_limit": "fail", "on_soft_limit": "warn", "reset_interval_ms": 0, "dimensions": ["usd"],
        "hard_limits": [1_000], "soft_limits": [0],
    }  # fmt: skip
    if door == "remote":
        assert is_unknown(await remote(world.client, "create_budget", **given))
    else:
        refused = await world.client.post("/v1/budgets", json=given)
        assert (refused.status_code, refused.json()) == (404, {"error": "not found: budget"})
    assert (await world.client.get(f"/v1/budgets/{own}")).status_code == 404
    await assert_untouched(world, before, above)
    await assert_alive(world)


@on_both_doors
async def test_a_breach_tells_nothing_of_others(world: World, door: str) -> None:
    """With a budget of one's own under the same id, the numbers are one's own."""
    budget = world.b.things["budget_id"]
    before = await belongings(world)
    made = await remote(
        world.client, "create_budget", budget_id=budget, dimensions=["usd"], hard_limits=[3], soft_limits=[0]
    )
    assert made == {"ok": {"CreateBudgetResult.Created": {"budget_id": budget}}}
    await start(world, door, budget_ids=[budget])
    if door == "remote":
        handle = await claim(world.client, "attack")
        answer = await remote(world.client, "reserve_budget", handle=handle, budget_id=budget, amounts={"usd": 5})
        breach = answer["ok"]["HardBreach"]
    else:
        body = {"dimensions": {"usd": 5}}
        breach = (await world.client.post(f"/v1/budgets/{budget}/usage", json=body)).json()["HardBreach"]
    assert breach == {"dimension": "usd", "current_usage": 0, "hard_limit": 3, "budget_id": budget, "reserved": 0}
    await assert_untouched(world, before, budget)
    await assert_alive(world)


@on_both_doors
async def test_whoever_comes_first_takes_no_ids_of_apps(store: str, door: str) -> None:
    """The ids of an app's budgets and limits can be worked out by anybody; made by a, they are a's own."""
    with serving(store, ServerConfig(port=0, require_credential=True, api_token="token-of-this-test")) as url:
        async with await Engine.open(store, single_node=True) as direct:
            tokens = {
                name: (
                    await direct.create_credential(name=name, scopes=["worker", "submit", "read"], namespaces=[name])
                ).token
                for name in ("a", "c")
            }
        limit = Limit(1)
        async with httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {tokens['a'].reveal()}"}
        ) as client:
            await squat(client, door, budget_id("c", "llm"), quota_id("c", TASK, None, None))
        for name in ("c", "a"):
            await use(App(url, token=tokens[name], namespace=name), limit)


async def squat(client: httpx.AsyncClient, door: str, budget: str, quota: str) -> None:
    """Tenant a makes what c will need, in its own namespace and in c's, as small as can be."""
    gates: list[tuple[str, dict[str, Any]]] = [
        ("budget", {
            "budget_id": budget, "scope_type": "", "scope_id": "", "enforcement_mode": "strict",
            "on_hard_limit": "fail", "on_soft_limit": "warn", "reset_interval_ms": 0, "dimensions": ["tokens"],
            "hard_limits": [1], "soft_limits": [0],
        }),
        ("quota", {
            "quota_policy_id": quota, "window_seconds": 60, "max_requests_per_window": 1, "max_concurrent": 1,
        }),
    ]  # fmt: skip
    for kind, given in gates:
        for namespace, allowed in (("a", True), ("c", False)):
            body = {**given, "namespace": namespace}
            if door == "remote":
                op = "create_budget" if kind == "budget" else "create_quota_policy"
                assert ("ok" in await remote(client, op, **body)) is allowed
            else:
                assert (await client.post(f"/v1/{kind}s", json=body)).status_code == (201 if allowed else 403)


async def use(app: App, limit: Limit) -> None:
    """An app spends from a budget and keeps to a limit, with a credential for its namespace alone."""
    # For a, whose budget has another id, as for c.
    budget = Budget("llm", tokens=10)

    @app.task(limits=[limit], retry=0)
    async def think(tokens: int, ctx: Ctx = injected) -> int:
        async with ctx.spend(tokens=tokens):
            return tokens

    assert think.name == TASK
    async with app, app.worker():
        runs = [await think.using(budget=budget).start(tokens) for tokens in (4, 5)]
        assert [await each.result(seconds(20)) for each in runs] == [4, 5]
        with pytest.raises(RunFailed, match="no room for 2 tokens"):
            await (await think.using(budget=budget).start(2)).result(seconds(20))
        status = await app.engine.get_budget_status(budget_id(app.namespace, "llm"), app.namespace)
        assert (status.usage, status.hard_limits) == ({"tokens": 9}, {"tokens": 10})
