"""What a running workflow is to the functions called in it.

``CURRENT`` holds the workflow that is running here. Tasks, steps, ``sleep`` and asks look there: inside a workflow a
call goes through it and is remembered, outside it is an ordinary call.
"""

from __future__ import annotations

import asyncio
from asyncio import gather
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from random import random as _draw
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID, uuid4
from weakref import WeakSet

import msgspec

from flowfabric.sdk.durations import duration as checked
from flowfabric.sdk.errors import BadOptions

if TYPE_CHECKING:
    from flowfabric.sdk.definitions.tasks import Startable, Step, Task, Workflow
    from flowfabric.sdk.options import StartOptions

T = TypeVar("T")

__all__ = ["CURRENT", "Durable", "first", "gather", "limit", "now", "random", "sleep", "uuid"]


class Durable(Protocol):
    """A running workflow: remembers what its calls gave, and parks while they wait."""

    #: All tasks that its code has made.
    tasks: WeakSet[asyncio.Task[Any]]
    #: Whether it has done what cannot be done a second time to see whether it does the same.
    is_once: bool
    #: Time limits that its code has begun.
    limits: list[Any]

    async def call_task(
        self, task: Task[..., Any] | Workflow[..., Any], payload: bytes, options: StartOptions
    ) -> Any: ...

    async def call_step(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None
    ) -> Any: ...

    async def sleep(self, duration: timedelta, key: str | None) -> None: ...

    async def ask(self, ask: Any) -> Any: ...

    def value(
        self, name: str, make: Callable[[], Awaitable[Any]], read: Callable[[bytes | None], T]
    ) -> Coroutine[Any, Any, T]: ...

    def start_run(
        self, task: Startable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: StartOptions
    ) -> Coroutine[Any, Any, Any]: ...

    def start_runs(
        self,
        task: Startable[..., Any],
        calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
        options: StartOptions,
    ) -> Coroutine[Any, Any, list[Any]]: ...

    async def time(self) -> str: ...

    async def at_work(self, doing: Coroutine[Any, Any, T]) -> T: ...

    async def first(self, calls: Sequence[Awaitable[Any]], key: str | None) -> Any: ...

    def limit(self, call: Awaitable[T], duration: timedelta, key: str | None) -> Coroutine[Any, Any, T]: ...


CURRENT: ContextVar[Durable | None] = ContextVar("flowfabric_current_workflow", default=None)


def sleep(duration: timedelta, *, key: str | None = None) -> Coroutine[Any, Any, None]:
    """Wait. Inside a workflow the wait is durable and holds no worker; outside it is ``asyncio.sleep``."""
    checked(duration, "sleep", zero=True)
    workflow = CURRENT.get()
    return asyncio.sleep(duration.total_seconds()) if workflow is None else workflow.sleep(duration, key)


def first(*calls: Awaitable[T], key: str | None = None) -> Coroutine[Any, Any, T]:
    """What the first call gives that succeeds. The others are cancelled, and so are the runs they stand for.

    Inside a workflow the winner is remembered: ``await first(quick(doc), thorough(doc))``. The calls are those of
    tasks, workflows, steps, asks and ``sleep``; if none succeeds, the first one's error is raised.
    """
    if not calls:
        raise BadOptions("first: there is nothing to wait for", option="first")
    workflow = CURRENT.get()
    return _first(calls) if workflow is None else workflow.first(calls, key)


async def _first(calls: Sequence[Awaitable[T]]) -> T:
    from flowfabric.sdk.workflows.race import race

    found: T = await race(calls)
    return found


def limit(call: Awaitable[T], duration: timedelta, *, key: str | None = None) -> Coroutine[Any, Any, T]:
    """What the call gives, or raises, if it has ended within this time; else it is cancelled, and this raises
    ``TimeoutError``.

    Inside a workflow the time is fixed when the wait begins, goes on while the run is parked, and what came of it is
    remembered: ``await limit(Ask("go on?"), hours(4))``.
    """
    checked(duration, "limit", zero=True)
    workflow = CURRENT.get()
    if workflow is None:
        return _limited(call, duration)
    return workflow.limit(call, duration, key)


async def _limited(call: Awaitable[T], duration: timedelta) -> T:
    async with asyncio.timeout(duration.total_seconds()):
        return await call


def now() -> Coroutine[Any, Any, datetime]:
    """What time it is, in UTC. A workflow that continues gets the time it got before."""

    async def look() -> str:
        return datetime.now(UTC).isoformat()

    workflow = CURRENT.get()
    if workflow is None:
        return _read(look, _time)
    return workflow.value("now()", workflow.time, _time)


def uuid() -> Coroutine[Any, Any, UUID]:
    """A new random id. A workflow that continues gets the id it got before."""

    async def make() -> str:
        return str(uuid4())

    workflow = CURRENT.get()
    return _read(make, _uuid) if workflow is None else workflow.value("uuid()", make, _uuid)


def random() -> Coroutine[Any, Any, float]:
    """A random number from 0 up to 1. A workflow that continues gets the number it got before."""

    async def draw() -> float:
        return _draw()

    workflow = CURRENT.get()
    return _read(draw, _number) if workflow is None else workflow.value("random()", draw, _number)


async def _read(make: Callable[[], Awaitable[Any]], read: Callable[[bytes | None], T]) -> T:
    return read(msgspec.json.encode(await make()))


def _time(data: bytes | None) -> datetime:
    return datetime.fromisoformat(msgspec.json.decode(data or b"", type=str))


def _uuid(data: bytes | None) -> UUID:
    return msgspec.json.decode(data or b"", type=UUID)


def _number(data: bytes | None) -> float:
    return msgspec.json.decode(data or b"", type=float)
