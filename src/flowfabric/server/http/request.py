"""Requests: bodies within their limits, JSON within its depth, queries, and bytes in either spelling."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct

from flowfabric.model.jsontext import BLOCK_BYTES, Nesting, blocks_of, nests_deeper, openings
from flowfabric.server.http.limits import LARGEST_BODY, Body, no_room
from flowfabric.server.http.problems import Refused, bad_json, refused
from flowfabric.server.http.validation import NAME_PATTERN, Flaw, flaw_of

#: Bytes of a body, by class of route.
BULK, LARGE, MEDIUM, CONTROL = LARGEST_BODY, 1_048_576, 262_144, 65_536
#: How deep JSON may nest; fields of a query.
MAX_DEPTH = 64
#: Objects and lists in one body: each takes many times the memory of its bytes, and the shortest have two.
MAX_PARTS = 1_000_000
MAX_QUERY_FIELDS = 100

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
U16 = Annotated[int, Meta(ge=0, le=65_535)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Millis = Annotated[int, Meta(ge=0, le=2**63 - 1)]


Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=NAME_PATTERN)]
GrantTtl = Annotated[int, Meta(ge=1, le=60_000)]
_BYTES = "expected an array of numbers from 0 to 255, or base64 text"


class Blob(bytes):
    """Bytes on the wire: an array of numbers from 0 to 255, or base64 text."""


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is not Blob:
        raise NotImplementedError(f"cannot decode {kind.__name__}")
    # A TypeError says that it is another kind of thing, a ValueError that it is one with another value.
    try:
        if isinstance(value, str):
            return Blob(binascii.a2b_base64(value, strict_mode=True))
        if isinstance(value, list):
            return Blob(value)
    except TypeError:
        pass
    except ValueError:
        raise ValueError(_BYTES) from None
    raise TypeError(_BYTES)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_decode_hook)


def too_deep(data: bytes) -> bool:
    """Whether JSON nests deeper than allowed."""
    return nests_deeper(data, MAX_DEPTH)


async def read_json(data: bytes, kind: Any) -> Any:
    """A body as what it should be. A large one is looked at a piece at a time, so that others get their turn."""
    if len(data) <= BLOCK_BYTES:
        return decode(data, kind)
    parts = openings(data)
    if parts <= MAX_DEPTH:
        return _decoded(data, kind)
    if parts > MAX_PARTS:
        raise refused(400, f"invalid_input: the body has more than {MAX_PARTS:,} objects and lists")
    nesting = Nesting(MAX_DEPTH)
    for block in blocks_of(data):
        if nesting.feed(block):
            raise _nested()
        await asyncio.sleep(0)
    return _decoded(data, kind)


def _nested() -> Refused:
    return bad_json(400, f"nested deeper than {MAX_DEPTH} levels")


def decode(data: bytes, kind: Any) -> Any:
    """A body as what it should be; 400 if it is no JSON or holds a value out of range, 422 if it has another shape."""
    if too_deep(data):
        raise _nested()
    return _decoded(data, kind)


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return _decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        raise misshapen(flaw_of(error, kind)) from None
    except msgspec.DecodeError as error:
        raise bad_json(400, _broken(str(error))) from None
    except UnicodeDecodeError:
        raise bad_json(400, "not UTF-8") from None
    except RecursionError:
        raise _nested() from None


def _broken(text: str) -> str:
    return "it ends too early" if "truncated" in text else text.removeprefix("JSON is malformed: ")


def misshapen(flaw: Flaw) -> Refused:
    """The answer to a body that has something wrong in it."""
    return refused(400, f"invalid_input: {flaw}") if flaw.of_value else bad_json(422, str(flaw))


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
        raise bad_json(415, "expected Content-Type: application/json")


class Gone(Exception):
    """The client has hung up."""


async def read_body(receive: Receive, limit: int, route: str, body: Body, timeout_s: float) -> bytes:
    """The body, never more of it than the limit. It takes its room, which its receiver gives back."""
    # Most bodies have come along with their heads: then there is nothing to wait for.
    whole = getattr(getattr(receive, "__self__", None), "whole", None)
    ready: bytes | None = None if whole is None else whole()
    if ready is not None:
        if len(ready) > limit:
            raise too_large(limit, route)
        body.take(len(ready))
        return ready
    # One buffer: many small pieces would take far more than their bytes.
    data = bytearray()
    try:
        async with asyncio.timeout(timeout_s) as time:
            body.arriving(lambda: time.reschedule(0.0))
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                chunk = message.get("body", b"")
                if len(data) + len(chunk) > limit:
                    raise too_large(limit, route)
                body.take(len(chunk))
                data += chunk
                if not message.get("more_body", False):
                    return bytes(data)
    except TimeoutError:
        raise no_room() if body.was_cut else refused(408, "the body did not arrive in time") from None
    finally:
        body.arrived()


def read_query(query_string: bytes, kind: Any) -> Any:
    """The query as what it should be; names that nobody asked for are ignored."""
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
        fields: dict[str, Any] = {}
        for name, value in pairs:
            fields.setdefault(name, value)
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        # There is no null in a query: a field is there or it is not.
        raise refused(400, f"invalid query: {flaw_of(error, kind)}".removesuffix(" or null")) from None
    except ValueError:
        raise refused(400, f"invalid query: expected ASCII text of at most {MAX_QUERY_FIELDS} fields") from None


def arguments(body: Struct, *without: str) -> dict[str, Any]:
    """What was given, by name; what was left out or null is left to the engine."""
    return {
        name: bytes(value) if type(value) is Blob else value
        for name in body.__struct_fields__
        if (value := getattr(body, name)) is not None and name not in without
    }
