"""JSON Schemas of answers, made from types.

They say all that the reader of a type says and a schema can: what msgspec and pydantic leave out (the offsets of
times, the keys of dictionaries, the digits of decimals) is added. What only code knows, such as a validator, they
cannot say.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as kinds

from flowfabric.sdk.definitions.codec import PydanticCodec, mentions_pydantic
from flowfabric.sdk.schemas.formats import MAX_BYTES, MAX_DIGITS, MAX_PLACES, MIN_BYTES, OFFSET

_OFFSETS = {True: "required", False: "forbidden"}
#: Names of members that stand for numbers.
_WHOLE = {"pattern": "^-?(0|[1-9][0-9]{0,300})$"}
_ANY_NUMBER = {"pattern": r"^-?(0|[1-9][0-9]{0,300})(\.[0-9]{1,300})?$"}


def schema_of(annotation: Any) -> dict[str, Any]:
    """The JSON Schema of a type; ``{}``, which takes anything, if it has none."""
    try:
        if mentions_pydantic(annotation):
            found: dict[str, Any] = PydanticCodec(annotation).adapter.json_schema(schema_generator=_generator())
            return found
        made = msgspec.json.schema(annotation, schema_hook=_hooked)
        _complete(kinds.type_info(annotation), made, made.get("$defs", {}), set())
        return made
    except Exception:
        return {}


def _hooked(kind: type) -> dict[str, Any]:
    for base, name in ((str, "string"), (int, "integer"), (float, "number")):
        if issubclass(kind, base):
            return {"type": name}
    raise NotImplementedError(kind)


# -- msgspec ---------------------------------------------------------------------------------------------------------


def _complete(info: Any, schema: Any, definitions: dict[str, Any], seen: set[str]) -> None:
    """Add to a schema of msgspec's what it leaves out."""
    while isinstance(info, kinds.Metadata):
        info = info.type
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            seen.add(name)
            _complete(info, definitions[name], definitions, seen)
        return
    _complete_text(info, schema)
    for inner, part in _parts(info, schema, definitions):
        _complete(inner, part, definitions, seen)


def _complete_text(info: Any, schema: dict[str, Any]) -> None:
    match info:
        case kinds.DateTimeType(tz=tz) | kinds.TimeType(tz=tz):
            schema["format"] = "date-time" if isinstance(info, kinds.DateTimeType) else "time"
            if tz is not None:
                schema[OFFSET] = _OFFSETS[tz]
        case kinds.BytesType() | kinds.ByteArrayType() | kinds.MemoryViewType():
            _lengths(schema, info.min_length, info.max_length)
        case kinds.DictType(key_type=key):
            names = _names(key)
            if names is not None:
                schema["propertyNames"] = names


def _lengths(schema: dict[str, Any], least: int | None, most: int | None) -> None:
    said = {MIN_BYTES: least, MAX_BYTES: most}
    schema.update({word: count for word, count in said.items() if count is not None})


