"""A workflow that reaches a limit of what can be stored ends, and says which."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowfabric import App, Retry, gather, seconds
from flowfabric.core.workflows import steps
from flowfabric.sdk.errors import RunFailed


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App("memory://") as opened:
        yield opened


@pytest.mark.parametrize("how", ["between two steps", "with the result", "with an error"])
async def test_a_run_with_too_many_steps_fails(app: App, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(steps, "MAX_STEPS_PER_EXECUTION", 3)
    runs = 0

    @app.step
    async def count(number: int) -> int:
        return number

    @app.workflow(retry=Retry(3, first=seconds(0)))
    async def counting() -> None:
        nonlocal runs
        runs += 1
        for number in range(6 if how == "between two steps" else 4):
            await count(number)
        if how == "with an error":
            raise ValueError("what it did last is one too many")

    async with app.worker():
        run = await counting.start()
        with pytest.raises(RunFailed, match="MAX_STEPS_PER_EXECUTION=3"):
            await run.result(seconds(60))
    assert runs == 1, "another attempt would reach it again"


async def test_a_run_with_too_many_children_fails(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MAX_FLOW_NODES", 3)

    @app.task
    async def one() -> None:
        return None

    @app.workflow
    async def many() -> None:
        for _ in range(3):
            await gather(one(), one())

    async with app.worker():
        run = await many.start()
        with pytest.raises(RunFailed, match="MAX_FLOW_NODES=3"):
            await run.result(seconds(60))
