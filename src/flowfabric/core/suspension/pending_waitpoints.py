"""Waitpoints outside a suspension: created ahead of it, closed by hand, expired unused."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.leases import lease
from flowfabric.core.suspension import waits
from flowfabric.core.suspension.bound_waitpoints import new_waitpoint
from flowfabric.core.suspension.forgetting import forgotten
from flowfabric.core.suspension.signing import CURRENT_KEY, signing_key
from flowfabric.model.decisions import Decision, Get, Need, change, insert
from flowfabric.model.errors import Conflict, ConflictKind, Contention, ContentionKind, LimitReached, State, StateKind
from flowfabric.model.handles import HandlePayload
from flowfabric.model.limits import MAX_PENDING_WAITPOINTS
from flowfabric.model.operations.suspension import PendingWaitpoint
from flowfabric.model.records.executions import Execution, Waitpoint
from flowfabric.model.waitpoint_tokens import Token


class CreateWaitpoint(Struct, gc=False):
    """The holder wants a waitpoint before it suspends. ``entropy`` is for a first signing key."""

    handle: HandlePayload
    partition: int
    waitpoint_id: str
    waitpoint_key: str
    expires_in_ms: int
    entropy: bytes

    def fresh_waitpoints(self) -> tuple[str, ...]:
        """Ids of the waitpoints that do not exist yet."""
        return (self.waitpoint_id,)

    def needs(self) -> tuple[Need, ...]:
        return (
            Get(Execution, self.handle.execution_id),
            CURRENT_KEY,
            Get(Waitpoint, (self.partition, self.waitpoint_id)),
        )


def create_waitpoint(command: CreateWaitpoint, view: View, context: Context) -> Decision:
    """A pending waitpoint with its token; the execution goes on as before."""
    execution, _ = lease.held(view, command.handle, context)
    if view.get(Waitpoint, (execution.partition, command.waitpoint_id)) is not None:
        raise Conflict(ConflictKind.WAITPOINT_ALREADY_EXISTS, f"waitpoint {command.waitpoint_id}")
    waiting = waits.live_waitpoints(view, execution.partition, execution.uuid, (waits.PENDING,))
    if len(waiting) >= MAX_PENDING_WAITPOINTS:
        raise LimitReached("MAX_PENDING_WAITPOINTS", MAX_PENDING_WAITPOINTS)
    older = forgotten(view, execution, command.waitpoint_id)
    key, acts = signing_key(view, command.entropy, context.now)
    expires = saturate(context.now + command.expires_in_ms)
    waitpoint = new_waitpoint(
        execution,
        key,
        command.waitpoint_id,
        command.waitpoint_key,
        context.now,
        state=waits.PENDING,
        expires_at_ms=expires,
    )
    noted = change(execution, signal_count=execution.signal_count or 0, last_mutation_at_ms=context.now)
    return Decision(
        PendingWaitpoint(command.waitpoint_id, Token(waitpoint.token)), (*acts, insert(waitpoint), noted, *older)
    )


class CloseWaitpoint(Struct, gc=False):
    """Take no more signals on a waitpoint. An execution suspended on it stays suspended."""

    partition: int
    uuid: str
    waitpoint_id: str
    reason: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Waitpoint, (self.partition, self.waitpoint_id)),)


def close_waitpoint(command: CloseWaitpoint, view: View, context: Context) -> Decision:
    """Closed; one that is closed or expired already stays as it is."""
    waitpoint = view.get(Waitpoint, (command.partition, command.waitpoint_id))
    if waitpoint is None or waitpoint.uuid != command.uuid:
        raise Contention(ContentionKind.WAITPOINT_NOT_FOUND, f"waitpoint {command.waitpoint_id}")
    if waitpoint.state in (waits.CLOSED, waits.EXPIRED):
        return Decision(None)
    if waitpoint.state not in waits.OPEN_STATES:
        raise State(StateKind.WAITPOINT_NOT_OPEN, f"waitpoint {command.waitpoint_id} is {waitpoint.state}")
    return Decision(None, (waits.closed(waitpoint, context.now, command.reason),))


class ExpireWaitpoints(Struct, gc=False):
    """Look at the pending waitpoints of an execution."""

    partition: int
    uuid: str

    def needs(self) -> tuple[Need, ...]:
        return ()


def expire_waitpoints(command: ExpireWaitpoints, view: View, context: Context) -> Decision:
    """Those whose time is over expire; what they had heard stays on record."""
    now = context.now
    due = [
        waitpoint
        for waitpoint in waits.live_waitpoints(view, command.partition, command.uuid, (waits.PENDING,))
        if waitpoint.expires_at_ms is not None and waitpoint.expires_at_ms <= now
    ]
    acts = tuple(
        change(waitpoint, state=waits.EXPIRED, closed_at_ms=now, close_reason=waits.NEVER_COMMITTED)
        for waitpoint in due
    )
    return Decision(len(due), acts)
