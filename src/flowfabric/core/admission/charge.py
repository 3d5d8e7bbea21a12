"""Charging budgets: every level must fit, nothing or everything is applied, and each counter is written once.

A budget may stand under others. What is charged to it is charged to all of them, and a hard limit of any of them
refuses the charge. A writer of a counter holds the lock of its budget's row, so that two charges never race.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.ownership import owners
from flowfabric.model.decisions import Act, Change, Get, change, insert
from flowfabric.model.errors import LimitReached, NotFound, Validation, ValidationKind
from flowfabric.model.limits import MAX_COUNTED_DIMENSIONS
from flowfabric.model.operations.budgets import WARN_ONLY, BudgetTerms, HardBreach, OnHardLimit, SoftBreach, read_terms
from flowfabric.model.ownership import shown_id
from flowfabric.model.records.budgets import Budget, BudgetDedup, BudgetUsage

#: How long a report's key is remembered.
DEDUP_MS = 86_400_000
#: What ``view.follow`` may carry on: letting executions go that wait for room, cancelling those that wait in vain.
LET_GO_BUDGET, LET_GO_QUOTA, CANCEL_PENDING = "let_go_budget", "let_go_quota", "cancel_pending"
#: Likewise: slots of a quota are free for those waiting for them.
SLOT_LEFT = "slot_left"
_MAX_I64 = 2**63 - 1


def levels(view: View, name: str, namespace: str | None) -> list[Budget]:
    """The budget that a name means in a namespace and those above it, nearest first, each to be written by nobody else
    until the commit."""
    budget = owners.found(view.get, Budget, name, namespace)
    if budget is None:
        raise NotFound("budget")
    return chain(view, budget)


def chain(view: View, budget: Budget) -> list[Budget]:
    """A budget and those above it, nearest first."""
    above = ancestors(budget)
    if not above:
        return [budget]
    view.require(Get(Budget, each) for each in above)
    found = [level for each in above if (level := view.get(Budget, each)) is not None]
    return [budget, *(level for level in found if is_above(level, budget))]


def is_above(level: Budget, budget: Budget) -> bool:
    """Whether a budget may stand above another one: it is the operator's, or of the same namespace."""
    return level.namespace is None or level.namespace == budget.namespace


def ancestors(budget: Budget) -> list[str]:
    """The budgets above one, nearest first."""
    return budget.ancestor_ids.split(",") if budget.ancestor_ids else []


def refuses(budget: Budget, terms: BudgetTerms) -> bool:
    """Whether the hard limits of a budget are more than a warning."""
    return budget.enforcement_mode != WARN_ONLY and terms.on_hard_limit != OnHardLimit.WARN


class Counters:
    """The counters of some budgets with what one decision adds to them."""

    def __init__(self, view: View, now: int) -> None:
        self._view = view
        self._now = now
        self._rows: dict[tuple[int, str, str], BudgetUsage] = {}
        self._new: set[tuple[int, str, str]] = set()
        self._uncounted: set[tuple[int, str, str]] = set()

    def load(self, budgets: Iterable[Budget], dimensions: Iterable[str]) -> None:
        """Ask for everything at once."""
        names = list(dimensions)
        self._view.require(
            Get(BudgetUsage, (budget.partition, budget.budget_id, name)) for budget in budgets for name in names
        )

    def make_room(self, chain: list[Budget], dimensions: Iterable[str]) -> None:
        """Callers name the dimensions they spend, so a budget counts only so many that it has no limit for. Beyond them
        a charge is refused; a budget of somebody else, further up, leaves them out instead, or one namespace could have
        another one refused. Ask for this before anything is folded."""
        names = list(dimensions)
        for budget in chain:
            terms = read_terms(budget.policy_json)
            limited = terms.hard_limits.keys() | terms.soft_limits.keys()
            keys = [(budget.partition, budget.budget_id, name) for name in names if name not in limited]
            new = [key for key in keys if self._view.get(BudgetUsage, key) is None]
            if not new:
                continue
            known = self._view.select(BudgetUsage, partition=budget.partition, budget_id=budget.budget_id)
            counted = sum(row.dimensions_key not in limited for row in known)
            if counted + len(new) <= MAX_COUNTED_DIMENSIONS:
                continue
            if budget.namespace == chain[0].namespace:
                raise LimitReached("MAX_COUNTED_DIMENSIONS", MAX_COUNTED_DIMENSIONS)
            self._uncounted.update(new)

    def row(self, budget: Budget, dimension: str) -> BudgetUsage:
        """The counter as this decision has left it."""
        key = (budget.partition, budget.budget_id, dimension)
        row = self._rows.get(key)
        if row is None:
            row = self._view.get(BudgetUsage, key)
            if row is None:
                row = BudgetUsage(budget.partition, budget.budget_id, dimension, updated_at_ms=self._now)
                self._new.add(key)
            self._rows[key] = row
        return row

    def add(self, budget: Budget, dimension: str, spent: int = 0, reserved: int = 0, granted: int = 0) -> None:
        """Change a counter; no part of it goes below 0. None is made for what is given back."""
        known = self._view.get(BudgetUsage, (budget.partition, budget.budget_id, dimension)) is not None
        if not known and min(spent, reserved, granted) < 0 and max(spent, reserved, granted) <= 0:
            return
        row = self.row(budget, dimension)
        value = max(row.current_value + spent, 0)
        held = max(row.reserved_value + reserved, 0)
        if value + held > _MAX_I64:
            raise Validation(
                ValidationKind.INVALID_INPUT,
                f"{dimension}: the counter of budget {shown_id(budget.budget_id)} would overflow",
            )
        extra = max(row.granted_value + granted, 0)
        self._rows[row.key] = replace(
            row, current_value=value, reserved_value=held, granted_value=extra, updated_at_ms=self._now
        )

    def acts(self) -> tuple[Act, ...]:
        """One change per counter that moved."""
        acts: list[Act] = []
        for key, row in self._rows.items():
            if key in self._uncounted:
                continue
            if key in self._new:
                acts.append(insert(row))
            elif row is not self._view.get(BudgetUsage, key):
                acts.append(Change(row, ("current_value", "reserved_value", "granted_value", "updated_at_ms")))
        return tuple(acts)


