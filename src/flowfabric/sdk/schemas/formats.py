"""Formats in schemas: as much of them as both msgspec and pydantic can read."""

from __future__ import annotations

import binascii
import ipaddress
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec

from flowfabric.model.counting import counted

#: Our own words of a schema, for what JSON Schema has none for: whether a time has an offset from UTC (``required``
#: or ``forbidden``), bytes of what a text encodes, digits of a decimal, and those behind its point.
OFFSET: Final = "x-offset"
MIN_BYTES, MAX_BYTES = "x-minBytes", "x-maxBytes"
MAX_DIGITS, MAX_PLACES = "x-maxDigits", "x-maxPlaces"


def _reads_as(kind: Any) -> Callable[[str], Any]:
    return lambda text: msgspec.convert(text, kind)


def read_decimal(text: str) -> Decimal:
    """A finite decimal, as people and programs write it."""
    if not text.isascii() or "_" in text or text != text.strip():
        raise ValueError("not a decimal")
    found = msgspec.convert(text, Decimal)
    if not found.is_finite():
        raise ValueError("not finite")
    return found


def _read_duration(text: str) -> timedelta:
    if text != text.upper():
        raise ValueError("not in capitals")
    return msgspec.convert(text, timedelta)


def _uuid_of(version: int) -> Callable[[str], Any]:
    def read(text: str) -> uuid.UUID:
        found = msgspec.convert(text, uuid.UUID)
        if found.version != version:
            raise ValueError("another version")
        return found

    return read


#: Which texts a format allows: what reads them, and what they are called. Other formats allow any text.
_FORMATS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "date": (_reads_as(date), "a date such as 2030-12-31"),
    "date-time": (_reads_as(datetime), "a date and time such as 2030-12-31T12:00:00Z"),
    "time": (_reads_as(time), "a time such as 12:00:00"),
    "duration": (_read_duration, "a duration such as P1DT2H"),
    "uuid": (_reads_as(uuid.UUID), "a UUID"),
    **{f"uuid{each}": (_uuid_of(each), f"a UUID of version {each}") for each in (1, 3, 4, 5, 6, 7, 8)},
    "decimal": (read_decimal, "a decimal number such as 12.50"),
    "ipv4": (ipaddress.IPv4Address, "an IPv4 address"),
    "ipv6": (ipaddress.IPv6Address, "an IPv6 address"),
    "ipvanyaddress": (ipaddress.ip_address, "an IP address"),
}


def check_format(schema: Mapping[str, Any], text: str) -> str | None:
    """What is wrong with a text by its format and encoding, if anything is."""
    reader, called = _FORMATS.get(schema.get("format", ""), (None, ""))
    if reader is not None:
        try:
            found = reader(text)
        except (msgspec.ValidationError, ValueError, ArithmeticError):
            return f"is not {called}"
        return _check_offset(schema, found)
    return _check_bytes(schema, text)


def _check_offset(schema: Mapping[str, Any], found: Any) -> str | None:
    match schema.get(OFFSET):
        case "required" if found.tzinfo is None:
            return "has no UTC offset; add one, such as Z"
        case "forbidden" if found.tzinfo is not None:
            return "has a UTC offset; leave it out"
    return None


def _check_bytes(schema: Mapping[str, Any], text: str) -> str | None:
    if schema.get("contentEncoding") == "base64" or schema.get("format") == "base64url":
        try:
            if schema.get("format") == "base64url":
                text = text.replace("-", "+").replace("_", "/")
            size = len(binascii.a2b_base64(text, strict_mode=True)) if text else 0
        except (binascii.Error, ValueError):
            return "is not base64"
    elif schema.get("format") == "binary":
        size = len(text.encode())
    else:
        return None
    least, most = schema.get(MIN_BYTES), schema.get(MAX_BYTES)
    if least is not None and size < least:
        return f"is shorter than {counted(least, 'byte')}"
    if most is not None and size > most:
        return f"is longer than {counted(most, 'byte')}"
    return None


def check_places(schema: Mapping[str, Any], number: Decimal) -> str | None:
    """What is wrong with a decimal by its number of digits, if anything is."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    places = max(-exponent, 0)
    whole = max(len(digits) + exponent, 0)
    most, most_places = schema.get(MAX_DIGITS), schema.get(MAX_PLACES)
    if most_places is not None and places > most_places:
        return f"has more than {counted(most_places, 'digit')} after the decimal point"
    if most is not None and whole + places > most:
        return f"has more than {counted(most, 'digit')}"
    if most is not None and most_places is not None and whole > most - most_places:
        return f"has more than {counted(most - most_places, 'digit')} before the decimal point"
    return None
