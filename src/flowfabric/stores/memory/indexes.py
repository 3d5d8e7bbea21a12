"""What each record contributes to which index, and the indexes themselves.

An entry says where a record stands: ``(family, name, value)``. A family is one kind of index, a name picks one sorted
run of it, and the value is the record's place in that run. Entries follow from the record alone, so that an index can
always be worked out again from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from flowfabric.model import literals as lit
from flowfabric.model.budget_records import (
    Budget,
    BudgetAsk,
    BudgetDedup,
    BudgetSpend,
    BudgetUsage,
    QuotaAdmitted,
    QuotaPolicy,
    QuotaWindow,
    Reservation,
)
from flowfabric.model.doors import KeptAnswer
from flowfabric.model.leases import PastLease
from flowfabric.model.records import (
    Attempt,
    Binding,
    CancelBacklogMember,
    Edge,
    EdgeGroup,
    Execution,
    Flow,
    FrameRow,
    Grant,
    PendingCancelGroup,
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
from flowfabric.model.start_records import Burst, Schedule
from flowfabric.model.steps import Step
from flowfabric.stores.memory.runs import SortedRun

Entry: TypeAlias = tuple[Any, Any, Any]

#: Families of one run each: ``(time, execution id)``, with the attempt index behind it for attempts.
INTAKE = "intake"
DELAY = "delay"
DEADLINE = "deadline"
LEASE_EXPIRY = "lease_expiry"
ATTEMPT_TIMEOUT = "attempt_timeout"
SUSPENSION_TIMEOUT = "suspension_timeout"
WAITPOINT_EXPIRY = "waitpoint_expiry"
#: Expired claim grants: ``(time, partition, uuid, grant id)``.
GRANT_EXPIRY = "grant_expiry"
#: What history loses by age: ``(time, key)``.
BINDING_EXPIRY = "binding_expiry"
ANSWER_EXPIRY = "answer_expiry"
WORKER_HISTORY = "worker_history"
SIGNAL_KEY_EXPIRY = "signal_key_expiry"
SUSPEND_ANSWERS = "suspend_answers"
SAMPLES = "samples"
#: Families with a run per lane, per eligibility state and per partition.
ENDED = "ended"
PURGE = "purge"
BLOCKED = "blocked"
#: Members that wait for others, by their ids.
WAITING_CHILDREN = "waiting_children"
SUSPENDED = "suspended"
#: Who waits for a budget or quota, in claim order; who names a budget and waits for a worker.
GATED = "gated"
NAMING_BUDGET = "naming_budget"
#: Who holds a slot of a quota.
SLOTS = "slots"
#: Of budgets, quotas and what they leave behind: ``(time, key)``.
BUDGET_RESET = "budget_reset"
QUOTA_ROOM = "quota_room"
GUARD_EXPIRY = "guard_expiry"
WINDOW_EXPIRY = "window_expiry"
DEDUP_EXPIRY = "dedup_expiry"
#: Slots that come next: ``(time, key)``.
SCHEDULE_DUE = "schedule_due"

_BY_EXECUTION = ("partition", "uuid")
_BY_FLOW = ("partition", "flow_id")
_BY_DOWNSTREAM = ("partition", "flow_id", "downstream")
_BY_BUDGET = ("partition", "budget_id")
_BY_WINDOW = ("partition", "quota_policy_id", "dimension")

#: Equalities that are indexed: a run of keys for each distinct combination of these fields' values.
GROUPS: Mapping[Any, tuple[tuple[str, ...], ...]] = {
    Execution: (("partition",), _BY_FLOW),
    Flow: (("partition",),),
    Attempt: (_BY_EXECUTION,),
    Grant: (_BY_EXECUTION,),
    Binding: (_BY_EXECUTION,),
    Suspension: (_BY_EXECUTION,),
    Waitpoint: (_BY_EXECUTION,),
    Signal: (_BY_EXECUTION,),
    Step: (_BY_EXECUTION,),
    PastLease: (_BY_EXECUTION,),
    SignalDedup: (("partition", "waitpoint_id"),),
    FrameRow: (_BY_EXECUTION,),
    StreamHead: (_BY_EXECUTION,),
    StreamSummary: (_BY_EXECUTION,),
    CancelBacklogMember: (_BY_FLOW, ("partition", "execution_id")),
    Edge: (_BY_DOWNSTREAM, ("partition", "flow_id", "upstream"), _BY_FLOW),
    EdgeGroup: (_BY_DOWNSTREAM, _BY_FLOW),
    PendingCancelGroup: (_BY_FLOW,),
    Reservation: (_BY_EXECUTION,),
    BudgetAsk: (_BY_EXECUTION,),
    Burst: (_BY_EXECUTION,),
    BudgetUsage: (_BY_BUDGET,),
    BudgetSpend: ((*_BY_BUDGET, "uuid"), ("uuid",)),
    QuotaWindow: (_BY_WINDOW,),
    QuotaAdmitted: (("partition", "quota_policy_id"), ("execution_id",)),
}


def values_of(fields: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function from a record to the values of these fields, always as a tuple."""
    if not fields:
        return lambda record: ()
    getter = attrgetter(*fields)
    return getter if len(fields) > 1 else lambda record: (getter(record),)


