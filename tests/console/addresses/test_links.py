"""Every link, filter and dialog: links lead to a page about what they name, lists behind them have what the store has,
and everything that opens a dialog is pressed by a test."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import expect

import flowfabric.server.console
from flowfabric.core.flows.status import FLOW_STATES
from flowfabric.engine import Engine
from tests.conftest import full_run
from tests.console.conftest import Pages, Shop
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
TESTS = Path(__file__).parents[1]
STATIC = Path(flowfabric.server.console.__file__).parent / "static"
#: What opens a dialog -> the test that opens it and does what it offers.
OPENED = {
    "Backfill…": "test_a_backfill_says_what_it_starts_and_starts_that",
    "Cancel all matches…": "test_many_at_once",
    "Cancel…": "test_cancel_and_replay",
    "Change priority…": "test_priority_revoke_and_fork",
    "Delete…": "test_a_schedule_is_created_and_edited",
    "Edit…": "test_a_schedule_is_created_and_edited",
    "Fork from a step…": "test_priority_revoke_and_fork",
    "Fork from here…": "test_priority_revoke_and_fork",
    "Limits…": "test_budgets",
    "New credential…": "test_credentials_and_keys",
    "New schedule…": "test_a_schedule_is_created_and_edited",
    "Replay all matches…": "test_many_run_again",
    "Replay…": "test_cancel_and_replay",
    "Reset…": "test_budgets",
    "Revoke lease…": "test_priority_revoke_and_fork",
    "Revoke…": "test_credentials_and_keys",
    "Rotate key…": "test_credentials_and_keys",
    "Save this view…": "test_the_address_says_it_all",
    "Send a signal…": "test_send_a_signal",
    "Start again with edited input…": "test_start_and_start_again",
    "Start…": "test_start_and_start_again",
    "Terminate…": "test_a_workflow_cleans_up_unless_it_is_terminated",
}
#: What ends with dots and opens nothing: it says that something takes a while, or asks for a choice.
WAITING = {"Checking what this does…", "Choose the approver…", "Choose…", "Loading…", "Working…"}
#: The addresses of a page's links.
LINKS = "() => [...document.querySelectorAll(\"main a[href^='#/']\")].map((each) => each.getAttribute('href'))"
#: Links of one sort that are followed.
EACH = 3 if full_run() else 1


@pytest_asyncio.fixture(loop_scope="session")
async def engine(shop: Shop) -> AsyncIterator[Engine]:
    async with await Engine.open(shop.server.store, single_node=True) as opened:
        yield opened


async def test_everything_that_opens_a_dialog_is_pressed() -> None:
    files = [each.read_text() for each in STATIC.rglob("*.js") if "vendor" not in each.parts]
    labels = {label for text in files for label in re.findall(r"\b[A-Z][A-Za-z ]+…", text)}
    assert labels - WAITING == set(OPENED)
    tests = "".join(each.read_text() for each in TESTS.rglob("test_*.py"))
    assert [name for name in OPENED.values() if f"async def {name}(" not in tests] == []


def sort_of(page: str, link: str) -> tuple[str, ...]:
    """What a link has in common with others: the page it is on and the one it leads to, and what narrows that."""
    address = urlsplit(link.removeprefix("#"))
    first, _, rest = address.path.strip("/").partition("/")
    words = re.findall(r"\b(\w+):", parse_qs(address.query).get("q", [""])[0])
    return (page, first, str(bool(rest)), *sorted(parse_qs(address.query)), *sorted(words))


async def links_of(watched: Watched, places: list[str]) -> list[str]:
    """Some links of every sort."""
    found: dict[tuple[str, ...], list[str]] = {}
    for place in places:
        await settled(watched, place)
        for link in dict.fromkeys(await watched.page.evaluate(LINKS)):
            alike = found.setdefault(sort_of(place.partition("?")[0], link), [])
            if len(alike) < EACH and link not in alike:
                alike.append(link)
    return sorted({link.removeprefix("#/") for each in found.values() for link in each})


async def settled(watched: Watched, place: str) -> None:
    """The page is there, with all that it loads."""
    await watched.turn(place)
    await expect(watched.page.get_by_role("heading", level=1).first).to_be_visible()
    await expect(watched.at("main .loading[role=status]")).to_have_count(0)


async def found_by(engine: Engine, query: dict[str, str]) -> int:
    """How many executions the store has for an address."""
    amount, cursor = 0, None
    while True:
        page = await engine.search_executions(
            query=query.get("q", ""), states=list(filter(None, query.get("state", "").split(","))),
            roots=query.get("roots") == "1", cursor=cursor, limit=1_000,
        )  # fmt: skip
        amount, cursor = amount + len(page.executions), page.next_cursor
        if cursor is None:
            return amount


async def test_every_link_leads_to_what_it_names(shop: Shop, pages: Pages, engine: Engine) -> None:
    watched = await pages.of(shop.url)
    await watched.go("overview")
    seeded = shop.seeded
    runs = [f"executions/{quote(each, safe='')}" for each in (seeded.deploy, seeded.shipment, seeded.streaming)]
    places = [
        "overview", "executions", "executions?roots=1", "executions?tab=failures", "flows", "approvals", "budgets",
        "schedules", "schedules/nightly%20report?namespace=shop", "workers", "kinds?window=86400000", "audit",
        f"flows/{seeded.flow}", *runs, f"{runs[0]}?tab=steps", f"{runs[2]}?tab=usage", f"{runs[2]}?tab=details",
    ]  # fmt: skip
    links = await links_of(watched, places)
    assert len(links) > 25
    for link in links:
        await settled(watched, link)
        await expect(watched.at("main [role=alert]")).to_have_count(0)
        page, _, rest = link.partition("?")
        query: dict[str, str] = {name: each[0] for name, each in parse_qs(rest).items()}
        if page == "executions" and "within" not in query and "tab" not in query:
            amount = await found_by(engine, query)
            found = f"{amount:,} found" if amount else ""
            await expect(watched.at("[data-found]")).to_have_text(found)
        elif page.startswith("executions/"):
            await expect(watched.at("[data-id]")).to_have_text(unquote(page.partition("/")[2]))


async def test_flows_of_every_state(shop: Shop, pages: Pages, engine: Engine) -> None:
    watched = await pages.of(shop.url)
    await watched.go("flows")
    for state in ("", *FLOW_STATES):
        await watched.at(f".chips [data-state='{state}']").click()
        flows: list[Any] = list((await engine.search_flows(states=[state] if state else (), limit=100)).flows)
        await expect(watched.at("tbody tr")).to_have_count(len(flows))
        await expect(watched.at("[data-total]")).to_contain_text(f"{len(flows)} flow")
        badges = await watched.at("tbody .badge").all_inner_texts()
        assert badges == [each.public_flow_state for each in flows]
