"""Worker processes: what becomes of runs when they are told to stop, or die; and processes for single functions."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest

from flowfabric.engine import Engine
from flowfabric.model.states import PublicState
from flowfabric.sdk.app import App
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import Depends, injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import RunFailed
from flowfabric.sdk.worker import processes
from tests.contract.probe import shared_stores_only
from tests.sdk import program

ROOT = Path(__file__).parents[3]
SOON = seconds(60)


@asynccontextmanager
async def worker_process(url: str, lease_ms: int = 30_000, grace_ms: int = 30_000) -> AsyncIterator[Any]:
    """A worker of ``tests.sdk.program``."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.sdk.program", url, str(lease_ms), str(grace_ms),
        cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
def app(store_url: str, monkeypatch: pytest.MonkeyPatch) -> App:
    """The program's app, on the test's store."""
    monkeypatch.setattr(program.app, "url", store_url)
    return program.app


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


async def counts(engine: Engine, run_id: str) -> tuple[str | None, ...]:
    """How often the run was taken from a dead worker, tried again, and begun."""
    names = ["lease_reclaim_count", "retry_count", "total_attempt_count"]
    partition = int(run_id.split("}", maxsplit=1)[0].removeprefix("{fp:"))
    return tuple((await engine.read_exec_core_fields(partition, run_id, names)).values())


LOST_WORKERS = 5


