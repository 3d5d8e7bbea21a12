"""How soon attempts end, by what they run: only so much work is taken ahead as will begin within moments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: How much one attempt moves the estimate for its kind.
WEIGHT: Final = 0.05
#: Kinds that are known; names come from the callers that start executions.
MOST_KINDS: Final = 10_000


class Pace:
    """Seconds that recent attempts took."""

    def __init__(self) -> None:
        self._by_kind: dict[str, float] = {}
        self._latest: float | None = None

    def note(self, kind: str, seconds: float) -> None:
        """An attempt has ended."""
        if len(self._by_kind) >= MOST_KINDS:
            self._by_kind.clear()
        known = self._by_kind.get(kind, seconds)
        self._latest = self._by_kind[kind] = known + WEIGHT * (seconds - known)

    def ends_within(self, seconds: float, running: Iterable[tuple[str, float]], idle: int = 0) -> int:
        """How many attempts will end in that time, if those that run (the kind, and for how long already) are followed
        by others of their kind. What was never seen to end is not expected to. ``idle`` slots are taken to run what has
        ended last."""
        rate = 0.0
        for kind, elapsed in running:
            known = self._by_kind.get(kind)
            if known is not None:
                rate += 1 / max(known, elapsed, 1e-6)
        if idle > 0 and self._latest is not None:
            rate += idle / max(self._latest, 1e-6)
        return int(rate * seconds)
