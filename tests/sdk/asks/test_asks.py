"""Questions to people: typed answers, quorums, deadlines, links that are good for one approver and one thing shown."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from flowfabric import (
    AlreadyAnswered,
    Answered,
    App,
    Ask,
    AskClosed,
    AskTimedOut,
    BadAnswer,
    BadOptions,
    Budget,
    Ctx,
    EngineError,
    OpenAsk,
    RunFailed,
    days,
    seconds,
)
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.model.handles import HandleKind
from flowfabric.sdk.runs.run import Run
from flowfabric.sdk.worker import Job, Parked

QUICK = timedelta(milliseconds=50)


class Verdict(BaseModel):
    ok: bool
    note: str = ""


@dataclass
class Payment:
    reference: str
    cents: int


async def opened(app: App, run: Run[Any]) -> OpenAsk:
    """The run's question, as soon as it waits."""
    return (await app.asks(run, wait=seconds(30)))[0]


async def test_a_typed_answer(app: App) -> None:
    @app.workflow
    async def review(draft: str) -> str:
        verdict = await Ask("publish?", Verdict, show={"draft": draft}, of="legal")
        return verdict.note if verdict.ok else "no"

    async with app.worker():
        run = await review.start("text")
        ask = await opened(app, run)
        assert (ask.question, ask.show, ask.of, ask.run_id) == ("publish?", {"draft": "text"}, ("legal",), run.id)
        assert ask.schema["properties"]["ok"]["type"] == "boolean"
        await ask.answer(Verdict(ok=True, note="fine"))
        assert await run.result(seconds(30)) == "fine"
        assert await app.asks(run) == []
        with pytest.raises((AskClosed, EngineError)):
            await ask.answer(Verdict(ok=True))


async def test_two_of_three(app: App) -> None:
    @app.workflow
    async def deploy() -> bool:
        return await Ask("deploy?", of={"ann", "bob", "cid"}, need=2)

    async with app.worker():
        run = await deploy.start()
        ask = await opened(app, run)
        await ask.answer(True, by="ann")
        await ask.answer(True, by="ann")
        assert [each.id for each in await app.asks(run)] == [ask.id], "one approver counts once"
        await ask.answer(True, by="cid")
        assert await run.result(seconds(30)) is True


async def test_an_answer_that_comes_twice(app: App) -> None:
    @app.workflow
    async def deploy() -> bool:
        return await Ask("deploy?", Verdict, of={"ann", "bob", "cid"}, need=2, within=days(7)) is not None

    async with app.worker():
        run = await deploy.start()
        ask = await opened(app, run)
        link, unused = await ask.link("ann"), await ask.link("cid")
        assert await app.answer(link, Verdict(ok=True, note="fine")) == Answered("approve")
        for by in ("bob", "nobody"):
            again = await app.answer(link, {"note": "fine", "ok": True})
            assert (again.said, again.repeated) == ("approve", True)
            assert await ask.answer(Verdict(ok=True, note="fine"), by="ann") == again, "by whichever way it came"
            for other in (Verdict(ok=False), Verdict(ok=True, note="other")):
                with pytest.raises(AlreadyAnswered, match="ann has already answered this question"):
                    await app.answer(link, other)
                with pytest.raises(AlreadyAnswered):
                    await ask.answer(other, by="ann")
            with pytest.raises(EngineError):
                await app.answer(link[:-2] + "AA", Verdict(ok=True, note="fine"))
            if by == "bob":
                assert [each.id for each in await app.asks(run)] == [ask.id], "a changed mind does not close it"
                assert not (await ask.answer(Verdict(ok=True), by=by)).repeated
                assert await run.result(seconds(30)) is True
        with pytest.raises(EngineError):
            await app.answer(unused, Verdict(ok=True))
        with pytest.raises(AskClosed):
            await ask.answer(Verdict(ok=True), by="cid")


