"""One pass of a workflow's code: what it remembers fits the calls that it makes, or the attempt ends.

Everything that the calls of a pass have in common is here; ``children``, ``calls`` and ``conductor`` build on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, NoReturn

from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.workflows import Ended, NewStep, StepOutcome, StepRecord
from flowfabric.sdk.errors import BadOptions, BadPayload, BadResult, BadStep, SdkError
from flowfabric.sdk.workflows.branches import BRANCH, Branch, is_ours
from flowfabric.sdk.workflows.cancellation import Cancellation
from flowfabric.sdk.workflows.recorded_errors import remembered_error
from flowfabric.sdk.workflows.recorded_steps import Begun, Call, Memory, shown_arguments
from flowfabric.sdk.workflows.timeouts import TimeLimit

if TYPE_CHECKING:
    from flowfabric.sdk.worker.attempt import Job
    from flowfabric.sdk.workflows.children import Child


class OnePass:
    """What one pass has done and waits for."""

    def __init__(self, job: Job, memory: Memory) -> None:
        self.job = job
        self.memory = memory
        #: Where the function itself makes its calls.
        self.root = Branch()
        self._engine = job.engine
        self._loop = asyncio.get_running_loop()
        self._identity = ExecutionId.unchecked(job.execution_id)
        self._changed = asyncio.Event()
        #: Calls in progress that are done here.
        self._busy = 0
        #: Children that are being prepared.
        self._starting = 0
        #: All tasks that the code has made, and those of its calls.
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        #: Those of them that make one call and nothing else.
        self.calling: weakref.WeakKeyDictionary[asyncio.Task[Any], str | None] = weakref.WeakKeyDictionary()
        #: Sleeps that have yet to hear what time it is.
        self._timing = 0
        self._looking: asyncio.Task[None] | None = None
        #: What time it is in the store, as far as we have heard.
        self._now = 0
        #: Races in progress.
        self.racing = 0
        self._children: dict[str, Child] = {}
        #: Children that were started by an earlier pass and that the engine has not been asked about.
        self._unknown: set[str] = set()
        self._sleeping: dict[str, tuple[int, asyncio.Future[None]]] = {}
        #: Questions that have been answered, but a worker has yet to look at the answers.
        self._deciding: set[str] = set()
        #: Ends that the function has not been told of.
        self._arrived: list[Ended] = []
        # What the engine has not heard yet.
        self._new_children: dict[str, dict[str, Any]] = {}
        self._begun: list[Begun] = []
        self._new_steps: dict[str, NewStep] = {}
        if memory.beginning is not None:
            self._new_steps[memory.beginning.name] = memory.beginning
        self._savers: dict[str, asyncio.Future[StepRecord]] = {}
        #: Set when the engine has heard everything; how many calls wait for that.
        self._catching_up: asyncio.Future[None] | None = None
        self._behind = 0
        #: Steps that run in threads, where nothing can stop them.
        self._in_threads = 0
        #: Whether the function has failed, and waits for these.
        self._failing = False
        #: Commits that are under way.
        self._telling = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Calls that memory may mistake for others, until it is clear whether it does.
        self._misfits: dict[str, tuple[Call, asyncio.Future[None]]] = {}
        self._patient_until = 0.0
        #: Calls that have lost a race that the code has yet to come to.
        self._losers: dict[str, set[asyncio.Future[None]]] = {}
        #: Calls that wait for nothing: the pass ends before they do.
        self._stuck: set[asyncio.Future[None]] = set()
        #: Why the code does not fit its memory.
        self._refused: SdkError | None = None
        #: Children that the function no longer waits for, to be cancelled.
        self._given_up: list[str] = list(memory.left_behind)
        #: Whether the code has done something that a pass from memory alone cannot do.
        self.is_once = False
        #: Time limits of asyncio that the code has begun.
        self.limits: list[TimeLimit] = []
        self._cancellation = Cancellation(job, memory)
        job.on_asked = self._changed.set
        #: Why this pass of the code is thrown away.
        self.over: BaseException | None = None

    def check(self) -> None:
        """Nothing is done any more once this pass of the code is thrown away."""
        self._check_over()
        task = asyncio.current_task(self._loop)
        if task is not None and task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)

    def _check_over(self) -> None:
        if self.over is not None:
            raise self.over
        if self.job.unanswered is not None:
            raise self.job.unanswered

    def branch_ended(self, task: asyncio.Task[Any]) -> None:
        """One that is cut off with its pass ends with that, and nobody asks."""
        if self.over is not None and not task.cancelled():
            task.exception()

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._cancellation.told and not task.cancelled():
            # Nobody has to wait for a branch to hear that the workflow was asked to cancel.
            task.exception()

    def _root(self) -> str:
        """The run people know: the one that started all of this."""
        return self.job.context.tags.get("ff.run", self.job.execution_id)

    @contextlib.contextmanager
    def work(self) -> Any:
        """Something is being done here: no parking meanwhile."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._changed.set()

    async def at_work(self, doing: Coroutine[Any, Any, Any]) -> Any:
        """Something that is not remembered, and that the pass does not end over."""
        with self.work():
            found = await doing
        self.is_once = self.is_once or found is not None
        return found

    # -- names ---------------------------------------------------------------------------------------------------

    def _call(self, base: str, key: str | None, arguments: bytes | None) -> Call:
        self._check_over()
        return self.memory.call(self._here().path, base, key, arguments)

    @staticmethod
    def call_of(made: Any) -> str | None:
        """The name of a call that was made here and has not been awaited yet."""
        frame = getattr(made, "cr_frame", None)
        found = None if frame is None or not is_ours(made) else frame.f_locals.get("call")
        return found.name if isinstance(found, Call) else None

    def _here(self) -> Branch:
        """The branch that the running task is."""
        branch = BRANCH.get() or self.root
        if not branch.is_run_by(asyncio.current_task(self._loop)):
            raise BadOptions(
                "this task was made without the loop's task factory, so its calls cannot be told from those of others; "
                "make tasks with asyncio.create_task, gather or a TaskGroup, and set task factories before the worker "
                "starts",
                option="task_factory",
            )
        return branch

    # -- what is remembered --------------------------------------------------------------------------------------

    async def remembered(self, call: Call, read: Callable[[bytes | None], Any]) -> tuple[Any] | None:
        """What a call gave, wrapped; the error it met is raised. Nothing if it is a new one."""
        found = await self.known(call)
        if found is None:
            return None
        return (await self._read(call, found.value, read),)

    def _given(self, call: Call) -> StepRecord | None:
        """The record of a call that has succeeded, where nothing stands in its way: the short way to it."""
        if self.over is not None or self._failing or self.job.unanswered is not None or self.memory.cut:
            return None
        found = self.memory.given(call.name)
        if found is None or found.outcome is StepOutcome.ERROR:
            return None
        self.job.repeats()
        return found

    async def known(self, call: Call) -> StepRecord | None:
        """The record of a call that has succeeded; the error it met is raised. Nothing if it is a new one."""
        self.check()
        if self._failing:
            await self._never()
        self._cancellation.check(call.name)
        step = self.memory.find(call.name)
        if step is None:
            while self.memory.lost and (race := self.memory.lost_in(call)) is not None:
                # The race was lost before this was done; its end is near.
                await self._until_the_race(race)
            if self.memory.misfit(call) is not None:
                await self._until_it_fits(call)
            return None
        self.job.repeats()
        if step.outcome is StepOutcome.ERROR:
            raise remembered_error(call.name, step)
        return step

    async def _read(self, call: Call, value: bytes | None, read: Callable[[bytes | None], Any]) -> Any:
        try:
            return read(value)
        except (BadResult, BadPayload) as error:
            await self.refuse(
                f"the code cannot read the recorded result of {call.name!r}: {error}. Give the changed function "
                "another name, or keep its result compatible",
                call,
            )

    async def _caught_up(self) -> None:
        """Return when everything that was done so far is remembered."""
        if self._catching_up is None:
            self._catching_up = asyncio.get_running_loop().create_future()
        self._behind += 1
        self._changed.set()
        try:
            await asyncio.shield(self._catching_up)
        finally:
            self._behind -= 1

    def saved(self, step: NewStep) -> asyncio.Future[StepRecord]:
        """Set when the step is remembered for good."""
        self._new_steps[step.name] = step
        future = self._savers[step.name] = asyncio.get_running_loop().create_future()
        self._changed.set()
        return future

    async def clock(self) -> None:
        """Hear what time it is in the store. Calls that ask at the same time are told together."""
        if self._looking is None:
            # A task that is nobody's: a call that is cancelled gives up for itself.
            self._looking = asyncio.get_running_loop().create_task(self._look_at_the_clock(), context=Context())
            self._looking.add_done_callback(self._has_looked)
        self._timing += 1
        try:
            await asyncio.shield(self._looking)
        finally:
            self._timing -= 1
            self._changed.set()

    def _has_looked(self, looking: asyncio.Task[None]) -> None:
        self._looking = None
        if not looking.cancelled():
            looking.exception()

    async def _look_at_the_clock(self) -> None:
        self._now = max(self._now, await self.job.repeated(self._engine.now_ms))

    # -- memory that does not fit --------------------------------------------------------------------------------

    async def refuse(self, why: str, call: Call) -> NoReturn:
        """The code does not fit what is remembered: the attempt ends, and the code cannot catch that."""
        self.note_refusal(why, call.name)
        await self._never()

    def note_refusal(self, why: str, step: str) -> None:
        """The code does not fit what is remembered."""
        if self._refused is None:
            run = self.job.execution_id
            self._refused = BadStep(f"run {run}: {why}", step=step, run=run)
        self._changed.set()

    async def _never(self) -> NoReturn:
        """Wait for the end of this pass."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stuck.add(future)
        try:
            await future
        finally:
            self._stuck.discard(future)
        raise asyncio.CancelledError

    async def _until_the_race(self, race: str) -> None:
        """It ends what waits here; or nobody runs it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._losers.setdefault(race, set())
        waiting.add(future)
        self._changed.set()
        try:
            await future
        finally:
            waiting.discard(future)
        self.check()

    def _release_losers(self) -> bool:
        """An earlier trial has run a race, and this one has not come to it: whether there was one."""
        races = [each for each, waiting in self._losers.items() if waiting and not self.memory.was_called(each)]
        for race in races:
            self.memory.forget_race(race)
            for future in self._losers.pop(race):
                if not future.done():
                    future.set_result(None)
            self._changed.set()
        return bool(races)

    async def _until_it_fits(self, call: Call) -> None:
        """Calls that are remembered may still be made, and then this one is new."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._misfits[call.name] = (call, future)
        self._changed.set()
        try:
            await future
        finally:
            self._misfits.pop(call.name, None)
        self.check()

    def _settle_misfits(self) -> None:
        """Nothing else can happen here: whatever memory is still left over was another call's."""
        for call, future in list(self._misfits.values()):
            there = self.memory.misfit(call)
            if there is None:
                self._changed.set()
                if not future.done():
                    future.set_result(None)
        for call, _ in self._misfits.values():
            there = self.memory.misfit(call)
            if there is not None and not self._changed.is_set():
                self.note_refusal(
                    f"{call.name!r} is called with {shown_arguments(call.arguments)}, and what is recorded is a call "
                    f"with {there}. Give the call a key with using(key=...), so that its arguments are not compared, "
                    "and take what differs each time from now(), uuid() or random()",
                    call.name,
                )
