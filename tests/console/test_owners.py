"""Budgets and quotas that share an id and belong to different owners: each is a row, a page and an act of its own."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from flowfabric.engine import Engine
from flowfabric.model.operations.access import Scope
from tests.console.conftest import Pages, apart
from tests.console.support.running import ServerProcess, serving
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
TOKEN = "token-of-this-test"
ONE = "11111111-1111-4111-8111-111111111111"
LOST = "22222222-2222-4222-8222-222222222222"
#: A namespace may be called anything.
ODD = "a/b?c=d&e #%"
#: What each owner has spent of 100.
SPENT = {None: 91, "shop": 92, ODD: 93}


class Owners(NamedTuple):
    """A server whose budgets share one id; runs of the shop that name the operator's, and the shop's own."""

    server: ServerProcess
    by_operator: str
    by_shop: str
    #: Tokens of credentials that are limited to namespaces.
    keeper: str
    both: str


async def _filled(store: str) -> tuple[str, str, str, str]:
    async with await Engine.open(store, single_node=True) as engine:
        for owner, spent in SPENT.items():
            await engine.create_budget(
                budget_id=ONE,
                namespace=owner,
                scope_type="named",
                scope_id="team",
                dimensions=["tokens"],
                hard_limits=[100],
                soft_limits=[0],
            )
            await engine.report_usage_admin(budget_id=ONE, namespace=owner, dimensions=["tokens"], deltas=[spent - 1])
            await engine.create_quota_policy(quota_policy_id=ONE, namespace=owner, max_concurrent=spent)
        runs = []
        for creator in (engine, engine.limited_to({"shop"})):
            made = await creator.create_execution(namespace="shop", policy={"budget_ids": [ONE, LOST]})
            await creator.record_spend(budget_id=ONE, execution_id=made.execution_id, deltas={"tokens": 1})
            runs.append(str(made.execution_id))
        await engine.create_execution(namespace=ODD)
        await engine.report_usage_admin(budget_id=ONE, namespace=ODD, dimensions=["tokens"], deltas=[1])
        scopes = [Scope.READ, Scope.OPERATOR]
        tokens = [
            (await engine.create_credential(name="keeper", scopes=scopes, namespaces=names)).token.reveal()
            for names in (["shop"], ["shop", ODD])
        ]
        return runs[0], runs[1], tokens[0], tokens[1]


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owners]:
    store = f"sqlite:///{tmp_path_factory.mktemp('owners') / 'owners.db'}"
    filled: tuple[str, str, str, str] = apart(_filled(store))
    with serving(store, FF_API_TOKEN=TOKEN) as server:
        yield Owners(server, *filled)


@pytest_asyncio.fixture(loop_scope="session")
async def engine(owners: Owners) -> AsyncIterator[Engine]:
    async with await Engine.open(owners.server.store, single_node=True) as opened:
        yield opened


def budgets(watched: Watched) -> Locator:
    return watched.at("[data-budget]")


async def expect_owners(watched: Watched, rows: str, owners: set[str]) -> None:
    """Wait until the rows belong to just these: the page may still show what was chosen before."""
    named = watched.at(f"{rows} [data-owner]")
    for owner in owners:
        await expect(named.filter(has_text=re.compile(f"^{re.escape(owner)}$"))).to_have_count(1)
    await expect(named).to_have_count(len(owners))


async def choose(watched: Watched, namespace: str) -> None:
    await watched.at("#namespace").select_option(namespace)


async def test_one_id_is_as_many_rows_as_owners(owners: Owners, pages: Pages) -> None:
    watched = await pages.of(owners.server.url, token=TOKEN)
    await watched.go("budgets")
    await expect(budgets(watched)).to_have_count(3)
    await expect(watched.at("[data-quota]")).to_have_count(3)
    for rows in ("[data-budget]", "[data-quota]"):
        await expect_owners(watched, rows, {"operator", "shop", ODD})
    assert not await watched.findings()
    for owner, spent in SPENT.items():
        card = budgets(watched).filter(has=watched.page.get_by_text(owner or "operator", exact=True))
        await expect(card).to_contain_text(f"{spent} of 100")
    for namespace in ("shop", ODD):
        await choose(watched, namespace)
        await expect(budgets(watched)).to_have_count(1)
        await expect(watched.at("[data-quota]")).to_have_count(1)
        for rows in ("[data-budget]", "[data-quota]"):
            await expect_owners(watched, rows, {namespace})
    await choose(watched, "")
    await expect(budgets(watched)).to_have_count(3)
    await watched.at("#budget-q").fill("shop")
    await expect(budgets(watched)).to_have_count(1)


async def test_overview_leads_to_the_right_one(owners: Owners, pages: Pages) -> None:
    watched = await pages.of(owners.server.url, token=TOKEN)
    await watched.go("overview")
    await expect(watched.at("[data-matter=budget]")).to_have_count(3)
    chart = watched.at("figure[aria-label^='Budgets:']")
    for owner, spent in SPENT.items():
        name = "team" if owner is None else f"team of {owner}"
        await expect(chart).to_have_attribute("aria-label", lines(f"{name} {spent} %"))
        await watched.at("[data-matter=budget]").filter(has_text=f"Budget {name} is nearly used up: {spent}%").click()
        await expect(budgets(watched)).to_have_count(1)
        await expect(budgets(watched)).to_contain_text(f"{spent} of 100")
        await expect_owners(watched, "[data-budget]", {owner or "operator"})
        await watched.page.go_back()
    await choose(watched, "shop")
    await expect(watched.at("[data-matter=budget]")).to_have_count(1)
    # Charts are of all namespaces.
    await expect(watched.at("figure.chart")).to_have_count(0)


def lines(text: str) -> re.Pattern[str]:
    """A line of a chart among others, as its label tells it."""
    return re.compile(rf"(: |, ){re.escape(text)}(,|$)")


async def test_runs_lead_to_the_budget_that_they_name(owners: Owners, pages: Pages) -> None:
    watched = await pages.of(owners.server.url, token=TOKEN)
    for run, owner in ((owners.by_operator, None), (owners.by_shop, "shop")):
        await watched.open(run)
        await watched.page.get_by_role("tab", name="Usage").click()
        panel = watched.at("[role=tabpanel]")
        await expect(panel.get_by_text(LOST[:8])).to_be_visible()
        links = panel.get_by_role("link", name="team" + (f" of {owner}" if owner else ""), exact=True)
        await expect(links).to_have_count(2)
        await expect(panel.get_by_role("link")).to_have_count(2)
        for place in range(2):
            await links.nth(place).click()
            await expect(budgets(watched)).to_contain_text(f"{SPENT[owner]} of 100")
            await watched.page.go_back()
            await watched.page.get_by_role("tab", name="Usage").click()


async def test_limited_credentials_see_their_own(owners: Owners, pages: Pages) -> None:
    for token, own in ((owners.keeper, {"shop"}), (owners.both, {"shop", ODD})):
        watched = await pages.of(owners.server.url, token=token)
        await watched.go("budgets")
        await expect(budgets(watched)).to_have_count(len(own))
        for rows in ("[data-budget]", "[data-quota]"):
            await expect_owners(watched, rows, own)
        await watched.go("overview")
        await expect(watched.at("[data-matter=budget]")).to_have_count(len(own))
        await watched.open(owners.by_operator)
        await watched.page.get_by_role("tab", name="Usage").click()
        await expect(watched.at("[role=tabpanel]")).to_contain_text(ONE[:8])
        await expect(watched.at("[role=tabpanel]").get_by_role("link")).to_have_count(0)
        await watched.open(owners.by_shop)
        await watched.page.get_by_role("tab", name="Usage").click()
        await watched.at("[role=tabpanel]").get_by_role("link").first.click()
        await expect(budgets(watched)).to_contain_text("92 of 100")
    watched = await pages.of(owners.server.url, token=owners.keeper)
    watched.provoked.add(403)
    await watched.go(f"budgets/{ONE}?namespace={quote(ODD, safe='')}")
    await expect(watched.at("[role=alert]")).to_contain_text("no access to namespace")


@pytest.mark.parametrize("limited", [False, True])
async def test_acts_are_about_the_one_that_is_open(owners: Owners, pages: Pages, engine: Engine, limited: bool) -> None:
    """Behind all others: it changes what they look at."""
    watched = await pages.of(owners.server.url, token=owners.both if limited else TOKEN)
    limit = 500 if limited else 300
    for owner in SPENT:
        if limited and owner is None:
            continue
        name = "team" if owner is None else f"team of {owner}"
        limit += 1
        before = {each: await engine.get_budget_status(ONE, each) for each in SPENT if each != owner}
        await watched.go("budgets")
        card = budgets(watched).filter(has=watched.page.get_by_text(owner or "operator", exact=True))
        await card.get_by_role("link", name="team").click()
        await expect(watched.page.get_by_role("link", name="All budgets")).to_be_visible()
        await expect(budgets(watched)).to_have_count(1)
        await watched.button("Limits…").click()
        await expect(watched.at("#dialog-title")).to_have_text(f"Limits of {name}")
        await watched.at("#limit-tokens").fill(str(limit))
        await watched.confirm("Change")
        await expect(budgets(watched)).to_contain_text(f"of {limit}")
        await watched.button("Reset…").click()
        await expect(watched.at("#dialog-title")).to_have_text(f"Reset {name}?")
        await watched.confirm("Reset")
        await expect(budgets(watched)).to_contain_text(f"0 of {limit}")
        status = await engine.get_budget_status(ONE, owner)
        assert (status.hard_limits, status.usage) == ({"tokens": limit}, {"tokens": 0})
        assert {each: await engine.get_budget_status(ONE, each) for each in before} == before
