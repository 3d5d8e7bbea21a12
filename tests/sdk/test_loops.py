"""Apps on more than one event loop, thread or process, and servers that are away: an error at once, never a hang."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App
from flowfabric.model.errors import Transport, Unavailable
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import NotOpen, ResultTimeout
from flowfabric.sdk.remote.engine import RemoteEngine
from flowfabric.sdk.runs import results
from tests.sdk.serving import serving


def test_an_app_is_open_on_one_loop() -> None:
    app = App("memory://")
    asyncio.run(app.open())
    with pytest.raises(NotOpen, match="another event loop"):
        asyncio.run(app.open())


async def test_two_who_open_it_together_share_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    app, opened = App("memory://"), []
    open_engine = app.open_engine

    async def slowly() -> Any:
        await asyncio.sleep(0)
        opened.append(await open_engine())
        return opened[-1]

    monkeypatch.setattr(app, "open_engine", slowly)
    workers = [app.worker(), app.worker()]
    await asyncio.gather(*(worker.__aenter__() for worker in workers))
    assert len(opened) == 1
    for worker in workers:
        await worker.__aexit__(None, None, None)
    for _ in range(2):
        opened.clear()
        first, given_up, second = (asyncio.create_task(app.open()) for _ in range(3))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait((first, given_up, second))
        assert len(opened) == 1
        await app.close()
        assert app.is_open
        await app.close()
        assert not app.is_open


def test_a_fork_does_not_wait_for_a_thread_that_it_has_not() -> None:
    app = App("memory://")
    with app.sync as blocking:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
            child = os.fork()
        if not child:
            code = 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # rather than stay behind
            try:
                blocking.runs().all()
            except NotOpen as error:
                code = 0 if "forked" in str(error) else 2
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


# -- servers that are away -------------------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def test_calls_in_a_pause_hear_that_the_engine_closes() -> None:
    engine = RemoteEngine(f"http://127.0.0.1:{_free_port()}", None)
    paused = asyncio.Event()
    request = engine._servers.request

    async def refused(*args: Any) -> Any:
        try:
            return await request(*args)
        finally:
            asyncio.get_running_loop().call_soon(paused.set)

    engine._servers.request = refused  # type: ignore[method-assign]
    calls = [asyncio.create_task(engine.now_ms())]  # type: ignore[attr-defined]
    await paused.wait()
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(engine.now_ms()))  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await engine.close()
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in found} <= {Transport, Unavailable}


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(milliseconds=100)])
async def test_a_result_is_not_waited_for_longer_than_told(
    tmp_path: Path, timeout: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LOOK_S", 0.2)
    with serving(f"sqlite:///{tmp_path}/ff.db") as url:
        app = App(url)

        @app.task
        async def nothing() -> None: ...

        await app.open()
        run = await nothing.start()
    async with asyncio.timeout(20):
        with pytest.raises(ResultTimeout, match="could not be read within"):
            await run.result(timeout)
        await app.close()


async def test_a_result_that_is_there_needs_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")

    @app.task
    async def nothing() -> str:
        return "done"

    async with app, app.worker():
        run = await nothing.start()
        with pytest.raises(ResultTimeout, match="is waiting after"):
            await run.result(timedelta(0))
        await run.result(seconds(20))
        assert await run.result(timedelta(0)) == "done"
