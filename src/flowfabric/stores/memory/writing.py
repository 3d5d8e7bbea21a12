"""Applying a batch: first everything is checked, then everything is done, so that a refused batch leaves no trace."""

from __future__ import annotations

import copy
from itertools import islice
from typing import Any

from msgspec import UNSET

from flowfabric.model.budget_records import BudgetAsk, BudgetDedup, BudgetSpend, QuotaAdmitted, QuotaWindow, Reservation
from flowfabric.model.changes import Key, PurgeExecution, PurgeFlow, Writes
from flowfabric.model.doors import KeptAnswer
from flowfabric.model.events import CompletionEvent
from flowfabric.model.leases import PastLease
from flowfabric.model.records import (
    EXECUTION_WIDE_FIELDS,
    Attempt,
    Binding,
    CancelBacklog,
    CancelBacklogMember,
    Edge,
    EdgeGroup,
    Execution,
    Flow,
    FlowCounts,
    FrameRow,
    Grant,
    PendingCancelGroup,
    Record,
    Signal,
    SignalDedup,
    StreamHead,
    StreamSummary,
    SuspendDedup,
    Suspension,
    Waitpoint,
    WorkerEvent,
)
from flowfabric.model.samples import SampleRow
from flowfabric.model.start_records import Burst
from flowfabric.model.steps import Step
from flowfabric.stores.memory.indexes import (
    ANSWER_EXPIRY,
    BINDING_EXPIRY,
    DEDUP_EXPIRY,
    SAMPLES,
    SIGNAL_KEY_EXPIRY,
    SUSPEND_ANSWERS,
    WINDOW_EXPIRY,
    WORKER_HISTORY,
)
from flowfabric.stores.memory.tables import Outboxes, Tables, wire_id
from flowfabric.stores.protocol import Conflict
from flowfabric.stores.questions import TrimAdmission, TrimHistory
from flowfabric.stores.schema import OUTBOXES, TABLES

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
    Binding,
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


def apply(tables: Tables, outboxes: Outboxes, writes: Writes) -> None:
    """Write everything, or raise ``Conflict`` and write nothing."""
    purged = {purge.execution_id for purge in writes.purges}
    _check(tables, writes, purged)
    for kind, dropped in writes.drops.items():
        for key in dropped:
            tables.delete(kind, key)
    # Purges come first, because an execution may be created again under its id in the same batch.
    for purge in writes.purges:
        _purge(tables, purge)
    for flow in writes.purged_flows:
        _purge_flow(tables, flow)
    _apply_puts(tables, writes, purged)
    for stream in writes.trims:
        _trim(tables, stream, writes)
    for mark in writes.dispatched:
        if tables.undispatched.pop((mark.partition, mark.uuid), None) is not None:
            outboxes.mark_dispatched(mark.partition, mark.uuid, mark.at_ms)
    for event in writes.events:
        outboxes.append(event)
        if type(event) is CompletionEvent and event.dispatched_at_ms is None and event.flow_id is not None:
            tables.undispatched.setdefault((event.partition, event.uuid), event.occurred_at_ms)


def _check(tables: Tables, writes: Writes, purged: set[str]) -> None:
    for kind, puts in writes.puts.items():
        stored, repeatable = tables.all(kind), TABLES[kind].repeatable
        for key, fields in puts.items():
            present = key in stored
            if fields is not None and not present:
                raise Conflict(f"{kind.__name__}: a row vanished")
            if fields is None and present and not repeatable and _owner(stored[key]) not in purged:
                raise Conflict(f"{kind.__name__}: a row appeared")


def _owner(record: Any) -> str | None:
    """The execution that a record goes away with."""
    kind = type(record)
    if kind is Execution or kind is CancelBacklogMember:
        return str(record.execution_id)
    return wire_id(record.partition, record.uuid) if kind in _OWNED else None


def _apply_puts(tables: Tables, writes: Writes, purged: set[str]) -> None:
    executions = writes.records.get(Execution, {})
    ended = {execution_id for execution_id in purged if executions.get(execution_id) is None}
    for kind, puts in writes.puts.items():
        records = writes.records[kind]
        for key, fields in puts.items():
            record = records[key]
            # What the batch wrote about an execution before it purged it went with the execution.
            if record is not None and not (ended and _owner(record) in ended):
                _put(tables, kind, key, record, fields)


