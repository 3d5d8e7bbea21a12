"""``Ctx``: the context that a handler gets if it annotates a parameter with it.

In an ``async def`` handler its methods are awaited. In a ``def`` handler, which runs in a thread, the same calls block
until they are done: ``ctx.emit("text")``, ``with ctx.spend(tokens=100) as call:``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from flowfabric.model.errors import Bug, BugKind, EngineError
from flowfabric.model.operations.budgets import BudgetAsked, HardBreach, Reserved
from flowfabric.model.streams.frames import DurableSummary, Frame, FrameContent, FrameKind, Opening
from flowfabric.sdk.errors import BadOptions, BudgetExceeded
from flowfabric.sdk.options import Amount, Budget, amounts, shown_amount
from flowfabric.sdk.runs.logs import Log
from flowfabric.sdk.workflows.durable import CURRENT

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.model.streams.logs import LogLine
    from flowfabric.model.trace import TraceContext
    from flowfabric.sdk.worker.attempt import Job

T = TypeVar("T")

#: Frames and bytes that may wait to be written before ``emit`` waits too; and frames one write may carry.
MOST_WAITING, MOST_BYTES = 512, 1_048_576
MOST_AT_ONCE = 500
#: How long an attempt that ends without having waited for its output may take to write it.
SETTLE_S = 3.0
_SUMMARY = DurableSummary()


class Ctx:
    """The attempt a function runs in. A task, step or workflow gets it if it has a parameter ``ctx: Ctx``."""

    def __init__(self, job: Job, name: str, step: str | None = None, identity: str | None = None) -> None:
        self._job = job
        self._name = name
        self._step = step
        #: What tells the step's call from all others, in every attempt.
        self._identity = identity
        self._thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._log: logging.LoggerAdapter[logging.Logger] | None = None
        #: What puts things in order after a request to cancel is not to stop because of it.
        self._asked_before = job.asked
        #: What was emitted so far.
        self.stream = Stream(job, self._do, step)

    def __repr__(self) -> str:
        return f"<ctx of {self._name} {self.run_id}>"

    # -- who and what --------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._job.execution_id

    @property
    def attempt(self) -> int:
        """1 for the first attempt; each retry adds one."""
        return self._job.attempt

    @property
    def tags(self) -> Mapping[str, str]:
        """The run's tags, as they are stored: ``user.team``."""
        return self._job.context.tags

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt of this run, or of this step in it. Pass it to services that accept one, so
        that a retry does not repeat what an earlier attempt did before it died."""
        uuid = self._job.handle.execution_id.uuid_text
        return uuid if self._identity is None else f"{uuid}:{self._identity}"

    @property
    def lease_healthy(self) -> bool:
        """Whether this worker still holds the lease. Check it before you do something that cannot be undone."""
        return not self._job.is_lost and self._job.lease.healthy

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the run was cancelled, this attempt timed out, or the worker has lost its lease; in a step
        also if the workflow was asked to cancel while the step ran. True within about two seconds. Long ``def``
        functions check it from time to time and return; an ``async def`` is cancelled anyway."""
        job = self._job
        asked = job.asked and not self._asked_before
        return asked or job.is_lost or job.interruption is not None

    @property
    def engine(self) -> Engine:
        """The engine that the SDK is built on; see docs/engine.md."""
        return self._job.engine

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger, ``flowfabric.task.<name>``, whose records carry ``run_id``, ``attempt`` and ``task``. Lines from
        level ``INFO`` on are also stored beside the run: the console and ``flowfabric logs`` show them."""
        if self._log is None:
            known = {"run_id": self.run_id, "attempt": self.attempt, "task": self._name}
            least, keep = self._kept_logs()
            self._log = Log(f"flowfabric.task.{self._name}", known, least, keep, self._step)
        return self._log

    def _kept_logs(self) -> tuple[int | None, Callable[[LogLine], None]]:
        """From which level on lines are stored, and what takes them."""
        return self._job.app.stored_logs, self._job.logs.add

    @property
    def trace(self) -> TraceContext | None:
        """The trace that the run was started in, if any. Whatever this attempt starts belongs to it too."""
        return self._job.trace

    # -- output --------------------------------------------------------------------------------------------------

    def emit(self, data: str | bytes | Any, type: str = "frame") -> Awaitable[None]:
        """Write a frame of output: text, bytes, or any JSON value. Frames are stored in order and reach readers
        (``run.frames()``) within moments; many share a commit. All are written before the attempt ends."""
        return self._do(lambda: self.stream.add(data, type))

    def flush(self) -> Awaitable[None]:
        """Wait until everything emitted so far is stored."""
        return self._do(self.stream.flush)

    def summary(self, patch: Mapping[str, Any]) -> Awaitable[None]:
        """Merge a patch into the attempt's summary, one JSON object: members replace those of the same name, ``None``
        removes them. ``engine.read_summary(run.id)`` reads it."""
        return self._do(lambda: self.stream.merge(patch))

    def progress(self, percent: int | None = None, message: str | None = None) -> Awaitable[None]:
        """Report how far the work is. What you leave out stays as it was."""
        job = self._job
        return self._do(lambda: job.repeated(lambda: job.engine.progress(job.handle, percent, message)))

    # -- spending ------------------------------------------------------------------------------------------------

    def spend(self, *, budget: Budget | str | None = None, **estimate: Amount) -> Spending:
        """Reserve amounts before you use them: ``async with ctx.spend(tokens=4_000, usd="0.05") as call:``.

        Without ``budget`` they count against every budget of the run; a run without budgets counts nothing. If there is
        no room, the budget's ``on_breach`` decides: ``BudgetExceeded``, or the run waits for an answer and then runs
        again. ``call.settle(tokens=used)`` says what was really used, and the rest is freed; without it the whole
        estimate is charged. Dimensions that ``settle`` does not name are charged as estimated. If the block raises
        before it has settled, nothing is charged.
        """
        if (workflow := CURRENT.get()) is not None:
            workflow.is_once = True
        return Spending(self, budget, amounts(estimate))

    # -- threads -------------------------------------------------------------------------------------------------

    def _do(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Something to be awaited on the loop; in a thread it is done when this returns."""
        if threading.get_ident() == self._thread:
            workflow = CURRENT.get()
            # In a workflow's own code: it is not parked meanwhile.
            return make() if workflow is None else workflow.at_work(make())
        return _Done(asyncio.run_coroutine_threadsafe(make(), self._loop).result())


