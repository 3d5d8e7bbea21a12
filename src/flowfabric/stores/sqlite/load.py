"""Loading records from a SQLite connection, inside a transaction or beside one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from flowfabric.model.decisions import (
    DOWNSTREAM_LIMIT,
    SELECT_LIMIT,
    Claimable,
    Descendants,
    Downstream,
    EndedAmong,
    First,
    Get,
    GetFull,
    Key,
    Listed,
    LiveMembers,
    Misplaced,
    Need,
    Peek,
    Ranked,
    Recent,
    Select,
    Slots,
)
from flowfabric.model.errors import LimitReached
from flowfabric.model.operations.flows import EdgeState
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.flows import Edge, EdgeGroup
from flowfabric.model.records.streams import StreamHead
from flowfabric.model.states import PENDING_CLAIM
from flowfabric.stores.protocol import Filling
from flowfabric.stores.sql.rows import (
    ENDED_LIST,
    LISTED,
    RECENT,
    RECENT_ONE_BY_ONE,
    SLOTS,
    STREAM_HEAD_COLUMNS,
    WAITING_LIST,
    ExecutionRows,
    KindRows,
    execution_select,
    recent_of,
    stream_head,
)
from flowfabric.stores.sql.schema import key_values, split_wire
from flowfabric.stores.sqlite import load_ranks
from flowfabric.stores.sqlite.codec import DIALECT, blob_to_uuid, uuid_to_blob
from flowfabric.stores.tables.executions import EXECUTION

_ROWS = ExecutionRows(DIALECT)
_NARROW = execution_select(DIALECT)
_WIDE = execution_select(DIALECT, wide=True)
_BY_ID = " WHERE e.partition_key = ?1 AND e.execution_id = ?2"
_HEAD = (
    f"SELECT {STREAM_HEAD_COLUMNS} FROM (SELECT ?1 AS p, ?2 AS u, ?3 AS i) k LEFT JOIN ff_stream_meta m "
    "ON m.partition_key = k.p AND m.execution_id = k.u AND m.attempt_index = k.i"
)
# Distinct requirement sets that have work, found by jumping from one to the next in the claim index.
_SETS = (
    "WITH RECURSIVE sets(requirement_key) AS (SELECT min(requirement_key) FROM ff_exec_core "
    "WHERE lane_id = ?1 AND claimable UNION ALL SELECT (SELECT min(c.requirement_key) FROM ff_exec_core c "
    "WHERE c.lane_id = ?1 AND c.claimable AND c.requirement_key > sets.requirement_key) FROM sets "
    "WHERE sets.requirement_key IS NOT NULL) SELECT requirement_key FROM sets WHERE requirement_key IS NOT NULL"
)
_CANDIDATES = (
    f"{_NARROW} WHERE e.lane_id = ?1 AND e.requirement_key = ?2 AND e.claimable "
    "ORDER BY e.priority DESC, e.fair_rank, e.created_at_ms, e.execution_id LIMIT ?3"
)
# The same within a namespace, by the index that keeps the queue so.
_SETS_WITHIN = (
    "WITH RECURSIVE sets(requirement_key) AS (SELECT min(requirement_key) FROM ff_exec_core "
    "WHERE lane_id = ?1 AND namespace = ?2 AND claimable UNION ALL SELECT (SELECT min(c.requirement_key) "
    "FROM ff_exec_core c WHERE c.lane_id = ?1 AND c.namespace = ?2 AND c.claimable "
    "AND c.requirement_key > sets.requirement_key) FROM sets WHERE sets.requirement_key IS NOT NULL) "
    "SELECT requirement_key FROM sets WHERE requirement_key IS NOT NULL"
)
_CANDIDATES_WITHIN = _CANDIDATES.replace("e.lane_id = ?1", "e.lane_id = ?1 AND e.namespace = ?4")
# Rows hidden by a claim grant that nobody used in time; usually none exists, which one look at an index tells.
_EXPIRED = (
    "SELECT g.partition_key, g.execution_id FROM ff_claim_grant g INDEXED BY ff_claim_grant_expiry_idx "
    "WHERE g.expires_at_ms > 0 AND g.expires_at_ms <= ?1 AND g.kind = 'claim'"
)
_FORGOTTEN = (
    f"{_NARROW} WHERE e.partition_key = ?1 AND e.execution_id = ?2 AND e.lane_id = ?3 AND e.eligibility_state = ?4 "
    f"AND e.lifecycle_phase IN ({WAITING_LIST}) AND NOT EXISTS (SELECT 1 FROM ff_claim_grant o WHERE "
    "o.partition_key = ?1 AND o.execution_id = ?2 AND o.kind = 'claim' "
    "AND (o.expires_at_ms = 0 OR o.expires_at_ms > ?5))"
)

_LISTED = {what: f"{_NARROW} {tail}" for what, tail in LISTED.items()}


@cache
def _kind_rows(kind: Any) -> KindRows:
    return KindRows(kind, DIALECT)


@cache
def _select_by(kind: Any, fields: tuple[str, ...], limit: int | None = None) -> str:
    rows = _kind_rows(kind)
    where = _where(rows.table, fields, "t")
    select = f"SELECT {rows.select_list} FROM {rows.table.name} t WHERE {where}"
    if limit is None:
        # In no order: asking for one could tempt the planner away from the index of the condition.
        return f"{select} LIMIT {SELECT_LIMIT + 1}"
    order = ", ".join(f"t.{column.name}" for field in rows.table.key if (column := rows.table.column(field)))
    return f"{select} ORDER BY {order} LIMIT {limit}"


def _where(table: Any, fields: tuple[str, ...], alias: str) -> str:
    columns = [table.column(field) for field in fields]
    return " AND ".join(f"{alias}.{column.name} = ?{index}" for index, column in enumerate(columns, 1))


def _encoded(table: Any, fields: tuple[str, ...], values: tuple[Any, ...]) -> list[Any]:
    encode = DIALECT.encode
    found = []
    for field, value in zip(fields, values, strict=True):
        encoder = encode.get(table.column(field).type)
        found.append(value if encoder is None else encoder(value))
    return found


def load(connection: sqlite3.Connection, needs: Iterable[Need], view: Filling, now: int) -> None:
    """Fill a view with everything asked for."""
    for need in needs:
        if type(need) is Get or type(need) is Peek:
            _load_one(connection, need.kind, need.key, view)
        elif type(need) is GetFull:
            _load_full(connection, need.execution_id, view)
        elif type(need) is Select:
            _load_selected(connection, need, view)
        elif type(need) is Claimable:
            _load_claimable(connection, need, view, now)
        elif type(need) is Recent:
            _load_recent(connection, need, view, now)
        elif type(need) is Slots:
            view.put_slots(need, connection.execute(SLOTS, need).fetchone()[0])
        else:
            _LOADERS[type(need)](connection, need, view)


def _load_recent(connection: sqlite3.Connection, need: Recent, view: Filling, now: int) -> None:
    where = (*need[:3], now - need.window_ms)
    counted = connection.execute(RECENT_ONE_BY_ONE, where).fetchone()[0] if need.one_by_one else None
    view.put_recent(need, *recent_of(connection.execute(RECENT, where).fetchone(), counted))


def _put(view: Filling, row: Any) -> Execution:
    execution, attempt, _, _ = _ROWS.read(row)
    view.put_loaded(Execution, execution.execution_id, execution)
    view.put_loaded(Attempt, (execution.execution_id, execution.attempt_index), attempt)
    return execution


def _load_execution(connection: sqlite3.Connection, execution_id: str, view: Filling) -> None:
    partition, uuid = split_wire(execution_id)
    row = connection.execute(_NARROW + _BY_ID, (partition, uuid_to_blob(uuid))).fetchone()
    if row is None:
        view.put_loaded(Execution, execution_id, None)
    else:
        _put(view, row)


def _load_full(connection: sqlite3.Connection, execution_id: str, view: Filling) -> None:
    partition, uuid = split_wire(execution_id)
    row = connection.execute(_WIDE + _BY_ID, (partition, uuid_to_blob(uuid))).fetchone()
    if row is None:
        view.put_full(execution_id, None)
        return
    execution, attempt, _, _ = _ROWS.read_wide(row)
    view.put_full(execution_id, execution)
    view.put_loaded(Attempt, (execution_id, execution.attempt_index), attempt)


def _load_one(connection: sqlite3.Connection, kind: Any, key: Key, view: Filling) -> None:
    if kind is Execution:
        _load_execution(connection, key, view)
        return
    values = key_values(kind, key)
    if kind is StreamHead:
        partition, uuid, index = values
        row = connection.execute(_HEAD, (partition, uuid_to_blob(uuid), index)).fetchone()
        view.put_loaded(kind, key, stream_head(key[0], partition, uuid, index, row))
        return
    rows = _kind_rows(kind)
    fields = rows.table.key
    row = connection.execute(_select_by(kind, fields), _encoded(rows.table, fields, values)).fetchone()
    view.put_loaded(kind, key, None if row is None else rows.read(row))


def _load_selected(connection: sqlite3.Connection, need: Select, view: Filling) -> None:
    keys = _put_records(connection, need, None, view)
    if len(keys) > SELECT_LIMIT:
        raise LimitReached("SELECT_LIMIT", SELECT_LIMIT)
    view.put_selected(need, keys)


def _put_records(connection: sqlite3.Connection, need: Select | First, limit: int | None, view: Filling) -> list[Key]:
    keys: list[Key] = []
    if need.kind is Execution:
        order = f"LIMIT {SELECT_LIMIT + 1}" if limit is None else f"ORDER BY e.execution_id LIMIT {limit}"
        sql = f"{_NARROW} WHERE {_where(EXECUTION, need.fields, 'e')} {order}"
        members = connection.execute(sql, _encoded(EXECUTION, need.fields, need.values))
        keys += [_put(view, row).execution_id for row in members]
    else:
        rows = _kind_rows(need.kind)
        for row in connection.execute(
            _select_by(need.kind, need.fields, limit), _encoded(rows.table, need.fields, need.values)
        ):
            record = rows.read(row)
            view.put_loaded(need.kind, record.key, record)
            keys.append(record.key)
    return keys


_LIVE_MEMBERS = (
    f"{_NARROW} WHERE e.partition_key = ?1 AND e.flow_id = ?2 AND e.execution_id > ?3 "
    f"AND e.lifecycle_phase NOT IN ({ENDED_LIST}) ORDER BY e.execution_id LIMIT ?4"
)


def _load_live_members(connection: sqlite3.Connection, need: LiveMembers, view: Filling) -> None:
    after = uuid_to_blob(need.after) if need.after else b""
    where = (need.partition, uuid_to_blob(need.flow_id), after, need.limit)
    view.put_selected(need, [_put(view, row).execution_id for row in connection.execute(_LIVE_MEMBERS, where)])


_EDGE_ROWS, _GROUP_ROWS = KindRows(Edge, DIALECT), KindRows(EdgeGroup, DIALECT, "g")
_CHILD_COLUMNS, _CHILD_SOURCE = _NARROW.split(" FROM ff_exec_core e", 1)
#: Unresolved edges out of a member with their children and groups; one that has no group or leads nowhere counts for
#: nobody.
DOWNSTREAM = (
    f"{_CHILD_COLUMNS}, {_EDGE_ROWS.select_list}, {_GROUP_ROWS.select_list} "
    # Without the hint the order would tempt the planner to read all edges of the flow.
    "FROM ff_edge t INDEXED BY ff_edge_upstream_idx "
    "CROSS JOIN ff_edge_group g ON g.partition_key = t.partition_key AND g.flow_id = t.flow_id "
    "AND g.downstream_eid = t.downstream_eid "
    "CROSS JOIN ff_exec_core e ON e.partition_key = t.partition_key AND e.execution_id = t.downstream_eid"
    f"{_CHILD_SOURCE} WHERE t.partition_key = ?1 AND t.flow_id = ?2 AND t.upstream_eid = ?3 "
    f"AND t.edge_state = '{EdgeState.APPLIED}' ORDER BY t.edge_id LIMIT {DOWNSTREAM_LIMIT}"
)
_EDGE_START = _ROWS.width
_GROUP_START = _EDGE_START + _EDGE_ROWS.width
DESCENDANTS = (
    "WITH RECURSIVE reached(eid) AS (SELECT downstream_eid FROM ff_edge WHERE partition_key = ?1 AND flow_id = ?2 "
    "AND upstream_eid = ?3 UNION SELECT t.downstream_eid FROM reached r JOIN ff_edge t ON t.partition_key = ?1 "
    "AND t.flow_id = ?2 AND t.upstream_eid = r.eid) SELECT eid FROM reached"
)


_HAS_ENDED = (
    f"SELECT 1 FROM ff_exec_core WHERE partition_key = ?1 AND execution_id = ?2 AND lifecycle_phase IN ({ENDED_LIST})"
)


def _load_ended(connection: sqlite3.Connection, need: EndedAmong, view: Filling) -> None:
    ended = set()
    for wire in need.execution_ids:
        partition, uuid = split_wire(wire)
        if connection.execute(_HAS_ENDED, (partition, uuid_to_blob(uuid))).fetchone() is not None:
            ended.add(wire)
    view.put_ended(need, frozenset(ended))


def _load_downstream(connection: sqlite3.Connection, need: Downstream, view: Filling) -> None:
    keys: list[Key] = []
    where = (need.partition, uuid_to_blob(need.flow_id), uuid_to_blob(need.uuid))
    for row in connection.execute(DOWNSTREAM, where).fetchall():
        _put(view, row)
        edge, group = _EDGE_ROWS.read(row[_EDGE_START:_GROUP_START]), _GROUP_ROWS.read(row[_GROUP_START:])
        view.put_loaded(Edge, edge.key, edge)
        view.put_loaded(EdgeGroup, group.key, group)
        keys.append(edge.key)
    view.put_selected(need, keys)


def _load_descendants(connection: sqlite3.Connection, need: Descendants, view: Filling) -> None:
    where = (need.partition, uuid_to_blob(need.flow_id), uuid_to_blob(need.uuid))
    view.put_descendants(need, frozenset(blob_to_uuid(blob) for (blob,) in connection.execute(DESCENDANTS, where)))


def _load_claimable(connection: sqlite3.Connection, need: Claimable, view: Filling, now: int) -> None:
    within = need.namespaces
    candidates: list[Execution] = []
    runs = 0
    for namespace in (None,) if within is None else within:
        lane = (need.lane_id,) if namespace is None else (need.lane_id, namespace)
        covered = [""]
        if need.capabilities:
            found = connection.execute(_SETS if namespace is None else _SETS_WITHIN, lane)
            covered = [key for (key,) in found if not key or need.capabilities.issuperset(key.split(","))]
        for key in covered:
            rows = connection.execute(
                _CANDIDATES if namespace is None else _CANDIDATES_WITHIN, (need.lane_id, key, need.limit, *lane[1:])
            )
            candidates += [_put(view, row) for row in rows]
            runs += 1
    sort = runs > 1
    for partition, blob in set(connection.execute(_EXPIRED, (now,)).fetchall()):
        row = connection.execute(_FORGOTTEN, (partition, blob, need.lane_id, PENDING_CLAIM, now)).fetchone()
        if row is not None:
            execution = _put(view, row)
            if need.capabilities.issuperset(execution.required_capabilities) and (
                within is None or execution.namespace in within
            ):
                candidates.append(execution)
                sort = True
    if sort:
        candidates.sort(key=lambda each: (-each.priority, each.fair_rank, each.created_at_ms, each.uuid))
    view.put_claimable(need, [each.execution_id for each in candidates[: need.limit]])


def _load_first(connection: sqlite3.Connection, need: First, view: Filling) -> None:
    view.put_first(need, _put_records(connection, need, need.limit, view))


def _load_ranked(connection: sqlite3.Connection, need: Ranked, view: Filling) -> None:
    view.put_ranked(need, load_ranks.ranked(connection, need))


def _load_misplaced(connection: sqlite3.Connection, need: Misplaced, view: Filling) -> None:
    found = load_ranks.misplaced(connection, need)
    for execution_id, _ in found:
        _load_execution(connection, execution_id, view)
    view.put_misplaced(need, found)


def _load_listed(connection: sqlite3.Connection, need: Listed, view: Filling) -> None:
    rows = connection.execute(_LISTED[need.what], (need.name, need.limit)).fetchall()
    view.put_listed(need, [_put(view, row).execution_id for row in rows])


#: How the rarer needs are loaded.
_LOADERS: Mapping[Any, Callable[[sqlite3.Connection, Any, Filling], None]] = {
    Ranked: _load_ranked,
    Misplaced: _load_misplaced,
    Downstream: _load_downstream,
    EndedAmong: _load_ended,
    Descendants: _load_descendants,
    First: _load_first,
    LiveMembers: _load_live_members,
    Listed: _load_listed,
}
