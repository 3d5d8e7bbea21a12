"""What happens shows by itself: lists, an execution, its stream, charts; and again after the server was away."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import expect

from flowfabric import Frame, Opening
from flowfabric.engine import Engine
from flowfabric.model.operations.executions import ClaimPolicy
from flowfabric.model.streams.frames import FrameContent
from flowfabric.model.streams.logs import LOG_FRAME, LogLine, packed
from tests.console.conftest import Pages, Shop
from tests.console.support.running import ServerProcess, serving
from tests.console.support.watched_page import Watched

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
    await expect(watched.page.get_by_text("No matches.")).to_be_visible()
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


async def test_an_execution_and_its_logs(shop: Shop, pages: Pages, engine: Engine) -> None:
    created = await engine.create_execution(
        namespace="tests", lane_id="logged", execution_kind="logger", policy={"retry_policy": {"max_retries": 1}}
    )
    handle = await engine.claim("logged", policy=WORKER)
    assert handle is not None
    watched = await pages.of(shop.url)
    await watched.open(str(created.execution_id))
    await watched.page.get_by_role("tab", name="Logs").click()
    await expect(watched.page.get_by_text("No log lines yet")).to_be_visible()

    async def log(*lines: LogLine) -> None:
        [data] = packed(list(lines), 10_000)
        await engine.append_frame(handle, Frame(data, frame_type=LOG_FRAME, content=FrameContent.JSON))

    await log(LogLine(1, "INFO", "one"), LogLine(2, "ERROR", "<b>two</b>", "check"))
    await expect(watched.at(".log-line .what")).to_have_text(["one", "check <b>two</b>"])
    await expect(watched.at(".log-line .level")).to_have_text(["INFO", "ERROR"])
    await engine.append_frame(handle, Frame(b"output"))
    await watched.page.get_by_role("tab", name="Stream").click()
    await expect(watched.at(".stream > span:not(.cursor-block)")).to_have_text(["output"])
    await engine.fail(handle, "once more", "transient")
    again = await engine.claim("logged", policy=msgspec.structs.replace(WORKER, max_wait=20_000))
    assert again is not None
    handle = again
    await log(LogLine(3, "INFO", "three"))
    await watched.page.get_by_role("tab", name="Logs").click()
    await expect(watched.at(".log-line .what")).to_have_text(["three"])
    await watched.button("Attempt 1").click()
    await expect(watched.at(".log-line .what")).to_have_text(["one", "check <b>two</b>"])


async def test_a_stream_is_followed_to_its_end(shop: Shop, pages: Pages, engine: Engine) -> None:
    """Also if more arrives at once than the box can show; not if somebody reads further up."""
    created = await engine.create_execution(namespace="tests", lane_id="long", execution_kind="talker")
    handle = await engine.claim("long", policy=WORKER)
    assert handle is not None
    watched = await pages.of(shop.url)
    await watched.open(str(created.execution_id))
    await watched.page.get_by_role("tab", name="Stream").click()
    box = watched.at(".stream")
    hidden = "(box) => Math.round(box.scrollHeight - box.scrollTop - box.clientHeight)"
    for part in range(3):
        lines = [Frame(f"{part}.{number}\n".encode()) for number in range(100)]
        await engine.append_frames(handle, lines)
        await expect(box).to_contain_text(f"{part}.99")
        await watched.page.wait_for_function(f"() => ({hidden})(document.querySelector('.stream')) < 2")
    await expect(watched.page.get_by_text("Following", exact=True)).to_be_visible()
    await box.evaluate("(box) => { box.scrollTop = 0; }")
    await expect(watched.page.get_by_text("Live, not following")).to_be_visible()
    await engine.append_frames(handle, [Frame(b"3\n")] * 100)
    await expect(watched.page.get_by_text("400 frames")).to_be_visible()
    assert await box.evaluate("(box) => box.scrollTop") == 0
    await watched.page.get_by_role("button", name="Go to the end").click()
    await watched.page.wait_for_function(f"() => ({hidden})(document.querySelector('.stream')) < 2")
    await expect(watched.page.get_by_text("Following", exact=True)).to_be_visible()
    await engine.complete(handle)


async def test_output_that_starts_over(shop: Shop, pages: Pages, engine: Engine) -> None:
    created = await engine.create_execution(namespace="tests", lane_id="over", execution_kind="talker")
    watched = await pages.of(shop.url)
    for number in range(2):
        handle = await engine.claim("over", policy=WORKER)
        assert handle is not None
        if not number:
            await watched.open(str(created.execution_id))
            await watched.page.evaluate(MARK)
            await watched.page.get_by_role("tab", name="Stream").click()
        await engine.append_frames(handle, [Frame(b"plan", step="plan", opens=Opening.START)], 1)
        await engine.append_frames(handle, [Frame(b"one ", opens=Opening.START), Frame(b"two ")], 2)
        await expect(watched.page.locator(".stream > span:not(.forgotten)", has_text="two")).to_have_count(1)
        if not number:
            await engine.give_back(handle, "the worker stops")
    await expect(watched.at(".stream .restart")).to_have_text(
        [
            "Output starts over: step plan in attempt 1 again on another worker",
            "Output starts over: attempt 1 again on another worker",
        ]
    )
    await expect(watched.at(".stream .forgotten")).to_have_text(["plan", "one ", "two "])
    await engine.complete(handle)
    await expect(watched.page.get_by_text("closed:")).to_be_visible()
    await engine.replay_execution(execution_id=created.execution_id)
    handle = await engine.claim("over", policy=WORKER)
    assert handle is not None
    await engine.append_frames(handle, [Frame(b"three", opens=Opening.START)], 1)
    await expect(watched.at(".stream > span:not(.forgotten):not(.cursor-block)")).to_have_text(["plan", "three"])
    await engine.complete(handle)
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
