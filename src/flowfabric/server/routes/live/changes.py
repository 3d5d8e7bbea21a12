"""Hints for those who look: something has happened, look again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from flowfabric.model.reads.subscriptions import EventFamily, cursor_from_text
from flowfabric.server.http.response import Streamed
from flowfabric.server.operations import Call, Route
from flowfabric.server.routes.live.events import ALIVE_S, event, following


async def changes(call: Call) -> Streamed:
    """Say which outboxes have moved, as they move."""
    call.server.followers.check(call.principal)
    last = call.headers.get(b"last-event-id", b"").decode("latin-1")
    for part in last.split("."):
        cursor_from_text(part)
    return Streamed(_hints(call, last))


async def _hints(call: Call, last: str) -> AsyncGenerator[bytes, None]:
    hub = call.server.changes
    async with following(call) as listening, hub.listening():
        known = await hub.place()
        began = _told(known)
        # A client that was here before is told at once if something has happened meanwhile.
        yield event("changed" if last and last != began else "begin", b"{}", began)
        while True:
            waiting = asyncio.ensure_future(hub.after(known))
            try:
                place = await listening.wait(waiting, ALIVE_S)
            except TimeoutError:
                waiting.cancel()
                yield event("alive", b"{}", _told(known))
                continue
            moved = [name for name, at in place.items() if known.get(name) != at]
            known = place
            yield event("changed", msgspec.json.encode({"families": moved}), _told(known))


def _told(place: dict[str, str]) -> str:
    return ".".join(place[family.value] for family in EventFamily)


ROUTES = (
    Route(
        name="follow_changes",
        method="GET",
        path="/v1/changes",
        summary="Change notifications as server-sent events, without details",
        handler=changes,
        answers={200: None},
        media="text/event-stream",
        costly=True,
    ),
)