def group_family(kind: Any, fields: tuple[str, ...]) -> Any:
    """The family of an indexed equality."""
    return (kind, fields)


#: The family of a quota's windows.
WINDOWS = group_family(QuotaWindow, _BY_WINDOW)


def claim_family(lane_id: str, namespace: str | None = None) -> Any:
    """The family of a lane's queue, or of its part in one namespace: a run in claim order for each set of required
    capabilities."""
    return ("claim", lane_id) if namespace is None else ("claim", lane_id, namespace)


def claim_entry(execution: Execution) -> tuple[int, int, int, str, str]:
    """An execution's place in its lane's order; the id at the end leads back to it."""
    return (
        -execution.priority,
        execution.fair_rank,
        execution.created_at_ms,
        execution.uuid,
        execution.execution_id,
    )


def rank_family(lane_id: str) -> Any:
    """The family of a fair lane's ranks: a run for each priority, and one for each priority and key."""
    return ("rank", lane_id)


def tag_of(execution: Execution, name: str) -> Any:
    """The value of a tag; ``None`` if there is none, or no document to look in."""
    try:
        document = msgspec.json.decode(execution.raw_fields or "{}")
    except msgspec.DecodeError:
        return None
    tags = document.get("tags") if isinstance(document, dict) else None
    return tags.get(name) if isinstance(tags, dict) else None


def _queue_entries(record: Execution) -> list[Entry]:
    """Where an execution stands that waits for a worker."""
    place, able = claim_entry(record), record.required_capabilities
    entries: list[Entry] = [(claim_family(record.lane_id), able, place)]
    if record.namespace is not None:
        entries.append((claim_family(record.lane_id, record.namespace), able, place))
    if record.fair_key is not None:
        ranks, rank = rank_family(record.lane_id), (record.fair_rank, record.execution_id)
        entries += [(ranks, (record.priority, None), rank), (ranks, (record.priority, record.fair_key), rank)]
    return entries


def _execution_entries(record: Execution) -> list[Entry]:
    key, created = record.execution_id, record.created_at_ms
    claimable = lit.is_claimable(record.lifecycle_phase, record.eligibility_state)
    entries: list[Entry] = _queue_entries(record) if claimable else []
    if record.lifecycle_phase == lit.SUBMITTED:
        entries.append((INTAKE, None, (created, key)))
    # A member that waits for others keeps its own wake time; it counts once nothing else holds the member back.
    if record.delay_until_ms is not None and record.eligibility_state != lit.BLOCKED_BY_DEPENDENCIES:
        entries.append((DELAY, None, (record.delay_until_ms, key)))
    if isinstance(record.purge_at_ms, int):
        entries.append((PURGE, None, (record.purge_at_ms, key)))
    elif record.terminal_at_ms is not None:
        entries.append((ENDED, record.lane_id, (record.terminal_at_ms, key)))
    elif record.deadline_at_ms is not None:
        entries.append((DEADLINE, None, (record.deadline_at_ms, key)))
    if record.eligibility_state == lit.BLOCKED_BY_DEPENDENCIES:
        entries.append((WAITING_CHILDREN, None, key))
    if record.eligibility_state in lit.ADMISSION_BLOCKS:
        entries.append((BLOCKED, record.eligibility_state, (created, key)))
        if record.eligibility_state in lit.ROOM_BLOCKS:
            entries.append((GATED, record.blocked_by, claim_entry(record)))
    if record.quota_policy_id is not None and record.admitted_at_ms:
        entries.append((SLOTS, record.quota_policy_id, key))
    if record.budget_ids is not None and record.lifecycle_phase in lit.WAITING_PHASES:
        entries += [(NAMING_BUDGET, name, (created, key)) for name in record.budget_ids.split(",")]
    return entries


def _attempt_entries(record: Attempt) -> list[Entry]:
    entries: list[Entry] = []
    if record.lease_expires_at_ms is not None:
        entries.append((LEASE_EXPIRY, None, (record.lease_expires_at_ms, record.execution_id, record.attempt_index)))
    if record.attempt_timeout_at_ms is not None:
        entries.append(
            (ATTEMPT_TIMEOUT, None, (record.attempt_timeout_at_ms, record.execution_id, record.attempt_index))
        )
    return entries


def _grant_entries(record: Grant) -> list[Entry]:
    # Expiry 0 means never.
    if record.kind != lit.GRANT_CLAIM or record.expires_at_ms <= 0:
        return []
    return [(GRANT_EXPIRY, None, (record.expires_at_ms, record.partition, record.uuid, record.grant_id))]


def _binding_entries(record: Binding) -> list[Entry]:
    return [(BINDING_EXPIRY, None, (record.expires_at_ms, record.key))]


def _answer_entries(record: KeptAnswer) -> list[Entry]:
    return [(ANSWER_EXPIRY, None, (record.expires_at_ms, record.key))]


