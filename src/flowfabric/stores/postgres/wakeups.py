"""Hints between processes by LISTEN and NOTIFY, beside the transactions, never inside them.

Topics are gathered and sent together, at most every few milliseconds. Losing one costs latency, never work: whoever
waits also looks from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any

import asyncpg

_log = logging.getLogger("flowfabric.stores.postgres")
CHANNEL = "ff_wake"
SEND_INTERVAL_S = 0.005
#: How long a hint that is not urgent waits after the last one that was sent.
UNHURRIED_INTERVAL_S = 0.02
SENDER_GRACE_S = 2.0
RECONNECT_FIRST_S, RECONNECT_LAST_S = 0.1, 1.0
#: Payloads of NOTIFY are limited; topics beyond this many bytes become "look at everything".
MAX_TOPIC_BYTES = 4_000
MAX_TOPICS = 500
_EVERYTHING = "*"
_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


class Wakeups:
    """One connection that sends and one that listens, each opened when it is first needed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._dirty: set[str] = set()
        self._due = asyncio.Event()
        self._quiet_until = float("-inf")
        self._later: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[None] | None = None
        #: The server's name for our sending connection: what comes from there is no news.
        self._sender_pid: int | None = None
        self._closed = False
        self._stop = asyncio.Event()

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
            self._sender = loop.create_task(self._send(), name="flowfabric-notify")

    def _send_rest(self) -> None:
        self._later = None
        self._due.set()

    async def _send(self) -> None:
        connection: Any = None
        try:
            while not self._closed:
                await self._due.wait()
                self._due.clear()
                topics, self._dirty = self._dirty, set()
                self._quiet_until = asyncio.get_running_loop().time() + UNHURRIED_INTERVAL_S
                if not topics:
                    continue
                try:
                    if connection is None or connection.is_closed():
                        connection = await _connect(self._dsn)
                        self._sender_pid = connection.get_server_pid()
                    await connection.execute(
                        f"SELECT pg_notify('{CHANNEL}', topic) FROM unnest($1::text[]) AS topic", _payloads(topics)
                    )
                except _ERRORS as error:
                    _log.debug("a notification was lost: %s", error)
                    connection = None
                    await asyncio.sleep(RECONNECT_FIRST_S)
                await asyncio.sleep(SEND_INTERVAL_S)
        finally:
            if connection is not None:
                connection.terminate()

    async def heard(self) -> AsyncIterator[str | None]:
        """Topics as they come; ``None`` after a gap."""
        pause = RECONNECT_FIRST_S
        while not self._closed:
            topics: asyncio.Queue[str | None] = asyncio.Queue()
            connection: Any = None

            def hear(_: Any, pid: int, channel: str, topic: str, queue: asyncio.Queue[str | None] = topics) -> None:
                if pid != self._sender_pid:
                    queue.put_nowait(topic)

            try:
                connection = await _connect(self._dsn)
                await connection.add_listener(CHANNEL, hear)
                connection.add_termination_listener(lambda _, queue=topics: queue.put_nowait(None))
                pause = RECONNECT_FIRST_S
                yield None
                while not self._closed:
                    topic = await topics.get()
                    if topic is None:
                        break
                    yield None if topic == _EVERYTHING else topic
            except _ERRORS as error:
                _log.warning("listening was interrupted: %s", error)
            finally:
                if connection is not None:
                    connection.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
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
            with contextlib.suppress(asyncio.CancelledError):
                await self._sender


def _payloads(topics: set[str]) -> list[str]:
    if len(topics) > MAX_TOPICS or any(len(topic.encode()) > MAX_TOPIC_BYTES for topic in topics):
        return [_EVERYTHING]
    return sorted(topics)


async def _connect(dsn: str) -> Any:
    return await asyncpg.connect(
        dsn, timeout=10, server_settings={"application_name": "flowfabric-wake"}, statement_cache_size=4
    )
