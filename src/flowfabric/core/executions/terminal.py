"""The parts of an end: rows, the announcement, what is left behind. ``end`` puts them together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.leases import lease
from flowfabric.core.leases.grants import dropped_grants
from flowfabric.core.suspension.waits import has_waits, live_needs, waits_dropped
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Change, Get, Need, Select, change
from flowfabric.model.events import CompletionEvent, Event
from flowfabric.model.policy import read_policy
from flowfabric.model.records.executions import Attempt, Execution, Grant, Suspension


def ended(execution: Execution, now: int, public_state: str, outcome: str, **fields: object) -> Change:
    """The execution in phase ``terminal``; ``fields`` add what this end records."""
    if execution.blocking_reason is not None:
        fields["blocking_reason"] = None
    if execution.delay_until_ms is not None:
        fields["delay_until_ms"] = None
    if execution.admitted_at_ms is not None:
        fields["admitted_at_ms"] = None
    fields |= kept_until(execution, now)
    return change(
        execution,
        lifecycle_phase=lit.TERMINAL,
        ownership_state=lit.UNOWNED,
        eligibility_state=lit.NOT_APPLICABLE,
        public_state=public_state,
        attempt_state=lit.ATTEMPT_TERMINAL,
        terminal_at_ms=now,
        terminal_outcome=outcome,
        last_mutation_at_ms=now,
        **fields,
    )


def cancelled_row(execution: Execution, now: int, reason: str, by: str, eligibility: str) -> Change:
    """The execution in phase ``cancelled``. A reason or name that is there already stays."""
    return change(
        execution,
        lifecycle_phase=lit.CANCELLED,
        ownership_state=lit.UNOWNED,
        eligibility_state=eligibility,
        public_state=lit.PUBLIC_CANCELLED,
        attempt_state=lit.ATTEMPT_CANCELLED,
        blocking_reason=None,
        delay_until_ms=None,
        terminal_at_ms=now if execution.terminal_at_ms is None else execution.terminal_at_ms,
        terminal_outcome=lit.ENDED_CANCELLED,
        cancellation_reason=execution.cancellation_reason or reason,
        cancelled_by=execution.cancelled_by or by,
        last_mutation_at_ms=now,
        **({} if execution.admitted_at_ms is None else {"admitted_at_ms": None}),
        **kept_until(execution, now),
    )


def kept_until(execution: Execution, now: int) -> dict[str, object]:
    """When an execution that ends now may be deleted, if its own policy says so."""
    own = read_policy(execution.policy).retention_ttl_ms if execution.policy else None
    return {} if own is None else {"purge_at_ms": saturate(now + own)}


def completion(execution: Execution, now: int, outcome: str, *, dispatched: bool) -> CompletionEvent:
    """The announcement of an end; ``dispatched`` once nothing that depends on it is left to move."""
    return CompletionEvent(
        execution.partition,
        execution.uuid,
        execution.flow_id,
        outcome,
        execution.namespace,
        execution.instance_tag,
        now,
        now if dispatched else None,
    )


def leftovers(view: View, execution: Execution, now: int, close_reason: str) -> tuple[Act, ...]:
    """What an execution that did not end by its holder leaves behind: grants, its suspension, open waitpoints."""
    return (*dropped_grants(view, execution), *waits_dropped(view, execution, now, close_reason))


def leftover_needs(executions: Iterable[Execution]) -> Iterator[Need]:
    """What ``leftovers`` of several executions will look at, so that it can be asked for together."""
    for execution in executions:
        where = (execution.partition, execution.uuid)
        if execution.eligibility_state == lit.PENDING_CLAIM:
            yield Select(Grant, ("partition", "uuid"), where)
        if has_waits(execution):
            yield Get(Suspension, where)
            yield from live_needs(*where)


def lost_lease(
    context: Context, execution: Execution, attempt: Attempt | None, event_type: str, revoked_by: str | None
) -> tuple[Event, ...]:
    """The lease event of an end that took a live lease away; nothing if none stood."""
    if attempt is None or not lease.is_live(attempt):
        return ()
    return (
        lease.lease_event(
            context,
            execution,
            event_type,
            attempt.attempt_index,
            attempt.lease_epoch,
            worker_instance_id=attempt.worker_instance_id,
            revoked_by=revoked_by,
        ),
    )


def current_attempt(view: View, execution: Execution) -> Attempt | None:
    """The attempt row the execution points at, if it was ever started."""
    return view.attempt(execution.execution_id, execution.attempt_index)
