"""Values of the engine's operations as JSON and back, led by their annotations.

What msgspec can read by itself is left to it. It cannot tell members of a union of records apart: there, and only
there, a record is written as ``{"Name": {…}}``. Both ends use the same annotations, so they always agree.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import NODEFAULT, UNSET, Raw, Struct, UnsetType

from flowfabric.engine.engine import Engine
from flowfabric.model.handles import Handle
from flowfabric.model.ids import decode_hook, encode_hook
from flowfabric.model.operations.schedules import ScheduleSpec
from flowfabric.model.secrets import Discreet
from flowfabric.model.waitpoint_tokens import Token

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


class Codec(NamedTuple):
    """How values of one annotation are written and read. ``write`` gives something that ``Shapes.dump`` can write."""

    native: bool
    write: Encode
    read: Decode


def placed(name: str | int, read: Decode, raw: Any) -> Any:
    """Read what stands at a field or an item; what is wrong with it is said as ``msgspec`` does, with its place."""
    try:
        return read(raw)
    except msgspec.ValidationError as error:
        step = f"[{name}]" if isinstance(name, int) else f".{name}"
        text, mark, below = str(error).rpartition("`$")
        text = f"{text}`${step}{below}" if mark and below.endswith("`") else f"{error} - at `${step}`"
        raise msgspec.ValidationError(text) from error.__cause__


def _same(value: Any) -> Any:
    return value


class Shapes:
    """Codecs by annotation. How handles are written and read is the business of the end that uses them."""

    def __init__(self, seal: Callable[[Handle], str], unseal: Callable[[str], Handle]) -> None:
        self._unseal = unseal

        def write(value: Any) -> Any:
            if isinstance(value, Handle):
                return seal(value)
            if isinstance(value, Token):
                # A caller that may ask for a token gets it.
                return value.reveal()
            if isinstance(value, Mapping):
                return dict(value)
            return encode_hook(value)

        self.dump = msgspec.json.Encoder(enc_hook=write).encode
        self._codecs: dict[Any, Codec] = {}

    def _hook(self, kind: type, value: Any) -> Any:
        if issubclass(kind, Handle):
            return self._unseal(value)
        if issubclass(kind, Token):
            return Token(value)
        return decode_hook(kind, value)

    def codec(self, hint: Any) -> Codec:
        """The codec of an annotation."""
        found = self._codecs.get(hint)
        if found is None:
            found = self._codecs[hint] = self._made(hint)
        return found

    def _made(self, hint: Any) -> Codec:
        if hint is type(None):
            return Codec(True, _same, lambda raw: None)
        try:
            decoder = msgspec.json.Decoder(hint, dec_hook=self._hook)
        except TypeError:
            return self._by_hand(hint)
        return Codec(True, _same, decoder.decode)

    def _by_hand(self, hint: Any) -> Codec:
        origin = typing.get_origin(hint)
        arguments = typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if origin in (list, tuple, Sequence):
            inner = self.codec(arguments[0])
            several = msgspec.json.Decoder(list[Raw])
            made = tuple if origin is tuple else list
            return Codec(
                False,
                lambda values: [inner.write(each) for each in values],
                lambda raw: made(placed(at, inner.read, each) for at, each in enumerate(several.decode(raw))),
            )
        if isinstance(hint, type) and issubclass(hint, Struct):
            return self._record(hint)
        raise TypeError(f"{hint!r} cannot be sent")

    def _union(self, members: tuple[Any, ...]) -> Codec:
        records = {each.__qualname__: each for each in members if isinstance(each, type) and issubclass(each, Struct)}
        if len(records) + (type(None) in members) != len(members):
            raise TypeError(f"{members!r} cannot be distinguished")
        named = msgspec.json.Decoder(dict[str, Raw] | None)

        def write(value: Any) -> Any:
            if value is None:
                return None
            kind = type(value)
            return {kind.__qualname__: self.codec(kind).write(value)}

        def read(raw: Any) -> Any:
            found = named.decode(raw)
            if found is None:
                return None
            if len(found) != 1 or not found.keys() <= records.keys():
                raise msgspec.ValidationError(f"expected an object with one of the fields {', '.join(records)}")
            [(name, content)] = found.items()
            return placed(name, self.codec(records[name]).read, content)

        return Codec(False, write, read)

    def _record(self, kind: type[Struct]) -> Codec:
        fields = [(each.name, self.codec(each.type)) for each in msgspec.structs.fields(kind)]
        by_name = dict(fields)
        required = [each.name for each in msgspec.structs.fields(kind) if each.required]
        named = msgspec.json.Decoder(dict[str, Raw])

        def write(value: Any) -> Any:
            return {name: codec.write(getattr(value, name)) for name, codec in fields}

        def read(raw: Any) -> Any:
            given = named.decode(raw)
            if unknown := given.keys() - by_name.keys():
                raise msgspec.ValidationError(f"Object contains unknown field `{min(unknown)}`")
            if missing := [name for name in required if name not in given]:
                raise msgspec.ValidationError(f"Object missing required field `{missing[0]}`")
            return kind(**{name: placed(name, by_name[name].read, each) for name, each in given.items()})

        return Codec(False, write, read)


# -- arguments -------------------------------------------------------------------------------------------------------


def _parameters(name: str) -> list[tuple[str, Any, Any]]:
    """Parameters of an operation: name, annotation, default."""
    method = getattr(Engine, name)
    hints = typing.get_type_hints(method)
    signature = inspect.signature(method)
    return [
        (each.name, hints[each.name], NODEFAULT if each.default is inspect.Parameter.empty else each.default)
        for each in list(signature.parameters.values())[1:]
    ]


class Creation(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One execution to be created, as ``create_execution`` takes it."""

    execution_id: str | None | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    lane_id: str | UnsetType = UNSET
    execution_kind: str | UnsetType = UNSET
    input_payload: bytes | None | UnsetType = UNSET
    payload_encoding: str | None | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    creator_identity: str | UnsetType = UNSET
    idempotency_key: str | None | UnsetType = UNSET
    tags: dict[str, str] | None | UnsetType = UNSET
    policy: dict[str, Any] | str | None | UnsetType = UNSET
    delay_until: int | None | UnsetType = UNSET
    execution_deadline_at: int | None | UnsetType = UNSET
    partition_id: int | None | UnsetType = UNSET
    now: int | None | UnsetType = UNSET
    key_reuse: str | UnsetType = UNSET


