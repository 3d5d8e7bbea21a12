"""What happens when a workflow is parked: its code is thrown away, and wakes when there is something to go on with."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest

from flowfabric import App, Ask, days, first, gather, minutes, seconds, sleep
from flowfabric.sdk.errors import RunFailed
from flowfabric.sdk.worker.attempt import Parked


@pytest.fixture
def memory_app() -> App:
    """A closed app for ``testing()``."""
    return App("memory://")


# -- thrown away -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gather", "wait", "group", "nested"])
async def test_the_code_never_holds_the_end_of_its_pass(memory_app: App, how: str) -> None:
    app = memory_app
    seen: list[Any] = []

    async def napping() -> str:
        await sleep(days(1))
        return "rested"

    async def wait() -> list[Any]:
        if how == "gather":
            return list(await gather(napping(), napping(), return_exceptions=True))
        if how == "nested":
            (inner,) = await gather(gather(napping(), napping(), return_exceptions=True), return_exceptions=True)
            return list(inner)
        if how == "wait":
            tasks = [asyncio.create_task(napping()) for _ in range(2)]
            done, _ = await asyncio.wait(tasks)
            return [task.exception() or task.result() for task in tasks if task in done]
        try:
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(napping()) for _ in range(2)]
        except Exception as error:
            seen.append(error)
            raise
        return [task.result() for task in made]

    @app.workflow
    async def waiting() -> list[str]:
        found = await wait()
        seen.append(found)
        return [str(each) for each in found]

    async with app.testing(second_pass=False):
        assert await (await waiting.start()).result(days(2)) == ["rested", "rested"]
    assert seen == [["rested", "rested"]]


async def test_nobody_complains_about_code_that_was_thrown_away(
    memory_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    app = memory_app
    never = asyncio.Event()

    @app.workflow
    async def napping() -> str:
        await sleep(days(1))
        return "rested"

    async def deep(levels: int) -> str:
        if levels:
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(deep(levels - 1)), group.create_task(napping())]
                plain = group.create_task(never.wait())
                await made[1]
                plain.cancel()
            return made[0].result()
        (found,) = await gather(napping())
        return str(found)

    @app.workflow
    async def waiting() -> str:
        return await deep(5)

    async with app.testing(second_pass=False):
        assert await (await waiting.start()).result(days(9)) == "rested"
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_branches_without_a_durable_call_are_cut(memory_app: App) -> None:
    app = memory_app
    pending: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()
    cut: list[type[BaseException]] = []
    never = asyncio.Event()

    async def listen() -> None:
        try:
            await never.wait()
        except BaseException as error:
            cut.append(type(error))
            # Letting go may take a moment.
            await asyncio.sleep(0)
            cut.append(str)
            raise

    @app.workflow
    async def listening() -> str:
        task = asyncio.create_task(listen())
        pending.add(task)
        await sleep(days(1))
        await sleep(days(1))
        task.cancel()
        return "done"

    async with app.testing(second_pass=False) as t:
        run = await listening.start()
        assert await run.result(days(3)) == "done"
        assert t.attempts(listening) == 3
    assert cut[:4] == [Parked, str, Parked, str]
    assert not [task for task in pending if not task.done()]


# -- woken -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gather", "group", "tasks", "flat"])
async def test_one_of_several_children_has_ended(memory_app: App, how: str) -> None:
    """Nobody looks again before there is something to go on with."""
    app = memory_app

    @app.workflow
    async def napping(number: int) -> int:
        await sleep(days(number))
        return number

    async def nap(number: int) -> int:
        return await napping(number)

    @app.workflow
    async def waiting() -> int:
        numbers = range(1, 6)
        if how == "group":
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(napping(each)) for each in numbers]
            return sum(each.result() for each in made)
        if how == "tasks":
            tasks = [asyncio.create_task(napping(each)) for each in reversed(numbers)]
            return sum([await each for each in tasks])
        return sum(await gather(*(napping(each) if how == "flat" else nap(each) for each in numbers)))

    async with app.testing(second_pass=False) as t:
        assert await (await waiting.start()).result(days(9)) == 15
        # Of those that are awaited one by one any may be the next, and each end lets a helper go on.
        assert t.attempts(waiting) == (2 if how in ("flat", "group") else 6)


@pytest.mark.parametrize("how", ["gather", "group"])
async def test_the_first_failure_wakes(memory_app: App, how: str) -> None:
    app = memory_app
    done: list[str] = []

    @app.workflow
    async def napping(number: int) -> int:
        await sleep(days(number))
        if number == 2:
            raise ValueError("nightmare")
        return number

    @app.step
    async def note() -> None:
        done.append("noted")

    @app.workflow
    async def waiting() -> str:
        try:
            if how == "gather":
                await gather(*(napping(each) for each in (1, 2, 30)))
            else:
                async with asyncio.TaskGroup() as group:
                    for each in (1, 2, 30):
                        group.create_task(napping(each))
        except* RunFailed:
            await note()
        return "awake"

    async with app.testing() as t:
        run = await waiting.start()
        await t.advance(days(1) + minutes(1))
        assert (done, t.attempts(waiting)) == ([], 1)
        await t.advance(days(1))
        assert done == ["noted"]
        await run.result(days(40))


async def test_failures_that_are_collected_wake_nobody(memory_app: App) -> None:
    app = memory_app

    @app.workflow
    async def napping(number: int) -> int:
        await sleep(days(number))
        raise ValueError("nightmare")

    @app.workflow
    async def waiting() -> int:
        return len(await gather(*(napping(each) for each in range(1, 5)), return_exceptions=True))

    async with app.testing(second_pass=False) as t:
        assert await (await waiting.start()).result(days(9)) == 4
        assert t.attempts(waiting) == 2


async def test_a_choice_among_finished_calls_is_made_at_once(memory_app: App) -> None:
    app, chosen = memory_app, list[int]()

    @app.workflow
    async def napping(number: int) -> int:
        await sleep(days(number))
        return number

    @app.workflow
    async def waiting() -> list[int]:
        tasks = [asyncio.create_task(napping(each)) for each in (1, 20, 30)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        found = [task.result() for task in done]
        chosen.extend(found)
        for task in tasks:
            task.cancel()
        raced = await first(gather(napping(5), napping(6)), napping(40))
        return [*found, *raced]  # type: ignore[misc]

    async with app.testing(second_pass=False) as t:
        run = await waiting.start()
        await t.advance(days(1) + seconds(1))
        assert chosen[0] == 1
        assert await run.result(days(60)) == [1, 5, 6]


async def test_a_group_of_questions_wakes_when_all_are_answered(memory_app: App) -> None:
    app = memory_app

    @app.workflow
    async def asking() -> list[bool]:
        return list(await gather(*(Ask("go?", show=each) for each in range(3))))

    async with app.testing(second_pass=False) as t:
        run = await asking.start()
        for _ in range(3):
            await (await t.next()).answer(True)
        assert await run.result(days(1)) == [True] * 3
        assert t.attempts(asking) == 2
