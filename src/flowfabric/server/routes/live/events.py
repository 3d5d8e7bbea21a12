"""Server-sent events: the frames of an attempt, and what happens to executions. ``Last-Event-ID`` continues both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from flowfabric.model.errors import EngineError, StreamGap
from flowfabric.model.operations.executions import ScannerFilter
from flowfabric.model.quoting import quoted
from flowfabric.model.reads.subscriptions import (
    CompletionEvent,
    EventFamily,
    OperatorEvent,
    SignalDeliveryEvent,
    cursor_from_text,
    cursor_to_text,
)
from flowfabric.model.streams.frames import MAX_TAIL_BLOCK_MS, StreamFrame, StreamFrames
from flowfabric.model.streams.restarts import RESTART_FRAME, is_restart
from flowfabric.server.access.principals import Standing
from flowfabric.server.http.problems import refused, told
from flowfabric.server.http.response import Streamed, encode, variant
from flowfabric.server.operations import Call, Route, given_up
from flowfabric.server.routes.live.streams import wire

#: How often a stream that has nothing to tell says that it is there.
ALIVE_S = 15.0
#: Frames that are read at a time, at first and at most, and bytes of them that are sent at a time: what a follower does
#: not take in waits in memory, and what was read beyond that is read again.
FIRST_FRAMES, MOST_FRAMES, SENT_BYTES = 4, 100, 65_536
#: Events that are held for one follower.
HELD_EVENTS = 128


class FramesQuery(Struct, kw_only=True):
    """After which frame; ``Last-Event-ID`` goes before it."""

    after: str = "0-0"


class EventsQuery(Struct, kw_only=True):
    """From where on (from now, if left out), in which namespace, with which value of the instance tag (key=value)."""

    cursor: str = ""
    namespace: str | None = None
    instance_tag: str | None = None


def event(name: str, data: bytes, identity: str | None = None) -> bytes:
    """One event as it is written; JSON has no line ends."""
    head = b"" if identity is None else b"id: " + identity.encode() + b"\n"
    return head + b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


async def frames(call: Call) -> Streamed:
    """Frames as they are written, until the attempt ends."""
    identity, index = call.execution_id, call.index("idx")
    after = call.headers.get(b"last-event-id", b"").decode("latin-1") or call.query.after
    call.server.followers.check(call.principal)
    first = await call.engine.tail_stream(identity, index, after, 0, FIRST_FRAMES)
    return Streamed(_frames(call, index, after, first))


async def _frames(call: Call, index: int, after: str, page: StreamFrames | None) -> AsyncGenerator[bytes, None]:
    count = FIRST_FRAMES
    async with following(call) as listening:
        yield b": begin\n\n"
        while True:
            wait_ms = MAX_TAIL_BLOCK_MS
            if page is not None and page.frames:
                sent, data = _written(page.frames)
                after = page.frames[sent - 1].id
                count = min(2 * sent, MOST_FRAMES)
                wait_ms, page = 0, None
                yield data
                del data
            elif page is not None and page.is_closed():
                closed = {"closed_at": page.closed_at, "closed_reason": page.closed_reason}
                yield event("closed", msgspec.json.encode(closed))
                return
            reading = asyncio.ensure_future(call.engine.tail_stream(call.execution_id, index, after, wait_ms, count))
            while True:
                try:
                    page = await listening.wait(reading, ALIVE_S)
                    break
                except TimeoutError:
                    yield b": alive\n\n"
            del reading


def _written(frames: Sequence[StreamFrame]) -> tuple[int, bytes]:
    """As many frames as are sent at a time, at least one; how many, and as events."""
    data = bytearray()
    for sent, frame in enumerate(frames):
        name = RESTART_FRAME if is_restart(frame.fields) else "frame"
        written = event(name, encode(wire(frame)), frame.id)
        if data and len(data) + len(written) > SENT_BYTES:
            return sent, bytes(data)
        data += written
    return len(frames), bytes(data)


async def events(call: Call) -> Streamed:
    """What happens, as it is committed."""
    query: EventsQuery = call.query
    try:
        family = EventFamily(call.path["family"])
    except ValueError:
        known = ", ".join(EventFamily)
        raise refused(404, f"unknown event family {quoted(call.path['family'])}; expected one of {known}") from None
    if query.namespace is None and call.principal.namespaces is not None:
        raise refused(400, "invalid query: name one of your namespaces")
    if query.namespace is not None:
        call.check_namespace(query.namespace)
    tag = None
    if query.instance_tag is not None:
        key, _, value = query.instance_tag.partition("=")
        tag = (key, value)
    text = call.headers.get(b"last-event-id", b"").decode("latin-1") or query.cursor
    wanted = ScannerFilter(query.namespace, tag) if query.namespace is not None or tag is not None else None
    call.server.followers.check(call.principal)
    subscribe = getattr(call.engine, f"subscribe_{family.value}")
    subscription = await subscribe(cursor_from_text(text), wanted)
    subscription.largest_page = HELD_EVENTS
    return Streamed(_events(call, subscription))


async def _events(call: Call, subscription: Any) -> AsyncGenerator[bytes, None]:
    async with following(call) as listening, subscription:
        yield event("begin", b"{}", cursor_to_text(subscription.cursor))
        pending: asyncio.Task[Any] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(anext(subscription))
                try:
                    found = await listening.wait(pending, ALIVE_S)
                except TimeoutError:
                    yield event("alive", b"{}", cursor_to_text(subscription.cursor))
                    continue
                except StopAsyncIteration:
                    return
                pending = None
                name, body = shown(found)
                yield event(name, encode(body), cursor_to_text(found.cursor))
        except StreamGap as gap:
            yield event("gap", msgspec.json.encode({"oldest": cursor_to_text(gap.oldest)}))
        except EngineError as error:
            yield event("error", encode(told(error)[1]))
        finally:
            if pending is not None:
                await given_up(pending)


def shown(found: Any) -> tuple[str, Any]:
    """An event's name and what it says."""
    body = {**structs.asdict(found), "cursor": cursor_to_text(found.cursor)}
    match found:
        case CompletionEvent(outcome=outcome):
            return "completion", {**body, "outcome": variant(outcome)}
        case SignalDeliveryEvent(effect=effect):
            return "signal_delivery", {**body, "effect": variant(effect)}
        case OperatorEvent():
            return "operator_event", body
    return type(found).__name__, {type(found).__name__: body}


