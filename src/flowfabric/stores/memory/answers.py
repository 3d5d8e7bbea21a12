"""Answers to ``stores.questions``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Any

from flowfabric.model import literals as lit
from flowfabric.model.records import Attempt, Execution, FrameRow, Lane, Suspension, Waitpoint, Worker
from flowfabric.model.steps import Step
from flowfabric.stores import questions as ask
from flowfabric.stores.memory import (
    budgetanswers,
    flowanswers,
    indexes as index,
    overviewanswers,
    searchanswers,
    startanswers,
)
from flowfabric.stores.memory.examineanswers import count_frames
from flowfabric.stores.memory.reading import forgotten_by_grants
from flowfabric.stores.memory.tables import Tables, wire_id

#: Behind every text that begins with, or equals, the text before it.
_NEXT = "\0"


def answer(tables: Tables, question: Any) -> Any:
    """The answer to a question that changes nothing."""
    return _ANSWERS[type(question)](tables, question)


# -- lists ---------------------------------------------------------------------------------------------------------


def _list_executions(tables: Tables, question: ask.ListExecutions) -> list[str]:
    run = tables.indexes.run(index.group_family(Execution, ("partition",)), (question.partition,))
    low = None if question.after is None else wire_id(question.partition, question.after) + _NEXT
    return list(islice(run.between(low), question.limit))


def _read_contexts(tables: Tables, question: ask.ReadContexts) -> list[tuple[str, Any, Any]]:
    found = (tables.find(Execution, each) for each in question.execution_ids)
    return [(each.execution_id, each.payload, each.raw_fields) for each in found if each is not None]


def _list_lanes(tables: Tables, question: ask.ListLanes) -> list[Lane]:
    lanes = sorted(tables.all(Lane).items())
    return [lane for name, lane in lanes if question.after is None or name > question.after][: question.limit]


def _list_suspended(tables: Tables, question: ask.ListSuspended) -> list[tuple[str, int, str]]:
    run = tables.indexes.run(index.SUSPENDED, question.partition)
    entries = run.between()
    if question.after is not None:
        cursor = tables.find(Suspension, (question.partition, question.after))
        if cursor is None:
            entries = (entry for entry in entries if entry[1] > question.after)
        else:
            entries = run.between((cursor.suspended_at_ms, cursor.uuid + _NEXT))
    found = (tables.all(Suspension)[(question.partition, uuid)] for _, uuid in islice(entries, question.limit))
    return [(wire_id(each.partition, each.uuid), each.suspended_at_ms, each.reason_code or "") for each in found]


def _live_steps(tables: Tables, question: ask.LiveSteps) -> list[tuple[str, str]]:
    found = []
    for key in sorted(tables.all(Step)):
        execution = tables.find(Execution, wire_id(key[0], key[1]))
        lives = execution is not None and execution.lifecycle_phase not in lit.ENDED_PHASES
        if lives and (question.after is None or key > question.after):
            found.append((wire_id(key[0], key[1]), key[2]))
    return found[: question.limit]


def _list_waitpoints(tables: Tables, question: ask.ListWaitpoints) -> list[Waitpoint]:
    found = tables.select(Waitpoint, partition=question.partition, uuid=question.uuid)
    wanted = (
        each
        for each in found
        if each.state in lit.LIVE_WAITPOINTS and (question.after is None or each.waitpoint_id > question.after)
    )
    return list(islice(wanted, question.limit))


def _list_expired_leases(tables: Tables, question: ask.ListExpiredLeases) -> list[tuple[Execution, Attempt]]:
    low = None
    if question.after_ms is not None and question.after_id is not None:
        low = (question.after_ms, question.after_id, math.inf)
    run = tables.indexes.run(index.LEASE_EXPIRY)
    found = (
        (execution, attempt)
        for _, execution, attempt in _current(tables, run.between(low, (question.as_of + 1,)))
        if execution.lifecycle_phase == lit.ACTIVE
        and attempt.worker_instance_id
        and (question.namespace is None or execution.namespace == question.namespace)
    )
    return [
        (tables.execution(execution.execution_id) or execution, attempt)
        for execution, attempt in islice(found, question.limit)
    ]


def _list_leases(tables: Tables, question: ask.ListLeases) -> list[tuple[Execution, Attempt]]:
    run = tables.indexes.run(index.LEASE_EXPIRY)
    found = (
        (tables.execution(execution.execution_id) or execution, attempt)
        for _, execution, attempt in _current(tables, run.between((question.now + 1,)))
        if attempt.worker_instance_id == question.worker_instance_id
    )
    return list(islice(found, question.limit))


def _read_frames(tables: Tables, question: ask.ReadFrames) -> list[tuple[int, int, str, str]]:
    execution_id = wire_id(question.partition, question.uuid)
    low = (execution_id, question.attempt_index, *question.low)
    high = (execution_id, question.attempt_index, question.high[0], question.high[1] + 1)
    frames = map(tables.all(FrameRow).__getitem__, tables.frames_of(execution_id).between(low, high))
    wanted = (frame for frame in frames if frame.mode != question.exclude_mode)
    return [(frame.ts_ms, frame.seq, frame.fields, frame.mode) for frame in islice(wanted, question.limit)]


def _scan_eligible(tables: Tables, question: ask.ScanEligible) -> list[str]:
    runs = tables.indexes.runs(index.claim_family(question.lane_id)).values()
    forgotten = sorted(map(index.claim_entry, forgotten_by_grants(tables, question.lane_id, question.now)))
    ids = (entry[-1] for entry in merge(*(run.between() for run in runs), forgotten))
    wanted = (
        execution_id
        for execution_id in ids
        if question.partition is None or tables.all(Execution)[execution_id].partition == question.partition
    )
    return list(islice(wanted, question.limit))


def _count_rows(tables: Tables, question: ask.CountRows) -> dict[str, int]:
    return dict(Counter(execution.lifecycle_phase for execution in tables.all(Execution).values()))


# -- workers -------------------------------------------------------------------------------------------------------


def _workers(tables: Tables) -> Iterator[tuple[Worker, int]]:
    """Each worker with the time until which it counts as alive, in key order."""
    for _, worker in sorted(tables.all(Worker).items()):
        yield worker, worker.last_heartbeat_ms + worker.liveness_ttl_ms


def _list_workers(tables: Tables, question: ask.ListWorkers) -> list[Worker]:
    return [
        worker
        for worker, until in _workers(tables)
        if worker.namespace == question.namespace
        and until > question.now
        and (question.after is None or worker.worker_instance_id > question.after)
    ][: question.limit]


def _live_workers(tables: Tables, question: ask.LiveWorkers) -> list[Worker]:
    return [worker for worker, until in _workers(tables) if until > question.now][: question.limit]


def _search_workers(tables: Tables, question: ask.SearchWorkers) -> list[Worker]:
    live = {worker.key: worker for worker, until in _workers(tables) if until > question.now}
    return startanswers.within(live, question.namespaces, question.after)[: question.limit]


def _due_workers(tables: Tables, question: ask.DueWorkers) -> list[tuple[str, str]]:
    return [worker.key for worker, until in _workers(tables) if until <= question.now][: question.limit]


# -- what is due ---------------------------------------------------------------------------------------------------


def _current(tables: Tables, entries: Iterable[Any]) -> Iterator[tuple[int, Execution, Attempt]]:
    """Of entries ``(time, execution id, attempt index)`` those whose attempt is the execution's current one."""
    for at, execution_id, attempt_index in entries:
        execution = tables.find(Execution, execution_id)
        if execution is not None and execution.attempt_index == attempt_index:
            yield at, execution, tables.all(Attempt)[(execution_id, attempt_index)]


