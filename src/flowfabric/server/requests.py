"""What comes in: bodies within their limits, JSON within its depth, queries, and bytes in either spelling."""

from __future__ import annotations

import asyncio
import binascii
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct

from flowfabric.server.limits import BodyRoom
from flowfabric.server.problems import Refused, bad_json, refused

_log = logging.getLogger("flowfabric.server")

#: Bytes of a body, by class of route.
BULK, LARGE, MEDIUM, CONTROL = 16_777_216, 1_048_576, 262_144, 65_536
#: How deep JSON may nest; fields of a query.
MAX_DEPTH = 64
MAX_QUERY_FIELDS = 100

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
U16 = Annotated[int, Meta(ge=0, le=65_535)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Millis = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Blob(bytes):
    """Bytes on the wire: an array of numbers from 0 to 255, or base64 text."""


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is not Blob:
        raise NotImplementedError(f"cannot decode {kind.__name__}")
    if isinstance(value, str):
        try:
            return Blob(binascii.a2b_base64(value, strict_mode=True))
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"not base64: {error}") from None
    if not isinstance(value, list):
        raise ValueError("expected an array of bytes, or base64 text")
    try:
        return Blob(value)
    except (TypeError, ValueError):
        raise ValueError("expected numbers from 0 to 255") from None


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_decode_hook)


_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def too_deep(data: bytes) -> bool:
    """Whether JSON nests deeper than allowed."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for found in _NESTING.finditer(data):
        match found[0]:
            case b"[" | b"{":
                depth += 1
                if depth > MAX_DEPTH:
                    return True
            case b"]" | b"}":
                depth -= 1
    return False


def decode(data: bytes, kind: Any) -> Any:
    """A body as what it should be; 400 if it is no JSON, 422 if it is another thing."""
    try:
        if too_deep(data):
            raise bad_json(400)
        return _decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        _log.debug("body refused: another shape at %s", _place(error))
        raise bad_json(422) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _log.debug("body refused: %s", type(error).__name__)
        raise bad_json(400) from None


def _place(error: msgspec.ValidationError) -> str:
    """Where a body is wrong; never what was there."""
    found = re.search(r" - at `(key in )?([$.\w\[\]]+)`$", str(error))
    return "the top" if found is None else found[2]


def check_length(content_length: bytes | None, limit: int, route: str) -> None:
    """Refuse a body that says itself that it is too long."""
    if content_length is None:
        return
    if not content_length.isdigit():
        raise refused(400, "invalid Content-Length")
    if len(content_length) > 18 or int(content_length) > limit:
        raise too_large(limit, route)


def too_large(limit: int, route: str) -> Refused:
    """The answer to a body beyond its limit."""
    return refused(413, "payload_too_large", limit_bytes=limit, route=route)


def check_type(content_type: bytes | None) -> None:
    """Refuse what does not say that it is JSON."""
    media = (content_type or b"").partition(b";")[0].strip().lower()
    if media != b"application/json" and not (media.startswith(b"application/") and media.endswith(b"+json")):
        raise bad_json(415)


class Gone(Exception):
    """The client has hung up."""


async def read_body(receive: Receive, limit: int, route: str, room: BodyRoom, timeout_s: float) -> bytes:
    """The body, never more of it than the limit. It takes its room, which whoever got it gives back."""
    # Most bodies have come along with their heads: then there is nothing to wait for.
    whole = getattr(getattr(receive, "__self__", None), "whole", None)
    ready: bytes | None = None if whole is None else whole()
    if ready is not None:
        if len(ready) > limit:
            raise too_large(limit, route)
        room.take(len(ready))
        return ready
    chunks: list[bytes] = []
    size = held = 0
    done = False
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > limit:
                    raise too_large(limit, route)
                room.take(len(chunk))
                held += len(chunk)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    done = True
                    return b"".join(chunks) if len(chunks) > 1 else chunks[0]
    except TimeoutError:
        raise refused(408, "the body did not arrive in time") from None
    finally:
        if not done:
            room.give(held)


def read_query(query_string: bytes, kind: Any) -> Any:
    """The query as what it should be; names that nobody asked for are ignored."""
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
        fields: dict[str, Any] = {}
        for name, value in pairs:
            fields.setdefault(name, value)
        return msgspec.convert(fields, kind, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise refused(400, f"invalid query: {error}") from None


def arguments(body: Struct, *without: str) -> dict[str, Any]:
    """What was given, by name; what was left out or null is left to the engine."""
    return {
        name: bytes(value) if type(value) is Blob else value
        for name in body.__struct_fields__
        if (value := getattr(body, name)) is not None and name not in without
    }
