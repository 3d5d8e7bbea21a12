"""``Ctx``: what handlers emit, sum up, report and spend."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.model.errors import Transport, TransportKind, Validation
from flowfabric.sdk.app import App
from flowfabric.sdk.context import MOST_WAITING, Ctx
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import RunFailed
from flowfabric.sdk.options import Retry

SOON = seconds(20)


@pytest.fixture
def app(store_url: str) -> App:
    return App(store_url)


one_store = pytest.mark.parametrize("store_url", ["memory"], indirect=True)


# -- frames ----------------------------------------------------------------------------------------------------------


async def test_frames_are_kept_in_order(app: App) -> None:
    @app.task
    async def talk(ctx: Ctx = injected) -> str:
        for n in range(50):
            await ctx.emit(f"{n} ")
        await ctx.emit(b"\x00\xff", type="picture")
        await ctx.emit({"n": [1, 2]}, type="data")
        return ctx.stream.text

    async with app, app.worker():
        run = await talk.start()
        said = await run.result(timeout=SOON)
        frames = [frame async for frame in run.frames()]
    assert said == "".join(f"{n} " for n in range(50))
    assert [frame.text for frame in frames[:50]] == [f"{n} " for n in range(50)]
    assert {frame.type for frame in frames[:50]} == {"frame"}
    assert [(frame.type, frame.data) for frame in frames[50:]] == [("picture", b"\x00\xff"), ("data", b'{"n":[1,2]}')]


async def test_a_handler_in_a_thread_says_the_same_without_waiting(app: App) -> None:
    @app.task
    def talk(ctx: Ctx = injected) -> str:
        for n in range(5):
            ctx.emit(str(n))
        ctx.summary({"n": 5})
        ctx.progress(40, "nearly")
        return ctx.stream.text

    async with app, app.worker():
        run = await talk.start()
        assert await run.result(timeout=SOON) == "01234"
        frames = [frame async for frame in run.frames()]
        summary = await app.engine.read_summary(run.id)
    assert [frame.text for frame in frames if frame.type == "frame"] == list("01234")
    assert summary is not None
    assert json.loads(summary.document_json) == {"n": 5}


@one_store
@pytest.mark.parametrize("end", ["raises", "exits", "times out", "in a workflow", "is given back"])
async def test_what_was_emitted_is_kept_however_the_attempt_ends(
    app: App, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted, again = asyncio.Event(), False

    async def talk(ctx: Ctx) -> None:
        nonlocal again
        if again:
            return
        again = True
        for n in range(5):
            await ctx.emit(str(n))
        emitted.set()
        if end in ("times out", "is given back"):
            await asyncio.sleep(3600)
        raise SystemExit if end == "exits" else ValueError("no")

    if end == "in a workflow":

        @app.workflow(name="talks")
        async def flow(ctx: Ctx = injected) -> None:
            await talk(ctx)

        run = flow
    else:

        @app.task(name="talks", timeout=timedelta(milliseconds=50) if end == "times out" else None)
        async def task(ctx: Ctx = injected) -> None:
            await talk(ctx)

        run = task

    async def append_later(*args: Any) -> Any:
        for _ in range(50):
            await asyncio.sleep(0)
        return await append(*args)

    async with app:
        append = app.engine.append_frames
        monkeypatch.setattr(app.engine, "append_frames", append_later)
        async with app.worker(drain_grace=timedelta(0)):
            started = await run.start()
            await emitted.wait()
            if end != "is given back":
                with pytest.raises(RunFailed):
                    await started.result(timeout=SOON)
        async with app.worker():
            frames = [frame async for frame in started.frames()]
    assert "".join(frame.text for frame in frames) == "01234"


async def test_readers_see_frames_while_the_run_goes_on(app: App) -> None:
    go = asyncio.Event()

    @app.task
    async def talk(ctx: Ctx = injected) -> None:
        await ctx.emit("first")
        await go.wait()
        await ctx.emit("second")

    async with app, app.worker():
        run = await talk.start()
        seen = []
        async for frame in run.frames():
            seen.append(frame.text)
            go.set()
        assert seen == ["first", "second"]


@one_store
async def test_a_fast_producer_shares_commits_and_waits_for_room(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    most_waiting = 0

    @app.task
    async def flood(ctx: Ctx = injected) -> None:
        nonlocal most_waiting
        for n in range(4 * MOST_WAITING):
            await ctx.emit(str(n))
            most_waiting = max(most_waiting, len(ctx.stream._waiting))

    async with app:
        append = app.engine.append_frames

        async def counted(handle: Any, frames: list[Any], number: int) -> Any:
            batches.append(len(frames))
            await asyncio.sleep(0)
            return await append(handle, frames, number)

        monkeypatch.setattr(app.engine, "append_frames", counted)
        async with app.worker():
            run = await flood.start()
            await run.result(timeout=SOON)
            texts = [frame.text async for frame in run.frames()]
    assert texts == [str(n) for n in range(4 * MOST_WAITING)]
    assert most_waiting <= MOST_WAITING + 1
    assert len(batches) < 4 * MOST_WAITING / 20


@one_store
async def test_frames_outlive_a_store_that_does_not_answer(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def talk(ctx: Ctx = injected) -> None:
        await ctx.emit("a")
        await ctx.flush()
        await ctx.emit("b")

    async with app:
        append, calls = app.engine.append_frames, 0

        async def flaky(handle: Any, frames: list[Any], number: int) -> Any:
            nonlocal calls
            calls += 1
            if calls % 3 == 1:
                raise Transport("memory", TransportKind.TRANSPORT, "on purpose")
            answer = await append(handle, frames, number)
            if calls % 3 == 2:
                raise Transport("memory", TransportKind.TRANSPORT, "the answer was lost")
            return answer

        monkeypatch.setattr(app.engine, "append_frames", flaky)
        async with app.worker():
            run = await talk.start()
            await run.result(timeout=SOON)
            assert [frame.text async for frame in run.frames()] == ["a", "b"], "each once, and in order"
    assert calls == 6


async def test_a_frame_that_is_too_large_is_an_error_of_the_handler(app: App) -> None:
    caught: list[type] = []

    @app.task
    async def talk(ctx: Ctx = injected) -> None:
        await ctx.emit("x" * 70_000)
        try:
            await ctx.flush()
        except Validation as error:
            caught.append(type(error))
            raise

    async with app, app.worker():
        with pytest.raises(RunFailed, match="65536"):
            await (await talk.start()).result(timeout=SOON)
    assert caught == [Validation]


async def test_the_summary_is_merged(app: App) -> None:
    @app.task
    async def sum_up(ctx: Ctx = injected) -> None:
        await ctx.emit("before")
        await ctx.summary({"a": 1, "b": {"c": 2}})
        await ctx.summary({"a": None, "b": {"d": 3}})

    async with app, app.worker():
        run = await sum_up.start()
        await run.result(timeout=SOON)
        found = await app.engine.read_summary(run.id)
        assert found is not None
        assert (json.loads(found.document_json), found.version) == ({"b": {"c": 2, "d": 3}}, 2)


# -- who and what ----------------------------------------------------------------------------------------------------


async def test_what_a_handler_may_know(app: App, caplog: pytest.LogCaptureFixture) -> None:
    keys: list[str] = []

    @app.task(retry=Retry(1, first=timedelta(0), jitter=False), tags={"team": "docs"})
    async def know(ctx: Ctx = injected) -> dict[str, Any]:
        keys.append(ctx.idempotency_key)
        if ctx.attempt == 1:
            raise ValueError("again")
        ctx.log.warning("here", extra={"more": 1})
        return {"id": ctx.run_id, "attempt": ctx.attempt, "tags": dict(ctx.tags), "healthy": ctx.lease_healthy}

    async with app, app.worker():
        run = await know.start()
        found = await run.result(timeout=SOON)
    assert found == {"id": run.id, "attempt": 2, "tags": {"user.team": "docs"}, "healthy": True}
    assert keys[0] == keys[1]
    assert keys[0] in run.id
    [record] = [each for each in caplog.records if each.name == "flowfabric.task.know"]
    assert record.levelno == logging.WARNING
    assert (record.run_id, record.attempt, record.task, record.more) == (run.id, 2, "know", 1)  # type: ignore[attr-defined]


async def test_progress_is_stored(app: App) -> None:
    @app.task
    async def report(ctx: Ctx = injected) -> None:
        await ctx.progress(25, "a quarter")
        await ctx.progress(message="more")

    async with app, app.worker():
        run = await report.start()
        await run.result(timeout=SOON)
        partition = int(run.id.partition("}")[0].removeprefix("{fp:"))
        fields = await app.engine.read_exec_core_fields(partition, run.id, ["raw_fields"])
    raw = json.loads(fields["raw_fields"] or "")
    assert (raw["progress_pct"], raw["progress_message"]) == (25, "more")
