"""The one that a running workflow's calls go to.

The workflow's function runs as ordinary tasks on the loop. What it calls is either remembered, or done here (a step),
or started as an execution of its own (a child). Whenever the function can do nothing but wait for children and times,
everything it has to say goes to the engine in one commit, which parks the execution: the lease is given up and this
attempt of the code is thrown away. When something it waits for has happened, any worker runs the function again, and
what is remembered is given at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flowfabric.model.errors import NotFound, State, Validation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.workflows import Advanced, ChildWait, Ended, NewStep, StepOutcome, StepRecord
from flowfabric.model.states import PublicState
from flowfabric.sdk.durations import milliseconds
from flowfabric.sdk.errors import ENDED, ENDS, BadPayload, BadResult, BadStep, CancelRequested
from flowfabric.sdk.options import StartOptions
from flowfabric.sdk.worker.attempt import Job, Parked
from flowfabric.sdk.workflows.cancellation import Cancellation
from flowfabric.sdk.workflows.recorded_errors import error_step, remembered_error
from flowfabric.sdk.workflows.recorded_steps import Memory
from flowfabric.sdk.workflows.run_step import run_step

if TYPE_CHECKING:
    from flowfabric.sdk.asks.ask import Ask
    from flowfabric.sdk.definitions.tasks import Startable, Step, Task, Workflow

#: Turns of the loop without news after which everything is taken to wait.
QUIET_TURNS = 8
#: How often a function that waits for all of its children looks again: it may be content with some of them.
LOOK_AGAIN_MS = 2_000
#: How long thrown-away code may take to let go.
LETTING_GO_S = 1.0
#: Why a child was cancelled whose call was.
GIVEN_UP = "its workflow cancelled it"


class Child(NamedTuple):
    """A call that is an execution of its own."""

    name: str
    kind: str
    read: Callable[[bytes | None], Any]
    waiting: asyncio.Future[Ended]


class Conductor:
    """Implements ``sdk.workflows.durable.Durable`` for one attempt."""

    def __init__(self, job: Job, memory: Memory, *, goes_on: bool) -> None:
        self.job = job
        self.memory = memory
        self._engine = job.engine
        self._goes_on = goes_on
        self._identity = ExecutionId.unchecked(job.execution_id)
        self._changed = asyncio.Event()
        #: Calls in progress that are done here.
        self._busy = 0
        #: Sleeps that have yet to hear what time it is.
        self._timing = 0
        #: Whether the function has called something it had not called before.
        self._progressed = False
        self._children: dict[str, Child] = {}
        self._sleeping: dict[str, tuple[int, asyncio.Future[None]]] = {}
        # What the engine has not heard yet.
        self._new_children: dict[str, dict[str, Any]] = {}
        self._new_steps: dict[str, NewStep] = {}
        self._savers: dict[str, asyncio.Future[StepRecord]] = {}
        #: Set when the engine has heard everything; how many calls wait for that.
        self._catching_up: asyncio.Future[None] | None = None
        self._behind = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Children that the function no longer waits for, to be cancelled.
        self._given_up: list[str] = list(memory.left_behind)
        self._cancellation = Cancellation(job, memory)
        job.on_asked = self._changed.set
        self._over: BaseException | None = None

    # -- what the workflow calls ---------------------------------------------------------------------------------

    def call_task(
        self, task: Task[..., Any] | Workflow[..., Any], payload: bytes, options: StartOptions
    ) -> Coroutine[Any, Any, Any]:
        """A child: its name is taken now, it starts when it is awaited."""
        return self._call_task(self._name(task.name, options.key), task, payload, options)

    def call_step(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None
    ) -> Coroutine[Any, Any, Any]:
        """A step: its name is taken now, it runs when it is awaited."""
        return self._call_step(self._name(step.name, key), step, step.signature.pack(args, kwargs))

    def sleep(self, duration: timedelta, key: str | None) -> Coroutine[Any, Any, None]:
        """Wait until a time that is fixed when the wait begins."""
        return self._sleep(self._name("sleep", key), duration)

    def ask(self, ask: Ask[Any]) -> Coroutine[Any, Any, Any]:
        """A question: an execution of its own that waits for signals."""
        return self._ask(self._name(ask.step_name, ask.key), ask)

    def first(self, calls: Sequence[Awaitable[Any]], key: str | None) -> Coroutine[Any, Any, Any]:
        """The first call that succeeds; the others are cancelled."""
        from flowfabric.sdk.asks.ask import Ask
        from flowfabric.sdk.workflows.race import durable_race

        # Every call has its name before any of them runs: the losers' are not made again.
        named = [self.ask(call) if isinstance(call, Ask) else call for call in calls]
        return durable_race(self, self._name("first", key), named)

    def _name(self, base: str, key: str | None) -> str:
        self.check()
        return self.memory.name(base, key)

    def check(self) -> None:
        """Nothing is done any more once this attempt of the code is thrown away."""
        if self._over is not None:
            raise self._over
        if self.job.unanswered is not None:
            raise self.job.unanswered
        task = asyncio.current_task()
        if task is not None and task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._cancellation.told and not task.cancelled():
            # Nobody has to wait for a branch to hear that the workflow was asked to cancel.
            task.exception()

    async def _call_task(self, name: str, task: Startable[..., Any], payload: bytes, options: StartOptions) -> Any:
        known = self.remembered(name, task.signature.load_result)
        if known is not None:
            return known[0]
        with self.work():
            from flowfabric.sdk.runs.start import prepare

            prepared = await self.job.repeated(lambda: prepare(task, task.signature.unpack(payload), options, payload))
            prepared.arguments.pop("idempotency_key", None)
            child = self._start(name, task.name, prepared.arguments, task.signature.load_result)
        return await self._end_of(child)

    async def _ask(self, name: str, ask: Ask[Any]) -> Any:
        """The answer. One that was taken and cannot be read does not end the run: the question is asked again, under
        a name of its own, so that code that runs again comes the same way."""
        from flowfabric.sdk.asks.ask import MOST_ASKED, UnreadAnswer

        called, asked = name, 1
        while True:
            try:
                return await self._ask_once(called, ask)
            except UnreadAnswer as error:
                asked += 1
                if asked > MOST_ASKED:
                    raise
                called, ask = f"{name}~{asked}", ask.again(error)

    async def _ask_once(self, name: str, ask: Ask[Any]) -> Any:
        known = self.remembered(name, ask.read_result)
        if known is not None:
            return known[0]
        self.check()
        arguments = ask.creation(self.job.app, self._root())
        return await self._end_of(self._start(name, ask.step_name, arguments, ask.read_result))

    def _root(self) -> str:
        """The run people know: the one that started all of this."""
        return self.job.context.tags.get("ff.run", self.job.execution_id)

    def remembered(self, name: str, read: Callable[[bytes | None], Any]) -> tuple[Any] | None:
        """What a call gave, wrapped; the error it met is raised."""
        self.check()
        self._cancellation.check(name)
        step = self.memory.find(name)
        if step is None:
            return None
        self.job.repeats()
        if step.outcome is StepOutcome.ERROR:
            raise remembered_error(name, step)
        return (self._read(name, step.value, read),)

    def _read(self, name: str, value: bytes | None, read: Callable[[bytes | None], Any]) -> Any:
        try:
            return read(value)
        except (BadResult, BadPayload) as error:
            raise BadStep(
                f"run {self.job.execution_id}: the code cannot read the recorded result of {name!r}: {error}. Give "
                "the changed function another name, or keep its result compatible",
                step=name,
                run=self.job.execution_id,
            ) from error

    @contextlib.contextmanager
    def work(self) -> Any:
        """Something is being done here: no parking meanwhile."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._changed.set()

    # -- children ------------------------------------------------------------------------------------------------

    def _start(self, name: str, kind: str, arguments: dict[str, Any], read: Callable[[bytes | None], Any]) -> Child:
        own = uuid.uuid5(uuid.UUID(self._identity.uuid_text), self.memory.generation(name))
        execution_id = f"{{fp:{self._identity.partition}}}:{own}"
        tags = {**(arguments.get("tags") or {}), "ff.run": self._root(), "ff.step": name}
        self._new_children[execution_id] = {**arguments, "execution_id": execution_id, "tags": tags}
        child = Child(name, kind, read, asyncio.get_running_loop().create_future())
        self._children[execution_id] = child
        self._changed.set()
        return child

    async def _end_of(self, child: Child) -> Any:
        try:
            end = await child.waiting
        except asyncio.CancelledError:
            if self._over is None:
                self._give_up(child)
            raise
        if end.state is PublicState.COMPLETED:
            self._new_steps[child.name] = NewStep(child.name, end.result)
            return self._read(child.name, end.result, child.read)
        reason = end.failure_reason or end.cancellation_reason or ""
        error = ENDS[end.state](_said(child, end.state, reason), run_id=str(end.execution_id), reason=reason)
        met = error_step(self.memory.error_name(child.name), error)
        self._new_steps[met.name] = met
        raise remembered_error(child.name, met)

    def _give_up(self, child: Child) -> None:
        """The function has cancelled the call: the child is cancelled too, if it was started in this or an earlier
        attempt of the code."""
        execution_id = next((each for each, known in self._children.items() if known is child), None)
        if execution_id is None:
            return  # it has ended
        del self._children[execution_id]
        if self._new_children.pop(execution_id, None) is None or self._goes_on:
            self._given_up.append(execution_id)
        self._changed.set()

    async def _cancel_given_up(self) -> None:
        """Cancel what nobody waits for any more; what has ended or never began stays as it is."""
        if not self._given_up:
            return
        while self._given_up:
            execution_id = self._given_up[-1]
            with contextlib.suppress(NotFound, State, Validation):
                await self.job.repeated(
                    lambda id=execution_id: self._engine.cancel_child(  # type: ignore[misc]
                        self.job.handle, id, GIVEN_UP
                    )
                )
            self._given_up.pop()
        if self._cancellation.told and (mark := self.memory.given_up()).name not in self.memory:
            self._new_steps[mark.name] = mark

    # -- steps ---------------------------------------------------------------------------------------------------

    async def _call_step(self, name: str, step: Step[..., Any], payload: bytes) -> Any:
        known = self.remembered(name, step.signature.load_result)
        if known is not None:
            return known[0]
        if self._cancellation.due:
            self._changed.set()
            await self._cancellation.hold(name)
        self._progressed = True
        self.job.advances()
        with self.work():
            if self._new_steps:
                # Nothing is done before what was done earlier is remembered.
                await self._caught_up()
                self.check()
            met: NewStep | None = None
            data = b""
            try:
                data = await run_step(self.job, name, step, payload)
            except Exception as error:
                self.check()
                met, raised_in = error_step(self.memory.error_name(name), error), error.__traceback__
            if met is not None:
                await self.saved(met)
                raise remembered_error(name, met).with_traceback(raised_in)
            self.check()
            # It is remembered with whatever is said next: before another step is done, or when the function ends.
            self._new_steps[name] = NewStep(name, data)
        return self._read(name, data, step.signature.load_result)

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

    # -- time ----------------------------------------------------------------------------------------------------

    async def _sleep(self, name: str, duration: timedelta) -> None:
        known = self.remembered(name, lambda value: msgspec.json.decode(value or b"0", type=int))
        self._timing += 1
        try:
            now = await self.job.repeated(self._engine.now_ms)
        finally:
            self._timing -= 1
            self._changed.set()
        if known is None:
            until = now + milliseconds(duration)
            self._progressed = True
            self._new_steps[name] = NewStep(name, msgspec.json.encode(until))
        else:
            until = known[0]
        self.check()
        if until <= now:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping[name] = (until, future)
        self._changed.set()
        try:
            await future
        finally:
            self._sleeping.pop(name, None)

    # -- conducting ----------------------------------------------------------------------------------------------

    async def conduct(self, main: asyncio.Task[Any]) -> None:
        """Let the function go on until it has ended; raises ``Parked`` when the execution was parked instead."""
        main.add_done_callback(lambda _: self._changed.set())
        if self._goes_on:
            await self._look_back(main)
        while True:
            self._changed.clear()
            if self.job.unanswered is not None:
                raise self.job.unanswered
            if main.done():
                await self._cancel_given_up()
                if self._new_children:
                    await self._tell(None)
                return
            if not await self._quiet():
                continue
            if self._given_up:
                await self._cancel_given_up()
            waits = bool(self._children or self._sleeping)
            if self._cancellation.due and not self._busy and (waits or self._cancellation.held):
                await self._tell_of_request()
                continue
            untold = self._new_children or self._new_steps
            if self._savers or self._behind or (untold and (self._busy or not waits)):
                await self._tell(None)
            elif waits and not self._busy:
                if await self._park():
                    raise Parked
            else:
                await self._wait()

    async def _tell_of_request(self) -> None:
        """Every call that waits raises ``CancelRequested``, once that is remembered. Steps that were under way have
        ended before. What is called from now on is done as ever."""
        children, sleeping, held = dict(self._children), dict(self._sleeping), dict(self._cancellation.held)
        unborn = {each for each in children if self._new_children.pop(each, None) is not None}
        begun = [each for each in children if each not in unborn or self._goes_on]
        names = [*(child.name for child in children.values()), *sleeping, *held]
        self._new_steps |= {mark.name: mark for mark in self.memory.marks(names, begun)}
        self._cancellation.told = True
        reason = await self.job.repeated(self._cancellation.reason)
        await self._tell(None)
        self._given_up += begun
        for each in children:
            self._children.pop(each, None)
        waiting: list[asyncio.Future[Any]] = [child.waiting for child in children.values()]
        waiting += [future for _, future in sleeping.values()]
        for future in (*waiting, *held.values()):
            if not future.done():
                future.set_exception(CancelRequested(reason))
                future.exception()
        self._changed.set()

    async def _look_back(self, main: asyncio.Task[Any]) -> None:
        """Run up to where the code stood before; children that exist are not started again, ends are told at once."""
        while not main.done():
            self._changed.clear()
            if not await self._quiet():
                continue
            if self._busy or self._savers:
                return
            asked = [each for each, child in self._children.items() if not child.waiting.done()]
            unknown = [each for each in asked if each in self._new_children]
            if not unknown:
                return
            found = await self.job.repeated(lambda ids=unknown: self._engine.read_ends(ids))  # type: ignore[misc]
            if found:
                self.job.repeats()
            for end in found:
                self._new_children.pop(str(end.execution_id), None)
                self._ended(end)
            if len(found) < len(unknown):
                self._progressed = True
            if not any(end.state in ENDED for end in found):
                return

    async def _quiet(self) -> bool:
        """Let everything run that can; whether nothing has happened for some turns of the loop."""
        for turn in range(QUIET_TURNS):
            await asyncio.sleep(0)
            if self._timing:
                # The store's clock may be far away; parked now, the run would sleep for ever.
                await self._changed.wait()
            if self._changed.is_set():
                return False
            waiting = len(self._savers) + self._behind
            if waiting and (turn > 0 or waiting == self._busy):
                # Somebody waits for a step to be remembered; others that end together with it have had their turn.
                return True
        return True

    async def _wait(self) -> None:
        """Until something happens here, or the first sleep is over."""
        timeout = None
        if self._sleeping:
            now = await self.job.repeated(self._engine.now_ms)
            self._wake(now)
            first = min((until for until, _ in self._sleeping.values()), default=now)
            timeout = max(first - now, 1) / 1000
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout)

    def _wake(self, now: int) -> None:
        for name, (until, future) in list(self._sleeping.items()):
            if until <= now:
                del self._sleeping[name]
                if not future.done():
                    future.set_result(None)
                self._changed.set()

    async def _park(self) -> bool:
        """Give the lease up until something has happened; ``False`` if it has happened already."""
        awaited = tuple(self._children)
        until = min((until for until, _ in self._sleeping.values()), default=None)
        wake_after = 1 if awaited else 0
        if len(awaited) > 1 and self._goes_on and not self._progressed:
            # One end alone has just led to nothing: it is all of them that the function waits for, as it seems.
            wake_after = len(awaited)
            look_again = await self.job.repeated(self._engine.now_ms) + LOOK_AGAIN_MS
            until = look_again if until is None else min(until, look_again)
        # Whoever renews the lease may find it given up before we hear of it: that is no reason to be cancelled.
        job = self.job
        await job.settle_logs()
        job.open_handler = False
        answer = await self._tell(ChildWait(awaited, wake_after, until))
        if answer.parked:
            job.ended = True
            return True
        job.open_handler = True
        if job.interruption is not None:
            raise asyncio.CancelledError
        if answer.ended:
            for end in await self.job.repeated(lambda: self._engine.read_ends(answer.ended)):
                self._ended(end)
        self._wake(await self.job.repeated(self._engine.now_ms))
        return False

    def _ended(self, end: Ended) -> None:
        if end.state not in ENDED:
            return
        child = self._children.pop(str(end.execution_id), None)
        if child is not None and not child.waiting.done():
            self.job.advances()
            child.waiting.set_result(end)
            self._changed.set()

    async def _tell(self, wait: ChildWait | None) -> Advanced:
        """Say everything that the engine has not heard, in one commit."""
        steps, self._new_steps = list(self._new_steps.values()), {}
        children, self._new_children = list(self._new_children.values()), {}
        savers, self._savers = self._savers, {}
        behind, self._catching_up = self._catching_up, None
        if children:
            self._progressed = True
        try:
            answer: Advanced = await self.job.repeated(
                lambda: self._engine.advance(
                    self.job.handle,
                    steps=steps,
                    known_steps=self.memory.count,
                    children=children,
                    wait=wait,
                    cancel_known=self._cancellation.told,
                )
            )
        except BaseException:
            for future in savers.values():
                future.cancel()
            if behind is not None:
                behind.cancel()
            raise
        for step in answer.steps:
            self.memory.add(step)
            saver = savers.get(step.name)
            if saver is not None and not saver.done():
                saver.set_result(step)
        if behind is not None and not behind.done():
            behind.set_result(None)
        if answer.cancelling:
            self.job.ask_to_end()
        return answer

    def done_last(self) -> Sequence[NewStep]:
        """What the function did last and the engine has not heard yet."""
        return tuple(self._new_steps.values())

    async def failed(self) -> None:
        """The function has raised: whatever it had caught is remembered, and that this trial is over."""
        step = self.memory.failure()
        self._new_steps[step.name] = step
        await self._tell(None)

    async def cancelled(self) -> None:
        """The function ends because it was asked to: what it did last is remembered."""
        if self._new_steps:
            await self._tell(None)

    async def ended(self, main: asyncio.Task[Any]) -> None:
        """The function has ended. What it left running is stopped; children it did not wait for go on."""
        if any(not task.done() for task in self._tasks):
            await self.let_go(main, asyncio.CancelledError())

    # -- the end -------------------------------------------------------------------------------------------------

    async def let_go(self, main: asyncio.Task[Any], why: BaseException) -> None:
        """Throw this attempt of the code away: whatever it still calls is refused, whatever it waits for never comes.

        ``finally`` blocks of the function do run, but they can no longer do anything durable.
        """
        self._over = why
        waiting: list[asyncio.Future[Any]] = [child.waiting for child in self._children.values()]
        waiting += [future for _, future in self._sleeping.values()]
        waiting += self._cancellation.held.values()
        waiting += [] if self._catching_up is None else [self._catching_up]
        for future in (*waiting, *self._savers.values()):
            if not future.done():
                future.set_exception(why)
                future.exception()
        left = {main, *self._tasks} - {asyncio.current_task()}
        if isinstance(why, asyncio.CancelledError):
            for task in left:
                task.cancel()
        for task in left:
            task.add_done_callback(_unheard)
        _, stubborn = await asyncio.wait(left, timeout=LETTING_GO_S)
        for task in stubborn:
            task.cancel()
        if stubborn:
            await asyncio.wait(stubborn, timeout=LETTING_GO_S)


def _unheard(task: asyncio.Task[Any]) -> None:
    """Nobody has to hear of its error."""
    if not task.cancelled():
        task.exception()


def _said(child: Child, state: PublicState, reason: str) -> str:
    how = f"{child.name} {state.value}"
    return f"{how}: {reason}" if reason else how
