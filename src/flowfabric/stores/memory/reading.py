"""Loading records into a view."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice, takewhile
from typing import Any

from flowfabric.model import literals as lit
from flowfabric.model.budget_records import QuotaWindow
from flowfabric.model.changes import (
    BLOCKED,
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
from flowfabric.model.errors import ResourceExhausted
from flowfabric.model.flows import EdgeState
from flowfabric.model.lanes import FAIR_RETURNING, FAIR_SEPARATOR
from flowfabric.model.records import Attempt, Edge, EdgeGroup, Execution, Grant
from flowfabric.stores.memory.indexes import (
    GATED,
    GRANT_EXPIRY,
    NAMING_BUDGET,
    SLOTS,
    WINDOWS,
    claim_entry,
    claim_family,
    rank_family,
    tag_of,
)
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
        elif type(need) is Recent:
            _load_recent(tables, need, view, now)
        elif type(need) is Slots:
            view.put_slots(need, len(tables.indexes.run(SLOTS, need.quota_policy_id)))
        else:
            _LOADERS[type(need)](tables, need, view)


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


def _load_ended(tables: Tables, need: EndedAmong, view: Filling) -> None:
    found = ((each, tables.find(Execution, each)) for each in need.execution_ids)
    view.put_ended(need, frozenset(each for each, row in found if row and row.lifecycle_phase in lit.ENDED_PHASES))


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
    within = need.namespaces
    families = [claim_family(need.lane_id)] if within is None else [claim_family(need.lane_id, each) for each in within]
    queues = [
        run.between()
        for family in families
        for required, run in tables.indexes.runs(family).items()
        if need.capabilities.issuperset(required)
    ]
    forgotten = sorted(
        claim_entry(execution)
        for execution in forgotten_by_grants(tables, need.lane_id, now)
        if need.capabilities.issuperset(execution.required_capabilities)
        and (within is None or execution.namespace in within)
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
    newest = next(iter(run.backwards()), None)
    last = (0, 0)
    if newest is not None:
        ties = takewhile(lambda key: key[3] == newest[3], run.backwards())
        rows = [tables.find(QuotaWindow, key) for key in ties]
        last = (newest[3], max(row.number for row in rows if row is not None))
    view.put_recent(need, run.count(low, high), None if oldest is None else oldest[3], last)


def _load_ranked(tables: Tables, need: Ranked, view: Filling) -> None:
    run = tables.indexes.run(rank_family(need.lane_id), (need.priority, need.fair_key))
    entries = run.between() if need.fair_key is None else run.backwards()
    view.put_ranked(need, [(execution_id, rank) for rank, execution_id in islice(entries, need.limit)])


def _load_misplaced(tables: Tables, need: Misplaced, view: Filling) -> None:
    stray, unranked = _stray(tables, need), _unranked(tables, need)
    ids = list(islice(stray, need.limit)) or list(islice(unranked, need.limit))
    found: list[tuple[str, str | None]] = []
    for execution_id in ids:
        _put_execution(tables, execution_id, view)
        execution = tables.all(Execution)[execution_id]
        tag = (need.fair_by or "").partition(":")[2]
        found.append((execution_id, tag_of(execution, tag) if tag else execution.namespace))
    view.put_misplaced(need, found)


def _stray(tables: Tables, need: Misplaced) -> Iterator[str]:
    for (_, key), run in tables.indexes.runs(rank_family(need.lane_id)).items():
        if key is not None and (
            need.fair_by is None or not key.removeprefix(FAIR_RETURNING).startswith(need.fair_by + FAIR_SEPARATOR)
        ):
            yield from (execution_id for _, execution_id in run.between())


def _unranked(tables: Tables, need: Misplaced) -> Iterator[str]:
    """Within each run and priority those without a rank are the last ones: jump from one priority to the next."""
    if need.fair_by is None:
        return
    for run in tables.indexes.runs(claim_family(need.lane_id)).values():
        first = run.first()
        while first is not None:
            after = (first[0], 1)
            yield from (entry[-1] for entry in run.between((first[0], 0), after))
            first = next(run.between(after), None)


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


def _load_first(tables: Tables, need: First, view: Filling) -> None:
    view.put_first(need, _put_records(tables, need, need.limit, view))


#: How the rarer needs are loaded.
_LOADERS: Mapping[Any, Callable[[Tables, Any, Filling], None]] = {
    Ranked: _load_ranked,
    Misplaced: _load_misplaced,
    Downstream: _load_downstream,
    EndedAmong: _load_ended,
    Descendants: _load_descendants,
    First: _load_first,
    LiveMembers: _load_live_members,
    Listed: _load_listed,
}
