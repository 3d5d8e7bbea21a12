"""What an examination asks about events and streams."""

from __future__ import annotations

from flowfabric.model.events import CompletionEvent
from flowfabric.model.frames import MODE_SUMMARY
from flowfabric.model.records import Execution, FrameRow
from flowfabric.stores import questions as ask
from flowfabric.stores.memory.tables import Outboxes, Tables


def odd_ends(tables: Tables, outboxes: Outboxes, question: ask.OddEnds) -> list[tuple[str, int, int | None]]:
    """Executions whose ends are not told of once, at the time they ended."""
    told: dict[tuple[int, str], list[int]] = {}
    for _, event in outboxes.after(CompletionEvent, 0):
        told.setdefault((event.partition, event.uuid), []).append(event.occurred_at_ms)
    found: list[tuple[str, int, int | None]] = []
    for execution in sorted(tables.all(Execution).values(), key=lambda each: (each.partition, each.uuid)):
        times = told.get((execution.partition, execution.uuid), [])
        over, last = execution.terminal_at_ms, max(times, default=None)
        late = over is not None and over >= question.since_ms and last != over
        if len(times) > 1 or (len(times) == 1 and over is None) or late:
            found.append((execution.execution_id, len(times), last))
    return found[: question.limit]


def count_frames(tables: Tables, question: ask.CountFrames) -> list[ask.StoredStream]:
    """What is stored of each stream."""
    streams: dict[tuple[str, int], list[FrameRow]] = {}
    for execution_id in dict.fromkeys(question.execution_ids):
        for key in tables.frames_of(execution_id).between():
            frame = tables.all(FrameRow)[key]
            streams.setdefault((execution_id, frame.attempt_index), []).append(frame)
    return [
        ask.StoredStream(
            *stream,
            len(frames),
            sum(each.mode == MODE_SUMMARY for each in frames),
            (frames[-1].ts_ms, frames[-1].seq),
        )
        for stream, frames in streams.items()
    ]