class Stopped(Exception):
    """Nobody listens any more, or nobody who may, or the server stops."""


class Listening:
    """Waits for things as long as somebody listens, may listen, and the server stays. A follower of hours makes
    one of it."""

    def __init__(self, call: Call, standing: Standing) -> None:
        self._standing = standing
        self._closing = asyncio.ensure_future(call.server.closing.wait())
        self._gone = asyncio.ensure_future(call.disconnected())

    async def wait(self, task: asyncio.Future[Any], timeout: float | None = None) -> Any:
        """The result of something. What is not ready in time goes on."""
        ends = (self._standing.gone, self._closing, self._gone)
        await asyncio.wait((task, *ends), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not self._standing.fell:
            return task.result()
        if any(each.done() for each in ends):
            await given_up(task)
            raise Stopped
        raise TimeoutError

    def close(self) -> None:
        """Listen no more."""
        self._closing.cancel()
        self._gone.cancel()


@contextlib.asynccontextmanager
async def following(call: Call) -> AsyncGenerator[Listening, None]:
    """Hold a place among the followers, until nobody listens any more or the server stops."""
    with call.server.followers.one(call.principal), contextlib.suppress(Stopped):
        async with call.holding() as standing:
            listening = Listening(call, standing)
            try:
                yield listening
            finally:
                listening.close()


ROUTES = (
    Route(
        name="follow_stream",
        method="GET",
        path="/v1/executions/{id}/attempts/{idx}/stream/events",
        summary="Frames of an attempt as server-sent events",
        handler=frames,
        query=FramesQuery,
        answers={200: None},
        media="text/event-stream",
        costly=True,
    ),
    Route(
        name="follow_events",
        method="GET",
        path="/v1/events/{family}",
        summary="Events of executions as server-sent events",
        handler=events,
        query=EventsQuery,
        answers={200: None},
        media="text/event-stream",
        costly=True,
    ),
)
