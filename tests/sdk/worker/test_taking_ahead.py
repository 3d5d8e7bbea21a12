"""What a worker holds without running it: only what it will begin within moments, and nothing without a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App, PublicState, seconds
from flowfabric.sdk.worker import processes, worker as worker_module
from flowfabric.sdk.worker.attempt import Job
from flowfabric.sdk.worker.pace import Pace
from flowfabric.sdk.worker.processes import Answer, Call
from tests.sdk.serving import serving

SOON = seconds(60)


def heavy(number: int) -> int:
    """Runs in a process, or would."""
    return number


class Held:
    """In the place of a process: its functions end when the test says so."""

    lives = True
    began: list[bytes]
    go: asyncio.Event

    @classmethod
    async def start(cls) -> Held:
        return cls()

    async def ask(self, call: Call) -> Answer:
        self.began.append(call.payload)
        await self.go.wait()
        return Answer(b"1")

    async def kill(self) -> None:
        return None


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> type[Held]:
    Held.began, Held.go = [], asyncio.Event()
    monkeypatch.setattr(processes, "_Process", Held)
    return Held


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App("memory://") as opened:
        opened.task(run_in="process", timeout=seconds(3600))(heavy)
        yield opened


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def waiting(runs: list[Any], count: int) -> list[PublicState]:
    """How the runs stand when so many of them wait in their lane."""
    async with asyncio.timeout(60):
        while (found := [await run.status() for run in runs]).count(PublicState.WAITING) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


def test_pace_is_kept_by_kind() -> None:
    pace = Pace()
    assert pace.ends_within(1.0, [("new", 0.0)] * 5, idle=5) == 0, "nothing is known yet"
    pace.note("quick", 0.01)
    assert pace.ends_within(1.0, [("quick", 0.0)]) == 100
    assert pace.ends_within(1.0, [("new", 0.0)] * 5) == 0
    assert pace.ends_within(1.0, [("quick", 10.0)] * 5) == 0, "these do not end as others did"
    assert pace.ends_within(1.0, [], idle=2) == 200
    pace.note("slow", 100.0)
    assert pace.ends_within(1.0, [("slow", 0.0), ("quick", 0.0)], idle=2) == 100


async def test_long_work_behind_short_work_is_left_to_idle_workers(app: App) -> None:
    begun, go = 0, asyncio.Event()

    @app.task
    async def long() -> None:
        nonlocal begun
        begun += 1
        await go.wait()

    first = app.worker(concurrency=4)
    first._pace.note("short", 0.001)
    assert first._ahead() > 4, "what has ended last would allow it"
    async with first:
        runs = await long.start_many([()] * 8)
        await until(lambda: first.running == 4)
        async with app.worker(concurrency=4):
            await until(lambda: begun == 8)
            go.set()
            for run in runs:
                await run.result(timeout=SOON)


async def test_what_does_not_begin_after_all_goes_back(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """It seemed that the first one would be over soon."""
    go, ahead = asyncio.Event(), 3

    @app.task
    async def long() -> None:
        await go.wait()

    monkeypatch.setattr(worker_module.Worker, "_ahead", lambda self: ahead)
    monkeypatch.setattr(worker_module, "OVERDUE_S", 0.0)
    async with app.worker(concurrency=1) as worker:
        runs = await long.start_many([()] * 4)
        await until(lambda: len(worker._queue) == 3)
        ahead = 0
        await until(lambda: not worker._queue)
        assert (await waiting(runs, 3)).count(PublicState.ACTIVE) == 1
        go.set()
        for run in runs:
            await run.result(timeout=SOON)


async def test_no_more_is_held_than_there_are_processes(app: App, held: type[Held]) -> None:
    task: Any = app.definitions["heavy"]
    async with app.worker(concurrency=8, processes=2) as first:
        runs = await task.start_many([(number,) for number in range(4)])
        await until(lambda: len(held.began) == 2)
        assert (await waiting(runs, 2)).count(PublicState.ACTIVE) == first.running == 2
        async with app.worker(concurrency=8, processes=2):
            await until(lambda: len(held.began) == 4)
            held.go.set()
            for run in runs:
                await run.result(timeout=SOON)


@pytest.mark.parametrize("how", ["as tasks", "by hand"])
async def test_other_work_goes_on_while_all_processes_are_busy(app: App, held: type[Held], how: str) -> None:
    """Also behind more work for processes than the worker has slots, if that says so; else behind less."""

    @app.task
    async def light() -> int:
        return 2

    task: Any = app.definitions["heavy"]
    async with app.worker(concurrency=4, processes=1):
        if how == "as tasks":
            runs = await task.start_many([(number,) for number in range(9)])
        else:
            ended = [
                await app.engine.create_execution(
                    execution_kind="heavy", input_payload=b'{"number": 1}', lane_id=app.lane, namespace=app.namespace
                )
                for _ in range(3)
            ]
            runs = [app.run(each.execution_id) for each in ended]
        await until(lambda: len(held.began) == 1)
        for _ in range(3):
            assert await (await light.start()).result(timeout=SOON) == 2
        assert len(held.began) == 1
        held.go.set()
        for run in runs:
            await run.result(timeout=SOON)


async def test_the_time_of_an_attempt_begins_with_its_process(
    app: App, held: type[Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[str] = []
    monkeypatch.setattr(Job, "limit", lambda job, options: limited.append(job.execution_id))
    monkeypatch.setattr(worker_module.Worker, "_free_processes", lambda self: 9)
    task: Any = app.definitions["heavy"]
    async with app.worker(concurrency=8, processes=1) as worker:
        runs = await task.start_many([(number,) for number in range(3)])
        await until(lambda: worker.running == 3 and held.began)
        assert len(limited) == 1, "the others wait for a process"
        held.go.set()
        for run in runs:
            await run.result(timeout=SOON)
    assert sorted(limited) == sorted(run.id for run in runs)


async def test_only_tasks_that_run_in_processes_need_one(app: App, held: type[Held]) -> None:
    part: Any = app.step(run_in="process", name="part")(heavy)

    @app.workflow
    async def whole() -> int:
        return int(await part(1))

    task: Any = app.definitions["heavy"]
    async with app.worker(processes=1):
        first = await task.start(1)
        await until(lambda: len(held.began) == 1)
        second, flow = await task.start(2), await whole.start()
        needs = [(await app.engine.read_history(each.id)).required_capabilities for each in (first, second, flow)]
        assert needs == [("flowfabric.process",), ("flowfabric.process",), ()]
        told = (await app.engine.explain(second.id)).sentence
        assert told.startswith("It is waiting for a worker: 1 registered worker could run it"), told
        held.go.set()
        for run in (first, second, flow):
            await run.result(timeout=SOON)


async def test_a_task_that_moves_to_threads_finishes_what_was_started_before(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ff.db"
    async with App(url) as before:
        before.task(run_in="process")(heavy)
        started: Any = before.definitions["heavy"]
        run = await started.start(3)
    async with App(url) as after:
        after.task(heavy)
        async with after.worker():
            assert await after.run(run.id).result(timeout=SOON) == 3


async def test_a_worker_of_a_server_passes_over_them_too(held: type[Held], tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/ff.db") as address:
        async with App(address) as app:
            app.task(run_in="process")(heavy)

            @app.task
            async def light() -> int:
                return 2

            task: Any = app.definitions["heavy"]
            async with app.worker(concurrency=4, processes=1):
                runs = await task.start_many([(number,) for number in range(9)])
                await until(lambda: len(held.began) == 1)
                assert await (await light.start()).result(timeout=SOON) == 2
                assert len(held.began) == 1
                held.go.set()
                for run in runs:
                    await run.result(timeout=SOON)
