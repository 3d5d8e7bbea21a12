"""What a database holds, read with a plain driver, and what must be true of it whoever was killed when."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.records.executions import Attempt, Binding, Execution, Lane
from flowfabric.model.records.streams import FrameRow, StreamHead
from tests import valkey_rows

_QUERIES = {
    "executions": "SELECT partition_key, execution_id, lane_id, attempt_index, lifecycle_phase, ownership_state, "
    "public_state, terminal_at_ms, payload, result, raw_fields FROM ff_exec_core",
    "attempts": "SELECT partition_key, execution_id, attempt_index, worker_instance_id, lease_epoch, "
    "lease_expires_at_ms, terminal_at_ms, outcome FROM ff_attempt",
    "lease_events": "SELECT partition_key, execution_id, event_type, lease_id FROM ff_lease_event ORDER BY event_id",
    "completions": "SELECT partition_key, execution_id, outcome FROM ff_completion_event ORDER BY event_id",
    "frames": "SELECT partition_key, execution_id, attempt_index, ts_ms, seq, fields FROM ff_stream_frame "
    "ORDER BY ts_ms, seq",
    "heads": "SELECT partition_key, execution_id, attempt_index, frame_count, last_ts_ms, last_seq FROM ff_stream_meta",
    "bindings": "SELECT partition_key, execution_id, namespace, idempotency_key FROM ff_exec_idempotency",
}
_KINDS = {
    "executions": Execution,
    "attempts": Attempt,
    "frames": FrameRow,
    "heads": StreamHead,
    "bindings": Binding,
}
_EVENTS: dict[str, Any] = {"lease_events": LeaseEvent, "completions": CompletionEvent}
_ENDINGS = {"completed": "success", "failed": "failed", "cancelled": "cancelled"}

Row = dict[str, Any]


def payload_of(execution_id: str) -> bytes:
    """The input that every test process gives an execution."""
    return f"input of {execution_id}".encode()


def result_of(execution_id: str, epoch: int) -> bytes:
    """The result that every test process completes an execution with. Not text, and long enough to be torn."""
    return b"\x00\xff" + f"result of {execution_id} under epoch {epoch};".encode() * 40


@dataclass
class Stored:
    """All rows that matter, by execution."""

    executions: dict[str, Row] = field(default_factory=dict)
    attempts: dict[str, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    #: ``(event type, attempt index, epoch)`` in the order of the outbox.
    leases: dict[str, list[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(list))
    completions: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    #: ``(attempt index, frame id) -> payload``.
    frames: dict[str, dict[tuple[int, str], str]] = field(default_factory=lambda: defaultdict(dict))
    heads: dict[str, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    bindings: dict[str, str] = field(default_factory=dict)
    lanes: set[str] = field(default_factory=set)

    def ended(self) -> int:
        """How many executions have ended."""
        return sum(row["terminal_at_ms"] is not None for row in self.executions.values())


async def read_store(url: str) -> Stored:
    """Everything in the database behind a URL."""
    if url.startswith("sqlite"):
        tables = _read_sqlite(url.removeprefix("sqlite:///"))
    else:
        tables = await (_read_valkey(url) if url.startswith("valkey") else _read_postgres(url))
    stored = Stored(lanes={row["lane_id"] for row in tables.pop("lanes")})
    for name, rows in tables.items():
        for row in rows:
            identity = f"{{fp:{row.pop('partition_key')}}}:{_text(row.pop('execution_id'))}"
            _add(stored, name, identity, row)
    return stored


def _read_sqlite(path: str) -> dict[str, list[Row]]:
    connection = sqlite3.connect(path)
    try:
        connection.row_factory = sqlite3.Row
        assert [row[0] for row in connection.execute("PRAGMA integrity_check")] == ["ok"]
        connection.execute("BEGIN")
        queries = {**_QUERIES, "lanes": "SELECT lane_id FROM ff_lane_registry"}
        return {name: [dict(row) for row in connection.execute(sql)] for name, sql in queries.items()}
    finally:
        connection.close()


async def _read_postgres(url: str) -> dict[str, list[Row]]:
    connection = await asyncpg.connect(url)
    try:
        queries = {**_QUERIES, "lanes": "SELECT lane_id FROM ff_lane_registry"}
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return {name: [dict(row) for row in await connection.fetch(sql)] for name, sql in queries.items()}
    finally:
        await connection.close()


async def _read_valkey(url: str) -> dict[str, list[Row]]:
    async with valkey_rows.Looking(url) as store:
        found = await valkey_rows.contents(store, *_KINDS.values(), Lane)
        events = await valkey_rows.events(store, dict.fromkeys(_EVENTS.values(), 0))
        assert await valkey_rows.wrong_indexes(store) == []
    tables = {name: [_row(each) for each in found[kind].values()] for name, kind in _KINDS.items()}
    tables |= {name: [_row(each) for _, each in events[kind]] for name, kind in _EVENTS.items()}
    return tables | {"lanes": [{"lane_id": each} for each in found[Lane]]}


def _row(record: Any) -> Row:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return fields | {"partition_key": record.partition, "execution_id": record.uuid}


def _text(identity: Any) -> str:
    return str(UUID(bytes=identity)) if isinstance(identity, bytes) else str(identity)


def _add(stored: Stored, name: str, identity: str, row: Row) -> None:
    match name:
        case "executions":
            stored.executions[identity] = row
        case "attempts":
            stored.attempts[identity][row["attempt_index"]] = row
        case "lease_events":
            _, index, epoch = row["lease_id"].rsplit(":", 2)
            stored.leases[identity].append((row["event_type"], int(index), int(epoch)))
        case "completions":
            stored.completions[identity].append(row["outcome"])
        case "frames":
            stored.frames[identity][row["attempt_index"], f"{row['ts_ms']}-{row['seq']}"] = _frame(row["fields"])
        case "heads":
            stored.heads[identity][row["attempt_index"]] = row
        case "bindings":
            stored.bindings[row["idempotency_key"]] = identity


def _frame(fields: str) -> str:
    document = json.loads(fields)
    payload: str = document["payload"]
    return base64.b64decode(payload).decode() if document["encoding"] == "base64" else payload


# ----------------------------------------------------------------------------------------------------------- invariants


def violations(stored: Stored) -> list[str]:
    """Whatever cannot be the work of whole transactions."""
    known = stored.executions.keys()
    found = [
        f"{identity}: {name} of an execution that does not exist"
        for name in ("attempts", "leases", "completions", "frames", "heads")
        for identity in getattr(stored, name).keys() - known
    ]
    found += [
        f"key {key} is bound to {each}, which does not exist"
        for key, each in stored.bindings.items()
        if each not in known
    ]
    for identity, row in stored.executions.items():
        for check in (_half_created, _wrong_ending, _wrong_lease, _wrong_attempts, _wrong_streams):
            found += [f"{identity}: {text}" for text in check(stored, identity, row)]
    return found


def _half_created(stored: Stored, identity: str, row: Row) -> Iterator[str]:
    if row["payload"] != payload_of(identity):
        yield f"its payload is {row['payload']!r}"
    if row["lane_id"] not in stored.lanes:
        yield f"its lane {row['lane_id']} is not registered"
    key = json.loads(row["raw_fields"]).get("idempotency_key")
    if key is not None and stored.bindings.get(key) != identity:
        yield f"its idempotency key {key} is bound to {stored.bindings.get(key)}"


def _wrong_ending(stored: Stored, identity: str, row: Row) -> Iterator[str]:
    announced = stored.completions[identity]
    ended = row["lifecycle_phase"] in ("terminal", "cancelled")
    if ended != (row["terminal_at_ms"] is not None):
        yield f"phase {row['lifecycle_phase']}, terminal_at_ms {row['terminal_at_ms']}"
    if announced != ([_ENDINGS[row["public_state"]]] if ended else []):
        yield f"it is {row['public_state']}, announced were {announced}"
    current = stored.attempts[identity].get(row["attempt_index"])
    if row["public_state"] == "completed":
        if current is None or row["result"] != result_of(identity, current["lease_epoch"]):
            yield "its result is not the one of the attempt that completed it"
    elif row["result"] is not None:
        yield "it has a result and is not completed"


def _wrong_lease(stored: Stored, identity: str, row: Row) -> Iterator[str]:
    """Leases begin and end in turn, under rising epochs, and the last word is the row's."""
    standing, highest = None, 0
    for kind, index, epoch in stored.leases[identity]:
        if kind in ("acquired", "reclaimed"):
            if standing is not None:
                yield f"granted again while {standing} stood"
            if epoch <= highest:
                yield f"granted under epoch {epoch} after {highest}"
            standing, highest = (index, epoch), epoch
        elif standing != (index, epoch):
            yield f"{kind} under {(index, epoch)} while {standing} stood"
        elif kind in ("revoked", "expired"):
            standing = None
        attempt = stored.attempts[identity].get(index)
        if attempt is None or attempt["lease_epoch"] < epoch:
            yield f"{kind} under {(index, epoch)}, the attempt is {attempt}"
    current = stored.attempts[identity].get(row["attempt_index"])
    if row["lifecycle_phase"] == "active":
        owned = current and current["worker_instance_id"] and current["lease_expires_at_ms"]
        if not owned or standing != (row["attempt_index"], current["lease_epoch"]):
            yield f"active, the attempt is {current}, the lease that stands {standing}"
    elif standing is not None:
        yield f"{row['lifecycle_phase']} although the lease {standing} stands"


