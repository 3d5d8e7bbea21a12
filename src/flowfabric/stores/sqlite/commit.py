"""Writing a batch to a SQLite connection: one prepared statement per table and set of changed columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from flowfabric.model.decisions import Key, PurgeExecution, Writes
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.streams import StreamHead
from flowfabric.stores.protocol import Conflict
from flowfabric.stores.sql.rows import insert_groups, stored_fields
from flowfabric.stores.sql.schema import (
    DROP_SIGNAL_KEYS,
    EXECUTION_NAMED,
    EXECUTION_SCOPED,
    FLOW_SCOPED,
    OUTBOXES,
    TABLES,
    split_wire,
)
from flowfabric.stores.sqlite.codec import DIALECT, uuid_to_blob
from flowfabric.stores.tables.shape import Column, Table

Params = Callable[[Any], tuple[Any, ...]]
_MARK_DISPATCHED = (
    "UPDATE ff_completion_event SET dispatched_at_ms = ? "
    "WHERE partition_key = ? AND execution_id = ? AND dispatched_at_ms IS NULL"
)


def _params(columns: tuple[Column, ...]) -> Params:
    """A function from a record to the values of these columns."""
    names = [column.field for column in columns]
    getter = attrgetter(*names)
    coded = [
        (index, DIALECT.encode[column.type]) for index, column in enumerate(columns) if column.type in DIALECT.encode
    ]
    if len(names) == 1:
        only = coded[0][1] if coded else None
        if only is None:
            return lambda record: (getter(record),)
        return lambda record: (_encode(only, getter(record)),)
    if not coded:
        return getter

    def params(record: Any) -> tuple[Any, ...]:
        values = list(getter(record))
        for index, encode in coded:
            value = values[index]
            if value is not None:
                values[index] = encode(value)
        return tuple(values)

    return params


def _encode(encoder: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else encoder(value)


def _column_name(column: Column) -> str:
    return "requirement_key" if column.type == "requirement" else column.name


@cache
def _update(kind: Any, fields: tuple[str, ...], nulls: tuple[str, ...]) -> tuple[str, Params] | None:
    table = TABLES[kind]
    columns = stored_fields(table, fields)
    if not columns:
        return None
    keys = stored_fields(table, table.key)
    sets = ", ".join(f"{_column_name(each)} = {'NULL' if each.field in nulls else '?'}" for each in columns)
    where = " AND ".join(f"{column.name} = ?" for column in keys)
    bound = tuple(column for column in columns if column.field not in nulls)
    return f"UPDATE {table.name} SET {sets} WHERE {where}", _params(bound + keys)


@cache
def _insert(table: Table, columns: tuple[Column, ...]) -> tuple[str, Params]:
    names = ", ".join(_column_name(column) for column in columns)
    marks = ", ".join("?" * len(columns))
    verb = "INSERT OR IGNORE" if table.repeatable else "INSERT"
    return f"{verb} INTO {table.name} ({names}) VALUES ({marks})", _params(columns)


def _nulls(fields: Iterable[str], records: list[Any]) -> tuple[str, ...]:
    """Fields that are empty in every record. Binding NULL is the driver's slowest case, so the text says it once."""
    first = records[0]
    found = [field for field in fields if getattr(first, field, None) is None]
    if len(records) > 1:
        found = [field for field in found if not any(getattr(each, field, None) is not None for each in records)]
    return tuple(found)


@cache
def _without(columns: tuple[Column, ...], nulls: tuple[str, ...]) -> tuple[Column, ...]:
    return tuple(column for column in columns if column.field not in nulls)


def _insert_rows(connection: sqlite3.Connection, table: Table, columns: tuple[Column, ...], records: list[Any]) -> None:
    """Add rows; columns that would all be empty are left to their default, which is NULL wherever NULL is allowed."""
    nulls = _nulls([column.field for column in columns], records)
    sql, params = _insert(table, _without(columns, nulls) if nulls else columns)
    _run(connection, sql, [params(record) for record in records])


@cache
def _delete(kind: Any) -> tuple[str, Params]:
    table = TABLES[kind]
    keys = stored_fields(table, table.key)
    where = " AND ".join(f"{column.name} = ?" for column in keys)
    return f"DELETE FROM {table.name} WHERE {where}", _params(keys)


def _run(connection: sqlite3.Connection, sql: str, rows: list[tuple[Any, ...]]) -> int:
    if len(rows) == 1:
        return connection.execute(sql, rows[0]).rowcount
    return connection.executemany(sql, rows).rowcount


