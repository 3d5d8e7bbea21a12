"""Suspending: a holder gives up its lease until its condition holds; the same attempt goes on later.

``suspended`` is the one way into the suspended phase. All that park a running execution use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.admission import release
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.leases import lease
from flowfabric.core.leases.fence import Fence, fenced
from flowfabric.core.suspension import waits
from flowfabric.core.suspension.bound_waitpoints import Bound, Wait, bound_waitpoints
from flowfabric.core.suspension.forgetting import forgotten
from flowfabric.core.suspension.signing import CURRENT_KEY
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, Drop, Get, Need, change, insert
from flowfabric.model.errors import (
    NotFound,
    Validation,
)
from flowfabric.model.events import Event
from flowfabric.model.handles import Handle, HandleKind, HandlePayload
from flowfabric.model.ids import LeaseFence
from flowfabric.model.operations.suspension import (
    Suspended,
    SuspendOutcome,
    SuspendOutcomeDetails,
    SuspensionReason,
    WaitpointCredential,
)
from flowfabric.model.policy import read_policy
from flowfabric.model.records.executions import Attempt, Execution, SuspendDedup, Suspension, Waitpoint
from flowfabric.model.records.past_leases import LeaseEnd
from flowfabric.model.waitpoint_tokens import Token

#: How long the answer to a ``suspend`` with an idempotency key is remembered.
DEDUP_MS = 7 * 24 * 3600 * 1000

#: What the row says it is blocked by, by reason code; anything else waits for a signal.
_BLOCKED_BY: Mapping[str, str] = {
    SuspensionReason.WAITING_FOR_APPROVAL: lit.WAITING_FOR_APPROVAL,
    SuspensionReason.WAITING_FOR_CALLBACK: lit.WAITING_FOR_CALLBACK,
    SuspensionReason.WAITING_FOR_TOOL_RESULT: lit.WAITING_FOR_TOOL_RESULT,
    SuspensionReason.WAITING_FOR_OPERATOR_REVIEW: lit.PAUSED_BY_OPERATOR,
    SuspensionReason.PAUSED_BY_POLICY: lit.PAUSED_BY_POLICY,
    SuspensionReason.PAUSED_BY_BUDGET: lit.WAITING_FOR_BUDGET,
    SuspensionReason.MANUAL_PAUSE: lit.PAUSED_BY_OPERATOR,
}


class Parked(NamedTuple):
    """A suspension that begins with the commit of these acts."""

    acts: tuple[Act, ...]
    events: tuple[Event, ...]
    details: SuspendOutcomeDetails
    handle: Handle


def suspended(
    view: View,
    context: Context,
    execution: Execution,
    attempt: Attempt,
    wait: Wait,
    entropy: bytes,
    handle: HandlePayload | None = None,
) -> Parked:
    """Suspend an execution whose lease the caller has checked, on fresh waitpoints.

    ``entropy`` holds 32 random bytes, for the first signing key if none exists yet. Everything that can be refused is
    refused here, so call it before anything is folded.
    """
    bound = bound_waitpoints(view, context, execution, wait, entropy)
    return _parked(view, context, execution, attempt, wait, bound, handle)


def parked_without_waitpoints(
    view: View,
    context: Context,
    execution: Execution,
    attempt: Attempt,
    wait: Wait,
    wake_after: int,
    handle: HandlePayload,
) -> Parked:
    """Suspend until so many children have ended or the time of ``wait`` has come. No signal can wake it."""
    return _parked(view, context, execution, attempt, wait, Bound((), (), {}, None, ()), handle, wake_after)


def _parked(
    view: View,
    context: Context,
    execution: Execution,
    attempt: Attempt,
    wait: Wait,
    bound: Bound,
    handle: HandlePayload | None,
    wake_after: int | None = None,
) -> Parked:
    now = context.now
    parked = change(
        execution,
        lifecycle_phase=lit.SUSPENDED,
        ownership_state=lit.UNOWNED,
        eligibility_state=lit.NOT_APPLICABLE,
        public_state=lit.PUBLIC_SUSPENDED,
        attempt_state=lit.ATTEMPT_INTERRUPTED,
        blocking_reason=_BLOCKED_BY.get(wait.reason_code, lit.WAITING_FOR_SIGNAL),
        signal_count=execution.signal_count or 0,
        last_mutation_at_ms=now,
        suspended_at_ms=now,
        # A function that lives for months may lose many workers: only those it loses without getting on count.
        **({"lease_reclaim_count": 0} if wake_after is not None and execution.lease_reclaim_count else {}),
    )
    released = lease.taken(attempt, worker_id=None, outcome=lit.OUTCOME_SUSPENDED)
    over = lease.parted(attempt, LeaseEnd.SUSPENDED, now, wait.reason_code)
    event = lease.lease_event(
        context,
        execution,
        lit.LEASE_ENDED,
        attempt.attempt_index,
        attempt.lease_epoch,
        worker_instance_id=attempt.worker_instance_id,
        revoked_by=lit.BY_HOLDER,
    )
    acts = (
        parked,
        released,
        *over,
        *lease.outlived(view, attempt),
        *release.lapsed(view, context, execution, attempt),
        *bound.acts,
        *_recorded(view, context, execution, wait, bound, {} if wake_after is None else {"wake_after": wake_after}),
    )
    payload = replace(handle or payload_of(execution, attempt), lease_epoch=attempt.lease_epoch + 1)
    details = _details(wait, bound) if bound.rows else SuspendOutcomeDetails(wait.suspension_id, "", "", Token(""))
    return Parked(acts, (event,), details, Handle.of(context.tag, HandleKind.SUSPENDED, payload))


def _recorded(
    view: View, context: Context, execution: Execution, wait: Wait, bound: Bound, fields: dict[str, Any]
) -> tuple[Act, ...]:
    """The suspension row with these additional fields; that of an earlier, closed suspension makes room."""
    timeout_at, behavior = _timeout(execution, wait, context.now)
    terms = waits.Terms(
        wait.condition,
        wait.resume_policy,
        wait.requested_by,
        wait.continuation_metadata_pointer,
        tuple(row.waitpoint_id for row in bound.rows),
    )
    row = Suspension(
        execution.partition,
        execution.uuid,
        wait.suspension_id,
        context.now,
        timeout_at,
        wait.reason_code,
        condition=waits.dump(terms),
        member_map=waits.dump(bound.heard),
        timeout_behavior=behavior,
        attempt_index=execution.attempt_index,
    )
    row = replace(row, **fields)
    before = view.get(Suspension, row.key)
    return (insert(row),) if before is None else (Drop(before), insert(row))


def _timeout(execution: Execution, wait: Wait, now: int) -> tuple[int | None, str]:
    """The caller's timeout, or the one of the execution's policy."""
    if wait.timeout_at_ms is not None or not execution.policy:
        return wait.timeout_at_ms, wait.timeout_behavior
    try:
        policy = read_policy(execution.policy).suspension_policy
    except Validation:
        policy = None
    if policy is None or policy.default_timeout_ms is None:
        return None, wait.timeout_behavior
    return saturate(now + policy.default_timeout_ms), policy.timeout_behavior


def _details(wait: Wait, bound: Bound) -> SuspendOutcomeDetails:
    primary, *others = bound.rows
    return SuspendOutcomeDetails(
        wait.suspension_id,
        primary.waitpoint_id,
        primary.waitpoint_key,
        Token(primary.token),
        tuple(WaitpointCredential(row.waitpoint_id, row.waitpoint_key, Token(row.token)) for row in others),
    )


def payload_of(execution: Execution, attempt: Attempt) -> HandlePayload:
    """The content of the holder's handle, from the rows."""
    since = attempt.renewed_at_ms if attempt.renewed_at_ms is not None else attempt.started_at_ms or 0
    return HandlePayload(
        execution_id=execution.execution_id,
        attempt_index=attempt.attempt_index,
        attempt_id=attempt.attempt_id or "",
        lease_id=attempt.lease_id or "",
        lease_epoch=attempt.lease_epoch,
        lease_ttl_ms=max((attempt.lease_expires_at_ms or 0) - since, 1),
        lane_id=execution.lane_id,
        worker_instance_id=attempt.worker_instance_id or "",
    )


