"""Hints between processes by LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from flowfabric.stores import wakeups
from flowfabric.stores.postgres.connect import DRIVER_ERRORS, connect

CHANNEL = "ff_wake"
#: How often the listening connection is asked whether it lives, and how long it may take to answer.
ASK_EVERY_S, ANSWER_S = 15.0, 10.0


class Wakeups(wakeups.Wakeups):
    """Sends at most every few milliseconds: each sending is a transaction. Payloads of NOTIFY are limited."""

    send_interval_s = 0.005
    errors = DRIVER_ERRORS
    log = logging.getLogger("flowfabric.stores.postgres")

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._connection: Any = None
        #: The server's name for our sending connection: what comes from there is no news.
        self._sender_pid: int | None = None

    async def _deliver(self, topics: list[str]) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await _connect(self._dsn)
            self._sender_pid = self._connection.get_server_pid()
        await self._connection.execute(f"SELECT pg_notify('{CHANNEL}', topic) FROM unnest($1::text[]) AS topic", topics)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    @contextlib.asynccontextmanager
    async def _listening(self, topics: asyncio.Queue[str | None]) -> AsyncIterator[None]:
        def hear(_: Any, pid: int, channel: str, topic: str) -> None:
            if pid != self._sender_pid:
                topics.put_nowait(topic)

        connection = await _connect(self._dsn)
        asking = None
        try:
            await connection.add_listener(CHANNEL, hear)
            connection.add_termination_listener(lambda _: topics.put_nowait(None))
            asking = asyncio.create_task(self._ask(connection, topics), name="flowfabric-listening")
            yield
        finally:
            if asking is not None:
                asking.cancel()
            connection.terminate()

    async def _ask(self, connection: Any, topics: asyncio.Queue[str | None]) -> None:
        """See that the listening connection lives: it says nothing by itself, and a server that has gone neither."""
        try:
            while True:
                await asyncio.sleep(ASK_EVERY_S)
                await connection.execute("SELECT 1", timeout=ANSWER_S)
        except self.errors as error:
            self.log.warning("the listening connection does not answer: %s", error)
            topics.put_nowait(None)


async def _connect(dsn: str) -> Any:
    return await connect(dsn, server_settings={"application_name": "flowfabric-wake"}, statement_cache_size=4)
