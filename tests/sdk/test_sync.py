"""The blocking facade: the same app without await."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator

import pytest

from flowfabric import App, Ask, BlocksLoop, Ctx, NotOpen, ResultTimeout, Run, RunCancelled, RunFailed, minutes, seconds
from flowfabric.sdk.asks.ask import OpenAsk
from flowfabric.sdk.runs.schedules import Schedules
from flowfabric.sdk.runs.search import Runs
from flowfabric.sdk.sync import BlockingApp, BlockingAsk, BlockingRun, BlockingRuns, BlockingSchedules


@pytest.fixture
def app(store_url: str) -> App:
    made = App(store_url)

    @made.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    @made.task
    async def stream(ctx: Ctx, n: int) -> None:
        for each in range(n):
            await ctx.emit(str(each))

    @made.task
    def broken() -> None:
        raise ValueError("no")

    @made.workflow
    async def agree() -> bool:
        return await Ask("agreed?", of={"ann", "bob"})

    made.schedule(add, add.bind(1), cron="0 3 1 1 *", name="nightly")
    return made


@pytest.fixture
def blocking(app: App) -> Iterator[BlockingApp]:
    with app.sync as opened, opened.entering(app.worker()):
        yield opened


def test_starting_and_waiting(app: App, blocking: BlockingApp) -> None:
    add = app.definitions["add"]
    run = blocking.start(add, 1, b=5)  # type: ignore[arg-type]
    assert isinstance(run, BlockingRun)
    assert run.result(timeout=minutes(1)) == 6
    assert run.status() == "completed"
    assert run.info().tags == {}
    assert [each.result() for each in blocking.start_many(add, [1, (2, 3)])] == [2, 5]  # type: ignore[arg-type]
    assert blocking.run(run.id, add).result() == 6  # type: ignore[arg-type]
    assert blocking.run(run.id) == run
    assert len({run, blocking.run(run.id)}) == 1
    assert run.id in repr(run)
    assert {each.id for each in blocking.runs(name="add")} >= {run.id}


def test_cancelling_and_terminating(app: App, blocking: BlockingApp) -> None:
    for end in ("cancel", "terminate"):
        run = blocking.start(app.definitions["agree"])  # type: ignore[arg-type]
        while run.status() != "suspended":
            threading.Event().wait(0.02)
        getattr(run, end)(f"we {end}")
        with pytest.raises(RunCancelled, match=f"we {end}"):
            run.result(timeout=minutes(1))
    assert blocking.runs(name="agree").terminate("too late") == []


def test_frames(app: App, blocking: BlockingApp) -> None:
    run = blocking.start(app.definitions["stream"], 5)  # type: ignore[arg-type]
    assert "".join(frame.text for frame in run.frames()) == "01234"
    assert run.output().text == "01234"
    assert [frame.text for frame in run.frames(children=True)] == list("01234")
    for frame in run.frames():
        assert frame.text == "0"
        break


def test_errors_come_through(app: App, blocking: BlockingApp) -> None:
    with pytest.raises(RunFailed, match="ValueError: no"):
        blocking.start(app.definitions["broken"]).result()  # type: ignore[arg-type]
    late = blocking.start(app.definitions["add"].using(delay=minutes(5)), 1)  # type: ignore[arg-type]
    with pytest.raises(ResultTimeout):
        late.result(timeout=seconds(0.05))
    late.cancel("enough")
    with pytest.raises(RunCancelled, match="enough"):
        late.result()


def test_many_threads_share_it(app: App, blocking: BlockingApp) -> None:
    results: list[int] = []

    def work(n: int) -> None:
        results.append(blocking.start(app.definitions["add"], n).result(timeout=minutes(1)))  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(1, 9))


def test_opening_and_closing(app: App) -> None:
    with pytest.raises(NotOpen, match=r"with app\.sync"):
        app.sync.run("x")
    assert app.sync is app.sync
    before = threading.active_count()
    with app.sync as blocking:
        run = blocking.start(app.definitions["add"], 1)  # type: ignore[arg-type]
        assert blocking.wait(app.engine.server_time_ms()) > 0
    assert not app.is_open
    assert threading.active_count() == before
    app.sync.close()
    with pytest.raises(NotOpen, match="was closed"):
        run.result()
    with app.sync as blocking:
        blocking.runs()


async def test_no_loop_is_stopped(app: App) -> None:
    with pytest.raises(BlocksLoop, match="await the async one"), app.sync:
        pass
    async with app:

        def elsewhere() -> None:
            with pytest.raises(NotOpen, match="already open on an event loop"):
                app.sync.open()

        await asyncio.to_thread(elsewhere)


def test_runs_are_read_while_they_are_looked_through(app: App, blocking: BlockingApp) -> None:
    add = app.definitions["add"]
    started = {each.id for each in blocking.start_many(add, range(3))}  # type: ignore[arg-type]
    runs = blocking.runs(name="add")
    first = next(iter(runs))
    assert isinstance(first, BlockingRun)
    assert first.id in started
    assert runs.count() == len(runs.all()) == 3
    assert {each.id for each in runs} == started
    for each in runs:
        each.result(timeout=minutes(1))
    assert runs.cancel("too late") == runs.replay(dry_run=True) == []


def test_nothing_is_read_before_somebody_looks(app: App, blocking: BlockingApp) -> None:
    runs = blocking.runs(name="add")
    run = blocking.start(app.definitions["add"], 1)  # type: ignore[arg-type]
    assert list(runs) == [run]


def test_answering_with_a_link(app: App, blocking: BlockingApp) -> None:
    run = blocking.start(app.definitions["agree"])  # type: ignore[arg-type]
    [ask] = blocking.asks(run, wait=minutes(1))
    blocking.answer(ask.link("ann"), True, identity="ann@example.org")
    assert run.result(timeout=minutes(1)) is True


def test_schedules(app: App, blocking: BlockingApp) -> None:
    schedules = blocking.schedules
    assert [each.schedule_id for each in schedules.list()] == ["nightly"], "the worker has stored it"
    schedules.pause("nightly")
    schedules.resume("nightly")
    assert schedules.change("nightly", priority=7).priority == schedules.get("nightly").priority == 7
    run = schedules.trigger("nightly")
    assert isinstance(run, BlockingRun)
    assert run.result(timeout=minutes(1)) == 2
    schedules.delete("nightly")
    schedules.store()
    assert schedules.get("nightly").priority == 0


@pytest.mark.parametrize(
    ("inner", "outer"),
    [(Run, BlockingRun), (OpenAsk, BlockingAsk), (Runs, BlockingRuns), (Schedules, BlockingSchedules)],
)
def test_nothing_is_missing(inner: type, outer: type) -> None:
    for name, method in vars(inner).items():
        if not name.startswith("_") and inspect.iscoroutinefunction(method):
            made = getattr(outer, name)
            assert not inspect.iscoroutinefunction(made)
            assert list(inspect.signature(made).parameters) == list(inspect.signature(method).parameters)