@shared_stores_only
async def test_a_run_that_kills_its_workers_ends_as_failed(app: App, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with app:
        run = await program.die.start(str(log))
        for deaths in range(1, LOST_WORKERS + 2):
            async with worker_process(app.url, lease_ms=400) as process:
                assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
            assert len(lines(log)) == deaths
        async with worker_process(app.url, lease_ms=400):
            with pytest.raises(RunFailed) as caught:
                await run.result(timeout=SOON)
        assert "reclaim" in caught.value.reason
    assert len(set(lines(log))) == LOST_WORKERS + 1


@shared_stores_only
async def test_a_killed_workers_run_goes_on_in_another(app: App, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with app:
        run = await program.wait.start(str(log), 0.5)
        async with worker_process(app.url, lease_ms=400) as process:
            await until(lambda: len(lines(log)) == 1)
            process.kill()
        # This one has time enough: nobody may take the run from it because the machine is busy.
        async with worker_process(app.url):
            assert await run.result(timeout=SOON) == "waited"
        assert await counts(app.engine, run.id) == ("1", "0", "1")
    assert lines(log) == ["began", "began"]


@shared_stores_only
async def test_a_worker_that_is_told_to_stop_finishes_what_it_runs(app: App, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with app:
        run = await program.wait.start(str(log), 1.0)
        async with worker_process(app.url) as process:
            await until(lambda: len(lines(log)) == 1)
            process.send_signal(signal.SIGTERM)
            late = await program.wait.start(str(log), 0)
            assert await asyncio.wait_for(process.wait(), 60) == 0
        assert await run.status() is PublicState.COMPLETED
        assert await late.status() is PublicState.WAITING
        assert not (await app.engine.list_workers(namespace=app.namespace)).entries


@shared_stores_only
@pytest.mark.parametrize("task", [program.wait, program.wait_in_thread])
@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_at_once_and_gives_runs_back(
    app: App, tmp_path: Path, task: Any, again: signal.Signals
) -> None:
    """Nothing is counted against the run, and the next worker need not wait for a lease to run out."""
    log = tmp_path / "log"
    async with app:
        run = await task.start(str(log), 3600)
        async with worker_process(app.url) as process:
            await until(lambda: len(lines(log)) == 1)
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            process.send_signal(again)
            assert await asyncio.wait_for(process.wait(), 60) == 0
        assert await run.status() is PublicState.WAITING
        assert await counts(app.engine, run.id) == ("0", "0", "1")


# -- functions in processes ------------------------------------------------------------------------------------------

one_store = pytest.mark.parametrize("store_url", ["memory"], indirect=True)


@one_store
async def test_functions_in_processes(app: App) -> None:
    async with app, app.worker(processes=2):
        runs = await program.square.start_many(range(6))
        assert [await run.result(timeout=SOON) for run in runs] == [n * n for n in range(6)]
        assert await (await program.square_slowly.start(5)).result(timeout=SOON) == 25
        assert await (await program.talk.start(5)).result(timeout=SOON) == 5
        with pytest.raises(RunFailed) as caught:
            await (await program.talk.start(-5)).result(timeout=SOON)
        assert (caught.value.error_type, caught.value.reason) == ("ValueError", "ValueError: -5 is negative")
        assert "in talk" in caught.value.traceback


@one_store
async def test_a_process_that_dies_or_takes_too_long_is_replaced(app: App) -> None:
    async with app, app.worker(processes=1):
        with pytest.raises(RunFailed, match="exit code 7"):
            await (await program.quit_process.start()).result(timeout=SOON)
        with pytest.raises(RunFailed) as caught:
            await (await program.for_ever.start()).result(timeout=SOON)
        assert caught.value.category == "timeout"
        assert await (await program.square.start(3)).result(timeout=SOON) == 9


@one_store
async def test_what_is_no_exception_ends_no_process(app: App) -> None:
    async with app, app.worker(processes=1) as worker:
        seen = set()
        for name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError"):
            for on_the_loop in (False, True):
                run = await program.raises_there.start(on_the_loop, name)
                with pytest.raises(RunFailed, match=f"{name}: no"):
                    await run.result(timeout=SOON)
                assert worker._shared is not None
                seen |= worker._shared.processes._all
        assert len(seen) == 1


@one_store
async def test_an_idle_process_that_died_costs_no_attempt(app: App) -> None:
    async with app:
        worker = app.worker(processes=1)
        async with worker:
            assert await (await program.square.start(2)).result(timeout=SOON) == 4
            assert worker._shared is not None
            (idle,) = worker._shared.processes._idle
            idle._process.kill()
            await idle._process.wait()
            run = await program.square.start(3)
            assert await run.result(timeout=SOON) == 9
            assert await counts(app.engine, run.id) == ("0", "0", "1")


@one_store
async def test_functions_that_no_process_can_find(store_url: str) -> None:
    app = App(store_url)

    @app.task(run_in="process")
    def inside(n: int) -> int:
        return n

    @app.task(run_in="process", name="asks")
    def asks(n: int, ctx: Ctx = injected, pool: Annotated[Any, Depends(dict)] = injected) -> int:
        return n

    async with app, app.worker():
        with pytest.raises(RunFailed, match="at the top of a module"):
            await (await inside.start(1)).result(timeout=SOON)
        with pytest.raises(RunFailed, match="only a Ctx can be provided, but it asks for pool"):
            await (await asks.start(1)).result(timeout=SOON)


@one_store
async def test_a_function_in_a_process_is_told_to_stop(app: App, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with app, app.worker(processes=1, lease_ttl=seconds(1)):
        run = await program.until_cancelled.using(tags={"team": "docs"}).start(str(log))
        await until(lambda: len(lines(log)) == 1)
        await run.cancel("enough")
        assert await run.status() is PublicState.CANCELLED
        await until(lambda: len(lines(log)) == 2)
        uuid = run.id.rpartition(":")[2]
        assert lines(log) == [f"{run.id} 1 docs {uuid} False", "told False"]
        # Another process takes its place.
        assert await (await program.square.start(3)).result(timeout=SOON) == 9


@one_store
async def test_a_function_in_a_process_that_does_not_stop_is_killed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOPPING_S", 0.2)
    async with app, app.worker(processes=1, lease_ttl=seconds(1)):
        run = await program.deaf.start()
        async with asyncio.timeout(60):
            while await run.status() is not PublicState.ACTIVE:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await run.cancel("enough")
        assert await (await program.square.start(3)).result(timeout=SOON) == 9


@one_store
async def test_steps_in_processes(app: App, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with app, app.worker(processes=1):
        run = await program.steps_in_processes.start(str(log))
        process, told, errors = await run.result(timeout=SOON)
        logged = [(line.text, line.step) async for line in run.logs()]
    assert process != os.getpid()
    assert re.fullmatch(r"1 where_it_runs~[0-9a-f]{16}", told)
    assert errors == ["ValueError: no", "OSError: not now"]
    assert lines(log) == ["tried"] * (1 + 4)
    assert logged == [("as a step", "where_it_runs")]


@one_store
async def test_what_a_process_has_no_engine_for(app: App) -> None:
    async with app, app.worker(processes=1):
        with pytest.raises(RunFailed, match=r"ctx.emit is not available with run_in"):
            await (await program.emits_in_process.start()).result(timeout=SOON)


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_process_logs_is_stored(app: App, fails: bool) -> None:
    async with app, app.worker(processes=1):
        run = await program.logs_in_process.start(fails)
        assert [line.text async for line in run.logs(follow=True)] == ["in a process"]
