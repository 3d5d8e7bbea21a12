"""Time limits of ``asyncio`` in the code of a workflow.

A limit of ``asyncio`` lives in the loop. Around a step that is as good as anywhere. Around something that the workflow
waits for it would be forgotten whenever the run is parked, and begin again, so a pass that comes to wait for such a
thing ends, and says what to write instead.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from flowfabric.sdk.workflows.durable import CURRENT

_ADVICE = (
    "is around something that this workflow waits for: it would be forgotten whenever the run is parked. Write "
    "limit(call, minutes(5)), or first(call, sleep(minutes(5)))"
)
#: What asyncio calls when such a limit is reached, and what it belongs to.
_CALLED = {
    "Timeout._on_timeout": "asyncio.timeout()",
    "_release_waiter": "the timeout of asyncio.wait() or wait_for()",
    "as_completed.<locals>._on_timeout": "the timeout of asyncio.as_completed()",
    "_AsCompletedIterator._handle_timeout": "the timeout of asyncio.as_completed()",
}
_MARK = "flowfabric_notices_limits"


class TimeLimit(NamedTuple):
    """A limit that was begun in the code of a workflow."""

    name: str
    handle: asyncio.TimerHandle
    task: asyncio.Task[Any]

    def is_running(self) -> bool:
        """Whether it may still be reached."""
        return not (self.handle.cancelled() or self.task.done() or self.handle.when() <= self.task.get_loop().time())


def notice_limits(loop: AbstractEventLoop) -> None:
    """Let the loop tell a workflow of the limits that its code begins."""
    if getattr(loop.call_at, _MARK, False):
        return
    try:
        for name in ("call_at", "call_later"):
            setattr(loop, name, _noticing(getattr(loop, name)))
    except AttributeError:  # pragma: no cover - a loop that does not let itself be asked
        return


def _noticing(timed: Callable[..., asyncio.TimerHandle]) -> Callable[..., asyncio.TimerHandle]:
    def call(when: float, callback: Callable[..., Any], *args: Any, **options: Any) -> asyncio.TimerHandle:
        handle = timed(when, callback, *args, **options)
        workflow = CURRENT.get()
        if workflow is not None:
            name = _CALLED.get(getattr(callback, "__qualname__", ""))
            task = asyncio.current_task() if name is not None else None
            if name is not None and task is not None:
                workflow.limits.append(TimeLimit(name, handle, task))
        return handle

    setattr(call, _MARK, True)
    return call


def limit_around(
    limits: Iterable[TimeLimit], tasks: Collection[asyncio.Task[Any]], waits: Iterable[asyncio.Future[Any]]
) -> str | None:
    """Why the code cannot go on if one of its limits is around one of these waits."""
    running = [each for each in limits if each.is_running()]
    if not running:
        return None
    # All that wait, directly or through each other.
    waiting: set[Any] = set()
    for each in waits:
        _add(each, waiting)
    left = {task for task in tasks if not task.done()}
    while True:
        found = {task for task in left if _waits(getattr(task, "_fut_waiter", None), waiting)}
        if not found:
            break
        left -= found
        for task in found:
            _add(task, waiting)
    return next((f"{each.name} {_ADVICE}" for each in running if each.task in waiting), None)


def _waits(awaited: Any, waiting: set[Any]) -> bool:
    """Whether what is awaited is one of those, or gathers one."""
    if awaited is None:
        return False
    return awaited in waiting or any(_waits(each, waiting) for each in getattr(awaited, "_children", ()))


def _add(future: asyncio.Future[Any], waiting: set[Any]) -> None:
    """It, and what is set when it has ended."""
    if future not in waiting:
        waiting.add(future)
        for each in _told_by(future):
            _add(each, waiting)


def _told_by(future: asyncio.Future[Any]) -> list[asyncio.Future[Any]]:
    """What is set when a future has ended: what ``wait``, ``shield`` and task groups wait for."""
    found: list[asyncio.Future[Any]] = []
    for callback, _ in getattr(future, "_callbacks", None) or ():
        owner = getattr(callback, "__self__", None)
        cells = getattr(callback, "__closure__", None) or ()
        inside = [getattr(owner, "_on_completed_fut", None), getattr(owner, "_done", None)]
        inside += getattr(callback, "args", ())
        for cell in cells:
            try:
                inside.append(cell.cell_contents)
            except ValueError:
                continue
        for each in inside:
            # as_completed has a queue.
            found += [each] if isinstance(each, asyncio.Future) else getattr(each, "_getters", ())
    return found
