"""Values and their JSON, by annotation.

Most types go through msgspec: dataclasses, Structs, TypedDicts, named tuples, enums, dates, Decimal, UUID, bytes (as
base64), containers and unions of them, checked strictly when they are read. An annotation that mentions pydantic
anywhere goes through a pydantic ``TypeAdapter``; pydantic is never imported unless the user's types have done so.
``Any``, and no annotation, is plain JSON. Nothing is ever pickled.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from flowfabric.model.jsontext import nests_deeper
from flowfabric.model.limits import MAX_JSON_DEPTH

#: Stands for "no annotation".
NOTHING: Final = object()

_encoder: msgspec.json.Encoder
_HOOKED: Final = (str, int, float)


#: Whole numbers that every reader of JSON here takes.
_LEAST, _MOST = -(2**63), 2**63 - 1


class CodecError(Exception):
    """A value that does not fit, or an annotation that has no JSON form; the text says where and why."""


class Codec(Protocol):
    """One annotation's way to JSON and back."""

    def encode(self, value: Any) -> bytes:
        """The value as JSON, once it is certain that it fits the annotation."""

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        """The value that a JSON text means."""


def enc_hook(value: Any) -> Any:
    """How values are written that msgspec does not know."""
    for kind in _HOOKED:
        if isinstance(value, kind):
            return kind(value)
    dump = getattr(value, "model_dump", None)
    if dump is not None and hasattr(type(value), "__pydantic_validator__"):
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def dec_hook(kind: type, value: Any) -> Any:
    """How they are read: subclasses of text and numbers are made from those."""
    for base in _HOOKED:
        if issubclass(kind, base) and isinstance(value, base):
            return kind(value)
    raise NotImplementedError(f"{kind.__name__} has no JSON form")


def _same(kind: type, value: Any) -> Any:
    """As ``dec_hook``, for values that may already be what they should be."""
    return value if isinstance(value, kind) else dec_hook(kind, value)


_encoder = msgspec.json.Encoder(enc_hook=enc_hook)


def encode_plain(value: Any) -> bytes:
    """A value as JSON by what it is."""
    try:
        return within_depth(_encoder.encode(value))
    except (TypeError, NotImplementedError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(
            f"{error}; use a dataclass, a msgspec Struct, a pydantic model, or values that JSON has"
        ) from error


def _scalar(value: str | int) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise CodecError(str(error)) from error


def within_depth(data: bytes) -> bytes:
    """JSON that can be stored and read again; ``CodecError`` if it nests too deep for that."""
    if nests_deeper(data, MAX_JSON_DEPTH):
        raise CodecError(f"it nests deeper than {MAX_JSON_DEPTH} levels; make it flatter, or store it elsewhere")
    return data


class PlainCodec:
    """JSON as it is: numbers, texts, lists, objects."""

    def encode(self, value: Any) -> bytes:
        return encode_plain(value)

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        return _decoded(msgspec.json.decode, data)


class TypedCodec:
    """An annotation that msgspec understands."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._decoder = msgspec.json.Decoder(annotation, dec_hook=dec_hook)

    def encode(self, value: Any) -> bytes:
        kind = type(value)
        if kind is self.annotation and (kind is str or (kind is int and _LEAST <= value <= _MOST)):
            # What is annotated as it is needs no other check than being written.
            return _scalar(value)
        # JSON has one kind of text: that bytes or a date are not meant as `str` shows only before they are written.
        _decoded(self._convert, value)
        data = encode_plain(value)
        # Reading it back is the check of what is inside: what is sent can be read.
        _decoded(self._decoder.decode, data)
        return data

    def _convert(self, value: Any) -> None:
        msgspec.convert(value, self.annotation, dec_hook=_same)

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        return _decoded(self._decoder.decode, data)


class PydanticCodec:
    """An annotation that mentions pydantic."""

    def __init__(self, annotation: Any) -> None:
        from pydantic import ConfigDict, TypeAdapter
        from pydantic.errors import PydanticUserError

        self.annotation = annotation
        try:
            config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", arbitrary_types_allowed=False)
            self.adapter: Any = TypeAdapter(annotation, config=config)
        except PydanticUserError:  # models and the like bring their own
            self.adapter = TypeAdapter(annotation)

    def encode(self, value: Any) -> bytes:
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        try:
            return within_depth(self.adapter.dump_json(self.adapter.validate_python(value)))
        except ValidationError as error:
            raise CodecError(pydantic_sentence(error)) from error
        except PydanticSerializationError as error:
            raise CodecError(str(error)) from error

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        from pydantic import ValidationError

        try:
            return self.adapter.validate_json(bytes(data))
        except ValidationError as error:
            raise CodecError(pydantic_sentence(error)) from error


def pydantic_sentence(error: Any) -> str:
    """A pydantic error in one line."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{problem['msg']}{' at ' + '.'.join(map(str, problem['loc'])) if problem['loc'] else ''}"
        for problem in problems[:3]
    ]
    return "; ".join(shown) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")


