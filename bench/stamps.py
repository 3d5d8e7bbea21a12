"""What the Valkey store keeps of an execution, with holes where its ids and times go.

The bytes are the store's own, packed once. Writing many executions by hand only fills the holes: a backlog from
here, a limit in Lua on the server.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bench.shape import INSTANCE, LANE, NAMESPACE, PAYLOAD, RAW_FIELDS, RESULT, WORKER
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.records.executions import EXECUTION_WIDE_FIELDS, Attempt, Execution
from flowfabric.stores.keyed.entries import entries_of
from flowfabric.stores.keyed.records import wire_id
from flowfabric.stores.valkey.codec import VERSION, WIDE, packed_event, packed_wide, shape_of
from flowfabric.stores.valkey.keys import LASTING, Keys, encoded_run_name, is_passing
from flowfabric.stores.valkey.sort_keys import encode

#: Size of the part of a time that differs between any two of our days. Records and indexes write it alike, behind a
#: first byte that is each one's own.
TIME = 7


class Moments(Struct, frozen=True):
    """Times of an execution, in milliseconds."""

    created: int
    started: int
    expires: int
    ended: int
    renewed: int


def _sample(number: int) -> uuid.UUID:
    """Nobody else has an id like this."""
    return uuid.UUID(bytes=bytes(0xC0 ^ (7 * place + 31 * number) % 61 for place in range(16)))


MOMENTS = Moments(*(0x01_A0_A1_A2_A3_A4 + (number << 40) for number in range(5)))
VERSION_HOLE = bytes(0xE1 ^ place for place in range(VERSION))
IDENTITY, ATTEMPT_ID, LEASE_ID = (_sample(number) for number in range(3))
PAYLOAD_HOLE = b"<the payload of an execution>"


def time_bytes(time_ms: int) -> bytes:
    """What goes into the hole of a time."""
    return time_ms.to_bytes(TIME, "big")


#: What stands in the samples for each hole.
HOLES: Mapping[str, bytes] = {
    "version": VERSION_HOLE,
    "key": IDENTITY.bytes,
    "uuid": str(IDENTITY).encode(),
    "attempt_id": str(ATTEMPT_ID).encode(),
    "lease_id": str(LEASE_ID).encode(),
    "payload": PAYLOAD_HOLE,
    **{name: time_bytes(getattr(MOMENTS, name)) for name in Moments.__struct_fields__},
}
_NAMES = {sample: name for name, sample in HOLES.items()}
_HOLE = re.compile(b"(" + b"|".join(map(re.escape, _NAMES)) + b")")


class Stamp:
    """Bytes with holes."""

    def __init__(self, sample: bytes) -> None:
        self._parts = _HOLE.split(sample)
        #: Text, hole, text, hole, …, text.
        self.texts, self.holes = self._parts[::2], [_NAMES[each] for each in self._parts[1::2]]

    def filled(self, values: Mapping[str, bytes]) -> bytes:
        """The bytes with something in each hole."""
        parts = self._parts
        parts[1::2] = [values[name] for name in self.holes]
        return b"".join(parts)

    def in_lua(self) -> str:
        """An expression that fills the holes with variables of their names."""
        parts = [_lua_text(text) for text in self.texts]
        for place, name in enumerate(self.holes):
            parts.insert(2 * place + 1, name)
        return " .. ".join(part for part in parts if part != "''")

    def cut_in_lua(self, hole: str, variable: str) -> str:
        """An expression for what stands in a hole of the bytes in a variable."""
        place = self.holes.index(hole)
        first = sum(len(HOLES[name]) for name in self.holes[:place]) + sum(map(len, self.texts[: place + 1])) + 1
        return f"string.sub({variable}, {first}, {first + len(HOLES[hole]) - 1})"


def _lua_text(text: bytes) -> str:
    return "'" + "".join(chr(each) if 48 <= each <= 122 and each != 92 else f"\\{each:03}" for each in text) + "'"


# ------------------------------------------------------------------------------------------------------------- records


def new_execution(partition: int, priority: int = 0, required: tuple[str, ...] = ()) -> Execution:
    """One that waits in the lane, as it is created."""
    wide: dict[str, Any] = dict.fromkeys(EXECUTION_WIDE_FIELDS)
    return Execution(
        execution_id=wire_id(partition, str(IDENTITY)),
        partition=partition,
        uuid=str(IDENTITY),
        flow_id=None,
        lane_id=LANE,
        required_capabilities=required,
        attempt_index=0,
        lifecycle_phase="submitted",
        ownership_state="unowned",
        eligibility_state="eligible_now",
        public_state="waiting",
        attempt_state="pending",
        blocking_reason=None,
        priority=priority,
        created_at_ms=MOMENTS.created,
        terminal_at_ms=None,
        deadline_at_ms=None,
        started_at_ms=None,
        lease_reclaim_count=0,
        delay_until_ms=None,
        policy=None,
        namespace=NAMESPACE,
        instance_tag=None,
        last_mutation_at_ms=MOMENTS.created,
        total_attempt_count=0,
        retry_count=0,
        **{**wide, "payload": PAYLOAD_HOLE, "raw_fields": RAW_FIELDS},
    )


def claimed_execution(new: Execution) -> Execution:
    """The same, leased to a worker."""
    return replace(
        new,
        lifecycle_phase="active",
        ownership_state="leased",
        eligibility_state="not_applicable",
        public_state="running",
        attempt_state="running_attempt",
        started_at_ms=MOMENTS.started,
        last_mutation_at_ms=MOMENTS.started,
        total_attempt_count=1,
    )


def ended_execution(new: Execution) -> Execution:
    """The same, completed."""
    return replace(
        claimed_execution(new),
        lifecycle_phase="terminal",
        ownership_state="unowned",
        public_state="completed",
        attempt_state="attempt_terminal",
        terminal_at_ms=MOMENTS.ended,
        last_mutation_at_ms=MOMENTS.ended,
        result=RESULT,
        terminal_outcome="success",
    )


def running_attempt(new: Execution) -> Attempt:
    """The attempt that a claim begins."""
    return Attempt(
        execution_id=new.execution_id,
        partition=new.partition,
        uuid=new.uuid,
        attempt_index=0,
        worker_id=WORKER,
        worker_instance_id=INSTANCE,
        lease_epoch=1,
        lease_expires_at_ms=MOMENTS.expires,
        started_at_ms=MOMENTS.started,
        attempt_id=str(ATTEMPT_ID),
        lease_id=str(LEASE_ID),
        attempt_type="initial",
        last_instance_id=None,
        policy=None,
    )


def ended_attempt(new: Execution) -> Attempt:
    """The same, when its execution is completed."""
    return replace(
        running_attempt(new),
        worker_instance_id=None,
        last_instance_id=INSTANCE,
        lease_expires_at_ms=None,
        outcome="success",
        terminal_at_ms=MOMENTS.ended,
    )


def lease_event(new: Execution, kind: str, at_ms: int, revoked_by: str | None = None) -> LeaseEvent:
    """What is told of a lease."""
    return LeaseEvent(
        partition=new.partition,
        uuid=new.uuid,
        lease_id=f"valkey:{new.uuid}:0:1",
        event_type=kind,
        occurred_at_ms=at_ms,
        namespace=NAMESPACE,
        instance_tag=None,
        worker_instance_id=INSTANCE,
        revoked_by=revoked_by,
    )


def completion_event(new: Execution) -> CompletionEvent:
    """What is told of an end."""
    return CompletionEvent(
        partition=new.partition,
        uuid=new.uuid,
        flow_id=None,
        outcome="success",
        namespace=NAMESPACE,
        instance_tag=None,
        occurred_at_ms=MOMENTS.ended,
        dispatched_at_ms=MOMENTS.ended,
    )


# --------------------------------------------------------------------------------------------------------- what is kept


class Kept(Struct):
    """Something the store keeps of a record: a field of a hash, or a member of a sorted set."""

    key: bytes
    #: Field and value, or score and member.
    first: Stamp
    second: Stamp
    #: Family and name of the run, for a member of one.
    run: tuple[Any, Any] | None = None


def row(record: Execution | Attempt) -> Stamp:
    """The value of a record."""
    return Stamp(shape_of(type(record)).packed(record, VERSION_HOLE))


def field(record: Execution | Attempt) -> Stamp:
    """The field of a record's hash that holds it."""
    return Stamp(shape_of(type(record)).field(record.key))


