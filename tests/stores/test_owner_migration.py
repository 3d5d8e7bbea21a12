"""A filled database of an earlier release gets owners: what was made for a namespace belongs to it from then on."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App, NotFound, Reserved
from flowfabric.engine import Engine
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import RunFailed
from flowfabric.sdk.options import Budget, Limit
from flowfabric.sdk.runs.limits import budget_id, quota_id
from flowfabric.stores import migrate
from tests.contract.probe import policy

OWN = "11111111-1111-4111-8111-111111111111"
SHARED = "22222222-1111-4111-8111-111111111111"
#: The last migration before owners.
BEFORE = 12


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ff.db"
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


async def run(store: Any, statement: str) -> None:
    if store.label == "sqlite":
        store.raw().execute(statement)
        return
    async with store.raw() as connection:
        await connection.execute(statement)


@contextlib.asynccontextmanager
async def before_owners(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A store with the tables of the release before."""
    dialect = "sqlite" if url.startswith("sqlite") else "postgres"
    known = migrate.migrations(dialect)
    earlier = tuple(each for each in known if each.version <= BEFORE)
    assert 0 < len(earlier) < len(known)
    with monkeypatch.context() as patching:
        patching.setattr(migrate, "migrations", lambda wanted: earlier)
        async with await Engine.open(url, single_node=True) as engine:
            yield engine.store


async def add_budget(
    store: Any, budget: str, scope: str, subject: str, unit: str = "usd", limit: int = 9, above: str = ""
) -> None:
    await run(
        store,
        "INSERT INTO ff_budget_policy (partition_key, budget_id, policy_json, created_at_ms, updated_at_ms, "
        "scope_type, scope_id, enforcement_mode, ancestor_ids) VALUES "
        f"""(0, '{budget}', '{{"hard_limits": {{"{unit}": {limit}}}}}', 1, 1, """
        f"'{scope}', '{subject}', 'strict', '{above}')",
    )


async def test_a_filled_database_gets_owners(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with before_owners(url, monkeypatch) as store:
        await add_budget(store, OWN, "namespace", "a")
        await add_budget(store, SHARED, "team", "t")
    async with await Engine.open(url, single_node=True) as engine:
        shown = {each.budget_id: each.namespace for each in (await engine.list_budgets()).budgets}
        assert shown == {OWN: "a", SHARED: None}
        a, b = engine.limited_to({"a"}), engine.limited_to({"b"})
        assert (await a.get_budget_status(OWN)).hard_limits == {"usd": 9}
        for caller, budget in ((b, OWN), (a, SHARED), (b, SHARED)):
            with pytest.raises(NotFound):
                await caller.get_budget_status(budget)
        for caller, namespace, budget, charged in (
            (a, "a", OWN, True),
            (engine, "a", OWN, True),
            (engine, "b", OWN, False),
            (engine, "b", SHARED, True),
            (a, "a", SHARED, False),
        ):
            await caller.create_execution(namespace=namespace, lane_id="work", policy={"budget_ids": [budget]})
            handle = await engine.claim("work", (), policy())
            assert handle is not None
            if charged:
                assert isinstance(await engine.reserve_budget(handle, budget, {"usd": 1}), Reserved)
            else:
                with pytest.raises(NotFound):
                    await caller.reserve_budget(handle, budget, {"usd": 1})


# -- apps --------------------------------------------------------------------------------------------------------------

#: The apps of two namespaces have a budget and a limit of the same name each.
APPS = ("a", "b")


async def add_run(store: Any, namespace: str, budgets: str = "", quota: str = "") -> None:
    """An execution that has ended and names these."""
    identity = uuid.uuid4()
    shown = f"X'{identity.hex}'" if store.label == "sqlite" else f"'{identity}'"
    named = ", ".join("NULL" if not each else f"'{each}'" for each in (budgets, quota))
    await run(
        store,
        "INSERT INTO ff_exec_core (partition_key, execution_id, lane_id, lifecycle_phase, ownership_state, "
        "eligibility_state, public_state, attempt_state, created_at_ms, terminal_at_ms, namespace, budget_ids, "
        f"quota_policy_id) VALUES (0, {shown}, 'work', 'terminal', 'unowned', 'not_applicable', 'completed', "
        f"'attempt_terminal', 1, 2, '{namespace}', {named})",
    )


async def add_app(store: Any, namespace: str) -> None:
    """What an app has left behind: 7 of 10 tokens are spent, below a budget with 7 of 100."""
    own, above = budget_id(namespace, "llm"), budget_id(namespace, "house")
    for budget, name, limit, over in ((above, "house", 100, ""), (own, "llm", 10, above)):
        await add_budget(store, budget, "named", name, "tokens", limit, over)
        await run(
            store,
            "INSERT INTO ff_budget_usage (partition_key, budget_id, dimensions_key, current_value, updated_at_ms) "
            f"VALUES (0, '{budget}', 'tokens', 7, 1)",
        )
    quota = quota_id(namespace, "think", None, None)
    await add_quota(store, quota)
    await add_run(store, namespace, f"{OWN},{own}", quota)


async def add_quota(store: Any, quota: str) -> None:
    await run(
        store,
        "INSERT INTO ff_quota_policy (partition_key, quota_policy_id, requests_per_window_seconds, "
        "max_requests_per_window, active_concurrency_cap, created_at_ms, updated_at_ms) "
        f"VALUES (0, '{quota}', 60, 0, 1, 1, 1)",
    )


async def test_apps_keep_what_they_have_spent(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with before_owners(url, monkeypatch) as store:
        for namespace in APPS:
            await add_app(store, namespace)
    for namespace in APPS:
        app = App(url, namespace=namespace)
        budget = Budget("llm", tokens=10, under=Budget("house", tokens=100))

        @app.task(limits=[Limit(1)], retry=0)
        async def think(tokens: int, ctx: Ctx = injected) -> int:
            async with ctx.spend(tokens=tokens):
                return tokens

        async with app, app.worker():
            assert await (await think.using(budget=budget).start(2)).result(seconds(20)) == 2
            with pytest.raises(RunFailed, match="no room for 2 tokens"):
                await (await think.using(budget=budget).start(2)).result(seconds(20))
            budgets = (await app.engine.list_budgets(namespaces=[namespace])).budgets
            assert {each.scope_id: each.usage for each in budgets} == {"llm": {"tokens": 9}, "house": {"tokens": 9}}
            assert len((await app.engine.list_quota_policies(namespaces=[namespace])).policies) == 1


async def test_nothing_else_is_given_away(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What several namespaces use, what nobody is known to use, and what no app has made stays the operator's."""
    several, unused, odd = budget_id("x", "several"), budget_id("x", "unused"), budget_id("x", "odd")
    quotas = {name: str(uuid.uuid5(uuid.NAMESPACE_URL, name)) for name in ("several", "unused")}
    async with before_owners(url, monkeypatch) as store:
        for name, each in (("several", several), ("unused", unused), ("odd", odd)):
            await add_budget(store, each, "named", name)
        await add_budget(store, SHARED, "named", "of an operator")
        for quota in (*quotas.values(), OWN):
            await add_quota(store, quota)
        for namespace in APPS:
            await add_run(store, namespace, several, quotas["several"])
        await add_run(store, "a", SHARED, OWN)
        await add_run(store, "a", f'"{odd}')
    async with await Engine.open(url, single_node=True) as engine:
        assert {each.namespace for each in (await engine.list_budgets()).budgets} == {None}
        assert {each.namespace for each in (await engine.list_quota_policies()).policies} == {None}
