"""Figures by kind: how often executions of a kind are started, how many fail, and how long they take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flowfabric.model.reads.overview import KindLine
from flowfabric.model.states import PublicState

_FAILED = (PublicState.FAILED, PublicState.EXPIRED)
_OTHERWISE = (PublicState.CANCELLED, PublicState.SKIPPED)


class Seen(NamedTuple):
    """What is looked at of an execution."""

    kind: str
    state: PublicState
    started_at: int | None
    ended_at: int | None


def by_kind(seen: Iterable[Seen]) -> tuple[KindLine, ...]:
    """A line for each kind, the most frequent first."""
    found: dict[str, list[Seen]] = {}
    for each in seen:
        found.setdefault(each.kind, []).append(each)
    lines = (_line(kind, its) for kind, its in found.items())
    return tuple(sorted(lines, key=lambda line: (-line.created, line.execution_kind)))


def _line(kind: str, its: Sequence[Seen]) -> KindLine:
    completed = sum(each.state is PublicState.COMPLETED for each in its)
    failed = sum(each.state in _FAILED for each in its)
    otherwise = sum(each.state in _OTHERWISE for each in its)
    took = sorted(
        max(each.ended_at - each.started_at, 0)
        for each in its
        if each.started_at is not None
        and each.ended_at is not None
        and (each.state is PublicState.COMPLETED or each.state in _FAILED)
    )
    unended = len(its) - completed - failed - otherwise
    return KindLine(kind, len(its), completed, failed, otherwise, unended, percentile(took, 50), percentile(took, 95))


def percentile(ascending: Sequence[int], percent: int) -> int | None:
    """The smallest value that so many percent of the values do not exceed."""
    if not ascending:
        return None
    return ascending[math.ceil(len(ascending) * percent / 100) - 1]
