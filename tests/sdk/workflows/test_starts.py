"""Runs that a workflow starts and does not wait for: each is started once, and conflicts stay what they were."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from flowfabric import App, BadOptions, IdConflict, days, seconds, sleep
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.sdk.errors import RunFailed
from flowfabric.sdk.workflows import starts


@pytest.fixture
def memory_app() -> App:
    """A closed app for ``testing()``."""
    return App("memory://")


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_a_start_whose_answer_was_lost_is_not_in_its_own_way(
    memory_app: App, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = memory_app
    ran: list[str] = []

    @app.task
    async def mail(to: str) -> None:
        ran.append(to)

    @app.workflow
    async def mailing() -> list[str]:
        if many:
            return [each.id for each in await mail.start_many(["ann", "bob"])]
        return [(await mail.using(id="the one", reuse="reject").start("ann")).id]

    async with app.testing() as t:
        run = await mailing.start()
        name = "create_executions" if many else "create_execution"
        real, calls = getattr(app.engine, name), itertools.count()

        async def not_heard(*args: Any, **kwargs: Any) -> Any:
            answer = await real(*args, **kwargs)
            if next(calls) == 0:
                raise Transport("test", TransportKind.TRANSPORT, "the answer was lost")
            return answer

        monkeypatch.setattr(app.engine, name, not_heard)
        assert len(await run.result(days(1))) == (2 if many else 1)
        await t.idle()
        assert next(calls) == 2
    assert sorted(ran) == (["ann", "bob"] if many else ["ann"])


async def test_an_id_that_is_taken_stays_taken_for_this_trial(memory_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app = memory_app
    found: list[str] = []

    @app.task
    async def mail(to: str) -> None: ...

    @app.workflow
    async def mailing() -> str:
        try:
            await mail.using(id="the one", reuse="reject").start("ann")
        except IdConflict as error:
            found.append(str(error.ids["run"]))
            await sleep(days(1))
            return "taken"
        return "started"

    async with app.testing() as t:
        other = await mail.using(id="the one").start("bob")
        await other.result(seconds(30))
        real, calls = app.engine.create_execution, itertools.count()

        async def counted(*args: Any, **kwargs: Any) -> Any:
            next(calls)
            return await real(*args, **kwargs)

        monkeypatch.setattr(app.engine, "create_execution", counted)
        run = await mailing.start()
        assert await run.result(days(2)) == "taken"
        # The workflow itself, and what it was refused.
        assert (t.attempts(mailing), next(calls)) == (2, 2)
    assert found == [other.id] * 3


async def test_many_are_started_once(memory_app: App) -> None:
    app = memory_app
    ran: list[str] = []

    @app.task
    async def mail(to: str, copies: int = 1) -> None:
        ran.append(to * copies)

    @app.workflow
    async def mailing() -> list[list[str]]:
        both = await mail.start_many(["ann", mail.bind("bob", copies=2)])
        none = await mail.start_many([])
        again = await mail.using(key="again").start_many(["ann"])
        await sleep(days(1))
        return [[each.id for each in some] for some in (both, none, again)]

    async with app.testing() as t:
        run = await mailing.start()
        both, none, again = await run.result(days(2))
        assert (len({*both, *again}), none) == (3, [])
        await t.idle()
        names = [step.name for step in await run.steps()]
    assert sorted(ran) == ["ann", "ann", "bobbob"]
    assert names[:3] == ["mail.start_many", "mail.start_many#2", "mail.start_many[again]"]


@pytest.mark.parametrize(
    "how",
    ["too many", "reject", "debounce"],
)
async def test_what_many_cannot_have_is_refused_by_name(
    memory_app: App, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = memory_app
    monkeypatch.setattr(starts, "MOST_STARTED", 2)

    @app.task
    async def mail(to: str) -> None: ...

    options: dict[str, Any] = {
        "too many": {},
        "reject": {"id": "{to}", "reuse": "reject"},
        "debounce": {"tx": object()},
    }[how]

    @app.workflow
    async def mailing() -> None:
        await mail.using(**options).start_many(["ann", "bob", "carol"][: 3 if how == "too many" else 2])

    async with app.testing():
        run = await mailing.start()
        said = {"too many": "up to 2 runs", "reject": "one by one", "debounce": "in a step"}[how]
        with pytest.raises(RunFailed, match=f"BadOptions.*{said}"):
            await run.result(days(1))


def test_outside_of_a_workflow_nothing_changes(memory_app: App) -> None:
    @memory_app.task
    async def mail(to: str) -> None: ...

    with pytest.raises(BadOptions):
        mail.using(key="x", reuse="never")  # type: ignore[arg-type]