# -- the operation ---------------------------------------------------------------------------------------------------


class Suspend(Struct, gc=False):
    """A holder, by its handle or by a fence, suspends its execution. ``entropy`` is for a first signing key."""

    execution_id: str
    partition: int
    uuid: str
    handle: HandlePayload | None
    handle_kind: HandleKind
    fence: LeaseFence | None
    wait: Wait
    idempotency_key: str
    entropy: bytes

    def fresh_waitpoints(self) -> Iterator[str]:
        """Ids of the waitpoints that do not exist yet."""
        return (each.waitpoint_id for each in self.wait.waitpoints if each.waitpoint_key is not None)

    def needs(self) -> tuple[Need, ...]:
        needs: list[Need] = [
            Get(Execution, self.execution_id),
            CURRENT_KEY,
            Get(Suspension, (self.partition, self.uuid)),
        ]
        needs += [Get(Waitpoint, (self.partition, each.waitpoint_id)) for each in self.wait.waitpoints]
        if self.idempotency_key:
            needs.append(Get(SuspendDedup, (self.partition, self.idempotency_key)))
        return tuple(needs)


def suspend(command: Suspend, view: View, context: Context) -> Decision:
    """Suspended, or, if signals that came early satisfy the condition, not at all. Repeated, the first answer."""
    known = view.get(SuspendDedup, (command.partition, command.idempotency_key)) if command.idempotency_key else None
    if known is not None and known.created_at_ms > context.now - DEDUP_MS:
        document = msgspec.json.decode(known.outcome_json)
        if not _is_anothers(document, command):
            return Decision(_remembered(document, context))
    execution, attempt = _holder(command, view, context)
    older = forgotten(view, execution, command.wait.suspension_id)
    bound = bound_waitpoints(view, context, execution, command.wait, command.entropy)
    decision = (
        _suspended(command, view, context, execution, attempt, bound)
        if bound.closer is None
        else _satisfied(command, view, context, execution, attempt, bound)
    )
    if command.idempotency_key:
        decision.acts += (_remembering(command, decision.result, known, attempt, context.now),)
    decision.acts += older
    return decision


