"""Steps of a workflow: one after the other has been remembered, and none goes on behind the end of its run."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest

from flowfabric import App, Ctx, Depends, days, gather, seconds, sleep
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.errors import RunFailed


@pytest.fixture
def memory_app() -> App:
    """A closed app for ``testing()``."""
    return App("memory://")


async def test_no_step_is_done_while_one_before_it_is_being_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    app, did, seen = App("memory://"), list[str](), list[list[str]]()
    gate = asyncio.Event()

    @app.step
    async def note(what: str) -> None:
        did.append(what)

    async def later() -> None:
        await gate.wait()
        await note("later")

    @app.workflow
    async def noting() -> None:
        task = asyncio.create_task(later())
        await note("one")
        await note("two")
        await task

    async with app, app.worker():
        real = app.engine.advance

        async def slow(*args: Any, **kwargs: Any) -> Any:
            if not gate.is_set():
                gate.set()
                for _ in range(20):
                    await asyncio.sleep(0)
                seen.append(list(did))
            return await real(*args, **kwargs)

        monkeypatch.setattr(app.engine, "advance", slow)
        await (await noting.start()).result(seconds(60))
    assert seen == [["one"]]
    assert sorted(did) == ["later", "one", "two"]


async def test_a_failed_workflow_waits_for_its_steps_in_threads() -> None:
    app, done = App("memory://"), list[str]()
    began, go = threading.Event(), threading.Event()

    @app.step
    def slow() -> str:
        began.set()
        assert go.wait(60)
        done.append("slow")
        return "slow"

    @app.step
    async def broken() -> None:
        assert await asyncio.to_thread(began.wait, 60)
        raise ValueError("broken")

    @app.step
    async def after() -> None:
        done.append("after")

    async def both() -> None:
        await slow()
        await after()

    @app.workflow
    async def failing() -> None:
        await gather(both(), broken())

    async with app, app.worker():
        run = await failing.start()
        async with asyncio.timeout(60):
            while True:
                if any(step.name == "broken!0" for step in await run.steps()):
                    break
                await asyncio.sleep(0.01)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert await run.status() == "active"
        go.set()
        with pytest.raises(RunFailed, match="broken"):
            await run.result(seconds(60))
        assert {step.name for step in await run.steps()} == {"both>slow", "broken!0"}
    assert done == ["slow"]


async def test_the_clock_is_read_once_for_all_that_has_slept(memory_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app = memory_app
    passes = 12

    @app.workflow
    async def sleeping() -> None:
        await gather(*(sleep(seconds(1)) for _ in range(30)))
        for _ in range(passes - 2):
            await sleep(seconds(1))

    async with app.testing(second_pass=False) as t:
        real, read = app.engine.now_ms, Counter[str]()

        async def counted() -> int:
            read["now"] += 1
            return await real()

        run = await sleeping.start()
        monkeypatch.setattr(app.engine, "now_ms", counted)
        await run.result(days(1))
        assert t.attempts(sleeping) == passes
    # One for what has slept, and one for what falls asleep.
    assert read["now"] <= 3 * passes


@pytest.mark.parametrize("kind", ["a dependency", "ctx"])
async def test_workflows_with_dependencies_are_called_once_more_in_tests(memory_app: App, kind: str) -> None:
    app = memory_app
    made: list[str] = []

    async def connection() -> AsyncIterator[str]:
        made.append("open")
        yield "connection"
        made.append("closed")

    @app.step
    async def load(number: float) -> float:
        return number

    if kind == "ctx":

        @app.workflow
        async def loading(ctx: Ctx = injected) -> float:
            await ctx.emit("loading")
            ctx.log.info("loading")
            return await load(random.random())

    else:

        @app.workflow
        async def loading(db: Annotated[str, Depends(connection, scope="attempt")]) -> float:
            return await load(random.random())

    async with app.testing():
        run = await loading.start()
        with pytest.raises(RunFailed, match=r"(?s)BadStep.*load.*using\(key"):
            await run.result(seconds(60))
    assert made == (["open", "closed"] * 2 if kind == "a dependency" else [])


async def test_the_second_time_nothing_is_emitted_or_spent(memory_app: App) -> None:
    app, spent = memory_app, list[str]()

    @app.workflow
    async def telling(ctx: Ctx = injected) -> str:
        await ctx.emit("once")
        await ctx.progress(50)
        ctx.log.info("logged once")
        return "told"

    @app.workflow
    async def paying(ctx: Ctx = injected) -> str:
        async with ctx.spend(tokens=1):
            spent.append("spent")
        return await ctx.stream.earlier()

    async with app.testing():
        run = await telling.start()
        assert await run.result(seconds(60)) == "told"
        assert [frame.text async for frame in run.frames()] == ["once"]
        assert [line.text async for line in run.logs()] == ["logged once"]
        assert await (await paying.start()).result(seconds(60)) == ""
    assert spent == ["spent"]
