"""``check``: what live runs remember against what the code calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from flowfabric import App, Ask, OpenAsk, RunFailed, Workflow, days, first, gather, seconds, sleep
from flowfabric.sdk.definitions.check import base_name, check, names_of
from flowfabric.sdk.definitions.code_reading import Source
from flowfabric.sdk.runs.run import Run
from tests.sdk.asks.test_asks import opened


@dataclass
class Old:
    ok: bool


@dataclass
class New:
    ok: bool
    reason: str


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
    ]
    assert [(each.workflow, each.run, each.step) for each in report.waiting] == [("review", run.id, "ask:publish?")]
    assert "an answer to 'publish?', which the code does not ask" in str(report.waiting[0])
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

    def question(of: str) -> Any:
        return Ask("helped?", of={of}, show=f"for {of}")

    @app.workflow
    async def tells(what: str) -> str:
        ok = await Ask("told?", of={"ann"}, show=f"{what}")
        return f"{what}: {ok}, {await question(what)}"

    asked = {each for each in names_of(tells) if each.startswith("ask:")}
    assert asked == {"ask:told?", "ask:helped?"}, "texts that are no questions hide nothing"
    assert {"sleep", "inner", "outer", "ask:fixed?"} <= names_of(whole)
    assert "ask:" in names_of(worked_out)
    assert "ask:" not in names_of(whole)


async def test_a_question_with_another_text_is_found_whatever_else_the_code_writes(app: App) -> None:
    @app.workflow
    async def review(page: int) -> str:
        ok = await Ask("publish?", of={"ann"})
        return f"{page}: {ok}"

    async with app.worker():
        run = await review.start(1)
        await opened(app, run)
    forget(app, "review")

    @app.workflow(name="review")
    async def review_again(page: int) -> str:
        ok = await Ask("publish it?", of={"ann"})
        return f"{page}: {ok}"

    report = await check(app)
    assert [(each.run, each.step) for each in report.waiting] == [(run.id, "ask:publish?")]
    assert not report.ok


def forget(app: App, *names: str) -> None:
    """The next deploy: other functions take these names."""
    for name in names:
        (app.steps if name in app.steps else app.definitions).pop(name)


async def test_a_run_that_would_fail_is_named_with_the_reason(app: App) -> None:
    @app.step
    async def fetch(page: int) -> int:
        return page

    @app.workflow
    async def review(page: int) -> None:
        await fetch(page)
        await Ask("publish?")

    async with app.worker():
        runs = [await review.start(each) for each in (1, 2)]
        for run in runs:
            await opened(app, run)
        assert (await check(app)).ok
    forget(app, "fetch", "review")

    @app.step(name="fetch")
    async def fetch_pages(page: int) -> list[int]:
        return [page]

    @app.workflow(name="review")
    async def review_again(page: int) -> None:
        await fetch_pages(page)
        await Ask("publish?")

    report = await check(app)
    assert not report.ok
    assert sorted((each.workflow, each.run, each.step) for each in report.failing) == sorted(
        ("review", run.id, "fetch") for run in runs
    )
    assert "Expected `array`, got `int`" in str(report.failing[0])
    await agrees(app, runs[0], "fetch")


async def agrees(app: App, run: Run[Any], told: str) -> None:
    """What is said comes true: the run fails when it goes on."""
    async with app.worker():
        [asked] = await app.asks(run)
        await asked.answer(True)
        with pytest.raises(RunFailed, match=told):
            await run.result(seconds(30))


async def test_arguments_that_do_not_fit_are_found_in_runs_that_remember_nothing(app: App) -> None:
    @app.task
    async def load(page: int) -> None: ...

    @app.workflow
    async def review(page: int) -> None:
        await Ask("publish?")

    waiting = await load.start(1)
    async with app.worker():
        run = await review.start(1)
        await opened(app, run)
        await waiting.result(seconds(30))
    queued = await load.start(2)
    forget(app, "review", "load")

    @app.task(name="load")
    async def load_again(page: str) -> None: ...

    @app.workflow(name="review")
    async def review_again(page: int, language: str) -> None:
        await Ask("publish?")

    report = await check(app)
    assert {(each.workflow, each.run, each.step) for each in report.failing} == {
        ("review", run.id, ""),
        ("load", queued.id, ""),
    }
    assert "missing required field `language`" in " ".join(map(str, report.failing))
    await agrees(app, run, "language")


async def test_an_end_that_is_not_remembered_yet_is_read_too(app: App) -> None:
    @app.task
    async def load() -> int:
        return 1

    @app.workflow
    async def review() -> None:
        await gather(load(), Ask("publish?"))

    async with app.worker():
        run = await review.start()
        await opened(app, run)
        child = next(iter([each async for each in app.runs(name="load")]))
        await child.result(seconds(30))
    forget(app, "load", "review")

    @app.task(name="load")
    async def load_again() -> str:
        return ""

    @app.workflow(name="review")
    async def review_again() -> None:
        await gather(load_again(), Ask("publish?"))

    assert [(each.run, each.step) for each in (await check(app)).failing] == [(run.id, "load")]


async def asked(app: App, run: Run[Any], text: str) -> OpenAsk:
    """The run's question that begins so, as soon as it waits."""
    while True:
        found = await opened(app, run)
        if found.question.startswith(text):
            return found


