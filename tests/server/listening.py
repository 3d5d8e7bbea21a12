"""A server on a port, and a reader of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.serving import Running


@asynccontextmanager
async def listening(engine: Engine, config: ServerConfig | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that listens on a free port until the end."""
    settings = config or ServerConfig(port=0)
    server = create_app(engine, settings)
    running = Running(server, settings, server)
    task = asyncio.create_task(running.run())
    await running.started()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", timeout=60) as client:
            yield client
    finally:
        running.stop()
        await task


class Event(NamedTuple):
    """One event as it came."""

    identity: str | None
    name: str
    data: Any


async def events(client: httpx.AsyncClient, path: str, last: str | None = None) -> AsyncIterator[Event]:
    """Follow a stream of events."""
    headers = {} if last is None else {"last-event-id": last}
    async with client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream"
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield Event(fields.get("id"), fields["event"], json.loads(fields["data"]))
                fields = {}
