"""Answers to questions about budgets and quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from flowfabric.model.ownership import shown_id
from flowfabric.model.records.budgets import Budget, BudgetAsk, BudgetSpend, BudgetUsage, QuotaAdmitted, QuotaPolicy
from flowfabric.stores import questions as ask
from flowfabric.stores.keyed import entries as index
from flowfabric.stores.keyed.reads import LARGEST_CHUNK, All, Names, Range, Reading, Rows, at_once, walk


def _list_gates(question: ask.ListGates) -> Reading[list[str]]:
    match question.what:
        case "budgets":
            return (yield from _all_gates(question, Budget, index.BUDGETS))
        case "quotas":
            return (yield from _all_gates(question, QuotaPolicy, index.QUOTAS))
    ids = sorted((yield from _gates(question)))
    return [each for each in ids if question.after is None or each > question.after][: question.limit]


def _all_gates(question: ask.ListGates, kind: Any, family: str) -> Reading[list[str]]:
    own = question.namespaces

    def judge(ids: list[str]) -> Reading[list[str]]:
        if own is None:
            return (yield from at_once(ids))
        found = yield Rows(kind, ids, True)
        return [each.key for each in found if each is not None and each.namespace in own]

    run = Range(family, low=question.after, behind=question.after is not None, loose=True)
    return (yield from walk(run, judge, question.limit))


def _gates(question: ask.ListGates) -> Reading[list[str]]:
    match question.what:
        case "budget_reset":
            return (yield from _until(index.BUDGET_RESET, question.now))
        case "quota_room":
            return (yield from _until(index.QUOTA_ROOM, question.now))
        case "quota_drift":
            guards = yield All(QuotaAdmitted)
            taken = Counter(guard.quota_policy_id for guard in guards if guard.counted)
            counting = yield from _all_of(index.TAKEN_QUOTAS)
            policies = yield Rows(QuotaPolicy, sorted({*taken, *counting}), True)
            return [each.key for each in policies if each is not None and each.active_concurrency != taken[each.key]]
        case "blocked":
            names = [name for name in (yield Names(index.GATED)) if name is not None]
            firsts = yield [Range(index.GATED, name, limit=1, loose=True) for name in names]
            return [name for name, first in zip(names, firsts, strict=True) if first]
        case _:
            raise ValueError(f"no list is called {question.what!r}")


def _all_of(family: str) -> Reading[list[str]]:
    return (yield from walk(Range(family, loose=True), at_once, 2**62))


def _until(family: str, now: int) -> Reading[list[str]]:
    def judge(entries: list[Any]) -> Reading[list[str]]:
        return (yield from at_once([entry[1] for entry in entries]))

    return (yield from walk(Range(family, high=(now + 1,), loose=True), judge, LARGEST_CHUNK))


def _idle_gates(question: ask.IdleGates) -> Reading[list[tuple[str, bool]]]:
    quotas = question.what == "quotas"
    family = index.IDLE_QUOTAS if quotas else index.IDLE_BUDGETS
    due = yield Range(family, high=(question.now + 1,), limit=question.limit, loose=True)
    ids = [entry[1] for entry in due]
    gates = yield Rows(QuotaPolicy if quotas else Budget, ids, True)
    found = [each for each in gates if each is not None]
    if quotas:
        used = yield from _used_quotas(found)
    else:
        used = yield from _used_budgets(found)
    return [(each.key, each.key in used) for each in found]


def _named(gates: list[Any]) -> Reading[set[str]]:
    runs = yield [Range(index.NAMED_GATE, shown_id(each.key), limit=1, loose=True) for each in gates]
    return {each.key for each, first in zip(gates, runs, strict=True) if first}


def _used_quotas(policies: list[QuotaPolicy]) -> Reading[set[str]]:
    used = yield from _named(policies)
    guards = index.group_family(QuotaAdmitted, ("partition", "quota_policy_id"))
    held = yield [
        each
        for policy in policies
        for each in (
            Range(index.WINDOWS, (policy.partition, policy.quota_policy_id, ""), limit=1, loose=True),
            Range(guards, (policy.partition, policy.quota_policy_id), limit=1, loose=True),
        )
    ]
    return used | {policy.key for place, policy in enumerate(policies) if any(held[2 * place : 2 * place + 2])}


def _used_budgets(budgets: list[Budget]) -> Reading[set[str]]:
    used = yield from _named(budgets)
    asked = {ask.budget_id for ask in (yield All(BudgetAsk))}
    by_budget = ("partition", "budget_id")
    for budget in budgets:
        place = (budget.partition, budget.budget_id)
        counters, spent, below = yield [
            Range(index.group_family(BudgetUsage, by_budget), place, loose=True),
            Range(index.group_family(BudgetSpend, by_budget), place, limit=1, loose=True),
            Range(index.BUDGETS_BELOW, budget.budget_id, limit=1, loose=True),
        ]
        rows = yield Rows(BudgetUsage, counters, True)
        moved = any(row is not None and (row.current_value or row.reserved_value or row.granted_value) for row in rows)
        if spent or below or moved or budget.budget_id in asked:
            used.add(budget.budget_id)
    return used


def _waited_for(question: ask.WaitedFor) -> Reading[list[str]]:
    policies = yield Rows(QuotaPolicy, question.quota_policy_ids, True)
    return [each.quota_policy_id for each in policies if each is not None and each.waiting_since_ms is not None]


def _expired_guards(question: ask.ExpiredGuards) -> Reading[list[tuple[str, str, int]]]:
    run = Range(index.GUARD_EXPIRY, low=(question.since,), high=(question.now + 1,), limit=question.limit, loose=True)
    return [(key[1], key[2], at) for at, key in (yield run)]


ANSWERS: Mapping[Any, Callable[[Any], Reading[Any]]] = {
    ask.ListGates: _list_gates,
    ask.ExpiredGuards: _expired_guards,
    ask.IdleGates: _idle_gates,
    ask.WaitedFor: _waited_for,
}