def first_breach(
    counters: Counters, chain: list[Budget], amounts: Mapping[str, int]
) -> tuple[Budget, HardBreach] | None:
    """The first hard limit that the amounts would cross, the nearest level and the first dimension in order."""
    for budget in chain:
        terms = read_terms(budget.policy_json)
        if not refuses(budget, terms):
            continue
        for dimension, amount in amounts.items():
            limit = terms.hard_limits.get(dimension, 0)
            if limit <= 0:
                continue
            row = counters.row(budget, dimension)
            if row.current_value + row.reserved_value + amount > limit + row.granted_value:
                return budget, _told(counters, chain[0], budget, dimension, limit)
    return None


def _told(counters: Counters, named: Budget, level: Budget, dimension: str, limit: int) -> HardBreach:
    """The breach as the caller may see it. Other namespaces spend from the operator's budget above this one as well, so
    its numbers stay hidden: the answer names the caller's own budget instead."""
    if level.namespace != named.namespace:
        level, limit = named, read_terms(named.policy_json).hard_limits.get(dimension, 0)
    row = counters.row(level, dimension)
    return HardBreach(dimension, row.current_value, limit, shown_id(level.budget_id), row.reserved_value)


def breached(view: View, budget: Budget, breach: HardBreach, now: int) -> Act:
    """The breach goes on record although the charge was refused."""
    fields: dict[str, object] = {
        "breach_count": budget.breach_count + 1,
        "last_breach_at_ms": now,
        "last_breach_dim": breach.dimension,
    }
    if read_terms(budget.policy_json).on_hard_limit == OnHardLimit.CANCEL_PENDING:
        if budget.cancelling_since_ms is None:
            fields["cancelling_since_ms"] = now
        view.follow(CANCEL_PENDING, budget.budget_id)
    return change(budget, **fields)


def apply(counters: Counters, chain: list[Budget], amounts: Mapping[str, int]) -> None:
    """Add the amounts at every level."""
    for budget in chain:
        for dimension, amount in amounts.items():
            counters.add(budget, dimension, spent=amount)


def soft_breach(
    counters: Counters, chain: list[Budget], amounts: Mapping[str, int]
) -> tuple[SoftBreach | None, tuple[Act, ...]]:
    """The first soft limit that is exceeded now; every level counts its own, once."""
    first: SoftBreach | None = None
    acts: list[Act] = []
    for budget in chain:
        found = _soft_breach(counters, budget, amounts)
        if found is not None:
            if budget.namespace == chain[0].namespace:
                first = first or found
            acts.append(change(budget, soft_breach_count=budget.soft_breach_count + 1))
    return first, tuple(acts)


def _soft_breach(counters: Counters, budget: Budget, amounts: Mapping[str, int]) -> SoftBreach | None:
    terms = read_terms(budget.policy_json)
    warns = not refuses(budget, terms)
    for dimension in amounts:
        soft, hard = terms.soft_limits.get(dimension, 0), terms.hard_limits.get(dimension, 0)
        row = counters.row(budget, dimension)
        if warns and 0 < hard < row.current_value + row.reserved_value:
            return SoftBreach(dimension, row.current_value, hard, shown_id(budget.budget_id))
        if 0 < soft < row.current_value:
            return SoftBreach(dimension, row.current_value, soft, shown_id(budget.budget_id))
    return None


def wake(view: View, chain: Iterable[Budget]) -> None:
    """These budgets have room again: those waiting for it continue right after the commit."""
    for budget in chain:
        if budget.waiting_since_ms is not None:
            view.follow(LET_GO_BUDGET, budget.budget_id)


# -- keys that make a report repeatable --------------------------------------------------------------------------------


def remembered(view: View, budget: Budget, key: str, now: int) -> BudgetDedup | None:
    """The record of an earlier report with this key, if it still counts."""
    found = view.get(BudgetDedup, (budget.partition, dedup_key(budget, key)))
    return found if found is not None and found.expires_at_ms > now else None


def remember(view: View, budget: Budget, key: str, now: int, outcome: object) -> Act:
    """Keep the key, over a record of it that no longer counts if there is one."""
    record = BudgetDedup(
        budget.partition, dedup_key(budget, key), msgspec.json.encode(outcome).decode(), now, now + DEDUP_MS
    )
    stale = view.get(BudgetDedup, record.key) is not None
    return Change(record, ("outcome_json", "applied_at_ms", "expires_at_ms") if stale else None)


def dedup_key(budget: Budget, key: str) -> str:
    """Keys belong to their budget."""
    return f"{budget.budget_id}:{key}"
