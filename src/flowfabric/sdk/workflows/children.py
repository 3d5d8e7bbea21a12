"""Calls that are executions of their own: how they are started, end, and are given up."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import Any

from flowfabric.model.errors import NotFound, State, Validation
from flowfabric.model.operations.workflows import Ended, NewStep
from flowfabric.model.states import PublicState
from flowfabric.sdk.errors import ENDED, ENDS, AskClosed, AskTimedOut
from flowfabric.sdk.workflows.one_pass import OnePass
from flowfabric.sdk.workflows.recorded_errors import error_step, remembered_error
from flowfabric.sdk.workflows.recorded_steps import Begun, Call

#: Why a child was cancelled whose call was.
GIVEN_UP = "its workflow cancelled it"


#: Makes of a child's result what is to be remembered of it.
Keep = Callable[[bytes | None], bytes | None]
#: When somebody decided upon a result.
DecidedAt = Callable[[bytes | None], int | None]
#: A question in one of these states has answers that a worker has yet to look at.
_DECIDING = frozenset({PublicState.RESUMABLE, PublicState.ACTIVE})


class Child:
    """A call that is an execution of its own."""

    def __init__(
        self, call: Call, read: Callable[[bytes | None], Any], keep: Keep, decided_at_ms: DecidedAt | None
    ) -> None:
        self.call = call
        self.read = read
        #: What is to be remembered of its result.
        self.keep = keep
        #: When its result was decided, if that is not when it ended; it may be decided before a worker ends it.
        self.decided_at_ms = decided_at_ms
        self.waiting: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        #: The task that waits for its end.
        self.task: asyncio.Task[Any] | None = None


class Children(OnePass):
    """The children of one pass."""

    def _start(
        self,
        call: Call,
        arguments: dict[str, Any],
        read: Callable[[bytes | None], Any],
        keep: Keep = lambda result: result,
        decided_at_ms: DecidedAt | None = None,
    ) -> Child:
        begun = self.memory.begun(call.name)
        own = self._uuid(self.memory.generation(call.name, call.identity)) if begun is None else begun[0]
        execution_id = self._id(own)
        if begun is None or not begun[1]:
            self._begun.append(Begun(call.name, call.arguments, own))
        if begun is not None:
            self._unknown.add(execution_id)
        tags = {**(arguments.get("tags") or {}), "ff.run": self._root(), "ff.step": call.name}
        self._new_children[execution_id] = {**arguments, "execution_id": execution_id, "tags": tags}
        child = self._children[execution_id] = Child(call, read, keep, decided_at_ms)
        self._changed.set()
        return child

    def _uuid(self, generation: str) -> str:
        return str(uuid.uuid5(uuid.UUID(self._identity.uuid_text), generation))

    def _id(self, own: str) -> str:
        return f"{{fp:{self._identity.partition}}}:{own}"

    def _start_another(self, execution_id: str) -> None:
        """An earlier trial has started this child, and nothing came of it: there is another one for this trial."""
        child = self._children.pop(execution_id)
        own = self._uuid(self.memory.next_generation(child.call.identity))
        self._begun = [each for each in self._begun if each.name != child.call.name]
        self._begun.append(Begun(child.call.name, child.call.arguments, own))
        following = self._id(own)
        self._new_children[following] = {**self._new_children.pop(execution_id), "execution_id": following}
        self._children[following] = child
        self._changed.set()

    def _exists(self, end: Ended) -> None:
        """A child that an earlier pass has started."""
        execution_id = str(end.execution_id)
        child = self._children.get(execution_id)
        if child is None:
            return
        begun = self.memory.begun(child.call.name)
        is_of_this_trial = begun is not None and begun[1]
        if end.state in ENDED and end.state is not PublicState.COMPLETED and not is_of_this_trial:
            self._start_another(execution_id)
            return
        if self._new_children.pop(execution_id, None) is not None:
            self.job.repeats()
        if child.decided_at_ms is not None and end.state in _DECIDING:
            self._deciding.add(execution_id)
        else:
            self._deciding.discard(execution_id)
        if end.state in ENDED:
            self._arrived.append(end)

    def _ended_at_ms(self, end: Ended) -> int:
        """When it ended, or what it gave was decided."""
        child = self._children.get(str(end.execution_id))
        decided = None
        if child is not None and child.decided_at_ms is not None and end.state is PublicState.COMPLETED:
            decided = child.decided_at_ms(end.result)
        return decided or end.ended_at_ms or 0

    def _tell_end(self, end: Ended) -> None:
        child = self._children.pop(str(end.execution_id), None)
        if child is not None and not child.waiting.done():
            self.job.advances()
            child.waiting.set_result(end)
            self._changed.set()

    async def _end_of(self, child: Child) -> Any:
        child.task = asyncio.current_task()
        try:
            end = await child.waiting
        except asyncio.CancelledError:
            if self.over is None:
                self._give_up(child)
            raise
        call = child.call
        if end.state is PublicState.COMPLETED:
            try:
                result = child.keep(end.result)
            except (AskTimedOut, AskClosed) as undecided:
                # A later trial asks again.
                met = self._meet(error_step(self.memory.error_name(call.name), undecided, call.arguments))
                raise remembered_error(call.name, met) from None
            self._new_steps[call.name] = NewStep(call.name, result, arguments=call.arguments)
            return await self._read(call, result, child.read)
        reason = end.failure_reason or end.cancellation_reason or ""
        error = ENDS[end.state](_said(child, end.state, reason), run_id=str(end.execution_id), reason=reason)
        raise remembered_error(
            call.name, self._meet(error_step(self.memory.error_name(call.name), error, call.arguments))
        )

    def _meet(self, met: NewStep) -> NewStep:
        self._new_steps[met.name] = met
        return met

    def _give_up(self, child: Child) -> None:
        """The function has cancelled the call: the child is cancelled too, if it was started in this or an earlier
        pass of the code."""
        execution_id = next((each for each, known in self._children.items() if known is child), None)
        if execution_id is None:
            return  # it has ended
        del self._children[execution_id]
        is_new = self._new_children.pop(execution_id, None) is not None
        if is_new and execution_id not in self._unknown:
            self._begun = [each for each in self._begun if each.name != child.call.name]
        else:
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


def _said(child: Child, state: PublicState, reason: str) -> str:
    how = f"{child.call.name} {state.value}"
    return f"{how}: {reason}" if reason else how
