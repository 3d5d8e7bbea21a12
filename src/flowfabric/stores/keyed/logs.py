"""Answers about events, for subscribers, charts and examinations, and about streams, for examinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from flowfabric.model.decisions import SELECT_LIMIT
from flowfabric.model.events import CompletionEvent, InstanceTagEvent
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.streams import FrameRow
from flowfabric.model.streams.frames import MODE_SUMMARY
from flowfabric.stores import questions as ask
from flowfabric.stores.event_questions import EventBounds, EventLog, EventRows, LogState, ReadEvents, Unreadable
from flowfabric.stores.keyed import entries as index
from flowfabric.stores.keyed.reads import LARGEST_CHUNK, Log, LogBounds, Range, Reading, Rows, walk
from flowfabric.stores.keyed.records import Dispatch, wire_id
from flowfabric.stores.keyed.rows import matching
from flowfabric.stores.sql.schema import split_wire


def told(rows: Sequence[tuple[int, Any]]) -> Reading[list[tuple[int, Any]]]:
    """Events with what has become of them since: ends that nothing waits for any longer say so."""
    waiting = [
        (event.partition, event.uuid)
        for _, event in rows
        if type(event) is CompletionEvent and event.flow_id is not None and event.dispatched_at_ms is None
    ]
    if not waiting:
        return list(rows)
    keys = list(dict.fromkeys(waiting))
    found = dict(zip(keys, (yield Rows(Dispatch, keys, True)), strict=True))
    return [(number, _dispatched(event, found)) for number, event in rows]


def _dispatched(event: Any, found: Mapping[tuple[int, str], Dispatch | None]) -> Any:
    if type(event) is not CompletionEvent or event.dispatched_at_ms is not None:
        return event
    state = found.get((event.partition, event.uuid))
    at = None if state is None else state.dispatched_at_ms
    return event if at is None or event.occurred_at_ms > at else replace(event, dispatched_at_ms=at)


def _read_events(question: ReadEvents) -> Reading[EventRows]:
    kind, found = question.kind, []
    after, size = question.after, min(question.limit, LARGEST_CHUNK)
    # Bounds and rows of one trip are of one moment; what is committed before the next trip is left to the next answer.
    bounds, rows = yield [LogBounds(kind), Log(kind, after, size)]
    trimmed = bounds.trimmed
    through = bounds.top if question.through is None else min(question.through, bounds.top)
    while True:
        wanted = [row for row in rows if row[0] <= through]
        found += [row for row in wanted if _matches(row[1], question)]
        if len(wanted) < size or len(found) >= question.limit:
            break
        after, size = rows[-1][0], LARGEST_CHUNK
        now, rows = yield [LogBounds(kind), Log(kind, after, size)]
        if now.trimmed > after:  # some of what is asked for was deleted between the trips
            trimmed = now.trimmed
    return EventRows(trimmed, bounds.top, (yield from told(found[: question.limit])), bounds.breaks)


def _matches(event: Any, question: ReadEvents) -> bool:
    if type(event) is Unreadable:
        return True
    tag = question.instance_tag
    return (question.namespace is None or event.namespace == question.namespace) and (
        tag is None or (event.tag if type(event) is InstanceTagEvent else event.instance_tag) == tag
    )


def _bounds(question: EventBounds) -> Reading[tuple[int, int]]:
    state = yield LogBounds(question.kind)
    return state.trimmed, state.last


def _log_state(question: EventLog) -> Reading[LogState]:
    state: LogState = yield LogBounds(question.kind)
    return state


def _count_ended(question: ask.CountEnded) -> Reading[tuple[int, list[tuple[int, str, int]]]]:
    bounds = yield LogBounds(CompletionEvent)
    top, after = bounds.last, question.after
    if after is None:
        after = top - question.limit
        for end, start in reversed(bounds.breaks):
            after -= start - end if after < start else 0
    found: Counter[tuple[int, str]] = Counter()
    while True:
        rows = yield Log(CompletionEvent, after, LARGEST_CHUNK)
        for number, event in rows:
            # What was committed since the place was read is counted behind it, the next time.
            if type(event) is CompletionEvent and number <= top:
                found[(event.occurred_at_ms - event.occurred_at_ms % question.stretch_ms, event.outcome)] += 1
        if len(rows) < LARGEST_CHUNK:
            break
        after = rows[-1][0]
    return top, [(stretch, outcome, count) for (stretch, outcome), count in found.items()]


def _odd_ends(question: ask.OddEnds) -> Reading[list[tuple[str, int, int | None]]]:
    times: dict[tuple[int, str], list[int]] = {}
    after = 0
    while True:
        rows = yield Log(CompletionEvent, after, LARGEST_CHUNK)
        for _, event in rows:
            if type(event) is CompletionEvent:
                times.setdefault((event.partition, event.uuid), []).append(event.occurred_at_ms)
        if len(rows) < LARGEST_CHUNK:
            break
        after = rows[-1][0]

    def judge(places: list[Any]) -> Reading[list[tuple[str, int, int | None]]]:
        found: list[tuple[str, int, int | None]] = []
        for execution in (yield Rows(Execution, [wire_id(*each) for each in places], True, True)):
            if execution is None:
                continue
            ends = times.get((execution.partition, execution.uuid), [])
            over, last = execution.terminal_at_ms, max(ends, default=None)
            late = over is not None and over >= question.since_ms and last != over
            if len(ends) > 1 or (len(ends) == 1 and over is None) or late:
                found.append((execution.execution_id, len(ends), last))
        return found

    return (yield from walk(Range(index.EXECUTIONS, loose=True), judge, question.limit))


def _count_frames(question: ask.CountFrames) -> Reading[list[ask.StoredStream]]:
    found = []
    for execution_id in dict.fromkeys(question.execution_ids):
        streams: dict[int, list[FrameRow]] = {}
        where = split_wire(execution_id)
        for frame in (yield from matching(FrameRow, ("partition", "uuid"), where, SELECT_LIMIT)):
            streams.setdefault(frame.attempt_index, []).append(frame)
        found += [
            ask.StoredStream(
                execution_id,
                attempt_index,
                len(frames),
                sum(each.mode == MODE_SUMMARY for each in frames),
                (frames[-1].ts_ms, frames[-1].seq),
            )
            for attempt_index, frames in streams.items()
        ]
    return found


ANSWERS: Mapping[Any, Callable[[Any], Reading[Any]]] = {
    ReadEvents: _read_events,
    EventBounds: _bounds,
    EventLog: _log_state,
    ask.CountEnded: _count_ended,
    ask.OddEnds: _odd_ends,
    ask.CountFrames: _count_frames,
}
