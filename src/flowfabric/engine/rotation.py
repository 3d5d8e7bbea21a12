"""Whose turn it is among the lanes that one engine serves together."""

from __future__ import annotations

from flowfabric.core.lane_claims import LanesClaimed

#: Sets of lanes whose credits an engine remembers.
MAX_ROTATIONS = 1_000


class Rotation:
    """The credits of some lanes. Claims that are under way are counted as if they found what they look for, so that
    those who come meanwhile look elsewhere; what they really found replaces the guess."""

    def __init__(self, lanes: tuple[tuple[str, int], ...]) -> None:
        self._weights = [weight for _, weight in lanes]
        self._credits = [0] * len(lanes)

    def begin(self) -> tuple[tuple[int, ...], int]:
        """The credits to claim with, and the lane that is guessed to be served."""
        credits = tuple(self._credits)
        guess = max(range(len(credits)), key=lambda n: (credits[n] + self._weights[n], -n))
        self._turn(guess, 1)
        return credits, guess

    def end(self, began: tuple[tuple[int, ...], int], answer: LanesClaimed | None) -> None:
        """What came of it; ``None`` if nothing did."""
        credits, guess = began
        self._turn(guess, -1)
        if answer is not None:
            for n, (before, after) in enumerate(zip(credits, answer.credits, strict=True)):
                self._credits[n] += after - before

    def _turn(self, served: int, sign: int) -> None:
        for n, weight in enumerate(self._weights):
            self._credits[n] += sign * weight
        self._credits[served] -= sign * sum(self._weights)


class Rotations:
    """Rotations by lanes and weights; the ones used longest ago are forgotten."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, int], ...], Rotation] = {}

    def of(self, lanes: tuple[tuple[str, int], ...]) -> Rotation:
        """The rotation of these lanes."""
        found = self._known.pop(lanes, None) or Rotation(lanes)
        self._known[lanes] = found
        if len(self._known) > MAX_ROTATIONS:
            del self._known[next(iter(self._known))]
        return found
