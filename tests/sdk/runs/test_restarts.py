"""Output that starts over: what readers are told, what counts in the end, and how a successor goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric import App, BadOptions, Ctx, Output, RestartReason, Retry, Run, RunFrame, RunRestart, seconds, sleep
from flowfabric.sdk.testing.faults import WRITES, Crash
from tests.sdk.serving import direct

SOON = seconds(30)
AT_ONCE = Retry(5, first=seconds(0), jitter=False)


class CrashAt(Crash):
    """A worker that dies at its writes with these numbers, counted over all workers."""

    def __init__(self, task: str, numbers: set[int], after: bool) -> None:
        super().__init__(task, None, "any", after, 99)
        self._numbers = numbers
        self.seen = 0

    def concerns(self, operation: str, kind: str, arguments: dict[str, Any]) -> bool:
        if kind != self.kind or not any(operation in each for each in WRITES.values()):
            return False
        self.seen += 1
        return self.seen in self._numbers


async def read(run: Run[Any]) -> tuple[list[RunFrame], Output]:
    """All frames, and what counts of them."""
    frames, output = [], Output()
    async for frame in run.frames():
        frames.append(frame)
        output.add(frame)
    return frames, output


def shown(frames: list[RunFrame]) -> list[str]:
    return [f"<{each.reason.value}>" if isinstance(each, RunRestart) else each.text for each in frames]


# -- tasks -----------------------------------------------------------------------------------------------------------


async def test_a_retry_starts_over(app: App) -> None:
    @app.task(retry=AT_ONCE)
    async def write(ctx: Ctx) -> str:
        for word in ("a", "b", "c"):
            await ctx.emit(word)
        if ctx.attempt < 3:
            raise OSError("no")
        await ctx.emit("d")
        return ctx.stream.text

    async with app.worker():
        run = await write.start()
        frames, output = await asyncio.wait_for(read(run), 30)
        text = await run.result(timeout=SOON)
    assert shown(frames) == [*"abc", "<retry>", *"abc", "<retry>", *"abcd"]
    restarts = [each for each in frames if isinstance(each, RunRestart)]
    assert [(each.attempt, each.step, each.text) for each in restarts] == [(2, None, ""), (3, None, "")]
    assert restarts[0].sentence == "output starts over: attempt 2 after a failure"
    assert [each.attempt for each in frames] == [1] * 3 + [2] * 4 + [3] * 5
    assert output.text == text == "abcd"
    assert (await run.output()).text == "abcd"
    behind = [each async for each in run.frames(after=restarts[1].id)]
    assert shown(behind) == list("abcd"), "a restart is a place like any other"


async def test_those_who_emit_nothing_again_are_told_nothing(app: App) -> None:
    @app.task(retry=AT_ONCE)
    async def write(ctx: Ctx) -> None:
        if ctx.attempt == 1:
            raise OSError("no")
        await ctx.emit("a")

    async with app.worker():
        run = await write.start()
        frames, _ = await asyncio.wait_for(read(run), 30)
    assert shown(frames) == ["a"]


async def test_what_is_emitted_right_before_a_failure_is_kept(app: App) -> None:
    @app.task(retry=AT_ONCE)
    async def write(ctx: Ctx) -> None:
        for number in range(700):
            await ctx.emit(f"{number} ")
        if ctx.attempt == 1:
            raise OSError("no")

    async with app.worker():
        run = await write.start()
        frames, output = await asyncio.wait_for(read(run), 30)
    once = [f"{number} " for number in range(700)]
    assert shown(frames) == [*once, "<retry>", *once]
    assert output.text == "".join(once)


async def test_values_and_bytes_are_no_text(app: App) -> None:
    @app.task
    async def write(ctx: Ctx) -> str:
        await ctx.emit("a")
        await ctx.emit({"n": 1})
        await ctx.emit(b"b")
        await ctx.summary({"n": 1})
        await ctx.emit("c", type="restart")
        return ctx.stream.text

    async with app.worker():
        run = await write.start()
        frames, output = await asyncio.wait_for(read(run), 30)
        assert output.text == await run.result(timeout=SOON) == "ac"
    assert [each.is_text for each in frames] == [True, False, False, False, True]
    assert not any(isinstance(each, RunRestart) for each in frames), "only the engine says that output starts over"


@direct
@pytest.mark.parametrize("after", [False, True])
async def test_whatever_is_killed_when(store_url: str, after: bool) -> None:
    """Readers that apply restarts have exactly the text of the last holder; each write is the last of some worker."""
    for numbers in _moments():
        app = App(store_url)
        holders = 0

        @app.task
        async def write(ctx: Ctx) -> str:
            nonlocal holders
            holders += 1
            mine = holders
            for number in range(3):
                await ctx.emit(f"{mine}.{number} ")
                await ctx.flush()
            return ctx.stream.text

        async with app.testing(store=store_url) as kit:
            assert kit._faulty is not None
            crash = CrashAt("write", set(numbers), after)
            kit._faulty.crashes.append(crash)
            run = await write.start()
            live = asyncio.create_task(read(run))
            text = await run.result()
            told = f"killed {'after' if after else 'before'} {numbers}"
            assert text == "".join(f"{holders}.{number} " for number in range(3)), told
            frames, output = await asyncio.wait_for(live, 30)
            assert output.text == text, told
            assert (await run.output()).text == text, told
            emitted = [each for each in frames if not isinstance(each, RunRestart)]
            restarts = [each for each in frames if isinstance(each, RunRestart)]
            assert len(restarts) == len({each.text.partition(".")[0] for each in emitted}) - 1, told
            assert {each.reason for each in restarts} <= {RestartReason.WORKER_LOST}


def _moments() -> Iterator[tuple[int, ...]]:
    """Every write of the first worker, and some of those that follow."""
    for first in range(1, 5):
        yield (first,)
        yield (first, first + 1)
        yield (first, first + 3)


# -- going on --------------------------------------------------------------------------------------------------------


async def test_a_successor_goes_on(app: App) -> None:
    earlier: list[str] = []

    @app.task(retry=AT_ONCE)
    async def write(ctx: Ctx) -> str:
        earlier.append(await ctx.stream.resume())
        words = ["a", "b", "c", "d"][len(ctx.stream.text) :]
        for word in words[:2]:
            await ctx.emit(word)
            await ctx.emit({"no": "text"})
        if ctx.attempt == 1:
            raise OSError("no")
        return ctx.stream.text

    async with app.worker():
        run = await write.start()
        frames, output = await asyncio.wait_for(read(run), 30)
        assert await run.result(timeout=SOON) == "abcd"
    assert earlier == ["", "ab"]
    assert output.text == "abcd"
    assert not any(isinstance(each, RunRestart) for each in frames)


async def test_a_successor_in_a_thread_goes_on(app: App) -> None:
    @app.task(retry=AT_ONCE)
    def write(ctx: Ctx) -> str:
        ctx.stream.resume()
        ctx.emit(str(ctx.attempt))
        if ctx.attempt < 3:
            raise OSError("no")
        return ctx.stream.text

    async with app.worker():
        run = await write.start()
        assert await run.result(timeout=SOON) == "123"
        assert (await run.output()).text == "123"


async def test_a_successor_looks_back_and_starts_over(app: App) -> None:
    earlier: list[str] = []

    @app.task(retry=AT_ONCE)
    async def write(ctx: Ctx) -> str:
        earlier.append(await ctx.stream.earlier())
        await ctx.emit(f"{ctx.attempt} ")
        if ctx.attempt < 3:
            raise OSError("no")
        return ctx.stream.text

    async with app.worker():
        run = await write.start()
        frames, output = await asyncio.wait_for(read(run), 30)
        assert await run.result(timeout=SOON) == output.text == "3 "
    assert earlier == ["", "1 ", "2 "], "of what was emitted, only what counts"
    assert shown(frames) == ["1 ", "<retry>", "2 ", "<retry>", "3 "]


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_one_looks_back_before_one_emits(app: App) -> None:
    @app.task
    async def write(ctx: Ctx) -> list[str]:
        await ctx.emit("a")
        refused = []
        for call in (ctx.stream.earlier, ctx.stream.resume):
            with pytest.raises(BadOptions) as caught:
                await call()
            refused.append(str(caught.value))
        return refused

    async with app.worker():
        found = await (await write.start()).result(timeout=SOON)
    assert found == ["call ctx.stream.earlier() before you emit", "call ctx.stream.resume() once, before you emit"]


# -- workflows -------------------------------------------------------------------------------------------------------


async def test_a_step_that_is_tried_again_starts_over_alone(app: App) -> None:
    tries = 0

    @app.step
    async def outline(ctx: Ctx) -> None:
        await ctx.emit("outline ")

    @app.step(retry=AT_ONCE)
    async def draft(ctx: Ctx) -> None:
        nonlocal tries
        tries += 1
        await ctx.emit(f"try {tries} ")
        if tries < 3:
            raise OSError("no")

    @app.workflow
    async def article() -> None:
        await outline()
        await draft()

    async with app.worker():
        run = await article.start()
        frames, output = await asyncio.wait_for(read(run), 30)
        await run.result(timeout=SOON)
    assert shown(frames) == ["outline ", "try 1 ", "<retry>", "try 2 ", "<retry>", "try 3 "]
    assert [each.step for each in frames] == ["outline", *["draft"] * 5]
    assert output.text == "outline try 3 "
    restart = next(each for each in frames if isinstance(each, RunRestart))
    assert restart.sentence == "output starts over: step draft in attempt 1 after a failure"


@direct
async def test_a_step_of_a_lost_worker_starts_over_alone(store_url: str) -> None:
    app = App(store_url)

    @app.step
    async def outline(ctx: Ctx) -> None:
        await ctx.emit("outline ")

    @app.step
    async def draft(number: int, ctx: Ctx) -> None:
        await ctx.emit(f"draft {number}, ")
        await ctx.flush()
        await ctx.emit("done ")

    @app.workflow
    async def article(ctx: Ctx) -> None:
        await ctx.emit("begin ")
        await outline()
        await sleep(seconds(60))
        await draft.using(key="a")(1)
        await draft.using(key="b")(2)
        await ctx.emit("end")

    expected = {None: "begin end", "outline": "outline ", "draft[a]": "draft 1, done ", "draft[b]": "draft 2, done "}
    for number in range(1, 14):
        async with app.testing(store=store_url) as kit:
            assert kit._faulty is not None
            kit._faulty.crashes.append(CrashAt("article", {number, number + 2}, after=bool(number % 2)))
            run = await article.start()
            live = asyncio.create_task(read(run))
            await run.result()
            frames, output = await asyncio.wait_for(live, 30)
            late = await run.output()
        for found in (output, late):
            parts: dict[str | None, str] = {}
            for frame in found.frames:
                parts[frame.step] = parts.get(frame.step, "") + frame.text
            assert parts == expected, f"killed at {number}: {shown(frames)}"


@direct
async def test_the_function_of_a_workflow_starts_over_when_it_goes_on(store_url: str) -> None:
    app = App(store_url)

    @app.step
    async def look(ctx: Ctx) -> None:
        await ctx.emit("looked ")

    @app.workflow
    async def wait(ctx: Ctx) -> None:
        await ctx.emit("begin ")
        await ctx.flush()
        await look()
        await sleep(seconds(60))
        await ctx.emit("end")

    async with app.testing(store=store_url):
        run = await wait.start()
        await run.result()
        frames, output = await read(run)
    assert shown(frames) == ["begin ", "looked ", "<resumed>", "begin ", "end"]
    assert output.text == "looked begin end"
