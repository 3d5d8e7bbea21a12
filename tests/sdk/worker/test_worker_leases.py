"""Leases of running attempts: kept while the loop is blocked, noticed when they are gone, given back by a worker that
stops."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.model.errors import Contention, EngineError, Transport, TransportKind
from flowfabric.model.operations.executions import ClaimPolicy
from flowfabric.model.states import PublicState
from flowfabric.sdk.app import App
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import RunCancelled
from flowfabric.sdk.options import Retry
from flowfabric.sdk.worker import Worker, program, renewal as renewal_module, worker as worker_module
from tests.contract.probe import ManualClock, shared_stores_only

SOON = seconds(20)
#: Short enough to run out in a test, and long enough to be renewed on a busy machine.
SHORT = timedelta(milliseconds=1_800)
LONG = timedelta(hours=1)
LEASE = timedelta(minutes=1)
LEASE_MS = 60_000
#: After that it is to be renewed, and far from over.
DUE_MS = 24_000
one_store = pytest.mark.parametrize("store_url", ["memory"], indirect=True)


@pytest.fixture
def app(store_url: str) -> App:
    return App(store_url)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def counts(app: App, run: Any) -> tuple[str | None, ...]:
    """How often the run was taken from a dead worker, tried again, and begun."""
    names = ["lease_reclaim_count", "retry_count", "total_attempt_count"]
    partition = int(run.id.partition("}")[0].removeprefix("{fp:"))
    return tuple((await app.engine.read_exec_core_fields(partition, run.id, names)).values())


class Hours(ManualClock):
    """The clock of engines and of a worker's renewals alike: leases grow older only when a test says so."""

    def monotonic(self) -> float:
        return self.now_ms / 1_000


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    made = Hours()
    for each in (renewal_module, worker_module):
        monkeypatch.setattr(each, "time", made)
    # Looks are still made in real time: often.
    monkeypatch.setattr(renewal_module, "LOST_LOOK_S", 0.02)
    return made


@pytest.fixture
def aging_app(store_url: str, hours: Hours) -> App:
    """An app whose leases grow older by that clock."""
    return App(store_url, engine_options={"clock": hours})


class Rival(threading.Thread):
    """Somebody else with timers who takes the run as soon as its lease is over."""

    def __init__(self, url: str, clock: Hours) -> None:
        super().__init__(daemon=True)
        self._url, self._clock = url, clock
        self.looks = 0
        self.over = threading.Event()
        self.found: Any = None

    def run(self) -> None:
        asyncio.run(self._look())

    async def _look(self) -> None:
        async with await Engine.open(self._url, single_node=True, timers=True, clock=self._clock) as engine:
            policy = ClaimPolicy("rival", "rival-1", 1_000, timedelta(milliseconds=20))
            while self.found is None and not self.over.is_set():
                self.found = await engine.claim("default", (), policy)
                self.looks += 1
            if self.found is not None:
                await engine.complete(self.found, b'"the rival was here"')


def block_until(condition: Callable[[], bool]) -> None:
    """Keep this thread, and the loop on it, from all else."""
    while not condition():
        time.sleep(0.01)


async def _blocked(app: App, rival: Rival, wait: Callable[[], None]) -> Any:
    @app.task
    async def block() -> str:
        rival.start()
        wait()
        return "kept"

    try:
        async with app, app.worker(lease_ttl=LEASE):
            run = await block.start()
            return await run.result(timeout=LONG)
    finally:
        rival.over.set()
        await asyncio.to_thread(rival.join)


