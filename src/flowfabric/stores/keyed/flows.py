"""Answers to questions about flows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from flowfabric.model.operations.flows import EdgeState
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import (
    CancelBacklog,
    CancelBacklogMember,
    Edge,
    EdgeGroup,
    Flow,
    FlowCounts,
    PendingCancelGroup,
)
from flowfabric.model.states import ENDED_PHASES
from flowfabric.stores import questions as ask
from flowfabric.stores.keyed import entries as index
from flowfabric.stores.keyed.due import is_final
from flowfabric.stores.keyed.reads import (
    CHUNK,
    SIDE_BY_SIDE,
    Range,
    Reading,
    Rows,
    Whole,
    in_parts,
    visit,
    walk,
)
from flowfabric.stores.keyed.records import wire_id
from flowfabric.stores.keyed.rows import in_order, matching

_BY_FLOW = ("partition", "flow_id")
_BY_DOWNSTREAM = index.group_family(Edge, _BY_FLOW, "downstream")
#: Flows whose members are counted side by side.
_COUNTED_TOGETHER = 16


def _list_flows(question: ask.ListFlows) -> Reading[list[tuple[str, int, str]]]:
    low = (question.partition,) if question.after is None else (question.partition, question.after)
    run = Range(index.FLOWS, None, low, (question.partition + 1,), question.limit, question.after is not None)
    flows = yield Rows(Flow, (yield run), True)
    return [(flow.flow_id, flow.created_at_ms, flow.public_flow_state) for flow in flows if flow is not None]


def _stuck_members(question: ask.StuckMembers) -> Reading[tuple[list[str], str | None]]:
    run = Range(index.WAITING_CHILDREN, low=question.after, behind=question.after is not None, loose=True)
    ids = yield run._replace(limit=question.window, rows=Execution)
    found = yield Rows(Execution, ids, True) if question.tag is None else Whole(ids, index.DOCUMENT, True)
    waiting = [
        each
        for each in found
        if each is not None
        and question.namespace in (None, each.namespace)
        and (question.tag is None or index.tag_of(each, question.tag[0]) == question.tag[1])
    ]
    judged = yield from in_parts(_is_stuck, waiting, SIDE_BY_SIDE)
    stuck = [each.execution_id for each, is_stuck in zip(waiting, judged, strict=True) if is_stuck]
    return stuck, ids[-1] if len(ids) == question.window else None


def _is_stuck(child: Execution) -> Reading[bool]:
    waits = False

    def ended(keys: list[Any]) -> Reading[list[Execution]]:
        nonlocal waits
        edges = yield Rows(Edge, keys, True)
        open_edges = [each for each in edges if each is not None and each.edge_state == EdgeState.APPLIED]
        if not open_edges:
            return []
        waits = True
        ids = [wire_id(each.partition, each.upstream) for each in open_edges]
        upstreams = yield Rows(Execution, ids, True, True)
        return [each for each in upstreams if each is not None and each.lifecycle_phase in ENDED_PHASES]

    edges = Range(_BY_DOWNSTREAM, (child.partition, child.flow_id), loose=True)
    found = yield from walk(*in_order(Edge, edges, (child.uuid,), ended), 1, first=CHUNK)
    return bool(found) or not waits


def _pending_groups(question: ask.PendingGroups) -> Reading[list[tuple[int, str, str]]]:
    def actionable(entries: list[Any]) -> Reading[list[Any]]:
        keys = [entry[1:] for entry in entries]
        groups = yield Rows(EdgeGroup, keys, True)
        return [
            key for key, group in zip(keys, groups, strict=True) if group is None or group.cancel_siblings_pending_flag
        ]

    def lost(keys: list[Any]) -> Reading[list[Any]]:
        items = yield Rows(PendingCancelGroup, keys, True)
        return [key for key, item in zip(keys, items, strict=True) if item is None]

    items = Range(index.PENDING_GROUPS, limit=question.limit, loose=True)
    if question.actionable:
        return (yield from walk(items, actionable, question.limit))
    queued = [entry[1:] for entry in (yield items)]
    return queued + (yield from walk(Range(index.FLAGGED_GROUPS, loose=True), lost, question.limit, first=CHUNK))


def _backlog_due(question: ask.BacklogDue) -> Reading[list[tuple[int, str]]]:
    def judge(entries: list[Any]) -> Reading[list[tuple[int, str]]]:
        headers = yield Rows(CancelBacklog, [entry[1:] for entry in entries], True)
        return [
            each.key
            for each in headers
            if each is not None and (each.grace_until_ms is None or each.grace_until_ms <= question.now)
        ]

    return (yield from walk(Range(index.BACKLOG, loose=True), judge, question.limit))


def _backlog_members(question: ask.BacklogMembers) -> Reading[list[str]]:
    where = (question.partition, question.flow_id)
    rows = yield from matching(CancelBacklogMember, _BY_FLOW, where, question.limit)
    return [row.execution_id for row in rows]


def _behind(after: tuple[int, str] | None) -> Range:
    return Range(index.FLOWS, low=after, behind=after is not None, loose=True)


def _open_flows(question: ask.OpenFlows) -> Reading[list[tuple[int, str]]]:
    def judge(keys: list[Any]) -> Reading[list[tuple[int, str]]]:
        counts = yield Rows(FlowCounts, keys, True)
        return [key for key, count in zip(keys, counts, strict=True) if not is_final(count)]

    return (yield from walk(_behind(question.after), judge, question.limit))


def _empty_flows(question: ask.EmptyFlows) -> Reading[tuple[list[tuple[int, str]], tuple[int, str] | None]]:
    found = yield _behind(question.after)._replace(limit=question.window)
    members = yield [Range(index.MEMBERS, key, limit=1, loose=True) for key in found]
    last = found[-1] if len(found) == question.window else None
    return [key for key, first in zip(found, members, strict=True) if not first], last


def _count_members(question: ask.CountMembers) -> Reading[dict[tuple[int, str], dict[str, int]]]:
    counts = yield from in_parts(_count_states, question.flows, _COUNTED_TOGETHER)
    return dict(zip(question.flows, counts, strict=True))


def _count_states(flow: tuple[int, str]) -> Reading[dict[str, int]]:
    counts: Counter[str] = Counter()

    def look(ids: list[str]) -> Reading[None]:
        members = yield Rows(Execution, ids, True)
        counts.update(each.public_state for each in members if each is not None)

    yield from visit(Range(index.MEMBERS, flow, loose=True, rows=Execution), look, most=CHUNK)
    return dict(counts)


ANSWERS: Mapping[Any, Callable[[Any], Reading[Any]]] = {
    ask.ListFlows: _list_flows,
    ask.StuckMembers: _stuck_members,
    ask.PendingGroups: _pending_groups,
    ask.BacklogDue: _backlog_due,
    ask.BacklogMembers: _backlog_members,
    ask.OpenFlows: _open_flows,
    ask.EmptyFlows: _empty_flows,
    ask.CountMembers: _count_members,
}
