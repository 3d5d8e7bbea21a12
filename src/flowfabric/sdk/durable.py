"""What a running workflow is to the functions called in it.

``CURRENT`` holds the workflow that is running here. Tasks, steps, ``sleep`` and asks look there: inside a workflow a
call goes through it and is remembered, outside it is an ordinary call.
"""

from __future__ import annotations

import asyncio
from asyncio import gather
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from flowfabric.sdk.durations import duration as checked

if TYPE_CHECKING:
    from flowfabric.sdk.definitions import Step, Task, Workflow
    from flowfabric.sdk.options import StartOptions

__all__ = ["CURRENT", "Durable", "gather", "sleep"]


class Durable(Protocol):
    """A running workflow: remembers what its calls gave, and parks while they wait."""

    async def call_task(
        self, task: Task[..., Any] | Workflow[..., Any], payload: bytes, options: StartOptions
    ) -> Any: ...

    async def call_step(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None
    ) -> Any: ...

    async def sleep(self, duration: timedelta, key: str | None) -> None: ...

    async def ask(self, ask: Any) -> Any: ...


CURRENT: ContextVar[Durable | None] = ContextVar("flowfabric_current_workflow", default=None)


async def sleep(duration: timedelta, *, key: str | None = None) -> None:
    """Wait. Inside a workflow the wait is durable and holds no worker; outside it is ``asyncio.sleep``."""
    checked(duration, "sleep", zero=True)
    workflow = CURRENT.get()
    if workflow is not None:
        await workflow.sleep(duration, key)
    else:
        await asyncio.sleep(duration.total_seconds())
