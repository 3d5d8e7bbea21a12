"""A run's output as server-sent events, over all its attempts, with its children's on request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import Struct

from flowfabric.model.ids import ExecutionId
from flowfabric.model.quoting import quoted
from flowfabric.model.streams.restarts import RESTART_FRAME, is_restart
from flowfabric.sdk.runs.family_stream import Family, Found
from flowfabric.server.http.problems import refused
from flowfabric.server.http.response import Streamed, encode
from flowfabric.server.operations import Call, Route
from flowfabric.server.routes.live.events import ALIVE_S, SENT_BYTES, event, following
from flowfabric.server.routes.live.streams import wire

#: Frames that are held for one follower.
HELD_FRAMES = 32

#: The place of a frame, or 0 for the beginning; and the UUID of a run with such a place.
_PLACE = re.compile(r"0|[1-9][0-9]{0,8}:[0-9]{1,19}-[0-9]{1,10}")
_RUN = re.compile(r"([0-9a-f-]{36})@(0|[1-9][0-9]{0,8}:[0-9]{1,19}-[0-9]{1,10})")
#: Digits of a time.
_LONGEST_TIME = 19


class RunQuery(Struct, kw_only=True):
    """After which frame (or place of a stream with children); ``Last-Event-ID`` goes before it. With ``children`` also
    what the run has started."""

    after: str = "0"
    children: bool = False


class RunFrameEvent(Struct, frozen=True):
    """One frame: whose it is, in which attempt (from 1 on), its place and its fields."""

    run_id: str
    attempt: int
    id: str
    fields: dict[str, str]


async def run_frames(call: Call) -> Streamed:
    """Frames of a run as they are written, until it has ended."""
    query: RunQuery = call.query
    after = call.headers.get(b"last-event-id", b"").decode("latin-1") or query.after
    family = _family(call, after, query.children)
    call.server.followers.check(call.principal)
    return Streamed(_sent(call, family, query.children))


def _family(call: Call, after: str, children: bool) -> Family:
    """The run from a place on. A place of one frame is about the run alone."""
    identity = ExecutionId(call.execution_id)
    own = str(identity)
    if _PLACE.fullmatch(after):
        return Family(call.engine, own, {own: _read(after)}, children=children, held=HELD_FRAMES)
    first, *others = after.split(";")
    found = [_RUN.fullmatch(each) for each in others]
    is_time = first.isascii() and first.isdigit() and len(first) <= _LONGEST_TIME
    places = {f"{{fp:{identity.partition}}}:{each[1]}": _read(each[2]) for each in found if each is not None}
    if not children or not is_time or len(places) < len(others):
        raise refused(
            400, f"after: {quoted(after)} is not the id of an event of this stream; leave it out to start at the first"
        )
    return Family(call.engine, own, places, since_ms=int(first), held=HELD_FRAMES)


def _read(place: str) -> str | int:
    return 0 if place == "0" else place


async def _sent(call: Call, family: Family, children: bool) -> AsyncGenerator[bytes, None]:
    async with following(call) as listening, aclosing(family.rounds()) as rounds:
        yield b": begin\n\n"
        while True:
            reading = asyncio.ensure_future(anext(rounds, None))
            while True:
                try:
                    found: list[Found] | None = await listening.wait(reading, ALIVE_S)
                    break
                except TimeoutError:
                    yield b": alive\n\n"
            if found is None:
                yield event("ended", b"{}")
                return
            for data in _written(found, _cursor(family) if children else None):
                # Between pieces, too: nothing is sent to those who may no longer listen.
                yield await listening.wait(asyncio.ensure_future(_ready(data)))


async def _ready(data: bytes) -> bytes:
    return data


def _written(found: Sequence[Found], cursor: str | None) -> list[bytes]:
    """Events, as many together as are sent at a time. A stream with children is continued behind the last frame of a
    round: only that one tells a place of all runs."""
    pieces, data = [], bytearray()
    for number, each in enumerate(found):
        name = RESTART_FRAME if is_restart(each.frame.fields) else "frame"
        said = RunFrameEvent(each.run_id, each.attempt_index + 1, each.place, wire(each.frame).fields)
        last = number == len(found) - 1
        written = event(name, encode(said), (cursor if last else None) if cursor is not None else each.place)
        if data and len(data) + len(written) > SENT_BYTES:
            pieces.append(bytes(data))
            data.clear()
        data += written
    return [*pieces, bytes(data)]


def _cursor(family: Family) -> str:
    """Where all runs stand, as text."""
    places = (f"{ExecutionId(run_id).uuid_text}@{place}" for run_id, place in family.places.items())
    return ";".join((str(family.known_ms), *places))


ROUTES = (
    Route(
        name="follow_run",
        method="GET",
        path="/v1/executions/{id}/stream/events",
        summary="Frames of a run as server-sent events, over all attempts, with those of child runs on request",
        handler=run_frames,
        query=RunQuery,
        answers={200: None},
        media="text/event-stream",
        costly=True,
    ),
)
