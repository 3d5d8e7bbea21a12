"""Budgets that ask: what would cross a hard limit waits for somebody's decision, which counts once.

The execution is suspended on an ordinary signed waitpoint. A signal named ``approved`` lets exactly the amounts that
were asked for through, beyond the limit; any other signal, or going on without one, refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from flowfabric.core.admission.charge import Counters, refuses
from flowfabric.core.batch.view import View
from flowfabric.core.suspension import waits
from flowfabric.core.suspension.bound_waitpoints import Binding, Wait
from flowfabric.model.conditions import Single
from flowfabric.model.decisions import Act, Change
from flowfabric.model.operations.budgets import APPROVED, OnHardLimit, read_terms
from flowfabric.model.operations.suspension import SuspensionReason, SuspensionRequester
from flowfabric.model.records.budgets import Budget, BudgetAsk
from flowfabric.model.records.executions import Execution, Suspension


class Answer(NamedTuple):
    """What became of a question."""

    ask: BudgetAsk
    approved: bool


def asks(budget: Budget) -> bool:
    """Whether a budget asks before it refuses."""
    return read_terms(budget.policy_json).on_hard_limit == OnHardLimit.ASK


def question(suspension_id: str, waitpoint_id: str) -> Wait:
    """What the execution waits for: any signal on a waitpoint of its own."""
    key = f"wpk:{waitpoint_id}"
    return Wait(
        suspension_id,
        (Binding(waitpoint_id, key),),
        Single(key),
        SuspensionReason.PAUSED_BY_BUDGET,
        SuspensionRequester.POLICY,
    )


def recorded(
    view: View, execution: Execution, budget_id: str, amounts: Mapping[str, int], suspension_id: str, now: int
) -> Act:
    """The question, over an earlier one that nobody used."""
    ask = BudgetAsk(
        execution.partition,
        execution.uuid,
        budget_id,
        msgspec.json.encode(amounts).decode(),
        suspension_id,
        now,
    )
    before = view.get(BudgetAsk, ask.key)
    return Change(ask, None if before is None else ("amounts", "suspension_id", "asked_at_ms"))


def answer(view: View, execution: Execution, budget_id: str, amounts: Mapping[str, int]) -> Answer | None:
    """The decision on these very amounts, if there is one. Its suspension must be the execution's last."""
    ask = view.get(BudgetAsk, (execution.partition, execution.uuid, budget_id))
    if ask is None or msgspec.json.decode(ask.amounts) != amounts:
        return None
    suspension = view.get(Suspension, (execution.partition, execution.uuid))
    if suspension is None or suspension.suspension_id != ask.suspension_id or waits.is_open(suspension):
        return None
    heard = waits.read_heard(suspension)
    return Answer(ask, any(signal.signal_name == APPROVED for signals in heard.values() for signal in signals))


def grant(counters: Counters, chain: list[Budget], amounts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Allow the amounts beyond the limits of budgets that ask, by as much as is missing there; what was allowed."""
    granted: dict[str, dict[str, int]] = {}
    for budget in chain:
        terms = read_terms(budget.policy_json)
        if not asks(budget) or not refuses(budget, terms):
            continue
        for dimension, amount in amounts.items():
            limit = terms.hard_limits.get(dimension, 0)
            row = counters.row(budget, dimension)
            missing = row.current_value + row.reserved_value + amount - limit - row.granted_value
            if limit and missing > 0:
                counters.add(budget, dimension, granted=missing)
                granted.setdefault(budget.budget_id, {})[dimension] = missing
    return granted
