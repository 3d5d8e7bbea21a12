"""Waiting for runs to end: one subscription for all who wait in an app."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator
from contextvars import Context
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from flowfabric.model.errors import EngineError
from flowfabric.model.operations.executions import ScannerFilter
from flowfabric.model.states import PublicState
from flowfabric.sdk.durations import duration
from flowfabric.sdk.errors import (
    ENDED,
    NotOpen,
    ResultTimeout,
    RunCancelled,
    RunEnded,
    RunExpired,
    RunFailed,
    RunSkipped,
)
from flowfabric.sdk.runs.frames import ERROR_FRAME, read_frame

if TYPE_CHECKING:
    from flowfabric.sdk.app import App
    from flowfabric.sdk.runs.run import Run

_log = logging.getLogger("flowfabric.sdk")

#: Waiters look for themselves this often: the subscription makes it quick, this makes it certain.
SAFETY_S = 10.0
_RETRY_S = 1.0
#: Why a run has expired that had no deadline.
ATTEMPT_TIMEOUT = "attempt_timeout"
#: One look is always made, even with no time left; this is how long it may take while nothing answers.
LOOK_S = 5.0
_CLOSED_MEANWHILE = "the app was closed while waiting for a result"


class Completions:
    """The ends of an app's runs, told to those who wait for them. Starts with the first who does."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._closed = False

    @contextlib.contextmanager
    def parked(self, run_id: str) -> Iterator[asyncio.Future[None]]:
        """A future that is set when the run may have ended."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, set()).add(future)
        try:
            yield future
        finally:
            parked = self._waiting.get(run_id)
            if parked is not None:
                parked.discard(future)
                if not parked:
                    self._waiting.pop(run_id, None)

    async def started(self) -> None:
        """Return once ends are being heard."""
        if self._closed or not self._app.is_open:
            raise NotOpen("the app is closed; write `async with app:` around this")
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._ready = loop.create_future()
            self._task = loop.create_task(self._listen(self._ready), name="flowfabric-completions", context=Context())
        if self._ready is not None:
            # Waiters may give up, and the task that listens for all of them may be cancelled: neither ends the other.
            await asyncio.wait((self._ready,))

    async def _listen(self, ready: asyncio.Future[None]) -> None:
        while True:
            try:
                subscription = await self._app.engine.subscribe_completion(
                    filter=ScannerFilter(namespace=self._app.namespace)
                )
                if not ready.done():
                    ready.set_result(None)
                async with subscription:
                    async for event in subscription:
                        self._tell(str(event.execution_id))
                return
            except EngineError as error:
                _log.warning("cannot follow the ends of runs, retrying: %s", error)
            finally:
                # Without the subscription everybody looks for himself. When the app closes, they are told that instead.
                if not ready.done():
                    ready.set_result(None)
                for run_id in [] if self._closed else list(self._waiting):
                    self._tell(run_id)
            await asyncio.sleep(_RETRY_S)

    def _tell(self, run_id: str) -> None:
        for future in self._waiting.get(run_id, ()):
            if not future.done():
                future.set_result(None)

    def check_open(self) -> None:
        """Tell somebody who waits that the app was closed, if it was."""
        if self._closed:
            raise NotOpen(_CLOSED_MEANWHILE) from None

    async def close(self) -> None:
        """Stop listening; waiters are told that the app is closed."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(NotOpen(_CLOSED_MEANWHILE))
                    future.exception()


async def result_of(run: Run[Any], timeout: timedelta | None) -> Any:
    """The result of a run, or the error that says how it ended."""
    if timeout is None:
        return await _result(run)
    waits = _Deadline(timeout)
    # The store or the server may be away, and calls wait for it much longer than that.
    try:
        async with waits.look:
            return await _result(run, waits)
    except TimeoutError:
        if not waits.look.expired():
            raise
        raise ResultTimeout(
            f"run {run.id}: its state could not be read within {timeout}, the store or server does not respond; wait "
            "again",
            run=run.id,
        ) from None


class _Deadline:
    """Until when somebody waits, and until when the looks may take."""

    def __init__(self, timeout: timedelta) -> None:
        self.timeout = timeout
        self._loop = asyncio.get_running_loop()
        begin = self._loop.time()
        self._end = begin + duration(timeout, "timeout", zero=True).total_seconds()
        self.look = asyncio.timeout_at(max(self._end, begin + LOOK_S))

    def seen(self) -> float:
        """A look has succeeded; how much time is left. The last look may begin at the end of it."""
        self.look.reschedule(self._end + LOOK_S)
        return self._end - self._loop.time()


async def _result(run: Run[Any], waits: _Deadline | None = None) -> Any:
    completions = run.app.completions
    while True:
        # Waiting starts before looking, so that an end in between is not missed.
        with completions.parked(run.id) as told:
            await completions.started()
            try:
                state = await run.status()
            except EngineError:
                completions.check_open()  # The app was closed meanwhile: that is what is told.
                raise
            if state in ENDED:
                break
            rest = SAFETY_S * random.uniform(0.75, 1.25)
            if waits is not None:
                rest = min(rest, waits.seen())
                if rest <= 0:
                    raise ResultTimeout(
                        f"run {run.id} is {state.value} after {waits.timeout}; it goes on: wait again, cancel it, or "
                        "see explain()",
                        run=run.id,
                    )
            await asyncio.wait((told,), timeout=rest)
            if told.done():
                told.result()
    if state is PublicState.COMPLETED:
        return run.load_result(await run.app.engine.get_execution_result(run.id))
    raise await _ending(run, state)


async def _ending(run: Run[Any], state: PublicState) -> RunEnded:
    """The error that says how a run ended."""
    from flowfabric.model.ids import ExecutionId

    engine = run.app.engine
    fields = await engine.read_exec_core_fields(
        ExecutionId(run.id).partition, run.id, ("failure_reason", "cancel_reason", "current_attempt_index")
    )
    reason = fields["failure_reason"] or ""
    if state is PublicState.FAILED:
        return await _failure(run, reason, int(fields["current_attempt_index"] or 0))
    if state is PublicState.CANCELLED:
        reason = fields["cancel_reason"] or ""
        return RunCancelled(
            f"run {run.id} was cancelled{': ' + reason if reason else ''}", run_id=run.id, reason=reason
        )
    if state is PublicState.EXPIRED:
        why = (
            "an attempt took longer than it may" if reason == ATTEMPT_TIMEOUT else "it did not end before its deadline"
        )
        return RunExpired(f"run {run.id} expired: {why}; replay() runs it again", run_id=run.id, reason=reason)
    return RunSkipped(f"run {run.id} was skipped: a dependency did not succeed", run_id=run.id, reason=reason)


async def _failure(run: Run[Any], reason: str, attempt: int) -> RunFailed:
    """The last error, in full if its attempt has left it in the stream."""
    page = await run.app.engine.read_stream(run.id, attempt, count_limit=10_000)
    for frame in reversed(page.frames):
        shown = read_frame(frame, attempt)
        if shown.type != ERROR_FRAME:
            continue
        with contextlib.suppress(msgspec.MsgspecError, AttributeError):
            error = shown.json
            return RunFailed(
                f"run {run.id} failed: {reason}",
                run_id=run.id,
                reason=reason,
                category=str(error.get("category", "")),
                error_type=str(error.get("type", "")),
                traceback=str(error.get("traceback", "")),
            )
    kind, colon, _ = reason.partition(": ")
    return RunFailed(
        f"run {run.id} failed: {reason}",
        run_id=run.id,
        reason=reason,
        error_type=kind if colon and kind.isidentifier() else "",
    )
