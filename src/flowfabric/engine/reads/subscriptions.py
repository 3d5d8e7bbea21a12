"""Subscriptions: events as they are committed, once each and in order, read when the consumer asks for the next one.

Nothing is pushed and nothing is queued: a subscription holds one page. A slow consumer therefore costs one page of
memory and loses nothing, and one that stops asking costs nothing at all. Hints only shorten the wait for the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec

from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.model.errors import EngineError, StreamDisconnected, StreamGap, Transport, Validation, ValidationKind
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.executions import ScannerFilter
from flowfabric.model.reads.subscriptions import (
    SHOWN,
    TAIL,
    AnyEvent,
    AnyLeaseEvent,
    AnyTagEvent,
    CompletionEvent,
    EventBatch,
    EventFamily,
    OperatorEvent,
    SignalDeliveryEvent,
    cursor_at,
)
from flowfabric.stores.event_questions import EventBounds, Unreadable
from flowfabric.stores.feeds import EventPage, Feed
from flowfabric.stores.protocol import Conflict
from flowfabric.stores.sql.schema import OUTBOXES

_log = logging.getLogger("flowfabric.engine")

#: Events a subscription reads at a time, and how many it may come to while it is behind.
PAGE, LARGEST_PAGE = 256, 1_024
#: How long to wait before looking again at events that are held back: at first, and at most.
HELD_FIRST_S, HELD_LAST_S = 0.002, 0.1
#: How long to wait before trying again when the store is out of reach, and how often.
RETRY_FIRST_S, RETRY_LAST_S = 0.2, 5.0
RETRIES = 10
#: How long one bounded read waits for a gap to be filled or given up.
READ_PATIENCE_S = 1.0

EventType = TypeVar("EventType")
OnGap = Callable[[EngineError], object]


class Subscription(Generic[EventType]):
    """An endless async iterator over the events of one outbox; see the module's text.

    Close it with ``aclose()``, or use it as an async context manager. ``cursor`` is where it stands: a new subscription
    from there repeats nothing that was delivered and misses nothing.
    """

    def __init__(
        self, engine: EngineBase, family: EventFamily, feed: Feed, position: int, on_gap: OnGap | None, strict: bool
    ) -> None:
        self.family = family
        self._engine = engine
        self._kind, self._shown = SHOWN[family]
        self._feed = feed
        self._on_gap = on_gap
        self._strict = strict
        #: How far has been read, and where the consumer stands within that.
        self._position = position
        self._delivered = cursor_at(position)
        self._ready: deque[Any] = deque()
        self._size = PAGE
        #: Events it holds at most; lower where many subscriptions wait for slow consumers.
        self.largest_page = LARGEST_PAGE
        self._woken: asyncio.Future[None] | None = None
        self._reading = False
        self._closed = False

    @property
    def cursor(self) -> bytes:
        """The place behind the last event delivered, and behind those that were passed over since."""
        return self._delivered if self._ready else cursor_at(self._position)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventType:
        if self._reading:
            raise RuntimeError("two tasks read one subscription; give each its own")
        self._reading = True
        try:
            while not self._is_over():
                if self._ready:
                    return self._next()
                await self._fill()
            raise StopAsyncIteration
        finally:
            self._reading = False

    def _next(self) -> EventType:
        event = self._ready.popleft()
        if isinstance(event, EngineError):
            self._closed = True
            raise event
        self._delivered = event.cursor
        return event  # type: ignore[no-any-return]

    def _is_over(self) -> bool:
        return self._closed or self._engine._closed

    async def _fill(self) -> None:
        """Read until there is something to deliver, or the end."""
        waiters = self._engine._events
        pause = HELD_FIRST_S
        while not self._is_over():
            # Waiting starts before looking, so that nothing slips in between.
            woken = self._woken = waiters.park(self._kind)
            try:
                page = await self._page()
                if page is None:
                    return
                self._take(page)
                if self._ready:
                    return
                if page.more:
                    # The store may not have waited for anything; others want their turn.
                    await asyncio.sleep(0)
                    continue
                if not self._is_over():
                    waiters.rounds.keep(self._engine.store.event_poll_s)
                    await asyncio.wait((woken,), timeout=pause if page.held else None)
                pause = min(pause * 2, HELD_LAST_S) if page.held else HELD_FIRST_S
            finally:
                self._woken = None
                waiters.leave(self._kind, woken)

    async def _page(self) -> EventPage | None:
        """The next page, however often the store has to be asked for it; nothing once it is over."""
        pause = RETRY_FIRST_S
        failures = 0
        while not self._is_over():
            try:
                return await self._feed.page(self._position, min(self._size, self.largest_page))
            except (Transport, Conflict) as error:
                if self._is_over():
                    break
                failures += 1
                if failures >= RETRIES:
                    self._closed = True
                    raise StreamDisconnected(self._delivered) from error
                _log.warning("events of %s cannot be read, retrying: %s", self.family, error)
            await self._rest(pause)
            pause = min(pause * 2, RETRY_LAST_S)
        return None

    async def _rest(self, seconds: float) -> None:
        """Wait, but not much longer than the subscription lasts."""
        steps = max(1, round(seconds / RETRY_FIRST_S))
        for _ in range(steps):
            if not self._is_over():
                await asyncio.sleep(seconds / steps)

    def _take(self, page: EventPage) -> None:
        if (gap := _gap(page, self._position)) is not None:
            self._closed = True
            raise gap
        ready = []
        for event_id, row in page.rows:
            event = shown(self._shown, self.family, event_id, row)
            if isinstance(event, EngineError) and not self._strict:
                self._report(event)
            elif event is not None:
                ready.append(event)
        self._ready.extend(ready)
        self._position = page.position
        self._size = min(2 * self._size, LARGEST_PAGE) if page.more else PAGE

    def _report(self, error: EngineError) -> None:
        _log.warning("skipped an event: %s", error)
        if self._on_gap is not None:
            self._on_gap(error)

    async def aclose(self) -> None:
        """End the iteration, also for a task that waits in it. Safe to call twice."""
        self._closed = True
        self._ready.clear()
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _gap(page: EventPage, position: int) -> StreamGap | None:
    """What a reader is told that cannot go on from where it stands."""
    if page.trimmed > position:
        return StreamGap(cursor_at(position), cursor_at(page.trimmed))
    return None if page.lost_after is None else StreamGap(cursor_at(position), cursor_at(page.lost_after))


def shown(show: Callable[[int, Any], Any], family: EventFamily, event_id: int, row: Any) -> Any:
    """The event of a row; an error for one that cannot be read, nothing for a type that is not known here."""
    detail = ""
    try:
        if isinstance(row, Unreadable):
            detail = row.detail
        else:
            event = show(event_id, row)
            if event is None:
                _log.warning("%s: event %d has the unknown type %r and was skipped", family, event_id, row)
            return event
    except (ValueError, TypeError, msgspec.DecodeError, RecursionError) as error:
        detail = str(error)
    return Validation(ValidationKind.CORRUPTION, f"{OUTBOXES[SHOWN[family][0]].name}: event_id={event_id}: {detail}")


class Subscriptions(EngineBase):
    """The part of the engine that followers of events live in."""

    async def subscribe_completion(
        self,
        cursor: bytes = TAIL,
        filter: ScannerFilter | None = None,
        *,
        on_gap: OnGap | None = None,
        strict: bool = False,
    ) -> Subscription[CompletionEvent]:
        """Ends of executions, behind a cursor, or from this call on.

        A row that cannot be read is told to ``on_gap`` and passed over; with ``strict`` it is raised.
        """
        return await self._subscribe(EventFamily.COMPLETION, cursor, filter, on_gap, strict)

    async def subscribe_lease_history(
        self,
        cursor: bytes = TAIL,
        filter: ScannerFilter | None = None,
        *,
        on_gap: OnGap | None = None,
        strict: bool = False,
    ) -> Subscription[AnyLeaseEvent]:
        """What happens to leases, behind a cursor, or from this call on."""
        return await self._subscribe(EventFamily.LEASE_HISTORY, cursor, filter, on_gap, strict)

    async def subscribe_signal_delivery(
        self,
        cursor: bytes = TAIL,
        filter: ScannerFilter | None = None,
        *,
        on_gap: OnGap | None = None,
        strict: bool = False,
    ) -> Subscription[SignalDeliveryEvent]:
        """Signals that were accepted, behind a cursor, or from this call on."""
        return await self._subscribe(EventFamily.SIGNAL_DELIVERY, cursor, filter, on_gap, strict)

    async def subscribe_operator_event(
        self,
        cursor: bytes = TAIL,
        filter: ScannerFilter | None = None,
        *,
        on_gap: OnGap | None = None,
        strict: bool = False,
    ) -> Subscription[OperatorEvent]:
        """What operators did, behind a cursor, or from this call on."""
        return await self._subscribe(EventFamily.OPERATOR_EVENT, cursor, filter, on_gap, strict)

    async def subscribe_instance_tags(
        self,
        cursor: bytes = TAIL,
        filter: ScannerFilter | None = None,
        *,
        on_gap: OnGap | None = None,
        strict: bool = False,
    ) -> Subscription[AnyTagEvent]:
        """Instance tags given to executions and taken from them, behind a cursor, or from this call on."""
        return await self._subscribe(EventFamily.INSTANCE_TAGS, cursor, filter, on_gap, strict)

    async def read_events(
        self, family: EventFamily | str, cursor: bytes = TAIL, filter: ScannerFilter | None = None, limit: int = PAGE
    ) -> EventBatch:
        """What lies behind a cursor right now, at most ``limit`` events; does not wait for any.

        With the empty cursor no events, but the cursor that means "from now on". Rows that cannot be read are passed
        over.
        """
        wanted = values.event_family(family)
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        feed, position = await self._feed(wanted, cursor, filter)
        _, show = SHOWN[wanted]
        if cursor == TAIL:
            return EventBatch((), cursor_at(position), False)
        events: list[AnyEvent] = []
        page = await self._whole_page(feed, position, size)
        if (gap := _gap(page, position)) is not None:
            raise gap
        for event_id, row in page.rows:
            event = shown(show, wanted, event_id, row)
            if isinstance(event, EngineError):
                _log.warning("skipped an event: %s", event)
            elif event is not None:
                events.append(event)
        return EventBatch(tuple(events), cursor_at(page.position), page.more or page.held)

    async def _whole_page(self, feed: Feed, position: int, limit: int) -> EventPage:
        """A page with something in it, unless there is nothing or it takes too long to be sure."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_PATIENCE_S
        pause = HELD_FIRST_S
        while True:
            page = await feed.page(position, limit)
            if page.rows or _gap(page, position) or not (page.more or page.held) or loop.time() > deadline:
                return page
            position = page.position
            await asyncio.sleep(pause if page.held else 0)
            pause = min(pause * 2, HELD_LAST_S)

    async def _subscribe(
        self, family: EventFamily, cursor: Any, filter: Any, on_gap: Any, strict: Any
    ) -> Subscription[Any]:
        called = values.optional_callable(on_gap, "on_gap")
        strictly = values.flag(strict, "strict")
        feed, position = await self._feed(family, cursor, filter)
        return Subscription(self, family, feed, position, called, strictly)

    async def _feed(self, family: EventFamily, cursor: Any, filter: Any) -> tuple[Feed, int]:
        """A way through an outbox and the place to begin at."""
        position = values.event_cursor(cursor)
        namespace, tag = values.event_filter(filter)
        self._check_open()
        kind = SHOWN[family][0]
        # Hearing starts before the beginning is looked up: what is committed in between wakes.
        self._listen()
        feed: Feed = self.store.feed(kind, namespace, tag)
        if position is None:
            return feed, await feed.tail()
        trimmed, last = await self._ask(EventBounds(kind))
        if position < trimmed:
            raise StreamGap(cursor_at(position), cursor_at(trimmed))
        if position > last:
            raise values.invalid("cursor: later than the newest event; it belongs to another store or family")
        return feed, position
