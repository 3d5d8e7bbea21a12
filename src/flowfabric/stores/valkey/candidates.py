"""Which candidates claims decide upon, so that they do not all want the head of the queue.

There are no locks to skip. Claims of one process know of each other: each passes over what another is deciding upon,
but waits for it before it takes something less urgent, or goes away with less than it wants: until the other has
decided, nobody knows what that leaves. Of another process they only notice that they lose races, and
then leave it some candidates at the head for a while. Whatever happens here, the commit compares.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Sequence

#: How long after a lost race another process is expected at the head of the queue.
COMPANY_S = 1.0
#: Candidates that are remembered as left to others.
_MOST_LEFT = 10_000


class Reserved:
    """The candidates of one process."""

    def __init__(self) -> None:
        self._by: dict[str, object] = {}
        #: Owners that have decided: what they still hold, they are about to take.
        self._decided: set[object] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._company_until = float("-inf")
        #: How many candidates the other process seems to take at once.
        self._left_at_once = 0
        self._left: set[str] = set()

    @property
    def margin(self) -> int:
        """How many candidates to read beyond those that are wanted."""
        return len(self._by) + (self._left_at_once if self._in_company else 0)

    @property
    def _in_company(self) -> bool:
        return time.monotonic() < self._company_until

    def take(
        self, ids: Sequence[str], urgency: Sequence[bytes], limit: int, owner: object, *, cut: bool = False
    ) -> set[str] | None:
        """Reserve the first ``limit`` candidates that nobody else has, or seems to be about to take.

        ``None`` if it is too early to tell: that would pass over something more urgent, which its holder may yet fail
        to take, or there are too few, and the others may leave some or hide what stands behind them (``cut``).
        """
        free = [place for place, each in enumerate(ids) if self._by.get(each, owner) is owner]
        if len(free) < limit and len(free) < len(ids):
            others = {self._by.get(each, owner) for each in ids} - {owner}
            if cut or not others <= self._decided:
                return None
        spare = min(len(free) - limit, self._left_at_once)
        if spare > 0 and self._in_company and urgency[free[0]] == urgency[free[spare + limit - 1]]:
            # Each is left to others once: if it is still there the next time, nobody wanted it.
            left = {ids[place] for place in free[:spare]} - self._left
            if len(self._left) > _MOST_LEFT:
                self._left.clear()
            self._left |= left
            free = [place for place in free if ids[place] not in left]
        free = free[:limit]
        if free:
            passed = next((place for place in range(free[-1]) if self._by.get(ids[place], owner) is not owner), None)
            if passed is not None and urgency[passed] != urgency[free[-1]]:
                return None
        taken = [ids[place] for place in free]
        self._by.update(dict.fromkeys(taken, owner))
        self._decided.discard(owner)
        return set(taken)

    def decide(self, taken: Container[str], owner: object) -> None:
        """The owner takes these, and lets go of its other candidates."""
        mine = [key for key, each in self._by.items() if each is owner]
        if mine:
            for key in mine:
                if key not in taken:
                    del self._by[key]
            self._decided.add(owner)
            self._wake()

    def is_of(self, candidate: str, owner: object) -> bool:
        """Whether somebody has reserved it."""
        return self._by.get(candidate) is owner

    async def changed(self) -> None:
        """Wait until somebody has decided, or has let go of candidates."""
        if self._by:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def release(self, owner: object, *, lost_race: bool) -> None:
        """The owner's transaction is over."""
        self._decided.discard(owner)
        mine = [key for key, each in self._by.items() if each is owner]
        if not mine:
            return
        for key in mine:
            del self._by[key]
        if lost_race:
            self._company_until = time.monotonic() + COMPANY_S
            self._left_at_once = len(mine)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