def event(told: LeaseEvent | CompletionEvent) -> Stamp:
    """The value of an event."""
    return Stamp(packed_event(told))


def kept(keys: Keys, record: Execution | Attempt) -> Iterator[Kept]:
    """Everything the store keeps of a record."""
    kind = type(record)
    yield Kept(keys.rows(kind), field(record), row(record))
    for name in WIDE[kind]:
        value = getattr(record, name)
        if value is not None:
            yield Kept(keys.wide(kind, name), field(record), Stamp(packed_wide(name, value)))
    for family, run, place in entries_of(record):
        yield Kept(keys.run(family, run), Stamp(b"0"), Stamp(encode(place)), (family, run))


def listed(keys: Keys, each: Kept) -> tuple[bytes, bytes] | None:
    """The list that has the name of a run, and that name, if it is in one."""
    if each.run is None or not (is_passing(*each.run) or each.run[0] in LASTING):
        return None
    return keys.names(each.run[0]), encoded_run_name(each.run[1])


class Filler:
    """Writes many new executions: for each kind of thing kept one command, whatever their number."""

    def __init__(self, keys: Keys, partition: int, priority: int, required: tuple[str, ...]) -> None:
        new = new_execution(partition, priority, required)
        self._kept = list(kept(keys, new))
        self._names = [("SADD", *name) for each in self._kept if (name := listed(keys, each)) is not None]

    def commands(self, created: range, version: bytes) -> list[tuple[bytes | str | int, ...]]:
        """Commands that write one execution for each time."""
        arguments: list[list[bytes]] = [[] for _ in self._kept]
        for time_ms in created:
            identity = uuid.uuid4()
            values = {
                "version": version,
                "key": identity.bytes,
                "uuid": str(identity).encode(),
                "payload": PAYLOAD,
                "created": time_bytes(time_ms),
            }
            for each, found in zip(self._kept, arguments, strict=True):
                found.extend((each.first.filled(values), each.second.filled(values)))
        written = [
            ("HSET" if each.run is None else "ZADD", each.key, *found)
            for each, found in zip(self._kept, arguments, strict=True)
        ]
        return [*written, *self._names]
