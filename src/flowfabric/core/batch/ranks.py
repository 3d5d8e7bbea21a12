"""The ranks that wait in fair lanes, as one batch sees them: those loaded, and those it has given itself."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import TypeAlias

from flowfabric.model.decisions import Ranked
from flowfabric.model.records.executions import Execution
from flowfabric.model.states import is_claimable

#: Lane, priority, and a key; without a key all of them.
Group: TypeAlias = tuple[str, int, str | None]


class _Ranks:
    """Stored ranks of one group from its telling end: the lowest of all, or the highest of a key."""

    __slots__ = ("asked", "entries", "position")

    def __init__(self, entries: list[tuple[str, int]], asked: int) -> None:
        self.entries = entries
        self.asked = asked
        self.position = 0


class Turns:
    """See the module's text."""

    def __init__(self) -> None:
        self._stored: dict[Group, _Ranks] = {}
        self.restart()

    def restart(self) -> None:
        """Forget what the batch has done; keep what was loaded."""
        self._given: dict[Group, list[tuple[int, str]]] = {}
        self._places: dict[str, tuple[Execution, int]] = {}
        for ranks in self._stored.values():
            ranks.position = 0

    def put(self, need: Ranked, entries: list[tuple[str, int]]) -> None:
        """The answer to a ``Ranked``: ids with their ranks."""
        self._stored[(need.lane_id, need.priority, need.fair_key)] = _Ranks(entries, need.limit)

    def has(self, need: Ranked) -> bool:
        """Whether the group is known as far as asked for."""
        ranks = self._stored.get((need.lane_id, need.priority, need.fair_key))
        return ranks is not None and (len(ranks.entries) < ranks.asked or ranks.asked >= need.limit)

    def note(self, execution: Execution) -> None:
        """An execution with a key was written: it stands where it says now, or waits no longer."""
        before = self._places.pop(execution.execution_id, None)
        if before is not None:
            for group in _groups(before[0]):
                given = self._given[group]
                del given[bisect_left(given, (before[1], execution.execution_id))]
        if execution.fair_key is None or not is_claimable(execution.lifecycle_phase, execution.eligibility_state):
            return
        self._places[execution.execution_id] = (execution, execution.fair_rank)
        for group in _groups(execution):
            insort(self._given.setdefault(group, []), (execution.fair_rank, execution.execution_id))

    def rank(self, group: Group, touched: Callable[[str], bool]) -> int | Ranked | None:
        """The lowest rank of a group, or the highest of a key; ``None`` if nothing waits, or what to load first."""
        ranks = self._stored[group]
        entries, position = ranks.entries, ranks.position
        while position < len(entries) and touched(entries[position][0]):
            position += 1
        ranks.position = position
        if position == len(entries) and len(entries) >= ranks.asked:
            return Ranked(*group, 4 * ranks.asked)
        found = [entries[position][1]] if position < len(entries) else []
        keyed = group[2] is not None
        given = self._given.get(group)
        if given:
            found.append(given[-1 if keyed else 0][0])
        return (max if keyed else min)(found, default=None)


def _groups(execution: Execution) -> tuple[Group, Group]:
    return (
        (execution.lane_id, execution.priority, None),
        (execution.lane_id, execution.priority, execution.fair_key),
    )
