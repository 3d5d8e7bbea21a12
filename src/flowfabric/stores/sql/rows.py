"""Rows to records and back, for every SQL store. A dialect says how a column type is read and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any

from msgspec import UNSET, Struct

from flowfabric.model.decisions import BLOCKED, NAMING
from flowfabric.model.operations.access import AuditEntry
from flowfabric.model.records.executions import EXECUTION_WIDE_FIELDS, Attempt, Execution
from flowfabric.model.records.streams import StreamHead
from flowfabric.model.states import (
    ENDED_PHASES,
    LIVE_WAITPOINTS,
    ROOM_BLOCKS,
    TAKING_CHILDREN_ALONG,
    WAITING_PHASES,
)
from flowfabric.stores.sql.schema import TABLES, is_wire_keyed
from flowfabric.stores.tables.executions import ATTEMPT, EXECUTION
from flowfabric.stores.tables.shape import Column, Table

#: The phases that wait for a worker, as a list of SQL literals.
WAITING_LIST = ", ".join(f"'{phase}'" for phase in sorted(WAITING_PHASES))
#: The phases that an execution ends in, likewise.
ENDED_LIST = ", ".join(f"'{phase}'" for phase in sorted(ENDED_PHASES))

#: The waitpoints that may still be answered, and the ends that take children along.
LIVE_WAITPOINT_LIST = ", ".join(f"'{state}'" for state in sorted(LIVE_WAITPOINTS))
TAKING_ALONG_LIST = ", ".join(f"'{state}'" for state in sorted(TAKING_CHILDREN_ALONG))
#: The states that end when a budget or a quota has room.
WAITING_FOR_ROOM = ", ".join(f"'{state}'" for state in sorted(ROOM_BLOCKS))
#: What follows the select of executions for each ``Listed``: ``?1`` is the budget's or quota's id, ``?2`` the limit.
LISTED = {
    BLOCKED: f"WHERE e.blocked_by = ?1 AND e.eligibility_state IN ({WAITING_FOR_ROOM}) "
    "ORDER BY e.priority DESC, e.fair_rank, e.created_at_ms, e.execution_id LIMIT ?2",
    NAMING: "WHERE e.budget_ids IS NOT NULL AND e.terminal_at_ms IS NULL "
    f"AND ',' || e.budget_ids || ',' LIKE '%,' || ?1 || ',%' AND e.lifecycle_phase IN ({WAITING_LIST}) LIMIT ?2",
}
#: How many executions hold a slot of a quota.
SLOTS = "SELECT count(*) FROM ff_exec_core WHERE quota_policy_id = ?1 AND admitted_at_ms > 0"
_WINDOW = "FROM ff_quota_window WHERE partition_key = ?1 AND quota_policy_id = ?2 AND dimension = ?3"
#: The oldest admission that a window holds and the newest there is: times, the lowest number of the one and the highest
#: of the other. Several may have the same time.
RECENT = f"""SELECT first, last, (SELECT min(number) {_WINDOW} AND admitted_at_ms = first),
(SELECT max(number) {_WINDOW} AND admitted_at_ms = last) FROM (SELECT
(SELECT admitted_at_ms {_WINDOW} AND admitted_at_ms > ?4 ORDER BY admitted_at_ms LIMIT 1) AS first,
(SELECT admitted_at_ms {_WINDOW} ORDER BY admitted_at_ms DESC LIMIT 1) AS last) AS ends"""
#: How many admissions a window holds, counted one by one.
RECENT_ONE_BY_ONE = f"SELECT count(*) {_WINDOW} AND admitted_at_ms > ?4"


def recent_of(ends: Iterable[Any], counted: int | None) -> tuple[int, int | None, tuple[int, int]]:
    """What ``put_recent`` is told, from a row of ``RECENT``: how many, the time of the oldest, time and number of the
    newest. ``counted`` is how many they are if they were counted one by one."""
    first, last, lowest, highest = ends
    if counted is None:
        counted = 0 if first is None else highest - lowest + 1
    return counted, first, (last or 0, highest or 0)


class Dialect(Struct, frozen=True):
    """How one SQL store spells things."""

    #: Column type -> expression that reads it; ``{}`` is the column.
    read: Mapping[str, str]
    #: Column type -> function from the driver's value to the record's; types without one are taken as they are.
    decode: Mapping[str, Callable[[Any], Any]]
    #: Column type -> function from the record's value to the driver's.
    encode: Mapping[str, Callable[[Any], Any]]
    #: ``field -> expression`` for columns that fall back on ``raw_fields`` while they are empty.
    derived: Mapping[str, str]
    #: Expression for the row version, empty if the store has none.
    version: str = ""
    #: Expression for the snapshot a statement sees, for stores whose locked rows may be newer than it.
    snapshot: str = ""
    #: What follows a text so that it sorts by its bytes.
    bytewise: str = ""
    #: The names in a column of that type as rows of a table ``n(value)``; ``{}`` is the column.
    each_name: str = ""
    #: Whether a text, whatever the case of its ASCII letters, has another as a part; ``{}`` are both, the other one in
    #: lower case.
    contains: str = "instr(lower({}), {}) > 0"
    #: The last digits of a UUID; ``{}`` are its column and how many.
    uuid_end: str = "lower(substr(hex({}), -{}))"
    #: The tags of ``e`` as JSON.
    tags: str = ""

    def reading(self, column: Column, alias: str) -> str:
        """The expression that reads a column."""
        name = f"{alias}.{column.name}"
        derived = self.derived.get(column.field) if alias == "e" else None
        return derived if derived is not None else self.read.get(column.type, "{}").format(name)


#: Fields of ``Execution`` in the order of the narrow select.
NARROW = tuple(column for column in EXECUTION.columns if column.field not in EXECUTION_WIDE_FIELDS)
WIDE = tuple(column for column in EXECUTION.columns if column.field in EXECUTION_WIDE_FIELDS)
#: Fields of ``Attempt`` that the execution's select brings along.
JOINED = tuple(
    column for column in ATTEMPT.columns if column.field not in ("partition", "uuid", "last_instance_id", "policy")
)


def execution_select(dialect: Dialect, wide: bool = False) -> str:
    """Executions with their current attempt: the one select every rule starts from."""
    columns = [dialect.reading(column, "e") for column in NARROW]
    columns.append(
        "CASE WHEN e.attempt_index > 0 THEN (SELECT max(x.lease_epoch) FROM ff_attempt x WHERE "
        "x.partition_key = e.partition_key AND x.execution_id = e.execution_id "
        "AND x.attempt_index < e.attempt_index) END"
    )
    columns += [dialect.reading(column, "a") for column in JOINED]
    if dialect.version:
        columns += [dialect.version.format("e"), dialect.version.format("a"), dialect.snapshot]
    if wide:
        columns += [dialect.reading(column, "e") for column in WIDE]
    return (
        f"SELECT {', '.join(columns)} FROM ff_exec_core e LEFT JOIN ff_attempt a ON a.partition_key = e.partition_key "
        "AND a.execution_id = e.execution_id AND a.attempt_index = e.attempt_index"
    )


class ExecutionRows:
    """Turns rows of ``execution_select`` into records."""

    def __init__(self, dialect: Dialect) -> None:
        self._uuid = dialect.decode.get("uuid")
        self._requirement = dialect.decode["requirement"]
        self._narrow_end = len(NARROW)
        self._parent = next(place for place, column in enumerate(NARROW) if column.field == "parent")
        self._attempt_start = self._narrow_end + 1
        self._attempt_end = self._attempt_start + len(JOINED)
        self._versions = 3 if dialect.version else 0
        #: Where the statement's snapshot stands in a row.
        self.snapshot = self._attempt_end + 2
        #: How many columns a narrow row has.
        self.width = self._attempt_end + self._versions

    def read(self, row: Any) -> tuple[Execution, Attempt | None, Any, Any]:
        """``(execution, current attempt, execution's version, attempt's version)``."""
        decode = self._uuid
        partition, uuid, flow_id, parent = row[0], row[1], row[2], row[self._parent]
        if decode is not None:
            uuid = decode(uuid)
            flow_id = None if flow_id is None else decode(flow_id)
            parent = None if parent is None else decode(parent)
        wire = f"{{fp:{partition}}}:{uuid}"
        execution = Execution(
            wire,
            partition,
            uuid,
            flow_id,
            row[3],
            self._requirement(row[4]),
            *row[5 : self._parent],
            parent,
            *row[self._parent + 1 : self._narrow_end],
            row[self._narrow_end] or 0,  # type: ignore[call-arg]
        )
        start, end = self._attempt_start, self._attempt_end
        attempt = None if row[start] is None else Attempt(wire, partition, uuid, *row[start:end])
        if self._versions:
            return execution, attempt, row[end], row[end + 1]
        return execution, attempt, None, None

    def read_wide(self, row: Any) -> tuple[Execution, Attempt | None, Any, Any]:
        """As ``read``, for a wide select."""
        found = self.read(row)
        start = self._attempt_end + self._versions
        for column, value in zip(WIDE, row[start:], strict=True):
            setattr(found[0], column.field, value)
        return found


class KindRows:
    """Select list and decoder of one record kind."""

    def __init__(self, kind: Any, dialect: Dialect, alias: str = "t") -> None:
        self.table = TABLES[kind]
        self.kind = kind
        self._wire = is_wire_keyed(kind)
        self._columns = tuple(
            column for column in self.table.columns if not (kind is Attempt and column.field == "policy")
        )
        self._decoders = tuple(dialect.decode.get(column.type) for column in self._columns)
        self.select_list = ", ".join(dialect.reading(column, alias) for column in self._columns)
        if dialect.version:
            self.select_list += ", " + dialect.version.format(alias)
        self.width = len(self._columns)

    def read(self, row: Any) -> Any:
        """The record of a row."""
        values = [
            value if decode is None or value is None else decode(value)
            for value, decode in zip(row, self._decoders, strict=False)
        ]
        if self._wire:
            return self.kind(f"{{fp:{values[0]}}}:{values[1]}", *values)
        return self.kind(*values)


STREAM_HEAD_COLUMNS = (
    "m.ema_rate_hz, m.last_append_ts_ms, m.maxlen_applied_last, "
    "coalesce(m.frame_count, (SELECT count(*) FROM ff_stream_frame f WHERE f.partition_key = k.p "
    "AND f.execution_id = k.u AND f.attempt_index = k.i)), "
    "coalesce(m.last_ts_ms, (SELECT max(f.ts_ms) FROM ff_stream_frame f WHERE f.partition_key = k.p "
    "AND f.execution_id = k.u AND f.attempt_index = k.i), 0), "
    "coalesce(m.last_seq, (SELECT f.seq FROM ff_stream_frame f WHERE f.partition_key = k.p AND f.execution_id = k.u "
    "AND f.attempt_index = k.i ORDER BY f.ts_ms DESC, f.seq DESC LIMIT 1), 0), m.partition_key IS NOT NULL, "
    "m.last_numbered"
)


def stream_head(execution_id: str, partition: int, uuid: str, attempt_index: int, row: Any) -> StreamHead | None:
    """The head of a stream from ``STREAM_HEAD_COLUMNS``; ``None`` for a stream nobody has written to."""
    ema, last_append, maxlen, count, last_ts, last_seq, stored, numbered = row
    if not stored and not count:
        return None
    return StreamHead(
        execution_id,
        partition,
        uuid,
        attempt_index,
        ema or 0.0,
        last_append or last_ts,
        maxlen or 0,
        count,
        last_ts,
        last_seq,
        numbered,
        bool(stored),
    )


def stored_fields(table: Table, fields: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns behind the fields that changed; fields that are worked out on reading have none."""
    return tuple(column for field in fields if (column := table.column(field)) is not None)


