"""The picture of a flow that grows while somebody looks at one of its members."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from flowfabric import FlowGraph
from flowfabric.engine import Engine
from flowfabric.model.ids import ExecutionId
from tests.console.conftest import Pages, Shop
from tests.console.support.late import LOOK
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
#: Counts how often the graph was laid out and drawn so.
COUNTING = """
globalThis.laid = 0;
globalThis.Worker = class extends Worker {
  set onmessage(act) {
    super.onmessage = (event) => { act(event); globalThis.laid += 1; };
  }
};
"""
#: Waits until it was laid out so often.
LAID = """
(often) => new Promise((done) => {
  const look = () => (globalThis.laid >= often ? done() : requestAnimationFrame(look));
  look();
})
"""
CHAIN = 12


@pytest_asyncio.fixture(loop_scope="session")
async def engine(shop: Shop) -> AsyncIterator[Engine]:
    async with await Engine.open(shop.server.store, single_node=True) as opened:
        yield opened


async def in_the_middle(watched: Watched, canvas: Locator) -> Locator:
    """What is said of the member that stands there."""
    box = await canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    await watched.page.mouse.move(x, y - 3)
    await watched.page.mouse.move(x, y)
    return watched.at(".graph .tip strong")


@pytest.mark.parametrize("how", ["shown", "found"])
async def test_a_member_stays_in_the_middle_when_the_graph_grows(
    shop: Shop, pages: Pages, engine: Engine, how: str
) -> None:
    names = [f"link {number}" for number in range(CHAIN)]
    nodes = {name: {"lane_id": "growing", "namespace": "late", "execution_kind": name} for name in names}
    flow = await engine.submit_flow(FlowGraph(nodes=nodes, edges=list(pairwise(names)), namespace="late"))
    watched = await pages.of(shop.url)
    await watched.page.add_init_script(COUNTING)
    await watched.go(f"flows/{flow.flow_id}")
    await watched.page.evaluate(LAID, 1)
    if how == "shown":
        row = watched.at("tr").filter(has=watched.page.get_by_role("link", name=names[-1], exact=True))
        await row.get_by_role("button", name="Show").click()
    else:
        await watched.at("#member").fill(names[-1])
    canvas = watched.at("canvas")
    await canvas.scroll_into_view_if_needed()
    await expect(await in_the_middle(watched, canvas)).to_have_text(names[-1])
    for number in (2, 3):
        identity = ExecutionId.for_flow(flow.flow_id, engine.partitions)
        await engine.create_execution(
            execution_id=identity, namespace="late", lane_id="growing", execution_kind=f"grown {number}"
        )
        await engine.add_execution_to_flow(flow_id=flow.flow_id, execution_id=identity)
        await watched.page.evaluate(LOOK)
        await watched.page.evaluate(LAID, number)
        await expect(await in_the_middle(watched, canvas)).to_have_text(names[-1])
