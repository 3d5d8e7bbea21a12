"""An operator's acts on one execution: revoke its lease, move it in the queue, run it again."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from flowfabric.core.admission import release
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.documents import dump_document, parse_document
from flowfabric.core.executions.create import clamp_priority
from flowfabric.core.executions.terminal import current_attempt, lost_lease
from flowfabric.core.flows.reconcile import SettleDependencies
from flowfabric.core.leases import lease
from flowfabric.core.suspension.waits import last_sequence
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Change, Decision, Drop, Get, GetFull, Need, Select, change
from flowfabric.model.errors import Contention, ContentionKind, NotFound, State, StateKind
from flowfabric.model.events import OperatorEvent
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import AlreadySatisfied, PriorityChanged, Replayed, Revoked
from flowfabric.model.operations.flows import EdgeState, GroupState
from flowfabric.model.policy import read_policy
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.flows import Edge, EdgeGroup, FlowCounts
from flowfabric.model.records.past_leases import LeaseEnd
from flowfabric.model.states import PublicState


class RevokeLease(Struct, gc=False):
    """Take the lease away from its holder; the work goes back to the queue."""

    execution_id: str
    expected_lease_id: str | None
    worker_instance_id: str
    reason: str
    #: The id inside the handle, if it is the holder who gives its lease back.
    lease_id: str | None = None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def revoke_lease(command: RevokeLease, view: View, context: Context) -> Decision:
    """The lease ends and its epoch rises; an execution that was running is runnable again."""
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    attempt = current_attempt(view, execution)
    if attempt is None or not lease.is_live(attempt):
        return Decision(AlreadySatisfied("no_active_lease"))
    if command.worker_instance_id and command.worker_instance_id != attempt.worker_instance_id:
        return Decision(AlreadySatisfied("different_worker_instance_id"))
    shown = lease.shown_lease_id(context, execution.uuid, attempt.attempt_index, attempt.lease_epoch)
    if command.expected_lease_id and command.expected_lease_id != shown:
        return Decision(AlreadySatisfied("lease_id_mismatch"))
    if command.lease_id is not None and lease.is_lost(attempt, command.lease_id):
        return Decision(AlreadySatisfied("lease_id_mismatch"))
    acts: list[Act] = [
        lease.taken(attempt),
        *lease.parted(attempt, LeaseEnd.REVOKED, context.now, command.reason),
        *release.lapsed(view, context, execution, attempt),
    ]
    fields: dict[str, object] = {"lease_revoke_reason": command.reason, "last_mutation_at_ms": context.now}
    if execution.lifecycle_phase == lit.ACTIVE:
        fields |= {
            "lifecycle_phase": lit.RUNNABLE,
            "ownership_state": lit.UNOWNED,
            "eligibility_state": lit.ELIGIBLE_NOW,
            "public_state": lit.PUBLIC_WAITING,
            "attempt_state": lit.ATTEMPT_INTERRUPTED,
            "blocking_reason": lit.WAITING_FOR_WORKER,
        }
    acts.append(change(execution, **fields))
    return Decision(
        Revoked(shown, str(attempt.lease_epoch + 1)),
        tuple(acts),
        lost_lease(context, execution, attempt, lit.LEASE_ENDED, lit.BY_OPERATOR),
        ((execution.execution_id, attempt.attempt_index),),
    )


class ChangePriority(Struct, gc=False):
    """Move a waiting execution in its lane's order."""

    execution_id: str
    new_priority: int
    recorded_at_ms: int | None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def change_priority(command: ChangePriority, view: View, context: Context) -> Decision:
    """Only an execution that waits in the queue can move in it. A fresh one cannot yet: a worker may be about to take
    it."""
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    age_ms = context.now - execution.created_at_ms
    is_fresh = execution.lifecycle_phase == lit.SUBMITTED and age_ms < context.intake_ms
    if is_fresh or not lit.is_claimable(execution.lifecycle_phase, execution.eligibility_state):
        raise Contention(ContentionKind.EXECUTION_NOT_ELIGIBLE, f"execution {execution.execution_id}")
    priority = clamp_priority(command.new_priority)
    details = {"old_priority": execution.priority, "new_priority": priority}
    fields: dict[str, object] = {"priority": priority, "last_mutation_at_ms": context.now}
    if execution.lifecycle_phase == lit.SUBMITTED:
        fields["lifecycle_phase"] = lit.RUNNABLE
    return Decision(
        PriorityChanged(ExecutionId.unchecked(execution.execution_id)),
        (change(execution, **fields),),
        (operator_event(context, execution, "priority_changed", details, command.recorded_at_ms),),
    )


class ReplayExecution(Struct, gc=False):
    """Run an ended execution again. With ``states``, only if it has ended in one of them."""

    execution_id: str
    recorded_at_ms: int | None
    states: frozenset[str] = frozenset()

    def needs(self) -> tuple[Need, ...]:
        identity = ExecutionId.unchecked(self.execution_id)
        # Attempts by themselves, because only so do they tell who held them last.
        attempts = Select(Attempt, ("partition", "uuid"), (identity.partition, identity.uuid_text))
        return (GetFull(self.execution_id), Get(Execution, self.execution_id), attempts)


