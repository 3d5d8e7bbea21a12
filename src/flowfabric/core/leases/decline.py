"""A holder whose code does not know what it was given leaves it to workers that do.

While a new version is rolled out, or rolled back, workers of two versions serve a lane. What one of them does not know
is no failure: it is offered again, and fails only when every worker that is there has declined it for a while.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.leases import lease
from flowfabric.core.leases.hold import parked_until, stepped_back
from flowfabric.model import states as lit
from flowfabric.model.decisions import Decision, Get, Need
from flowfabric.model.handles import HandlePayload
from flowfabric.model.limits import DECLINED_MOST_MS, DECLINED_MS, DECLINED_PAUSE_MS
from flowfabric.model.operations.executions import Declined
from flowfabric.model.records.executions import Execution, Worker
from flowfabric.model.records.past_leases import LeaseEnd, PastLease

#: The first pause before it is offered again; each one is twice as long as the one before.
FIRST_PAUSE_MS = 250


class Decline(Struct, gc=False):
    """The holder knows no such task, or no such argument; ``workers`` are those that are alive."""

    handle: HandlePayload
    reason: str
    workers: tuple[Worker, ...]

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.handle.execution_id),)


def decline(command: Decline, view: View, context: Context) -> Decision:
    """The same attempt continues later, elsewhere; no try is counted. When all have been asked, for minutes, nothing
    changes, and the answer says so."""
    execution, attempt = lease.held(view, command.handle, context)
    before = declined(view, execution)
    asked = instances(before, command.handle.worker_instance_id)
    tried_ms = context.now - before[0].ended_at_ms if before else 0
    longest = DECLINED_MOST_MS if _others(command.workers, execution, asked) else DECLINED_MS
    if tried_ms >= longest:
        return Decision(Declined(None, asked))
    until = context.now + min(FIRST_PAUSE_MS << min(len(before), 20), DECLINED_PAUSE_MS)
    parked = parked_until(
        execution,
        context.now,
        eligibility_state=lit.NOT_ELIGIBLE_UNTIL_TIME,
        public_state=lit.PUBLIC_DELAYED,
        blocking_reason=lit.WAITING_FOR_CAPABLE_WORKER,
        delay_until_ms=until,
    )
    left = stepped_back(view, context, execution, attempt, parked, LeaseEnd.DECLINED, command.reason)
    left.result = Declined(until, asked)
    return left


def declined(view: View, execution: Execution) -> list[PastLease]:
    """The leases that workers have declined since something else happened, oldest first."""
    past = view.select(PastLease, partition=execution.partition, uuid=execution.uuid)
    found: list[PastLease] = []
    for each in sorted(past, key=lambda one: one.lease_epoch):
        if each.ended == LeaseEnd.DECLINED:
            found.append(each)
        else:
            found.clear()
    return found


def instances(leases: Iterable[PastLease], last: str = "") -> tuple[str, ...]:
    """The workers that held these leases, each once."""
    held = (each.worker_instance_id or "" for each in leases)
    return tuple(dict.fromkeys(each for each in (*(one for one in held if one != last), last) if each))


def _others(workers: Iterable[Worker], execution: Execution, asked: Iterable[str]) -> bool:
    """Whether some worker that could be given it has not been asked."""
    seen, needs = frozenset(asked), frozenset(execution.required_capabilities)
    return any(
        each.worker_instance_id not in seen
        and execution.lane_id in each.lanes
        and each.namespace == execution.namespace
        and needs.issubset(each.capabilities_csv.split(","))
        for each in workers
    )
