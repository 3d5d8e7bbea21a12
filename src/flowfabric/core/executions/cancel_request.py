"""Asking an execution to end: its code is called once more and may clean up, for as long as its policy says.
Then it is ended anyway.

Only an execution that says so when it is created, and whose code has run before, is asked; any other one is cancelled
at once. The limit is the execution's deadline from then on, so that the timer of deadlines ends what nobody runs.
"""

from __future__ import annotations

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.suspension import waits
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, change
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import Cancelling
from flowfabric.model.policy import read_policy
from flowfabric.model.records.executions import Execution, Suspension

#: What ``cancelled_by`` says when the execution that had started it gave it up.
BY_PARENT = "parent"
#: Why a parked execution goes on.
CANCEL_REQUESTED = "cancel_requested"


def is_asked(execution: Execution) -> bool:
    """Whether it was asked to cancel and has not yet."""
    return execution.cancel_at_ms is not None and execution.lifecycle_phase not in lit.ENDED_PHASES


def can_be_asked(execution: Execution) -> bool:
    """Whether it may go on for a while; if not, it is cancelled at once."""
    if execution.lifecycle_phase in lit.ENDED_PHASES or not execution.total_attempt_count:
        return False
    return bool(read_policy(execution.policy).cancel_grace_ms)


def asked(view: View, context: Context, execution: Execution, reason: str, by: str) -> Decision | None:
    """The request, made once: what waits goes on at once, what is held hears of it there. ``None`` if the execution
    cannot be asked."""
    if is_asked(execution):
        return Decision(_answer(execution, execution.cancel_at_ms))
    if not can_be_asked(execution):
        return None
    until = saturate(context.now + (read_policy(execution.policy).cancel_grace_ms or 0))
    if execution.deadline_at_ms is not None:
        until = min(until, execution.deadline_at_ms)
    fields: dict[str, object] = {
        "cancel_at_ms": until,
        "deadline_at_ms": until,
        "cancellation_reason": reason,
        "cancelled_by": by,
    }
    answer = _answer(execution, until)
    if execution.lifecycle_phase == lit.SUSPENDED:
        suspension = view.get(Suspension, (execution.partition, execution.uuid))
        closing = waits.Closing(CANCEL_REQUESTED)
        return Decision(answer, waits.resumed(view, context, execution, suspension, closing, **fields))
    delayed = execution.eligibility_state == lit.NOT_ELIGIBLE_UNTIL_TIME
    if delayed and execution.lifecycle_phase in lit.WAITING_PHASES:
        fields |= _due_now(execution)
    acts: tuple[Act, ...] = (change(execution, last_mutation_at_ms=context.now, **fields),)
    return Decision(answer, acts)


def _answer(execution: Execution, until: int | None) -> Cancelling:
    return Cancelling(ExecutionId.unchecked(execution.execution_id), until or 0)


def _due_now(execution: Execution) -> dict[str, object]:
    """A pause before another attempt is over."""
    resumed = execution.blocking_reason == lit.WAITING_FOR_RESUME_DELAY
    return {
        "lifecycle_phase": lit.RUNNABLE,
        "eligibility_state": lit.ELIGIBLE_NOW,
        "public_state": lit.PUBLIC_RESUMABLE if resumed else lit.PUBLIC_WAITING,
        "blocking_reason": lit.WAITING_FOR_WORKER,
        "delay_until_ms": None,
    }
