"""A commit as one message: what must be as it was decided upon, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import UNSET, msgpack

from flowfabric.model.decisions import Key
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.stores.keyed.changes import Changes, Move, Trimmed
from flowfabric.stores.keyed.entries import Entry, entries_of, moved_entries
from flowfabric.stores.valkey.codec import VERSION, WIDE, packed_event, packed_wide, shape_of
from flowfabric.stores.valkey.keys import LASTING, Keys, encoded_run_name, is_passing, log_field
from flowfabric.stores.valkey.read import ABSENT, CountCheck, RangeCheck, Reader
from flowfabric.stores.valkey.sort_keys import encode

#: Arguments of one commit. The server does nothing else meanwhile: so many take it some seconds.
MOST_ARGUMENTS = 2_000_000


class _Fields(NamedTuple):
    """What a commit does to one hash."""

    key: bytes
    #: Fields and values, one behind the other.
    puts: list[bytes]
    deletes: list[bytes]


class _Kind:
    """What a commit checks and writes of one kind of record."""

    __slots__ = ("apart", "checked", "rows", "shape", "versions", "wide")

    def __init__(self, kind: Any, keys: Keys) -> None:
        self.shape = shape_of(kind)
        self.rows = _Fields(keys.rows(kind), [], [])
        #: Fields of records that are kept apart, by name.
        self.wide = {name: _Fields(keys.wide(kind, name), [], []) for name in WIDE.get(kind, ())}
        self.apart = frozenset(self.wide)
        self.checked: list[bytes] = []
        self.versions: list[bytes] = []


class Message:
    """Gathers what a commit checks and writes, hash by hash and run by run."""

    def __init__(self, keys: Keys, version: bytes, registered: set[tuple[Any, Any]]) -> None:
        assert len(version) == VERSION
        self._keys = keys
        self.version = version
        self._registered = registered
        #: Runs that this commit adds to the list of names for good.
        self.registering: set[tuple[Any, Any]] = set()
        self._kinds: dict[Any, _Kind] = {}
        self._adds: dict[tuple[Any, Any], list[bytes]] = {}
        self._removes: dict[tuple[Any, Any], list[bytes]] = {}
        self._if_absent: list[Any] = []
        self._logs: dict[Any, list[bytes]] = {}
        self._trims: list[Any] = []
        self._ranges: list[RangeCheck] = []
        self._counts: list[CountCheck] = []
        self._told: tuple[bytes, bytes] | tuple[()] = ()
        self.checks_only = True
        #: How many records it writes.
        self.size = 0

    def _kind(self, kind: Any) -> _Kind:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = _Kind(kind, self._keys)
        return found

    # -- checks --------------------------------------------------------------------------------------------------

    def check_read(self, reader: Reader, written: set[tuple[Any, Key]]) -> None:
        """Everything strict that was read must be as it was; what is ``written`` is checked already."""
        for kind, key in reader.strict:
            if (kind, key) not in written:
                part = self._kind(kind)
                part.checked.append(part.shape.field(key))
                part.versions.append(reader.seen[(kind, key)].version)
        self._ranges, self._counts = reader.ranges, reader.counts

    # -- changes -------------------------------------------------------------------------------------------------

    def add(self, changes: Changes, reader: Reader) -> set[tuple[Any, Key]]:
        """Everything that a plan changes; the records that are written."""
        self.checks_only = False
        self.size = len(changes.moves)
        self._move_all(changes.moves, reader)
        for record in changes.if_absent:
            self._put_if_absent(record)
        for event in changes.events:
            self._logs.setdefault(type(event), []).append(packed_event(event))
        return {(move.kind, move.key) for move in changes.moves}

    def _move_all(self, moves: Iterable[Move], reader: Reader) -> None:
        """Put, replace and delete records that are as they were read, or still not there."""
        kinds, seen = self._kinds, reader.seen
        for move in moves:
            kind, key, before, after = move.kind, move.key, move.before, move.after
            part = kinds.get(kind) or self._kind(kind)
            field = part.shape.field(key)
            part.checked.append(field)
            part.versions.append(ABSENT if before is None else seen[(kind, key)].version)
            if after is not None:
                part.rows.puts.extend((field, part.shape.packed(after, self.version)))
                if part.wide and (move.fields is None or not part.apart.isdisjoint(move.fields)):
                    _put_wide(part.wide, field, move)
            elif before is not None:
                for fields in (part.rows, *part.wide.values()):
                    fields.deletes.append(field)
            left, taken = moved_entries(before, after, move.fields)
            if left:
                _note(self._removes, left)
            if taken:
                _note(self._adds, taken)

    def _put_if_absent(self, record: Any) -> None:
        part = self._kind(type(record))
        entries = [(self._keys.run(family, name), encode(value)) for family, name, value in entries_of(record)]
        value = part.shape.packed(record, self.version)
        self._if_absent.append((part.rows.key, part.shape.field(record.key), value, entries))

    def trim(self, trimmed: Trimmed, reader: Reader) -> None:
        """What age takes."""
        self.checks_only = False
        self._move_all(trimmed.moves, reader)
        for kind, numbers in trimmed.events.items():
            ids = [b"%d-0" % number for number in numbers]
            self._trims.append((kind, ids, max(numbers), trimmed.events_before_ms))

    def tell(self, channel: bytes, message: bytes) -> None:
        """Send this to other processes once everything is written."""
        self._told = (channel, message)

    # -- handing over --------------------------------------------------------------------------------------------

    @property
    def logs(self) -> Iterable[Any]:
        """The kinds of events that it writes, in the order in which their numbers are told."""
        return self._logs

    def arguments(self, store_id: bytes, history: bytes) -> list[bytes]:
        """The arguments of the function that commits: how to take them, and then all of them in one row."""
        row = [store_id, history]
        steps: dict[str, list[Any]] = {
            "rows": [],
            "ranges": [(each.limit, each.backwards) for each in self._ranges],
            "counts": [each.count for each in self._counts],
            "if_absent": [len(entries) for _, _, _, entries in self._if_absent],
            "logs": [len(events) for events in self._logs.values()],
            "trims": [(len(ids), trimmed, before) for _, ids, trimmed, before in self._trims],
            "told": [1] if self._told else [],
        }
        for part in self._kinds.values():
            if part.checked:
                steps["rows"].append(len(part.checked))
                row += (part.rows.key, *part.checked, *part.versions)
        for span in self._ranges:
            row += (span.key, span.low, span.high, span.digest.encode())
        for count in self._counts:
            row += (count.key, count.low, count.high)
        written = [fields for part in self._kinds.values() for fields in (part.rows, *part.wide.values())]
        steps["deletes"] = [len(fields.deletes) for fields in written if fields.deletes]
        steps["puts"] = [len(fields.puts) for fields in written if fields.puts]
        for fields in written:
            if fields.deletes:
                row += (fields.key, *fields.deletes)
        for fields in written:
            if fields.puts:
                row += (fields.key, *fields.puts)
        steps["removes"] = [self._moved(run, members, False, row) for run, members in self._removes.items()]
        steps["adds"] = [self._moved(run, members, True, row) for run, members in self._adds.items()]
        for key, field, value, entries in self._if_absent:
            row += (key, field, value, *(part for entry in entries for part in entry))
        for kind, events in self._logs.items():
            row += (self._keys.log(kind), log_field(kind, "last"), *events)
        for kind, ids, _, _ in self._trims:
            row += (self._keys.log(kind), *ids, log_field(kind, "trimmed"), log_field(kind, "trimmed_before_ms"))
        row += self._told
        if len(row) > MOST_ARGUMENTS:
            raise Validation(
                ValidationKind.INVALID_INPUT,
                f"too large for one commit on Valkey ({len(row):,} of at most {MOST_ARGUMENTS:,} arguments); "
                "send it in parts",
            )
        return [msgpack.encode(steps), *row]

    def _moved(self, run: tuple[Any, Any], members: list[bytes], added: bool, row: list[bytes]) -> tuple[int, int]:
        """Entries that join or leave a run; how many, and whether the run's name joins or may leave a list."""
        row += (self._keys.run(*run), *members)
        named = is_passing(*run)
        if added and run[0] in LASTING and run not in self._registered:
            self.registering.add(run)
            named = True
        if named:
            row += (self._keys.names(run[0]), encoded_run_name(run[1]))
        return len(members), int(named)


def _note(places: dict[tuple[Any, Any], list[bytes]], entries: Iterable[Entry]) -> None:
    last, data = None, b""
    for family, name, value in entries:
        run = (family, name)
        members = places.get(run)
        if members is None:
            members = places[run] = []
        # What stands in several queues has the same place in all of them.
        if value is not last:
            last, data = value, encode(value)
        members.append(data)


def _put_wide(wide: dict[str, _Fields], field: bytes, move: Move) -> None:
    """Put or delete the fields of a record that are kept apart; those that are unset were not looked at, and stay
    unless the record is a new one."""
    for name, fields in wide.items():
        if move.fields is not None and name not in move.fields:
            continue
        value = getattr(move.after, name)
        if value is UNSET:
            if not move.is_new:
                continue
            value = None
        if value is not None and not (move.before is None and value == "{}"):
            fields.puts.extend((field, packed_wide(name, value)))
        elif move.before is not None:
            fields.deletes.append(field)
