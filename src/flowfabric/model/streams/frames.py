"""Stream frames: what a worker appends while it runs, and how the stream is addressed, trimmed and summarised.

Pure values and arithmetic; the rule that appends a frame decides where it lands (`<ts>-<seq>`) and how long it stays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.jsontext import holds_nul
from flowfabric.model.quoting import quoted

MAX_FRAME_BYTES: Final = 65_536
MAX_STREAM_READ_COUNT: Final = 10_000
MAX_TAIL_BLOCK_MS: Final = 30_000
MAX_SUMMARY_DEPTH: Final = 16
NULL_SENTINEL: Final = "__ff_null__"

_DEFAULT_EMA_ALPHA: Final = 0.2
_MAX_I64: Final = 2**63 - 1

# `Frame` has a field called `bytes`, which would hide the type inside the class.
_Bytes: TypeAlias = bytes


class FrameKind(StrEnum):
    """What a frame carries."""

    STDOUT = "stdout"
    STDERR = "stderr"
    EVENT = "event"
    BLOB = "blob"


class Opening(StrEnum):
    """How the output of a task, or of a step of a workflow, begins under a lease or at a new try."""

    #: From the beginning: what was emitted there before no longer counts. If there is any, a restart frame says so.
    START = "start"
    #: Behind what was emitted there before, which still counts.
    CONTINUE = "continue"


class FrameContent(StrEnum):
    """What a frame holds that is not text."""

    JSON = "json"
    BYTES = "bytes"


class PatchKind(StrEnum):
    """How summary frames are merged into the rolling document."""

    JSON_MERGE_PATCH = "json-merge-patch"


class StreamVisibility(StrEnum):
    """Which frames a tail shows."""

    ALL = "all"
    EXCLUDE_BEST_EFFORT = "exclude_best_effort"


MODE_DURABLE: Final = "durable"
MODE_SUMMARY: Final = "summary"
MODE_BEST_EFFORT: Final = "best_effort"


class Durable(Struct, frozen=True, gc=False):
    """Append the frame and keep it."""

    wire: ClassVar[str] = MODE_DURABLE


class DurableSummary(Struct, frozen=True, gc=False):
    """Append the frame, and merge its payload into the rolling document of the attempt."""

    wire: ClassVar[str] = MODE_SUMMARY

    patch_kind: PatchKind = PatchKind.JSON_MERGE_PATCH


class BestEffortLive(Struct, frozen=True, gc=False):
    """Append the frame, and keep about as many frames as arrive in `ttl_ms`."""

    wire: ClassVar[str] = MODE_BEST_EFFORT

    ttl_ms: int
    maxlen_floor: int = 64
    maxlen_ceiling: int = 16_384
    ema_alpha: float = _DEFAULT_EMA_ALPHA


StreamMode: TypeAlias = Durable | DurableSummary | BestEffortLive

DURABLE: Final = Durable()


class Frame(Struct, frozen=True, gc=False):
    """One piece of output. `seq` is accepted and ignored: the store numbers frames.

    `step` names the step of a workflow that emits it. `opens` is for the first frame of an append: see `Opening`.
    """

    bytes: _Bytes
    kind: FrameKind = FrameKind.EVENT
    seq: int | None = None
    frame_type: str = ""
    correlation_id: str | None = None
    mode: StreamMode = DURABLE
    step: str | None = None
    opens: Opening | None = None
    content: FrameContent | None = None

    def with_mode(self, mode: StreamMode) -> Frame:
        """The same frame in another mode."""
        return msgspec.structs.replace(self, mode=mode)

    @property
    def stored_type(self) -> str:
        """The frame type that is stored: the caller's, or the kind if none was given."""
        return self.frame_type or str(self.kind)


class AppendFrameOutcome(Struct, frozen=True, gc=False):
    """The id of the new frame, how many frames are kept, and in summary mode the version of the document."""

    stream_id: str
    frame_count: int
    summary_version: int | None = None


class StreamFrame(Struct, frozen=True):
    """A frame as it is read: `<ts>-<seq>` and a sorted map of texts."""

    id: str
    fields: dict[str, str]
    mode: str = MODE_DURABLE


class StreamFrames(Struct, frozen=True):
    """A page of frames, and whether more can come."""

    frames: tuple[StreamFrame, ...] = ()
    closed_at: int | None = None
    closed_reason: str | None = None

    def is_closed(self) -> bool:
        """Whether the attempt has ended, so that no frame will follow."""
        return self.closed_at is not None


class SummaryDocument(Struct, frozen=True, gc=False):
    """The rolling document of an attempt's stream; `version` counts the deltas and is never 0."""

    document_json: str
    version: int
    patch_kind: PatchKind
    last_updated_ms: int
    first_applied_ms: int


CursorProblem: TypeAlias = Literal["Empty", "BareMarkerRejected", "Malformed"]


class StreamCursorError(ValueError):
    """A text that is no stream cursor; `problem` names what is wrong with it."""

    def __init__(self, problem: CursorProblem, text: str) -> None:
        super().__init__(problem, text)
        self.problem = problem
        self.text = text

    def __str__(self) -> str:
        return f"{self.problem}: {quoted(self.text)} is not a cursor; use 'start', 'end', '<ms>' or '<ms>-<seq>'"


