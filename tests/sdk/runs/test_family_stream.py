"""A workflow's stream with what its children emit: live, in a stable order, from a place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import App, BadOptions, Ctx, Output, Retry, Run, RunFrame, RunRestart, gather, seconds, sleep
from flowfabric.sdk.runs import family_stream

SOON = seconds(30)
AT_ONCE = Retry(3, first=seconds(0), jitter=False)


async def read(run: Run[Any], **more: Any) -> list[RunFrame]:
    return [frame async for frame in run.frames(children=True, **more)]


def by_run(frames: list[RunFrame]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for frame in frames:
        found.setdefault(frame.run_id, []).append(frame.id)
    return found


async def test_children_and_theirs(app: App) -> None:
    @app.task(retry=AT_ONCE)
    async def leaf(name: str, ctx: Ctx) -> None:
        await ctx.emit(f"{name}-")
        if ctx.attempt == 1:
            raise OSError("no")
        await ctx.emit(f"{name} ")

    @app.workflow
    async def middle(name: str, ctx: Ctx) -> None:
        await leaf(name)

    @app.step
    async def look(ctx: Ctx) -> None:
        await ctx.emit("look ")

    @app.workflow
    async def root() -> None:
        await look()
        await gather(middle.using(key="a")("a"), leaf.using(key="b")("b"))

    async with app.worker():
        run = await root.start()
        live = asyncio.create_task(read(run))
        await run.result(timeout=SOON)
        frames = await asyncio.wait_for(live, 30)
        late = await read(run)
        output = await run.output(children=True)
        alone = await run.output()
    texts = sorted(frame.text for frame in output.frames)
    assert texts == ["a ", "a-", "b ", "b-", "look "]
    assert sorted(frame.attempt for frame in output.frames) == [1, 2, 2, 2, 2]
    assert len([frame for frame in frames if isinstance(frame, RunRestart)]) == 2
    assert len({frame.run_id for frame in frames}) == 3
    assert by_run(live.result()) == by_run(late), "each run in its order"
    assert alone.text == "look "


async def test_whoever_reads_later_always_gets_the_same_order(app: App) -> None:
    @app.task
    async def leaf(number: int, ctx: Ctx) -> None:
        for each in range(30):
            await ctx.emit(f"{number}.{each} ")
            if each % 5 == 0:
                await ctx.flush()

    @app.workflow
    async def root() -> None:
        await gather(*(leaf.using(key=str(number))(number) for number in range(4)))

    async with app.worker():
        run = await root.start()
        await run.result(timeout=SOON)
        frames = await read(run)
        assert len(frames) == 120
        times = [int(frame.id.partition(":")[2].partition("-")[0]) for frame in frames]
        assert times == sorted(times)
        for held in (1, 12, 50):
            few = family_stream.Family(app.engine, run.id, held=held)
            found = [each async for some in few.rounds() for each in some]
            assert [(each.run_id, each.place) for each in found] == [(each.run_id, each.id) for each in frames]


async def test_from_a_place_of_each(app: App) -> None:
    @app.task
    async def leaf(name: str, ctx: Ctx) -> None:
        for each in range(5):
            await ctx.emit(f"{name}{each} ")

    @app.workflow
    async def root(ctx: Ctx) -> None:
        await ctx.emit("root ")
        await gather(leaf.using(key="a")("a"), leaf.using(key="b")("b"))

    async with app.worker():
        run = await root.start()
        await run.result(timeout=SOON)
        whole = await run.output(children=True)
        for count in range(0, 11, 3):
            output = Output()
            async for frame in run.frames(children=True):
                output.add(frame)
                if len(output.frames) == count:
                    break
            async for frame in run.frames(after=output.places, children=True):
                output.add(frame)
            assert output.frames == whole.frames
        assert await read(run, after=whole.places) == []
        with pytest.raises(BadOptions, match=r"after=output\.places"):
            await read(run, after="1:5-0")


async def test_children_are_heard_while_they_run(app: App) -> None:
    heard, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def leaf(ctx: Ctx) -> None:
        await ctx.emit("first")
        await go.wait()
        await ctx.emit("second")

    @app.workflow
    async def root() -> None:
        await leaf()
        await sleep(seconds(0))

    seen: list[str] = []

    async def listen(run: Run[Any]) -> None:
        async for frame in run.frames(children=True):
            seen.append(frame.text)
            heard.set()

    async with app.worker():
        run = await root.start()
        listening = asyncio.create_task(listen(run))
        await asyncio.wait_for(heard.wait(), 30)
        assert seen == ["first"]
        go.set()
        await asyncio.wait_for(listening, 30)
    assert seen == ["first", "second"]


async def test_a_child_is_followed_with_its_own(app: App) -> None:
    """And without its siblings."""

    @app.task
    async def leaf(name: str, ctx: Ctx) -> None:
        await ctx.emit(name)

    @app.workflow
    async def middle(name: str) -> None:
        await leaf(name)

    @app.workflow
    async def root() -> None:
        await gather(middle.using(key="a")("a"), middle.using(key="b")("b"))

    async with app.worker():
        run = await root.start()
        await run.result(timeout=SOON)
        texts = []
        async for child in app.runs(name="middle"):
            texts += [frame.text for frame in await read(child)]
    assert sorted(texts) == ["a", "b"]


async def test_a_task_has_no_children(app: App) -> None:
    @app.task
    async def leaf(ctx: Ctx) -> None:
        await ctx.emit("a")

    async with app.worker():
        run = await leaf.start()
        await run.result(timeout=SOON)
        assert [frame.text for frame in await read(run)] == ["a"]
        cancelled = await leaf.using(delay=seconds(1_000)).start()
        await cancelled.cancel()
        assert await read(cancelled) == []
