"""First lines and headers, read strictly: what two programs could understand differently is understood by none."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from flowfabric.server.http.problems import UNBEGUN
from flowfabric.server.http.response import GUARDED

_FIRST = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([!-~\x80-\xff]{1,65536}) HTTP/1\.([01])")
#: All lines of headers: names of the allowed characters, values without control characters.
_HEADERS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n)*")
_LENGTH = re.compile(rb"[0-9]{1,18}")
#: Headers of one request. Taken apart, a short one takes many times the memory of its bytes.
MAX_HEADERS = 100
#: Bytes of a head that a connection remembers.
_MOST_KEPT = 1_024
#: Headers that say how a request is to be read, who sends it and what it is about; there is at most one of each.
ONCE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"idempotency-key",
        b"last-event-id",
        b"origin",
        b"sec-fetch-site",
        b"transfer-encoding",
    }
)
_CAUTION = b"".join(name + b": " + value + b"\r\n" for name, value in GUARDED)


class BadHead(Exception):
    """A request that cannot be read, and the status that says why."""

    def __init__(self, text: str, status: int = 400, phrase: str = "Bad Request") -> None:
        super().__init__(text)
        self.status = status
        self.phrase = phrase


class Head(NamedTuple):
    """What a request begins with."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    #: Bytes of the body; ``None`` if it comes in chunks.
    length: int | None
    keep: bool
    waits: bool
    #: Whether a proxy says whom it asks for.
    forwarded: bool


def refusal(status: int, phrase: str, text: str, extra: bytes = b"", *, retry: bool = False) -> bytes:
    """A whole answer that ends the connection."""
    said: dict[str, object] = {"error": text}
    if retry:
        said |= {"kind": "unavailable", "retryable": True, **UNBEGUN}
    body = msgspec.json.encode(said)
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + _CAUTION + extra + b"connection: close\r\n\r\n" + body


class Heads:
    """Takes heads off one connection. Clients often say the same again, and that is not worked out twice."""

    __slots__ = ("_head", "_most", "_raw")

    def __init__(self, most: int) -> None:
        self._most = most
        self._raw = b""
        self._head: Head | None = None

    def take(self, buffer: bytearray) -> Head | None:
        """The head of a request out of what has come; ``None`` while it is not complete."""
        while buffer[:2] == b"\r\n":  # some clients end a body with one
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n")
        if end < 0 or end > self._most:
            if len(buffer) > self._most:
                raise BadHead("the headers are too long", 431, "Request Header Fields Too Large")
            return None
        raw = bytes(buffer[: end + 2])
        if raw != self._raw or self._head is None:
            self._head = _parsed(raw)
            self._raw = raw if end <= _MOST_KEPT else b""
        del buffer[: end + 4]
        return self._head


def _parsed(raw: bytes) -> Head:
    first, _, lines = raw.partition(b"\r\n")
    found = _FIRST.fullmatch(first)
    if found is None:
        raise BadHead("the first line is not an HTTP/1.1 request line")
    if lines.count(b"\r\n") > MAX_HEADERS:
        raise BadHead(f"more than {MAX_HEADERS} headers", 431, "Request Header Fields Too Large")
    if _HEADERS.fullmatch(lines) is None:
        raise BadHead("the headers are malformed")
    headers: list[tuple[bytes, bytes]] = []
    known: dict[bytes, bytes] = {}
    for line in lines[:-2].split(b"\r\n") if lines else ():
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name in known:
            if name in ONCE:
                raise BadHead(f"the header {name.decode()} occurs twice")
        else:
            known[name] = value
        headers.append((name, value))
    method, target, minor = found.groups()
    path, _, query = _target(target).partition(b"?")
    newer = minor == b"1"
    if newer and b"host" not in known:
        raise BadHead("the header host is missing")
    connection = known.get(b"connection", b"").lower()
    return Head(
        method.decode(),
        (unquote_to_bytes(path) if b"%" in path else path).decode("utf-8", "replace"),
        path,
        query,
        "1.1" if newer else "1.0",
        headers,
        _length(known, newer),
        b"close" not in connection if newer else b"keep-alive" in connection,
        newer and known.get(b"expect", b"").lower() == b"100-continue",
        b"x-forwarded-for" in known or b"x-forwarded-proto" in known,
    )


def _target(target: bytes) -> bytes:
    if target[:1] == b"/":
        return target
    scheme, found, rest = target.partition(b"://")
    if found and scheme.lower() in (b"http", b"https"):  # as to a proxy
        slash = rest.find(b"/")
        return rest[slash:] if slash >= 0 else b"/"
    return b"/" + target


def _length(known: dict[bytes, bytes], newer: bool) -> int | None:
    length, coding = known.get(b"content-length"), known.get(b"transfer-encoding")
    if coding is not None:
        if length is not None or not newer:
            raise BadHead("a body may have a length or chunks, not both")
        if coding.lower() != b"chunked":
            raise BadHead("the transfer coding is not supported", 501, "Not Implemented")
        return None
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise BadHead("invalid Content-Length")
    return int(length)
