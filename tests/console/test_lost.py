"""What was not answered is asked for again, and said; what is shown does not move away from whoever looks at it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Request, expect

from flowfabric.engine import Engine
from flowfabric.model.operations.executions import ClaimPolicy
from tests.console.conftest import Pages, Shop
from tests.console.support.late import LOOK, made_up
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
LOST = "The server cannot be reached"
#: The server's answers to requests for a while: {status, body, before: what is done before the answer is there}.
ANSWERED = """
async ({ body, status, act }) => {
  const session = await import("/console/session.js"), api = await import("/console/api.js");
  const real = globalThis.fetch;
  globalThis.fetch = async () => {
    if (act) session.keepToken("another one");
    return new Response(body, { status });
  };
  try {
    await api.post("v1/anything");
    return "answered";
  } catch (problem) {
    return [problem.status, session.me.peek().signed_in];
  } finally {
    globalThis.fetch = real;
    sessionStorage.removeItem("ff.token");
  }
}
"""


@pytest_asyncio.fixture(loop_scope="session")
async def engine(shop: Shop) -> AsyncIterator[Engine]:
    async with await Engine.open(shop.server.store, single_node=True) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def watched(shop: Shop, pages: Pages) -> Watched:
    found = await pages.of(shop.url)
    # Requests that are cut off are written to the browser's console.
    found.provoked.update((0, 503))
    return found


class Gone:
    """Nothing is answered, until something is."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.there = False

    def __call__(self, request: Request) -> Any:
        return self.answer if self.there else None


async def test_inputs_and_results_are_asked_for_again(watched: Watched, shop: Shop) -> None:
    given, result = Gone({"payload": "MTIz", "tags": {}}), Gone({"late": "result"})
    await made_up(watched.page, "/input$", given)
    await made_up(watched.page, "/result$", result)
    await watched.open(shop.seeded.completed)
    panel = watched.at("[role=tabpanel]")
    await expect(panel.locator("[role=alert]")).to_have_count(2)
    await expect(panel).not_to_contain_text("No result")
    given.there = result.there = True
    await watched.page.evaluate(LOOK)
    await expect(panel.get_by_label("Input", exact=True)).to_have_text("123")
    await expect(panel.get_by_label("Result", exact=True)).to_contain_text("late")


async def test_a_result_is_that_of_the_last_end(watched: Watched, engine: Engine) -> None:
    created = await engine.create_execution(namespace="late", lane_id="ends", execution_kind="ends")
    await watched.open(str(created.execution_id))
    for result in ("one", "two"):
        handle = await engine.claim("ends", policy=ClaimPolicy("w", "w-1", 600_000))
        assert handle is not None
        await engine.complete(handle, f'"{result}"'.encode())
        await expect(watched.page.get_by_label("Result", exact=True)).to_have_text(result)
        # The page looks again when it has ended a second time.
        await engine.replay_execution(execution_id=created.execution_id)


async def test_the_graph_is_asked_for_again(watched: Watched, shop: Shop) -> None:
    graph = Gone({"edges": []})
    await made_up(watched.page, f"{shop.seeded.flow}/graph$", graph)
    await watched.go(f"flows/{shop.seeded.flow}")
    await expect(watched.at("main [role=alert]")).to_contain_text(LOST)
    graph.there = True
    await watched.page.evaluate(LOOK)
    await expect(watched.at(".graph[data-placed=true]")).to_be_visible()


async def test_links_that_are_opened_one_after_the_other(watched: Watched) -> None:
    def asked(number: int) -> dict[str, Any]:
        return {
            "question": f"question {number}?", "approver": "anyone", "asked_at": 1, "until": None, "need": 1,
            "yeses": 0, "show": None, "answered": False, "schema": {"type": "boolean"}, "approves": "",
        }  # fmt: skip

    look = Gone()
    await made_up(watched.page, "v1/answers/look$", look)
    await watched.page.goto(f"{watched.base}answer#one")
    heading = watched.page.get_by_role("heading", level=1)
    await expect(heading).to_have_text(LOST)
    look.answer, look.there = asked(1), True
    await watched.page.evaluate(LOOK)
    await expect(heading).to_have_text("question 1?")
    look.answer = asked(2)
    await watched.page.evaluate("location.hash = 'two'")
    await expect(heading).to_have_text("question 2?")
    assert await watched.page.evaluate("[location.hash, sessionStorage.getItem('ff.link')]") == ["", "two"]


