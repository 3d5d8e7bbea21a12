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
from collections.abc import Sequence
from typing import Any

from flowfabric.model.operations.workflows import Advanced, ChildWait, Ended, NewStep
from flowfabric.sdk.errors import ENDED, BadOptions, CancelRequested
from flowfabric.sdk.worker.attempt import Parked
from flowfabric.sdk.workflows.branches import cut_off
from flowfabric.sdk.workflows.calls import Calls
from flowfabric.sdk.workflows.plain_waits import plain_waits
from flowfabric.sdk.workflows.timeouts import limit_around
from flowfabric.sdk.workflows.wakes import waited_for

#: Turns of the loop in which no task has moved, after which all of them are taken to wait. What one has done may reach
#: another through a callback or two.
QUIET_TURNS = 3
#: Turns after which tasks that never rest are taken to wait as well.
MOST_TURNS = 2_000
#: How often it looks for the ends of children while a step runs.
LOOK_AGAIN_MS = 2_000
#: How long code that does not seem to fit its memory may wait for something plain.
PLAIN_WAIT_S = 30.0
#: How long thrown-away code may take to let go.
LETTING_GO_S = 1.0


#: Tasks, and what each of them waits for.
Standing = dict[int, int]


class Conductor(Calls):
    """Lets the code go on until it has ended, or can only wait."""

    async def conduct(self, main: asyncio.Task[Any]) -> None:
        """Let the function go on until it has ended; raises ``Parked`` when the execution was parked instead."""
        main.add_done_callback(lambda _: self._changed.set())
        while True:
            self._changed.clear()
            if (why := self.job.unanswered or self._refused) is not None:
                raise why
            self._failing = bool(self._in_threads) and has_failed(main)
            if main.done() and not self._starting and not self._failing:
                await self._cancel_given_up()
                if self._new_children:
                    await self._tell(None)
                return
            if not await self._quiet() or await self._deliver():
                continue
            if self.limits and (wrong := self._limit_around()) is not None:
                raise wrong
            if self._given_up:
                await self._cancel_given_up()
            waits = bool(self._children or self._sleeping)
            if self._cancellation.due and not self._busy and (waits or self._cancellation.held):
                await self._tell_of_request()
                continue
            await self._rest(waits)

    def _limit_around(self) -> BadOptions | None:
        self.limits = [each for each in self.limits if each.is_running()]
        waits: list[asyncio.Future[Any]] = [child.waiting for child in self._children.values()]
        waits += [future for _, future in self._sleeping.values()]
        why = limit_around(self.limits, self.tasks, waits)
        return None if why is None else BadOptions(f"run {self.job.execution_id}: {why}", option="timeout")

    async def _rest(self, waits: bool) -> None:
        """Nothing more happens by itself: say what is to be said, and wait."""
        untold = self._new_children or self._new_steps
        if self._savers or self._behind or (untold and (self._busy or not waits)):
            await self._tell(None)
        elif not self._busy and self._release_losers():
            pass
        elif self._misfits and not self._busy:
            if not await self._goes_on_by_itself():
                self._settle_misfits()
        elif waits and not self._busy:
            if await self._park():
                raise Parked
        else:
            await self._wait()

    async def _goes_on_by_itself(self) -> bool:
        """Let code that waits for something plain go on, which may come to the calls that are left over: whether it
        did."""
        loop = asyncio.get_running_loop()
        self._patient_until = self._patient_until or loop.time() + PLAIN_WAIT_S
        waits = plain_waits(self.tasks)
        left = self._patient_until - loop.time()
        if not waits or left <= 0:
            return False
        changed = loop.create_task(self._changed.wait())
        done, _ = await asyncio.wait({*waits, changed}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        return bool(done)

    async def _tell_of_request(self) -> None:
        """Every call that waits raises ``CancelRequested``, once that is remembered. Steps that were under way have
        ended before. What is called from now on is done as ever."""
        children, sleeping, held = dict(self._children), dict(self._sleeping), dict(self._cancellation.held)
        unborn = {each for each in children if self._new_children.pop(each, None) is not None} - self._unknown
        begun = [each for each in children if each not in unborn]
        self._begun = []
        names = [*(child.call.name for child in children.values()), *sleeping, *held]
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

    async def _deliver(self) -> bool:
        """Tell the function of what has ended meanwhile, in the order in which it ended: whether there was anything.

        While calls race it is told of one thing at a time, so that the first one wins; an end that came in time wins
        against a sleep that was over later.
        """
        if any(until <= self._now for until, _ in self._sleeping.values()):
            # What has ended meanwhile may have ended before.
            self._unknown.update(each for each in self._children if each not in self._new_children)
        if self._unknown:
            asked = [each for each in self._children if each in self._unknown]
            self._unknown.clear()
            for end in await self.job.repeated(lambda: self._engine.read_ends(asked)):
                self._exists(end)
        due: list[tuple[int, int, Ended | str]] = [(self._ended_at_ms(end), 0, end) for end in self._arrived]
        if not (self.racing and self._waits_for_decisions()):
            due += [(until, 1, name) for name, (until, _) in self._sleeping.items() if until <= self._now]
        due.sort(key=in_order)
        told = due[:1] if self.racing else due
        for _, _, each in told:
            if isinstance(each, str):
                _, future = self._sleeping.pop(each)
                if not future.done():
                    future.set_result(None)
            else:
                self._arrived.remove(each)
                self._tell_end(each)
        if told:
            self._changed.set()
        return bool(told)

    def _waits_for_decisions(self) -> bool:
        """Whether answers have been given that may have come in time."""
        self._deciding &= self._children.keys()
        return bool(self._deciding)

    async def _quiet(self) -> bool:
        """Let everything run that can; whether nothing goes on any more."""
        still = 0
        before: Standing | None = None
        for turn in range(MOST_TURNS):
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
            standing = self._standing()
            still = still + 1 if standing is not None and standing == before else 0
            before = standing
            if still == QUIET_TURNS:
                return True
        return True

    def _standing(self) -> Standing | None:
        """What each task waits for; nothing while one of them can go on."""
        found: Standing = {}
        for task in self.tasks:
            if task.done():
                continue
            # The one thing that tells whether a task can go on, and asyncio has no other name for it.
            awaited = getattr(task, "_fut_waiter", None)
            if awaited is None or awaited.done():
                return None
            found[id(task)] = id(awaited)
        return found

    async def _wait(self) -> None:
        """Until something happens here, a child has ended, or the first sleep is over."""
        timeout = LOOK_AGAIN_MS / 1000 if self._children else None
        if self._sleeping and not self._deciding:
            await self._look_at_the_clock()
            first = min((until for until, _ in self._sleeping.values()), default=self._now)
            if first <= self._now:
                return
            left = (first - self._now) / 1000
            timeout = left if timeout is None else min(left, timeout)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        if not self._changed.is_set():
            # A step takes its time, and what children give meanwhile may be wanted at once.
            self._unknown.update(each for each in self._children if each not in self._new_children)

    async def _park(self) -> bool:
        """Give the lease up until something has happened; ``False`` if it has happened already."""
        until = min((until for until, _ in self._sleeping.values()), default=None)
        if self._deciding:
            until = max(until or 0, self._now + LOOK_AGAIN_MS)
        wait = waited_for(self._children, self.calling, until)
        # The renewal may find the lease given up before we hear of it: that is no reason to be cancelled.
        job = self.job
        await job.settle_logs()
        job.open_handler = False
        answer = await self._tell(wait)
        if answer.parked:
            job.ended = True
            return True
        job.open_handler = True
        if job.interruption is not None:
            raise asyncio.CancelledError
        if answer.ended:
            ends = await self.job.repeated(lambda: self._engine.read_ends(answer.ended))
            self._arrived += [end for end in ends if end.state in ENDED]
        await self._look_at_the_clock()
        return False

    async def _tell(self, wait: ChildWait | None) -> Advanced:
        """Say everything that the engine has not heard, in one commit."""
        if self._begun:
            begun = self.memory.beginnings(self._begun)
            self._new_steps[begun.name] = begun
            self._begun = []
        steps, self._new_steps = list(self._new_steps.values()), {}
        children, self._new_children = list(self._new_children.values()), {}
        savers, self._savers = self._savers, {}
        behind, self._catching_up = self._catching_up, None
        if not (steps or children or wait):
            # What was under way has been said meanwhile.
            if behind is not None and not behind.done():
                behind.set_result(None)
            return Advanced((), False)
        self._telling += 1
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
        finally:
            self._telling -= 1
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

    def failed(self) -> None:
        """The function has raised: whatever it had caught is remembered by the commit that ends the attempt."""
        self.job.untold = self.done_last(), self.memory.count

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
        self.over = why
        waiting: list[asyncio.Future[Any]] = [child.waiting for child in self._children.values()]
        waiting += [future for _, future in self._sleeping.values()]
        waiting += self._cancellation.held.values()
        waiting += [] if self._catching_up is None else [self._catching_up]
        waiting += [future for _, future in self._misfits.values()]
        waiting += [future for each in self._losers.values() for future in each]
        for future in (*waiting, *self._savers.values(), *self._stuck):
            if not future.done():
                future.set_exception(why)
                future.exception()
        left = {main, *self._tasks} - {asyncio.current_task()}
        if isinstance(why, Parked):
            left |= {task for task in self.tasks if not task.done()}
        for task in left:
            task.add_done_callback(_unheard)
        if isinstance(why, Parked):
            await cut_off(left)
        if isinstance(why, asyncio.CancelledError):
            for task in left:
                task.cancel()
        _, stubborn = await asyncio.wait(left, timeout=LETTING_GO_S)
        for task in stubborn:
            task.cancel()
        if stubborn:
            await asyncio.wait(stubborn, timeout=LETTING_GO_S)


def in_order(due: tuple[int, int, Ended | str]) -> tuple[int, int]:
    """When it happened; at the same time an end goes before a time that is over."""
    return due[:2]


def has_failed(main: asyncio.Task[Any]) -> bool:
    """Whether it has ended with an error."""
    return main.done() and (main.cancelled() or main.exception() is not None)


def _unheard(task: asyncio.Task[Any]) -> None:
    """Nobody has to hear of its error."""
    if not task.cancelled():
        task.exception()
