"""Loading records into a view."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Any

from flowfabric.model import literals as lit
from flowfabric.model.changes import (
    BLOCKED,
    DOWNSTREAM_LIMIT,
    SELECT_LIMIT,
    Claimable,
    Descendants,
    Downstream,
    First,
    Get,
    GetFull,
    Key,
    Listed,
    LiveMembers,
    Need,
    Peek,
    Recent,
    Select,
)
from flowfabric.model.errors import ResourceExhausted
from flowfabric.model.flows import EdgeState
from flowfabric.model.records import Attempt, Edge, EdgeGroup, Execution, Grant
from flowfabric.stores.memory.indexes import GATED, GRANT_EXPIRY, NAMING_BUDGET, WINDOWS, claim_entry, claim_family
from flowfabric.stores.memory.tables import Tables, wire_id
from flowfabric.stores.protocol import Filling


def load(tables: Tables, needs: Iterable[Need], view: Filling, now: int) -> None:
    """Fill a view with everything asked for."""
    for need in needs:
        if type(need) is Get or type(need) is Peek:
            _load_one(tables, need.kind, need.key, view)
        elif type(need) is GetFull:
            _load_full(tables, need.execution_id, view)
        elif type(need) is Select:
            _load_selected(tables, need, view)
        elif type(need) is Claimable:
            _load_claimable(tables, need, view, now)
        elif type(need) is Downstream:
            _load_downstream(tables, need, view)
        elif type(need) is Descendants:
            _load_descendants(tables, need, view)
        elif type(need) is First:
            view.put_first(need, _put_records(tables, need, need.limit, view))
        elif type(need) is LiveMembers:
            _load_live_members(tables, need, view)
        elif type(need) is Listed:
            _load_listed(tables, need, view)
        elif type(need) is Recent:
            _load_recent(tables, need, view, now)


def _load_one(tables: Tables, kind: Any, key: Key, view: Filling) -> None:
    if kind is Execution:
        _put_execution(tables, key, view)
    else:
        view.put_loaded(kind, key, tables.find(kind, key))


def _load_full(tables: Tables, execution_id: str, view: Filling) -> None:
    _put_execution(tables, execution_id, view)
    view.put_full(execution_id, tables.execution(execution_id))


def _put_execution(tables: Tables, execution_id: str, view: Filling) -> None:
    """An execution never comes without its current attempt."""
    execution = tables.execution(execution_id)
    view.put_loaded(Execution, execution_id, execution)
    if execution is not None:
        view.put_loaded(Attempt, (execution_id, execution.attempt_index), tables.current_attempt(execution))


def _load_selected(tables: Tables, need: Select, view: Filling) -> None:
    keys = _put_records(tables, need, SELECT_LIMIT + 1, view)
    if len(keys) > SELECT_LIMIT:
        raise ResourceExhausted("select", SELECT_LIMIT)
    view.put_selected(need, keys)


def _put_records(tables: Tables, need: Select | First, limit: int, view: Filling) -> list[Key]:
    found = tables.matching(need.kind, need.fields, need.values)
    keys: list[Key] = []
    for record in islice(found, limit):
        if need.kind is Execution:
            _put_execution(tables, record.key, view)
        else:
            view.put_loaded(need.kind, record.key, record)
        keys.append(record.key)
    return keys


def _load_live_members(tables: Tables, need: LiveMembers, view: Filling) -> None:
    members = tables.matching(Execution, ("partition", "flow_id"), (need.partition, need.flow_id))
    live = (each for each in members if each.lifecycle_phase not in lit.ENDED_PHASES and each.uuid > need.after)
    keys = [each.execution_id for each in islice(live, need.limit)]
    for key in keys:
        _put_execution(tables, key, view)
    view.put_selected(need, keys)


def _load_downstream(tables: Tables, need: Downstream, view: Filling) -> None:
    keys: list[Key] = []
    for edge in tables.matching(Edge, ("partition", "flow_id", "upstream"), need):
        child = wire_id(need.partition, edge.downstream)
        group = tables.find(EdgeGroup, (need.partition, need.flow_id, edge.downstream))
        if edge.edge_state == EdgeState.APPLIED and group is not None and tables.find(Execution, child) is not None:
            view.put_loaded(Edge, edge.key, edge)
            view.put_loaded(EdgeGroup, group.key, group)
            _put_execution(tables, child, view)
            keys.append(edge.key)
            if len(keys) == DOWNSTREAM_LIMIT:
                break
    view.put_selected(need, keys)


def _load_descendants(tables: Tables, need: Descendants, view: Filling) -> None:
    reached: set[str] = set()
    starts = [need.uuid]
    while starts:
        outgoing = tables.matching(
            Edge, ("partition", "flow_id", "upstream"), (need.partition, need.flow_id, starts.pop())
        )
        fresh = {edge.downstream for edge in outgoing} - reached
        reached |= fresh
        starts += fresh
    view.put_descendants(need, frozenset(reached))


def _load_claimable(tables: Tables, need: Claimable, view: Filling, now: int) -> None:
    queues = [
        run.between()
        for required, run in tables.indexes.runs(claim_family(need.lane_id)).items()
        if need.capabilities.issuperset(required)
    ]
    forgotten = sorted(
        claim_entry(execution)
        for execution in forgotten_by_grants(tables, need.lane_id, now)
        if need.capabilities.issuperset(execution.required_capabilities)
    )
    ids = [entry[-1] for entry in islice(merge(*queues, forgotten), need.limit)]
    for execution_id in ids:
        _put_execution(tables, execution_id, view)
    view.put_claimable(need, ids)


def _load_listed(tables: Tables, need: Listed, view: Filling) -> None:
    run = tables.indexes.run(GATED if need.what == BLOCKED else NAMING_BUDGET, need.name)
    ids = [entry[-1] for entry in islice(run.between(), need.limit)]
    for execution_id in ids:
        _put_execution(tables, execution_id, view)
    view.put_listed(need, ids)


def _load_recent(tables: Tables, need: Recent, view: Filling, now: int) -> None:
    name = need[:3]
    run = tables.indexes.run(WINDOWS, name)
    low, high = (*name, now - need.window_ms + 1), (*name, math.inf)
    oldest = next(iter(run.between(low, high)), None)
    view.put_recent(need, run.count(low, high), None if oldest is None else oldest[3])


def forgotten_by_grants(tables: Tables, lane_id: str, now: int) -> Iterator[Execution]:
    """Executions of the lane that are hidden by claim grants nobody used in time."""
    expired = tables.indexes.run(GRANT_EXPIRY).between(None, (now + 1,))
    for execution_id in dict.fromkeys(wire_id(partition, uuid) for _, partition, uuid, _ in expired):
        execution = tables.find(Execution, execution_id)
        if (
            execution is not None
            and execution.lane_id == lane_id
            and execution.eligibility_state == lit.PENDING_CLAIM
            and execution.lifecycle_phase in lit.WAITING_PHASES
            and not _has_live_grant(tables, execution, now)
        ):
            yield execution


def _has_live_grant(tables: Tables, execution: Execution, now: int) -> bool:
    grants = tables.matching(Grant, ("partition", "uuid"), (execution.partition, execution.uuid))
    return any(grant.kind == lit.GRANT_CLAIM and not 0 < grant.expires_at_ms <= now for grant in grants)
