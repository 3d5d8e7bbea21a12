"""One run: what was started, and what becomes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flowfabric.model.errors import NotFound, Validation
from flowfabric.model.operations.executions import ExecutionSnapshot
from flowfabric.model.operations.workflows import StepRecord
from flowfabric.model.reads.explain import Explanation
from flowfabric.model.states import PublicState
from flowfabric.sdk.errors import ENDED, StillPending, UnknownRun
from flowfabric.sdk.runs.frames import Output, RunFrame

if TYPE_CHECKING:
    from flowfabric.sdk.app import App
    from flowfabric.sdk.definitions.signature import Signature
    from flowfabric.sdk.runs.logs import RunLog

T = TypeVar("T")
R = TypeVar("R")

#: Where a run is: ``waiting``, ``active``, ``completed`` …
RunStatus = PublicState


class Run(Generic[T]):
    """A handle. It holds only the id: creating one costs nothing, and any process can do it."""

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
        """Its state; ``pending`` if it was started in a transaction that has committed but the run does not exist
        yet."""
        state = await self.app.engine.read_execution_state(self.id)
        return await self._not_there() if state is None else state

    async def _not_there(self) -> RunStatus:
        """It may have been asked for in a transaction, and not be there yet."""
        from flowfabric.sdk.runs.enqueue import requested_state

        state = await requested_state(self)
        if state is None:
            raise self._unknown()
        return state

    async def result(self, timeout: timedelta | None = None) -> T:
        """Wait until it ends and return its result; raises ``RunFailed`` or a similar error if it did not complete."""
        from flowfabric.sdk.runs.results import result_of

        found: T = await result_of(self, timeout)
        return found

    async def cancel(self, reason: str = "") -> None:
        """Cancel it, with everything it has started. A task ends at once. A workflow is called once more: what it is
        waiting for raises ``CancelRequested``, and it has its ``cancel_grace`` to clean up. A run that has ended or was
        already cancelled does not change."""
        await self._end(lambda: self.app.engine.request_cancel(execution_id=self.id, reason=reason))

    async def terminate(self, reason: str = "") -> None:
        """End it at once, whatever it is doing, with everything it has started and without cleanup. A run that has
        ended does not change."""
        await self._end(lambda: self.app.engine.cancel_execution(execution_id=self.id, reason=reason))

    async def _end(self, call: Callable[[], Awaitable[object]]) -> None:
        try:
            await self._there(call)
        except Validation:
            if await self.status() not in ENDED:
                raise

    async def replay(self) -> None:
        """Run it again, with the same arguments, after it has ended. A cancelled run cannot be replayed; start a
        new one."""
        await self._there(lambda: self.app.engine.replay_execution(execution_id=self.id))

    async def steps(self) -> list[StepRecord]:
        """The recorded calls of a workflow, in order."""
        # The others are how it keeps account of them.
        return [each for each in await self.app.engine.read_steps(self.id) if not each.name.startswith("!")]

    async def fork(self, at: str | None = None) -> Run[T]:
        """Start a new run with the results this one recorded before the step ``at``, which may have failed (without
        one: all of them); it continues with the current code. This run does not change."""
        forked = await self._there(lambda: self.app.engine.fork_execution(execution_id=self.id, at=at))
        return Run(self.app, forked.execution_id, self._signature)

    async def explain(self) -> Explanation:
        """Why it is not running, following the chain of what it is waiting for: ``sentence`` says it, ``gate`` is the
        kind of reason, ``detail`` holds the ids involved. See docs/scheduling.md."""
        return await self._there(lambda: self.app.engine.explain(self.id))

    async def info(self) -> ExecutionSnapshot:
        """The basics: state, lease, attempts, tags."""
        found = await self.app.engine.describe_execution(self.id)
        if found is None:
            await self._arrived()
            found = await self.app.engine.describe_execution(self.id)
        if found is None:
            raise self._unknown()
        return found

    def frames(self, after: str | int | Mapping[str, str] = 0, *, children: bool = False) -> AsyncIterator[RunFrame]:
        """Its output, live, from the first frame (or after ``after``, a frame's id) to the end of the run. When output
        starts over, a ``RunRestart`` comes first; ``Output`` keeps what counts. ``children`` includes the output of
        child runs; then ``after`` names a frame of each run, as ``Output.places`` does."""
        from flowfabric.sdk.runs.frames import follow, follow_with_children

        return follow_with_children(self, after) if children else follow(self, after)

    async def output(self, *, children: bool = False) -> Output:
        """The output that counts, once the run has ended: ``(await run.output()).text``."""
        found = Output()
        async for frame in self.frames(children=children):
            found.add(frame)
        return found

    def logs(self, *, follow: bool = False) -> AsyncIterator[RunLog]:
        """The lines its functions wrote with ``ctx.log``, oldest first: those stored so far, or with ``follow`` all
        until the run has ended."""
        from flowfabric.sdk.runs.logs import lines_of

        return lines_of(self, follow=follow)

    async def _there(self, call: Callable[[], Awaitable[R]]) -> R:
        """What a call gives that needs the run to be there."""
        try:
            return await call()
        except NotFound:
            await self._arrived()
        return await call()

    async def _arrived(self) -> None:
        """Return if a run that was not there has come; else say why it has not."""
        from flowfabric.sdk.runs.enqueue import PENDING

        if await self._not_there() is PENDING:
            raise StillPending(
                f"run {self.id} is pending: its transaction is committed, and a worker or server picks it up within a "
                "second. Try again; if it stays pending, start a worker or server on this store",
                run=self.id,
            )

    def load_result(self, data: bytes | None) -> Any:
        """The stored result as a value."""
        if self._signature is not None:
            return self._signature.load_result(data)
        from flowfabric.sdk.definitions.codec import PlainCodec

        return PlainCodec().decode(data) if data else None

    def _unknown(self) -> UnknownRun:
        return UnknownRun(f"there is no run {self.id}; it may be past its retention, or not committed yet", run=self.id)
