"""Going on without a signal: an operator resumes, or a suspension runs out of time."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, uuid_text
from flowfabric.core.executions.end import concluded
from flowfabric.core.executions.terminal import cancelled_row, current_attempt, ended, leftovers
from flowfabric.core.leases import lease
from flowfabric.core.suspension import waits
from flowfabric.core.workflows.parents import TIME_CAME
from flowfabric.model import states as lit
from flowfabric.model.conditions import with_signal
from flowfabric.model.decisions import Change, Decision, Get, Need, change, insert
from flowfabric.model.errors import NotFound, State, StateKind
from flowfabric.model.operations.suspension import Resumed, SuspensionReason, TimeoutBehavior
from flowfabric.model.records.executions import Execution, Signal, Suspension
from flowfabric.model.states import PublicState

#: What ``cancelled_by`` says when a suspension ran out of time.
BY_TIMEOUT = "suspension_timeout"


class ResumeExecution(Struct, gc=False):
    """Somebody decides that a suspended execution goes on, whatever it waits for."""

    execution_id: str
    partition: int
    uuid: str
    resume_delay_ms: int

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id), Get(Suspension, (self.partition, self.uuid)))


def resume_execution(command: ResumeExecution, view: View, context: Context) -> Decision:
    """Claimable again, at once or after the delay."""
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    if execution.lifecycle_phase != lit.SUSPENDED:
        raise State(
            StateKind.EXECUTION_NOT_SUSPENDED, f"execution {execution.execution_id} is {execution.public_state}"
        )
    suspension = view.get(Suspension, (command.partition, command.uuid))
    closing = waits.Closing(delay_ms=command.resume_delay_ms)
    acts = waits.resumed(view, context, execution, suspension, closing)
    state = PublicState.DELAYED if command.resume_delay_ms > 0 else PublicState.RESUMABLE
    return Decision(Resumed(state), acts)


class TimeOutSuspension(Struct, gc=False):
    """Look at a suspension that should have run out of time. ``entropy`` is for the id of a made-up signal."""

    execution_id: str
    partition: int
    uuid: str
    entropy: bytes

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id), Get(Suspension, (self.partition, self.uuid)))


def time_out_suspension(command: TimeOutSuspension, view: View, context: Context) -> Decision:
    """What the suspension's behaviour says; one that is unknown means ``fail``."""
    execution = view.execution(command.execution_id)
    suspension = view.get(Suspension, (command.partition, command.uuid))
    if (
        execution is None
        or suspension is None
        or suspension.closed_at_ms is not None
        or execution.lifecycle_phase != lit.SUSPENDED
        or suspension.timeout_at_ms is None
        or suspension.timeout_at_ms > context.now
    ):
        return Decision(False)
    match suspension.timeout_behavior:
        case TimeoutBehavior.ESCALATE:
            return _escalated(execution, suspension, context.now)
        case TimeoutBehavior.AUTO_RESUME if suspension.wake_after is not None:
            return Decision(True, waits.resumed(view, context, execution, suspension, waits.Closing(TIME_CAME)))
        case TimeoutBehavior.AUTO_RESUME:
            return _woken(view, context, execution, suspension, command.entropy)
        case TimeoutBehavior.CANCEL:
            return _ended(view, context, execution, TimeoutBehavior.CANCEL)
        case TimeoutBehavior.EXPIRE:
            return _ended(view, context, execution, TimeoutBehavior.EXPIRE)
        case _:
            return _ended(view, context, execution, TimeoutBehavior.FAIL)


def _escalated(execution: Execution, suspension: Suspension, now: int) -> Decision:
    """It stays suspended, now as an operator's business. Signals still work."""
    return Decision(
        True,
        (
            change(
                suspension,
                reason_code=str(SuspensionReason.WAITING_FOR_OPERATOR_REVIEW),
                timeout_at_ms=None,
                timeout_behavior=None,
            ),
            change(
                execution,
                blocking_reason=lit.PAUSED_BY_OPERATOR,
                blocking_detail=f"the suspension's deadline {suspension.timeout_at_ms} has passed",
                last_mutation_at_ms=now,
            ),
        ),
    )


def _woken(view: View, context: Context, execution: Execution, suspension: Suspension, entropy: bytes) -> Decision:
    """It goes on, and a made-up signal tells the holder why."""
    count = (execution.signal_count or 0) + 1
    signal = _timeout_signal(execution, suspension, uuid_text(entropy), waits.last_sequence(execution) + 1, context.now)
    heard = with_signal(waits.read_heard(suspension), waits.TIMEOUT_KEY, waits.heard_of(signal))
    closing = waits.Closing(waits.TIMED_OUT, 0, signal.signal_id, heard)
    acts: tuple[Change, ...] = waits.resumed(view, context, execution, suspension, closing, signal_count=count)
    return Decision(True, (insert(signal), *acts))


def _timeout_signal(execution: Execution, suspension: Suspension, signal_id: str, sequence: int, now: int) -> Signal:
    named = waits.read_terms(suspension).waitpoints
    return Signal(
        execution.partition,
        execution.uuid,
        signal_id,
        sequence,
        named[0] if named else suspension.suspension_id,
        waits.TIMEOUT_KEY,
        "timeout",
        "timeout",
        "system",
        "suspension_timeout",
        None,
        None,
        None,
        "json",
        "waitpoint",
        now,
        now,
        "timeout",
    )


def _ended(view: View, context: Context, execution: Execution, behavior: TimeoutBehavior) -> Decision:
    """The end of an execution nobody signalled in time."""
    now = context.now
    reason = f"suspension_timeout:{behavior}"
    attempt = current_attempt(view, execution)
    if behavior == TimeoutBehavior.CANCEL:
        over, outcome, ending = lit.OUTCOME_CANCELLED, lit.ENDED_CANCELLED, lit.NOT_APPLICABLE
        row = cancelled_row(execution, now, reason, BY_TIMEOUT, ending)
    else:
        expired = behavior == TimeoutBehavior.EXPIRE
        over = lit.OUTCOME_EXPIRED if expired else lit.OUTCOME_FAILED
        outcome = lit.ENDED_EXPIRED if expired else lit.ENDED_FAILED
        public = lit.PUBLIC_EXPIRED if expired else lit.PUBLIC_FAILED
        row = ended(execution, now, public, outcome, failure_reason=reason, last_failure_message=reason)
    attempts = () if attempt is None else (lease.taken(attempt, outcome=over, terminal_at_ms=now),)
    acts = (row, *attempts, *leftovers(view, execution, now, f"timed_out_{behavior}"))
    stream = ((execution.execution_id, execution.attempt_index),)
    return concluded(view, context, Decision(True, acts, (), stream), execution, attempt, outcome)