def _sample_entries(record: SampleRow) -> list[Entry]:
    return [(SAMPLES, None, (record.minute_ms, record.key))]


def _suspension_entries(record: Suspension) -> list[Entry]:
    if record.closed_at_ms is not None:
        return []
    entries: list[Entry] = [(SUSPENDED, record.partition, (record.suspended_at_ms, record.uuid))]
    if record.timeout_at_ms is not None:
        wire = f"{{fp:{record.partition}}}:{record.uuid}"
        entries.append((SUSPENSION_TIMEOUT, None, (record.timeout_at_ms, wire)))
    return entries


def _waitpoint_entries(record: Waitpoint) -> list[Entry]:
    if record.state != lit.WAITPOINT_PENDING or record.expires_at_ms is None:
        return []
    wire = f"{{fp:{record.partition}}}:{record.uuid}"
    return [(WAITPOINT_EXPIRY, None, (record.expires_at_ms, wire, record.waitpoint_id))]


def _signal_dedup_entries(record: SignalDedup) -> list[Entry]:
    return [(SIGNAL_KEY_EXPIRY, None, (record.expires_at_ms, record.key))]


def _suspend_dedup_entries(record: SuspendDedup) -> list[Entry]:
    return [(SUSPEND_ANSWERS, None, (record.created_at_ms, record.key))]


def _worker_event_entries(record: WorkerEvent) -> list[Entry]:
    return [(WORKER_HISTORY, None, (record.event_at_ms, record.key))]


def _budget_entries(record: Budget) -> list[Entry]:
    due = record.next_reset_at_ms
    return [] if due is None else [(BUDGET_RESET, None, (due, record.key))]


def _quota_entries(record: QuotaPolicy) -> list[Entry]:
    due = record.next_room_at_ms
    return [] if due is None else [(QUOTA_ROOM, None, (due, record.key))]


def _schedule_entries(record: Schedule) -> list[Entry]:
    due = record.next_at_ms
    return [] if due is None else [(SCHEDULE_DUE, None, (due, record.key))]


def _expiring(family: str) -> Callable[[Any], list[Entry]]:
    return lambda record: [(family, None, (record.expires_at_ms, record.key))]


_OWN: Mapping[Any, Callable[[Any], list[Entry]]] = {
    Execution: _execution_entries,
    Attempt: _attempt_entries,
    Grant: _grant_entries,
    Binding: _binding_entries,
    KeptAnswer: _answer_entries,
    SampleRow: _sample_entries,
    Suspension: _suspension_entries,
    Waitpoint: _waitpoint_entries,
    SignalDedup: _signal_dedup_entries,
    SuspendDedup: _suspend_dedup_entries,
    WorkerEvent: _worker_event_entries,
    Budget: _budget_entries,
    QuotaPolicy: _quota_entries,
    QuotaAdmitted: _expiring(GUARD_EXPIRY),
    QuotaWindow: _expiring(WINDOW_EXPIRY),
    BudgetDedup: _expiring(DEDUP_EXPIRY),
    Schedule: _schedule_entries,
}
_GROUPED = {
    kind: [(group_family(kind, fields), values_of(fields)) for fields in groups] for kind, groups in GROUPS.items()
}


def entries_of(record: Any) -> list[Entry]:
    """Every place a record has in an index. A group in which one of its values is ``None`` is not kept."""
    kind = type(record)
    own = _OWN.get(kind)
    entries = [] if own is None else own(record)
    for family, values in _GROUPED.get(kind, ()):
        name = values(record)
        if None not in name:
            entries.append((family, name, record.key))
    return entries


_NOTHING = SortedRun()


class Indexes:
    """All sorted runs, by family and name. Runs without entries are not kept."""

    def __init__(self) -> None:
        self._families: dict[Any, dict[Any, SortedRun]] = {}

    def run(self, family: Any, name: Any = None) -> SortedRun:
        """One run, for reading."""
        return self.runs(family).get(name, _NOTHING)

    def runs(self, family: Any) -> Mapping[Any, SortedRun]:
        """The runs of a family by name."""
        return self._families.get(family, {})

    def change(self, before: Iterable[Entry], after: Iterable[Entry]) -> None:
        """Move a record from its old places to its new ones."""
        old, new = list(before), list(after)
        for entry in old:
            if entry not in new:
                self._remove(*entry)
        for entry in new:
            if entry not in old:
                self._add(*entry)

    def _add(self, family: Any, name: Any, value: Any) -> None:
        runs = self._families.get(family)
        if runs is None:
            runs = self._families[family] = {}
        run = runs.get(name)
        if run is None:
            run = runs[name] = SortedRun()
        run.add(value)

    def _remove(self, family: Any, name: Any, value: Any) -> None:
        runs = self._families[family]
        run = runs[name]
        run.remove(value)
        if not run:
            del runs[name]
            if not runs:
                del self._families[family]

    def contents(self) -> dict[Any, dict[Any, list[Any]]]:
        """Everything indexed, for comparing."""
        return {
            family: {name: list(run.between()) for name, run in runs.items()} for family, runs in self._families.items()
        }
