"""The shape of a table: the columns of a kind of record, and its key."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

# Column types. Stores translate them; "names" is a sorted tuple of texts, "requirement" the set a worker must cover.
TEXT = "text"
SMALL = "small"
INT = "int"
BIG = "big"
REAL = "real"
BOOL = "bool"
UUID = "uuid"
BYTES = "bytes"
JSON = "json"
NAMES = "names"
REQUIREMENT = "requirement"


class Column(Struct, frozen=True):
    """A record's field and the column it lives in."""

    field: str
    name: str
    type: str


class Table(Struct, frozen=True):
    """A record kind and its table. ``key`` names the fields of the primary key."""

    kind: Any
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    #: Inserting a row that exists is not an error.
    repeatable: bool = False

    def column(self, field: str) -> Column | None:
        """The column of a field; ``None`` for fields that are worked out rather than stored."""
        for column in self.columns:
            if column.field == field:
                return column
        return None


def columns(**types: str) -> tuple[Column, ...]:
    """Columns by field; those that are called otherwise in their table are renamed."""
    renamed = {"partition": "partition_key", "uuid": "execution_id", "upstream": "upstream_eid"}
    renamed |= {"downstream": "downstream_eid", "parent": "parent_eid"}
    return tuple(Column(field, renamed.get(field, field), kind) for field, kind in types.items())
