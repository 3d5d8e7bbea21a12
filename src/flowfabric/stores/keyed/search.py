"""Answers to searches for executions and lists of credentials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Any

import msgspec

from flowfabric.model.operations.access import AuditEntry, Credential
from flowfabric.model.records.executions import Attempt, Execution, Lane
from flowfabric.stores import questions as ask
from flowfabric.stores.keyed import entries as index
from flowfabric.stores.keyed.reads import (
    SIDE_BY_SIDE,
    All,
    Count,
    Names,
    Range,
    Reading,
    Rows,
    Whole,
    at_once,
    in_parts,
    together,
    visit,
    walk,
    walk_merged,
)
from flowfabric.stores.keyed.records import wire_id
from flowfabric.stores.sql.search import MOST_BY_ID

#: The wide fields of an execution that a list shows.
LISTED = ("raw_fields", "failure_reason", "last_failure_message", "cancellation_reason")


def summary(each: Execution) -> ask.SummaryRow:
    """What a list tells about an execution."""
    return ask.SummaryRow(
        each.partition,
        each.uuid,
        each.namespace,
        each.lane_id,
        index.document_field(each, "execution_kind"),
        each.public_state,
        each.priority,
        each.created_at_ms,
        each.started_at_ms,
        each.terminal_at_ms,
        each.attempt_index,
        each.flow_id,
        each.blocking_reason,
        _error(each),
        _text(each.cancellation_reason),
        _json(index.document_field(each, "tags")),
        each.parent,
        index.suspended_at(each),
    )


def _text(field: Any) -> str | None:
    """A wide field, which may not have been read or be empty."""
    return field if isinstance(field, str) and field else None


def _error(each: Execution) -> str | None:
    return _text(each.failure_reason) or _text(each.last_failure_message)


def _json(tags: Any) -> str | None:
    return None if tags is None else msgspec.json.encode(tags).decode()


def _has(text: Any, part: str) -> bool:
    """Whether a text, whatever the case of its ASCII letters, has another as a part, which is in lower case."""
    # Bytes know no other letters.
    return isinstance(text, str) and part.encode() in text.encode("utf-8", "surrogatepass").lower()


def summaries(fits: Callable[[Execution], bool]) -> Callable[[list[Any]], Reading[list[ask.SummaryRow]]]:
    """What a list tells about those of some entries, each with an execution's id at its end, that fit."""

    def judge(entries: list[Any]) -> Reading[list[ask.SummaryRow]]:
        found = yield Rows(Execution, [entry[-1] for entry in entries], True)
        ids = [each.execution_id for each in found if each is not None and fits(each)]
        if not ids:
            return []
        return [summary(each) for each in (yield Whole(ids, LISTED, True)) if each is not None]

    return judge


def _is_alike(question: ask.SearchExecutions, each: Execution) -> bool:
    """Whether an execution fits, as far as can be told without its document."""
    return (
        (question.namespaces is None or each.namespace in question.namespaces)
        and (question.flow is None or (each.partition, each.flow_id) == question.flow)
        and (question.parent is None or (each.partition, each.parent) == question.parent)
        and (question.lane_id is None or each.lane_id == question.lane_id)
        and (not question.states or each.public_state in question.states)
        and (question.created_from_ms is None or each.created_at_ms >= question.created_from_ms)
        and (question.created_before_ms is None or each.created_at_ms < question.created_before_ms)
        and not (question.roots and each.parent is not None)
        and (question.id_end is None or each.uuid.endswith(question.id_end))
        and (question.ended_from_ms is None or _at_least(each.terminal_at_ms, question.ended_from_ms))
        and (question.ended_before_ms is None or _before(each.terminal_at_ms, question.ended_before_ms))
        and (question.down_to is None or _place(each) >= question.down_to)
        and (question.after is None or _place(each) < question.after)
    )


def _at_least(time_ms: int | None, low: int) -> bool:
    return time_ms is not None and time_ms >= low


def _before(time_ms: int | None, high: int) -> bool:
    return time_ms is not None and time_ms < high


def _alike(question: ask.SearchExecutions, ids: list[str]) -> Reading[list[Execution]]:
    found = yield Rows(Execution, ids, True)
    return [each for each in found if each is not None and _is_alike(question, each)]


def _told(question: ask.SearchExecutions, alike: list[Execution]) -> Reading[list[ask.SummaryRow]]:
    """What a list tells about those whose documents fit, too."""
    if not alike:
        return []
    return [summary(each) for each in (yield from _whole(question, alike))]


