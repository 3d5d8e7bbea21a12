"""Is it alive, can it work, what is it, and what has it counted."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from flowfabric import __version__
from flowfabric.model.errors import EngineError
from flowfabric.server.http.problems import refused
from flowfabric.server.http.response import Answer, plain
from flowfabric.server.operations import Call, Route

METRICS_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class Health(Struct, frozen=True):
    """The server answers, and so does its store."""

    status: str


class Life(Struct, frozen=True):
    """The process answers."""

    status: str


class Version(Struct, frozen=True):
    """Version and build."""

    version: str
    store: str
    store_version: str


async def livez(call: Call) -> Answer:
    """The process answers; what it needs is not asked for, since a restart would not bring that back."""
    return plain(Life("alive"))


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
    """Version and build."""
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
    return call.server.description


async def docs(call: Call) -> Answer:
    """The same for people."""
    return call.server.description_page


ROUTES = (
    Route(
        name="openapi",
        method="GET",
        path="/openapi.json",
        summary="What can be called, as an OpenAPI 3.1 document",
        handler=openapi_document,
        answers={200: dict[str, Any]},
    ),
    Route(
        name="docs",
        method="GET",
        path="/docs",
        summary="What can be called, as a page",
        handler=docs,
        answers={200: None},
        media="text/html",
    ),
    Route(
        name="livez",
        method="GET",
        path="/livez",
        summary="Whether the server responds, whatever its store does",
        handler=livez,
        answers={200: Life},
    ),
    Route(
        name="healthz",
        method="GET",
        path="/healthz",
        summary="Whether the server and its store respond",
        handler=healthz,
        answers={200: Health},
    ),
    Route(
        name="readyz",
        method="GET",
        path="/readyz",
        summary="Whether the server accepts requests",
        handler=readyz,
        answers={200: Health},
    ),
    Route(
        name="version",
        method="GET",
        path="/version",
        summary="Version and build",
        handler=version,
        answers={200: Version},
    ),
    Route(
        name="metrics",
        method="GET",
        path="/metrics",
        summary="Counters as Prometheus text",
        handler=metrics,
        answers={200: None},
        media="text/plain",
    ),
)
