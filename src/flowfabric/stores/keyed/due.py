"""Answers to what timers ask: which rows to look at, and when the next one falls due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowfabric.model import states as lit
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.flows import Flow, FlowCounts
from flowfabric.stores import questions as ask
from flowfabric.stores.keyed import entries as index
from flowfabric.stores.keyed.reads import Names, Range, Reading, Rows, Whole, walk, walk_merged
from flowfabric.stores.keyed.records import Dispatch, wire_id
from flowfabric.stores.keyed.rows import executions

#: How entries of a run become ids of executions.
_Judge = Callable[[list[Any]], Reading[list[str]]]


def current(fits: Callable[[Execution, Attempt], bool]) -> Callable[[list[Any]], Reading[list[Any]]]:
    """Of entries ``(time, execution id, attempt index)`` those whose attempt is the current one and fits, each as
    ``(execution, attempt)``."""

    def judge(entries: list[Any]) -> Reading[list[Any]]:
        both = yield from executions([entry[1] for entry in entries], loose=True)
        return [
            (execution, attempt)
            for (_, _, attempt_index), (execution, attempt) in zip(entries, both, strict=True)
            if execution is not None
            and attempt is not None
            and execution.attempt_index == attempt_index
            and fits(execution, attempt)
        ]

    return judge


def _any(execution: Execution, attempt: Attempt) -> bool:
    return True


def _has(field: str) -> Callable[[Execution, Attempt], bool]:
    """Whether a time still stands: a lease may be given up between the look at its entry and the look at its record."""
    return lambda execution, attempt: getattr(attempt, field) is not None


def _named(entries: list[Any]) -> list[str]:
    """Ids of entries ``(time, execution id, …)``."""
    return [entry[1] for entry in entries]


def _last(entries: list[Any]) -> list[str]:
    return [entry[-1] for entry in entries]


def _by_uuid(entries: list[Any]) -> list[str]:
    """Ids of entries ``(time, partition, uuid, …)``."""
    return [wire_id(entry[1], entry[2]) for entry in entries]


#: Timers whose rows stand in one run, by their time, and how its entries name them.
_BY_TIME: Mapping[str, tuple[str, Callable[[list[Any]], list[str]]]] = {
    "delayed_promoter": (index.DELAY, _named),
    "execution_deadline": (index.DEADLINE, _named),
    "suspension_timeout": (index.SUSPENSION_TIMEOUT, _named),
    "pending_wp_expiry": (index.WAITPOINT_EXPIRY, _named),
    "lease_expiry": (index.LEASE_EXPIRY, _named),
    "attempt_timeout": (index.ATTEMPT_TIMEOUT, _named),
    "grant_sweep": (index.GRANT_EXPIRY, _by_uuid),
    "undispatched": (index.UNDISPATCHED, _by_uuid),
    "purge": (index.PURGE, _named),
}
#: Timers that look at whole runs: family, name, and how entries name the rows.
_WHOLE: Mapping[str, tuple[Any, Any, Callable[[list[Any]], list[str]]]] = {
    "orphans": (index.CHILDREN, None, list),
    "unblock": (index.BLOCKED, lit.BLOCKED_BY_ROUTE, _named),
    "lane_blocked": (index.BLOCKED, lit.BLOCKED_BY_LANE_STATE, _named),
    "ungated": (index.GATED, None, _last),
}
#: Those whose rows are attempts: only the current one of an execution counts.
_OF_ATTEMPTS = frozenset({"lease_expiry", "attempt_timeout"})


def _due(question: ask.Due) -> Reading[list[str]]:
    """Which rows a timer looks at, in which order. Whether they are due is decided by its rule."""
    what = question.what
    low, high = None if question.since is None else (question.since,), (question.now + 1,)
    found: set[str] = set()

    def asked_for(name: Callable[[list[Any]], list[str]]) -> _Judge:
        def judge(entries: list[Any]) -> Reading[list[str]]:
            if what in _OF_ATTEMPTS:
                held = yield from current(_any)(entries)
                ids = [execution.execution_id for execution, _ in held]
            else:
                ids = name(entries)
            # Several grants or waitpoints may stand on one execution.
            ids = [each for each in dict.fromkeys(ids) if each not in question.skip and each not in found]
            wanted = yield from _wanted(question, ids)
            found.update(wanted)
            return wanted

        return judge

    if what in _BY_TIME:
        family, name = _BY_TIME[what]
        run = Range(family, low=low, high=high, loose=True)
        return (yield from walk(run, asked_for(name), question.limit))
    if what in _WHOLE:
        family, run_name, name = _WHOLE[what]
        run = Range(family, run_name, low=question.after, behind=question.after is not None, loose=True)
        return (yield from walk(run, asked_for(name), question.limit))
    if what == "intake":
        # Nobody asks for these but by an explicit call, so they have no index of their own.
        namespaces = (yield Names(index.CREATED)) if question.namespace is None else (question.namespace,)
        runs = [Range(index.CREATED, each, loose=True) for each in namespaces]
        return (yield from walk_merged(runs, asked_for(_last), question.limit))
    if what == "retention":
        lanes = (yield Names(index.ENDED)) if question.lane_id is None else (question.lane_id,)
        runs = [Range(index.ENDED, lane, low=low, high=high, loose=True) for lane in lanes]
        return (yield from walk_merged(runs, asked_for(_named), question.limit))
    raise ValueError(f"no timer is called {what!r}")


def _wanted(question: ask.Due, ids: list[str]) -> Reading[list[str]]:
    """Those of some executions that the question is about."""
    if not ids:
        return []
    rows = yield Rows(Execution, ids, True) if question.tag is None else Whole(ids, index.DOCUMENT, True)
    found = [each for each in rows if each is not None and _fits(question, each)]
    if question.what in ("retention", "purge"):
        return (yield from _over(found))
    if question.what == "orphans":
        return (yield from _left_behind(found))
    return [each.execution_id for each in found]


def _fits(question: ask.Due, execution: Execution) -> bool:
    return (
        (question.what != "intake" or execution.lifecycle_phase == lit.SUBMITTED)
        and (question.lane_id is None or execution.lane_id == question.lane_id)
        and (question.partition is None or execution.partition == question.partition)
        and (question.namespace is None or execution.namespace == question.namespace)
        and (question.tag is None or index.tag_of(execution, question.tag[0]) == question.tag[1])
    )


def _over(found: list[Execution]) -> Reading[list[str]]:
    """Executions of which nothing is left to dispatch, and whose flow is over as far as anybody has noticed."""
    members = [each for each in found if each.flow_id is not None]
    if not members:
        return [each.execution_id for each in found]
    flow_keys = [(each.partition, each.flow_id) for each in members]
    flows, counts, dispatches = yield [
        Rows(Flow, flow_keys, True),
        Rows(FlowCounts, flow_keys, True),
        Rows(Dispatch, [(each.partition, each.uuid) for each in members], True),
    ]
    kept = set()
    for each, flow, count, dispatch in zip(members, flows, counts, dispatches, strict=True):
        over = flow is None or flow.public_flow_state in lit.ENDED_FLOW_STATES or is_final(count)
        if not over or (dispatch is not None and dispatch.waiting_since_ms is not None):
            kept.add(each.execution_id)
    return [each.execution_id for each in found if each.execution_id not in kept]


def is_final(counts: FlowCounts | None) -> bool:
    """Whether the last projection found that a flow cannot change any more."""
    return counts is not None and counts.public_flow_state in ("completed", "failed")


def _left_behind(found: list[Execution]) -> Reading[list[str]]:
    """Children whose parent has ended in a way that takes them along."""
    parents = yield Rows(Execution, [wire_id(each.partition, each.parent or "") for each in found], True, True)
    return [
        child.execution_id
        for child, parent in zip(found, parents, strict=True)
        if child.terminal_at_ms is None and parent is not None and parent.public_state in lit.TAKING_CHILDREN_ALONG
    ]


_NEXT_DUE = (
    index.DELAY,
    index.DEADLINE,
    index.SUSPENSION_TIMEOUT,
    index.BUDGET_RESET,
    index.QUOTA_ROOM,
    index.SCHEDULE_DUE,
)


def _next_due(question: ask.NextDue) -> Reading[int | None]:
    firsts = yield [Range(family, limit=1, loose=True) for family in _NEXT_DUE]
    times = [entries[0][0] for entries in firsts if entries]
    for family, field in (
        (index.LEASE_EXPIRY, "lease_expires_at_ms"),
        (index.ATTEMPT_TIMEOUT, "attempt_timeout_at_ms"),
    ):
        found = yield from walk(Range(family, loose=True), current(_has(field)), 1)
        times += [getattr(attempt, field) for _, attempt in found]
    return min(times, default=None)


ANSWERS: Mapping[Any, Callable[[Any], Reading[Any]]] = {
    ask.Due: _due,
    ask.NextDue: _next_due,
}
