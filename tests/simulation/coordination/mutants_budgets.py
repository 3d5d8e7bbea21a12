"""Planted bugs in charging, reserving and being admitted."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from flowfabric.core.admission import admit, budgets, charge, quotas, release, reservations
from flowfabric.core.admission.budgets import RecordSpend, ReleaseBudget, ReportUsage, ResetBudget
from flowfabric.core.admission.quotas import ReleaseAdmission
from flowfabric.model.decisions import Change
from flowfabric.model.records.budgets import Budget, BudgetSpend, BudgetUsage
from flowfabric.model.records.executions import Execution
from tests.simulation.coordination.mutating import around, edited, mutant, without_drops, without_fields

# -- charging --------------------------------------------------------------------------------------------------------


def _breach(monkeypatch: Any, change: Any) -> None:
    old = charge.first_breach

    def first_breach(counters: Any, chain: Any, amounts: Any) -> Any:
        return change(old, counters, chain, amounts)

    for module in (charge, budgets, reservations):
        monkeypatch.setattr(module, "first_breach", first_breach)


@mutant
def hard_limit_off_by_one(monkeypatch: Any) -> None:
    def spare(old: Any, counters: Any, chain: Any, amounts: Any) -> Any:
        return old(counters, chain, {name: amount - 1 for name, amount in amounts.items()})

    _breach(monkeypatch, spare)


@mutant
def only_the_nearest_budget_refuses(monkeypatch: Any) -> None:
    _breach(monkeypatch, lambda old, counters, chain, amounts: old(counters, chain[:1], amounts))


@mutant
def only_the_nearest_budget_is_charged(monkeypatch: Any) -> None:
    old = charge.apply
    for module in (charge, budgets):
        monkeypatch.setattr(module, "apply", lambda counters, chain, amounts: old(counters, chain[:1], amounts))


@mutant
def warning_budget_refuses(monkeypatch: Any) -> None:
    monkeypatch.setattr(charge, "refuses", lambda budget, terms: True)


@mutant
def reported_twice_under_one_key(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        ReportUsage,
        lambda old, command, view, context: old(replace(command, key=""), view, context),
    )


@mutant
def refused_charge_leaves_no_record(monkeypatch: Any) -> None:
    for kind in (ReportUsage, RecordSpend):
        edited(monkeypatch, kind, without_fields(Budget, "breach_count"))


@mutant
def spending_is_not_on_the_ledger(monkeypatch: Any) -> None:
    def edit(decision: Any) -> Any:
        kept = [act for act in decision.acts if type(getattr(act, "record", None)) is not BudgetSpend]
        return replace(decision, acts=tuple(kept))

    edited(monkeypatch, RecordSpend, edit)


@mutant
def given_back_again_and_again(monkeypatch: Any) -> None:
    edited(monkeypatch, ReleaseBudget, without_drops(BudgetSpend))


@mutant
def reset_keeps_what_was_spent(monkeypatch: Any) -> None:
    edited(monkeypatch, ResetBudget, without_fields(BudgetUsage, "current_value"))


# -- reservations ----------------------------------------------------------------------------------------------------


@mutant
def reservation_stays_when_the_lease_ends(monkeypatch: Any) -> None:
    monkeypatch.setattr(release, "lapsed", lambda *given: ())


@mutant
def lapsed_amounts_stay_set_aside(monkeypatch: Any) -> None:
    monkeypatch.setattr(release, "give_back", lambda *given: None)


@mutant
def settling_keeps_the_rest(monkeypatch: Any) -> None:
    old = reservations.give_back

    def give_back(counters: Any, chain: Any, reservation: Any, used: Any) -> None:
        if not used:
            old(counters, chain, reservation, used)

    monkeypatch.setattr(reservations, "give_back", give_back)


@mutant
def reserved_amounts_do_not_count(monkeypatch: Any) -> None:
    def blind(old: Any, counters: Any, chain: Any, amounts: Any) -> Any:
        class Blind:
            def row(self, budget: Any, dimension: str) -> Any:
                return replace(counters.row(budget, dimension), reserved_value=0)

        return old(Blind(), chain, amounts)

    _breach(monkeypatch, blind)


# -- admission -------------------------------------------------------------------------------------------------------


@mutant
def used_up_budget_admits(monkeypatch: Any) -> None:
    monkeypatch.setattr(admit, "exhausted", lambda view, budget: None)


@mutant
def budget_above_is_not_asked(monkeypatch: Any) -> None:
    old = admit._levels_named

    def levels_named(view: Any, execution: Any) -> Any:
        return (pair for pair in old(view, execution) if charge.ancestors(pair[0]))

    monkeypatch.setattr(admit, "_levels_named", levels_named)


@mutant
def nobody_is_let_go(monkeypatch: Any) -> None:
    monkeypatch.setattr(admit, "_let_one_go", lambda *given: False)


@mutant
def let_go_without_room(monkeypatch: Any) -> None:
    """When there is room in one thing, nobody asks for the rest."""
    old = admit._let_one_go

    def let_one_go(view: Any, context: Any, execution: Any, *more: Any) -> bool:
        with monkeypatch.context() as patching:
            patching.setattr(admit, "would_deny", lambda *given: None)
            return old(view, context, execution, *more)

    monkeypatch.setattr(admit, "_let_one_go", let_one_go)


@mutant
def slot_stays_taken_at_the_end(monkeypatch: Any) -> None:
    monkeypatch.setattr(quotas, "give_back", lambda *given: None)


@mutant
def slot_freed_only_by_the_clock(monkeypatch: Any) -> None:
    def edit(decision: Any) -> Any:
        kept = [act for act in decision.acts if not (isinstance(act, Change) and type(act.record) is not Execution)]
        return replace(decision, acts=tuple(kept))

    edited(monkeypatch, ReleaseAdmission, edit)


def _full(monkeypatch: Any, change: Any) -> None:
    old = quotas.full
    monkeypatch.setattr(
        quotas,
        "full",
        lambda view, context, policy, terms, *more: old(view, context, policy, change(terms), *more),
    )


@mutant
def one_slot_too_many(monkeypatch: Any) -> None:
    _full(
        monkeypatch, lambda terms: replace(terms, concurrency_cap=terms.concurrency_cap and terms.concurrency_cap + 1)
    )


@mutant
def window_a_moment_too_long(monkeypatch: Any) -> None:
    """An entry that has just left the window still counts."""
    _full(monkeypatch, lambda terms: replace(terms, window_ms=terms.window_ms + 1))


@mutant
def window_forgets_those_who_left_early(monkeypatch: Any) -> None:
    """What ends takes its entry along, as if it had never asked."""

    old = quotas.give_back

    def give_back(view: Any, context: Any, execution: Any) -> None:
        policy = view.get(quotas.QuotaPolicy, execution.quota_policy_id)
        guard = None if policy is None else quotas.guard_of(view, policy, execution)
        if guard is not None:
            view.fold(quotas.Decision(None, (quotas.Drop(quotas._entry(guard)),)))
        old(view, context, execution)

    monkeypatch.setattr(quotas, "give_back", give_back)


@mutant
def admitted_twice(monkeypatch: Any) -> None:
    """Whoever asks again takes another entry of the window."""
    old = quotas.carried_guard

    def carried_guard(policy: Any, execution: Any) -> Any:
        guard = old(policy, execution)
        return guard if guard is None else replace(guard, expires_at_ms=guard.admitted_at_ms)

    monkeypatch.setattr(quotas, "carried_guard", carried_guard)


@mutant
def slot_of_an_unnamed_quota_stays(monkeypatch: Any) -> None:
    monkeypatch.setattr(quotas, "leave_guarded", lambda view, context, execution: None)
