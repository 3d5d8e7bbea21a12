"""The schema of what a function takes: an object with one property for each parameter that travels.

It is made of the schemas of the parameters, and says what the worker's reader says, as far as a schema can. A parameter
that has none takes any JSON; what does not fit its type is then found by the worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from flowfabric.sdk.asks.answer_checks import check_against
from flowfabric.sdk.definitions.codec import NOTHING, CodecError
from flowfabric.sdk.definitions.signature import Plan
from flowfabric.sdk.schemas.checks import check_asked, name_of
from flowfabric.sdk.schemas.from_types import schema_of

_REFERENCE: Final = "#/$defs/"


def input_schema(plan: Plan) -> dict[str, Any]:
    """The schema of the arguments."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for name, annotation in plan.annotations.items():
        made = {} if annotation is NOTHING else schema_of(annotation)
        if check_asked(made) is not None:
            made = {}
        properties[name] = _with_default(_shared(made, name, definitions), plan, name, definitions)
    whole = _object(plan, properties)
    if definitions:
        whole["$defs"] = definitions
    return whole if check_asked(whole) is None else open_schema(plan)


def open_schema(plan: Plan) -> dict[str, Any]:
    """The schema that knows the parameters by name only."""
    return _object(plan, {name: {} for name in plan.annotations})


def _object(plan: Plan, properties: dict[str, Any]) -> dict[str, Any]:
    required = [name for name in plan.annotations if name in plan.required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _shared(made: dict[str, Any], parameter: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema whose definitions stand with those of the others. Different types may have one name."""
    inner = made.get("$defs", {})
    own = {
        name: f"{parameter}.{name}" for name, each in inner.items() if name in definitions and definitions[name] != each
    }
    for name, each in inner.items():
        definitions[own.get(name, name)] = _renamed(each, own)
    schema: dict[str, Any] = _renamed({word: each for word, each in made.items() if word != "$defs"}, own)
    if "$ref" in schema and "title" not in schema:
        # Otherwise it would be called what its type is called, as all parameters of that type.
        words = parameter.replace("_", " ")
        schema["title"] = words[:1].upper() + words[1:]
    return schema


def _renamed(part: Any, names: Mapping[str, str]) -> Any:
    """The same with references to the new names."""
    if not names:
        return part
    if isinstance(part, dict):
        return {word: _renamed(each, names) for word, each in part.items()}
    if isinstance(part, list):
        return [_renamed(each, names) for each in part]
    if isinstance(part, str) and part.startswith(_REFERENCE):
        return _REFERENCE + names.get(name_of(part), name_of(part))
    return part


def _with_default(schema: dict[str, Any], plan: Plan, name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema with the parameter's default, if JSON can say it and it fits."""
    default = plan.travelling.parameters[name].default
    if default is inspect.Parameter.empty:
        return {word: each for word, each in schema.items() if word != "default"}
    try:
        value = msgspec.json.decode(plan.codecs[name].encode(default))
    except (CodecError, msgspec.DecodeError, RecursionError):
        return schema
    if check_against({**schema, "$defs": definitions}, value) is not None:
        return schema
    return {**schema, "default": value}


# -- ids ---------------------------------------------------------------------------------------------------------------


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema, whatever references lead to it."""
    for _ in range(16):
        if not isinstance(schema, dict):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        schema = root.get("$defs", {}).get(name_of(reference))
    return {}


def leads_to_text(root: Mapping[str, Any], path: str) -> bool:
    """Whether a dotted path leads to a plain text or a whole number in whatever fits the schema."""
    here: Any = root
    for part in path.split("."):
        inside = _resolved(here, root)
        here = inside.get("properties", {}).get(part)
        if here is None or (part not in inside.get("required", ()) and _default(here, root) is None):
            return False
    found = _resolved(here, root)
    # A text with a format is read as something else, which has a spelling of its own.
    plain = found.get("type") == "string" and not found.keys() & {"format", "contentEncoding", "enum", "const"}
    return plain or (found.get("type") == "integer" and not found.keys() & {"enum", "const"})


def _default(schema: Any, root: Mapping[str, Any]) -> Any:
    if isinstance(schema, dict) and "default" in schema:
        return schema["default"]
    return _resolved(schema, root).get("default")


def text_at(root: Mapping[str, Any], value: Any, path: str) -> str | None:
    """The text that a dotted path leads to in a value; ``None`` if it leads to none."""
    here: Any = root
    for part in path.split("."):
        here = _resolved(here, root).get("properties", {}).get(part)
        value = value[part] if isinstance(value, dict) and part in value else _default(here, root)
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
