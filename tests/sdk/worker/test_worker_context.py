"""The context variables that an attempt sees: those of the place where the worker was started, and its own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from typing import Annotated

import pytest

from flowfabric.sdk.app import App
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import Depends, injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import RunCancelled

SOON = seconds(20)
TENANT = contextvars.ContextVar("tenant", default="nobody")
pytestmark = pytest.mark.parametrize("store_url", ["memory"], indirect=True)


async def test_no_attempt_sees_what_another_has_set(store_url: str) -> None:
    app = App(store_url)

    @app.task
    async def on_the_loop(n: int) -> str:
        before = TENANT.get()
        TENANT.set(str(n))
        await asyncio.sleep(0)
        return before

    @app.task
    def in_a_thread(n: int) -> str:
        before = TENANT.get()
        TENANT.set(str(n))
        return before

    @app.step
    async def step(n: int) -> str:
        return await on_the_loop.function(n)

    @app.workflow
    async def workflow(n: int) -> str:
        return await step(n)

    async with app:
        TENANT.set("the worker's")
        async with app.worker(concurrency=4):
            TENANT.set("the caller's")
            runs = [run for each in (on_the_loop, in_a_thread, workflow) for run in await each.start_many(range(40))]
            seen = {await run.result(timeout=SOON) for run in runs}
    assert seen == {"the worker's"}


async def test_what_belongs_to_an_attempt_shares_its_context(store_url: str) -> None:
    app = App(store_url)

    async def tenant(ctx: Ctx = injected) -> AsyncIterator[str]:
        TENANT.set(ctx.run_id)
        yield TENANT.get()

    @app.task
    def in_a_thread(name: Annotated[str, Depends(tenant, scope="attempt")] = injected) -> list[str]:
        return [name, TENANT.get()]

    @app.step
    def step(name: str) -> list[str]:
        return [name, TENANT.get()]

    @app.workflow
    async def workflow(name: Annotated[str, Depends(tenant, scope="attempt")] = injected) -> list[str]:
        return await step(name)

    async with app, app.worker(concurrency=4):
        for each in (in_a_thread, workflow):
            for run in await each.start_many([()] * 10):
                assert await run.result(timeout=SOON) == [run.id, run.id]


async def test_what_belongs_to_the_worker_lives_in_the_workers_context(store_url: str) -> None:
    app = App(store_url)
    seen: list[str] = []

    async def session() -> AsyncIterator[str]:
        before = TENANT.set(f"{TENANT.get()} session")
        async with asyncio.timeout(60):
            yield TENANT.get()
        seen.append(TENANT.get())
        TENANT.reset(before)  # only where it was set
        seen.append(TENANT.get())

    @app.task
    async def uses(n: int, name: Annotated[str, Depends(session, scope="worker")] = injected) -> list[str]:
        TENANT.set(str(n))
        return [name, TENANT.get()]

    async with app:
        TENANT.set("the worker's")
        async with app.worker(concurrency=4):
            TENANT.set("the caller's")
            for n, run in enumerate(await uses.start_many(range(8))):
                assert await run.result(timeout=SOON) == ["the worker's session", str(n)]
    assert seen == ["the worker's session", "the worker's"]


async def test_nor_does_it_see_what_the_first_attempt_has_set(store_url: str) -> None:
    app = App(store_url)

    async def tenant(ctx: Ctx = injected) -> AsyncIterator[str]:
        TENANT.set(ctx.run_id)
        yield TENANT.get()

    async def session() -> AsyncIterator[str]:
        yield TENANT.get()

    @app.task
    async def uses(
        name: Annotated[str, Depends(tenant, scope="attempt")] = injected,
        shared: Annotated[str, Depends(session, scope="worker")] = injected,
    ) -> list[str]:
        return [name, shared]

    async with app:
        TENANT.set("the worker's")
        async with app.worker():
            run = await uses.start()
            assert await run.result(timeout=SOON) == [run.id, "the worker's"]


async def test_a_cancelled_attempt_does_not_take_along_what_belongs_to_the_worker(store_url: str) -> None:
    app = App(store_url)
    opening, go, opened = asyncio.Event(), asyncio.Event(), 0

    async def session() -> AsyncIterator[str]:
        nonlocal opened
        opened += 1
        opening.set()
        await go.wait()
        yield "session"

    @app.task(timeout=seconds(20), retry=0)
    async def uses(name: Annotated[str, Depends(session)] = injected) -> str:
        return name

    async with app, app.worker():
        first = await uses.start()
        async with asyncio.timeout(20):
            await opening.wait()
        second = await uses.start()
        await first.cancel()
        with pytest.raises(RunCancelled):
            await first.result(timeout=SOON)
        go.set()
        assert await second.result(timeout=SOON) == "session"
    assert opened == 1