class _Done(Generic[T]):
    """An answer that is there already, for those who await it nevertheless."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()
        return self.value


class Stream:
    """An attempt's output: frames in order, collected while others are being written."""

    def __init__(self, job: Job, do: Callable[[Any], Awaitable[Any]], step: str | None = None) -> None:
        self._job = job
        self._do = do
        self._step = step
        self._opens: Opening | None = Opening.START
        self._earlier: str | None = None
        self._waiting: list[Frame] = []
        self._bytes = 0
        self._texts: list[str] = []
        self._writer: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def text(self) -> str:
        """All emitted text that counts, in one string: from this attempt and, after ``resume``, also from earlier
        ones."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    def earlier(self) -> Awaitable[str]:
        """The text that an earlier attempt or a lost worker emitted here; empty if nothing was. To continue after it,
        call ``resume`` instead. Call it before you emit."""
        return self._do(self._look_back)

    def resume(self) -> Awaitable[str]:
        """Continue after what was emitted here before: returns that text, ``text`` starts with it, and readers keep it.
        Without this call output starts over, and readers are told to discard the earlier output. Call it before you
        emit."""
        return self._do(self._resume)

    async def _look_back(self) -> str:
        if self._earlier is None:
            if self._opens is not Opening.START:
                raise BadOptions("call ctx.stream.earlier() before you emit", option="stream")
            job, held = self._job, self._job.handle.payload
            if held.attempt_index == 0 and held.lease_epoch == 1 and not job.appends.begun:
                self._earlier = ""
            else:
                from flowfabric.sdk.runs.frames import emitted

                self._earlier = await job.repeated(
                    lambda: emitted(job.engine, job.execution_id, job.attempt, self._step)
                )
        return self._earlier

    async def _resume(self) -> str:
        if self._opens is not Opening.START:
            raise BadOptions("call ctx.stream.resume() once, before you emit", option="stream")
        text = await self._look_back()
        self._opens = Opening.CONTINUE
        if text:
            self._texts.insert(0, text)
        return text

    async def add(self, data: Any, type: str = "frame") -> None:
        """Take a frame; waits only if many are already waiting."""
        self._refuse_after_error()
        content: FrameContent | None = None
        if isinstance(data, str):
            self._texts.append(data)
            raw, kind = data.encode("utf-8", "replace"), FrameKind.STDOUT
        elif isinstance(data, bytes | bytearray | memoryview):
            raw, kind, content = bytes(data), FrameKind.BLOB, FrameContent.BYTES
        else:
            from flowfabric.sdk.definitions.codec import encode_plain

            raw, kind, content = encode_plain(data), FrameKind.EVENT, FrameContent.JSON
        frame = Frame(raw, kind, frame_type=type, step=self._step, opens=self._opens, content=content)
        self._opens = None
        self._waiting.append(frame)
        self._bytes += len(raw)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="flowfabric-frames")
            self._job.writing.add(self)
        while len(self._waiting) > MOST_WAITING or self._bytes > MOST_BYTES:
            await asyncio.wait((self._writer, self._room_made()), return_when=asyncio.FIRST_COMPLETED)
            self._refuse_after_error()

    async def flush(self) -> None:
        """Wait until everything is written."""
        while self._writer is not None:
            await asyncio.shield(self._writer)
        self._refuse_after_error()

    async def settle(self) -> None:
        """Write what is waiting although the handler may have failed, within some seconds; errors are ignored here."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(SETTLE_S):
                await self.flush()
        self.drop()

    def drop(self) -> None:
        """Discard what is waiting; only frames that are already being sent are written."""
        self._waiting.clear()
        self._bytes = 0

    async def merge(self, patch: Mapping[str, Any]) -> None:
        """Write a summary frame after what is waiting."""
        await self.flush()
        data = msgspec.json.encode(patch)
        await self._job.appends.one(Frame(data, frame_type="summary", mode=_SUMMARY, step=self._step))

    def _room_made(self) -> asyncio.Future[None]:
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def _refuse_after_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def _write(self) -> None:
        try:
            # What is emitted in this turn of the loop goes together.
            await asyncio.sleep(0)
            while self._waiting:
                batch = self._waiting[:MOST_AT_ONCE]
                await self._job.appends.all(batch)
                del self._waiting[: len(batch)]
                self._bytes = max(0, self._bytes - sum(len(frame.bytes) for frame in batch))
                if self._room is not None and not self._room.done():
                    self._room.set_result(None)
        except BaseException as error:
            self._error = error
            self._waiting.clear()
            if not isinstance(error, Exception):
                raise
        finally:
            self._writer = None
            self._job.writing.discard(self)


