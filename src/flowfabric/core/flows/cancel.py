"""Cancelling a flow: the header with its backlog, acknowledgements, and the members."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.admission import release
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.documents import dump_document, parse_document
from flowfabric.core.executions.terminal import (
    cancelled_row,
    completion,
    current_attempt,
    leftover_needs,
    leftovers,
    lost_lease,
)
from flowfabric.core.leases import lease
from flowfabric.core.workflows import parents
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Change, Decision, Drop, Get, Need, Select, change, insert
from flowfabric.model.errors import NotFound, State, StateKind
from flowfabric.model.events import Event, OperatorEvent
from flowfabric.model.operations.executions import CancelFlowHeader
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import CancelBacklog, CancelBacklogMember, EdgeGroup, Flow, PendingCancelGroup

#: How long the caller of the header may take to cancel members before the reconciler steps in.
BACKLOG_GRACE_MS = 30_000
FLOW_ONLY = "flow_only"
CANCEL_ALL = "cancel_all"
CANCEL_PENDING = "cancel_pending"
CANCEL_POLICIES = (FLOW_ONLY, CANCEL_ALL, CANCEL_PENDING)
FLOW_CANCELLED = "flow_cancelled"
#: Members that one transaction cancels with their flow, and the backlog's status while there are more.
CANCEL_STEP = 2_000
CANCELLING = "cancelling"


class CancelFlowHeaderCommand(Struct, gc=False):
    """Cancel a flow and flip its members; the caller then acknowledges them one by one."""

    partition: int
    flow_id: str
    reason: str
    cancellation_policy: str
    recorded_at_ms: int | None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Flow, (self.partition, self.flow_id)),)


def cancel_flow_header(command: CancelFlowHeaderCommand, view: View, context: Context) -> Decision:
    """Flow cancelled, backlog written, members cancelled and fenced off, one event for all of it."""
    flow = _flow(view, command.partition, command.flow_id)
    raw = parse_document(flow.raw_fields, "ff_flow_core.raw_fields")
    # The flow is locked from here on, so nobody can join it between this look and the commit.
    where = (("partition", "flow_id"), flow.key)
    view.require((Select(Execution, *where), Select(CancelBacklogMember, *where), Get(CancelBacklog, flow.key)))
    members = view.select(Execution, partition=flow.partition, flow_id=flow.flow_id)
    backlog = view.select(CancelBacklogMember, partition=flow.partition, flow_id=flow.flow_id)
    if flow.public_flow_state in lit.ENDED_FLOW_STATES:
        ids = [row.execution_id for row in backlog] or [member.execution_id for member in members]
        return Decision(
            CancelFlowHeader.AlreadyTerminal(
                _text(raw.get("cancellation_policy")), _text(raw.get("cancel_reason")), tuple(ids)
            )
        )
    now = context.now
    live = [member for member in members if member.lifecycle_phase not in lit.ENDED_PHASES]
    view.require(leftover_needs(live))
    acts: list[Act] = [cancelled_flow(flow, raw, now, command.cancellation_policy, command.reason)]
    if view.get(CancelBacklog, flow.key) is None:
        acts.append(insert(_backlog(flow, now, command.reason, command.cancellation_policy, "pending")))
    known = {row.execution_id for row in backlog}
    events: list[Event] = []
    for member in live:
        if member.execution_id not in known:
            acts.append(insert(CancelBacklogMember(flow.partition, flow.flow_id, member.execution_id)))
        acts.append(cancelled_row(member, now, command.reason, "cancel_flow_header", lit.CANCELLED))
        attempt = current_attempt(view, member)
        if attempt is not None and lease.is_live(attempt):
            acts.append(lease.taken(attempt, outcome=lit.OUTCOME_CANCELLED, terminal_at_ms=now))
        acts += leftovers(view, member, now, "cancelled")
        acts += release.freed(view, context, member, attempt)
        events.append(completion(member, now, lit.ENDED_CANCELLED, dispatched=True))
    ids = [member.execution_id for member in live]
    details = {
        "flow_id": flow.flow_id,
        "cancellation_policy": command.cancellation_policy,
        "reason": command.reason,
        "member_count": len(ids),
    }
    events.append(
        OperatorEvent(
            flow.partition,
            flow.flow_id,
            "flow_cancel_requested",
            dump_document(details),
            now if command.recorded_at_ms is None else command.recorded_at_ms,
            _text(raw.get("namespace")),
            None,
        )
    )
    return Decision(
        CancelFlowHeader.Cancelled(command.cancellation_policy, tuple(ids)),
        tuple(acts),
        tuple(events),
        tuple((member.execution_id, member.attempt_index) for member in live),
    )


class AckCancelMembers(Struct, gc=False):
    """The cancellations of some members are done."""

    partition: int
    flow_id: str
    execution_ids: tuple[str, ...]

    def needs(self) -> tuple[Need, ...]:
        where = (self.partition, self.flow_id)
        return (
            *(Get(CancelBacklogMember, (*where, each)) for each in self.execution_ids),
            Get(CancelBacklog, where),
        )


def ack_cancel_members(command: AckCancelMembers, view: View, context: Context) -> Decision:
    """They leave the backlog; the header goes with the last one. Silent, and safe to repeat."""
    where = (command.partition, command.flow_id)
    done = [view.get(CancelBacklogMember, (*where, each)) for each in command.execution_ids]
    acts: list[Act] = [Drop(row) for row in done if row is not None]
    header = view.get(CancelBacklog, where)
    if header is not None and header.status != CANCELLING:
        # One more than are acknowledged here tells whether somebody is left.
        left = view.first(len(acts) + 1, CancelBacklogMember, partition=where[0], flow_id=where[1])
        if {row.execution_id for row in left} <= set(command.execution_ids):
            acts.append(Drop(header))
    return Decision(None, tuple(acts))


class CancelFlow(Struct, gc=False):
    """Cancel a flow with the members its policy names. Large flows take several steps."""

    partition: int
    flow_id: str
    policy: str
    reason: str = FLOW_CANCELLED

    def needs(self) -> tuple[Need, ...]:
        return (Get(Flow, (self.partition, self.flow_id)),)


class CancelFlowMembers(Struct, gc=False):
    """Go on cancelling the members of a cancelled flow, behind a UUID."""

    partition: int
    flow_id: str
    after: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Flow, (self.partition, self.flow_id)), Get(CancelBacklog, (self.partition, self.flow_id)))


class CancelledMembers(Struct, frozen=True, gc=False):
    """What one step has cancelled; ``after`` is where the next one begins, ``None`` at the end."""

    policy: str
    execution_ids: tuple[str, ...]
    after: str | None


def cancel_flow(command: CancelFlow, view: View, context: Context) -> Decision:
    """Members end as cancelled, each announced; a stale outcome of their attempt is cleared."""
    flow = _flow(view, command.partition, command.flow_id)
    raw = parse_document(flow.raw_fields, "ff_flow_core.raw_fields")
    if flow.public_flow_state == lit.CANCELLED:
        stored = _text(raw.get("cancellation_policy")) or command.policy
        members = view.select(Execution, partition=flow.partition, flow_id=flow.flow_id)
        unfinished = view.get(CancelBacklog, flow.key)
        after = "" if unfinished is not None and unfinished.status == CANCELLING else None
        return Decision(CancelledMembers(stored, tuple(member.execution_id for member in members), after))
    if flow.public_flow_state in lit.ENDED_FLOW_STATES:
        raise State(StateKind.FLOW_ALREADY_TERMINAL, f"flow {flow.flow_id} is {flow.public_flow_state}")
    # The flow is locked from here on, so nobody can join it between this look and the commit.
    found = [] if command.policy == FLOW_ONLY else view.live_members(flow.partition, flow.flow_id, "", CANCEL_STEP)
    decision, answer = _cancelled_members(view, context, command.policy, found)
    acts: tuple[Act, ...] = (cancelled_flow(flow, raw, context.now, command.policy, command.reason),)
    if answer.after is not None:
        unfinished = view.get(CancelBacklog, flow.key)
        if unfinished is None:
            acts += (insert(_backlog(flow, context.now, command.reason, command.policy, CANCELLING)),)
    if command.policy == CANCEL_PENDING:
        groups = view.select(EdgeGroup, partition=flow.partition, flow_id=flow.flow_id)
        acts += tuple(insert(PendingCancelGroup(*each.key, context.now)) for each in groups if each.running_count > 0)
    return Decision(answer, (*acts, *decision.acts), decision.events, decision.wakes)


def cancel_flow_members(command: CancelFlowMembers, view: View, context: Context) -> Decision:
    """The next members; with the last step the record of it goes."""
    flow = _flow(view, command.partition, command.flow_id)
    raw = parse_document(flow.raw_fields, "ff_flow_core.raw_fields")
    stored = _text(raw.get("cancellation_policy")) or FLOW_ONLY
    policy = stored if stored in CANCEL_POLICIES else FLOW_ONLY
    found = view.live_members(flow.partition, flow.flow_id, command.after, CANCEL_STEP)
    decision, answer = _cancelled_members(view, context, policy, found)
    header = view.get(CancelBacklog, flow.key)
    over = answer.after is None and header is not None and header.status == CANCELLING
    acts: tuple[Act, ...] = (Drop(header),) if over and header is not None else ()
    return Decision(answer, (*acts, *decision.acts), decision.events, decision.wakes)


def _cancelled_members(
    view: View, context: Context, policy: str, found: list[Execution]
) -> tuple[Decision, CancelledMembers]:
    after = found[-1].uuid if len(found) >= CANCEL_STEP else None
    chosen = [member for member in found if _is_chosen(member, policy)]
    view.require(leftover_needs(chosen))
    acts: list[Act] = []
    events: list[Event] = []
    for member in chosen:
        acts.append(cancelled_row(member, context.now, FLOW_CANCELLED, "cancel_flow", lit.CANCELLED))
        attempt = current_attempt(view, member)
        if attempt is not None:
            acts.append(
                lease.taken(attempt, outcome=None, terminal_at_ms=context.now)
                if lease.is_live(attempt)
                else change(attempt, outcome=None)
            )
        acts += leftovers(view, member, context.now, "cancelled")
        acts += release.freed(view, context, member, attempt)
        events += lost_lease(context, member, attempt, lit.LEASE_ENDED, lit.BY_OPERATOR)
        events.append(completion(member, context.now, lit.ENDED_CANCELLED, dispatched=True))
    ids = tuple(member.execution_id for member in chosen)
    wakes = tuple((member.execution_id, member.attempt_index) for member in chosen)
    decision = Decision(None, tuple(acts), tuple(events), wakes)
    if policy == CANCEL_PENDING:
        decision = _parents_told(view, context, chosen, decision)
    return decision, CancelledMembers(policy, ids, after)


def _parents_told(view: View, context: Context, ended: list[Execution], decision: Decision) -> Decision:
    """Members that go on although their children were cancelled learn of it, one child after the other. The
    decision's acts are folded here."""
    found = {f"{{fp:{each.partition}}}:{each.parent}" for each in ended if each.parent is not None}
    if not found:
        return decision
    view.require(Get(Execution, each) for each in found)
    view.require(leftover_needs(parent for each in found if (parent := view.execution(each)) is not None))
    view.fold(Decision(None, decision.acts))
    for member in ended:
        view.fold(Decision(None, parents.parent_told(view, context, member, lit.ENDED_CANCELLED)))
    return Decision(None, (), decision.events, decision.wakes)


def _is_chosen(member: Execution, policy: str) -> bool:
    if member.lifecycle_phase in lit.ENDED_PHASES or policy == FLOW_ONLY:
        return False
    return policy == CANCEL_ALL or member.lifecycle_phase in lit.WAITING_PHASES


def _flow(view: View, partition: int, flow_id: str) -> Flow:
    flow = view.get(Flow, (partition, flow_id))
    if flow is None:
        raise NotFound("flow")
    return flow


def _backlog(flow: Flow, now: int, reason: str, policy: str, status: str) -> CancelBacklog:
    return CancelBacklog(
        flow.partition, flow.flow_id, now, "", reason, saturate(now + BACKLOG_GRACE_MS), policy, status
    )


def cancelled_flow(flow: Flow, raw: dict[str, object], now: int, policy: str, reason: str) -> Change:
    """The flow takes no more members, and says why."""
    raw = {**raw, "cancellation_policy": policy, "cancel_reason": reason, "last_mutation_at_ms": now}
    return change(
        flow,
        public_flow_state=lit.CANCELLED,
        terminal_at_ms=now if flow.terminal_at_ms is None else flow.terminal_at_ms,
        raw_fields=dump_document(raw),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
