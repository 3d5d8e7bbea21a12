"""What admission costs: lifecycles of executions that name a budget or a quota, against the same without."""

from __future__ import annotations

import functools
import uuid

from bench import goals
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database
from bench.measure import Window, closed_loop
from bench.rows import Row, Series
from bench.shape import KIND, LANE, PAYLOAD, System, lifecycle
from bench.system import EngineSystem, open_engine
from flowfabric.engine import Engine

CALLERS = (64, 256)
#: What executions name.
NAMES = ("budget", "quota")


def cases() -> list[Case]:
    """One per store, number of callers and what is named."""
    return [
        Case(
            f"budgets/{store}/{name}/{callers}",
            f"lifecycles of {callers} callers on {STORE_NAMES[store]}, each naming a {name}, against none",
            functools.partial(run, store, name, callers),
        )
        for store in STORES
        for name in NAMES
        for callers in CALLERS
    ]


class NamingSystem(EngineSystem):
    """Executions that all name the same budget, or the same quota."""

    def __init__(self, engine: Engine, policy: dict[str, object]) -> None:
        super().__init__(engine)
        self._policy = policy

    @classmethod
    async def open(cls, engine: Engine, name: str) -> NamingSystem:
        """A budget or quota with room for everybody."""
        identity = str(uuid.uuid4())
        if name == "budget":
            await engine.create_budget(budget_id=identity, dimensions=["tokens"], hard_limits=[10**12], soft_limits=[0])
            return cls(engine, {"budget_ids": [identity]})
        await engine.create_quota_policy(quota_policy_id=identity, max_concurrent=10**9)
        return cls(engine, {"quota_policy_id": identity})

    async def create(self) -> None:
        """One new execution."""
        await self.engine.create_execution(
            lane_id=LANE, execution_kind=KIND, input_payload=PAYLOAD, policy=self._policy
        )


async def run(store: str, name: str, callers: int, bench: Bench) -> list[Row]:
    """With and without in turns, each in its own database."""
    ours, other = await bench.places.database(store), await bench.places.database(store)
    named = await NamingSystem.open(await open_engine(ours.url), name)
    # A policy of its own on either side, so that the ratio shows admission and not the document.
    plain = NamingSystem(await open_engine(other.url), {"max_replay_count": 9})
    sides = {
        "named": functools.partial(_window, bench, ours, named, callers),
        "plain": functools.partial(_window, bench, other, plain, callers),
    }
    try:
        found = await bench.interleaved(sides)
    finally:
        await named.close()
        await plain.close()
    return [_row(store, name, callers, found)]


async def _window(bench: Bench, database: Database, system: System, callers: int) -> Window:
    await database.tidy()
    return await closed_loop(lambda _: lifecycle(system), callers, bench.seconds, database.server)


def _row(store: str, name: str, callers: int, found: dict[str, list[Window]]) -> Row:
    return Row(
        case=f"budgets/{store}/{name}/{callers}",
        label=f"{STORE_NAMES[store]}, {callers} callers naming a {name}",
        unit="lifecycles/s",
        better="higher",
        ours=Series(f"with a {name}", [window.per_second for window in found["named"]]),
        yardstick=Series("without", [window.per_second for window in found["plain"]]),
        target=goals.NAMED[name],
        extra={"client µs": [window.client_us for window in found["named"]]},
    )
