"""How many of a kind may run at once; whoever comes too much is told so at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from flowfabric.model.errors import ResourceExhausted, Unavailable


class Permits:
    """A ceiling without a queue."""

    def __init__(self, pool: str, maximum: int) -> None:
        self.pool = pool
        self.maximum = maximum
        self.taken = 0
        self.closed = False
        self.idle = asyncio.Event()
        self.idle.set()

    def check(self) -> None:
        """Refuse if there is none left."""
        if self.closed:
            raise Unavailable(self.pool)
        if self.taken >= self.maximum:
            raise ResourceExhausted(self.pool, self.maximum)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a permit."""
        self.check()
        self.taken += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.taken -= 1
            if not self.taken:
                self.idle.set()
