"""What narrows a page stands in its address: links, loading again and going back lead to what was seen."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.async_api import expect

from tests.console.conftest import Pages, Shop

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_what_was_typed_stands_in_the_address(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    for page, box, text, rows in (
        ("budgets", "#budget-q", "acme", "[data-budget]"),
        ("audit", "#audit-q", "nobody did this", "tbody tr"),
        ("kinds", "#kind-q", "charge", "tbody tr"),
        ("flows", "#flow-kind", "nightly_report", "tbody tr"),
        (f"flows/{shop.seeded.flow}", "#member", "count_shard", "tbody tr"),
        ("approvals", "[aria-label='Search questions']", "refund", "[data-ask]"),
        ("executions", "#q", "charge_card", ".list-row"),
    ):
        await watched.go(page)
        field, found = watched.at(box), watched.at(rows)
        await expect(field).to_be_visible()
        await field.press_sequentially(text)
        await expect(watched.page).to_have_url(re.compile("[?&](q|kind)=" + text.replace(" ", r"\+")))
        await expect(watched.at("main .loading")).to_have_count(0)
        narrow = await found.count()
        await watched.page.reload()
        await expect(field).to_have_value(text)
        await expect(found).to_have_count(narrow)
        await watched.at("nav a[href='#/settings']").click()
        await expect(watched.page.get_by_role("heading", level=1)).to_have_text("Settings")
        await watched.page.go_back()
        await expect(field).to_have_value(text)
        await expect(found).to_have_count(narrow)


async def test_what_was_typed_survives_another_tab(shop: Shop, pages: Pages) -> None:
    """Also what was typed so shortly before that the address does not have it yet."""
    watched = await pages.of(shop.url)
    await watched.go("executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    await watched.page.clock.install()
    await watched.page.clock.pause_at(await watched.page.evaluate("Date.now() + 1000"))
    for tab, other in (("Failures by error", "charge"), ("All", "charge_card")):
        await watched.at("#q").fill(other)
        await watched.button(tab, exact=True).click()
        await expect(watched.at("#q")).to_have_value(other)
        await expect(watched.page).to_have_url(re.compile(f"q={other}$|q={other}&"))
        await watched.page.clock.run_for(1_000)
        await expect(watched.at("#q")).to_have_value(other)


async def test_the_namespace_stands_in_the_address(shop: Shop, pages: Pages) -> None:
    """Of every page that it narrows: a link shows others the same."""
    watched = await pages.of(shop.url)
    chosen, lists = watched.at("#namespace"), ("overview", "executions", "flows", "approvals", "budgets", "schedules")
    for page in (*lists, "workers", "kinds"):
        await watched.go(f"{page}?ns=warehouse")
        await expect(chosen).to_have_value("warehouse")
        await expect(watched.page).to_have_url(re.compile(r"\?ns=warehouse$"))
        await chosen.select_option("shop")
        await expect(watched.page).to_have_url(re.compile(r"\?ns=shop$"))
        await watched.at("nav a[href='#/settings']").click()
        await expect(watched.page.get_by_role("heading", level=1)).to_have_text("Settings")
        await watched.at(f"nav a[href='#/{page}']").click()
        await expect(watched.page).to_have_url(re.compile(rf"#/{page}\?ns=shop$"))
        await chosen.select_option("")
        await expect(watched.page).to_have_url(re.compile(rf"#/{page}$"))
    # What is typed or chosen on a page leaves it there.
    await watched.go("flows?ns=shop")
    await watched.at("#flow-kind").fill("nightly")
    await watched.at("[data-state=running]").click()
    await expect(watched.page).to_have_url(re.compile(r"\?kind=nightly&state=running&ns=shop$"))


async def test_what_is_shown_of_one_stands_in_the_address(shop: Shop, pages: Pages) -> None:
    """The member in the middle of a graph, the scale of a timeline, the attempt whose logs are open."""
    watched = await pages.of(shop.url)
    await watched.go(f"flows/{shop.seeded.flow}")
    canvas = watched.at("canvas")
    await expect(watched.at(".graph")).to_have_attribute("data-placed", "true")
    await watched.at("#member").fill("COUNT_SHARD")
    await expect(watched.at("tbody tr")).to_have_count(5)
    await watched.at("tbody tr").nth(3).get_by_role("button", name="Show").click()
    shown = await canvas.get_attribute("data-found") or ""
    assert shown.startswith("{fp:")
    await watched.at("tbody tr").nth(1).get_by_role("button", name="Show").click()
    await expect(canvas).not_to_have_attribute("data-found", shown)
    await watched.page.go_back()
    await expect(canvas).to_have_attribute("data-found", shown)
    await watched.page.reload()
    await expect(canvas).to_have_attribute("data-found", shown)
    await watched.at("#member").fill("nothing like it")
    await watched.page.get_by_role("link", name="Clear filters").click()
    await expect(watched.at("tbody tr")).to_have_count(14)
    await watched.go(f"executions/{quote(shop.seeded.troubled, safe='')}?tab=logs")
    first, real = watched.button("Attempt 1", exact=True), watched.button("Real time")
    await first.click()
    await watched.button("Compress waits").click()
    await real.click()
    await expect(watched.page).to_have_url(re.compile(r"\?tab=logs&attempt=1&scale=true$"))
    await watched.page.reload()
    for each in (first, real):
        await expect(each).to_have_attribute("aria-pressed", "true")
    await watched.page.go_back()
    await expect(real).to_have_attribute("aria-pressed", "false")
    await expect(first).to_have_attribute("aria-pressed", "true")
