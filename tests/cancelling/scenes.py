"""What goes on while somebody is cancelled: an engine, a worker, a remote client and a server, each in use.

What a scene calls may be cancelled at any of its waits. A scene ends when its calls have, and closes what it opened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import App, ClaimPolicy, Handle
from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError
from flowfabric.model.partitions import PartitionCounts
from flowfabric.model.streams.frames import Frame
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.errors import SdkError
from flowfabric.sdk.remote.engine import RemoteEngine
from flowfabric.sdk.worker import worker as worker_module
from flowfabric.sdk.workflows.durable import first, sleep
from flowfabric.server import ServerConfig, serving
from flowfabric.stores.memory import MemoryStore
from tests.cancelling.loop import CALLED, Loop

TTL_MS = 30_000
PORT = 9090
URL = f"http://127.0.0.1:{PORT}"


class SlowStore(MemoryStore):
    """Takes a moment before and behind all it does, as one does that is elsewhere."""

    async def run(self, make: Callable[[], Awaitable[Any]], *, alone: bool = False) -> Any:
        await asyncio.sleep(0.001)
        found = await make()
        await asyncio.sleep(0.001)
        return found

    async def read(self, needs: Any, view: Any) -> None:
        await asyncio.sleep(0.001)
        await super().read(needs, view)
        await asyncio.sleep(0)

    async def query(self, question: Any) -> Any:
        await asyncio.sleep(0.001)
        found = await super().query(question)
        await asyncio.sleep(0)
        return found


class Scene:
    """What is called, and what the calls hold in the end."""

    def __init__(self, loop: Loop, patch: pytest.MonkeyPatch) -> None:
        self.loop = loop
        self.patch = patch
        self.store = SlowStore(PartitionCounts(4, 2, 2), lambda: int(loop.time() * 1_000))
        self.calls: list[asyncio.Task[Any]] = []
        #: Instances that claim, and handles that were given to somebody who still stands for them.
        self.instances: set[str] = {"instance"}
        self.given: list[Handle] = []

    def call(self, call: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Begin something that somebody may cancel."""
        context = copy_context()
        context.run(CALLED.set, True)
        task = self.loop.create_task(call, name=f"call {len(self.calls)} {name}", context=context)
        self.calls.append(task)
        return task

    async def over(self) -> None:
        """Wait for all that was called. Who was cancelled or shut out may hear of that, and of nothing else."""
        if self.calls:
            await asyncio.wait(self.calls)
        for call in self.calls:
            if not call.cancelled() and (error := call.exception()) is not None and not isinstance(error, EngineError):
                raise error

    def engine(self) -> Engine:
        """An engine on the store."""
        return Engine(self.store)

    async def claim(self, engine: Any, wait_ms: int | None = None, lanes: int = 1) -> list[Handle]:
        """Claim, and stand for what is given."""
        policy = ClaimPolicy("worker", "instance", TTL_MS, wait_ms)
        wanted = dict.fromkeys(("lane", "other")[:lanes], 1)
        handles: list[Handle] = await engine.claim_from_lanes(wanted, (), policy, 2)
        self.given += handles
        return handles


class Clients(Scene):
    """Who is not cancelled, while others are."""

    def call(self, call: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        task = self.loop.create_task(call, name=name)
        self.calls.append(task)
        return task


async def using(scene: Scene, engine: Any) -> None:
    """Everything that waits, asked of an engine side by side."""

    async def work() -> None:
        for handle in await scene.claim(engine, 5_000):
            await engine.renew(handle)
            await engine.append_frame(handle, Frame(b"frame"))
            await engine.complete(handle, b"done")

    async def follow() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10), await engine.subscribe_completion() as ends:
                async for _ in ends:
                    return

    async def create() -> None:
        found = await engine.create_execution(lane_id="lane", execution_kind="op")
        await engine.tail_stream(found.execution_id, 0, block_ms=2_000)

    scene.call(follow(), "follows")
    scene.call(create(), "creates and tails")
    scene.call(work(), "works")
    scene.call(engine.create_executions([{"lane_id": "lane"}, {"lane_id": "other"}]), "creates some")
    for wait_ms, lanes in ((None, 1), (None, 2), (3_000, 1), (3_000, 2)):
        scene.call(scene.claim(engine, wait_ms, lanes), f"claims from {lanes} within {wait_ms}")
    scene.call(work(), "works")


async def engine_in_use(scene: Scene) -> None:
    """Calls of an engine."""
    engine = scene.engine()
    engine.start_timers()
    await using(scene, engine)
    await scene.over()
    await engine.close()


async def engine_that_closes(scene: Scene) -> None:
    """Calls of an engine that is closed under them, by several."""
    engine = scene.engine()
    engine.start_timers()
    await using(scene, engine)
    await asyncio.sleep(0.004)
    scene.call(engine.drain(5), "drains")
    for _ in range(2):
        scene.call(engine.close(), "closes")
    await scene.over()
    await engine.close()


