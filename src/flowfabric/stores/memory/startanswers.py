"""Answers to questions about what starts executions: schedules and requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from flowfabric.model.start_records import EnqueueRequest, Schedule
from flowfabric.stores import questions as ask
from flowfabric.stores.memory import indexes as index
from flowfabric.stores.memory.tables import Tables


def _list_schedules(tables: Tables, question: ask.ListSchedules) -> list[Schedule]:
    found = (record for _, record in sorted(tables.all(Schedule).items()) if record.namespace == question.namespace)
    wanted = (each for each in found if question.after is None or each.schedule_id > question.after)
    return list(islice(wanted, question.limit))


def within(found: Mapping[Any, Any], namespaces: tuple[str, ...] | None, after: tuple[str, str] | None) -> list[Any]:
    """Records by ``(namespace, name)`` that are in one of these namespaces and behind a place, in order."""
    return [
        record
        for key, record in sorted(found.items())
        if (namespaces is None or key[0] in namespaces) and (after is None or key > after)
    ]


def _search_schedules(tables: Tables, question: ask.SearchSchedules) -> list[Schedule]:
    return within(tables.all(Schedule), question.namespaces, question.after)[: question.limit]


def _due_schedules(tables: Tables, question: ask.DueSchedules) -> list[Schedule]:
    entries = tables.indexes.run(index.SCHEDULE_DUE).between(None, (question.now + 1,))
    found = (tables.all(Schedule)[key] for _, key in entries)
    wanted = (each for each in found if question.namespace is None or each.namespace == question.namespace)
    return list(islice(wanted, question.limit))


def _pending_requests(tables: Tables, question: ask.PendingRequests) -> list[EnqueueRequest]:
    waiting = [each for each in tables.all(EnqueueRequest).values() if each.refused_at_ms is None]
    return sorted(waiting, key=lambda each: (each.requested_at_ms, each.request_id))[: question.limit]


def _list_requests(tables: Tables, question: ask.ListRequests) -> list[EnqueueRequest]:
    found = (record for _, record in sorted(tables.all(EnqueueRequest).items()))
    wanted = (
        each
        for each in found
        if (question.after is None or each.request_id > question.after)
        and (each.refused_at_ms is not None or not question.refused)
    )
    return list(islice(wanted, question.limit))


ANSWERS: Mapping[Any, Callable[[Tables, Any], Any]] = {
    ask.ListSchedules: _list_schedules,
    ask.DueSchedules: _due_schedules,
    ask.SearchSchedules: _search_schedules,
    ask.PendingRequests: _pending_requests,
    ask.ListRequests: _list_requests,
}
