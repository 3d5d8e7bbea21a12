"""The changes of a commit: every record before and after. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from flowfabric.model.decisions import SELECT_LIMIT, Key, PurgeExecution, PurgeFlow, Writes
from flowfabric.model.events import CompletionEvent, Event
from flowfabric.model.operations.access import AuditEntry, KeptAnswer
from flowfabric.model.operations.kinds import KindDefinition
from flowfabric.model.operations.workflows import Step
from flowfabric.model.reads.samples import SampleRow
from flowfabric.model.records.budgets import (
    BudgetAsk,
    BudgetDedup,
    BudgetSpend,
    QuotaAdmitted,
    QuotaWindow,
    Reservation,
)
from flowfabric.model.records.executions import (
    EXECUTION_WIDE_FIELDS,
    Attempt,
    Binding,
    Execution,
    GoneWorker,
    Grant,
    Record,
    Signal,
    SignalDedup,
    SuspendDedup,
    Suspension,
    Waitpoint,
    WorkerEvent,
)
from flowfabric.model.records.flows import (
    CancelBacklog,
    CancelBacklogMember,
    Edge,
    EdgeGroup,
    Flow,
    FlowCounts,
    PendingCancelGroup,
)
from flowfabric.model.records.past_leases import PastLease
from flowfabric.model.records.starts import Burst
from flowfabric.model.records.streams import FrameRow, StreamHead, StreamSummary
from flowfabric.stores.event_questions import Unreadable
from flowfabric.stores.keyed import entries as index
from flowfabric.stores.keyed.logs import told
from flowfabric.stores.keyed.reads import Count, Log, Originals, Range, Reading, Rows
from flowfabric.stores.keyed.records import KINDS, Dispatch, wire_id
from flowfabric.stores.keyed.rows import matching
from flowfabric.stores.protocol import Conflict
from flowfabric.stores.questions import TrimAdmission, TrimHistory
from flowfabric.stores.sql.schema import OUTBOXES

#: What an execution owns, by the fields (partition, uuid).
_OWNED = (
    FrameRow,
    StreamSummary,
    StreamHead,
    Grant,
    Suspension,
    Waitpoint,
    Signal,
    Step,
    PastLease,
    Attempt,
    Reservation,
    BudgetAsk,
    Burst,
)
#: Fields that a rule may leave unset, and what is stored then.
_UNSET: dict[Any, dict[str, Any]] = {
    Execution: {**dict.fromkeys(EXECUTION_WIDE_FIELDS), "raw_fields": "{}"},
    Attempt: {"last_instance_id": None, "policy": None},
}
_NONE_UNSET: dict[str, Any] = {}
_FRAMES = index.group_family(FrameRow, ("partition", "uuid"))


class Move(Struct, gc=False):
    """One record as it was and as it will be; ``None`` where it does not exist."""

    kind: Any
    key: Key
    before: Any
    after: Any
    #: The fields that differ, if they are known.
    fields: tuple[str, ...] | None = None
    #: Whether it was deleted in between, so that nothing of it is left but what is written.
    is_new: bool = False


class Changes(Struct):
    """Everything that a commit changes."""

    moves: list[Move]
    events: list[Event]
    #: Records that are put only if their keys are free.
    if_absent: list[Any] = []


class _Plan:
    """Moves under construction, one for each record."""

    def __init__(self) -> None:
        self.moves: dict[tuple[Any, Key], Move] = {}

    def current(self, kind: Any, key: Key, before: Any) -> Any:
        move = self.moves.get((kind, key))
        return before if move is None else move.after

    def move(self, kind: Any, key: Key, before: Any, after: Any, fields: tuple[str, ...] | None = None) -> None:
        known = self.moves.get((kind, key))
        if known is None:
            self.moves[(kind, key)] = Move(kind, key, before, after, fields)
        else:
            known.is_new = known.is_new or known.after is None
            known.after, known.fields = after, None

    def drop(self, records: Iterable[Any]) -> None:
        for record in records:
            self.move(type(record), record.key, record, None)


def planned(writes: Writes, *, copied: bool = True) -> Reading[Changes]:
    """What a batch changes, or ``Conflict`` if what it was decided upon cannot be so. A store that keeps the records
    themselves gets copies of its own, with nothing left unset."""
    plan = _Plan()
    for kind, dropped in writes.drops.items():
        keys = list(dropped)
        for key, before in zip(keys, (yield Originals(kind, keys)), strict=True):
            if before is not None:
                plan.move(kind, key, before, None)
    # Purges come first, because an execution may be created again under its id in the same batch.
    for purge in writes.purges:
        yield from _purge(plan, purge)
    for flow in writes.purged_flows:
        yield from _purge_flow(plan, flow)
    if_absent = yield from _puts(plan, writes, copied)
    for stream in writes.trims:
        yield from _trim(plan, stream, writes)
    events = writes.events
    if writes.dispatched or any(type(event) is CompletionEvent and event.flow_id is not None for event in events):
        events = yield from _dispatches(plan, writes)
    return Changes(list(plan.moves.values()), events, if_absent)


def _puts(plan: _Plan, writes: Writes, copied: bool) -> Reading[list[Any]]:
    purged = {purge.execution_id for purge in writes.purges}
    executions = writes.records.get(Execution, {})
    ended = {execution_id for execution_id in purged if executions.get(execution_id) is None}
    if_absent: list[Any] = []
    for kind, puts in writes.puts.items():
        records, repeatable = writes.records[kind], KINDS[kind].repeatable
        changed = [key for key, fields in puts.items() if fields is not None]
        stored = dict(zip(changed, (yield Originals(kind, changed)), strict=True)) if changed else {}
        number = (yield from _last_act()) if kind is AuditEntry else 0
        for key, fields in puts.items():
            record = records[key]
            # What the batch wrote about an execution before it purged it went with the execution.
            if record is None or (ended and _owner(record) in ended):
                continue
            if fields is None:
                own = _new(record) if copied else record
                if kind is AuditEntry:
                    own = replace(record, number=(number := number + 1))
                if repeatable:
                    if_absent.append(own)
                else:
                    plan.move(kind, key, None, own)
                continue
            if stored[key] is None:
                raise Conflict(f"{kind.__name__}: a row vanished")
            if copied:
                before = plan.current(kind, key, stored[key])
                record = _new(record) if before is None else _changed(before, record, fields)
            plan.move(kind, key, stored[key], record, fields)
    return if_absent


def _last_act() -> Reading[int]:
    """The number of the last act. Two commits cannot both go on from it: one of them will be a conflict."""
    entries = yield Range(index.AUDIT, limit=1, backwards=True)
    return entries[0][0] if entries and isinstance(entries[0][0], int) else 0


def _owner(record: Any) -> str | None:
    """The execution that a record goes away with."""
    kind = type(record)
    if kind is Execution or kind is CancelBacklogMember:
        return str(record.execution_id)
    return wire_id(record.partition, record.uuid) if kind in _OWNED else None


def _new(record: Any) -> Record:
    """The store's own copy of a new record, with nothing left unset."""
    own: Any = record.__copy__()
    kind = type(own)
    for field, default in _UNSET.get(kind, _NONE_UNSET).items():
        if getattr(own, field) is UNSET:
            setattr(own, field, default)
    if kind is Execution:
        own.epoch_floor = 0
    elif kind is StreamHead:
        own.stored = True
    return own  # type: ignore[no-any-return]


