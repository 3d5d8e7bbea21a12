"""Every page with real data, in both themes: what it shows, that everybody can use it, and that it fits a phone."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.async_api import expect

from tests.console.conftest import Pages, Shop
from tests.console.support.troubled import LEASES
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Page -> a text that only real data can bring.
PAGES = {
    "overview": "questions are waiting for an answer",
    "executions?q=deploy": "deploy",
    "flows": "nightly_report",
    "approvals": "deploy to everybody?",
    "budgets": "tenant:acme",
    "schedules": "nightly report",
    "schedules/nightly%20report?namespace=shop": "Next runs",
    "workers": "payments-worker",
    "kinds?window=86400000": "charge_card",
    "audit": "Audit",
    "settings": "none required",
}


#: What is wider than the page, or than the card it is in.
WIDE = """
() => [...document.querySelectorAll(".main, .table-wrap, dialog, .card > .body")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => `${each.className} ${each.scrollWidth}`)
  .concat(document.documentElement.scrollWidth > innerWidth ? ["the page"] : [])
"""


#: Whether the focus can be seen, and what has it.
FOCUSED = """
() => {
  const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
  const { tagName, id, textContent, ariaLabel } = document.activeElement;
  const nth = [...document.querySelectorAll("*")].indexOf(document.activeElement);
  const seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 1;
  return [seen, `${nth} ${tagName} ${id} ${ariaLabel} ${textContent}`];
}
"""
#: What opens over a page.
OVERLAY = "dialog, [role=menu]"
ABSENT = "00000000-0000-4000-8000-000000000000"


async def shown(watched: Watched, place: str, text: str, *, loaded: bool = True) -> None:
    """A page is there, with a text; ``loaded`` from its first file on, or in the console that is open."""
    await (watched.go(place) if loaded else watched.turn(place))
    await expect(watched.page.get_by_role("heading", level=1).first).to_be_visible()
    await expect(watched.page.get_by_text(text).first).to_be_visible()


async def test_every_page_is_usable_by_everybody(shop: Shop, pages: Pages) -> None:
    """In both themes, which every page is in one after the other."""
    watched = await pages.of(shop.url)
    found: list[str] = []
    seeded = shop.seeded
    more = {
        f"executions/{quote(seeded.deploy, safe='')}": "Waiting for 1 of bob, carol",
        f"executions/{quote(seeded.deploy, safe='')}?tab=steps": "check[unit]",
        f"executions/{quote(seeded.failed, safe='')}?tab=events": "CardDeclined",
        f"executions/{quote(seeded.troubled, safe='')}?tab=leases": "its machine is being replaced",
        f"executions/{quote(seeded.streaming, safe='')}?tab=stream": "parcel",
        f"flows/{seeded.flow}": "3 of 5: 2/3",
        f"budgets/{seeded.budget}": "tenant:acme",
    }
    await watched.go()
    for place, text in (PAGES | more).items():
        await shown(watched, place, text, loaded=False)
        found += [f"{place}: {each}" for each in await watched.findings()]
    deploy = f"executions/{quote(seeded.deploy, safe='')}"
    for place, opener, entry in (
        ("executions", "Bulk actions", None),
        ("executions?state=waiting", "Bulk actions", "Cancel all matches…"),
        (deploy, "More", None),
        (deploy, "More", "Fork from a step…"),
        (deploy, "Cancel…", None),
        (f"flows/{seeded.flow}", "Cancel…", None),
        (f"approvals/{quote(seeded.ask, safe='')}", "Link", None),
        (f"budgets/{seeded.budget}", "Limits…", None),
        ("workers", "Change", None),
        ("schedules", "New schedule…", None),
        ("schedules/nightly%20report?namespace=shop", "More", "Backfill…"),
        ("settings", "New credential…", None),
    ):
        await watched.go(place)
        await watched.button(opener).first.click()
        if entry is not None:
            await watched.page.get_by_role("menuitem", name=entry).click()
        await expect(watched.at(OVERLAY).first).to_be_visible()
        found += [f"{place}, {opener}, {entry}: {each}" for each in await watched.findings(within=OVERLAY)]
    await watched.page.keyboard.press("Escape")
    await watched.page.keyboard.press("?")
    await expect(watched.at("dialog")).to_be_visible()
    found += [f"help: {each}" for each in await watched.findings(within=OVERLAY)]
    watched.provoked |= {400, 404}
    for place in ("executions/%7Bfp%3A0%7D%3A00000000-0000-4000-8000-000000000000", f"flows/{ABSENT}", "nowhere"):
        await shown(watched, place, "not found")
        found += [f"{place}: {each}" for each in await watched.findings()]
    assert not found, "\n".join(found)


async def test_without_a_mouse(shop: Shop, pages: Pages) -> None:
    """The focus is always to be seen, menus and dialogs are gone through with keys, and give it back."""
    watched = await pages.of(shop.url)
    await watched.go("executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    keys = watched.page.keyboard
    await keys.press("Tab")
    await expect(watched.button("Skip to content")).to_be_focused()
    await keys.press("Enter")
    await expect(watched.at("#main")).to_be_focused()
    seen = set()
    for _ in range(40):
        await keys.press("Tab")
        outline, name = await watched.page.evaluate(FOCUSED)
        assert outline, f"{name} shows its focus"
        seen.add(name)
    assert len(seen) > 16, "key presses get somewhere else; a field for dates and times has several stops"
    opener = watched.button("Bulk actions")
    entries = watched.page.get_by_role("menuitem")
    await opener.focus()
    await keys.press("ArrowDown")
    await expect(entries.first).to_be_focused()
    for key, place in (("ArrowDown", 1), ("ArrowDown", 0), ("ArrowUp", 1), ("Home", 0), ("End", 1)):
        await keys.press(key)
        await expect(entries.nth(place)).to_be_focused()
    await keys.press("Escape")
    await expect(entries).to_have_count(0)
    await expect(opener).to_be_focused()
    await keys.press("Enter")
    await keys.press("Enter")
    await expect(watched.at("dialog")).to_be_visible()
    inside = "document.activeElement === document.body || Boolean(document.activeElement.closest('dialog'))"
    for _ in range(8):
        await keys.press("Tab")
        assert await watched.page.evaluate(inside), "the focus stays in the dialog"
    await keys.press("Escape")
    await expect(watched.at("dialog")).to_have_count(0)
    await expect(opener).to_be_focused()
    await watched.go(f"executions/{quote(shop.seeded.deploy, safe='')}")
    await watched.page.get_by_role("tab", name="Input and result").focus()
    for key, tab in (("ArrowRight", "Stream"), ("End", "Details"), ("ArrowRight", "Input and result")):
        await keys.press(key)
        await expect(watched.page.get_by_role("tab", name=tab)).to_be_focused()
    await watched.go(f"flows/{shop.seeded.flow}")
    await watched.at("tr").filter(has_text="publish_report").get_by_role("button", name="Show").focus()
    await keys.press("Enter")
    await expect(watched.at("canvas")).to_have_attribute("data-found", re.compile(r"^\{fp:"))


async def test_every_page_fits_a_phone(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url, phone=True)
    seeded = shop.seeded
    deploy, troubled, ask = (quote(each, safe="") for each in (seeded.deploy, seeded.troubled, seeded.ask))
    places = PAGES | {
        f"executions/{deploy}": "Children",
        f"executions/{deploy}?tab=steps": "check[unit]",
        f"executions/{deploy}?tab=details": "State",
        f"executions/{troubled}?tab=leases": "its machine is being replaced",
        f"executions/{troubled}?tab=waits": "tea-and-co",
        f"executions/{troubled}?tab=events": "The lease of import-worker-3 ended",
        f"executions/{ask}?tab=waits": "carol",
        f"executions/{quote(seeded.streaming, safe='')}?tab=stream": "parcel",
        f"executions/{quote(seeded.streaming, safe='')}?tab=usage": "1,850",
        f"flows/{seeded.flow}": "merge_shards",
        f"approvals/{ask}": "looks good",
        f"budgets/{seeded.budget}": "tenant:acme",
    }
    await watched.go()
    for place, text in places.items():
        await shown(watched, place, text, loaded=False)
        wide = await watched.page.evaluate(WIDE)
        assert not wide, (place, wide)
    await watched.go(f"executions/{deploy}")
    await watched.button("Cancel…").click()
    await expect(watched.at("dialog")).to_be_visible()
    assert not await watched.page.evaluate(WIDE)


async def test_one_execution(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.open(shop.seeded.completed)
    await expect(watched.at(".badge").first).to_have_text("completed")
    await expect(watched.page.get_by_text('"https://shop.example"')).to_be_visible()
    await expect(watched.page.get_by_role("group", name="Timeline")).to_be_visible()
    await watched.open(shop.seeded.deploy)
    await expect(watched.at("[data-chain]")).to_contain_text("→ question")
    await expect(watched.at("[data-chain] a")).to_have_attribute("title", shop.seeded.ask)
    for tab, text in (
        ("Steps", "check[integration]"),
        ("Events", "Step roll_out completed"),
        ("Details", "ff."),
        ("Usage", "No budget."),
        ("Waits and signals", "never waited for one"),
    ):
        await watched.page.get_by_role("tab", name=tab).click()
        await expect(watched.at("[role=tabpanel]")).to_contain_text(text if tab != "Details" else "State")
    await watched.open(shop.seeded.delayed)
    await expect(watched.at("[data-why]")).to_contain_text("Delayed · starts at")
    await watched.open(shop.seeded.streaming)
    await expect(watched.page.get_by_text("Rolling summary")).to_be_visible()
    await expect(watched.page.get_by_text('"drafting"')).to_be_visible()
    await watched.open(shop.seeded.ask)
    await watched.page.get_by_role("tab", name="Waits").click()
    await expect(watched.at("[role=tabpanel]")).to_contain_text("alice")


async def test_leases_of_one_execution(shop: Shop, pages: Pages) -> None:
    """Each one on the timeline and in its tab: who held it, from when to when, and how it ended."""
    watched = await pages.of(shop.url)
    await watched.open(shop.seeded.troubled)
    rows = watched.at(".timeline .name")
    await expect(rows).to_have_text(["State", "Attempt 1", "Attempt 2", "Leases", "Suspended", "Steps", ""])
    bars = watched.at(".timeline .track:nth-child(8) .bar")
    await expect(bars).to_have_count(len(LEASES))
    titles = [await bar.get_attribute("title") or "" for bar in await bars.all()]
    assert [title.rpartition(",")[0] for title in titles] == [f"{worker}: {end}" for worker, end in LEASES]
    assert titles[1].endswith(", 5.0 s")
    whole = await watched.at(".timeline .track").first.locator(".bar").all()
    assert [(await bar.get_attribute("title") or "").partition(",")[0] for bar in whole] == [
        "Waiting for its first attempt",
        "Attempt 1",
        "Suspended: waiting for signal",
        "Waiting for a worker",
        "Attempt 1",
        "Waiting for another worker",
        "Attempt 1",
        "Waiting for another worker",
        "Attempt 1",
        "Waiting for retry",
        "Attempt 2",
    ]
    await watched.page.get_by_role("tab", name="Leases").click()
    lines = watched.at("[data-lease]")
    await expect(lines).to_have_count(len(LEASES))
    for number, (worker, end) in enumerate(LEASES):
        await expect(lines.nth(number).locator("td").first).to_have_text(worker)
        await expect(lines.nth(number).locator("td").last).to_have_text(end)
    await watched.page.get_by_role("tab", name="Events").click()
    told = watched.at("[role=tabpanel]")
    await expect(told).to_contain_text("The lease of import-worker-3 ended: revoked: its machine is being replaced")
    await expect(told).to_contain_text("Attempt 1 continued on worker import-worker-2")


async def test_charts_and_tiles(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.go("overview")
    await expect(watched.at("figure.chart")).to_have_count(6)
    for tile, least in (("Completed", 100), ("Failed", 5), ("Waiting", 9), ("Active", 3), ("Suspended", 3)):
        value = await watched.at(f"[data-tile={tile}] .value").inner_text()
        assert int(value.replace(",", "")) >= least, tile
    for kind, text in (("lane", "exports is paused with 9 waiting"), ("budget", "team:search is used up")):
        await expect(watched.at(f"[data-matter={kind}]").filter(has_text=text)).to_be_visible()
    # The server has just begun, but the store has samples of about an hour: only what is earlier is missing.
    series = await watched.page.evaluate("fetch('/v1/overview?window_ms=3600000').then((r) => r.json())")
    assert sum(each is not None for each in series["series"]["gauges"]["active"]) > 40
    await watched.button("15 min").click()
    await expect(watched.at("[data-sampled]")).to_have_count(0)
    await watched.button("24 h").click()
    await expect(watched.at("[data-sampled]")).to_have_count(5)
    await watched.button("1 h").click()
    await expect(watched.at("section.card").filter(has_text="Throughput").locator("header")).to_have_text(
        "Throughputended, per minute"
    )
    await watched.button("24 h").click()
    await watched.at("[data-matter=asks]").click()
    await expect(watched.page.get_by_role("heading", name="Approvals")).to_be_visible()


async def test_search(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.go("executions")
    box = watched.at("#q")
    for text, kind in (
        ("deploy", "deploy"),
        ("lane:llm", "answer_customer"),
        ("tag:llm.model=hedgehog", "answer_customer"),
    ):
        await box.fill(text)
        await expect(watched.at(".list-row .name")).to_have_text([kind])
    await box.fill("")
    await watched.button("failed", exact=True).click()
    await expect(watched.at(".list-row .badge").first).to_have_text("failed")
    states = await watched.at(".list-row .badge").all_inner_texts()
    assert set(states) == {"failed"}
    assert "state=failed" in watched.page.url
    await watched.page.reload()
    await expect(watched.button("failed", exact=True)).to_have_attribute("aria-pressed", "true")
    await box.fill("nothing like it")
    await expect(watched.page.get_by_text("No matches.")).to_be_visible()
    await box.fill(shop.seeded.deploy)
    await box.press("Enter")
    await expect(watched.at("[data-id]")).to_have_text(shop.seeded.deploy)
    await watched.go("executions")
    await watched.at("#namespace").select_option("warehouse")
    await expect(watched.at(".list-row .cell-space").first).to_have_text("warehouse")


async def test_keys(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.go("overview")
    await expect(watched.page.get_by_role("heading", name="Overview")).to_be_visible()
    keys = watched.page.keyboard
    for key, title in (("e", "Executions"), ("f", "Flows"), ("a", "Approvals"), ("b", "Budgets"), ("s", "Schedules"),
                       ("w", "Workers"), ("u", "Audit"), ("t", "Settings"), ("e", "Executions")):  # fmt: skip
        await keys.press("g")
        await keys.press(key)
        await expect(watched.page.get_by_role("heading", level=1, name=title)).to_be_visible()
    await expect(watched.at(".list-row").first).to_be_visible()
    for key in ("j", "j", "k", "x"):
        await keys.press(key)
    await expect(watched.at(".bulk")).to_contain_text("1 execution selected")
    await keys.press("Escape")
    await expect(watched.at(".bulk")).to_have_count(0)
    await keys.press("/")
    await expect(watched.at("#q")).to_be_focused()
    await keys.type("deploy")
    await keys.press("Escape")
    await expect(watched.at(".list-row")).to_have_count(1)
    before = await watched.page.evaluate("document.documentElement.dataset.theme")
    await keys.press("d")
    assert await watched.page.evaluate("document.documentElement.dataset.theme") != before
    await keys.press("j")
    await keys.press("Enter")
    await expect(watched.at("[data-id]")).to_have_text(shop.seeded.deploy)
