"""``ctx.log``: lines are stored beside the run, once each, and stay out of its output."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from flowfabric.model.streams.logs import MAX_LINE, MAX_LINES, LogLine, packed, read_lines
from flowfabric.sdk.app import App
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import BadOptions, RunFailed
from flowfabric.sdk.options import Retry
from flowfabric.sdk.runs.logs import RunLog
from flowfabric.sdk.runs.run import Run
from flowfabric.sdk.workflows.durable import sleep

SOON = seconds(20)
one_store = pytest.mark.parametrize("store_url", ["memory"], indirect=True)


@pytest.fixture
def app(store_url: str) -> App:
    return App(store_url)


async def lines(run: Run[object], *, follow: bool = False) -> list[RunLog]:
    return [line async for line in run.logs(follow=follow)]


async def texts(run: Run[object]) -> list[str]:
    return [line.text for line in await lines(run)]


async def test_lines_are_stored_beside_the_output(app: App) -> None:
    @app.task(retry=Retry(1, first=timedelta(0), jitter=False))
    async def talk(ctx: Ctx = injected) -> None:
        ctx.log.info("%s of %d", "first", ctx.attempt)
        await ctx.emit("output")
        ctx.log.debug("too low")
        ctx.log.error("a zero \x00 and a %s")
        if ctx.attempt == 1:
            raise ValueError("again")

    async with app, app.worker():
        run = await talk.start()
        await run.result(timeout=SOON)
        found = await lines(run, follow=True)
        assert found == await lines(run)
        assert [(each.level, each.text, each.attempt, each.step) for each in found] == [
            ("INFO", "first of 1", 1, None),
            ("ERROR", "a zero \ufffd and a %s", 1, None),
            ("INFO", "first of 2", 2, None),
            ("ERROR", "a zero \ufffd and a %s", 2, None),
        ]
        assert [frame.text async for frame in run.frames() if frame.type == "frame"] == ["output", "output"]
        assert {frame.type async for frame in run.frames()} == {"frame", "restart"}
        assert {frame.type async for frame in run.frames(children=True)} == {"frame", "restart"}
        assert (await run.output()).text == "output"
        [error] = (await app.engine.read_errors(run.id)).errors
        assert error.message == "again"


async def test_lines_of_threads_and_of_failures(app: App) -> None:
    @app.task(retry=Retry(0))
    def talk(ctx: Ctx = injected) -> None:
        ctx.log.info("in a thread")
        raise ValueError("no")

    async with app, app.worker():
        run = await talk.start()
        with pytest.raises(RunFailed):
            await run.result(timeout=SOON)
        assert await texts(run) == ["in a thread"]


async def test_lines_come_while_the_run_goes_on(app: App) -> None:
    seen = asyncio.Event()

    @app.task
    async def talk(ctx: Ctx = injected) -> None:
        ctx.log.info("begun")
        await seen.wait()
        ctx.log.info("seen")

    async with app, app.worker():
        run = await talk.start()
        found = []
        async for line in run.logs(follow=True):
            found.append(line.text)
            seen.set()
        assert found == ["begun", "seen"]


async def test_a_workflow_that_goes_on_stores_each_line_once(app: App) -> None:
    @app.step
    async def note(text: str, ctx: Ctx = injected) -> str:
        ctx.log.info("step %s", text)
        return text

    @app.task
    async def child(ctx: Ctx = injected) -> str:
        ctx.log.info("child")
        return "c"

    @app.workflow
    async def talk(ctx: Ctx = injected) -> None:
        ctx.log.info("before the step")
        await note("one")
        ctx.log.info("before the sleep")
        await sleep(timedelta(milliseconds=30))
        ctx.log.info("before the child")
        await child()
        ctx.log.info("between children")
        await asyncio.gather(child(), child())
        ctx.log.info("before the last step")
        await note("two")
        ctx.log.info("the end")

    async with app, app.worker():
        run = await talk.start()
        await run.result(timeout=SOON)
        assert [(each.text, each.step) for each in await lines(run)] == [
            ("before the step", None),
            ("step one", "note"),
            ("before the sleep", None),
            ("before the child", None),
            ("between children", None),
            ("before the last step", None),
            ("step two", "note#2"),
            ("the end", None),
        ]


@one_store
async def test_a_retried_workflow_goes_on_with_what_is_new(app: App) -> None:
    tries: list[int] = []

    @app.step
    async def note() -> None:
        pass

    @app.workflow(retry=Retry(1, first=timedelta(0), jitter=False))
    async def talk(ctx: Ctx = injected) -> None:
        ctx.log.info("first")
        await note()
        tries.append(ctx.attempt)
        ctx.log.info("try %d", ctx.attempt)
        if len(tries) == 1:
            raise ValueError("again")

    async with app, app.worker():
        run = await talk.start()
        await run.result(timeout=SOON)
        assert await texts(run) == ["first", "try 1", "try 2"]


@one_store
async def test_lines_are_bounded(app: App) -> None:
    @app.task
    async def talk(ctx: Ctx = injected) -> None:
        ctx.log.info("x" * 2 * MAX_LINE)
        for number in range(MAX_LINES + 500):
            ctx.log.info("%d", number)

    async with app, app.worker():
        run = await talk.start()
        await run.result(timeout=SOON)
        found = await lines(run)
    assert len(found[0].text) == MAX_LINE
    assert len(found) == MAX_LINES + 1
    assert found[-1].level == "WARNING"
    assert "are not stored" in found[-1].text


@pytest.mark.parametrize(("level", "stored"), [("warning", ["b"]), (None, []), (logging.DEBUG, ["a", "b"])])
async def test_the_level_is_the_apps(level: str | int | None, stored: list[str]) -> None:
    app = App("memory://", stored_logs=level)

    @app.task
    async def talk(ctx: Ctx = injected) -> None:
        ctx.log.info("a")
        ctx.log.warning("b")

    async with app, app.worker():
        run = await talk.start()
        await run.result(timeout=SOON)
        assert await texts(run) == stored


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(BadOptions, match='"INFO"'):
        App("memory://", stored_logs="loud")


@one_store
async def test_the_record_names_the_line_that_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def talk(ctx: Ctx = injected) -> None:
        ctx.log.warning("here")

    async with app, app.worker():
        run = await talk.start()
        await run.result(timeout=SOON)
    [record] = [each for each in caplog.records if each.name == "flowfabric.task.talk"]
    assert (record.funcName, record.filename) == ("talk", "test_logs.py")


def test_frames_hold_what_fits() -> None:
    told = [LogLine(n, "INFO", "é" * 100, "step" if n % 2 else None) for n in range(100)]
    payloads = list(packed(told, 2_000))
    assert max(map(len, payloads)) <= 2_000
    assert [line for each in payloads for line in read_lines(each)] == told
    assert list(packed([], 10)) == []
    assert read_lines(b"nonsense") == read_lines('{"a": 1}') == read_lines("[" * 100_000) == []
