"""JSON documents inside rows. People may have written them, so nothing about them is taken for granted."""

from __future__ import annotations

from typing import Any

import msgspec

from flowfabric.model.errors import Validation, ValidationKind

_decode = msgspec.json.Decoder().decode


def parse_document(text: object, column: str) -> dict[str, Any]:
    """The JSON object in a column, or the error that names the column."""
    if text is None or text == "":
        return {}
    try:
        document = _decode(text)  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError) as error:
        raise Validation(ValidationKind.CORRUPTION, f"{column}: not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise Validation(ValidationKind.CORRUPTION, f"{column}: not a JSON object")
    return document


def dump_document(document: dict[str, Any]) -> str:
    """The text to store for a JSON object."""
    return msgspec.json.encode(document).decode()