def _put(tables: Tables, kind: Any, key: Key, record: Any, fields: tuple[str, ...] | None) -> None:
    stored = tables.find(kind, key)
    if stored is None:
        tables.store(_new(record))
    elif fields is not None:
        tables.store(_changed(stored, record, fields))


def _new(record: Any) -> Record:
    """The tables' own copy of a new record, with nothing left unset."""
    own: Any = copy.copy(record)
    kind = type(own)
    for field, default in _UNSET.get(kind, _NONE_UNSET).items():
        if getattr(own, field) is UNSET:
            setattr(own, field, default)
    if kind is Execution:
        own.epoch_floor = 0
    elif kind is StreamHead:
        own.stored = True
    return own  # type: ignore[no-any-return]


def _changed(stored: Record, record: Any, fields: tuple[str, ...]) -> Record:
    """The stored record with some fields taken from another one."""
    own = copy.copy(stored)
    for field in fields:
        # The epoch floor is worked out from the attempts whenever an execution is read.
        if field != "epoch_floor":
            value = getattr(record, field)
            setattr(own, field, _UNSET[type(own)][field] if value is UNSET else value)
    return own


def _purge(tables: Tables, purge: PurgeExecution) -> None:
    owned: list[Any] = []
    for kind in _OWNED:
        owned += tables.select(kind, partition=purge.partition, uuid=purge.uuid)
    owned += tables.select(CancelBacklogMember, partition=purge.partition, execution_id=purge.execution_id)
    for waitpoint in tables.select(Waitpoint, partition=purge.partition, uuid=purge.uuid):
        owned += tables.select(SignalDedup, partition=purge.partition, waitpoint_id=waitpoint.waitpoint_id)
    owned += tables.select(BudgetSpend, uuid=purge.uuid)
    owned += tables.select(QuotaAdmitted, execution_id=purge.execution_id)
    for record in owned:
        tables.delete(type(record), record.key)
    tables.delete(Execution, purge.execution_id)


def _purge_flow(tables: Tables, flow: PurgeFlow) -> None:
    where = {"partition": flow.partition, "flow_id": flow.flow_id}
    for kind in (Edge, EdgeGroup, PendingCancelGroup, CancelBacklogMember):
        for record in tables.select(kind, **where):
            tables.delete(kind, record.key)
    for single in (CancelBacklog, FlowCounts, Flow):
        tables.delete(single, (flow.partition, flow.flow_id))


def _trim(tables: Tables, stream: tuple[str, int], writes: Writes) -> None:
    head = writes.records.get(StreamHead, {}).get(stream) or tables.find(StreamHead, stream)
    if head is None:
        return
    execution_id, attempt_index = stream
    low, high = (execution_id, attempt_index), (execution_id, attempt_index + 1)
    frames = tables.frames_of(execution_id)
    surplus = max(frames.count(low, high) - head.frame_count, 0)
    for key in list(islice(frames.between(low, high), surplus)):
        tables.delete(FrameRow, key)


def trim_history(tables: Tables, outboxes: Outboxes, question: TrimHistory) -> int:
    """Delete what is too old, at most ``limit`` rows of each sort, and return how many went."""
    deleted = sum(outboxes.trim(kind, question.events_before_ms, question.limit) for kind in OUTBOXES)
    by_age: tuple[tuple[Any, str, int], ...] = (
        (WorkerEvent, WORKER_HISTORY, question.registry_before_ms),
        (Binding, BINDING_EXPIRY, question.now + 1),
        (SignalDedup, SIGNAL_KEY_EXPIRY, question.now + 1),
        (KeptAnswer, ANSWER_EXPIRY, question.now + 1),
        (SuspendDedup, SUSPEND_ANSWERS, question.registry_before_ms),
        (SampleRow, SAMPLES, question.samples_before_ms),
    )
    for kind, family, before_ms in by_age:
        old = list(islice(tables.indexes.run(family).between(None, (before_ms,)), question.limit))
        for _, key in old:
            tables.delete(kind, key)
        deleted += len(old)
    return deleted


def trim_admission(tables: Tables, question: TrimAdmission) -> int:
    """Delete what budgets and quotas no longer count, at most ``limit`` rows of each sort, and return how many went."""
    deleted = 0
    for kind, family in ((QuotaWindow, WINDOW_EXPIRY), (BudgetDedup, DEDUP_EXPIRY)):
        old = list(islice(tables.indexes.run(family).between(None, (question.now + 1,)), question.limit))
        for _, key in old:
            tables.delete(kind, key)
        deleted += len(old)
    return deleted
