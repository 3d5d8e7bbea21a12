"""Functions that start by the clock, as a program says and as operators change it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from flowfabric import (
    App,
    BadArguments,
    BadOptions,
    Cron,
    Debounce,
    Every,
    UnknownSchedule,
    days,
    hours,
    minutes,
    seconds,
)
from tests.contract.probe import START_MS, ManualClock

SOON = seconds(20)
HOUR = 3_600_000
SLOT = START_MS - START_MS % HOUR + HOUR


@pytest.fixture
def app(store_url: str, clock: ManualClock) -> App:
    """An app on the test's clock, not open."""
    return App(store_url, engine_options={"clock": clock})


async def test_a_function_by_cron(app: App) -> None:
    @app.cron("0  6 * * mon-fri", tz="Europe/Paris", overlap="replace", catch_up="all", catch_up_limit=7,
              jitter=seconds(3))  # fmt: skip
    async def nightly() -> str:
        return "done"

    assert app.definitions["nightly"] is nightly
    assert await nightly() == "done"
    async with app:
        await app.schedules.store()
        [found] = await app.schedules.list()
        assert (found.schedule_id, found.execution_kind, found.lane_id) == ("nightly", "nightly", "default")
        assert found.spec == Cron("0 6 * * mon-fri", "Europe/Paris")
        assert (found.overlap, found.catch_up, found.catch_up_limit, found.jitter_ms) == ("replace", "all", 7, 3_000)


async def test_workers_store_and_run_them(store_url: str) -> None:
    app = App(store_url)
    done = asyncio.Event()

    @app.every(seconds(1), overlap="queue")
    async def tick() -> None:
        done.set()

    async with app, app.worker():
        await asyncio.wait_for(done.wait(), 20)
        assert (await app.schedules.get("tick")).started_count >= 1


async def test_a_workflow_and_a_task_with_options(app: App) -> None:
    @app.every(minutes(5), anchor=datetime(2026, 1, 1, 0, 1, tzinfo=UTC), name="often")
    @app.workflow(priority=4)
    async def flow() -> int:
        return 1

    @app.cron("0 0 1 * *")
    @app.task(lane="slow", tags={"team": "docs"}, retry=3)
    def monthly(count: int = 5) -> int:
        return count

    async with app:
        await app.schedules.store()
        often, later = await app.schedules.get("often"), await app.schedules.get("monthly")
    assert often.spec == Every(300_000, int(datetime(2026, 1, 1, 0, 1, tzinfo=UTC).timestamp() * 1000))
    assert (often.execution_kind, often.priority) == ("flow", 4)
    assert (later.lane_id, later.tags, later.input_payload) == ("slow", {"user.team": "docs"}, b"{}")


async def test_fixed_arguments(app: App, clock: ManualClock) -> None:
    @app.task
    async def report(tenant: str, pages: int = 3) -> str:
        return f"{tenant} {pages}"

    app.schedule(report.using(priority=5), report.bind("acme", pages=7), every=hours(1), name="report for acme")
    app.schedule(report, ("other",), cron="0 * * * *", tz="Europe/Paris", name="report for other")
    async with app:
        await app.schedules.store()
        assert [each.schedule_id for each in await app.schedules.list()] == ["report for acme", "report for other"]
        clock.now_ms = SLOT
        assert await app.engine.run_timer("schedules") == 2
        first = (await app.schedules.get("report for acme")).last_execution_id
        second = (await app.schedules.get("report for other")).last_execution_id
        async with app.worker():
            assert await app.run(first or "", report).result(timeout=SOON) == "acme 7"
            assert await app.run(second or "", report).result(timeout=SOON) == "other 3"


async def test_operators(app: App, clock: ManualClock) -> None:
    @app.every(hours(1))
    async def tick() -> str:
        return "tock"

    async with app:
        await app.schedules.store()
        await app.schedules.pause("tick")
        await app.schedules.store()
        assert (await app.schedules.get("tick")).paused, "a worker that starts does not resume it"
        await app.schedules.resume("tick")
        changed = await app.schedules.change("tick", every=hours(2), overlap="queue", jitter=seconds(1), priority=7)
        assert (changed.spec, changed.overlap, changed.jitter_ms, changed.priority) == (
            Every(2 * HOUR), "queue", 1_000, 7,
        )  # fmt: skip
        again = await app.schedules.change("tick", catch_up="none")
        assert (again.jitter_ms, again.spec, again.catch_up) == (1_000, Every(2 * HOUR), "none")
        half_past = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)
        anchor_ms = int(half_past.timestamp() * 1_000)
        moved = await app.schedules.change("tick", anchor=half_past)
        assert moved.spec == Every(2 * HOUR, anchor_ms), "the step stays"
        moved = await app.schedules.change("tick", every=hours(3))
        assert moved.spec == Every(3 * HOUR, anchor_ms), "and so does the anchor"
        assert await app.schedules.change("tick", cron="0 6 * * *", tz="Europe/Paris")
        with pytest.raises(BadOptions, match="every="):
            await app.schedules.change("tick", anchor=half_past)
        found = await app.schedules.change("tick", tz="America/New_York")
        assert found.spec == Cron("0 6 * * *", "America/New_York")
        await app.schedules.store()
        assert await app.schedules.get("tick") == found, "a worker that starts does not change it back"
        run = await app.schedules.trigger("tick")
        assert run is not None
        assert await app.schedules.trigger("tick", overlap="skip") is None
        async with app.worker():
            assert await run.result(timeout=SOON) == "tock"
        await app.schedules.delete("tick")
        assert await app.schedules.list() == []


