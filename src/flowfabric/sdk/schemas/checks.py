"""Whether a schema is one that can be used: of bounded size, well-formed, and never going round in a circle.

A type may contain itself, as trees do. What may not be is a circle that takes nothing of the answer with each round.

A question is asked only if all that its schema says is checked: then what fits the schema is what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from flowfabric.sdk.schemas.patterns import MAX_PATTERN, read_pattern

#: Schemas within one schema.
MAX_NODES: Final = 5_000
#: Characters of all patterns of a schema that are not the same.
MAX_PATTERNS: Final = 20_000
#: The largest number there is as a float.
LARGEST: Final = int(1.7976931348623157e308)

CHOICES: Final = ("anyOf", "oneOf")
_HERE: Final = ("allOf", *CHOICES)
_LISTS: Final = (*_HERE, "prefixItems")
_MAPPINGS: Final = ("properties", "$defs")
_SINGLE: Final = ("items", "additionalProperties", "propertyNames")
_REFERENCE: Final = "#/$defs/"
_TYPE_NAMES: Final = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
_TEXTS: Final = ("pattern", "format", "contentEncoding", "x-offset")
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS: Final = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "x-minBytes", "x-maxBytes", "x-maxDigits", "x-maxPlaces",
)  # fmt: skip
_MOST: Final = 2**63 - 1
#: Words that are checked.
_CHECKED: Final = frozenset(
    {*_LISTS, *_MAPPINGS, *_SINGLE, *_TEXTS, *_NUMBERS, *_COUNTS, "$ref", "enum", "const", "required", "type"}
    | {"uniqueItems", "discriminator"}
)
#: Words that ask for nothing: what they say is for people and forms. Whatever begins with ``x-`` is one of them.
_NOTES: Final = frozenset(
    {"title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
    | {"$schema", "$id", "contentMediaType", "contentSchema"}
)


def name_of(reference: str) -> str:
    """Which definition a reference means."""
    return reference[len(_REFERENCE) :]


def check_asked(schema: Any) -> str | None:
    """Why nobody can be asked with a schema, in words; ``None`` if all that it says is checked."""
    problem = check_schema(schema)
    if problem is not None:
        return problem
    patterns: set[str] = set()
    left: list[Any] = [schema]
    while left:
        each = left.pop()
        if isinstance(each, bool):
            continue
        unknown = [word for word in each if word not in _CHECKED | _NOTES and not word.startswith("x-")]
        if unknown:
            shown = ", ".join(f"{word[:40]!r}" for word in unknown[:5])
            return f"{shown} is not supported; use {', '.join(sorted(_CHECKED))}, or your own keywords with 'x-'"
        if "pattern" in each:
            patterns.add(each["pattern"])
        left += _parts(each)
    return _check_patterns(patterns)


def _check_patterns(patterns: set[str]) -> str | None:
    if sum(map(len, patterns)) > MAX_PATTERNS:
        return f"its patterns have more than {MAX_PATTERNS} characters"
    for each in sorted(patterns):
        if read_pattern(each) is None:
            return (
                f"the pattern {each[:200]!r} is not supported: at most {MAX_PATTERN} characters, and no lookbehinds, "
                "back references, flags, or groups and repetitions that never give back"
            )
    return None


def check_schema(schema: Any) -> str | None:
    """What is wrong with a schema, in words; ``None`` if it can be used. Words that are not known mean nothing."""
    if not isinstance(schema, dict):
        return "it is not an object"
    definitions = schema.get("$defs", {})
    left: list[Any] = [schema]
    count = 0
    while left:
        each = left.pop()
        count += 1
        if count > MAX_NODES:
            return f"it has more than {MAX_NODES} parts"
        if isinstance(each, bool):
            continue
        problem = _check_words(each, definitions)
        if problem is not None:
            return problem
        left += _parts(each)
    return _check_circles(definitions)


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for word in _LISTS:
        yield from schema.get(word, ())
    for word in _MAPPINGS:
        yield from schema.get(word, {}).values()
    for word in _SINGLE:
        if word in schema:
            yield schema[word]


def _check_words(schema: Any, definitions: Any) -> str | None:
    if not isinstance(schema, dict):
        return "a part of it is not an object, true or false"
    for word, value in schema.items():
        if not _fits(word, value):
            return f"its {word[:40]!r} is malformed"
    reference = schema.get("$ref")
    if reference is not None and not (reference.startswith(_REFERENCE) and name_of(reference) in definitions):
        return f"it has no definition for {reference[:100]!r}"
    return None


def _fits(word: str, value: Any) -> bool:
    if word in _LISTS:
        return isinstance(value, list)
    if word in _MAPPINGS:
        return isinstance(value, dict)
    if word in _SINGLE:
        return isinstance(value, dict | bool)
    if word == "$ref" or word in _TEXTS:
        return isinstance(value, str)
    if word in _NUMBERS:
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= LARGEST:
            return False
        return word != "multipleOf" or value > 0
    if word in _COUNTS:
        return type(value) is int and 0 <= value <= _MOST
    if word == "enum":
        return isinstance(value, list)
    if word == "required":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if word == "type":
        names = value if isinstance(value, list) else [value]
        few = 0 < len(names) <= len(_TYPE_NAMES)
        return few and all(isinstance(each, str) and each in _TYPE_NAMES for each in names)
    return True


def _check_circles(definitions: Mapping[str, Any]) -> str | None:
    try:
        TopologicalSorter({name: set(_references(each)) for name, each in definitions.items()}).prepare()
    except CycleError:
        return "a definition refers to itself"
    return None


def _references(schema: Any) -> Iterator[str]:
    """Definitions that are about the same part of the answer."""
    left = [schema]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            if "$ref" in each:
                yield name_of(each["$ref"])
            for word in _HERE:
                left += each.get(word, ())
