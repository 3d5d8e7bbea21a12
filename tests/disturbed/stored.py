"""What a store holds, table by table, in words that two stores have in common that went the same way: everything but
what is made by chance."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct

from flowfabric.stores.sql.schema import OUTBOXES, TABLES
from tests.valkey_rows import contents, events

#: Answers that are kept for whoever repeats a request: what they say is compared as it is told.
ASIDE = frozenset({"ff_kept_answer"})
#: Follow from ids that are made by chance, or count what a store tries.
_BY_CHANCE = frozenset({"partition", "partition_key", "event_id", "number", "committed_at_ms"})
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_CHANCE = re.compile(
    "|".join((r"<Handle [^>]*>", r"\{fp:\d+\}", _UUID.pattern, r"\b[0-9a-f]{16,}\b", r"[A-Za-z0-9_+/=.-]{40,}")),
    re.IGNORECASE,
)

Stored = Mapping[str, Counter[str]]


def plainly(text: str) -> str:
    """Without what is made by chance."""
    return _CHANCE.sub("#", text)


def ids_in(text: str) -> set[str]:
    """The ids that a text names."""
    return set(_UUID.findall(text))


async def rows(store: Any) -> dict[str, list[str]]:
    """Every row and event, as text."""
    if store.label == "memory":
        found = {table.name: store._tables.all(kind).values() for kind, table in TABLES.items()}
        told = {table.name: [event for _, event in store.events(kind)] for kind, table in OUTBOXES.items()}
        return {name: list(map(_record, each)) for name, each in {**found, **told}.items()}
    if store.label == "valkey":
        kinds = {kind: table.name for kind, table in TABLES.items()}
        kept = {kinds[kind]: each.values() for kind, each in (await contents(store)).items() if kind in kinds}
        told = await events(store, dict.fromkeys(OUTBOXES, 0))
        outboxes = {OUTBOXES[kind].name: [event for _, event in each] for kind, each in told.items()}
        return {name: list(map(_record, each)) for name, each in {**kept, **outboxes}.items()}
    names = [table.name for table in (*TABLES.values(), *OUTBOXES.values())]
    if store.label == "postgres":
        async with store.raw() as connection:
            everything = {name: await connection.fetch(f"SELECT * FROM {name}") for name in names}
        return {name: [_row(dict(row)) for row in each] for name, each in everything.items()}
    found: dict[str, list[str]] = {}
    connection = store.raw()
    for name in names:
        cursor = connection.execute(f"SELECT * FROM {name}")
        columns = [each[0] for each in cursor.description]
        found[name] = [_row(dict(zip(columns, row, strict=True))) for row in cursor.fetchall()]
    return found


def compared(found: Mapping[str, Iterable[str]]) -> Stored:
    """As two stores are compared."""
    return {name: Counter(map(plainly, each)) for name, each in found.items() if name not in ASIDE}


def differences(one: Stored, other: Stored) -> list[str]:
    """Rows that only one of them has."""
    found = []
    for name in sorted(one.keys() | other.keys()):
        before, after = one.get(name, Counter()), other.get(name, Counter())
        found += [f"{name}, missing: {each}" for each in (before - after).elements()]
        found += [f"{name}, too many: {each}" for each in (after - before).elements()]
    return found


def _record(record: Struct) -> str:
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    return _row({name: value for name, value in values.items() if value is not UNSET})


def _row(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items() if name not in _BY_CHANCE)


def _value(value: Any) -> str:
    if isinstance(value, bytes | memoryview) and len(value) == 16:
        text = bytes(value).hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    if isinstance(value, bytes | memoryview):
        plain = bytes(value)
        return repr(plain) if plain.isascii() else plain.hex().rjust(16, "0")
    return str(value)
