"""Metrics of a worker: an application to mount, or a small listener of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from flowfabric.telemetry.engine_metrics import MAX_LANES, EngineMetrics
from flowfabric.telemetry.gauges import StoreGauges
from flowfabric.telemetry.metrics import Counter, Gauge, Histogram, Registry

if TYPE_CHECKING:
    from flowfabric.engine import Engine

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
#: How long a client may take to ask, how long its question may be, and how many may ask at once.
ASK_S, MAX_ASK_BYTES, MAX_ASKING = 5.0, 16_384, 32

Message = MutableMapping[str, Any]


class WorkerMetrics(Registry):
    """Everything the workers of one app count in this process."""

    def __init__(self) -> None:
        self.engine = EngineMetrics()
        self.store = StoreGauges(self.engine.lanes)
        self.to_start = Histogram(
            "ff_claim_to_start_seconds", "Delay from claim to the start of the handler.", ("lane",), MAX_LANES
        )
        self.at_capacity = Counter("ff_worker_at_capacity_total", "Times a worker had no free slot to claim work.")
        self.running = Gauge("ff_worker_running", "Attempts running in this process.")
        self.running.set(0)
        super().__init__(self.engine, (self.to_start, self.at_capacity, self.running), self.store)

    def started(self, lane_id: str, seconds: float) -> None:
        """A handler begins, so long after its claim."""
        self.to_start.observe(seconds, self.engine.lanes.label(lane_id))


Exposed = WorkerMetrics | None


async def exposition(metrics: Exposed, engine: Engine | None) -> bytes:
    """The Prometheus text; nothing if there are no metrics."""
    if metrics is None:
        return b""
    if engine is not None:
        await metrics.store.refresh(engine)
    return metrics.text()


def metrics_app(
    metrics: Exposed, engine: Engine | None = None
) -> Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]:
    """An ASGI application that answers ``GET`` with the metrics, to be mounted at ``/metrics``. It asks for no
    credential; without metrics its answer is empty."""

    async def application(
        scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        asked = scope["method"] in ("GET", "HEAD")
        body = await exposition(metrics, engine) if asked else b""
        headers = [(b"content-type", MEDIA.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200 if asked else 405, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return application


@contextlib.asynccontextmanager
async def serve(host: str, port: int, metrics: Exposed, engine: Engine | None = None) -> AsyncIterator[int]:
    """Answer ``GET /metrics`` on an address until the block ends; gives the port. It asks for no credential."""
    asking = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asking
        asking += 1
        try:
            if asking <= MAX_ASKING:
                async with asyncio.timeout(ASK_S):
                    question = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await _answered(question, metrics, engine))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            asking -= 1
            writer.close()

    server = await asyncio.start_server(answer, host, port, limit=MAX_ASK_BYTES)
    try:
        bound: int = server.sockets[0].getsockname()[1]
        yield bound
    finally:
        server.close()


async def _answered(question: bytes, metrics: Exposed, engine: Engine | None) -> bytes:
    method, _, rest = question.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, body = "200 OK", b""
    if path.rstrip(b"/") != b"/metrics":
        status = "404 Not Found"
    elif method not in (b"GET", b"HEAD"):
        status = "405 Method Not Allowed"
    else:
        body = await exposition(metrics, engine)
    head = f"HTTP/1.1 {status}\r\ncontent-type: {MEDIA}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + (b"" if method == b"HEAD" else body)
