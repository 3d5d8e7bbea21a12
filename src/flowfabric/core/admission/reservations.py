"""Reserve first, settle later: amounts set aside under a lease count against every level's hard limit from then on.

A reservation belongs to one lease. When that ends, in whatever way, what is still set aside comes back in the same
commit.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from flowfabric.core.admission import budget_asks, charge
from flowfabric.core.admission.charge import Counters, breached, first_breach, levels, soft_breach, wake
from flowfabric.core.admission.release import ended, give_back, held_by
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.leases import lease
from flowfabric.core.ownership import owners
from flowfabric.core.suspension.suspend import suspended
from flowfabric.model.decisions import Act, Change, Decision, Drop, Get, Need, change, insert
from flowfabric.model.errors import NotFound
from flowfabric.model.handles import HandlePayload
from flowfabric.model.operations.budgets import (
    AlreadyApplied,
    BudgetAsked,
    HardBreach,
    ReservationReleased,
    Reserved,
    Settled,
)
from flowfabric.model.ownership import shown_id
from flowfabric.model.records.budgets import LAPSED, OPEN, RELEASED, SETTLED, Budget, BudgetUsage, Reservation
from flowfabric.model.records.executions import Attempt, Execution


class ReserveBudget(Struct, gc=False):
    """Set amounts aside. ``reservation_id`` is used if a new reservation is made."""

    handle: HandlePayload
    budget_id: str
    amounts: dict[str, int]
    key: str
    reservation_id: str
    #: For the suspension and the waitpoint of a question, and for a first signing key.
    suspension_id: str
    waitpoint_id: str
    entropy: bytes

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.handle.execution_id), Get(Budget, self.budget_id))


def reserve_budget(command: ReserveBudget, view: View, context: Context) -> Decision:
    """Set aside at every level, or refused as a whole by the first hard limit. A budget that asks suspends the
    execution instead, and lets the same amounts through once they are approved."""
    execution, attempt = lease.held(view, command.handle, context)
    chain = levels(view, owners.as_named_by(execution, command.budget_id), execution.namespace)
    named = chain[0].budget_id
    key = f"reserve:{execution.execution_id}:{command.key}" if command.key else ""
    if key:
        answer = _before(view, context, chain[0], key, attempt)
        if answer is not None:
            return Decision(answer)
    amounts = dict(sorted(command.amounts.items()))
    counters = Counters(view, context.now)
    counters.load(chain, amounts)
    counters.make_room(chain, amounts)
    breach = first_breach(counters, chain, amounts)
    granted: dict[str, dict[str, int]] = {}
    drops: tuple[Act, ...] = ()
    if breach is not None and budget_asks.asks(breach[0]):
        told = budget_asks.answer(view, execution, named, amounts)
        if told is None:
            return _asked(command, view, context, execution, attempt, named, amounts, breach)
        drops = (Drop(told.ask),)
        if told.approved:
            granted = budget_asks.grant(counters, chain, amounts)
            breach = first_breach(counters, chain, amounts)
    if breach is not None:
        return Decision(breach[1], (breached(view, *breach, context.now), *drops))
    for budget in chain:
        for dimension, amount in amounts.items():
            counters.add(budget, dimension, reserved=amount)
    reservation = Reservation(
        command.reservation_id,
        execution.partition,
        execution.uuid,
        attempt.attempt_index,
        attempt.lease_epoch,
        named,
        msgspec.json.encode(amounts).decode(),
        OPEN,
        context.now,
        granted=msgspec.json.encode(granted).decode(),
    )
    acts: list[Act] = [
        *drops,
        insert(reservation),
        change(attempt, reservation_count=attempt.reservation_count + 1),
        *counters.acts(),
    ]
    if key:
        outcome = {"reservation_id": command.reservation_id}
        acts.append(charge.remember(view, chain[0], key, context.now, outcome))
    return Decision(Reserved(command.reservation_id, shown_id(named), amounts), tuple(acts))


def _asked(
    command: ReserveBudget,
    view: View,
    context: Context,
    execution: Execution,
    attempt: Attempt,
    named: str,
    amounts: dict[str, int],
    breach: tuple[Budget, HardBreach],
) -> Decision:
    """The execution waits for somebody to decide; its lease ends, and with it what else was reserved under it."""
    wait = budget_asks.question(command.suspension_id, command.waitpoint_id)
    parked = suspended(view, context, execution, attempt, wait, command.entropy, command.handle)
    recorded = budget_asks.recorded(view, execution, named, amounts, command.suspension_id, context.now)
    return Decision(
        BudgetAsked(parked.details, parked.handle, breach[1]),
        (*parked.acts, recorded, breached(view, *breach, context.now)),
        parked.events,
        ((execution.execution_id, attempt.attempt_index),),
    )


def _before(
    view: View, context: Context, budget: Budget, key: str, attempt: Attempt
) -> Reserved | AlreadyApplied | None:
    """What an earlier call with this key led to. One whose lease has ended left nothing behind: reserve again."""
    seen = charge.remembered(view, budget, key, context.now)
    if seen is None:
        return None
    found = view.get(Reservation, msgspec.json.decode(seen.outcome_json)["reservation_id"])
    if found is None or found.state in (LAPSED, RELEASED):
        return None
    if found.state == SETTLED:
        return AlreadyApplied()
    return Reserved(found.reservation_id, shown_id(budget.budget_id), msgspec.json.decode(found.amounts))


class SettleReservation(Struct, gc=False):
    """Charge what was really used. With an execution, the reservation must be its own. ``also`` are reservations of
    other budgets that the same amounts are charged to."""

    reservation_id: str
    amounts: dict[str, int]
    execution_id: str | None
    also: tuple[str, ...] = ()

    def needs(self) -> tuple[Need, ...]:
        return tuple(Get(Reservation, each) for each in (self.reservation_id, *self.also))


def settle_reservation(command: SettleReservation, view: View, context: Context) -> Decision:
    """The amounts used are charged and the rest is free. What goes beyond the reservation must fit; if it does not,
    the reservation is charged in full and the answer is the hard breach.

    A reservation whose lease has ended holds nothing any more, but what was used was used: it is charged if it fits.
    Of several the answer is the first hard breach, or that of the first reservation.
    """
    found = [_found(view, each, command.execution_id) for each in (command.reservation_id, *command.also)]
    if len(found) == 1:
        return _settled(found[0], command.amounts, view, context)
    # Whatever could be missing or refused is asked for before the first of them changes anything.
    view.require(Get(Execution, _holder(each)) for each in found)
    view.require(Get(Attempt, (_holder(each), each.attempt_index)) for each in found)
    view.require(Get(Budget, each.budget_id) for each in found)
    above = [view.get(Budget, each.budget_id) for each in found]
    view.require(Get(Budget, id) for each in above if each is not None for id in charge.ancestors(each))
    view.require(
        Get(BudgetUsage, (budget.partition, budget.budget_id, dimension))
        for each in found
        for budget in levels(view, each.budget_id, None)
        for dimension in held_by(each).keys() | command.amounts.keys()
    )
    for each in found:
        Counters(view, context.now).make_room(levels(view, each.budget_id, None), command.amounts)
    answers = []
    for each in found:
        decision = _settled(_found(view, each.reservation_id, None), command.amounts, view, context)
        view.fold(Decision(None, decision.acts))
        answers.append(decision.result)
    return Decision(next((each for each in answers if isinstance(each, HardBreach)), answers[0]))


def _settled(reservation: Reservation, amounts: dict[str, int], view: View, context: Context) -> Decision:
    if reservation.state in (SETTLED, RELEASED):
        return Decision(AlreadyApplied())
    attempt = _lease(view, reservation)
    chain = levels(view, reservation.budget_id, None)
    held = held_by(reservation)
    used = dict(sorted(amounts.items()))
    counters = Counters(view, context.now)
    counters.load(chain, held.keys() | used.keys())
    counters.make_room(chain, used)
    give_back(counters, chain, reservation, used)
    breach = first_breach(counters, chain, used)
    charged = used if breach is None else {name: min(used.get(name, 0), amount) for name, amount in held.items()}
    charge.apply(counters, chain, charged)
    acts: list[Act] = [*_closed(reservation, attempt, SETTLED, context.now), *counters.acts()]
    wake(view, chain)
    if breach is not None:
        acts.append(breached(view, *breach, context.now))
        return Decision(breach[1], tuple(acts))
    soft, counted = soft_breach(counters, chain, charged)
    freed = {name: amount - used.get(name, 0) for name, amount in held.items() if amount > used.get(name, 0)}
    return Decision(Settled(reservation.reservation_id, charged, freed, soft), (*acts, *counted))


class ReleaseReservation(Struct, gc=False):
    """Give back what was set aside. With an execution, the reservation must be its own."""

    reservation_id: str
    execution_id: str | None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Reservation, self.reservation_id),)


def release_reservation(command: ReleaseReservation, view: View, context: Context) -> Decision:
    """Exactly what was set aside is free again; a reservation that has ended stays as it is."""
    reservation = _found(view, command.reservation_id, command.execution_id)
    if reservation.state != OPEN:
        return Decision(ReservationReleased(reservation.reservation_id, {}))
    attempt = _lease(view, reservation)
    chain = levels(view, reservation.budget_id, None)
    held = held_by(reservation)
    counters = Counters(view, context.now)
    counters.load(chain, held)
    give_back(counters, chain, reservation, {})
    acts = (*_closed(reservation, attempt, RELEASED, context.now), *counters.acts())
    wake(view, chain)
    return Decision(ReservationReleased(reservation.reservation_id, held), acts)


def _found(view: View, reservation_id: str, execution_id: str | None) -> Reservation:
    found = view.get(Reservation, reservation_id)
    if found is None or execution_id not in (None, _holder(found)):
        raise NotFound("reservation")
    return found


def _holder(reservation: Reservation) -> str:
    return f"{{fp:{reservation.partition}}}:{reservation.uuid}"


def _lease(view: View, reservation: Reservation) -> Attempt | None:
    """The attempt an open reservation belongs to. Asked for before any budget, as everybody does, so that batches do
    not wait for each other."""
    if reservation.state != OPEN:
        return None
    execution_id = _holder(reservation)
    execution = view.execution(execution_id)
    return view.attempt(execution_id, reservation.attempt_index) if execution is not None else None


def _closed(reservation: Reservation, attempt: Attempt | None, state: str, now: int) -> tuple[Change, ...]:
    """The reservation ended, and its lease with one less to give back."""
    closed = ended(reservation, state, now)
    if attempt is None or not attempt.reservation_count:
        return (closed,)
    return closed, change(attempt, reservation_count=attempt.reservation_count - 1)
