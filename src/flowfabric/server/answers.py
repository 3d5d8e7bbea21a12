"""What goes back: results as externally tagged JSON, pages as they are, bytes as bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.model.ids import encode_hook
from flowfabric.model.results import PriorityChanged
from flowfabric.model.tokens import Token, redacted

JSON = b"application/json"
BYTES = b"application/octet-stream"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
EVENTS = b"text/event-stream"

Headers = tuple[tuple[bytes, bytes], ...]
NO_STORE: Headers = ((b"cache-control", b"no-store"),)

#: Variants whose name on the wire is not that of their type.
_NAMES: dict[type, str] = {PriorityChanged: "Changed"}


class Answer(Struct):
    """A whole response."""

    status: int = 200
    body: bytes = b""
    media: bytes = JSON
    headers: Headers = ()


class Streamed(Struct):
    """A response that is sent piece by piece."""

    chunks: AsyncGenerator[bytes, None]
    media: bytes = EVENTS
    status: int = 200
    headers: Headers = NO_STORE


def _hook(value: Any) -> Any:
    if isinstance(value, Token):
        return redacted(value)
    return encode_hook(value)


def _open_hook(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, Token) else encode_hook(value)


_encoder = msgspec.json.Encoder(enc_hook=_hook)
_open_encoder = msgspec.json.Encoder(enc_hook=_open_hook)


def encode(value: Any, *, tokens: bool = False) -> bytes:
    """JSON. Waitpoint tokens are shown only to those who asked for them."""
    return (_open_encoder if tokens else _encoder).encode(value)


def plain(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """A value as JSON."""
    return Answer(status, _encoder.encode(value), JSON, headers)


def variant_name(kind: type) -> str:
    """How a variant is called on the wire."""
    return _NAMES.get(kind) or kind.__name__


def variant(value: Any) -> Any:
    """A variant as it is written: ``{"Name": {…}}``, or ``"Name"`` if it has no fields."""
    kind = type(value)
    name = variant_name(kind)
    return {name: value} if kind.__struct_fields__ else name


def tagged(value: Any, status: int = 200) -> Answer:
    """A variant as JSON."""
    return Answer(status, _encoder.encode(variant(value)))
