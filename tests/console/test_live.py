"""What happens shows by itself: lists, an execution, its stream, charts; and again after the server was away."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from flowfabric import Frame
from flowfabric.engine import Engine
from flowfabric.model.results import ClaimPolicy
from tests.console.conftest import Pages, Shop
from tests.console.running import ServerProcess, serving
from tests.console.watching import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
WORKER = ClaimPolicy("w", "w-1", 600_000)
#: Left behind by whoever loads a page; gone if it is loaded again.
MARK = "globalThis.loadedOnce = (globalThis.loadedOnce || 0) + 1"


@pytest_asyncio.fixture(loop_scope="session")
async def engine(shop: Shop) -> AsyncIterator[Engine]:
    async with await Engine.open(shop.server.store, single_node=True) as opened:
        yield opened


async def not_loaded_again(watched: Watched) -> None:
    assert await watched.page.evaluate("globalThis.loadedOnce") == 1


async def test_lists(shop: Shop, pages: Pages, engine: Engine) -> None:
    watched = await pages.of(shop.url)
    await watched.go("executions?q=lane%3Alive")
    await expect(watched.page.get_by_text("Nothing fits.")).to_be_visible()
    await watched.page.evaluate(MARK)
    await engine.create_execution(namespace="tests", lane_id="live", execution_kind="newcomer")
    await expect(watched.at(".list-row .name")).to_have_text(["newcomer"])
    for state, act in (("active", None), ("completed", "complete")):
        if act is None:
            handle = await engine.claim("live", policy=WORKER)
            assert handle is not None
        else:
            await engine.complete(handle, b"1")
        await expect(watched.at(".list-row .badge")).to_have_text([state])
    await not_loaded_again(watched)


async def test_an_execution_and_its_stream(shop: Shop, pages: Pages, engine: Engine) -> None:
    created = await engine.create_execution(namespace="tests", lane_id="talk", execution_kind="talker")
    watched = await pages.of(shop.url)
    await watched.open(str(created.execution_id))
    await watched.page.evaluate(MARK)
    await expect(watched.at(".badge").first).to_have_text("waiting")
    handle = await engine.claim("talk", policy=WORKER)
    assert handle is not None
    await expect(watched.at(".badge").first).to_have_text("active")
    await watched.page.get_by_role("tab", name="Stream").click()
    text = ""
    for word in ("one ", "two ", "three "):
        await engine.append_frame(handle, Frame(word.encode()))
        text += word
        await expect(watched.at(".stream")).to_contain_text(text.strip())
    await engine.complete(handle, b'{"said": 3}')
    await expect(watched.at(".badge").first).to_have_text("completed")
    await expect(watched.page.get_by_text("closed:")).to_be_visible()
    await watched.page.get_by_role("tab", name="Input and result").click()
    await expect(watched.at("[aria-label=Result]")).to_contain_text("said")
    await not_loaded_again(watched)


async def test_a_flow(shop: Shop, pages: Pages, engine: Engine) -> None:
    from flowfabric import FlowGraph

    nodes = {name: {"lane_id": "liveflow", "namespace": "shop", "execution_kind": name} for name in ("up", "down")}
    flow = await engine.submit_flow(FlowGraph(nodes=nodes, edges=[("up", "down")], namespace="shop"))
    watched = await pages.of(shop.url)
    await watched.go(f"flows/{flow.flow_id}")
    await expect(watched.page.get_by_text("1 waiting children")).to_be_visible()
    await watched.page.evaluate(MARK)
    handle = await engine.claim("liveflow", policy=WORKER)
    assert handle is not None
    await engine.complete(handle)
    await expect(watched.page.get_by_text("1 completed")).to_be_visible()
    await expect(watched.page.get_by_text("waiting children")).to_have_count(0)
    await not_loaded_again(watched)


async def test_a_server_that_was_away(store: str, pages: Pages) -> None:
    with serving(store) as server:
        async with await Engine.open(store, single_node=True) as engine:
            created = await engine.create_execution(namespace="tests", lane_id="away", execution_kind="patient")
            handle = await engine.claim("away", policy=WORKER)
            assert handle is not None
            await engine.append_frame(handle, Frame(b"before "))
            watched = await pages.of(server.url)
            await watched.open(str(created.execution_id))
            await watched.page.evaluate(MARK)
            await watched.page.get_by_role("tab", name="Stream").click()
            await expect(watched.at(".stream")).to_have_text("before ")
            watched.provoked.add(0)
            server.stop()
            await expect(watched.at(".banner")).to_contain_text("The connection to the server is lost")
            await engine.append_frame(handle, Frame(b"while it was away "))
            again = ServerProcess(store, port=server.port)
            again.start()
            try:
                await expect(watched.at(".banner")).to_have_count(0)
                await engine.append_frame(handle, Frame(b"after"))
                await expect(watched.at(".stream")).to_have_text("before while it was away after")
                await engine.complete(handle)
                await expect(watched.at(".badge").first).to_have_text("completed")
                await not_loaded_again(watched)
                resumed = [each for each in watched.requests if each.url.endswith("/stream/events")]
                assert [bool(await each.header_value("last-event-id")) for each in resumed][-1], (
                    "it went on where it was"
                )
                await watched.page.goto("about:blank")
            finally:
                again.stop()
                again.log.close()


async def test_a_change_between_drawing_and_listening_shows(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.go("settings")
    await watched.page.evaluate(
        """async () => {
            const { html, render, signal, useValue } = await import("/console/dom.js");
            const early = signal("before");
            const Shown = () => html`<p id="early">${useValue(early)}</p>`;
            const place = document.createElement("div");
            document.body.append(place);
            render(html`<${Shown} />`, place);
            early.value = "after";
        }"""
    )
    await expect(watched.at("#early")).to_have_text("after")
