"""Claiming: the next execution of a lane that a worker can run.

Candidates are taken in the one order of the lane: priority, then age, then id. Rows a worker lacks the capabilities for
are passed over and left as they are, however many stand in front.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.core import admitting, holdings, lease, quotas
from flowfabric.core.context import Context
from flowfabric.core.grants import ClaimForWorker, grants_of, live_grant, promise, stale_grants
from flowfabric.core.lanes import refuse_withholding, withholds
from flowfabric.core.minting import uuid_text
from flowfabric.core.reissuing import lease_ids
from flowfabric.core.view import View
from flowfabric.model import literals as lit
from flowfabric.model.changes import Act, Claimable, Decision, Drop, Get, Need, change
from flowfabric.model.errors import (
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    NotFound,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.model.events import Event
from flowfabric.model.handles import Handle, HandleKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.records import Attempt, Execution, Lane
from flowfabric.model.results import Claimed, Granted, NoWork, OperatorLease, ResumeToken


class Claim(Struct, gc=False):
    """A worker's wish for up to ``limit`` executions. ``entropy`` holds 32 random bytes for each."""

    lane_id: str
    capabilities: frozenset[str]
    worker_id: str
    worker_instance_id: str
    lease_ttl_ms: int
    limit: int
    entropy: bytes
    #: Only executions of these namespaces; ``None`` means all.
    namespaces: frozenset[str] | None = None

    def needs(self) -> tuple[Need, ...]:
        return (
            Claimable(self.lane_id, self.capabilities, self.limit, self.namespaces),
            Get(Lane, self.lane_id),
        )


def claim(command: Claim, view: View, context: Context) -> Decision:
    """Handles for the first executions in claim order; an empty list when there are none."""
    acts: list[Act] = []
    events: list[Event] = []
    handles: list[Handle] = []
    found = view.claimable(command.lane_id, command.capabilities, command.limit, command.namespaces)
    if found and withholds(view, command.lane_id):
        return Decision(handles)
    for execution in found:
        if execution.budget_ids is not None or execution.quota_policy_id is not None:
            return _claim_admitted(command, view, context, found)
    for position, execution in enumerate(found):
        if execution.eligibility_state == lit.PENDING_CLAIM:
            acts += [Drop(grant) for grant in stale_grants(view, execution, context.now)]
        granted = _leased(command, view, context, execution, position)
        acts += granted.acts
        events += granted.events
        handles.append(granted.handle)
    return Decision(handles, tuple(acts), tuple(events))


def _claim_admitted(command: Claim, view: View, context: Context, found: list[Execution]) -> Decision:
    """The same where budgets or quotas have a say: each candidate is tested when it is its turn."""
    handles: list[Handle] = []
    queue = (command.lane_id, command.capabilities, command.namespaces)
    look = admitting.Look(view, context, queue, command.limit, found)
    for execution, entry in look:
        stale = execution.eligibility_state == lit.PENDING_CLAIM
        drops = [Drop(grant) for grant in stale_grants(view, execution, context.now)] if stale else []
        granted = _leased(command, view, context, execution, len(handles), entry)
        handles.append(granted.handle)
        step = Decision(handles, (*entry.acts, *drops, *granted.acts), granted.events)
        if len(handles) == command.limit:
            return step
        view.fold(step)
    return Decision(admitting.Unfinished() if look.unfinished else handles)


def _leased(
    command: Claim,
    view: View,
    context: Context,
    execution: Execution,
    position: int,
    entry: quotas.Entry = quotas.FREE,
) -> lease.Grant:
    attempt = view.attempt(execution.execution_id, execution.attempt_index)
    interrupted = execution.attempt_state == lit.ATTEMPT_INTERRUPTED
    begun, resumed = lease_ids(command.entropy, position)
    return lease.grant(
        context,
        execution,
        attempt,
        lease.Granting(
            command.worker_id,
            command.worker_instance_id,
            command.lease_ttl_ms,
            resumed if interrupted else begun,
            begun if interrupted else resumed,
            HandleKind.RESUMED if interrupted else HandleKind.FRESH,
        ),
        **entry.fields(),
    )


def claim_for_worker(command: ClaimForWorker, view: View, context: Context) -> Decision:
    """A grant for the first execution in claim order, or nothing."""
    lane_id, able = command.lane_id or "", frozenset(command.worker_capabilities)
    if not view.claimable(lane_id, able, 1, command.namespaces) or withholds(view, lane_id):
        return Decision(NoWork())
    look = admitting.Look(view, context, (lane_id, able, command.namespaces), 1)
    for found, entry in look:
        execution = found
        if entry.admitted_at_ms is not None:
            admitted = change(found, **entry.fields())
            view.fold(Decision(None, (*entry.acts, admitted)))
            execution = view.execution(found.execution_id) or found
        terms = msgspec.structs.replace(command, lane_id=None)
        grant, acts = promise(view, context, execution, terms)
        return Decision(Granted(grant), acts)
    return Decision(admitting.Unfinished() if look.unfinished else NoWork())


