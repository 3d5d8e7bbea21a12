"""Taking over by name: a reclaim grant lets one worker continue an execution whose holder is gone."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.admission import release
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.end import concluded
from flowfabric.core.executions.terminal import ended, lost_lease
from flowfabric.core.lanes.lane_state import withholds
from flowfabric.core.leases import lease
from flowfabric.core.leases.grants import Terms, issue, live_grant, missing_capabilities, stale_grants
from flowfabric.core.suspension.signing import CURRENT_KEY
from flowfabric.core.suspension.waits import NEVER_COMMITTED, waits_dropped
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, Drop, Get, Need, Select
from flowfabric.model.errors import NotFound, State, StateKind, Validation, ValidationKind
from flowfabric.model.events import Event
from flowfabric.model.handles import HandleKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import (
    Granted,
    GrantNotFound,
    NotReclaimable,
    ReclaimCapExceeded,
    Reclaimed,
    ReclaimGrant,
)
from flowfabric.model.policy import read_policy
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import Attempt, Execution, Grant

#: The cap for executions whose policy names none and callers that name none either.
DEFAULT_RECLAIM_CAP = 1000
CAP_REASON = "max_reclaims_exceeded"


def reclaim_cap(execution: Execution, asked: int | None) -> int:
    """The execution's own policy goes before the caller's wish."""
    own = read_policy(execution.policy).max_reclaim_count
    if own is not None:
        return own
    return DEFAULT_RECLAIM_CAP if asked is None else asked


def reclaim_count(execution: Execution) -> int:
    """How often the execution was taken over; negative stored counts are treated as none."""
    return max(execution.lease_reclaim_count, 0)


def is_reclaimable(execution: Execution, attempt: Attempt | None, now: int) -> bool:
    """Running, and its lease marked as lost or past its time."""
    if execution.lifecycle_phase != lit.ACTIVE:
        return False
    if execution.ownership_state in lit.RECLAIMABLE_STATES:
        return True
    return attempt is not None and attempt.lease_expires_at_ms is not None and attempt.lease_expires_at_ms <= now


def _standing(execution: Execution) -> str:
    return (
        f"lifecycle_phase={execution.lifecycle_phase} ownership_state={execution.ownership_state}: only a running "
        "execution whose lease is lost can be reclaimed"
    )


class IssueReclaimGrant(Terms, gc=False):
    """A scheduler lets one worker take an abandoned execution over."""

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id), CURRENT_KEY)


def issue_reclaim_grant(command: IssueReclaimGrant, view: View, context: Context) -> Decision:
    """A stored reclaim grant, or why there can be none."""
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    shown = ExecutionId.unchecked(execution.execution_id)
    attempt = view.attempt(execution.execution_id, execution.attempt_index)
    if not is_reclaimable(execution, attempt, context.now):
        return Decision(NotReclaimable(shown, _standing(execution)))
    count = reclaim_count(execution)
    if count >= reclaim_cap(execution, None):
        return Decision(ReclaimCapExceeded(shown, count))
    if live_grant(view, execution, lit.GRANT_RECLAIM, context.now) is not None:
        raise State(StateKind.GRANT_ALREADY_EXISTS, f"execution {execution.execution_id}")
    if withholds(view, execution.lane_id):
        return Decision(NotReclaimable(shown, f"lane_paused: lane {execution.lane_id} grants no work"))
    lacking = missing_capabilities(execution, command.worker_capabilities)
    if lacking:
        return Decision(NotReclaimable(shown, f"capability_mismatch: {lacking}"))
    (grant_key, expires), acts = issue(view, context, execution, command, lit.GRANT_RECLAIM)
    tag = f"{{fp:{execution.partition}}}"
    grant = ReclaimGrant(shown, tag, grant_key, expires, command.lane_id or execution.lane_id)
    drops = tuple(Drop(stale) for stale in stale_grants(view, execution, context.now, lit.GRANT_RECLAIM))
    return Decision(Granted(grant), (*drops, *acts))


class ReclaimExecution(Struct, gc=False):
    """A worker uses its reclaim grant."""

    execution_id: str
    partition: int
    uuid: str
    worker_id: str
    worker_instance_id: str
    lane_id: str
    lease_id: str
    lease_ttl_ms: int
    attempt_id: str
    attempt_policy_json: str
    max_reclaim_count: int | None

    def needs(self) -> tuple[Need, ...]:
        return (
            Get(Execution, self.execution_id),
            Select(Grant, ("partition", "uuid"), (self.partition, self.uuid)),
        )


def reclaim_execution(command: ReclaimExecution, view: View, context: Context) -> Decision:
    """The execution goes on under a new attempt, or ends because it has been taken over too often."""
    shown = ExecutionId.unchecked(command.execution_id)
    grants = [
        each
        for each in view.select(Grant, partition=command.partition, uuid=command.uuid)
        if each.kind == lit.GRANT_RECLAIM
    ]
    grant = max(grants, key=lambda each: (each.issued_at_ms, each.expires_at_ms), default=None)
    if grant is None:
        return Decision(GrantNotFound(shown))
    if grant.worker_id != command.worker_id:
        raise Validation(
            ValidationKind.INVALID_INPUT,
            f"reclaim_execution: the grant belongs to worker {quoted(grant.worker_id)}, "
            f"not {quoted(command.worker_id)}",
        )
    if grant.expires_at_ms <= context.now:
        return Decision(GrantNotFound(shown), (Drop(grant),))
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    attempt = view.attempt(execution.execution_id, execution.attempt_index)
    if not is_reclaimable(execution, attempt, context.now):
        return Decision(NotReclaimable(shown, _standing(execution)))
    count = reclaim_count(execution)
    if count >= reclaim_cap(execution, command.max_reclaim_count):
        events = lost_lease(context, execution, attempt, lit.LEASE_ENDED, lit.BY_RECONCILER)
        return capped(view, context, execution, attempt, ReclaimCapExceeded(shown, count), events, Drop(grant))
    return _taken_over(command, view, context, execution, attempt, grant)


def _taken_over(
    command: ReclaimExecution, view: View, context: Context, execution: Execution, attempt: Attempt | None, grant: Grant
) -> Decision:
    acts: list[Act] = [Drop(grant), *release.lapsed(view, context, execution, attempt)]
    if attempt is not None:
        acts.append(lease.closed(attempt, outcome=lit.OUTCOME_RECLAIMED, terminal_at_ms=context.now))
    granted = lease.grant(
        context,
        lease.raise_floor(execution, attempt),
        None,
        lease.Granting(
            command.worker_id,
            command.worker_instance_id,
            command.lease_ttl_ms,
            command.lease_id,
            command.attempt_id,
            HandleKind.RECLAIMED,
            event_type=lit.LEASE_RECLAIMED,
            lane_id=command.lane_id,
            attempt_policy=command.attempt_policy_json or None,
        ),
        lit.TYPE_RECLAIM,
        attempt_index=execution.attempt_index + 1,
        lease_reclaim_count=reclaim_count(execution) + 1,
    )
    return Decision(
        Reclaimed(granted.handle),
        (*acts, *granted.acts),
        granted.events,
        ((execution.execution_id, execution.attempt_index),),
    )


def capped(
    view: View,
    context: Context,
    execution: Execution,
    attempt: Attempt | None,
    answer: object,
    events: tuple[Event, ...],
    *also: Act,
) -> Decision:
    """The end of an execution that was taken over as often as it may be."""
    acts: list[Act] = [
        *also,
        ended(
            execution,
            context.now,
            lit.PUBLIC_FAILED,
            lit.ENDED_FAILED,
            failure_reason=CAP_REASON,
            last_failure_message=CAP_REASON,
        ),
    ]
    if attempt is not None:
        acts.append(lease.taken(attempt, outcome=lit.OUTCOME_RECLAIMED, terminal_at_ms=context.now))
    acts += waits_dropped(view, execution, context.now, NEVER_COMMITTED)
    stream = ((execution.execution_id, attempt.attempt_index),) if attempt is not None else ()
    decision = Decision(answer, tuple(acts), events, stream)
    return concluded(view, context, decision, execution, attempt, lit.ENDED_FAILED)
