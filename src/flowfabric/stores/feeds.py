"""Following an outbox: pages of committed events behind a place, in order, none left out.

A feed says how far it is safe to go. Where one writer at a time hands out ids, that is simply to the end; PostgreSQL
has a feed of its own, because there a lower id may be committed after a higher one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec import Struct

from flowfabric.stores.event_questions import EventBounds, EventRows, ReadEvents

#: Ids one question looks at, so that a filter that matches little does not become one long read.
WINDOW = 20_000


class EventPage(Struct):
    """Some events of an outbox, and how far reading them has come."""

    #: ``(event id, row)`` in order.
    rows: list[tuple[int, Any]]
    #: Every event up to here is in this page or an earlier one, does not match the filter, or will never exist.
    position: int
    #: Whether it is worth reading on at once.
    more: bool
    #: Whether events are held back, because one before them may still be committed.
    held: bool
    #: Every event up to this id may have been deleted by age.
    trimmed: int
    #: Set if the reader stands behind events that the store had and has lost: they came behind this id.
    lost_after: int | None = None


class Feed(Protocol):
    """One reader's way through one outbox."""

    async def tail(self) -> int:
        """The place behind everything committed so far: what is committed later comes after it."""
        ...

    async def page(self, after: int, limit: int) -> EventPage:
        """The next events behind a place."""
        ...


class SingleWriterFeed:
    """For stores where ids become visible in the order they are handed out."""

    def __init__(
        self, ask: Callable[[Any], Awaitable[Any]], kind: Any, namespace: str | None, instance_tag: str | None
    ) -> None:
        self._ask = ask
        self._kind = kind
        self._filter = (namespace, instance_tag)

    async def tail(self) -> int:
        bounds: tuple[int, int] = await self._ask(EventBounds(self._kind))
        return bounds[1]

    async def page(self, after: int, limit: int) -> EventPage:
        through = after + WINDOW
        found: EventRows = await self._ask(ReadEvents(self._kind, after, through, limit, *self._filter))
        position = reached(found, after, through, limit)
        for end, start in found.breaks:
            # Nothing lies within a break, which is much wider than what one question looks at.
            if end <= position < start:
                position = start
        return EventPage(found.rows, position, position < found.top, False, found.trimmed, lost_after(found, after))


def lost_after(found: EventRows, after: int) -> int | None:
    """The id behind which events were lost that a reader at ``after`` has read; ``None`` if none were.

    Nothing but age takes an event away, and what age takes is counted: nobody can stand behind the end.
    """
    for end, start in found.breaks:
        if end < after < start:
            return end
    end = max(found.top, found.trimmed, found.breaks[-1][1] if found.breaks else 0)
    return end if after > end else None


def reached(found: EventRows, after: int, through: int, limit: int) -> int:
    """How far a read of settled ids has come: to its last row if there may be more, else to the end of its range."""
    if len(found.rows) == limit:
        return found.rows[-1][0]
    return max(after, min(found.top, through))
