"""Pauses between repetitions of a call that the store did not answer."""

from __future__ import annotations

import asyncio
import random

FIRST_S, LONGEST_S = 0.05, 2.0


class Patience:
    """Each pause is about twice as long as the last, up to a longest one."""

    __slots__ = ("_longest_s", "_next_s")

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """How long to pause now. A little chance keeps many callers from coming back at once."""
        pause = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._longest_s)
        return pause

    async def rest(self) -> None:
        """Pause."""
        await asyncio.sleep(self.next_s())

    def renew(self) -> None:
        """The store has answered: begin with short pauses again."""
        self._next_s = FIRST_S
