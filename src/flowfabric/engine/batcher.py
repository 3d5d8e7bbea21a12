"""Group commit by waiting: while one batch commits, the next one gathers.

A lone caller pays one transaction; a thousand callers share a few. Several batches commit side by side only if it is
worth it: if enough callers wait, or if they have waited for a while behind one that is slow. The queue is bounded: when
it is full, callers wait for room.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, Final, TypeAlias

from flowfabric.engine.transact import Outcome
from flowfabric.model.errors import Bug, BugKind, Contention, EngineError, Transport, TransportKind, Unavailable
from flowfabric.model.limits import MAX_BATCH, MAX_QUEUE

_log = logging.getLogger("flowfabric.engine")

CLOSED: Final = "engine is closed"

#: Takes an answer whose caller has stopped waiting.
Abandoned: TypeAlias = Callable[[Any], None]
#: A command, who waits for its answer, and who takes it otherwise.
_Item: TypeAlias = tuple[Any, "asyncio.Future[Any]", Abandoned | None]

#: Below this many commands it is not worth spreading a queue over several connections.
_WORTH_SPLITTING = 32
#: How long a command waits for a batch that commits before it gets one of its own, in seconds.
_PATIENCE_S = 0.005
#: Turns of the loop that a batch waits for more at most.
_MOST_TURNS = 16


class Batcher:
    """Turns single calls into batches and hands each caller its own answer."""

    def __init__(
        self,
        run: Callable[[list[Any]], Awaitable[Outcome]],
        committed: Callable[[list[Any], Outcome], None],
        failed: Callable[[list[Any], BaseException], None],
        parallel: int,
        max_batch: int = MAX_BATCH,
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self._run = run
        self._committed = committed
        self._failed = failed
        self._parallel = parallel
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._queue: deque[_Item] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._runners: list[asyncio.Task[None]] = []
        #: Runners that are about to take what waits.
        self._hungry = 0
        self._patience: asyncio.TimerHandle | None = None
        #: What runners have taken and not answered yet.
        self._taken: dict[int, list[_Item]] = {}
        self._closed = False
        #: Whether nothing is carried out any more, not even what follows from something that was.
        self._given_up = False
        #: What is said once it is closed.
        self._why = CLOSED

    async def call(self, command: Any, abandoned: Abandoned | None = None) -> Any:
        """The answer to a command, once it is durable; or the error it met, nothing having changed. If the caller stops
        waiting when it is too late to take the command back, ``abandoned`` gets the answer."""
        if self._closed:
            raise Unavailable(self._why)
        while len(self._queue) >= self._max_queue:
            await self._wait_for_room()
            if self._closed:
                raise Unavailable(self._why)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append((command, future, abandoned))
        if not self._hungry:
            self._feed()
        try:
            return await future
        except asyncio.CancelledError:
            # The answer may have been on its way already.
            if abandoned is not None and not future.cancelled() and future.exception() is None:
                abandoned(future.result())
            raise

    async def call_all(self, commands: Sequence[Any]) -> list[Any]:
        """The answers to many commands, or their errors, in order. Cheaper than as many calls side by side."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Any]] = []
        try:
            for command in commands:
                while len(self._queue) >= self._max_queue and not self._closed:
                    await self._wait_for_room()
                if self._closed:
                    raise Unavailable(self._why)
                future: asyncio.Future[Any] = loop.create_future()
                futures.append(future)
                self._queue.append((command, future, None))
                if not self._hungry:
                    self._feed()
            await asyncio.wait(futures)
        except BaseException:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()
            raise
        return [future.exception() or future.result() for future in futures]

    def follow_up(self, command: Any) -> asyncio.Future[Any]:
        """Carry out what follows from a command that was; also while closing, which waits for it."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._given_up:
            future.set_exception(Unavailable(self._why))
        else:
            self._queue.append((command, future, None))
            if self._closed:
                self._start_another()
            elif not self._hungry:
                self._feed()
        return future

    async def _wait_for_room(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._give_room(1)
            raise

    def _give_room(self, count: int) -> None:
        while count > 0 and self._room:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _feed(self) -> None:
        """See to it that somebody takes what waits: at once if nothing commits, else when it is worth it."""
        if len(self._idle) == len(self._runners) or len(self._queue) >= _WORTH_SPLITTING:
            self._start_another()
        elif self._patience is None and (self._idle or len(self._runners) < self._parallel):
            self._patience = asyncio.get_running_loop().call_later(_PATIENCE_S, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
        if self._queue and not self._hungry:
            self._start_another()

    async def _work(self) -> None:
        try:
            await self._serve()
        except BaseException:
            # Cancelled, with the loop or because nobody wants to wait any more: the rest would wait for ever.
            self.abandon()
            raise

    async def _serve(self) -> None:
        while True:
            while not self._queue:
                self._hungry -= 1
                if self._closed:
                    return
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
            await self._gather()
            taken = self._take()
            self._taken[id(taken)] = taken
            self._hungry -= 1
            try:
                await self._run_one(taken)
            except Exception as error:
                # An observer of commits has a fault. Callers that were answered keep their answer, and work goes on.
                _log.exception("work after a batch failed")
                _fail(taken, error)
            del self._taken[id(taken)]
            self._hungry += 1

    async def _gather(self) -> None:
        """Let those join who are just arriving: each turn of the loop brings some, until one brings nobody."""
        before = 0
        for _ in range(_MOST_TURNS):
            waiting = len(self._queue)
            if waiting == before or waiting >= _WORTH_SPLITTING:
                return
            before = waiting
            await asyncio.sleep(0)

    def _take(self) -> list[_Item]:
        """The next batch. A long queue is shared with runners that have nothing to do."""
        waiting = len(self._queue)
        size = min(waiting, self._max_batch)
        if waiting > _WORTH_SPLITTING and self._start_another():
            size = min(size, -(-waiting // 2))
        taken = [self._queue.popleft() for _ in range(size)]
        self._give_room(size)
        return [item for item in taken if not item[1].done()]

    def _start_another(self) -> bool:
        """Wake or make another runner; whether there was one to be had."""
        if self._closed:
            self._runners = [runner for runner in self._runners if not runner.done()]
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                self._hungry += 1
                return True
        if len(self._runners) < self._parallel:
            self._runners.append(
                asyncio.get_running_loop().create_task(self._work(), name="flowfabric-batches", context=Context())
            )
            self._hungry += 1
            return True
        return False

    async def _run_one(self, items: list[_Item]) -> None:
        if not items:
            return
        commands = [command for command, _, _ in items]
        try:
            outcome = await self._run(commands)
        except Exception as error:
            self._failed(commands, error)
            if len(items) == 1 or not _may_be_one_commands_fault(error):
                _fail(items, error)
            else:
                # One command may have spoiled the commit for all: try each on its own.
                for item in items:
                    await self._run_one([item])
            return
        for (_, future, abandoned), answer in zip(items, outcome.answers, strict=True):
            if not future.done():
                if isinstance(answer, EngineError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
            elif abandoned is not None and not isinstance(answer, EngineError):
                abandoned(answer)
        self._committed(commands, outcome)

    def forget(self, why: str) -> None:
        """Take nothing more, and forget what is under way: that is the business of the process this one came from."""
        self._closed = self._given_up = True
        self._why = why
        self._queue.clear()
        self._runners.clear()
        self._idle.clear()

    def abandon(self) -> None:
        """Stop at once. What waits was not begun; what is being written may have been done, and its callers are told
        so."""
        self._closed = self._given_up = True
        if self._patience is not None:
            self._patience.cancel()
        queued = list(self._queue)
        self._queue.clear()
        _fail(queued, Unavailable(self._why))
        for taken in self._taken.values():
            _fail(taken, Transport("engine", TransportKind.TRANSPORT, "closed during a commit, outcome unknown"))
        self._give_room(len(self._room))
        for runner in self._runners:
            runner.cancel()

    async def close(self) -> None:
        """Finish what is queued, then stop. Safe to call again, also after a call that was cancelled."""
        self._closed = True
        if self._patience is not None:
            self._patience.cancel()
        while self._idle:
            self._start_another()
        # One that takes a long queue may start another meanwhile.
        while busy := [runner for runner in self._runners if not runner.done()]:
            await asyncio.wait(busy)
        self._given_up = True
        self._give_room(len(self._room))


def _may_be_one_commands_fault(error: Exception) -> bool:
    """Not if the store was out of reach: then nobody knows what was committed, and to try again could do it twice."""
    if isinstance(error, Transport):
        return error.kind is TransportKind.OTHER
    return isinstance(error, EngineError) and not isinstance(error, Contention)


def _fail(items: list[_Item], error: Exception) -> None:
    shown = error if isinstance(error, EngineError) else Bug(BugKind.INTERNAL_ERROR, repr(error))
    if shown is not error:
        shown.__cause__ = error
    for _, future, _ in items:
        if not future.done():
            future.set_exception(shown)
