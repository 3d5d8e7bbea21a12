"""Workers run what is started: how attempts end, how often they are tried, and what a handler may do."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from flowfabric.core.leases import decline
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.model.reads.explain import Gate
from flowfabric.model.states import PublicState
from flowfabric.sdk.app import App
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import Depends, injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import BadOptions, RunFailed
from flowfabric.sdk.options import Retry

SOON = seconds(20)
AT_ONCE = Retry(3, first=timedelta(0), jitter=False)


@pytest.fixture
def app(store_url: str) -> App:
    return App(store_url)


async def _failure(run: Any) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        await run.result(timeout=SOON)
    return caught.value


# -- ends ------------------------------------------------------------------------------------------------------------


@dataclass
class Point:
    x: int
    y: int


async def test_apps_of_different_namespaces_share_a_lane(store_url: str, tmp_path: Path) -> None:
    """Each worker takes what its own app can run."""
    if store_url.startswith("memory:"):
        store_url = f"sqlite:///{tmp_path}/shared.db"
    apps = [App(store_url, namespace=name) for name in ("one", "two")]
    tasks = []
    for app in apps:

        @app.task(name=f"only_{app.namespace}")
        async def named(number: int, own: str = app.namespace) -> str:
            return f"{own} {number}"

        tasks.append(named)
    async with apps[0], apps[1]:
        runs = [(app.namespace, await task.start(n)) for n in range(5) for app, task in zip(apps, tasks, strict=True)]
        async with apps[0].worker(), apps[1].worker():
            for name, run in runs:
                assert (await run.result(timeout=SOON)).startswith(name)


async def test_results_of_all_kinds_of_functions(app: App) -> None:
    @app.task
    async def on_the_loop(point: Point) -> Point:
        return Point(point.y, point.x)

    @app.task
    def in_a_thread(point: Point) -> str:
        return f"{threading.current_thread().name} {point.x}"

    @app.task
    async def nothing() -> None:
        pass

    async with app, app.worker(name="w"):
        turned, named, none = (
            await on_the_loop.start(Point(1, 2)),
            await in_a_thread.start(Point(3, 4)),
            await nothing.start(),
        )
        assert await turned.result(timeout=SOON) == Point(2, 1)
        assert (await named.result(timeout=SOON)).startswith("flowfabric-w-")
        assert await none.result(timeout=SOON) is None  # type: ignore[func-returns-value]


async def test_many_runs_share_a_worker(app: App) -> None:
    running = most = 0

    @app.task
    async def double(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 2 * n

    async with app, app.worker(concurrency=7):
        runs = await double.start_many(range(200))
        assert [await run.result(timeout=SOON) for run in runs] == [2 * n for n in range(200)]
    assert 1 < most <= 7


async def test_an_error_is_tried_again_as_the_policy_says(app: App) -> None:
    tries = []

    @app.task(retry=AT_ONCE)
    async def third_time(ctx: Ctx = injected) -> int:
        tries.append(ctx.attempt)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return ctx.attempt

    async with app, app.worker():
        assert await (await third_time.start()).result(timeout=SOON) == 3
    assert tries == [1, 2, 3]


async def test_the_last_error_is_kept(app: App) -> None:
    @app.task(retry=Retry(1, first=timedelta(0), jitter=False))
    def always() -> None:
        raise KeyError("\x00 odd \ud800")

    async with app, app.worker():
        error = await _failure(await always.start())
    assert error.error_type == "KeyError"
    assert "in always" in error.traceback
    assert "odd" in error.reason


async def test_errors_to_give_up_on_end_the_run_at_once(app: App) -> None:
    tries = 0

    @app.task(retry=Retry(5, first=timedelta(0), give_up_on=(ValueError,)))
    async def hopeless() -> None:
        nonlocal tries
        tries += 1
        raise UnicodeError("a kind of ValueError")

    async with app, app.worker():
        error = await _failure(await hopeless.start())
    assert tries == 1
    assert error.error_type == "UnicodeError"


async def test_arguments_that_do_not_fit_end_the_run_at_once(app: App) -> None:
    called = []

    @app.task(retry=AT_ONCE)
    async def picky(n: int) -> None:
        called.append(n)

    async with app, app.worker():
        answer = await app.engine.create_execution(
            namespace=app.namespace, execution_kind="picky", input_payload=b'{"n": "three"}'
        )
        error = await _failure(app.run(answer.execution_id))
    assert not called
    assert error.category == "bad_payload"


async def test_a_kind_that_nobody_knows_ends_with_a_message_that_helps(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decline, "DECLINED_MS", 0)

    @app.task
    async def known() -> None: ...

    async with app, app.worker(name="w7"):
        answer = await app.engine.create_execution(namespace=app.namespace, execution_kind="unheard-of")
        error = await _failure(app.run(answer.execution_id))
        builtin = await app.engine.create_execution(namespace=app.namespace, execution_kind="$nothing")
        await _failure(app.run(builtin.execution_id))
    for part in ("w7", "unheard-of", "known", "Import", "No worker that was asked knows it: w7-"):
        assert part in error.reason


async def _declined(app: App, run: str) -> bool:
    told = await app.engine.explain(run)
    return told.gate is Gate.DELAYED and "old-" in told.sentence


@pytest.mark.parametrize("made", ["a task", "an argument", "a workflow's argument"])
@pytest.mark.parametrize("store_url", ["sqlite", "remote"], indirect=True)
async def test_workers_of_two_versions_serve_a_lane(store_url: str, made: str) -> None:
    """What the old version does not know waits for the new one, and is tried once."""
    old, new = App(store_url), App(store_url)
    tries: list[int] = []

    if made != "a task":

        @(old.task if made == "an argument" else old.workflow)(name="made")
        async def before(n: int) -> None:
            raise AssertionError

    @(new.workflow if made == "a workflow's argument" else new.task)(name="made")
    async def after(n: int, more: int = 0, ctx: Ctx = injected) -> int:
        tries.append(ctx.attempt)
        return n + more

    async with new, old:
        run = await after.start(1, more=2)
        async with old.worker(name="old"):
            while not await _declined(new, run.id):  # noqa: ASYNC110 (nothing is announced when a worker declines)
                await asyncio.sleep(0.01)
        async with new.worker(name="new"):
            assert await run.result(timeout=SOON) == 3
    assert tries == [1]


async def test_kinds_of_the_sdks_own(app: App) -> None:
    async def shout(job: Any) -> None:
        await job.complete(job.context.input_payload.upper())

    app.builtin_kinds["$shout"] = shout
    async with app, app.worker():
        answer = await app.engine.create_execution(
            namespace=app.namespace, execution_kind="$shout", input_payload=b'"hey"'
        )
        assert await app.run(answer.execution_id).result(timeout=SOON) == "HEY"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_nothing_a_handler_raises_ends_the_worker(app: App, error: BaseException) -> None:
    @app.task
    async def on_the_loop() -> None:
        raise error

    @app.task
    def in_a_thread() -> None:
        raise error

    @app.task
    async def fine() -> int:
        return 1

    async with app, app.worker():
        for task in (on_the_loop, in_a_thread):
            failed = await _failure(await task.start())
            assert failed.error_type == type(error).__name__
        assert await (await fine.start()).result(timeout=SOON) == 1


async def test_a_result_that_cannot_be_stored_ends_the_run(app: App) -> None:
    @app.task(retry=AT_ONCE)
    async def too_large() -> str:
        return "x" * 1_100_000

    @app.task(retry=AT_ONCE)
    async def odd() -> int:
        return "text"  # type: ignore[return-value]

    async with app, app.worker():
        for task in (too_large, odd):
            assert (await _failure(await task.start())).category == "bad_result"


# -- time ------------------------------------------------------------------------------------------------------------


async def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again(app: App) -> None:
    cancelled = []

    @app.task(timeout=timedelta(milliseconds=50), retry=Retry(1, first=timedelta(0), jitter=False))
    async def slow(ctx: Ctx = injected) -> str:
        if ctx.attempt > 1:
            return "in time"
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(ctx.attempt)
            raise
        return "never"

    @app.task(timeout=timedelta(milliseconds=50))
    async def slow_once() -> None:
        await asyncio.sleep(3600)

    async with app, app.worker():
        assert await (await slow.start()).result(timeout=SOON) == "in time"
        error = await _failure(await slow_once.start())
    assert cancelled == [1]
    assert error.category == "timeout"
    assert "0:00:00.05" in error.reason


async def test_a_thread_that_nobody_waits_for_still_takes_a_slot(app: App) -> None:
    go, began = threading.Event(), threading.Event()

    @app.task(timeout=timedelta(milliseconds=50))
    def stuck() -> None:
        began.set()
        go.wait()

    @app.task
    def quick() -> int:
        return 1

    async with app, app.worker(concurrency=1) as worker:
        assert (await _failure(await stuck.start())).category == "timeout"
        run = await quick.start()
        await asyncio.sleep(0.05)
        assert worker.running == 0
        assert await run.status() is PublicState.WAITING
        go.set()
        assert await run.result(timeout=SOON) == 1


# -- what handlers get -----------------------------------------------------------------------------------------------


async def test_dependencies_of_the_worker_are_opened_once(app: App) -> None:
    log: list[str] = []

    async def client() -> AsyncIterator[str]:
        log.append("opened")
        yield "client"
        log.append("closed")

    @app.task
    async def use(http: Annotated[str, Depends(client)]) -> str:
        return http

    @app.task
    def use_in_thread(http: Annotated[str, Depends(client)]) -> str:
        return http

    async with app:
        async with app.worker():
            for task in (use, use_in_thread, use):
                run = await task.start()  # type: ignore[call-arg]
                assert await run.result(timeout=SOON) == "client"
            assert log == ["opened"]
        assert log == ["opened", "closed"]


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_context_variables_reach_threads(app: App) -> None:
    def provide() -> str:
        VARIABLE.set("set by a provider")
        return ""

    @app.task
    def read(given: Annotated[str, Depends(provide)]) -> str:
        return VARIABLE.get()

    async with app, app.worker():
        run = await read.start()  # type: ignore[call-arg]
        assert await run.result(timeout=SOON) == "set by a provider"


# -- claims ----------------------------------------------------------------------------------------------------------


async def test_lanes_and_capabilities(app: App) -> None:
    @app.task(lane="gpu", needs={"cuda"})
    async def train() -> str:
        return "trained"

    @app.task(lane="mail")
    async def send() -> str:
        return "sent"

    async with app, app.worker(lanes={"gpu": 2, "default": 1}, capabilities=["cuda", "net"]):
        trained, sent = await train.start(), await send.start()
        assert await trained.result(timeout=SOON) == "trained"
        assert await sent.status() is PublicState.WAITING
        async with app.worker(lanes=["mail"]):
            assert await sent.result(timeout=SOON) == "sent"


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_long_work_is_not_taken_ahead(app: App) -> None:
    """Slots are filled and no more: what cannot be begun soon is left to other workers."""
    go = asyncio.Event()

    @app.task
    async def wait() -> None:
        await go.wait()

    async with app, app.worker(concurrency=3) as worker:
        runs = await wait.start_many([()] * 8)
        async with asyncio.timeout(20):
            while worker.running < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        states = [await run.status() for run in runs]
        assert states.count(PublicState.ACTIVE) == 3
        go.set()
        for run in runs:
            await run.result(timeout=SOON)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_claims_and_ends_outlive_a_store_that_does_not_answer(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def one() -> int:
        return 1

    @app.task
    async def fails() -> int:
        raise ValueError("on purpose")

    async with app:
        failures: dict[str, int] = {}
        for name in ("claim_many", "read_execution_contexts", "complete", "fail"):
            real = getattr(app.engine, name)

            async def flaky(*args: Any, _real: Any = real, _name: str = name, **kwargs: Any) -> Any:
                failures[_name] = failures.get(_name, 0) + 1
                if failures[_name] <= 2:
                    raise Transport("memory", TransportKind.TRANSPORT, "on purpose")
                return await _real(*args, **kwargs)

            monkeypatch.setattr(app.engine, name, flaky)
        async with app.worker():
            assert await (await one.start()).result(timeout=SOON) == 1
            await _failure(await fails.start())
    assert all(count > 2 for count in failures.values())


# -- the worker itself -----------------------------------------------------------------------------------------------


async def test_a_worker_registers_and_leaves(app: App) -> None:
    async with app:
        async with app.worker(name="w1", capabilities=["net"], lanes=["a", "b"]) as worker:
            [entry] = (await app.engine.list_workers(namespace=app.namespace)).entries
            assert (entry.worker_id, entry.worker_instance_id) == ("w1", worker.instance)
            assert (entry.lanes, entry.capabilities) == (("a", "b"), ("net",))
        assert not (await app.engine.list_workers(namespace=app.namespace)).entries


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_options_that_mean_nothing_are_refused(app: App) -> None:
    bad: list[dict[str, Any]] = [{"concurrency": 0}, {"lanes": "default"}, {"lanes": []}, {"capabilities": "net"}]
    for options in bad:
        with pytest.raises(BadOptions):
            app.worker(**options)
    with pytest.raises(BadOptions):
        async with app.worker(processes=0):
            pass
    async with app.worker() as worker:
        with pytest.raises(BadOptions):
            await worker.run()


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_capabilities_are_logged_once_and_carried_as_a_digest(app: App, caplog: pytest.LogCaptureFixture) -> None:
    offered = ["gpu", "eu", "gpu"]
    with caplog.at_level(logging.INFO, "flowfabric.worker"):
        async with app, app.worker(capabilities=offered) as worker:
            digest = worker.capability_digest
    assert digest == app.worker(capabilities=["eu", "gpu"]).capability_digest != app.worker().capability_digest
    assert re.fullmatch("[0-9a-f]{8}", digest)
    lines = [each.getMessage() for each in caplog.records if each.name == "flowfabric.worker"]
    assert [each for each in lines if "gpu" in each] == [f"capabilities {digest}: eu, gpu"]
    own = [each for each in lines if each.startswith("<worker")]
    assert len(own) >= 2
    assert all(f"offers {digest}" in each for each in own)
    assert "offers" not in repr(app.worker())


async def test_a_blocked_loop_is_shown_with_its_stack(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def blocks() -> None:
        time.sleep(1.5)  # noqa: ASYNC251

    with caplog.at_level(logging.WARNING, "flowfabric.worker"):
        async with app, app.worker() as worker:
            await (await blocks.start()).result(timeout=SOON)
            assert worker.watch is not None
            assert worker.watch.worst_lag_s > 0.5
    [record] = [each for each in caplog.records if "event loop was blocked" in each.getMessage()]
    assert "time.sleep(1.5)" in record.getMessage()
    if sys.version_info < (3, 14):
        assert "blocks" in record.getMessage().partition("\n")[0]
