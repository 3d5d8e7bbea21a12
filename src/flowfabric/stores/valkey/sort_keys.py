"""Bytes that sort as the values they stand for: entries of indexes, and names of runs.

A value begins with a byte that tells what it is, so that what was written can be read back. Execution ids are shortened
to the 19 bytes that are their keys too.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import Any

_MIDDLE = 1 << 63
#: Digits of the highest partition.
_DIGITS = 5
_NUMBER_TAG, _WIRE_TAG = 0x15, 0x20
_PACKED_NUMBER = struct.Struct(">BQ").pack
#: Numbers that fit in any case.
_USUAL = range(-_MIDDLE, _MIDDLE)
#: How many ids are remembered with their bytes. Each is needed several times while it is worked on.
_REMEMBERED = 32_768
#: Names of runs, of a kilobyte and more where callers choose them.
REMEMBERED_NAMES = 16_384
_BYTES, _TEXT, _NONE, _TUPLE, _BARE, _NUMBER, _WIRE, _LAST = (
    b"\x01",
    b"\x02",
    b"\x03",
    b"\x05",
    b"\x06",
    b"\x15",
    b"\x20",
    b"\xff",
)
#: Size of what tells how urgent an execution is, at the beginning of its place in a queue.
PRIORITY = 9
#: Size of an execution's key: how its partition sorts as text, and its UUID.
WIRE_KEY = 19


@lru_cache(maxsize=65_536)
def _partition_key(partition: str) -> bytes:
    """Three bytes that sort as ``10}`` and ``100}`` do: by digits, with the brace behind all of them."""
    rank = 0
    for digit in partition.ljust(_DIGITS, "}"):
        rank = rank * 11 + (10 if digit == "}" else int(digit))
    return rank.to_bytes(3, "big")


@lru_cache(maxsize=65_536)
def _partition(key: bytes) -> str:
    """The partition of such bytes."""
    rank, digits = int.from_bytes(key, "big"), ""
    for _ in range(_DIGITS):
        rank, digit = divmod(rank, 11)
        digits = ("" if digit == 10 else str(digit)) + digits
    return digits


@lru_cache(maxsize=_REMEMBERED)
def wire_key(execution_id: str) -> bytes | None:
    """The key of an execution, which sorts as its id; ``None`` for a text that is not spelled as ids are."""
    close = execution_id.find("}:")
    try:
        key = _partition_key(execution_id[4:close]) + bytes.fromhex(execution_id[close + 2 :].replace("-", ""))
    except (ValueError, OverflowError):
        return None
    return key if len(key) == WIRE_KEY and wire_id_of(key) == execution_id else None


def uuid_of(key: bytes) -> str:
    """The UUID in an execution's key."""
    text = key[3:].hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def wire_id_of(key: bytes) -> str:
    """The id of the execution with a key."""
    return f"{{fp:{_partition(key[:3])}}}:{uuid_of(key)}"


def encode(value: Any) -> bytes:
    """An entry, a bound or a name as bytes."""
    if type(value) is not tuple:
        return _BARE + _encoded(value)
    # Most of what there is are numbers and ids, so these do not pay for a call.
    return b"".join(
        [
            _PACKED_NUMBER(_NUMBER_TAG, each + _MIDDLE) if type(each) is int and each in _USUAL else _encoded(each)
            for each in value
        ]
    )


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        if value.startswith("{fp:"):
            key = wire_key(value)
            if key is not None:
                return _WIRE + key
        return _TEXT + value.encode().replace(b"\0", b"\0\xff") + b"\0"
    if type(value) is int:
        return _number(value)
    if isinstance(value, bytes):
        return _BYTES + value.replace(b"\0", b"\0\xff") + b"\0"
    if value is None:
        return _NONE
    if isinstance(value, tuple):
        return _TUPLE + b"".join(map(_encoded, value)) + b"\0"
    return _LAST if value == math.inf else _number(int(value))


def _number(value: int) -> bytes:
    """A number. Bounds may lie beyond what is ever stored, on either side."""
    if not -_MIDDLE <= value < _MIDDLE:
        return _LAST if value > 0 else _NUMBER
    return _NUMBER + (value + _MIDDLE).to_bytes(8, "big")


def decode(data: bytes) -> Any:
    """What ``encode`` made bytes of."""
    if data[:1] == _BARE:
        return _decoded(data, 1)[0]
    values: list[Any] = []
    place, end = 0, len(data)
    while place < end:
        # Numbers and ids come often enough not to pay for a call.
        if data[place] == _NUMBER_TAG:
            values.append(int.from_bytes(data[place + 1 : place + 9], "big") - _MIDDLE)
            place += 9
        elif data[place] == _WIRE_TAG:
            values.append(wire_id_of(data[place + 1 : place + 1 + WIRE_KEY]))
            place += 1 + WIRE_KEY
        else:
            value, place = _decoded(data, place)
            values.append(value)
    return tuple(values)


def _decoded(data: bytes, place: int) -> tuple[Any, int]:
    tag = data[place : place + 1]
    place += 1
    if tag == _NUMBER:
        return int.from_bytes(data[place : place + 8], "big") - _MIDDLE, place + 8
    if tag == _WIRE:
        return wire_id_of(data[place : place + WIRE_KEY]), place + WIRE_KEY
    if tag in (_TEXT, _BYTES):
        end = data.index(b"\0", place)
        while data[end + 1 : end + 2] == b"\xff":
            end = data.index(b"\0", end + 1)
        raw = data[place:end].replace(b"\0\xff", b"\0")
        return raw.decode() if tag == _TEXT else raw, end + 1
    if tag == _NONE:
        return None, place
    if tag == _TUPLE:
        values = []
        while data[place] != 0:
            value, place = _decoded(data, place)
            values.append(value)
        return tuple(values), place + 1
    raise ValueError(f"an entry holds a value of an unknown sort ({tag!r})")


@lru_cache(maxsize=REMEMBERED_NAMES)
def encoded_name(family: Any, name: Any) -> bytes:
    """A run's family and name as bytes. Families of indexed equalities begin with a kind of record."""
    parts = family if isinstance(family, tuple) else (family,)
    return b"".join(_encoded(part.__name__ if isinstance(part, type) else part) for part in (*parts, name))