def _decoded(decode: Callable[[Any], Any], data: Any) -> Any:
    try:
        return decode(data)
    except (msgspec.MsgspecError, NotImplementedError, ValueError, TypeError, RecursionError) as error:
        raise CodecError(str(error)) from error


def codec_for(annotation: Any) -> Codec:
    """The codec of an annotation; ``CodecError`` if it has none."""
    if annotation is NOTHING or annotation is Any or annotation is object:
        return PlainCodec()
    if mentions_pydantic(annotation):
        try:
            return PydanticCodec(annotation)
        except Exception as error:
            raise CodecError(f"pydantic cannot handle {shown_type(annotation)}: {error}") from error
    try:
        custom = _custom_type(msgspec.inspect.type_info(annotation), set())
        codec = TypedCodec(annotation)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise CodecError(f"{shown_type(annotation)} has no JSON form: {error}") from error
    if custom is not None:
        raise CodecError(
            f"{shown_type(custom)} has no JSON form; use a dataclass, a msgspec Struct or a pydantic model"
        )
    return codec


def shown_type(annotation: Any) -> str:
    """An annotation as people write it."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _custom_type(info: Any, seen: set[int]) -> Any:
    """The first class within a type that neither msgspec nor our hooks can read."""
    if isinstance(info, msgspec.inspect.CustomType):
        return None if issubclass(info.cls, _HOOKED) else info.cls
    if isinstance(info, (list, tuple)):
        parts: Any = info
    elif isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)):
        parts = [getattr(info, name) for name in info.__struct_fields__ if name not in ("default", "default_factory")]
    else:
        return None
    if id(info) in seen:
        return None
    seen.add(id(info))
    for part in parts:
        found = _custom_type(part, seen)
        if found is not None:
            return found
    return None


def mentions_pydantic(annotation: Any, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a type, or anything in it, is pydantic's."""
    if "pydantic" not in sys.modules or id(annotation) in seen:
        return False
    seen |= {id(annotation)}
    if hasattr(annotation, "__pydantic_validator__") or hasattr(annotation, "__get_pydantic_core_schema__"):
        return True
    if hasattr(annotation, "__value__") and not isinstance(annotation, type):  # type X = …
        return mentions_pydantic(annotation.__value__, seen)
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *metadata = typing.get_args(annotation)
        if any(_is_constraint(each) for each in metadata):
            return True
        return mentions_pydantic(inner, seen)
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    inside = [*arguments] if arguments else []
    if origin is typing.Literal:
        return False
    for kind in (annotation, origin):
        if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or is_typed_dict(kind) or is_struct(kind)):
            try:
                inside += typing.get_type_hints(kind, include_extras=True).values()
            except (NameError, TypeError):
                continue
    return any(mentions_pydantic(each, seen) for each in inside)


def _is_constraint(metadata: Any) -> bool:
    module = type(metadata).__module__ if not isinstance(metadata, type) else metadata.__module__
    return module.split(".")[0] in ("pydantic", "pydantic_core", "annotated_types")


def is_typed_dict(kind: Any) -> bool:
    """Whether a class is a TypedDict, of whichever library."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__required_keys__")


def is_struct(kind: Any) -> bool:
    """Whether a class is a msgspec Struct."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
