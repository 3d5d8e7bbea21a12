"""A server that a test may kill: ``python -m tests.chaos.remote_server <store> <port>``."""

from __future__ import annotations

import asyncio
import sys

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.serving import Running
from tests.chaos.processes import say


async def main(url: str, port: int) -> None:
    """Serve until killed."""
    async with await Engine.open(url, timers=True) as engine:
        config = ServerConfig(port=port, api_token="token-of-this-test")
        server = create_app(engine, config)
        running = Running(server, config, server)
        task = asyncio.create_task(running.run())
        await running.started()
        say("ready")
        await task


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
