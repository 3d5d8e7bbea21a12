"""Answers to what people ask who look after the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from itertools import islice
from typing import Any

import msgspec

from flowfabric.model import literals as lit
from flowfabric.model.events import CompletionEvent
from flowfabric.model.records import Attempt, CancelBacklogMember, Execution, Flow, Worker
from flowfabric.model.samples import SampleRow
from flowfabric.model.start_records import Schedule
from flowfabric.stores import questions as ask
from flowfabric.stores.memory.indexes import SAMPLES
from flowfabric.stores.memory.searchanswers import place, summary
from flowfabric.stores.memory.tables import Outboxes, Tables
from flowfabric.stores.overviewquestions import SET_ASIDE


def _list_namespaces(tables: Tables, question: ask.ListNamespaces) -> list[str]:
    kinds: tuple[Any, ...] = (Execution, Schedule, Worker)
    found = {each.namespace for kind in kinds for each in tables.all(kind).values() if each.namespace is not None}
    return sorted(each for each in found if question.after is None or each > question.after)[: question.limit]


def _text(flow: Flow, name: str) -> Any:
    try:
        document = msgspec.json.decode(flow.raw_fields or "{}")
    except msgspec.DecodeError:
        return None
    return document.get(name) if isinstance(document, dict) else None


def _flow_place(flow: Flow) -> tuple[int, int, str]:
    return (flow.created_at_ms, flow.partition, flow.flow_id)


def _search_flows(tables: Tables, question: ask.SearchFlows) -> list[Flow]:
    fitting = (
        each
        for each in tables.all(Flow).values()
        if (not question.states or each.public_flow_state in question.states)
        and (question.after is None or _flow_place(each) < question.after)
        and (question.namespaces is None or _text(each, "namespace") in question.namespaces)
        and (question.kind is None or _text(each, "flow_kind") == question.kind)
    )
    return nlargest(question.limit, fitting, key=_flow_place)


def _search_suspended(tables: Tables, question: ask.SearchSuspended) -> list[ask.SummaryRow]:
    fitting = (
        each
        for each in tables.all(Execution).values()
        if each.lifecycle_phase == lit.SUSPENDED
        and each.blocking_reason in question.reasons
        and (question.namespaces is None or each.namespace in question.namespaces)
        and (question.after is None or place(each) < question.after)
    )
    return [summary(each) for each in nlargest(question.limit, fitting, key=place)]


def _count_unended(tables: Tables, question: ask.CountUnended) -> tuple[int, ...]:
    rows = tables.all(Execution).values()
    counts: Iterable[int] = (
        sum(each.lease_expires_at_ms is not None for each in tables.all(Attempt).values()),
        sum(each.lifecycle_phase == lit.SUSPENDED for each in rows),
        sum(each.delay_until_ms is not None and each.eligibility_state != lit.BLOCKED_BY_DEPENDENCIES for each in rows),
        sum(each.eligibility_state in SET_ASIDE for each in rows),
        sum(each.eligibility_state == lit.BLOCKED_BY_DEPENDENCIES for each in rows),
        len(tables.all(CancelBacklogMember)),
    )
    return tuple(min(each, question.limit) for each in counts)


def _list_samples(tables: Tables, question: ask.ListSamples) -> list[SampleRow]:
    found = islice(tables.indexes.run(SAMPLES).between((question.since_ms,), None), question.limit)
    return [tables.all(SampleRow)[key] for _, key in found]


def count_ended(outboxes: Outboxes, question: ask.CountEnded) -> tuple[int, list[tuple[int, str, int]]]:
    """Ends by stretches of time."""
    _, top = outboxes.bounds(CompletionEvent)
    after = top - question.limit if question.after is None else question.after
    found: Counter[tuple[int, str]] = Counter()
    for _, event in outboxes.after(CompletionEvent, after):
        found[(event.occurred_at_ms - event.occurred_at_ms % question.stretch_ms, event.outcome)] += 1
    return top, [(stretch, outcome, count) for (stretch, outcome), count in found.items()]


ANSWERS: Mapping[Any, Callable[[Tables, Any], Any]] = {
    ask.ListNamespaces: _list_namespaces,
    ask.SearchFlows: _search_flows,
    ask.SearchSuspended: _search_suspended,
    ask.CountUnended: _count_unended,
    ask.ListSamples: _list_samples,
}
