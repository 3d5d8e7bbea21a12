"""Answers to what people ask who look after the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Any

from flowfabric.model import states as lit
from flowfabric.model.reads.samples import SampleRow
from flowfabric.model.records.executions import Execution, Worker
from flowfabric.model.records.flows import CancelBacklogMember, Flow
from flowfabric.model.records.starts import Schedule
from flowfabric.stores import questions as ask
from flowfabric.stores.keyed import entries as index
from flowfabric.stores.keyed.reads import All, Count, Names, Range, Reading, Rows, Size, visit, walk, walk_merged
from flowfabric.stores.keyed.search import summaries
from flowfabric.stores.sql.overview import SET_ASIDE


def _list_namespaces(question: ask.ListNamespaces) -> Reading[list[str]]:
    names, schedules, workers = yield [Names(index.CREATED), All(Schedule), All(Worker)]
    firsts = yield [Range(index.CREATED, name, limit=1, loose=True) for name in names]
    found = {name for name, first in zip(names, firsts, strict=True) if first and name is not None}
    found.update(each.namespace for each in (*schedules, *workers))
    return sorted(each for each in found if question.after is None or each > question.after)[: question.limit]


def _search_flows(question: ask.SearchFlows) -> Reading[list[Flow]]:
    def judge(entries: list[Any]) -> Reading[list[Flow]]:
        flows = yield Rows(Flow, [(partition, uuid) for _, uuid, partition in entries], True)
        return [
            each
            for each in flows
            if each is not None
            and (question.namespaces is None or index.document_field(each, "namespace") in question.namespaces)
        ]

    run = Range(index.FLOWS_CREATED, high=question.after, backwards=True, loose=True)
    return (yield from walk(run, judge, question.limit))


def _search_suspended(question: ask.SearchSuspended) -> Reading[list[ask.SummaryRow]]:
    def fits(each: Execution) -> bool:
        return (
            each.lifecycle_phase == lit.SUSPENDED
            and each.blocking_reason in question.reasons
            and (question.namespaces is None or each.namespace in question.namespaces)
        )

    judge = summaries(fits)

    if question.flow is not None:
        found: list[ask.SummaryRow] = []

        def look(ids: list[str]) -> Reading[None]:
            nonlocal found
            fitting = yield from judge([(each,) for each in ids])
            behind = [each for each in fitting if question.after is None or _waiting(each) < question.after]
            found = nlargest(question.limit, [*found, *behind], key=_waiting)

        yield from visit(Range(index.MEMBERS, question.flow, loose=True, rows=Execution), look)
        return found
    runs = [
        Range(index.WAITING_SINCE, reason, high=question.after, backwards=True, loose=True, rows=Execution)
        for reason in question.reasons
    ]
    return (yield from walk_merged(runs, judge, question.limit))


def _waiting(each: ask.SummaryRow) -> ask.ListPlace:
    return (each.suspended_at_ms, each.uuid, each.partition)


def _count_unended(question: ask.CountUnended) -> Reading[tuple[int, ...]]:
    whole = (index.LEASE_EXPIRY, index.DELAY, index.WAITING_CHILDREN)
    leased, delayed, dependent, to_cancel, *parts = yield [
        *(Count(family, loose=True) for family in whole),
        Size(CancelBacklogMember),
        *(Count(index.BLOCKED, state, loose=True) for state in SET_ASIDE),
        *(Count(index.WAITING_SINCE, reason.value, loose=True) for reason in lit.BlockingReason),
    ]
    aside, suspended = parts[: len(SET_ASIDE)], parts[len(SET_ASIDE) :]
    counts = (leased, sum(suspended), delayed, sum(aside), dependent, to_cancel)
    return tuple(min(each, question.limit) for each in counts)


def _list_samples(question: ask.ListSamples) -> Reading[list[SampleRow]]:
    entries = yield Range(index.SAMPLES, low=(question.since_ms,), limit=question.limit, loose=True)
    return [each for each in (yield Rows(SampleRow, [key for _, key in entries], True)) if each is not None]


ANSWERS: Mapping[Any, Callable[[Any], Reading[Any]]] = {
    ask.ListNamespaces: _list_namespaces,
    ask.SearchFlows: _search_flows,
    ask.SearchSuspended: _search_suspended,
    ask.CountUnended: _count_unended,
    ask.ListSamples: _list_samples,
}
