"""Is it alive, can it work, what is it, and what has it counted."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from flowfabric import __version__
from flowfabric.model.errors import EngineError
from flowfabric.server import openapi
from flowfabric.server.access import Scope
from flowfabric.server.answers import HTML, Answer, plain
from flowfabric.server.operations import Call, Operation
from flowfabric.server.problems import refused

METRICS_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class Health(Struct, frozen=True):
    """The server answers, and so does its store."""

    status: str


class Version(Struct, frozen=True):
    """What is running."""

    version: str
    store: str
    store_version: str


async def healthz(call: Call) -> Answer:
    """The store answers."""
    await call.engine.ping()
    return plain(Health("ok"))


async def readyz(call: Call) -> Answer:
    """Work can be taken: not while a shutdown is under way."""
    if call.server.closing.is_set():
        raise refused(503, "shutting down", kind="unavailable", retryable=True)
    try:
        await call.engine.ping()
    except EngineError as error:
        raise refused(503, error.code, kind="unavailable", retryable=True) from None
    return plain(Health("ready"))


async def version(call: Call) -> Answer:
    """What is running."""
    found = await call.engine.capabilities()
    return plain(Version(__version__, found.family, found.version))


async def metrics(call: Call) -> Answer:
    """The counters of this process."""
    if not call.server.config.metrics:
        raise refused(404, "not found")
    server = call.server
    await server.metrics.store.refresh(call.engine)
    return Answer(200, server.metrics.text(), METRICS_TEXT)


async def openapi_document(call: Call) -> Answer:
    """The description of everything that can be called."""
    return plain(openapi.document(call.server.operations))


async def docs(call: Call) -> Answer:
    """The same for people."""
    return Answer(200, openapi.page(call.server.operations), HTML)


OPERATIONS = (
    Operation(
        name="openapi",
        method="GET",
        path="/openapi.json",
        scope=None,
        summary="What can be called, as an OpenAPI 3.1 document",
        handler=openapi_document,
        answers={200: dict[str, Any]},
    ),
    Operation(
        name="docs",
        method="GET",
        path="/docs",
        scope=None,
        summary="What can be called, as a page",
        handler=docs,
        answers={200: None},
        media="text/html",
    ),
    Operation(
        name="healthz",
        method="GET",
        path="/healthz",
        scope=None,
        summary="Whether the server and its store answer",
        handler=healthz,
        answers={200: Health},
    ),
    Operation(
        name="readyz",
        method="GET",
        path="/readyz",
        scope=None,
        summary="Whether the server takes work",
        handler=readyz,
        answers={200: Health},
    ),
    Operation(
        name="version",
        method="GET",
        path="/version",
        scope=Scope.READ,
        summary="What is running",
        handler=version,
        answers={200: Version},
    ),
    Operation(
        name="metrics",
        method="GET",
        path="/metrics",
        scope=None,
        summary="Counters as Prometheus text",
        handler=metrics,
        answers={200: None},
        media="text/plain",
    ),
)
