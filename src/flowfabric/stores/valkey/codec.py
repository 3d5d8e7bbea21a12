"""Records and events as the bytes that Valkey keeps.

A value is its version, then, of executions, the number of the current attempt, then the fields in the order of the
struct. Fields that may be large and that few rules read live in hashes of their own, one for each field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from flowfabric.model.decisions import Key
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.streams import FrameRow, StreamHead
from flowfabric.stores.event_questions import Unreadable
from flowfabric.stores.keyed.records import KINDS
from flowfabric.stores.sql.schema import OUTBOXES, is_wire_keyed, split_wire
from flowfabric.stores.tables.shape import NAMES, REQUIREMENT
from flowfabric.stores.valkey.sort_keys import WIRE_KEY, decode, encode, wire_id_of, wire_key

#: Size of a version, and of what stands before the fields of an execution.
VERSION = 10
_EXECUTION_HEAD = VERSION + 4
#: Fields that are kept apart, by kind.
WIDE: Mapping[Any, tuple[str, ...]] = {Execution: ("payload", "result", "raw_fields"), Attempt: ("policy",)}
#: Wide fields that hold bytes; the others are kept packed.
_RAW_FIELDS = frozenset({"payload", "result"})
_EMPTY = (None, msgspec.UNSET)
#: Every execution that has ended has one, so it is packed with the narrow fields.
_OUTCOME = "terminal_outcome"
#: Fields that no store keeps.
_WORKED_OUT = {Execution: frozenset({"epoch_floor"}), StreamHead: frozenset({"stored"})}


def _plain(value: Any) -> Any:
    """What is unset is not there; ids are texts of a kind of their own."""
    return None if value is msgspec.UNSET else str.__str__(value)


_pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_unpack = msgspec.msgpack.Decoder(list).decode


class Shape:
    """How records of one kind are packed."""

    def __init__(self, kind: Any) -> None:
        table = KINDS[kind]
        self.kind = kind
        self.name = table.name.removeprefix("ff_").encode()
        self._wire = is_wire_keyed(kind)
        left_out = {*WIDE.get(kind, ()), *_WORKED_OUT.get(kind, ())}
        fields = [name for name in kind.__struct_fields__[3 if self._wire else 0 :] if name not in left_out]
        #: Fields of executions that hardly any has: they are packed behind the others, by name, where there are some.
        self._texts: tuple[str, ...] = ()
        if kind is Execution:
            narrow = [*fields[: fields.index("parent") + 1], _OUTCOME]
            self._texts, fields = tuple(name for name in fields if name not in narrow), narrow
        self._texts_of: Callable[[Any], Any] = attrgetter(*self._texts) if self._texts else lambda record: ()
        unset = [each for each in msgspec.structs.fields(kind) if each.name in self._texts]
        self._no_texts = tuple(each.default for each in unset)
        self._values: Callable[[Any], Any] = attrgetter(*fields)
        tuples = {column.field for column in table.columns if column.type in (NAMES, REQUIREMENT)}
        self._tuples = [place for place, name in enumerate(fields) if name in tuples]
        self._head = _EXECUTION_HEAD if kind is Execution else VERSION
        self._narrow = len(fields)

    def packed(self, record: Any, version: bytes) -> bytes:
        """A record's value."""
        values = self._values(record)
        if self.kind is not Execution:
            return version + _pack(values)
        texts = self._texts_of(record)
        if texts != self._no_texts:
            given = {name: text for name, text in zip(self._texts, texts, strict=True) if text not in _EMPTY}
            values = (*values, given) if given else values
        return version + _number(record.attempt_index, 4) + _pack(values)

    def unpacked(self, key: Key, value: bytes) -> Any:
        """The record of a value."""
        values = _unpack(memoryview(value)[self._head :])
        for place in self._tuples:
            values[place] = tuple(values[place])
        kind = self.kind
        if not self._wire:
            return kind(*values)
        execution_id = key if kind is Execution else key[0]
        partition, uuid = split_wire(execution_id)
        if kind is Execution:
            texts = values.pop() if len(values) > self._narrow else {}
            outcome = values.pop()
            record = Execution(execution_id, partition, uuid, *values)
            if outcome is not None:
                record.terminal_outcome = outcome
            for name, text in texts.items():
                setattr(record, name, text)
            return record
        record = kind(execution_id, partition, uuid, *values)
        if kind is StreamHead:
            record.stored = True
        return record

    def field(self, key: Key) -> bytes:
        """The field of the kind's hash that holds the record with a key."""
        if not self._wire:
            return encode(key if isinstance(key, tuple) else (key,))
        if self.kind is Execution:
            return wire_key(key) or encode((key,))
        first = wire_key(key[0]) or encode((key[0],))
        if self.kind is FrameRow:
            return first + _number(key[1], 4) + _number(key[2], 8) + _number(key[3], 8)
        return first + _number(key[1], 4)

    def key(self, field: bytes) -> Key:
        """The key of the record in a field."""
        if not self._wire:
            key = decode(field)
            return key[0] if len(key) == 1 else key
        execution_id = wire_id_of(field[:WIRE_KEY])
        if self.kind is Execution:
            return execution_id
        rest = field[WIRE_KEY:]
        numbers = (rest[:4], rest[4:12], rest[12:]) if self.kind is FrameRow else (rest,)
        return (execution_id, *(int.from_bytes(part, "big") for part in numbers))


def _number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


_SHAPES = {kind: Shape(kind) for kind in KINDS}


def shape_of(kind: Any) -> Shape:
    """How records of a kind are packed."""
    return _SHAPES[kind]


def packed_wide(field: str, value: Any) -> bytes:
    """The value of a wide field."""
    return bytes(value) if field in _RAW_FIELDS else _pack(value)


def unpacked_wide(field: str, value: bytes | None) -> Any:
    """A wide field as a record has it."""
    if value is None:
        return "{}" if field == "raw_fields" else None
    return value if field in _RAW_FIELDS else msgspec.msgpack.decode(value)


_EVENT_VALUES = {kind: attrgetter(*kind.__struct_fields__) for kind in OUTBOXES}


def packed_event(event: Any) -> bytes:
    """An event's value."""
    return _pack(_EVENT_VALUES[type(event)](event))


def unpacked_event(kind: Any, value: bytes) -> Any:
    """The event of a value; ``Unreadable`` if it is malformed."""
    try:
        return kind(*_unpack(value))
    except (msgspec.DecodeError, TypeError) as error:
        return Unreadable(str(error))
