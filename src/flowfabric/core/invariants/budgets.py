"""Invariants of budgets and quotas, judged from stored rows alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.core.admission.charge import ancestors, refuses
from flowfabric.core.admission.quotas import window_ms
from flowfabric.model import states as lit
from flowfabric.model.operations.budgets import read_caps, read_terms
from flowfabric.model.reads.examine import Violation
from flowfabric.model.records.budgets import (
    OPEN,
    Budget,
    BudgetSpend,
    BudgetUsage,
    QuotaAdmitted,
    QuotaPolicy,
    QuotaWindow,
    Reservation,
)
from flowfabric.model.records.executions import Execution


def check_budgets(
    budgets: Sequence[Budget],
    usage: Iterable[BudgetUsage],
    reservations: Iterable[Reservation],
    spends: Iterable[BudgetSpend],
) -> list[Violation]:
    """Every budget within its hard limits, holding exactly what is reserved, and never less than what was recorded.

    A limit that was lowered below what was used already is no violation a row could show; ``check_ledger`` then.
    """
    rows = list(usage)
    found = check_ledger(budgets, rows, reservations, spends)
    by_key = {(row.budget_id, row.dimensions_key): row for row in rows}
    for budget in budgets:
        if refuses(budget, read_terms(budget.policy_json)):
            found += _over(budget, by_key)
    return found


def check_ledger(
    budgets: Sequence[Budget],
    usage: Iterable[BudgetUsage],
    reservations: Iterable[Reservation],
    spends: Iterable[BudgetSpend],
) -> list[Violation]:
    """Every budget holding exactly what is reserved, and never less than what was recorded, whatever its limits."""
    found: list[Violation] = []
    by_id = {budget.budget_id: budget for budget in budgets}
    held: Counter[tuple[str, str]] = Counter()
    for reservation in reservations:
        named = by_id.get(reservation.budget_id)
        if reservation.state == OPEN and named is not None:
            for level in (named.budget_id, *ancestors(named)):
                for dimension, amount in msgspec.json.decode(reservation.amounts).items():
                    held[level, dimension] += amount
    recorded: Counter[tuple[str, str]] = Counter()
    for spend in spends:
        if spend.reset_count == by_id[spend.budget_id].reset_count:
            recorded[spend.budget_id, spend.dimensions_key] += spend.delta_total
    rows = {(row.budget_id, row.dimensions_key): row for row in usage}
    for key, row in rows.items():
        if row.reserved_value != held[key]:
            detail = f"{key[1]}: {row.reserved_value} reserved, but reservations hold {held[key]}"
            found.append(Violation("I30", key[0], detail))
        if row.current_value < recorded[key]:
            detail = f"{key[1]}: {row.current_value} spent, but {recorded[key]} recorded"
            found.append(Violation("I31", key[0], detail))
        if min(row.current_value, row.reserved_value) < 0:
            found.append(Violation("I31", key[0], f"{key[1]}: a counter below 0"))
    return found


def _over(budget: Budget, rows: dict[tuple[str, str], BudgetUsage]) -> list[Violation]:
    found = []
    for dimension, limit in read_caps(budget.policy_json):
        row = rows.get((budget.budget_id, dimension))
        if row is not None and row.current_value + row.reserved_value > limit + row.granted_value:
            detail = f"{dimension}: {row.current_value} spent and {row.reserved_value} reserved of {limit}"
            found.append(Violation("I30", budget.budget_id, detail))
    return found


def check_quota(
    policy: QuotaPolicy,
    guards: Sequence[QuotaAdmitted],
    windows: Sequence[QuotaWindow],
    executions: Sequence[Execution] = (),
) -> list[Violation]:
    """As many slots counted as guards take, no more taken than there are, none by an execution that has ended, and in
    no window more admissions than allowed. ``executions`` are those that name the policy."""
    found: list[Violation] = []
    name = policy.quota_policy_id
    taken = sum(guard.counted for guard in guards)
    if policy.active_concurrency != taken:
        found.append(Violation("I32", name, f"{policy.active_concurrency} slots taken, but {taken} guards"))
    holders = [each for each in executions if each.admitted_at_ms]
    in_use = policy.active_concurrency + len(holders)
    if 0 < policy.active_concurrency_cap < in_use:
        found.append(Violation("I32", name, f"{in_use} slots taken of {policy.active_concurrency_cap}"))
    found += [
        Violation("I32", name, f"{each.execution_id} has ended and holds a slot")
        for each in holders
        if each.lifecycle_phase in lit.ENDED_PHASES
    ]
    if policy.max_requests_per_window > 0:
        length = window_ms(policy.requests_per_window_seconds)
        times = sorted(entry.admitted_at_ms for entry in windows if entry.dimension == "")
        allowed = policy.max_requests_per_window
        for first, beyond in zip(times, times[allowed:], strict=False):
            if beyond - first < length:
                detail = f"more than {allowed} admissions within {length} ms from {first} on"
                found.append(Violation("I32", name, detail))
                break
    return found
