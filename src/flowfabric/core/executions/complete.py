"""The holder's own endings: complete and fail, with their repeatable answers.

A terminal call repeated after a lost reply finds its own attempt as it left it and gets the first answer again,
without a second write.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.admission import release
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.executions.end import concluded
from flowfabric.core.executions.terminal import ended
from flowfabric.core.leases import lease
from flowfabric.core.leases.fence import Fence, fenced
from flowfabric.core.suspension.waits import NEVER_COMMITTED, waits_dropped
from flowfabric.core.workflows.steps import Brought, remembered
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, Get, Need, change
from flowfabric.model.events import LeaseEvent
from flowfabric.model.handles import HandlePayload
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import Completed, FailOutcome, RetryScheduled, TerminalFailed
from flowfabric.model.policy import RetryPolicy, backoff_delay_ms, read_policy, read_retry_policy
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.states import PublicState

#: Failure classes that are worth another attempt; an unknown class is treated like the first of them.
RETRYABLE_CLASSES = frozenset({"transient", "infra_crash"})
FINAL_CLASSES = frozenset({"permanent", "timeout", "cancelled"})


class Complete(Struct, gc=False):
    """The holder is done."""

    handle: HandlePayload
    payload: bytes | None
    #: Steps that ended last, remembered by the same commit.
    brought: Brought | None = None

    def needs(self) -> tuple[Need, ...]:
        own = Get(Execution, self.handle.execution_id)
        return (own,) if self.brought is None else (own, *self.brought.needs())


def complete(command: Complete, view: View, context: Context) -> Decision:
    """The execution ends with success and its result."""
    payload = command.handle
    execution = view.execution(payload.execution_id)
    attempt = view.attempt(payload.execution_id, payload.attempt_index)
    error = lease.refusal(payload, execution, attempt, context.now)
    if error is not None:
        if _repeats(payload, attempt, lit.OUTCOME_SUCCESS):
            return Decision(None)
        raise error
    assert execution is not None and attempt is not None
    rows = () if command.brought is None else remembered(command.brought, payload, view, context)[1]
    return _completed(view, context, execution, attempt, command.payload, None, rows)


def _completed(
    view: View,
    context: Context,
    execution: Execution,
    attempt: Attempt,
    payload: bytes | None,
    result: object,
    rows: Sequence[Act] = (),
) -> Decision:
    now = context.now
    decision = Decision(
        result,
        (
            ended(execution, now, lit.PUBLIC_COMPLETED, lit.ENDED_SUCCESS, result=payload),
            lease.closed(attempt, outcome=lit.OUTCOME_SUCCESS, terminal_at_ms=now),
            *waits_dropped(view, execution, now, NEVER_COMMITTED),
            *rows,
        ),
        (
            lease.lease_event(
                context,
                execution,
                lit.LEASE_ENDED,
                attempt.attempt_index,
                attempt.lease_epoch,
                worker_instance_id=attempt.worker_instance_id,
                revoked_by=lit.BY_HOLDER,
            ),
        ),
        ((execution.execution_id, attempt.attempt_index),),
    )
    return concluded(view, context, decision, execution, attempt, lit.ENDED_SUCCESS, result=payload)


def _repeats(payload: HandlePayload, attempt: Attempt | None, outcome: str) -> bool:
    """Whether the handle's own attempt ended this way under the handle's own lease."""
    return (
        attempt is not None
        and attempt.lease_epoch == payload.lease_epoch
        and not lease.is_lost(attempt, payload.lease_id)
        and attempt.outcome == outcome
        and (attempt.attempt_id is None or attempt.attempt_id == payload.attempt_id)
    )


class CompleteExecution(Struct, gc=False):
    """``complete`` by id and fence, or by an operator without one."""

    fence: Fence
    payload: bytes | None

    def needs(self) -> tuple[Need, ...]:
        return self.fence.needs()


def complete_execution(command: CompleteExecution, view: View, context: Context) -> Decision:
    """As ``complete``; an operator's override skips the fence and nothing else."""
    execution, attempt = fenced(command.fence, view, context)
    answer = Completed(ExecutionId.unchecked(execution.execution_id), PublicState.COMPLETED)
    return _completed(view, context, execution, attempt, command.payload, answer)


class Fail(Struct, gc=False):
    """The holder gives up this attempt. ``jitter`` is a random factor for backoffs that ask for one."""

    handle: HandlePayload
    message: str
    category: str
    retryable: bool
    jitter: float
    #: Steps that ended last, remembered by the same commit.
    brought: Brought | None = None

    def needs(self) -> tuple[Need, ...]:
        own = Get(Execution, self.handle.execution_id)
        return (own,) if self.brought is None else (own, *self.brought.needs())


def fail(command: Fail, view: View, context: Context) -> Decision:
    """Another attempt, now or later, or the end; the stored policy and the failure's class decide."""
    payload = command.handle
    execution = view.execution(payload.execution_id)
    attempt = view.attempt(payload.execution_id, payload.attempt_index)
    error = lease.refusal(payload, execution, attempt, context.now)
    if error is not None:
        answer = _repeated_failure(view, payload, attempt)
        if answer is None:
            raise error
        return Decision(answer)
    assert execution is not None and attempt is not None
    # First: they may be refused, and what follows may not.
    rows = () if command.brought is None else remembered(command.brought, payload, view, context)[1]
    decision = _given_up(command, view, context, execution, attempt)
    return replace(decision, acts=(*decision.acts, *rows)) if rows else decision


