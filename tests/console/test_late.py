"""Answers that come late, twice or not at all: a press does one thing, to what was shown, and no typed text is lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Request, expect

from flowfabric.engine import Engine
from flowfabric.model.states import PublicState
from tests.console.conftest import Pages, Shop
from tests.console.support.late import LOOK, Inbox, held, made_up
from tests.console.support.watched_page import Watched
from tests.schedules import every

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def engine(shop: Shop) -> AsyncIterator[Engine]:
    async with await Engine.open(shop.server.store, single_node=True) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def watched(shop: Shop, pages: Pages) -> Watched:
    found = await pages.of(shop.url)
    # Requests that are cut off are written to the browser's console.
    found.provoked.add(0)
    return found


async def made(engine: Engine, lane: str, amount: int = 1) -> list[str]:
    calls = [{"namespace": "late", "lane_id": lane, "execution_kind": f"{lane} {number}"} for number in range(amount)]
    return [str(each.execution_id) for each in await engine.create_executions(calls)]


async def names(watched: Watched, amount: int) -> list[str]:
    """What the list shows, once it shows so many."""
    await expect(watched.at(".list-row")).to_have_count(amount)
    return await watched.at(".list-row .name").all_inner_texts()


@pytest_asyncio.fixture(loop_scope="session")
async def inbox(watched: Watched) -> Inbox:
    made = Inbox()
    await made_up(watched.page, r"/v1/asks(/|\?|$)", made.answer)
    return made


async def test_a_question_stays_while_others_arrive(watched: Watched, inbox: Inbox) -> None:
    first = inbox.ask(1)
    await watched.go("approvals")
    question = watched.at("[data-question]")
    await question.get_by_label("Note").fill("half a sentence")
    inbox.ask(2, until=1_700_000_000_000)
    await watched.page.evaluate(LOOK)
    await expect(watched.at("[data-ask]")).to_have_count(2)
    await expect(question.locator("h2")).to_have_text("question 1?")
    await expect(question.get_by_label("Note")).to_have_value("half a sentence")
    # Questions push it off the pages that are read.
    inbox.page = 0
    await watched.page.evaluate(LOOK)
    await expect(watched.at("[data-ask]")).to_have_count(0)
    await expect(question.get_by_label("Note")).to_have_value("half a sentence")
    inbox.page = 50
    await question.get_by_role("button", name="Yes").dblclick()
    await expect(question.locator(".badge").first).to_have_text("closed")
    await expect(question.locator("h2")).to_have_text("question 1?")
    assert [identity for identity, _ in inbox.given] == [first["execution_id"]]
    await watched.at("[data-ask]").click()
    await expect(question.locator("h2")).to_have_text("question 2?")
    assert len(inbox.given) == 1


async def test_nobody_is_chosen_by_the_page(watched: Watched, inbox: Inbox) -> None:
    ask = inbox.ask(1, of=["ann", "bob", "cid"])
    await watched.go("approvals")
    yes = watched.button("Yes", exact=True)
    await expect(yes).to_be_disabled()
    await watched.at("select#by").select_option("ann")
    await expect(yes).to_be_enabled()
    ask["given"].append({"by": "ann", "identity": None, "said": "approve", "at": 1, "value": {}})
    await watched.page.evaluate(LOOK)
    await expect(yes).to_be_disabled()
    await expect(watched.at("select#by")).to_have_value("")
    assert not inbox.given


async def test_more_questions_leave_the_form_as_it_is(watched: Watched, inbox: Inbox) -> None:
    for number in range(6):
        inbox.ask(number)
    inbox.page = 1
    await watched.go("approvals")
    await expect(watched.at("[data-ask]")).to_have_count(4)
    note = watched.at("[data-question]").get_by_label("Note")
    await note.fill("half a sentence")
    await watched.button("More", exact=True).dblclick()
    await expect(watched.at("[data-ask]")).to_have_count(5)
    await expect(note).to_have_value("half a sentence")


@pytest.mark.parametrize(
    ("page", "path", "button"), [("audit", "v1/admin/audit", "Older"), ("flows", "v1/search/flows", "More")]
)
async def test_more_rows_leave_the_others_where_they_are(watched: Watched, page: str, path: str, button: str) -> None:
    """The table stays while a further page is on its way."""

    def answer(request: Request) -> Any:
        first = "1.1" not in request.url
        times = {"created_at": 1, "ended_at": None, "at_ms": 1}
        row = {
            "audit_id": first, "who": "ann", "act": "x", "subject": "", "status": 200, "flow_id": f"flow {first}",
            "flow_kind": "x", "root_kind": None, "root_key": None, "public_flow_state": "open", "namespace": "shop",
            "node_count": 1, **times,
        }  # fmt: skip
        return {"entries": [row], "flows": [row], "next_cursor": "1.1" if first else None}

    await made_up(watched.page, path, answer)
    await watched.go(page)
    await expect(watched.at("tbody tr")).to_have_count(1)
    await watched.page.evaluate(
        "new MutationObserver(() => { globalThis.gone ||= !document.querySelector('tbody tr'); })"
        ".observe(document.body, { childList: true, subtree: true })"
    )
    await watched.button(button, exact=True).click()
    await expect(watched.at("tbody tr")).to_have_count(2)
    assert not await watched.page.evaluate("globalThis.gone")


async def test_keys_stay_with_their_row(watched: Watched, engine: Engine) -> None:
    """Whenever a refresh comes: what x and Enter mean is the row under the cursor."""
    await made(engine, "keys", 3)
    await watched.go("executions?q=lane%3Akeys")
    _, second, third = await names(watched, 3)
    for _ in range(2):
        await watched.page.keyboard.press("j")
    cursor = watched.at(".list-row.cursor")
    await expect(cursor.locator(".name")).to_have_text(second)
    async with held(watched.page, "/v1/search/executions", "GET") as way:
        await made(engine, "keys", 5)
        await watched.page.evaluate(LOOK)
        await way.answered.wait()
        await watched.page.keyboard.press("j")
        await expect(cursor.locator(".name")).to_have_text(third)
    await expect(watched.at(".list-row")).to_have_count(8)
    await expect(cursor).to_have_attribute("aria-posinset", "8")
    await watched.page.keyboard.press("x")
    await expect(cursor.locator("input")).to_be_checked()
    await expect(watched.at(".list-row input:checked")).to_have_count(1)


async def test_a_list_that_was_left_does_not_move_the_next_one(watched: Watched, engine: Engine) -> None:
    await made(engine, "left", 3)
    await made(engine, "next", 3)
    await watched.go("executions?q=lane%3Aleft")
    await names(watched, 3)
    await watched.page.keyboard.press("j")
    async with held(watched.page, "/v1/search/executions.*lane%3Aleft", "GET") as way:
        await made(engine, "left", 1)
        await watched.page.evaluate(LOOK)
        await way.answered.wait()
        await watched.page.evaluate("location.hash = '#/executions?q=lane%3Anext'")
        await expect(watched.at(".list-row .name").first).to_contain_text("next")
        await watched.page.keyboard.press("j")
        await expect(watched.at(".list-row.cursor")).to_have_attribute("aria-posinset", "1")
        async with watched.page.expect_response("**/v1/search/executions**"):
            way.release()
    await watched.page.evaluate("new Promise(requestAnimationFrame)")
    await expect(watched.at(".list-row.cursor")).to_have_attribute("aria-posinset", "1")
    first, *_ = await names(watched, 3)
    await watched.page.keyboard.press("Enter")
    await expect(watched.page.get_by_role("heading", level=1)).to_have_text(first)


async def test_who_types_and_leaves_is_left_alone(watched: Watched, shop: Shop) -> None:
    """The search box sends what was typed after a moment; not if its list was left by then."""
    await watched.go("executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    await watched.page.clock.install()
    await watched.at("#q").press_sequentially("charge")
    await watched.page.evaluate(
        """() => {
            location.hash = "#/schedules";
            // Before the page is another one, as when its code is still on the way.
            globalThis.left = new Promise((done) => addEventListener("hashchange", () => done(location.hash)));
        }"""
    )
    await watched.page.clock.run_for(1_000)
    assert await watched.page.evaluate("globalThis.left") == "#/schedules"
    await expect(watched.page.get_by_role("heading", level=1)).to_have_text("Schedules")
    assert watched.page.url.endswith("#/schedules")
    await watched.page.evaluate(
        """async () => {
            const { go, read } = await import("/console/executions/address.js");
            go({ ...read(new URLSearchParams()), q: "charge" }, { replace: true });
        }"""
    )
    assert watched.page.url.endswith("#/schedules")


@pytest.mark.parametrize("lost", [False, True])
async def test_a_dialog_that_was_left_closes_no_other(watched: Watched, engine: Engine, lost: bool) -> None:
    """What became of its act is told, wherever one is by then."""
    [identity] = await made(engine, f"dialogs {lost}")
    await watched.open(identity)
    await watched.button("Cancel…").click()
    async with held(watched.page, "request-cancel", lost=None if lost else ()) as way:
        await watched.at("dialog").get_by_role("button", name="Cancel", exact=True).dblclick()
        await way.answered.wait()
        await watched.page.keyboard.press("Escape")
        await expect(watched.at("dialog")).to_have_count(0)
        await watched.page.keyboard.press("?")
        await expect(watched.at("#dialog-title")).to_have_text("Keyboard shortcuts")
        way.release()
        told = "Cancel this execution: The connection to the server was lost" if lost else "Cancelled."
        await expect(watched.at(".toast")).to_contain_text(told)
    await expect(watched.at("#dialog-title")).to_have_text("Keyboard shortcuts")
    assert len(way.asked) == 1
    assert await engine.read_execution_state(identity) == PublicState.CANCELLED


async def test_a_second_try_is_the_same_act(watched: Watched, engine: Engine) -> None:
    """The answer to a fork was lost; who tries again gets that one, not another."""
    [identity] = await made(engine, "twice")
    before = len((await engine.search_executions(limit=1_000, query="lane:twice")).executions)
    await watched.open(identity)
    async with held(watched.page, "/fork$", lost={0}) as way:
        way.release()
        await watched.choose("More", "Start again with edited input")
        start = watched.at("dialog").get_by_role("button", name="Start", exact=True)
        await start.click()
        await expect(watched.at("dialog [role=alert]")).to_contain_text("The connection to the server was lost")
        await start.click()
        await expect(watched.at("[data-id]")).not_to_have_text(identity)
    assert len(way.keys) == 2
    assert len(set(way.keys)) == 1
    assert len((await engine.search_executions(limit=1_000, query="lane:twice")).executions) == before + 1


async def test_what_is_left_of_many_is_done_by_the_second_try(watched: Watched, engine: Engine) -> None:
    ids = await made(engine, "many", 12)
    await watched.go("executions?q=lane%3Amany")
    await expect(watched.at(".list-row")).to_have_count(12)
    for row in range(12):
        await watched.at(".list-row input").nth(row).check()
    await watched.at(".bulk").get_by_role("button", name="Cancel…").click()
    cancel = watched.at("dialog").get_by_role("button", name="Cancel", exact=True)
    async with held(watched.page, "request-cancel", lost={0}) as way:
        await cancel.dblclick()
        await way.answered.wait()
        way.release()
        await expect(watched.at("dialog [role=alert]")).to_contain_text(
            "of 12 done. The connection to the server was lost"
        )
        first = len(way.asked)
        assert first < 12, "nothing more is begun after the loss"
        await expect(cancel).to_be_enabled()
        await cancel.click()
        await expect(watched.at("dialog")).to_have_count(0)
    assert len(way.asked) == 13, "one was asked for twice"
    assert len(set(way.keys)) == 12
    await expect(watched.at(".toast").last).to_have_text("12 executions cancelled.")
    assert {await engine.read_execution_state(each) for each in ids} == {PublicState.CANCELLED}


async def test_what_is_not_counted_is_not_done(watched: Watched) -> None:
    """And a batch whose answer was lost is the one that a second try begins with."""
    batches: list[tuple[str | None, Any]] = []
    state = {"count": 0, "lose": True}

    def answer(request: Request) -> Any:
        body = msgspec.json.decode(request.post_data or "")
        cursor = body.get("cursor")
        if body.get("dry_run"):
            state["count"] += 1
            if state["count"] == 2:
                return None
            return {"matched": 1_000, "done": [], "failed": [], "next_cursor": None if cursor else "next"}
        batches.append((request.headers.get("idempotency-key"), cursor))
        if cursor and state["lose"]:
            state["lose"] = False
            return None
        return {"matched": 0, "done": ["x"] * 1_000, "failed": [], "next_cursor": None if cursor else "next"}

    await made_up(watched.page, "v1/bulk/cancel", answer)
    await watched.go("executions?q=lane%3Abulk")
    await watched.choose("Bulk actions", "Cancel all matches")
    submit = watched.at("dialog [type=submit]")
    await expect(watched.at("dialog [role=alert]")).to_contain_text("The count is incomplete.")
    await expect(watched.at("[data-preview]")).to_have_text("At least 1,000")
    await expect(submit).to_be_disabled()
    await watched.at("[data-again]").click()
    await expect(watched.at("[data-preview]")).to_have_text("2,000")
    await submit.click()
    await expect(watched.at("dialog [role=alert]")).to_contain_text("The connection to the server was lost")
    await submit.click()
    await expect(watched.at(".toast").last).to_have_text("2,000 executions cancelled.")
    assert [cursor for _, cursor in batches] == [None, "next", "next"]
    assert len({key for key, _ in batches}) == 2


async def test_a_token_is_never_lost(watched: Watched) -> None:
    made: list[Request] = []
    release = asyncio.Event()

    async def create(route: Any) -> None:
        if route.request.method != "POST":
            await route.fulfill(json={"credentials": [], "next_cursor": None})
            return
        made.append(route.request)
        await release.wait()
        await route.fulfill(json={"token": "ff_made_up", "credential_id": "1"})

    await watched.page.route("**/v1/admin/credentials*", create)
    await watched.go("settings")
    await watched.button("New credential…").click()
    await watched.page.get_by_label("Name", exact=True).fill("once")
    await watched.button("Create").dblclick()
    for _ in range(3):
        await watched.page.keyboard.press("Escape")
    await watched.page.mouse.click(5, 5)
    release.set()
    token = watched.page.get_by_label("Token", exact=True)
    await expect(token).to_have_value("ff_made_up")
    box = await token.bounding_box()
    assert box is not None
    await watched.page.mouse.move(box["x"] + 20, box["y"] + 5)
    await watched.page.mouse.down()
    await watched.page.mouse.move(5, 5)
    await watched.page.mouse.up()
    await expect(token).to_have_value("ff_made_up")
    assert len(made) == 1
    await watched.button("Done").click()
    await expect(watched.at("dialog")).to_have_count(0)


@pytest.mark.parametrize("clicks", ["double", "two"])
async def test_a_double_click_pauses_once(watched: Watched, engine: Engine, clicks: str) -> None:
    await engine.put_schedule(f"late {clicks}", spec=every(3_600_000), execution_kind="x", namespace="late")
    clock = watched.page.clock
    await clock.install()
    await watched.go("schedules")
    row = watched.at(f"[data-schedule='late {clicks}']")
    pause = row.get_by_role("button", name="Pause")
    await expect(pause).to_be_visible()
    asked = []
    watched.page.on("request", lambda each: asked.append(each.url) if each.method == "POST" else None)
    # Two clicks are a double click only if little time passes between them: here none does, however busy the machine.
    await clock.pause_at(await watched.page.evaluate("Date.now() / 1_000") + 1)
    await pause.hover()
    box = await pause.bounding_box()
    assert box is not None
    for _ in range(2):
        await watched.page.mouse.click(box["x"] + 5, box["y"] + 5)
        if clicks == "two":
            # As fast as a person can, and slower than the answer.
            await expect(row).to_contain_text("paused")
    await clock.resume()
    await expect(row.get_by_role("button", name="Resume")).to_be_enabled()
    found = await engine.get_schedule(f"late {clicks}", "late")
    assert found is not None
    assert found.paused
    assert len(asked) == 1


async def test_what_is_not_possible_now_may_be_in_a_moment(watched: Watched, engine: Engine) -> None:
    """A dialog looks again for as long as it says so, whatever it asks about."""
    [identity] = await made(engine, "in a moment")
    await engine.put_schedule("late backfill", spec=every(3_600_000), execution_kind="x", namespace="late")
    soon = {"possible": False, "sentence": "Not yet."}
    now = {"possible": True, "sentence": "By all means."}
    state = {"possible": False}
    range_ = {"first_ms": 1, "last_ms": 2, "slots": 3}

    def answer(request: Request) -> Any:
        if "bulk" in request.url:
            return {"matched": 3 if state["possible"] else 0, "done": [], "failed": [], "next_cursor": None}
        if "backfill" in request.url:
            return {"Preview": {**range_, "existing": 0 if state["possible"] else 3}}
        return {"change_priority": now if state["possible"] else soon}

    await made_up(watched.page, "/preview$|v1/bulk/cancel|v1/.*/backfill", answer)
    submit = watched.at("dialog [type=submit]")
    for place, menu, item, told in (
        (f"executions/{quote(identity, safe='')}", "More", "Change priority", "Not yet."),
        ("executions?q=lane%3Ain", "Bulk actions", "Cancel all matches", "0 executions match."),
        ("schedules/late%20backfill?namespace=late", "More", "Backfill", "Nothing to start."),
    ):
        state["possible"] = False
        await watched.go(place)
        await watched.choose(menu, item)
        await expect(watched.at("dialog")).to_contain_text(told)
        await expect(submit).to_be_disabled()
        state["possible"] = True
        await watched.page.evaluate(LOOK)
        await expect(submit).to_be_enabled()


async def test_what_is_gone_is_not_shown(watched: Watched, engine: Engine) -> None:
    await engine.put_schedule("late gone", spec=every(3_600_000), execution_kind="x", namespace="late")
    await watched.go("schedules/late%20gone?namespace=late")
    heading = watched.page.get_by_role("heading", level=1)
    await expect(heading).to_have_text("late gone")
    watched.provoked.add(404)
    await engine.delete_schedule("late gone", "late")
    await watched.page.evaluate(LOOK)
    await expect(heading).to_have_text("Schedule not found")
    await expect(watched.button("Pause")).to_have_count(0)


async def test_a_double_click_is_about_one_row(watched: Watched, engine: Engine) -> None:
    """Also if a message above the table moves another row under the pointer in between."""
    for number in range(4):
        await engine.put_schedule(
            f"late row {number}", spec=every(3_600_000 * (number + 1)), execution_kind="x", namespace="rows"
        )
    await watched.page.add_init_script("if (origin !== 'null') sessionStorage.setItem('ff.namespace', 'rows')")
    await watched.go("schedules")
    pause = watched.at("[data-schedule='late row 2']").get_by_role("button", name="Pause")
    await pause.hover()
    box = await pause.bounding_box()
    assert box is not None
    x, y = box["x"] + 5, box["y"] + box["height"] / 2
    asked = []
    watched.page.on("request", lambda each: asked.append(each.url) if each.method == "POST" else None)
    await watched.page.mouse.click(x, y)
    # As far as a message moves everything, and a little more.
    await watched.page.evaluate(
        "document.querySelector('main').style.paddingTop = `${document.querySelector('tbody tr').offsetHeight}px`"
    )
    under = await watched.page.evaluate(
        "([x, y]) => document.elementFromPoint(x, y).closest('tr')?.dataset.schedule", [x, y]
    )
    assert under not in (None, "late row 2")
    await watched.page.mouse.down(click_count=2)
    await watched.page.mouse.up(click_count=2)
    await expect(watched.at("[data-schedule='late row 2']")).to_contain_text("paused")
    assert len(asked) == 1
    for number in range(4):
        found = await engine.get_schedule(f"late row {number}", "rows")
        assert found is not None
        assert found.paused == (number == 2)


async def test_keys_and_clicks_count_before_anything_is_drawn(watched: Watched, engine: Engine) -> None:
    """The end of a list is meant as soon as End is pressed, and two clicks narrow it by both."""
    await made(engine, "end", 30)
    async with held(watched.page, "/v1/search/executions", "GET") as way:
        await watched.go("executions?q=lane%3Aend")
        await expect(watched.at(".list .loading")).to_be_visible()
        await way.answered.wait()
        await watched.page.keyboard.press("End")
    await expect(watched.at(".list-row.cursor")).to_have_attribute("aria-posinset", "30")
    await watched.page.evaluate(
        "for (const each of ['waiting', 'failed']) document.querySelector(`[data-state=${each}]`).click()"
    )
    await expect(watched.page).to_have_url(re.compile("state=(failed%2Cwaiting|waiting%2Cfailed)"))
    await expect(watched.at("[data-state=waiting], [data-state=failed]")).to_have_count(2)
    for state in ("waiting", "failed"):
        await expect(watched.at(f"[data-state={state}]")).to_have_attribute("aria-pressed", "true")
