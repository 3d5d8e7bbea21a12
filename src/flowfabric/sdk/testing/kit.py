"""``app.testing()``: the app on the real engine in memory, with a worker and a clock of its own. With ``store=``
its runs are in a database instead, so that ``tx=`` takes connections to that.

While a test waits for something (a result, a question, ``idle``), time that nobody has to live through is skipped:
once every handler has come to rest, the clock moves to whatever falls due next. When nothing can happen any more, the
test is told what it waits for in vain instead of hanging.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from flowfabric.engine import Engine
from flowfabric.sdk.asks.ask import Ask, OpenAsk
from flowfabric.sdk.asks.find import open_asks
from flowfabric.sdk.definitions.tasks import Definition
from flowfabric.sdk.durations import milliseconds
from flowfabric.sdk.errors import BadOptions, SdkError
from flowfabric.sdk.runs.results import Completions
from flowfabric.sdk.testing.clock import BEGINNING, VirtualClock
from flowfabric.sdk.testing.faults import Crash, FaultyEngine, crash_of
from flowfabric.sdk.workflows.second_pass import IS_SECOND

if TYPE_CHECKING:
    from flowfabric.model.operations.workflows import StepRecord
    from flowfabric.sdk.app import App
    from flowfabric.sdk.runs.run import Run
    from flowfabric.sdk.worker import Worker

T = TypeVar("T")

#: Turns of the loop without work after which everything has come to rest.
QUIET_TURNS = 25
BUSY_PAUSE_S = 0.0005
#: Moments that may be skipped to while one thing is waited for.
MOST_SKIPS = 100_000
_FAR_MS = 2**52
IN_MEMORY = "memory://"
_NOTHING: Any = object()


class Stuck(SdkError):
    """What the test waits for will never happen: nothing runs, and nothing falls due."""

    code = "stuck"


class Testing:
    """The kit; see the module's text. ``async with app.testing() as t:``"""

    __test__ = False

    def __init__(
        self,
        app: App,
        beginning: datetime = BEGINNING,
        concurrency: int = 64,
        store: str = IN_MEMORY,
        second_pass: bool = True,
    ) -> None:
        self.app = app
        self._second_pass = second_pass
        self._store = store
        self.clock = VirtualClock(beginning)
        self._concurrency = concurrency
        self._engine: Engine | None = None
        self._faulty: FaultyEngine | None = None
        self._crashes: list[Crash] = []
        self._worker: Worker | None = None
        self._before: tuple[str, Any] = (app.url, None)
        self._restore = contextlib.ExitStack()
        self._begun: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._skipping = asyncio.Lock()
        self._skippers: set[asyncio.Task[None]] = set()

    # -- opening -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        app = self.app
        if app.is_open:
            raise BadOptions("testing: the app is open; use app.testing() instead of opening it", option="testing")
        self._before = (app.url, None)
        app.url = self._store
        app.second_pass = self._second_pass
        engine = self._engine = await Engine.open(self._store, clock=self.clock, single_node=True)
        await app.open_on(engine)
        self._faulty = FaultyEngine(app.engine)
        app.replace_engine(self._faulty, _SkippingCompletions(app, self))
        app.gates.clock = lambda: self.clock.now_ms / 1000
        for definition in (*app.definitions.values(), *app.steps.values()):
            self._count(definition)
        lanes = {app.lane, *(each.options.lane for each in app.definitions.values() if each.options.lane)}
        needs = {need for each in app.definitions.values() for need in each.options.needs}
        self._worker = app.worker(lanes=sorted(lanes), capabilities=needs, concurrency=self._concurrency)
        await self._worker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            assert self._worker is not None
            for task in self._skippers:
                task.cancel()
            self._worker.stop(now=True)
            await self._worker.__aexit__(None, None, None)
            await self.app.close()
        finally:
            self.app.url = self._before[0]
            self.app.second_pass = False
            self._restore.close()
        missed = [str(each) for each in self._crashes if not each.happened]
        if kind is None and missed:
            raise AssertionError(f"{', '.join(missed)}: no such write was made, so nothing was tested")

    # -- arranging -----------------------------------------------------------------------------------------------

    def replace(
        self,
        target: Any,
        *,
        returns: Any = _NOTHING,
        raises: BaseException | type[BaseException] | None = None,
        using: Callable[..., Any] | None = None,
    ) -> None:
        """Let a task, step, workflow or dependency do something else until the test ends: give a value, raise an
        error, or call another function with the same arguments."""
        if (returns is not _NOTHING) + (raises is not None) + (using is not None) != 1:
            raise BadOptions("replace: pass one of returns=, raises=, using=", option="replace")

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if raises is not None:
                raise raises
            return using(*args, **kwargs) if using is not None else returns

        if not isinstance(target, Definition):
            self._restore.enter_context(self.app.override(target, stand_in if using is None else using))
            return
        function = using if using is not None and inspect.iscoroutinefunction(using) else _on_the_loop(stand_in)
        self._set_function(target, function)
        self._count(target)

    def crash(self, target: Any, *, before: str | None = None, after: str | None = None, times: int = 1) -> None:
        """Let the worker die at a write of these runs: ``before="complete"``, ``after="step"``, … The lease runs out,
        and another worker goes on. Writes are complete, fail, cancel, step, emit, suspend, progress and
        spend. If there is no such write, the test fails."""
        assert self._faulty is not None
        self._crashes.append(crash_of(target, before, after, times))
        self._faulty.crashes.append(self._crashes[-1])

    def _count(self, definition: Definition[..., Any]) -> None:
        """Count how often the function is begun."""
        inner, name, begun = definition.function, definition.name, self._begun
        if definition.is_async:

            async def counted(*args: Any, **kwargs: Any) -> Any:
                begun[name] += not IS_SECOND.get()
                return await inner(*args, **kwargs)

            self._set_function(definition, counted)
        else:

            def counted_plainly(*args: Any, **kwargs: Any) -> Any:
                begun[name] += not IS_SECOND.get()
                return inner(*args, **kwargs)

            self._set_function(definition, counted_plainly)

    def _set_function(self, definition: Definition[..., Any], function: Callable[..., Any]) -> None:
        self._restore.callback(setattr, definition, "function", definition.function)
        definition.function = function

    # -- looking -------------------------------------------------------------------------------------------------

    def attempts(self, target: Definition[..., Any]) -> int:
        """How often a task, step or workflow was begun in this test. A workflow that goes on after a pause is begun
        again."""
        return self._begun[target.name]

    async def steps(self, run: Run[Any]) -> dict[str, Any]:
        """What a workflow remembers: names and values, as plain JSON; an error as its text."""
        import msgspec

        def shown(step: StepRecord) -> Any:
            return None if step.value is None else msgspec.json.decode(step.value)

        return {step.name: shown(step) for step in await run.steps()}

    async def next(self, what: type[Ask[Any]] = Ask) -> OpenAsk:
        """The next question that is asked and was not given before; time is skipped until there is one."""

        async def look() -> OpenAsk | None:
            for ask in await open_asks(self.app):
                if ask.id not in self._seen:
                    self._seen.add(ask.id)
                    return ask
            return None

        return await self.until(look, "a question")

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str = "the awaited state") -> T:
        """Skip time until ``look`` gives something."""
        for _ in range(MOST_SKIPS):
            await self.idle()
            found = await look()
            if found is not None:
                return found
            if not await self._skip():
                raise Stuck(f"{what} never comes: nothing is running or due. {await self._explained()}")
        raise Stuck(f"{what} did not come after skipping time {MOST_SKIPS} times")

    # -- time ----------------------------------------------------------------------------------------------------

    async def idle(self) -> None:
        """Until everything that can run without waiting has run."""
        quiet = 0
        while quiet < QUIET_TURNS:
            if await self._is_busy():
                quiet = 0
                await asyncio.sleep(BUSY_PAUSE_S)
            else:
                quiet += 1
                await asyncio.sleep(0)

    async def advance(self, duration: timedelta) -> None:
        """Let so much time pass; everything that falls due on the way happens in its order."""
        engine = self._open_engine
        target = self.clock.now_ms + milliseconds(duration)
        await self.idle()
        while (due := await engine.next_due_ms()) is not None and due <= target:
            self.clock.move_to(due)
            if not await self._run_due():
                break
            await self.idle()
        self.clock.move_to(target)
        await self._run_due()
        await self.idle()

    async def _skip(self) -> bool:
        """Move to what falls due next; ``False`` if there is nothing."""
        async with self._skipping:
            if await self._is_busy():
                return True  # somebody else has skipped meanwhile
            due = await self._open_engine.next_due_ms()
            if due is None:
                return False
            late = due <= self.clock.now_ms
            self.clock.move_to(due)
            done = await self._run_due()
            if late and not done:
                # Something is due and nobody can do it now: let a little time pass.
                self.clock.move_to(self.clock.now_ms + 1_000)
            return True

    async def _run_due(self) -> int:
        return sum((await self._open_engine.run_due()).values())

    async def _is_busy(self) -> bool:
        """Whether a living worker holds something, or something waits that one will take."""
        engine, worker, faulty = self._open_engine, self._worker, self._faulty
        assert worker is not None and faulty is not None
        if worker.running or engine.has_slots_to_offer:
            return True
        leases = await engine.list_expired_leases(as_of=_FAR_MS)
        if any(not faulty.is_dead(each.execution_id, each.lease_epoch) for each in leases.entries):
            return True
        return any([await engine.scan_eligible_executions(lane, limit=1) for lane in worker.lanes])

    @property
    def _open_engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    async def _explained(self) -> str:
        for partition in range(self._open_engine.partitions.flow):
            page = await self._open_engine.list_suspended(partition)
            for entry in page.entries:
                return f"{entry.execution_id}: {(await self._open_engine.explain(entry.execution_id)).sentence}"
        return ""

    @contextlib.contextmanager
    def skipping_for(self, run_id: str, told: asyncio.Future[None]) -> Iterator[None]:
        """Somebody waits for the end of a run."""
        task = asyncio.get_running_loop().create_task(self._skip_until(run_id, told), name="flowfabric-testing")
        self._skippers.add(task)
        task.add_done_callback(self._skippers.discard)
        try:
            yield
        finally:
            task.cancel()

    async def _skip_until(self, run_id: str, told: asyncio.Future[None]) -> None:
        for _ in range(MOST_SKIPS):
            await self.idle()
            if told.done():
                return
            if not await self._skip():
                why = (await self._open_engine.explain(run_id)).sentence
                if told.done():
                    return
                told.set_exception(Stuck(f"run {run_id} will never end: {why}", run=run_id))
                return
        if not told.done():
            told.set_exception(Stuck(f"run {run_id} did not end after skipping time {MOST_SKIPS} times"))


class _SkippingCompletions(Completions):
    """Waiting for a result lets time be skipped."""

    def __init__(self, app: App, kit: Testing) -> None:
        super().__init__(app)
        self._kit = kit

    @contextlib.contextmanager
    def parked(self, run_id: str) -> Iterator[asyncio.Future[None]]:
        with super().parked(run_id) as told, self._kit.skipping_for(run_id, told):
            yield told


def _on_the_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    async def called(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return await found if asyncio.iscoroutine(found) else found

    return called
