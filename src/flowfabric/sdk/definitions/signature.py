"""The parameters of a function: which travel to the worker, and which are provided there."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from flowfabric.sdk.definitions import codec
from flowfabric.sdk.definitions.codec import NOTHING, Codec, CodecError, codec_for
from flowfabric.sdk.definitions.depends import Depends, Injected, WantsContext, injected
from flowfabric.sdk.errors import BadArguments, BadOptions, BadPayload, BadResult, BadSignature

_UNSET = msgspec.UNSET


class Plan:
    """A function's parameters, sorted: those that travel with their codecs, those that are provided."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        hints = _hints(function)
        self.injected: dict[str, Injected] = {}
        self.codecs: dict[str, Codec] = {}
        self.annotations: dict[str, Any] = {}
        self.required: set[str] = set()
        self.positional_only: list[str] = []
        kept = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise BadSignature(
                    f"{name}: {parameter} has no name; list the parameters one by one",
                    task=name,
                    parameter=parameter.name,
                )
            annotation = hints.get(parameter.name, NOTHING)
            wanted = _injection(annotation, parameter.default)
            if wanted is not None:
                self.injected[parameter.name] = wanted
                continue
            kept.append(parameter)
            self.annotations[parameter.name] = annotation
            try:
                self.codecs[parameter.name] = codec_for(annotation)
            except CodecError as error:
                raise BadSignature(f"{name}: {parameter.name}: {error}", task=name, parameter=parameter.name) from error
            if parameter.default is parameter.empty:
                self.required.add(parameter.name)
            if parameter.kind is parameter.POSITIONAL_ONLY:
                self.positional_only.append(parameter.name)
        self.travelling = inspect.Signature(kept)
        #: All that travels, in order, if it may be given by position.
        by_position = all(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in kept)
        self.by_position = tuple(each.name for each in kept) if by_position else None
        self.returns = hints.get("return", NOTHING)
        try:
            self.result = codec_for(self.returns)
        except CodecError as error:
            raise BadSignature(f"{name}: its result: {error}", task=name) from error
        self.decoder = self._decoder()
        self.raw = tuple(each for each, one in self.codecs.items() if isinstance(one, codec.PydanticCodec))

    def _decoder(self) -> msgspec.json.Decoder[Any]:
        """One decoder for the whole payload; what pydantic has to read stays as it is."""
        fields: list[Any] = []
        for name, one in self.codecs.items():
            if isinstance(one, codec.TypedCodec):
                annotation: Any = one.annotation
            else:
                annotation = msgspec.Raw if isinstance(one, codec.PydanticCodec) else Any
            if name in self.required:
                fields.append((name, annotation))
            else:
                fields.append((name, annotation | msgspec.UnsetType if annotation is not Any else Any, _UNSET))
        payload = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True)
        return msgspec.json.Decoder(payload, dec_hook=codec.dec_hook)


