"""Reading streams: pages, tails that wait, and the rolling summary."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.core.documents import parse_document
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.model import states as lit
from flowfabric.model.decisions import Get, Select
from flowfabric.model.errors import NotFound, ResourceExhausted, Validation, ValidationKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_ERRORS_SHOWN, MAX_STREAM_TAILS
from flowfabric.model.quoting import quoted
from flowfabric.model.reads.overview import AttemptError, AttemptErrors
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.streams import StreamSummary
from flowfabric.model.streams.frames import (
    MAX_STREAM_READ_COUNT,
    MAX_TAIL_BLOCK_MS,
    MODE_BEST_EFFORT,
    At,
    End,
    PatchKind,
    Start,
    StreamCursor,
    StreamCursorError,
    StreamFrame,
    StreamFrames,
    StreamVisibility,
    SummaryDocument,
)
from flowfabric.stores.questions import ReadFrames

_FIRST = (0, 0)
_LAST = (2**63 - 1, 2**63 - 1)
_CLOSED_REASONS = {
    lit.OUTCOME_SUCCESS: "attempt_success",
    lit.OUTCOME_FAILED: "attempt_failure",
    "failure": "attempt_failure",
    lit.OUTCOME_RETRY: "attempt_failure",
    lit.OUTCOME_CANCELLED: "attempt_cancelled",
    lit.OUTCOME_RECLAIMED: "reclaimed",
    lit.OUTCOME_EXPIRED: "expired",
    lit.OUTCOME_LEASE_EXPIRED: "lease_expired",
}
_FAILURES = (lit.OUTCOME_FAILED, "failure", lit.OUTCOME_RETRY)
#: The frame in which a worker tells how its attempt failed. It is the last one, unless output arrives late.
ERROR_FRAME = "error"
_LOOKED_AT = 8
#: How often waiting tails look again although nothing woke them: one for each stream.
SAFETY_POLL_S = 1.0


class Streams(EngineBase):
    """The part of the engine that readers of output live in."""

    _tails = 0

    async def read_stream(
        self,
        execution_id: ExecutionId | str,
        attempt_index: int = 0,
        from_cursor: StreamCursor | str = "start",
        to_cursor: StreamCursor | str = "end",
        count_limit: int = 100,
    ) -> StreamFrames:
        """Frames between two cursors, both included, oldest first."""
        identity, index = values.execution_id(execution_id), _index(attempt_index)
        low, high = _position(from_cursor, "from_cursor"), _position(to_cursor, "to_cursor")
        limit = _count(count_limit)
        return await self._page(identity, index, low, high, limit, StreamVisibility.ALL)

    async def tail_stream(
        self,
        execution_id: ExecutionId | str,
        attempt_index: int = 0,
        after: StreamCursor | str = "0-0",
        block_ms: int = 0,
        count_limit: int = 100,
        visibility: StreamVisibility | str = StreamVisibility.ALL,
    ) -> StreamFrames:
        """Frames strictly after a cursor; with ``block_ms`` waits that long for the first of them."""
        identity, index, limit = values.execution_id(execution_id), _index(attempt_index), _count(count_limit)
        cursor = _cursor(after, "after")
        if not isinstance(cursor, At):
            raise values.invalid("after: a tail needs a concrete cursor such as '0-0', not 'start' or 'end'")
        try:
            seen = StreamVisibility(visibility)
        except ValueError:
            raise values.invalid(
                f"visibility: {quoted(visibility)} is not one of {', '.join(StreamVisibility)}"
            ) from None
        wait_ms = values.integer(block_ms, "block_ms", 0, MAX_TAIL_BLOCK_MS)
        low = _after(cursor.position)
        if not wait_ms:
            return await self._page(identity, index, low, _LAST, limit, seen)
        return await self._tail(identity, index, low, wait_ms, limit, seen)

    async def _tail(
        self,
        identity: ExecutionId,
        index: int,
        low: tuple[int, int],
        wait_ms: int,
        limit: int,
        seen: StreamVisibility,
    ) -> StreamFrames:
        if self._tails >= MAX_STREAM_TAILS:
            raise ResourceExhausted("stream_ops", MAX_STREAM_TAILS)
        self._listen()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        stream = (str.__str__(identity), index)
        self._tails += 1
        alone = False
        try:
            while True:
                # Waiting starts before looking, so that nothing slips in between.
                woken = self._streams.park(stream)
                try:
                    page = await self._page(identity, index, low, _LAST, limit, seen)
                    if alone and (page.frames or page.is_closed()):
                        # If a wake-up was lost, it was lost for all who read this stream.
                        self._streams.wake((stream,))
                    remaining = deadline - loop.time()
                    if page.frames or page.is_closed() or remaining <= 0 or self._closed:
                        return page
                    self._streams.rounds.keep(SAFETY_POLL_S)
                    await asyncio.wait((woken,), timeout=remaining)
                    alone = woken.done()
                finally:
                    self._streams.leave(stream, woken)
        finally:
            self._tails -= 1

    async def _page(
        self,
        identity: ExecutionId,
        index: int,
        low: tuple[int, int],
        high: tuple[int, int],
        limit: int,
        seen: StreamVisibility,
    ) -> StreamFrames:
        # The attempt is read first: a frame written before it closed is then certain to be in the page after it.
        attempt = (await self._view(Get(Attempt, (identity, index)))).attempt(identity, index)
        excluded = MODE_BEST_EFFORT if seen is StreamVisibility.EXCLUDE_BEST_EFFORT else None
        rows = await self._ask(ReadFrames(identity.partition, identity.uuid_text, index, low, high, limit, excluded))
        frames = tuple(StreamFrame(f"{ts}-{seq}", _fields(fields), mode) for ts, seq, fields, mode in rows)
        closed_at, reason = _closure(attempt)
        return StreamFrames(frames, closed_at, reason)

    async def read_errors(self, execution_id: ExecutionId | str) -> AttemptErrors:
        """The errors of attempts that failed, oldest first, of the newest ``MAX_ERRORS_SHOWN``; attempts whose worker
        left none, because it was lost or is no worker of ours, are left out."""
        identity = values.execution_id(execution_id)
        where = (identity.partition, identity.uuid_text)
        view = await self._view(Get(Execution, identity), Select(Attempt, ("partition", "uuid"), where))
        if view.execution(identity) is None:
            raise NotFound("execution", identity)
        attempts = sorted(view.select(Attempt, partition=where[0], uuid=where[1]), key=lambda each: each.attempt_index)
        failed = [each.attempt_index for each in attempts if each.outcome in _FAILURES][-MAX_ERRORS_SHOWN:]
        pages = [
            await self._ask(ReadFrames(*where, index, _FIRST, _LAST, _LOOKED_AT, backwards=True)) for index in failed
        ]
        found = [_last_error(index, page) for index, page in zip(failed, pages, strict=True)]
        return AttemptErrors(tuple(each for each in found if each is not None))

    async def read_summary(self, execution_id: ExecutionId | str, attempt_index: int = 0) -> SummaryDocument | None:
        """The rolling document of an attempt's stream; ``None`` if no summary frame was ever written."""
        identity, index = values.execution_id(execution_id), _index(attempt_index)
        need = Get(StreamSummary, (identity, index))
        found = (await self._view(need)).get(StreamSummary, need.key)
        if found is None or found.version == 0:
            return None
        kind = found.patch_kind or PatchKind.JSON_MERGE_PATCH
        if kind not in tuple(PatchKind):
            raise Validation(ValidationKind.CORRUPTION, f"patch_kind: unknown value {kind!r}")
        return SummaryDocument(
            found.document_json,
            found.version,
            PatchKind(kind),
            found.last_updated_ms,
            found.first_applied_ms,
        )


