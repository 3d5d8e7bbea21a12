"""The least a coalescing batcher can be: a queue, futures, and runners that flush whatever queued meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

MAX_BATCH = 200
#: From this many waiting calls on, a batch leaves half of them to the other runner.
_WORTH_SPLITTING = 32


class Batcher:
    """Calls of one kind share a statement; the kind that has waited longest goes first."""

    def __init__(self, flush: Callable[[int, str, list[Any]], Awaitable[list[Any]]], runners: int) -> None:
        self._flush = flush
        self._queues: dict[str, deque[tuple[Any, asyncio.Future[Any]]]] = {}
        self._runners = runners
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def start(self) -> None:
        """Begin to flush."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(number)) for number in range(self._runners)]

    async def call(self, kind: str, argument: Any) -> Any:
        """The answer to one call, once it is committed."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        queue = self._queues.get(kind)
        if queue is None:
            queue = self._queues[kind] = deque()
        queue.append((argument, future))
        self._wake()
        return await future

    def _wake(self) -> None:
        if self._idle:
            self._idle.pop().set_result(None)

    async def _run(self, number: int) -> None:
        while not self._closed:
            kind = next((kind for kind, queue in self._queues.items() if queue), None)
            if kind is None:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                continue
            queue = self._queues.pop(kind)
            self._queues[kind] = queue  # to the end of the line
            size = min(len(queue), MAX_BATCH)
            if self._runners > 1 and len(queue) > _WORTH_SPLITTING:
                size = min(size, -(-len(queue) // 2))
                self._wake()
            taken = [queue.popleft() for _ in range(size)]
            try:
                answers = await self._flush(number, kind, [argument for argument, _ in taken])
            except Exception as error:
                for _, future in taken:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(taken, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def close(self) -> None:
        """Stop; nobody may be waiting for an answer."""
        self._closed = True
        while self._idle:
            self._wake()
        await asyncio.gather(*self._tasks)
