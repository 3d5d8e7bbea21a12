"""One attempt: find who handles it, run that, and end the attempt in exactly one way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError, LimitReached, Validation
from flowfabric.model.handles import Handle
from flowfabric.model.operations.executions import ExecutionContext, FailureClass
from flowfabric.model.operations.workflows import NewStep
from flowfabric.model.streams.frames import MAX_FRAME_BYTES, Frame, FrameContent
from flowfabric.model.trace import PARENT_TAG, TraceContext
from flowfabric.sdk.backoff import Patience
from flowfabric.sdk.context import Stream
from flowfabric.sdk.definitions.tasks import Task, Workflow
from flowfabric.sdk.errors import (
    BadArguments,
    BadDependency,
    BadOptions,
    BadPayload,
    BadResult,
    BudgetExceeded,
    CancelRequested,
    SdkError,
    UnknownTask,
)
from flowfabric.sdk.options import TaskOptions
from flowfabric.sdk.runs.frames import Appends
from flowfabric.sdk.runs.logs import Logs
from flowfabric.sdk.worker.calls import run_task
from flowfabric.sdk.worker.renewal import Lease, is_passing
from flowfabric.sdk.worker.shared import WorkerShared
from flowfabric.sdk.worker.tracebacks import told_of
from flowfabric.telemetry.spans import span, telemetry

if TYPE_CHECKING:
    from flowfabric.sdk.app import App

_log = logging.getLogger("flowfabric.worker")
T = TypeVar("T")

#: Tries to give a run back before that is left to its lease.
GIVE_BACK_TRIES = 6
MAX_REASON = 2_000
MAX_TRACEBACK = 24_200
#: Errors that another attempt would only meet again.
HOPELESS = (BadPayload, BadResult, BadArguments, BadOptions, BadDependency, UnknownTask, BudgetExceeded, LimitReached)


class Interruption(StrEnum):
    """Why a handler was cancelled."""

    LOST = "lost"
    TIMEOUT = "timeout"
    DRAIN = "drain"


class Parked(BaseException):
    """The attempt is over without an end of its own: its execution was suspended meanwhile."""


class Job:
    """One claimed attempt."""

    __slots__ = (
        "_alarm",
        "_appends",
        "_logs",
        "_lost",
        "app",
        "asked",
        "began_at",
        "context",
        "ended",
        "engine",
        "handle",
        "interruption",
        "lease",
        "lost_because",
        "on_asked",
        "open_handler",
        "spends",
        "taken_at",
        "task",
        "unanswered",
        "untold",
        "worker",
        "writing",
    )

    def __init__(
        self,
        app: App,
        engine: Engine,
        handle: Handle,
        context: ExecutionContext,
        worker: WorkerShared,
        claimed_at: float,
    ) -> None:
        self.app = app
        self.engine = engine
        self.handle = handle
        self.context = context
        self.worker = worker
        self._lost: asyncio.Event | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._appends: Appends | None = None
        self._logs: Logs | None = None
        #: Output that is being written.
        self.writing: set[Stream] = set()
        self.lost_because: BaseException | None = None
        self.lease = Lease(handle, claimed_at, self.lose, self.ask_to_end)
        #: Whether the execution was asked to cancel, and what to call when it is.
        self.asked = False
        self.on_asked: Callable[[], None] | None = None
        #: Numbers the calls of ``ctx.spend`` under this lease.
        self.spends = itertools.count(1)
        #: When the claim was answered; it may have waited for work before.
        self.taken_at = time.monotonic()
        #: When the attempt began here.
        self.began_at = self.taken_at
        #: The task the attempt runs in, and whether its handler may be cancelled now.
        self.task: asyncio.Task[Any] | None = None
        self.open_handler = False
        self.interruption: Interruption | None = None
        self.ended = False
        #: What the store said last to a call of our own that it never answered.
        self.unanswered: EngineError | None = None
        #: What the end of the attempt has to remember: steps that ended last, and how many are remembered before them.
        self.untold: tuple[Sequence[NewStep], int] = ((), 0)

    def __repr__(self) -> str:
        return f"<attempt {self.attempt} of {self.kind or 'nothing'} {self.execution_id}>"

    @property
    def trace(self) -> TraceContext | None:
        """The trace it was started in."""
        tags = self.context.tags
        return TraceContext.of_tags(tags) if PARENT_TAG in tags else None

    @property
    def appends(self) -> Appends:
        """Writes the frames of all that runs under this lease."""
        if self._appends is None:
            self._appends = Appends(self)
        return self._appends

    @property
    def logs(self) -> Logs:
        """The lines that its functions log."""
        if self._logs is None:
            self._logs = Logs(self)
        return self._logs

    async def settle(self) -> None:
        """Store what was emitted and logged so far."""
        for stream in list(self.writing):
            await stream.settle()
        await self.settle_logs()

    async def settle_logs(self) -> None:
        """Store the lines that were logged so far."""
        if self._logs is not None:
            await self._logs.settle()

    def repeats(self) -> None:
        """A workflow's function has made a call that it had made before."""
        if self._logs is not None:
            self._logs.forget()

    def advances(self) -> None:
        """A workflow's function does what it had not done before."""
        if self._logs is not None:
            self._logs.believe()

    @property
    def lost(self) -> asyncio.Event:
        """Set when the lease is gone; the handler is cancelled."""
        if self._lost is None:
            self._lost = asyncio.Event()
        return self._lost

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone."""
        return self._lost is not None and self._lost.is_set()

    @property
    def execution_id(self) -> str:
        """The run."""
        return self.handle.payload.execution_id

    @property
    def kind(self) -> str:
        """What is to be run."""
        return self.context.execution_kind

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1 on. One that goes on after its worker was lost keeps its number."""
        return self.handle.payload.attempt_index + 1

    # -- interruptions -------------------------------------------------------------------------------------------

    def lose(self, error: BaseException) -> None:
        """The lease is gone."""
        if self.ended or self.is_lost:
            return
        self.lost_because = error
        self.lost.set()
        self.interrupt(Interruption.LOST)

    def ask_to_end(self) -> None:
        """Somebody has asked the execution to end; what it does about it is its own business."""
        if not self.asked:
            self.asked = True
            if self.on_asked is not None:
                self.on_asked()

    def interrupt(self, why: Interruption) -> None:
        """Cancel the handler, if it runs; the first reason stays, but for a lost lease, which goes before all."""
        if self.interruption is None or why is Interruption.LOST:
            self.interruption = why
        if self.open_handler and self.task is not None:
            self.task.cancel(why)

    # -- calls ---------------------------------------------------------------------------------------------------

    async def repeated(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that may be repeated, again while the store does not answer and the lease may live."""
        patience = Patience()
        while True:
            try:
                return await call()
            except EngineError as error:
                if not is_passing(error):
                    raise
                if self.is_lost or not self.lease.healthy:
                    self.unanswered = error
                    raise
                _log.warning("%r: the store does not respond, retrying: %s", self, error)
            await patience.rest()

    # -- how long ------------------------------------------------------------------------------------------------

    def limit(self, options: TaskOptions) -> None:
        """The work begins: interrupt it when it takes longer than its attempts may."""
        if options.timeout is not None:
            seconds = options.timeout.total_seconds()
            self._alarm = asyncio.get_running_loop().call_later(seconds, self.interrupt, Interruption.TIMEOUT)

    def unlimit(self) -> None:
        """The work is over."""
        if self._alarm is not None:
            self._alarm.cancel()

    # -- ends ----------------------------------------------------------------------------------------------------

    async def conclude(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Make a call that ends the attempt, again while the store does not answer and the lease may live.

        A repeated terminal call gets its first answer again. ``None`` if the lease was lost: then the end of this
        attempt is no longer ours to say.
        """
        self.open_handler = False
        await self.settle()
        patience = Patience()
        while True:
            try:
                answer = await call()
            except EngineError as error:
                if isinstance(error, Validation | LimitReached):
                    raise
                if not is_passing(error):
                    self.lose(error)
                    self.ended = True
                    _log.info("%r is no longer ours: %s", self, error)
                    return None
                if self.is_lost or not self.lease.healthy:
                    self.lose(error)
                    self.ended = True
                    _log.warning("%r could not be ended before its lease expired: %s", self, error)
                    return None
                _log.warning("%r: the store does not respond, retrying: %s", self, error)
            else:
                self.ended = True
                return answer
            await patience.rest()

    async def complete(self, data: bytes | None, steps: Sequence[NewStep] = (), known_steps: int = 0) -> None:
        """End with success, and with the steps that were done last."""
        more: dict[str, Any] = {"steps": steps, "known_steps": known_steps} if steps else {}
        try:
            await self.conclude(lambda: self.engine.complete(self.handle, data, **more))
        except Validation as error:
            raise BadResult(f"{self.kind}: its result was refused: {error}", task=self.kind) from error

    async def remember(self) -> None:
        """Store what the end of the attempt would have remembered."""
        (steps, known_steps), self.untold = self.untold, ((), 0)
        if steps:
            await self.repeated(lambda: self.engine.advance(self.handle, steps=steps, known_steps=known_steps))

    async def cancel(self, reason: str = "") -> None:
        """End as cancelled."""
        await self.conclude(lambda: self.engine.cancel(self.handle, reason))

    async def fail(
        self, error: BaseException | str, *, permanent: bool = False, category: str = "", trace: str | None = None
    ) -> None:
        """End as failed: the run's policy says whether another attempt follows, unless it is permanent.

        The whole error is kept as a frame of type ``error``.
        """
        self.open_handler = False
        if isinstance(error, BaseException):
            kind, message = type(error).__name__, _message(error)
            trace = _trace(error) if trace is None else trace
        else:
            kind, message = "Error", error
        await self.keep_error(kind, message, trace or "", category or ("permanent" if permanent else "error"))
        reason = f"{kind}: {message}" if message else kind
        await self.fail_as(reason, permanent=permanent, category=category)

    async def keep_error(self, kind: str, message: str, trace: str, category: str) -> None:
        """The error as a frame, behind what was logged."""
        await self.settle()
        document = {
            "type": kind,
            "message": message[:MAX_REASON],
            "category": category,
            "traceback": trace[:MAX_TRACEBACK],
            "attempt": self.attempt,
        }
        data = msgspec.json.encode(document)
        if len(data) > MAX_FRAME_BYTES:
            data = msgspec.json.encode({**document, "traceback": ""})
        try:
            await self.appends.one(Frame(data, frame_type="error", content=FrameContent.JSON))
        except EngineError as refused:
            _log.debug("%r: its error was not stored: %s", self, refused)

    async def fail_as(self, reason: str, *, permanent: bool, category: str = "") -> None:
        """End as failed for this reason."""
        kind = FailureClass.PERMANENT if permanent else FailureClass.TRANSIENT
        text = _storable(reason)[:MAX_REASON]
        steps, known_steps = self.untold
        more: dict[str, Any] = {"steps": steps, "known_steps": known_steps} if steps else {}
        await self.conclude(lambda: self.engine.fail(self.handle, text, kind, category or None, **more))

    async def give_back(self, reason: str = "the worker is stopping") -> None:
        """Put the execution back into its queue. The attempt goes on elsewhere under its own number; neither a
        failure nor a lost worker is counted."""
        self.open_handler = False
        await self.settle()
        self.ended = True
        patience = Patience()
        for _ in range(GIVE_BACK_TRIES):
            try:
                await self.engine.give_back(self.handle, reason)
                return
            except EngineError as error:
                why = error
                if not is_passing(error):
                    break
            await patience.rest()
        _log.warning("%r was not given back, its lease will expire: %s", self, why)

    async def decline(self, reason: str) -> tuple[str, ...]:
        """Leave it to a worker that knows it. If it is to fail because none does: the workers that were asked."""
        answer = await self.conclude(lambda: self.engine.decline(self.handle, reason))
        if answer is None:
            return ()
        if answer.until_ms is not None:
            _log.warning("%r is left to other workers: %s", self, reason)
            return ()
        self.ended = False
        return answer.workers


async def run_attempt(job: Job) -> None:
    """Run what the execution asks for and end the attempt."""
    job.task = asyncio.current_task()
    if job.context.cancel_at is not None:
        job.ask_to_end()
    try:
        await _handle_traced(job)
    except asyncio.CancelledError as error:
        await _interrupted(job, error)
    except CancelRequested as error:
        await job.cancel(_storable(error.reason)[:MAX_REASON])
    except Parked:
        job.ended = True
    except BaseException as error:
        await _failed(job, error)
    finally:
        job.unlimit()
        job.open_handler = False


async def _handle_traced(job: Job) -> None:
    """Handle it in the trace it was started in, so that what it starts belongs there too."""
    trace = job.trace
    if trace is None and telemetry() is None:
        await _handle(job)
        return
    facts = {"execution_id": job.execution_id, "attempt": job.attempt, "lane": job.handle.payload.lane_id}
    with span(f"ff.run {job.kind}", trace, facts, kind="CONSUMER"):
        await _handle(job)


async def _handle(job: Job) -> None:
    kind = job.kind
    if kind.startswith("$"):
        handler = job.app.builtin_kinds.get(kind)
        if handler is None:
            raise _unknown(job)
        _begin(job)
        await handler(job)
        return
    definition = job.app.definitions.get(kind)
    if isinstance(definition, Task):
        _begin(job)
        await job.complete(await run_task(job, definition))
    elif isinstance(definition, Workflow):
        from flowfabric.sdk.workflows.runner import run_workflow

        _begin(job)
        job.limit(definition.options)
        await run_workflow(job, definition)
    else:
        raise _unknown(job)


def _begin(job: Job) -> None:
    """From here on the handler may be cancelled."""
    if job.interruption is not None:
        raise asyncio.CancelledError
    job.open_handler = True


def _unknown(job: Job) -> UnknownTask:
    known = ", ".join(sorted(job.app.definitions)) or "nothing"
    return UnknownTask(
        f"worker {job.worker.name!r} of {job.app!r} has no task or workflow {job.kind!r}; known: {known}. Import the "
        "module that defines it, or let the worker serve other lanes",
        task=job.kind,
        run=job.execution_id,
    )


async def _interrupted(job: Job, error: BaseException) -> None:
    """The handler was cancelled: by us for a reason, or by itself."""
    job.open_handler = False
    why = job.interruption
    task = job.task
    if task is not None:
        while task.cancelling():
            task.uncancel()
    if job.ended:
        return
    if why is None and not job.worker.ends:
        await job.fail(error, category="cancelled")
        return
    if why is Interruption.LOST:
        _log.warning("%r lost its lease and was stopped: %s", job, job.lost_because)
        job.ended = True
    elif why is Interruption.DRAIN or why is None:
        await job.give_back()
    else:
        await _timed_out(job, job.app.definitions[job.kind].options)


async def _timed_out(job: Job, options: TaskOptions) -> None:
    error = TimeoutError(f"the attempt took longer than {options.timeout}")
    await job.keep_error("TimeoutError", str(error), "", "timeout")
    try:
        await job.fail_as(f"TimeoutError: {error}", permanent=options.retry.gives_up(error), category="timeout")
    except (Validation, LimitReached) as refused:
        await _without_steps(job, refused)


async def _failed(job: Job, error: BaseException) -> None:
    """The handler raised."""
    job.open_handler = False
    if job.ended:
        _log.error("%r had already ended when its handler failed", job, exc_info=error)
        return
    if job.is_lost:
        _log.warning("%r lost its lease; its handler ended with %r", job, error)
        return
    if _comes_from(error, job.unanswered):
        # No fault of the function's: a worker that reaches the store goes on, and nothing is counted.
        await job.give_back("the store does not respond")
        return
    if isinstance(error, BudgetExceeded) and error.cancels:
        with contextlib.suppress(EngineError):
            await job.remember()
        await job.cancel(_storable(str(error))[:MAX_REASON])
        return
    if isinstance(error, SdkError) and (unknown := _not_known(job, error)):
        asked = await job.decline(unknown)
        if not asked:
            return
        error.message += f". No worker that was asked knows it: {', '.join(asked)}"
    definition = job.app.definitions.get(job.kind)
    remote = getattr(error, "remote", None)
    permanent = isinstance(error, HOPELESS) or (definition is not None and definition.options.retry.gives_up(error))
    category = getattr(error, "code", "") if isinstance(error, SdkError | LimitReached) and permanent else ""
    if not isinstance(error, Exception):
        category = "crash"
    try:
        if remote is not None:
            await job.keep_error(remote.type, remote.message, remote.traceback, remote.category)
            await job.fail_as(str(error), permanent=remote.permanent, category="")
        else:
            await job.fail(error, permanent=permanent, category=category)
    except (Validation, LimitReached) as refused:
        if job.untold[0]:
            await _without_steps(job, refused)
            return
        # Something in it cannot be stored: say at least that.
        await job.fail_as(f"{type(error).__name__}: (its message cannot be stored)", permanent=permanent)


async def _without_steps(job: Job, refused: EngineError) -> None:
    """What the function did last cannot be remembered, which is how it fails."""
    job.untold = (), 0
    await _failed(job, refused)


def _comes_from(error: BaseException | None, source: BaseException | None) -> bool:
    """Whether an error is another one, or was raised because of it: a group with it, or what an ``except`` block has
    raised in its place."""
    seen: set[int] = set()
    left = [error] if source is not None else []
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        if each is source:
            return True
        seen.add(id(each))
        left += [each.__cause__, each.__context__]
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return False


def _not_known(job: Job, error: SdkError) -> str:
    """What it is that the code of this worker does not know, and that of another one may, as while a version is rolled
    out."""
    if isinstance(error, UnknownTask) and error.ids.get("run") == job.execution_id:
        return f"no task or workflow {job.kind!r}"
    if isinstance(error, BadPayload) and error.ids.get("task") == job.kind and error.ids.get("unknown"):
        return f"no argument {error.ids['unknown']!r} in {job.kind!r}"
    return ""


def _message(error: BaseException) -> str:
    try:
        return _storable(str(error))
    except Exception as broken:
        return f"(no message: str() raised {type(broken).__name__})"


def _storable(text: str) -> str:
    """The text as every store can keep it."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")


def _trace(error: BaseException) -> str:
    return _storable(told_of(error))
