"""An engine whose store does not answer can be left all the same, and nobody goes on waiting for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.model.errors import Transport, Unavailable, WrongLoop


class Stuck:
    """An engine with calls that wait: one for its commit, and one behind it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.writing = asyncio.Event()
        self.closed = False
        engine.store.run = self._run
        self._close, engine.store.close = engine.store.close, self._closes
        self.taken = asyncio.create_task(engine.create_execution())

    async def _run(self, make: Any, *, alone: bool = False) -> Any:
        self.writing.set()
        await asyncio.Event().wait()

    async def _closes(self) -> None:
        await self._close()
        self.closed = True

    async def left(self) -> None:
        """Assert that nothing of it is left."""
        queued = asyncio.create_task(self.engine.create_execution())
        async with asyncio.timeout(20):
            await asyncio.wait((self.taken, queued))
            await self.engine.close()
        assert isinstance(self.taken.exception(), Transport)
        assert isinstance(queued.exception(), Unavailable)
        assert self.closed
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("flowfabric-")] == []


@pytest.fixture
async def stuck() -> Stuck:
    made = Stuck(await Engine.open("memory://", timers=True))
    await made.writing.wait()
    return made


async def test_a_drain_past_its_grace_gives_up(stuck: Stuck) -> None:
    assert await stuck.engine.drain(1) > 0
    await stuck.left()


async def test_a_close_that_is_cancelled_gives_up(stuck: Stuck) -> None:
    closing = asyncio.create_task(stuck.engine.close())
    for _ in range(3):
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await stuck.left()


async def test_everybody_who_closes_waits_for_the_end(stuck: Stuck) -> None:
    closers = [asyncio.create_task(stuck.engine.close()) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(closer.done() for closer in closers)
    closers[0].cancel()
    async with asyncio.timeout(20):
        await asyncio.wait(closers)
        await closers[1]
    await stuck.left()


def test_another_loop_is_refused_at_once() -> None:
    engine = asyncio.run(Engine.open("memory://"))
    identity = asyncio.run(engine.create_execution()).execution_id

    async def read() -> None:
        await engine.read_execution_state(identity)

    async def write() -> None:
        await engine.create_execution()

    async def write_many() -> None:
        await engine.create_executions([{}, {}])

    for call in (read, write, write_many, engine.close, lambda: engine.drain(0)):
        with pytest.raises(WrongLoop, match="belongs to another event loop"):
            asyncio.run(call())
