"""Output while running: frames, the rolling summary, and how much of it is kept."""

from __future__ import annotations

import base64

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core import lease
from flowfabric.core.context import Context
from flowfabric.core.documents import dump_document
from flowfabric.core.view import View
from flowfabric.model.changes import Act, Change, Decision, Get, Need, TrimStream, change, insert
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.frames import (
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
from flowfabric.model.handles import HandlePayload
from flowfabric.model.policy import read_policy
from flowfabric.model.records import Execution, FrameRow, StreamHead, StreamSummary

_MAX_I32 = 2**31 - 1
_HEAD_FIELDS = (
    "ema_rate_hz",
    "last_append_ts_ms",
    "maxlen_applied_last",
    "frame_count",
    "last_ts_ms",
    "last_seq",
)


class AppendFrame(Struct, gc=False):
    """The holder writes one frame to its attempt's stream."""

    handle: HandlePayload
    frame: Frame

    def needs(self) -> tuple[Need, ...]:
        key = (self.handle.execution_id, self.handle.attempt_index)
        core, head = Get(Execution, self.handle.execution_id), Get(StreamHead, key)
        if isinstance(self.frame.mode, DurableSummary):
            return (core, head, Get(StreamSummary, key))
        return (core, head)


def append_frame(command: AppendFrame, view: View, context: Context) -> Decision:
    """The frame stored under the next id; in summary mode its payload merged into the rolling document."""
    execution, attempt = lease.held(view, command.handle, context)
    frame = command.frame
    _check_size(frame)
    key = (execution.execution_id, attempt.attempt_index)
    head = view.get(StreamHead, key) or StreamHead(*key[:1], execution.partition, execution.uuid, key[1])
    ts_ms = max(context.now, head.last_ts_ms)
    seq = head.last_seq + 1 if head.frame_count and ts_ms == head.last_ts_ms else 0
    acts: list[Act] = [insert(_row(execution, attempt.attempt_index, ts_ms, seq, frame, context.now))]
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
    acts.append(Change(moved, _HEAD_FIELDS if head.stored else None))
    return Decision(AppendFrameOutcome(f"{ts_ms}-{seq}", count, version), tuple(acts), (), (key,))


class AppendFrames(Struct, gc=False):
    """The holder writes several frames, in order."""

    handle: HandlePayload
    frames: tuple[Frame, ...]

    def needs(self) -> tuple[Need, ...]:
        return AppendFrame(self.handle, self.frames[0]).needs()


def append_frames(command: AppendFrames, view: View, context: Context) -> Decision:
    """All of them or none, each under an id of its own."""
    lease.held(view, command.handle, context)
    for frame in command.frames:
        _check_size(frame)
    outcomes = []
    for frame in command.frames:
        decision = append_frame(AppendFrame(command.handle, frame), view, context)
        outcomes.append(decision.result)
        if len(outcomes) < len(command.frames):
            view.fold(decision)
    decision.result = outcomes
    return decision


def _check_size(frame: Frame) -> None:
    if len(frame.bytes) > MAX_FRAME_BYTES:
        raise Validation(
            ValidationKind.RETENTION_LIMIT_EXCEEDED,
            f"a frame may have {MAX_FRAME_BYTES} bytes, this one has {len(frame.bytes)}",
        )


def _row(execution: Execution, attempt_index: int, ts_ms: int, seq: int, frame: Frame, now: int) -> FrameRow:
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
        "source": "worker",
    }
    if frame.correlation_id is not None:
        fields["correlation_id"] = frame.correlation_id
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
