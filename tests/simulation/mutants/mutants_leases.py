"""Planted bugs in leases, endings and retries."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from flowfabric.core.executions import cancel, complete, due, operator
from flowfabric.core.leases import fence, hold, lease, reclaim
from flowfabric.model.decisions import Decision, change
from flowfabric.model.errors import Contention, ContentionKind
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.records.executions import Attempt, Execution, Grant
from flowfabric.stores.keyed import entries
from tests.simulation.mutants.mutating import around, edited, mutant, without_drops, without_events, without_fields

# -- leases ----------------------------------------------------------------------------------------------------------


@mutant
def epoch_not_compared(monkeypatch: Any) -> None:
    old = lease.refusal

    def refusal(payload: Any, execution: Any, attempt: Any, now: int) -> Any:
        return old(replace(payload, lease_epoch=attempt.lease_epoch) if attempt else payload, execution, attempt, now)

    monkeypatch.setattr(lease, "refusal", refusal)


@mutant
def gate_forgets_the_lease_id(monkeypatch: Any) -> None:
    old = lease.refusal

    def refusal(payload: Any, execution: Any, attempt: Any, now: int) -> Any:
        return old(replace(payload, lease_id=attempt.lease_id) if attempt else payload, execution, attempt, now)

    monkeypatch.setattr(lease, "refusal", refusal)


@mutant
def fence_forgets_the_lease_id(monkeypatch: Any) -> None:
    monkeypatch.setattr(fence, "_is_lost", lambda fence, attempt: False)


@mutant
def lease_id_is_used_again(monkeypatch: Any) -> None:
    old = lease.grant

    def grant(context: Any, execution: Any, attempt: Any, terms: Any, *given: Any, **also: Any) -> Any:
        same = replace(terms, lease_id=attempt.lease_id) if attempt else terms
        return old(context, execution, attempt, same, *given, **also)

    monkeypatch.setattr(lease, "grant", grant)


@mutant
def expiry_not_compared(monkeypatch: Any) -> None:
    old = lease.refusal
    monkeypatch.setattr(lease, "refusal", lambda payload, execution, attempt, now: old(payload, execution, attempt, 0))


@mutant
def expiry_compared_one_off(monkeypatch: Any) -> None:
    old = lease.refusal
    monkeypatch.setattr(
        lease, "refusal", lambda payload, execution, attempt, now: old(payload, execution, attempt, now - 1)
    )


@mutant
def attempt_index_not_compared(monkeypatch: Any) -> None:
    old = lease.refusal

    def refusal(payload: Any, execution: Any, attempt: Any, now: int) -> Any:
        moved = replace(execution, attempt_index=payload.attempt_index) if execution else None
        return old(payload, moved, attempt, now)

    monkeypatch.setattr(lease, "refusal", refusal)


@mutant
def terminal_not_checked(monkeypatch: Any) -> None:
    old = lease.refusal

    def refusal(*given: Any) -> Any:
        error = old(*given)
        ended = isinstance(error, Contention) and error.kind is ContentionKind.EXECUTION_NOT_ACTIVE
        return None if ended else error

    monkeypatch.setattr(lease, "refusal", refusal)


@mutant
def claim_does_not_raise_the_epoch(monkeypatch: Any) -> None:
    monkeypatch.setattr(lease, "next_epoch", lambda execution, attempt: max(attempt.lease_epoch if attempt else 0, 1))


@mutant
def each_attempt_starts_at_epoch_one(monkeypatch: Any) -> None:
    monkeypatch.setattr(lease, "next_epoch", lambda execution, attempt: (attempt.lease_epoch if attempt else 0) + 1)


@mutant
def renewal_shortens_a_lease(monkeypatch: Any) -> None:
    def extended(context: Any, attempt: Any, ttl: int) -> Any:
        return change(attempt, lease_expires_at_ms=context.now + ttl, renewed_at_ms=context.now), context.now + ttl

    monkeypatch.setattr(hold, "_extended", extended)


@mutant
def renewal_is_not_announced(monkeypatch: Any) -> None:
    edited(monkeypatch, hold.Renew, without_events(LeaseEvent))


@mutant
def cancel_does_not_raise_the_epoch(monkeypatch: Any) -> None:
    old = lease.taken

    def taken(attempt: Any, **fields: Any) -> Any:
        return lease.closed(attempt, **fields) if fields.get("outcome") == "cancelled" else old(attempt, **fields)

    monkeypatch.setattr(lease, "taken", taken)


@mutant
def revoke_leaves_the_owner(monkeypatch: Any) -> None:
    edited(monkeypatch, operator.RevokeLease, without_fields(Attempt, "worker_instance_id"))


@mutant
def revoke_does_not_raise_the_epoch(monkeypatch: Any) -> None:
    edited(monkeypatch, operator.RevokeLease, without_fields(Attempt, "lease_epoch"))


@mutant
def delay_keeps_the_lease(monkeypatch: Any) -> None:
    edited(monkeypatch, hold.Delay, without_fields(Attempt, "worker_instance_id", "lease_expires_at_ms"))


@mutant
def lease_expires_early(monkeypatch: Any) -> None:
    def early(old: Any, command: Any, view: Any, context: Any) -> Any:
        execution = view.execution(command.execution_id)
        attempt = view.attempt(execution.execution_id, execution.attempt_index) if execution else None
        soon = attempt and attempt.lease_expires_at_ms and attempt.lease_expires_at_ms - 1 <= context.now
        if soon:
            view.put_loaded(Attempt, attempt.key, replace(attempt, lease_expires_at_ms=context.now))
        return old(command, view, context)

    around(monkeypatch, due.MarkLeaseExpired, early)


@mutant
def lease_expiry_is_not_counted(monkeypatch: Any) -> None:
    edited(monkeypatch, due.MarkLeaseExpired, without_fields(Execution, "lease_reclaim_count"))


@mutant
def grace_ignored(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        due.MarkLeaseExpired,
        lambda old, command, view, context: old(command, view, replace(context, reclaim_grace_ms=0)),
    )


# -- ending and trying again -----------------------------------------------------------------------------------------


@mutant
def retry_cap_ignored(monkeypatch: Any) -> None:
    old = complete._by_policy

    def by_policy(*given: Any) -> Any:
        return old(*(replace(each, max_retries=1_000) if hasattr(each, "max_retries") else each for each in given))

    monkeypatch.setattr(complete, "_by_policy", by_policy)


@mutant
def retry_categories_ignored(monkeypatch: Any) -> None:
    old = complete._by_policy

    def by_policy(*given: Any) -> Any:
        return old(
            *(replace(each, retryable_categories=()) if hasattr(each, "max_retries") else each for each in given)
        )

    monkeypatch.setattr(complete, "_by_policy", by_policy)


@mutant
def retry_does_not_advance(monkeypatch: Any) -> None:
    edited(monkeypatch, complete.Fail, without_fields(Execution, "attempt_index"))


@mutant
def completion_repeated_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(complete, "_repeats", lambda payload, attempt, outcome: False)


@mutant
def end_of_another_lease_is_a_repeat(monkeypatch: Any) -> None:
    old = complete._repeats

    def repeats(payload: Any, attempt: Any, outcome: str) -> bool:
        return old(replace(payload, lease_id=attempt.lease_id) if attempt else payload, attempt, outcome)

    monkeypatch.setattr(complete, "_repeats", repeats)


@mutant
def completion_repeated_runs_again(monkeypatch: Any) -> None:
    def again(old: Any, command: Any, view: Any, context: Any) -> Any:
        decision = old(command, view, context)
        if decision.acts:
            return decision
        execution = view.execution(command.handle.execution_id)
        attempt = view.attempt(command.handle.execution_id, command.handle.attempt_index)
        return complete._completed(view, context, execution, attempt, command.payload, None)

    around(monkeypatch, complete.Complete, again)


@mutant
def completion_event_missing(monkeypatch: Any) -> None:
    edited(monkeypatch, complete.Complete, without_events(CompletionEvent))


@mutant
def cancel_is_not_announced(monkeypatch: Any) -> None:
    edited(monkeypatch, cancel.CancelExecution, without_events(CompletionEvent))


@mutant
def anybody_may_cancel(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        cancel.CancelExecution,
        lambda old, command, view, context: old(replace(command, source="operator_override"), view, context),
    )


@mutant
def timeout_never_retries(monkeypatch: Any) -> None:
    monkeypatch.setattr(due, "_timed_out", lambda context, execution, attempt: Decision(False))


@mutant
def deadline_only_of_running_executions(monkeypatch: Any) -> None:
    def only(old: Any, command: Any, view: Any, context: Any) -> Any:
        execution = view.execution(command.execution_id)
        waits = execution is not None and execution.lifecycle_phase != "active"
        return Decision(False) if command.cause == due.EXECUTION_DEADLINE and waits else old(command, view, context)

    around(monkeypatch, due.ExpireExecution, only)


@mutant
def delay_promoted_early(monkeypatch: Any) -> None:
    def early(old: Any, command: Any, view: Any, context: Any) -> Any:
        execution = view.execution(command.execution_id)
        if execution is not None and execution.delay_until_ms is not None:
            view.put_loaded(Execution, command.execution_id, replace(execution, delay_until_ms=context.now))
        return old(command, view, context)

    around(monkeypatch, due.PromoteDelayed, early)
    monkeypatch.setattr(entries, "DELAY", entries.DEADLINE)


@mutant
def reclaim_cap_ignored(monkeypatch: Any) -> None:
    for module in (reclaim, due):
        monkeypatch.setattr(module, "reclaim_cap", lambda execution, asked: 1_000_000)


@mutant
def reclaim_grant_works_twice(monkeypatch: Any) -> None:
    edited(monkeypatch, reclaim.ReclaimExecution, without_drops(Grant))