_OPTIONAL: Mapping[Any, tuple[str, ...]] = {
    Execution: EXECUTION_WIDE_FIELDS,
    Attempt: ("last_instance_id", "policy"),
    # The table numbers acts by itself.
    AuditEntry: ("number",),
}


@cache
def _set_columns(kind: Any, unset: tuple[bool, ...]) -> tuple[Column, ...]:
    left_out = {field for field, is_unset in zip(_OPTIONAL[kind], unset, strict=True) if is_unset}
    return tuple(column for column in TABLES[kind].columns if column.field not in left_out)


@cache
def _getter(fields: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(fields) == 1:
        return lambda record: (getattr(record, fields[0]),)
    return attrgetter(*fields)


def insert_groups(kind: Any, records: list[Any]) -> dict[tuple[Column, ...], list[Any]]:
    """Records to insert, by the columns they fill: those whose field is set."""
    optional = _OPTIONAL.get(kind)
    if optional is None:
        return {TABLES[kind].columns: records}
    groups: dict[tuple[bool, ...], list[Any]] = {}
    values_of = _getter(optional)
    for record in records:
        unset = tuple([value is UNSET for value in values_of(record)])
        group = groups.get(unset)
        if group is None:
            groups[unset] = [record]
        else:
            group.append(record)
    return {_set_columns(kind, unset): group for unset, group in groups.items()}