def _closure(attempt: Attempt | None) -> tuple[int | None, str | None]:
    """When and why no more frames will come."""
    if attempt is None or attempt.terminal_at_ms is None:
        return None, None
    return attempt.terminal_at_ms, _CLOSED_REASONS.get(attempt.outcome or "", "attempt_interrupted")


def _last_error(index: int, frames: list[tuple[int, int, str, str]]) -> AttemptError | None:
    """The error among an attempt's last frames, the newest first."""
    for at, _, text, _ in frames:
        fields = _fields(text)
        if fields.get("frame_type") != ERROR_FRAME or fields.get("encoding") == "base64":
            continue
        try:
            told = msgspec.json.decode(fields.get("payload", ""), type=_Told)
        except (msgspec.MsgspecError, RecursionError):
            continue
        return AttemptError(index, at, told.type, told.message, told.category, told.traceback)
    return None


class _Told(Struct):
    type: str
    message: str = ""
    category: str = ""
    traceback: str = ""


def _fields(text: str) -> dict[str, str]:
    document = parse_document(text, "fields")
    return {key: str(value) for key, value in sorted(document.items())}


def _index(value: Any) -> int:
    return values.integer(value, "attempt_index", 0, 2**31 - 1)


def _count(value: Any) -> int:
    return min(values.integer(value, "count_limit", 1, 2**31), MAX_STREAM_READ_COUNT)


def _cursor(value: StreamCursor | str, name: str) -> Start | End | At:
    if isinstance(value, Start | End | At):
        return value
    if not isinstance(value, str):
        raise values.invalid(f"{name}: expected text, got {type(value).__name__}")
    try:
        return StreamCursor.parse(value)
    except StreamCursorError as error:
        raise values.invalid(f"{name}: {error}") from None


def _position(value: StreamCursor | str, name: str) -> tuple[int, int]:
    cursor = _cursor(value, name)
    if isinstance(cursor, Start):
        return _FIRST
    if isinstance(cursor, End):
        return _LAST
    return cursor.position


def _after(position: tuple[int, int]) -> tuple[int, int]:
    ts_ms, seq = position
    if seq < 2**31 - 1:
        return ts_ms, seq + 1
    return (ts_ms + 1, 0) if ts_ms < _LAST[0] else _LAST
