"""Streams of attempts: pages, and tails that wait."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric.model.frames import MAX_TAIL_BLOCK_MS, StreamFrame, StreamFrames
from flowfabric.server.access import Scope
from flowfabric.server.answers import Answer, plain
from flowfabric.server.operations import Call, Operation

Limit = Annotated[int, Meta(ge=1, le=1_000)]


class PageQuery(Struct, kw_only=True, rename={"from_": "from"}):
    """From where to where; both are included."""

    from_: str = "start"
    to: str = "end"
    limit: Limit = 100


class TailQuery(Struct, kw_only=True):
    """After which frame, and how long to wait for the next."""

    after: str = "0-0"
    block_ms: Annotated[int, Meta(ge=0, le=MAX_TAIL_BLOCK_MS)] = 0
    limit: Limit = 50


class WireFrame(Struct, frozen=True):
    """One frame: its place and its fields, all of them texts."""

    id: str
    fields: dict[str, str]


class Frames(Struct, frozen=True, omit_defaults=True):
    """Frames in order; ``closed_at`` says that no more will come."""

    frames: tuple[WireFrame, ...]
    count: int
    closed_at: int | None = None
    closed_reason: str | None = None


async def page(call: Call) -> Answer:
    """Frames between two places."""
    query: PageQuery = call.query
    with call.server.stream_ops.one():
        found = await call.engine.read_stream(call.execution_id, call.index("idx"), query.from_, query.to, query.limit)
    return _answer(found)


async def tail(call: Call) -> Answer:
    """Frames after a place, as soon as there are any."""
    query: TailQuery = call.query
    reading = call.engine.tail_stream(call.execution_id, call.index("idx"), query.after, query.block_ms, query.limit)
    with call.server.stream_ops.one():
        return _answer(await (call.while_connected(reading) if query.block_ms else reading))


def wire(frame: StreamFrame) -> WireFrame:
    """A frame with its time and mode among its fields."""
    return WireFrame(frame.id, {**frame.fields, "ts": frame.id.partition("-")[0], "mode": frame.mode})


def _answer(found: StreamFrames) -> Answer:
    return plain(Frames(tuple(map(wire, found.frames)), len(found.frames), found.closed_at, found.closed_reason))


_STREAM = "/v1/executions/{id}/attempts/{idx}/stream"

OPERATIONS = (
    Operation(
        name="read_stream",
        method="GET",
        path=_STREAM,
        scope=Scope.READ,
        summary="Frames of an attempt",
        handler=page,
        query=PageQuery,
        owner="execution",
        answers={200: Frames},
    ),
    Operation(
        name="tail_stream",
        method="GET",
        path=f"{_STREAM}/tail",
        scope=Scope.READ,
        summary="Frames after a place, as soon as there are any",
        handler=tail,
        query=TailQuery,
        owner="execution",
        answers={200: Frames},
    ),
)
