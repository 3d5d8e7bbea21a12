"""JSON Schemas of answers: made from types, and checked as far as forms need it."""

from __future__ import annotations

from typing import Any

import msgspec

from flowfabric.sdk.codec import mentions_pydantic

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def schema_of(annotation: Any) -> dict[str, Any]:
    """The JSON Schema of a type; ``{}``, which takes anything, if it has none."""
    try:
        if mentions_pydantic(annotation):
            from pydantic import TypeAdapter

            found: dict[str, Any] = TypeAdapter(annotation).json_schema()
            return found
        return msgspec.json.schema(annotation)
    except Exception:
        return {}


def check_against(schema: dict[str, Any], value: Any) -> str | None:
    """What is wrong with a value, in words; ``None`` if nothing is. Knows types, members, items, choices."""
    return _check(schema, value, schema.get("$defs", {}), "")


def _check(schema: Any, value: Any, definitions: dict[str, Any], where: str) -> str | None:
    if not isinstance(schema, dict):
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _check(definitions.get(reference.rpartition("/")[2], {}), value, definitions, where)
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        if choices and all(_check(each, value, definitions, where) is not None for each in choices):
            return f"{where or 'it'} fits none of the choices"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where or 'it'} is none of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema and value != schema["const"]:
        return f"{where or 'it'} is not {schema['const']!r}"
    return _check_type(schema, value, where) or _check_parts(schema, value, definitions, where)


def _check_type(schema: dict[str, Any], value: Any, where: str) -> str | None:
    kinds = schema.get("type")
    if kinds is None:
        return None
    names = kinds if isinstance(kinds, list) else [kinds]
    fits = any(isinstance(value, _TYPES.get(name, (object,))) for name in names)
    if isinstance(value, bool) and "boolean" not in names:
        fits = False
    return None if fits else f"{where or 'it'} is not {' or '.join(names)}"


def _check_parts(schema: dict[str, Any], value: Any, definitions: dict[str, Any], where: str) -> str | None:
    if isinstance(value, dict):
        members = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return f"{where}.{name} is missing".lstrip(".")
        for name, member in value.items():
            if name in members:
                problem = _check(members[name], member, definitions, f"{where}.{name}".lstrip("."))
                if problem is not None:
                    return problem
            elif schema.get("additionalProperties") is False:
                return f"{where}.{name} is not known".lstrip(".")
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for position, item in enumerate(value):
            problem = _check(schema["items"], item, definitions, f"{where}[{position}]")
            if problem is not None:
                return problem
    return None
