"""Answers to ``stores.questions``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import merge
from itertools import islice
from typing import Any

from flowfabric.model import states as lit
from flowfabric.model.decisions import SELECT_LIMIT
from flowfabric.model.records.executions import Attempt, Execution, GoneWorker, Lane, Suspension, Waitpoint, Worker
from flowfabric.model.records.starts import Schedule
from flowfabric.model.records.streams import FrameRow
from flowfabric.stores import questions as ask
from flowfabric.stores.keyed import budgets, due, entries as index, flows, logs, overview, search, starts
from flowfabric.stores.keyed.load import forgotten_by_grants, queues
from flowfabric.stores.keyed.reads import (
    CHUNK,
    LARGEST_CHUNK,
    All,
    Names,
    Range,
    Reading,
    Rows,
    Whole,
    at_once,
    in_parts,
    visit,
    walk,
    walk_merged,
)
from flowfabric.stores.keyed.records import wire_id
from flowfabric.stores.keyed.rows import matching

_FRAMES = index.group_family(FrameRow, ("partition", "uuid"))
#: Lanes of namespaces that one trip looks into.
_MOST_LOOKED_INTO = 512


def answer(question: Any) -> Reading[Any]:
    """The answer to a question that changes nothing."""
    return _ANSWERS[type(question)](question)


# -- lists ---------------------------------------------------------------------------------------------------------


def _list_executions(question: ask.ListExecutions) -> Reading[list[str]]:
    low = (question.partition,) if question.after is None else (question.partition, question.after)
    run = Range(index.EXECUTIONS, None, low, (question.partition + 1,), question.limit, question.after is not None)
    return [wire_id(*entry) for entry in (yield run)]


def _read_contexts(question: ask.ReadContexts) -> Reading[list[tuple[Any, ...]]]:
    size, rows = 0, []
    for each in (yield Whole(question.execution_ids, ("payload", *index.DOCUMENT), True)):
        if each is None:
            continue
        if question.most_bytes is not None and size >= question.most_bytes:
            break
        size += len(each.payload or b"")
        rows.append((each.execution_id, each.payload, each.raw_fields, each.cancel_at_ms, each.cancellation_reason))
    return rows


def _read_documents(question: ask.ReadDocuments) -> Reading[list[tuple[str, Any]]]:
    found = yield Whole(question.execution_ids, index.DOCUMENT, True)
    return [(each.execution_id, each.raw_fields) for each in found if each is not None]


def _list_lanes(question: ask.ListLanes) -> Reading[list[Lane]]:
    lanes = [
        lane
        for lane in (yield All(Lane))
        if question.after is None
        or lane.lane_id > question.after
        or (question.inclusive and lane.lane_id == question.after)
    ]
    if question.namespaces is None:
        return lanes[: question.limit]
    return (yield from _visible(lanes, question.namespaces, question.now, question.limit))


def _visible(lanes: list[Lane], namespaces: tuple[str, ...], now: int, limit: int) -> Reading[list[Lane]]:
    """The first lanes in which one of these namespaces has work that has not ended, a schedule or a live worker."""
    known = yield from _named_lanes(namespaces, now)
    size = start = 0
    while start < len(lanes) and sum(lane.lane_id in known for lane in lanes[:start]) < limit:
        size = min(max(2 * size, limit), LARGEST_CHUNK)
        known |= yield from _waiting_lanes(_others(lanes[start : start + size], known), namespaces)
        start += size
    # Work is claimed meanwhile, so leases are looked at afterwards; what they hold may be given back before that.
    known |= yield from _leased_lanes(_others(lanes[:start], known), namespaces)
    known |= yield from _waiting_lanes(_others(lanes[:start], known), namespaces)
    return [lane for lane in lanes[:start] if lane.lane_id in known][:limit]


def _others(lanes: list[Lane], known: set[str]) -> list[str]:
    return [lane.lane_id for lane in lanes if lane.lane_id not in known]


def _named_lanes(namespaces: tuple[str, ...], now: int) -> Reading[set[str]]:
    """Lanes that a schedule or a live worker of one of these namespaces names."""
    schedules, workers = yield [All(Schedule), All(Worker)]
    found = {each.lane_id for each in schedules if each.namespace in namespaces}
    for worker in workers:
        if alive_until(worker) > now and worker.namespace in namespaces:
            found.update(worker.lanes)
    return found


def _waiting_lanes(lanes: list[str], namespaces: tuple[str, ...]) -> Reading[set[str]]:
    """Those of some lanes in which one of these namespaces has work that has not ended and is under no lease."""
    size = max(_MOST_LOOKED_INTO // max(len(namespaces), 1), 1)
    found = yield from in_parts(lambda lane_id: _has_waiting(lane_id, namespaces), lanes, size)
    return {lane_id for lane_id, has in zip(lanes, found, strict=True) if has}


def _has_waiting(lane_id: str, namespaces: tuple[str, ...]) -> Reading[bool]:
    families = [index.claim_family(lane_id, each) for each in namespaces]
    plain = [Range(family, (), limit=1, loose=True) for family in families]
    aside = [Range(index.ASIDE, each, (lane_id,), (lane_id, index.LAST), 1, loose=True) for each in namespaces]
    answers = yield [*map(Names, families), *plain, *aside]
    if any(answers[len(families) :]):
        return True
    others = [
        Range(family, name, limit=1, loose=True)
        for family, required in zip(families, answers[: len(families)], strict=True)
        for name in required
    ]
    return bool(others) and any((yield others))


def _leased_lanes(lanes: list[str], namespaces: tuple[str, ...]) -> Reading[set[str]]:
    """Those of some lanes in which somebody holds an execution of one of these namespaces."""
    left = set(lanes)

    def judge(entries: list[Any]) -> Reading[list[str]]:
        rows = yield Rows(Execution, [entry[1] for entry in entries], True, True)
        found = {
            each.lane_id
            for each in rows
            if each is not None and each.terminal_at_ms is None and each.namespace in namespaces
        } & left
        left.difference_update(found)
        return list(found)

    if not lanes:
        return left
    return set((yield from walk(Range(index.LEASE_EXPIRY, loose=True), judge, len(lanes), first=CHUNK)))


def _list_suspended(question: ask.ListSuspended) -> Reading[list[tuple[str, int, str]]]:
    run = Range(index.SUSPENDED, question.partition, limit=question.limit, loose=True)
    after = question.after
    if after is not None and question.after_ms is not None:
        run = run._replace(low=(question.after_ms, after), behind=True)
        after = None
    elif after is not None:
        [cursor] = yield Rows(Suspension, [(question.partition, after)], True)
        if cursor is not None:
            run = run._replace(low=(cursor.suspended_at_ms, cursor.uuid), behind=True)
            after = None

    def judge(entries: list[Any]) -> Reading[list[tuple[str, int, str]]]:
        wanted = [(question.partition, uuid) for _, uuid in entries if after is None or uuid > after]
        rows = yield Rows(Suspension, wanted, True)
        return [
            (wire_id(each.partition, each.uuid), each.suspended_at_ms, each.reason_code or "")
            for each in rows
            if each is not None
        ]

    return (yield from walk(run, judge, question.limit))


def _live_steps(question: ask.LiveSteps) -> Reading[list[tuple[str, str]]]:
    def judge(keys: list[Any]) -> Reading[list[tuple[str, str]]]:
        ids = [wire_id(partition, uuid) for partition, uuid, _ in keys]
        rows = yield Rows(Execution, list(dict.fromkeys(ids)), True, True)
        live = {each.execution_id for each in rows if each is not None and each.lifecycle_phase not in lit.ENDED_PHASES}
        return [(each, name) for each, (_, _, name) in zip(ids, keys, strict=True) if each in live]

    run = Range(index.STEPS, low=question.after, behind=question.after is not None, loose=True)
    return (yield from walk(run, judge, question.limit))


def _list_steps(question: ask.ListSteps) -> Reading[list[tuple[int, str, int]]]:
    wanted = None if question.names is None else frozenset(question.names)
    low = None if question.after is None else (*question.after, index.LAST)
    run = Range(index.STEP_ORDER, (question.partition, question.uuid), low, loose=True)
    if wanted is None:
        return (yield from walk(run, at_once, question.limit))

    def judge(entries: list[Any]) -> Reading[list[Any]]:
        return at_once([each for each in entries if each[1] in wanted])

    return (yield from walk(run, judge, question.limit))


def _list_waitpoints(question: ask.ListWaitpoints) -> Reading[list[Waitpoint]]:
    where = (question.partition, question.uuid)
    found = yield from matching(Waitpoint, ("partition", "uuid"), where, SELECT_LIMIT)
    wanted = (
        each
        for each in found
        if each.state in lit.LIVE_WAITPOINTS and (question.after is None or each.waitpoint_id > question.after)
    )
    return list(islice(wanted, question.limit))


def _list_expired_leases(question: ask.ListExpiredLeases) -> Reading[list[tuple[Execution, Attempt]]]:
    run = Range(index.LEASE_EXPIRY, high=(question.as_of + 1,), limit=question.limit, loose=True)
    if question.after_ms is not None and question.after_id is not None:
        run = run._replace(low=(question.after_ms, question.after_id, index.LAST))

    def fits(execution: Execution, attempt: Attempt) -> bool:
        return (
            execution.lifecycle_phase == lit.ACTIVE
            and bool(attempt.worker_instance_id)
            # It may have been renewed or given up since its entry was read.
            and attempt.lease_expires_at_ms is not None
            and attempt.lease_expires_at_ms <= question.as_of
            and (question.namespace is None or execution.namespace == question.namespace)
        )

    return (yield from walk(run, due.current(fits), question.limit))


def _list_leases(question: ask.ListLeases) -> Reading[list[tuple[Execution, Attempt]]]:
    def fits(execution: Execution, attempt: Attempt) -> bool:
        return attempt.worker_instance_id == question.worker_instance_id

    run = Range(index.LEASE_EXPIRY, low=(question.now + 1,), loose=True)
    return (yield from walk(run, due.current(fits), question.limit))


def _read_frames(question: ask.ReadFrames) -> Reading[list[tuple[int, int, str, str]]]:
    execution_id = wire_id(question.partition, question.uuid)
    low = (execution_id, question.attempt_index, *question.low)
    high = (execution_id, question.attempt_index, question.high[0], question.high[1] + 1)

    def judge(keys: list[Any]) -> Reading[list[tuple[int, int, str, str]]]:
        frames = yield Rows(FrameRow, keys, True)
        return [
            (each.ts_ms, each.seq, each.fields, each.mode)
            for each in frames
            if each is not None and each.mode != question.exclude_mode
        ]

    run = Range(_FRAMES, (question.partition, question.uuid), low, high, backwards=question.backwards, loose=True)
    return (yield from walk(run, judge, question.limit))


def _scan_eligible(question: ask.ScanEligible) -> Reading[list[str]]:
    def judge(entries: list[Any]) -> Reading[list[str]]:
        rows = yield Rows(Execution, [entry[-1] for entry in entries], True)
        return [
            each.execution_id
            for each in rows
            if each is not None
            and (question.partition is None or each.partition == question.partition)
            and (question.namespaces is None or each.namespace in question.namespaces)
        ]

    family = index.claim_family(question.lane_id)
    names = dict.fromkeys([(), *(yield Names(family))])
    hidden = yield from forgotten_by_grants(question.lane_id, question.now)
    if hidden:
        # Rare enough to look at the head of the whole queue at once.
        run = Range(None, limit=question.limit, loose=True)
        entries = yield from queues(question.lane_id, None, run)
        return (yield from judge(list(merge(*entries, sorted(map(index.claim_entry, hidden))))))[: question.limit]
    runs = [Range(family, name, loose=True, rows=Execution) for name in names]
    return (yield from walk_merged(runs, judge, question.limit))


def _count_rows(question: ask.CountRows) -> Reading[dict[str, int]]:
    phases: Counter[str] = Counter()

    def look(places: list[Any]) -> Reading[None]:
        found = yield Rows(Execution, [wire_id(*each) for each in places], True, True)
        phases.update(each.lifecycle_phase for each in found if each is not None)

    yield from visit(Range(index.EXECUTIONS, loose=True), look)
    return dict(phases)


# -- workers -------------------------------------------------------------------------------------------------------


def alive_until(worker: Worker) -> int:
    """The time until which a worker counts as alive."""
    return worker.last_heartbeat_ms + worker.liveness_ttl_ms


def _list_workers(question: ask.ListWorkers) -> Reading[list[Worker]]:
    return [
        worker
        for worker in (yield All(Worker))
        if worker.namespace == question.namespace
        and alive_until(worker) > question.now
        and (question.after is None or worker.worker_instance_id > question.after)
    ][: question.limit]


def _live_workers(question: ask.LiveWorkers) -> Reading[list[Worker]]:
    return [worker for worker in (yield All(Worker)) if alive_until(worker) > question.now][: question.limit]


def _search_workers(question: ask.SearchWorkers) -> Reading[list[Worker]]:
    live = [worker for worker in (yield All(Worker)) if alive_until(worker) > question.now]
    return starts.within(live, question.namespaces, question.after)[: question.limit]


def _gone_workers(question: ask.GoneWorkers) -> Reading[list[GoneWorker]]:
    def judge(entries: list[Any]) -> Reading[list[GoneWorker]]:
        found = yield Rows(GoneWorker, [key for _, key in entries], True)
        return [
            each
            for each in found
            if each is not None and (question.namespaces is None or each.namespace in question.namespaces)
        ]

    run = Range(index.GONE_WORKERS, low=(question.since_ms,), backwards=True, loose=True)
    return (yield from walk(run, judge, question.limit))


def _held_leases(question: ask.HeldLeases) -> Reading[dict[str, int]]:
    def fits(execution: Execution, attempt: Attempt) -> bool:
        return bool(attempt.worker_instance_id) and (
            question.namespaces is None or execution.namespace in question.namespaces
        )

    run = Range(index.LEASE_EXPIRY, low=(question.now + 1,), loose=True)
    found = yield from walk(run, due.current(fits), question.limit)
    return dict(Counter(attempt.worker_instance_id for _, attempt in found))


def _due_workers(question: ask.DueWorkers) -> Reading[list[tuple[str, str]]]:
    return [worker.key for worker in (yield All(Worker)) if alive_until(worker) <= question.now][: question.limit]


def _integrity(question: ask.Integrity) -> Reading[list[str]]:
    return (yield from at_once([]))


Answers = Mapping[Any, Callable[[Any], Reading[Any]]]
_TOPICS: Iterable[Answers] = (
    due.ANSWERS,
    flows.ANSWERS,
    budgets.ANSWERS,
    starts.ANSWERS,
    search.ANSWERS,
    overview.ANSWERS,
    logs.ANSWERS,
)
_ANSWERS: Answers = {
    ask.ListExecutions: _list_executions,
    ask.ReadContexts: _read_contexts,
    ask.ReadDocuments: _read_documents,
    ask.ListLanes: _list_lanes,
    ask.ListSuspended: _list_suspended,
    ask.LiveSteps: _live_steps,
    ask.ListSteps: _list_steps,
    ask.ListWaitpoints: _list_waitpoints,
    ask.ListWorkers: _list_workers,
    ask.LiveWorkers: _live_workers,
    ask.SearchWorkers: _search_workers,
    ask.GoneWorkers: _gone_workers,
    ask.HeldLeases: _held_leases,
    ask.ListExpiredLeases: _list_expired_leases,
    ask.ListLeases: _list_leases,
    ask.ReadFrames: _read_frames,
    ask.DueWorkers: _due_workers,
    ask.ScanEligible: _scan_eligible,
    ask.CountRows: _count_rows,
    ask.Integrity: _integrity,
    **{question: find for topic in _TOPICS for question, find in topic.items()},
}
