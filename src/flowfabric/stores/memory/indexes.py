"""Indexes in memory: sorted runs by family and name, which follow from the records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowfabric.stores.keyed.entries import Entry
from flowfabric.stores.memory.sorted_list import SortedRun

_NOTHING = SortedRun()


class Indexes:
    """All sorted runs, by family and name. Runs without entries are not kept."""

    def __init__(self) -> None:
        self._families: dict[Any, dict[Any, SortedRun]] = {}

    def run(self, family: Any, name: Any = None) -> SortedRun:
        """One run, for reading."""
        return self.runs(family).get(name, _NOTHING)

    def runs(self, family: Any) -> Mapping[Any, SortedRun]:
        """The runs of a family by name."""
        return self._families.get(family, {})

    def change(self, left: Iterable[Entry], taken: Iterable[Entry]) -> None:
        """Move a record from its old places to its new ones."""
        for entry in left:
            self._remove(*entry)
        for entry in taken:
            self._add(*entry)

    def _add(self, family: Any, name: Any, value: Any) -> None:
        runs = self._families.get(family)
        if runs is None:
            runs = self._families[family] = {}
        run = runs.get(name)
        if run is None:
            run = runs[name] = SortedRun()
        run.add(value)

    def _remove(self, family: Any, name: Any, value: Any) -> None:
        runs = self._families[family]
        run = runs[name]
        run.remove(value)
        if not run:
            del runs[name]
            if not runs:
                del self._families[family]

    def contents(self) -> dict[Any, dict[Any, list[Any]]]:
        """Everything indexed, for comparing."""
        return {
            family: {name: list(run.between()) for name, run in runs.items()} for family, runs in self._families.items()
        }
