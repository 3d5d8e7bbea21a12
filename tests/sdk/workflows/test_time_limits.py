"""Time limits around what a workflow waits for: ``limit`` is remembered, those of ``asyncio`` are refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import App, Ask, BadDuration, Retry, days, first, gather, hours, limit, minutes, seconds, sleep
from flowfabric.sdk.errors import RunFailed


@pytest.fixture
def memory_app() -> App:
    """A closed app for ``testing()``."""
    return App("memory://")


@pytest.mark.parametrize("how", ["timeout", "wait_for", "task", "group", "gather", "wait", "shield", "as_completed"])
@pytest.mark.parametrize("what", ["child", "sleep", "ask"])
async def test_limits_of_asyncio_around_a_durable_wait_are_refused(memory_app: App, how: str, what: str) -> None:
    app = memory_app
    caught: list[BaseException] = []

    @app.workflow
    async def napping() -> str:
        await sleep(days(1))
        return "rested"

    async def nap() -> Any:
        match what:
            case "child":
                return await napping()
            case "ask":
                return await Ask("rested?")
        return await sleep(days(1))

    async def waited() -> Any:
        match how:
            case "timeout":
                async with asyncio.timeout(60):
                    return await nap()
            case "wait_for":
                return await asyncio.wait_for(nap(), 60)
            case "task":
                task = asyncio.create_task(nap())
                return await asyncio.wait_for(task, 60)
            case "shield":
                return await asyncio.wait_for(asyncio.shield(nap()), 60)
            case "gather":
                async with asyncio.timeout(60):
                    return await gather(nap(), gather(nap()))
            case "group":
                async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                    group.create_task(nap())
            case "wait":
                return await asyncio.wait([asyncio.create_task(nap())], timeout=60)
            case "as_completed":
                return [await each for each in asyncio.as_completed([nap()], timeout=60)]
        return None

    @app.workflow(retry=Retry(3, first=seconds(1)))
    async def waiting() -> str:
        try:
            await waited()
        except Exception as error:
            caught.append(error)
        return "caught"

    async with app.testing() as t:
        run = await waiting.start()
        with pytest.raises(RunFailed, match=r"BadOptions.*asyncio\..*limit\(call, minutes\(5\)\)"):
            await run.result(days(2))
        assert t.attempts(waiting) == 1
    assert caught == []


async def test_limits_of_asyncio_around_what_is_done_here_stay(memory_app: App) -> None:
    app = memory_app
    never = asyncio.Event()

    @app.step
    async def endless() -> None:
        await never.wait()

    @app.step
    async def quick() -> str:
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        return "quick"

    async def plain() -> str:
        try:
            async with asyncio.timeout(60):
                await never.wait()
        finally:
            plains.append("cut")
        return "never"

    plains: list[str] = []

    @app.workflow
    async def mixing() -> list[str]:
        found = []
        try:
            async with asyncio.timeout(0.01):
                await endless()
        except TimeoutError:
            found.append("late")
        found.append(await asyncio.wait_for(quick(), 60))
        # A limit that is over, and one around something else.
        await sleep(days(1))
        task = asyncio.create_task(plain())
        await sleep(days(1))
        task.cancel()
        return found

    async with app.testing(second_pass=False):
        assert await (await mixing.start()).result(days(3)) == ["late", "quick"]
    assert plains


@pytest.mark.parametrize("what", ["child", "ask", "helper", "task", "step"])
@pytest.mark.parametrize("end", ["in time", "too late", "broken"])
async def test_a_durable_limit(memory_app: App, what: str, end: str) -> None:
    app = memory_app
    took = days(2) if end == "too late" else hours(1)
    did: list[str] = []

    @app.step
    async def note(text: str) -> str:
        did.append(text)
        if text == "broken":
            raise ValueError("broken")
        return text

    @app.workflow
    async def napping() -> str:
        await sleep(took)
        if end == "broken":
            raise ValueError("broken")
        return "rested"

    async def nap() -> str:
        await note("falls asleep")
        await sleep(took)
        await note("wakes")
        return await note("broken" if end == "broken" else "rested")

    def call() -> Any:
        match what:
            case "child":
                return napping()
            case "ask":
                return Ask("rested?", str)
            case "step":
                return note("broken" if end == "broken" else "rested")
            case "task":
                return asyncio.create_task(nap())
        return nap()

    @app.workflow
    async def waiting() -> str:
        try:
            found = await limit(call(), days(1))
        except TimeoutError:
            found = "late"
        except Exception as error:
            found = type(error).__name__
        await sleep(days(3))
        return str(found)

    async with app.testing() as t:
        run = await waiting.start()
        if what == "ask" and end != "too late":
            await (await t.next()).answer("rested")
        broken = {"child": "RunFailed", "ask": "rested"}.get(what, "ValueError")
        late = "rested" if what == "step" else "late"
        assert await run.result(days(9)) == {"in time": "rested", "too late": late, "broken": broken}[end]
        assert t.attempts(waiting) > 1
    if what in ("helper", "task"):
        begun, woke = "falls asleep", "wakes"
        assert (
            did
            == {
                "in time": [begun, woke, "rested"],
                "too late": [begun],
                "broken": [begun, woke, "broken"],
            }[end]
        )


async def test_limits_within_limits(memory_app: App) -> None:
    app = memory_app

    @app.workflow
    async def napping(hours_: int) -> int:
        await sleep(hours(hours_))
        return hours_

    async def some() -> list[int | str]:
        found: list[int | str] = []
        for each in (1, 9, 2):
            try:
                found.append(await limit(napping(each), hours(4)))
            except TimeoutError:
                found.append("late")
        return found

    @app.workflow
    async def waiting() -> Any:
        try:
            return await limit(gather(some(), limit(napping(3), hours(5))), hours(8))
        except TimeoutError:
            return await first(limit(some(), days(1)), sleep(days(2)))

    async with app.testing():
        assert await (await waiting.start()).result(days(9)) == [[1, "late", 2], 3]


async def test_a_limit_outside_of_a_workflow() -> None:
    assert await limit(asyncio.sleep(0, "quick"), seconds(60)) == "quick"
    with pytest.raises(TimeoutError):
        await limit(asyncio.sleep(60), timedelta(milliseconds=1))
    nothing = asyncio.sleep(0)
    with pytest.raises(BadDuration):
        limit(nothing, -minutes(1))
    nothing.close()
