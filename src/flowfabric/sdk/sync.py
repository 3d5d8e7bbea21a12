"""For code that cannot await: scripts, notebooks, threads of other frameworks.

``app.sync`` is the app as blocking calls. Everything runs as it does elsewhere, on an event loop in one thread of its
own; the methods here are made from the async ones and only wait for them::

    with app.sync as blocking:
        run = blocking.start(fetch, Doc(url="…"))
        print(run.result(timeout=minutes(1)))

Definitions stay as they are: what is started is an argument (``blocking.start(task.using(priority=5), …)``), so that
the same task serves both worlds. In a coroutine use ``await task.start(…)``; blocking calls refuse to stop a loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from flowfabric.model.operations.schedules import Overlap
from flowfabric.sdk.app import App
from flowfabric.sdk.asks.answer import Answered
from flowfabric.sdk.asks.ask import OpenAsk
from flowfabric.sdk.definitions.tasks import Startable, Task, Workflow
from flowfabric.sdk.errors import BadOptions, BlocksLoop, NotOpen
from flowfabric.sdk.runs.run import Run, RunStatus
from flowfabric.sdk.runs.schedules import Schedules
from flowfabric.sdk.runs.search import Runs

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
_END = object()


class Portal:
    """A thread with an event loop, and the way to let it do something."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="flowfabric-sync", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine there and wait for it; interrupted here means cancelled there."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            work.close()
            raise BlocksLoop("a blocking call in a coroutine would block its event loop; await the async one instead")
        if self._process != os.getpid():
            work.close()
            raise NotOpen(
                "app.sync was opened before this process was forked, and its thread stayed behind; open the app after "
                "the fork, in each process"
            )
        if self._loop.is_closed():
            work.close()
            raise NotOpen("app.sync was closed; write `with app.sync as blocking:` around this")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what is left and end the thread."""
        self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()


class Facade(Generic[S]):
    """Something with async methods, and the thread that does them."""

    __slots__ = ("inner", "portal")

    def __init__(self, portal: Portal, inner: S) -> None:
        self.portal = portal
        #: The same for code that awaits.
        self.inner = inner

    def __repr__(self) -> str:
        return repr(self.inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facade) and other.inner == self.inner

    def __hash__(self) -> int:
        return hash(self.inner)


def _waiting(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[S], P], R]:
    """The method that waits for an async one."""

    @functools.wraps(method)
    def call(self: Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        # By name: the run may be of a kind that does it in its own way.
        work: Coroutine[Any, Any, R] = getattr(self.inner, method.__name__)(*args, **kwargs)
        return self.portal.call(work)

    return call


def _iterating(
    method: Callable[Concatenate[S, P], AsyncIterator[R]],
) -> Callable[Concatenate[Facade[S], P], Iterator[R]]:
    """The method that is iterated over without await."""

    @functools.wraps(method)
    def call(self: Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return _iterate(self.portal, getattr(self.inner, method.__name__)(*args, **kwargs))

    return call


def _iterate(portal: Portal, source: AsyncIterator[R]) -> Iterator[R]:
    async def following() -> Any:
        return await anext(source, _END)

    try:
        while (found := portal.call(following())) is not _END:
            yield found
    finally:
        close: Callable[[], Coroutine[Any, Any, None]] | None = getattr(source, "aclose", None)
        if close is not None:
            portal.call(close())


class BlockingRun(Facade[Run[T]]):
    """A run whose methods wait; see ``Run``."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The execution's id."""
        return self.inner.id

    result = _waiting(Run[T].result)
    status = _waiting(Run[T].status)
    info = _waiting(Run[T].info)
    explain = _waiting(Run[T].explain)
    steps = _waiting(Run[T].steps)
    cancel = _waiting(Run[T].cancel)
    terminate = _waiting(Run[T].terminate)
    replay = _waiting(Run[T].replay)
    frames = _iterating(Run[T].frames)
    logs = _iterating(Run[T].logs)
    output = _waiting(Run[T].output)

    def fork(self, at: str | None = None) -> BlockingRun[T]:
        """Start a run that remembers what this one did before a step; see ``Run.fork``."""
        return BlockingRun(self.portal, self.portal.call(self.inner.fork(at)))


class BlockingAsk(Facade[OpenAsk]):
    """A question whose methods wait; see ``OpenAsk``. What it asks is in ``inner``."""

    __slots__ = ()

    answer = _waiting(OpenAsk.answer)
    token = _waiting(OpenAsk.token)
    link = _waiting(OpenAsk.link)


class BlockingRuns(Facade[Runs]):
    """The runs that fit: ``for run in blocking.runs(state="failed"): …``; see ``Runs``."""

    __slots__ = ()

    def __iter__(self) -> Iterator[BlockingRun[Any]]:
        for run in _iterate(self.portal, aiter(self.inner)):
            yield BlockingRun(self.portal, run)

    count = _waiting(Runs.count)

    def all(self) -> list[BlockingRun[Any]]:
        """All of them."""
        return self._blocking(self.portal.call(self.inner.all()))

    def cancel(self, reason: str = "", *, dry_run: bool = False) -> list[BlockingRun[Any]]:
        """Cancel those that have not ended; see ``Runs.cancel``."""
        return self._blocking(self.portal.call(self.inner.cancel(reason, dry_run=dry_run)))

    def terminate(self, reason: str = "", *, dry_run: bool = False) -> list[BlockingRun[Any]]:
        """End those at once that have not ended; see ``Runs.terminate``."""
        return self._blocking(self.portal.call(self.inner.terminate(reason, dry_run=dry_run)))

    def replay(self, *, dry_run: bool = False) -> list[BlockingRun[Any]]:
        """Run those again that have failed or expired; see ``Runs.replay``."""
        return self._blocking(self.portal.call(self.inner.replay(dry_run=dry_run)))

    def _blocking(self, runs: list[Run[Any]]) -> list[BlockingRun[Any]]:
        return [BlockingRun(self.portal, run) for run in runs]


