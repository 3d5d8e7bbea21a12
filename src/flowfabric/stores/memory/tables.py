"""The records themselves with their indexes, and the outboxes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar, cast

from flowfabric.model.decisions import Key
from flowfabric.model.events import Event
from flowfabric.model.records.executions import Execution, Record
from flowfabric.stores.event_questions import LogState
from flowfabric.stores.keyed.entries import entries_of, moved_entries
from flowfabric.stores.keyed.reads import All, Count, Names, Originals, Range, Request, Rows, Size, Whole
from flowfabric.stores.keyed.records import KINDS
from flowfabric.stores.memory.indexes import Indexes
from flowfabric.stores.sql.schema import OUTBOXES

_RecordType = TypeVar("_RecordType", bound=Record)
_EventType = TypeVar("_EventType", bound=Event)


class Tables:
    """All records by kind and key. A record in here is never changed, only replaced, so it may be handed out."""

    def __init__(self) -> None:
        self._records: dict[Any, dict[Key, Any]] = {kind: {} for kind in KINDS}
        self.indexes = Indexes()

    def all(self, kind: type[_RecordType]) -> Mapping[Key, _RecordType]:
        """Every record of a kind by key."""
        return self._records[kind]

    def find(self, kind: type[_RecordType], key: Key) -> _RecordType | None:
        """The record, or ``None`` if it does not exist."""
        return cast("_RecordType | None", self._records[kind].get(key))

    def store(self, record: Record) -> None:
        """Insert or replace a record. It belongs to the tables from here on."""
        records, key = self._records[type(record)], record.key
        before = records.get(key)
        self.indexes.change(*moved_entries(before, record))
        records[key] = record

    def delete(self, kind: Any, key: Key) -> None:
        """Remove a record if it is there."""
        record = self._records[kind].pop(key, None)
        if record is not None:
            self.indexes.change(entries_of(record), ())

    # -- asking --------------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Any:
        """The answer to a request of a reading."""
        if type(request) is Rows or type(request) is Originals:
            records = self._records[request.kind]
            return [records.get(key) for key in request.keys]
        if type(request) is Whole:
            return [self._records[Execution].get(key) for key in request.execution_ids]
        return _ASKED[type(request)](self, request)

    def _range(self, request: Range) -> list[Any]:
        run = self.indexes.run(request.family, request.name)
        if request.backwards:
            return list(islice(run.backwards(request.low, request.high), request.limit))
        entries = run.between(request.low, request.high, request.behind)
        return list(islice(entries, request.limit))

    def _count(self, request: Count) -> int:
        run = self.indexes.run(request.family, request.name)
        return len(run) if request.low is None and request.high is None else run.count(request.low, request.high)

    def _names(self, request: Names) -> list[Any]:
        return list(self.indexes.runs(request.family))

    def _all(self, request: All) -> list[Any]:
        return [record for _, record in sorted(self._records[request.kind].items())]

    def check(self) -> None:
        """Assert that the indexes are exactly what the records make of them."""
        expected = Indexes()
        for records in self._records.values():
            for key, record in records.items():
                assert key == record.key, f"{record!r} is kept under {key!r}"
                expected.change((), entries_of(record))
        kept, worked_out = self.indexes.contents(), expected.contents()
        for family in kept.keys() | worked_out.keys():
            assert kept.get(family) == worked_out.get(family), f"index {family!r} does not fit its records"


_ASKED: dict[Any, Callable[[Tables, Any], Any]] = {
    Range: Tables._range,
    Count: Tables._count,
    Names: Tables._names,
    All: Tables._all,
    Size: lambda tables, request: len(tables.all(request.kind)),
}


class Outboxes:
    """Events by kind, each with a number that rises within its kind and is never used again."""

    def __init__(self) -> None:
        self._rows: dict[Any, list[tuple[int, Any]]] = {kind: [] for kind in OUTBOXES}
        self._last = dict.fromkeys(OUTBOXES, 0)
        self._trimmed = dict.fromkeys(OUTBOXES, 0)
        self._trimmed_before_ms = dict.fromkeys(OUTBOXES, 0)

    def append(self, event: Event) -> None:
        """Add an event under the next number of its kind."""
        kind = type(event)
        self._last[kind] += 1
        self._rows[kind].append((self._last[kind], event))

    def after(self, kind: type[_EventType], event_id: int) -> list[tuple[int, _EventType]]:
        """Numbered events of a kind behind a number, oldest first."""
        rows = self._rows[kind]
        return rows[bisect_right(rows, event_id, key=itemgetter(0)) :]

    def log(self, kind: Any) -> LogState:
        """How far events of a kind were deleted, and which numbers there are."""
        rows = self._rows[kind]
        return LogState(
            self._trimmed[kind], self._last[kind], self._trimmed_before_ms[kind], rows[-1][0] if rows else 0
        )

    def trim(self, kind: Any, numbers: list[int], before_ms: int) -> None:
        """Delete some events, which happened before a time."""
        gone = set(numbers)
        self._rows[kind] = [row for row in self._rows[kind] if row[0] not in gone]
        self._trimmed[kind] = max(self._trimmed[kind], *numbers)
        self._trimmed_before_ms[kind] = max(self._trimmed_before_ms[kind], before_ms)
