"""The view of one batch of commands: loaded records with the decisions made so far folded in.

A rule that asks for something not loaded raises ``Missing``; the engine loads what every command of the batch missed
and decides again. Rules are pure, so deciding twice is free of consequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from flowfabric.core.batch.candidates import CandidatesView
from flowfabric.core.batch.graph_view import Missing
from flowfabric.model.decisions import (
    Change,
    Claimable,
    Decision,
    Downstream,
    Drop,
    EndedAmong,
    First,
    Get,
    GetFull,
    Key,
    Listed,
    LiveMembers,
    MarkDispatched,
    Misplaced,
    Need,
    Peek,
    PurgeExecution,
    PurgeFlow,
    Ranked,
    Recent,
    Select,
    Slots,
    TrimStream,
    Writes,
)
from flowfabric.model.events import Event
from flowfabric.model.records.budgets import QuotaWindow
from flowfabric.model.records.executions import Attempt, Binding, Execution, Record
from flowfabric.model.records.flows import Edge
from flowfabric.model.states import ENDED_PHASES

_RecordType = TypeVar("_RecordType", bound=Record)


#: ``(view, execution as it will be, as it was) -> fields it changed``.
Arrive: TypeAlias = "Callable[[View, Execution, Execution | None], tuple[str, ...]]"


class Held:
    """Records the process believes to be current, for deciding without a read. The commit checks the belief."""

    def find(self, kind: Any, key: Key) -> tuple[Any, bool]:
        """``(record, known)``; a known ``None`` means "believed absent"."""
        return None, False


def _belongs(record: Any, purge: PurgeExecution) -> bool:
    """Whether a record goes when an execution is purged. An idempotency key outlives its execution."""
    return (
        type(record) is not Binding
        and getattr(record, "uuid", None) == purge.uuid
        and getattr(record, "partition", None) == purge.partition
    )


class View(CandidatesView):
    """Loaded records plus folded decisions; see the module's text."""

    def __init__(self, held: Held | None = None, arrive: Arrive | None = None, *, hopeful: bool = False) -> None:
        super().__init__()
        #: Whether to believe what the commit is going to prove.
        self._hopeful = hopeful
        self._loaded: dict[Any, dict[Key, Any]] = {}
        self._full: set[str] = set()
        #: First records of a select: how many were asked for, and the keys found.
        self._firsts: dict[Select, tuple[int, list[Key]]] = {}
        self._peeked: dict[Any, dict[Key, Any]] = {}
        self._listed: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self._recent: dict[Recent, tuple[int, int | None, tuple[int, int]]] = {}
        self._slots: dict[Slots, int] = {}
        self._ended: dict[EndedAmong, frozenset[str]] = {}
        #: Budgets as executions name them, of which everything that admission looks at is here.
        self.looked_at: set[tuple[str, str | None]] = set()
        self._held = held
        #: Gives an execution that joins a queue its place there.
        self._arrive = arrive
        self._misplaced: dict[Misplaced, list[tuple[str, str | None]]] = {}
        self._start()

    def _start(self) -> None:
        self._current = {kind: table.copy() for kind, table in self._loaded.items()}
        self._puts = {}
        self._drops: dict[Any, dict[Key, Record]] = {}
        self._purged = {}
        self._events: list[Event] = []
        self._trims: dict[tuple[str, int], None] = {}
        self._purges: list[PurgeExecution] = []
        self._dispatched: list[MarkDispatched] = []
        self._purged_flows: list[PurgeFlow] = []
        self._edges = {}
        self._believed: dict[tuple[Any, Key], Any] = {}
        self._windows: dict[tuple[int, str, str], list[QuotaWindow]] = {}
        #: Slots of quotas that this batch takes, less those it gives back.
        self._slots_taken: dict[str, int] = {}
        #: What to carry on after the commit: (kind, name) -> how much, ``None`` for as much as there is.
        self.following: dict[tuple[str, str], int | None] = {}
        self.folds = 0
        self._restart_queues()
        self._unplaced: list[Need] = []

    def restart(self) -> None:
        """Forget every folded decision; keep what was loaded."""
        self._start()

    # -- filling -------------------------------------------------------------------------------------------------

    def put_loaded(self, kind: Any, key: Key, record: Any) -> None:
        """A record as the store has it; ``None`` if it does not exist."""
        if kind is Execution and key in self._full:
            return  # the full record knows more
        table = self._loaded.get(kind)
        if table is None:
            table = self._loaded[kind] = {}
            if kind not in self._current:
                self._current[kind] = {}
        table[key] = record
        self._current[kind][key] = record

    def put_full(self, execution_id: str, record: Execution | None) -> None:
        """An execution with its wide fields."""
        self._full.discard(execution_id)
        self.put_loaded(Execution, execution_id, record)
        self._full.add(execution_id)

    def put_selected(self, need: Select | Downstream | LiveMembers, keys: list[Key]) -> None:
        """The answer to a ``Select``, ``Downstream`` or ``LiveMembers``; its records were put one by one."""
        self._selected[need] = keys

    def put_first(self, need: First, keys: list[Key]) -> None:
        """The answer to a ``First``; its records were put one by one."""
        self._firsts[Select(need.kind, need.fields, need.values)] = (need.limit, keys)

    def put_peeked(self, kind: Any, key: Key, record: Any) -> None:
        """A record as it was a moment ago, free for others to change."""
        self._peeked.setdefault(kind, {})[key] = record

    def put_listed(self, need: Listed, keys: list[str]) -> None:
        """The answer to a ``Listed``; its executions and attempts were put one by one."""
        self._listed[(need.what, need.name)] = (need.limit, keys)

    def put_recent(self, need: Recent, count: int, oldest_ms: int | None, newest: tuple[int, int]) -> None:
        """The answer to a ``Recent``; ``newest`` is a time and a number, both 0 without an admission."""
        self._recent[need] = (count, oldest_ms, newest)

    def put_slots(self, need: Slots, count: int) -> None:
        """The answer to a ``Slots``."""
        self._slots[need] = count

    def put_ended(self, need: EndedAmong, ended: frozenset[str]) -> None:
        """The answer to an ``EndedAmong``."""
        self._ended[need] = ended

    def put_misplaced(self, need: Misplaced, found: list[tuple[str, str | None]]) -> None:
        """The answer to a ``Misplaced``; its executions were put one by one."""
        self._misplaced[need] = found

    def has(self, need: Need) -> bool:
        """Whether asking for ``need`` would not raise ``Missing`` because of it."""
        if type(need) is Get:
            table = self._current.get(need.kind)
            if table is not None and need.key in table:
                return True
            return self._held is not None and self._held.find(need.kind, need.key)[1]
        if type(need) is GetFull:
            return need.execution_id in self._full
        if type(need) is Claimable:
            return self.has_scan(need)
        if type(need) is First:
            known = self._firsts.get(Select(need.kind, need.fields, need.values))
            return known is not None and known[0] >= need.limit
        if type(need) is Peek:
            return need.key in self._peeked.get(need.kind, ()) or self.has(Get(need.kind, need.key))
        if type(need) is Listed:
            asked = self._listed.get((need.what, need.name))
            return asked is not None and asked[0] >= need.limit
        if type(need) is Recent:
            return need in self._recent
        if type(need) is Slots:
            return need in self._slots
        if type(need) is EndedAmong:
            return need in self._ended
        if type(need) is Ranked:
            return self._turns.has(need)
        return need in self._selected or need in self._descendants or need in self._misplaced

    def require(self, needs: Iterable[Need]) -> None:
        """Ask for several things at once; what is missing is missed together."""
        missing = [need for need in needs if not self.has(need)]
        if missing:
            raise Missing(*missing)

    # -- asking --------------------------------------------------------------------------------------------------

    def get(self, kind: type[_RecordType], key: Key) -> _RecordType | None:
        """The record, or ``None`` if it does not exist."""
        table = self._current.get(kind)
        if table is None:
            table = self._current[kind] = {}
        elif key in table:
            return table[key]  # type: ignore[no-any-return]
        if self._held is not None:
            record, known = self._held.find(kind, key)
            if known:
                self._believed[(kind, key)] = record
                table[key] = record
                return record  # type: ignore[no-any-return]
        raise Missing(Get(kind, key))

    def many(self, kind: type[_RecordType], keys: Iterable[Key]) -> list[_RecordType | None]:
        """As ``get`` for each key; what is not loaded is asked for together."""
        found: list[_RecordType | None] = []
        missing: list[Need] = []
        for key in keys:
            try:
                found.append(self.get(kind, key))
            except Missing as error:
                missing += error.needs
        if missing:
            raise Missing(*missing)
        return found

    def peek(self, kind: type[_RecordType], key: Key) -> _RecordType | None:
        """The record as it is or was a moment ago; enough to test something that is not written."""
        table = self._current.get(kind)
        if table is not None and key in table:
            return table[key]  # type: ignore[no-any-return]
        peeked = self._peeked.get(kind)
        if peeked is not None and key in peeked:
            return peeked[key]  # type: ignore[no-any-return]
        raise Missing(Peek(kind, key))

    def listed(self, what: str, name: str, limit: int) -> list[Execution]:
        """Executions as ``Listed`` says, in its order, as this batch has left them: the caller looks again."""
        asked = self._listed.get((what, name))
        if asked is None or asked[0] < limit:
            raise Missing(Listed(what, name, limit))
        current = self._current.get(Execution, {})
        return [current[key] for key in asked[1][:limit] if current[key] is not None]

    def recent(self, need: Recent) -> tuple[int, int | None]:
        """``(admissions in the window, time of the oldest)``, this batch's own included."""
        count, oldest_ms, _ = self._answered(need)
        added = self._windows.get(need[:3])
        if not added:
            return count, oldest_ms
        return count + len(added), added[0].admitted_at_ms if oldest_ms is None else oldest_ms

    def newest(self, need: Recent) -> tuple[int, int]:
        """``(time, number)`` of the newest admission, this batch's own included; zeros without one."""
        added = self._windows.get(need[:3])
        return (added[-1].admitted_at_ms, added[-1].number) if added else self._answered(need)[2]

    def _answered(self, need: Recent) -> tuple[int, int | None, tuple[int, int]]:
        found = self._recent.get(need)
        if found is None:
            raise Missing(need)
        return found

    def slots(self, quota_policy_id: str) -> int:
        """How many executions hold a slot of a quota, those of this batch included."""
        need = Slots(quota_policy_id)
        found = self._slots.get(need)
        if found is None:
            raise Missing(need)
        return found + self._slots_taken.get(quota_policy_id, 0)

    def ended_among(self, need: EndedAmong) -> tuple[str, ...]:
        """Those of some executions that have ended, this batch's own ends included, in the order asked for."""
        found = self._ended.get(need)
        if found is None:
            raise Missing(need)
        touched = self._puts.get(Execution, {})
        current = self._current.get(Execution, {})

        def has_ended(execution_id: str) -> bool:
            if execution_id in touched:
                record = current[execution_id]
                return record is not None and record.lifecycle_phase in ENDED_PHASES
            return execution_id in found

        return tuple(each for each in need.execution_ids if has_ended(each))

    def known(self, kind: type[_RecordType], key: Key) -> _RecordType | None:
        """The record if it is at hand; nothing rests on this but what to load ahead."""
        record = self._current.get(kind, {}).get(key)
        if record is None and self._held is not None:
            record = self._held.find(kind, key)[0]
        return record

    def follow(self, kind: str, name: str, amount: int | None = None) -> None:
        """Carry something on as soon as this batch is committed; asked for several times, it happens once."""
        before = self.following.get((kind, name), 0)
        self.following[(kind, name)] = None if before is None or amount is None else before + amount

    def execution(self, execution_id: str) -> Execution | None:
        """The execution with its narrow fields."""
        return self.get(Execution, execution_id)

    def attempt(self, execution_id: str, attempt_index: int) -> Attempt | None:
        """One attempt of an execution."""
        try:
            return self.get(Attempt, (execution_id, attempt_index))
        except Missing:
            # Claims that compete for an execution would find out one by one, a round for each.
            if self._hopeful and self._comes_with_this_batch(execution_id, attempt_index):
                return None
            raise

    def _comes_with_this_batch(self, execution_id: str, attempt_index: int) -> bool:
        """Whether an attempt can only be one that this batch begins. Its insert proves it."""
        if self._puts.get(Execution, {}).get(execution_id, ()) is None:
            return True
        before = self._loaded.get(Execution, {}).get(execution_id) or self._believed.get((Execution, execution_id))
        return before is not None and attempt_index > before.attempt_index

    def full(self, execution_id: str) -> Execution | None:
        """The execution with payload, result, raw fields and texts."""
        if execution_id not in self._full:
            raise Missing(GetFull(execution_id))
        return self.get(Execution, execution_id)

    def select(self, kind: type[_RecordType], /, **equal: Any) -> list[_RecordType]:
        """All records of a kind with these field values, in key order, folded changes included."""
        need = Select(kind, tuple(equal), tuple(equal.values()))
        keys = self._selected.get(need)
        if keys is None:
            raise Missing(need)
        return self._found(need, keys)

    def _found(self, need: Select, keys: list[Key]) -> list[Any]:
        """The records under some keys, and those this batch has written, that a select asks for."""
        current: Mapping[Key, Any] = self._current.get(need.kind, {})
        wanted: Callable[[Any], Any] = attrgetter(*need.fields)
        values = need.values if len(need.fields) > 1 else need.values[0]
        found = {key: current[key] for key in keys}
        for key in self._puts.get(need.kind, ()):
            found[key] = current[key]
        return [record for _, record in sorted(found.items()) if record is not None and wanted(record) == values]

    def first(self, limit: int, kind: type[_RecordType], /, **equal: Any) -> list[_RecordType]:
        """As ``select``, the first ``limit`` of them."""
        select = Select(kind, tuple(equal), tuple(equal.values()))
        asked, keys = self._firsts.get(select, (0, []))
        found = self._found(select, keys) if asked else []
        if len(found) < limit and len(keys) == asked:
            # What was found was all there is, unless the list was full.
            raise Missing(First(kind, select.fields, select.values, 2 * asked + limit))
        return found[:limit]

    def misplaced(self, need: Misplaced) -> list[tuple[Execution, str | None]]:
        """The answer to a ``Misplaced`` with the executions as they are now."""
        found = self._misplaced.get(need)
        if found is None:
            raise Missing(need)
        current = self._current.get(Execution, {})
        return [(record, value) for key, value in found if (record := current[key]) is not None]

    # -- folding -------------------------------------------------------------------------------------------------

    def fold(self, decision: Decision) -> None:
        """Make a decision visible to what is decided after it.

        The engine folds each command's decision. A rule made of several steps folds them itself, so that later steps
        see the earlier ones; having folded, it may no longer refuse.
        """
        self.folds += 1
        for act in decision.acts:
            if type(act) is Change:
                self._fold_change(act.record, act.fields)
            elif type(act) is Drop:
                self._fold_drop(act.record)
            elif type(act) is TrimStream:
                self._trims[(act.execution_id, act.attempt_index)] = None
            elif type(act) is PurgeExecution:
                self._fold_purge(act)
            elif type(act) is MarkDispatched:
                self._dispatched.append(act)
            elif type(act) is PurgeFlow:
                self._purged_flows.append(act)
        if decision.events:
            self._events.extend(decision.events)

    def _fold_change(self, record: Record, fields: tuple[str, ...] | None) -> None:
        kind, key = type(record), record.key
        puts = self._puts.get(kind)
        if puts is None:
            puts = self._puts[kind] = {}
        table = self._current.get(kind)
        if table is None:
            table = self._current[kind] = {}
        if kind is Execution:
            before = table.get(key)
            if self._arrive is not None:
                fields = self._placed(record, before, fields)  # type: ignore[arg-type]
            self._note_claimable(record, before)  # type: ignore[arg-type]
            quota = record.quota_policy_id  # type: ignore[union-attr]
            if quota is not None:
                taken = bool(record.admitted_at_ms) - bool(before is not None and before.admitted_at_ms)  # type: ignore[union-attr]
                if taken:
                    self._slots_taken[quota] = self._slots_taken.get(quota, 0) + taken
        elif kind is Edge:
            self._note_edge(record)  # type: ignore[arg-type]
        elif kind is QuotaWindow and fields is None:
            self._windows.setdefault(key[:3], []).append(record)  # type: ignore[arg-type]
        table[key] = record
        if key in puts:
            before = puts[key]
            if before is not None and fields is not None and before != fields:
                puts[key] = tuple(dict.fromkeys(before + fields))
            return
        dropped = self._drops.get(kind)
        if fields is None and dropped is not None and dropped.pop(key, None) is not None:
            # The row is there until the commit: replace all of it, what the new record leaves open included.
            fields = record.__struct_fields__
            table[key] = replace(record, **{name: None for name in fields if getattr(record, name) is UNSET})
        puts[key] = fields

    def _placed(
        self, execution: Execution, before: Execution | None, fields: tuple[str, ...] | None
    ) -> tuple[str, ...] | None:
        """Let an execution find its place in the queue it may join; the fields to write."""
        assert self._arrive is not None
        try:
            placed = self._arrive(self, execution, before)
        except Missing as missing:
            # Everything will be decided again once it is loaded, so go on and find out what others miss.
            self._unplaced.extend(missing.needs)
            return fields
        return tuple(dict.fromkeys(fields + placed)) if placed and fields is not None else fields

    def unplaced(self) -> list[Need]:
        """What is missing to give executions of this batch their places."""
        return self._unplaced

    def _fold_drop(self, record: Record) -> None:
        kind, key = type(record), record.key
        self._current.setdefault(kind, {})[key] = None
        puts = self._puts.get(kind)
        if puts is not None and key in puts and puts.pop(key) is None:
            return
        self._drops.setdefault(kind, {})[key] = record

    def _fold_purge(self, purge: PurgeExecution) -> None:
        """What was written to the execution before goes with it; what comes after starts from nothing."""
        self._purges.append(purge)
        for kind, table in self._current.items():
            gone = [key for key, record in table.items() if record is not None and _belongs(record, purge)]
            for key in gone:
                table[key] = None
                self._puts.get(kind, {}).pop(key, None)
            self._purged.setdefault(kind, set()).update(gone)

    # -- handing over --------------------------------------------------------------------------------------------

    def writes(self) -> Writes:
        """Everything to commit, each record once, in its final content."""
        checks = [(kind, key) for kind, key in self._believed if key not in self._puts.get(kind, ())]
        return Writes(
            puts=self._puts,
            drops=self._drops,
            records=self._current,
            events=self._events,
            trims=self._trims,
            purges=self._purges,
            checks=checks,
            dispatched=self._dispatched,
            purged_flows=self._purged_flows,
        )

    def unproved(self) -> list[Need]:
        """What was believed to be absent although no insert of this batch puts it to the proof."""
        return [
            Get(kind, key)
            for (kind, key), record in self._believed.items()
            if record is None and key not in self._puts.get(kind, ())
        ]

    def believed(self) -> list[tuple[Any, Key]]:
        """Held records this batch was decided upon."""
        return list(self._believed)

    def loaded(self, kind: type[_RecordType]) -> list[_RecordType]:
        """Records of a kind as they were read, without what was folded."""
        return [record for record in self._loaded.get(kind, {}).values() if record is not None]

    def decided_upon(self, kind: type[_RecordType]) -> list[_RecordType]:
        """Records of a kind as they were read or held."""
        held = [record for (each, _), record in self._believed.items() if each is kind and record is not None]
        return self.loaded(kind) + held
