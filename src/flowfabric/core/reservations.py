"""Reserve first, settle later: amounts set aside under a lease count against every level's hard limit from then on.

A reservation belongs to one lease. When that ends, in whatever way, what is still set aside comes back in the same
commit.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from flowfabric.core import charging, lease
from flowfabric.core.charging import Counters, breached, first_breach, levels, soft_breach, wake
from flowfabric.core.context import Context
from flowfabric.core.view import View
from flowfabric.model.budget_records import LAPSED, OPEN, RELEASED, SETTLED, Budget, Reservation
from flowfabric.model.budgets import AlreadyApplied, ReservationReleased, Reserved, Settled
from flowfabric.model.changes import Act, Change, Decision, Get, Need, change, insert
from flowfabric.model.errors import NotFound
from flowfabric.model.handles import HandlePayload
from flowfabric.model.records import Attempt, Execution


class ReserveBudget(Struct, gc=False):
    """Set amounts aside. ``reservation_id`` is used if a new reservation is made."""

    handle: HandlePayload
    budget_id: str
    amounts: dict[str, int]
    key: str
    reservation_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.handle.execution_id), Get(Budget, self.budget_id))


def reserve_budget(command: ReserveBudget, view: View, context: Context) -> Decision:
    """Set aside at every level, or refused as a whole by the first hard limit."""
    execution, attempt = lease.held(view, command.handle, context)
    chain = levels(view, command.budget_id)
    key = f"reserve:{execution.execution_id}:{command.key}" if command.key else ""
    if key:
        answer = _before(view, context, chain[0], key, attempt)
        if answer is not None:
            return Decision(answer)
    amounts = dict(sorted(command.amounts.items()))
    counters = Counters(view, context.now)
    counters.load(chain, amounts)
    breach = first_breach(counters, chain, amounts)
    if breach is not None:
        return Decision(breach[1], (breached(view, *breach, context.now),))
    for budget in chain:
        for dimension, amount in amounts.items():
            counters.add(budget, dimension, reserved=amount)
    reservation = Reservation(
        command.reservation_id,
        execution.partition,
        execution.uuid,
        attempt.attempt_index,
        attempt.lease_epoch,
        command.budget_id,
        msgspec.json.encode(amounts).decode(),
        OPEN,
        context.now,
    )
    acts: list[Act] = [
        insert(reservation),
        change(attempt, reservation_count=attempt.reservation_count + 1),
        *counters.acts(),
    ]
    if key:
        outcome = {"reservation_id": command.reservation_id}
        acts.append(charging.remember(view, chain[0], key, context.now, outcome))
    return Decision(Reserved(command.reservation_id, command.budget_id, amounts), tuple(acts))


def _before(
    view: View, context: Context, budget: Budget, key: str, attempt: Attempt
) -> Reserved | AlreadyApplied | None:
    """What an earlier call with this key led to. One whose lease has ended left nothing behind: reserve anew."""
    seen = charging.remembered(view, budget, key, context.now)
    if seen is None:
        return None
    found = view.get(Reservation, msgspec.json.decode(seen.outcome_json)["reservation_id"])
    if found is None or found.state in (LAPSED, RELEASED):
        return None
    if found.state == SETTLED:
        return AlreadyApplied()
    return Reserved(found.reservation_id, budget.budget_id, msgspec.json.decode(found.amounts))


class SettleReservation(Struct, gc=False):
    """Charge what was really used. With an execution, the reservation must be its own."""

    reservation_id: str
    amounts: dict[str, int]
    execution_id: str | None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Reservation, self.reservation_id),)


def settle_reservation(command: SettleReservation, view: View, context: Context) -> Decision:
    """The amounts used are charged and the rest is free. What goes beyond the reservation must fit; if it does not,
    the reservation is charged in full and the answer is the hard breach.

    A reservation whose lease has ended holds nothing any more, but what was used was used: it is charged if it fits.
    """
    reservation = _found(view, command.reservation_id, command.execution_id)
    if reservation.state in (SETTLED, RELEASED):
        return Decision(AlreadyApplied())
    attempt = _lease(view, reservation)
    chain = levels(view, reservation.budget_id)
    held = _held(reservation)
    used = dict(sorted(command.amounts.items()))
    counters = Counters(view, context.now)
    counters.load(chain, held.keys() | used.keys())
    _free(counters, chain, held)
    breach = first_breach(counters, chain, used)
    charged = used if breach is None else {name: min(used.get(name, 0), amount) for name, amount in held.items()}
    charging.apply(counters, chain, charged)
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
    chain = levels(view, reservation.budget_id)
    held = _held(reservation)
    counters = Counters(view, context.now)
    counters.load(chain, held)
    _free(counters, chain, held)
    acts = (*_closed(reservation, attempt, RELEASED, context.now), *counters.acts())
    wake(view, chain)
    return Decision(ReservationReleased(reservation.reservation_id, held), acts)


def lapse(view: View, context: Context, execution: Execution, attempt: Attempt) -> None:
    """Everything still set aside under a lease that ends comes back. Folded at once: others of the same decision may
    give back to the same counters."""
    open_ones = view.select(Reservation, partition=execution.partition, uuid=execution.uuid, state=OPEN)
    mine = [each for each in open_ones if each.attempt_index == attempt.attempt_index]
    view.require(Get(Budget, each) for each in dict.fromkeys(each.budget_id for each in mine))
    known = [each for each in mine if view.get(Budget, each.budget_id) is not None]
    chains = {each.budget_id: levels(view, each.budget_id) for each in known}
    counters = Counters(view, context.now)
    for each in known:
        counters.load(chains[each.budget_id], _held(each))
    for each in known:
        _free(counters, chains[each.budget_id], _held(each))
    acts: list[Act] = [_ended(each, LAPSED, context.now) for each in mine]
    for chain in chains.values():
        wake(view, chain)
    view.fold(Decision(None, (*acts, *counters.acts())))


def _found(view: View, reservation_id: str, execution_id: str | None) -> Reservation:
    found = view.get(Reservation, reservation_id)
    if found is None or execution_id not in (None, f"{{fp:{found.partition}}}:{found.uuid}"):
        raise NotFound("reservation")
    return found


def _held(reservation: Reservation) -> dict[str, int]:
    """What it still sets aside."""
    if reservation.state != OPEN:
        return {}
    amounts: dict[str, int] = msgspec.json.decode(reservation.amounts)
    return amounts


def _free(counters: Counters, chain: Iterable[Budget], held: dict[str, int]) -> None:
    for budget in chain:
        for dimension, amount in held.items():
            counters.add(budget, dimension, reserved=-amount)


def _lease(view: View, reservation: Reservation) -> Attempt | None:
    """The attempt an open reservation belongs to. Asked for before any budget, as everybody does, so that batches do
    not wait for each other."""
    if reservation.state != OPEN:
        return None
    execution_id = f"{{fp:{reservation.partition}}}:{reservation.uuid}"
    execution = view.execution(execution_id)
    return view.attempt(execution_id, reservation.attempt_index) if execution is not None else None


def _closed(reservation: Reservation, attempt: Attempt | None, state: str, now: int) -> tuple[Change, ...]:
    """The reservation ended, and its lease with one less to give back."""
    ended = _ended(reservation, state, now)
    if attempt is None or not attempt.reservation_count:
        return (ended,)
    return ended, change(attempt, reservation_count=attempt.reservation_count - 1)


def _ended(reservation: Reservation, state: str, now: int) -> Change:
    return change(reservation, state=state, closed_at_ms=now)
