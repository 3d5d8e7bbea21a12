"""Finding executions: what the list says is what the store says, and its address says it all."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import expect

from flowfabric.engine import Engine
from flowfabric.model.operations.executions import ClaimPolicy
from flowfabric.model.states import PublicState
from tests.console.conftest import Pages, Shop, apart
from tests.console.support.running import serving
from tests.console.support.seeding import seed
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
DAY = 86_400_000
SPENT = "44444444-4444-4444-8444-444444444444"
#: The colours of all states' badges, as they are drawn.
COLOURS = """
(states) => states.map((state) => {
  const badge = document.createElement("span");
  badge.className = "badge";
  badge.dataset.tone = state;
  document.querySelector(".page").append(badge);
  const found = getComputedStyle(badge).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
  badge.remove();
  return found;
})
"""


@pytest_asyncio.fixture(loop_scope="session")
async def engine(shop: Shop) -> AsyncIterator[Engine]:
    async with await Engine.open(shop.server.store, single_node=True) as opened:
        yield opened


async def shows(watched: Watched, amount: int) -> None:
    """The list has so many, and says so."""
    if amount:
        await expect(watched.at("[data-found]")).to_have_text(f"{amount:,} found")
    else:
        await expect(watched.page.get_by_text("No matches.")).to_be_visible()


async def stored(engine: Engine, **filters: Any) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while True:
        page = await engine.search_executions(limit=1_000, cursor=cursor, **filters)
        found += page.executions
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_every_chip_finds_what_the_store_has(shop: Shop, pages: Pages, engine: Engine) -> None:
    watched = await pages.of(shop.url)
    await watched.go("executions?ns=shop")
    rows = await stored(engine, namespaces=["shop"])
    await expect(watched.at("#namespace")).to_have_value("shop")
    for state in PublicState:
        amount = sum(each.public_state is state for each in rows)
        chip = watched.at(f"[data-state={state.value}]")
        await chip.click()
        await expect(chip).to_have_attribute("aria-pressed", "true")
        await shows(watched, amount)
        assert f"state={state.value}" in watched.page.url
        if amount:
            await expect(chip.locator(".many")).to_have_text(f"{amount:,}")
            assert set(await watched.at(".list-row .badge").all_inner_texts()) == {state.value.replace("_", " ")}
        await chip.click()
        await expect(chip).to_have_attribute("aria-pressed", "false")
    await watched.at("[data-roots]").click()
    await shows(watched, sum(each.parent is None for each in rows))
    await watched.at("#by").select_option("ended")
    await watched.at("#within").select_option(str(DAY))
    await shows(watched, sum(each.parent is None and each.completed_at is not None for each in rows))


async def quiet(store: str) -> None:
    """A store in which nothing starts by itself, and three executions wait for a budget that is used up."""
    await seed(store)
    async with await Engine.open(store, single_node=True) as engine:
        await engine.pause_schedule("stock", "shop")
        await engine.create_budget(
            budget_id=SPENT, scope_type="named", scope_id="spent", dimensions=["calls"], hard_limits=[1],
            soft_limits=[0],
        )  # fmt: skip
        await engine.report_usage_admin(budget_id=SPENT, dimensions=["calls"], deltas=[1])
        for _ in range(3):
            await engine.create_execution(namespace="shop", lane_id="narrow", policy={"budget_ids": [SPENT]})
        assert not await engine.claim_many("narrow", policy=ClaimPolicy("w", "w-1", 60_000), limit=3)


async def test_tiles_lead_to_what_they_count(store: str, pages: Pages) -> None:
    """In a store of its own: a run that ended and was replayed counts as an end, and is no longer listed as one."""
    apart(quiet(store))
    with serving(store) as server:
        watched = await pages.of(server.url)
        await tiles_lead_to_what_they_count(watched)
        await watched.page.goto("about:blank")


async def tiles_lead_to_what_they_count(watched: Watched) -> None:
    for tile in ("Completed", "Failed", "Waiting", "Active", "Suspended", "Delayed", "Rate limited"):
        await watched.go(f"overview?within={DAY}")
        value = await watched.at(f"[data-tile='{tile}'] .value").inner_text()
        await watched.at(f"[data-tile='{tile}']").click()
        await shows(watched, int(value.replace(",", "")))
    # Of a namespace that was chosen, what is counted and listed is of it alone.
    for tile in ("Completed", "Waiting"):
        await watched.go(f"overview?within={DAY}&ns=warehouse")
        await expect(watched.page.get_by_text("Only namespace warehouse is shown.")).to_be_visible()
        value = await watched.at(f"[data-tile={tile}] .value").inner_text()
        await watched.at(f"[data-tile={tile}]").click()
        await shows(watched, int(value.replace(",", "")))
    await watched.at("#namespace").select_option("")
    await watched.go(f"overview?within={DAY}")
    await watched.at("[data-tile=Failed]").click()
    await expect(watched.at("#within")).to_have_value(str(DAY))
    await expect(watched.at("#by")).to_have_value("ended")
    await watched.page.go_back()
    await expect(watched.button("24 h")).to_have_attribute("aria-pressed", "true")
    await watched.at("[data-failure=charge_card] a").first.click()
    await expect(watched.at(".list-row .name").first).to_have_text("charge_card")


async def test_the_address_says_it_all(shop: Shop, pages: Pages) -> None:
    """Deep links, the side bar, back and forward: the list, the chips and the box follow."""
    watched = await pages.of(shop.url)
    await watched.go("executions")
    await expect(watched.at("[data-detail]").filter(has_text="waiting for").first).to_be_visible()
    ends = await watched.at(".list-row").evaluate_all("(rows) => rows.map((row) => row.getBoundingClientRect().right)")
    assert len(set(ends)) == 1, "every row is as wide as the list, whatever it says"
    box, failed = watched.at("#q"), watched.at("[data-state=failed]")
    await watched.go("executions?q=charge_card&state=failed")
    await expect(box).to_have_value("charge_card")
    await expect(failed).to_have_attribute("aria-pressed", "true")
    await expect(watched.at(".list-row .badge").first).to_have_text("failed")
    narrow = await watched.at("[data-found]").inner_text()
    await watched.at("nav a[href='#/executions']").click()
    await expect(box).to_have_value("")
    await expect(failed).to_have_attribute("aria-pressed", "false")
    await expect(watched.at("[data-found]")).not_to_have_text(narrow)
    await watched.page.go_back()
    await expect(box).to_have_value("charge_card")
    await expect(watched.at("[data-found]")).to_have_text(narrow)
    await watched.page.go_forward()
    await expect(box).to_have_value("")
    await watched.choose("Columns", "Hide lane")
    await expect(watched.at(".list-head")).not_to_contain_text("Lane")
    await watched.choose("Columns", "Show attempts")
    await expect(watched.at(".list-head")).to_contain_text("Attempts")
    await box.fill("error:declined")
    await expect(watched.page).to_have_url(re.compile("q=error%3Adeclined"))
    await watched.choose("Views", "Save this view")
    await watched.at("#field-name").fill("declined cards")
    await watched.confirm("Save")
    await watched.page.reload()
    await expect(box).to_have_value("error:declined")
    await expect(watched.at(".list-head")).to_contain_text("Attempts")
    await box.fill("nothing like this")
    await watched.at("[data-clear]").click()
    await expect(box).to_have_value("")
    await watched.choose("Views", "declined cards")
    await expect(box).to_have_value("error:declined")
    await watched.choose("Views", "Remove view declined cards")
    await watched.button("Views").click()
    await expect(watched.page.get_by_role("menuitem")).to_have_count(1)
    assert not await watched.page.evaluate("JSON.parse(localStorage.getItem('ff.views')).length")


async def test_words(shop: Shop, pages: Pages, engine: Engine) -> None:
    tags = {"user.team": "red", "user.tier": "gold"}
    made = await engine.create_execution(namespace="words", lane_id="words", execution_kind="paint", tags=tags)
    await engine.create_execution(
        namespace="words", lane_id="other-words", execution_kind="paint", tags={"user.team": "blue"}
    )
    handle = await engine.claim("words", policy=ClaimPolicy("painter", "painter-1", 60_000))
    assert handle is not None
    await engine.fail(handle, "NoPaint: the bucket is empty", "permanent")
    uuid = str(made.execution_id).split(":")[-1]
    watched = await pages.of(shop.url)
    await watched.go("executions")
    box = watched.at("#q")
    for query in (
        "tag:team=red",
        "tag:team=red tag:tier=gold",
        "PAIN state:failed ns:words",
        uuid[:23],
        uuid[-8:],
        f"id:{uuid[-6:]} paint",
        "error:nopaint",
        'error:"bucket is"',
        "worker:painter since:1h",
    ):
        await box.fill(query)
        await shows(watched, len(await stored(engine, query=query)))
        await expect(watched.at(".list-row .mono").filter(has_text=uuid[-8:])).to_be_visible()
    await expect(watched.at("[data-detail]").first).to_have_text("NoPaint: the bucket is empty")
    await expect(watched.at(".list-row .cell-tags").first).to_have_text("team=red, tier=gold")
    watched.provoked.add(400)
    await box.fill("colour:red")
    await expect(watched.at("[role=alert]")).to_contain_text("unknown word 'colour:'; known words are kind:")
    await box.fill("lane:words")
    await expect(watched.at("[role=alert]")).to_have_count(0)
    await watched.at(".list-row input").first.check()
    await watched.choose("Bulk actions", "Replay all matches")
    await expect(watched.at("[data-preview]")).to_have_text("1")
    await watched.confirm("Replay 1")
    await expect(watched.at(".list-row input:checked")).to_have_count(0)
    await expect(watched.at(".list-row .badge")).to_have_text(["waiting"])


async def test_failures_by_error(shop: Shop, pages: Pages, engine: Engine) -> None:
    watched = await pages.of(shop.url, phone=True)
    groups = (await engine.group_failures()).groups
    await watched.go("executions?tab=failures")
    lines = watched.at("[data-failure]")
    await expect(lines).to_have_count(len(groups))
    for number, group in enumerate(groups[:3]):
        await expect(lines.nth(number).locator(".badge")).to_have_text(str(group.count))
        await expect(lines.nth(number)).to_contain_text(group.error)
        await lines.nth(number).locator("a").first.click()
        await shows(watched, group.count)
        await watched.page.go_back()
    assert not await watched.findings()
    await watched.button("All", exact=True).click()
    await expect(watched.at(".list-row").first).to_be_visible()


async def test_children_lead_to_their_parents(shop: Shop, pages: Pages, engine: Engine) -> None:
    watched = await pages.of(shop.url)
    await watched.go("executions?q=deploy&roots=1")
    children = await stored(engine, parent=shop.seeded.deploy)
    twist = watched.at(".list-row .twist").first
    await twist.click()
    names = [each.execution_kind.replace("$ask", "question") for each in reversed(children)]
    await expect(watched.at(".family .name")).to_have_text(names)
    await watched.at(".family .twist").first.click()
    await expect(watched.at(".family .family-list, .family p")).to_contain_text(["build", "No children"])
    assert not await watched.findings()
    await watched.page.keyboard.press("Escape")
    await expect(watched.at(".family")).to_have_count(0)
    await expect(twist).to_have_attribute("aria-expanded", "false")
    await watched.go(f"executions?q={quote('parent:' + shop.seeded.deploy, safe='')}")
    await expect(watched.at(".list-row").first).to_be_visible()
    await watched.at(".list-row").first.get_by_role("link", name="parent").click()
    await expect(watched.at("[data-id]")).to_have_text(shop.seeded.deploy)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_states_that_differ_have_colours_that_differ(shop: Shop, pages: Pages, theme: str) -> None:
    watched = await pages.of(shop.url, theme=theme)
    await watched.go("executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    states = [each.value for each in PublicState]
    colours = dict(zip(states, await watched.page.evaluate(COLOURS, states), strict=True))
    alike = [
        (one, other)
        for one in states
        for other in states
        if one < other and sum((a - b) ** 2 for a, b in zip(colours[one], colours[other], strict=True)) ** 0.5 < 35
    ]
    assert not alike
