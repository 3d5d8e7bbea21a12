"""Index entries of stores that keep records by key: what they follow from is said in one place."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import fields, replace

from flowfabric.stores.keyed.entries import INDEXED, entries_of, moved_entries
from flowfabric.stores.keyed.records import KINDS

#: Two values for a field of any type, which no index takes for the same.
_EITHER: dict[Any, tuple[Any, Any]] = {
    int: (1, 2),
    str: ("a", "b"),
    bool: (False, True),
    bytes: (b"a", b"b"),
}


def _values(kind: Any, name: str) -> tuple[Any, Any]:
    annotation = {each.name: each.type for each in fields(kind)}[name]
    options = getattr(annotation, "__args__", (annotation,))
    return next((_EITHER[each] for each in options if each in _EITHER), ("a", "b"))


@pytest.mark.parametrize("kind", INDEXED, ids=lambda kind: kind.__name__)
def test_a_field_that_no_entry_follows_from_moves_none(kind: Any) -> None:
    """Every field is changed from one value to another, and from nothing to one."""
    assert kind in KINDS
    names = [each.name for each in fields(kind)]
    record = kind(**{name: _values(kind, name)[0] for name in names})
    moving = set()
    for name in names:
        for changed in (_values(kind, name)[1], None):
            other = replace(record, **{name: changed})
            # A key never changes.
            if other.key == record.key and entries_of(other) != entries_of(record):
                moving.add(name)
                assert moved_entries(record, other, (name,)) == moved_entries(record, other)
            else:
                assert other.key != record.key or moved_entries(record, other, (name,)) == ([], [])
    assert moving <= INDEXED[kind]
