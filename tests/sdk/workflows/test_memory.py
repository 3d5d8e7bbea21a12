"""A workflow that goes on finds the memory of its own calls, whatever the order in which they were made or ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    App,
    Ask,
    BadOptions,
    Limit,
    Retry,
    days,
    first,
    gather,
    minutes,
    now,
    random,
    seconds,
    sleep,
    uuid,
)
from flowfabric.sdk.errors import ENDED, RunFailed
from flowfabric.sdk.workflows import conductor
from tests.contract.probe import ManualClock


@pytest.fixture
def memory_app() -> App:
    """A closed app for ``testing()``."""
    return App("memory://")


async def test_branches_ask_for_themselves(memory_app: App) -> None:
    app = memory_app

    @app.workflow
    async def fetch(what: str, pause: float) -> None:
        await sleep(timedelta(seconds=pause))

    async def approve(what: str, pause: float) -> tuple[str, bool]:
        await fetch(what, pause)
        return what, await Ask("pay?", show=what)

    @app.workflow
    async def paying() -> dict[str, bool]:
        return dict(await gather(approve("rent", 400), approve("yacht", 5)))

    async with app.testing() as t:
        run = await paying.start()
        for _ in range(2):
            ask = await t.next()
            await ask.answer(ask.show == "rent")
        assert await run.result(minutes(30)) == {"rent": True, "yacht": False}
        names = {step.name for step in await run.steps()}
    assert names == {"approve>fetch", "approve#2>fetch", "approve>ask:pay?", "approve#2>ask:pay?"}


async def test_calls_are_recognised_by_their_arguments(memory_app: App) -> None:
    app = memory_app
    begun: Counter[str] = Counter()
    order = ["a", "b", "c"]

    @app.step
    async def load(name: str) -> str:
        begun[name] += 1
        return name.upper()

    @app.task
    async def send(name: str) -> str:
        begun[name] += 1
        return name * 2

    @app.workflow
    async def loading() -> list[str]:
        names = list(order)
        order.reverse()
        found = dict(zip(names, await gather(*(load(each) for each in names)), strict=True))
        sent = dict(zip(names, await gather(*(send(each) for each in names)), strict=True))
        await sleep(days(1))
        return [f"{found[each]}{sent[each]}" for each in sorted(names)]

    async with app.testing() as t:
        run = await loading.start()
        assert await run.result(days(2)) == ["Aaa", "Bbb", "Ccc"]
        assert t.attempts(loading) > 1
    assert begun == {"a": 2, "b": 2, "c": 2}


async def test_other_arguments_do_not_take_the_memory_of_these(memory_app: App) -> None:
    app = memory_app
    done: list[float] = []
    price = 1.5

    @app.step
    async def charge(amount: float) -> str:
        done.append(amount)
        return f"paid {amount}"

    @app.workflow
    async def buying() -> str:
        try:
            receipt = await charge(price)
        except Exception:
            return "not charged"
        await sleep(days(1))
        return receipt

    async with app.testing() as t:
        run = await buying.start()
        await t.idle()
        price = 2.5
        with pytest.raises(RunFailed, match=r"(?s)BadStep.*2\.5.*1\.5.*using\(key"):
            await run.result(days(2))
    assert done == [1.5]


@pytest.mark.parametrize("plain", ["a turn", "a timer", "a thread", "a future", "a lock"])
async def test_what_is_left_over_may_come_behind_a_plain_wait(memory_app: App, plain: str) -> None:
    app = memory_app
    begun: Counter[str] = Counter()
    stored, go_on = asyncio.Event(), asyncio.Event()

    @app.step
    async def load(name: str) -> str:
        begun[name] += 1
        if name == "slow" and begun[name] == 1:
            await stored.wait()
            # Its worker is dead.
            await go_on.wait()
        return name.upper()

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        match plain:
            case "a turn":
                await asyncio.sleep(0)
            case "a timer":
                await asyncio.sleep(0.01)
            case "a thread":
                await asyncio.to_thread(time.sleep, 0.01)
            case "a future":
                future = loop.create_future()
                loop.call_later(0.01, future.set_result, None)
                await future
            case _:
                lock = asyncio.Event()

                async def unlock() -> None:
                    await asyncio.sleep(0.01)
                    lock.set()

                task = asyncio.create_task(unlock())
                await lock.wait()
                await task

    @app.workflow
    async def loading() -> list[str]:
        first = asyncio.create_task(load("slow"))
        await wait()
        second = asyncio.create_task(load("quick"))
        stored.set()
        return [await first, await second]

    async with app.testing() as t:
        t.crash(load, after="step")
        run = await loading.start()
        assert await run.result(days(1)) == ["SLOW", "QUICK"]
    assert begun == {"slow": 2, "quick": 1}


async def test_what_does_not_fit_is_refused_although_somebody_waits(
    memory_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "PLAIN_WAIT_S", 0.1)
    app = memory_app
    prices = [1, 2]

    @app.step
    async def charge(amount: int) -> int:
        return amount

    async def listen() -> None:
        await asyncio.get_running_loop().create_future()

    @app.workflow
    async def buying() -> int:
        task = asyncio.create_task(listen())
        paid = await charge(prices.pop(0))
        await sleep(days(1))
        task.cancel()
        return paid

    async with app.testing():
        run = await buying.start()
        with pytest.raises(RunFailed, match=r"(?s)BadStep.*2.*1.*using\(key"):
            await run.result(days(2))


async def test_a_later_trial_calls_what_it_has_not_called(memory_app: App) -> None:
    app = memory_app
    sent: list[str] = []

    @app.step
    async def send(text: str) -> str:
        sent.append(text)
        return text

    @app.workflow(retry=Retry(1, first=seconds(1)))
    async def selling() -> str:
        if not sent:
            await send("charge is late")
            raise ValueError("late")
        return await send("shipped")

    async with app.testing():
        run = await selling.start()
        assert await run.result(minutes(5)) == "shipped"
    assert sent == ["charge is late", "shipped"]


async def test_the_winner_is_known_by_its_name(memory_app: App) -> None:
    app = memory_app
    order = ["slow", "quick"]

    @app.workflow
    async def model(name: str) -> str:
        await sleep(days(30) if name == "slow" else seconds(1))
        return name

    @app.workflow
    async def racing() -> str:
        names = list(order)
        order.reverse()
        won = await first(*(model(each) for each in names))
        await sleep(days(1))
        return won

    async with app.testing():
        run = await racing.start()
        assert await run.result(days(60)) == "quick"


async def test_losers_do_nothing_after_the_race(memory_app: App) -> None:
    app = memory_app
    did: list[str] = []

    @app.step
    async def note(what: str) -> None:
        did.append(what)

    @app.workflow
    async def racing() -> list[str]:
        async def slow(name: str) -> str:
            await note(f"{name} begins")
            await sleep(days(1))
            await note(f"{name} ends")
            return name

        async def quick() -> str:
            await sleep(seconds(5))
            return "quick"

        task = asyncio.create_task(slow("task"))
        found = await first(task, gather(slow("gathered")), quick(), slow("helper"))
        await sleep(days(3))
        await note("the end")
        return [str(found)]

    async with app.testing() as t:
        run = await racing.start()
        assert await run.result(days(30)) == ["quick"]
        assert t.attempts(racing) > 2
    assert sorted(did) == ["gathered begins", "helper begins", "task begins", "the end"]


@pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("answered", ["in time", "too late"])
async def test_an_end_in_time_wins_against_a_sleep_that_was_noticed_late(
    still_app: App, clock: ManualClock, answered: str
) -> None:
    app = still_app

    @app.workflow(lane="late")
    async def waiting() -> str:
        async def patience() -> str:
            await sleep(minutes(10))
            return "too late"

        async def asked() -> str:
            return "yes" if await Ask("go?") else "no"

        return await first(patience(), asked())

    async with app.worker(lanes=["default", "late"]):
        run = await waiting.start()
        (ask,) = await app.asks(run, wait=seconds(30))
    clock.advance(540_000 if answered == "in time" else 660_000)
    await ask.answer(True)
    async with app.worker(lanes=["default"]):
        while True:
            (end,) = await app.engine.read_ends([ask.id])
            if end.ended_at_ms is not None:
                break
            await asyncio.sleep(0.01)
    clock.advance(540_000)
    async with app.worker(lanes=["default", "late"]):
        assert await run.result(seconds(30)) == ("yes" if answered == "in time" else "too late")


@pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("answered", ["in time", "too late"])
@pytest.mark.parametrize("lanes", [["late"], ["default", "late"]], ids=["the workflow's", "both"])
async def test_an_answer_in_time_wins_although_no_worker_was_there(
    still_app: App, clock: ManualClock, answered: str, lanes: list[str]
) -> None:
    """Whichever lane has workers first."""
    app = still_app

    @app.workflow(lane="late")
    async def waiting() -> str:
        async def patience() -> str:
            await sleep(minutes(10))
            return "too late"

        async def asked() -> str:
            return "yes" if await Ask("go?") else "no"

        found = await first(patience(), asked())
        await sleep(minutes(1))
        return found

    async def turns(count: int) -> None:
        for _ in range(count):
            await app.engine.run_due()
            await asyncio.sleep(0.005)
            clock.advance(5_000)

    async with app.worker(lanes=["default", "late"]):
        run = await waiting.start()
        (ask,) = await app.asks(run, wait=seconds(30))
    clock.advance(660_000 if answered == "too late" else 540_000)
    await ask.answer(True)
    clock.advance(540_000)
    async with app.worker(lanes=lanes):
        await turns(20)
    async with app.worker(lanes=["default", "late"]), asyncio.timeout(30):
        while await run.status() not in ENDED:
            await turns(1)
        assert await run.result(seconds(30)) == ("yes" if answered == "in time" else "too late")


async def test_values_that_differ_each_time_do_not(memory_app: App) -> None:
    app = memory_app
    seen: list[Any] = []

    @app.workflow
    async def drawing() -> None:
        seen.append((await now(), await uuid(), await random()))
        await sleep(days(1))

    async with app.testing():
        await (await drawing.start()).result(days(2))
    assert len(seen) > 1
    assert len(set(seen)) == 1
    assert 0 <= await random() < 1
    assert await uuid() != await uuid()
    assert (await now()).tzinfo is not None


async def test_a_question_that_nobody_answered_is_asked_again(memory_app: App) -> None:
    app = memory_app

    @app.workflow(retry=Retry(1, first=seconds(1)))
    async def asking() -> bool:
        return await Ask("go?", within=minutes(5))

    async with app.testing() as t:
        run = await asking.start()
        await t.next()
        again = await t.next()
        await again.answer(True)
        assert await run.result(days(1)) is True


async def test_a_call_that_was_cancelled_is_made_again_in_a_later_trial(memory_app: App) -> None:
    app = memory_app
    trials: list[str] = []

    @app.workflow
    async def slow() -> str:
        await sleep(minutes(5))
        return "done"

    @app.workflow(retry=Retry(1, first=seconds(1)))
    async def impatient() -> str:
        trials.append("trial")
        task = asyncio.create_task(slow())
        if len(trials) <= 2:
            await sleep(seconds(30))
            task.cancel()
            await gather(task, return_exceptions=True)
            raise ValueError("too slow")
        return await task

    async with app.testing():
        run = await impatient.start()
        assert await run.result(days(1)) == "done"


async def test_a_run_that_is_started_in_the_body_is_started_once(memory_app: App) -> None:
    app = memory_app
    ran: list[str] = []

    @app.task
    async def mail(to: str) -> str:
        ran.append(to)
        return to

    @app.workflow(retry=Retry(1, first=seconds(1)))
    async def mailing() -> list[str]:
        both = await gather(mail.start("ann"), mail.start("bob"), mail.using(id="carol").start("carol"))
        await sleep(days(1))
        if len(ran) == 3:
            ran.append("retry")
            raise ValueError("once more")
        return [each.id for each in both]

    async with app.testing() as t:
        run = await mailing.start()
        found = await run.result(days(3))
        assert len(set(found)) == 3
        await t.idle()
    assert sorted(ran) == ["ann", "bob", "carol", "retry"]


async def test_a_body_does_not_start_runs_in_a_transaction(memory_app: App) -> None:
    app = memory_app

    @app.task
    async def mail(to: str) -> None: ...

    @app.workflow
    async def mailing() -> None:
        await mail.using(tx=object()).start("ann")

    async with app.testing():
        run = await mailing.start()
        with pytest.raises(RunFailed, match="start such a run in a step"):
            await run.result(days(1))


async def test_what_is_nested_deeply_is_not_taken_to_wait(memory_app: App) -> None:
    app = memory_app
    did: list[str] = []

    @app.step
    async def note(what: str) -> str:
        did.append(what)
        return what

    async def deep(levels: int) -> str:
        if levels == 0:
            return await note("deep")
        (found,) = await gather(deep(levels - 1))
        return found

    async def both() -> None:
        await deep(40)
        await note("after")

    @app.workflow
    async def nesting() -> None:
        await gather(both(), sleep(days(30)))

    async with app.testing() as t:
        run = await nesting.start()
        await t.idle()
        assert did == ["deep", "after"]
        await run.result(days(40))


async def test_a_call_that_nobody_waits_for_is_started(memory_app: App) -> None:
    app = memory_app
    ran: list[str] = []

    @app.task(limits=[Limit(5)])
    async def mail(to: str) -> None:
        ran.append(to)

    tasks = set()

    @app.workflow
    async def mailing() -> None:
        tasks.add(asyncio.create_task(mail("ann")))
        await asyncio.sleep(0)

    async with app.testing(second_pass=False) as t:
        await (await mailing.start()).result(days(1))
        await t.until(lambda: _given(ran), "the mail")


async def _given(found: list[str]) -> list[str] | None:
    return found or None


async def test_what_a_child_gives_is_noticed_while_a_step_runs(
    memory_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "LOOK_AGAIN_MS", 10)
    app = memory_app
    noticed = asyncio.Event()

    @app.task
    async def quick() -> str:
        return "quick"

    @app.step
    async def slow() -> str:
        await noticed.wait()
        return "slow"

    async def notice() -> str:
        found = await quick()
        noticed.set()
        return found

    @app.workflow
    async def both() -> list[str]:
        return list(await gather(slow(), notice()))

    async with app, app.worker():
        assert await (await both.start()).result(seconds(60)) == ["slow", "quick"]


@pytest.mark.parametrize("name", ["a#2", "a!0", "a~1", "a>b", "a[b]", "sleep", "first", "ask:me", "x" * 201, "a\n"])
def test_names_that_records_could_be_mistaken_for(memory_app: App, name: str) -> None:
    with pytest.raises(BadOptions, match="name"):
        memory_app.step(name=name)(lambda: None)
    with pytest.raises(BadOptions, match="name"):
        memory_app.task(name=name)(lambda: None)


def test_a_step_and_a_task_have_different_names(memory_app: App) -> None:
    memory_app.step(name="send")(lambda: None)
    with pytest.raises(BadOptions, match="already"):
        memory_app.task(name="send")(lambda: None)
