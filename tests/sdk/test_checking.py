"""``check``: what live runs remember against what the code calls."""

from __future__ import annotations

from flowfabric import App, Ask, days, sleep
from flowfabric.sdk.checking import base_name, check, names_of
from tests.sdk.test_asks import opened


def test_names_without_their_suffixes() -> None:
    assert [base_name(each) for each in ("a", "a#2", "a[k]", "a[x#1]#3", "a!0", "a[k]!2", "ask:go?")] == [
        "a", "a", "a", "a", "a", "a", "ask:go?",
    ]  # fmt: skip


async def test_a_renamed_step_is_found(app: App) -> None:
    @app.step
    async def fetch(page: int) -> int:
        return page

    @app.workflow
    async def review() -> None:
        await fetch.using(key="one")(1)
        await Ask("publish?", within=days(1))

    @app.workflow
    async def gone() -> None:
        await fetch(1)
        await sleep(days(1))

    async with app.worker():
        run = await review.start()
        await opened(app, run)
        other = await gone.start()
        while not await other.steps():
            await sleep(days(0))
        assert (await check(app)).ok
    del app.definitions["review"], app.definitions["gone"]

    @app.step(name="download")
    async def download(page: int) -> int:
        return page

    @app.workflow(name="review")
    async def review_again() -> None:
        await download(1)
        await Ask("publish now?", within=days(1))

    report = await check(app)
    assert [(each.workflow, each.step, each.runs, each.example) for each in report.findings] == [
        ("review", "fetch", 1, run.id)
    ], "a question that still waits is not remembered yet"
    assert 'name="fetch"' in str(report.findings[0])
    assert report.unknown == {"gone": 1}


def test_helpers_and_questions_count(tmp_path: object) -> None:
    app = App("memory://")

    @app.step
    async def inner() -> None: ...

    @app.task
    async def outer() -> None: ...

    async def helper() -> None:
        await inner()

    @app.workflow
    async def whole(what: str) -> None:
        async def nested() -> None:
            await outer()

        await helper()
        await nested()
        await Ask("fixed?")

    @app.workflow
    async def worked_out(what: str) -> None:
        await Ask(f"free {what}?")

    assert {"sleep", "inner", "outer", "ask:fixed?"} <= names_of(whole)
    assert "ask:" in names_of(worked_out)
    assert "ask:" not in names_of(whole)