def _whole(question: ask.SearchExecutions, alike: list[Execution]) -> Reading[list[Execution]]:
    """Those whose documents, messages and workers fit, too."""
    ids = [each.execution_id for each in alike]
    whole = [each for each in (yield Whole(ids, LISTED, True)) if each is not None and _has_document(question, each)]
    if not question.workers or not whole:
        return whole
    attempts = yield Rows(Attempt, [(each.execution_id, each.attempt_index) for each in whole], True)
    return [
        each
        for each, attempt in zip(whole, attempts, strict=True)
        if attempt is not None and all(_is_on(attempt, part) for part in question.workers)
    ]


def _is_on(attempt: Attempt, part: str) -> bool:
    names = (attempt.worker_instance_id, attempt.last_instance_id, attempt.worker_id)
    return any(_has(name, part) for name in names)


def _has_document(question: ask.SearchExecutions, each: Execution) -> bool:
    """Whether the document of an execution and its message fit."""
    kind = index.document_field(each, "execution_kind")
    return (
        (question.kind is None or kind == question.kind)
        and all(_has(kind, part) for part in question.kind_parts)
        and all(_has(_error(each), part) for part in question.errors)
        and all(any(index.tag_of(each, name) == value for name in names) for names, value in question.tags)
    )


def _looks_inside(question: ask.SearchExecutions) -> bool:
    """Whether a search needs more than the record of an execution."""
    return question.kind is not None or bool(
        question.tags or question.kind_parts or question.errors or question.workers
    )


def _search(question: ask.SearchExecutions) -> Reading[list[ask.SummaryRow]]:
    def judge(entries: list[Any]) -> Reading[list[ask.SummaryRow]]:
        return (yield from _told(question, (yield from _alike(question, [entry[-1] for entry in entries]))))

    if question.ids is not None:
        alike = yield from _alike(question, (yield from _by_id(question.ids)))
        return nlargest(question.limit, (yield from _told(question, alike)), key=_place)
    if question.flow is not None or question.parent is not None:
        return (yield from _search_family(question))
    return (yield from walk_merged((yield from _by_age(question)), judge, question.limit))


def _by_id(ids: tuple[tuple[int, ...], str, str]) -> Reading[list[str]]:
    """Executions whose UUIDs lie between two, in some partitions."""
    partitions, low, high = ids

    def look(partition: int) -> Reading[list[Any]]:
        # What is behind the last UUID that fits begins with it.
        run = Range(index.EXECUTIONS, None, (partition, low), (partition, f"{high}~"), loose=True)
        return walk(run, at_once, MOST_BY_ID)

    found = yield from in_parts(look, partitions, SIDE_BY_SIDE)
    return [wire_id(partition, uuid) for entries in found for partition, uuid in entries][:MOST_BY_ID]


def _edge(question: ask.SearchEdge) -> Reading[ask.ListPlace | None]:
    runs = [run._replace(rows=None) for run in (yield from _by_age(question.search))]
    found = yield from walk_merged(runs, at_once, question.rows)
    return None if len(found) < question.rows else tuple(found[-1][:3])


def _count_states(question: ask.CountStates) -> Reading[list[tuple[str, int]]]:
    search, counts = question.search, Counter[str]()

    def look(entries: list[Any]) -> Reading[None]:
        ids = [each if isinstance(each, str) else each[-1] for each in entries]
        alike = yield from _alike(search, ids)
        if _looks_inside(search) and alike:
            alike = yield from _whole(search, alike)
        counts.update(each.public_state for each in alike)

    if search.ids is not None:
        yield from look((yield from _by_id(search.ids)))
        return list(counts.items())
    is_family = search.flow is not None or search.parent is not None
    for run in [_family(search)] if is_family else (yield from _by_age(search)):
        yield from visit(run, look)
    return list(counts.items())


def _by_age(question: ask.SearchExecutions) -> Reading[list[Range]]:
    """The runs of some namespaces, newest first, as far as they are asked for."""
    names = (yield Names(index.CREATED)) if question.namespaces is None else dict.fromkeys(question.namespaces)
    high = question.after
    if question.created_before_ms is not None and (high is None or high[0] >= question.created_before_ms):
        high = (question.created_before_ms,)  # type: ignore[assignment]
    low: Any = None if question.created_from_ms is None else (question.created_from_ms,)
    if question.down_to is not None and (low is None or question.down_to > low):
        low = question.down_to
    return [Range(index.CREATED, name, low, high, backwards=True, loose=True, rows=Execution) for name in names]


def _family(question: ask.SearchExecutions) -> Range:
    """Members of a flow, or children of an execution."""
    family, name = (index.MEMBERS, question.flow) if question.flow is not None else (index.STARTED_BY, question.parent)
    return Range(family, name, loose=True, rows=Execution)