def _wrong_attempts(stored: Stored, identity: str, row: Row) -> Iterator[str]:
    attempts = stored.attempts[identity]
    started = range(len(attempts))
    if sorted(attempts) != list(started) or len(attempts) not in (row["attempt_index"], row["attempt_index"] + 1):
        yield f"attempts {sorted(attempts)} of {row['attempt_index']}"
    granted = {index for kind, index, _ in stored.leases[identity] if kind in ("acquired", "reclaimed")}
    if granted != set(attempts):
        yield f"attempts {sorted(attempts)}, leases were granted on {sorted(granted)}"
    for index, attempt in attempts.items():
        live = attempt["worker_instance_id"] or attempt["lease_expires_at_ms"] is not None
        if live and (row["lifecycle_phase"] != "active" or index != row["attempt_index"]):
            yield f"attempt {index} is held although the execution is {row['lifecycle_phase']}"


def _wrong_streams(stored: Stored, identity: str, row: Row) -> Iterator[str]:
    frames = stored.frames[identity]
    if len(set(frames.values())) != len(frames):
        yield "a frame was stored twice"
    for index in {index for index, _ in frames} | stored.heads[identity].keys():
        written = [tuple(map(int, each.split("-"))) for at, each in frames if at == index]
        head = stored.heads[identity].get(index)
        if head is None or (head["frame_count"], (head["last_ts_ms"], head["last_seq"])) != (
            len(written),
            max(written, default=None),
        ):
            yield f"stream {index} has {len(written)} frames, its head says {head}"
