"""Cancelling one execution, by an operator, by its holder, or on behalf of something larger."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.cancel_request import BY_PARENT, asked
from flowfabric.core.executions.end import concluded
from flowfabric.core.executions.terminal import cancelled_row, current_attempt, leftovers, lost_lease
from flowfabric.core.leases import lease
from flowfabric.core.leases.fence import OPERATOR_OVERRIDE
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, Get, GetFull, Need, change
from flowfabric.model.errors import NotFound, State, StateKind, Validation, ValidationKind
from flowfabric.model.handles import HandlePayload
from flowfabric.model.ids import CancelSource, ExecutionId
from flowfabric.model.operations.executions import Cancelled
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.states import PublicState

#: What ``cancelled_by`` says when the holder itself cancelled.
BY_WORKER = "worker"
#: Who took the lease away, by the source of the cancellation; people give other sources names of their own.
_REVOKED_BY: Mapping[str, str] = {
    CancelSource.LEASE_HOLDER: lit.BY_HOLDER,
    CancelSource.FLOW_CASCADE: lit.BY_RECONCILER,
    CancelSource.SYSTEM_TIMEOUT: lit.BY_RECONCILER,
}


class CancelExecution(Struct, gc=False):
    """Cancel by id. Anyone but an operator must show the epoch of a lease that stands, and may show its id as well: the
    one inside the handle, or the one that people see, which says no more than the epoch."""

    execution_id: str
    reason: str
    source: str
    lease_epoch: int | None
    recorded_at_ms: int | None
    lease_id: str | None = None

    def needs(self) -> tuple[Need, ...]:
        return (GetFull(self.execution_id),)


def cancel_execution(command: CancelExecution, view: View, context: Context) -> Decision:
    """Cancelled once; the same call again finds it so and changes nothing."""
    execution = view.full(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    answer = Cancelled(ExecutionId.unchecked(execution.execution_id), PublicState.CANCELLED)
    if _is_cancelled(execution, "cancel_execution"):
        return Decision(answer)
    attempt = current_attempt(view, execution)
    if command.source != OPERATOR_OVERRIDE and attempt is not None and lease.is_live(attempt):
        if command.lease_epoch is None:
            raise Validation(
                ValidationKind.INVALID_INPUT,
                f"cancel_execution: execution_id={execution.execution_id}: lease_epoch is required while a lease "
                "is held, unless source is operator_override",
            )
        if command.lease_epoch != attempt.lease_epoch:
            raise State(StateKind.STALE_LEASE, f"execution {execution.execution_id}")
        shown = lease.shown_lease_id(context, execution.uuid, attempt.attempt_index, attempt.lease_epoch)
        if command.lease_id and command.lease_id != shown and lease.is_lost(attempt, command.lease_id):
            raise State(StateKind.STALE_LEASE, f"execution {execution.execution_id}: {lease.LOST}")
    revoked_by = _REVOKED_BY.get(command.source, lit.BY_OPERATOR)
    return cancelled(
        view, context, execution, attempt, answer, reason=command.reason, by=command.source, revoked_by=revoked_by
    )


class RequestCancel(Struct, gc=False):
    """Somebody wants an execution to end, and gives it the time to do so in order."""

    execution_id: str
    reason: str

    def needs(self) -> tuple[Need, ...]:
        return (GetFull(self.execution_id),)


def request_cancel(command: RequestCancel, view: View, context: Context) -> Decision:
    """Asked once; the same call again changes nothing. What cannot be asked is cancelled at once."""
    execution = view.full(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    request = asked(view, context, execution, command.reason, OPERATOR_OVERRIDE)
    if request is not None:
        return request
    at_once = CancelExecution(command.execution_id, command.reason, OPERATOR_OVERRIDE, None, None)
    return cancel_execution(at_once, view, context)


def _is_cancelled(execution: Execution, call: str) -> bool:
    """Whether it was cancelled before; an error if it has ended in another way."""
    if execution.lifecycle_phase not in lit.ENDED_PHASES:
        return False
    if execution.public_state == lit.PUBLIC_CANCELLED:
        return True
    raise Validation(
        ValidationKind.INVALID_INPUT,
        f"{call}: execution_id={execution.execution_id}: already terminal in state '{execution.public_state}'",
    )


class CancelChild(Struct, gc=False):
    """The holder of an execution gives up another that it has started."""

    handle: HandlePayload
    execution_id: str
    reason: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.handle.execution_id), GetFull(self.execution_id))


def cancel_child(command: CancelChild, view: View, context: Context) -> Decision:
    """As ``request_cancel``, under the lease of the parent; what it has not started looks absent."""
    parent, _ = lease.held(view, command.handle, context)
    child = view.full(command.execution_id)
    if child is None or (child.partition, child.parent) != (parent.partition, parent.uuid):
        raise NotFound("execution")
    answer = Cancelled(ExecutionId.unchecked(child.execution_id), PublicState.CANCELLED)
    if _is_cancelled(child, "cancel_child"):
        return Decision(answer)
    if (request := asked(view, context, child, command.reason, BY_PARENT)) is not None:
        return request
    attempt = current_attempt(view, child)
    return cancelled(
        view, context, child, attempt, answer, reason=command.reason, by=BY_PARENT, revoked_by=lit.BY_RECONCILER
    )


class CancelHeld(Struct, gc=False):
    """The holder cancels its own execution."""

    handle: HandlePayload
    reason: str

    def needs(self) -> tuple[Need, ...]:
        return (GetFull(self.handle.execution_id),)


def cancel_held(command: CancelHeld, view: View, context: Context) -> Decision:
    """As ``cancel_execution`` under the holder's lease; repeated, the same answer."""
    payload = command.handle
    execution = view.full(payload.execution_id)
    attempt = view.attempt(payload.execution_id, payload.attempt_index)
    answer = Cancelled(ExecutionId.unchecked(payload.execution_id), PublicState.CANCELLED)
    error = lease.refusal(payload, execution, attempt, context.now)
    if error is not None:
        if attempt is not None and execution is not None and _repeats(payload, execution, attempt):
            return Decision(answer)
        raise error
    assert execution is not None and attempt is not None
    return cancelled(
        view,
        context,
        execution,
        attempt,
        answer,
        reason=command.reason,
        by=BY_WORKER,
        revoked_by=lit.BY_HOLDER,
        as_asked=execution.cancel_at_ms is not None,
    )


