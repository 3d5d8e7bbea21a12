"""Giving back: reservations when a lease ends, slots when the execution ends."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from flowfabric.core.admission import quotas
from flowfabric.core.admission.charge import Counters, levels, wake
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.model.decisions import Act, Change, Decision, Get, change
from flowfabric.model.records.budgets import LAPSED, OPEN, Budget, Reservation
from flowfabric.model.records.executions import Attempt, Execution


def lapsed(view: View, context: Context, execution: Execution, attempt: Attempt | None) -> tuple[Act, ...]:
    """What was reserved under a lease that ends now goes back. It may be folded, so the caller may not refuse
    afterwards."""
    if attempt is not None and attempt.reservation_count:
        lapse(view, context, execution, attempt)
    return ()


def freed(view: View, context: Context, execution: Execution, attempt: Attempt | None) -> tuple[Act, ...]:
    """What an execution that ends now gives back, its lease's reservations included. It may be folded, so the caller
    may not refuse afterwards."""
    if execution.quota_policy_id is not None:
        quotas.give_back(view, context, execution)
    if execution.guarded:
        quotas.leave_guarded(view, context, execution)
    return lapsed(view, context, execution, attempt)


# -- how what was reserved comes back: in full, at every level, when its lease ends in whatever way ------------------


def lapse(view: View, context: Context, execution: Execution, attempt: Attempt) -> None:
    """Everything still set aside under a lease that ends comes back. Folded at once: others of the same decision may
    give back to the same counters."""
    open_ones = view.select(Reservation, partition=execution.partition, uuid=execution.uuid, state=OPEN)
    mine = [each for each in open_ones if each.attempt_index == attempt.attempt_index]
    view.require(Get(Budget, each) for each in dict.fromkeys(each.budget_id for each in mine))
    known = [each for each in mine if view.get(Budget, each.budget_id) is not None]
    chains = {each.budget_id: levels(view, each.budget_id, None) for each in known}
    counters = Counters(view, context.now)
    for each in known:
        counters.load(chains[each.budget_id], held_by(each))
    for each in known:
        give_back(counters, chains[each.budget_id], each, {})
    acts: list[Act] = [ended(each, LAPSED, context.now) for each in mine]
    for chain in chains.values():
        wake(view, chain)
    view.fold(Decision(None, (*acts, *counters.acts())))


def held_by(reservation: Reservation) -> dict[str, int]:
    """What it still sets aside."""
    if reservation.state != OPEN:
        return {}
    amounts: dict[str, int] = msgspec.json.decode(reservation.amounts)
    return amounts


def give_back(counters: Counters, chain: Iterable[Budget], reservation: Reservation, used: dict[str, int]) -> None:
    """Free what is set aside, and of what was granted beyond a limit as much as was not used."""
    held = held_by(reservation)
    granted: dict[str, dict[str, int]] = msgspec.json.decode(reservation.granted) if held else {}
    for budget in chain:
        extra = granted.get(budget.budget_id, {})
        for dimension, amount in held.items():
            unused = max(amount - used.get(dimension, 0), 0)
            counters.add(budget, dimension, reserved=-amount, granted=-min(extra.get(dimension, 0), unused))


def ended(reservation: Reservation, state: str, now: int) -> Change:
    """The reservation holds nothing any more."""
    return change(reservation, state=state, closed_at_ms=now)