def _until(tables: Tables, question: ask.Due, family: str, name: Any = None) -> Iterator[Any]:
    return tables.indexes.run(family, name).between(None, (question.now + 1,))


def _of_attempts(tables: Tables, question: ask.Due, family: str) -> Iterator[str]:
    return (execution.execution_id for _, execution, _ in _current(tables, _until(tables, question, family)))


def _expired_grants(tables: Tables, question: ask.Due) -> Iterator[str]:
    entries = _until(tables, question, index.GRANT_EXPIRY)
    # Several grants may stand on one execution.
    return iter(dict.fromkeys(wire_id(partition, uuid) for _, partition, uuid, _ in entries))


def _ended(tables: Tables, question: ask.Due) -> Iterator[str]:
    lanes = tables.indexes.runs(index.ENDED) if question.lane_id is None else (question.lane_id,)
    return (entry[1] for entry in merge(*(_until(tables, question, index.ENDED, lane) for lane in lanes)))


def _over(tables: Tables, ended: Iterator[str]) -> Iterator[str]:
    return (execution_id for execution_id in ended if flowanswers.may_go(tables, execution_id))


def _blocked(tables: Tables, state: str) -> Iterator[str]:
    return (entry[1] for entry in tables.indexes.run(index.BLOCKED, state).between())