class ClaimExecution(Struct, gc=False):
    """A worker redeems a claim grant."""

    execution_id: str
    worker_id: str
    worker_instance_id: str
    lane_id: str
    lease_id: str
    lease_ttl_ms: int
    attempt_id: str
    attempt_policy_json: str
    attempt_timeout_ms: int | None
    execution_deadline_at_ms: int | None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def claim_execution(command: ClaimExecution, view: View, context: Context) -> Decision:
    """The lease a claim grant promised; the grant is gone with it."""
    execution, attempt = _waiting(view, command.execution_id)
    if execution.attempt_state == lit.ATTEMPT_INTERRUPTED:
        raise Contention(ContentionKind.USE_CLAIM_RESUMED_EXECUTION, f"execution {execution.execution_id}")
    found = live_grant(view, execution, lit.GRANT_CLAIM, now=None)
    if found is None or found.worker_id != command.worker_id:
        raise Contention(ContentionKind.INVALID_CLAIM_GRANT, f"execution {execution.execution_id}")
    if found.expires_at_ms and found.expires_at_ms <= context.now:
        raise Contention(ContentionKind.CLAIM_GRANT_EXPIRED, f"execution {execution.execution_id}")
    attempt_type = lease.attempt_type_of(execution, attempt)
    deadline = command.execution_deadline_at_ms
    # What was asked to cancel keeps the time it was given.
    also: dict[str, Any] = {}
    if deadline is not None and execution.cancel_at_ms is None:
        also["deadline_at_ms"] = deadline
    granted = lease.grant(
        context,
        execution,
        attempt,
        lease.Granting(
            command.worker_id,
            command.worker_instance_id,
            command.lease_ttl_ms,
            command.lease_id,
            command.attempt_id,
            HandleKind.FRESH,
            lane_id=command.lane_id,
            attempt_timeout_ms=command.attempt_timeout_ms,
            attempt_policy=command.attempt_policy_json or None,
        ),
        **also,
    )
    return Decision(_claimed(granted, attempt_type), (Drop(found), *granted.acts), granted.events)


class ClaimResumedExecution(Struct, gc=False):
    """A worker continues an interrupted attempt."""

    execution_id: str
    worker_id: str
    worker_instance_id: str
    lane_id: str
    lease_id: str
    lease_ttl_ms: int
    remaining_attempt_timeout_ms: int | None
    entropy: bytes

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def claim_resumed_execution(command: ClaimResumedExecution, view: View, context: Context) -> Decision:
    """The same attempt under the next epoch. A live grant must be the caller's; without one the call is free."""
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    where = f"execution {execution.execution_id}"
    if execution.lifecycle_phase not in lit.WAITING_PHASES or execution.eligibility_state not in lit.GRANTABLE_STATES:
        raise Contention(ContentionKind.EXECUTION_NOT_LEASEABLE, where)
    if execution.attempt_state != lit.ATTEMPT_INTERRUPTED:
        raise Contention(ContentionKind.NOT_A_RESUMED_EXECUTION, where)
    drops = [Drop(grant) for grant in stale_grants(view, execution, context.now)]
    found = live_grant(view, execution, lit.GRANT_CLAIM, now=context.now)
    if found is not None:
        if found.worker_id != command.worker_id:
            raise Contention(ContentionKind.INVALID_CLAIM_GRANT, where)
        drops.append(Drop(found))
    else:
        refuse_withholding(view, execution.lane_id)
    attempt = view.attempt(execution.execution_id, execution.attempt_index)
    granted = _resume(command, execution, attempt, context)
    return Decision(
        _claimed(granted, granted.attempt.attempt_type or lit.TYPE_INITIAL), (*drops, *granted.acts), granted.events
    )


def _resume(
    command: ClaimResumedExecution, execution: Execution, attempt: Attempt | None, context: Context
) -> lease.Grant:
    kept = attempt.attempt_id if attempt is not None else None
    return lease.grant(
        context,
        execution,
        attempt,
        lease.Granting(
            command.worker_id,
            command.worker_instance_id,
            command.lease_ttl_ms,
            command.lease_id,
            kept or uuid_text(command.entropy),
            HandleKind.RESUMED,
            lane_id=command.lane_id,
            attempt_timeout_ms=command.remaining_attempt_timeout_ms or None,
        ),
    )


class IssueGrantAndClaim(Struct, gc=False):
    """An operator takes an execution by name, whatever its capabilities ask for."""

    execution_id: str
    lane_id: str
    lease_duration_ms: int
    entropy: bytes

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


OPERATOR = "operator"


