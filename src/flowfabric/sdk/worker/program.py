"""A worker as a program: it works until SIGTERM or SIGINT, and answers ``/metrics`` if it is to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Any

from flowfabric.sdk.errors import BadOptions
from flowfabric.sdk.worker.worker import Worker

if TYPE_CHECKING:
    from flowfabric.sdk.app import App

_log = logging.getLogger("flowfabric.worker")


def run_worker(app: App, *, metrics_address: str | None = None, **options: Any) -> None:
    """Run a worker until the process is told to end: SIGTERM or SIGINT drains, a second one stops at once.
    ``metrics_address`` (``127.0.0.1:9101``) is where ``/metrics`` is answered meanwhile."""
    address = None if metrics_address is None else _address(metrics_address)
    asyncio.run(_run_until_signalled(Worker(app, **options), address))


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise BadOptions(
            f"metrics: {text!r} is not an address; write a host and a port, such as 127.0.0.1:9101", option="metrics"
        )
    return host.strip("[]"), int(port)


async def _run_until_signalled(worker: Worker, address: tuple[str, int] | None) -> None:
    loop = asyncio.get_running_loop()
    heard = 0

    def hear(number: signal.Signals) -> None:
        nonlocal heard
        heard += 1
        _log.info("%s: %r %s", number.name, worker, "stops at once" if heard > 1 else "finishes running attempts")
        worker.stop(now=heard > 1)
        opening.cancel()  # nothing, once it is open

    opening = loop.create_task(worker.app.open(), name="flowfabric-opening")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear, number)
    try:
        try:
            await asyncio.wait((opening,))
        finally:
            opening.cancel()
        if opening.cancelled() and heard:
            return  # told to end before there was a store
        opening.result()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(worker.app.close)
            if address is not None:
                from flowfabric.telemetry.worker import serve

                listening = serve(*address, worker.metrics, worker.app.engine)
                port = await stack.enter_async_context(listening)
                _log.info("%r serves /metrics on %s:%s", worker, address[0], port)
            await worker.run()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
