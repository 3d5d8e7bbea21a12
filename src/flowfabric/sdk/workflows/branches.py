"""Branches of a workflow: each task that its code makes is one, with names of its own.

A call is named by the branch that makes it, so it does not matter which of several tasks comes to a call first. A
branch has its name from the moment at which it is made: the function's name and its place among equals in the branch
that makes it. ``approve#2>ask:pay?`` is what the second ``approve`` asks.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextvars import Context, ContextVar, copy_context
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from flowfabric.sdk.worker.attempt import Parked
from flowfabric.sdk.workflows.durable import CURRENT

if TYPE_CHECKING:
    from flowfabric.sdk.workflows.calls import Calls

#: Stands behind the name of a branch.
INSIDE = ">"
#: Bytes of a path; of a longer one there is a digest.
_MAX_PATH = 400
#: Tasks of coroutines from here are no branches: their calls were named when they were made.
_PACKAGE = str(Path(__file__).parent.parent.parent)
#: Turns of the loop in which those that wait for each other have heard that their pass is thrown away.
_TURNS = 4
_NOT_IN_NAMES = re.compile(r"[^\w#]+")


class Branch:
    """Where calls are made; ``path`` stands before their names."""

    __slots__ = ("__weakref__", "_names", "path", "task")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._names: Counter[str] = Counter()
        #: The task that runs it, once there is one.
        self.task: weakref.ref[asyncio.Task[Any]] | None = None

    def inner(self, name: str) -> Branch:
        """One more branch that is made in this one."""
        name = _NOT_IN_NAMES.sub("_", name)
        self._names[name] += 1
        number = self._names[name]
        return self._within(name if number == 1 else f"{name}#{number}")

    def race(self, key: str | None, name: str) -> Branch:
        """Where the calls of a race are made that has this key, and is recorded under this name."""
        if key is not None and _NOT_IN_NAMES.search(key):
            key = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        _, found, number = name.rpartition("#")
        return self._within(f"first({key or ''})" + (f"#{number}" if found and number.isdecimal() else ""))

    def _within(self, segment: str) -> Branch:
        path = f"{self.path}{segment}{INSIDE}"
        if len(path.encode()) > _MAX_PATH:
            path = f"({blake2b(path.encode(), digest_size=12).hexdigest()}){INSIDE}"
        return Branch(path)

    def runs_in(self, task: asyncio.Task[Any]) -> None:
        """Its task has begun."""
        self.task = weakref.ref(task)

    def is_run_by(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether it is this task that makes its calls."""
        return self.task is None or self.task() is task


BRANCH: ContextVar[Branch | None] = ContextVar("flowfabric_branch", default=None)


def function_name(call: Any) -> str:
    """What a coroutine is called."""
    return getattr(call, "__name__", None) or type(call).__name__


def branch_out(loop: AbstractEventLoop) -> None:
    """Let the loop make a branch of every task that the code of a workflow makes."""
    before = loop.get_task_factory()
    if not isinstance(before, _Factory):
        loop.set_task_factory(_Factory(before))  # type: ignore[arg-type]


class _Factory:
    """Makes tasks, and branches if they are a workflow's."""

    def __init__(self, before: Callable[..., asyncio.Task[Any]] | None) -> None:
        self._make: Callable[..., asyncio.Task[Any]] = _plain if before is None else before

    def __call__(self, loop: AbstractEventLoop, call: Any, **options: Any) -> asyncio.Task[Any]:
        context: Context | None = options.get("context")
        workflow: Any = CURRENT.get() if context is None else context.get(CURRENT)
        if workflow is None or isinstance(call, Contained):
            return self._make(loop, call, **options)
        asked = None if context is not None else _ask_in(call)
        if asked is not None:
            # Its name is taken here, in the branch that asks.
            call.close()
            call = workflow.ask(asked)
        if is_ours(call):
            task = self._make(loop, call, **options)
            workflow.tasks.add(task)
            workflow.calling[task] = workflow.call_of(call)
            return task
        parent = BRANCH.get() if context is None else context.get(BRANCH)
        branch = (parent or Branch()).inner(function_name(call))
        task = self.start(loop, call, branch, workflow, options)
        task.add_done_callback(workflow.branch_ended)
        workflow.tasks.add(task)
        return task

    def start(
        self, loop: AbstractEventLoop, call: Any, branch: Branch, workflow: Any, options: dict[str, Any]
    ) -> asyncio.Task[Any]:
        """The task of a branch."""
        if options.get("context") is None:
            options["context"] = copy_context()
        options["context"].run(BRANCH.set, branch)
        task = self._make(loop, Contained(call, workflow, branch.path), **options)
        branch.runs_in(task)
        BRANCHES[task] = branch.path
        return task


class Pass(Protocol):
    """A pass of the code."""

    #: Why it is thrown away.
    over: BaseException | None


class Exited(BaseException):
    """``sys.exit()`` or a ``KeyboardInterrupt`` in a task: raised as itself it would end the loop, and all that runs on
    it."""

    def __init__(self, exit: SystemExit | KeyboardInterrupt) -> None:
        super().__init__(*exit.args)
        self.exit = exit