def _count(question: ask.CountExecutions) -> Reading[int]:
    """Chunk by chunk, so that nothing is kept but the number."""
    search, total = question.search, 0
    by_document = bool(question.leaving_out) or _looks_inside(search)

    def look(entries: list[Any]) -> Reading[None]:
        nonlocal total
        ids = [each if isinstance(each, str) else each[-1] for each in entries]
        alike = yield from _alike(search, ids)
        if by_document and alike:
            alike = [each for each in (yield from _whole(search, alike)) if _is_counted(question, each)]
        total += len(alike)

    is_family = search.flow is not None or search.parent is not None
    for run in [_family(search)] if is_family else (yield from _by_age(search)):
        yield from visit(run, look)
    return total


def _is_counted(question: ask.CountExecutions, each: Execution) -> bool:
    kind = index.document_field(each, "execution_kind")
    return not (question.leaving_out and isinstance(kind, str) and kind.startswith(question.leaving_out))


def _search_family(question: ask.SearchExecutions) -> Reading[list[ask.SummaryRow]]:
    """Members of a flow, or children of an execution, which stand in another order than that of the answer."""
    newest: list[ask.SummaryRow] = []

    def look(ids: list[str]) -> Reading[None]:
        nonlocal newest
        alike = yield from _alike(question, ids)
        if not _looks_inside(question):
            alike = nlargest(question.limit, alike, key=_place)
        newest = nlargest(question.limit, [*newest, *(yield from _told(question, alike))], key=_place)

    yield from visit(_family(question), look)
    return newest


def _place(each: Execution | ask.SummaryRow) -> ask.ListPlace:
    return (each.created_at_ms, each.uuid, each.partition)


def _list_credentials(question: ask.ListCredentials) -> Reading[list[Credential]]:
    found = yield All(Credential)
    return [each for each in found if question.after is None or each.key > question.after][: question.limit]


def _list_audit(question: ask.ListAudit) -> Reading[list[AuditEntry]]:
    run = Range(index.AUDIT, backwards=True, loose=True)
    if question.after is not None:
        [after] = yield Rows(AuditEntry, [question.after], True)
        if after is None:
            return []
        run = run._replace(high=index.audit_place(after))
    return (yield from walk(run, _audit, question.limit))


def _audit(entries: list[Any]) -> Reading[list[AuditEntry]]:
    return [each for each in (yield Rows(AuditEntry, [entry[-1] for entry in entries], True)) if each is not None]


def _queue_depths(question: ask.QueueDepths) -> Reading[list[tuple[str, int, int]]]:
    def depth(lane: Lane) -> Reading[tuple[str, int, int] | None]:
        return _depth(lane, question.namespaces)

    depths = yield from in_parts(depth, (yield All(Lane)), SIDE_BY_SIDE)
    return [each for each in depths if each is not None]


def _depth(lane: Lane, namespaces: tuple[str, ...] | None) -> Reading[tuple[str, int, int] | None]:
    families = (
        [index.claim_family(lane.lane_id)]
        if namespaces is None
        else [index.claim_family(lane.lane_id, each) for each in namespaces]
    )
    names = yield [Names(family) for family in families]
    runs = [
        (family, name) for family, known in zip(families, names, strict=True) for name in dict.fromkeys([(), *known])
    ]
    counts = yield [Count(*run, loose=True) for run in runs]
    filled = [Range(*run, loose=True) for run, count in zip(runs, counts, strict=True) if count]
    firsts = yield from together([_oldest(run, lane.fair_by is not None) for run in filled])
    # What was counted may have been claimed since.
    oldest = min((each for each in firsts if each is not None), default=None)
    return None if oldest is None else (lane.lane_id, sum(counts), oldest)


def _oldest(run: Range, ranked: bool) -> Reading[int | None]:
    """The creation time of the oldest of a queue. Within a priority they stand by age, unless they take turns."""
    oldest: int | None = None

    def look(entries: list[Any]) -> Reading[None]:
        nonlocal oldest
        times = [entry[2] for entry in entries]
        oldest = min(times if oldest is None else [oldest, *times], default=None)
        yield from at_once(None)

    if ranked:
        yield from visit(run, look)
        return oldest
    first = yield run._replace(limit=1)
    while first:
        yield from look(first)
        first = yield run._replace(low=(first[0][0] + 1,), limit=1)
    return oldest


ANSWERS: Mapping[Any, Callable[[Any], Reading[Any]]] = {
    ask.SearchExecutions: _search,
    ask.CountExecutions: _count,
    ask.CountStates: _count_states,
    ask.SearchEdge: _edge,
    ask.ListCredentials: _list_credentials,
    ask.ListAudit: _list_audit,
    ask.QueueDepths: _queue_depths,
}
