"""Checks of arguments about budgets and quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowfabric.engine.checks.values import integer, invalid, sequence, text, uuid
from flowfabric.model.counting import counted
from flowfabric.model.limits import MAX_BATCH, MAX_DIMENSIONS
from flowfabric.model.operations.budgets import UsageDimensions
from flowfabric.model.quoting import quoted

_MAX_I64 = 2**63 - 1


def dimension(value: Any, name: str = "dimension") -> str:
    """The name of something that is counted."""
    return text(value, name, empty=False)


def amount(value: Any, name: str) -> int:
    """How much of it: a whole number that a counter can hold, not negative."""
    return integer(value, name, 0, _MAX_I64)


def amounts(value: Any, name: str) -> dict[str, int]:
    """Amounts by dimension."""
    if not isinstance(value, Mapping):
        raise invalid(f"{name}: expected amounts by dimension, got {type(value).__name__}")
    if len(value) > MAX_DIMENSIONS:
        raise invalid(f"{name}: {len(value)} dimensions, at most {MAX_DIMENSIONS} are allowed")
    return {dimension(key, f"{name} dimension"): amount(each, f"{name}[{quoted(key)}]") for key, each in value.items()}


def optional_amounts(value: Any, name: str) -> dict[str, int]:
    """Amounts by dimension, or none."""
    return {} if value is None else amounts(value, name)


def parallel_amounts(names: Any, values: Any, what: str) -> dict[str, int]:
    """Amounts by dimension from two lists of the same length."""
    keys, given = list(sequence(names, "dimensions")), list(sequence(values, what))
    if len(keys) != len(given):
        found, wanted = counted(len(given), "entry", "entries"), counted(len(keys), "dimension")
        raise invalid(f"{what}: {found} for {wanted}; give one for each")
    if len(set(map(str, keys))) != len(keys):
        raise invalid("dimensions: name each one only once")
    return amounts(dict(zip((dimension(key, "dimensions") for key in keys), given, strict=True)), what)


def usage(value: Any) -> tuple[dict[str, int], dict[str, int], str]:
    """``(custom amounts, built-in amounts, key)`` of a report."""
    if not isinstance(value, UsageDimensions):
        raise invalid(f"usage: expected UsageDimensions, got {type(value).__name__}")
    custom = amounts(value.custom, "custom")
    built_in = {
        "input_tokens": amount(value.input_tokens, "input_tokens"),
        "output_tokens": amount(value.output_tokens, "output_tokens"),
    }
    if value.wall_ms is not None:
        built_in["wall_ms"] = amount(value.wall_ms, "wall_ms")
    return custom, {name: each for name, each in built_in.items() if each}, key(value.dedup_key, "dedup_key")


def key(value: Any, name: str) -> str:
    """What makes a report repeatable; nothing or an empty text means that it is not."""
    return "" if value is None else text(value, name)


def reservations(value: Any, name: str, beside: Any) -> tuple[str, ...]:
    """Ids of reservations, each once and another than the one they stand beside."""
    found = tuple(uuid(each, name) for each in sequence(value, name))
    if len(found) >= MAX_BATCH:
        raise invalid(f"{name}: at most {MAX_BATCH - 1} at once, got {len(found)}")
    if len({*found, uuid(beside, "reservation_id")}) <= len(found):
        raise invalid(f"{name}: name each reservation once")
    return found


def seconds(value: Any, name: str) -> int:
    """A length of time."""
    return integer(value, name, 0, 2**40)
