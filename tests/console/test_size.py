"""Much of it stays as quick as little of it: what is drawn is bounded, and the page never freezes."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from flowfabric import FlowGraph, Quorum
from flowfabric.engine import Engine
from tests.console.conftest import Pages, apart
from tests.console.running import serving
from tests.console.watching import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
#: Scrolls a step per frame, for as many frames: the most elements there were, and how long it took.
SCROLL = """
async ([step, frames]) => {
  const box = document.querySelector(".list"), began = performance.now();
  let most = 0;
  for (let frame = 0; frame < frames; frame += 1) {
    box.scrollTop += step;
    await new Promise(requestAnimationFrame);
    most = Math.max(most, document.querySelectorAll("*").length);
  }
  return [most, performance.now() - began];
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


async def fill(store: str, amount: int) -> None:
    async with await Engine.open(store, single_node=True) as engine:
        for start in range(0, amount, 20_000):
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


async def test_a_hundred_thousand_executions(store: str, pages: Pages) -> None:
    apart(fill(store, 100_000))
    with serving(store) as server:
        watched = await pages.of(server.url)
        await watched.go("executions?q=nothing_like_it")
        await expect(watched.page.get_by_text("Nothing fits.")).to_be_visible()
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
        assert took < TIMES * idle, "frames come as they do in an empty list"
        # Deep in the list the rows are still the newest first, without gaps or repeats.
        places = [int(each.split(" ")[0]) for each in await _places(watched)]
        assert places == list(range(places[0], places[0] + len(places)))
        await watched.at("#q").fill("kind:kind_7 lane:l-0")
        await expect(watched.at(".list-row .name").first).to_have_text("kind_7")
        await watched.choose("All that fit", "Cancel all that fit")
        await expect(watched.at("[data-preview]")).not_to_have_text("0")
        await watched.button("Leave it").click()
        await watched.page.goto("about:blank")


async def _places(watched: Watched) -> list[str]:
    found: list[str] = await watched.page.evaluate(
        "[...document.querySelectorAll('.list-row')].map((row) => row.ariaPosInSet + ' ' + row.textContent)"
        ".sort((a, b) => parseInt(a) - parseInt(b))"
    )
    return found


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
