"""Hints between processes by way of Valkey: what is heard, what is gathered, and what comes after a gap."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.stores.valkey.address import parse
from flowfabric.stores.valkey.connection import Wire
from flowfabric.stores.valkey.notify import Wakeups
from flowfabric.stores.wakeups import MAX_TOPIC_BYTES, MAX_TOPICS
from tests.servers import Valkey

SOON_S = 20


@pytest.fixture
def url(valkey_server: Any) -> str:
    """An address with a prefix that only this test uses."""
    return f"{valkey_server.url}?prefix={secrets.token_hex(8)}"


class Listener:
    """Somebody who listens until the end of the test."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._topics: asyncio.Queue[str | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._listen(wakeups))

    async def _listen(self, wakeups: Wakeups) -> None:
        async for topic in wakeups.heard():
            self._topics.put_nowait(topic)

    async def next(self) -> str | None:
        return await asyncio.wait_for(self._topics.get(), SOON_S)

    async def ended(self) -> None:
        await asyncio.wait_for(self._task, SOON_S)

    @property
    def idle(self) -> bool:
        return self._topics.empty()


@contextlib.asynccontextmanager
async def processes(url: str, count: int = 2) -> AsyncIterator[list[tuple[Wakeups, Listener]]]:
    """As many as there would be processes, each listening."""
    pairs = [(wakeups, Listener(wakeups)) for wakeups in (Wakeups(parse(url)) for _ in range(count))]
    try:
        for _, listener in pairs:
            assert await listener.next() is None
        yield pairs
    finally:
        for wakeups, listener in pairs:
            await wakeups.close()
            await listener.ended()
            assert not wakeups._wires


async def test_others_hear_what_is_published_and_we_do_not(url: str) -> None:
    async with processes(url, 3) as ((ours, here), (theirs, there), (_, elsewhere)):
        ours.publish({"lane:a", "flow:\n€"})
        for listener in (there, elsewhere):
            assert {await listener.next(), await listener.next()} == {"lane:a", "flow:\n€"}
        theirs.publish(["answer"])
        assert await here.next() == "answer"
        assert here.idle


async def test_prefixes_do_not_hear_each_other(url: str) -> None:
    async with processes(url) as ((ours, _), (_, there)), processes(url + "x", 1) as ((_, other),):
        ours.publish(["a"])
        assert await there.next() == "a"
        assert other.idle


async def test_an_idle_process_is_woken_within_milliseconds(url: str) -> None:
    async with processes(url) as ((ours, _), (_, there)):
        took = []
        for number in range(30):
            began = time.perf_counter()
            ours.publish([str(number)])
            assert await there.next() == str(number)
            took.append(time.perf_counter() - began)
        assert statistics.median(took) < 0.02  # about half a millisecond on an idle machine


async def test_what_is_not_urgent_waits_for_company(url: str) -> None:
    async with processes(url) as ((ours, _), (_, there)):
        ours.publish(["first"])
        assert await there.next() == "first"
        ours.publish(["b"], urgent=False)
        ours.publish(["c"], urgent=False)
        assert [await there.next(), await there.next()] == ["b", "c"]


async def test_too_many_or_too_long_means_everything(url: str) -> None:
    async with processes(url) as ((ours, _), (_, there)):
        ours.publish([str(number) for number in range(MAX_TOPICS + 1)])
        assert await there.next() is None
        ours.publish(["x" * (MAX_TOPIC_BYTES + 1)])
        assert await there.next() is None


async def test_a_message_by_hand_means_everything(url: str) -> None:
    address = parse(url)
    async with processes(url, 1) as ((_, here),):
        wire = await Wire().connect(address)
        await wire.ask(("PUBLISH", f"{address.prefix}:wake", "hello"))
        assert await here.next() is None
        wire.abort()
        await wire.closed


async def test_a_server_that_goes_and_comes_back() -> None:
    with Valkey() as server:
        async with processes(server.url) as ((ours, here), (theirs, there)):
            ours.publish(["before"])
            assert await there.next() == "before"
            server.kill9()
            ours.publish(["lost"])
            server.start()
            assert await here.next() is None
            assert await there.next() is None
            async with asyncio.timeout(SOON_S):
                while there.idle:  # a sender that has just failed pauses
                    ours.publish(["after"])
                    await asyncio.sleep(0.01)
            assert await there.next() in ("lost", "after")
            theirs.publish(["answer"])
            while await here.next() != "answer":
                pass


async def test_a_wire_that_was_cut_leaves_a_gap(valkey_server: Any, url: str) -> None:
    async with processes(url) as ((ours, _), (_, there)):
        wire = await Wire().connect(parse(url))
        await wire.ask(("CLIENT", "KILL", "TYPE", "pubsub"))
        assert await there.next() is None
        ours.publish(["after"])
        assert await there.next() == "after"
        wire.abort()
        await wire.closed


async def test_closing_leaves_nothing_behind(url: str) -> None:
    unused = Wakeups(parse(url))
    await unused.close()
    quick = Wakeups(parse(url))
    quick.publish(["a"])
    await quick.close()
    quick.publish(["b"])
    assert not quick._wires
    nowhere = Wakeups(parse("valkey://127.0.0.1:1"))
    listener = Listener(nowhere)
    nowhere.publish(["a"])
    await asyncio.sleep(0)
    await nowhere.close()
    await listener.ended()
    assert len(asyncio.all_tasks()) == 1
    gc.collect()  # complaints about what was not closed are errors


async def test_a_commit_tells_others_itself(url: str) -> None:
    async with processes(url, 1) as [(_, there)], await Engine.open(url) as engine:
        await engine.create_execution(lane_id="letters", namespace="default")
        assert await there.next() == "lane:letters"
        await engine.create_executions([{"lane_id": "parcels"}, {"lane_id": "letters"}])
        assert {await there.next(), await there.next()} == {"lane:letters", "lane:parcels"}
        handle = await engine.claim("letters", policy=ClaimPolicy("w", "w-1", 60_000))
        assert handle is not None
        # Nobody is in a hurry to hear of events, so these are sent apart, and gathered.
        assert await there.next() == "events:l"
        assert engine.store._wakeups._sender is not None
