"""Where a page of a list ends: cursors of two texts, and the namespaces that a list is about."""

from __future__ import annotations

from typing import Any

import msgspec

from flowfabric.engine import checks

_TEXTS = msgspec.json.Decoder(tuple[str, str])


def names(value: Any) -> tuple[str, ...] | None:
    """Namespaces that a search names, in order."""
    found = checks.namespaces(value)
    return None if found is None else tuple(sorted(found))


def pair(cursor: Any) -> tuple[str, str] | None:
    """Namespace and name that a cursor stands for."""
    if cursor is None:
        return None
    try:
        first, second = _TEXTS.decode(checks.text(cursor, "cursor"))
    except msgspec.DecodeError:
        raise checks.invalid("cursor: not a valid cursor; pass the cursor of a page unchanged") from None
    return checks.text(first, "cursor"), checks.text(second, "cursor")


def paired(place: tuple[str, str]) -> str:
    """The cursor behind a namespace and name."""
    return msgspec.json.encode(place).decode()
