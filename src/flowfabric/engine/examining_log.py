"""Looking through the log of events and the streams for promises that they break."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowfabric.core.log_invariants import check_bounds, check_ends, check_numbers, check_outcome, check_times
from flowfabric.core.stream_invariants import check_stream, check_summary
from flowfabric.core.view import View
from flowfabric.engine.base import EngineBase
from flowfabric.engine.subscriptions import shown
from flowfabric.model.changes import Get, GetFull
from flowfabric.model.errors import EngineError, Validation
from flowfabric.model.events import CompletionEvent
from flowfabric.model.examination import Violation
from flowfabric.model.frames import MAX_STREAM_READ_COUNT, MODE_SUMMARY
from flowfabric.model.ids import ExecutionId
from flowfabric.model.records import Attempt, Execution, StreamHead, StreamSummary
from flowfabric.model.subscriptions import SHOWN, EventFamily
from flowfabric.stores.questions import (
    CountFrames,
    EventLog,
    EventRows,
    LogState,
    OddEnds,
    ReadEvents,
    ReadFrames,
    StoredStream,
    Unreadable,
)
from flowfabric.stores.schema import OUTBOXES

#: The logs, in the order they are looked at.
LOGS = tuple(EventFamily)
#: Executions with odd ends that are told of; where there are more, something larger is wrong.
MOST_ODD_ENDS = 10_000
_FIRST, _LAST = (0, 0), (2**63 - 1, 2**31 - 1)


class Stretch(NamedTuple):
    """Some events of one log: those behind a number, and the last of them."""

    family: EventFamily
    after: int
    through: int
    size: int
    #: Whether the log ends here.
    is_last: bool


class ExaminingLog(EngineBase):
    """The part of the engine that checks events and streams."""

    # -- events --------------------------------------------------------------------------------------------------

    async def _events_there(self) -> int:
        """About how many events there are."""
        states: list[LogState] = [await self._ask(EventLog(SHOWN[each][0])) for each in LOGS]
        return sum(map(_size, states))

    async def _stretch_of(self, family: EventFamily, after: int, size: int) -> Stretch:
        """The next events of a log behind a number."""
        found: EventRows = await self._ask(ReadEvents(SHOWN[family][0], after, None, size))
        through = found.rows[-1][0] if found.rows else after
        return Stretch(family, after, through, len(found.rows), len(found.rows) < size)

    async def _judge_events(self, stretch: Stretch) -> list[Violation]:
        kind, show = SHOWN[stretch.family]
        log = OUTBOXES[kind].name
        found: list[Violation] = []
        through = None if stretch.is_last else stretch.through
        page: EventRows = await self._ask(ReadEvents(kind, stretch.after, through, max(stretch.size, 1)))
        if self.store.numbers_without_breaks:
            numbers = [number for number, _ in page.rows]
            found += check_numbers(log, max(stretch.after, page.trimmed), numbers, page.breaks)
        readable: list[tuple[int, Any]] = []
        for number, row in page.rows:
            event = shown(show, stretch.family, number, row)
            if isinstance(event, EngineError):
                found.append(Violation("I20", log, f"event {number} cannot be read: {event.detail}"))
            elif not isinstance(row, Unreadable):
                readable.append((number, row))
        found += check_times(log, readable)
        if kind is CompletionEvent:
            found += await self._judge_outcomes([row for _, row in readable])
        if stretch.is_last:
            state: LogState = await self._ask(EventLog(kind))
            dense = self.store.numbers_without_breaks
            found += check_bounds(log, state.trimmed, state.top, state.last, state.breaks, dense=dense)
        return found

    async def _judge_outcomes(self, events: list[CompletionEvent]) -> list[Violation]:
        ids = [str.__str__(ExecutionId.of(each.partition, each.uuid)) for each in events]
        try:
            view = await self._view(*(Get(Execution, each) for each in dict.fromkeys(ids)))
        except Validation:
            # One that cannot be read is told of among the executions, and hides no other.
            return [one for each in events for one in await self._judge_outcomes([each])] if len(events) > 1 else []
        there = {identity: each for identity in dict.fromkeys(ids) if (each := view.execution(identity)) is not None}
        attempts = await self._view(*(Get(Attempt, (name, each.attempt_index)) for name, each in there.items()))
        found: list[Violation] = []
        for identity, event in zip(ids, events, strict=True):
            execution = there.get(identity)
            if execution is not None:
                attempt = attempts.get(Attempt, (identity, execution.attempt_index))
                found += check_outcome(execution, attempt, event)
        return found

    async def _judge_ends(self) -> list[Violation]:
        state: LogState = await self._ask(EventLog(CompletionEvent))
        odd: list[tuple[str, int, int | None]]
        odd = await self._ask(OddEnds(state.trimmed_before_ms, MOST_ODD_ENDS))
        # What was deleted meanwhile is not missing.
        state = await self._ask(EventLog(CompletionEvent))
        found: list[Violation] = []
        for start in range(0, len(odd), 500):
            some = odd[start : start + 500]
            view = await self._view(*(GetFull(each) for each, _, _ in some))
            for identity, told, last_ms in some:
                execution = view.full(identity)
                if execution is not None:
                    found += check_ends(execution, told, last_ms, state.trimmed_before_ms)
        return found

    # -- streams -------------------------------------------------------------------------------------------------

    async def _judge_streams(self, ids: list[str], view: View) -> list[Violation]:
        """Heads, frames and summaries of executions whose attempts, heads and summaries the view has."""
        counted: list[StoredStream] = await self._ask(CountFrames(tuple(ids)))
        stored = {(each.execution_id, each.attempt_index): each for each in counted}
        found: list[Violation] = []
        for identity in ids:
            parsed = ExecutionId.unchecked(identity)
            own: dict[str, Any] = {"partition": parsed.partition, "uuid": parsed.uuid_text}
            begun = {each.attempt_index for each in view.select(Attempt, **own)}
            heads = {each.attempt_index: each for each in view.select(StreamHead, **own)}
            summaries = {each.attempt_index: each for each in view.select(StreamSummary, **own)}
            streams = heads.keys() | summaries.keys() | {index for name, index in stored if name == identity}
            for index in sorted(streams):
                frames = stored.get((identity, index)) or StoredStream(identity, index, 0, 0, _FIRST)
                stream = f"{identity} attempt {index + 1}"
                newest = frames.newest if frames.frames else None
                found += check_stream(stream, frames.frames, newest, heads.get(index), index in begun)
                summary = summaries.get(index)
                deltas = None if summary is None else await self._deltas(frames)
                found += check_summary(stream, summary, frames.deltas, deltas)
        return found

    async def _deltas(self, stream: StoredStream) -> list[str] | None:
        """The fields of the stored deltas; nothing if the stream is too long to be read at once."""
        if not 0 < stream.frames <= MAX_STREAM_READ_COUNT:
            return None
        parsed = ExecutionId.unchecked(stream.execution_id)
        where = (parsed.partition, parsed.uuid_text, stream.attempt_index)
        rows = await self._ask(ReadFrames(*where, _FIRST, _LAST, stream.frames))
        return [fields for _, _, fields, mode in rows if mode == MODE_SUMMARY]


def _size(log: LogState) -> int:
    """About how many events a log has."""
    skipped = sum(start - max(end, log.trimmed) for end, start in log.breaks if log.trimmed < start <= log.top)
    return max(log.top - log.trimmed - skipped, 0)
