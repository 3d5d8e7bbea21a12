"""One request to the application itself, whose answer is watched while it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from flowfabric.server.app import Server

#: Long enough for any machine; nothing that holds takes as long.
PATIENCE_S = 60.0


class Asking:
    """A request under way. ``body`` may be fed later, piece by piece, if it is ``None``."""

    def __init__(self, server: Server, method: str, path: str, token: str | None, body: Any = None) -> None:
        self.status: int | None = None
        self.chunks: list[bytes] = []
        #: Cleared by a client that takes nothing in.
        self.takes = asyncio.Event()
        self.takes.set()
        self._moved = asyncio.Event()
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        bare, _, query = path.partition("?")
        headers = [(b"host", b"server")]
        if token is not None:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        if method != "GET":
            headers.append((b"content-type", b"application/json"))
        scope = {
            "type": "http",
            "method": method,
            "path": bare,
            "raw_path": bare.encode(),
            "query_string": query.encode(),
            "headers": headers,
        }
        if body is not None or method == "GET":
            self.feed(b"" if body is None else json.dumps(body).encode(), more=False)
        self.task = asyncio.ensure_future(server(scope, self._messages.get, self._send))

    def feed(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the body."""
        self._messages.put_nowait({"type": "http.request", "body": data, "more_body": more})

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["body"]:
            self.chunks.append(message["body"])
        self._moved.set()
        await self.takes.wait()

    @property
    def text(self) -> str:
        """What has come so far."""
        return b"".join(self.chunks).decode()

    async def has(self, condition: Callable[[Self], bool]) -> None:
        """Wait until something can be said of what has come."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self):
                assert not self.task.done(), (self.status, self.text)
                self._moved.clear()
                await self._moved.wait()

    async def end(self) -> None:
        """Wait until all has come."""
        async with asyncio.timeout(PATIENCE_S):
            await self.task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})
        self.task.cancel()
        await asyncio.wait((self.task,))


async def eventually(condition: Callable[[], Any]) -> None:
    """Wait until something has come true."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)
