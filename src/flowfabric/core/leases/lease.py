"""Leases: the one gate every holder passes, how a lease begins, and how it ends.

Epoch and lease id are the authority. The epoch rises with every grant and whenever a lease is taken away, so a handle
that has been passed over can never match again. The lease id is new with every grant: a store that loses acknowledged
writes in a fail-over loses its counters with them and grants an epoch twice, but never the same lease.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import UNSET, Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Change, Drop, change, insert
from flowfabric.model.errors import (
    Contention,
    ContentionKind,
    EngineError,
    NotFound,
    State,
    StateKind,
    Validation,
)
from flowfabric.model.events import Event, LeaseEvent
from flowfabric.model.handles import Handle, HandleKind, HandlePayload
from flowfabric.model.limits import MAX_LEASES_SHOWN
from flowfabric.model.policy import read_policy
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.past_leases import LeaseEnd, PastLease
from flowfabric.model.states import derive_terminal_outcome

#: What a caller is told whose epoch fits while its lease id does not.
LOST = "this lease was lost: the store no longer has it and granted its epoch to another worker"


def shown_lease_id(context: Context, uuid: str, attempt_index: int, lease_epoch: int) -> str:
    """The lease id that people and events see; the one inside a handle stays there."""
    return f"{context.store}:{uuid}:{attempt_index}:{lease_epoch}"


def is_live(attempt: Attempt | None) -> bool:
    """Whether a lease stands on the attempt, expired or not: a worker's name is on it."""
    return attempt is not None and bool(attempt.worker_instance_id)


def is_lost(attempt: Attempt, lease_id: str | None) -> bool:
    """Whether another lease than this one was the attempt's last, whatever their epochs say. Attempts that people wrote
    have no lease id; of those the epoch alone decides."""
    return bool(attempt.lease_id) and attempt.lease_id != lease_id


def not_active(execution: Execution, attempt: Attempt | None, *, lost: bool = False) -> Contention:
    """The error for a call that needs a running execution, with what a caller needs to reconcile a lost reply. A caller
    whose lease is lost has none to reconcile: epoch and attempt could only make it take another's end for its own."""
    outcome = derive_terminal_outcome(
        execution.lifecycle_phase, attempt.outcome if attempt else None, None, execution.public_state
    )
    own = None if lost else attempt
    return Contention(
        ContentionKind.EXECUTION_NOT_ACTIVE,
        f"execution {execution.execution_id} is {execution.public_state}" + (f"; {LOST}" if lost else ""),
        terminal_outcome=str(outcome),
        lease_epoch=own.lease_epoch if own else None,
        lifecycle_phase=execution.lifecycle_phase,
        attempt_id=own.attempt_id if own else None,
    )


def refusal(
    payload: HandlePayload, execution: Execution | None, attempt: Attempt | None, now: int
) -> EngineError | None:
    """Why a handle may not act now; ``None`` when it may. Gates in their order, first failure decides."""
    if attempt is None:
        return NotFound("attempt")
    if attempt.lease_epoch != payload.lease_epoch:
        return Contention(
            ContentionKind.LEASE_CONFLICT,
            f"execution {payload.execution_id}: the handle has epoch {payload.lease_epoch}, "
            f"the attempt {attempt.lease_epoch}",
        )
    if execution is None:
        return NotFound("execution")
    if execution.attempt_index != payload.attempt_index:
        return Contention(
            ContentionKind.LEASE_CONFLICT,
            f"execution {payload.execution_id} is at attempt {execution.attempt_index + 1}, "
            f"the handle at {payload.attempt_index + 1}",
        )
    lost = is_lost(attempt, payload.lease_id)
    if execution.lifecycle_phase != lit.ACTIVE:
        return not_active(execution, attempt, lost=lost)
    if execution.ownership_state == lit.LEASE_REVOKED:
        return State(StateKind.LEASE_REVOKED, f"execution {payload.execution_id}")
    if attempt.lease_expires_at_ms is None or attempt.lease_expires_at_ms <= now:
        return State(StateKind.LEASE_EXPIRED, f"execution {payload.execution_id}")
    if lost:
        return Contention(ContentionKind.LEASE_CONFLICT, f"execution {payload.execution_id}: {LOST}")
    return None


def held(view: View, payload: HandlePayload, context: Context) -> tuple[Execution, Attempt]:
    """The execution and attempt a handle holds, or the error that says why it holds them no longer."""
    execution = view.execution(payload.execution_id)
    attempt = view.attempt(payload.execution_id, payload.attempt_index)
    error = refusal(payload, execution, attempt, context.now)
    if error is not None:
        raise error
    assert execution is not None and attempt is not None
    return execution, attempt


