"""Quotas and budgets that nothing uses any more.

Apps make one for each value of a limit's key, and one for each budget that a start names. These are looked at from time
to time, and deleted if nothing uses them: no kept execution names them, no admission is in a window, no counter of a
budget has moved in its period, nobody waits, and nothing stands under them. An app that is about to use one makes it
first, which puts the next look off. Those that somebody has made or changed by hand stay.
"""

from __future__ import annotations

from typing import Any

from flowfabric.core.context import saturate
from flowfabric.model.decisions import Act, change
from flowfabric.model.limits import BUDGET_IDLE_MS, GATE_KNOWN_MS, QUOTA_IDLE_MS
from flowfabric.model.records.budgets import Budget, QuotaPolicy


def next_look(kind: Any, now: int) -> int:
    """When one that is used now is looked at."""
    return saturate(now + (QUOTA_IDLE_MS if kind is QuotaPolicy else BUDGET_IDLE_MS))


def wanted(gate: Budget | QuotaPolicy, now: int, kept: bool) -> tuple[Act, ...]:
    """Somebody is about to use it, or wants it to stay in any case."""
    fields = put_off(gate, now, kept)
    return (change(gate, **fields),) if fields else ()


def put_off(gate: Budget | QuotaPolicy, now: int, kept: bool) -> dict[str, Any]:
    """What that changes of it."""
    planned, look = gate.idle_check_at_ms, next_look(type(gate), now)
    if planned is None:
        return {}
    if kept:
        return {"idle_check_at_ms": None}
    # Apps ask again before they rely on it for longer than this.
    return {"idle_check_at_ms": look} if planned + GATE_KNOWN_MS <= look else {}
