"""Streams: frames, heads and summaries."""

from __future__ import annotations

from flowfabric.model.records.streams import FrameRow, StreamHead, StreamSummary
from flowfabric.stores.tables.shape import BIG, INT, JSON, REAL, SMALL, TEXT, UUID, Table, columns

TABLES = (
    Table(
        FrameRow,
        "ff_stream_frame",
        columns(
            partition=SMALL,
            uuid=UUID,
            attempt_index=INT,
            ts_ms=BIG,
            seq=INT,
            fields=JSON,
            mode=TEXT,
            created_at_ms=BIG,
        ),
        ("partition", "uuid", "attempt_index", "ts_ms", "seq"),
    ),
    Table(
        StreamHead,
        "ff_stream_meta",
        columns(
            partition=SMALL,
            uuid=UUID,
            attempt_index=INT,
            ema_rate_hz=REAL,
            last_append_ts_ms=BIG,
            maxlen_applied_last=INT,
            frame_count=INT,
            last_ts_ms=BIG,
            last_seq=INT,
            last_numbered=TEXT,
        ),
        ("partition", "uuid", "attempt_index"),
    ),
    Table(
        StreamSummary,
        "ff_stream_summary",
        columns(
            partition=SMALL,
            uuid=UUID,
            attempt_index=INT,
            document_json=JSON,
            version=INT,
            patch_kind=TEXT,
            last_updated_ms=BIG,
            first_applied_ms=BIG,
        ),
        ("partition", "uuid", "attempt_index"),
    ),
)
