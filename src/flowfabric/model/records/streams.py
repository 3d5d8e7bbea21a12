"""Records of streams: frames, where a stream stands, and its rolling document."""

from __future__ import annotations

from msgspec import Struct


class FrameRow(Struct, gc=False):
    """One stored stream frame (``ff_stream_frame``); written, never read back by a rule."""

    execution_id: str
    partition: int
    uuid: str
    attempt_index: int
    ts_ms: int
    seq: int
    fields: str
    mode: str
    created_at_ms: int

    @property
    def key(self) -> tuple[str, int, int, int]:
        return (self.execution_id, self.attempt_index, self.ts_ms, self.seq)


class StreamHead(Struct, gc=False):
    """Where an attempt's stream stands (``ff_stream_meta``); counted from the frames if the row is missing."""

    execution_id: str
    partition: int
    uuid: str
    attempt_index: int
    ema_rate_hz: float = 0.0
    last_append_ts_ms: int = 0
    maxlen_applied_last: int = 0
    frame_count: int = 0
    last_ts_ms: int = 0
    last_seq: int = 0
    #: The last append that carried a number, and what has emitted so far; see ``core.streams.heads``.
    last_numbered: str | None = None
    #: False while the row has yet to be inserted.
    stored: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return (self.execution_id, self.attempt_index)


class StreamSummary(Struct, gc=False):
    """The rolling document of an attempt's stream (``ff_stream_summary``)."""

    execution_id: str
    partition: int
    uuid: str
    attempt_index: int
    document_json: str
    version: int
    patch_kind: str | None
    last_updated_ms: int
    first_applied_ms: int

    @property
    def key(self) -> tuple[str, int]:
        return (self.execution_id, self.attempt_index)