async def test_two_answers_of_one_approver_at_once(app: App) -> None:
    @app.workflow
    async def deploy() -> bool:
        return await Ask("deploy?", of={"ann", "bob"}, need=2)

    async with app.worker():
        run = await deploy.start()
        ask = await opened(app, run)
        link = await ask.link("ann")
        notes = [app.answer(link, True), ask.answer(True, by="ann"), app.answer(link, True), ask.answer(True, by="ann")]
        told = await asyncio.gather(*notes)
        assert sorted(each.repeated for each in told) == [False, True, True, True]
        assert len((await app.engine.read_history(ask.id)).signals) == 1, "one was recorded"
        await run.cancel()


async def test_a_run_says_who_has_to_answer(app: App) -> None:
    @app.workflow
    async def sign_off() -> bool:
        return await Ask("deploy?", of={"legal", "ops", "finance"}, need=2, within=days(1))

    @app.workflow
    async def release() -> bool:
        return await sign_off()

    async with app.worker():
        run = await release.start()
        ask = await opened(app, run)
        why = await run.explain()
        assert why.sentence.startswith("It is waiting for 2 of finance, legal, ops to answer 'deploy?', until 20")
        assert [each.execution_kind for each in why.chain] == ["release", "sign_off", "$ask"]
        assert [each.execution_id for each in why.chain][::2] == [run.id, ask.id]
        await ask.answer(True, by="ops")
        assert (await run.explain()).sentence.startswith("It is waiting for 1 of finance, legal to answer")
        await run.cancel()


async def test_one_no_decides(app: App) -> None:
    @app.workflow
    async def deploy() -> str:
        verdict = await Ask("deploy?", Verdict, of={"ann", "bob", "cid"}, need=2)
        return f"{verdict.ok} {verdict.note}"

    async with app.worker():
        run = await deploy.start()
        ask = await opened(app, run)
        await ask.answer(Verdict(ok=True, note="go"), by="ann")
        await ask.answer(Verdict(ok=False, note="wait"), by="bob")
        assert await run.result(seconds(30)) == "False wait"


