"""Hints between processes, beside the transactions, never inside them: what all carriers share.

Topics are gathered and sent together. Losing one costs latency, never work: waiters also look from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager

#: How long a hint that is not urgent waits after the last one that was sent.
UNHURRIED_INTERVAL_S = 0.02
SENDER_GRACE_S = 2.0
RECONNECT_FIRST_S, RECONNECT_LAST_S = 0.1, 1.0
#: More topics than this, or longer ones, become "look at everything".
MAX_TOPICS = 500
MAX_TOPIC_BYTES = 4_000
EVERYTHING = "*"


class Wakeups:
    """One connection that sends and one that listens, each opened when it is first needed."""

    #: How long to gather after something was sent, beyond the time that took.
    send_interval_s = 0.0
    #: What a connection fails with.
    errors: tuple[type[Exception], ...] = (OSError,)
    log = logging.getLogger("flowfabric.stores")

    def __init__(self) -> None:
        self._dirty: set[str] = set()
        self._due = asyncio.Event()
        self._quiet_until = float("-inf")
        self._later: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[None] | None = None
        self._closed = False
        self._stop = asyncio.Event()

    async def _deliver(self, topics: list[str]) -> None:
        """Send these, over the connection that is there or a new one."""
        raise NotImplementedError

    def _hang_up(self) -> None:
        """Give up the connection that sends, if there is one."""
        raise NotImplementedError

    def _listening(self, topics: asyncio.Queue[str | None]) -> AbstractAsyncContextManager[None]:
        """Listen during the block: topics of other processes go into the queue, ``None`` when the connection ends."""
        raise NotImplementedError

    def publish(self, topics: Iterable[str], urgent: bool = True) -> None:
        """Send these soon, or, if they are not urgent and something was sent just now, a little later."""
        if self._closed:
            return
        self._dirty.update(topics)
        loop = asyncio.get_running_loop()
        if urgent or loop.time() >= self._quiet_until:
            self._due.set()
        elif self._later is None:
            self._later = loop.call_at(self._quiet_until, self._send_rest)
        if self._sender is None:
            self._sender = loop.create_task(self._send(), name="flowfabric-notify", context=contextvars.Context())

    def _send_rest(self) -> None:
        self._later = None
        self._due.set()

    async def _send(self) -> None:
        try:
            while not self._closed:
                await self._due.wait()
                self._due.clear()
                topics, self._dirty = self._dirty, set()
                self._quiet_until = asyncio.get_running_loop().time() + UNHURRIED_INTERVAL_S
                if not topics:
                    continue
                try:
                    await self._deliver(few(topics))
                except self.errors as error:
                    self.log.debug("a notification was lost: %s", error)
                    self._hang_up()
                    await asyncio.sleep(RECONNECT_FIRST_S)
                await asyncio.sleep(self.send_interval_s)
        finally:
            self._hang_up()

    async def heard(self) -> AsyncIterator[str | None]:
        """Topics as they come; ``None`` after a gap."""
        pause = RECONNECT_FIRST_S
        while not self._closed:
            topics: asyncio.Queue[str | None] = asyncio.Queue()
            try:
                async with self._listening(topics):
                    pause = RECONNECT_FIRST_S
                    yield None
                    while not self._closed:
                        topic = await topics.get()
                        if topic is None:
                            break
                        yield None if topic == EVERYTHING else topic
            except self.errors as error:
                self.log.warning("listening was interrupted: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop.wait()
            pause = min(pause * 2, RECONNECT_LAST_S)

    async def close(self) -> None:
        """Stop sending and listening."""
        self._closed = True
        self._stop.set()
        self._due.set()
        if self._later is not None:
            self._later.cancel()
        if self._sender is not None:
            # A sender that is connecting is let finish: a connection given up half-way complains later.
            await asyncio.wait((self._sender,), timeout=SENDER_GRACE_S)
            self._sender.cancel()
            await asyncio.wait((self._sender,))


def few(topics: Iterable[str]) -> list[str]:
    """Topics as they are sent: each once, or "everything" where there are too many."""
    topics = set(topics)
    if len(topics) > MAX_TOPICS or any(len(topic.encode()) > MAX_TOPIC_BYTES for topic in topics):
        return [EVERYTHING]
    return sorted(topics)
