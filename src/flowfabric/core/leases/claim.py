"""Claiming: the next execution of a lane that a worker can run.

Candidates are taken in the one order of the lane: priority, then age, then id. Rows a worker lacks the capabilities for
are passed over and left as they are, however many stand in front.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.core.admission import admit, quotas, release
from flowfabric.core.admission.admit import Unfinished
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, uuid_text
from flowfabric.core.lanes.lane_state import refuse_withholding, withholds
from flowfabric.core.leases import lease
from flowfabric.core.leases.grants import ClaimForWorker, grants_of, live_grant, promise, stale_grants
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Claimable, Decision, Drop, Get, Need, change
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
from flowfabric.model.handles import BackendTag, Handle, HandleKind, HandlePayload
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import Claimed, Granted, NoWork, OperatorLease, ResumeToken
from flowfabric.model.records.executions import Attempt, Execution, Lane


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
    """Handles for the first executions in claim order; an empty list if nothing can be claimed."""
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
    look = admit.Look(view, context, queue, command.limit, found)
    for execution, entry in look:
        stale = execution.eligibility_state == lit.PENDING_CLAIM
        drops = [Drop(grant) for grant in stale_grants(view, execution, context.now)] if stale else []
        granted = _leased(command, view, context, execution, len(handles), entry)
        handles.append(granted.handle)
        step = Decision(handles, (*entry.acts, *drops, *granted.acts), granted.events)
        if len(handles) == command.limit:
            return step
        view.fold(step)
    return Decision(admit.Unfinished() if look.unfinished else handles)


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
    look = admit.Look(view, context, (lane_id, able, command.namespaces), 1)
    for found, entry in look:
        execution = found
        if entry.admitted_at_ms is not None:
            admitted = change(found, **entry.fields())
            view.fold(Decision(None, (*entry.acts, admitted)))
            execution = view.execution(found.execution_id) or found
        terms = msgspec.structs.replace(command, lane_id=None)
        grant, acts = promise(view, context, execution, terms)
        return Decision(Granted(grant), acts)
    return Decision(admit.Unfinished() if look.unfinished else NoWork())


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
    back = release.lapsed(view, context, execution, attempt)
    return Decision(granted.handle, (*drops, *back, *granted.acts), granted.events)


# -- claiming from several lanes at once, each as often as its weight says -------------------------------------------
#
# Smooth weighted rotation: at every turn each lane that may have work gains its weight in credit, the richest one is
# served and pays for all. A lane without work neither gains nor pays, so that nobody saves turns up.


class ClaimFromLanes(Struct, gc=False):
    """A worker's wish for up to ``limit`` executions of some lanes. ``entropy`` holds 32 random bytes for each."""

    #: Lanes with their weights, and what credit each has.
    lanes: tuple[tuple[str, int], ...]
    credits: tuple[int, ...]
    capabilities: frozenset[str]
    worker_id: str
    worker_instance_id: str
    lease_ttl_ms: int
    limit: int
    entropy: bytes
    namespaces: frozenset[str] | None = None

    def needs(self) -> tuple[Need, ...]:
        wanted = self.lanes
        if self.limit == 1:
            # Usually the lane whose turn it is has work; the others are looked at only if it has not.
            best = max(range(len(wanted)), key=lambda n: (self.credits[n] + wanted[n][1], -n))
            wanted = (wanted[best],)
        total = sum(weight for _, weight in wanted)
        shares = [(lane_id, -(-self.limit * weight // total)) for lane_id, weight in wanted]
        scans = [Claimable(lane_id, self.capabilities, share, self.namespaces) for lane_id, share in shares]
        return (*scans, *[Get(Lane, lane_id) for lane_id, _ in wanted])


class LanesClaimed(Struct, frozen=True):
    """What was claimed, and the credit of each lane after it."""

    handles: list[Handle]
    credits: tuple[int, ...]
    #: Whether not everything was looked at that there is.
    unfinished: bool = False


def claim_from_lanes(command: ClaimFromLanes, view: View, context: Context) -> Decision:
    """One execution after the other, from the lane whose turn it is."""
    credit = dict(zip([lane_id for lane_id, _ in command.lanes], command.credits, strict=True))
    weights = dict(command.lanes)
    handles: list[Handle] = []
    unfinished = False
    while weights and len(handles) < command.limit:
        lane_id = max(weights, key=lambda each: credit[each] + weights[each])
        decision = claim(_single(command, lane_id, len(handles)), view, context)
        if not decision.result:
            unfinished = unfinished or type(decision.result) is Unfinished
            view.fold(decision)
            del weights[lane_id]
            view.require(Claimable(each, command.capabilities, 1, command.namespaces) for each in weights)
            continue
        view.fold(decision)
        handles += decision.result
        for each, weight in weights.items():
            credit[each] += weight
        credit[lane_id] -= sum(weights.values())
    return Decision(LanesClaimed(handles, tuple(credit[lane_id] for lane_id, _ in command.lanes), unfinished))


def _single(command: ClaimFromLanes, lane_id: str, position: int) -> Claim:
    return Claim(
        lane_id,
        command.capabilities,
        command.worker_id,
        command.worker_instance_id,
        command.lease_ttl_ms,
        1,
        command.entropy[32 * position : 32 * position + 32],
        command.namespaces,
    )


# -- claims that are repeated because their answer was lost: what they were given is given to them again -------------


def lease_ids(entropy: bytes, position: int) -> tuple[str, str]:
    """The lease ids that a claim's random bytes hold for its ``position``-th execution: of one that begins, and of one
    that goes on after an interruption. The other one of the two becomes the id of the attempt, so a lease tells which
    it was."""
    return uuid_text(entropy, 2 * position), uuid_text(entropy, 2 * position + 1)


def reissued(
    leases: Iterable[tuple[Execution, Attempt]],
    entropy: bytes,
    limit: int,
    worker_instance_id: str,
    lease_ttl_ms: int,
    namespaces: frozenset[str] | None,
    tag: BackendTag,
    now: int,
) -> list[Handle]:
    """Handles of those leases that stand and were given by the claim with these random bytes, in its order."""
    begun = {lease_ids(entropy, position)[0]: position for position in range(limit)}
    resumed = {lease_ids(entropy, position)[1]: position for position in range(limit)}
    found: list[tuple[int, str, Handle]] = []
    for execution, attempt in leases:
        position = begun.get(attempt.lease_id or "", resumed.get(attempt.lease_id or ""))
        if (
            position is None
            or attempt.worker_instance_id != worker_instance_id
            or execution.ownership_state != lit.LEASED
            or execution.attempt_index != attempt.attempt_index
            or (attempt.lease_expires_at_ms or 0) <= now
            or (namespaces is not None and execution.namespace not in namespaces)
        ):
            continue
        payload = HandlePayload(
            execution.execution_id,
            attempt.attempt_index,
            attempt.attempt_id or "",
            attempt.lease_id or "",
            attempt.lease_epoch,
            lease_ttl_ms,
            execution.lane_id,
            worker_instance_id,
        )
        kind = HandleKind.FRESH if attempt.lease_id in begun else HandleKind.RESUMED
        found.append((position, execution.execution_id, Handle.of(tag, kind, payload)))
    return [handle for _, _, handle in sorted(found, key=lambda each: each[:2])][:limit]