async def test_a_menu_stays_while_something_else_scrolls(watched: Watched, shop: Shop) -> None:
    await watched.open(shop.seeded.streaming)
    await watched.page.get_by_role("tab", name="Stream").click()
    await watched.button("More").click()
    await watched.at(".stream").dispatch_event("scroll")
    await watched.page.evaluate("new Promise(requestAnimationFrame)")
    await expect(watched.page.get_by_role("menuitem").first).to_be_visible()


async def test_rows_stay_under_the_pointer(watched: Watched, engine: Engine) -> None:
    async def make(amount: int) -> None:
        await engine.create_executions(
            [{"namespace": "late", "lane_id": "still", "execution_kind": "still"} for _ in range(amount)]
        )

    await make(40)
    await watched.go("executions?q=lane%3Astill")
    row = watched.at(".list-row").nth(1)
    await row.hover()
    href = await row.locator(".name").get_attribute("href")
    same = watched.at(f".list-row:has(.name[href='{href}'])")
    before = await same.bounding_box()
    await make(3)
    await expect(watched.button("3 new executions above")).to_be_visible()
    assert await same.bounding_box() == before
    await watched.page.mouse.move(5, 5)
    await make(1)
    await expect(watched.at(".list-row").first).to_have_attribute("aria-posinset", "1")
    await expect(watched.at("[data-found]")).to_have_text("44 found")
    await expect(watched.button("above")).to_have_count(0)
    assert await watched.at(".list").evaluate("(list) => list.scrollTop") == 0


async def test_limits_of_somebody_else_are_not_overwritten_unseen(watched: Watched, engine: Engine) -> None:
    budget = "44444444-4444-4444-8444-444444444444"
    await engine.create_budget(
        budget_id=budget, scope_type="named", scope_id="shared", dimensions=["plates", "cups"],
        hard_limits=[5, 5], soft_limits=[0, 0],
    )  # fmt: skip
    await watched.go(f"budgets/{budget}")
    await watched.button("Limits…").click()
    await engine.set_budget_limits(budget_id=budget, hard_limits={"plates": 7, "cups": 8})
    await watched.at("#limit-plates").fill("6")
    change = watched.at("dialog").get_by_role("button", name="Change", exact=True)
    await change.click()
    await expect(watched.at("dialog [role=alert]")).to_contain_text("Changed in the meantime: plates is 7.")
    # What it was before is a change by now.
    await watched.at("#limit-plates").fill("5")
    await change.click()
    await expect(watched.at("dialog")).to_have_count(0)
    assert (await engine.get_budget_status(budget)).hard_limits == {"plates": 5, "cups": 8}


async def test_pages_whose_code_does_not_come(watched: Watched) -> None:
    await made_up(watched.page, "pages/kinds.js", lambda _: None)
    await watched.go("kinds")
    await expect(watched.page.get_by_role("heading", level=1)).to_have_text("This page could not be loaded")
    await watched.page.unroute_all()
    await expect(watched.page.get_by_role("heading", level=1)).to_have_text("Kinds")


async def test_answers_to_another_credential_and_parts_of_answers(watched: Watched) -> None:
    await watched.go("settings")
    await expect(watched.page.get_by_role("heading", level=1)).to_be_visible()
    part = {"body": '{"done": ', "status": 200, "act": False}
    assert await watched.page.evaluate(ANSWERED, part) == [0, True], "what breaks off is no refusal"
    late = {"body": "{}", "status": 401, "act": True}
    assert await watched.page.evaluate(ANSWERED, late) == [401, True], "the one that was refused is not used any more"
    await watched.page.keyboard.press("d")
    theme = await watched.page.evaluate("document.documentElement.dataset.theme")
    await expect(watched.button(theme.title(), exact=True)).to_have_attribute("aria-pressed", "true")
    await watched.page.keyboard.press("?")
    await expect(watched.at("dialog")).to_be_visible()
    await watched.page.evaluate("import('/console/session.js').then(({ signOut }) => signOut())")
    await expect(watched.at("dialog")).to_have_count(0)
    await expect(watched.page.get_by_role("heading", name="Sign in")).to_be_visible()
