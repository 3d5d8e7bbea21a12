"""What a benchmark finds out: rows of figures, each with its yardstick and its target."""

from __future__ import annotations

import statistics
from typing import Literal

from msgspec import Struct

Better = Literal["higher", "lower"]
Verdict = Literal["goal", "ok", "below floor", ""]


class Target(Struct, frozen=True):
    """What is asked of a row: at least the floor; the goal is where we want to be."""

    floor: float
    goal: float
    #: Whether the target is for the ratio against the yardstick or for the figure itself.
    of: Literal["ratio", "value"] = "ratio"
    #: A target on figures that were recorded elsewhere is printed, but never enforced.
    enforced: bool = True


class Series(Struct):
    """One figure, measured once per repetition."""

    name: str
    values: list[float]

    @property
    def median(self) -> float:
        """The middle of the repetitions."""
        return statistics.median(self.values)

    @property
    def lowest(self) -> float:
        """The smallest of the repetitions."""
        return min(self.values)

    @property
    def highest(self) -> float:
        """The largest of the repetitions."""
        return max(self.values)


class Row(Struct, kw_only=True):
    """One line of the report."""

    case: str
    label: str
    unit: str
    better: Better
    ours: Series
    yardstick: Series | None = None
    target: Target | None = None
    #: Further figures by name, one value per repetition: processor time, percentiles.
    extra: dict[str, list[float]] = {}
    note: str = ""

    @property
    def ratio(self) -> Series | None:
        """Ours against the yardstick, repetition by repetition: what disturbs one window disturbs its neighbour too."""
        if self.yardstick is None:
            return None
        pairs = zip(self.ours.values, self.yardstick.values, strict=True)
        return Series("ratio", [ours / other if other else 0.0 for ours, other in pairs])

    @property
    def judged(self) -> float | None:
        """The number that the target is for."""
        if self.target is None:
            return None
        if self.target.of == "value":
            return self.ours.median
        return None if self.ratio is None else self.ratio.median

    @property
    def verdict(self) -> Verdict:
        """How the row stands against its target."""
        found = self.judged
        if found is None or self.target is None:
            return ""
        sign = 1 if self.better == "higher" else -1
        if found * sign >= self.target.goal * sign:
            return "goal"
        return "ok" if found * sign >= self.target.floor * sign else "below floor"


class Problem(Struct):
    """A case that did not run to its end."""

    case: str
    text: str
    skipped: bool = False
