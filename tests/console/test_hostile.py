"""Hostile texts in every field that is shown: they are shown, and nothing of them ever runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pytest
from playwright.async_api import Locator, expect

from tests.conftest import full_run
from tests.console.conftest import Pages, apart
from tests.console.support.hostile import few, payloads
from tests.console.support.planting import ALL, capability_of, key_of, lane_of, plant
from tests.console.support.renaming import Renamed
from tests.console.support.running import ServerProcess, serving
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
#: Of a list, how many come with one page or unfold at once.
PAGE = 100
LOOKING = "".join((Path(__file__).parent / name).read_text() for name in ("looking.js", "acting.js"))


class Planted(NamedTuple):
    """A server whose store holds nothing nice; lists in the order of the texts."""

    server: ServerProcess
    singles: list[str]
    flows: list[str]
    asks: list[str]
    links: list[str]
    tokens: list[str]
    families: list[tuple[str, str, Sequence[str]]]
    form: str
    form_link: str
    everybody: str
    answered: str
    monster: str
    waiter: str
    graph: str
    admin: str


async def test_there_are_enough() -> None:
    every = payloads()
    assert len(every) == len(set(every)) == 200
    assert len({lane_of(each) for each in every}) == len({capability_of(each) for each in every}) == 200
    assert len({key_of(each) for each in every}) == 200
    assert set(every) >= set(few())
    assert len(ALL) == len(set(ALL)) == (200 if full_run() else 40)


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


async def turned(watched: Watched, place: str) -> None:
    """To another page, without loading the console again."""
    await watched.page.evaluate("(place) => { looking.moving(); location.hash = `#/${place}`; }", place)
    await expect(watched.page.get_by_role("heading", level=1)).to_have_text(re.compile(f"^{place}", re.IGNORECASE))


async def looked(watched: Watched, name: str, *given: Any) -> Any:
    """What a look of ``looking.js`` finds."""
    return await watched.page.evaluate("([name, given]) => looking[name](...given)", [name, given])


async def nothing_lacks(watched: Watched, name: str, *given: Any) -> None:
    """A look that tells what it does not find finds everything."""
    assert await looked(watched, name, *given) == [], name
    await watched.check()


async def harmless(watched: Watched) -> None:
    """Nothing of it has become part of the page."""
    assert await looked(watched, "foreign") == []
    await watched.check()


def plain(text: str) -> str:
    """A text as it is read: names lose their underscores, and blanks run together."""
    return " ".join(text.replace("_", " ").split())


def pairs(ids: Sequence[Any]) -> list[tuple[Any, str]]:
    """What belongs to each of the texts, with its text."""
    return list(zip(ids, ALL, strict=True))


async def unfold(region: Locator) -> None:
    """Show all that a value has."""
    if len(ALL) > PAGE:
        await region.get_by_role("button", name=f"{PAGE} more").click()


def complete(found: Iterable[str], wanted: Iterable[str] = ALL, where: str = "") -> None:
    """All of them are among what was found."""
    missing = {plain(each) for each in wanted} - set(found)
    assert not missing, (where, sorted(missing)[:5])


async def all_shown(watched: Watched, selector: str, wanted: Iterable[str] = ALL) -> None:
    """Every one of them is the whole text of an element."""
    await expect(watched.at(selector).nth(len(ALL) - 1)).to_be_attached()
    complete(await looked(watched, "texts", selector), wanted, selector)
    await harmless(watched)


async def test_one_execution_with_all_of_them(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, f"executions/{quote(planted.monster, safe='')}")
    for tab in ("Input and result", "Stream", "Details"):
        await watched.page.get_by_role("tab", name=tab).click()
        panel = watched.at("[role=tabpanel]")
        if tab == "Stream":
            await expect(watched.at(".stream")).to_contain_text(ALL[-2])
        elif tab == "Input and result":
            for label in ("Input", "Result", "Rolling summary"):
                await unfold(panel.get_by_label(label, exact=True))
                await expect(panel.get_by_label(label, exact=True)).to_contain_text("{{7*7}}")
        shown = plain(await panel.text_content() or "")
        escaped = [plain(each.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")) for each in ALL]
        times = 3 if tab.startswith("Input") else 1
        for wanted in (escaped, [plain(each) for each in ALL]) if times > 1 else ([plain(each) for each in ALL],):
            assert [each for each in wanted if shown.count(each) < times] == [], tab
        await harmless(watched)
    # Steps that gave JSON, plain text and bytes, and the dialog to fork from one of them.
    await watched.page.get_by_role("tab", name="Steps").click()
    await all_shown(watched, ".step .clip")
    values = await looked(watched, "texts", ".step [role=region]")
    complete(values, [*ALL, *(f"plain {each}" for each in ALL)])
    complete(await looked(watched, "dumps"), [each.replace("\t", "·") for each in ALL])
    await watched.choose("More", "Fork from a step")
    await all_shown(watched, "dialog option", [f"{at}. {each}" for at, each in enumerate(ALL, 1)])


async def test_one_that_waits_for_all_of_them(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, f"executions/{quote(planted.waiter, safe='')}")
    await expect(watched.at("[data-why] strong")).to_contain_text("Waiting for signal")
    shown = plain(await watched.at("[data-why] strong").text_content() or "")
    assert [each for each in ALL if plain(f"'{each}'") not in shown] == []
    await watched.page.get_by_role("tab", name="Waits").click()
    await all_shown(watched, "[role=tabpanel] td:nth-child(1)")
    await watched.page.get_by_role("tab", name="Details").click()
    detail = watched.page.get_by_label("Detail", exact=True)
    await unfold(detail)
    await expect(detail).to_contain_text(f"waitpoint_key: {msgspec.json.encode('{{7*7}}').decode()}")
    shown = plain(await detail.text_content() or "")
    keys = [plain(f"waitpoint_key: {msgspec.json.encode(each).decode()}required") for each in ALL]
    assert [each for each in keys if each not in shown] == []


async def test_executions_one_by_one(planted: Planted, pages: Pages) -> None:
    """Each text in each field that holds one text: kind, namespace, lane, worker, creator, reasons, signals …"""
    watched = await opened(planted, pages, "executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    await nothing_lacks(watched, "executions", pairs(planted.singles))
    started = [((root, "Children"), texts) for root, _, texts in planted.families]
    await nothing_lacks(watched, "families", started)
    beside = [((first, "Other members of its flow"), texts[1:]) for _, first, texts in planted.families]
    await nothing_lacks(watched, "families", beside)


async def test_flows_one_by_one(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, "flows")
    flows = len(ALL) + len(planted.families) + 1
    for shown in range(PAGE, flows, PAGE):
        await expect(watched.at("tbody tr")).to_have_count(shown)
        await watched.button("More").click()
    await expect(watched.at("tbody tr")).to_have_count(flows)
    await all_shown(watched, "tbody td:nth-child(2) a")
    await all_shown(watched, "tbody td:nth-child(3)")
    await nothing_lacks(watched, "flows", pairs(planted.flows))
    await watched.go(f"flows/{planted.graph}")
    await expect(watched.at(".graph[data-placed=true]")).to_be_visible()
    await all_shown(watched, "tbody td:nth-child(2) a")
    tips = await looked(watched, "tips")
    assert len(tips) == len(ALL), tips
    complete(tips)
    await harmless(watched)


async def test_questions_one_by_one(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, f"approvals/{quote(planted.answered, safe='')}")
    await all_shown(watched, "[data-question] tbody strong")
    await all_shown(watched, "[data-question] tbody .faint", [f"given by {each} himself" for each in ALL])
    await all_shown(watched, "[data-question] tbody td:nth-child(4)", [f"{each} {each}" for each in ALL])
    await watched.go(f"approvals/{quote(planted.everybody, safe='')}")
    await all_shown(watched, "[data-question] #by option")
    await watched.go(f"approvals/{quote(planted.form, safe='')}")
    await watched.at("[data-question] form").wait_for()
    await watched.page.evaluate("document.querySelectorAll('form [data-add]').forEach((each) => each.click())")
    await all_shown(watched, "[data-question] form label")
    await all_shown(watched, "[data-question] form .hint")
    await all_shown(watched, "[data-question] form option")
    complete(await looked(watched, "values", "form .input"))
    await watched.go("approvals")
    if len(ALL) > PAGE:
        await expect(watched.at("[data-ask]")).to_have_count(2 * PAGE)
        await watched.at("button.inbox-item").click()
    await expect(watched.at("[data-ask]")).to_have_count(len(ALL) + 3)
    await all_shown(watched, "[data-ask] strong")
    await all_shown(watched, "[data-ask] .soft .clip")
    await nothing_lacks(watched, "questions", pairs(planted.asks))


async def test_outside_approvers(planted: Planted, pages: Pages) -> None:
    outside = await pages.of(planted.server.url)
    outside.provoked |= {400, 404}
    await outside.page.context.add_init_script(LOOKING)
    await outside.page.goto(f"{planted.server.url}answer#{planted.links[0]}")
    await expect(outside.page.get_by_role("heading", level=1)).to_have_text(ALL[0])
    await nothing_lacks(outside, "answers", pairs(planted.links))
    await nothing_lacks(outside, "badLinks", ALL)
    await outside.page.goto(f"{planted.server.url}answer?form#{planted.form_link}")
    await expect(outside.page.get_by_role("heading", level=1)).to_have_text("a form")
    await outside.page.evaluate("document.querySelectorAll('form [data-add]').forEach((each) => each.click())")
    await all_shown(outside, "form label")
    await all_shown(outside, "form option")


async def test_lists(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, "executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    await nothing_lacks(watched, "rows", ALL)
    await all_shown(watched, "#namespace option")
    await turned(watched, "schedules")
    await all_shown(watched, "td:nth-child(1) strong")
    await all_shown(watched, "td:nth-child(1) .faint", [f"{each}, from {each}" for each in ALL])
    await all_shown(watched, "[data-schedule] td:nth-child(2)", [f"{each}lane {lane_of(each)}" for each in ALL])
    await turned(watched, "workers")
    await all_shown(watched, "[data-lane] strong", map(lane_of, ALL))
    await all_shown(watched, "[data-lane] td:nth-child(2) .faint")
    shared = [f"tag:{each}" for each in ALL if each.isprintable()]
    await all_shown(watched, "[data-lane] td:nth-child(6)", shared)
    rows = "section:last-child tbody tr"
    for cell, change in (("1) strong", str), ("1) .faint", str), ("2)", str), ("3) .badge", lane_of),
                         ("4) .badge", capability_of)):  # fmt: skip
        await all_shown(watched, f"{rows} td:nth-child({cell}", map(change, ALL))
    await turned(watched, "budgets")
    for cell in ("h2", "header .soft", ".line > span:first-child"):
        await all_shown(watched, f"[data-budget] {cell}")
    complete(await looked(watched, "labels", "[role=meter]"), [f"{each} of {each}" for each in ALL])
    await turned(watched, "audit")
    older, entries = watched.button("Older"), watched.at("tbody tr")
    await expect(entries.nth(len(ALL) - 1)).to_be_attached()
    while await older.count():
        shown = await entries.count()
        await older.click()
        await expect(entries.nth(shown)).to_be_attached()
    for column in (2, 3):
        await all_shown(watched, f"tbody td:nth-child({column})")
    await all_shown(watched, "tbody td:nth-child(4) span.mono")
    await all_shown(watched, "tbody td:nth-child(4) .faint")
    await all_shown(watched, "tbody td:nth-child(4) a", [f"{{fp:0}}:{each}" for each in ALL])
    await turned(watched, "settings")
    await all_shown(watched, "tbody td:nth-child(1) strong")
    await all_shown(watched, "tbody td:nth-child(3)")
    await all_shown(watched, "#namespace-here option")
    await all_shown(watched, ".facts dd div .mono", map(key_of, ALL[:-1]))


async def test_overview(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, "overview")
    lanes = [f"Lane {lane_of(each)} is paused with 1 waiting." for each in ALL]
    await all_shown(watched, "[data-matter=lane] .grow", lanes)
    budgets = await looked(watched, "texts", "[data-matter=budget] .grow")
    known = {plain(f"Budget {each} is nearly used up: 90% of its {each}.") for each in ALL}
    assert len(set(budgets) & known) == len(budgets) == 12, budgets
    renamed = Renamed()
    await watched.page.route("**/v1/overview?*", renamed.overview)
    await watched.page.route("**/v1/attention", renamed.attention)
    for begin in range(0, len(ALL), renamed.ROUND):
        renamed.at = begin
        found = await looked(watched, "overview")
        assert found["strange"] == []
        for chart in ("Waiting by lane", "Oldest by lane", "Budgets"):
            names = [plain(each if chart == "Budgets" else lane_of(each)) for each in renamed.texts]
            assert found[chart]["legend"] == names
            for name, tip in zip(names, found[chart]["tip"], strict=True):
                assert tip.startswith(f"{name} "), (chart, tip)
                assert f"{name} " in found[chart]["label"], (chart, name)
        complete(found["budget"], [f"Budget {each} is nearly used up: 90% of its {each}." for each in renamed.texts])
        complete(found["worker"], [f"Worker {each} is gone; it held 1 lease." for each in renamed.texts])
    await watched.page.unroute_all()


async def asked_back(watched: Watched, rows: str, wanted: Iterable[str], **how: Any) -> Any:
    """The dialogs of all rows of the list that is open: all of these titles are among theirs."""
    await expect(watched.at(rows).nth(len(ALL) - 1)).to_be_attached()
    found = await looked(watched, "dialogs", rows, how)
    complete(found["titles"], wanted, str(how))
    assert found["strange"] == []
    await watched.check()
    return found


async def test_dialogs_and_toasts(planted: Planted, pages: Pages) -> None:
    """What asks back before something is done, for every one of them, and what is said when it is done."""
    watched = await opened(planted, pages, "budgets")
    limits = await asked_back(watched, "[data-budget]", [f"Limits of {each}" for each in ALL], open="Limits…")
    complete(limits["labels"])
    await asked_back(watched, "[data-budget]", [f"Reset {each}?" for each in ALL], open="Reset…")
    await turned(watched, "schedules")
    await asked_back(watched, "[data-schedule]", [f"Start {each} now?" for each in ALL], open="Start…")
    await turned(watched, "workers")
    rows, reason = "[data-lane]:has(td:nth-child(2) .faint)", "td:nth-child(2) .faint"
    titles = [f"Drain lane {lane_of(each)}?" for each in ALL]
    found = await asked_back(watched, rows, titles, open="Change", choose="Drain…", again=reason)
    complete(found["said"], [f"Lane {lane_of(each)} is draining." for each in ALL])
    await looked(watched, "paused", planted.admin, [(lane_of(each), each) for each in ALL])
    await turned(watched, "settings")
    await asked_back(watched, "tbody tr", [f"Revoke {each}?" for each in ALL], open="Revoke…")


async def test_what_one_types(planted: Planted, pages: Pages) -> None:
    """Filters of what is done to many, names of credentials and of keys: said again as they were typed."""
    watched = await opened(planted, pages, "executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    watched.provoked |= {400}
    await nothing_lacks(watched, "bulk", ALL)
    await turned(watched, "settings")
    await expect(watched.at("dd.mono")).to_be_visible()
    await nothing_lacks(watched, "keys", list(map(key_of, ALL)))
    await nothing_lacks(watched, "made", ALL)


async def test_people(planted: Planted, pages: Pages) -> None:
    watched = await opened(planted, pages, "settings")
    await expect(watched.at("tbody tr").nth(len(ALL) - 1)).to_be_attached()
    await nothing_lacks(watched, "people", pairs(planted.tokens))


async def test_in_addresses(planted: Planted, pages: Pages) -> None:
    """Every kind of address that says something, with all of them in it."""
    watched = await opened(planted, pages, "overview")
    watched.provoked |= {400, 404, 422}
    await expect(watched.at("#namespace option").nth(len(ALL) - 1)).to_be_attached()
    await nothing_lacks(watched, "addresses", ALL, planted.singles[0])
