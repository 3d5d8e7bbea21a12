"""Output while running: frames, the rolling summary, and how much of it is kept."""

from __future__ import annotations

import base64

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.documents import dump_document
from flowfabric.core.leases import lease
from flowfabric.core.streams.heads import Numbered, parts_of
from flowfabric.core.streams.restarts import needs as opening_needs, restart_of
from flowfabric.model.counting import counted
from flowfabric.model.decisions import Act, Change, Decision, Get, Need, TrimStream, change, insert
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.handles import HandlePayload
from flowfabric.model.policy import read_policy
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.streams import FrameRow, StreamHead, StreamSummary
from flowfabric.model.streams.frames import (
    MAX_FRAME_BYTES,
    AppendFrameOutcome,
    BestEffortLive,
    DurableSummary,
    Frame,
    best_effort_window,
    decode_summary_document,
    decode_summary_patch,
    merge_summary,
)
from flowfabric.model.streams.restarts import BY_ENGINE, BY_WORKER

_MAX_I32 = 2**31 - 1
_HEAD_FIELDS = (
    "ema_rate_hz",
    "last_append_ts_ms",
    "maxlen_applied_last",
    "frame_count",
    "last_ts_ms",
    "last_seq",
)
_NUMBERED_HEAD_FIELDS = (*_HEAD_FIELDS, "last_numbered")


class AppendFrame(Struct, gc=False):
    """The holder writes one frame to its attempt's stream. With a number, it is written once however often it comes."""

    handle: HandlePayload
    frame: Frame
    number: int | None = None

    def needs(self) -> tuple[Need, ...]:
        key = (self.handle.execution_id, self.handle.attempt_index)
        core, head = Get(Execution, self.handle.execution_id), Get(StreamHead, key)
        more = () if self.frame.opens is None else opening_needs(self.handle, self.frame)
        if isinstance(self.frame.mode, DurableSummary):
            return (core, head, Get(StreamSummary, key), *more)
        return (core, head, *more)


def append_frame(command: AppendFrame, view: View, context: Context) -> Decision:
    """The frame stored under the next id; in summary mode its payload merged into the rolling document. If it opens
    output that was begun before, a restart frame goes before it."""
    execution, attempt = lease.held(view, command.handle, context)
    _check_size(command.frame)
    before = _before(command.handle, command.number, (command.frame,), view)
    if before is not None:
        return Decision(before[0])
    _opened(command.handle, command.frame, execution, attempt, view, context)
    frame, number = command.frame, command.number
    return _appended(command.handle, frame, number, (frame,), execution, attempt, view, context)


def _opened(
    handle: HandlePayload, frame: Frame, execution: Execution, attempt: Attempt, view: View, context: Context
) -> None:
    """Let a restart frame go first, if the frame opens output that starts over."""
    if frame.opens is None:
        return
    own = parts_of(view.get(StreamHead, (handle.execution_id, handle.attempt_index)))
    restart = restart_of(handle, frame, own, execution, attempt, view)
    if restart is not None:
        view.fold(_appended(handle, restart, None, (), execution, attempt, view, context))


def _before(
    handle: HandlePayload, number: int | None, frames: tuple[Frame, ...], view: View
) -> list[AppendFrameOutcome] | None:
    """What an append with this number was answered with, if it was made before."""
    key = (handle.execution_id, handle.attempt_index)
    head = view.get(StreamHead, key)
    if number is None or head is None or head.last_numbered is None:
        return None
    last = Numbered.read(head.last_numbered)
    if not last.belongs_to(handle) or last.number < number:
        return None
    if last.number > number or last.frames != len(frames):
        detail = f"{number} was used before; the last one was {last.number}, with {counted(last.frames, 'frame')}"
        text = f"number: {detail}. Use a higher number for each append of a lease"
        raise Validation(ValidationKind.INVALID_INPUT, text)
    version = None
    if isinstance(frames[0].mode, DurableSummary):
        summary = view.get(StreamSummary, key)
        version = None if summary is None else summary.version
    # Frames of one append have the same time and consecutive numbers.
    return [
        AppendFrameOutcome(f"{last.ts_ms}-{last.seq - last.frames + 1 + place}", head.frame_count, version)
        for place in range(last.frames)
    ]