def apply(connection: sqlite3.Connection, writes: Writes) -> None:
    """Write everything. The caller holds the write lock; a row that vanished means the batch was decided on sand."""
    if writes.purges:
        _purge(connection, writes.purges)
    for flow in writes.purged_flows:
        where = (flow.partition, uuid_to_blob(flow.flow_id))
        for table in FLOW_SCOPED:
            connection.execute(f"DELETE FROM {table} WHERE partition_key = ? AND flow_id = ?", where)
    for kind, dropped in writes.drops.items():
        if dropped:
            sql, params = _delete(kind)
            _run(connection, sql, [params(record) for record in dropped.values()])
    for kind, puts in writes.puts.items():
        if puts:
            _apply_puts(connection, kind, puts, writes.records[kind])
    for key in writes.trims:
        _trim(connection, key, writes)
    if writes.dispatched:
        marks = [(mark.at_ms, mark.partition, uuid_to_blob(mark.uuid)) for mark in writes.dispatched]
        _run(connection, _MARK_DISPATCHED, marks)
    if writes.events:
        _apply_events(connection, writes.events)


def _apply_puts(
    connection: sqlite3.Connection, kind: Any, puts: dict[Key, tuple[str, ...] | None], records: dict[Key, Any]
) -> None:
    groups: dict[tuple[str, ...] | None, list[Any]] = {}
    for key, fields in puts.items():
        group = groups.get(fields)
        if group is None:
            groups[fields] = [records[key]]
        else:
            group.append(records[key])
    for fields, group in groups.items():
        if fields is None:
            _apply_inserts(connection, kind, group)
            continue
        statement = _update(kind, fields, _nulls(fields, group))
        if statement is not None:
            sql, params = statement
            if _run(connection, sql, [params(record) for record in group]) != len(group):
                raise Conflict(f"{kind.__name__}: a row vanished")


def _apply_inserts(connection: sqlite3.Connection, kind: Any, group: list[Any]) -> None:
    table = TABLES[kind]
    for columns, records in insert_groups(kind, group).items():
        try:
            _insert_rows(connection, table, columns, records)
        except sqlite3.IntegrityError as error:
            if "UNIQUE constraint" not in str(error):
                raise
            raise Conflict(f"{kind.__name__}: a row appeared") from None
    if kind is Execution:
        required = [
            (uuid_to_blob(record.uuid), capability) for record in group for capability in record.required_capabilities
        ]
        if required:
            _run(connection, "INSERT INTO ff_execution_capabilities (execution_id, capability) VALUES (?, ?)", required)


def _apply_events(connection: sqlite3.Connection, events: list[Any]) -> None:
    families: dict[Any, list[Any]] = {}
    for event in events:
        families.setdefault(type(event), []).append(event)
    for kind, family in families.items():
        _insert_rows(connection, OUTBOXES[kind], OUTBOXES[kind].columns, family)


def _trim(connection: sqlite3.Connection, key: tuple[str, int], writes: Writes) -> None:
    partition, uuid = split_wire(key[0])
    keep = writes.records[StreamHead][key].frame_count
    where = "partition_key = ?1 AND execution_id = ?2 AND attempt_index = ?3"
    connection.execute(
        f"DELETE FROM ff_stream_frame WHERE {where} AND (ts_ms, seq) < (SELECT ts_ms, seq FROM ff_stream_frame "
        f"WHERE {where} ORDER BY ts_ms DESC, seq DESC LIMIT 1 OFFSET ?4)",
        (partition, uuid_to_blob(uuid), key[1], keep - 1),
    )


def _purge(connection: sqlite3.Connection, purges: Sequence[PurgeExecution]) -> None:
    keys: list[tuple[Any, ...]] = [(each.partition, uuid_to_blob(each.uuid)) for each in purges]
    names: list[tuple[Any, ...]] = [(each.execution_id,) for each in purges]
    _run(connection, DROP_SIGNAL_KEYS.format("?1", "?1", "?2"), keys)
    for table in (*EXECUTION_SCOPED, "ff_exec_core"):
        _run(connection, f"DELETE FROM {table} WHERE partition_key = ? AND execution_id = ?", keys)
    uuids = [key[1:] for key in keys]
    _run(connection, "DELETE FROM ff_execution_capabilities WHERE execution_id = ?", uuids)
    _run(
        connection,
        "DELETE FROM ff_cancel_backlog_member WHERE partition_key = ? AND execution_id = ?",
        [(each.partition, each.execution_id) for each in purges],
    )
    for table, spelling in EXECUTION_NAMED:
        _run(connection, f"DELETE FROM {table} WHERE execution_id = ?", uuids if spelling == "uuid" else names)