def given(creation: Creation) -> dict[str, Any]:
    """What was given, by name."""
    return {name: value for name in creation.__struct_fields__ if (value := getattr(creation, name)) is not UNSET}


#: Arguments whose annotation says less than is meant, or more than can be sent.
_MEANT: dict[str, Any] = {
    "executions": list[Creation],
    "children": list[Creation],
    "execution": Creation,
    "policy": dict[str, Any] | str | None,
    "spec": ScheduleSpec,
    "detail": str | None,
}
_BUILT_IN = {Iterable: list, Sequence: list, Mapping: dict}


def _sent(hint: Any) -> Any:
    """The annotation of an argument as it is sent: identities and words of enumerations are texts, which the engine
    checks; handles are texts, too."""
    if hint is Handle:
        return str
    if isinstance(hint, type) and issubclass(hint, str):
        return str
    if isinstance(hint, type) and issubclass(hint, Enum):
        return str
    origin = typing.get_origin(hint)
    arguments = tuple(_sent(each) for each in typing.get_args(hint) if each is not Ellipsis)
    if origin in (typing.Union, types.UnionType):
        # Where a text will do, nothing else has to be sent.
        kept = [each for each in dict.fromkeys(arguments) if str not in arguments or each in (str, int, type(None))]
        return typing.Union[tuple(kept)]  # noqa: UP007
    if origin in _BUILT_IN:
        made: Any = _BUILT_IN[origin]
        return made[arguments]
    return hint


class Arguments(Discreet, Struct):
    """The arguments of a call from elsewhere."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"waitpoint_token", "token", "tokens"})


class Body(NamedTuple):
    """The arguments of an operation as one record, and those of its fields that are read by hand or hold handles."""

    kind: type[Struct]
    by_hand: Mapping[str, Any]
    handles: frozenset[str]
    creations: frozenset[str]


@cache
def body_of(name: str) -> Body:
    """What an operation takes."""
    plain = Shapes(lambda handle: "", lambda text: Handle.__new__(Handle))
    fields: list[Any] = []
    by_hand: dict[str, Any] = {}
    handles: set[str] = set()
    creations: set[str] = set()
    for parameter, hint, default in _parameters(name):
        meant = _MEANT.get(parameter) or _sent(hint)
        if "Handle" in str(hint):
            handles.add(parameter)
        if parameter in ("executions", "children", "execution"):
            creations.add(parameter)
        if not plain.codec(meant).native:
            by_hand[parameter] = meant
            meant = Raw
        if default is NODEFAULT:
            fields.append((parameter, meant))
        else:
            fields.append((parameter, meant | UnsetType if meant is not Raw else Raw | UnsetType, UNSET))
    title = "".join(word.capitalize() for word in name.split("_")) + "Arguments"
    kind = msgspec.defstruct(
        title, fields, bases=(Arguments,), kw_only=True, omit_defaults=True, forbid_unknown_fields=True
    )
    return Body(kind, by_hand, frozenset(handles), frozenset(creations))


@cache
def result_of(name: str) -> Any:
    """What an operation answers."""
    return typing.get_type_hints(getattr(Engine, name))["return"]
