"""Refusals of a body or a query in words: which field, and what was expected, never what was there."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from flowfabric.model.ids import MAX_LANE_BYTES, ExecutionIdError, IdError, LaneIdError

#: Names of workers, and how that is said. It ends where nothing at all follows: ``$`` lets a newline follow, and the
#: dialect of the API's description has no other word for the end.
NAME_PATTERN = r"^[^\s\x00-\x1f\x7f-\x9f]+(?![\s\S])"
_PATTERNS = {repr(NAME_PATTERN): "without spaces or control characters"}

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "bytes": "base64 text",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_PARTS = {
    "str": ("character", "characters"),
    "array": ("item", "items"),
    "object": ("entry", "entries"),
    "bytes": ("byte", "bytes"),
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}

_IDS: dict[type, str] = {
    IdError: "expected a UUID",
    ExecutionIdError: "expected an execution id such as {fp:7}:<uuid>",
    LaneIdError: f"expected 1 to {MAX_LANE_BYTES} printable ASCII characters",
}

_PLACE = re.compile(r" - at (`key` in )?`\$\.?([^`]*)`\Z")
_KIND = re.compile(r"Expected `([^`]+)`, got ")
_BOUND = re.compile(r"Expected `(\w+)` ([<>]=?) (\S+)")
_LENGTH = re.compile(r"Expected `(\w+)` of length (?:([<>]=?) )?(\d+)")
_PATTERN = re.compile(r"Expected `str` matching regex (.+)", re.DOTALL)
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_STEP = re.compile(r"\.?(\w+)|\[[^][]*\]")
_MAX_NAME = 64


class Flaw(NamedTuple):
    """Where something is wrong, what was expected, and whether only its value is: its kind is right then."""

    place: str
    expected: str
    of_value: bool
    #: Whether it is a field that is not known here.
    is_unknown: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.expected}" if self.place else self.expected


def flaw_of(error: msgspec.ValidationError, kind: Any = None) -> Flaw:
    """What ``msgspec`` found; ``kind`` is what it was reading, if that is known."""
    text = str(error)
    found = _PLACE.search(text)
    place = ""
    if found is not None:
        text = text[: found.start()]
        place = found[2]
    if field := _FIELD.fullmatch(text):
        name = field[2][:_MAX_NAME]
        missing = field[1].startswith("missing")
        expected = "this field is required" if missing else "unknown field"
        return Flaw(f"{place}.{name}" if place else name, expected, False, not missing)
    expected, of_value = _expected(text, error.__cause__, kind, place)
    if found is not None and found[1]:
        place = f"a key of {place}" if place else "a key"
    return Flaw(place, expected, of_value)


def _expected(text: str, cause: BaseException | None, kind: Any, place: str) -> tuple[str, bool]:
    if found := _KIND.match(text):
        return f"expected {_kinds(found[1])}", False
    if found := _BOUND.match(text):
        return f"expected {_kinds(found[1])} of {_BOUNDS[found[2]]} {_number(found[3])}", True
    if found := _LENGTH.match(text):
        parts = _PARTS[found[1]][found[3] != "1"]
        # Without a bound it is a tuple that has another number of parts: another shape.
        bound = f"{_BOUNDS[found[2]]} " if found[2] else ""
        return f"expected {_kinds(found[1])} of {bound}{found[3]} {parts}", bool(found[2])
    if found := _PATTERN.match(text):
        return f"expected text {_PATTERNS.get(found[1], f'that matches {found[1]}')}", True
    if text.startswith("Invalid enum value"):
        choices = _choices(kind, place)
        return f"expected one of {choices}" if choices else "expected one of the known values", True
    if "out of range" in text:
        return "expected a number in range", True
    if text.startswith("Invalid base64"):
        return "expected base64 text", True
    # A hook has said it, in words of its own; what has the right kind and a bad value is a ValueError.
    return _IDS.get(type(cause), text), isinstance(cause, ValueError)


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(each, each) for each in names.split(" | "))


def _number(text: str) -> str:
    return text.removesuffix(".0")


@cache
def _type(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _choices(kind: Any, place: str) -> str:
    """The values that an enumeration knows, with commas between; nothing if it cannot be found."""
    if kind is None:
        return ""
    found = [_type(kind)]
    for step in _STEP.finditer(place):
        found = [below for each in _members(found) for below in _below(each, step[1])]
    choices: list[Any] = []
    for each in _members(found):
        if isinstance(each, inspect.EnumType):
            choices += [member.value for member in each.cls]
        elif isinstance(each, inspect.LiteralType):
            choices += each.values
    return ", ".join(str(each.value if isinstance(each, Enum) else each) for each in choices)


def _members(types: list[inspect.Type]) -> list[inspect.Type]:
    return [one for each in types for one in (each.types if isinstance(each, inspect.UnionType) else (each,))]


def _below(node: inspect.Type, name: str | None) -> list[inspect.Type]:
    """What stands at a field, or at an item if no field is named."""
    if name is not None:
        fields = node.fields if isinstance(node, inspect.StructType) else ()
        return [each.type for each in fields if each.encode_name == name]
    if isinstance(node, inspect.DictType):
        return [node.value_type]
    if isinstance(node, (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)):
        return [node.item_type]
    return []
