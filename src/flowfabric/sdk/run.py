"""One run: what was started, and what becomes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flowfabric.model.errors import Validation
from flowfabric.model.explain import Explanation
from flowfabric.model.results import ExecutionSnapshot
from flowfabric.model.states import PublicState
from flowfabric.model.steps import StepRecord
from flowfabric.sdk.ends import ENDED
from flowfabric.sdk.errors import UnknownRun
from flowfabric.sdk.frames import RunFrame

if TYPE_CHECKING:
    from flowfabric.sdk.app import App
    from flowfabric.sdk.signature import Signature

T = TypeVar("T")

#: Where a run is: ``waiting``, ``active``, ``completed`` …
RunStatus = PublicState


class Run(Generic[T]):
    """A handle. It holds nothing but the id: making one costs nothing, and any process can."""

    __slots__ = ("_signature", "app", "id")

    def __init__(self, app: App, id: str, signature: Signature | None = None) -> None:
        self.app = app
        self.id = str(id)
        self._signature = signature

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.id == self.id and other.app is self.app

    def __hash__(self) -> int:
        return hash(self.id)

    async def status(self) -> RunStatus:
        """Where it is; ``pending`` if it was asked for in a transaction that is committed and is not there yet."""
        state = await self.app.engine.read_execution_state(self.id)
        return await self._not_there() if state is None else state

    async def _not_there(self) -> RunStatus:
        """It may have been asked for in a transaction, and not be there yet."""
        from flowfabric.sdk.enqueue import requested_state

        state = await requested_state(self)
        if state is None:
            raise self._unknown()
        return state

    async def result(self, timeout: timedelta | None = None) -> T:
        """What it gave, as soon as it has ended; raises ``RunFailed`` and its like if it gave nothing."""
        from flowfabric.sdk.results import result_of

        found: T = await result_of(self, timeout)
        return found

    async def cancel(self, reason: str = "") -> None:
        """Cancel it, whatever it is doing, with everything it has started. A run that has ended stays as it is."""
        try:
            await self.app.engine.cancel_execution(execution_id=self.id, reason=reason)
        except Validation:
            if await self.status() not in ENDED:
                raise

    async def replay(self) -> None:
        """Run it again, with the same arguments, after it has ended. What was cancelled is started anew instead."""
        await self.app.engine.replay_execution(execution_id=self.id)

    async def steps(self) -> list[StepRecord]:
        """What a workflow remembers, in order."""
        return await self.app.engine.read_steps(self.id)

    async def fork(self, at: str | None = None) -> Run[T]:
        """Start a run that remembers what this one did before the step ``at`` (without one: all of it) and goes on
        from there with the code of today. This run stays as it is."""
        forked = await self.app.engine.fork_execution(execution_id=self.id, at=at)
        return Run(self.app, forked.execution_id, self._signature)

    async def explain(self) -> Explanation:
        """Why it is where it is, in one sentence and with the ids involved."""
        return await self.app.engine.explain(self.id)

    async def info(self) -> ExecutionSnapshot:
        """What a person asks first: state, lease, attempts, tags."""
        found = await self.app.engine.describe_execution(self.id)
        if found is None:
            raise self._unknown()
        return found

    def frames(self, after: str | int = 0) -> AsyncIterator[RunFrame]:
        """What it emits, live, from the first frame (or behind ``after``, the id of one) to the end of the run."""
        from flowfabric.sdk.frames import follow

        return follow(self, after)

    def load_result(self, data: bytes | None) -> Any:
        """The stored result as a value."""
        if self._signature is not None:
            return self._signature.load_result(data)
        from flowfabric.sdk.codec import PlainCodec

        return PlainCodec().decode(data) if data else None

    def _unknown(self) -> UnknownRun:
        return UnknownRun(f"there is no run {self.id}; it may be past its retention, or not committed yet", run=self.id)
