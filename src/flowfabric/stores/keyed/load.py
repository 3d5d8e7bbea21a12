"""Loading what rules need into a view."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from flowfabric.model import states as lit
from flowfabric.model.decisions import (
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
from flowfabric.model.errors import LimitReached
from flowfabric.model.operations.flows import EdgeState
from flowfabric.model.operations.lanes import FAIR_RETURNING, FAIR_SEPARATOR
from flowfabric.model.records.budgets import QuotaWindow
from flowfabric.model.records.executions import Attempt, Execution, Grant
from flowfabric.model.records.flows import Edge, EdgeGroup
from flowfabric.stores.keyed.entries import (
    BY_UPSTREAM,
    DOCUMENT,
    GATED,
    GRANT_EXPIRY,
    LAST,
    MEMBERS,
    NAMING_BUDGET,
    SLOTS,
    WINDOWS,
    claim_entry,
    claim_family,
    rank_family,
    tag_of,
)
from flowfabric.stores.keyed.reads import (
    CHUNK,
    SIDE_BY_SIDE,
    Count,
    Names,
    Range,
    Reading,
    Rows,
    Whole,
    at_once,
    in_parts,
    together,
    walk,
)
from flowfabric.stores.keyed.records import wire_id
from flowfabric.stores.keyed.rows import executions, in_order, matching
from flowfabric.stores.protocol import Filling


def readings(needs: Iterable[Need], view: Filling, now: int) -> list[Reading[Any]]:
    """What to read so that the view is filled with everything asked for; in any order, or side by side."""
    gets: dict[Any, dict[Key, None]] = {}
    peeks: dict[Any, dict[Key, None]] = {}
    full: list[str] = []
    downstream: list[Downstream] = []
    found: list[Reading[Any]] = []
    for need in needs:
        if type(need) is Get:
            gets.setdefault(need.kind, {})[need.key] = None
        elif type(need) is Peek:
            peeks.setdefault(need.kind, {})[need.key] = None
        elif type(need) is GetFull:
            full.append(need.execution_id)
        elif type(need) is Claimable:
            found.append(_claimable(need, view, now))
        elif type(need) is Downstream:
            downstream.append(need)
        elif type(need) is Recent:
            found.append(_recent(need, view, now))
        else:
            found.append(_LOADERS[type(need)](need, view))
    if downstream:
        found.append(_downstream(downstream, view))
    if full:
        found.append(_put_executions(full, view, whole=True))
    for kind, keys in gets.items():
        found.append(_records(kind, list(keys), view))
    for kind, keys in peeks.items():
        found.append(_peeked(kind, list(keys), view))
    return found


def _records(kind: Any, keys: list[Key], view: Filling) -> Reading[None]:
    if kind is Execution:
        yield from _put_executions(keys, view)
        return
    for key, record in zip(keys, (yield Rows(kind, keys)), strict=True):
        view.put_loaded(kind, key, record)


def _peeked(kind: Any, keys: list[Key], view: Filling) -> Reading[None]:
    for key, record in zip(keys, (yield Rows(kind, keys, True)), strict=True):
        view.put_peeked(kind, key, record)


def _put_executions(
    ids: Sequence[str], view: Filling, *, loose: bool = False, whole: bool = False
) -> Reading[list[Execution | None]]:
    """An execution never comes without its current attempt."""
    if not ids:
        return []
    both = yield from executions(ids, loose=loose, whole=whole)
    for execution_id, (execution, attempt) in zip(ids, both, strict=True):
        if whole:
            view.put_full(execution_id, execution)
        else:
            view.put_loaded(Execution, execution_id, execution)
        if execution is not None:
            view.put_loaded(Attempt, (execution_id, execution.attempt_index), attempt)
    return [execution for execution, _ in both]


def _selected(need: Select, view: Filling) -> Reading[None]:
    keys = yield from _put_matching(need, SELECT_LIMIT + 1, view)
    if len(keys) > SELECT_LIMIT:
        raise LimitReached("SELECT_LIMIT", SELECT_LIMIT)
    view.put_selected(need, keys)


def _first(need: First, view: Filling) -> Reading[None]:
    view.put_first(need, (yield from _put_matching(need, need.limit, view)))


def _put_matching(need: Select | First, limit: int, view: Filling) -> Reading[list[Key]]:
    found = yield from matching(need.kind, need.fields, need.values, limit)
    keys: list[Key] = [each.key for each in found]
    if need.kind is Execution:
        yield from _put_executions(keys, view)
    else:
        for each in found:
            view.put_loaded(need.kind, each.key, each)
    return keys


def _live_members(need: LiveMembers, view: Filling) -> Reading[None]:
    def judge(ids: list[str]) -> Reading[list[str]]:
        found = yield Rows(Execution, ids)
        return [
            each.execution_id
            for each in found
            if each is not None and each.lifecycle_phase not in lit.ENDED_PHASES and each.uuid > need.after
        ]

    run = Range(MEMBERS, (need.partition, need.flow_id), rows=Execution)
    if need.after:
        run = run._replace(low=wire_id(need.partition, need.after), behind=True)
    keys = yield from walk(run, judge, need.limit)
    yield from _put_executions(keys, view)
    view.put_selected(need, keys)


def _ended(need: EndedAmong, view: Filling) -> Reading[None]:
    found = yield Rows(Execution, need.execution_ids, True)
    ended = (each.execution_id for each in found if each is not None and each.lifecycle_phase in lit.ENDED_PHASES)
    view.put_ended(need, frozenset(ended))


def _downstream(needs: list[Downstream], view: Filling) -> Reading[None]:
    """What the ends of many members lead to, together: a batch often ends many, most of them with one edge."""
    size = min(DOWNSTREAM_LIMIT, CHUNK)
    pages = yield [_edges_out_of(need)._replace(limit=size) for need in needs]
    judged = yield from _led_to(
        [(need, [entry[1:] for entry in page]) for need, page in zip(needs, pages, strict=True)]
    )
    for place, page in enumerate(pages):
        if len(page) == size and len(judged[place]) < DOWNSTREAM_LIMIT:
            judged[place] = yield from _walked_downstream(needs[place])
    children: dict[str, None] = {}
    for need, found in zip(needs, judged, strict=True):
        for edge, group, child in found[:DOWNSTREAM_LIMIT]:
            view.put_loaded(Edge, edge.key, edge)
            view.put_loaded(EdgeGroup, group.key, group)
            children[child.execution_id] = None
        view.put_selected(need, [edge.key for edge, _, _ in found[:DOWNSTREAM_LIMIT]])
    yield from _put_executions(list(children), view)


def _edges_out_of(need: Downstream) -> Range:
    order = (need.uuid,)
    run = Range(BY_UPSTREAM, (need.partition, need.flow_id))
    return run._replace(low=order, high=(*order, LAST), rows=Edge, before_key=order)


def _walked_downstream(need: Downstream) -> Reading[list[Any]]:
    """The same for one member with so many edges that a page holds too few that are open."""

    def judge(entries: list[Any]) -> Reading[list[Any]]:
        [found] = yield from _led_to([(need, [entry[1:] for entry in entries])])
        return found

    return (yield from walk(_edges_out_of(need), judge, DOWNSTREAM_LIMIT))


def _led_to(edges: list[tuple[Downstream, list[Key]]]) -> Reading[list[list[Any]]]:
    """Open edges with their groups and children, of each member."""
    keys = [key for _, each in edges for key in each]
    rows = iter((yield Rows(Edge, keys)) if keys else ())
    opened = [
        [edge for edge in (next(rows) for _ in each) if edge is not None and edge.edge_state == EdgeState.APPLIED]
        for _, each in edges
    ]
    of_needs = [(need, edge) for (need, _), found in zip(edges, opened, strict=True) for edge in found]
    if not of_needs:
        return opened
    groups, children = yield [
        Rows(EdgeGroup, [(need.partition, need.flow_id, edge.downstream) for need, edge in of_needs]),
        Rows(Execution, [wire_id(need.partition, edge.downstream) for need, edge in of_needs]),
    ]
    both = iter(zip(groups, children, strict=True))
    return [
        [
            (edge, group, child)
            for edge, (group, child) in zip(found, both, strict=False)
            if group is not None and child is not None
        ]
        for found in opened
    ]


def _descendants(need: Descendants, view: Filling) -> Reading[None]:
    reached: set[str] = set()
    starts = [need.uuid]

    def judge(keys: list[Key]) -> Reading[list[str]]:
        return [each.downstream for each in (yield Rows(Edge, keys)) if each is not None]

    def out_of(uuid: str) -> Reading[list[str]]:
        run = Range(BY_UPSTREAM, (need.partition, need.flow_id))
        return walk(*in_order(Edge, run, (uuid,), judge), SELECT_LIMIT)

    while starts:
        outgoing = yield from in_parts(out_of, starts, SIDE_BY_SIDE)
        starts = sorted(set().union(*outgoing) - reached)
        reached.update(starts)
    view.put_descendants(need, frozenset(reached))


# -- queues --------------------------------------------------------------------------------------------------------


def queues(
    lane_id: str, namespaces: Iterable[str] | None, run: Range, able: frozenset[str] | None = None
) -> Reading[list[list[Any]]]:
    """What ``run`` asks for of every run of a lane's queue, or of its parts in some namespaces, that a worker with
    these capabilities can take from; of all of them if nothing is said. Most lanes have one run, for work that asks
    for nothing, so that one is read along with the names of the others."""
    families = (
        [claim_family(lane_id)] if namespaces is None else [claim_family(lane_id, each) for each in sorted(namespaces)]
    )
    plain = [run._replace(family=family, name=()) for family in families]
    answers = yield [*plain, *(Names(family) for family in families)]
    entries, names = answers[: len(plain)], answers[len(plain) :]
    others = [
        run._replace(family=family, name=required)
        for family, sets in zip(families, names, strict=True)
        for required in sets
        if required != () and (able is None or able.issuperset(required))
    ]
    found: list[list[Any]] = entries + ((yield others) if others else [])
    return found


def _claimable(need: Claimable, view: Filling, now: int) -> Reading[None]:
    run = Range(None, limit=need.limit, loose=True, rows=Execution)
    both: list[Reading[Any]] = [
        queues(need.lane_id, need.namespaces, run, need.capabilities),
        forgotten_by_grants(need.lane_id, now),
    ]
    entries, hidden = yield from together(both)
    forgotten = {
        each.execution_id: claim_entry(each)
        for each in hidden
        if need.capabilities.issuperset(each.required_capabilities)
        and (need.namespaces is None or each.namespace in need.namespaces)
    }
    ids = [entry[-1] for entry in islice(merge(*entries, sorted(forgotten.values())), need.limit)]
    found = yield from _put_executions(ids, view, loose=True)
    # What was taken since the queue was read is a candidate no longer.
    view.put_claimable(
        need,
        [
            each.execution_id
            for each in found
            if each is not None
            and (lit.is_claimable(each.lifecycle_phase, each.eligibility_state) or each.execution_id in forgotten)
        ],
    )


def forgotten_by_grants(lane_id: str, now: int) -> Reading[list[Execution]]:
    """Executions of the lane that are hidden by claim grants nobody used in time."""
    expired = yield from walk(Range(GRANT_EXPIRY, high=(now + 1,), loose=True), at_once, SELECT_LIMIT)
    if not expired:
        return []
    ids = list(dict.fromkeys(wire_id(partition, uuid) for _, partition, uuid, _ in expired))
    hidden = [
        each
        for each in (yield Rows(Execution, ids, True))
        if each is not None
        and each.lane_id == lane_id
        and each.eligibility_state == lit.PENDING_CLAIM
        and each.lifecycle_phase in lit.WAITING_PHASES
    ]
    grants = yield from in_parts(_grants, hidden, SIDE_BY_SIDE)
    return [
        each
        for each, others in zip(hidden, grants, strict=True)
        if not any(one.kind == lit.GRANT_CLAIM and not 0 < one.expires_at_ms <= now for one in others)
    ]


def _grants(execution: Execution) -> Reading[list[Grant]]:
    return matching(Grant, ("partition", "uuid"), (execution.partition, execution.uuid), SELECT_LIMIT)


def _listed(need: Listed, view: Filling) -> Reading[None]:
    family = GATED if need.what == BLOCKED else NAMING_BUDGET
    entries = yield Range(family, need.name, limit=need.limit, loose=True, rows=Execution)
    found = yield from _put_executions([entry[-1] for entry in entries], view, loose=True)
    view.put_listed(need, [each.execution_id for each in found if each is not None])


def _recent(need: Recent, view: Filling, now: int) -> Reading[None]:
    name = tuple(need[:3])
    low, high = (*name, now - need.window_ms + 1), (*name, math.inf)
    count, oldest, newest = yield [
        Count(WINDOWS, name, low, high),
        Range(WINDOWS, name, low, high, 1),
        Range(WINDOWS, name, limit=1, backwards=True),
    ]
    last = (0, 0)
    if newest:
        at = newest[0][3]
        ties = yield Range(WINDOWS, name, (*name, at), (*name, at + 1))
        rows = yield Rows(QuotaWindow, ties, True)
        last = (at, max(row.number for row in rows if row is not None))
    view.put_recent(need, count, oldest[0][3] if oldest else None, last)


def _slots(need: Slots, view: Filling) -> Reading[None]:
    view.put_slots(need, (yield Count(SLOTS, need.quota_policy_id)))


def _ranked(need: Ranked, view: Filling) -> Reading[None]:
    run = Range(rank_family(need.lane_id), (need.priority, need.fair_key), limit=need.limit)
    entries = yield run._replace(backwards=need.fair_key is not None)
    view.put_ranked(need, [(execution_id, rank) for rank, execution_id in entries])


def _misplaced(need: Misplaced, view: Filling) -> Reading[None]:
    ids = (yield from _stray(need)) or (yield from _unranked(need))
    found = yield from _put_executions(ids, view)
    tag = (need.fair_by or "").partition(":")[2]
    documents = (yield Whole(ids, DOCUMENT, True)) if tag and ids else found
    view.put_misplaced(
        need,
        [
            (each.execution_id, tag_of(document, tag) if tag else each.namespace)
            for each, document in zip(found, documents, strict=True)
            if each is not None and document is not None
        ],
    )


def _stray(need: Misplaced) -> Reading[list[str]]:
    names = yield Names(rank_family(need.lane_id))
    ids: list[str] = []
    for name in names:
        key = name[1]
        if key is not None and (
            need.fair_by is None or not key.removeprefix(FAIR_RETURNING).startswith(need.fair_by + FAIR_SEPARATOR)
        ):
            entries = yield Range(rank_family(need.lane_id), name, limit=need.limit - len(ids), loose=True)
            ids += [execution_id for _, execution_id in entries]
            if len(ids) >= need.limit:
                break
    return ids


def _unranked(need: Misplaced) -> Reading[list[str]]:
    """Within each run and priority those without a rank are the last ones: jump from one priority to the next."""
    if need.fair_by is None:
        return []
    ids: list[str] = []
    family = claim_family(need.lane_id)
    for name in dict.fromkeys([(), *(yield Names(family))]):
        run = Range(family, name, loose=True)
        first = yield run._replace(limit=1)
        while first and len(ids) < need.limit:
            priority = first[0][0]
            entries = yield run._replace(low=(priority, 0), high=(priority, 1), limit=need.limit - len(ids))
            ids += [entry[-1] for entry in entries]
            first = yield run._replace(low=(priority, 1), limit=1)
    return ids


#: How the rarer needs are loaded.
_LOADERS: Mapping[Any, Callable[[Any, Filling], Reading[None]]] = {
    Select: _selected,
    Slots: _slots,
    Ranked: _ranked,
    Misplaced: _misplaced,
    EndedAmong: _ended,
    Descendants: _descendants,
    First: _first,
    LiveMembers: _live_members,
    Listed: _listed,
}
