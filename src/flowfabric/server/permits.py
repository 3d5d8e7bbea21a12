"""How many of a kind may run at once; whoever comes too much is told so at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from flowfabric.model.errors import ResourceExhausted, Unavailable
from flowfabric.server.access import Principal


class Permits:
    """A ceiling without a queue. Whoever shows a stored credential has at most half of them, so that there are some for
    others."""

    def __init__(self, pool: str, maximum: int) -> None:
        self.pool = pool
        self.maximum = maximum
        self.taken = 0
        self.closed = False
        self.idle = asyncio.Event()
        self.idle.set()
        #: How many each credential has.
        self._shares: Counter[str] = Counter()

    def check(self, caller: Principal | None = None) -> None:
        """Refuse if there is none left."""
        if self.closed:
            raise Unavailable(self.pool)
        if self.taken >= self.maximum:
            raise ResourceExhausted(self.pool, self.maximum)
        share = max(self.maximum // 2, 1)
        if caller is not None and caller.credential_id is not None and self._shares[caller.credential_id] >= share:
            raise ResourceExhausted(self.pool, share)

    @contextmanager
    def one(self, caller: Principal | None = None) -> Iterator[None]:
        """Hold a permit."""
        self.check(caller)
        name = None if caller is None else caller.credential_id
        self.taken += 1
        self.idle.clear()
        if name is not None:
            self._shares[name] += 1
        try:
            yield
        finally:
            self.taken -= 1
            if not self.taken:
                self.idle.set()
            if name is not None:
                self._shares[name] -= 1
                if not self._shares[name]:
                    del self._shares[name]