async def test_a_new_text_of_the_program(store_url: str, clock: ManualClock) -> None:
    """What the program says now holds, once it says something else than before."""

    def version(every: Any) -> App:
        app = App(store_url, engine_options={"clock": clock})

        @app.every(every)
        async def tick() -> None: ...

        return app

    one, two = version(hours(1)), version(hours(3))
    async with one:
        if store_url.startswith("memory"):
            two.attach(one.engine)
        else:
            await two.open()
        await one.schedules.store()
        await one.schedules.change("tick", every=hours(2))
        await one.schedules.pause("tick")
        await two.schedules.store()
        found = await one.schedules.get("tick")
        assert (found.spec, found.paused) == (Every(3 * HOUR), True)
        if not store_url.startswith("memory"):
            await two.close()


async def test_what_is_not_there(app: App) -> None:
    async with app:
        for verb in ("get", "pause", "resume", "trigger"):
            with pytest.raises(UnknownSchedule, match="nothing"):
                await getattr(app.schedules, verb)("nothing")
        with pytest.raises(UnknownSchedule):
            await app.schedules.change("nothing", priority=1)


def test_what_cannot_be() -> None:
    app = App("memory://")

    @app.task
    async def needs(tenant: str) -> None: ...

    for expression in ("x", "* * * *", "0 0 31 2 *"):
        with pytest.raises(BadOptions, match="cron"):
            app.cron(expression)
    with pytest.raises(BadOptions, match="time_zone"):
        app.cron("* * * * *", tz="Nowhere")
    with pytest.raises(BadOptions, match="overlap"):
        app.cron("* * * * *", overlap="maybe")
    with pytest.raises(BadOptions, match="catch_up"):
        app.every(days(1), catch_up="some")
    with pytest.raises(BadArguments, match="tenant"):
        app.every(days(1))(needs)
    with pytest.raises(BadOptions, match="either"):
        app.schedule(needs, ("a",), name="n")
    with pytest.raises(BadOptions, match="debounce"):
        app.schedule(needs.using(debounce=Debounce("k", seconds(1))), ("a",), every=days(1), name="n")
    with pytest.raises(BadOptions, match="anchor"):
        app.every(days(1), anchor=datetime(2026, 1, 1))  # noqa: DTZ001
    app.schedule(needs, ("a",), every=days(1), name="n")
    with pytest.raises(BadOptions, match="already"):
        app.schedule(needs, ("b",), every=days(1), name="n")


async def test_a_month_in_the_testing_kit() -> None:
    app = App("memory://")
    ran: list[int] = []

    @app.cron("0 6 * * *", tz="Europe/Paris")
    async def daily() -> None:
        ran.append(1)

    async with app.testing() as kit:
        begun = await app.schedules.get("daily")
        assert begun.next_at_ms is not None
        await kit.advance(days(30))
        await kit.idle()
        assert (await app.schedules.get("daily")).started_count == len(ran) == 30


@pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)
async def test_two_who_change_one_schedule(app: App) -> None:
    @app.every(hours(1))
    async def tick() -> None: ...

    async with app:
        await app.schedules.store()
        both = app.schedules.change("tick", priority=7), app.schedules.change("tick", every=hours(2))
        await asyncio.gather(*both)
        found = await app.schedules.get("tick")
        assert (found.priority, found.spec) == (7, Every(2 * HOUR, 0)), "neither undoes the other's change"


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_what_was_deleted_while_it_was_changed_stays_deleted(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.every(hours(1))
    async def tick() -> None: ...

    async with app:
        await app.schedules.store()
        put = app.engine.put_schedule

        async def late(*args: Any, **kwargs: Any) -> Any:
            await app.schedules.delete("tick")
            return await put(*args, **kwargs)

        monkeypatch.setattr(app.engine, "put_schedule", late)
        with pytest.raises(UnknownSchedule):
            await app.schedules.change("tick", priority=7)
        assert await app.schedules.list() == []
