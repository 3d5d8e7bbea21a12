"""Arguments typed after a task's name: ``name=Ann times=3``, ``Ann 3``, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from flowfabric.cli.terminal import Misused
from flowfabric.sdk.definitions.codec import CodecError
from flowfabric.sdk.definitions.tasks import Definition, Startable
from flowfabric.sdk.errors import BadPayload


def read(definition: Startable[..., Any], typed: Sequence[str]) -> dict[str, Any]:
    """The arguments of a start. A value is JSON if it reads as that and fits, and else a text."""
    signature = definition.signature
    named: dict[str, str] = {}
    _check_options(typed)
    for position, each in enumerate(typed):
        document = _document(each) if len(typed) == 1 else None
        if isinstance(document, dict) and not (set(document) - set(signature.parameters)):
            return _unpacked(definition, document)
        if isinstance(document, list) and len(document) <= len(signature.parameters):
            return _unpacked(definition, dict(zip(signature.parameters, document, strict=False)))
        name, equals, value = each.partition("=")
        if equals and name in signature.parameters:
            named[name] = value
        elif position < len(signature.parameters) and signature.parameters[position] not in named:
            named[signature.parameters[position]] = each
        else:
            raise Misused(f"{each}: unexpected argument; {definition.name} takes {usage(definition) or 'no arguments'}")
    missing = [name for name in signature.parameters if name in signature.plan.required and name not in named]
    if missing:
        raise Misused(f"{definition.name} takes {usage(definition) or 'no arguments'}; missing: {', '.join(missing)}")
    return {name: _value(definition, name, text) for name, text in named.items()}


def payload_of(typed: Sequence[str]) -> bytes:
    """The payload of a kind that is known by name only: one JSON document, or an object of ``key=value``."""
    if not typed:
        return b"{}"
    _check_options(typed)
    if len(typed) == 1 and "=" not in typed[0].partition('"')[0]:
        if _document(typed[0]) is None and typed[0] != "null":
            raise Misused(f'{typed[0]}: write key=value, or the payload as JSON such as \'{{"name": "Ann"}}\'')
        return typed[0].encode()
    found: dict[str, Any] = {}
    for each in typed:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise Misused(f"{each}: write key=value, or the whole payload as JSON")
        document = _document(value)
        found[name] = value if document is None and value != "null" else document
    return msgspec.json.encode(found)


def _check_options(typed: Sequence[str]) -> None:
    """A mistyped option is not a value: values may begin with a dash, such as ``-5``, but two mean an option."""
    for each in typed:
        if each.startswith("--") and len(each) > 2:
            raise Misused(f"{each}: unknown option; to pass it as a value, write name={each}")


def _document(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _unpacked(definition: Startable[..., Any], document: dict[str, Any]) -> dict[str, Any]:
    try:
        return definition.signature.unpack(msgspec.json.encode(document))
    except BadPayload as error:
        detail = str(error.__cause__ or error)
        raise Misused(f"{definition.name} takes {usage(definition) or 'no arguments'}: {detail}") from None


def _value(definition: Startable[..., Any], name: str, text: str) -> Any:
    """A parameter's value: as JSON if that fits, as a text if that does."""
    codec = definition.signature.plan.codecs[name]
    problem = ""
    for data in (text.encode(), msgspec.json.encode(text)):
        try:
            msgspec.json.decode(data)
            return codec.decode(data)
        except (CodecError, msgspec.DecodeError, RecursionError) as error:
            problem = str(error)
    raise Misused(f"{name}={text}: {problem}; {definition.name} takes {usage(definition) or 'no arguments'}")


def usage(definition: Definition[..., Any]) -> str:
    """``name=… [times=…]``."""
    required = definition.signature.plan.required
    shown = [f"{name}=…" if name in required else f"[{name}=…]" for name in definition.signature.parameters]
    return " ".join(shown)
