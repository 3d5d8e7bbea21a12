"""Cancelling a flow: the header with its backlog, acknowledgements, and the members."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core import holdings, lease
from flowfabric.core.context import Context, saturate
from flowfabric.core.documents import dump_document, parse_document
from flowfabric.core.ending import cancelled_row, completion, current_attempt, leftovers, lost_lease
from flowfabric.core.view import View
from flowfabric.model import literals as lit
from flowfabric.model.changes import Act, Change, Decision, Drop, Get, Need, Select, change, insert
from flowfabric.model.errors import NotFound, State, StateKind
from flowfabric.model.events import Event, OperatorEvent
from flowfabric.model.records import CancelBacklog, CancelBacklogMember, Execution, Flow
from flowfabric.model.results import CancelFlowHeader, CancelFlowResult

#: How long the caller of the header may take to cancel members before the reconciler steps in.
BACKLOG_GRACE_MS = 30_000
FLOW_ONLY = "flow_only"
CANCEL_ALL = "cancel_all"
CANCEL_PENDING = "cancel_pending"
CANCEL_POLICIES = (FLOW_ONLY, CANCEL_ALL, CANCEL_PENDING)


class CancelFlowHeaderCommand(Struct, gc=False):
    """Cancel a flow and flip its members; the caller then acknowledges them one by one."""

    partition: int
    flow_id: str
    reason: str
    cancellation_policy: str
    recorded_at_ms: int | None

    def needs(self) -> tuple[Need, ...]:
        return _flow_needs(self.partition, self.flow_id)


def cancel_flow_header(command: CancelFlowHeaderCommand, view: View, context: Context) -> Decision:
    """Flow cancelled, backlog written, members cancelled and fenced off, one event for all of it."""
    flow = _flow(view, command.partition, command.flow_id)
    raw = parse_document(flow.raw_fields, "ff_flow_core.raw_fields")
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
    acts: list[Act] = [_cancelled_flow(flow, raw, now, command.cancellation_policy, command.reason)]
    if view.get(CancelBacklog, flow.key) is None:
        acts.append(
            insert(
                CancelBacklog(
                    flow.partition,
                    flow.flow_id,
                    now,
                    "",
                    command.reason,
                    saturate(now + BACKLOG_GRACE_MS),
                    command.cancellation_policy,
                    "pending",
                )
            )
        )
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
        acts += holdings.freed(view, context, member, attempt)
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


class AckCancelMember(Struct, gc=False):
    """A member's cancellation is done."""

    partition: int
    flow_id: str
    execution_id: str

    def needs(self) -> tuple[Need, ...]:
        return (
            Select(CancelBacklogMember, ("partition", "flow_id"), (self.partition, self.flow_id)),
            Get(CancelBacklog, (self.partition, self.flow_id)),
        )


def ack_cancel_member(command: AckCancelMember, view: View, context: Context) -> Decision:
    """The member leaves the backlog; the header goes with the last one. Silent, and safe to repeat."""
    rows = view.select(CancelBacklogMember, partition=command.partition, flow_id=command.flow_id)
    acts: list[Act] = [Drop(row) for row in rows if row.execution_id == command.execution_id]
    if len(acts) == len(rows):
        header = view.get(CancelBacklog, (command.partition, command.flow_id))
        if header is not None:
            acts.append(Drop(header))
    return Decision(None, tuple(acts))


class CancelFlow(Struct, gc=False):
    """Cancel a flow with the members its policy names, in one step."""

    partition: int
    flow_id: str
    policy: str

    def needs(self) -> tuple[Need, ...]:
        return _flow_needs(self.partition, self.flow_id)


def cancel_flow(command: CancelFlow, view: View, context: Context) -> Decision:
    """Members end as cancelled, each announced; a stale outcome of their attempt is cleared."""
    flow = _flow(view, command.partition, command.flow_id)
    raw = parse_document(flow.raw_fields, "ff_flow_core.raw_fields")
    members = view.select(Execution, partition=flow.partition, flow_id=flow.flow_id)
    if flow.public_flow_state == lit.CANCELLED:
        stored = _text(raw.get("cancellation_policy")) or command.policy
        return Decision(CancelFlowResult.Cancelled(stored, tuple(member.execution_id for member in members)))
    if flow.public_flow_state in lit.ENDED_FLOW_STATES:
        raise State(StateKind.FLOW_ALREADY_TERMINAL, f"flow {flow.flow_id} is {flow.public_flow_state}")
    chosen = [member for member in members if _is_chosen(member, command.policy)]
    acts: list[Act] = [_cancelled_flow(flow, raw, context.now, command.policy, "flow_cancelled")]
    events: list[Event] = []
    for member in chosen:
        acts.append(cancelled_row(member, context.now, "flow_cancelled", "cancel_flow", lit.CANCELLED))
        attempt = current_attempt(view, member)
        if attempt is not None:
            acts.append(
                lease.taken(attempt, outcome=None, terminal_at_ms=context.now)
                if lease.is_live(attempt)
                else change(attempt, outcome=None)
            )
        acts += leftovers(view, member, context.now, "cancelled")
        acts += holdings.freed(view, context, member, attempt)
        events += lost_lease(context, member, attempt, lit.LEASE_ENDED, lit.BY_OPERATOR)
        events.append(completion(member, context.now, lit.ENDED_CANCELLED, dispatched=True))
    ids = tuple(member.execution_id for member in chosen)
    wakes = tuple((member.execution_id, member.attempt_index) for member in chosen)
    return Decision(CancelFlowResult.Cancelled(command.policy, ids), tuple(acts), tuple(events), wakes)


def _is_chosen(member: Execution, policy: str) -> bool:
    if member.lifecycle_phase in lit.ENDED_PHASES or policy == FLOW_ONLY:
        return False
    return policy == CANCEL_ALL or member.lifecycle_phase in lit.WAITING_PHASES


def _flow(view: View, partition: int, flow_id: str) -> Flow:
    flow = view.get(Flow, (partition, flow_id))
    if flow is None:
        raise NotFound("flow")
    return flow


def _flow_needs(partition: int, flow_id: str) -> tuple[Need, ...]:
    where = (("partition", "flow_id"), (partition, flow_id))
    return (
        Get(Flow, (partition, flow_id)),
        Select(Execution, *where),
        Select(CancelBacklogMember, *where),
        Get(CancelBacklog, (partition, flow_id)),
    )


def _cancelled_flow(flow: Flow, raw: dict[str, object], now: int, policy: str, reason: str) -> Change:
    raw = {**raw, "cancellation_policy": policy, "cancel_reason": reason, "last_mutation_at_ms": now}
    return change(
        flow,
        public_flow_state=lit.CANCELLED,
        terminal_at_ms=now if flow.terminal_at_ms is None else flow.terminal_at_ms,
        raw_fields=dump_document(raw),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
