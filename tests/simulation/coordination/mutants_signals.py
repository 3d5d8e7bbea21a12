"""Planted bugs in suspending, signalling and going on."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from flowfabric.core.executions import complete, due, terminal
from flowfabric.core.suspension import bound_waitpoints, resume, signals, signing, waits
from flowfabric.core.suspension.suspend import Suspend
from flowfabric.model import conditions, states as lit
from flowfabric.model.events import LeaseEvent, SignalEvent
from flowfabric.model.operations.suspension import TimeoutBehavior
from flowfabric.model.records.executions import Attempt, Execution, Signal, Suspension
from flowfabric.model.waitpoint_tokens import revealed
from tests.simulation.coordination.mutating import around, edited, mutant, without_events, without_fields

# -- tokens and keys -------------------------------------------------------------------------------------------------


def _authenticated(monkeypatch: Any, change: Any) -> None:
    old = signals.authenticated

    def authenticated(view: Any, token: str, execution_id: str, waitpoint: Any, wanted: str, now: int) -> None:
        change(old, view, token, execution_id, waitpoint, wanted, now)

    monkeypatch.setattr(signals, "authenticated", authenticated)


@mutant
def token_compare_accepts_a_prefix(monkeypatch: Any) -> None:
    def accept(old: Any, view: Any, token: str, execution_id: str, waitpoint: Any, *rest: Any) -> None:
        if not (token and waitpoint is not None and waitpoint.token.startswith(revealed(token))):
            old(view, token, execution_id, waitpoint, *rest)

    _authenticated(monkeypatch, accept)


@mutant
def digest_not_compared(monkeypatch: Any) -> None:
    monkeypatch.setattr(signing, "_digest", lambda key, execution_id, waitpoint_id: _Same("0" * 64))


class _Same(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


@mutant
def expired_key_accepted(monkeypatch: Any) -> None:
    _authenticated(monkeypatch, lambda old, *given: old(*given[:-1], 0))


@mutant
def expired_key_accepted_for_a_moment(monkeypatch: Any) -> None:
    _authenticated(monkeypatch, lambda old, *given: old(*given[:-1], given[-1] - 1))


@mutant
def rotation_leaves_no_grace(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        signing.RotateKey,
        lambda old, command, view, context: old(replace(command, grace_ms=0), view, context),
    )


# -- signals ---------------------------------------------------------------------------------------------------------


@mutant
def buffered_signals_are_lost(monkeypatch: Any) -> None:
    monkeypatch.setattr(bound_waitpoints, "_replayed", lambda *given: ({}, 0, None))


@mutant
def idempotency_key_ignored(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        signals.DeliverSignal,
        lambda old, command, view, context: old(replace(command, idempotency_key=""), view, context),
    )


@mutant
def repeated_signal_counts_again(monkeypatch: Any) -> None:
    old = signals._delivered_before

    def delivered_before(command: Any, view: Any, now: int) -> Any:
        return old(command, view, now) if command.remembers else None

    monkeypatch.setattr(signals, "_delivered_before", delivered_before)


@mutant
def late_signal_on_a_pending_waitpoint(monkeypatch: Any) -> None:
    old = signals._check_open
    monkeypatch.setattr(
        signals, "_check_open", lambda command, execution, waitpoint, now: old(command, execution, waitpoint, now - 1)
    )


@mutant
def one_signal_above_the_limit(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        signals.DeliverSignal,
        lambda old, command, view, context: old(
            replace(command, max_signals=command.max_signals and command.max_signals + 1), view, context
        ),
    )


@mutant
def signals_come_in_silence(monkeypatch: Any) -> None:
    edited(monkeypatch, signals.DeliverSignal, without_events(SignalEvent))


@mutant
def matchers_take_everything(monkeypatch: Any) -> None:
    monkeypatch.setattr(conditions, "accepts", lambda matcher, signal: True)


@mutant
def sources_are_told_apart_by_name_only(monkeypatch: Any) -> None:
    old = conditions._distinct

    def distinct(kind: Any, key: str, signal: Any) -> object:
        sources = kind == conditions.CountKind.DISTINCT_SOURCES
        return signal.source_identity if sources else old(kind, key, signal)

    monkeypatch.setattr(conditions, "_distinct", distinct)


@mutant
def one_of_all_is_enough(monkeypatch: Any) -> None:
    old = conditions.satisfied

    def satisfied(condition: Any, heard: Any) -> bool:
        if isinstance(condition, conditions.AllOf):
            return any(old(member, heard) for member in condition.members)
        return old(condition, heard)

    for module in (conditions, bound_waitpoints):
        monkeypatch.setattr(module, "satisfied", satisfied, raising=False)


# -- suspending and going on -----------------------------------------------------------------------------------------


@mutant
def suspended_holder_keeps_its_epoch(monkeypatch: Any) -> None:
    edited(monkeypatch, Suspend, without_fields(Attempt, "lease_epoch"))


@mutant
def suspending_in_silence(monkeypatch: Any) -> None:
    edited(monkeypatch, Suspend, without_events(LeaseEvent))


@mutant
def waitpoints_stay_open_after_the_resume(monkeypatch: Any) -> None:
    monkeypatch.setattr(waits, "owned_waitpoints", lambda *given: ())


@mutant
def resumed_twice(monkeypatch: Any) -> None:
    """An operator may resume what is not suspended any more."""

    def again(old: Any, command: Any, view: Any, context: Any) -> Any:
        execution = view.execution(command.execution_id)
        if execution is not None and execution.public_state == lit.PUBLIC_RESUMABLE:
            parked = replace(execution, lifecycle_phase=lit.SUSPENDED)
            view.put_loaded(Execution, command.execution_id, parked)
        return old(command, view, context)

    around(monkeypatch, resume.ResumeExecution, again)


@mutant
def resume_delay_ignored(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        resume.ResumeExecution,
        lambda old, command, view, context: old(replace(command, resume_delay_ms=0), view, context),
    )


@mutant
def delayed_resume_is_forgotten(monkeypatch: Any) -> None:
    edited(monkeypatch, due.PromoteDelayed, without_fields(Execution, "public_state"))


@mutant
def escalation_ends_the_execution(monkeypatch: Any) -> None:
    def end(old: Any, command: Any, view: Any, context: Any) -> Any:
        suspension = view.get(Suspension, (command.partition, command.uuid))
        if suspension is not None and suspension.timeout_behavior == TimeoutBehavior.ESCALATE:
            view.put_loaded(Suspension, suspension.key, replace(suspension, timeout_behavior="fail"))
        return old(command, view, context)

    around(monkeypatch, resume.TimeOutSuspension, end)


@mutant
def woken_without_a_reason(monkeypatch: Any) -> None:
    def edit(decision: Any) -> Any:
        kept = [act for act in decision.acts if not isinstance(getattr(act, "record", None), Signal)]
        return replace(decision, acts=tuple(kept))

    edited(monkeypatch, resume.TimeOutSuspension, edit)


@mutant
def expiry_fails_instead(monkeypatch: Any) -> None:
    old = resume._ended

    def ended(view: Any, context: Any, execution: Any, behavior: Any) -> Any:
        expired = behavior is TimeoutBehavior.EXPIRE
        return old(view, context, execution, TimeoutBehavior.FAIL if expired else behavior)

    monkeypatch.setattr(resume, "_ended", ended)


@mutant
def ends_leave_the_suspension_behind(monkeypatch: Any) -> None:
    for module in (terminal, complete):
        monkeypatch.setattr(module, "waits_dropped", lambda *given: ())
