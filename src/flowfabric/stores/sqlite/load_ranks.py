"""Ranks of fair lanes in SQLite."""

from __future__ import annotations

import sqlite3
from typing import Any

from flowfabric.model.decisions import Misplaced, Ranked
from flowfabric.model.operations.lanes import FAIR_RETURNING, FAIR_SEPARATOR
from flowfabric.stores.sqlite.codec import DIALECT, TAG_VALUE, blob_to_uuid

_WAITING = "e.lane_id = ?1 AND e.priority = ?2 AND e.claimable"
#: The lowest ranks of a lane and priority, lowest first.
FRONT = (
    "SELECT e.partition_key, e.execution_id, e.fair_rank FROM ff_exec_core e INDEXED BY ff_exec_core_fair_idx "
    f"WHERE {_WAITING} AND e.fair_rank < 0 ORDER BY e.fair_rank LIMIT ?3"
)
#: The highest ranks of a key, highest first.
LAST = (
    "SELECT e.partition_key, e.execution_id, e.fair_rank FROM ff_exec_core e INDEXED BY ff_exec_core_fair_key_idx "
    f"WHERE {_WAITING} AND e.fair_key IS NOT NULL AND e.fair_key = ?4 ORDER BY e.fair_rank DESC LIMIT ?3"
)
_VALUE = f"CASE WHEN ?3 IS NULL THEN {DIALECT.derived['namespace']} ELSE {TAG_VALUE.format('?3')} END"
#: Ranked executions of a lane whose key was given under another setting.
STRAY = (
    f"SELECT e.partition_key, e.execution_id, {_VALUE} FROM ff_exec_core e INDEXED BY ff_exec_core_fair_key_idx "
    "WHERE e.lane_id = ?1 AND e.claimable AND e.fair_key IS NOT NULL AND (?4 IS NULL OR "
    f"substr(ltrim(e.fair_key, '{FAIR_RETURNING}'), 1, length(?4)) <> ?4) LIMIT ?2"
)
#: Unranked executions of one requirement set and priority.
UNRANKED = (
    f"SELECT e.partition_key, e.execution_id, {_VALUE} FROM ff_exec_core e INDEXED BY ff_exec_core_claim_idx "
    "WHERE e.lane_id = ?1 AND e.requirement_key = ?4 AND e.priority = ?5 AND e.fair_rank = 0 AND e.claimable "
    "ORDER BY e.created_at_ms, e.execution_id LIMIT ?2"
)
#: The next requirement set and priority of a lane that has work, in the order of the claim index.
_SAME_SET = (
    "SELECT requirement_key, priority FROM ff_exec_core INDEXED BY ff_exec_core_claim_idx WHERE lane_id = ?1 "
    "AND claimable AND requirement_key = ?2 AND priority < ?3 ORDER BY priority DESC LIMIT 1"
)
_NEXT_SET = (
    "SELECT requirement_key, priority FROM ff_exec_core INDEXED BY ff_exec_core_claim_idx WHERE lane_id = ?1 "
    "AND claimable AND requirement_key > ?2 ORDER BY requirement_key, priority DESC LIMIT 1"
)
_FIRST_SET = _NEXT_SET.replace("> ?2", ">= ''")


def ranked(connection: sqlite3.Connection, need: Ranked) -> list[tuple[str, int]]:
    """Ids and ranks that wait."""
    where: tuple[Any, ...] = (need.lane_id, need.priority, need.limit)
    rows = (
        connection.execute(FRONT, where) if need.fair_key is None else connection.execute(LAST, (*where, need.fair_key))
    )
    return [(_wire(row), row[2]) for row in rows]


def misplaced(connection: sqlite3.Connection, need: Misplaced) -> list[tuple[str, str | None]]:
    """Ids and values of what is not ranked as the lane is set."""
    by = need.fair_by
    tag = by.removeprefix("tag:") if by is not None and by.startswith("tag:") else None
    prefix = None if by is None else by + FAIR_SEPARATOR
    rows = connection.execute(STRAY, (need.lane_id, need.limit, tag, prefix)).fetchall()
    if by is not None and not rows:
        place = connection.execute(_FIRST_SET, (need.lane_id,)).fetchone()
        while place is not None and len(rows) < need.limit:
            rows += connection.execute(UNRANKED, (need.lane_id, need.limit - len(rows), tag, *place)).fetchall()
            following = connection.execute(_SAME_SET, (need.lane_id, *place)).fetchone()
            place = following or connection.execute(_NEXT_SET, (need.lane_id, place[0])).fetchone()
    return [(_wire(row), row[2] if isinstance(row[2], str) else None) for row in rows]


def _wire(row: Any) -> str:
    return f"{{fp:{row[0]}}}:{blob_to_uuid(row[1])}"