def _parts(info: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> Iterable[tuple[Any, Any]]:
    """What is in a type, with the schema of each."""
    match info:
        case kinds.DictType(value_type=value):
            yield value, schema.get("additionalProperties")
        case kinds.CollectionType(item_type=item):
            yield item, schema.get("items")
        case kinds.TupleType(item_types=items):
            yield from zip(items, schema.get("prefixItems", ()), strict=False)
        case kinds.StructType() | kinds.TypedDictType() | kinds.DataclassType() | kinds.NamedTupleType():
            first = 1 if isinstance(info, kinds.StructType) and info.tag_field is not None else 0
            places = schema.get("prefixItems")
            for position, field in enumerate(info.fields, first):
                yield field.type, schema["properties"].get(field.encode_name) if places is None else places[position]
        case kinds.UnionType(types=types):
            for each in types:
                for choice in _choices(schema):
                    if _is_for(each, choice, definitions):
                        yield each, choice


def _choices(schema: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for each in schema.get("anyOf", ()):
        yield from _choices(each) if "anyOf" in each else (each,)


def _is_for(info: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Whether a choice of a union is that of this type; msgspec lets a union have no two alike."""
    while isinstance(info, kinds.Metadata):
        info = info.type
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    match info:
        case kinds.StructType(tag_field=str(), array_like=False):
            return bool(schema.get("properties", {}).get(info.tag_field) == {"enum": [info.tag]})
        case kinds.StructType(tag_field=str()):
            return bool(schema.get("prefixItems", [None])[0] == {"enum": [info.tag]})
        case kinds.DictType() | kinds.StructType(array_like=False) | kinds.TypedDictType() | kinds.DataclassType():
            return schema.get("type") == "object"
        case kinds.CollectionType() | kinds.TupleType() | kinds.NamedTupleType() | kinds.StructType():
            return schema.get("type") == "array"
        case kinds.DateTimeType() | kinds.TimeType() | kinds.BytesType() | kinds.ByteArrayType():
            return schema.get("type") == "string"
    return False


def _names(key: Any) -> dict[str, Any] | None:
    """What the names of an object's members are like; ``None`` if that is said already."""
    while isinstance(key, kinds.Metadata):
        key = key.type
    match key:
        case kinds.IntType():
            return dict(_WHOLE)
        case kinds.FloatType():
            return dict(_ANY_NUMBER)
        case kinds.BoolType():
            return {"enum": ["true", "false"]}
        case kinds.NoneType():
            return {"enum": ["null"]}
        case kinds.LiteralType(values=values):
            return {"enum": [_as_name(each) for each in values]}
        case kinds.EnumType(cls=cls):
            return {"enum": [_as_name(each.value) for each in cls]}
        case kinds.DateType():
            return {"format": "date"}
        case kinds.UUIDType():
            return {"format": "uuid"}
        case kinds.DecimalType():
            # A name is read as a decimal only if it is spelled as JSON spells numbers.
            return {"format": "decimal", "pattern": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"}
        case kinds.TimeDeltaType():
            return {"format": "duration"}
        case kinds.DateTimeType() | kinds.TimeType() | kinds.BytesType():
            made: dict[str, Any] = {"contentEncoding": "base64"} if isinstance(key, kinds.BytesType) else {}
            _complete_text(key, made)
            return made
    return None


def _as_name(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# -- pydantic --------------------------------------------------------------------------------------------------------


@cache
def _generator() -> Any:
    """Pydantic's maker of schemas, which says more with us."""
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        # A default that JSON cannot say is left out; as an error, the warning would leave out the whole schema.
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            said: dict[str, Any] = {}
            for word, name in (
                ("ge", "minimum"),
                ("gt", "exclusiveMinimum"),
                ("le", "maximum"),
                ("lt", "exclusiveMaximum"),
                ("multiple_of", "multipleOf"),
            ):
                if schema.get(word) is not None:
                    said[name] = float(schema[word])
            for word, name in (("max_digits", MAX_DIGITS), ("decimal_places", MAX_PLACES)):
                if schema.get(word) is not None:
                    said[name] = schema[word]
            return {"anyOf": [{"type": "number", **said}, {"type": "string", "format": "decimal", **said}]}

        def datetime_schema(self, schema: Any) -> dict[str, Any]:
            return _with_offset(super().datetime_schema(schema), schema)

        def time_schema(self, schema: Any) -> dict[str, Any]:
            return _with_offset(super().time_schema(schema), schema)

        def bytes_schema(self, schema: Any) -> dict[str, Any]:
            made = super().bytes_schema(schema)
            for word in ("minLength", "maxLength"):
                made.pop(word, None)
            _lengths(made, schema.get("min_length"), schema.get("max_length"))
            return made

        def dict_schema(self, schema: Any) -> dict[str, Any]:
            made = super().dict_schema(schema)
            for pattern, value in made.pop("patternProperties", {}).items():
                made.update(additionalProperties=value, propertyNames={"pattern": pattern})
            keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
            wanted = {"integer": _WHOLE, "number": _ANY_NUMBER}.get(keys.get("type", ""))
            if wanted is not None:
                made["propertyNames"] = dict(wanted)
            elif "anyOf" in keys:
                made["propertyNames"] = keys
            return made

    return Generator


def _with_offset(made: dict[str, Any], schema: Any) -> dict[str, Any]:
    offset = {"aware": "required", "naive": "forbidden"}.get(schema.get("tz_constraint", ""))
    return made if offset is None else {**made, OFFSET: offset}
