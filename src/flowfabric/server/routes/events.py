"""Server-sent events: the frames of an attempt, and what happens to executions. ``Last-Event-ID`` continues both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Self

import msgspec
from msgspec import Struct, structs

from flowfabric.model.errors import EngineError, StreamGap
from flowfabric.model.frames import MAX_TAIL_BLOCK_MS, StreamFrames
from flowfabric.model.results import ScannerFilter
from flowfabric.model.subscriptions import (
    CompletionEvent,
    EventFamily,
    OperatorEvent,
    SignalDeliveryEvent,
    cursor_from_text,
    cursor_to_text,
)
from flowfabric.server.access import Scope
from flowfabric.server.answers import Streamed, encode, variant
from flowfabric.server.operations import Call, Operation
from flowfabric.server.problems import refused, told
from flowfabric.server.routes.streams import wire

#: How often a stream that has nothing to tell says that it is there.
ALIVE_S = 15.0
#: Frames that are sent at a time.
PAGE = 100


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
    call.server.followers.check()
    first = await call.engine.tail_stream(identity, index, after, 0, PAGE)
    chunks = _frames(call, index, after, first)
    return Streamed(chunks)


async def _frames(call: Call, index: int, after: str, page: StreamFrames) -> AsyncGenerator[bytes, None]:
    with call.server.followers.one(), contextlib.suppress(Stopped), Listening(call) as listening:
        yield b": begin\n\n"
        while True:
            for frame in page.frames:
                yield event("frame", encode(wire(frame)), frame.id)
            if page.frames:
                after = page.frames[-1].id
            elif page.is_closed():
                closed = {"closed_at": page.closed_at, "closed_reason": page.closed_reason}
                yield event("closed", msgspec.json.encode(closed))
                return
            wait_ms = 0 if page.frames else MAX_TAIL_BLOCK_MS
            reading = asyncio.ensure_future(call.engine.tail_stream(call.execution_id, index, after, wait_ms, PAGE))
            while True:
                try:
                    page = await listening.wait(reading, ALIVE_S)
                    break
                except TimeoutError:
                    yield b": alive\n\n"


async def events(call: Call) -> Streamed:
    """What happens, as it is committed."""
    query: EventsQuery = call.query
    try:
        family = EventFamily(call.path["family"])
    except ValueError:
        known = ", ".join(EventFamily)
        raise refused(404, f"there are no events {call.path['family'][:64]!r}; there are: {known}") from None
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
    call.server.followers.check()
    subscribe = getattr(call.engine, f"subscribe_{family.value}")
    return Streamed(_events(call, await subscribe(cursor_from_text(text), wanted)))


async def _events(call: Call, subscription: Any) -> AsyncGenerator[bytes, None]:
    with call.server.followers.one(), contextlib.suppress(Stopped), Listening(call) as listening:
        async with subscription:
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
                if pending is not None and not pending.done():
                    pending.cancel()
                    with contextlib.suppress(asyncio.CancelledError, EngineError, StopAsyncIteration):
                        await pending


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
    """Nobody listens any more, or the server stops."""


class Listening:
    """Waits for things as long as somebody listens and the server stays. Whoever follows for hours makes one of it."""

    def __init__(self, call: Call) -> None:
        self._closing = asyncio.ensure_future(call.server.closing.wait())
        self._gone = asyncio.ensure_future(call.disconnected())

    async def wait(self, task: asyncio.Future[Any], timeout: float | None = None) -> Any:
        """The result of something. What is not ready in time goes on."""
        both = (self._closing, self._gone)
        await asyncio.wait((task, *both), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if any(each.done() for each in both):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, EngineError, StopAsyncIteration):
                await task
            raise Stopped
        raise TimeoutError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.cancel()
        self._gone.cancel()


OPERATIONS = (
    Operation(
        name="follow_stream",
        method="GET",
        path="/v1/executions/{id}/attempts/{idx}/stream/events",
        scope=Scope.READ,
        summary="Frames of an attempt as server-sent events",
        handler=frames,
        query=FramesQuery,
        owner="execution",
        answers={200: None},
        media="text/event-stream",
    ),
    Operation(
        name="follow_events",
        method="GET",
        path="/v1/events/{family}",
        scope=Scope.READ,
        summary="What happens to executions as server-sent events",
        handler=events,
        query=EventsQuery,
        answers={200: None},
        media="text/event-stream",
    ),
)
