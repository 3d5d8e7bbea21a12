"""Much of it stays as quick as little of it: what is drawn is bounded, and the page never freezes."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from playwright.async_api import expect

from flowfabric import FlowGraph, Quorum
from flowfabric.engine import Engine
from tests.conftest import full_run
from tests.console.conftest import Pages, Shop, apart
from tests.console.support.running import serving
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
#: Scrolls a step per frame, for as many frames, and back at the end: the most elements there were, how long it took.
SCROLL = """
async ([step, frames]) => {
  const box = document.querySelector(".list"), began = performance.now();
  let most = 0, way = step;
  for (let frame = 0; frame < frames; frame += 1) {
    const before = box.scrollTop;
    box.scrollTop += way;
    if (box.scrollTop === before) way = -way;
    await new Promise(requestAnimationFrame);
    most = Math.max(most, document.querySelectorAll("*").length);
  }
  return [most, performance.now() - began];
}
"""
#: A server's search, made up: a million executions, the newest first, one every seven milliseconds.
MILLION = """
(() => {
  const real = globalThis.fetch.bind(globalThis), newest = 1_700_000_000_000, all = 1_000_000;
  const row = (n) => ({
    execution_id: `{fp:3}:${String(all - n).padStart(8, "0")}-0000-4000-8000-000000000000`,
    namespace: "made up", lane_id: `l-${n % 7}`, execution_kind: `job ${n + 1}`, public_state: "completed",
    priority: 0, created_at: newest - 7 * n, started_at: newest, completed_at: newest + 1, current_attempt_index: 0,
    flow_id: null, blocking_reason: null,
  });
  globalThis.limits = [];
  globalThis.page = (query) => {
    const limit = Number(query.get("limit")), cursor = query.get("cursor"), before = query.get("created_before");
    globalThis.limits.push(limit);
    const behind = cursor ? (newest - Number(cursor.split(".")[0])) / 7 + 1 : 0;
    const first = Math.max(behind, before ? Math.floor((newest - Number(before)) / 7) + 1 : 0);
    const last = Math.min(all, first + limit), rows = [];
    for (let n = first; n < last; n += 1) rows.push(row(n));
    const end = rows.length ? rows[rows.length - 1] : null;
    const next = last < all ? `${end.created_at}.${end.execution_id.slice(7)}.3` : null;
    return { executions: rows, next_cursor: next };
  };
  globalThis.fetch = (url, options) => {
    if (!String(url).includes("/v1/search/executions")) return real(url, options);
    return Promise.resolve(new Response(JSON.stringify(globalThis.page(new URL(url).searchParams))));
  };
})();
"""
#: The rows that are drawn by their place: [place, text, y in the list], and the list's room for them.
DRAWN = """
() => {
  const box = document.querySelector(".list"), frame = box.getBoundingClientRect();
  const head = document.querySelector(".list-head").offsetHeight;
  const rows = [...document.querySelectorAll(".list-row")].map((row) =>
    [Number(row.ariaPosInSet), row.querySelector(".name")?.textContent, row.getBoundingClientRect().y - frame.y - 1]);
  return { rows: rows.sort((a, b) => a[0] - b[0]), top: head, bottom: box.clientHeight };
}
"""
#: The list itself, without a page, of the oldest hundred thousand: to its end, and back to its middle.
ALONE = """
async () => {
  const { Listing, KEPT, MOST } = await import("/console/listing.js");
  let most = 0;
  const ask = async (query) => globalThis.page(new URLSearchParams(Object.entries(query).filter(([, value]) => value)));
  const filter = { created_before: 1_700_000_000_000 - 7 * 900_000 + 1 };
  const listing = new Listing(filter, () => { most = Math.max(most, listing.kept); }, ask);
  await listing.refresh();
  await listing.toEnd();
  const names = (first, last) => listing.between(first, last).map((row) => row?.execution_kind);
  const end = names(99_998, 100_001), gone = names(50_000, 50_001);
  listing.look(49_990, 50_020);
  await listing.filling;
  return { total: listing.total, end, gone, middle: names(50_000, 50_001), most, bound: KEPT + MOST };
}
"""
#: Moves the graph about for as many frames.
SHAKE = """
async (frames) => {
  const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect(), began = performance.now();
  for (let frame = 0; frame < frames; frame += 1) {
    const wheel = { deltaY: frame % 2 ? -90 : 90, clientX: box.left + 300, clientY: box.top + 200, cancelable: true };
    canvas.dispatchEvent(new WheelEvent("wheel", wheel));
    await new Promise(requestAnimationFrame);
  }
  return performance.now() - began;
}
"""
#: How much longer much may take than nothing at all, frame by frame.
TIMES = 8
#: How many there are. Filling a store with them takes most of the time.
MANY = 100_000 if full_run() else 8_000
#: Of a row.
HEIGHT = 37
#: The way to the end passes everything; on a busy machine that takes a while.
PATIENCE_MS = 180_000


async def fill(store: str, amount: int) -> None:
    async with await Engine.open(store, single_node=True, clock=lambda: 1_600_000_000_000) as engine:
        await engine.create_execution(namespace="n0", lane_id="l-0", execution_kind="the oldest")
    async with await Engine.open(store, single_node=True) as engine:
        for start in range(1, amount, 20_000):
            made = [
                {
                    "namespace": f"n{number % 3}",
                    "lane_id": f"l-{number % 7}",
                    "execution_kind": f"kind_{number % 50}",
                }
                for number in range(start, min(start + 20_000, amount))
            ]
            await engine.create_executions(made)


async def graph(store: str, width: int, depth: int) -> str:
    """Layers of members, each waiting for three of the layer before it."""
    nodes, edges, groups = {}, [], {}
    for layer in range(depth):
        for number in range(width):
            name = f"{layer}/{number}"
            nodes[name] = {"lane_id": "graph", "execution_kind": f"member {name}"}
            if layer:
                edges += [(f"{layer - 1}/{(number + shift) % width}", name) for shift in (0, 1, 7)]
                groups[name] = Quorum(2)
    async with await Engine.open(store, single_node=True) as engine:
        made = await engine.submit_flow(FlowGraph(nodes=nodes, edges=edges, groups=groups))
        return str(made.flow_id)


async def test_very_many_executions(store: str, pages: Pages) -> None:
    apart(fill(store, MANY))
    # The numbers of fifty kinds and seven lanes meet in every 350th.
    narrow = len(range(7, MANY, 350))
    with serving(store) as server:
        watched = await pages.of(server.url)
        await watched.go("executions?q=kind%3Akind_7+lane%3Al-0")
        await expect(watched.at("[data-found]")).to_contain_text(f"{narrow}")
        _, idle = await watched.page.evaluate(SCROLL, [1_200, 150])
        await watched.go("executions")
        await expect(watched.at(".list-row").first).to_be_visible()
        little = await watched.page.evaluate("document.querySelectorAll('*').length")
        most, took = await watched.page.evaluate(SCROLL, [1_200, 150])
        rows = await watched.at(".list-row").count()
        assert rows < 60, "only what is in view is drawn"
        assert most < little + 400, "and the page does not grow with what was passed"
        total = int(await watched.at(".list-row").last.get_attribute("aria-setsize") or "0")
        assert total > 3_000, "it went on loading"
        assert took < TIMES * idle, "frames come as they do in a list of some hundreds"
        # Deep in the list the rows are still the newest first, without gaps or repeats.
        await _drawn(watched)
        await watched.page.keyboard.press("End")
        await expect(watched.at(".list-row.cursor .name")).to_have_text("the oldest", timeout=PATIENCE_MS)
        await expect(watched.at("[data-found]")).to_have_text(f"{MANY:,} found")
        last, _, _ = (await _drawn(watched))[-1]
        assert last == MANY
        await expect(watched.at(".list-row.cursor")).to_be_in_viewport(ratio=0.9)
        assert await watched.page.evaluate("document.querySelectorAll('*').length") < little + 400
        await watched.page.keyboard.press("Home")
        await expect(watched.at(".list-row.cursor")).to_have_attribute("aria-posinset", "1")
        await watched.at("#q").fill("kind:kind_7 lane:l-0")
        await expect(watched.at(".list-row .name").first).to_have_text("kind_7")
        await watched.choose("Bulk actions", "Cancel all matches")
        await expect(watched.at("[data-preview]")).not_to_have_text("0")
        await watched.button("Keep").click()
        await watched.page.goto("about:blank")


async def test_a_million_executions(shop: Shop, pages: Pages) -> None:
    """More than a browser can lay out: every row can be reached, is the right one and at the right place."""
    watched = await pages.of(shop.url)
    await watched.page.add_init_script(MILLION)
    await watched.go("executions")
    keys, mouse = watched.page.keyboard, watched.page.mouse
    await expect(watched.at(".list-row .name").first).to_have_text("job 1")
    await keys.press("End")
    await expect(watched.at(".list-row.cursor .name")).to_have_text("job 1000000", timeout=PATIENCE_MS)
    await expect(watched.at("[data-found]")).to_have_text("1,000,000 found")
    rows = await _drawn(watched)
    assert (rows[-1][0], round(rows[-1][2] + HEIGHT)) == (1_000_000, (await watched.page.evaluate(DRAWN))["bottom"])
    limits = await watched.page.evaluate("limits")
    assert max(limits) == 1_000
    assert len([limit for limit in limits if limit == 1_000]) < 1_010, "nothing was fetched twice on the way"
    # A notch of the wheel is a notch, also here.
    place, _, before = rows[-10]
    await watched.at(".list").hover()
    await mouse.wheel(0, -333)
    await watched.page.wait_for_function(
        """([place, y]) =>
            Math.abs(document.querySelector(`[aria-posinset='${place}']`).getBoundingClientRect().y - y) < 1""",
        arg=[place, before + await _frame(watched) + 333],
    )
    for key, expected in (("k", 999_999), ("ArrowUp", 999_998), ("j", 999_999), ("ArrowDown", 1_000_000)):
        await keys.press(key)
        await expect(watched.at(".list-row.cursor")).to_have_attribute("aria-posinset", str(expected))
    screen = 1_000_000
    for key in ("PageUp", "PageUp", "PageDown"):
        await keys.press(key)
        await expect(watched.at(".list-row.cursor")).not_to_have_attribute("aria-posinset", str(screen))
        await expect(watched.at(".list-row.cursor")).to_be_in_viewport(ratio=0.9)
        screen = int(await watched.at(".list-row.cursor").get_attribute("aria-posinset") or "0")
    assert 999_000 < screen < 1_000_000
    # The scroll bar, dragged to the middle: what was forgotten meanwhile is fetched again.
    await watched.page.evaluate(
        """() => {
            const box = document.querySelector(".list");
            box.scrollTop = (box.scrollHeight - box.clientHeight) / 2;
        }"""
    )
    await expect(watched.at(".list-row .name").first).to_have_text(re.compile(r"^job (49|50)\d{4}$"))
    assert 499_000 < (await _drawn(watched))[0][0] < 501_000
    await keys.press("Home")
    await expect(watched.at(".list-row.cursor .name")).to_have_text("job 1")
    first, _, y = (await _drawn(watched))[0]
    assert (first, round(y)) == (1, (await watched.page.evaluate(DRAWN))["top"])
    # To a time, which is in the address and in the dialogs.
    moment = await watched.page.evaluate(
        "(() => { const at = new Date(1_700_000_000_000 - 7 * 600_000);"
        " return new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16); })()"
    )
    await watched.at("#until").fill(moment)
    await expect(watched.at(".list-row .name").first).to_have_text("job 602859")
    assert "until=2023-11-14T21%3A03Z" in watched.page.url
    await watched.choose("Bulk actions", "Cancel all matches")
    await expect(watched.at(".note-box")).to_contain_text("created before")
    await expect(watched.at("[data-preview]")).to_have_text("0")
    await watched.button("Keep").click()
    alone = await watched.page.evaluate(ALONE)
    assert alone["total"] == 100_000
    assert alone["end"] == ["job 999999", "job 1000000"]
    assert (alone["gone"], alone["middle"]) == ([None], ["job 950001"])
    assert alone["most"] <= alone["bound"]


async def _frame(watched: Watched) -> float:
    y: float = await watched.page.evaluate("document.querySelector('.list').getBoundingClientRect().y + 1")
    return y


async def _drawn(watched: Watched) -> list[tuple[int, str, float]]:
    """The rows that are drawn, once all of them are there: next to each other, each in its place."""
    await expect(watched.at(".list-row.blank")).to_have_count(0)
    found = (await watched.page.evaluate(DRAWN))["rows"]
    assert [place for place, _, _ in found] == list(range(found[0][0], found[0][0] + len(found)))
    assert {round(two[2] - one[2]) for one, two in pairwise(found)} <= {HEIGHT}
    assert len(found) < 60, "only what is in view is drawn"
    return [(place, name, y) for place, name, y in found]


async def test_a_graph_of_two_thousand(store: str, pages: Pages) -> None:
    small, flow = apart(graph(store, 1, 2)), apart(graph(store, 100, 20))
    with serving(store) as server:
        watched = await pages.of(server.url)
        await watched.go(f"flows/{small}")
        await expect(watched.at("canvas")).to_have_attribute("data-drawn", "2")
        idle = await watched.page.evaluate(SHAKE, 60)
        await watched.go(f"flows/{flow}")
        await expect(watched.at(".graph[data-placed=true]")).to_be_visible()
        await expect(watched.at("canvas")).to_have_attribute("data-drawn", "2000")
        assert await watched.page.evaluate("document.querySelectorAll('*').length") < 6_000
        assert await watched.page.evaluate(SHAKE, 60) < TIMES * idle, "frames come as they do in a graph of two"
        box = await watched.at("canvas").bounding_box()
        assert box is not None
        middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        await watched.page.mouse.move(*middle)
        for _ in range(12):
            await watched.page.mouse.wheel(0, -300)
        await expect(watched.at("canvas")).not_to_have_attribute("data-drawn", "2000")
        assert int(await watched.at("canvas").get_attribute("data-drawn") or "0") < 200, "only what is in view is drawn"
        await watched.page.mouse.down()
        for step in range(20):
            await watched.page.mouse.move(middle[0] - step * 10, middle[1] - step * 4)
        await watched.page.mouse.up()
        await watched.at("#member").fill("member 13/42")
        await expect(watched.page.get_by_role("link", name="member 13/42", exact=True)).to_be_visible()
        await watched.page.goto("about:blank")