def issue_grant_and_claim(command: IssueGrantAndClaim, view: View, context: Context) -> Decision:
    """Grant and claim in one step; a refused claim leaves no grant behind."""
    execution, attempt = _waiting(view, command.execution_id)
    if execution.attempt_state not in lit.CLAIMABLE_ATTEMPT_STATES:
        raise Validation(ValidationKind.CORRUPTION, f"attempt_state: unexpected value {execution.attempt_state!r}")
    if live_grant(view, execution, lit.GRANT_CLAIM, now=context.now) is not None:
        raise State(StateKind.GRANT_ALREADY_EXISTS, f"execution {execution.execution_id}")
    drops = tuple(Drop(grant) for grant in stale_grants(view, execution, context.now))
    interrupted = execution.attempt_state == lit.ATTEMPT_INTERRUPTED
    granted = lease.grant(
        context,
        execution,
        attempt,
        lease.Granting(
            OPERATOR,
            OPERATOR,
            command.lease_duration_ms,
            uuid_text(command.entropy),
            uuid_text(command.entropy, 1),
            HandleKind.RESUMED if interrupted else HandleKind.FRESH,
            lane_id=command.lane_id,
        ),
    )
    epoch = granted.attempt.lease_epoch
    shown = lease.shown_lease_id(context, execution.uuid, execution.attempt_index, epoch)
    return Decision(OperatorLease(shown, epoch, execution.attempt_index), (*drops, *granted.acts), granted.events)


def _waiting(view: View, execution_id: str) -> tuple[Execution, Attempt | None]:
    """The gates of a claim by name, up to the attempt: runnable, unowned, eligible, nothing running."""
    execution = view.execution(execution_id)
    if execution is None:
        raise NotFound("execution")
    attempt = view.attempt(execution_id, execution.attempt_index)
    where = f"execution {execution_id}"
    if execution.lifecycle_phase not in lit.WAITING_PHASES:
        raise lease.not_active(execution, attempt)
    if execution.ownership_state not in lit.UNOWNED_STATES:
        raise Contention(ContentionKind.LEASE_CONFLICT, where)
    if execution.eligibility_state not in lit.GRANTABLE_STATES:
        raise Contention(ContentionKind.EXECUTION_NOT_LEASEABLE, where)
    if execution.attempt_state in lit.RUNNING_ATTEMPT_STATES:
        raise Conflict(ConflictKind.ACTIVE_ATTEMPT_EXISTS, where)
    return execution, attempt


def _claimed(granted: lease.Grant, attempt_type: str) -> Claimed:
    attempt = granted.attempt
    return Claimed(
        ExecutionId.unchecked(attempt.execution_id),
        attempt.lease_id or "",
        attempt.lease_epoch,
        attempt.attempt_index,
        attempt.attempt_id or "",
        attempt_type,
        attempt.lease_expires_at_ms or 0,
        granted.handle,
    )


class ClaimFromResumeGrant(Struct, gc=False):
    """A worker takes over the newest attempt of an execution whose lease has run out or was released."""

    token: ResumeToken
    entropy: bytes

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.token.grant.execution_id),)


def claim_from_resume_grant(command: ClaimFromResumeGrant, view: View, context: Context) -> Decision:
    """The newest attempt under the next epoch, or ``None`` while somebody holds it or nobody may."""
    token = command.token
    identity = ExecutionId.unchecked(token.grant.execution_id)
    attempts = view.select(Attempt, partition=identity.partition, uuid=identity.uuid_text)
    if not attempts:
        raise NotFound("attempt")
    attempt = attempts[-1]
    execution = view.execution(token.grant.execution_id)
    if (
        (attempt.lease_expires_at_ms is not None and attempt.lease_expires_at_ms > context.now)
        or execution is None
        or execution.lifecycle_phase in lit.ENDED_PHASES
        or execution.lifecycle_phase == lit.SUSPENDED
        or token.grant.expires_at_ms <= context.now
    ):
        return Decision(None)
    granted = lease.grant(
        context,
        lease.raise_floor(execution, max(attempts, key=lambda each: each.lease_epoch)),
        attempt,
        lease.Granting(
            token.worker_id,
            token.worker_instance_id,
            token.lease_ttl_ms,
            uuid_text(command.entropy),
            attempt.attempt_id or uuid_text(command.entropy, 1),
            HandleKind.RESUMED,
            event_type=lit.LEASE_RECLAIMED,
            lane_id=token.grant.lane_id,
        ),
        attempt_index=attempt.attempt_index,
    )
    # Whatever was promised to others is void: the execution runs.
    drops = [Drop(grant) for grant in grants_of(view, execution) if grant.kind == lit.GRANT_CLAIM]
    back = holdings.lapsed(view, context, execution, attempt)
    return Decision(granted.handle, (*drops, *back, *granted.acts), granted.events)