def app_of(scene: Scene, url: str = "memory://") -> App:
    """An app with a bit of everything."""
    app = App(url, engine_options={"patience_s": 5.0} if url.startswith("http") else {})

    @app.step
    async def noted(n: int) -> int:
        await asyncio.sleep(0.001)
        return n

    @app.task
    async def talk(n: int, ctx: Ctx = injected) -> int:
        await ctx.emit(f"{n}")
        await asyncio.sleep(0.002)
        await ctx.emit("more")
        return n

    @app.task
    async def child(n: int) -> int:
        await asyncio.sleep(0.001)
        return n

    @app.workflow
    async def long(n: int) -> int:
        total = await noted(n)
        total += sum(await asyncio.gather(noted(1), child(2)))
        await sleep(timedelta(seconds=1))
        return total + await first(child(3), sleep_long())

    async def sleep_long() -> int:
        await sleep(timedelta(hours=1))
        return 0

    return app


async def _working(scene: Scene, app: App) -> None:
    async def life() -> None:
        async with app:
            worker = app.worker(concurrency=2, name="worker", drain_grace=timedelta(seconds=3))
            scene.instances.add(worker.instance)
            async with worker:
                talk, long = app.definitions["talk"], app.definitions["long"]
                runs = [await talk.start(n) for n in range(2)]  # type: ignore[attr-defined]
                runs.append(await long.start(4))  # type: ignore[attr-defined]
                for run in runs:
                    with contextlib.suppress(SdkError, EngineError):
                        await run.result(timedelta(seconds=20))

    async def stopped() -> None:
        worker = app.worker(concurrency=1, name="other")
        scene.instances.add(worker.instance)
        running = asyncio.ensure_future(worker.run())
        try:
            await asyncio.sleep(0.03)
            worker.stop()
            await asyncio.wait((running,))
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait((running,))

    async def follows() -> None:
        async with app:
            run = await app.definitions["talk"].start(5)  # type: ignore[attr-defined]
            with contextlib.suppress(SdkError, EngineError, TimeoutError):
                async with asyncio.timeout(20):
                    async for _ in run.frames():
                        pass
                    await run.cancel()
                    await app.asks(wait=timedelta(seconds=1))

    scene.call(life(), "works")
    scene.call(follows(), "follows")
    scene.call(stopped(), "works and stops")
    await scene.over()


async def worker_at_work(scene: Scene) -> None:
    """Workers of an app on a store."""
    app = app_of(scene)
    await app.open_on(scene.engine())
    await _working(scene, app)
    await app.close()


@contextlib.asynccontextmanager
async def served(scene: Scene, *, called: bool = False) -> Any:
    """A server of the store."""
    ready = asyncio.Event()

    async def open_engine(config: ServerConfig) -> Engine:
        engine = scene.engine()
        engine.start_timers()
        scene.loop.call_later(0.01, ready.set)
        return engine

    scene.patch.setattr(serving, "open_engine", open_engine)
    # Renewal has a thread of its own otherwise, whose turns nobody could foresee.
    scene.patch.setattr(worker_module, "_can_be_shared", lambda *_: False)
    config = ServerConfig(port=PORT, grace_ms=5_000)
    if called:
        scene.loop.network.context.run(CALLED.set, True)
        server = scene.call(serving.serve(config), "serves")
    else:
        server = scene.loop.create_task(serving.serve(config), name="serves")
    opened = asyncio.ensure_future(ready.wait())
    await asyncio.wait((server, opened), return_when=asyncio.FIRST_COMPLETED)
    opened.cancel()
    try:
        yield server
    finally:
        if not server.done():
            server.cancel()
            await asyncio.wait((server,))


async def remote_in_use(scene: Scene) -> None:
    """Calls through a server."""
    async with served(scene):
        engine = await RemoteEngine.open(URL, patience_s=5.0)
        await using(scene, engine)
        await scene.over()
        await engine.close()


async def remote_that_closes(scene: Scene) -> None:
    """Calls through a server, of a client that closes under them."""
    async with served(scene):

        async def opened() -> None:
            async with await RemoteEngine.open(URL, patience_s=5.0) as engine:
                await engine.now_ms()  # type: ignore[attr-defined]

        scene.call(opened(), "opens")
        engine = await RemoteEngine.open(URL, patience_s=5.0)
        await using(scene, engine)
        await asyncio.sleep(0.004)
        for _ in range(2):
            scene.call(engine.close(), "closes")
        await scene.over()
        await engine.close()


async def remote_worker_at_work(scene: Scene) -> None:
    """Workers of an app behind a server."""
    async with served(scene):
        app = app_of(scene, URL)
        async with app:
            await _working(scene, app)


async def server_that_stops(scene: Scene) -> None:
    """A server whose requests, or which itself, is cancelled while it is used."""
    async with served(scene, called=True) as server:
        try:
            engine = await RemoteEngine.open(URL, patience_s=2.0)
        except EngineError:
            return  # the server has ended, or its first request was cancelled
        clients = Clients(scene.loop, scene.patch)
        clients.given = scene.given
        await using(clients, engine)
        await asyncio.sleep(0.02)
        server.cancel()
        await clients.over()
        await scene.over()
        await engine.close()


SCENES: tuple[Callable[[Scene], Coroutine[Any, Any, None]], ...] = (
    engine_in_use,
    engine_that_closes,
    worker_at_work,
    remote_in_use,
    remote_that_closes,
    remote_worker_at_work,
    server_that_stops,
)
