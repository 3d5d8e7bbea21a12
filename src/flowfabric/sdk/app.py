"""``App``: a store, a namespace and the definitions that run there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast, overload

from flowfabric.sdk.definitions.decorators import StepDecorator, TaskDecorator, WorkflowDecorator
from flowfabric.sdk.definitions.depends import Overrides, Provider
from flowfabric.sdk.definitions.tasks import Arguments, Definition, Step, Task, Workflow
from flowfabric.sdk.errors import BadOptions, NotOpen, UnknownTask
from flowfabric.sdk.options import Budget, Limit, Rate, Retry, Reuse, RunIn, TaskOptions, refuse_unknown
from flowfabric.sdk.runs.logs import level_of
from flowfabric.sdk.runs.run import Run, RunStatus

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.model.operations.schedules import CatchUp, Overlap, ScheduleSpec
    from flowfabric.sdk.asks.answer import Answered
    from flowfabric.sdk.asks.ask import OpenAsk
    from flowfabric.sdk.context import Ctx
    from flowfabric.sdk.runs.lanes import LaneControl
    from flowfabric.sdk.runs.limits import Gates
    from flowfabric.sdk.runs.results import Completions
    from flowfabric.sdk.runs.schedules import ScheduleDecorator, Schedules
    from flowfabric.sdk.runs.search import Runs
    from flowfabric.sdk.sync import BlockingApp
    from flowfabric.sdk.testing import Testing
    from flowfabric.sdk.worker import Worker
    from flowfabric.telemetry.worker import WorkerMetrics

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound=Definition[..., Any])


async def _run_ask(job: Any) -> None:
    from flowfabric.sdk.asks.ask import run_ask

    await run_ask(job)


#: Bytes of a name, and what a name must not have: workflows record their calls under names with branches, keys and
#: numbers.
MAX_NAME = 200
_NOT_IN_NAMES = re.compile(r"[#!~>\[\]\x00-\x1f]|^ask:")
#: What workflows call without a definition.
_OWN_NAMES = frozenset({"first", "sleep"})


class App:
    """Definitions and a store for their runs. Creating one does no I/O; ``async with app:`` opens it.

    ``url`` is ``sqlite:///file``, ``postgresql://…``, ``valkey://…`` or ``memory://``, or the address of a server
    (``https://…``, or several of them separated by commas), which is called with ``token``. Every run belongs to
    ``namespace`` and, unless told otherwise, waits in ``lane``. A run whose worker is lost more than ``lost_workers``
    times is assumed to be the cause and fails; for a workflow only losses since it last recorded something or waited
    count. ``ctx.log`` lines from the level ``stored_logs`` on are stored beside the run; ``None`` stores none.
    ``layers`` wrap the engine, the last one outermost.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        namespace: str = "default",
        lane: str = "default",
        single_node: bool = True,
        lost_workers: int = 5,
        stored_logs: str | int | None = "INFO",
        layers: Sequence[Callable[[Any], Any]] = (),
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = url
        #: Whether workflows are called once more, from memory, before they end; see ``testing``.
        self.second_pass = False
        self._token = token
        if token is not None and not self.is_remote:
            raise BadOptions("token: only a server (http://…, https://…) takes a token", option="token")
        self.namespace = namespace
        self.lane = lane
        self.single_node = single_node
        self.lost_workers = lost_workers
        self.stored_logs = level_of(stored_logs)
        self.layers = tuple(layers)
        self.definitions: dict[str, Definition[..., Any]] = {}
        self.steps: dict[str, Step[..., Any]] = {}
        #: Executions of the SDK's own, by kind: names that begin with ``$``.
        self.builtin_kinds: dict[str, Callable[[Any], Coroutine[Any, Any, None]]] = {"$ask": _run_ask}
        self.overrides = Overrides()
        self._engine_options = dict(engine_options or {})
        self._engine: Engine | None = None
        self._gates: Gates | None = None
        self._completions: Completions | None = None
        self._schedules: Schedules | None = None
        self._metrics: WorkerMetrics | None = None
        self._opened = 0
        #: Held while the engine is opened, so that two callers that begin together open one.
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sync: BlockingApp | None = None

    def __repr__(self) -> str:
        return f"<app {self.namespace}>"

    # -- lanes ---------------------------------------------------------------------------------------------------

    def lane_control(self, name: str | None = None) -> LaneControl:
        """A lane (the app's own if none is named), to pause, drain, resume or share between keys."""
        from flowfabric.sdk.runs.lanes import LaneControl

        return LaneControl(self, name or self.lane)

    # -- questions -----------------------------------------------------------------------------------------------

    async def asks(self, run: Run[Any] | str | None = None, *, wait: timedelta | None = None) -> list[OpenAsk]:
        """The open questions of a run, or of all runs in the app's namespace; newest first.

        Without ``wait`` it checks once. With ``wait`` it returns as soon as there is a question, or with an empty list
        if there are none by then. A run that has ended has no open questions, so for such a run it returns at once.
        """
        from flowfabric.sdk.asks.find import open_asks, wait_for_asks

        return await (open_asks(self, run) if wait is None else wait_for_asks(self, run, wait))

    async def answer(self, link: str, value: Any, *, identity: str = "") -> Answered:
        """Answer a question with the link that an approver was given (``ask.link("legal")``). ``identity`` is stored
        with the answer. Repeating the same answer changes nothing and sets ``repeated``. Raises ``BadAnswer`` if the
        text is not a link or the answer does not match its type, ``AlreadyAnswered`` if the approver has given a
        different answer, and an ``EngineError`` if the link is forged (``invalid_token``) or the question is closed
        (``target_not_signalable``, ``waitpoint_closed``)."""
        from flowfabric.sdk.asks.ask import answer

        return await answer(self, link, value, identity=identity)

    # -- opening -------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine, while the app is open."""
        if self._engine is None:
            raise NotOpen("the app is not open; write `async with app:` around this")
        return self._engine

    @property
    def is_remote(self) -> bool:
        """Whether the engine runs behind a server."""
        return self.url.startswith(("http://", "https://"))

    @property
    def is_open(self) -> bool:
        """Whether the app is open."""
        return self._engine is not None

    @property
    def gates(self) -> Gates:
        """Limits and budgets that this app has named."""
        if self._gates is None:
            from flowfabric.sdk.runs.limits import Gates

            self._gates = Gates(self)
        return self._gates

    @property
    def metrics(self) -> WorkerMetrics:
        """The metrics of the app's workers in this process, for ``/metrics``."""
        if self._metrics is None:
            from flowfabric.telemetry.worker import WorkerMetrics

            self._metrics = WorkerMetrics()
        return self._metrics

    @property
    def completions(self) -> Completions:
        """The ends of runs, for callers that wait for them."""
        if self._completions is None:
            from flowfabric.sdk.runs.results import Completions

            self._completions = Completions(self)
        return self._completions

    async def open(self) -> Self:
        """Open the store. Opening an open app again only counts; the last ``close`` closes it."""
        loop = asyncio.get_running_loop()
        if not self._opened:
            self._loop, self._opening = loop, asyncio.Lock()
        elif self._loop is not loop:
            raise NotOpen(
                "the app is already open on another event loop; await its methods there, or let each loop have an app "
                "of its own"
            )
        self._opened += 1
        try:
            async with self._opening:
                if self._engine is None:
                    self.attach(await self.open_engine())
        except BaseException:
            self._opened -= 1
            raise
        return self

    def move(self, url: str, token: str | None = None, *, patience: timedelta | None = None) -> None:
        """Use another store or server than the one the app was created with; call it before opening. ``patience`` is
        how long to wait for a server that cannot be reached."""
        if self._engine is not None:
            raise BadOptions("url: the app is already open; set the url first", option="url")
        self.url = url
        self._token = token if self.is_remote else None
        if patience is not None and self.is_remote:
            self._engine_options["patience_s"] = patience.total_seconds()

    async def open_engine(self) -> Engine:
        """Another engine on the same store, without layers, which the caller has to close; not for stores in memory."""
        if self.is_remote:
            from flowfabric.sdk.remote.engine import RemoteEngine

            remote: Any = await RemoteEngine.open(self.url, self._token, **self._engine_options)
            return remote  # type: ignore[no-any-return]
        from flowfabric.engine import Engine

        return await Engine.open(self.url, single_node=self.single_node, **self._engine_options)

    def attach(self, engine: Engine) -> None:
        """Use this open engine, wrapped in the app's layers."""
        wrapped: Any = engine
        for layer in self.layers:
            wrapped = layer(wrapped)
        self._engine = wrapped

    async def open_on(self, engine: Engine) -> Self:
        """Open on an engine that the caller has created; ``close`` closes it."""
        if self._engine is not None:
            raise BadOptions("the app is already open", option="engine")
        self._opened += 1
        self._loop = asyncio.get_running_loop()
        self.attach(engine)
        return self

    def replace_engine(self, engine: Any, completions: Completions) -> None:
        """Continue with another engine on the same store, and another source of completions; for tests."""
        self._engine, self._completions = engine, completions

    def testing(self, **options: Any) -> Testing:
        """The app in memory, with a clock that skips idle time: ``async with app.testing() as t:``. Code that starts
        runs with ``tx=`` needs a database: ``app.testing(store="sqlite:///test.db")``."""
        from flowfabric.sdk.testing import Testing

        return Testing(self, **options)

    async def close(self) -> None:
        """Close what ``open`` opened."""
        self._opened = max(0, self._opened - 1)
        if self._opened or self._engine is None:
            return
        engine, completions = self._engine, self._completions
        self._engine = self._gates = self._completions = None
        try:
            if completions is not None:
                await completions.close()
        finally:
            await engine.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def sync(self) -> BlockingApp:
        """The app as blocking calls, for code that cannot await: ``with app.sync as blocking: …``."""
        if self._sync is None:
            from flowfabric.sdk.sync import BlockingApp

            self._sync = BlockingApp(self)
        return self._sync

    # -- definitions ---------------------------------------------------------------------------------------------

    def _register(self, definition: D, registry: dict[str, Any]) -> D:
        name = definition.name
        if not name or name.startswith("$"):
            raise BadOptions(f"name: {name!r}: a name must not be empty or begin with '$'", option="name")
        if _NOT_IN_NAMES.search(name) or name in _OWN_NAMES or len(name.encode()) > MAX_NAME:
            own = " or ".join(map(repr, sorted(_OWN_NAMES)))
            raise BadOptions(
                f"name: {name[:MAX_NAME]!r}: a name has at most {MAX_NAME} bytes, none of # ! ~ > [ ] and no control "
                f"characters, does not begin with ask:, and is not {own}; pass another one as name=",
                option="name",
            )
        taken = self.definitions.get(name) or self.steps.get(name)
        if taken is not None:
            raise BadOptions(
                f"name: there is a {taken.noun} {name!r} already; give one of them another name=", option="name"
            )
        registry[name] = definition
        return definition

    def definition(self, name: str) -> Definition[..., Any]:
        """The task or workflow of that name."""
        try:
            return self.definitions[name]
        except KeyError:
            known = ", ".join(sorted(self.definitions)) or "none"
            raise UnknownTask(
                f"no task or workflow {name!r}; import the module that defines it. Known: {known}",
                task=name,
            ) from None

    @overload
    def task(self, function: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, T]], /) -> Task[P, T]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, T]: ...
    @overload
    def task(self, function: Callable[Concatenate[Ctx, P], T], /) -> Task[P, T]: ...
    @overload
    def task(self, function: Callable[P, T], /) -> Task[P, T]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: timedelta | None = None,
        deadline: timedelta | None = None,
        priority: int = 0,
        lane: str | None = None,
        needs: Iterable[str] = (),
        tags: Mapping[str, str] | None = None,
        limits: Iterable[Limit | Rate] = (),
        budget: Budget | Iterable[Budget] | None = None,
        id: str | None = None,
        reuse: Reuse | None = None,
        run_in: RunIn = "thread",
        retention: timedelta | None = None,
    ) -> TaskDecorator: ...
    def task(self, *function: Any, **options: Any) -> Any:
        """Make a function a task: ``@app.task`` or ``@app.task(retry=3, …)``.

        ``name``: the name under which its runs are stored; by default the function's. Keep it when you rename the
        function.
        """
        return self._decorated(Task, self.definitions, function, options)

    @overload
    def step(self, function: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, T]], /) -> Step[P, T]: ...
    @overload
    def step(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Step[P, T]: ...
    @overload
    def step(self, function: Callable[Concatenate[Ctx, P], T], /) -> Step[P, T]: ...
    @overload
    def step(self, function: Callable[P, T], /) -> Step[P, T]: ...
    @overload
    def step(
        self,
        *,
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: timedelta | None = None,
        run_in: RunIn = "thread",
    ) -> StepDecorator: ...
    def step(self, *function: Any, **options: Any) -> Any:
        """Make a function a step: a workflow runs it in place and records its result. ``@app.step`` or
        ``@app.step(retry=3, …)``.

        ``name``: the name under which its results are recorded; by default the function's. Keep it when you rename
        the function.
        """
        return self._decorated(Step, self.steps, function, options)

    @overload
    def workflow(self, function: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, T]], /) -> Workflow[P, T]: ...
    @overload
    def workflow(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Workflow[P, T]: ...
    @overload
    def workflow(
        self,
        *,
        name: str | None = None,
        id: str | None = None,
        version: str | None = None,
        retry: Retry | int | None = None,
        timeout: timedelta | None = None,
        deadline: timedelta | None = None,
        priority: int = 0,
        lane: str | None = None,
        needs: Iterable[str] = (),
        tags: Mapping[str, str] | None = None,
        limits: Iterable[Limit | Rate] = (),
        budget: Budget | Iterable[Budget] | None = None,
        reuse: Reuse | None = None,
        retention: timedelta | None = None,
        cancel_grace: timedelta | None = None,
    ) -> WorkflowDecorator: ...
    def workflow(self, *function: Any, **options: Any) -> Any:
        """Make a coroutine function a workflow: durable, recorded call by call. ``@app.workflow`` or
        ``@app.workflow(id="order:{number}", …)``.

        ``name``: the name under which its runs are stored; by default the function's. Keep it when you rename the
        function.
        """
        return self._decorated(Workflow, self.definitions, function, options)

    def _decorated(
        self,
        kind: type[Any],
        registry: dict[str, Any],
        functions: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        name = options.pop("name", None)
        refuse_unknown(options, kind.__name__.lower())
        settings = TaskOptions.of(**options)

        def decorate(given: Callable[..., Any]) -> Any:
            if not callable(given):
                raise BadOptions(f"{given!r} is not a function", option="function")
            chosen = getattr(given, "__name__", "") if name is None else name
            return self._register(kind(self, given, chosen, settings), registry)

        return decorate(*functions) if functions else decorate

    # -- schedules -----------------------------------------------------------------------------------------------

    @property
    def schedules(self) -> Schedules:
        """Schedules as they are stored: list, pause, resume, change, trigger and delete them at run time."""
        if self._schedules is None:
            from flowfabric.sdk.runs.schedules import Schedules

            self._schedules = Schedules(self)
        return self._schedules

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        overlap: Overlap | str = "skip",
        catch_up: CatchUp | str = "last",
        catch_up_limit: int = 100,
        jitter: timedelta | None = None,
    ) -> ScheduleDecorator:
        """Start a function by the clock of a time zone: ``@app.cron("0 6 * * mon-fri", tz="Europe/Paris")``.

        A plain function becomes a task; above ``@app.task(…)`` or ``@app.workflow(…)`` it schedules that task or
        workflow. If it has parameters, use ``app.schedule``.
        """
        from flowfabric.sdk.runs.schedules import Rules, spec_of

        rules = Rules.of(overlap, catch_up, catch_up_limit, jitter)
        return self._scheduled(spec_of(expression, tz, None, None), rules, name)

    def every(
        self,
        interval: timedelta,
        *,
        anchor: datetime | None = None,
        name: str | None = None,
        overlap: Overlap | str = "skip",
        catch_up: CatchUp | str = "last",
        catch_up_limit: int = 100,
        jitter: timedelta | None = None,
    ) -> ScheduleDecorator:
        """Start a function at equal intervals: ``@app.every(minutes(5))`` runs at :00, :05, :10 …, whenever a worker
        was started. ``anchor`` is a time from which the intervals are counted. Otherwise like ``cron``."""
        from flowfabric.sdk.runs.schedules import Rules, spec_of

        rules = Rules.of(overlap, catch_up, catch_up_limit, jitter)
        return self._scheduled(spec_of(None, "UTC", interval, anchor), rules, name)

    def _scheduled(self, spec: ScheduleSpec, rules: Any, name: str | None) -> ScheduleDecorator:
        def decorate(given: Any) -> Any:
            definition = given if isinstance(given, Definition) else self.task(given)
            return self.schedules.plan(definition, name, spec, rules, None)  # type: ignore[type-var]

        return cast("ScheduleDecorator", decorate)

    def schedule(
        self,
        definition: Task[P, T] | Workflow[P, T],
        arguments: Arguments[P] | tuple[Any, ...] = (),
        *,
        name: str,
        cron: str | None = None,
        tz: str = "UTC",
        every: timedelta | None = None,
        anchor: datetime | None = None,
        overlap: Overlap | str = "skip",
        catch_up: CatchUp | str = "last",
        catch_up_limit: int = 100,
        jitter: timedelta | None = None,
    ) -> None:
        """Start a task or workflow by the clock, with fixed arguments and a name for the schedule:
        ``app.schedule(report, report.bind("acme"), cron="0 6 * * *", tz="Europe/Paris", name="report for acme")``. Pass
        options with ``using``: ``app.schedule(report.using(priority=5), …)``."""
        from flowfabric.sdk.runs.schedules import Rules, spec_of

        rules = Rules.of(overlap, catch_up, catch_up_limit, jitter)
        self.schedules.plan(definition, name, spec_of(cron, tz, every, anchor), rules, arguments)

    def override(self, provider: Provider, replacement: Provider) -> AbstractContextManager[None]:
        """Replace the provider of a dependency for the duration of the block; for tests."""
        found: AbstractContextManager[None] = self.overrides.override(provider, replacement)
        return found

    # -- workers -------------------------------------------------------------------------------------------------

    def worker(
        self,
        *,
        lanes: Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int = 64,
        capabilities: Iterable[str] = (),
        name: str | None = None,
        lease_ttl: timedelta = timedelta(seconds=30),
        drain_grace: timedelta = timedelta(seconds=20),
        processes: int | None = None,
        metrics: bool = True,
    ) -> Worker:
        """A worker for this app: ``async with app.worker():`` beside other code, or ``await app.worker().run()``."""
        from flowfabric.sdk.worker import Worker

        return Worker(
            self,
            lanes=lanes,
            concurrency=concurrency,
            capabilities=capabilities,
            name=name,
            lease_ttl=lease_ttl,
            drain_grace=drain_grace,
            processes=processes,
            metrics=metrics,
        )

    def run_worker(self, **options: Any) -> None:
        """Run a worker in this thread until SIGTERM or SIGINT; takes the options of ``worker``."""
        from flowfabric.sdk.worker import run_worker

        run_worker(self, **options)

    # -- runs ----------------------------------------------------------------------------------------------------

    @overload
    def run(self, id: str) -> Run[Any]: ...
    @overload
    def run(self, id: str, type: Task[..., T] | Workflow[..., T]) -> Run[T]: ...
    def run(self, id: str, type: Task[..., T] | Workflow[..., T] | None = None) -> Run[Any]:
        """The run with this id. With its task or workflow, its result is converted to the annotated type; otherwise it
        is plain JSON."""
        return Run(self, id, None if type is None else type.signature)

    def runs(
        self,
        *,
        state: RunStatus | str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        lane: str | None = None,
        limit: int | None = None,
    ) -> Runs:
        """Runs that match, to iterate over, or to cancel or replay together; see ``Runs``."""
        from flowfabric.sdk.runs.search import Runs

        return Runs(self, state=state, name=name, tags=tags, lane=lane, limit=limit)
