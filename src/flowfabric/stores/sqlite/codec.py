"""How SQLite spells columns: UUIDs are 16 bytes, booleans 0 and 1, lists of names joined by commas."""

from __future__ import annotations

import contextlib
import json

from flowfabric.stores.sql.rows import Dialect


def uuid_to_blob(text: str) -> bytearray:
    """16 raw bytes of a hyphenated UUID. The driver binds a ``bytearray`` without looking for an adapter first."""
    return bytearray.fromhex(text.replace("-", ""))


def blob_to_uuid(blob: bytes) -> str:
    """Hyphenated text of 16 raw bytes."""
    text = blob.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def tokens_to_text(tokens: tuple[str, ...]) -> str:
    """Capabilities joined by commas; none contains one."""
    return ",".join(tokens)


def text_to_tokens(text: str) -> tuple[str, ...]:
    """The capabilities in a comma-joined text."""
    return tuple(text.split(",")) if text else ()


def names_to_text(names: tuple[str, ...]) -> str:
    """Names joined by commas; as a JSON list if one of them could not be told from that."""
    if any("," in name or name.startswith("[") or not name for name in names):
        return json.dumps(names)
    return ",".join(names)


def text_to_names(text: str) -> tuple[str, ...]:
    """The names in such a text; one written by hand may begin with a bracket and be no list."""
    if text.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return tuple(json.loads(text))
    return tuple(text.split(",")) if text else ()


#: The same as ``text_to_names``, as rows.
_EACH_NAME = (
    "json_each(CASE WHEN {0} LIKE '[%' AND json_valid({0}) THEN {0} WHEN {0} = '' THEN '[]' ELSE "
    """'["' || replace(replace(replace({0}, '\\', '\\\\'), '"', '\\"'), ',', '","') || '"]' END) n"""
)
_RAW = "CASE WHEN json_valid(e.raw_fields) THEN {} END"

DIALECT = Dialect(
    read={},
    decode={"uuid": blob_to_uuid, "bool": bool, "names": text_to_names, "requirement": text_to_tokens},
    encode={"uuid": uuid_to_blob, "bool": int, "names": names_to_text, "requirement": tokens_to_text},
    derived={
        "execution_kind": _RAW.format("json_extract(e.raw_fields, '$.execution_kind')"),
        "required_capabilities": "e.requirement_key",
        "namespace": "coalesce(e.namespace, " + _RAW.format("json_extract(e.raw_fields, '$.namespace')") + ")",
        "instance_tag": "CASE WHEN e.namespace IS NOT NULL THEN e.instance_tag ELSE "
        + _RAW.format("json_extract(e.raw_fields, '$.tags.\"cairn.instance_id\"')")
        + " END",
        "total_attempt_count": "coalesce(e.total_attempt_count, "
        + _RAW.format("CAST(json_extract(e.raw_fields, '$.total_attempt_count') AS INTEGER)")
        + ", 0)",
        "retry_count": "coalesce(e.retry_count, "
        + _RAW.format("CAST(json_extract(e.raw_fields, '$.retry_count') AS INTEGER)")
        + ", 0)",
    },
    each_name=_EACH_NAME,
    tags=_RAW.format("json_extract(e.raw_fields, '$.tags')"),
)

#: The value of a tag of ``e`` that a mark names. By comparing names and not by a path into the document: no quoting
#: helps a path whose name holds quotes.
TAG_VALUE = (
    "CASE WHEN json_valid(e.raw_fields) THEN "
    "(SELECT tag.value FROM json_each(e.raw_fields, '$.tags') tag WHERE tag.key = {}) END"
)