def lease_event(
    context: Context,
    execution: Execution,
    event_type: str,
    attempt_index: int,
    lease_epoch: int,
    *,
    worker_instance_id: str | None = None,
    revoked_by: str | None = None,
    at: int | None = None,
) -> LeaseEvent:
    """One line of the lease history."""
    return LeaseEvent(
        execution.partition,
        execution.uuid,
        f"{context.store}:{execution.uuid}:{attempt_index}:{lease_epoch}",
        event_type,
        context.now if at is None else at,
        execution.namespace,
        execution.instance_tag,
        worker_instance_id,
        revoked_by,
    )


class Granting(Struct, gc=False):
    """Who gets a lease, and on which terms."""

    worker_id: str
    worker_instance_id: str
    lease_ttl_ms: int
    #: Never used before, for whatever lease.
    lease_id: str
    attempt_id: str
    kind: HandleKind
    event_type: str = lit.LEASE_ACQUIRED
    lane_id: str | None = None
    #: ``None`` takes the policy's attempt timeout; 0 means none.
    attempt_timeout_ms: int | None = None
    attempt_policy: str | None = None


class Grant(NamedTuple):
    """A lease that begins with the commit of these acts."""

    acts: tuple[Act, ...]
    events: tuple[Event, ...]
    handle: Handle
    execution: Execution
    attempt: Attempt


def attempt_type_of(execution: Execution, attempt: Attempt | None) -> str:
    """Why the attempt that is about to start is there."""
    state = execution.attempt_state
    if state == lit.PENDING_RETRY_ATTEMPT:
        return lit.TYPE_RETRY
    if state == lit.PENDING_REPLAY_ATTEMPT:
        return lit.TYPE_REPLAY
    goes_on = state == lit.ATTEMPT_INTERRUPTED or state in lit.RUNNING_ATTEMPT_STATES
    if goes_on and attempt is not None and attempt.attempt_type:
        return attempt.attempt_type
    return lit.TYPE_INITIAL


def _policy_timeout_ms(execution: Execution) -> int | None:
    """The attempt timeout of the execution's policy. A policy that cannot be read must not keep its lane from being
    served; one that needs more of it gets the error."""
    try:
        return read_policy(execution.policy).attempt_timeout_ms if execution.policy else None
    except Validation:
        return None


def next_epoch(execution: Execution, attempt: Attempt | None) -> int:
    """One above every epoch the execution has ever had."""
    floor = execution.epoch_floor
    return (attempt.lease_epoch if attempt is not None and attempt.lease_epoch > floor else floor) + 1


def grant(
    context: Context,
    execution: Execution,
    attempt: Attempt | None,
    terms: Granting,
    attempt_type: str | None = None,
    **also: object,
) -> Grant:
    """Give the lease on an attempt. The caller has checked that it may be given.

    ``also`` names further fields of the execution that change with it; with ``attempt_index`` the lease is on that
    attempt instead of the current one.
    """
    now = context.now
    epoch = next_epoch(execution, attempt)
    timeout_ms = terms.attempt_timeout_ms
    if timeout_ms is None:
        timeout_ms = _policy_timeout_ms(execution)
    started = execution.attempt_state == lit.PENDING_REPLAY_ATTEMPT or attempt is None or attempt.lease_epoch == 0
    if execution.attempt_state == lit.PENDING_RETRY_ATTEMPT:
        also |= {"pending_retry_reason": None, "pending_previous_attempt_index": None}
    if execution.delay_until_ms is not None:
        also["delay_until_ms"] = None
    running = change(
        execution,
        lifecycle_phase=lit.ACTIVE,
        ownership_state=lit.LEASED,
        eligibility_state=lit.NOT_APPLICABLE,
        public_state=lit.PUBLIC_RUNNING,
        attempt_state=lit.RUNNING_ATTEMPT,
        blocking_reason=None,
        started_at_ms=now if execution.started_at_ms is None else execution.started_at_ms,
        total_attempt_count=execution.total_attempt_count + 1 if started else execution.total_attempt_count,
        last_mutation_at_ms=now,
        **also,
    )
    index: int = running.record.attempt_index  # type: ignore[union-attr, assignment]
    fields = {
        "worker_id": terms.worker_id,
        "worker_instance_id": terms.worker_instance_id,
        "lease_epoch": epoch,
        "lease_expires_at_ms": saturate(now + terms.lease_ttl_ms),
        "started_at_ms": now,
        "terminal_at_ms": None,
        "outcome": None,
        "attempt_id": terms.attempt_id,
        "lease_id": terms.lease_id,
        "attempt_type": attempt_type or attempt_type_of(execution, attempt),
        "attempt_timeout_at_ms": saturate(now + timeout_ms) if timeout_ms else None,
        "retry_at_ms": None,
        "renewed_at_ms": None,
    }
    if attempt is not None and attempt.reservation_count:
        fields["reservation_count"] = 0
    if terms.attempt_policy is not None:
        fields["policy"] = terms.attempt_policy
    if attempt is None:
        leased = Change(
            Attempt(execution.execution_id, execution.partition, execution.uuid, index, **fields),  # type: ignore[arg-type]
            None,
        )
    else:
        leased = change(attempt, **fields)
    payload = HandlePayload(
        execution_id=execution.execution_id,
        attempt_index=index,
        attempt_id=terms.attempt_id,
        lease_id=terms.lease_id,
        lease_epoch=epoch,
        lease_ttl_ms=terms.lease_ttl_ms,
        lane_id=terms.lane_id or execution.lane_id,
        worker_instance_id=terms.worker_instance_id,
    )
    over = parted(attempt, LeaseEnd.RECLAIMED, now) if attempt is not None and attempt.worker_instance_id else ()
    return Grant(
        (running, leased, *over),
        (
            lease_event(
                context,
                execution,
                terms.event_type,
                index,
                epoch,
                worker_instance_id=terms.worker_instance_id,
            ),
        ),
        Handle.of(context.tag, terms.kind, payload),
        running.record,  # type: ignore[arg-type]
        leased.record,  # type: ignore[arg-type]
    )


