"""Durable functions: remembered by name, going on after pauses and failures, children and sleeps without a worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import App, Ask, BadOptions, Ctx, PublicState, Retry, days, first, gather, seconds, sleep
from flowfabric.model.operations.workflows import Advanced, ChildWait
from flowfabric.sdk.errors import RunCancelled, RunFailed
from flowfabric.sdk.runs.run import Run
from flowfabric.sdk.workflows.conductor import Conductor
from flowfabric.sdk.workflows.recorded_steps import read_won

QUICK = timedelta(milliseconds=150)


@dataclass
class Doc:
    url: str
    size: int = 1


async def settled(run: Run[Any], *states: PublicState) -> PublicState:
    """Wait until the run is in one of some states."""
    async with asyncio.timeout(30):
        while True:
            state = await run.status()
            if state in states:
                return state
            await asyncio.sleep(0.02)


# -- steps -----------------------------------------------------------------------------------------------------------


async def test_steps_run_once_and_their_results_are_typed(app: App) -> None:
    calls: Counter[str] = Counter()

    @app.step
    async def fetch(doc: Doc) -> Doc:
        calls["fetch"] += 1
        return Doc(doc.url, doc.size + 1)

    @app.step
    def publish(doc: Doc) -> str:
        calls["publish"] += 1
        return f"{doc.url}:{doc.size}"

    @app.workflow
    async def review(doc: Doc) -> str:
        fetched = await fetch(doc)
        assert isinstance(fetched, Doc)
        await sleep(QUICK)
        return await publish(fetched)

    async with app.worker():
        run = await review.start(Doc("x"))
        assert await run.result(seconds(30)) == "x:2"
    assert calls == {"fetch": 1, "publish": 1}
    assert [step.name for step in await run.steps()] == ["fetch", "sleep", "publish"]


async def test_names_keys_and_numbers(app: App) -> None:
    @app.step
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def sums() -> list[int]:
        first = await add(1, 1)
        both = await gather(add(2, 2), add.using(key="third")(3, 3), add(4, 4))
        return [first, *both]

    async with app.worker():
        run = await sums.start()
        assert await run.result(seconds(30)) == [2, 4, 6, 8]
    assert {step.name: step.value for step in await run.steps()} == {
        "add": b"2",
        "add#2": b"4",
        "add[third]": b"6",
        "add#3": b"8",
    }


async def test_a_step_is_tried_again(app: App) -> None:
    calls: Counter[str] = Counter()

    @app.step(retry=Retry(3, first=timedelta(milliseconds=1)))
    async def flaky(ctx: Ctx) -> str:
        calls["flaky"] += 1
        if calls["flaky"] < 3:
            raise ConnectionError("not yet")
        return ctx.idempotency_key

    @app.workflow
    async def stubborn() -> str:
        return await flaky()

    async with app.worker():
        run = await stubborn.start()
        key = await run.result(seconds(30))
    assert calls["flaky"] == 3
    assert key.endswith(":flaky")


async def test_an_error_is_remembered_and_can_be_caught(app: App) -> None:
    calls: Counter[str] = Counter()

    @app.step
    async def risky() -> str:
        calls["risky"] += 1
        raise ValueError("no good")

    @app.workflow
    async def careful() -> str:
        try:
            return await risky()
        except ValueError as error:
            await sleep(QUICK)  # the function runs again from the top: the error comes from memory
            return f"caught {error}"

    async with app.worker():
        run = await careful.start()
        assert await run.result(seconds(30)) == "caught no good"
    assert calls["risky"] == 1


async def test_a_failed_workflow_goes_on_from_its_failed_step(app: App) -> None:
    calls: Counter[str] = Counter()

    @app.step
    async def begin() -> int:
        calls["begin"] += 1
        return 1

    @app.step
    async def second(value: int) -> int:
        calls["second"] += 1
        if calls["second"] == 1:
            raise RuntimeError("once")
        return value + 1

    @app.workflow
    async def both() -> int:
        return await second(await begin())

    async with app.worker():
        run = await both.start()
        with pytest.raises(RunFailed, match="once"):
            await run.result(seconds(30))
        await run.replay()
        assert await run.result(seconds(30)) == 2
    assert calls == {"begin": 1, "second": 2}


async def test_a_fork_goes_on_from_a_step(app: App) -> None:
    calls: Counter[str] = Counter()

    @app.step
    async def draft() -> str:
        calls["draft"] += 1
        return f"draft {calls['draft']}"

    @app.step
    async def polish(text: str) -> str:
        calls["polish"] += 1
        return f"{text}, polished {calls['polish']}"

    @app.workflow
    async def write() -> str:
        return await polish(await draft())

    async with app.worker():
        run = await write.start()
        assert await run.result(seconds(30)) == "draft 1, polished 1"
        again = await run.fork(at="polish")
        assert await again.result(seconds(30)) == "draft 1, polished 2"
        assert await run.result(seconds(30)) == "draft 1, polished 1"


async def test_a_fork_goes_on_from_the_step_that_failed(app: App) -> None:
    """Under the name that the code gives it."""
    calls: Counter[str] = Counter()

    @app.step
    async def charge() -> str:
        calls["charge"] += 1
        return f"paid {calls['charge']}"

    @app.step
    async def ship(what: str) -> str:
        calls["ship"] += 1
        if calls["ship"] == 1:
            raise ValueError("no courier")
        return f"{what}, shipped"

    @app.workflow
    async def order() -> str:
        return await ship(await charge())

    async with app.worker():
        run = await order.start()
        with pytest.raises(RunFailed):
            await run.result(seconds(30))
        again = await run.fork(at="ship")
        assert await again.result(seconds(30)) == "paid 1, shipped"
    assert calls == {"charge": 1, "ship": 2}


# -- children --------------------------------------------------------------------------------------------------------


async def test_children_are_runs_of_their_own(app: App) -> None:
    calls: Counter[str] = Counter()

    @app.task
    async def double(value: int) -> int:
        calls["double"] += 1
        return 2 * value

    @app.workflow
    async def quadruple(value: int) -> int:
        return await double(await double(value))

    async with app.worker():
        run = await quadruple.start(10)
        assert await run.result(seconds(30)) == 40
    assert calls["double"] == 2
    # The last one too, although nothing came after it.
    assert [(step.name, step.value) for step in await run.steps()] == [("double", b"20"), ("double#2", b"40")]
    info = await run.info()
    assert info.flow_id is not None
    flow = await app.engine.describe_flow(info.flow_id)
    assert flow is not None
    assert flow.node_count == 3


async def test_a_fan_of_children(app: App) -> None:
    @app.task
    async def square(value: int) -> int:
        return value * value

    @app.workflow
    async def squares(count: int) -> int:
        return sum(await gather(*[square.using(key=str(n))(n) for n in range(count)]))

    async with app.worker():
        run = await squares.start(60)
        assert await run.result(seconds(60)) == sum(n * n for n in range(60))


async def test_the_first_of_several_children(app: App) -> None:
    late = asyncio.Event()

    @app.task
    async def answer(name: str) -> str:
        if name != "quick":
            await late.wait()
        return name

    @app.workflow
    async def race() -> str:
        calls = [asyncio.ensure_future(answer.using(key=name)(name)) for name in ("slow", "quick", "slower")]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()

    async with app.worker():
        run = await race.start()
        assert await run.result(seconds(30)) == "quick"
        late.set()


async def test_the_first_wins_and_the_others_are_cancelled(app: App) -> None:
    cancelled: Counter[str] = Counter()
    finished: Counter[str] = Counter()
    all_told = asyncio.Event()

    @app.task
    async def answer(name: str, pause: float) -> str:
        try:
            await asyncio.sleep(pause)
        except asyncio.CancelledError:
            cancelled[name] += 1
            if cancelled.total() == 3:
                all_told.set()
            raise
        if name == "broken":
            raise ValueError("no answer")
        finished[name] += 1
        return name

    @app.workflow
    async def race() -> list[str]:
        calls = [("broken", 0.0), ("slow", 60.0), ("quick", 0.1), ("slower", 60.0)]
        won = await first(*(answer.using(key=name)(name, pause) for name, pause in calls), sleep_and_say())
        await sleep(QUICK)  # the code runs again from the top
        again = await first(answer.using(key="second")("second", 0.0), answer.using(key="late")("late", 60.0))
        return [won, again]

    async def sleep_and_say() -> str:
        await sleep(days(1), key="patience")
        return "nobody"

    async with app.worker(lease_ttl=seconds(1)):
        run = await race.start()
        assert await run.result(seconds(30)) == ["quick", "second"]
        assert finished == {"quick": 1, "second": 1}
        async with asyncio.timeout(30):
            await all_told.wait()
        assert cancelled == {"slow": 1, "slower": 1, "late": 1}
    won = {step.name: read_won(step.value) for step in await run.steps() if step.name in ("first", "first#2")}
    assert {name: each.won for name, each in won.items()} == {"first": "answer[quick]", "first#2": "answer[second]"}
    assert won["first"].lost == ["answer[broken]", "answer[slow]", "answer[slower]", "first()>sleep_and_say>"]


async def test_several_win_at_once(app: App) -> None:
    @app.task
    async def answer(number: int) -> int:
        return number

    @app.workflow
    async def race(size: int) -> int:
        won = await first(*(answer.using(key=str(number))(number) for number in range(size)))
        await sleep(timedelta(milliseconds=1))
        return won

    async with app.worker():
        runs = [await race.start(8) for _ in range(10)]
        results = await asyncio.gather(*(run.result(seconds(60)) for run in runs))
        assert all(result in range(8) for result in results)


async def test_a_call_with_a_time_limit(app: App) -> None:
    @app.task
    async def idle() -> str:
        await asyncio.sleep(60)
        return "never"

    @app.workflow
    async def patient() -> str:
        found = await first(idle(), sleep(QUICK), Ask("anybody?", str))
        await sleep(QUICK)
        return "gave up" if found is None else found

    async with app.worker(lease_ttl=seconds(1)):
        run = await patient.start()
        assert await run.result(seconds(30)) == "gave up"
        assert [step.name for step in await run.steps()] == ["sleep", "first", "sleep#2"]
        assert await app.asks(run) == []


async def test_if_nobody_wins_the_first_error_is_raised(app: App) -> None:
    @app.task
    async def broken(name: str) -> str:
        raise ValueError(name)

    @app.workflow
    async def hopeless() -> str:
        try:
            return await first(broken.using(key="a")("a"), broken.using(key="b")("b"))
        except RunFailed as error:
            return error.reason

    async with app.worker():
        run = await hopeless.start()
        assert await run.result(seconds(30)) == "ValueError: a"


async def test_the_first_outside_of_a_workflow() -> None:
    assert await first(asyncio.sleep(60, "slow"), asyncio.sleep(0, "quick")) == "quick"
    with pytest.raises(BadOptions):
        first()


async def test_a_failed_child_can_be_caught(app: App) -> None:
    @app.task(retry=0)
    async def broken() -> None:
        raise ValueError("nothing works")

    @app.task
    async def spare() -> str:
        return "spare"

    @app.workflow
    async def careful() -> str:
        try:
            await broken()
        except RunFailed as error:
            return f"{await spare()} after {error.reason}"
        return "never"

    async with app.worker():
        run = await careful.start()
        assert await run.result(seconds(30)) == "spare after ValueError: nothing works"


async def test_workflows_call_workflows_and_cancelling_reaches_all(app: App) -> None:
    @app.task
    async def idle() -> None:
        await asyncio.sleep(60)

    @app.workflow
    async def inner() -> None:
        await idle()

    @app.workflow
    async def outer() -> None:
        await gather(inner(), sleep(days(30)))

    async with app.worker():
        run = await outer.start()
        info = await run.info()
        async with asyncio.timeout(30):
            while True:
                info = await run.info()
                if info.flow_id is not None:
                    flow = await app.engine.describe_flow(info.flow_id)
                    if flow is not None and flow.node_count == 3:
                        break
                await asyncio.sleep(0.02)
        await settled(run, PublicState.SUSPENDED)
        await run.cancel("enough")
        with pytest.raises(RunCancelled):
            await run.result(seconds(30))
        # What it has started is cancelled right after it, by a commit of its own.
        async with asyncio.timeout(30):
            while True:
                summary = await app.engine.describe_flow(info.flow_id)
                assert summary is not None
                if summary.public_flow_state == "cancelled":
                    break
                await asyncio.sleep(0.02)


async def test_what_has_ended_stays_as_it_is(app: App) -> None:
    @app.task
    async def one() -> int:
        return 1

    @app.workflow
    async def two() -> int:
        return 1 + await one()

    async with app.worker():
        for run, expected in ((await one.start(), 1), (await two.start(), 2)):
            assert await run.result(seconds(30)) == expected
            await run.cancel("too late")
            assert await run.status() is PublicState.COMPLETED


async def test_mixed_parallel_branches(app: App) -> None:
    order: list[str] = []

    @app.step
    async def note(text: str) -> str:
        order.append(text)
        return text

    @app.task
    async def slow(text: str) -> str:
        await asyncio.sleep(0.05)
        return text

    async def branch(name: str) -> str:
        await note.using(key=f"{name}-a")(f"{name}-a")
        found = await slow.using(key=name)(name)
        await sleep(timedelta(milliseconds=50), key=name)
        return await note.using(key=f"{name}-b")(f"{found}-b")

    @app.workflow
    async def tree() -> list[str]:
        return list(await asyncio.gather(*(branch(name) for name in "abc")))

    async with app.worker():
        run = await tree.start()
        assert await run.result(seconds(60)) == ["a-b", "b-b", "c-b"]
    assert sorted(order) == ["a-a", "a-b", "b-a", "b-b", "c-a", "c-b"]


async def test_what_is_left_behind_while_parked_does_nothing(app: App) -> None:
    """``finally`` blocks of code that is thrown away when it parks cannot do anything durable."""
    calls: Counter[str] = Counter()

    @app.step
    async def clean_up() -> None:
        calls["clean_up"] += 1

    @app.workflow
    async def tidy() -> str:
        try:
            await sleep(QUICK)
            return "done"
        finally:
            calls["finally"] += 1
            await clean_up()

    async with app.worker():
        run = await tidy.start()
        assert await run.result(seconds(30)) == "done"
    assert calls["clean_up"] == 1


async def test_sleepers_hold_no_slot(app: App) -> None:
    @app.workflow
    async def sleeper(number: int) -> int:
        await sleep(seconds(1))
        return number

    async with app.worker(concurrency=2):
        runs = await sleeper.start_many([(n,) for n in range(20)])
        assert await asyncio.gather(*(run.result(seconds(60)) for run in runs)) == list(range(20))


async def test_a_lease_that_was_given_up_is_not_lost(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever renews leases may meet one that has just been given up, before its holder has heard of it."""
    tell = Conductor._tell

    async def tell_and_be_told(self: Conductor, wait: ChildWait | None) -> Advanced:
        answer = await tell(self, wait)
        if answer.parked:
            self.job.lose(RuntimeError("there is no such lease"))
        return answer

    monkeypatch.setattr(Conductor, "_tell", tell_and_be_told)

    @app.workflow
    async def nap() -> str:
        await sleep(QUICK)
        return "rested"

    async with app.worker():
        run = await nap.start()
        assert await run.result(seconds(30)) == "rested"
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


async def test_what_a_workflow_leaves_running_is_stopped(app: App) -> None:
    stopped: list[str] = []

    @app.task
    async def slow() -> None:
        await asyncio.sleep(30)

    async def watched() -> None:
        try:
            await slow()
        finally:
            stopped.append("watched")

    @app.step
    async def broken() -> None:
        raise ValueError("no")

    @app.workflow
    async def careless() -> None:
        await gather(watched(), broken())

    async with app.worker(drain_grace=seconds(0)):
        run = await careless.start()
        with pytest.raises(RunFailed, match="no"):
            await run.result(seconds(30))
        async with asyncio.timeout(10):
            while True:
                if stopped:
                    break
                await asyncio.sleep(0.01)
