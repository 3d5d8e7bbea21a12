"""Carrying out readings on Valkey: everything that many of them ask for at one moment is one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from typing import Any

import msgspec
from msgspec import UNSET, Struct, msgpack
from msgspec.structs import replace

from flowfabric.model.decisions import Key
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.stores.event_questions import LogState
from flowfabric.stores.keyed.entries import CLAIM
from flowfabric.stores.keyed.reads import (
    All,
    Count,
    Log,
    LogBounds,
    Names,
    Originals,
    Range,
    Reading,
    Request,
    Rows,
    Size,
    Whole,
)
from flowfabric.stores.valkey.candidates import Reserved
from flowfabric.stores.valkey.codec import VERSION, WIDE, shape_of, unpacked_event, unpacked_wide
from flowfabric.stores.valkey.connection import Connection
from flowfabric.stores.valkey.keys import Keys, breaks_of, log_field
from flowfabric.stores.valkey.sort_keys import PRIORITY, WIRE_KEY, decode, encode, wire_id_of

#: What the version of a record is that is not there.
ABSENT = b""
_SCANNED_AT_ONCE = 1_000
_LOG_FIELDS = ("last", "trimmed", "trimmed_before_ms", "breaks")


class Seen(Struct, gc=False):
    """A record as it was read, and its version."""

    record: Any
    version: bytes


class RangeCheck(Struct):
    """Entries that something was decided upon."""

    key: bytes
    low: bytes
    high: bytes
    limit: int
    backwards: int
    digest: str


class CountCheck(Struct):
    """A number of entries that something was decided upon."""

    key: bytes
    low: bytes
    high: bytes
    count: int


class _Steps:
    """What one call reads: steps, and the arguments that they take one after the other."""

    def __init__(self) -> None:
        self.steps: list[tuple[str | int, ...]] = []
        self.arguments: list[bytes] = []

    def add(self, step: tuple[str | int, ...], *arguments: bytes) -> None:
        self.steps.append(step)
        self.arguments += arguments


class Reader:
    """Reads for one transaction, or for one question, and remembers what it has seen."""

    def __init__(self, connection: Connection, keys: Keys, store_id: bytes, reserved: Reserved | None = None) -> None:
        self._connection = connection
        self._keys = keys
        self._store_id = store_id
        self._reserved = reserved
        self.seen: dict[tuple[Any, Key], Seen] = {}
        #: What must still be as it was seen when the transaction commits.
        self.strict: set[tuple[Any, Key]] = set()
        self.ranges: list[RangeCheck] = []
        self.counts: list[CountCheck] = []
        #: Whether to read again when somebody else has let go of candidates.
        self.too_early = False
        #: How many calls were made: what a single one brings is of one moment.
        self.calls = 0

    async def carry_out(self, readings: Iterable[Reading[Any]]) -> list[Any]:
        """Run readings side by side; what each ends with."""
        readings = list(readings)
        results: list[Any] = [None] * len(readings)
        waiting: list[tuple[int, Reading[Any], Any]] = []

        def go_on(place: int, reading: Reading[Any], answer: Any) -> None:
            try:
                waiting.append((place, reading, reading.send(answer)))
            except StopIteration as stop:
                results[place] = stop.value

        for place, reading in enumerate(readings):
            go_on(place, reading, None)
        while waiting:
            now, waiting = waiting, []
            asked = [request for _, _, each in now for request in (each if type(each) is list else [each])]
            answers = iter(await self._ask(asked))
            for place, reading, each in now:
                if type(each) is list:
                    go_on(place, reading, [next(answers) for _ in each])
                else:
                    go_on(place, reading, next(answers))
        return results

    async def _ask(self, requests: Sequence[Request]) -> list[Any]:
        steps = _Steps()
        pending: list[tuple[Callable[..., Any], int, int]] = []
        for request in requests:
            first = len(steps.steps)
            if type(request) is All:
                pending.append((await self._all(request), first, 0))
                continue
            answer = _PREPARED[type(request)](self, request, steps)
            pending.append((answer, first, len(steps.steps) - first))
        found: list[Any] = []
        if steps.steps:
            found = await self._called(steps)
        return [answer(*found[first : first + count]) for answer, first, count in pending]

    async def _called(self, steps: _Steps) -> list[Any]:
        self.calls += 1
        arguments = [msgpack.encode(steps.steps), self._store_id, *steps.arguments]
        found: list[Any] = await self._connection.call("read", [self._keys.meta], arguments, read_only=True)
        return found

    async def ask_nothing(self) -> None:
        """Fail if the server does not answer, or has not the data of the store any more."""
        await self._called(_Steps())

    # -- records -------------------------------------------------------------------------------------------------

    def _see(self, kind: Any, key: Key, value: bytes | None) -> Seen:
        """Remember a record, unless it was seen before: what was seen first is what the commit checks."""
        known = self.seen.get((kind, key))
        if known is None:
            known = Seen(None, ABSENT)
            if value is not None:
                try:
                    known = Seen(shape_of(kind).unpacked(key, value), value[:VERSION])
                except (msgspec.DecodeError, TypeError, ValueError, IndexError) as error:
                    raise Validation(
                        ValidationKind.CORRUPTION, f"{kind.__name__} {key}: its value cannot be read: {error}"
                    ) from error
            self.seen[(kind, key)] = known
        return known

    def _rows(self, request: Rows, steps: _Steps) -> Callable[..., Any]:
        kind, keys = request.kind, request.keys
        with_attempts = kind is Execution and not request.alone
        if not request.loose:
            self.strict.update((kind, key) for key in keys)
        missing = [key for key in dict.fromkeys(keys) if (kind, key) not in self.seen]
        if missing:
            shape = shape_of(kind)
            fields = [shape.field(key) for key in missing]
            if with_attempts:
                steps.add(("executions", len(fields)), self._keys.rows(Execution), self._keys.rows(Attempt), *fields)
            else:
                steps.add(("rows", len(fields)), self._keys.rows(kind), *fields)

        def answer(found: Any = None) -> list[Any]:
            if with_attempts and found is not None:
                self._see_executions(missing, found)
            elif found is not None:
                for key, value in zip(missing, found, strict=True):
                    self._see(kind, key, value)
            return [self.seen[(kind, key)].record for key in keys]

        return answer

    def _see_executions(self, ids: Sequence[str], found: Any) -> None:
        """Executions as the server sends them: all values, then all attempts of those that are there."""
        values, attempts = found
        place = 0
        for execution_id, value in zip(ids, values, strict=True):
            self._see(Execution, execution_id, value)
            if value is not None:
                # As many attempts came as this value says, even if an earlier one was seen first.
                current = int.from_bytes(value[VERSION : VERSION + 4], "big")
                for index in range(current + 1):
                    self._see(Attempt, (execution_id, index), attempts[place])
                    place += 1

    def _whole(self, request: Whole, steps: _Steps) -> Callable[..., Any]:
        ids, fields = request.execution_ids, request.fields
        rows = self._rows(Rows(Execution, ids, request.loose), steps)
        shape = shape_of(Execution)
        apart = [field for field in fields if field in WIDE[Execution]]
        empty = dict.fromkeys(field for field in fields if field not in WIDE[Execution])
        keys = [self._keys.wide(Execution, field) for field in apart]
        steps.add(("wide", len(keys), len(ids)), *keys, *(shape.field(each) for each in ids))

        def answer(*found: Any) -> list[Any]:
            *of_rows, columns = found
            records: list[Execution | None] = []
            for place, record in enumerate(rows(*of_rows)):
                if record is None:
                    records.append(None)
                    continue
                whole = {field: None for field in empty if getattr(record, field) is UNSET}
                for field, column in zip(apart, columns, strict=True):
                    whole[field] = unpacked_wide(field, column[place])
                records.append(replace(record, **whole))
            return records

        return answer

    def _originals(self, request: Originals, steps: _Steps) -> Callable[..., Any]:
        # What is dropped without having been looked at is read now.
        return self._rows(Rows(request.kind, request.keys, True), steps)

    async def _all(self, request: All) -> Callable[..., Any]:
        """Every record of a kind, page by page: not of one moment, and nothing that a commit could check."""
        if self._reserved is not None:
            raise LookupError(f"no index finds these records of kind {request.kind.__name__}: add one to GROUPS")
        shape = shape_of(request.kind)
        found: dict[Key, Any] = {}
        cursor, server = b"0", self._connection.identity
        while True:
            steps = _Steps()
            steps.add(("scan", _SCANNED_AT_ONCE), self._keys.rows(request.kind), cursor)
            [(cursor, values)] = await self._called(steps)
            if self._connection.identity != server:
                # The place where one server's page ends means nothing to another.
                found, cursor, server = {}, b"0", self._connection.identity
                continue
            for place in range(0, len(values), 2):
                key = shape.key(values[place])
                found[key] = self._see(request.kind, key, values[place + 1]).record
            if cursor == b"0":
                break
            await asyncio.sleep(0)
        records = [found[key] for key in sorted(found) if found[key] is not None]
        return lambda: records

    # -- indexes -------------------------------------------------------------------------------------------------

    def _range(self, request: Range, steps: _Steps) -> Callable[..., Any]:
        key = self._keys.run(request.family, request.name)
        low = b"-" if request.low is None else (b"(" if request.behind else b"[") + encode(request.low)
        high = b"+" if request.high is None else b"(" + encode(request.high)
        reserved = self._reserved if _is_queue(request) else None
        asked = (request.limit + (0 if reserved is None else reserved.margin), int(request.backwards))
        if request.rows is Execution:
            steps.add(("queue", *asked), key, low, high, self._keys.rows(Execution), self._keys.rows(Attempt))
        elif request.rows is not None:
            before_key = len(encode(request.before_key))
            steps.add(("joined", *asked, before_key), key, low, high, self._keys.rows(request.rows))
        else:
            steps.add(("range", *asked), key, low, high)

        def answer(found: Any) -> list[Any]:
            if request.rows is Execution:
                found, rows = found
                ids = [wire_id_of(member[-WIRE_KEY:]) for member in found]
                self._see_executions(ids, rows)
                if reserved is not None:
                    urgency = [member[:PRIORITY] for member in found]
                    own = reserved.take(ids, urgency, request.limit, self, cut=len(ids) == asked[0])
                    if own is None:
                        self.too_early = True
                        return []
                    found = [member for member, each in zip(found, ids, strict=True) if each in own]
            elif request.rows is not None:
                found, rows = found
                shape = shape_of(request.rows)
                for member, value in zip(found, rows, strict=True):
                    self._see(request.rows, shape.key(member[before_key:]), value)
            if not request.loose:
                self.ranges.append(
                    RangeCheck(key, low, high, *asked, sha1(b"".join(found), usedforsecurity=False).hexdigest())
                )
            return [decode(member) for member in found]

        return answer

    def _count(self, request: Count, steps: _Steps) -> Callable[..., Any]:
        key = self._keys.run(request.family, request.name)
        low = b"-" if request.low is None else b"[" + encode(request.low)
        high = b"+" if request.high is None else b"(" + encode(request.high)
        steps.add(("count",), key, low, high)

        def answer(found: int) -> int:
            if not request.loose:
                self.counts.append(CountCheck(key, low, high, found))
            return found

        return answer

    def _names(self, request: Names, steps: _Steps) -> Callable[..., Any]:
        steps.add(("names",), self._keys.names(request.family))
        return lambda found: [decode(name)[0] for name in found]

    def _size(self, request: Size, steps: _Steps) -> Callable[..., Any]:
        steps.add(("size",), self._keys.rows(request.kind))
        return lambda found: found

    # -- events --------------------------------------------------------------------------------------------------

    def _log(self, request: Log, steps: _Steps) -> Callable[..., Any]:
        # Events are numbered from 1: nothing stands at 0, and a bound may not be below it.
        steps.add(("log", request.limit), self._keys.log(request.kind), b"(%d-0" % max(request.after, 0))
        return lambda found: [
            (int(number.partition(b"-")[0]), unpacked_event(request.kind, values[1])) for number, values in found
        ]

    def _bounds(self, request: LogBounds, steps: _Steps) -> Callable[..., Any]:
        kind = request.kind
        fields = [log_field(kind, each) for each in _LOG_FIELDS]
        steps.add(("bounds",), self._keys.log(kind), self._keys.meta, *fields)

        def answer(found: Any) -> LogState:
            last, trimmed, before = (int(value or 0) for value in found[0][:3])
            top = int(found[1][0][0].partition(b"-")[0]) if found[1] else 0
            return LogState(trimmed, last, before, top, breaks_of(found[0][3]))

        return answer


def _is_queue(request: Range) -> bool:
    return request.loose and type(request.family) is tuple and request.family[0] == CLAIM


_PREPARED: dict[Any, Callable[[Reader, Any, _Steps], Callable[..., Any]]] = {
    Rows: Reader._rows,
    Whole: Reader._whole,
    Originals: Reader._originals,
    Range: Reader._range,
    Count: Reader._count,
    Names: Reader._names,
    Size: Reader._size,
    Log: Reader._log,
    LogBounds: Reader._bounds,
}
