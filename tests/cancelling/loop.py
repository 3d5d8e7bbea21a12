"""An event loop for cancelling at any await: its time passes only while nobody has anything to do, its connections are
in memory, and a hook sees every task wait.

With the same numbers the same happens, however quick the machine is. When nobody is left who could go on, the loop says
so at once instead of standing still.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any

from tests.cancelling.network import Network

#: Set in tasks that somebody outside may cancel, and in those that they begin: calls, handlers, requests.
CALLED = ContextVar("called", default=False)
#: Time at which everything must have come to an end; a scene begins at the first of them.
BEGIN_S, LONGEST_S = 1_000.0, 1_600.0


class Stuck(AssertionError):
    """Somebody waits for what will not come."""


class _Idle(selectors.DefaultSelector):
    """Instead of waiting it lets the time pass."""

    loop: Loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Stuck(f"nobody is left who could go on; these wait:\n{self.loop.waiting()}")
        self.loop.now += timeout
        if self.loop.now > LONGEST_S:
            raise Stuck(f"these have not come to an end:\n{self.loop.waiting()}")
        return []


class Loop(asyncio.SelectorEventLoop):
    """``hook`` is told of every wait of every task."""

    def __init__(self, hook: Hook) -> None:
        self.now = BEGIN_S
        self.network = Network(self)
        self.complaints: list[dict[str, Any]] = []
        idle = _Idle()
        idle.loop = self
        super().__init__(idle)
        self._hook = hook
        self.set_task_factory(self._task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _, context: self.complaints.append(context))

    def time(self) -> float:
        return self.now

    def waiting(self) -> str:
        """Who waits, and where."""
        return "\n".join(f"  {task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(self))

    def _task(self, loop: Loop, call: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Watched(call, self._hook), loop=loop, **options)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(protocol_factory, port)


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine whose waits the hook sees."""

    def __init__(self, call: Coroutine[Any, Any, Any], hook: Hook) -> None:
        self._call = call
        self._hook = hook

    def __repr__(self) -> str:
        frames, call = [], self._call
        while call is not None:
            if (frame := getattr(call, "cr_frame", None)) is not None:
                frames.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            call = getattr(call, "cr_await", None)  # type: ignore[assignment]
        return " > ".join(frames)

    def send(self, value: Any) -> Any:
        return self._seen(self._call.send(value))

    def throw(self, *error: Any) -> Any:
        return self._seen(self._call.throw(*error))

    def _seen(self, waited: Any) -> Any:
        self._hook.waits(waited)
        return waited

    def close(self) -> None:
        self._call.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._call.__await__()


def reachable() -> bool:
    """Whether somebody outside may cancel the current task. What runs beside calls, and nobody but its owner knows, is
    cancelled with the whole program only."""
    task = asyncio.current_task()
    return CALLED.get() and task is not None and not task.get_name().startswith("flowfabric-")


class Hook:
    """Sees every wait, and does nothing about it."""

    def __init__(self) -> None:
        #: Waits of those that somebody may cancel, and of all.
        self.called = 0
        self.all = 0

    def waits(self, waited: Any) -> None:
        """The current task is about to wait for this; ``None`` if only for its next turn."""
        if reachable():
            self.called += 1
        self.all += 1


class Cancels(Hook):
    """Cancels one task at one of its waits: at once, or when what it waits for is there and it has yet to hear of it.
    ``again`` cancels it a second time, while it lets go."""

    def __init__(self, at: int, *, late: bool, again: bool) -> None:
        super().__init__()
        self._at = at
        self.late = late
        self._again = again
        self.victim: asyncio.Task[Any] | None = None
        self.place = ""

    def waits(self, waited: Any) -> None:
        before = self.called
        super().waits(waited)
        task = asyncio.current_task()
        if task is None:
            return
        if self.victim is None and before == self._at and reachable():
            self.victim = task
            self.place = f"{task.get_name()}: {task.get_coro()!r}"
            self._cancel(task, waited, late=self.late)
        elif self._again and task is self.victim:
            self._again = False
            self._cancel(task, waited, late=False)

    def _cancel(self, task: asyncio.Task[Any], waited: Any, *, late: bool) -> None:
        if late and isinstance(waited, asyncio.Future):
            # Called before the task is woken.
            waited.add_done_callback(lambda _: task.cancel(), context=Context())
        else:
            task.cancel()


class Ends(Hook):
    """At one of the waits the program ends, as with Ctrl+C: its main task is cancelled, and what is left then."""

    def __init__(self, at: int, main: Callable[[], asyncio.Task[Any]]) -> None:
        super().__init__()
        self._at = at
        self._main = main
        self.place = ""

    def waits(self, waited: Any) -> None:
        if self.all == self._at:
            task = asyncio.current_task()
            self.place = f"the end at {task and task.get_name()}: {task and task.get_coro()!r}"
            self._main().cancel()
        super().waits(waited)


def shuffled(seed: int) -> random.Random:
    """What is left to chance under a number; the product's own chances are the same then, too."""
    random.seed(seed)
    return random.Random(seed)
