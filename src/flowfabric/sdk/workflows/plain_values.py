"""Plain values as JSON, so that the same ones can be had again: what JSON does not have is an object with ``$``."""

from __future__ import annotations

import base64
import contextlib
import importlib
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

#: How far values are followed.
MAX_DEPTH = 8
_INT64 = 2**63


class Unplain(Exception):
    """A value that cannot be stored so that the same one can be had again."""


#: Values that are written as texts: how to write and how to read them.
_TEXTS: dict[str, tuple[type[Any], Any, Any]] = {
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "float": (float, repr, float),
    "int": (int, hex, lambda text: int(text, 16)),
}
_SEQUENCES: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def packed(value: Any, depth: int = 0) -> Any:
    """A value as JSON; what JSON does not have is an object with ``$``."""
    kind = type(value)
    if value is None or kind is bool or (kind is float and math.isfinite(value)):
        return value
    if kind is int and -_INT64 <= value < _INT64:
        return value
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"$": "text", "v": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
        return value
    if depth == MAX_DEPTH:
        raise Unplain
    if kind is list:
        return [packed(each, depth + 1) for each in value]
    if kind is dict:
        if all(type(each) is str for each in value) and "$" not in value:
            with contextlib.suppress(UnicodeEncodeError):
                "".join(value).encode()
                return {each: packed(one, depth + 1) for each, one in value.items()}
        return {"$": "dict", "v": [[packed(each, depth + 1), packed(one, depth + 1)] for each, one in value.items()]}
    return _marked(value, kind, depth)


def _marked(value: Any, kind: type[Any], depth: int) -> dict[str, Any]:
    for mark, (one, write, _) in _TEXTS.items():
        if kind is one:
            return {"$": mark, "v": write(value)}
    for mark, one in _SEQUENCES.items():
        if kind is one:
            return {"$": mark, "v": [packed(each, depth + 1) for each in value]}
    if kind is timedelta:
        return {"$": "timedelta", "v": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, Enum) and "<locals>" not in kind.__qualname__:
        return {"$": "enum", "v": [kind.__module__, kind.__qualname__, value.name]}
    raise Unplain


def unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [unpacked(each) for each in value]
    if not isinstance(value, dict):
        return value
    mark = value.get("$")
    if mark is None:
        return {each: unpacked(one) for each, one in value.items()}
    data = value["v"]
    if mark == "text":
        return base64.b64decode(data).decode("utf-8", "surrogatepass")
    if mark in _TEXTS:
        return _TEXTS[mark][2](data)
    if mark in _SEQUENCES:
        return _SEQUENCES[mark](unpacked(each) for each in data)
    if mark == "dict":
        return {unpacked(each): unpacked(one) for each, one in data}
    if mark == "timedelta":
        return timedelta(*data)
    return _member(*data)


def _member(module: str, name: str, member: str) -> Enum:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Enum)):
        raise ValueError(name)
    return found[member]
