"""Answers to questions about what starts executions: schedules, kinds and requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flowfabric.model.records.starts import EnqueueRequest, Schedule
from flowfabric.stores import questions as ask
from flowfabric.stores.keyed import entries as index
from flowfabric.stores.keyed.reads import All, Count, Range, Reading, Rows, at_once, walk


def _list_schedules(question: ask.ListSchedules) -> Reading[list[Schedule]]:
    found = (each for each in (yield All(Schedule)) if each.namespace == question.namespace)
    return [each for each in found if question.after is None or each.schedule_id > question.after][: question.limit]


def within(found: Iterable[Any], namespaces: tuple[str, ...] | None, after: tuple[str, str] | None) -> list[Any]:
    """Records keyed by ``(namespace, name)`` that are in one of these namespaces and behind a place."""
    return [
        each
        for each in found
        if (namespaces is None or each.namespace in namespaces) and (after is None or each.key > after)
    ]


def _search_schedules(question: ask.SearchSchedules) -> Reading[list[Schedule]]:
    return within((yield All(Schedule)), question.namespaces, question.after)[: question.limit]


def _list_kinds(question: ask.ListKinds) -> Reading[list[tuple[str, str, int]]]:
    spaces = (None,) if question.namespaces is None else tuple(sorted(question.namespaces))
    found: list[tuple[str, str, int]] = []
    for space in spaces:
        low: tuple[str, ...] = () if space is None else (index.text_place(space),)
        if question.after is not None:
            low = max(low, (index.text_place(question.after[0]), _behind(question.after[1])))
        high = None if space is None else (_behind(space),)
        if high is None or low < high:
            run = Range(index.ANNOUNCED_KINDS, low=low or None, high=high, loose=True)
            found += yield from walk(run, at_once, question.limit - len(found))
        if len(found) >= question.limit:
            break
    return [(namespace[1:], kind[1:], at_ms) for namespace, kind, at_ms in found]


def _count_kinds(question: ask.CountKinds) -> Reading[int]:
    low, high = (index.text_place(question.namespace),), (_behind(question.namespace),)
    count: int = yield Count(index.ANNOUNCED_KINDS, low=low, high=high, loose=True)
    return count


def _behind(text: str) -> str:
    """The first place behind a text; no name has a NUL in it."""
    return index.text_place(text) + "\x00"


def _due_schedules(question: ask.DueSchedules) -> Reading[list[Schedule]]:
    def judge(entries: list[Any]) -> Reading[list[Schedule]]:
        found = yield Rows(Schedule, [key for _, key in entries], True)
        return [each for each in found if each is not None and fits(each)]

    def fits(schedule: Schedule) -> bool:
        # It may have been paused, or started by somebody else, since its entry was read.
        is_due = schedule.next_at_ms is not None and schedule.next_at_ms <= question.now
        return is_due and question.namespace in (None, schedule.namespace)

    run = Range(index.SCHEDULE_DUE, high=(question.now + 1,), loose=True)
    return (yield from walk(run, judge, question.limit))


def _pending_requests(question: ask.PendingRequests) -> Reading[list[EnqueueRequest]]:
    waiting = [each for each in (yield All(EnqueueRequest)) if each.refused_at_ms is None]
    return sorted(waiting, key=lambda each: (each.requested_at_ms, each.request_id))[: question.limit]


def _list_requests(question: ask.ListRequests) -> Reading[list[EnqueueRequest]]:
    return [
        each
        for each in (yield All(EnqueueRequest))
        if (question.after is None or each.request_id > question.after)
        and (each.refused_at_ms is not None or not question.refused)
    ][: question.limit]


ANSWERS: Mapping[Any, Callable[[Any], Reading[Any]]] = {
    ask.ListSchedules: _list_schedules,
    ask.DueSchedules: _due_schedules,
    ask.ListKinds: _list_kinds,
    ask.CountKinds: _count_kinds,
    ask.SearchSchedules: _search_schedules,
    ask.PendingRequests: _pending_requests,
    ask.ListRequests: _list_requests,
}
