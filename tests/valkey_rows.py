"""What a Valkey store holds, read past its own readers: records by key, events, and whether its indexes are right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from msgspec import UNSET

from flowfabric.stores.keyed.entries import entries_of
from flowfabric.stores.keyed.logs import told
from flowfabric.stores.keyed.reads import carry_out
from flowfabric.stores.keyed.records import KINDS, Dispatch
from flowfabric.stores.valkey.address import parse
from flowfabric.stores.valkey.codec import WIDE, shape_of, unpacked_event, unpacked_wide
from flowfabric.stores.valkey.connection import Wire
from flowfabric.stores.valkey.errors import checked
from flowfabric.stores.valkey.keys import LASTING, Keys, encoded_run_name, is_passing
from flowfabric.stores.valkey.sort_keys import encode


class Looking:
    """As much of a store as is needed here, on a connection of its own: it takes no part in what processes do."""

    def __init__(self, url: str) -> None:
        self._address = parse(url)
        self.keys = Keys(self._address.prefix)
        self.connection = self
        self._wire = Wire()

    async def __aenter__(self) -> Self:
        await self._wire.connect(self._address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wire.abort()
        await self._wire.closed

    async def commands(self, *commands: Any, read_only: bool = True) -> list[Any]:
        """Answers to commands."""
        return checked(await self._wire.ask(*commands))


async def contents(store: Any, *kinds: Any) -> dict[Any, dict[Any, Any]]:
    """Every record by kind and key, whole; of all kinds if none are named."""
    wanted = kinds or tuple(KINDS)
    apart = [(kind, field) for kind in wanted for field in WIDE.get(kind, ())]
    hashes = [*map(store.keys.rows, wanted), *(store.keys.wide(*each) for each in apart)]
    # One transaction: while others work, all of it is of one moment.
    commands = [("HGETALL", key) for key in hashes]
    *_, answers = await store.connection.commands(("MULTI",), *commands, ("EXEC",), read_only=False)
    values = [dict(zip(found[::2], found[1::2], strict=True)) for found in answers]
    found = {kind: _records(kind, own) for kind, own in zip(wanted, values, strict=False)}
    for (kind, field), own in zip(apart, values[len(wanted) :], strict=True):
        shape = shape_of(kind)
        for key, record in found[kind].items():
            setattr(record, field, unpacked_wide(field, own.pop(shape.field(key), None)))
        assert not own, f"{kind.__name__}.{field}: values of records that are not there"
    return found


def _records(kind: Any, values: dict[bytes, bytes]) -> dict[Any, Any]:
    shape = shape_of(kind)
    found = {shape.key(field): shape.unpacked(shape.key(field), value) for field, value in values.items()}
    for key, record in found.items():
        assert record.key == key, f"{record!r} is kept under {key!r}"
        for field in kind.__struct_fields__:
            if getattr(record, field) is UNSET:
                setattr(record, field, None)
    return dict(sorted(found.items()))


async def events(store: Any, after: Mapping[Any, int]) -> dict[Any, list[tuple[int, Any]]]:
    """Every event behind a number of its kind, by kind, with what has become of it."""
    commands = [("XRANGE", store.keys.log(kind), b"(%d-0" % number, "+") for kind, number in after.items()]
    *answers, values = await store.connection.commands(*commands, ("HGETALL", store.keys.rows(Dispatch)))
    dispatches = _records(Dispatch, dict(zip(values[::2], values[1::2], strict=True)))
    found = {}
    for kind, rows in zip(after, answers, strict=True):
        own = [(int(number.partition(b"-")[0]), unpacked_event(kind, values[1])) for number, values in rows]
        found[kind] = carry_out(told(own), lambda request: [dispatches.get(key) for key in request.keys])
    return found


async def wrong_indexes(store: Any) -> list[str]:
    """Where indexes, or the lists of their names, are not what the records make of them."""
    runs: dict[bytes, set[bytes]] = defaultdict(set)
    passing: dict[bytes, set[bytes]] = defaultdict(set)
    lasting: dict[bytes, set[bytes]] = defaultdict(set)
    for records in (await contents(store)).values():
        for record in records.values():
            for family, name, value in entries_of(record):
                runs[store.keys.run(family, name)].add(encode(value))
                if family in LASTING:
                    lasting[store.keys.names(family)].add(encoded_run_name(name))
                elif is_passing(family, name):
                    passing[store.keys.names(family)].add(encoded_run_name(name))
    kept, names = await _kept(store)
    problems = [
        f"{key!r}: the index has {sorted(kept[key])}, the records say {sorted(runs[key])}"
        for key in sorted(kept.keys() | runs.keys())
        if kept[key] != runs[key]
    ]
    # A name that lasts tells of what was; every other goes with the last entry of its run.
    problems += [f"{key!r}: {sorted(own - names[key])} not listed" for key, own in lasting.items() if own - names[key]]
    for key in sorted((names.keys() | passing.keys()) - {store.keys.names(family) for family in LASTING}):
        if names[key] != passing[key]:
            problems.append(f"{key!r}: listed are {sorted(names[key])}, the records say {sorted(passing[key])}")
    return problems


async def _kept(store: Any) -> tuple[dict[bytes, set[bytes]], dict[bytes, set[bytes]]]:
    """Every run, and every list of names."""
    ask = store.connection.commands
    [keys] = await ask(("KEYS", store.keys.every()))
    kinds = await ask(*(("TYPE", key) for key in keys)) if keys else []
    sorted_sets = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"zset"]
    lists = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"set"]
    runs = await ask(*(("ZRANGE", key, 0, -1) for key in sorted_sets)) if sorted_sets else []
    names = await ask(*(("SMEMBERS", key) for key in lists)) if lists else []
    return (
        defaultdict(set, zip(sorted_sets, map(set, runs), strict=True)),
        defaultdict(set, zip(lists, map(set, names), strict=True)),
    )


async def empty(*stores: Any) -> None:
    """Take away everything from a place that these stores share, but not the facts about the place itself."""
    ask = stores[0].connection.commands
    [keys] = await ask(("KEYS", stores[0].keys.every()))
    if gone := [key for key in keys if key != stores[0].keys.meta]:
        await ask(("UNLINK", *gone), read_only=False)
    for store in stores:
        # Names that were listed for good are not.
        store._registered.clear()