def _given_up(command: Fail, view: View, context: Context, execution: Execution, attempt: Attempt) -> Decision:
    if not command.retryable:
        return _failed(view, context, execution, attempt, command.message)
    policy = read_policy(execution.policy).retry_policy
    if policy is None:
        return _retried(view, context, execution, attempt, command.message, 0, counts=False)
    return _by_policy(view, context, execution, attempt, command.message, command.category, policy, command.jitter)


def _repeated_failure(view: View, payload: HandlePayload, attempt: Attempt | None) -> FailOutcome | None:
    if _repeats(payload, attempt, lit.OUTCOME_FAILED):
        return TerminalFailed()
    if attempt is None or not _repeats(payload, attempt, lit.OUTCOME_RETRY):
        return None
    following = view.attempt(payload.execution_id, payload.attempt_index + 1)
    if following is not None and following.lease_epoch > 0:
        return None
    return RetryScheduled(attempt.retry_at_ms or 0, attempt.attempt_index + 1)


def _by_policy(
    view: View,
    context: Context,
    execution: Execution,
    attempt: Attempt,
    message: str,
    category: str,
    policy: RetryPolicy,
    jitter: float,
) -> Decision:
    categories = policy.retryable_categories
    if execution.retry_count >= policy.max_retries or (categories and category not in categories):
        return _failed(view, context, execution, attempt, message)
    delay_ms = backoff_delay_ms(policy.backoff, execution.retry_count, jitter)
    return _retried(view, context, execution, attempt, message, delay_ms, counts=True)


def _failed(view: View, context: Context, execution: Execution, attempt: Attempt, message: str) -> Decision:
    now = context.now
    decision = Decision(
        TerminalFailed(),
        (
            ended(
                execution,
                now,
                lit.PUBLIC_FAILED,
                lit.ENDED_FAILED,
                last_failure_message=message,
                failure_reason=message,
            ),
            lease.closed(attempt, outcome=lit.OUTCOME_FAILED, terminal_at_ms=now),
            *waits_dropped(view, execution, now, NEVER_COMMITTED),
        ),
        (_released(context, execution, attempt),),
        ((execution.execution_id, attempt.attempt_index),),
    )
    return concluded(view, context, decision, execution, attempt, lit.ENDED_FAILED)


def _retried(
    view: View, context: Context, execution: Execution, attempt: Attempt, message: str, delay_ms: int, *, counts: bool
) -> Decision:
    now = context.now
    wake = saturate(now + delay_ms)
    waiting = delay_ms > 0
    requeued = change(
        lease.raise_floor(execution, attempt),
        lifecycle_phase=lit.RUNNABLE,
        ownership_state=lit.UNOWNED,
        eligibility_state=lit.NOT_ELIGIBLE_UNTIL_TIME if waiting else lit.ELIGIBLE_NOW,
        public_state=lit.PUBLIC_DELAYED if waiting else lit.PUBLIC_WAITING,
        attempt_state=lit.PENDING_RETRY_ATTEMPT,
        blocking_reason=lit.WAITING_FOR_RETRY_BACKOFF if waiting else lit.WAITING_FOR_WORKER,
        attempt_index=execution.attempt_index + 1,
        delay_until_ms=wake if waiting else None,
        retry_count=execution.retry_count + 1 if counts else execution.retry_count,
        last_failure_message=message,
        failure_reason=message,
        pending_retry_reason=message,
        pending_previous_attempt_index=execution.attempt_index,
        last_mutation_at_ms=now,
    )
    return Decision(
        RetryScheduled(wake, execution.attempt_index + 1),
        (
            requeued,
            lease.closed(attempt, outcome=lit.OUTCOME_RETRY, terminal_at_ms=now, retry_at_ms=wake),
            *release.lapsed(view, context, execution, attempt),
        ),
        (_released(context, execution, attempt),),
        ((execution.execution_id, attempt.attempt_index),),
    )


def _released(context: Context, execution: Execution, attempt: Attempt) -> LeaseEvent:
    return lease.lease_event(
        context,
        execution,
        lit.LEASE_ENDED,
        attempt.attempt_index,
        attempt.lease_epoch,
        worker_instance_id=attempt.worker_instance_id,
        revoked_by=lit.BY_HOLDER,
    )


class FailExecution(Struct, gc=False):
    """``fail`` by id and fence, with the retry policy of the caller. An empty policy means no retries."""

    fence: Fence
    reason: str
    category: str
    retry_policy_json: str
    jitter: float

    def needs(self) -> tuple[Need, ...]:
        return self.fence.needs()


def fail_execution(command: FailExecution, view: View, context: Context) -> Decision:
    """As ``fail``, the given policy deciding instead of the stored one and the class."""
    execution, attempt = fenced(command.fence, view, context, attempt_first=True)
    policy = read_retry_policy(command.retry_policy_json)
    if policy is None:
        return _failed(view, context, execution, attempt, command.reason)
    return _by_policy(view, context, execution, attempt, command.reason, command.category, policy, command.jitter)