def closed(attempt: Attempt, **fields: object) -> Change:
    """The attempt with its lease released; ``fields`` say how it ended. What it had reserved goes back elsewhere.

    The lease id stays: by it a repeated call is recognised, and without it the epoch alone would decide.
    """
    if attempt.reservation_count:
        fields["reservation_count"] = 0
    if attempt.worker_instance_id:
        fields["last_instance_id"] = attempt.worker_instance_id
    return change(attempt, worker_instance_id=None, lease_expires_at_ms=None, attempt_timeout_at_ms=None, **fields)


def parted(attempt: Attempt, how: LeaseEnd, now: int, reason: str | None = None) -> tuple[Act, ...]:
    """The record of a live lease that ends here while its attempt does not: the attempt's row tells of one lease only.

    A lease that was lost counts until its time was up, not until somebody noticed.
    """
    if not is_live(attempt):
        return ()
    until = attempt.lease_expires_at_ms if how in (LeaseEnd.EXPIRED, LeaseEnd.RECLAIMED) else None
    return (_past(attempt, how, now if until is None else min(now, until), reason),)


def outlived(view: View, attempt: Attempt) -> tuple[Act, ...]:
    """What makes room for one more record: an execution that never ends keeps those of its latest leases only. From
    one lease to the next the epoch rises by one or two, so two are looked for, far enough back that all that is shown
    stays."""
    last = attempt.lease_epoch - 2 * MAX_LEASES_SHOWN
    keys = [(attempt.partition, attempt.uuid, attempt.attempt_index, epoch) for epoch in (last, last - 1) if epoch > 0]
    return tuple(Drop(each) for each in view.many(PastLease, keys) if each is not None)


def ended_before(attempt: Attempt) -> tuple[Act, ...]:
    """The record of the lease an ended attempt was last held under, before the attempt starts over."""
    if attempt.started_at_ms is None or attempt.terminal_at_ms is None:
        return ()
    return (_past(attempt, how_it_ended(attempt), attempt.terminal_at_ms, None),)


def _past(attempt: Attempt, how: LeaseEnd, at: int, reason: str | None) -> Change:
    return insert(
        PastLease(
            attempt.partition,
            attempt.uuid,
            attempt.lease_epoch,
            attempt.attempt_index,
            attempt.lease_id,
            attempt.worker_id,
            attempt.worker_instance_id or last_instance(attempt),
            attempt.started_at_ms or at,
            at,
            how.value,
            reason or None,
        )
    )


def last_instance(attempt: Attempt) -> str | None:
    """Which instance held the last lease of an attempt that nobody holds any more, if that was read."""
    return None if attempt.last_instance_id is UNSET else attempt.last_instance_id or None


def how_it_ended(attempt: Attempt) -> LeaseEnd:
    """How the last lease of an attempt that has ended did so."""
    return _ENDS.get(attempt.outcome or "", LeaseEnd.CANCELLED)


_ENDS = {
    lit.OUTCOME_SUCCESS: LeaseEnd.COMPLETED,
    lit.OUTCOME_FAILED: LeaseEnd.FAILED,
    lit.OUTCOME_RETRY: LeaseEnd.FAILED,
    lit.OUTCOME_RECLAIMED: LeaseEnd.RECLAIMED,
    lit.OUTCOME_EXPIRED: LeaseEnd.TIMED_OUT,
}


def taken(attempt: Attempt, **fields: object) -> Change:
    """The attempt with its lease taken away: the epoch rises, so the holder's handle is worthless from now on."""
    return closed(attempt, lease_epoch=attempt.lease_epoch + 1, **fields)


def raise_floor(execution: Execution, attempt: Attempt | None) -> Execution:
    """The execution with its epoch floor lifted over an attempt it is about to leave behind."""
    return replace(execution, epoch_floor=next_epoch(execution, attempt) - 1)
