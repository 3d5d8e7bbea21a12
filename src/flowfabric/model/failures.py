"""Which failures are the same: those of one kind whose messages differ in numbers and ids only."""

from __future__ import annotations

import re
from collections.abc import Iterable

from flowfabric.model.reads.search import ExecutionSummary, FailureGroup

#: What differs from one failure to the next: ids, hexadecimal numbers and numbers.
_CHANGING = re.compile(
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}\b|\d+"
)


def shape(error: str) -> str:
    """The first line of a message with a mark for whatever changes."""
    return _CHANGING.sub("\0", error.partition("\n")[0].strip())


def common(error: str) -> str:
    """The longest stretch of a message that stays the same, without quotes: what a search can look for."""
    stretches = re.split(r'[\0"]', shape(error))
    return max((each.strip() for each in stretches), key=len, default="")


def grouped(failures: Iterable[ExecutionSummary]) -> tuple[FailureGroup, ...]:
    """Failures, newest first, by kind and error: the largest group first, and the latest of two that are as large."""
    by_shape: dict[tuple[str, str], list[ExecutionSummary]] = {}
    for each in failures:
        by_shape.setdefault((each.execution_kind, shape(each.error or "")), []).append(each)
    found = []
    for (kind, _), members in by_shape.items():
        newest = max(members, key=_ended)
        error = newest.error or ""
        first = min(map(_ended, members))
        found.append(FailureGroup(kind, error, common(error), len(members), first, _ended(newest), newest.execution_id))
    # Equal ones stay as they came, newest first.
    return tuple(sorted(found, key=lambda each: (-each.count, -each.last_at)))


def _ended(each: ExecutionSummary) -> int:
    return each.created_at if each.completed_at is None else each.completed_at
