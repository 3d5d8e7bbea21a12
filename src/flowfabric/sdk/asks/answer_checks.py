"""Whether an answer fits its question: the one place that decides, at every door.

A schema may have been stored by anybody who can start an execution, so nothing about it is taken for granted: it is
looked over first, and the check takes a bounded number of steps whatever the schema and the answer are. A step is worth
about as much time as looking at one part of the answer; whatever takes longer is charged for more of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec

from flowfabric.model.counting import counted
from flowfabric.sdk.schemas.checks import CHOICES, LARGEST, check_schema, name_of
from flowfabric.sdk.schemas.formats import MAX_DIGITS, MAX_PLACES, check_format, check_places, read_decimal
from flowfabric.sdk.schemas.patterns import READING, Pattern, read_pattern

#: Steps that one check may take, and how deep it may go.
MAX_STEPS: Final = 100_000
MAX_LEVELS: Final = 200

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_BOUNDS: Final[tuple[tuple[str, str, Callable[[Any, Any], bool]], ...]] = (
    ("minimum", "is less than", lambda value, bound: value < bound),
    ("exclusiveMinimum", "is not more than", lambda value, bound: value <= bound),
    ("maximum", "is more than", lambda value, bound: value > bound),
    ("exclusiveMaximum", "is not less than", lambda value, bound: value >= bound),
)
_COUNTING: Final = (*(word for word, _, _ in _BOUNDS), "multipleOf", MAX_DIGITS, MAX_PLACES)
#: What one step is worth of simple things: characters of a text, bits of a number, things that are compared.
_CHARACTERS, _BITS, _COMPARED = 64, 64, 8
#: Steps for reading a text by its format, and characters that one step more is worth.
_FORMAT, _FORMAT_CHARACTERS = 5, 16


class _TooMuch(Exception):
    """The check has taken all the steps it may take."""


class _Problem(NamedTuple):
    """What is wrong, where; ``shape`` says that it is another kind of thing altogether."""

    where: str
    what: str
    shape: bool = False


def check_against(schema: dict[str, Any], value: Any, *, whose: str = "question", what: str = "answer") -> str | None:
    """What is wrong with a value, in words; ``None`` if nothing is. ``whose`` schema it is and ``what``
    the value is are said in the words given."""
    malformed = check_schema(schema)
    if malformed is not None:
        return f"the schema of the {whose} cannot be used: {malformed}"
    try:
        found = _Check(schema.get("$defs", {})).check(schema, value, "", 0)
    except (_TooMuch, RecursionError):
        return f"it takes too many steps to check; simplify the schema, or send a shorter {what}"
    return None if found is None else f"{found.where or 'it'} {found.what}"


class _Facts(NamedTuple):
    """What is looked up for every value that meets a schema, looked up once."""

    #: Whether there are other schemas to be met here, and whether there is something to say about numbers.
    chooses: bool
    counts: bool
    #: The values that are allowed, and how much there is to compare; ``None`` if all are.
    allowed: list[Any] | None
    weight: int
    #: The names and classes of the types that are allowed; none are named if all are.
    names: list[str]
    classes: tuple[type, ...]


class _Check:
    """One check of one value."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._left = MAX_STEPS
        # By identity: schema and answer outlive the check, and no part of either is made during it.
        self._weights: dict[int, int] = {}
        self._facts: dict[int, _Facts] = {}
        self._patterns: dict[str, Pattern | None] = {}

    def _step(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooMuch

    def _weight(self, part: Any) -> int:
        """How much there is to compare in a part of the schema or of the answer."""
        known = self._weights.get(id(part))
        if known is None:
            known = self._weights[id(part)] = _weight_of(part)
            self._step(known // _COMPARED)
        return known

    def check(self, schema: Any, value: Any, where: str, level: int) -> _Problem | None:
        """The first thing that is wrong."""
        self._step()
        if level > MAX_LEVELS:
            raise _TooMuch
        if isinstance(schema, bool):
            return None if schema else _Problem(where, "is not allowed")
        if "$ref" in schema:
            self._step(len(schema["$ref"]) // _CHARACTERS)
            found = self.check(self._definitions[name_of(schema["$ref"])], value, where, level + 1)
            if found is not None:
                return found
        facts = self._facts.get(id(schema)) or self._look_up(schema)
        found = self._choose(schema, value, where, level) if facts.chooses else None
        if found is None:
            found = self._kind(facts, value, where)
        if found is not None:
            return found
        if isinstance(value, str):
            what = self._text(schema, value)
        elif isinstance(value, dict):
            return _size(schema, where, len(value), "Properties", "members") or self._members(
                schema, value, where, level
            )
        elif isinstance(value, list):
            return self._items_size(schema, value, where) or self._items(schema, value, where, level)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            what = self._number(schema, value) if facts.counts else None
        else:
            what = None
        return None if what is None else _Problem(where, what)

    def _choose(self, schema: Mapping[str, Any], value: Any, where: str, level: int) -> _Problem | None:
        for each in schema.get("allOf", ()):
            found = self.check(each, value, where, level + 1)
            if found is not None:
                return found
        for word in CHOICES:
            if word not in schema:
                continue
            problems = []
            if "discriminator" in schema:
                self._step(len(schema[word]) // _COMPARED)
            for each in _told_apart(schema, schema[word], value):
                found = self.check(each, value, where, level + 1)
                if found is None:
                    break
                problems.append(found)
            else:
                # If there is but one that it could have been, say what is wrong with that.
                near = [each for each in problems if not (each.shape and each.where == where)]
                return near[0] if len(near) == 1 else _Problem(where, "matches none of the choices", not near)
        return None

    def _look_up(self, schema: Mapping[str, Any]) -> _Facts:
        self._step()
        said = schema.get("type", [])
        names = said if isinstance(said, list) else [said]
        allowed, weight = None, 0
        if "enum" in schema or "const" in schema:
            allowed = schema["enum"] if "enum" in schema else [schema["const"]]
            weight = self._weight(schema["enum"] if "enum" in schema else schema["const"])
        facts = self._facts[id(schema)] = _Facts(
            chooses=any(word in schema for word in ("allOf", *CHOICES)),
            counts=any(word in schema for word in _COUNTING),
            allowed=allowed,
            weight=weight,
            names=names,
            classes=tuple({kind for name in names for kind in _TYPES[name]}),
        )
        return facts

    def _kind(self, facts: _Facts, value: Any, where: str) -> _Problem | None:
        if facts.allowed is not None:
            self._step(1 + facts.weight // _COMPARED)
            if not any(type(each) is type(value) and each == value for each in facts.allowed):
                return _Problem(where, _none_of(facts.allowed), True)
        names = facts.names
        if not names:
            return None
        if not isinstance(value, facts.classes) or (isinstance(value, bool) and "boolean" not in names):
            return _Problem(where, f"is not {' or '.join(names)}", True)
        if type(value) is int and "integer" not in names and abs(value) > LARGEST:
            return _Problem(where, "is too large")
        return None

    def _number(self, schema: Mapping[str, Any], value: int | float) -> str | None:
        if isinstance(value, int):
            self._step(value.bit_length() // _BITS)
        return _check_number(schema, value)

    def _text(self, schema: Mapping[str, Any], text: str) -> str | None:
        if "minLength" in schema and len(text) < schema["minLength"]:
            return "is empty" if not text else f"is shorter than {counted(schema['minLength'], 'character')}"
        if "maxLength" in schema and len(text) > schema["maxLength"]:
            return f"is longer than {counted(schema['maxLength'], 'character')}"
        if "format" in schema or "contentEncoding" in schema:
            self._step(_FORMAT + len(text) // _FORMAT_CHARACTERS)
        what = check_format(schema, text)
        if what is None and "pattern" in schema and not self._matches(schema["pattern"], text):
            what = f"does not match {schema['pattern']!r:.200}"
        if what is None and schema.get("format") == "decimal":
            what = _check_number(schema, read_decimal(text))
        return what

    def _matches(self, pattern: str, text: str) -> bool:
        """Whether a text matches a pattern; yes if it is not followed, since no question is asked with such a one."""
        if pattern not in self._patterns:
            self._step(len(pattern) * READING)
            self._patterns[pattern] = read_pattern(pattern)
        found = self._patterns[pattern]
        return found is None or found.is_in(text, self._step)

    def _members(self, schema: Mapping[str, Any], value: dict[str, Any], where: str, level: int) -> _Problem | None:
        if "required" in schema:
            self._step(self._weight(schema["required"]) // _COMPARED)
        for name in schema.get("required", ()):
            if name not in value:
                return _Problem(_inside(where, name), "is missing")
        known = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        names = schema.get("propertyNames", True)
        for name, member in value.items():
            place = _inside(where, name)
            self._step((len(name) + len(place)) // _CHARACTERS)
            if name not in known and names is not True:
                found = self.check(names, name, place, level + 1)
                if found is not None:
                    return _Problem(place, f"is not allowed as a name: it {found.what}")
            if name not in known and others is False:
                return _Problem(place, "is unknown")
            found = self.check(known.get(name, others), member, place, level + 1)
            if found is not None:
                return found
        return None

    def _items_size(self, schema: Mapping[str, Any], value: list[Any], where: str) -> _Problem | None:
        size = len(value)
        if schema.get("uniqueItems") is True and schema.get("minItems"):
            self._step(self._weight(value) // 2)
            # What is there twice counts once where it becomes a set.
            size = min(size, len(set(_distinct(value))))
        return _size(schema, where, size, "Items", "items") or _size(schema, where, len(value), "Items", "items")

    def _items(self, schema: Mapping[str, Any], value: list[Any], where: str, level: int) -> _Problem | None:
        first = schema.get("prefixItems", ())
        others = schema.get("items", True)
        for position, item in enumerate(value):
            fitting = first[position] if position < len(first) else others
            self._step(len(where) // _CHARACTERS)
            found = self.check(fitting, item, f"{where}[{position}]", level + 1)
            if found is not None:
                return found
        return None


def _told_apart(schema: Mapping[str, Any], choices: list[Any], value: Any) -> list[Any]:
    """The choice that a value names itself, if the schema says where; otherwise all."""
    told = schema.get("discriminator")
    if isinstance(told, dict) and isinstance(value, dict):
        name, mapping = told.get("propertyName"), told.get("mapping")
        said = value.get(name) if isinstance(name, str) else None
        if isinstance(mapping, dict) and isinstance(said, str):
            named = {"$ref": mapping.get(said)}
            return [each for each in choices if each == named][:1] or choices
    return choices


def _inside(where: str, name: str) -> str:
    return f"{where}.{name[:100]}" if where else name[:100] or "''"


def _none_of(allowed: list[Any]) -> str:
    if not allowed:
        return "is not allowed"
    shown = ", ".join(_short(each) for each in allowed[:20])
    if len(allowed) == 1:
        return f"is not {shown}"
    return f"is not one of {shown}{' …' if len(allowed) > 20 else ''}"


def _short(value: Any) -> str:
    """A value in a few words, however much there is in it."""
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a very large number"
    return repr(value[:50] if isinstance(value, str) else value)[:52]


def _size(schema: Mapping[str, Any], where: str, size: int, word: str, called: str) -> _Problem | None:
    least, most = schema.get(f"min{word}", 0), schema.get(f"max{word}", math.inf)
    if size < least:
        return _Problem(where, f"has fewer than {least} {called}")
    return _Problem(where, f"has more than {most} {called}") if size > most else None


def _distinct(value: list[Any]) -> Iterator[Hashable]:
    """What each is, as a text: a sender can choose numbers so that a set of them takes long to make."""
    for each in value:
        if isinstance(each, str):
            yield each
        elif isinstance(each, int) or (isinstance(each, float) and each.is_integer()):
            yield 0, hex(int(each))
        else:
            yield msgspec.json.encode(each)


def _weight_of(part: Any) -> int:
    weight, left = 0, [part]
    while left:
        each = left.pop()
        weight += 1
        if isinstance(each, str):
            weight += len(each) // _CHARACTERS
        elif isinstance(each, int):
            weight += each.bit_length() // _BITS
        elif isinstance(each, dict):
            left += each
            left += each.values()
        elif isinstance(each, list):
            left += each
    return weight


def _check_number(schema: Mapping[str, Any], value: int | float | Decimal) -> str | None:
    for word, called, beyond in _BOUNDS:
        if word in schema:
            bound = schema[word]
            if beyond(value, Decimal(str(bound)) if isinstance(value, Decimal) else bound):
                return f"{called} {bound}"
    step = schema.get("multipleOf")
    if step is not None and not _is_multiple(value, step):
        return f"is not a multiple of {step}"
    if MAX_DIGITS in schema or MAX_PLACES in schema:
        return check_places(schema, value if isinstance(value, Decimal) else Decimal(str(value)))
    return None


def _is_multiple(value: int | float | Decimal, step: int | float) -> bool:
    try:
        if isinstance(value, Decimal):
            return value % Decimal(str(step)) == 0
        if isinstance(value, int) and isinstance(step, int):
            return value % step == 0
        return math.fmod(value, step) == 0
    except (ArithmeticError, ValueError):
        return False
