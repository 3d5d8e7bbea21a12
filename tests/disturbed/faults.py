"""A store as a process sees it that is killed at a commit, or whose store is away for a moment."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from flowfabric.model.errors import Transport, TransportKind

_OWN = ("_store", "commits", "calls", "dead", "kill_before", "kill_after", "away_at", "away_for")


class FaultyStore:
    """Forwards everything to the store, until the process is dead.

    Commits that write something count from 1, and so do calls: a transaction that is begun, a read, a question.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self.dead = False
        self.restart()

    def restart(self, *, kill_before: int = 0, kill_after: int = 0, away_at: int = 0, away_for: int = 1) -> None:
        """Count anew: die before or after the commit with this number, and find the store away from some call on."""
        self.commits = self.calls = 0
        self.kill_before, self.kill_after = kill_before, kill_after
        self.away_at, self.away_for = away_at, away_for

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._store, name, value)

    @contextlib.asynccontextmanager
    async def transaction(self, *, trusting: bool = False) -> AsyncIterator[Any]:
        """One atomic unit."""
        self._count()
        async with self._store.transaction(trusting=trusting) as inner:
            transaction = _FaultyTransaction(self, inner)
            yield transaction
        if transaction.last:
            # What is committed stays, and nobody is told.
            raise self._died()

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        """Committed rows."""
        self._count()
        return await self._store.read(*args, **kwargs)

    async def query(self, *args: Any, **kwargs: Any) -> Any:
        """An answer."""
        self._count()
        return await self._store.query(*args, **kwargs)

    def _count(self) -> None:
        if self.dead:
            raise self._died()
        self.calls += 1
        if self.away_at <= self.calls < self.away_at + self.away_for and self.away_at:
            raise Transport(self._store.label, TransportKind.TRANSPORT, "the store is away")

    def _died(self) -> Transport:
        self.dead = True
        return Transport(self._store.label, TransportKind.TRANSPORT, "the process was killed")

    def committing(self) -> bool:
        """Count a commit; whether it is the last thing that the process does."""
        self.commits += 1
        if self.commits == self.kill_before:
            raise self._died()
        return self.commits == self.kill_after


class _FaultyTransaction:
    def __init__(self, store: FaultyStore, transaction: Any) -> None:
        self._faulty = store
        self._transaction = transaction
        self.last = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    async def commit(self, writes: Any, held: Any) -> Any:
        """Make it durable, unless the process dies first."""
        if not writes.empty:
            self.last = self._faulty.committing()
        return await self._transaction.commit(writes, held)
