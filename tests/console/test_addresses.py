"""What narrows a page stands in its address: links, loading again and going back lead to what was seen."""

from __future__ import annotations

import re

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
