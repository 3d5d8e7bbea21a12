"""Cancelled workflows clean up: within their time, once, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import (
    App,
    Ask,
    BadDuration,
    BadOptions,
    CancelRequested,
    Ctx,
    PublicState,
    Retry,
    Run,
    RunCancelled,
    RunFailed,
    days,
    first,
    gather,
    hours,
    minutes,
    seconds,
    sleep,
)
from flowfabric.sdk.testing import Testing
from flowfabric.sdk.testing.faults import Crash
from tests.sdk.workflows.test_workflows import settled

SOON = seconds(30)


async def ended(run: Run[Any], state: PublicState = PublicState.CANCELLED, reason: str = "") -> None:
    """It has ended in this way."""
    with pytest.raises(RunCancelled if state is PublicState.CANCELLED else RunFailed) as caught:
        await run.result(SOON)
    assert caught.value.reason == reason or not reason
    assert await run.status() is state


async def until(look: Callable[[], Any]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(30):
        while True:
            found = look()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


# -- on every store, and through a server ---------------------------------------------------------------------------


async def test_finally_calls_steps_tasks_and_asks(app: App) -> None:
    done: list[str] = []

    @app.step
    async def book(what: str) -> str:
        done.append(f"booked {what}")
        return what

    @app.step
    async def unbook(what: str) -> None:
        done.append(f"unbooked {what}")

    @app.task
    async def refund(what: str) -> int:
        done.append(f"refunded {what}")
        return 100

    @app.workflow
    async def trip() -> str:
        flight = await book("flight")
        try:
            await sleep(days(30))
        except Exception:
            done.append("seen as an ordinary error")
        finally:
            paid = await refund(flight)
            if await Ask(f"keep {paid}?"):
                await unbook(flight)
        return "travelled"

    async with app.worker():
        run = await trip.start()
        await settled(run, PublicState.SUSPENDED)
        await run.cancel("rain")
        await run.cancel("snow")

        async def asked() -> bool:
            return bool(await app.asks())

        await until(asked)
        assert "It was asked to cancel" in (await run.explain()).sentence
        [ask] = await app.asks()
        await ask.answer(True)
        await ended(run, reason="rain")
    assert done == ["booked flight", "refunded flight", "unbooked flight"]


async def test_a_run_that_is_at_work_hears_of_it_when_its_step_has_ended(app: App) -> None:
    done: list[str] = []
    begun, told = asyncio.Event(), asyncio.Event()

    @app.step
    async def charge(ctx: Ctx) -> str:
        begun.set()
        await until(lambda: ctx.cancelled)
        told.set()
        done.append("charged")
        return "receipt"

    @app.step
    async def ship() -> None:
        done.append("shipped")

    @app.step
    async def refund(receipt: str, ctx: Ctx) -> None:
        done.append(f"refunded {receipt}, cancelled: {ctx.cancelled}")

    @app.workflow
    async def order() -> None:
        receipt = await charge()
        try:
            await ship()
        except CancelRequested as asked:
            done.append(asked.reason)
            await refund(receipt)
            raise

    async with app.worker():
        run = await order.start()
        await begun.wait()
        await run.cancel("sold out")
        await ended(run, reason="sold out")
    assert told.is_set()
    assert done == ["charged", "sold out", "refunded receipt, cancelled: False"]


async def test_child_workflows_are_asked_and_child_tasks_cancelled(app: App) -> None:
    done: list[str] = []
    working = asyncio.Event()

    @app.task
    async def work() -> None:
        working.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            done.append("task")
            raise

    @app.task
    async def tidy(who: str) -> None:
        done.append(who)

    @app.workflow
    async def inner() -> None:
        try:
            await sleep(days(1))
        finally:
            await tidy("inner")

    @app.workflow
    async def outer() -> None:
        try:
            await gather(inner(), work())
        finally:
            await tidy("outer")

    async with app.worker(lease_ttl=seconds(1)):
        run = await outer.start()
        await working.wait()
        await settled(run, PublicState.SUSPENDED)
        await run.cancel()
        await ended(run)
        await until(lambda: len(done) == 3)
    assert sorted(done) == ["inner", "outer", "task"]


async def test_terminating_ends_at_once(app: App) -> None:
    done: list[str] = []

    @app.step
    async def tidy() -> None:
        done.append("tidied")

    @app.workflow
    async def waits() -> None:
        try:
            await sleep(days(1))
        finally:
            await tidy()

    async with app.worker():
        asked, at_once = await waits.start(), await waits.start()
        for run in (asked, at_once):
            await settled(run, PublicState.SUSPENDED)
        await at_once.terminate("now")
        assert await at_once.status() is PublicState.CANCELLED
        await ended(at_once, reason="now")
        assert done == []
        await asked.cancel()
        await ended(asked)
        await asked.terminate()
        await asked.cancel()
        assert await asked.status() is PublicState.CANCELLED
    assert done == ["tidied"]


async def test_what_has_not_begun_or_is_no_workflow_ends_at_once(app: App) -> None:
    @app.workflow
    async def never() -> None:
        raise AssertionError("it must not begin")

    @app.workflow(cancel_grace=seconds(0))
    async def hasty() -> None:
        try:
            await sleep(days(1))
        finally:
            raise AssertionError("there is no time for it")

    run = await never.start()
    await run.cancel("not needed")
    await ended(run, reason="not needed")
    async with app.worker():
        run = await hasty.start()
        await settled(run, PublicState.SUSPENDED)
        await run.cancel()
        assert await run.status() is PublicState.CANCELLED


async def test_many_are_cancelled_or_terminated_together(app: App) -> None:
    done: list[int] = []

    @app.workflow
    async def waits(number: int) -> None:
        try:
            await sleep(days(1))
        except CancelRequested:
            done.append(number)
            raise

    async with app.worker():
        runs = [await waits.start(number) for number in range(4)]
        for run in runs:
            await settled(run, PublicState.SUSPENDED)
        assert len(await app.runs(limit=0).terminate()) == 0
        assert len(await app.runs().cancel("all")) == 4
        for run in runs:
            await ended(run, reason="all")
        late = await waits.start(9)
        await settled(late, PublicState.SUSPENDED)
        assert await app.runs().terminate(dry_run=True) == [late]
        assert await app.runs().terminate("now") == [late]
        await ended(late, reason="now")
    assert sorted(done) == [0, 1, 2, 3]


async def test_a_task_in_a_thread_is_told_to_stop(app: App) -> None:
    seen: list[bool] = []
    begun, stopped = threading.Event(), threading.Event()

    @app.task
    def work(ctx: Ctx) -> None:
        seen.append(ctx.cancelled)
        begun.set()
        while not ctx.cancelled and not stopped.wait(0.01):
            pass
        seen.append(ctx.cancelled)
        stopped.set()

    async with app.worker(lease_ttl=seconds(1)):
        run = await work.start()
        await until(begun.is_set)
        await run.cancel("enough")
        assert await run.status() is PublicState.CANCELLED
        try:
            await until(stopped.is_set)
        finally:
            stopped.set()
    assert seen == [False, True]


async def test_a_step_in_a_thread_is_told_to_stop(app: App) -> None:
    seen: list[str] = []
    begun, stopped = threading.Event(), threading.Event()

    @app.step
    def work(ctx: Ctx) -> str:
        begun.set()
        while not ctx.cancelled and not stopped.wait(0.01):
            pass
        stopped.set()
        return "half"

    @app.step
    def tidy(what: str, ctx: Ctx) -> None:
        seen.append(f"{what} {ctx.cancelled}")

    @app.workflow
    async def works() -> None:
        what = await work()
        try:
            await sleep(days(1))
        finally:
            await tidy(what)

    async with app.worker(lease_ttl=seconds(1)):
        run = await works.start()
        await until(begun.is_set)
        await run.cancel()
        try:
            await ended(run)
        finally:
            stopped.set()
    assert seen == ["half False"]


# -- what the body makes of it ---------------------------------------------------------------------------------------


@pytest.fixture
def offline() -> App:
    """An app for the testing kit."""
    return App("sqlite:///never-opened.db")


async def parked(t: Testing, run: Run[Any]) -> None:
    """Everything has come to rest."""
    await t.idle()
    assert await run.status() is PublicState.SUSPENDED


async def test_a_body_may_end_otherwise(offline: App) -> None:
    @offline.workflow
    async def stubborn(end: str) -> str:
        try:
            await sleep(days(1))
        except CancelRequested:
            if end == "raises":
                raise ValueError("no") from None
        await sleep(seconds(5))
        return "finished all the same"

    async with offline.testing() as t:
        run = await stubborn.start("returns")
        await parked(t, run)
        await run.cancel()
        assert await run.result() == "finished all the same"
        assert t.clock.elapsed < minutes(1)
        run = await stubborn.start("raises")
        await parked(t, run)
        await run.cancel()
        await ended(run, PublicState.FAILED)


async def test_when_the_time_is_over_it_ends_anyway(offline: App) -> None:
    done: list[str] = []

    @offline.workflow(cancel_grace=minutes(5))
    async def slow() -> None:
        try:
            await sleep(days(1))
        finally:
            await sleep(minutes(3))
            done.append("three minutes")
            await sleep(minutes(3))
            done.append("six minutes")

    async with offline.testing() as t:
        run = await slow.start()
        await parked(t, run)
        began = t.clock.elapsed
        await run.cancel("enough")
        await ended(run, reason="enough")
        assert t.clock.elapsed - began == minutes(5)
    assert set(done) == {"three minutes"}


async def test_cleanup_that_fails_is_tried_again(offline: App) -> None:
    tries: list[int] = []

    @offline.task
    async def tidy() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not now")

    @offline.workflow(retry=Retry(5, first=seconds(1), jitter=False), cancel_grace=minutes(5))
    async def waits() -> None:
        try:
            await Ask("shall we?")
        finally:
            await tidy()

    async with offline.testing() as t:
        run = await waits.start()
        await parked(t, run)
        await run.cancel("enough")
        await ended(run, reason="enough")
    assert len(tries) == 3


async def test_a_run_that_failed_to_tidy_up_is_replayed_as_if_it_had_not_been_cancelled(offline: App) -> None:
    broken = True

    @offline.task
    async def tidy() -> None:
        if broken:
            raise ConnectionError("not now")

    @offline.workflow
    async def inner() -> int:
        await sleep(minutes(1))
        return 42

    @offline.workflow
    async def waits() -> int:
        try:
            return await inner()
        finally:
            await tidy()

    async with offline.testing() as t:
        run = await waits.start()
        await parked(t, run)
        await run.cancel("enough")
        await ended(run, PublicState.FAILED)
        broken = False
        await run.replay()
        assert await run.result() == 42


async def test_a_fork_of_a_cancelled_run_goes_on(offline: App) -> None:
    done: list[str] = []

    @offline.step
    async def close(what: str) -> None:
        done.append(what)

    @offline.workflow
    async def waits() -> str:
        try:
            await sleep(hours(1))
        finally:
            await close("door")
        return "waited"

    async with offline.testing() as t:
        run = await waits.start()
        await parked(t, run)
        await run.cancel()
        await ended(run)
        assert await (await run.fork()).result() == "waited"
    assert done == ["door", "door"]


@pytest.mark.parametrize("kind", ["gather", "first", "group", "background"])
async def test_every_branch_is_told(offline: App, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    @offline.step
    async def tidy(what: str) -> str:
        done.append(what)
        return what

    @offline.workflow
    async def inner(hours_: int) -> None:
        await sleep(hours(hours_))

    async def branch(name: str) -> None:
        try:
            await inner.using(key=name)(1)
        finally:
            await tidy.using(key=name)(name)

    @offline.workflow
    async def many() -> None:
        try:
            if kind == "gather":
                await gather(branch("a"), branch("b"))
            elif kind == "first":
                await first(branch("a"), branch("b"))
            elif kind == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(branch("a"))
                    group.create_task(branch("b"))
            else:
                aside = asyncio.create_task(branch("a"))
                await branch("b")
                await aside
        finally:
            await tidy("all")

    async with offline.testing() as t:
        run = await many.start()
        await parked(t, run)
        await run.cancel("enough")
        await ended(run, reason="enough")
    assert "all" in done
    if kind == "first":
        assert set(done) == {"a", "b", "all"}, "all of them have let go before it goes on"
    assert set(done) <= {"a", "b", "all"}
    assert len(done) == len(set(done)), done
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_race_does_not_hide_the_request(offline: App) -> None:
    async def gives_up() -> None:
        try:
            await sleep(days(1), key="a")
        except CancelRequested:
            raise ValueError("given up") from None

    @offline.workflow
    async def race() -> None:
        await first(gives_up(), sleep(days(1), key="b"))

    async with offline.testing() as t:
        run = await race.start()
        await parked(t, run)
        await run.cancel("enough")
        await ended(run, reason="enough")


async def test_all_branches_are_told_together(offline: App) -> None:
    """One that is at work is told at its next call, which is not made."""
    done: list[str] = []
    begun = asyncio.Event()

    @offline.step
    async def charge(ctx: Ctx) -> None:
        begun.set()
        await until(lambda: ctx.cancelled)
        done.append("charged")

    @offline.step
    async def ship() -> None:
        done.append("shipped")

    async def sells() -> None:
        await charge()
        try:
            await ship()
        except CancelRequested:
            done.append("told")
            raise

    @offline.workflow
    async def shop() -> None:
        aside = asyncio.create_task(sleep(days(1)))
        try:
            await sells()
        finally:
            await asyncio.wait([aside])

    async with offline.testing():
        run = await shop.start()
        await begun.wait()
        await run.cancel("enough")
        await ended(run, reason="enough")
    assert done == ["charged", "told"]


# -- workers that die ------------------------------------------------------------------------------------------------


class _NthWrite(Crash):
    """The worker of any run dies at its n-th write of this test."""

    def __init__(self, number: int, after: bool) -> None:
        super().__init__("", None, "step", after, 1)
        self.number = number
        self.seen = 0

    def concerns(self, operation: str, kind: str, arguments: dict[str, Any]) -> bool:
        if operation in ("renew", "read_steps"):
            return False
        self.seen += 1
        return self.seen == self.number


async def _cancelled_once(number: int, after: bool) -> int:
    """One run is cancelled while the worker dies at one of its writes; how many writes there were."""
    app = App("sqlite:///never-opened.db")
    done: list[str] = []

    @app.step
    async def open_(what: str) -> str:
        return what

    @app.task
    async def release(what: str, ctx: Ctx) -> str:
        done.append(f"{ctx.idempotency_key} {what}")
        return what

    @app.step
    async def note(what: str, ctx: Ctx) -> None:
        done.append(f"{ctx.idempotency_key} {what}")

    @app.workflow(cancel_grace=hours(10))
    async def inner() -> None:
        await sleep(days(3))

    told: list[str] = []

    @app.workflow(cancel_grace=hours(10))
    async def outer() -> None:
        lock = await open_("lock")
        other = ""
        try:
            await gather(inner(), sleep(days(1)), Ask("go on?"))
            other = "never"
        except CancelRequested:
            told.append("told")
            raise
        finally:
            await note.using(key="first")(f"{lock}{other}")
            await gather(release(lock), release.using(key="2")("room"))
            await sleep(minutes(1))
            await note(lock)

    async with app.testing() as t:
        run = await outer.start()
        await parked(t, run)
        crash = _NthWrite(number, after)
        assert t._faulty is not None
        t._faulty.crashes.append(crash)
        await run.cancel("enough")
        await ended(run, reason="enough")
        await t.idle()
        assert told
        # A run's step or task that its worker died over may have been begun again; nobody did it under another name.
        assert {each.split(" ", 1)[1] for each in done} == {"lock", "room"}
        assert len(set(done)) == 4
        again = 1 if number <= crash.seen else 0
        assert len(done) <= 4 + again
        steps = await t.steps(run)
        assert {"open_", "note[first]", "release", "release[2]", "note"} <= set(steps)
        assert await t.steps(run) == steps
        page = await t.app.engine.search_executions(namespaces=("default",), limit=100)
        states = {line.public_state for line in page.executions}
        assert states <= {PublicState.CANCELLED, PublicState.COMPLETED}, page
        return crash.seen


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_whatever_write_a_worker_dies_at_things_are_put_in_order_once(after: bool) -> None:
    number, writes = 1, 1_000
    while number <= writes:
        seen = await _cancelled_once(number, after)
        if seen < number:
            break
        number += 1
    assert number > 6


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_whatever_write_a_worker_dies_at_what_was_given_up_ends(after: bool) -> None:
    """Also if the workflow goes on as if nothing had been asked of it."""
    number = 1
    while True:
        app = App("sqlite:///never-opened.db")

        @app.workflow
        async def inner() -> None:
            await sleep(days(3))

        @app.workflow(cancel_grace=hours(10))
        async def outer() -> str:
            try:
                await inner()
            except CancelRequested:
                await sleep(hours(1))
            return "stayed"

        async with app.testing() as t:
            run = await outer.start()
            await parked(t, run)
            crash = _NthWrite(number, after)
            assert t._faulty is not None
            t._faulty.crashes.append(crash)
            await run.cancel()
            assert await run.result() == "stayed"
            await t.idle()
            lines = (await app.engine.search_executions(namespaces=("default",), limit=10)).executions
            assert {line.execution_kind: line.public_state for line in lines} == {
                "outer": PublicState.COMPLETED,
                "inner": PublicState.CANCELLED,
            }
            assert t.clock.elapsed < days(1)
        if crash.seen < number:
            break
        number += 1
    assert number > 4


async def test_a_worker_dies_at_the_end(offline: App) -> None:
    done: list[str] = []

    @offline.step
    async def tidy() -> None:
        done.append("tidied")

    @offline.workflow(cancel_grace=hours(1))
    async def waits() -> None:
        try:
            await sleep(days(1))
        finally:
            await tidy()

    for when in ("before", "after"):
        done.clear()
        async with offline.testing() as t:
            t.crash(waits, **{when: "cancel"})
            run = await waits.start()
            await parked(t, run)
            await run.cancel("enough")
            await ended(run, reason="enough")
            assert done == ["tidied"]


async def test_only_workflows_have_a_grace(offline: App) -> None:
    with pytest.raises(BadOptions, match="cancel_grace= is only for workflows"):
        offline.task(cancel_grace=seconds(1))
    with pytest.raises(BadDuration, match="cancel_grace"):
        offline.workflow(cancel_grace=5)
