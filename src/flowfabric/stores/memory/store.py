"""The memory store: one process, no waiting, the same contract as the stores that last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

from flowfabric.model.decisions import Key, Need, Writes
from flowfabric.model.events import Event
from flowfabric.model.handles import BackendTag
from flowfabric.model.partitions import PartitionCounts
from flowfabric.stores.feeds import SingleWriterFeed
from flowfabric.stores.keyed.changes import Changes, planned, trimmed
from flowfabric.stores.keyed.load import readings
from flowfabric.stores.keyed.logs import told
from flowfabric.stores.keyed.questions import answer
from flowfabric.stores.keyed.reads import Log, LogBounds, Reading, Request, carry_out
from flowfabric.stores.memory.tables import Outboxes, Tables
from flowfabric.stores.protocol import Conflict, Filling, Transaction, Versions
from flowfabric.stores.questions import TrimAdmission, TrimHistory
from flowfabric.stores.server_clock import RisingClock

_Answer = TypeVar("_Answer")
_EventType = TypeVar("_EventType", bound=Event)


class MemoryStore:
    """Keeps everything in dictionaries. Its methods never wait, so a batch that only awaits them runs in one go."""

    tag = BackendTag.MEMORY
    shown = "memory"
    label = "memory"
    holds = False
    sends_hints = False
    parallel = 1
    event_poll_s = 5.0
    numbers_without_breaks = True
    pauses = False

    def __init__(self, counts: PartitionCounts | None = None, clock: Callable[[], int] | None = None) -> None:
        self.counts = PartitionCounts() if counts is None else counts
        self._clock = RisingClock().process_ms if clock is None else clock
        self._tables = Tables()
        self._outboxes = Outboxes()
        self._commits = 0
        self._closed = asyncio.Event()

    def transaction(self, *, trusting: bool = False) -> AbstractAsyncContextManager[Transaction]:
        """One atomic unit; left without a commit, it changes nothing."""
        return _MemoryTransaction(self, self._clock())

    def run_inline(self) -> bool:
        """There is nothing to wait for."""
        return True

    async def run(self, make: Callable[[], Awaitable[Any]], *, alone: bool = False) -> Any:
        """Run the batch that ``make`` begins, here and now, whether it is ``alone`` or not."""
        return await make()

    async def read(self, needs: Iterable[Need], view: Filling) -> None:
        """Committed records."""
        self._load(needs, view, self._clock())

    def _load(self, needs: Iterable[Need], view: Filling, now: int) -> None:
        for reading in readings(needs, view, now):
            self._carry_out(reading)

    def _carry_out(self, reading: Reading[_Answer]) -> _Answer:
        return carry_out(reading, self._ask)

    def _ask(self, request: Request) -> Any:
        if type(request) is Log:
            return self._outboxes.after(request.kind, request.after)[: request.limit]
        if type(request) is LogBounds:
            return self._outboxes.log(request.kind)
        return self._tables.ask(request)

    async def query(self, question: Any) -> Any:
        """Answer one of ``stores.questions``."""
        if isinstance(question, TrimHistory | TrimAdmission):
            return self._trim(question)
        return self._carry_out(answer(question))

    def _trim(self, question: TrimHistory | TrimAdmission) -> int:
        gone = self._carry_out(trimmed(question))
        self._apply(Changes(gone.moves, []))
        for kind, numbers in gone.events.items():
            self._outboxes.trim(kind, numbers, gone.events_before_ms)
        return gone.count

    def _apply(self, changes: Changes) -> None:
        """Check everything, then do everything, so that a refused batch leaves no trace."""
        tables = self._tables
        for move in changes.moves:
            if move.before is None and move.after is not None and tables.find(move.kind, move.key) is not None:
                raise Conflict(f"{move.kind.__name__}: a row appeared")
        for move in changes.moves:
            if move.after is None:
                tables.delete(move.kind, move.key)
            else:
                tables.store(move.after)
        for record in changes.if_absent:
            if tables.find(type(record), record.key) is None:
                tables.store(record)
        for event in changes.events:
            self._outboxes.append(event)

    def events(self, kind: type[_EventType], after: int = 0) -> list[tuple[int, _EventType]]:
        """Committed events of a kind behind an event id, as ``(event id, event)``, oldest first. Ids begin at 1."""
        return self._carry_out(told(self._outboxes.after(kind, after)))

    def feed(self, kind: Any, namespace: str | None, instance_tag: str | None) -> SingleWriterFeed:
        """Events are numbered as they are committed."""
        return SingleWriterFeed(self.query, kind, namespace, instance_tag)

    def check_indexes(self) -> None:
        """Assert that every index is exactly what the records make of it."""
        self._tables.check()

    async def server_time_ms(self) -> int:
        """The store's time."""
        return self._clock()

    def publish(self, topics: Iterable[str], *, urgent: bool = True) -> None:
        """There is no other process to tell."""

    async def heard(self) -> AsyncIterator[str | None]:
        """Nothing, until the store is closed."""
        topics: tuple[str | None, ...] = ()
        await self._closed.wait()
        for topic in topics:
            yield topic

    async def prepare(self) -> tuple[int, ...]:
        """Nothing: there is no schema."""
        return ()

    async def server_version(self) -> str:
        """The memory store has no version of its own."""
        return "1"

    async def ping(self) -> None:
        """Always there."""

    async def close(self) -> None:
        """End the wait of those who listen."""
        self._closed.set()


class _MemoryTransaction:
    """Sees the records as they are; a batch that loads and then lets another one commit has to decide again."""

    __slots__ = ("_now", "_seen", "_store")

    def __init__(self, store: MemoryStore, now: int) -> None:
        self._store = store
        # One time for all of it: what was due when it was loaded is due when it is decided upon.
        self._now = now
        self._seen: int | None = None

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def now(self, written_ms: int = 0) -> int:
        return self._now

    async def load(self, needs: Iterable[Need], view: Filling) -> None:
        if self._seen is None:
            self._seen = self._store._commits
        self._store._load(needs, view, self._now)

    def version(self, kind: Any, key: Key) -> int | None:
        return None

    async def commit(self, writes: Writes, held: Versions) -> int | None:
        store = self._store
        if self._seen is not None and self._seen != store._commits:
            raise Conflict("another writer committed after this batch loaded its records")
        if not writes.empty:
            store._apply(store._carry_out(planned(writes)))
            store._commits += 1
        return None