class Signature:
    """What travels, what is provided, and what comes back. Annotations may name types that are defined later: they
    are looked up when they are first needed."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self._plan: Plan | None = None
        with contextlib.suppress(NameError):
            self._plan = Plan(function, name)

    @property
    def plan(self) -> Plan:
        """The parameters, sorted."""
        if self._plan is None:
            try:
                self._plan = Plan(self._function, self._name)
            except NameError as error:
                raise BadSignature(
                    f"{self._name}: an annotation names {error.name!r}, which is not defined in its module",
                    task=self._name,
                ) from error
        return self._plan

    @property
    def injected(self) -> Mapping[str, Injected]:
        """Parameters that are provided."""
        return self.plan.injected

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters that travel."""
        return tuple(self.plan.codecs)

    # -- arguments -----------------------------------------------------------------------------------------------

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name; defaults stay out, so that they are those of the code that runs."""
        plan = self.plan
        if not kwargs and plan.by_position is not None and len(args) == len(plan.by_position):
            return dict(zip(plan.by_position, args, strict=True))
        try:
            return dict(plan.travelling.bind(*args, **kwargs).arguments)
        except TypeError as error:
            provided = next((each for each in plan.injected if each in kwargs), None)
            hint = f"; {provided!r} is provided by the worker" if provided else ""
            raise BadArguments(f"{self._name}: {error}{hint}", task=self._name) from error

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments as a JSON object, checked one by one."""
        return self.dump(self.bind(args, kwargs))

    def dump(self, arguments: Mapping[str, Any]) -> bytes:
        """Arguments by name as a JSON object."""
        codecs = self.plan.codecs
        parts = []
        for name, value in arguments.items():
            try:
                parts.append(b'"%b":%b' % (name.encode(), codecs[name].encode(value)))
            except CodecError as error:
                raise BadArguments(f"{self._name}: {name}: {error}", task=self._name, parameter=name) from error
        return b"{" + b",".join(parts) + b"}"

    def unpack(self, data: bytes | None) -> dict[str, Any]:
        """The arguments that a payload holds, ready for the function."""
        plan = self.plan
        try:
            found = plan.decoder.decode(data or b"{}")
        except (msgspec.MsgspecError, NotImplementedError, ValueError, TypeError, RecursionError) as error:
            raise self._bad_payload(str(error), unknown=self._unknown(data)) from error
        arguments = {name: value for name in plan.codecs if (value := getattr(found, name)) is not _UNSET}
        for name in plan.raw:
            if name in arguments:
                try:
                    arguments[name] = plan.codecs[name].decode(arguments[name])
                except CodecError as error:
                    raise self._bad_payload(f"{name}: {error}", name) from error
        return arguments

    def _unknown(self, data: bytes | None) -> str:
        """An argument of a payload that the function does not have: other code may know it."""
        try:
            given = msgspec.json.decode(data or b"{}", type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return ""
        return next((name for name in given if name not in self.plan.codecs), "")

    def _bad_payload(self, detail: str, parameter: str = "", unknown: str = "") -> BadPayload:
        return BadPayload(
            f"{self._name}: the stored arguments do not match the function: {detail}; keep old parameters readable, "
            "or start a new run",
            task=self._name,
            parameter=parameter,
            unknown=unknown,
        )

    def call(self, arguments: Mapping[str, Any], provided: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """How to call the function: positional and named arguments."""
        named = {**arguments, **provided}
        return [named.pop(name) for name in self.plan.positional_only if name in named], named

    # -- results -------------------------------------------------------------------------------------------------

    def dump_result(self, value: Any) -> bytes:
        """A result as JSON, checked against the return annotation."""
        try:
            return self.plan.result.encode(value)
        except CodecError as error:
            raise BadResult(f"{self._name}: its result does not match: {error}", task=self._name) from error

    def load_result(self, data: bytes | None) -> Any:
        """The result that was stored; an empty one is ``None``."""
        if not data:
            return None
        try:
            return self.plan.result.decode(data)
        except CodecError as error:
            raise BadResult(f"{self._name}: the stored result does not match: {error}", task=self._name) from error

    # -- paths ---------------------------------------------------------------------------------------------------

    def check_path(self, path: str, option: str) -> None:
        """Refuse a dotted path that cannot lead anywhere, as far as annotations tell."""
        try:
            plan = self.plan
        except BadSignature:
            return
        first, *rest = path.split(".")
        if first not in plan.codecs:
            known = ", ".join(plan.codecs) or "none"
            raise BadOptions(
                f"{self._name}: {option}: {path!r} does not begin with a parameter; parameters: {known}",
                task=self._name,
                option=option,
            )
        annotation = plan.annotations[first]
        for part in rest:
            members = _members(annotation)
            if members is None:
                return
            if part not in members:
                raise BadOptions(
                    f"{self._name}: {option}: {path!r}: {codec.shown_type(annotation)} has no {part!r}",
                    task=self._name,
                    option=option,
                )
            annotation = members[part]

    def path(self, arguments: Mapping[str, Any], path: str) -> str:
        """The text that a dotted path leads to; a parameter left out has its default."""
        first, *rest = path.split(".")
        if first in arguments:
            value = arguments[first]
        else:
            parameter = self.plan.travelling.parameters.get(first)
            if parameter is None or parameter.default is parameter.empty:
                raise BadArguments(f"{self._name}: {path!r}: there is no {first!r}", task=self._name, parameter=first)
            value = parameter.default
        for part in rest:
            try:
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
            except (KeyError, AttributeError):
                raise BadArguments(
                    f"{self._name}: {path!r}: {type(value).__name__} has no {part!r}", task=self._name, parameter=first
                ) from None
        return _key_text(value, path, self._name)


def _key_text(value: Any, path: str, name: str) -> str:
    if isinstance(value, str):
        return value.value if hasattr(value, "value") else str(value)
    try:
        data = codec.encode_plain(value)
    except CodecError as error:
        raise BadArguments(f"{name}: {path!r}: {error}", task=name, parameter=path) from error
    text = data.decode()
    return text[1:-1] if text.startswith('"') else text


def _members(annotation: Any) -> dict[str, Any] | None:
    """The named parts of a type and their annotations, if they are known."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if not isinstance(annotation, type):
        return None
    known = (
        codec.is_struct(annotation)
        or codec.is_typed_dict(annotation)
        or hasattr(annotation, "__dataclass_fields__")
        or isinstance(getattr(annotation, "model_fields", None), dict)
    )
    if not known:
        return None
    try:
        members = dict(typing.get_type_hints(annotation))
    except (NameError, TypeError):
        return None
    for name in dir(annotation):
        members.setdefault(name, Any)
    return members


def _injection(annotation: Any, default: Any) -> Injected | None:
    """How a parameter is provided, if it is."""
    if isinstance(default, Depends):
        return default
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *metadata = typing.get_args(annotation)
        for each in metadata:
            if isinstance(each, Depends):
                return each
            if each is Depends:
                raise BadSignature("Annotated[…, Depends]: name the provider: Depends(provider)")
        annotation = inner
    if _is_context(annotation):
        return WantsContext()
    if default is injected:
        raise BadSignature("a parameter with the default `injected` must be a Ctx or Annotated[…, Depends(…)]")
    return None


def _is_context(annotation: Any) -> bool:
    return isinstance(annotation, type) and any(
        each.__name__ == "Ctx" and each.__module__ == "flowfabric.sdk.context" for each in annotation.__mro__
    )


@functools.lru_cache(maxsize=1024)
def injected_parameters(function: Callable[..., Any]) -> Mapping[str, Injected]:
    """The provided parameters of any function."""
    hints = _hints(function)
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        wanted = _injection(hints.get(parameter.name, NOTHING), parameter.default)
        if wanted is not None:
            found[parameter.name] = wanted
    return found


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations as types. Names that its module does not know may be local where it was written."""
    target: Any = inspect.unwrap(function)
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, type):
        target = getattr(target, "__init__")  # noqa: B009
    elif not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError:
        return typing.get_type_hints(target, localns=_local_names(target), include_extras=True)


def _local_names(function: Any) -> dict[str, Any]:
    """What is known by name where a function is being decorated, and in its closure."""
    names: dict[str, Any] = {}
    frame = sys._getframe(1)
    outer = []
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("flowfabric.sdk"):
            outer.append(frame)
            if len(outer) == 1 and frame.f_globals is not getattr(function, "__globals__", None):
                break
            if frame.f_code.co_name == "<module>" or len(outer) > 8:
                break
        frame = frame.f_back  # type: ignore[assignment]
    for each in reversed(outer):
        names.update(each.f_locals)
    with contextlib.suppress(TypeError, ValueError):
        names.update(inspect.getclosurevars(function).nonlocals)
    return names
