"""Deleting quotas and budgets that nothing uses any more; ``idle`` says which are looked at, and when."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.admission.idle import next_look
from flowfabric.core.admission.quotas import recent_need
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.model.decisions import Decision, Drop, Get, Need, change
from flowfabric.model.records.budgets import Budget, BudgetUsage, QuotaPolicy


class ForgetQuota(Struct, gc=False):
    """Look at a quota policy; ``used`` if rows were found that use it."""

    quota_policy_id: str
    used: bool

    def needs(self) -> tuple[Need, ...]:
        return (Get(QuotaPolicy, self.quota_policy_id),)


def forget_quota(command: ForgetQuota, view: View, context: Context) -> Decision:
    """Deleted if nothing uses it, else looked at again later. Admissions and waits write its row or its windows, so
    those are seen here however late they came; who has only named it has made it before."""
    policy = view.get(QuotaPolicy, command.quota_policy_id)
    if policy is None or policy.idle_check_at_ms is None or policy.idle_check_at_ms > context.now:
        return Decision(0)
    if command.used or policy.waiting_since_ms is not None or policy.active_concurrency or _admits(view, policy):
        return Decision(0, (change(policy, idle_check_at_ms=next_look(QuotaPolicy, context.now)),))
    return Decision(1, (Drop(policy),))


def _admits(view: View, policy: QuotaPolicy) -> bool:
    """Whether an admission is in the policy's window."""
    return policy.max_requests_per_window > 0 and view.recent(recent_need(policy))[0] > 0


class ForgetBudget(Struct, gc=False):
    """Look at a budget; ``used`` if rows were found that use it."""

    budget_id: str
    used: bool

    def needs(self) -> tuple[Need, ...]:
        return (Get(Budget, self.budget_id),)


def forget_budget(command: ForgetBudget, view: View, context: Context) -> Decision:
    """Deleted with its counters if nothing uses it, else looked at again later. A charge holds its row, so
    what was charged is seen here however late it came."""
    budget = view.get(Budget, command.budget_id)
    if budget is None or budget.idle_check_at_ms is None or budget.idle_check_at_ms > context.now:
        return Decision(0)
    counters = view.select(BudgetUsage, partition=budget.partition, budget_id=budget.budget_id)
    moved = any(row.current_value or row.reserved_value or row.granted_value for row in counters)
    waits = budget.waiting_since_ms is not None or budget.cancelling_since_ms is not None
    if command.used or moved or waits:
        return Decision(0, (change(budget, idle_check_at_ms=next_look(Budget, context.now)),))
    return Decision(1, (Drop(budget), *map(Drop, counters)))