async def test_an_answer_of_another_type_is_asked_for_again(app: App) -> None:
    @app.workflow
    async def review() -> str:
        verdict = await Ask("publish?", Old)
        await Ask("sure?")
        return str(verdict.ok)

    async with app.worker():
        run = await review.start()
        await (await opened(app, run)).answer(Old(ok=True))
        await asked(app, run, "sure?")
        assert (await check(app)).asked == ()
    forget(app, "review")

    @app.workflow(name="review")
    async def review_again() -> str:
        verdict = await Ask("publish?", New)
        await Ask("sure?")
        return verdict.reason

    report = await check(app)
    assert report.ok, "nobody fails"
    assert [(each.run, each.step) for each in report.asked] == [(run.id, "ask:publish?")]
    assert "asks 'publish?' again, and does not fail: the answer of anyone is not valid" in str(report.asked[0])
    async with app.worker():
        await (await opened(app, run)).answer(True)
        again = await asked(app, run, "publish? (asked again")
        assert (await check(app)).asked == (), "it has been asked again"
        await again.answer(New(ok=True, reason="fine"))
        assert await run.result(seconds(30)) == "fine"


async def test_a_call_before_remembered_ones_is_listed(app: App) -> None:
    made: list[str] = []

    @app.step
    async def fetch() -> None:
        made.append("fetch")

    @app.step
    async def audit() -> None:
        made.append("audit")

    @app.workflow
    async def review() -> None:
        await fetch()
        await Ask("publish?")

    async with app.worker():
        run = await review.start()
        await opened(app, run)
        assert (await check(app)).added == ()
    forget(app, "review")

    @app.workflow(name="review")
    async def review_again() -> None:
        await audit()
        await fetch()
        await Ask("publish?")
        await sleep(days(0))

    report = await check(app)
    assert report.ok
    [found] = report.added
    assert (found.workflow, found.step, found.runs, found.example) == ("review", "audit", 1, run.id)
    line = review_again.function.__code__.co_firstlineno + 2
    assert found.where == f"{__file__}:{line}"
    async with app.worker():
        await (await opened(app, run)).answer(True)
        await run.result(seconds(30))
    assert made == ["fetch", "audit"], "what is listed is what happens"


def test_calls_that_need_not_have_been_made_are_not_listed() -> None:
    app = App("memory://")

    @app.step
    async def a() -> bool:
        return True

    @app.step
    async def b() -> None: ...

    @app.step
    async def c() -> None: ...

    @app.step
    async def end() -> None: ...

    @app.workflow
    async def branches(yes: bool) -> None:
        if yes:
            await a()
        else:
            await b()
        _ = yes and await c()
        await end()

    @app.workflow
    async def tries() -> None:
        try:
            await a()
            await b()
        except ValueError:
            await c()
        await end()

    @app.workflow
    async def races() -> None:
        later = asyncio.create_task(c())
        await first(a(), b())
        await end()
        await later

    @app.workflow
    async def twice() -> None:
        await end()
        await a()
        await end()

    @app.workflow
    async def loops(many: int) -> None:
        for _ in range(many):
            await a()
            await gather(b.using(key="x")(), c())
            await end()

    def passed(workflow: Workflow[..., Any]) -> set[tuple[str, str]]:
        return {(each.name, later) for each in Source(workflow).passed() for later in each.before}

    assert passed(branches) == set()
    assert passed(tries) == {("a", "b")}
    assert passed(races) == {("first", "end")}
    assert passed(twice) == {("end", "a")}
    assert passed(loops) == {("a", "b"), ("a", "c"), ("a", "end"), ("b", "end"), ("c", "end")}


def test_types_of_questions_are_read_without_running_anything() -> None:
    app = App("memory://")

    def kind() -> Any:
        raise AssertionError("it ran")

    @app.workflow
    async def asking(own: Any) -> None:
        await Ask("plain?")
        await Ask("typed?", list[int] | None)
        await Ask("named?", answer=New)
        await Ask("own?", own)
        await Ask("made?", kind())
        await Ask(f"worked out {own}?", int)

    assert Source(asking).answers() == {
        "ask:plain?": bool,
        "ask:typed?": list[int] | None,
        "ask:named?": New,
    }


async def test_a_changed_question_that_was_answered_is_asked_anew(app: App) -> None:
    @app.workflow
    async def review() -> None:
        await Ask("publish?")
        await Ask("sure?")

    async with app.worker():
        run = await review.start()
        await (await opened(app, run)).answer(True)
        await asked(app, run, "sure?")
    forget(app, "review")

    @app.workflow(name="review")
    async def review_again() -> None:
        await Ask("publish now?")
        await Ask("sure?")

    report = await check(app)
    assert [(each.step, each.runs) for each in report.findings] == [("ask:publish?", 1)]
    assert "If its text was changed, the new question is asked in these runs too" in str(report.findings[0])
    async with app.worker():
        await (await opened(app, run)).answer(True)
        assert (await asked(app, run, "publish now?")).run_id == run.id
