"""How PostgreSQL spells columns, and how values travel in arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowfabric.stores.sql.rows import Dialect

#: Separates names inside one text, since arrays of arrays do not travel. No name may contain it.
SEPARATOR = "\x1f"


def names_to_text(names: tuple[str, ...]) -> str:
    """Names as one text, split again by the statement."""
    return SEPARATOR.join(names)


def _number(key: str) -> str:
    return (
        f"coalesce(e.{key}, CASE WHEN e.raw_fields->>'{key}' ~ '^[0-9]{{1,9}}$' "
        f"THEN (e.raw_fields->>'{key}')::int END, 0)"
    )


DIALECT = Dialect(
    read={"uuid": "{}::text", "json": "{}::text"},
    decode={"names": tuple, "requirement": tuple},
    encode={"names": names_to_text, "requirement": names_to_text},
    derived={
        "execution_kind": "e.raw_fields->>'execution_kind'",
        "namespace": "coalesce(e.namespace, e.raw_fields->>'namespace')",
        "instance_tag": "CASE WHEN e.namespace IS NOT NULL THEN e.instance_tag "
        "ELSE e.raw_fields->'tags'->>'cairn.instance_id' END",
        "total_attempt_count": _number("total_attempt_count"),
        "retry_count": _number("retry_count"),
    },
    version="{}.xmin",
    snapshot="(SELECT pg_current_snapshot()::text)",
    bytewise=' COLLATE "C"',
    each_name="unnest({}) AS n(value)",
    uuid_end="right({}::text, {})",
    contains='strpos(lower(({}) COLLATE "C"), {}) > 0',
    tags="(e.raw_fields->'tags')::text",
)

#: Column type -> the type a parameter is sent as.
SENT: Mapping[str, str] = {
    "text": "text",
    "small": "smallint",
    "int": "integer",
    "big": "bigint",
    "real": "double precision",
    "bool": "boolean",
    "uuid": "uuid",
    "bytes": "bytea",
    "json": "text",
    "names": "text",
    "requirement": "text",
}


def arrived(kind: str, expression: str) -> str:
    """The expression that turns a sent value into the column's type."""
    if kind == "json":
        return f"{expression}::jsonb"
    if kind in ("names", "requirement"):
        return f"string_to_array({expression}, E'\\x1f')"
    return expression


def encoded(kind: str, values: Sequence[Any]) -> Sequence[Any]:
    """Values of one column, ready to be sent."""
    if kind in ("names", "requirement"):
        return [None if value is None else SEPARATOR.join(value) for value in values]
    return values
