"""A workflow whose store does not answer one of its calls, whichever it is: it ends as ever, has done everything once,
and nothing is counted."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple

import pytest

from flowfabric import App, Limit, Run, first, gather, hours, now, seconds, sleep
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.model.operations.workflows import ChildWait
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.errors import ENDED, CancelRequested, RunCancelled
from flowfabric.sdk.options import Budget
from flowfabric.sdk.worker.attempt import Job

#: What attempts ask of an engine.
ASKED = (
    "advance", "append_frame", "append_frames", "cancel_child", "complete", "create_execution", "create_quota_policy",
    "fail", "now_ms", "progress", "read_ends", "read_exec_core_fields", "read_execution_kinds", "read_steps",
    "release_reservation", "reserve_budget", "settle_reservation",
)  # fmt: skip
SOON, START_YEAR = seconds(60), 2024


class Place(NamedTuple):
    """What is asked, and where in the code."""

    name: str
    module: str
    line: int

    @classmethod
    def of(cls, name: str) -> Place | None:
        """Where the SDK has asked; the engine calls itself, too, and is not what is tested."""
        frame: FrameType | None = sys._getframe(2)
        if frame is None or not frame.f_globals["__name__"].startswith("flowfabric.sdk."):
            return None
        while frame is not None and frame.f_code in THROUGH:
            frame = frame.f_back
        assert frame is not None
        return cls(name, frame.f_globals["__name__"].removeprefix("flowfabric.sdk."), frame.f_lineno)


#: Who asks for others.
THROUGH = (Job.repeated.__code__, Job.conclude.__code__)


class Away:
    """An engine that does not answer the call with a number, or the first one from a place, whether it has done what
    was asked or not."""

    def __init__(self, engine: Any, at: int | Place, done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at = at
        self._done = done
        self.called: list[Place] = []
        #: Whether the run is there.
        self.begins = False
        for name in ASKED:
            monkeypatch.setattr(engine, name, self._call(name, getattr(engine, name)), raising=False)

    def _call(self, name: str, real: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            place = Place.of(name)
            if place is None or not self.begins:
                return await real(*args, **kwargs)
            self.called.append(place)
            is_first = name == "read_execution_kinds" and [each.name for each in self.called].count(name) == 1
            here = len(self.called) == self._at or (place == self._at and self.called.count(place) == 1)
            if not here and not is_first:
                return await real(*args, **kwargs)
            if self._done:
                await real(*args, **kwargs)
            raise Transport("test", TransportKind.TRANSPORT, f"{name} was not answered")

        return call


async def _run(at: int | Place, done: bool, monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    """Run it all with one call that is not answered; what was asked for."""
    app, counts, begun = App("memory://"), Counter[str](), list[Run[int]]()

    @app.step
    async def add(number: int) -> int:
        counts["add"] += 1
        return number + 1

    @app.step
    async def refuse() -> None:
        counts["refuse"] += 1
        raise ValueError("no")

    @app.step
    async def pay(ctx: Ctx = injected) -> None:
        counts["pay"] += 1
        await ctx.emit("paying")
        async with ctx.spend(tokens=10) as call:
            await ctx.progress(50)
            call.settle(tokens=7)

    @app.task(limits=[Limit(5, key="number")])
    async def double(number: int) -> int:
        counts["double"] += 1
        return number * 2

    @app.workflow
    async def waits() -> int:
        await sleep(hours(1))
        return 0

    @app.workflow
    async def everything() -> int:
        assert (await now()).year >= START_YEAR
        total = await add(1)
        try:
            await refuse()
        except ValueError:
            total += 1
        await pay()
        begun.append(await double.start(4))
        total += await first(double(3), waits())
        await sleep(timedelta(milliseconds=20))
        return total + sum(await gather(double(1), double(2)))

    team = Budget("team", tokens=100)
    async with app, app.worker():
        budget = await app.gates.budget(team)
        with monkeypatch.context() as patch:
            away = Away(app.engine, at, done, patch)
            run = await everything.using(budget=team).start()
            away.begins = True
            assert await run.result(SOON) == 15, at
            assert await begun[0].result(SOON) == 8
        assert await app.engine.read_current_attempt_index(run.id) == 0
        status = await app.engine.get_budget_status(budget, app.namespace)
        assert (status.usage, status.reserved) == ({"tokens": 7}, {}), at
        assert counts == {"add": 1, "refuse": 1, "pay": 1, "double": 4}, at
    return away.called


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_whatever_is_not_answered(done: bool, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called = await _run(0, done, monkeypatch)
    seldom = {"fail", "append_frame", "read_execution_kinds", "release_reservation"}
    assert set(ASKED) - {each.name for each in called} <= seldom, "it asks for everything"
    # In a plain run one call from each place.
    places: list[int | Place] = [*dict.fromkeys(called)]
    for place in [*places, *range(1, len(called) + 1)] if full else places:
        await _run(place, done, monkeypatch)


async def test_a_request_to_cancel_whose_reason_is_not_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app, told = App("memory://"), list[str]()
    begun = asyncio.Event()

    @app.step
    async def work(ctx: Ctx = injected) -> None:
        begun.set()
        while not ctx.cancelled:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    @app.workflow
    async def working() -> None:
        try:
            await work()
            await sleep(hours(1))
        except CancelRequested as error:
            told.append(error.reason)
            raise

    async with app, app.worker():
        run = await working.start()
        await begun.wait()
        real, calls = app.engine.read_execution_contexts, itertools.count()

        async def once_away(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"].endswith("workflows.cancellation") and not next(calls):
                raise Transport("test", TransportKind.TRANSPORT, "the connection was lost")
            return await real(*args, **kwargs)

        monkeypatch.setattr(app.engine, "read_execution_contexts", once_away)
        await run.cancel("not wanted")
        with pytest.raises(RunCancelled):
            await run.result(SOON)
    assert (told, next(calls)) == (["not wanted"], 2)


async def test_an_end_that_comes_while_a_run_parks_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    app, go, asked = App("memory://"), asyncio.Event(), itertools.count()
    parked = itertools.count(1)

    @app.task
    async def quick() -> int:
        return 1

    @app.task
    async def slow() -> int:
        await go.wait()
        return 2

    async def later() -> int:
        return await slow()

    @app.workflow
    async def both() -> list[int]:
        two = asyncio.create_task(later())
        return [await quick(), await two]

    async with app, app.worker(concurrency=4):
        engine = app.engine
        advance, read_ends = engine.advance, engine.read_ends

        async def late(*args: Any, wait: ChildWait | None = None, **more: Any) -> Any:
            if wait is not None and next(parked) == 2:
                # The other one ends before this commit, which therefore does not park the run.
                go.set()
                while any(each.state not in ENDED for each in await read_ends(wait.awaited)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                monkeypatch.setattr(engine, "read_ends", once_away)
            return await advance(*args, wait=wait, **more)

        async def once_away(ids: Any) -> Any:
            if not next(asked):
                raise Transport("test", TransportKind.TRANSPORT, "the connection was lost")
            return await read_ends(ids)

        monkeypatch.setattr(engine, "advance", late)
        run = await both.start()
        assert await run.result(SOON) == [1, 2]
        assert await engine.read_current_attempt_index(run.id) == 0
    assert next(asked) == 2, "it was asked again"