class Spending:
    """Reserved amounts; see ``Ctx.spend``. Works with ``async with`` and, in a ``def`` handler, with ``with``."""

    def __init__(self, ctx: Ctx, budget: Budget | str | None, estimate: dict[str, int]) -> None:
        self._ctx = ctx
        self._budget = budget
        self.estimate = estimate
        self._used: dict[str, int] | None = None
        self._reservations: list[Reserved] = []

    def settle(self, **used: Amount) -> None:
        """Say what was really used. It is charged when the block ends."""
        self._used = {**self.estimate, **amounts(used)}

    async def _reserve(self) -> Self:
        if not self.estimate:
            return self
        job = self._ctx._job
        self._used = None
        # All steps of a workflow and all tries of a step spend under one lease: the number tells their calls apart.
        call = f"{job.handle.payload.lease_id}:{next(job.spends)}"
        # A budget that asks takes the lease.
        await job.settle()
        try:
            for budget_id in await self._budgets():
                self._reservations.append(await self._reserved(budget_id, f"{call}:{budget_id}"))
        except Exception:
            await self._release()
            raise
        return self

    async def _reserved(self, budget_id: str, key: str) -> Reserved:
        job = self._ctx._job
        answer = await job.repeated(lambda: job.engine.reserve_budget(job.handle, budget_id, self.estimate, key))
        match answer:
            case Reserved():
                return answer
            case BudgetAsked():
                from flowfabric.sdk.worker.attempt import Parked

                raise Parked(f"budget {budget_id} asks")
            case HardBreach():
                raise await self._exceeded(answer)
            case _:
                raise Bug(BugKind.INTERNAL_ERROR, f"the reservation {key} was settled before it was made")

    async def _exceeded(self, breach: HardBreach) -> BudgetExceeded:
        budget_id = breach.budget_id
        from flowfabric.sdk.runs.limits import budget_status

        job = self._ctx._job
        named = budget_id, job.handle.execution_id, job.app.namespace
        status = await job.repeated(lambda: budget_status(job.engine, *named))
        name = status.scope_id or budget_id
        shown = [
            f"{shown_amount(breach.dimension, amount)} {word}"
            for amount, word in (
                (breach.current_usage, "spent"),
                (breach.reserved, "reserved"),
                (breach.hard_limit, "allowed"),
            )
        ]
        wanted = shown_amount(breach.dimension, self.estimate.get(breach.dimension, 0))
        return BudgetExceeded(
            f"no room for {wanted} {breach.dimension} in the budget {name}: {', '.join(shown)}; raise its limit, wait "
            "for its next period, or ask for less",
            budget=name,
            dimension=breach.dimension,
            cancels=status.on_hard_limit == "cancel_pending",
        )

    async def _budgets(self) -> tuple[str, ...]:
        job = self._ctx._job
        budget = self._budget
        if isinstance(budget, str):
            from flowfabric.sdk.runs.limits import budget_id

            return (budget_id(job.app.namespace, budget),)
        if budget is not None:
            return (await job.repeated(lambda: job.app.gates.budget(budget, kept=False)),)
        identity = job.handle.execution_id
        fields = await job.repeated(
            lambda: job.engine.read_exec_core_fields(identity.partition, identity, ["budget_ids"])
        )
        return tuple(filter(None, (fields["budget_ids"] or "").split(",")))

    async def _end(self, failed: bool) -> None:
        if failed and self._used is None:
            await self._release()
            return
        used = self.estimate if self._used is None else self._used
        job = self._ctx._job
        ids, self._reservations = [each.reservation_id for each in self._reservations], []
        if not ids:
            return
        first, *others = ids
        # All of them in one commit: a worker that dies in between has charged every budget, or none.
        answer = await job.repeated(lambda: job.engine.settle_reservation(first, used, job.handle, others))
        if isinstance(answer, HardBreach):
            self._ctx.log.warning("more was used than reserved, and the budget %s has no room for it", answer.budget_id)

    async def _release(self) -> None:
        job = self._ctx._job
        reservations, self._reservations = self._reservations, []
        for each in reservations:
            try:
                await job.repeated(
                    lambda id=each.reservation_id: job.engine.release_reservation(  # type: ignore[misc]
                        id, job.handle
                    )
                )
            except EngineError as error:
                # It comes back with the lease.
                self._ctx.log.debug("reservation %s was not released: %s", each.reservation_id, error)

    async def __aenter__(self) -> Self:
        return await self._reserve()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(kind is not None)

    def __enter__(self) -> Self:
        self._block(self._reserve)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block(lambda: self._end(kind is not None))

    def _block(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        if threading.get_ident() == self._ctx._thread:
            raise RuntimeError("write `async with ctx.spend(…)` in an async def handler")
        self._ctx._do(make)
