"""Attempts that take too long: as if they had raised a ``TimeoutError``, whatever they are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import App, Ctx, Retry, injected, seconds
from flowfabric.sdk.errors import RunFailed
from flowfabric.sdk.worker.attempt import Interruption, Job

SOON = seconds(60)
SHORT = timedelta(milliseconds=50)


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App("memory://") as opened:
        yield opened


@pytest.mark.parametrize("names", [{"give_up_on": (TimeoutError,)}, {"only_on": (ConnectionError,)}], ids=str)
async def test_a_timeout_is_final_if_retry_says_so(app: App, names: dict[str, Any]) -> None:
    attempts = []
    at_once = {"first": timedelta(0), "jitter": False}

    @app.task(timeout=SHORT, retry=Retry(3, **at_once, **names))  # type: ignore[arg-type]
    async def task(ctx: Ctx = injected) -> None:
        attempts.append(ctx.attempt)
        await asyncio.sleep(3600)

    @app.workflow(timeout=SHORT, retry=Retry(3, **at_once, **names))  # type: ignore[arg-type]
    async def workflow(ctx: Ctx) -> None:
        attempts.append(ctx.attempt)
        await asyncio.sleep(3600)

    async with app.worker():
        for each in (task, workflow):
            with pytest.raises(RunFailed, match="TimeoutError") as caught:
                await (await each.start()).result(SOON)
            assert caught.value.category == "timeout"
    assert attempts == [1, 1]


async def test_a_workflow_that_takes_too_long_is_tried_again(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    begun: list[Job] = []
    monkeypatch.setattr(Job, "limit", lambda job, options: begun.append(job))

    @app.step
    async def once() -> int:
        calls["once"] += 1
        return 1

    @app.step
    async def second_time() -> int:
        calls["second_time"] += 1
        if calls["second_time"] == 1:
            raise ConnectionError
        return 2

    @app.workflow(timeout=seconds(3600), retry=Retry(1, first=timedelta(0), jitter=False))
    async def workflow(ctx: Ctx) -> int:
        done = await once()
        try:
            return done + await second_time()
        except ConnectionError:
            begun[0].interrupt(Interruption.TIMEOUT)
            await asyncio.sleep(3600)
            raise

    async with app.worker():
        assert await (await workflow.start()).result(SOON) == 3
    assert calls == {"once": 1, "second_time": 2}, "what succeeded is remembered, what failed is tried again"
