"""Answers to questions about flows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, TypeVar

from flowfabric.model import literals as lit
from flowfabric.model.flows import EdgeState
from flowfabric.model.records import (
    CancelBacklog,
    CancelBacklogMember,
    Edge,
    EdgeGroup,
    Execution,
    Flow,
    FlowCounts,
    PendingCancelGroup,
)
from flowfabric.stores import questions as ask
from flowfabric.stores.memory import indexes as index
from flowfabric.stores.memory.tables import Tables, wire_id
from flowfabric.stores.schema import split_wire

_Key = TypeVar("_Key")
#: Behind every text that begins with, or equals, the text before it.
_NEXT = "\0"


def may_go(tables: Tables, execution_id: str) -> bool:
    """Whether nothing is left to dispatch, and the flow is over as far as anybody has noticed."""
    execution = tables.find(Execution, execution_id)
    if execution is None or execution.flow_id is None:
        return True
    key = (execution.partition, execution.flow_id)
    flow, counts = tables.find(Flow, key), tables.find(FlowCounts, key)
    over = flow is None or flow.public_flow_state in lit.ENDED_FLOW_STATES or _is_final(counts)
    return over and (execution.partition, execution.uuid) not in tables.undispatched


def undispatched(tables: Tables, question: ask.Due) -> Iterator[str]:
    """Members whose ends nobody has finished dispatching, oldest first."""
    waiting = sorted((at, key) for key, at in tables.undispatched.items() if at <= question.now)
    return (wire_id(*key) for _, key in waiting)


def _is_final(counts: FlowCounts | None) -> bool:
    return counts is not None and counts.public_flow_state in ("completed", "failed")


def _list_flows(tables: Tables, question: ask.ListFlows) -> list[tuple[str, int, str]]:
    flows = tables.indexes.run(index.group_family(Flow, ("partition",)), (question.partition,))
    low = None if question.after is None else (question.partition, question.after + _NEXT)
    found = (tables.all(Flow)[key] for key in islice(flows.between(low), question.limit))
    return [(flow.flow_id, flow.created_at_ms, flow.public_flow_state) for flow in found]


def _window(keys: Iterable[_Key], size: int) -> tuple[list[_Key], _Key | None]:
    """The first keys, and the last of them if there may be more."""
    found = nsmallest(size, keys)  # type: ignore[type-var]
    return found, found[-1] if len(found) == size else None


def _stuck_members(tables: Tables, question: ask.StuckMembers) -> tuple[list[str], str | None]:
    after = None if question.after is None else split_wire(question.after)
    waiting = (
        split_wire(execution_id)
        for execution_id in tables.indexes.run(index.WAITING_CHILDREN).between()
        if question.namespace in (None, tables.all(Execution)[execution_id].namespace)
    )
    found, last = _window((key for key in waiting if after is None or key > after), question.window)
    stuck = [wire_id(*key) for key in found if _is_stuck(tables, tables.all(Execution)[wire_id(*key)])]
    return stuck, None if last is None else wire_id(*last)


def _is_stuck(tables: Tables, child: Execution) -> bool:
    where = (child.partition, child.flow_id, child.uuid)
    edges = tables.matching(Edge, ("partition", "flow_id", "downstream"), where)
    waiting = [edge for edge in edges if edge.edge_state == EdgeState.APPLIED]
    upstreams = (tables.find(Execution, wire_id(edge.partition, edge.upstream)) for edge in waiting)
    return not waiting or any(each is not None and each.lifecycle_phase in lit.ENDED_PHASES for each in upstreams)


def _pending_groups(tables: Tables, question: ask.PendingGroups) -> list[tuple[int, str, str]]:
    groups, items = tables.all(EdgeGroup), tables.all(PendingCancelGroup)
    queue = sorted(items.values(), key=lambda item: item.enqueued_at_ms)
    if not question.actionable:
        lost = (key for key, group in groups.items() if group.cancel_siblings_pending_flag and key not in items)
        return [*(item.key for item in queue[: question.limit]), *islice(lost, question.limit)]
    wanted = (item.key for item in queue if item.key not in groups or groups[item.key].cancel_siblings_pending_flag)
    return list(islice(wanted, question.limit))


def _backlog_due(tables: Tables, question: ask.BacklogDue) -> list[tuple[int, str]]:
    headers = sorted(tables.all(CancelBacklog).values(), key=lambda header: header.requested_at_ms)
    due = (each.key for each in headers if each.grace_until_ms is None or each.grace_until_ms <= question.now)
    return list(islice(due, question.limit))


def _backlog_members(tables: Tables, question: ask.BacklogMembers) -> list[str]:
    where = (question.partition, question.flow_id)
    rows = tables.matching(CancelBacklogMember, ("partition", "flow_id"), where)
    return [row.execution_id for row in islice(rows, question.limit)]


def _behind(tables: Tables, after: tuple[int, str] | None) -> Iterator[tuple[int, str]]:
    return (key for key in tables.all(Flow) if after is None or key > after)


def _open_flows(tables: Tables, question: ask.OpenFlows) -> list[tuple[int, str]]:
    counts = tables.all(FlowCounts)
    return nsmallest(question.limit, (key for key in _behind(tables, question.after) if not _is_final(counts.get(key))))


def _empty_flows(tables: Tables, question: ask.EmptyFlows) -> tuple[list[tuple[int, str]], tuple[int, str] | None]:
    found, last = _window(_behind(tables, question.after), question.window)
    members = tables.indexes.runs(index.group_family(Execution, ("partition", "flow_id")))
    return [key for key in found if key not in members], last


def _count_members(tables: Tables, question: ask.CountMembers) -> dict[tuple[int, str], dict[str, int]]:
    return {
        key: dict(Counter(each.public_state for each in tables.matching(Execution, ("partition", "flow_id"), key)))
        for key in question.flows
    }


ANSWERS: Mapping[Any, Callable[[Tables, Any], Any]] = {
    ask.ListFlows: _list_flows,
    ask.StuckMembers: _stuck_members,
    ask.PendingGroups: _pending_groups,
    ask.BacklogDue: _backlog_due,
    ask.BacklogMembers: _backlog_members,
    ask.OpenFlows: _open_flows,
    ask.EmptyFlows: _empty_flows,
    ask.CountMembers: _count_members,
}
