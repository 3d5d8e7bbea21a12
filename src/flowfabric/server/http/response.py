"""Responses: results as externally tagged JSON, pages as they are, bytes as bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from flowfabric.model.ids import encode_hook
from flowfabric.model.operations.executions import PriorityChanged
from flowfabric.model.waitpoint_tokens import Token

if TYPE_CHECKING:
    from flowfabric.server.http.limits import Body, Made

JSON = b"application/json"
BYTES = b"application/octet-stream"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
EVENTS = b"text/event-stream"

Headers = tuple[tuple[bytes, bytes], ...]
Fallen = Callable[[], Awaitable[None]]
#: What every answer says to browsers.
CAUTION: Headers = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
#: And what all do that are no page: they run nothing, and nobody keeps them.
GUARDED: Headers = (
    *CAUTION,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)

#: Variants whose name on the wire is not that of their type.
_NAMES: dict[type, str] = {PriorityChanged: "Changed"}


class Answer(Struct):
    """A whole response."""

    status: int = 200
    body: bytes = b""
    media: bytes = JSON
    headers: Headers = ()
    #: What browsers may do with it.
    policy: Headers = GUARDED
    #: Whether others hold the same body, so that it takes no memory of its own.
    shared: bool = False


class Streamed(Struct):
    """A response that is sent piece by piece."""

    chunks: AsyncGenerator[bytes, None]
    media: bytes = EVENTS
    status: int = 200
    headers: Headers = ()
    policy: Headers = GUARDED
    #: The request's body, which is held until it is sent, and what was made for it and is still to be sent.
    body: Body | None = None
    made: Made | None = None
    #: What is done if the caller's credential goes before all is sent.
    fallen: Fallen | None = None


def _hook(value: Any) -> Any:
    return str(value) if isinstance(value, Token) else encode_hook(value)


_encoder = msgspec.json.Encoder(enc_hook=_hook)


def encode(value: Any) -> bytes:
    """JSON. Tokens are redacted: handlers that answer with one reveal it."""
    return _encoder.encode(value)


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
