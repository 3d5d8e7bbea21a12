"""Executions that fall due: intake, delays, leases, attempt timeouts, deadlines.

Each command looks at one execution again under lock and does nothing if it is not due, so any number of processes may
run the same timer. Whatever falls due is due when its time has come: ``due <= now``.
"""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.admission import release
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.cancel import cancelled
from flowfabric.core.executions.end import concluded
from flowfabric.core.executions.terminal import current_attempt, ended, leftovers, lost_lease
from flowfabric.core.flows.edges import waits_for_members
from flowfabric.core.leases import lease
from flowfabric.core.leases.reclaim import capped, reclaim_cap, reclaim_count
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, Get, Need, change
from flowfabric.model.events import Event
from flowfabric.model.ids import CancelSource
from flowfabric.model.operations.executions import ExpiryMark
from flowfabric.model.policy import read_policy
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.past_leases import LeaseEnd

ATTEMPT_TIMEOUT = "attempt_timeout"
EXECUTION_DEADLINE = "execution_deadline"


class _OneExecution(Struct, gc=False):
    execution_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


class PromoteSubmitted(_OneExecution, gc=False):
    """Move a fresh execution to phase ``runnable``. Nothing waits for it: claims take fresh work as it is."""


def promote_submitted(command: PromoteSubmitted, view: View, context: Context) -> Decision:
    """Runnable, or blocked if a member of a flow still waits for others."""
    execution = view.execution(command.execution_id)
    if execution is None or execution.lifecycle_phase != lit.SUBMITTED:
        return Decision(False)
    fields: dict[str, object] = {"lifecycle_phase": lit.RUNNABLE, "last_mutation_at_ms": context.now}
    if waits_for_members(view, execution):
        fields |= {
            "eligibility_state": lit.BLOCKED_BY_DEPENDENCIES,
            "blocking_reason": lit.WAITING_FOR_CHILDREN,
            "public_state": lit.PUBLIC_WAITING_CHILDREN,
        }
    return Decision(True, (change(execution, **fields),))


class PromoteDelayed(_OneExecution, gc=False):
    """Make a delayed execution claimable when its time has come."""


def promote_delayed(command: PromoteDelayed, view: View, context: Context) -> Decision:
    """Eligible now. The attempt state stays: it says whether this is a first attempt, a retry or a continuation."""
    execution = view.execution(command.execution_id)
    if (
        execution is None
        or execution.lifecycle_phase not in lit.WAITING_PHASES
        or execution.eligibility_state != lit.NOT_ELIGIBLE_UNTIL_TIME
        or (execution.delay_until_ms is not None and execution.delay_until_ms > context.now)
    ):
        return Decision(False)
    resumed = execution.blocking_reason == lit.WAITING_FOR_RESUME_DELAY
    promoted = change(
        execution,
        lifecycle_phase=lit.RUNNABLE,
        eligibility_state=lit.ELIGIBLE_NOW,
        public_state=lit.PUBLIC_RESUMABLE if resumed else lit.PUBLIC_WAITING,
        blocking_reason=lit.WAITING_FOR_WORKER,
        delay_until_ms=None,
        last_mutation_at_ms=context.now,
    )
    return Decision(True, (promoted,))


class MarkLeaseExpired(_OneExecution, gc=False):
    """Look at a lease that should have run out."""


def mark_lease_expired(command: MarkLeaseExpired, view: View, context: Context) -> Decision:
    """First the lease is marked as lost, then, after the grace, the work goes back to the queue."""
    execution = view.execution(command.execution_id)
    if execution is None:
        return Decision(ExpiryMark("execution_not_found"))
    attempt = current_attempt(view, execution)
    if execution.lifecycle_phase != lit.ACTIVE:
        return _clear_stale_lease(attempt)
    if execution.ownership_state == lit.LEASE_REVOKED:
        return Decision(ExpiryMark("already_revoked"))
    if execution.ownership_state in lit.UNOWNED_STATES:
        return Decision(ExpiryMark("unowned"))
    if attempt is None or attempt.lease_expires_at_ms is None or attempt.lease_expires_at_ms > context.now:
        return Decision(ExpiryMark("not_yet_expired"))
    marked = execution.ownership_state == lit.LEASE_EXPIRED_RECLAIMABLE
    due = attempt.lease_expires_at_ms + context.reclaim_grace_ms <= context.now
    if marked and not due:
        return Decision(ExpiryMark("already_expired"))
    events = _expiry(context, execution, attempt)
    stream = ((execution.execution_id, attempt.attempt_index),)
    if not due:
        return Decision(ExpiryMark("marked"), (_marked(execution, context.now),), events, stream)
    if reclaim_count(execution) >= reclaim_cap(execution, None):
        return capped(view, context, execution, attempt, ExpiryMark("failed"), events)
    requeued = change(
        execution,
        lifecycle_phase=lit.RUNNABLE,
        ownership_state=lit.UNOWNED,
        eligibility_state=lit.ELIGIBLE_NOW,
        public_state=lit.PUBLIC_WAITING,
        attempt_state=lit.ATTEMPT_INTERRUPTED,
        blocking_reason=lit.WAITING_FOR_WORKER,
        lease_reclaim_count=reclaim_count(execution) + 1,
        lease_expired_at_ms=context.now,
        last_mutation_at_ms=context.now,
    )
    acts = (
        requeued,
        lease.taken(attempt, outcome=lit.OUTCOME_LEASE_EXPIRED),
        *lease.parted(attempt, LeaseEnd.EXPIRED, context.now),
        *release.lapsed(view, context, execution, attempt),
    )
    return Decision(ExpiryMark("requeued"), acts, events, stream)


