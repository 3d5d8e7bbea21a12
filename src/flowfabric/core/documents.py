"""JSON documents inside rows. People may have written them, so nothing about them is taken for granted."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from flowfabric.model.errors import Validation, ValidationKind

_decode = msgspec.json.Decoder().decode
#: What lists show in the place of something that cannot be read.
UNREADABLE: Final = "(unreadable)"


def parse_document(text: object, column: str) -> dict[str, Any]:
    """The JSON object in a column, or the error that names the column."""
    if text is None or text == "":
        return {}
    try:
        document = _decode(text)  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError, RecursionError) as error:
        raise Validation(ValidationKind.CORRUPTION, f"{column}: not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise Validation(ValidationKind.CORRUPTION, f"{column}: not a JSON object")
    return document


def listed_document(text: object, name: str) -> dict[str, Any]:
    """The JSON object in a column of a list's row. The other rows are to be shown even if this one cannot be read:
    then it has nothing but this name, which says so."""
    try:
        return parse_document(text, name)
    except Validation:
        return {name: UNREADABLE}


def dump_document(document: dict[str, Any]) -> str:
    """The text to store for a JSON object."""
    return msgspec.json.encode(document).decode()
