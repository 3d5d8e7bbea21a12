"""Whose things are whose.

A name means something of the caller's own namespace, or of the operator; what belongs to another namespace counts as
unknown. Budgets and quotas are looked for by that rule whenever they are named and again at every admission
and charge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flowfabric.model.decisions import Get, Key, Need
from flowfabric.model.ownership import is_meant, places, shown_id
from flowfabric.model.records.budgets import Budget, QuotaPolicy
from flowfabric.model.records.executions import Execution

_Gate = TypeVar("_Gate", Budget, QuotaPolicy)


def found(
    look: Callable[[type[_Gate], Key], _Gate | None], kind: type[_Gate], name: str, namespace: str | None
) -> _Gate | None:
    """The budget or quota that a name means in a namespace. Without a namespace the operator asks, who may name any."""
    for place in places(name, namespace):
        record: Any = look(kind, place)
        if record is not None and is_meant(record.namespace, name, namespace):
            return record  # type: ignore[no-any-return]
    return None


def needs(kind: Any, name: str, namespace: str | None) -> tuple[Need, ...]:
    """Where a name leads first."""
    return tuple(Get(kind, place) for place in places(name, namespace)[:1])


def as_named_by(execution: Execution, budget_id: str) -> str:
    """A budget as an execution names it: by the name it was created with, if it names that budget at all."""
    plain = shown_id(budget_id)
    for name in (execution.budget_ids or "").split(","):
        if shown_id(name) == plain:
            return name
    return budget_id
