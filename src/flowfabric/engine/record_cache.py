"""Records the process has just written and may decide upon again without reading them.

Only running executions with their leases, lanes and signing keys are held. On PostgreSQL every use is checked at the
commit by row version; on SQLite the whole of it is dropped as soon as another connection has written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from flowfabric.core.batch.view import Held
from flowfabric.model.decisions import Key, Writes
from flowfabric.model.records.executions import Attempt, Execution, Lane, SigningKey
from flowfabric.model.remembering import MAX_REMEMBERED
from flowfabric.model.states import LEASED
from flowfabric.stores.protocol import Version

#: Running executions one process keeps in mind; beyond that the oldest are read again when needed.
CAPACITY = 20_000
#: Lanes that it keeps in mind: callers that create executions make as many as they like.
MOST_LANES = 10_000


class HeldRecords(Held):
    """What this process holds, bounded."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._executions: dict[str, tuple[Execution, Version | None]] = {}
        self._attempts: dict[tuple[str, int], tuple[Attempt, Version | None]] = {}
        self._lanes: dict[str, tuple[Lane, Version | None]] = {}
        self._keys: dict[str, tuple[SigningKey, Version | None]] = {}
        self._tables: dict[Any, dict[Any, tuple[Any, Version | None]]] = {
            Execution: self._executions,
            Attempt: self._attempts,
            Lane: self._lanes,
            SigningKey: self._keys,
        }

    def find(self, kind: Any, key: Key) -> tuple[Any, bool]:
        entry = self.entry(kind, key)
        return (None, False) if entry is None else (entry[0], True)

    def entry(self, kind: Any, key: Key) -> tuple[Any, Version | None] | None:
        """A held record with the row version that it was written with."""
        table = self._tables.get(kind)
        return None if table is None else table.get(key)

    def version(self, kind: Any, key: Key) -> Version | None:
        """The row version a held record was written with."""
        entry = self.entry(kind, key)
        return None if entry is None else entry[1]

    def record(self, kind: Any, key: Key) -> Any:
        """A held record, or ``None``."""
        return self.find(kind, key)[0]

    def forget(self) -> None:
        """Trust nothing any more."""
        for table in self._tables.values():
            table.clear()

    def learn(self, writes: Writes, version: Version | None) -> None:
        """Take over what a commit has written."""
        self._learn_executions(writes, version)
        attempts = writes.puts.get(Attempt)
        if attempts:
            records, held = writes.records[Attempt], self._attempts
            for key in attempts:
                attempt = records[key]
                if attempt.worker_instance_id and key[0] in self._executions:
                    held[key] = (attempt, version)
                else:
                    held.pop(key, None)
        for key in writes.puts.get(Lane, ()):
            self.learn_lane(writes.records[Lane][key], version)
        for kid in (*writes.puts.get(SigningKey, ()), *writes.drops.get(SigningKey, ())):
            self._keys.pop(kid, None)
        for purge in writes.purges:
            self._executions.pop(purge.execution_id, None)

    def _learn_executions(self, writes: Writes, version: Version | None) -> None:
        puts = writes.puts.get(Execution)
        if not puts:
            return
        records, held = writes.records[Execution], self._executions
        for key in puts:
            execution = records[key]
            if execution is None or execution.ownership_state != LEASED or _is_large(execution):
                held.pop(key, None)
                continue
            if execution.payload is not UNSET or execution.raw_fields is not UNSET:
                execution = replace(execution, payload=UNSET, result=UNSET, raw_fields=UNSET)
            held[key] = (execution, version)
        while len(held) > self._capacity:
            oldest = next(iter(held))
            index = held.pop(oldest)[0].attempt_index
            self._attempts.pop((oldest, index), None)

    def learn_lane(self, lane: Lane, version: Version | None) -> None:
        """Keep a lane as it was read or written."""
        self._lanes[lane.lane_id] = (lane, version)
        if len(self._lanes) > MOST_LANES:
            del self._lanes[next(iter(self._lanes))]

    def learn_key(self, key: SigningKey, version: Version | None) -> None:
        """Keep a signing key as it was read."""
        self._keys[key.kid] = (key, version)

    def drop(self, entries: Iterable[tuple[Any, Key]]) -> None:
        """Forget what a lost race was decided upon."""
        for kind, key in entries:
            table = self._tables.get(kind)
            if table is not None:
                table.pop(key, None)


def _is_large(execution: Execution) -> bool:
    """Whether so many like it would take too much memory: its callers choose how long its texts are."""
    texts = (execution.policy, execution.instance_tag, execution.budget_ids)
    return sum(len(each) for each in texts if each is not None) > MAX_REMEMBERED


class Assumed(Held):
    """What one try of a batch believes: records that are held, each as it was when the batch first looked, and that
    what the batch is about to create does not exist yet.

    The commit compares these versions, not those held by then: another batch of this process may have learned newer
    records meanwhile, and nothing here was decided upon those.
    """

    def __init__(self, held: HeldRecords, absent: set[tuple[Any, Key]]) -> None:
        self._held = held
        self._absent = absent
        self._found: dict[tuple[Any, Key], tuple[Any, Version | None]] = {}

    def find(self, kind: Any, key: Key) -> tuple[Any, bool]:
        place = (kind, key)
        found = self._found.get(place)
        if found is None:
            found = self._held.entry(kind, key)
            if found is None:
                return None, place in self._absent
            self._found[place] = found
        return found[0], True

    def version(self, kind: Any, key: Key) -> Version | None:
        """The row version of a record that was believed."""
        found = self._found.get((kind, key))
        return None if found is None else found[1]

    def record(self, kind: Any, key: Key) -> Any:
        """A record that was believed, or ``None``."""
        found = self._found.get((kind, key))
        return None if found is None else found[0]
