"""Index entries of each kind of record.

An entry says where a record stands: ``(family, name, value)``. A family is one kind of index, a name picks one sorted
run of it, and the value is the record's place in that run. Entries follow from the record alone, so that an index can
always be worked out again from the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from flowfabric.model import states as lit
from flowfabric.model.operations.access import AuditEntry, KeptAnswer
from flowfabric.model.operations.kinds import KindDefinition
from flowfabric.model.operations.workflows import Step
from flowfabric.model.ownership import shown_id, shown_ids
from flowfabric.model.reads.samples import SampleRow
from flowfabric.model.records.budgets import (
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
from flowfabric.model.records.executions import (
    Attempt,
    Binding,
    Execution,
    GoneWorker,
    Grant,
    Signal,
    SignalDedup,
    SigningKey,
    SuspendDedup,
    Suspension,
    Waitpoint,
    WorkerEvent,
)
from flowfabric.model.records.flows import CancelBacklog, CancelBacklogMember, Edge, EdgeGroup, Flow, PendingCancelGroup
from flowfabric.model.records.past_leases import PastLease
from flowfabric.model.records.starts import Burst, Schedule
from flowfabric.model.records.streams import FrameRow, StreamHead, StreamSummary
from flowfabric.stores.keyed.records import Dispatch
from flowfabric.stores.questions import ListPlace

Entry: TypeAlias = tuple[Any, Any, Any]

#: Families of one run each: ``(time, execution id)``, with the attempt index behind it for attempts.
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
GONE_WORKERS = "gone_workers"
KINDS_BY_AGE = "kinds_by_age"
#: Every kind that was announced: ``(place of its namespace, place of its name, time)``.
ANNOUNCED_KINDS = "announced_kinds"
#: Every act that was audited: ``(number, id)``.
AUDIT = "audit"
#: Families with a run per lane, per eligibility state and per partition.
ENDED = "ended"
PURGE = "purge"
BLOCKED = "blocked"
#: Members that wait for others, by their ids.
WAITING_CHILDREN = "waiting_children"
#: Groups whose losers are to be cancelled: the work items by ``(time, *key)``, and the groups whose flag is up by key.
PENDING_GROUPS = "pending_groups"
FLAGGED_GROUPS = "flagged_groups"
#: Cancelled flows whose members have not all acknowledged: ``(time, *key)``.
BACKLOG = "backlog"
#: Remembered steps by key; and those of each execution as ``(sequence, name, bytes of the value)``.
STEPS = "steps"
STEP_ORDER = "step_order"
SUSPENDED = "suspended"
#: Every execution and every flow by ``(partition, uuid)``.
EXECUTIONS = "executions"
FLOWS = "flows"
#: Every execution by ``(creation time, uuid, partition, id)``, a run for each namespace; those that are suspended by
#: ``(time of that, uuid, partition, id)``, a run for each blocking reason; every flow by ``(creation time, uuid,
#: partition)``.
CREATED = "created"
WAITING_SINCE = "waiting_since"
FLOWS_CREATED = "flows_created"
#: Executions that have not ended and were started by another one, by their ids.
CHILDREN = "children"
#: Executions that have not ended and that nobody can claim or holds: ``(lane, creation time, id)``, a run for each
#: namespace. Those in queues and under leases, which most are all their lives, are found there.
ASIDE = "aside"
#: Members whose ends are still to be dispatched: ``(time, partition, uuid)``.
UNDISPATCHED = "undispatched"
#: Who waits for a budget or quota, in claim order; who names a budget and waits for a worker.
GATED = "gated"
NAMING_BUDGET = "naming_budget"
#: Who names a budget or quota at all, a run for each id, whoever owns it.
NAMED_GATE = "named_gate"
#: Who holds a slot of a quota.
SLOTS = "slots"
#: Every budget and every quota by its id.
BUDGETS = "budgets"
QUOTAS = "quotas"
#: Those that are to be looked at, whether anything uses them: ``(time, id)``. Quotas that count slots by guards. What
#: stands right under each budget.
IDLE_BUDGETS = "idle_budgets"
IDLE_QUOTAS = "idle_quotas"
TAKEN_QUOTAS = "taken_quotas"
BUDGETS_BELOW = "budgets_below"
#: Of budgets, quotas and what they leave behind: ``(time, key)``.
BUDGET_RESET = "budget_reset"
QUOTA_ROOM = "quota_room"
GUARD_EXPIRY = "guard_expiry"
WINDOW_EXPIRY = "window_expiry"
DEDUP_EXPIRY = "dedup_expiry"
#: Slots that come next: ``(time, key)``.
SCHEDULE_DUE = "schedule_due"

#: What the families of a lane's queue and of its ranks begin with.
CLAIM = "claim"
RANK = "rank"

_BY_EXECUTION = ("partition", "uuid")
_BY_FLOW = ("partition", "flow_id")
_BY_BUDGET = ("partition", "budget_id")
_BY_WINDOW = ("partition", "quota_policy_id", "dimension")


class Group(NamedTuple):
    """An equality that is indexed: records with the same values of some fields stand in one run, in the order of others
    and then of their keys."""

    fields: tuple[str, ...]
    then_by: tuple[str, ...] = ()


#: Fields whose equality is indexed. A plain tuple is a group in the order of keys.
GROUPS: Mapping[Any, tuple[tuple[str, ...] | Group, ...]] = {
    Execution: (_BY_FLOW, ("partition", "parent")),
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
    # A flow may have very many members: one run for all of them is cheaper than one for each.
    Edge: (Group(_BY_FLOW, ("downstream",)), Group(_BY_FLOW, ("upstream",))),
    EdgeGroup: (Group(_BY_FLOW, ("downstream",)),),
    PendingCancelGroup: (_BY_FLOW,),
    Reservation: (_BY_EXECUTION,),
    BudgetAsk: (_BY_EXECUTION,),
    Burst: (_BY_EXECUTION,),
    BudgetUsage: (_BY_BUDGET,),
    BudgetSpend: ((*_BY_BUDGET, "uuid"), ("uuid",), _BY_BUDGET),
    QuotaWindow: (_BY_WINDOW,),
    QuotaAdmitted: (("partition", "quota_policy_id"), ("execution_id",)),
    SigningKey: (("active",),),
}


#: Behind every value of its place in an entry.
LAST = math.inf


def values_of(fields: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function from a record to the values of these fields, always as a tuple."""
    if not fields:
        return lambda record: ()
    getter = attrgetter(*fields)
    return getter if len(fields) > 1 else lambda record: (getter(record),)