def _appended(
    handle: HandlePayload,
    frame: Frame,
    number: int | None,
    together: tuple[Frame, ...],
    execution: Execution,
    attempt: Attempt,
    view: View,
    context: Context,
) -> Decision:
    """One frame more. ``together`` are all frames of its append; a restart frame is part of none."""
    key = (execution.execution_id, attempt.attempt_index)
    head = view.get(StreamHead, key) or StreamHead(*key[:1], execution.partition, execution.uuid, key[1])
    ts_ms = max(context.now, head.last_ts_ms)
    seq = head.last_seq + 1 if head.frame_count and ts_ms == head.last_ts_ms else 0
    source = BY_WORKER if together else BY_ENGINE
    acts: list[Act] = [insert(_row(execution, attempt.attempt_index, ts_ms, seq, frame, source, context.now))]
    version = None
    if isinstance(frame.mode, DurableSummary):
        summary = _merged(view, execution, attempt.attempt_index, frame, context.now)
        version = summary.record.version  # type: ignore[union-attr]
        acts.append(summary)
    keep, ema = read_policy(execution.policy).retention_maxlen, head.ema_rate_hz
    if isinstance(frame.mode, BestEffortLive):
        window = best_effort_window(frame.mode, ts_ms, head.last_append_ts_ms, head.ema_rate_hz)
        keep, ema = min(keep, window.maxlen), window.ema_rate_hz
    keep = max(keep, 1)
    count = min(head.frame_count + 1, keep)
    if count <= head.frame_count:
        acts.append(TrimStream(*key))
    moved = replace(
        head,
        ema_rate_hz=ema,
        last_append_ts_ms=ts_ms,
        maxlen_applied_last=min(keep, _MAX_I32) if isinstance(frame.mode, BestEffortLive) else head.maxlen_applied_last,
        frame_count=count,
        last_ts_ms=ts_ms,
        last_seq=seq,
        stored=True,
    )
    fields: tuple[str, ...] = _HEAD_FIELDS
    if number is not None:
        parts = parts_of(head)
        if together[0].opens is not None:
            parts = parts.opened(together[0].step, handle.lease_epoch)
        told = Numbered(handle.lease_epoch, number, ts_ms, seq, len(together), handle.lease_id, parts)
        moved.last_numbered = str(told)
        fields = _NUMBERED_HEAD_FIELDS
    acts.append(Change(moved, fields if head.stored else None))
    return Decision(AppendFrameOutcome(f"{ts_ms}-{seq}", count, version), tuple(acts), (), (key,))


class AppendFrames(Struct, gc=False):
    """The holder writes several frames, in order. With a number, they are written once however often they come."""

    handle: HandlePayload
    frames: tuple[Frame, ...]
    number: int | None = None

    def needs(self) -> tuple[Need, ...]:
        return AppendFrame(self.handle, self.frames[0]).needs()


def append_frames(command: AppendFrames, view: View, context: Context) -> Decision:
    """All of them or none, each under an id of its own."""
    held = lease.held(view, command.handle, context)
    for frame in command.frames:
        _check_size(frame)
    before = _before(command.handle, command.number, command.frames, view)
    if before is not None:
        return Decision(before)
    _opened(command.handle, command.frames[0], *held, view, context)
    outcomes: list[AppendFrameOutcome] = []
    count = len(command.frames)
    for frame in command.frames:
        # The last one brings the number: they are written together or not at all.
        number = command.number if len(outcomes) == count - 1 else None
        decision = _appended(command.handle, frame, number, command.frames, *held, view, context)
        outcomes.append(decision.result)
        if len(outcomes) < count:
            view.fold(decision)
    decision.result = outcomes
    return decision


def _check_size(frame: Frame) -> None:
    if len(frame.bytes) > MAX_FRAME_BYTES:
        raise Validation(
            ValidationKind.RETENTION_LIMIT_EXCEEDED,
            f"a frame may have {MAX_FRAME_BYTES} bytes, this one has {len(frame.bytes)}",
        )


def _row(
    execution: Execution, attempt_index: int, ts_ms: int, seq: int, frame: Frame, source: str, now: int
) -> FrameRow:
    try:
        payload, encoding = frame.bytes.decode("utf-8"), "utf8"
        if "\x00" in payload:
            raise UnicodeError  # a text column of some stores cannot hold it
    except UnicodeError:
        payload, encoding = base64.b64encode(frame.bytes).decode("ascii"), "base64"
    fields: dict[str, object] = {
        "frame_type": frame.stored_type,
        "payload": payload,
        "encoding": encoding,
        "source": source,
    }
    if frame.correlation_id is not None:
        fields["correlation_id"] = frame.correlation_id
    if frame.step is not None:
        fields["step"] = frame.step
    if frame.content is not None:
        fields["content"] = str(frame.content)
    return FrameRow(
        execution.execution_id,
        execution.partition,
        execution.uuid,
        attempt_index,
        ts_ms,
        seq,
        dump_document(fields),
        frame.mode.wire,
        now,
    )


def _merged(view: View, execution: Execution, attempt_index: int, frame: Frame, now: int) -> Change:
    patch = decode_summary_patch(frame.bytes)
    assert isinstance(frame.mode, DurableSummary)
    kind = str(frame.mode.patch_kind)
    stored = view.get(StreamSummary, (execution.execution_id, attempt_index))
    if stored is None:
        document = dump_document(merge_summary({}, patch))
        return insert(
            StreamSummary(
                execution.execution_id, execution.partition, execution.uuid, attempt_index, document, 1, kind, now, now
            )
        )
    document = dump_document(merge_summary(decode_summary_document(stored.document_json), patch))
    return change(stored, document_json=document, version=stored.version + 1, patch_kind=kind, last_updated_ms=now)
