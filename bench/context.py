"""What a case gets, and what a case is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bench import measure
from bench.databases import Database
from bench.rows import Row
from bench.workspace import Places

Found = TypeVar("Found")

STORES = ("sqlite", "postgres", "valkey")
STORE_NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "valkey": "Valkey"}


@dataclass
class Bench:
    """One run of the benchmark."""

    places: Places
    seconds: float
    repeat: int
    quick: bool
    #: Called after each window, with nothing; before, with what is being done.
    tick: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda _: None
    _backlogs: dict[tuple[str, int], Database] = field(default_factory=dict)

    async def interleaved(self, sides: Mapping[str, Callable[[], Awaitable[Found]]]) -> dict[str, list[Found]]:
        """Each side once per repetition, in turns."""
        return await measure.interleaved(self.repeat, sides, self.tick)

    async def backlog(self, store: str, count: int) -> Database:
        """A database that holds this many claimable executions. Filled once per run, as it takes a while."""
        database = self._backlogs.get((store, count))
        if database is None:
            self.say(f"filling {count:,} executions")
            database = await self.places.database(store)
            await database.fill(count)
            await database.settle()
            self._backlogs[store, count] = database
        return database

    def let_go(self) -> None:
        """Give back what the databases of a case take, but for backlogs that the next case may want."""
        self.places.let_go(but=self._backlogs.values())


@dataclass(frozen=True)
class Case:
    """A benchmark that can be run by name."""

    name: str
    about: str
    run: Callable[[Bench], Awaitable[list[Row]]]
    #: How many windows one repetition takes.
    windows: int = 2