class Contained(Coroutine[Any, Any, Any]):
    """The code of a branch. It does not end the loop, and when its pass is thrown away it hears of that and of nothing
    else: not what a ``gather`` has collected from the others, nor what a plain wait has brought meanwhile."""

    def __init__(self, call: Any, workflow: Pass, path: str = "") -> None:
        self.call = call
        self.path = path
        self._workflow = workflow
        #: Whether it has been told that its pass is thrown away. What it begins then is a part of letting go.
        self.told = workflow.over is not None
        #: Whether it is cancelled to be told.
        self.is_cut = False
        self.__name__ = function_name(call)
        self.__qualname__ = getattr(call, "__qualname__", self.__name__)

    def send(self, value: Any) -> Any:
        """Let it go on."""
        if not self.told and isinstance(self._workflow.over, Parked):
            return self.throw(self._workflow.over)
        try:
            return self.call.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise Exited(error) from None

    def throw(self, *error: Any) -> Any:
        """Let it go on with an error."""
        over = self._workflow.over
        # A task group that cancels its own task still waits for the others.
        told_now = self.is_cut or not isinstance(error[-1], asyncio.CancelledError)
        if not self.told and told_now and isinstance(over, Parked):
            self.told = True
            error = (over,)
        try:
            return self.call.throw(*error)
        except (SystemExit, KeyboardInterrupt) as left:
            raise Exited(left) from None

    def close(self) -> None:
        """It does not go on."""
        self.call.close()

    def __await__(self) -> Any:
        return self.call.__await__()


async def cut_off(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Tell branches that wait for something plain that their pass is thrown away: nobody else would. Inner ones hear of
    it first, so that task groups see their tasks end."""
    for _ in tasks:
        await _rest(tasks)
        left = {task: code for task in tasks if not task.done() and isinstance(code := task.get_coro(), Contained)}
        cut = [task for task, code in left.items() if not code.told and not _waits_for_others(task, code, left)]
        for task in cut:
            left[task].is_cut = True
            task.cancel()
        if not cut:
            return


async def _rest(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Those that wait for calls, or for each other, are told by those: return when this is over."""
    still, before = 0, -1
    while still < _TURNS:
        await asyncio.sleep(0)
        told = sum(task.done() or getattr(task.get_coro(), "told", False) for task in tasks)
        still = still + 1 if told == before else 0
        before = told


def _waits_for_others(task: asyncio.Task[Any], code: Contained, left: dict[asyncio.Task[Any], Contained]) -> bool:
    """Whether it may go on by itself when others have ended; it would cancel them."""
    awaited = getattr(task, "_fut_waiter", None)
    if isinstance(awaited, asyncio.Task) or getattr(awaited, "_children", None):
        return True
    return any(each.path.startswith(code.path) for each in left.values() if each is not code)


#: Paths of the branches that tasks run.
BRANCHES: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = weakref.WeakKeyDictionary()


def start_branch(call: Coroutine[Any, Any, Any], branch: Branch) -> asyncio.Task[Any]:
    """Run a coroutine as a branch that has been named before."""
    loop = asyncio.get_running_loop()
    factory, workflow = loop.get_task_factory(), CURRENT.get()
    assert isinstance(factory, _Factory)
    assert workflow is not None
    task = factory.start(loop, call, branch, workflow, {})
    workflow.tasks.add(task)
    return task


def _plain(loop: AbstractEventLoop, call: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(call, loop=loop, **options)


def is_ours(call: Any) -> bool:
    """Whether it is a coroutine of this package, and so no branch."""
    code = getattr(call, "cr_code", None)
    return code is not None and code.co_filename.startswith(_PACKAGE)


def _ask_in(call: Any) -> Any:
    """The question in what ``asyncio`` makes of an awaitable that is no coroutine."""
    from flowfabric.sdk.asks.ask import Ask

    code = getattr(call, "cr_code", None) or getattr(call, "gi_code", None)
    if code is None or code.co_name != "_wrap_awaitable":
        return None
    frame = getattr(call, "cr_frame", None) or getattr(call, "gi_frame", None)
    found = None if frame is None else frame.f_locals.get("awaitable")
    return found if isinstance(found, Ask) else None


# -- the calls of a race ---------------------------------------------------------------------------------------------


class Runner:
    """One of the calls that race: what it is called, whatever the order in which they are given."""

    def __init__(self, call: Awaitable[Any], label: str, branch: Branch | None = None) -> None:
        self.call = call
        self.label = label
        self._branch = branch

    def start(self) -> asyncio.Future[Any]:
        """Let it run."""
        if self._branch is not None:
            return start_branch(self.call, self._branch)  # type: ignore[arg-type]
        return asyncio.ensure_future(self.call)

    def parts(self) -> list[str]:
        """The names of calls and branches that end with it."""
        return list(dict.fromkeys([self.label, *_labels(self.call)]))

    async def drop(self) -> None:
        """It has lost in an earlier pass: it does nothing any more."""
        if asyncio.iscoroutine(self.call):
            self.call.close()
        elif isinstance(self.call, asyncio.Future):
            self.call.cancel()
            await asyncio.wait((self.call,))
            if not self.call.cancelled():
                self.call.exception()


def runners(workflow: Calls, calls: list[Awaitable[Any]], inside: Branch) -> list[Runner]:
    """What races, each with its name; a helper coroutine becomes a branch."""
    found: list[Runner] = []
    for place, call in enumerate(calls):
        label = workflow.call_of(call)
        if label is None and isinstance(call, asyncio.Task):
            label = BRANCHES.get(call) or workflow.calling.get(call)
        if label is None and asyncio.iscoroutine(call):
            branch = inside.inner(function_name(call))
            found.append(Runner(call, branch.path, branch))
            continue
        found.append(Runner(call, label or f"{inside.path}{place}"))
    labels = Counter(each.label for each in found)
    for place, each in enumerate(found):
        if labels[each.label] > 1:
            # One future given twice.
            each.label = f"{each.label} {place}"
    return found


def _labels(call: Any) -> list[str]:
    """The branches of tasks, also of those that are gathered."""
    if isinstance(call, asyncio.Task):
        return [BRANCHES[call]] if call in BRANCHES else []
    return [label for each in getattr(call, "_children", ()) for label in _labels(each)]