@shared_stores_only
async def test_a_blocked_event_loop_loses_no_lease(
    aging_app: App, store_url: str, hours: Hours, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival, renewed = Rival(store_url, hours), 0
    renew = Engine.renew

    async def counted(engine: Engine, handle: Any) -> Any:
        nonlocal renewed
        answer = await renew(engine, handle)
        renewed += 1
        return answer

    def wait() -> None:
        for number in range(1, 6):
            hours.advance(DUE_MS)
            block_until(lambda number=number: renewed >= number)  # type: ignore[misc]
            looks = rival.looks
            block_until(lambda looks=looks: rival.looks > looks + 1)  # type: ignore[misc]

    monkeypatch.setattr(Engine, "renew", counted)
    assert await _blocked(aging_app, rival, wait) == "kept"
    assert rival.found is None


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_without_a_thread_it_would(
    aging_app: App, store_url: str, hours: Hours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would see if renewal depended on the loop."""
    rival = Rival(store_url, hours)

    def wait() -> None:
        hours.advance(2 * LEASE_MS)
        rival.join()

    monkeypatch.setattr(worker_module, "_can_be_shared", lambda url, engine: False)
    assert await _blocked(aging_app, rival, wait) == "the rival was here"
    assert rival.found is not None


async def test_a_lease_that_is_taken_away_stops_the_handler(app: App) -> None:
    log: list[Any] = []
    began = asyncio.Event()

    @app.task
    async def hold(ctx: Ctx = injected) -> str:
        if log:
            return "second"
        log.append("began")
        began.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            log.append(ctx.lease_healthy)
            try:
                await ctx.progress(50)
            except EngineError as error:
                log.append(type(error))
            raise
        return "never"

    async with app, app.worker(lease_ttl=LONG):
        run = await hold.start()
        await began.wait()
        await app.engine.revoke_lease(execution_id=run.id)
        assert await run.result(timeout=SOON) == "second"
        await until(lambda: len(log) == 3)
    assert log == ["began", False, Contention]


async def test_cancelling_a_run_stops_its_handler(app: App) -> None:
    stopped, began = asyncio.Event(), asyncio.Event()

    @app.task(retry=Retry(5))
    async def hold() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    # Long before the lease would have to be renewed.
    async with app, app.worker(lease_ttl=LONG):
        run = await hold.start()
        await began.wait()
        await run.cancel("enough")
        async with asyncio.timeout(20):
            await stopped.wait()
        with pytest.raises(RunCancelled):
            await run.result(timeout=SOON)


@one_store
async def test_renewals_are_repeated_while_the_lease_lives(
    aging_app: App, hours: Hours, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, tried, renewed = aging_app, 0, 0

    @app.task
    async def take_time() -> str:
        for number in range(1, 5):
            hours.advance(DUE_MS)
            await until(lambda number=number: renewed >= number)  # type: ignore[misc]
        return "done"

    async with app:
        renew = app.engine.renew

        async def flaky(handle: Any) -> Any:
            nonlocal tried, renewed
            tried += 1
            if tried % 2:
                raise Transport("memory", TransportKind.TRANSPORT, "on purpose")
            answer = await renew(handle)
            renewed += 1
            return answer

        monkeypatch.setattr(app.engine, "renew", flaky)
        async with app.worker(lease_ttl=LEASE):
            run = await take_time.start()
            assert await run.result(timeout=LONG) == "done"
            assert await counts(app, run) == ("0", "0", "1")
    assert tried == 8


@one_store
async def test_a_handler_stops_when_its_lease_cannot_be_renewed_in_time(
    aging_app: App, hours: Hours, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = aging_app
    healthy: list[bool] = []
    began: list[int] = []

    @app.task
    async def hold(ctx: Ctx = injected) -> str:
        began.append(ctx.attempt)
        if len(began) > 1:
            return "second"
        try:
            await asyncio.sleep(3600)
        finally:
            healthy.append(ctx.lease_healthy)
        return "never"

    async def unreachable(handle: Any) -> Any:
        raise Transport("memory", TransportKind.TRANSPORT, "on purpose")

    async with app:
        monkeypatch.setattr(app.engine, "renew", unreachable)
        async with app.worker(lease_ttl=LEASE):
            run = await hold.start()
            await until(lambda: bool(began))
            hours.advance(LEASE_MS + 1)
            assert await run.result(timeout=LONG) == "second"
            assert await counts(app, run) == ("1", "0", "1")
            await until(lambda: healthy == [False])


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_renewal_without_an_engine_of_its_own_uses_the_workers(
    aging_app: App, hours: Hours, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, renewed = aging_app, asyncio.Event()

    @app.task
    async def hold() -> str:
        hours.advance(DUE_MS)
        await renewed.wait()
        return "kept"

    async def refused() -> None:
        raise ValueError("not even an error of the store")

    async def renew(handle: Any) -> Any:
        answer = await before(handle)
        renewed.set()
        return answer

    async with app:
        before = app.engine.renew
        monkeypatch.setattr(app.engine, "renew", renew)
        monkeypatch.setattr(app, "open_engine", refused)
        async with app.worker(lease_ttl=LEASE):
            run = await hold.start()
            assert await run.result(timeout=LONG) == "kept"
        assert await counts(app, run) == ("0", "0", "1")


# -- stopping --------------------------------------------------------------------------------------------------------


async def test_a_worker_that_stops_waits_for_what_it_runs(app: App) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> str:
        began.set()
        await go.wait()
        return "finished"

    async with app:
        worker = app.worker(concurrency=1)
        working = asyncio.ensure_future(worker.run())
        runs = [await hold.start(), await hold.start()]
        await began.wait()
        worker.stop()
        await asyncio.sleep(0.05)
        assert not working.done()
        go.set()
        await working
        # Which of two that came within a millisecond is first, nobody says.
        assert {await run.status() for run in runs} == {PublicState.COMPLETED, PublicState.WAITING}


async def test_what_does_not_finish_within_the_grace_goes_on_elsewhere(app: App) -> None:
    began = asyncio.Event()
    cancelled: list[bool] = []

    @app.task
    async def hold(ctx: Ctx = injected) -> str:
        if cancelled:
            return f"attempt {ctx.attempt}"
        began.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(ctx.lease_healthy)
            await ctx.emit("last words")
            await ctx.flush()
            raise
        return "never"

    async with app:
        async with app.worker(drain_grace=timedelta(milliseconds=50)):
            run = await hold.start()
            await began.wait()
        assert cancelled == [True]
        assert await run.status() is PublicState.WAITING
        async with app.worker():
            assert await run.result(timeout=SOON) == "attempt 1"
        assert await counts(app, run) == ("0", "0", "1")


async def test_work_taken_ahead_goes_back_untouched(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module.Worker, "_ahead", lambda self: 4)
    began = asyncio.Event()

    @app.task
    async def hold() -> None:
        began.set()
        await asyncio.sleep(3600)

    async with app:
        worker = app.worker(concurrency=1, drain_grace=timedelta(0))
        async with worker:
            runs = await hold.start_many([()] * 5)
            await began.wait()
            await until(lambda: len(worker._queue) == 4)
            for run in runs:
                assert await run.status() is PublicState.ACTIVE
        for run in runs:
            assert await run.status() is PublicState.WAITING
            assert await counts(app, run) == ("0", "0", "1")


async def test_prefetched_work_is_renewed_while_it_waits(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module.Worker, "_ahead", lambda self: 4)

    @app.task
    async def take_time() -> None:
        await asyncio.sleep(SHORT.total_seconds() / 2)

    async with app, app.worker(concurrency=1, lease_ttl=SHORT):
        runs = await take_time.start_many([()] * 4)
        for run in runs:
            await run.result(timeout=SOON)
            assert await counts(app, run) == ("0", "0", "1")


@one_store
async def test_handlers_that_do_not_stop_are_left_behind(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "UNWIND_S", 0.1)
    go, began = threading.Event(), [threading.Event(), threading.Event()]

    @app.task
    def in_thread() -> None:
        began[0].set()
        go.wait()

    @app.task
    async def stubborn() -> None:
        began[1].set()
        while not go.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    async with app:
        async with app.worker(drain_grace=timedelta(0)):
            runs = [await in_thread.start(), await stubborn.start()]
            for each in began:
                await asyncio.to_thread(each.wait)
        for run in runs:
            assert await run.status() is PublicState.WAITING
        go.set()
        await asyncio.sleep(0.1)
        for run in runs:
            assert await run.status() is PublicState.WAITING


@one_store
@pytest.mark.parametrize("as_block", [False, True])
async def test_a_cancel_while_it_drains_hastens_it(app: App, as_block: bool) -> None:
    began = asyncio.Event()

    @app.task
    async def hold() -> None:
        began.set()
        await asyncio.sleep(3600)

    async def serve(worker: Worker) -> None:
        if not as_block:
            await worker.run()
            return
        async with worker:
            await began.wait()

    async with app:
        worker = app.worker(drain_grace=LONG)
        serving = asyncio.create_task(serve(worker))
        run = await hold.start()
        await began.wait()
        worker.stop()
        await until(lambda: worker._claimer is not None and worker._claimer.done())
        for _ in range(3):  # a second and a third one change nothing
            serving.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert worker.running == 0
        assert await run.status() is PublicState.WAITING
        assert await counts(app, run) == ("0", "0", "1")


@one_store
async def test_a_claim_that_is_answered_as_the_worker_is_cancelled_goes_back(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    @app.task
    async def work() -> None:
        raise AssertionError("nobody is there to run it")

    async with app:
        worker, real = app.worker(drain_grace=LONG), app.engine.claim_many

        async def claim(*args: Any, **kwargs: Any) -> Any:
            handles = await real(*args, **kwargs)
            if handles:
                # The answer is there, and the worker has not seen it.
                assert worker._claimer is not None
                asyncio.get_running_loop().call_soon(worker._claimer.cancel)
                answered.set()
            return handles

        monkeypatch.setattr(app.engine, "claim_many", claim)
        main = asyncio.create_task(worker.run())
        run = await work.start()
        await answered.wait()
        await asyncio.wait((main,))
        assert await run.status() is PublicState.WAITING
        assert await counts(app, run) == ("0", "0", "1")


@one_store
async def test_attempts_that_are_cancelled_with_the_program_go_back(app: App) -> None:
    """As ``asyncio.run`` ends: every task is cancelled, whichever hears of it first."""
    began, held = asyncio.Event(), list[asyncio.Task[Any]]()

    @app.task
    async def hold() -> None:
        task = asyncio.current_task()
        assert task is not None
        held.append(task)
        began.set()
        await asyncio.sleep(3600)

    async with app:
        worker = app.worker(drain_grace=LONG)
        serving = asyncio.create_task(worker.run())
        run = await hold.start()
        await began.wait()
        assert worker._main is not None
        for task in (*held, worker._main, serving):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert await run.status() is PublicState.WAITING
        assert await counts(app, run) == ("0", "0", "1")


@one_store
async def test_a_signal_while_the_store_is_opened_ends_the_worker(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = asyncio.Event()

    async def away() -> None:
        opening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(app, "open_engine", away)
    working = asyncio.create_task(program._run_until_signalled(app.worker(), None))
    await opening.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(20):
        await working
    assert not app.is_open


async def test_an_idle_worker_stops_at_once(app: App) -> None:
    async with app:
        worker = app.worker()
        async with worker:
            await asyncio.sleep(0.05)
        run = asyncio.ensure_future(app.worker().run())
        await asyncio.sleep(0.05)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
