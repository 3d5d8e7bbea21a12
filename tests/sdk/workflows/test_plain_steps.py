"""What a workflow's own code sees of its steps: the same on every pass, and nothing of how they were done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import App, Ask, days, first, gather, minutes, seconds, sleep


class ApiError(Exception):
    """An error whose constructor takes other arguments than it hands on."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{code}: {what}")
        self.code = code
        self.handle = object()


@pytest.fixture
def memory_app() -> App:
    """A closed app for ``testing()``."""
    return App("memory://")


async def test_a_step_changes_its_copy(memory_app: App) -> None:
    app = memory_app
    seen: list[list[str]] = []

    @app.step
    async def extend(values: list[str]) -> int:
        values.append("more")
        return len(values)

    @app.workflow
    async def extending() -> int:
        values = ["one"]
        size = await extend(values)
        seen.append(values)
        await sleep(days(1))
        return size

    async with app.testing():
        assert await (await extending.start()).result(days(2)) == 2
    assert seen == [["one"]] * 3


async def test_what_a_step_calls_is_plain(memory_app: App) -> None:
    app = memory_app
    names: list[str] = []

    @app.step
    async def inner(number: int) -> int:
        return number + 1

    @app.task
    async def task(number: int) -> int:
        return number * 2

    @app.step
    async def outer(number: int) -> int:
        await sleep(seconds(0))
        return await task(await inner(number))

    @app.workflow
    async def calling() -> int:
        return await outer(1)

    async with app.testing():
        run = await calling.start()
        assert await run.result(days(1)) == 4
        names += [step.name for step in await run.steps()]
    assert names == ["outer"]


async def test_an_error_is_the_same_each_time(memory_app: App) -> None:
    app = memory_app
    seen: list[Any] = []

    @app.step
    async def fetch() -> None:
        raise ApiError(503, "away") from FileNotFoundError(2, "missing", "a.txt")

    @app.workflow
    async def fetching() -> None:
        try:
            await fetch()
        except Exception as error:
            cause = error.__cause__
            assert isinstance(cause, FileNotFoundError)
            found = [type(error), str(error), error.args, sorted(vars(error)), type(cause), cause.filename]
            seen.append(found)
        await sleep(days(1))

    async with app.testing():
        await (await fetching.start()).result(days(2))
    assert seen == [[ApiError, "503: away", ("503: away",), ["code"], FileNotFoundError, "a.txt"]] * 3


async def test_what_ended_first_wins_late(memory_app: App) -> None:
    """While a step holds the workflow up, an answer comes and then a time is over."""
    app = memory_app
    go_on = {"long": asyncio.Event(), "short": asyncio.Event()}

    @app.step
    async def hold(name: str) -> None:
        await go_on[name].wait()

    async def patience() -> str:
        await sleep(minutes(10))
        return "too late"

    async def answer() -> str:
        return "yes" if await Ask("go?") else "no"

    @app.workflow
    async def waiting() -> str:
        found, *_ = await gather(first(patience(), answer()), hold("long"), hold("short"))
        return str(found)

    async with app.testing(second_pass=False) as t:
        run = await waiting.start()
        ask = await _asked(app)
        await ask.answer(True)
        async with asyncio.timeout(30):
            while (await app.engine.read_ends([ask.id]))[0].ended_at_ms is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        t.clock.move_to(t.clock.now_ms + 3_600_000)
        go_on["short"].set()
        async with asyncio.timeout(30):
            while "hold#2" not in {step.name for step in await run.steps()}:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        go_on["long"].set()
        assert await run.result(days(1)) == "yes"


async def _asked(app: App) -> Any:
    async with asyncio.timeout(30):
        while True:
            if found := await app.asks():
                return found[0]
            await asyncio.sleep(0.001)


async def test_who_comes_first_does_not_matter(memory_app: App) -> None:
    app = memory_app

    @app.workflow
    async def fetch(pause: int) -> int:
        await sleep(seconds(pause))
        return pause

    async def approve(pause: int) -> tuple[int, bool]:
        found = await fetch.using(key=str(pause))(pause)
        return found, await Ask("pay?")

    @app.workflow
    async def paying() -> dict[str, bool]:
        return {str(name): paid for name, paid in await gather(approve(400), approve(5))}

    async with app.testing() as t:
        run = await paying.start()
        first_asked = await t.next()
        await first_asked.answer(False)
        await (await t.next()).answer(True)
        assert await run.result(days(1)) == {"400": True, "5": False}
