"""Reading what runs emit: live, from the beginning or from a place, over retries, to the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import App, BadOptions, FailureClass, Frame, Retry, Run, RunFrame, seconds
from tests.sdk.doing import claim
from tests.sdk.serving import direct


async def emit(app: App, handle: Any, *texts: str | bytes) -> None:
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        await app.engine.append_frame(handle, Frame(data, frame_type="token"))


async def all_of(run: Run[Any], after: str | int = 0) -> list[RunFrame]:
    return [frame async for frame in run.frames(after=after)]


async def test_frames_as_they_come(app: App) -> None:
    @app.task
    async def task() -> None: ...

    run = await task.start()
    seen: list[str] = []
    arrived = asyncio.Event()

    async def read() -> None:
        async for frame in run.frames():
            seen.append(frame.text)
            arrived.set()

    reading = asyncio.create_task(read())
    handle = await claim(app)
    for text in ("a", "b", "żółw"):
        arrived.clear()
        await emit(app, handle, text)
        await asyncio.wait_for(arrived.wait(), 30)
    await app.engine.complete(handle, b"null")
    await asyncio.wait_for(reading, 30)
    assert seen == ["a", "b", "żółw"]
    assert [frame.text for frame in await all_of(run)] == seen


async def test_frames_from_a_place(app: App) -> None:
    @app.task
    async def task() -> None: ...

    run = await task.start()
    handle = await claim(app)
    await emit(app, handle, "a", "b", '{"n": 5}', b"\x00\xff")
    await app.engine.complete(handle, b"null")
    frames = await all_of(run)
    assert [frame.data for frame in frames] == [b"a", b"b", b'{"n": 5}', b"\x00\xff"]
    assert frames[2].json == {"n": 5}
    assert [frame.type for frame in frames] == ["token"] * 4
    assert [frame.text for frame in await all_of(run, frames[0].id)] == [frame.text for frame in frames[1:]]
    assert await all_of(run, frames[-1].id) == []
    for bad in ("nonsense", "0-1", 5, "x:0-1"):
        with pytest.raises(BadOptions, match="not the id of a frame"):
            await all_of(run, bad)


async def test_frames_of_the_attempts_that_follow(app: App) -> None:
    @app.task(retry=Retry(2, first=seconds(0), jitter=False))
    async def task() -> None: ...

    run = await task.start()
    reading = asyncio.create_task(all_of(run))
    for number in range(3):
        handle = await claim(app)
        await emit(app, handle, f"{number}a", f"{number}b")
        if number < 2:
            await app.engine.append_frame(handle, Frame(b'{"type": "OSError"}', frame_type="error"))
            await app.engine.fail(handle, "OSError: no", FailureClass.TRANSIENT)
        else:
            await app.engine.complete(handle, b"null")
    frames = await asyncio.wait_for(reading, 30)
    assert [frame.text for frame in frames] == ["0a", "0b", "1a", "1b", "2a", "2b"]
    assert [frame.attempt for frame in frames] == [1, 1, 2, 2, 3, 3], "from 1 on, as ctx.attempt"
    assert [frame.text for frame in await all_of(run, frames[1].id)] == ["1a", "1b", "2a", "2b"]


async def test_a_run_that_never_ran_has_no_frames(app: App) -> None:
    @app.task
    async def task() -> None: ...

    run = await task.start()
    await run.cancel()
    assert await all_of(run) == []


async def test_a_reader_hears_of_the_end(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a run that never began, and so has no stream that could be closed."""
    monkeypatch.setattr("flowfabric.sdk.runs.frames._BLOCK_MS", 30_000)

    @app.task
    async def task() -> None: ...

    run = await task.start()
    reading = asyncio.create_task(all_of(run))
    done, _ = await asyncio.wait([reading], timeout=0.2)
    assert not done
    await run.cancel()
    assert await asyncio.wait_for(reading, 15) == []


@direct
async def test_a_reader_may_leave(app: App) -> None:
    @app.task
    async def task() -> None: ...

    run = await task.start()
    reading = asyncio.create_task(all_of(run))
    await asyncio.wait([reading], timeout=0.1)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert app.completions._waiting == {}
    assert app.engine._tails == 0


async def test_more_than_a_page(app: App) -> None:
    @app.task
    async def task() -> None: ...

    run = await task.start()
    handle = await claim(app)
    await asyncio.gather(*(emit(app, handle, str(n)) for n in range(1_200)))
    await app.engine.complete(handle, b"null")
    assert len(await all_of(run)) == 1_200
