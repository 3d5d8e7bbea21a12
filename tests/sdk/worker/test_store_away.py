"""A store that is away while a function reports, looks or spends is no failure of the function."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric.model.errors import EngineError, Transport, TransportKind
from flowfabric.sdk.app import App
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import BudgetExceeded, RunFailed
from flowfabric.sdk.options import Budget
from flowfabric.sdk.worker.attempt import _comes_from
from flowfabric.sdk.worker.renewal import Lease

SOON = seconds(30)
AWAY = Transport("test", TransportKind.TRANSPORT, "the connection was lost")


@pytest.fixture
async def app() -> Any:
    async with App("memory://") as opened:
        yield opened


def away(app: App, name: str, monkeypatch: pytest.MonkeyPatch, times: int = 2) -> Iterator[int]:
    """The first calls of an operation are not answered; how many there were."""
    real, calls = getattr(app.engine, name), itertools.count()

    async def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) < times:
            raise AWAY
        return await real(*args, **kwargs)

    monkeypatch.setattr(app.engine, name, call)
    return calls


@pytest.mark.parametrize(
    "operation",
    ["progress", "append_frame", "append_frames", "tail_stream", "read_exec_core_fields", "create_budget",
     "get_budget_status", "release_reservation"],
)  # fmt: skip
async def test_whatever_a_function_asks_of_us_is_asked_again(
    app: App, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    team = Budget("team", tokens=100)

    @app.task
    async def work(ctx: Ctx = injected) -> str:
        attempts.append(ctx.attempt)
        await ctx.progress(50, "half of it")
        await ctx.summary({"done": 1})
        before = await ctx.stream.earlier()
        await ctx.emit("text")
        async with ctx.spend(tokens=1):
            pass
        with pytest.raises(BudgetExceeded):
            async with ctx.spend(budget=team, tokens=1_000):
                pass
        with pytest.raises(ZeroDivisionError):
            async with ctx.spend(budget=team, tokens=10):
                raise ZeroDivisionError
        return before

    other = Budget("other", tokens=100)
    async with app.worker():
        await app.gates.budget(other)
        calls = away(app, operation, monkeypatch)
        run = await work.using(budget=other).start()
        assert await run.result(SOON) == ""
    assert next(calls) > 2, "it was not asked"
    assert attempts == [1]
    assert (await app.engine.get_budget_status(await app.gates.budget(team), app.namespace)).reserved == {}


@pytest.mark.parametrize("how", ["as it is", "instead", "in a group"])
async def test_what_is_raised_because_of_it_is_not_counted_either(
    app: App, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease has run out by all that can be known: others may go on."""
    healthy = itertools.chain([False], itertools.repeat(True))
    tries = 0

    @app.task
    async def work(ctx: Ctx = injected) -> str:
        nonlocal tries
        tries += 1
        try:
            await ctx.progress(50)
        except EngineError as error:
            if how == "as it is":
                raise
            if how == "instead":
                raise RuntimeError("cannot say") from error
            raise ExceptionGroup("some", [error, ValueError()]) from None
        return "done"

    async with app.worker():
        away(app, "progress", monkeypatch, times=1)
        monkeypatch.setattr(Lease, "healthy", property(lambda _: next(healthy)))
        run = await work.start()
        assert await run.result(SOON) == "done"
    assert tries == 2
    assert await app.engine.read_current_attempt_index(run.id) == 0, "the same attempt has gone on"


async def test_an_error_of_the_function_stays_one(app: App) -> None:
    @app.task
    async def work() -> None:
        raise Transport("elsewhere", TransportKind.TRANSPORT, "a store of its own")

    async with app.worker():
        with pytest.raises(RunFailed, match="elsewhere"):
            await (await work.start()).result(SOON)


def test_where_an_error_comes_from() -> None:
    source, other = ValueError("source"), ValueError("other")
    other.__context__ = other.__cause__ = other
    assert _comes_from(source, source)
    assert not _comes_from(other, source)
    assert not _comes_from(other, None)
    other.__cause__ = ExceptionGroup("some", [KeyError(), source])
    assert _comes_from(other, source)