def _changed(stored: Any, record: Any, fields: tuple[str, ...]) -> Any:
    """The stored record with some fields taken from another one."""
    own: Any = stored.__copy__()
    for field in fields:
        # The epoch floor is worked out from the attempts whenever an execution is read.
        if field != "epoch_floor":
            value = getattr(record, field)
            setattr(own, field, _UNSET[type(own)][field] if value is UNSET else value)
    return own


# -- what goes -----------------------------------------------------------------------------------------------------


def _purge(plan: _Plan, purge: PurgeExecution) -> Reading[None]:
    where = (purge.partition, purge.uuid)
    for kind in _OWNED:
        owned = yield from matching(kind, ("partition", "uuid"), where, SELECT_LIMIT)
        plan.drop(owned)
        if kind is Waitpoint:
            for waitpoint in owned:
                place = (purge.partition, waitpoint.waitpoint_id)
                plan.drop((yield from matching(SignalDedup, ("partition", "waitpoint_id"), place, SELECT_LIMIT)))
    named: tuple[tuple[Any, tuple[str, ...], tuple[Any, ...]], ...] = (
        (CancelBacklogMember, ("partition", "execution_id"), (purge.partition, purge.execution_id)),
        (BudgetSpend, ("uuid",), (purge.uuid,)),
        (QuotaAdmitted, ("execution_id",), (purge.execution_id,)),
    )
    for kind, fields, values in named:
        plan.drop((yield from matching(kind, fields, values, SELECT_LIMIT)))
    singles = yield [Rows(Execution, [purge.execution_id]), Rows(Dispatch, [where])]
    plan.drop(record for [record] in singles if record is not None)


def _purge_flow(plan: _Plan, flow: PurgeFlow) -> Reading[None]:
    key = (flow.partition, flow.flow_id)
    for kind in (Edge, EdgeGroup, PendingCancelGroup, CancelBacklogMember):
        plan.drop((yield from matching(kind, ("partition", "flow_id"), key, SELECT_LIMIT)))
    singles = yield [Rows(single, [key]) for single in (CancelBacklog, FlowCounts, Flow)]
    plan.drop(record for [record] in singles if record is not None)


def _trim(plan: _Plan, stream: tuple[str, int], writes: Writes) -> Reading[None]:
    """Drop the oldest frames of a stream that are beyond what its head says."""
    head = writes.records.get(StreamHead, {}).get(stream)
    if head is None:
        [head] = yield Rows(StreamHead, [stream], True)
    if head is None:
        return
    execution_id, attempt_index = stream
    low, high = (execution_id, attempt_index), (execution_id, attempt_index + 1)
    name = (head.partition, head.uuid)
    written = sorted(key for kind, key in plan.moves if kind is FrameRow and key[:2] == stream)
    stored = yield Count(_FRAMES, name, low, high)
    surplus = max(stored + len(written) - head.frame_count, 0)
    if surplus:
        oldest = yield Range(_FRAMES, name, low, high, surplus)
        plan.drop((yield Rows(FrameRow, oldest, True)))
        for key in written[: surplus - len(oldest)]:
            plan.move(FrameRow, key, None, None)