def _orphans(tables: Tables, question: ask.Due) -> Iterator[str]:
    for child in tables.all(Execution).values():
        if child.parent is None or child.terminal_at_ms is not None:
            continue
        parent = tables.find(Execution, wire_id(child.partition, child.parent))
        if parent is not None and parent.public_state in lit.TAKING_CHILDREN_ALONG:
            yield child.execution_id


#: Timers whose rows stand in an index by their time.
_BY_TIME = {
    "delayed_promoter": index.DELAY,
    "execution_deadline": index.DEADLINE,
    "suspension_timeout": index.SUSPENSION_TIMEOUT,
    "pending_wp_expiry": index.WAITPOINT_EXPIRY,
}
_OTHERWISE: Mapping[str, Callable[[Tables, ask.Due], Iterator[str]]] = {
    "intake": lambda tables, question: (entry[1] for entry in tables.indexes.run(index.INTAKE).between()),
    "lease_expiry": lambda tables, question: _of_attempts(tables, question, index.LEASE_EXPIRY),
    "attempt_timeout": lambda tables, question: _of_attempts(tables, question, index.ATTEMPT_TIMEOUT),
    "grant_sweep": _expired_grants,
    "orphans": _orphans,
    "unblock": lambda tables, question: _blocked(tables, lit.BLOCKED_BY_ROUTE),
    "lane_blocked": lambda tables, question: _blocked(tables, lit.BLOCKED_BY_LANE_STATE),
    "undispatched": flowanswers.undispatched,
    "ungated": budgetanswers.ungated,
    "retention": lambda tables, question: _over(tables, _ended(tables, question)),
    "purge": lambda tables, question: _over(tables, (at[1] for at in _until(tables, question, index.PURGE))),
}


def _due_ids(tables: Tables, question: ask.Due) -> Iterator[str]:
    """Which rows a timer looks at, in which order. Whether they are due is decided by its rule."""
    family = _BY_TIME.get(question.what)
    if family is not None:
        # Several waitpoints of one execution may be due.
        return iter(dict.fromkeys(entry[1] for entry in _until(tables, question, family)))
    otherwise = _OTHERWISE.get(question.what)
    if otherwise is None:
        raise ValueError(f"no timer is called {question.what!r}")
    return otherwise(tables, question)


def _due(tables: Tables, question: ask.Due) -> list[str]:
    wanted = (
        execution_id
        for execution_id in _due_ids(tables, question)
        if execution_id not in question.skip and _is_asked_for(question, tables.find(Execution, execution_id))
    )
    return list(islice(wanted, question.limit))


def _is_asked_for(question: ask.Due, execution: Execution | None) -> bool:
    return (
        execution is not None
        and (question.lane_id is None or execution.lane_id == question.lane_id)
        and (question.partition is None or execution.partition == question.partition)
        and (question.namespace is None or execution.namespace == question.namespace)
        and (question.tag is None or index.tag_of(execution, question.tag[0]) == question.tag[1])
    )


_NEXT_DUE = (
    index.DELAY,
    index.DEADLINE,
    index.SUSPENSION_TIMEOUT,
    index.BUDGET_RESET,
    index.QUOTA_ROOM,
    index.SCHEDULE_DUE,
)


def _next_due(tables: Tables, question: ask.NextDue) -> int | None:
    run = tables.indexes.run
    firsts = [run(family).first() for family in _NEXT_DUE]
    held = (_current(tables, run(family).between()) for family in (index.LEASE_EXPIRY, index.ATTEMPT_TIMEOUT))
    firsts += [next(entries, None) for entries in held]
    return min((first[0] for first in firsts if first is not None), default=None)


_ANSWERS: Mapping[Any, Callable[[Tables, Any], Any]] = {
    ask.ListExecutions: _list_executions,
    ask.ReadContexts: _read_contexts,
    ask.ListLanes: _list_lanes,
    ask.ListSuspended: _list_suspended,
    ask.LiveSteps: _live_steps,
    ask.ListWaitpoints: _list_waitpoints,
    ask.ListWorkers: _list_workers,
    ask.LiveWorkers: _live_workers,
    ask.SearchWorkers: _search_workers,
    ask.ListExpiredLeases: _list_expired_leases,
    ask.ListLeases: _list_leases,
    ask.ReadFrames: _read_frames,
    ask.Due: _due,
    ask.DueWorkers: _due_workers,
    ask.NextDue: _next_due,
    ask.ScanEligible: _scan_eligible,
    ask.CountRows: _count_rows,
    ask.CountFrames: count_frames,
    ask.Integrity: lambda tables, question: [],
    **flowanswers.ANSWERS,
    **budgetanswers.ANSWERS,
    **startanswers.ANSWERS,
    **searchanswers.ANSWERS,
    **overviewanswers.ANSWERS,
}
