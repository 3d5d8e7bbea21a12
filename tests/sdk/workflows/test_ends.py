"""The end of a workflow's attempt and what the workflow did last are one commit."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import App, Retry
from flowfabric.core.workflows import steps
from flowfabric.sdk.errors import RunFailed


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_dies_at_the_end_of_a_failed_trial(when: str) -> None:
    """Either the trial is over, and the next one calls again; or it is not, and what it met is remembered."""
    app, calls = App("memory://"), list[int]()

    @app.step
    async def look() -> None:
        calls.append(1)
        raise ValueError("not there")

    @app.workflow(retry=Retry(1))
    async def looking() -> None:
        try:
            await look()
        except ValueError as error:
            raise RuntimeError("over") from error

    async with app.testing() as t:
        t.crash(looking, **{when: "fail"})  # type: ignore[arg-type]
        run = await looking.start()
        with pytest.raises(RunFailed, match="over"):
            await run.result()
        assert t.attempts(looking) == (3 if when == "before" else 2)
    assert len(calls) == 2, "once in each of its two trials"


async def test_what_was_done_last_is_remembered_by_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    app, calls, commits = App("memory://"), list[str](), list[str]()

    @app.step
    async def fetch() -> str:
        calls.append("fetch")
        return "text"

    @app.workflow(retry=Retry(1))
    async def publishing() -> str:
        text = await fetch()
        if not commits:
            raise RuntimeError("not yet")
        return text

    async with app.testing() as t:
        for name in ("advance", "fail"):
            _noted(app, name, commits, monkeypatch)
        run = await publishing.start()
        assert await run.result() == "text"
        assert await t.steps(run) == {"fetch": "text"}
    assert (calls, commits) == (["fetch"], ["fail"])


def _noted(app: App, name: str, commits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(app.engine, name)

    async def call(*args: Any, **kwargs: Any) -> Any:
        commits.append(name)
        return await real(*args, **kwargs)

    monkeypatch.setattr(app.engine, name, call, raising=False)


async def test_what_cannot_be_remembered_is_why_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")

    @app.step
    async def fetch() -> str:
        return "text"

    @app.workflow(retry=Retry(3))
    async def publishing() -> None:
        await fetch()
        raise RuntimeError("not yet")

    monkeypatch.setattr(steps, "MAX_STEPS_PER_EXECUTION", 0)
    async with app.testing() as t:
        run = await publishing.start()
        with pytest.raises(RunFailed, match="LimitReached"):
            await run.result()
        assert t.attempts(publishing) == 1
