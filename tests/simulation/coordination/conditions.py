"""The oracle's judgement of conditions, by counting again from nothing each time.

A condition is a tuple: ``("single", key, name)``, ``("all", conditions)``, ``("count", n, kind, keys, name)``,
``("operator",)`` or ``("timeout",)``. A name of ``None`` matches every signal.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.coordination.model import Signal

Condition = tuple[Any, ...]


def holds(condition: Condition, heard: list[Signal]) -> bool:
    """Whether these signals are enough."""
    kind = condition[0]
    if kind == "single":
        return any(takes(condition, signal) for signal in heard)
    if kind == "all":
        return len(condition[1]) > 0 and all(holds(each, heard) for each in condition[1])
    if kind == "count":
        return len(distinct(condition, heard)) >= condition[1]
    return False


def takes(leaf: Condition, signal: Signal) -> bool:
    """Whether a single or a count looks at this signal and its matcher takes it."""
    name = leaf[2] if leaf[0] == "single" else leaf[4]
    return signal.key in keys(leaf) and name in (None, signal.name)


def keys(leaf: Condition) -> tuple[str, ...]:
    return (leaf[1],) if leaf[0] == "single" else leaf[3]


def distinct(count: Condition, heard: list[Signal]) -> set[Any]:
    """What a count counts."""
    what = {
        "DistinctWaitpoints": lambda signal: signal.key,
        "DistinctSignals": lambda signal: signal.id,
        "DistinctSources": lambda signal: signal.source,
    }[count[2]]
    return {what(signal) for signal in heard if takes(count, signal)}


def leaves(condition: Condition) -> list[Condition]:
    if condition[0] == "all":
        return [leaf for each in condition[1] for leaf in leaves(each)]
    return [condition] if condition[0] in ("single", "count") else []


def all_keys(condition: Condition) -> list[str]:
    """Every waitpoint key a condition names, in order, each once."""
    return list(dict.fromkeys(key for leaf in leaves(condition) for key in keys(leaf)))


def matched(condition: Condition, signal: Signal) -> bool:
    """Whether some part of the condition looks at the signal and takes it."""
    return any(takes(leaf, signal) for leaf in leaves(condition))


def effect(condition: Condition, before: list[Signal], signal: Signal) -> str:
    """What one more signal does."""
    if holds(condition, [*before, signal]):
        return "resume_condition_satisfied"
    if condition[0] not in ("all", "count"):
        return "no_op"
    looking = [leaf for leaf in leaves(condition) if signal.key in keys(leaf)]
    if not looking:
        return "signal_ignored_not_in_condition"
    taking = [leaf for leaf in looking if takes(leaf, signal)]
    if not taking:
        return "signal_ignored_matcher_failed"
    for leaf in taking:
        news = (
            not holds(leaf, before)
            if leaf[0] == "single"
            else distinct(leaf, [*before, signal]) > distinct(leaf, before)
        )
        if news:
            return "appended_to_waitpoint"
    return "appended_to_waitpoint_duplicate"