def groups_of(kind: Any) -> list[Group]:
    """The indexed equalities of a kind."""
    return [each if isinstance(each, Group) else Group(each) for each in GROUPS.get(kind, ())]


def group_family(kind: Any, fields: tuple[str, ...], *then_by: str) -> Any:
    """The family of an indexed equality."""
    return (kind, fields + then_by)


#: The families of a flow's members and of an execution's children.
MEMBERS = group_family(Execution, _BY_FLOW)
STARTED_BY = group_family(Execution, ("partition", "parent"))
#: The family of the edges out of a flow's members: ``(upstream, *key)``.
BY_UPSTREAM = group_family(Edge, _BY_FLOW, "upstream")
#: The family of a quota's windows.
WINDOWS = group_family(QuotaWindow, _BY_WINDOW)


def claim_family(lane_id: str, namespace: str | None = None) -> Any:
    """The family of a lane's queue, or of its part in one namespace: a run in claim order for each set of required
    capabilities."""
    return (CLAIM, lane_id) if namespace is None else (CLAIM, lane_id, namespace)


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
    return (RANK, lane_id)


#: The wide field that holds an execution's document.
DOCUMENT = ("raw_fields",)


def document_field(record: Execution | Flow, name: str) -> Any:
    """A field of a record's document; ``None`` without the field or without a document."""
    try:
        document = msgspec.json.decode(record.raw_fields or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    return document.get(name) if isinstance(document, dict) else None


def tag_of(execution: Execution, name: str) -> Any:
    """The value of a tag; ``None`` without the tag."""
    tags = document_field(execution, "tags")
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
    if not claimable and record.terminal_at_ms is None and record.ownership_state != lit.LEASED:
        entries.append((ASIDE, record.namespace, (record.lane_id, created, key)))
    if record.lifecycle_phase == lit.SUSPENDED:
        entries.append((WAITING_SINCE, record.blocking_reason, (*suspended_place(record), key)))
    if record.flow_id is not None or record.parent is not None:
        entries += _related_entries(record)
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
    if record.budget_ids is not None or record.quota_policy_id is not None:
        entries += _naming_entries(record)
    return entries


def _naming_entries(record: Execution) -> list[Entry]:
    """Where an execution stands that names budgets or a quota."""
    key = record.execution_id
    entries: list[Entry] = []
    if record.quota_policy_id is not None:
        entries.append((NAMED_GATE, shown_id(record.quota_policy_id), key))
        if record.admitted_at_ms:
            entries.append((SLOTS, record.quota_policy_id, key))
    if record.budget_ids is not None:
        entries += [(NAMED_GATE, each, key) for each in shown_ids(record.budget_ids)]
        if record.lifecycle_phase in lit.WAITING_PHASES:
            entries += [(NAMING_BUDGET, name, (record.created_at_ms, key)) for name in record.budget_ids.split(",")]
    return entries


def _related_entries(record: Execution) -> list[Entry]:
    """Where an execution stands that is a member of a flow, or was started by another one."""
    entries: list[Entry] = []
    if record.flow_id is not None:
        entries.append((MEMBERS, (record.partition, record.flow_id), record.execution_id))
    if record.parent is not None:
        entries.append((STARTED_BY, (record.partition, record.parent), record.execution_id))
        if record.terminal_at_ms is None:
            entries.append((CHILDREN, None, record.execution_id))
    return entries


def _listed_entries(record: Execution) -> list[Entry]:
    """Where an execution stands in lists, from its first moment to its last."""
    listed = (*created_place(record), record.execution_id)
    return [(EXECUTIONS, None, (record.partition, record.uuid)), (CREATED, record.namespace, listed)]


def created_place(record: Execution) -> ListPlace:
    """Where an execution stands in lists that begin with the newest."""
    return (record.created_at_ms, record.uuid, record.partition)


def suspended_at(record: Execution) -> int:
    """When it was suspended last; when it was created if that is not known."""
    return record.created_at_ms if record.suspended_at_ms is None else record.suspended_at_ms


def suspended_place(record: Execution) -> ListPlace:
    """Where an execution stands among those that are suspended."""
    return (suspended_at(record), record.uuid, record.partition)


def _flow_entries(record: Flow) -> list[Entry]:
    listed = (record.created_at_ms, record.flow_id, record.partition)
    return [(FLOWS, None, (record.partition, record.flow_id)), (FLOWS_CREATED, None, listed)]


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


def _audit_entries(record: AuditEntry) -> list[Entry]:
    return [(AUDIT, None, audit_place(record))]


def audit_place(record: AuditEntry) -> tuple[Any, ...]:
    """Where an act stands; those that have no number were kept by a release that gave none, before all others."""
    return (record.key,) if record.number is msgspec.UNSET else (record.number, record.key)


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


def _gone_worker_entries(record: GoneWorker) -> list[Entry]:
    return [(GONE_WORKERS, None, (record.gone_at_ms, record.key))]


def text_place(text: str) -> str:
    """Where a text stands among any others: a mark before it, so that none is spelled as the id of an execution, which
    some stores put elsewhere."""
    return f"/{text}"


def _kind_entries(record: KindDefinition) -> list[Entry]:
    at = record.announced_at_ms
    return [(KINDS_BY_AGE, None, (at, record.key)), (ANNOUNCED_KINDS, None, (*map(text_place, record.key), at))]


def _budget_entries(record: Budget) -> list[Entry]:
    entries: list[Entry] = [(BUDGETS, None, record.key)]
    if record.next_reset_at_ms is not None:
        entries.append((BUDGET_RESET, None, (record.next_reset_at_ms, record.key)))
    if record.idle_check_at_ms is not None:
        entries.append((IDLE_BUDGETS, None, (record.idle_check_at_ms, record.key)))
    if record.ancestor_ids:
        entries.append((BUDGETS_BELOW, record.ancestor_ids.partition(",")[0], record.key))
    return entries


def _quota_entries(record: QuotaPolicy) -> list[Entry]:
    entries: list[Entry] = [(QUOTAS, None, record.key)]
    if record.next_room_at_ms is not None:
        entries.append((QUOTA_ROOM, None, (record.next_room_at_ms, record.key)))
    if record.idle_check_at_ms is not None:
        entries.append((IDLE_QUOTAS, None, (record.idle_check_at_ms, record.key)))
    if record.active_concurrency:
        entries.append((TAKEN_QUOTAS, None, record.key))
    return entries


def _edge_group_entries(record: EdgeGroup) -> list[Entry]:
    return [(FLAGGED_GROUPS, None, record.key)] if record.cancel_siblings_pending_flag else []


def _pending_group_entries(record: PendingCancelGroup) -> list[Entry]:
    return [(PENDING_GROUPS, None, (record.enqueued_at_ms, *record.key))]


def _backlog_entries(record: CancelBacklog) -> list[Entry]:
    return [(BACKLOG, None, (record.requested_at_ms, *record.key))]


def _step_entries(record: Step) -> list[Entry]:
    place = (record.sequence, record.name, len(record.value or b""))
    return [(STEPS, None, record.key), (STEP_ORDER, (record.partition, record.uuid), place)]


def _schedule_entries(record: Schedule) -> list[Entry]:
    due = record.next_at_ms
    return [] if due is None else [(SCHEDULE_DUE, None, (due, record.key))]


def _dispatch_entries(record: Dispatch) -> list[Entry]:
    since = record.waiting_since_ms
    return [] if since is None else [(UNDISPATCHED, None, (since, record.partition, record.uuid))]


def _expiring(family: str) -> Callable[[Any], list[Entry]]:
    return lambda record: [(family, None, (record.expires_at_ms, record.key))]


_OWN: Mapping[Any, Callable[[Any], list[Entry]]] = {
    Execution: _execution_entries,
    Attempt: _attempt_entries,
    Flow: _flow_entries,
    Grant: _grant_entries,
    Binding: _binding_entries,
    KeptAnswer: _answer_entries,
    SampleRow: _sample_entries,
    AuditEntry: _audit_entries,
    Suspension: _suspension_entries,
    Waitpoint: _waitpoint_entries,
    SignalDedup: _signal_dedup_entries,
    SuspendDedup: _suspend_dedup_entries,
    WorkerEvent: _worker_event_entries,
    GoneWorker: _gone_worker_entries,
    KindDefinition: _kind_entries,
    Budget: _budget_entries,
    QuotaPolicy: _quota_entries,
    QuotaAdmitted: _expiring(GUARD_EXPIRY),
    QuotaWindow: _expiring(WINDOW_EXPIRY),
    BudgetDedup: _expiring(DEDUP_EXPIRY),
    Schedule: _schedule_entries,
    Dispatch: _dispatch_entries,
    EdgeGroup: _edge_group_entries,
    PendingCancelGroup: _pending_group_entries,
    CancelBacklog: _backlog_entries,
    Step: _step_entries,
}
#: Groups of executions are spelled out with their other entries, because so many of them are written.
_GROUPED = {
    kind: [
        (group_family(kind, each.fields, *each.then_by), values_of(each.fields), values_of(each.then_by))
        for each in groups_of(kind)
    ]
    for kind in GROUPS
    if kind is not Execution
}


def entries_of(record: Any) -> list[Entry]:
    """Every place a record has in an index."""
    entries = _passing_entries(record)
    return entries + _listed_entries(record) if type(record) is Execution else entries


#: The fields that entries follow from, of the kinds that change most often. (Keys never change.)
INDEXED: Mapping[Any, frozenset[str]] = {
    kind: frozenset((*own, *(name for group in groups_of(kind) for name in (*group.fields, *group.then_by))))
    for kind, own in {
        Attempt: ("lease_expires_at_ms", "attempt_timeout_at_ms"),
        Edge: (),
        EdgeGroup: ("cancel_siblings_pending_flag",),
    }.items()
}


def moved_entries(before: Any, after: Any, changed: tuple[str, ...] | None = None) -> tuple[list[Entry], list[Entry]]:
    """The places that a record leaves and those that it takes; ``None`` stands for a record that is not there. Nothing
    is worked out if it is known which fields ``changed`` and no entry follows from them."""
    if before is None or after is None:
        return [] if before is None else entries_of(before), [] if after is None else entries_of(after)
    if changed is not None and (indexed := INDEXED.get(type(after))) is not None and indexed.isdisjoint(changed):
        return [], []
    stays = type(after) is Execution and (before.created_at_ms, before.namespace) == (
        after.created_at_ms,
        after.namespace,
    )
    find = _passing_entries if stays else entries_of
    old, new = find(before), find(after)
    return [entry for entry in old if entry not in new], [entry for entry in new if entry not in old]


def _passing_entries(record: Any) -> list[Entry]:
    """Places that may change while the record is there. A group in which one of its values is ``None`` is not kept."""
    kind = type(record)
    own = _OWN.get(kind)
    entries = [] if own is None else own(record)
    for family, name_of, order_of in _GROUPED.get(kind, ()):
        name, order = name_of(record), order_of(record)
        if None not in name:
            entries.append((family, name, (*order, *record.key) if order else record.key))
    return entries
