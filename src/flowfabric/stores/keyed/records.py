"""The records of a store by key: those of every store, and one that tables keep as a column of their events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from flowfabric.stores.sql.schema import TABLES
from flowfabric.stores.tables.shape import BIG, SMALL, UUID, Table, columns


class Dispatch(Struct, gc=False):
    """Whether the announced ends of a flow's member still have to move what depends on it."""

    partition: int
    uuid: str
    #: Since when they wait; empty once they do no longer.
    waiting_since_ms: int | None
    dispatched_at_ms: int | None = None

    @property
    def key(self) -> tuple[int, str]:
        return (self.partition, self.uuid)


_DISPATCH = Table(
    Dispatch,
    "ff_dispatch",
    columns(partition=SMALL, uuid=UUID, waiting_since_ms=BIG, dispatched_at_ms=BIG),
    ("partition", "uuid"),
)
#: Every kind of record that is kept by key.
KINDS: Mapping[Any, Table] = {**TABLES, Dispatch: _DISPATCH}


def wire_id(partition: int, uuid: str) -> str:
    """The execution id of a partition and a bare UUID."""
    return f"{{fp:{partition}}}:{uuid}"