def _holder(command: Suspend, view: View, context: Context) -> tuple[Execution, Attempt]:
    if command.handle is not None:
        return lease.held(view, command.handle, context)
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    return fenced(Fence(command.execution_id, execution.attempt_index, command.fence, overridable=False), view, context)


def _suspended(
    command: Suspend, view: View, context: Context, execution: Execution, attempt: Attempt, bound: Bound
) -> Decision:
    parked = _parked(view, context, execution, attempt, command.wait, bound, command.handle)
    return Decision(
        Suspended(parked.details, parked.handle),
        parked.acts,
        parked.events,
        ((execution.execution_id, attempt.attempt_index),),
    )


def _satisfied(
    command: Suspend, view: View, context: Context, execution: Execution, attempt: Attempt, bound: Bound
) -> Decision:
    """The condition holds already: a closed record of it, closed waitpoints, and the lease stays."""
    now = context.now
    closing = waits.closed_fields(now, waits.Closing(waits.RESUMED, 0, bound.closer, bound.heard))
    shut = {"state": waits.CLOSED, "closed_at_ms": now, "close_reason": waits.RESUMED}
    closed = bound._replace(
        rows=tuple(replace(row, **shut) for row in bound.rows),
        fields=tuple(None if fields is None else tuple(dict.fromkeys((*fields, *shut))) for fields in bound.fields),
    )
    acts = (
        change(execution, signal_count=execution.signal_count or 0, last_mutation_at_ms=now),
        *closed.acts,
        *_recorded(view, context, execution, command.wait, bound, closing),
    )
    payload = command.handle or payload_of(execution, attempt)
    handle = Handle.of(context.tag, command.handle_kind, payload)
    return Decision(SuspendOutcome.AlreadySatisfied(_details(command.wait, bound), handle), acts)


# -- repeated calls --------------------------------------------------------------------------------------------------


def _remembering(command: Suspend, outcome: Any, known: SuspendDedup | None, attempt: Attempt, now: int) -> Act:
    details = outcome.details
    document = {
        "variant": type(outcome).__name__,
        "details": {
            "suspension_id": details.suspension_id,
            "waitpoint_id": details.waitpoint_id,
            "waitpoint_key": details.waitpoint_key,
            "token": details.waitpoint_token.reveal(),
            "extras": [
                (each.waitpoint_id, each.waitpoint_key, each.waitpoint_token.reveal())
                for each in details.additional_waitpoints
            ],
        },
        "handle_opaque_hex": outcome.handle.opaque.hex(),
        "handle_kind": outcome.handle.kind.value,
        "lease": (attempt.lease_epoch, attempt.lease_id),
    }
    row = SuspendDedup(command.partition, command.idempotency_key, waits.dump(document), now)
    if known is None:
        return insert(row)
    return change(known, outcome_json=row.outcome_json, created_at_ms=now)


def _is_anothers(document: dict[str, Any], command: Suspend) -> bool:
    """Whether the first answer went to another lease that had the caller's epoch. Only a store that has lost writes
    gives an epoch out twice; a call with another epoch gets the answer that the key stands for."""
    epoch, lease_id = document.get("lease") or (None, None)
    caller = command.handle or command.fence
    return caller is not None and caller.lease_epoch == epoch and lease_id not in (None, caller.lease_id)


def _remembered(document: dict[str, Any], context: Context) -> Suspended | SuspendOutcome.AlreadySatisfied:
    """The first answer again, as it was."""
    told = document["details"]
    details = SuspendOutcomeDetails(
        told["suspension_id"],
        told["waitpoint_id"],
        told["waitpoint_key"],
        Token(told["token"]),
        tuple(WaitpointCredential(one, name, Token(token)) for one, name, token in told["extras"]),
    )
    handle = Handle(context.tag, HandleKind(document["handle_kind"]), bytes.fromhex(document["handle_opaque_hex"]))
    if document["variant"] == Suspended.__name__:
        return Suspended(details, handle)
    return SuspendOutcome.AlreadySatisfied(details, handle)
