"""Looking through runs, and cancelling or replaying many."""

from __future__ import annotations

import pytest

from flowfabric import App, Ask, BadOptions, RunStatus, minutes
from tests.sdk.doing import fail_one, run_one


async def test_looking_through_runs(app: App, store_url: str) -> None:
    @app.task(tags={"team": "docs"})
    async def one(n: int) -> int:
        return n

    @app.task(lane="side")
    async def other() -> None: ...

    ones = await one.start_many(range(3))
    late = await one.using(tags={"team": "ops"}).start(3)
    aside = await other.start()
    assert set(await app.runs().all()) == {*ones, late, aside}
    assert set(await app.runs(name="one").all()) == {*ones, late}
    assert set(await app.runs(tags={"team": "docs"}).all()) == set(ones)
    assert await app.runs(lane="side").all() == [aside]
    assert await app.runs(limit=2).count() == 2
    assert await app.runs(limit=0).all() == []
    await run_one(app)
    [done] = [run async for run in app.runs(state="completed")]
    assert await done.result() in range(4)
    assert await app.runs(state=RunStatus.WAITING).count() == 4
    for bad in ({"state": "nonsense"}, {"limit": -1}):
        with pytest.raises(BadOptions):
            app.runs(**bad)  # type: ignore[arg-type]


async def test_the_store_counts(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(tags={"team": "docs"})
    async def one(n: int) -> int:
        return n

    @app.workflow
    async def asking() -> bool:
        return await Ask("well?")

    await one.using(tags={"team": "docs", "size": "l"}).start_many(range(3))
    await one.start(3)
    run = await asking.start()
    async with app.worker():
        await app.asks(run, wait=minutes(1))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("rows are not loaded to be counted")

    monkeypatch.setattr(type(app.engine), "search_executions", refuse, raising=False)
    assert await app.runs().count() == 5, "questions are no runs"
    assert await app.runs(name="one").count() == 4
    assert await app.runs(tags={"team": "docs", "size": "l"}).count() == 3
    assert await app.runs(limit=2).count() == 2
    assert await app.runs(limit=0).count() == 0


async def test_only_the_own_namespace(app: App) -> None:
    @app.task
    async def task() -> None: ...

    await task.start()
    other = App("memory://", namespace="other")
    other.attach(app.engine)
    assert await other.runs().all() == []


async def test_many_at_once(app: App) -> None:
    @app.task
    async def task(n: int) -> int:
        return n

    runs = await task.start_many(range(5))
    for _ in range(2):
        await fail_one(app, "Boom: no")
    await run_one(app)
    failed = await app.runs(state="failed").all()
    assert await app.runs(name="task").replay(dry_run=True) == failed
    assert await app.runs(state="failed").count() == 2
    assert await app.runs(name="task").replay() == failed
    assert len(await app.runs().cancel(dry_run=True)) == 4
    assert len(await app.runs().cancel("all of them")) == 4
    assert await app.runs(state="cancelled").count() == 4
    assert {await run.status() for run in runs} == {"cancelled", "completed"}
