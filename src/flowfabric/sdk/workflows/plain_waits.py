"""Which tasks of a workflow wait for something outside of it, and may go on by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flowfabric.sdk.workflows.branches import Contained

_PACKAGE = str(Path(__file__).parent.parent.parent)
_ASYNCIO = str(Path(asyncio.__file__).parent)
#: Modules of asyncio that wait for other tasks, and functions of another that do.
_AMONG_TASKS = {f"{_ASYNCIO}/{name}.py" for name in ("locks", "queues", "taskgroups")}
_FOR_TASKS = {(f"{_ASYNCIO}/tasks.py", name) for name in ("_wait", "wait_for")}


def plain_waits(tasks: Iterable[asyncio.Task[Any]]) -> set[asyncio.Future[Any]]:
    """What they wait for."""
    found: set[asyncio.Future[Any]] = set()
    for task in tasks:
        awaited = getattr(task, "_fut_waiter", None)
        if awaited is None or awaited.done() or isinstance(awaited, asyncio.Task) or hasattr(awaited, "_children"):
            continue
        if not _waits_for_tasks(task):
            found.add(awaited)
    return found


def _waits_for_tasks(task: asyncio.Task[Any]) -> bool:
    """Whether the function that it has come to waits for a call, or for another task."""
    running: Any = task.get_coro()
    if isinstance(running, Contained):
        running = running.call
    while (inner := getattr(running, "cr_await", None)) is not None and hasattr(inner, "cr_code"):
        running = inner
    code = getattr(running, "cr_code", None)
    if code is None:
        return False
    place: str = code.co_filename
    return place.startswith(_PACKAGE) or place in _AMONG_TASKS or (place, code.co_name) in _FOR_TASKS
