"""Ends of executions as they happen, followed as server-sent events; continued where they broke off."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import msgspec

from flowfabric.model.errors import StreamGap
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import ScannerFilter
from flowfabric.model.reads.subscriptions import CompletionEvent, CompletionOutcome, cursor_from_text, cursor_to_text
from flowfabric.sdk.backoff import Patience
from flowfabric.sdk.remote.calls import out_of_reach, problem_of
from flowfabric.sdk.remote.http_client import Lost, NotReached, Servers

#: A stream that says nothing for so long, not even that it is there, is dead.
SILENCE_S = 60.0
#: Ends that nobody has taken yet, after which the stream is read no further.
MOST_READY = 10_000


class RemoteSubscription:
    """An endless iterator over ends, like the engine's own."""

    def __init__(self, servers: Servers, cursor: bytes, wanted: ScannerFilter | None) -> None:
        self._servers = servers
        self.cursor = cursor
        self._filter = wanted
        self._ready: deque[CompletionEvent] = deque()
        self._begun = asyncio.get_running_loop().create_future()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._failed: BaseException | None = None
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(
            self._follow(), name="flowfabric-remote-events", context=Context()
        )

    async def begun(self) -> Self:
        """Return once the server listens for us."""
        try:
            await asyncio.shield(self._begun)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _follow(self) -> None:
        patience = Patience()
        while not self._closed:
            try:
                await self._once()
                patience.renew()
            except (Lost, NotReached, TimeoutError, OSError) as error:
                if self._servers.closed:
                    self._end(out_of_reach(Lost(str(error))))
                    return
            except Exception as error:
                self._end(error)
                return
            await patience.rest()

    def _end(self, error: BaseException) -> None:
        self._failed = error
        if not self._begun.done():
            self._begun.set_exception(error)
        self._news.set()

    async def _once(self) -> None:
        extra = f"last-event-id: {cursor_to_text(self.cursor)}\r\n" if self.cursor else ""
        async with self._servers.stream(f"/v1/events/completion{self._query()}", extra) as (chunks, answer):
            buffer = b""
            while True:
                async with asyncio.timeout(SILENCE_S):
                    chunk = await chunks.get()
                if chunk is None:
                    response = await answer
                    if response.status != 200:
                        raise problem_of(response, "subscribe_completion")
                    raise Lost("the stream ended")
                buffer += chunk
                *events, buffer = buffer.split(b"\n\n")
                for event in events:
                    self._take(event)
                while len(self._ready) >= MOST_READY:
                    self._room.clear()
                    await self._room.wait()

    def _query(self) -> str:
        wanted = self._filter
        if wanted is None:
            return ""
        fields = [] if wanted.namespace is None else [f"namespace={quote(wanted.namespace, safe='')}"]
        if wanted.instance_tag is not None:
            fields.append(f"instance_tag={quote('='.join(wanted.instance_tag), safe='')}")
        return "?" + "&".join(fields) if fields else ""

    def _take(self, event: bytes) -> None:
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and line[:1] != b":")
        name = fields.get(b"event", b"")
        if b"id" in fields:
            self.cursor = cursor_from_text(fields[b"id"].decode())
        if name == b"completion":
            self._ready.append(_completion(msgspec.json.decode(fields[b"data"])))
            self._news.set()
        elif name == b"gap":
            raise StreamGap(self.cursor, cursor_from_text(msgspec.json.decode(fields[b"data"])["oldest"]))
        elif name == b"error":
            raise Lost(fields[b"data"].decode())
        if not self._begun.done():
            self._begun.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CompletionEvent:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            if self._failed is not None:
                raise self._failed
            self._news.clear()
            await self._news.wait()
        self._room.set()
        return self._ready.popleft()

    async def aclose(self) -> None:
        """End it."""
        self._closed = True
        self._news.set()
        self._task.cancel()
        await asyncio.wait((self._task,))
        if self._begun.done() and not self._begun.cancelled():
            self._begun.exception()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _completion(said: dict[str, Any]) -> CompletionEvent:
    outcome = said["outcome"]
    name = outcome if isinstance(outcome, str) else next(iter(outcome))
    kind = getattr(CompletionOutcome, name)
    made = kind() if isinstance(outcome, str) else kind(**outcome[name])
    return CompletionEvent(cursor_from_text(said["cursor"]), ExecutionId(said["execution_id"]), made, said["at"])
