"""Budgets that share an id and belong to different owners: charts, matters and questions tell of the right one."""

from __future__ import annotations

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.model.operations.access import Scope
from flowfabric.model.operations.executions import ClaimPolicy
from flowfabric.model.ownership import owned_name
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.telemetry.samples import Sampler
from tests.server.conftest import client_of
from tests.server.making import at

ONE = "11111111-1111-4111-8111-111111111111"
#: What each owner has spent of 100.
SPENT = {None: 100, "shop": 91, "bank": 95, "calm": 10}
SENTENCES = {
    None: "budget team is used up: 100% of its tokens",
    "bank": "budget team of bank is nearly used up: 95% of its tokens",
    "shop": "budget team of shop is nearly used up: 91% of its tokens",
}


@pytest.fixture
async def owners(engine: Engine) -> Engine:
    for namespace, spent in SPENT.items():
        await engine.create_budget(
            budget_id=ONE,
            namespace=namespace,
            scope_type="named",
            scope_id="team",
            dimensions=["tokens"],
            hard_limits=[100],
            soft_limits=[0],
            on_hard_limit="ask",
        )
        await engine.report_usage_admin(budget_id=ONE, namespace=namespace, dimensions=["tokens"], deltas=[spent])
    return engine


async def token_for(engine: Engine, *namespaces: str) -> str:
    made = await engine.create_credential(name="limited", scopes=[Scope.READ], namespaces=namespaces)
    return made.token.reveal()


def told(response: httpx.Response) -> dict[str | None, str]:
    matters = [each for each in response.json()["matters"] if each["kind"] == "budget"]
    assert {each["subject"] for each in matters} <= {ONE}
    return {each["namespace"]: each["sentence"] for each in matters}


async def test_every_owner_has_a_line_in_the_charts(owners: Engine, client: httpx.AsyncClient) -> None:
    found = (await client.get("/v1/overview", params={"window_ms": 60_000})).json()
    shown = {each["namespace"]: found["series"]["budgets"][each["line"]][-1] for each in found["budgets"]}
    assert shown == {owner: spent / 100 for owner, spent in SPENT.items()}
    assert {each["budget_id"] for each in found["budgets"]} == {ONE}


async def test_samples_keep_them_apart_and_go_on_with_those_of_the_operator(owners: Engine) -> None:
    sampler = Sampler(owners)
    await sampler.latest()
    [kept] = (await owners.list_samples()).samples
    names = {owner: ONE if owner is None else owned_name(ONE, owner) for owner in SPENT}
    assert kept.budgets == {names[owner]: spent / 100 for owner, spent in SPENT.items()}


async def test_matters_name_the_owner(owners: Engine, client: httpx.AsyncClient) -> None:
    assert told(await client.get("/v1/attention")) == SENTENCES
    for owner in ("shop", "calm", "nobody"):
        found = told(await client.get("/v1/attention", params={"namespace": owner}))
        assert found == {each: text for each, text in SENTENCES.items() if each == owner}


@pytest.mark.parametrize("namespaces", [("shop",), ("shop", "calm"), ("shop", "bank"), ("nobody",)])
async def test_limited_callers_are_told_of_their_own(owners: Engine, namespaces: tuple[str, ...]) -> None:
    guarded = create_app(owners, ServerConfig(require_credential=True))
    async with client_of(guarded, await token_for(owners, *namespaces)) as client:
        expected = {each: text for each, text in SENTENCES.items() if each in namespaces}
        assert told(await client.get("/v1/attention")) == expected
        assert told(await client.get("/v1/attention", params={"namespace": "bank"})) == {
            each: text for each, text in expected.items() if each == "bank"
        }


@pytest.mark.parametrize("by_limited", [False, True])
async def test_questions_tell_of_the_budget_that_is_meant(owners: Engine, by_limited: bool) -> None:
    """The operator's, if an unlimited caller has named it; the namespace's own for a limited one. Nobody who is limited
    is told what the operator's budget holds, however many namespaces they have."""
    creator = owners.limited_to({"shop"}) if by_limited else owners
    run = (await creator.create_execution(namespace="shop", policy={"budget_ids": [ONE]})).execution_id
    handle = await owners.claim("default", policy=ClaimPolicy("w", "w-1", 30_000))
    assert handle is not None
    await owners.reserve_budget(handle, ONE, {"tokens": 50})
    spent = SPENT["shop" if by_limited else None]
    shown = {"team": {"tokens": {"spent": float(spent), "allowed": 100.0}}}
    guarded = create_app(owners, ServerConfig(require_credential=True))
    everybody = (await owners.create_credential(name="all", scopes=[Scope.READ])).token.reveal()
    for token, sees in (
        (everybody, True),
        (await token_for(owners, "shop"), by_limited),
        (await token_for(owners, "shop", "bank"), by_limited),
    ):
        async with client_of(guarded, token) as client:
            [ask] = (await client.get("/v1/asks")).json()["asks"]
            assert (ask["execution_id"], ask["kind"], ask["open"]) == (run, "budget", True)
            assert ask["show"] == (shown if sees else {})
            assert ask["question"] == f"may the run spend beyond {'team' if sees else 'its budget'}?"
            history = (await client.get(at(run, "history"))).json()
            owner = "shop" if by_limited else None
            assert history["budgets"] == ([{"budget_id": ONE, "namespace": owner, "name": "team"}] if sees else [])


async def test_budgets_of_one_name_are_all_shown(owners: Engine, client: httpx.AsyncClient) -> None:
    two = "22222222-2222-4222-8222-222222222222"
    await owners.create_budget(
        budget_id=two,
        namespace="shop",
        scope_id="team",
        dimensions=["tokens"],
        hard_limits=[7],
        soft_limits=[0],
        on_hard_limit="ask",
    )
    await owners.create_execution(namespace="shop", policy={"budget_ids": [ONE, two]})
    handle = await owners.claim("default", policy=ClaimPolicy("w", "w-1", 30_000))
    assert handle is not None
    await owners.reserve_budget(handle, two, {"tokens": 50})
    [ask] = (await client.get("/v1/asks")).json()["asks"]
    assert list(ask["show"]) == ["team", f"team ({two} of shop)"]
