"""Drain tasks with the SDK's worker, with and without limits by key. They leave room for all: this is their cost."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from bench.workers import answer, next_order
from bench.workers.sdk import drain
from flowfabric.sdk.app import App
from flowfabric.sdk.options import Limit, Rate

CHUNK = 1_000
CUSTOMERS = 50
LIMITS = {
    "plain": (),
    "limit": (Limit(100_000, key="customer"),),
    "rate": (Rate(1_000_000, per=timedelta(minutes=1), key="customer"),),
}


async def main(url: str) -> None:
    """Orders are ``[kind, count]``, which starts so many, or ``[kind, seconds]`` with a fraction, which drains."""
    app = App(url)
    done = [0]

    async def noop(order: int, customer: str) -> dict[str, bool]:
        done[0] += 1
        return {"done": True}

    tasks = {kind: app.task(name=kind, lane=kind, limits=limits)(noop) for kind, limits in LIMITS.items()}
    async with app:
        answer("ready")
        while (order := await next_order()) is not None:
            kind, amount = order
            if isinstance(amount, int):
                for first in range(0, amount, CHUNK):
                    calls = [(each, f"customer-{each % CUSTOMERS}") for each in range(first, first + CHUNK)]
                    await tasks[kind].start_many(calls)
                answer(amount)
            else:
                answer(await drain(app, done, amount, lanes=[kind]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