_POSITION = re.compile(r"([0-9]++)(?:-([0-9]++))?")


class StreamCursor(Struct, frozen=True, gc=False):
    """A place in a stream: `Start()`, `End()` or `At("<ms>[-<seq>]")`; `str()` gives the wire token."""

    @staticmethod
    def parse(text: str) -> Start | End | At:
        """Read a wire token."""
        if text == "start":
            return Start()
        return End() if text == "end" else At(text)

    @staticmethod
    def from_beginning() -> At:
        """A concrete cursor before every frame, for a tail that wants them all."""
        return At("0-0")

    @property
    def is_concrete(self) -> bool:
        """Whether it names a frame position; a tail needs one."""
        return isinstance(self, At)


class Start(StreamCursor, frozen=True, gc=False):
    """The first frame there is."""

    def __str__(self) -> str:
        return "start"


class End(StreamCursor, frozen=True, gc=False):
    """The last frame there is."""

    def __str__(self) -> str:
        return "end"


class At(StreamCursor, frozen=True, gc=False):
    """A frame position; without a sequence number the sequence is 0."""

    text: str

    def __post_init__(self) -> None:
        if not self.text:
            raise StreamCursorError("Empty", self.text)
        if self.text in ("-", "+"):
            raise StreamCursorError("BareMarkerRejected", self.text)
        if not _POSITION.fullmatch(self.text):
            raise StreamCursorError("Malformed", self.text)

    @property
    def position(self) -> tuple[int, int]:
        """`(ts_ms, seq)`, the order of frames; numbers beyond 64 bits mean the largest one."""
        milliseconds, _, sequence = self.text.partition("-")
        return _saturated(milliseconds), _saturated(sequence or "0")

    def __str__(self) -> str:
        return self.text


def _saturated(digits: str) -> int:
    significant = digits.lstrip("0")
    return _MAX_I64 if len(significant) > 19 else min(int(significant or "0"), _MAX_I64)


def decode_summary_patch(payload: bytes) -> dict[str, Any]:
    """The payload of a summary frame as a patch; it has to be a JSON object."""
    try:
        patch = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Validation(ValidationKind.INVALID_INPUT, "a summary frame must be a JSON object") from error
    if not isinstance(patch, dict):
        raise Validation(ValidationKind.INVALID_INPUT, "a summary frame must be a JSON object")
    if holds_nul(payload):
        raise Validation(ValidationKind.INVALID_INPUT, "a summary frame must not contain NUL")
    return patch


def decode_summary_document(text: str) -> dict[str, Any]:
    """The stored rolling document."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Validation(ValidationKind.CORRUPTION, "document_json: not JSON") from error
    if not isinstance(document, dict):
        raise Validation(ValidationKind.CORRUPTION, "document_json: not a JSON object")
    return document


def merge_summary(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The document after a JSON Merge Patch; the arguments stay as they are.

    A merge patch cannot store null, because null removes the member. The text `__ff_null__` stands for it, and is
    replaced wherever it stands as a value, so that the document never holds it.
    """
    return _merge(document, patch, 1)


def _merge(target: Any, patch: Mapping[str, Any], depth: int) -> dict[str, Any]:
    _check_depth(depth)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = _merge(merged.get(name), value, depth + 1)
        else:
            merged[name] = _replacement(value, depth)
    return merged


def _replacement(value: Any, depth: int) -> Any:
    """A value that replaces what was there, sentinels resolved. Inside arrays null is an ordinary value."""
    if isinstance(value, str):
        return None if value == NULL_SENTINEL else value
    if isinstance(value, (list, tuple)):
        _check_depth(depth + 1)
        return [_replacement(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        _check_depth(depth + 1)
        return {name: _replacement(item, depth + 1) for name, item in value.items()}
    return value


def _check_depth(depth: int) -> None:
    if depth > MAX_SUMMARY_DEPTH:
        raise Validation(ValidationKind.INVALID_INPUT, f"summary nesting deeper than {MAX_SUMMARY_DEPTH}")


class BestEffortWindow(Struct, frozen=True, gc=False):
    """The rate estimate after an append, and how many of the newest frames of the stream to keep."""

    ema_rate_hz: float
    maxlen: int


def best_effort_window(
    mode: BestEffortLive, ts_ms: int | None, last_ts_ms: int | None, ema_rate_hz: float
) -> BestEffortWindow:
    """How long the stream may be after a best-effort append. A last time of 0 or None means nothing was appended."""
    alpha = mode.ema_alpha if 0.0 < mode.ema_alpha <= 1.0 else _DEFAULT_EMA_ALPHA
    known = bool(ts_ms) and bool(last_ts_ms)
    rate = 1000.0 / (ts_ms - last_ts_ms) if known and ts_ms > last_ts_ms else 0.0  # type: ignore[operator]
    before = ema_rate_hz if math.isfinite(ema_rate_hz) else 0.0
    ema = alpha * rate + (1.0 - alpha) * before
    # Clamped before the product, so that an absurd time to live cannot leave the range of floats.
    wanted = math.ceil(ema * min(max(mode.ttl_ms, 0), _MAX_I64) / 1000.0) * 2
    floor = max(mode.maxlen_floor, 0)
    ceiling = max(mode.maxlen_ceiling, floor)
    return BestEffortWindow(ema, min(max(wanted, floor), ceiling))
