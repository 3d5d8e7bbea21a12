"""Workers that are newer than their server, and older: what is not understood fails no run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App, BadOptions, RunFailed
from flowfabric.engine.wire.protocol import PROTOCOL
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.remote import answers, engine as remote
from flowfabric.sdk.remote.engine import RemoteEngine
from tests.sdk.serving import serving


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with serving(f"sqlite:///{tmp_path}/ff.db") as address:
        yield address


async def test_what_is_not_understood_has_a_kind_of_its_own(url: str) -> None:
    async with App(url) as app:
        engine: Any = app.engine
        for call in (
            engine.call("read_execution_state", {"execution_id": "x", "of_tomorrow": 1}),
            engine.call("create_executions", {"executions": [{"of_tomorrow": 1}]}),
        ):
            with pytest.raises(Transport, match="of_tomorrow: unknown field") as caught:
                await call
            assert caught.value.kind is TransportKind.NOT_UNDERSTOOD


@pytest.mark.parametrize("operation", ["complete", "advance", "fail", "of_tomorrow"])
async def test_no_run_fails_because_its_server_is_old(
    url: str, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The second server that is asked is a new one."""
    app, tried = App(url), 0
    call = RemoteEngine.call

    async def newer(self: Any, name: str, options: Any) -> Any:
        nonlocal tried
        ending = operation if operation != "of_tomorrow" else "complete"
        if name == ending and not tried:
            tried += 1
            if operation == "of_tomorrow":
                return await self._unknown(options)
            options = {**options, "of_tomorrow": 1}
        return await call(self, name, options)

    async def unknown(self: Any, options: Any) -> Any:
        one = remote.OneCall("of_tomorrow", b"{}", True)
        return await self._calls.call(one)

    @app.task()
    async def task() -> int:
        if operation == "fail":
            raise ValueError("as it happens")
        return 7

    @app.workflow
    async def parent() -> int:
        return await task()

    async with app:
        monkeypatch.setattr(RemoteEngine, "call", newer)
        monkeypatch.setattr(RemoteEngine, "_unknown", unknown, raising=False)
        async with app.worker(concurrency=2):
            run = await parent.start()
            if operation == "fail":
                with pytest.raises(RunFailed, match="as it happens"):
                    await run.result(seconds(30))
            else:
                assert await run.result(seconds(30)) == 7
        assert tried == 1


async def test_releases_that_do_not_understand_each_other_say_so(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(answers, "PROTOCOL", PROTOCOL - 1)
    with pytest.raises(BadOptions, match="upgrade flowfabric here"):
        async with App(url):
            pass
    monkeypatch.setattr(answers, "PROTOCOL", PROTOCOL + 1)
    with caplog.at_level(logging.WARNING, "flowfabric.remote"):
        async with App(url) as app:
            await app.engine.ping()
    assert "upgrade servers first" in caplog.text
