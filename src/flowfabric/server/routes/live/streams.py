"""Streams of attempts: pages, and tails that wait."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric.model.streams.frames import MAX_TAIL_BLOCK_MS, StreamFrame, StreamFrames
from flowfabric.server.http.pieces import behind, frame_pieces, in_pieces
from flowfabric.server.http.problems import as_sent
from flowfabric.server.http.response import Answer, Streamed, encode
from flowfabric.server.operations import Call, Route

Limit = Annotated[int, Meta(ge=1, le=1_000)]


class PageQuery(Struct, kw_only=True, rename={"from_": "from"}):
    """From where to where; both are included."""

    from_: str = "start"
    to: str = "end"
    limit: Limit = 100


#: What the engine calls the fields of that query.
_SENT = {"from_cursor": "from", "to_cursor": "to"}


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


async def page(call: Call) -> Answer | Streamed:
    """Frames between two places."""
    query: PageQuery = call.query
    identity, index = call.execution_id, call.index("idx")

    async def read(after: str | None, count: int) -> StreamFrames:
        start = query.from_ if after is None else behind(after)
        async with call.server.turns.one():
            with as_sent(_SENT):
                return await call.engine.read_stream(identity, index, start, query.to, count)

    with call.server.stream_ops.one(call.principal):
        return await in_pieces(frame_pieces(read, query.limit, _written, _finished))


async def tail(call: Call) -> Answer | Streamed:
    """Frames after a cursor, as soon as there are any."""
    query: TailQuery = call.query
    identity, index = call.execution_id, call.index("idx")

    async def read(after: str | None, count: int) -> StreamFrames:
        if after is None and query.block_ms:
            # Whether there is anything is found out with one frame; only then a turn is taken.
            waiting = call.engine.tail_stream(identity, index, query.after, query.block_ms, 1)
            found = await call.while_connected(waiting)
            await call.check_standing()
            if not found.frames:
                return found
        async with call.server.turns.one():
            return await call.engine.tail_stream(identity, index, after or query.after, 0, count)

    with call.server.stream_ops.one(call.principal):
        return await in_pieces(frame_pieces(read, query.limit, _written, _finished))


def wire(frame: StreamFrame) -> WireFrame:
    """A frame with its time and mode among its fields."""
    return WireFrame(frame.id, {**frame.fields, "ts": frame.id.partition("-")[0], "mode": frame.mode})


def _written(frame: StreamFrame) -> bytes:
    return encode(wire(frame))


def _finished(count: int, page: StreamFrames) -> bytes:
    return encode(Frames((), count, page.closed_at, page.closed_reason))


_STREAM = "/v1/executions/{id}/attempts/{idx}/stream"

ROUTES = (
    Route(
        name="read_stream",
        method="GET",
        path=_STREAM,
        summary="Frames of an attempt",
        handler=page,
        query=PageQuery,
        answers={200: Frames},
    ),
    Route(
        name="tail_stream",
        method="GET",
        path=f"{_STREAM}/tail",
        summary="Frames after a cursor, as soon as there are any",
        handler=tail,
        query=TailQuery,
        costly=True,
        answers={200: Frames},
    ),
)
