"""Writing a batch to PostgreSQL as one statement.

All changes of a batch become the parts of a single ``WITH`` statement: one part per table and set of changed columns,
one per outbox. Every update names the row version it was decided upon; if any row has moved, the whole statement fails
and nothing is written. A batch decided without reading is thus one round trip, commit included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

from flowfabric.model.decisions import Key, MarkDispatched, Writes
from flowfabric.model.partitions import worker_registry_partition
from flowfabric.model.records.executions import Worker, WorkerEvent
from flowfabric.stores.postgres.codec import SENT, arrived, encoded
from flowfabric.stores.protocol import Conflict, Versions
from flowfabric.stores.sql.rows import insert_groups, stored_fields
from flowfabric.stores.sql.schema import OUTBOXES, TABLES, key_values
from flowfabric.stores.tables.shape import SMALL, Column, Table

#: Fields whose values are usually the same for all rows of a part; they travel once instead of once per row.
_UNIFORM = frozenset(
    {
        "partition",
        "flow_id",
        "lane_id",
        "priority",
        "lease_expires_at_ms",
        "attempt_index",
        "lifecycle_phase",
        "ownership_state",
        "eligibility_state",
        "public_state",
        "attempt_state",
        "blocking_reason",
        "created_at_ms",
        "terminal_at_ms",
        "deadline_at_ms",
        "lease_reclaim_count",
        "delay_until_ms",
        "policy",
        "namespace",
        "instance_tag",
        "last_mutation_at_ms",
        "suspended_at_ms",
        "total_attempt_count",
        "retry_count",
        "budget_ids",
        "quota_policy_id",
        "fair_rank",
        "fair_key",
        "blocked_by",
        "admitted_at_ms",
        "guarded",
        "waiting_since_ms",
        "reservation_count",
        "terminal_outcome",
        "required_capabilities",
        "worker_id",
        "started_at_ms",
        "outcome",
        "attempt_type",
        "attempt_timeout_at_ms",
        "retry_at_ms",
        "renewed_at_ms",
        "event_type",
        "occurred_at_ms",
        "dispatched_at_ms",
        "revoked_by",
    }
)
_PARTITION = Column("partition", "partition_key", SMALL)


class Statement:
    """A ``WITH`` statement under construction: texts by shape, arguments in order."""

    _texts: ClassVar[dict[tuple[Any, ...], str]] = {}

    def __init__(self) -> None:
        self._shape: list[Any] = []
        self._arguments: list[Any] = []
        self._counted = 0
        self._expected: list[int] = []

    @property
    def empty(self) -> bool:
        return not self._shape

    def _columns(self, columns: tuple[Column, ...], records: list[Any], *, spread: bool = False) -> tuple[str, ...]:
        """Add the values of some columns: once if they are all alike, else as an array. Returns how each travels."""
        ways = []
        count = len(records)
        arguments = self._arguments
        for column, values in zip(columns, _by_column(columns, records), strict=True):
            first = values[0]
            if count == 1 or (not spread and column.field in _UNIFORM and values.count(first) == count):
                ways.append("s")
                arguments.append(encoded(column.type, (first,))[0])
            else:
                ways.append("a")
                arguments.append(encoded(column.type, values))
        return tuple(ways)

    def update(self, table: Table, columns: tuple[Column, ...], records: list[Any], versions: list[int]) -> None:
        """Change some columns of some rows, if each still has its version."""
        keys = stored_fields(table, table.key)
        count = len(records)
        if count > 1:
            key = _getter(keys)
            pairs = sorted(zip(records, versions, strict=True), key=lambda pair: key(pair[0]))
            records = [record for record, _ in pairs]
            versions = [version for _, version in pairs]
        # Whole keys travel as arrays, alike or not: a key column sent once would tempt the planner to walk the table
        # by it and compare every row with the array.
        key_ways = self._columns(keys, records, spread=True)
        self._arguments.append(versions if count > 1 else versions[0])
        ways = self._columns(columns, records)
        self._shape.append(("update", table.name, keys, key_ways, columns, ways, count == 1))
        self._expected.append(count)

    def insert(self, table: Table, columns: tuple[Column, ...], records: list[Any]) -> None:
        """Add rows."""
        ways = self._columns(columns, records)
        if "a" not in ways and len(records) > 1:
            raise AssertionError("rows that differ in nothing")
        self._shape.append(("insert", table.name, columns, ways, table.repeatable))

    def delete(self, table: Table, records: list[Any]) -> None:
        """Remove rows; one that is gone already is fine."""
        keys = stored_fields(table, table.key)
        for column in keys:
            self._arguments.append(encoded(column.type, [getattr(record, column.field) for record in records]))
        self._shape.append(("delete", table.name, keys))

    def check(self, table: Table, keys: list[Key], versions: list[int], *, locked: bool = False) -> None:
        """Rows that were decided upon but not written must still have their versions; with ``locked``, until the
        commit, and nobody may be about to change them."""
        columns = stored_fields(table, table.key)
        for position in range(len(columns)):
            self._arguments.append([key_values(table.kind, key)[position] for key in keys])
        self._arguments.append(versions)
        self._shape.append(("check", table.name, columns, locked))
        self._expected.append(len(keys))

    def mark_dispatched(self, marks: list[MarkDispatched]) -> None:
        """Completion events of some executions that wait for dispatch wait no longer."""
        marks = list({(mark.partition, mark.uuid): mark for mark in marks}.values())
        self._arguments += [marks[0].at_ms, [mark.partition for mark in marks], [mark.uuid for mark in marks]]
        self._shape.append(("dispatched",))

    @property
    def rows(self) -> int:
        """How many rows are looked up and changed."""
        return sum(self._expected)

    def compiled(self) -> tuple[str, list[Any]]:
        """The text and its arguments."""
        shape = tuple(self._shape)
        text = self._texts.get(shape)
        if text is None:
            text = self._texts[shape] = _text(shape)
        return text, [*self._arguments, *self._expected]


@cache
def _getter(columns: tuple[Column, ...]) -> Callable[[Any], Any]:
    return attrgetter(*(column.field for column in columns))


def _by_column(columns: tuple[Column, ...], records: list[Any]) -> list[Sequence[Any]]:
    """The values of each column, in the order of the records."""
    getter = _getter(columns)
    if len(columns) == 1:
        return [[getter(record) for record in records]]
    return list(zip(*map(getter, records), strict=True))


#: Columns and how each travels: once ("s") or as an array ("a").
_Sent: TypeAlias = tuple[tuple[Column, ...], tuple[str, ...]]


class _Text:
    """Turns a shape into SQL, numbering parameters in the order the arguments were added."""

    def __init__(self) -> None:
        self._number = 0
        self.counted: list[str] = []

    def mark(self, kind: str, *, array: bool = False) -> str:
        self._number += 1
        return f"${self._number}::{kind}{'[]' if array else ''}"

    def _keys(self, keys: tuple[Column, ...]) -> tuple[list[str], list[str], list[str]]:
        """Arrays of key columns, their names, and the conditions that match them."""
        arrays = [self.mark(SENT[column.type], array=True) for column in keys]
        names = [f"k{n}" for n in range(len(keys))]
        return arrays, names, [f"t.{column.name} = i.k{n}" for n, column in enumerate(keys)]

    def _values(
        self, columns: tuple[Column, ...], ways: tuple[str, ...], arrays: list[str], names: list[str], prefix: str
    ) -> list[str]:
        """Expressions of columns, some travelling once, some as arrays."""
        values = []
        for n, (column, way) in enumerate(zip(columns, ways, strict=True)):
            if way == "s":
                value = self.mark(SENT[column.type])
            else:
                arrays.append(self.mark(SENT[column.type], array=True))
                names.append(f"{prefix}{n}")
                value = f"i.{prefix}{n}"
            values.append(arrived(column.type, value))
        return values

    def part(self, name: str, part: tuple[Any, ...]) -> str:
        match part:
            case ("update", table, keys, key_ways, columns, ways, single):
                self.counted.append(name)
                return self._update(name, table, (keys, key_ways), (columns, ways), single)
            case ("insert", table, columns, ways, repeatable):
                return self._insert(name, table, columns, ways, repeatable)
            case ("delete", table, keys):
                arrays, names, where = self._keys(keys)
                source = f"unnest({', '.join(arrays)}) AS i({', '.join(names)})"
                return f"{name} AS (DELETE FROM {table} t USING {source} WHERE {' AND '.join(where)})"
            case ("dispatched",):
                at, partitions, uuids = (
                    self.mark("bigint"),
                    self.mark("smallint", array=True),
                    self.mark("uuid", array=True),
                )
                return (
                    f"{name} AS (UPDATE ff_completion_event t SET dispatched_at_ms = {at} "
                    f"FROM unnest({partitions}, {uuids}) AS i(k0, k1) WHERE t.partition_key = i.k0 "
                    "AND t.execution_id = i.k1 AND t.dispatched_at_ms IS NULL)"
                )
            case ("check", table, keys, locked):
                self.counted.append(name)
                arrays, names, where = self._keys(keys)
                arrays.append(self.mark("xid", array=True))
                source = f"unnest({', '.join(arrays)}) AS i({', '.join(names)}, version)"
                where.append("t.xmin = i.version")
                # A weaker lock would let changes pass that leave the key alone, which is what all changes do. It is not
                # waited for: the batch is decided again, with locks from the beginning.
                lock = " FOR SHARE OF t NOWAIT" if locked else ""
                return f"{name} AS (SELECT 1 FROM {source} JOIN {table} t ON {' AND '.join(where)}{lock})"
            case _:
                raise AssertionError(part)

    def _insert(
        self, name: str, table: str, columns: tuple[Column, ...], ways: tuple[str, ...], repeatable: bool
    ) -> str:
        arrays: list[str] = []
        names: list[str] = []
        values = ", ".join(self._values(columns, ways, arrays, names, "c"))
        source = f" FROM unnest({', '.join(arrays)}) AS i({', '.join(names)})" if arrays else ""
        conflict = " ON CONFLICT DO NOTHING" if repeatable else ""
        into = ", ".join(column.name for column in columns)
        return f"{name} AS (INSERT INTO {table} ({into}) SELECT {values}{source}{conflict})"

    def _update(self, name: str, table: str, keys: _Sent, columns: _Sent, single: bool) -> str:
        arrays: list[str] = []
        names: list[str] = []
        where = [
            f"t.{column.name} = {value}"
            for column, value in zip(keys[0], self._values(*keys, arrays, names, "k"), strict=True)
        ]
        if single:
            where.append(f"t.xmin = {self.mark('xid')}")
        else:
            arrays.append(self.mark("xid", array=True))
            names.append("version")
            where.append("t.xmin = i.version")
        values = self._values(*columns, arrays, names, "c")
        source = f" FROM unnest({', '.join(arrays)}) AS i({', '.join(names)})" if arrays else ""
        sets = ", ".join(f"{column.name} = {value}" for column, value in zip(columns[0], values, strict=True))
        return f"{name} AS (UPDATE {table} t SET {sets}{source} WHERE {' AND '.join(where)} RETURNING 1)"


def _text(shape: tuple[Any, ...]) -> str:
    text = _Text()
    parts = [text.part(f"part{position}", part) for position, part in enumerate(shape)]
    checks = [f"(SELECT count(*) FROM {name}) = {text.mark('bigint')}" for name in text.counted]
    # A row that moved makes the division fail, and with it the statement: nothing of the batch is written.
    guard = f"1 / (CASE WHEN {' AND '.join(checks)} THEN 1 ELSE 0 END)" if checks else "1"
    return (
        f"WITH {', '.join(parts)} SELECT {guard}, pg_current_xact_id()::xid, "
        "(extract(epoch FROM clock_timestamp()) * 1000)::float8"
    )


def statement(
    writes: Writes,
    versions: dict[tuple[Any, Key], int],
    held: Versions,
    unlocked: Sequence[tuple[Any, Key]] = (),
    fenced: Sequence[tuple[Any, Key]] = (),
) -> Statement:
    """The statement that writes a batch. What was read without a lock is checked even if it is not written; what is
    ``fenced`` is held still as well, since a batch changing it may have read what this batch writes before it was
    there."""
    built = Statement()

    def version(kind: Any, key: Key) -> int:
        found = versions.get((kind, key))
        if found is None:
            found = held.version(kind, key)
        if found is None:
            raise Conflict(f"{kind.__name__} {key}: no version to check")
        return found

    _add_checks(built, writes, versions, held, () if writes.empty else unlocked)
    for kind, dropped in writes.drops.items():
        if dropped:
            built.delete(TABLES[kind], list(dropped.values()))
    for kind, puts in writes.puts.items():
        _add_puts(built, kind, puts, writes.records[kind], version)
    if writes.dispatched:
        built.mark_dispatched(writes.dispatched)
    if writes.events:
        families: dict[Any, list[Any]] = {}
        for event in writes.events:
            families.setdefault(type(event), []).append(event)
        for kind, family in families.items():
            built.insert(OUTBOXES[kind], OUTBOXES[kind].columns, family)
    if not writes.empty:
        # Last: a batch that changes several of these rows has locked the execution first.
        _add_locking_checks(built, writes, versions, fenced)
    return built


def _add_checks(
    built: Statement,
    writes: Writes,
    versions: dict[tuple[Any, Key], int],
    held: Versions,
    unlocked: Sequence[tuple[Any, Key]],
) -> None:
    believed: dict[Any, list[tuple[Key, int]]] = {}
    for kind, key in unlocked:
        if not writes.puts.get(kind, {}).get(key):
            believed.setdefault(kind, []).append((key, versions[(kind, key)]))
    for kind, key in writes.checks:
        if (kind, key) not in versions:
            found = held.version(kind, key)
            if found is not None:
                believed.setdefault(kind, []).append((key, found))
            elif held.record(kind, key) is not None:
                raise Conflict(f"{kind.__name__} {key}: no version to check")
    for kind, entries in believed.items():
        built.check(TABLES[kind], [key for key, _ in entries], [found for _, found in entries])


def _add_locking_checks(
    built: Statement, writes: Writes, versions: dict[tuple[Any, Key], int], fenced: Sequence[tuple[Any, Key]]
) -> None:
    for kind, key in fenced:
        if not writes.puts.get(kind, {}).get(key):
            built.check(TABLES[kind], [key], [versions[(kind, key)]], locked=True)


def _add_puts(
    built: Statement, kind: Any, puts: dict[Key, tuple[str, ...] | None], records: dict[Key, Any], version: Any
) -> None:
    groups: dict[tuple[str, ...] | None, list[Key]] = {}
    for key, fields in puts.items():
        group = groups.get(fields)
        if group is None:
            groups[fields] = [key]
        else:
            group.append(key)
    table = TABLES[kind]
    for fields, keys in groups.items():
        group_records = [records[key] for key in keys]
        if fields is None:
            _add_inserts(built, table, kind, group_records)
            continue
        columns = stored_fields(table, fields)
        if columns:
            built.update(table, columns, group_records, [version(kind, key) for key in keys])


class _Placed:
    """A registry row with the partition PostgreSQL keeps beside it."""

    def __init__(self, record: Any) -> None:
        self._record = record
        self.partition = worker_registry_partition(record.worker_instance_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


def _add_inserts(built: Statement, table: Table, kind: Any, records: list[Any]) -> None:
    if kind in (Worker, WorkerEvent):
        built.insert(table, (_PARTITION, *table.columns), [_Placed(record) for record in records])
        return
    for columns, group in insert_groups(kind, records).items():
        built.insert(table, columns, group)