def replay_execution(command: ReplayExecution, view: View, context: Context) -> Decision:
    """The same attempt row starts over under the next epoch; a skipped member waits for its parents again."""
    execution = view.full(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    if execution.lifecycle_phase != lit.TERMINAL:
        raise State(StateKind.EXECUTION_NOT_TERMINAL, f"execution {execution.execution_id}")
    if command.states and execution.public_state not in command.states:
        raise State(StateKind.REPLAY_NOT_ALLOWED, f"execution {execution.execution_id} is {execution.public_state}")
    fields = parse_document(execution.raw_fields, "raw_fields")
    replays = fields.get("replay_count", 0)
    replays = int(replays) if isinstance(replays, int | float | str) and str(replays).isdigit() else 0
    if replays >= read_policy(execution.policy).max_replay_count:
        raise State(StateKind.MAX_REPLAYS_EXHAUSTED, f"execution {execution.execution_id}")
    fields["replay_count"] = replays + 1
    attempt = current_attempt(view, execution)
    acts: list[Act] = []
    details: dict[str, object] = {"branch": "normal"}
    skipped = _is_skipped_member(execution, attempt)
    if skipped:
        groups = _reset_groups(view, execution)
        acts += groups
        resets = sum(isinstance(each.record, EdgeGroup) for each in groups)
        details = {"branch": "skipped_flow_member", "groups_reset": resets}
    if execution.flow_id is not None:
        # The flow goes on: what was counted as its end is not.
        counts = view.get(FlowCounts, (execution.partition, execution.flow_id))
        if counts is not None:
            acts.append(Drop(counts))
    if attempt is not None:
        acts += lease.ended_before(attempt)
        acts.append(lease.taken(attempt, worker_id=None, outcome=None, terminal_at_ms=None, retry_at_ms=None))
    acts.append(_started_over(execution, context.now, dump_document(fields), skipped))
    return Decision(
        Replayed(PublicState.WAITING_CHILDREN if skipped else PublicState.WAITING),
        tuple(acts),
        (operator_event(context, execution, "replayed", details, command.recorded_at_ms),),
        # Parents that have succeeded meanwhile count at once. Those that have not get a moment to be replayed too: the
        # dependency reconciler is the one that counts them again.
        then=(SettleDependencies(execution.execution_id, only_success=True),) if skipped else (),
    )


def _is_skipped_member(execution: Execution, attempt: Attempt | None) -> bool:
    if execution.flow_id is None:
        return False
    if attempt is not None and attempt.outcome == lit.OUTCOME_SKIPPED:
        return True
    return lit.ENDED_SKIPPED in (execution.public_state, execution.terminal_outcome)


def _reset_groups(view: View, execution: Execution) -> list[Change]:
    """Counters of the groups into this member go back to zero, successes stay, and edges that were no success are open
    again; groups without an edge are left."""
    where = {"partition": execution.partition, "flow_id": execution.flow_id, "downstream": execution.uuid}
    incoming = view.select(Edge, **where)
    if not incoming:
        return []
    applied = sum(edge.edge_state != EdgeState.PENDING for edge in incoming)
    groups = [
        change(
            group,
            fail_count=0,
            skip_count=0,
            running_count=0,
            applied_count=applied,
            group_state=str(GroupState.PENDING),
            satisfied_at_ms=None,
        )
        for group in view.select(EdgeGroup, **where)
    ]
    return groups + [
        change(edge, edge_state=str(EdgeState.APPLIED), resolved_at_ms=None)
        for edge in incoming
        if edge.edge_state == EdgeState.IMPOSSIBLE
    ]


def _started_over(execution: Execution, now: int, raw_fields: str, skipped: bool) -> Act:
    return change(
        execution,
        lifecycle_phase=lit.RUNNABLE,
        ownership_state=lit.UNOWNED,
        eligibility_state=lit.BLOCKED_BY_DEPENDENCIES if skipped else lit.ELIGIBLE_NOW,
        public_state=lit.PUBLIC_WAITING_CHILDREN if skipped else lit.PUBLIC_WAITING,
        attempt_state=lit.PENDING_REPLAY_ATTEMPT,
        blocking_reason=lit.WAITING_FOR_CHILDREN if skipped else lit.WAITING_FOR_WORKER,
        terminal_at_ms=None,
        result=None,
        cancellation_reason=None,
        cancelled_by=None,
        terminal_outcome=lit.ENDED_NONE,
        retry_count=0,
        delay_until_ms=None,
        lease_reclaim_count=0,
        signal_count=None,
        earlier_signals=last_sequence(execution) or None,
        purge_at_ms=None,
        raw_fields=raw_fields,
        last_mutation_at_ms=now,
        # A request to cancel is over with the end, and so is the time that it gave.
        **({} if execution.cancel_at_ms is None else {"cancel_at_ms": None, "deadline_at_ms": None}),
    )


def operator_event(
    context: Context, execution: Execution, event_type: str, details: Mapping[str, object], recorded_at_ms: int | None
) -> OperatorEvent:
    """One line of the operators' history."""
    return OperatorEvent(
        execution.partition,
        execution.uuid,
        event_type,
        dump_document(dict(details)),
        context.now if recorded_at_ms is None else recorded_at_ms,
        execution.namespace,
        execution.instance_tag,
    )
