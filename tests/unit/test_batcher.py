"""When batches begin: at once if nothing commits, together if many arrive, and never long behind a slow one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.engine.batcher import Batcher
from flowfabric.engine.transact import Outcome
from flowfabric.model.errors import Transport, Unavailable


class Commits:
    """Batches that commit when they are let go; each command is answered with itself."""

    def __init__(self, parallel: int, **options: int) -> None:
        self.batches: list[list[Any]] = []
        self._doors: list[asyncio.Event] = []
        self._begins: asyncio.Queue[None] = asyncio.Queue()
        #: What goes wrong in whoever is told of a commit.
        self.trouble: Exception | None = None
        self.batcher = Batcher(self._run, self._told, self._told, parallel, **options)

    def _told(self, *_: Any) -> None:
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble

    async def _run(self, commands: list[Any]) -> Outcome:
        door = asyncio.Event()
        self.batches.append(commands)
        self._doors.append(door)
        self._begins.put_nowait(None)
        await door.wait()
        return Outcome(list(commands), {}, [], None)

    def call(self, *commands: Any) -> list[asyncio.Task[Any]]:
        return [asyncio.create_task(self.batcher.call(command)) for command in commands]

    async def begun(self, count: int) -> None:
        """Return when so many batches have begun."""
        async with asyncio.timeout(20):
            while len(self.batches) < count:
                await self._begins.get()

    def let_go(self, number: int) -> None:
        self._doors[number].set()


async def test_what_arrives_during_a_commit_goes_together() -> None:
    commits = Commits(1)
    calls = commits.call(0)
    await commits.begun(1)
    for number in range(1, 11):
        calls += commits.call(number)
        await asyncio.sleep(0)
    commits.let_go(0)
    await commits.begun(2)
    commits.let_go(1)
    assert await asyncio.gather(*calls) == list(range(11))
    assert commits.batches == [[0], list(range(1, 11))]
    await commits.batcher.close()


async def test_those_who_arrive_turn_by_turn_begin_together() -> None:
    commits = Commits(2)

    async def later(number: int) -> Any:
        for _ in range(number):
            await asyncio.sleep(0)
        return await commits.batcher.call(number)

    calls = [asyncio.create_task(later(number)) for number in range(8)]
    await commits.begun(1)
    assert commits.batches == [list(range(8))]
    commits.let_go(0)
    assert await asyncio.gather(*calls) == list(range(8))
    await commits.batcher.close()


async def test_a_slow_commit_holds_up_only_its_own() -> None:
    commits = Commits(2)
    slow = commits.call("slow")
    await commits.begun(1)
    quick = commits.call("quick", "too")
    await commits.begun(2)
    commits.let_go(1)
    assert await asyncio.gather(*quick) == ["quick", "too"]
    # And again, by the runner that has become free.
    again = commits.call("again")
    await commits.begun(3)
    commits.let_go(2)
    assert await asyncio.gather(*again) == ["again"]
    assert not slow[0].done()
    commits.let_go(0)
    assert await slow[0] == "slow"
    await commits.batcher.close()


async def test_many_are_shared_by_two_at_once() -> None:
    commits = Commits(2)
    calls = commits.call(*range(64))
    await commits.begun(2)
    assert [len(batch) for batch in commits.batches] == [32, 32]
    commits.let_go(0)
    commits.let_go(1)
    assert await asyncio.gather(*calls) == list(range(64))
    await commits.batcher.close()


async def test_closing_finishes_what_waits() -> None:
    commits = Commits(2)
    calls = commits.call(0)
    await commits.begun(1)
    calls += commits.call(1)
    await asyncio.sleep(0)
    closing = asyncio.create_task(commits.batcher.close())
    commits.let_go(0)
    await commits.begun(2)
    commits.let_go(1)
    await closing
    assert await asyncio.gather(*calls) == [0, 1]


async def test_a_fault_behind_a_commit_stops_nobody() -> None:
    commits = Commits(1)
    commits.trouble = ZeroDivisionError("an observer has a fault")
    for number in range(2):
        [call] = commits.call(number)
        await commits.begun(number + 1)
        commits.let_go(number)
        async with asyncio.timeout(20):
            assert await call == number
    await commits.batcher.close()


# -- ends that leave nobody waiting ----------------------------------------------------------------------------------


async def _told(call: asyncio.Task[Any]) -> BaseException | None:
    async with asyncio.timeout(20):
        await asyncio.wait((call,))
    return call.exception()


@pytest.mark.parametrize("how", ["abandoned", "its runner is cancelled"])
async def test_giving_up_tells_those_who_wait(how: str) -> None:
    commits = Commits(1, max_queue=2)
    [taken] = commits.call("taken")
    await commits.begun(1)
    calls = commits.call("queued", "queued too", "waits for room")
    many = asyncio.create_task(commits.batcher.call_all(["waits for room", "as well"]))
    for _ in range(3):
        await asyncio.sleep(0)
    if how == "abandoned":
        commits.batcher.abandon()
    else:
        commits.batcher._runners[0].cancel()
    found = await _told(taken)
    assert isinstance(found, Transport)
    assert "outcome unknown" in str(found)
    for call in (*calls, many):
        assert isinstance(await _told(call), Unavailable)
    async with asyncio.timeout(20):
        await commits.batcher.close()
    assert commits.batches == [["taken"]]


async def test_many_calls_that_wait_for_room_hear_of_the_end() -> None:
    commits = Commits(1, max_queue=1)
    calls = commits.call(0, 1)
    await commits.begun(1)
    many = asyncio.create_task(commits.batcher.call_all([2, 3]))
    await asyncio.sleep(0)
    closing = asyncio.create_task(commits.batcher.close())
    await asyncio.sleep(0)
    commits.let_go(0)
    await commits.begun(2)
    commits.let_go(1)
    assert isinstance(await _told(many), Unavailable)
    assert await asyncio.gather(*calls) == [0, 1]
    await closing
