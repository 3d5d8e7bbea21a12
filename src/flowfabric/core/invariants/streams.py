"""Invariants of a stream: its head against its frames, and its summary against its deltas."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from flowfabric.core.documents import parse_document
from flowfabric.model.counting import counted
from flowfabric.model.errors import Validation
from flowfabric.model.reads.examine import Violation
from flowfabric.model.records.streams import StreamHead, StreamSummary
from flowfabric.model.streams.frames import decode_summary_document, decode_summary_patch, merge_summary


def check_stream(
    stream: str, frames: int, newest: tuple[int, int] | None, head: StreamHead | None, begun: bool
) -> list[Violation]:
    """One attempt's stream: how many frames are stored, the newest of them, and what its head says. A head without
    figures is worked out from the frames when it is needed."""
    found: list[Violation] = []

    def expect(holds: object, detail: str) -> None:
        if not holds:
            found.append(Violation("I33", stream, detail))

    expect(begun, "frames of an attempt that does not exist")
    if head is None or head.frame_count is None:
        return found
    expect(
        head.frame_count == frames,
        f"its head counts {counted(head.frame_count, 'frame')}, but {counted(frames, 'is', 'are')} stored",
    )
    if newest is not None:
        told = (head.last_ts_ms, head.last_seq)
        expect(told == newest, f"its head says that {_shown(told)} is the newest frame, but it is {_shown(newest)}")
    return found


def _shown(position: tuple[int, int]) -> str:
    return f"{position[0]}-{position[1]}"


def check_summary(
    stream: str, summary: StreamSummary | None, stored: int, deltas: Sequence[str] | None
) -> list[Violation]:
    """The summary against the deltas that are stored, of which there may have been more. ``deltas`` are the fields of
    the stored ones, oldest first; nothing if they are too many to look at."""
    if summary is None:
        return [Violation("I33", stream, f"{stored} summary frames, and no summary")] if stored else []
    found: list[Violation] = []
    if summary.version < max(stored, 1):
        detail = f"its summary covers {counted(summary.version, 'frame')}, but {counted(stored, 'is', 'are')} stored"
        found.append(Violation("I33", stream, detail))
    elif deltas:
        try:
            document = decode_summary_document(summary.document_json)
            # Taken in once more, the newest delta changes nothing; all of them together make the document.
            whole = summary.version == stored == len(deltas)
            again: dict[str, Any] = {} if whole else document
            for fields in deltas if whole else deltas[-1:]:
                again = merge_summary(again, decode_summary_patch(_payload(fields)))
        except (Validation, ValueError) as error:
            detail = error.detail if isinstance(error, Validation) else str(error)
            return [Violation("I33", stream, f"its summary cannot be computed: {detail}")]
        if again != document:
            found.append(Violation("I33", stream, "its summary does not match its frames"))
    return found


def _payload(fields: str) -> bytes:
    document = parse_document(fields, "fields")
    payload = str(document.get("payload", ""))
    return base64.b64decode(payload) if document.get("encoding") == "base64" else payload.encode()