def _expiry(context: Context, execution: Execution, attempt: Attempt | None) -> tuple[Event, ...]:
    """The announcement that a lease has expired: once, so not again for one that was marked as lost."""
    if execution.ownership_state == lit.LEASE_EXPIRED_RECLAIMABLE:
        return ()
    return lost_lease(context, execution, attempt, lit.LEASE_EXPIRED, lit.BY_RECONCILER)


def _marked(execution: Execution, now: int) -> Act:
    return change(
        execution,
        ownership_state=lit.LEASE_EXPIRED_RECLAIMABLE,
        attempt_state=lit.ATTEMPT_INTERRUPTED,
        blocking_reason=lit.WAITING_FOR_WORKER,
        lease_expired_at_ms=now,
        last_mutation_at_ms=now,
    )


def _clear_stale_lease(attempt: Attempt | None) -> Decision:
    """A lease left on an execution that does not run is just cleared."""
    if attempt is None or not (lease.is_live(attempt) or attempt.lease_expires_at_ms is not None):
        return Decision(ExpiryMark("not_active"))
    return Decision(ExpiryMark("cleared"), (lease.closed(attempt),))


class ExpireExecution(Struct, gc=False):
    """Look at an attempt timeout or an execution deadline that should have passed."""

    execution_id: str
    cause: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def expire_execution(command: ExpireExecution, view: View, context: Context) -> Decision:
    """An attempt out of time is retried while its policy allows; an execution past its deadline ends, as cancelled if
    it was asked to cancel."""
    execution = view.execution(command.execution_id)
    if execution is None or execution.lifecycle_phase in lit.ENDED_PHASES:
        return Decision(False)
    attempt = current_attempt(view, execution)
    if command.cause == EXECUTION_DEADLINE:
        if execution.deadline_at_ms is None or execution.deadline_at_ms > context.now:
            return Decision(False)
        if execution.cancel_at_ms is not None:
            return _cancelled(view, context, execution.execution_id, attempt)
        return _expired(view, context, execution, attempt, EXECUTION_DEADLINE)
    if (
        execution.lifecycle_phase != lit.ACTIVE
        or attempt is None
        or attempt.attempt_timeout_at_ms is None
        or attempt.attempt_timeout_at_ms > context.now
    ):
        return Decision(False)
    policy = read_policy(execution.policy).retry_policy
    if policy is None or execution.retry_count >= policy.max_retries:
        return _expired(view, context, execution, attempt, ATTEMPT_TIMEOUT)
    return _timed_out(view, context, execution, attempt)


def _cancelled(view: View, context: Context, execution_id: str, attempt: Attempt | None) -> Decision:
    """An execution that was asked to cancel has had its time: it ends for the reason it was asked for."""
    execution = view.full(execution_id)
    assert execution is not None
    by = CancelSource.SYSTEM_TIMEOUT
    return cancelled(view, context, execution, attempt, True, reason="", by=by, revoked_by=lit.BY_RECONCILER)


def _timed_out(view: View, context: Context, execution: Execution, attempt: Attempt) -> Decision:
    """The attempt ends as expired; the next one is due at once."""
    retried = change(
        lease.raise_floor(execution, attempt),
        lifecycle_phase=lit.RUNNABLE,
        ownership_state=lit.UNOWNED,
        eligibility_state=lit.ELIGIBLE_NOW,
        public_state=lit.PUBLIC_WAITING,
        attempt_state=lit.PENDING_RETRY_ATTEMPT,
        blocking_reason=lit.WAITING_FOR_WORKER,
        attempt_index=execution.attempt_index + 1,
        retry_count=execution.retry_count + 1,
        last_failure_message=ATTEMPT_TIMEOUT,
        pending_retry_reason=ATTEMPT_TIMEOUT,
        pending_previous_attempt_index=execution.attempt_index,
        last_mutation_at_ms=context.now,
    )
    retried.record.epoch_floor += 1  # type: ignore[union-attr]
    closed = lease.taken(attempt, outcome=lit.OUTCOME_EXPIRED, terminal_at_ms=context.now)
    return Decision(
        True,
        (retried, closed, *release.lapsed(view, context, execution, attempt)),
        _expiry(context, execution, attempt),
        ((execution.execution_id, attempt.attempt_index),),
    )


def _expired(view: View, context: Context, execution: Execution, attempt: Attempt | None, cause: str) -> Decision:
    acts: list[Act] = [
        ended(
            execution,
            context.now,
            lit.PUBLIC_EXPIRED,
            lit.ENDED_EXPIRED,
            failure_reason=cause,
            last_failure_message=cause,
        )
    ]
    if attempt is not None:
        close = lease.taken if lease.is_live(attempt) else lease.closed
        acts.append(close(attempt, outcome=lit.OUTCOME_EXPIRED, terminal_at_ms=context.now))
    acts += leftovers(view, execution, context.now, "expired")
    decision = Decision(
        True,
        tuple(acts),
        _expiry(context, execution, attempt),
        ((execution.execution_id, execution.attempt_index),) if attempt is not None else (),
    )
    return concluded(view, context, decision, execution, attempt, lit.ENDED_EXPIRED)
