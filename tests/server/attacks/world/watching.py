"""How long the event loop is held: the processor time of its callbacks, one by one."""

from __future__ import annotations

import asyncio
import time
from asyncio.events import Handle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from flowfabric.server.app import Server


class Held:
    """Processor seconds of the callbacks of a loop: the longest, and all of them."""

    longest = 0.0
    total = 0.0


@contextmanager
def watching() -> Iterator[Held]:
    """Measure what runs on the loop meanwhile."""
    held = Held()
    run = Handle._run

    def measured(handle: Handle) -> None:
        began = time.thread_time()
        try:
            run(handle)
        finally:
            took = time.thread_time() - began
            held.longest = max(held.longest, took)
            held.total += took

    with patch.object(Handle, "_run", measured):
        yield held


class Request:
    """A request as it reaches the application, of a client that hangs up as soon as it has said all."""

    def __init__(self, method: str, path: str, query: str = "", body: bytes = b"", **headers: str) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.body = body
        self.headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}

    async def ask(self, server: Server) -> tuple[int, bytes]:
        """Its answer: the status and the body."""
        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query.encode(),
            "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in self.headers.items()],
            "client": ("127.0.0.1", 1),
        }
        sent: list[dict[str, Any]] = []
        given = False

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                return {"type": "http.disconnect"}
            given = True
            return {"type": "http.request", "body": self.body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await server(scope, receive, send)
        if not sent:
            return 499, b""
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])

    async def held(self, server: Server) -> tuple[int, Held]:
        """The status, and how long the loop was held for it."""
        with watching() as held:
            status, _ = await asyncio.create_task(self.ask(server))
        return status, held
