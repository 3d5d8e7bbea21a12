"""Following an outbox on PostgreSQL without ever skipping a late commit.

Ids are handed out before the commit, so a row with a lower id may become visible after one with a higher id. A feed
delivers without a break in the ids at once. At a break it waits: either the missing row appears, or it becomes certain
that it never will, because every transaction that was writing to the outbox when a row behind the break was seen has
ended since. Those transactions are known by the lock that every writer takes on the table before it is given an id and
keeps until its rows are visible or gone. Writers do nothing for this, and transactions that write elsewhere, however
long they take, hold nobody up.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import Any

from flowfabric.model.events import InstanceTagEvent
from flowfabric.stores.event_questions import EventRows, ReadEvents
from flowfabric.stores.feeds import WINDOW, EventPage, lost_after, reached
from flowfabric.stores.sql.events import horizon
from flowfabric.stores.sql.schema import OUTBOXES

#: How long a break in the ids is left alone: most are filled by a commit that is under way.
PATIENCE_S = 0.02
#: How long a new subscription waits for writers that are under way, before it makes a list of what they may bring.
TAIL_PATIENCE_S = 0.25
#: How often writers are asked for, at most.
_ASK_INTERVAL_S = 0.01
#: Breaks such a list may have; of more, the newest are kept.
MAX_BREAKS = 10_000
#: How far back from the newest id they are looked for. A writer with an id before that was ended by the limits
#: of its session long ago, unless events come by the ten thousand each second.
LATE_IDS = 1_000_000


class PostgresFeed:
    """See the module's text. ``fetch`` runs a statement, ``ask`` answers a question."""

    def __init__(
        self,
        fetch: Callable[..., Awaitable[list[Any]]],
        ask: Callable[[ReadEvents], Awaitable[EventRows]],
        kind: Any,
        namespace: str | None,
        instance_tag: str | None,
    ) -> None:
        self._fetch = fetch
        self._ask = ask
        self._kind = kind
        self._table = OUTBOXES[kind].name
        self._filter = (namespace, instance_tag)
        self._tag_field = "tag" if kind is InstanceTagEvent else "instance_tag"
        self._asked_at = float("-inf")
        #: Every id up to here is visible or will never be.
        self._settled = 0
        #: ``(highest id then, transactions writing then)``: settled up to that id once those have ended.
        self._mark: tuple[int, frozenset[str]] | None = None
        #: The break that was met, and when.
        self._break: tuple[int, float] | None = None
        #: What was visible when the subscription began is not for it: ids up to here, except in these ranges.
        self._old_through = 0
        self._late_from: list[int] = []
        self._late_to: list[int] = []

    # -- where to begin ------------------------------------------------------------------------------------------

    async def tail(self) -> int:
        """Behind everything visible. Writers under way may hold lower ids; what they commit after this returns comes
        later than this place all the same."""
        await self._take_mark()
        deadline = time.monotonic() + TAIL_PATIENCE_S
        while self._mark is not None and time.monotonic() < deadline:
            await asyncio.sleep(_ASK_INTERVAL_S)
            await self._settle()
        if self._mark is None:
            return self._settled
        return await self._tail_before_slow_writers(self._mark[0])

    async def _tail_before_slow_writers(self, top: int) -> int:
        """Begin before the first id that is missing, and pass over what is visible between there and the end."""
        rows = await self._fetch(
            "SELECT o.before + 1, o.event_id - 1 FROM (SELECT event_id, lag(event_id, 1, h.trimmed) OVER "
            f"(ORDER BY event_id) AS before FROM {self._table}, "
            f"(SELECT greatest({horizon(self._table)}, $1::bigint - {LATE_IDS}) AS trimmed) h "
            "WHERE event_id > h.trimmed "
            f"AND event_id <= $1) o WHERE o.event_id > o.before + 1 ORDER BY o.event_id DESC LIMIT {MAX_BREAKS}",
            top,
        )
        self._late_from = [row[0] for row in reversed(rows)]
        self._late_to = [row[1] for row in reversed(rows)]
        if not rows:
            return top
        self._old_through = top
        return self._late_from[0] - 1

    def _is_old(self, event_id: int) -> bool:
        if event_id > self._old_through:
            return False
        place = bisect_right(self._late_from, event_id) - 1
        return place < 0 or event_id > self._late_to[place]

    # -- reading -------------------------------------------------------------------------------------------------

    async def page(self, after: int, limit: int) -> EventPage:
        """The next events, as far as nothing can appear among them any more."""
        # Whether writers have ended is asked first and rows are read then, so that what they committed is seen.
        await self._settle()
        page = await (self._settled_page(after, limit) if after < self._settled else self._newest(after, limit))
        if after < self._old_through:
            page.rows = [row for row in page.rows if not self._is_old(row[0])]
        return page

    async def _settled_page(self, after: int, limit: int) -> EventPage:
        through = min(self._settled, after + WINDOW)
        found = await self._ask(ReadEvents(self._kind, after, through, limit, *self._filter))
        position = reached(found, after, through, limit)
        if len(found.rows) < limit:
            position = max(position, through)
        more = position < max(found.top, self._settled)
        return EventPage(found.rows, position, more, False, found.trimmed, lost_after(found, after))

    async def _newest(self, after: int, limit: int) -> EventPage:
        found = await self._ask(ReadEvents(self._kind, after, None, limit))
        rows = found.rows
        count = len(rows)
        if count and rows[-1][0] != after + count:
            count = next(place for place, row in enumerate(rows) if row[0] != after + 1 + place)
        position = after + count
        held = count < len(rows)
        full = len(rows) == limit
        if held or (full and self._filter != (None, None)):
            await self._look_at_break(position + 1, far_behind=full)
        more = full if not held else self._settled > position
        matching, lost = self._matching(rows[:count]), lost_after(found, after)
        return EventPage(matching, position, more, held and not more, found.trimmed, lost)

    def _matching(self, rows: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        namespace, tag = self._filter
        if namespace is not None:
            rows = [row for row in rows if getattr(row[1], "namespace", None) == namespace]
        if tag is not None:
            rows = [row for row in rows if getattr(row[1], self._tag_field, None) == tag]
        return rows

    # -- what can still appear -----------------------------------------------------------------------------------

    async def _look_at_break(self, event_id: int, far_behind: bool) -> None:
        """Ask who is writing, if a break has lasted or much waits behind it."""
        now = time.monotonic()
        if self._break is None or self._break[0] != event_id:
            self._break = (event_id, now)
            if not far_behind:
                return
        if self._mark is None and (far_behind or now - self._break[1] >= PATIENCE_S):
            await self._take_mark()

    async def _take_mark(self) -> None:
        # Rows are seen as of the start of the statement, locks as of later: a holder of an id below the highest one
        # seen either still has its lock then, or has ended, and the next statement sees what it left.
        [row] = await self._fetch(
            f"SELECT greatest((SELECT max(event_id) FROM {self._table}), {horizon(self._table)}), ({self._writers})"
        )
        if row[1]:
            self._mark = (row[0], frozenset(row[1]))
        else:
            self._settled = max(self._settled, row[0])

    async def _settle(self) -> None:
        now = time.monotonic()
        if self._mark is None or now - self._asked_at < _ASK_INTERVAL_S:
            return
        self._asked_at = now
        top, writing = self._mark
        [row] = await self._fetch(f"SELECT ({self._writers})")
        still = writing.intersection(row[0])
        if still:
            self._mark = (top, still)
        else:
            self._mark = None
            self._settled = max(self._settled, top)

    @property
    def _writers(self) -> str:
        return (
            "SELECT coalesce(array_agg(virtualtransaction), '{}') FROM pg_locks WHERE locktype = 'relation' "
            f"AND relation = '{self._table}'::regclass AND mode = 'RowExclusiveLock' AND granted "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
