"""Frames that callers bring: what they must be before a rule looks at them."""

from __future__ import annotations

from typing import Any

from flowfabric.engine.checks import values
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.limits import MAX_FRAMES
from flowfabric.model.quoting import quoted
from flowfabric.model.streams.frames import (
    BestEffortLive,
    Durable,
    DurableSummary,
    Frame,
    FrameContent,
    FrameKind,
    Opening,
    PatchKind,
)

_FRAME_KINDS = tuple(FrameKind)
_PATCH_KINDS = tuple(PatchKind)
_MAX_I64 = 2**63 - 1


def append_number(value: Any) -> int | None:
    """The number of an append within its lease, if it has one."""
    return None if value is None else values.integer(value, "number", 1, 2**62)


def frame(value: Any) -> Frame:
    """A frame with a kind and a mode that exist. Its size is judged behind the gate."""
    if not isinstance(value, Frame):
        raise values.invalid(f"frame: expected a Frame, got {type(value).__name__}")
    if not isinstance(value.bytes, bytes):
        raise values.invalid(f"frame: expected bytes, got {type(value.bytes).__name__}")
    if value.kind not in _FRAME_KINDS:
        raise Validation(
            ValidationKind.INVALID_FRAME_TYPE, f"kind: {quoted(value.kind)} is not one of {', '.join(FrameKind)}"
        )
    values.text(value.frame_type, "frame_type")
    values.optional_text(value.correlation_id, "correlation_id")
    values.optional_text(value.step, "step")
    if value.content is not None and value.content not in tuple(FrameContent):
        raise values.invalid(f"content: {quoted(value.content)} is not one of {', '.join(FrameContent)}")
    if value.opens is not None and value.opens not in tuple(Opening):
        raise values.invalid(f"opens: {quoted(value.opens)} is not one of {', '.join(Opening)}")
    mode = value.mode
    if isinstance(mode, BestEffortLive):
        for name in ("ttl_ms", "maxlen_floor", "maxlen_ceiling"):
            values.saturating(getattr(mode, name), name, 0, _MAX_I64)
        if isinstance(mode.ema_alpha, bool) or not isinstance(mode.ema_alpha, int | float):
            raise values.invalid(f"ema_alpha: expected a number, got {type(mode.ema_alpha).__name__}")
    elif isinstance(mode, DurableSummary):
        if mode.patch_kind not in _PATCH_KINDS:
            raise values.invalid(f"patch_kind: {quoted(mode.patch_kind)} is not one of {', '.join(PatchKind)}")
    elif not isinstance(mode, Durable):
        raise values.invalid(f"mode: {quoted(mode)} is neither Durable, DurableSummary nor BestEffortLive")
    return value


def opening(frames: tuple[Frame, ...], number: int | None) -> tuple[Frame, ...]:
    """Frames of which the first one may say how output begins; only a numbered append tells that once."""
    first, *others = frames
    if any(each.opens is not None for each in others):
        raise values.invalid("opens: only the first frame of an append can open output")
    if first.opens is not None:
        if number is None:
            raise values.invalid("opens: an append that opens output needs a number, so that it takes effect once")
        if isinstance(first.mode, DurableSummary):
            raise values.invalid("opens: a summary frame cannot open output; use a durable one")
    return frames


def durable_frames(value: Any) -> tuple[Frame, ...]:
    """Frames that are kept as they are, and not more than one step may bring."""
    frames = tuple(map(frame, values.sequence(value, "frames")))
    if len(frames) > MAX_FRAMES:
        raise values.invalid(f"frames: at most {MAX_FRAMES} at once, got {len(frames)}")
    for each in frames:
        if not isinstance(each.mode, Durable):
            raise values.invalid(f"frames: only durable frames can be appended together, not {each.mode.wire}")
    return frames
