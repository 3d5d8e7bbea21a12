"""What the code of a workflow calls: tasks, steps, sleeps, questions, values, races.

A call has its name when it is made, and is made when it is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from flowfabric.model.operations.workflows import NewStep
from flowfabric.sdk.durations import milliseconds
from flowfabric.sdk.errors import BadResult
from flowfabric.sdk.options import StartOptions
from flowfabric.sdk.workflows.branches import Runner, runners
from flowfabric.sdk.workflows.recorded_errors import error_step, remembered_error
from flowfabric.sdk.workflows.recorded_steps import Call
from flowfabric.sdk.workflows.run_step import run_step
from flowfabric.sdk.workflows.starts import Starts

if TYPE_CHECKING:
    from flowfabric.sdk.asks.ask import Ask
    from flowfabric.sdk.definitions.tasks import Startable, Step, Task, Workflow


class Calls(Starts):
    """Implements ``sdk.workflows.durable.Durable`` for one pass of the code."""

    def call_task(
        self, task: Task[..., Any] | Workflow[..., Any], payload: bytes, options: StartOptions
    ) -> Coroutine[Any, Any, Any]:
        """A child: its name is taken now, it starts when it is awaited."""
        call = self._call(task.name, options.key, payload)
        return self._call_task(call, task, payload, options)

    def call_step(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None
    ) -> Coroutine[Any, Any, Any]:
        """A step: its name is taken now, it runs when it is awaited."""
        payload = step.signature.pack(args, kwargs)
        call = self._call(step.name, key, payload)
        return self._call_step(call, step, payload)

    def sleep(self, duration: timedelta, key: str | None) -> Coroutine[Any, Any, None]:
        """Wait until a time that is fixed when the wait begins."""
        call = self._call("sleep", key, None)
        return self._sleep(call, duration)

    def ask(self, ask: Ask[Any]) -> Coroutine[Any, Any, Any]:
        """A question: an execution of its own that waits for signals."""
        call = self._call(ask.step_name, ask.key, ask.recognised_by)
        return self._ask(call, ask)

    def value(
        self, name: str, make: Callable[[], Awaitable[Any]], read: Callable[[bytes | None], Any]
    ) -> Coroutine[Any, Any, Any]:
        """A value that would differ each time the code runs, and does not."""
        call = self._call(name, None, None)
        return self._value(call, make, read)

    async def time(self) -> str:
        """What time it is in the store."""
        await self.clock()
        return datetime.fromtimestamp(self._now / 1000, UTC).isoformat()

    def first(self, calls: Sequence[Awaitable[Any]], key: str | None) -> Coroutine[Any, Any, Any]:
        """The first call that succeeds; the others are cancelled."""
        from flowfabric.sdk.workflows.race import durable_race

        call, racing = self._racing(calls, key)
        return durable_race(self, call, racing)

    def limit(self, call: Awaitable[Any], duration: timedelta, key: str | None) -> Coroutine[Any, Any, Any]:
        """What becomes of a call within this time."""
        from flowfabric.sdk.workflows.race import limited

        race, racing = self._racing([call, self.sleep(duration, key)], key)
        return limited(self, race, racing, duration)

    def _racing(self, calls: Sequence[Awaitable[Any]], key: str | None) -> tuple[Call, list[Runner]]:
        from flowfabric.sdk.asks.ask import Ask

        # Every call has its name before any of them runs: the losers' are not made again.
        named = [self.ask(call) if isinstance(call, Ask) else call for call in calls]
        call = self._call("first", key, None)
        return call, runners(self, named, self._here().race(key, call.name))

    # -- making them ---------------------------------------------------------------------------------------------

    async def _call_task(self, call: Call, task: Startable[..., Any], payload: bytes, options: StartOptions) -> Any:
        known = await self.remembered(call, task.signature.load_result)
        if known is not None:
            return known[0]
        from flowfabric.sdk.runs.start import prepare

        self._starting += 1
        try:
            with self.work():
                arguments = task.signature.unpack(payload)
                prepared = await self.job.repeated(lambda: prepare(task, arguments, options, payload))
                prepared.arguments.pop("idempotency_key", None)
                child = self._start(call, prepared.arguments, task.signature.load_result)
        finally:
            self._starting -= 1
            self._changed.set()
        return await self._end_of(child)

    async def _ask(self, call: Call, ask: Ask[Any]) -> Any:
        """The answer. One that was taken and cannot be read does not end the run: the question is asked again, under
        a name of its own, so that code that runs again comes the same way."""
        from flowfabric.sdk.asks.ask import MOST_ASKED, UnreadAnswer

        called, asked = call, 1
        while True:
            try:
                return await self._ask_once(called, ask)
            except UnreadAnswer as error:
                asked += 1
                if asked > MOST_ASKED:
                    raise
                called = call._replace(name=f"{call.name}~{asked}", identity=f"{call.identity}~{asked}")
                ask = ask.again(error)

    async def _ask_once(self, call: Call, ask: Ask[Any]) -> Any:
        known = await self.remembered(call, ask.read_result)
        if known is not None:
            return known[0]
        self.check()
        arguments = ask.creation(self.job.app, self._root())
        child = self._start(call, arguments, ask.read_result, ask.decided, ask.decided_at_ms)
        return await self._end_of(child)

    async def _call_step(self, call: Call, step: Step[..., Any], payload: bytes) -> Any:
        found = self._given(call)
        if found is not None:
            try:
                return step.signature.load_result(found.value)
            except BadResult:
                pass  # It is refused below.
        known = await self.remembered(call, step.signature.load_result)
        if known is not None:
            return known[0]
        if self._cancellation.due:
            self._changed.set()
            await self._cancellation.hold(call.name)
        self.job.advances()
        with self.work():
            if self._new_steps or self._telling:
                # Nothing is done before what was done earlier is remembered.
                await self._caught_up()
                self.check()
            met: NewStep | None = None
            data = b""
            in_thread = not step.is_async and step.options.run_in != "process"
            self._in_threads += in_thread
            try:
                data = await run_step(self.job, call, step, payload)
            except Exception as error:
                self.check()
                met = error_step(self.memory.error_name(call.name), error, call.arguments)
                raised_in = error.__traceback__
            finally:
                self._in_threads -= in_thread
            if met is not None:
                await self.saved(met)
                raise remembered_error(call.name, met).with_traceback(raised_in)
            self.check()
            # It is remembered with whatever is said next: before another step is done, or when the function ends.
            self._new_steps[call.name] = NewStep(call.name, data, arguments=call.arguments)
        return await self._read(call, data, step.signature.load_result)

    async def _sleep(self, call: Call, duration: timedelta) -> None:
        known = await self.remembered(call, lambda value: msgspec.json.decode(value or b"0", type=int))
        if known is None:
            await self.clock()
            until = self._now + milliseconds(duration)
            self._new_steps[call.name] = NewStep(call.name, msgspec.json.encode(until))
        else:
            until = known[0]
            if not self._now:
                # One look for all that the code has slept before.
                await self.clock()
        self.check()
        if until <= self._now and not self._children and not self._sleeping and not self.racing:
            return
        # What else has ended meanwhile may have ended before.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping[call.name] = (until, future)
        self._changed.set()
        try:
            await future
        finally:
            self._sleeping.pop(call.name, None)

    async def _value(self, call: Call, make: Callable[[], Awaitable[Any]], read: Callable[[bytes | None], Any]) -> Any:
        known = await self.remembered(call, read)
        if known is not None:
            return known[0]
        with self.work():
            value = await make()
        self.check()
        data = msgspec.json.encode(value)
        self._new_steps[call.name] = NewStep(call.name, data)
        return read(data)
