"""Answers to questions about budgets and quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from flowfabric.model.budget_records import Budget, QuotaAdmitted, QuotaPolicy
from flowfabric.stores import questions as ask
from flowfabric.stores.memory import indexes as index
from flowfabric.stores.memory.tables import Tables


def _list_gates(tables: Tables, question: ask.ListGates) -> list[str]:
    ids = sorted(_gates(tables, question))
    return [each for each in ids if question.after is None or each > question.after][: question.limit]


def _gates(tables: Tables, question: ask.ListGates) -> Iterable[str]:
    until = (question.now + 1,)
    match question.what:
        case "budgets":
            return tables.all(Budget)
        case "quotas":
            return tables.all(QuotaPolicy)
        case "budget_reset":
            return (entry[1] for entry in tables.indexes.run(index.BUDGET_RESET).between(None, until))
        case "quota_room":
            return (entry[1] for entry in tables.indexes.run(index.QUOTA_ROOM).between(None, until))
        case "quota_drift":
            taken = Counter(guard.quota_policy_id for guard in tables.all(QuotaAdmitted).values() if guard.counted)
            policies = tables.all(QuotaPolicy).values()
            return (each.quota_policy_id for each in policies if each.active_concurrency != taken[each.key])
        case "blocked":
            return (gate for gate in tables.indexes.runs(index.GATED) if gate is not None)
        case _:
            raise ValueError(f"no list is called {question.what!r}")


def _waited_for(tables: Tables, question: ask.WaitedFor) -> list[str]:
    policies = (tables.find(QuotaPolicy, each) for each in question.quota_policy_ids)
    return [each.quota_policy_id for each in policies if each is not None and each.waiting_since_ms is not None]


def _expired_guards(tables: Tables, question: ask.ExpiredGuards) -> list[tuple[str, str]]:
    run = tables.indexes.run(index.GUARD_EXPIRY).between(None, (question.now + 1,))
    return [(key[1], key[2]) for _, key in islice(run, question.limit)]


def ungated(tables: Tables, question: ask.Due) -> Iterator[str]:
    """Executions that wait for room without anybody having said where."""
    return (entry[-1] for entry in tables.indexes.run(index.GATED).between())


ANSWERS: Mapping[Any, Callable[[Tables, Any], Any]] = {
    ask.ListGates: _list_gates,
    ask.ExpiredGuards: _expired_guards,
    ask.WaitedFor: _waited_for,
}
