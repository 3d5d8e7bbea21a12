"""Acts of a lease holder that end nothing: renew, report progress, delay, wait for children."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from flowfabric.core.admission import release
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.documents import dump_document, parse_document
from flowfabric.core.flows.edges import waits_for_members
from flowfabric.core.leases import lease
from flowfabric.core.leases.fence import Fence, fenced
from flowfabric.model import states as lit
from flowfabric.model.decisions import Change, Decision, Get, GetFull, Need, change
from flowfabric.model.events import LeaseEvent
from flowfabric.model.handles import HandlePayload
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import CLOCK_STEP_MS
from flowfabric.model.operations.executions import LeaseRenewal, Renewed
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.past_leases import LeaseEnd


class Renew(Struct, gc=False):
    """The holder wants its lease to last another time to live, the one in its handle."""

    handle: HandlePayload

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.handle.execution_id),)


def renew(command: Renew, view: View, context: Context) -> Decision:
    """A later expiry under the same epoch."""
    execution, attempt = lease.held(view, command.handle, context)
    extended, expires = _extended(context, attempt, command.handle.lease_ttl_ms)
    return Decision(LeaseRenewal(expires, attempt.lease_epoch), (extended,), (_renewed(context, execution, attempt),))


class RenewLease(Struct, gc=False):
    """``renew`` by id and fence; nobody may override it."""

    fence: Fence
    lease_ttl_ms: int

    def needs(self) -> tuple[Need, ...]:
        return self.fence.needs()


def renew_lease(command: RenewLease, view: View, context: Context) -> Decision:
    """As ``renew``, with the gates of a fenced call."""
    execution, attempt = fenced(command.fence, view, context, attempt_first=True)
    extended, expires = _extended(context, attempt, command.lease_ttl_ms)
    return Decision(Renewed(expires), (extended,), (_renewed(context, execution, attempt),))


def _extended(context: Context, attempt: Attempt, lease_ttl_ms: int) -> tuple[Change, int]:
    """A renewal never moves an expiry back, unless that was given by a clock that was ahead and has been set right."""
    expires = saturate(context.now + lease_ttl_ms)
    if (attempt.renewed_at_ms or attempt.started_at_ms or 0) <= context.now + CLOCK_STEP_MS:
        expires = max(expires, attempt.lease_expires_at_ms or 0)
    return change(attempt, lease_expires_at_ms=expires, renewed_at_ms=context.now), expires


def _renewed(context: Context, execution: Execution, attempt: Attempt) -> LeaseEvent:
    return lease.lease_event(
        context,
        execution,
        lit.LEASE_RENEWED,
        attempt.attempt_index,
        attempt.lease_epoch,
        worker_instance_id=attempt.worker_instance_id,
    )


class Progress(Struct, gc=False):
    """The holder says how far it is; what it leaves out stays as it was."""

    handle: HandlePayload
    percent: int | None
    message: str | None

    def needs(self) -> tuple[Need, ...]:
        return (GetFull(self.handle.execution_id),)


def progress(command: Progress, view: View, context: Context) -> Decision:
    """The two progress keys merged into the execution's raw fields."""
    execution, _ = lease.held(view, command.handle, context)
    if command.percent is None and command.message is None:
        return Decision()
    full = view.full(execution.execution_id)
    assert full is not None
    fields: dict[str, Any] = parse_document(full.raw_fields, "raw_fields")
    if command.percent is not None:
        fields["progress_pct"] = command.percent
    if command.message is not None:
        fields["progress_message"] = command.message
    return Decision(None, (change(full, raw_fields=dump_document(fields), last_mutation_at_ms=context.now),))


class Delay(Struct, gc=False):
    """The holder wants to go on at ``delay_until_ms``."""

    handle: HandlePayload | None
    fence: Fence | None
    delay_until_ms: int

    def needs(self) -> tuple[Need, ...]:
        return _holder_needs(self.handle, self.fence)


def delay(command: Delay, view: View, context: Context) -> Decision:
    """The same attempt continues at its time; a time in the past is due at once."""
    execution, attempt = _holder(command.handle, command.fence, view, context)
    parked = parked_until(
        execution,
        context.now,
        eligibility_state=lit.NOT_ELIGIBLE_UNTIL_TIME,
        public_state=lit.PUBLIC_DELAYED,
        blocking_reason=lit.WAITING_FOR_DELAY,
        delay_until_ms=command.delay_until_ms,
    )
    return stepped_back(view, context, execution, attempt, parked, LeaseEnd.DELAYED)


class WaitChildren(Struct, gc=False):
    """The holder wants to go on when the members it depends on are done."""

    handle: HandlePayload | None
    fence: Fence | None

    def needs(self) -> tuple[Need, ...]:
        return _holder_needs(self.handle, self.fence)


def wait_children(command: WaitChildren, view: View, context: Context) -> Decision:
    """The same attempt continues when its inbound edges are resolved; with none open it is eligible at once."""
    execution, attempt = _holder(command.handle, command.fence, view, context)
    if waits_for_members(view, execution):
        parked = parked_until(
            execution,
            context.now,
            eligibility_state=lit.BLOCKED_BY_DEPENDENCIES,
            public_state=lit.PUBLIC_WAITING_CHILDREN,
            blocking_reason=lit.WAITING_FOR_CHILDREN,
        )
    else:
        parked = parked_until(
            execution,
            context.now,
            eligibility_state=lit.ELIGIBLE_NOW,
            public_state=lit.PUBLIC_WAITING,
            blocking_reason=lit.WAITING_FOR_WORKER,
        )
    return stepped_back(view, context, execution, attempt, parked, LeaseEnd.WAITING_CHILDREN)


def _holder(
    handle: HandlePayload | None, fence: Fence | None, view: View, context: Context
) -> tuple[Execution, Attempt]:
    if handle is not None:
        return lease.held(view, handle, context)
    assert fence is not None
    return fenced(fence, view, context)


def _holder_needs(handle: HandlePayload | None, fence: Fence | None) -> tuple[Need, ...]:
    execution_id = handle.execution_id if handle is not None else fence.execution_id if fence is not None else ""
    return (Get(Execution, execution_id),)


def parked_until(execution: Execution, now: int, **fields: object) -> Change:
    """The execution without its holder, until what ``fields`` say."""
    return change(
        execution,
        lifecycle_phase=lit.RUNNABLE,
        ownership_state=lit.UNOWNED,
        attempt_state=lit.ATTEMPT_INTERRUPTED,
        last_mutation_at_ms=now,
        **fields,
    )


def stepped_back(
    view: View,
    context: Context,
    execution: Execution,
    attempt: Attempt,
    parked: Change,
    how: LeaseEnd,
    reason: str | None = None,
) -> Decision:
    """The holder lets go of its lease, and the attempt goes on later."""
    outcome = lit.OUTCOME_WAITING_CHILDREN if how is LeaseEnd.WAITING_CHILDREN else lit.OUTCOME_INTERRUPTED
    event = lease.lease_event(
        context,
        execution,
        lit.LEASE_ENDED,
        attempt.attempt_index,
        attempt.lease_epoch,
        worker_instance_id=attempt.worker_instance_id,
        revoked_by=lit.BY_HOLDER,
    )
    return Decision(
        ExecutionId.unchecked(execution.execution_id),
        (
            parked,
            lease.closed(attempt, outcome=outcome),
            *lease.parted(attempt, how, context.now, reason),
            *lease.outlived(view, attempt),
            *release.lapsed(view, context, execution, attempt),
        ),
        (event,),
        ((execution.execution_id, attempt.attempt_index),),
    )