def _repeats(payload: HandlePayload, execution: Execution, attempt: Attempt) -> bool:
    if attempt.lease_epoch != payload.lease_epoch + 1 or attempt.outcome != lit.OUTCOME_CANCELLED:
        return False
    if lease.is_lost(attempt, payload.lease_id):
        return False
    if attempt.attempt_id is not None and attempt.attempt_id != payload.attempt_id:
        return False
    return execution.cancelled_by == BY_WORKER or execution.cancel_at_ms is not None


def cancelled(
    view: View,
    context: Context,
    execution: Execution,
    attempt: Attempt | None,
    answer: object,
    *,
    reason: str,
    by: str,
    revoked_by: str,
    as_asked: bool = False,
) -> Decision:
    """One cancellation, by anyone. ``as_asked`` if the execution has ended by itself, because it was asked
    to: then what it has started is asked as well, and cancelled otherwise."""
    now = context.now
    acts: list[Act] = []
    if execution.cancel_at_ms is not None and not as_asked:
        acts.append(change(execution, cancel_at_ms=None))
        # A call that ends it at once may say why; otherwise the request's reason stays.
        said = {"cancellation_reason": None, "cancelled_by": None} if reason else {}
        execution = replace(execution, cancel_at_ms=None, **said)
    acts.append(cancelled_row(execution, now, reason, by, lit.NOT_APPLICABLE))
    if attempt is not None and lease.is_live(attempt):
        acts.append(lease.taken(attempt, outcome=lit.OUTCOME_CANCELLED, terminal_at_ms=now))
    acts += leftovers(view, execution, now, "cancelled")
    events = lost_lease(context, execution, attempt, lit.LEASE_ENDED, revoked_by)
    return concluded(
        view,
        context,
        Decision(answer, tuple(acts), events, _stream(execution, attempt)),
        execution,
        attempt,
        lit.ENDED_CANCELLED,
        with_flow=by == "flow_cascade",
        as_asked=as_asked,
    )


def _stream(execution: Execution, attempt: Attempt | None) -> tuple[tuple[str, int], ...]:
    return ((execution.execution_id, execution.attempt_index),) if attempt is not None else ()
