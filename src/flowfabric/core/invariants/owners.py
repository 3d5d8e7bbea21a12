"""Invariants of owners, judged from stored rows alone: nothing crosses namespaces.

It covers what the core refuses to everybody. Callers who are not limited to namespaces may let executions of one
namespace join flows of another, start children there, and name budgets that are nobody's: such rows are not wrong.
Waitpoints and attempts are stored under their execution and have no namespace of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flowfabric.core.admission.charge import ancestors, is_above
from flowfabric.model.ownership import owned_name, shown_id
from flowfabric.model.reads.examine import Violation
from flowfabric.model.records.budgets import Budget, QuotaAdmitted, QuotaPolicy, Reservation
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.starts import Schedule


def check_budget_owners(
    budgets: Sequence[Budget], reservations: Iterable[Reservation], executions: Mapping[str, Execution]
) -> list[Violation]:
    """Every budget under a name of its owner and below budgets of the same owner or the operator; what is reserved
    there belongs to executions of its owner."""
    by_name = {budget.budget_id: budget for budget in budgets}
    found: list[Violation] = []
    for budget in budgets:
        found += _misplaced(budget.budget_id, budget.namespace)
        for name in ancestors(budget):
            above = by_name.get(name)
            if above is not None and not is_above(above, budget):
                found.append(Violation("I36", budget.budget_id, f"its parent {name} belongs to another namespace"))
    for reservation in reservations:
        named = by_name.get(reservation.budget_id)
        execution = executions.get(holder_of(reservation))
        if named is not None and execution is not None:
            found += _foreign(reservation.budget_id, named.namespace, execution)
    return found


def holder_of(reservation: Reservation) -> str:
    """The id of the execution that has reserved something."""
    return f"{{fp:{reservation.partition}}}:{reservation.uuid}"


def check_quota_owner(
    policy: QuotaPolicy, guards: Iterable[QuotaAdmitted], executions: Mapping[str, Execution]
) -> list[Violation]:
    """A policy under a name of its owner, and its slots with executions of its owner."""
    found = _misplaced(policy.quota_policy_id, policy.namespace)
    holders = {guard.execution_id for guard in guards}
    holders |= {key for key, each in executions.items() if each.quota_policy_id == policy.key and each.admitted_at_ms}
    for holder in sorted(holders):
        if (execution := executions.get(holder)) is not None:
            found += _foreign(policy.quota_policy_id, policy.namespace, execution)
    return found


def check_block(execution: Execution, gate: Budget | QuotaPolicy) -> list[Violation]:
    """An execution waits for room only at a budget or quota of its own namespace or of the operator."""
    if gate.namespace is None or gate.namespace == execution.namespace:
        return []
    detail = f"it is blocked by {execution.blocked_by} of another namespace"
    return [Violation("I36", execution.execution_id, detail)]


def check_schedule_owner(schedule: Schedule, last: Execution | None) -> list[Violation]:
    """What a schedule has started is in the schedule's namespace."""
    if last is None or last.namespace == schedule.namespace:
        return []
    subject = f"schedule {schedule.schedule_id} of {schedule.namespace}"
    return [
        Violation("I36", subject, f"execution {last.execution_id} of another namespace is recorded as its last run")
    ]


def _misplaced(name: str, owner: str | None) -> list[Violation]:
    plain = shown_id(name)
    if name == plain or (owner is not None and name == owned_name(plain, owner)):
        return []
    return [Violation("I36", name, "it is stored under a name that is not its owner's")]


def _foreign(name: str, owner: str | None, execution: Execution) -> list[Violation]:
    if owner is None or owner == execution.namespace:
        return []
    return [Violation("I36", name, f"execution {execution.execution_id} of another namespace uses it")]
