"""Answers to searches for executions and lists of credentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Any

import msgspec

from flowfabric.model import literals as lit
from flowfabric.model.credentials import Credential
from flowfabric.model.doors import AuditEntry
from flowfabric.model.records import Execution
from flowfabric.stores import questions as ask
from flowfabric.stores.memory import indexes as index
from flowfabric.stores.memory.tables import Tables


def place(execution: Execution) -> tuple[int, int, str]:
    """Where an execution stands in lists."""
    return (execution.created_at_ms, execution.partition, execution.uuid)


def _kind(execution: Execution) -> Any:
    try:
        document = msgspec.json.decode(execution.raw_fields or "{}")
    except msgspec.DecodeError:
        return None
    return document.get("execution_kind") if isinstance(document, dict) else None


def summary(each: Execution) -> ask.SummaryRow:
    """What a list tells about an execution."""
    return ask.SummaryRow(
        each.partition,
        each.uuid,
        each.namespace,
        each.lane_id,
        _kind(each),
        each.public_state,
        each.priority,
        each.created_at_ms,
        each.started_at_ms,
        each.terminal_at_ms,
        each.attempt_index,
        each.flow_id,
        each.blocking_reason,
    )


def _fits(question: ask.SearchExecutions, each: Execution) -> bool:
    return (
        (question.namespaces is None or each.namespace in question.namespaces)
        and (question.flow is None or (each.partition, each.flow_id) == question.flow)
        and (question.parent is None or (each.partition, each.parent) == question.parent)
        and (question.lane_id is None or each.lane_id == question.lane_id)
        and (not question.states or each.public_state in question.states)
        and (question.created_from_ms is None or each.created_at_ms >= question.created_from_ms)
        and (question.created_before_ms is None or each.created_at_ms < question.created_before_ms)
        and (question.after is None or place(each) < question.after)
        and (question.kind is None or _kind(each) == question.kind)
        and (question.tag is None or index.tag_of(each, question.tag[0]) == question.tag[1])
    )


def _search(tables: Tables, question: ask.SearchExecutions) -> list[ask.SummaryRow]:
    fitting = (each for each in tables.all(Execution).values() if _fits(question, each))
    return [summary(each) for each in nlargest(question.limit, fitting, key=place)]


def _list_credentials(tables: Tables, question: ask.ListCredentials) -> list[Credential]:
    found = sorted(tables.all(Credential).items())
    return [each for name, each in found if question.after is None or name > question.after][: question.limit]


def _list_audit(tables: Tables, question: ask.ListAudit) -> list[AuditEntry]:
    found = sorted(tables.all(AuditEntry).items(), reverse=True)
    return [each for name, each in found if question.after is None or name < question.after][: question.limit]


def _queue_depths(tables: Tables, question: ask.QueueDepths) -> list[tuple[str, int, int]]:
    found: dict[str, list[int]] = {}
    for each in tables.all(Execution).values():
        if lit.is_claimable(each.lifecycle_phase, each.eligibility_state):
            found.setdefault(each.lane_id, []).append(each.created_at_ms)
    return [(lane, len(times), min(times)) for lane, times in sorted(found.items())]


ANSWERS: Mapping[Any, Callable[[Tables, Any], Any]] = {
    ask.SearchExecutions: _search,
    ask.ListCredentials: _list_credentials,
    ask.ListAudit: _list_audit,
    ask.QueueDepths: _queue_depths,
}