class BlockingSchedules(Facade[Schedules]):
    """Schedules whose methods wait; see ``Schedules``."""

    __slots__ = ()

    store = _waiting(Schedules.store)
    list = _waiting(Schedules.list)
    get = _waiting(Schedules.get)
    pause = _waiting(Schedules.pause)
    resume = _waiting(Schedules.resume)
    delete = _waiting(Schedules.delete)
    change = _waiting(Schedules.change)

    def trigger(self, name: str, *, overlap: Overlap | str | None = None) -> BlockingRun[Any] | None:
        """Start one now, out of turn; see ``Schedules.trigger``."""
        run = self.portal.call(self.inner.trigger(name, overlap=overlap))
        return None if run is None else BlockingRun(self.portal, run)


class BlockingApp:
    """An app whose methods wait; see the module's text. Get it from ``app.sync``."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._portal: Portal | None = None

    @property
    def portal(self) -> Portal:
        """The thread that does it, while this is open."""
        if self._portal is None:
            raise NotOpen("app.sync is not open; write `with app.sync as blocking:` around this")
        return self._portal

    def open(self) -> Self:
        """Open the app on a thread of its own."""
        if self._portal is None:
            if self.app.is_open:
                raise NotOpen("the app is already open on an event loop; await its methods there")
            portal = Portal()
            try:
                portal.call(self.app.open())
            except BaseException:
                portal.close()
                raise
            self._portal = portal
        return self

    def close(self) -> None:
        """Close the app and end the thread. Safe to call twice."""
        portal, self._portal = self._portal, None
        if portal is not None:
            try:
                portal.call(self.app.close())
            finally:
                portal.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, definition: Startable[P, T], *args: P.args, **kwargs: P.kwargs) -> BlockingRun[T]:
        """Start a run with these arguments. It exists, durably, when this returns; with ``tx=``, when you commit."""
        if definition.start_options.tx is not None:
            return BlockingRun(self.portal, self._start_inside(definition, args, kwargs))
        return BlockingRun(self.portal, self.portal.call(definition.start(*args, **kwargs)))

    def _start_inside(
        self, definition: Startable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Run[Any]:
        """The caller's connection is used in the caller's thread."""
        from flowfabric.sdk.runs.enqueue import drafted, write

        options = definition.start_options
        arguments = definition.signature.bind(args, kwargs)
        draft, run = self.portal.call(drafted(definition, arguments, options))
        written = write(options.tx, draft)
        if inspect.iscoroutine(written):
            written.close()
            raise BadOptions("tx=: a blocking start needs a blocking connection", option="tx")
        return run

    def start_many(self, definition: Startable[..., T], calls: Iterable[Any]) -> list[BlockingRun[T]]:
        """Start many runs in one transaction; see ``Task.start_many``."""
        portal = self.portal
        return [BlockingRun(portal, run) for run in portal.call(definition.start_many(calls))]

    @overload
    def run(self, id: str) -> BlockingRun[Any]: ...
    @overload
    def run(self, id: str, type: Task[..., T] | Workflow[..., T]) -> BlockingRun[T]: ...
    def run(self, id: str, type: Any = None) -> BlockingRun[Any]:
        """The run of that id; see ``App.run``."""
        return BlockingRun(self.portal, self.app.run(id, type) if type is not None else self.app.run(id))

    def runs(
        self,
        *,
        state: RunStatus | str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        lane: str | None = None,
        limit: int | None = None,
    ) -> BlockingRuns:
        """Runs that fit, read page by page while they are looked through; see ``App.runs``."""
        found = self.app.runs(state=state, name=name, tags=tags, lane=lane, limit=limit)
        return BlockingRuns(self.portal, found)

    def asks(self, run: BlockingRun[Any] | str | None = None, *, wait: timedelta | None = None) -> list[BlockingAsk]:
        """Questions that wait for an answer; see ``App.asks``."""
        portal = self.portal
        wanted = run.inner if isinstance(run, BlockingRun) else run
        return [BlockingAsk(portal, ask) for ask in portal.call(self.app.asks(wanted, wait=wait))]

    def answer(self, link: str, value: Any, *, identity: str = "") -> Answered:
        """Answer a question with the link that an approver was given; see ``App.answer``."""
        return self.portal.call(self.app.answer(link, value, identity=identity))

    @property
    def schedules(self) -> BlockingSchedules:
        """Schedules as they are stored; see ``App.schedules``."""
        return BlockingSchedules(self.portal, self.app.schedules)

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Run any coroutine on the app's loop and wait for it: ``blocking.wait(app.engine.list_lanes())``."""
        return self.portal.call(work)

    @contextmanager
    def entering(self, context: AbstractAsyncContextManager[R]) -> Iterator[R]:
        """Enter an async context on the app's loop: ``with blocking.entering(app.worker()): …``."""
        entered = self.portal.call(_enter(context))
        try:
            yield entered
        except BaseException as error:
            if not self.portal.call(_leave(context, error)):
                raise
        else:
            self.portal.call(_leave(context, None))


async def _enter(context: AbstractAsyncContextManager[R]) -> R:
    return await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[Any], error: BaseException | None) -> bool:
    kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
    return bool(await context.__aexit__(kind, error, trace))
