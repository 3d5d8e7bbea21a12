"""Keeping an execution from being claimed for a reason, and letting it go again."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.flows.edges import waits_for_members
from flowfabric.core.leases.grants import dropped_grants
from flowfabric.model import states as lit
from flowfabric.model.decisions import Decision, Get, Need, change
from flowfabric.model.errors import Contention, ContentionKind, NotFound, Validation, ValidationKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import Blocked, Rejected, Unblocked
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import Execution
from flowfabric.model.states import PublicState

#: What each reason blocks by, and the public state that follows from it.
BLOCKS = {
    lit.WAITING_FOR_BUDGET: (lit.BLOCKED_BY_BUDGET, lit.PUBLIC_RATE_LIMITED),
    lit.WAITING_FOR_QUOTA: (lit.BLOCKED_BY_QUOTA, lit.PUBLIC_RATE_LIMITED),
    lit.WAITING_FOR_CAPABLE_WORKER: (lit.BLOCKED_BY_ROUTE, lit.PUBLIC_WAITING),
    lit.PAUSED_BY_OPERATOR: (lit.BLOCKED_BY_OPERATOR, lit.PUBLIC_WAITING),
    lit.PAUSED_BY_POLICY: (lit.BLOCKED_BY_LANE_STATE, lit.PUBLIC_WAITING),
}


class BlockExecution(Struct, gc=False):
    """Keep a runnable execution from being claimed."""

    execution_id: str
    reason: str
    detail: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def block_execution(command: BlockExecution, view: View, context: Context) -> Decision:
    """Blocked with its reason, or the reason why not; an unknown reason is an error."""
    block = BLOCKS.get(command.reason)
    if block is None:
        raise Validation(
            ValidationKind.INVALID_BLOCKING_REASON, f"{quoted(command.reason)}; one of {', '.join(BLOCKS)}"
        )
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    if execution.lifecycle_phase not in lit.WAITING_PHASES:
        ended = execution.lifecycle_phase in lit.ENDED_PHASES
        kind = ContentionKind.EXECUTION_NOT_ACTIVE if ended else ContentionKind.EXECUTION_NOT_ELIGIBLE
        return Decision(Rejected(kind.value))
    eligibility, public_state = block
    blocked = change(
        execution,
        lifecycle_phase=lit.RUNNABLE,
        ownership_state=lit.UNOWNED,
        eligibility_state=eligibility,
        public_state=public_state,
        blocking_reason=command.reason,
        blocking_detail=command.detail,
        blocked_by=None,
        # An unblocked row is eligible at once; a wake time left behind would keep timers looking at it.
        delay_until_ms=None,
        last_mutation_at_ms=context.now,
    )
    shown = ExecutionId.unchecked(execution.execution_id)
    return Decision(Blocked(shown, eligibility, command.reason), (*dropped_grants(view, execution), blocked))


class UnblockExecution(Struct, gc=False):
    """Let a blocked execution go, if it is still blocked for the reason the caller knows of."""

    execution_id: str
    expected_blocking_reason: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def unblock_execution(command: UnblockExecution, view: View, context: Context) -> Decision:
    """Claimable again, unless members it depends on are still at work; the attempt state stays."""
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    reason = execution.blocking_reason or "none"
    if (
        execution.lifecycle_phase not in lit.WAITING_PHASES
        or execution.eligibility_state not in lit.ADMISSION_BLOCKS
        or (command.expected_blocking_reason and command.expected_blocking_reason != reason)
    ):
        raise Contention(
            ContentionKind.EXECUTION_NOT_ELIGIBLE,
            f"execution {execution.execution_id} is {execution.eligibility_state} ({reason})",
        )
    held = waits_for_members(view, execution)
    freed = change(
        execution,
        ownership_state=lit.UNOWNED,
        eligibility_state=lit.BLOCKED_BY_DEPENDENCIES if held else lit.ELIGIBLE_NOW,
        public_state=lit.PUBLIC_WAITING_CHILDREN if held else lit.PUBLIC_WAITING,
        blocking_reason=lit.WAITING_FOR_CHILDREN if held else lit.WAITING_FOR_WORKER,
        blocking_detail=None,
        last_mutation_at_ms=context.now,
    )
    public = PublicState.WAITING_CHILDREN if held else PublicState.WAITING
    return Decision(Unblocked(ExecutionId.unchecked(execution.execution_id), public), (freed,))
