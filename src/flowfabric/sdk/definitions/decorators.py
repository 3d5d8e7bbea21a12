"""The types of decorators that take options. A function that takes its ``Ctx`` first is called without it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from flowfabric.sdk.definitions.tasks import Step, Task, Workflow

if TYPE_CHECKING:
    from flowfabric.sdk.context import Ctx

P = ParamSpec("P")
T = TypeVar("T")


class TaskDecorator(Protocol):
    """What ``app.task(…)`` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, T]]) -> Task[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Task[P, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Ctx, P], T]) -> Task[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T]) -> Task[P, T]: ...


class StepDecorator(Protocol):
    """What ``app.step(…)`` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, T]]) -> Step[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Step[P, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Ctx, P], T]) -> Step[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T]) -> Step[P, T]: ...


class WorkflowDecorator(Protocol):
    """What ``app.workflow(…)`` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, T]]) -> Workflow[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Workflow[P, T]: ...
