"""An engine whose store does not answer can be left all the same, and nobody goes on waiting for it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowfabric.engine import Engine, base
from flowfabric.engine.timers.loop import TIMERS
from flowfabric.model.errors import Transport, Unavailable, WrongLoop
from flowfabric.model.operations.executions import ClaimPolicy
from flowfabric.model.states import PublicState
from flowfabric.stores.questions import ListLeases

TENANT = contextvars.ContextVar("tenant", default="nobody")


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


# -- what runs beside ------------------------------------------------------------------------------------------------


async def test_hearing_other_processes_begins_again_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "RELISTEN_S", 0)
    heard = asyncio.Event()
    times = 0

    async def failing() -> AsyncIterator[str | None]:
        nonlocal times
        times += 1
        if times == 1:
            raise ZeroDivisionError("a fault")
        heard.set()
        yield None
        await asyncio.Event().wait()

    engine = await Engine.open("memory://")
    engine.store.heard = failing
    engine._listen()
    async with asyncio.timeout(20):
        await heard.wait()
        await engine.close()


async def test_a_stop_while_the_timers_look_is_not_forgotten() -> None:
    engine = await Engine.open("memory://")
    asked, go = asyncio.Event(), asyncio.Event()
    ask = engine._ask

    async def slowly(question: Any) -> Any:
        asked.set()
        await go.wait()
        return await ask(question)

    engine._ask = slowly  # type: ignore[method-assign]
    hour = 3_600_000
    engine.start_timers({timer.name: hour for timer in TIMERS if timer.by_itself})
    await asked.wait()
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    go.set()
    async with asyncio.timeout(20):
        await closing


async def test_what_runs_beside_has_not_the_context_of_the_first_caller() -> None:
    seen = []

    class Looks:
        def committed(self, *_: Any) -> None:
            seen.append(TENANT.get())

    engine = await Engine.open("memory://")
    engine.observer = Looks()  # type: ignore[assignment]
    TENANT.set("the first caller's")
    await engine.create_execution()
    await engine.close()
    assert seen == ["nobody"]


async def test_a_claim_that_is_given_up_while_the_engine_closes_leaves_no_lease() -> None:
    engine = await Engine.open("memory://")
    identity = (await engine.create_execution(lane_id="lane")).execution_id
    run, writing, go = engine.store.run, asyncio.Event(), asyncio.Event()

    async def slowly(make: Any, *, alone: bool = False) -> Any:
        writing.set()
        await go.wait()
        return await run(make, alone=alone)

    engine.store.run = slowly
    claiming = asyncio.create_task(engine.claim("lane", (), ClaimPolicy("worker", "instance", 30_000)))
    await writing.wait()
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    claiming.cancel()
    go.set()
    async with asyncio.timeout(20):
        await closing
    assert claiming.cancelled()
    assert await engine.store.query(ListLeases("instance", await engine.now_ms(), 10)) == []
    async with await Engine.open("memory://") as other:
        other.store = engine.store
        assert await other.read_execution_state(identity) is PublicState.WAITING


async def test_what_follows_is_refused_when_all_is_over() -> None:
    engine = await Engine.open("memory://")
    await engine.create_execution()
    await engine.close()
    async with asyncio.timeout(20):
        with pytest.raises(Unavailable):
            await engine._batcher.follow_up(None)


async def test_what_runs_beside_ends_with_the_engine() -> None:
    engine = await Engine.open("memory://")
    engine._leave_slots({"a quota that nobody waits for": 1})
    await asyncio.sleep(0)
    await engine.close()
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("flowfabric-")] == []