async def test_links(app: App) -> None:
    @app.workflow
    async def pay() -> int:
        return (await Ask("payment", Payment)).cents

    async with app.worker():
        run = await pay.start()
        ask = await opened(app, run)
        link = await ask.link()
        for position in (5, len(link) // 2, len(link) - 3):
            bent = link[:position] + ("A" if link[position] != "A" else "B") + link[position + 1 :]
            with pytest.raises((BadAnswer, EngineError)):
                await app.answer(bent, Payment("r", 5))
        for wrong in ("", "no link", base64.urlsafe_b64encode(b"a b c").decode()):
            with pytest.raises(BadAnswer):
                await app.answer(wrong, Payment("r", 5))
        with pytest.raises(BadAnswer, match="reference"):
            await app.answer(link, {"cents": 5})
        with pytest.raises(BadAnswer, match="cents"):
            await app.answer(link, {"reference": "r", "cents": "many"})
        await app.answer(link, {"reference": "r", "cents": 500})
        assert await run.result(seconds(30)) == 500


async def test_a_token_is_good_for_one_approver_and_one_thing_shown(app: App) -> None:
    @app.workflow
    async def deploy(what: str) -> bool:
        return await Ask("deploy?", show=what, of={"ann", "bob"}, need=2)

    async with app.worker():
        one, other = await deploy.start("one"), await deploy.start("other")
        first, second = await opened(app, one), await opened(app, other)
        tokens = {
            await first.token("ann"),
            await first.token("bob"),
            await second.token("ann"),
            await second.token("bob"),
        }
        assert len(tokens) == 4
        forged = base64.urlsafe_b64decode((await first.link("ann")) + "==").decode().split(" ")
        forged[2] = (await second.token("ann")).reveal()
        with pytest.raises(EngineError):
            await app.answer(base64.urlsafe_b64encode(" ".join(forged).encode()).decode(), True)


async def test_time_runs_out(app: App) -> None:
    soon = timedelta(milliseconds=200)

    @app.workflow
    async def lenient() -> bool:
        return await Ask("yes?", within=soon, otherwise=False)

    @app.workflow
    async def strict() -> str:
        try:
            await Ask("yes?", within=soon)
        except AskTimedOut:
            return "late"
        return "in time"

    async with app.worker():
        first, second = await lenient.start(), await strict.start()
        assert await first.result(seconds(30)) is False
        assert await second.result(seconds(30)) == "late"


async def test_an_operator_closes_a_question(app: App) -> None:
    @app.workflow
    async def stuck() -> str:
        try:
            await Ask("anybody?", of="nobody")
        except AskClosed:
            return "closed"
        return "answered"

    async with app.worker():
        run = await stuck.start()
        ask = await opened(app, run)
        await app.engine.resume_execution(execution_id=ask.id)
        assert await run.result(seconds(30)) == "closed"


async def test_a_worker_that_is_lost_before_it_could_ask(app: App) -> None:
    ask = app.builtin_kinds["$ask"]
    lost: list[str] = []

    async def stumble(job: Job) -> None:
        if not lost:
            lost.append(job.execution_id)
            await job.give_back("lost")
            raise Parked
        await ask(job)

    app.builtin_kinds["$ask"] = stumble

    @app.workflow
    async def deploy() -> bool:
        return await Ask("deploy?")

    async with app.worker():
        run = await deploy.start()
        asked = await opened(app, run)
        assert lost == [asked.id]
        await asked.answer(True)
        assert await run.result(seconds(30)) is True


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
@pytest.mark.parametrize("name", ["now_ms", "observe_signals", "read_history"])
async def test_a_store_that_does_not_answer_while_a_question_is_asked_or_answers_are_collected(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, real, away = app.builtin_kinds["$ask"], getattr(app.engine, name), itertools.count()
    stumbles = name == "read_history"

    async def call(*args: Any) -> Any:
        if asking and next(away) < 2:
            raise Transport("memory", TransportKind.TRANSPORT, "the connection was lost")
        return await real(*args)

    async def asks(job: Job) -> None:
        nonlocal stumbles
        if stumbles and job.handle.kind is HandleKind.RESUMED:
            stumbles = False
            raise ValueError("it could not finish")
        asking.append(job)
        try:
            await ask(job)
        finally:
            asking.remove(job)

    asking: list[Job] = []
    app.builtin_kinds["$ask"] = asks
    monkeypatch.setattr(app.engine, name, call)

    @app.workflow
    async def deploy() -> bool:
        return await Ask("deploy?", within=days(1), otherwise=False)

    async with app.worker():
        run = await deploy.start()
        asked = await opened(app, run)
        await asked.answer(True)
        assert await run.result(seconds(30)) is True
    assert next(away) > 2, "it was asked again"
    assert await app.engine.read_total_attempt_count(asked.id) == (2 if name == "read_history" else 1)


@pytest.mark.parametrize("store_url", ["memory", "sqlite", "remote"], indirect=True)
@pytest.mark.parametrize("said", [True, False, None])
async def test_an_attempt_that_fails_with_the_answers_in_its_hands(app: App, said: bool | None) -> None:
    ask = app.builtin_kinds["$ask"]
    failed: list[str] = []

    async def stumble(job: Job) -> None:
        if job.handle.kind is HandleKind.RESUMED and not failed:
            failed.append(job.execution_id)
            raise ValueError("it could not finish")
        await ask(job)

    app.builtin_kinds["$ask"] = stumble

    @app.workflow
    async def deploy() -> bool | str:
        return await Ask("deploy?", within=days(1) if said is not None else QUICK, otherwise="nobody")

    async with app.worker():
        run = await deploy.start()
        if said is not None:
            await (await opened(app, run)).answer(said)
        assert await run.result(seconds(30)) == ("nobody" if said is None else said)
    assert len(failed) == 1


async def test_all_open_questions_are_listed(app: App) -> None:
    @app.workflow
    async def ask_once(what: str) -> bool:
        return await Ask(what, within=days(1))

    async with app.worker():
        runs = [await ask_once.start(each) for each in ("a?", "b?")]
        for run in runs:
            await opened(app, run)
        assert sorted(each.question for each in await app.asks()) == ["a?", "b?"]


async def test_waiting_for_a_question_ends(app: App) -> None:
    @app.workflow
    async def silent() -> None:
        return None

    run = await silent.start()
    assert await app.asks(run, wait=timedelta(milliseconds=50)) == []


async def test_nobody_waits_for_the_questions_of_a_run_that_has_ended(app: App) -> None:
    @app.workflow
    async def silent() -> None:
        return None

    async with app.worker(), asyncio.timeout(60):
        run = await silent.start()
        assert await app.asks(run, wait=days(1)) == [], "it ends while somebody waits"
        assert await run.status() == "completed"
        assert await app.asks(run.id, wait=days(1)) == [], "it had ended before"


def test_what_cannot_be_asked() -> None:
    refused: tuple[Callable[[], object], ...] = (
        lambda: Ask(""),
        lambda: Ask("q", need=2),
        lambda: Ask("q", of={"a"}, need=2),
        lambda: Ask("q", of={""}),
        lambda: Ask("q", of={"anyone"}),
        lambda: Ask("q", otherwise=True),
        lambda: Ask("q", need=0),
    )
    for wrong in refused:
        with pytest.raises(BadOptions):
            wrong()


async def test_questions_are_asked_in_workflows() -> None:
    with pytest.raises(BadOptions, match="workflows"):
        await Ask("q")


async def test_a_budget_asks(app: App) -> None:
    @app.task
    async def work(ctx: Ctx, tokens: int) -> str:
        async with ctx.spend(tokens=tokens) as call:
            # A budget that is used up keeps runs from beginning: then there is nobody who could ask.
            call.settle(tokens=400 if tokens == 400 else 0)
        return "done"

    @app.task
    async def named_by_spend(ctx: Ctx) -> str:
        async with ctx.spend(budget=Budget("shed", tokens=10, on_breach="ask"), tokens=20) as call:
            call.settle(tokens=0)
        return "done"

    @app.workflow
    async def outer() -> str:
        return await work(300)

    budget = Budget("team", tokens=500, on_breach="ask")
    async with app.worker():
        run = await work.using(budget=budget).start(400)
        assert await run.result(seconds(30)) == "done"

        run = await work.using(budget=budget).start(200)
        ask = await opened(app, run)
        assert ask.question == "may work spend beyond team?"
        assert ask.show == {"team": {"tokens": {"spent": 400, "allowed": 500}}}
        with pytest.raises(BadAnswer):
            await ask.answer("yes")
        await ask.answer(True)
        assert await run.result(seconds(30)) == "done"

        run = await work.using(budget=budget).start(300)
        link = await (await opened(app, run)).link()
        await app.answer(link, False)
        with pytest.raises(RunFailed, match="no room for 300 tokens"):
            await run.result(seconds(30))

        house = Budget("house", tokens=450, on_breach="ask")
        under = await work.using(budget=Budget("room", tokens=1_000, under=house)).start(460)
        ask = await opened(app, under)
        assert ask.show == {"house": {"tokens": {"spent": 0, "allowed": 450}}}, "the budget above is the one that asks"
        await ask.answer(True)
        assert await under.result(seconds(30)) == "done"

        named = await named_by_spend.start()
        ask = await opened(app, named)
        assert ask.show == {"shed": {"tokens": {"spent": 0, "allowed": 10}}}
        await ask.answer(True)
        assert await named.result(seconds(30)) == "done"

        above = await outer.using(budget=budget).start()
        ask = await opened(app, above)
        assert ask.run_id == above.id
        await ask.answer(True)
        assert await above.result(seconds(30)) == "done"
