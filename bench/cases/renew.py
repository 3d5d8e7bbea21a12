"""Renewing a thousand leases at once, as a busy worker process does a few times a minute."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from bench.cases.lifecycle import open_limit
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database
from bench.measure import Window, closed_loop
from bench.rows import Row, Series
from bench.shape import LANE
from bench.system import POLICY, open_engine

LEASES = 1_000


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"renew/{store}",
            f"{LEASES:,} leases on {STORE_NAMES[store]} renewed all at once, against the limit",
            functools.partial(run, store),
        )
        for store in STORES
    ]


async def run(store: str, bench: Bench) -> list[Row]:
    """All leases, again and again."""
    ours, other = await bench.places.database(store), await bench.places.database(store)
    for database in (ours, other):
        await database.fill(LEASES)
        await database.settle()
    engine = await open_engine(ours.url)
    limit: Any = await open_limit(other, LEASES)
    try:
        handles = await engine.claim_many(LANE, None, POLICY, LEASES)
        claimed = await asyncio.gather(*(limit.claim() for _ in range(LEASES)))
        found = await bench.interleaved(
            {
                "engine": lambda: _window(bench, ours, engine.renew, handles),
                "limit": lambda: _window(bench, other, limit.renew, claimed),
            }
        )
    finally:
        await engine.close()
        await limit.close()
    return [
        Row(
            case=f"renew/{store}",
            label=f"{STORE_NAMES[store]}, renew {LEASES:,} leases",
            unit="renewals/s",
            better="higher",
            ours=Series("engine", [each.per_second for each in found["engine"]]),
            yardstick=Series(
                "group-commit limit" if store == "sqlite" else "coalesced limit",
                [each.per_second for each in found["limit"]],
            ),
            extra={
                "client µs": [each.client_us for each in found["engine"]],
                "client µs of the limit": [each.client_us for each in found["limit"]],
            },
        )
    ]


async def _window(
    bench: Bench, database: Database, renew: Callable[[Any], Awaitable[object]], held: Iterable[Any]
) -> Window:
    leases = list(held)

    async def all_at_once(_: int) -> int:
        await asyncio.gather(*(renew(lease) for lease in leases))
        return len(leases)

    await database.tidy()
    return await closed_loop(all_at_once, 1, bench.seconds, database.server)
