"""Hostile texts in every field that is shown: they are shown, and nothing of them ever runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest
from playwright.async_api import expect

from tests.console.conftest import Pages, apart
from tests.console.planting import ALL, capability_of, lane_of, plant
from tests.console.running import ServerProcess, serving
from tests.console.watching import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
LOOKING = (Path(__file__).parent / "looking.js").read_text()


class Planted(NamedTuple):
    """A server whose store holds nothing nice; lists in the order of the texts."""

    server: ServerProcess
    singles: list[str]
    flows: list[str]
    asks: list[str]
    links: list[str]
    tokens: list[str]
    form: str
    form_link: str
    monster: str
    graph: str
    admin: str


async def test_there_are_enough() -> None:
    assert len(ALL) == len(set(ALL)) == 200
    assert len({lane_of(each) for each in ALL}) == len({capability_of(each) for each in ALL}) == 200


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    store = f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'store.db'}"
    found = apart(plant(store))
    with serving(store) as server:
        yield Planted(server, **found)


async def opened(planted: Planted, pages: Pages, place: str = "") -> Watched:
    """A page of somebody who may see all of it."""
    watched = await pages.of(planted.server.url, token=planted.admin)
    await watched.page.context.add_init_script(LOOKING)
    await watched.go(place)
    return watched


async def harmless(watched: Watched) -> None:
    """Nothing of it has become part of the page."""
    assert await watched.page.evaluate("looking.foreign()") == []
    await watched.check()


def plain(text: str) -> str:
    """A text as it is read: names lose their underscores, and blanks run together."""
    return " ".join(text.replace("_", " ").split())


async def texts(watched: Watched, selector: str) -> set[str]:
    return {plain(each) for each in await watched.at(selector).all_text_contents()}


async def all_shown(watched: Watched, selector: str, wanted: Iterable[str] = ALL) -> None:
    """Every one of them is the whole text of an element."""
    await expect(watched.at(selector).nth(len(ALL) - 1)).to_be_attached()
    missing = {plain(each) for each in wanted} - await texts(watched, selector)
    assert not missing, (selector, sorted(missing)[:5])
    await harmless(watched)


async def test_one_execution_with_all_of_them(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages)
    await watched.open(planted.monster)
    for tab in ("Input and result", "Stream", "Steps", "Details"):
        await watched.page.get_by_role("tab", name=tab).click()
        panel = watched.at("[role=tabpanel]")
        if tab == "Stream":
            await expect(watched.at(".stream")).to_contain_text(ALL[-2])
        elif tab == "Input and result":
            for label in ("Input", "Result", "Rolling summary"):
                await panel.get_by_label(label, exact=True).get_by_role("button", name="100 more").click()
                await expect(panel.get_by_label(label, exact=True)).to_contain_text("{{7*7}}")
        await watched.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        shown = plain(await panel.text_content() or "")
        escaped = [plain(each.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")) for each in ALL]
        times = 3 if tab.startswith("Input") else 1
        for wanted in (escaped, [plain(each) for each in ALL]) if times > 1 else ([plain(each) for each in ALL],):
            assert [each for each in wanted if shown.count(each) < times] == [], tab
        await harmless(watched)


async def test_executions_one_by_one(planted: Planted, pages: Pages) -> None:
    """Each text in each field that holds one text: kind, namespace, lane, worker, creator, reasons, signals …"""
    watched = await opened(planted, pages, "executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    pairs = list(zip(planted.singles, ALL, strict=True))
    assert await watched.page.evaluate("(pairs) => looking.executions(pairs)", pairs) == []
    await harmless(watched)


async def test_flows_and_questions_one_by_one(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, "flows")
    for more in (1, 2):
        await expect(watched.at("tbody tr")).to_have_count(more * 100)
        await watched.button("More").click()
    await expect(watched.at("tbody tr")).to_have_count(len(ALL) + 1)
    await all_shown(watched, "tbody td:nth-child(2) a")
    await all_shown(watched, "tbody td:nth-child(3)")
    pairs = list(zip(planted.flows, ALL, strict=True))
    assert await watched.page.evaluate("(pairs) => looking.flows(pairs)", pairs) == []
    await watched.go(f"flows/{planted.graph}")
    await expect(watched.at(".graph[data-placed=true]")).to_be_visible()
    await all_shown(watched, "tbody td:nth-child(2) a")
    await watched.go("approvals")
    for more in range(1, 5):
        await expect(watched.at("[data-ask]")).to_have_count(more * 50)
        await watched.at("button.inbox-item").click()
    await expect(watched.at("[data-ask]")).to_have_count(len(ALL) + 1)
    pairs = list(zip(planted.asks, ALL, strict=True))
    assert await watched.page.evaluate("(pairs) => looking.questions(pairs)", pairs) == []
    await harmless(watched)


async def test_the_longest_form(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, f"approvals/{quote(planted.form, safe='')}")
    await expect(watched.at("[data-question] h2")).to_have_text("a form")
    await all_shown(watched, "[data-question] form label", [f"{each} (optional)" for each in ALL])
    await all_shown(watched, "[data-question] form .hint")
    await all_shown(watched, "[data-question] form option")
    values = await watched.page.evaluate("[...document.querySelectorAll('form .input')].map((each) => each.value)")
    assert {plain(each) for each in ALL} <= {plain(each) for each in values}


async def test_outside_approvers(planted: Planted, pages: Pages) -> None:
    outside = await pages.of(planted.server.url)
    await outside.page.context.add_init_script(LOOKING)
    await outside.page.goto(f"{planted.server.url}answer#{planted.links[0]}")
    await expect(outside.page.get_by_role("heading", level=1)).to_have_text(ALL[0])
    pairs = list(zip(planted.links, ALL, strict=True))
    assert await outside.page.evaluate("(pairs) => looking.answers(pairs)", pairs) == []
    await harmless(outside)
    await outside.page.goto(f"{planted.server.url}answer?form#{planted.form_link}")
    await expect(outside.page.get_by_role("heading", level=1)).to_have_text("a form")
    await all_shown(outside, "form label", [f"{each} (optional)" for each in ALL])
    await all_shown(outside, "form option")


async def test_lists(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, "executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    seen: dict[str, set[str]] = {"name": set(), "cell-space": set(), "cell-lane": set()}
    for _ in range(90):
        for name, found in seen.items():
            found.update(await texts(watched, f".list-row .{name}"))
        if {plain(each) for each in ALL} <= seen["name"]:
            break
        await watched.page.evaluate("document.querySelector('.list').scrollTop += 500")
        await watched.page.wait_for_function("() => new Promise((done) => requestAnimationFrame(() => done(true)))")
    for name, found in seen.items():
        assert {plain(lane_of(each) if name == "cell-lane" else each) for each in ALL} <= found, name
    await all_shown(watched, "#namespace option")
    await watched.go("schedules")
    for cell in ("td:nth-child(1) strong", "[data-schedule] td:nth-child(2)", "td:nth-child(1) .faint"):
        suffix = {"[": (lambda each: f"{each}lane {lane_of(each)}")}.get(cell[0], lambda each: each)
        wanted = [f"{each}, from {each}" if cell.endswith("faint") else suffix(each) for each in ALL]
        await all_shown(watched, cell, wanted)
    await watched.go("workers")
    await all_shown(watched, "[data-lane] strong", map(lane_of, ALL))
    await all_shown(watched, "[data-lane] td:nth-child(2) .faint")
    shared = [f"tag:{each}" for each in ALL if each.isprintable()]
    await all_shown(watched, "[data-lane] td:nth-child(6)", shared)
    rows = "section:last-child tbody tr"
    for cell, change in (("1) strong", str), ("1) .faint", str), ("2)", str), ("3) .badge", lane_of),
                         ("4) .badge", capability_of)):  # fmt: skip
        await all_shown(watched, f"{rows} td:nth-child({cell}", map(change, ALL))
    await watched.go("budgets")
    for cell in ("h2", "header .soft", ".line > span:first-child"):
        await all_shown(watched, f"[data-budget] {cell}")
    await watched.go("audit")
    for column in (2, 3):
        await all_shown(watched, f"tbody td:nth-child({column})")
    await all_shown(watched, "tbody td:nth-child(4) .mono")
    await all_shown(watched, "tbody td:nth-child(4) .faint")
    await watched.go("overview")
    lanes = [f"Lane {lane_of(each)} is paused while 1 waits in it." for each in ALL]
    await all_shown(watched, "[data-matter=lane] .grow", lanes)


async def test_dialogs(planted: Planted, pages: Pages) -> None:
    """What asks back shows what the list shows, so that some of each will do: opening a dialog takes a while."""
    watched = await opened(planted, pages)
    for place, rows, words, wanted in (
        ("budgets", "[data-budget]", ["Limits…"], "Limits of {}"),
        ("budgets", "[data-budget]", ["Reset…"], "Reset {}?"),
        ("schedules", "[data-schedule]", ["Start…"], "Start {} now?"),
        ("workers", "[data-lane]", ["Change", "Drain…"], "Drain lane {}?"),
        ("settings", "tbody tr", ["Revoke…"], "Revoke {}?"),
    ):
        await watched.go(place)
        await expect(watched.at(rows).nth(len(ALL) - 1)).to_be_attached()
        found = await watched.page.evaluate("(given) => looking.dialogs(...given)", [rows, 25, *words])
        known = {plain(wanted.format(each)) for text in ALL for each in (text, lane_of(text))}
        assert len(set(found["titles"]) & known) >= 8, (place, found["titles"])
        assert found["strange"] == []
    await all_shown(watched, "tbody td:nth-child(1) strong")
    await all_shown(watched, "tbody td:nth-child(3)")


async def test_people(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, "settings")
    await expect(watched.at("tbody tr").nth(len(ALL) - 1)).to_be_attached()
    pairs = list(zip(planted.tokens, ALL, strict=True))
    assert await watched.page.evaluate("(pairs) => looking.people(pairs)", pairs) == []
    await harmless(watched)


async def test_in_addresses(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, "overview")
    watched.provoked |= {400, 404}
    for each in ALL[::20]:
        name = quote(each, safe="")
        for place in (f"executions?q={name}", f"executions/{name}", f"flows/{name}", name):
            await watched.page.evaluate("(place) => { location.hash = `#/${place}`; }", place)
            await expect(watched.at(".shell h1, .shell [role=alert]").first).to_be_visible()
        await harmless(watched)