def _dispatches(plan: _Plan, writes: Writes) -> Reading[list[Event]]:
    """Keep track of members whose ends are still to be dispatched; the events as they are to be written."""
    marks = {(mark.partition, mark.uuid): mark.at_ms for mark in writes.dispatched}
    events: list[Event] = []
    waiting: dict[tuple[int, str], int] = {}
    for event in writes.events:
        if type(event) is CompletionEvent and event.flow_id is not None and event.dispatched_at_ms is None:
            key = (event.partition, event.uuid)
            if key in marks:
                events.append(replace(event, dispatched_at_ms=marks[key]))
                continue
            waiting.setdefault(key, event.occurred_at_ms)
        events.append(event)
    told_of = {(event.partition, event.uuid) for event in events if type(event) is CompletionEvent}
    keys = [*waiting, *(key for key in marks if key not in told_of)]
    if keys:
        for key, before in zip(keys, (yield Rows(Dispatch, keys)), strict=True):
            since = None if before is None else before.waiting_since_ms
            if key in waiting:
                plan.move(Dispatch, key, before, Dispatch(*key, since or waiting[key]))
            elif since is not None:
                plan.move(Dispatch, key, before, Dispatch(*key, None, marks[key]))
    return events


# -- what age takes ------------------------------------------------------------------------------------------------


class Trimmed(Struct):
    """What goes by age: records, and the numbers of events of each kind."""

    moves: list[Move]
    events: dict[Any, list[int]] = {}
    events_before_ms: int = 0

    @property
    def count(self) -> int:
        return len(self.moves) + sum(map(len, self.events.values()))


def trimmed(question: TrimHistory | TrimAdmission) -> Reading[Trimmed]:
    """What a question about old rows wants deleted."""
    return _trimmed_history(question) if isinstance(question, TrimHistory) else _trimmed_admission(question)


def _trimmed_history(question: TrimHistory) -> Reading[Trimmed]:
    """What is too old, at most ``limit`` rows of each sort."""
    by_age: tuple[tuple[Any, str, int], ...] = (
        (WorkerEvent, index.WORKER_HISTORY, question.registry_before_ms),
        (Binding, index.BINDING_EXPIRY, question.now + 1),
        (SignalDedup, index.SIGNAL_KEY_EXPIRY, question.now + 1),
        (KeptAnswer, index.ANSWER_EXPIRY, question.now + 1),
        (SuspendDedup, index.SUSPEND_ANSWERS, question.registry_before_ms),
        (SampleRow, index.SAMPLES, question.samples_before_ms),
        (GoneWorker, index.GONE_WORKERS, question.gone_before_ms),
        (KindDefinition, index.KINDS_BY_AGE, question.kinds_before_ms),
    )
    moves = yield from _old(by_age, question.limit)
    # Audited acts are numbered as they come, so only the first ones can be old. Requests are made in SQL stores only.
    acts = yield Range(index.AUDIT, limit=question.limit, loose=True)
    entries = yield Rows(AuditEntry, [act[-1] for act in acts])
    moves += [_gone(each) for each in entries if each is not None and each.at_ms < question.audit_before_ms]
    events = {}
    for kind in OUTBOXES:
        numbers = yield from _old_events(kind, question.events_before_ms, question.limit)
        if numbers:
            events[kind] = numbers
    return Trimmed(moves, events, question.events_before_ms)


def _trimmed_admission(question: TrimAdmission) -> Reading[Trimmed]:
    """What budgets and quotas no longer count, at most ``limit`` rows of each sort."""
    by_age = ((QuotaWindow, index.WINDOW_EXPIRY, question.now + 1), (BudgetDedup, index.DEDUP_EXPIRY, question.now + 1))
    return Trimmed((yield from _old(by_age, question.limit)))


def _old(by_age: Iterable[tuple[Any, str, int]], limit: int) -> Reading[list[Move]]:
    moves = []
    for kind, family, before_ms in by_age:
        entries = yield Range(family, high=(before_ms,), limit=limit, loose=True)
        found = yield Rows(kind, [key for _, key in entries])
        moves += [_gone(each) for each in found if each is not None]
    return moves


def _gone(record: Any) -> Move:
    return Move(type(record), record.key, record, None)


def _old_events(kind: Any, before_ms: int, limit: int) -> Reading[list[int]]:
    """The first events that happened before a time; what waits for dispatch stays."""
    numbers: list[int] = []
    after = 0
    while len(numbers) < limit:
        rows = yield Log(kind, after, limit)
        old = [row for row in rows if type(row[1]) is not Unreadable and row[1].occurred_at_ms < before_ms]
        done = yield from told(old)
        numbers += [number for number, event in done if getattr(event, "dispatched_at_ms", 0) is not None]
        if not old or len(rows) < limit:
            break
        after = rows[-1][0]
    return numbers[:limit]
