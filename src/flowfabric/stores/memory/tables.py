"""The records themselves with their indexes, and the outboxes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cache
from operator import itemgetter
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from flowfabric.model.changes import Key
from flowfabric.model.events import CompletionEvent, Event, InstanceTagEvent
from flowfabric.model.records import Attempt, Execution, FrameRow, Record
from flowfabric.stores.memory.indexes import GROUPS, Indexes, entries_of, group_family, values_of
from flowfabric.stores.memory.runs import SortedRun
from flowfabric.stores.questions import EventRows, LogState, ReadEvents
from flowfabric.stores.schema import OUTBOXES, TABLES, split_wire

_RecordType = TypeVar("_RecordType", bound=Record)
_EventType = TypeVar("_EventType", bound=Event)


def wire_id(partition: int, uuid: str) -> str:
    """The execution id of a partition and a bare UUID."""
    return f"{{fp:{partition}}}:{uuid}"


@cache
def _group_for(kind: Any, fields: tuple[str, ...]) -> tuple[str, ...] | None:
    """The most telling indexed equality that a select on these fields can use."""
    usable = [group for group in GROUPS.get(kind, ()) if set(group) <= set(fields)]
    return max(usable, key=len, default=None)


class Tables:
    """All records by kind and key. A record in here is never changed, only replaced, so it may be handed out."""

    def __init__(self) -> None:
        self._records: dict[Any, dict[Key, Any]] = {kind: {} for kind in TABLES}
        self.indexes = Indexes()
        #: When members ended whose announcements wait for dispatch, by partition and UUID.
        self.undispatched: dict[tuple[int, str], int] = {}

    def all(self, kind: type[_RecordType]) -> Mapping[Key, _RecordType]:
        """Every record of a kind by key."""
        return self._records[kind]

    def find(self, kind: type[_RecordType], key: Key) -> _RecordType | None:
        """The record, or ``None`` if there is none."""
        return cast("_RecordType | None", self._records[kind].get(key))

    def store(self, record: Record) -> None:
        """Insert or replace a record. It belongs to the tables from here on."""
        records, key = self._records[type(record)], record.key
        before = records.get(key)
        self.indexes.change(() if before is None else entries_of(before), entries_of(record))
        records[key] = record

    def delete(self, kind: Any, key: Key) -> None:
        """Remove a record if it is there."""
        record = self._records[kind].pop(key, None)
        if record is not None:
            self.indexes.change(entries_of(record), ())

    # -- asking --------------------------------------------------------------------------------------------------

    def select(self, kind: type[_RecordType], **equal: Any) -> list[_RecordType]:
        """All records of a kind with these field values, in key order."""
        return list(self.matching(kind, tuple(equal), tuple(equal.values())))

    def matching(
        self, kind: type[_RecordType], fields: tuple[str, ...], values: tuple[Any, ...]
    ) -> Iterator[_RecordType]:
        """As ``select``, one by one. The tables must not change while they are taken."""
        records = self._records[kind]
        group = _group_for(cast("Any", kind), fields)
        if group is None or None in values:
            candidates = map(records.__getitem__, sorted(records))
        else:
            wanted = dict(zip(fields, values, strict=True))
            name = tuple(wanted[field] for field in group)
            run = self.indexes.run(group_family(kind, group), name)
            candidates = map(records.__getitem__, run.between())
        found = values_of(fields)
        return (record for record in candidates if found(record) == values)

    def execution(self, execution_id: str) -> Execution | None:
        """An execution as rules see it: with the epoch floor its earlier attempts set."""
        execution = self.find(Execution, execution_id)
        if execution is None or execution.attempt_index == 0:
            return execution
        attempts = self.matching(Attempt, ("partition", "uuid"), (execution.partition, execution.uuid))
        epochs = [each.lease_epoch for each in attempts if each.attempt_index < execution.attempt_index]
        floor = max(epochs, default=0)
        return replace(execution, epoch_floor=floor) if floor else execution

    def current_attempt(self, execution: Execution) -> Attempt | None:
        """The attempt an execution is at, if it has begun."""
        return self.find(Attempt, (execution.execution_id, execution.attempt_index))

    def frames_of(self, execution_id: str) -> SortedRun:
        """The keys of all frames of an execution, stream after stream, each from its oldest to its newest."""
        return self.indexes.run(group_family(FrameRow, ("partition", "uuid")), split_wire(execution_id))

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

    def mark_dispatched(self, partition: int, uuid: str, at_ms: int) -> None:
        """Completion events of an execution that wait for dispatch wait no longer."""
        rows = self._rows[CompletionEvent]
        for position, (number, event) in enumerate(rows):
            if event.uuid == uuid and event.partition == partition and event.dispatched_at_ms is None:
                rows[position] = (number, replace(event, dispatched_at_ms=at_ms))

    def bounds(self, kind: Any) -> tuple[int, int]:
        """Up to which number events of a kind were deleted, and the last number given."""
        return self._trimmed[kind], self._last[kind]

    def log(self, kind: Any) -> LogState:
        """How far events of a kind were deleted, and which numbers there are."""
        rows = self._rows[kind]
        return LogState(*self.bounds(kind), self._trimmed_before_ms[kind], rows[-1][0] if rows else 0)

    def between(self, question: ReadEvents) -> EventRows:
        """The first events that match, from one number to another."""
        rows = self._rows[question.kind]
        first = bisect_right(rows, question.after, key=itemgetter(0))
        found = []
        for place in range(first, len(rows)):
            event_id, event = rows[place]
            if question.through is not None and event_id > question.through:
                break
            if _matches(event, question):
                found.append((event_id, event))
                if len(found) == question.limit:
                    break
        top = rows[-1][0] if rows else 0
        return EventRows(self._trimmed[question.kind], top, found)

    def trim(self, kind: Any, before_ms: int, limit: int) -> int:
        """Delete the first events older than a time and return how many went. What waits for dispatch stays."""
        rows = self._rows[kind]
        old = (row for row in rows if row[1].occurred_at_ms < before_ms and _is_done(row[1]))
        gone = {row[0] for row, _ in zip(old, range(limit), strict=False)}
        if gone:
            self._rows[kind] = [row for row in rows if row[0] not in gone]
            self._trimmed[kind] = max(self._trimmed[kind], *gone)
            self._trimmed_before_ms[kind] = max(self._trimmed_before_ms[kind], before_ms)
        return len(gone)


def _matches(event: Any, question: ReadEvents) -> bool:
    tag = question.instance_tag
    return (question.namespace is None or event.namespace == question.namespace) and (
        tag is None or (event.tag if type(event) is InstanceTagEvent else event.instance_tag) == tag
    )


def _is_done(event: Any) -> bool:
    return getattr(event, "dispatched_at_ms", 0) is not None
