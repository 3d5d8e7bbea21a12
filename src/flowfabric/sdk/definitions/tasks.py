"""Tasks, steps and workflows as the decorators return them; still called like the functions they wrap."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from flowfabric.sdk.definitions.depends import Dependencies
from flowfabric.sdk.definitions.signature import Signature
from flowfabric.sdk.errors import BadOptions, BadSignature
from flowfabric.sdk.options import Budget, Debounce, Reuse, StartOptions, TaskOptions
from flowfabric.sdk.workflows.durable import CURRENT

if TYPE_CHECKING:
    from flowfabric.sdk.app import App
    from flowfabric.sdk.runs.run import Run

P = ParamSpec("P")
T = TypeVar("T")

_NO_OPTIONS = StartOptions()


class Arguments(Generic[P]):
    """The arguments of one call, for ``start_many``."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs


class Definition(Generic[P, T]):
    """A function with a name that outlives the process, and what holds for its runs."""

    #: How people call it in messages.
    noun = "definition"

    def __init__(self, app: App, function: Callable[..., Any], name: str, options: TaskOptions) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.options = options
        self.start_options = _NO_OPTIONS
        self.signature = Signature(function, name)
        functools.update_wrapper(self, function, updated=())  # type: ignore[arg-type]
        self._check()

    def _check(self) -> None:
        if inspect.isasyncgenfunction(self.function) or inspect.isgeneratorfunction(self.function):
            raise BadSignature(
                f"{self.name}: a {self.noun} returns its result; emit pieces with ctx.emit", task=self.name
            )

    @property
    def kind(self) -> str:
        """The engine's word for the name: the execution kind."""
        return self.name

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function and runs on the loop."""
        return inspect.iscoroutinefunction(inspect.unwrap(self.function))

    def __repr__(self) -> str:
        return f"<{self.noun} {self.name}>"

    def using(
        self,
        *,
        key: str | None = None,
        id: str | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        deadline: timedelta | None = None,
        tags: Mapping[str, str] | None = None,
        lane: str | None = None,
        budget: Budget | Iterable[Budget] | None = None,
        tx: Any = None,
        debounce: Debounce | None = None,
        reuse: Reuse | None = None,
    ) -> Self:
        """The same task with options for what you start from it: ``review.using(priority=5).start(doc)``."""
        options = StartOptions(
            key=key,
            id=id,
            priority=priority,
            delay=delay,
            deadline=deadline,
            tags=tags,
            lane=lane,
            budget=budget,  # type: ignore[arg-type]  # normalised to a tuple
            tx=tx,
            debounce=debounce,
            reuse=reuse,
        )
        self._check_options(options)
        other = copy.copy(self)
        other.start_options = options
        return other

    def _check_options(self, options: StartOptions) -> None:
        """Refuse options that do not fit this kind of definition."""

    async def run_here(self, arguments: Mapping[str, Any], provided: Mapping[str, Any]) -> T:
        """Run the function in this process: a coroutine function on the loop, another one in a thread."""
        args, kwargs = self.signature.call(arguments, provided)
        if self.is_async:
            result: T = await self.function(*args, **kwargs)
            return result
        return await asyncio.to_thread(self.function, *args, **kwargs)

    async def _call_directly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
        """The plain function; what is provided is made for this call, unless the caller brings it."""
        wanted = self.signature.injected
        brought = {name: value for name, value in kwargs.items() if name in wanted}
        passed = {name: value for name, value in kwargs.items() if name not in wanted}
        arguments = self.signature.bind(args, passed)
        missing = {name: each for name, each in wanted.items() if name not in brought}
        if not missing:
            return await self.run_here(arguments, brought)
        async with Dependencies(self.app.overrides) as dependencies, dependencies.attempt() as attempt:
            return await self.run_here(arguments, brought | await attempt.resolve(missing))


# Calls are typed `Coroutine[object, None, T]`: with an `Any` in it, type checkers give up on `gather` of calls whose
# results differ.


class Startable(Definition[P, T]):
    """A definition whose runs are executions of their own: tasks and workflows."""

    def _check(self) -> None:
        super()._check()
        from flowfabric.sdk.runs.start import check_templates

        check_templates(self)

    def _check_options(self, options: StartOptions) -> None:
        from flowfabric.sdk.runs.start import check_template

        if options.id is not None:
            check_template(self, options.id)
        if options.debounce is not None:
            check_template(self, options.debounce.key)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Run[T]]:
        """Start a run with these arguments. It is stored when this has been awaited. A workflow starts it once, however
        often its code runs again."""
        from flowfabric.sdk.runs.start import start

        workflow = CURRENT.get()
        if workflow is None:
            return start(self, args, kwargs, self.start_options)
        return workflow.start_run(self, args, dict(kwargs), self.start_options)

    def start_many(self, calls: Iterable[Any]) -> Coroutine[Any, Any, list[Run[T]]]:
        """Start many runs, up to 100,000, in one transaction: all are stored when this returns, or none.

        Each item is the arguments of one call: a tuple of them, ``task.bind(…)`` for keywords, or the one argument by
        itself. A task whose one argument is a tuple takes ``(value,)``. A workflow starts them once, up to 20,000 in
        one call.
        """
        from flowfabric.sdk.runs.start import start_many

        found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for call in calls:
            if isinstance(call, Arguments):
                found.append((call.args, dict(call.kwargs)))
            else:
                found.append((call if isinstance(call, tuple) else (call,), {}))
        workflow = CURRENT.get()
        if workflow is None:
            return start_many(self, found, self.start_options)
        return workflow.start_runs(self, found, self.start_options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Arguments[P]:
        """The arguments of one call, for ``start_many`` and ``app.schedule``. Type checkers check them."""
        return Arguments(args, kwargs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        """Inside a workflow a durable call, a run of its own; elsewhere the plain function."""
        workflow = CURRENT.get()
        if workflow is None:
            return self._call_directly(args, kwargs)
        return workflow.call_task(self, self.signature.pack(args, kwargs), self.start_options)  # type: ignore[arg-type]


class Task(Startable[P, T]):
    """A function whose every start is a run of its own: queued, leased, limited, retried."""

    noun = "task"


class Workflow(Startable[P, T]):
    """A coroutine function that coordinates: the results of its calls are recorded, and its waits hold no worker."""

    noun = "workflow"

    def _check(self) -> None:
        super()._check()
        if not self.is_async:
            raise BadSignature(f"{self.name}: a workflow must be async; put blocking work in steps", task=self.name)


class Step(Definition[P, T]):
    """A function that a workflow calls in place; its result is recorded."""

    noun = "step"

    def _check_options(self, options: StartOptions) -> None:
        if options != StartOptions(key=options.key):
            raise BadOptions(f"{self.name}: a step runs in place: using() takes only key=", task=self.name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        """Inside a workflow remembered; elsewhere the plain function."""
        workflow = CURRENT.get()
        if workflow is None:
            return self._call_directly(args, kwargs)
        return workflow.call_step(self, args, dict(kwargs), self.start_options.key)
