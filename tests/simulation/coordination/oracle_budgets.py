"""The oracle's budgets and quotas: charges, reservations, and admission as part of every claim."""

from __future__ import annotations

from typing import Any

from tests.simulation.coordination.model import Budget, Guard, Quota, Reservation
from tests.simulation.coordination.oracle_signals import Signals
from tests.simulation.model import ANY, DAY, Held, Refused, Row

BLOCK = {"waiting_for_budget": "blocked_by_budget", "waiting_for_quota": "blocked_by_quota"}


class Budgets(Signals):
    """What executions spend. Who is let go when there is room is seen from the engine; that there was room is not."""

    def __init__(self, shown: str, now: int, grace: int) -> None:
        super().__init__(shown, now, grace)
        self.budgets: dict[str, Budget] = {}
        self.quotas: dict[str, Quota] = {}
        self.reservations: dict[str, Reservation] = {}
        #: ``(budget, key) -> (until, what it was for)``.
        self.reported: dict[tuple[str, str], tuple[int, str]] = {}

    # -- budgets -------------------------------------------------------------------------------------------------

    def create_budget(self, budget_id: str, given: dict[str, Any]) -> Any:
        if budget_id in self.budgets:
            return ("AlreadySatisfied", {"budget_id": budget_id})
        if given["parent"] is not None and given["parent"] not in self.budgets:
            raise Refused("NotFound", "budget")
        interval = given["interval"]
        self.budgets[budget_id] = Budget(
            budget_id,
            given["parent"],
            dict(given["hard"]),
            dict(given["soft"]),
            given["warns"],
            interval,
            self.now + interval if interval else None,
        )
        return ("Created", {"budget_id": budget_id})

    def levels(self, budget_id: str) -> list[Budget]:
        """The budget and those above it."""
        if budget_id not in self.budgets:
            raise Refused("NotFound", "budget")
        found = [self.budgets[budget_id]]
        while found[-1].parent is not None:
            found.append(self.budgets[found[-1].parent])
        return found

    def reserved(self, budget_id: str, dimension: str) -> int:
        """Counted again each time: what open reservations hold of a budget, those of budgets below it included."""
        return sum(
            each.amounts.get(dimension, 0)
            for each in self.reservations.values()
            if each.state == "open" and self.budgets[budget_id] in self.levels(each.budget)
        )

    def _breach(self, chain: list[Budget], amounts: dict[str, int]) -> Any:
        for budget in chain:
            for dimension, amount in sorted(amounts.items()):
                limit, held = budget.hard.get(dimension, 0), self.reserved(budget.id, dimension)
                if not budget.warns and limit and budget.spent[dimension] + held + amount > limit:
                    budget.breaches += 1
                    budget.last_breach = (self.now, dimension)
                    fields = {"dimension": dimension, "current_usage": budget.spent[dimension], "hard_limit": limit}
                    self.met["a hard limit"] += 1
                    return ("HardBreach", {**fields, "budget_id": budget.id, "reserved": held})
        return None

    def _charge(self, chain: list[Budget], amounts: dict[str, int]) -> Any:
        """Add at every level; the first soft limit that is crossed, each level counting its own."""
        for budget in chain:
            budget.spent.update(amounts)
        found = None
        for budget in chain:
            soft = self._soft_breach(budget, amounts)
            budget.soft_breaches += soft is not None
            found = found or soft
        return found

    def _soft_breach(self, budget: Budget, amounts: dict[str, int]) -> Any:
        for dimension in sorted(amounts):
            spent, hard, soft = budget.spent[dimension], budget.hard.get(dimension, 0), budget.soft.get(dimension, 0)
            crossed = hard if budget.warns and 0 < hard < spent + self.reserved(budget.id, dimension) else 0
            crossed = crossed or (soft if 0 < soft < spent else 0)
            if crossed:
                fields = {"dimension": dimension, "current_usage": spent, "soft_limit": crossed}
                return ("SoftBreach", {**fields, "budget_id": budget.id})
        return None

    def _known(self, budget_id: str, key: str | None) -> bool:
        return bool(key) and self.reported.get((budget_id, key or ""), (0, ""))[0] > self.now

    def report(self, budget_id: str, amounts: dict[str, int], key: str | None, execution_id: str | None = None) -> Any:
        """``report_usage`` and, with an execution, ``record_spend``."""
        chain = self.levels(budget_id)
        if self._known(budget_id, key):
            return ("AlreadyApplied", {})
        breach = self._breach(chain, amounts)
        if breach is not None:
            return breach
        soft = self._charge(chain, amounts)
        if key:
            self.reported[(budget_id, key)] = (self.now + DAY, "")
        if execution_id in self.rows:
            for budget in chain:
                budget.ledger.update({(budget_id, execution_id, name): amount for name, amount in amounts.items()})
        return soft or ("Ok", {})

    def release_budget(self, budget_id: str, execution_id: str) -> None:
        if budget_id not in self.budgets:
            return
        for budget in self.levels(budget_id):
            for entry in [each for each in budget.ledger if each[:2] == (budget_id, execution_id)]:
                budget.spent[entry[2]] = max(budget.spent[entry[2]] - budget.ledger.pop(entry), 0)
                self.met["given back by name"] += 1

    def reset_budget(self, budget_id: str) -> Any:
        budget = self.levels(budget_id)[0]
        budget.spent.clear()
        budget.ledger.clear()
        budget.last_breach = None
        budget.next_reset = self.now + budget.interval if budget.interval else None
        return ("Reset", {"next_reset_at": budget.next_reset or 0})

    def set_limits(self, budget_id: str, hard: dict[str, int]) -> Any:
        budget = self.levels(budget_id)[0]
        budget.hard |= hard
        fields = {"budget_id": budget_id, "hard_limits": dict(budget.hard), "soft_limits": dict(budget.soft)}
        return ("LimitsSet", fields)

    # -- reservations --------------------------------------------------------------------------------------------

    def reserve(self, handle: Held, reservation_id: str, budget_id: str, amounts: dict[str, int], key: Any) -> Any:
        row, attempt = self.held(handle)
        chain = self.levels(budget_id)
        known = f"reserve:{row.id}:{key}" if key else None
        if self._known(budget_id, known):
            before = self.reservations[self.reported[(budget_id, known or "")][1]]
            if before.state == "settled":
                return ("AlreadyApplied", {})
            if before.state == "open":
                fields = {"reservation_id": before.id, "budget_id": budget_id, "amounts": before.amounts}
                return ("Reserved", fields)
        breach = self._breach(chain, amounts)
        if breach is not None:
            return breach
        made = Reservation(reservation_id, budget_id, row.id, row.index, attempt.epoch, dict(sorted(amounts.items())))
        self.reservations[reservation_id] = made
        if known:
            self.reported[(budget_id, known)] = (self.now + DAY, reservation_id)
        return ("Reserved", {"reservation_id": reservation_id, "budget_id": budget_id, "amounts": made.amounts})

    def _own(self, reservation_id: str, execution_id: str | None) -> Reservation:
        found = self.reservations.get(reservation_id)
        if found is None or execution_id not in (None, found.execution_id):
            raise Refused("NotFound", "reservation")
        return found

    def settle_reservation(self, reservation_id: str, used: dict[str, int], execution_id: str | None) -> Any:
        """What was used is charged and the rest free; more must fit, else the reservation is charged in full."""
        found = self._own(reservation_id, execution_id)
        if found.state in ("settled", "released"):
            return ("AlreadyApplied", {})
        held = found.amounts if found.state == "open" else {}
        self.met[f"settled while {found.state}"] += 1
        found.state = "settled"
        chain = self.levels(found.budget)
        breach = self._breach(chain, used)
        if breach is not None:
            charged = {name: min(used.get(name, 0), amount) for name, amount in held.items()}
            for budget in chain:
                budget.spent.update(charged)
            return breach
        soft = self._charge(chain, used)
        freed = {name: amount - used.get(name, 0) for name, amount in held.items() if amount > used.get(name, 0)}
        charged = dict(sorted(used.items()))
        fields = {"reservation_id": reservation_id, "charged": charged, "freed": freed, "soft_breach": soft}
        return ("Settled", fields)

    def release_reservation(self, reservation_id: str, execution_id: str | None) -> Any:
        found = self._own(reservation_id, execution_id)
        freed = found.amounts if found.state == "open" else {}
        found.state = "released" if found.state == "open" else found.state
        return ("ReservationReleased", {"reservation_id": reservation_id, "freed": freed})

    def settle(self) -> None:
        """Whatever has happened: a reservation is worth what its lease is worth."""
        super().settle()
        for each in self.reservations.values():
            row = self.rows.get(each.execution_id)
            attempt = row.attempts.get(each.index) if row else None
            live = attempt is not None and attempt.epoch == each.epoch and attempt.instance is not None
            if each.state == "open" and not live:
                each.state = "lapsed"
                self.met["a reservation came back with its lease"] += 1

    # -- quotas --------------------------------------------------------------------------------------------------

    def create_quota(self, quota_id: str, seconds: int, rate: int, cap: int) -> Any:
        if quota_id in self.quotas:
            return ("AlreadySatisfied", {"quota_policy_id": quota_id})
        self.quotas[quota_id] = Quota(quota_id, seconds * 1_000, rate, cap)
        return ("Created", {"quota_policy_id": quota_id})

    def check_admission(self, quota_id: str, execution_id: str, seconds: int, rate: int, cap: int) -> Any:
        if quota_id not in self.quotas:
            self.quotas[quota_id] = Quota(quota_id, seconds * 1_000, rate, cap)
        return self._admission(self.quotas[quota_id], execution_id, seconds * 1_000, rate, cap)

    def _admission(self, quota: Quota, execution_id: str, window: int, rate: int, cap: int) -> Any:
        guard = quota.guards.get(execution_id)
        if guard is not None and guard.until > self.now:
            return ("AlreadyAdmitted", {})
        refusal = self._full(quota, execution_id, window, rate, cap)
        if refusal is None:
            quota.guards[execution_id] = Guard(self.now, self.now + window, cap > 0)
            quota.entries[execution_id] = self.now
        return refusal or ("Admitted", {})

    def _full(self, quota: Quota, execution_id: str, window: int, rate: int, cap: int) -> Any:
        """Whether there is no room, leaving out what the execution itself takes."""
        own = quota.entries.get(execution_id) if execution_id in quota.guards else None
        recent = quota.recent(self.now, window)
        oldest = recent[0] if recent else self.now
        if own in recent:
            recent.remove(own)
        if rate and len(recent) >= rate:
            self.met["a full window"] += 1
            return ("RateExceeded", {"retry_after_ms": max(oldest + window - self.now, 0)})
        mine = quota.guards.get(execution_id)
        if cap and quota.taken - (mine.counted if mine else 0) >= cap:
            self.met["no free slot"] += 1
            return ("ConcurrencyExceeded", {})
        return None

    def release_admission(self, quota_id: str, execution_id: str) -> None:
        if quota_id in self.quotas:
            self.quotas[quota_id].guards.pop(execution_id, None)

    def end(self, row: Row, public: str, outcome: str) -> None:
        super().end(row, public, outcome)
        for quota in self.quotas.values():
            if quota.guards.pop(row.id, None) is not None:
                self.met["a slot given back at the end"] += 1

    # -- admission -----------------------------------------------------------------------------------------------

    def quota_of(self, row: Row) -> str | None:
        return (row.policy or {}).get("quota_policy_id")

    def budgets_of(self, row: Row) -> list[Budget]:
        """Everything that must have room, level by level."""
        named = [*(row.policy or {}).get("budget_ids", []), *self.flow_budgets.get(self.member_of.get(row.id, ""), ())]
        return [level for each in named if each in self.budgets for level in self.levels(each)]

    def bound(self, row: Row) -> bool:
        return bool(self.budgets_of(row)) or self.quota_of(row) in self.quotas

    def exhausted(self, budget: Budget) -> bool:
        return not budget.warns and any(
            limit and budget.spent[name] + self.reserved(budget.id, name) >= limit
            for name, limit in budget.hard.items()
        )

    def denial(self, row: Row) -> str | None:
        """Why an execution cannot be admitted now."""
        if any(map(self.exhausted, self.budgets_of(row))):
            return "waiting_for_budget"
        quota = self.quotas.get(self.quota_of(row) or "")
        if quota is None or not (quota.rate or quota.cap):
            return None
        guard = quota.guards.get(row.id)
        if guard is not None and guard.until > self.now:
            return None
        full = self._full(quota, row.id, quota.window, quota.rate, quota.cap)
        return "waiting_for_quota" if full else None

    def admit(self, row: Row) -> bool:
        """Take a place, or be blocked."""
        reason = self.denial(row)
        if reason is not None:
            row.drop_expired("claim", self.now)
            row.state("runnable", "unowned", BLOCK[reason], row.attempt_state, "rate_limited")
            row.blocking = reason
            self.met[f"denied: {reason}"] += 1
            return False
        quota = self.quotas.get(self.quota_of(row) or "")
        if quota is not None and (quota.rate or quota.cap):
            self._admission(quota, row.id, quota.window, quota.rate, quota.cap)
        return True

    def claim_many(self, lane: str, able: Any, worker: str, instance: str, ttl: int, limit: int) -> Any:
        handles: list[Held] = []
        for row in self.candidates(lane, able):
            if len(handles) == limit:
                break
            if self.admit(row):
                kind = "Resumed" if row.attempt_state == "attempt_interrupted" else "Fresh"
                row.drop_expired("claim", self.now)
                handles.append(self.lease(row, worker, instance, ttl, kind))
        return handles

    def claim_for_worker(self, lane: str, worker: str, instance: str, capabilities: Any, ttl: int) -> Any:
        for row in self.candidates(lane, capabilities):
            if self.admit(row):
                return ("Granted", {"grant": self._promise(row, worker, instance, ttl)})
        return ("NoWork", {})

    def let_go(self, row: Row, reason: str | None) -> str | None:
        """The engine shows a blocked row as let go, or as blocked for another reason: what is wrong with that."""
        if self.denial(row) != reason:
            return f"{row.id} is {reason or 'let go'}, but it is {self.denial(row) or 'admissible'}"
        if reason is not None:
            row.eligibility, row.blocking = BLOCK[reason], reason
            return None
        self.met["let go when there was room"] += 1
        row.state("runnable", "unowned", "eligible_now", row.attempt_state, "waiting")
        row.blocking = "waiting_for_worker"
        if self.waits_for_others(row):
            self._gate(row)
        return None

    def stuck(self) -> list[str]:
        """Rows that nothing keeps back, and nobody who names the same was let go before them."""
        found = []
        for row in self.rows.values():
            if row.eligibility not in BLOCK.values() or self.denial(row) is not None:
                continue
            names = {each.id for each in self.budgets_of(row)} | {self.quota_of(row)}
            invited = [
                each
                for each in self.rows.values()
                if each.eligibility in ("eligible_now", "pending_claim")
                and names & ({every.id for every in self.budgets_of(each)} | {self.quota_of(each)})
            ]
            if not invited:
                found.append(f"{row.id} is {row.eligibility}, and nothing keeps it")
        return found

    def run_timer(self, name: str) -> Any:
        if name == "budget_reset":
            due = [each for each in self.budgets.values() if each.next_reset and each.next_reset <= self.now]
            for budget in due:
                self.reset_budget(budget.id)
            return len(due)
        if name == "quota_reconciler":
            for quota in self.quotas.values():
                for each, guard in list(quota.guards.items()):
                    row = self.rows.get(each)
                    if guard.until <= self.now and (row is None or row.over):
                        del quota.guards[each]
            return ANY
        if name == "unblock":
            super().run_timer(name)
            return ANY
        return ANY if name == "quota_window" else super().run_timer(name)

    def unblock_admissible(self) -> int:
        """Only those that name nothing; the others are seen from the engine."""
        for row in self.rows.values():
            if row.eligibility in BLOCK.values() and not self.bound(row):
                self.unblock_execution(row.id, "")
        return 0

    def due(self) -> list[int]:
        found = super().due() + [each.next_reset for each in self.budgets.values() if each.next_reset]
        for quota in self.quotas.values():
            found += [at + quota.window for at in quota.entries.values()]
        return found
