"""Remote workers: ``python -m tests.chaos.remote_worker <servers> <how many>``. What they run is defined here."""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from contextlib import AsyncExitStack
from datetime import timedelta

from flowfabric import App, sleep
from flowfabric.sdk.context import Ctx
from tests.chaos.processes import say

#: A worker that is taken for lost is replaced after this time.
LEASE = timedelta(seconds=8)


def application(servers: str) -> App:
    """The app, whoever runs or calls it. Losing many servers in a row is no fault of a run."""
    app = App(servers, token="token-of-this-test", lost_workers=1_000)

    @app.task
    async def ship(order: int, ctx: Ctx) -> str:
        await ctx.emit(f"shipping {order}")
        await asyncio.sleep(0.005)
        return f"{order}:{uuid.uuid4().hex}"

    @app.step
    async def pay(order: int) -> str:
        return f"{order}:{uuid.uuid4().hex}"

    @app.workflow
    async def fulfil(order: int) -> list[str]:
        paid = await pay(order)
        shipped = await ship(order)
        await sleep(timedelta(milliseconds=20))
        again = await pay.using(key="again")(order)
        return [paid, shipped, again]

    return app


async def main(servers: str, count: int) -> None:
    """Work until killed."""
    logging.basicConfig(level=logging.WARNING)
    async with AsyncExitStack() as stack:
        for _ in range(count):
            app = application(servers)
            await stack.enter_async_context(app.worker(concurrency=8, lease_ttl=LEASE))
        say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
