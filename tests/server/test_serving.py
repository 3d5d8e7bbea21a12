"""A server on a real port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from flowfabric.server import ServerConfig, create_app
from flowfabric.server.serving import Running, open_engine
from tests.server.making import at, created

SECRET = "ab" * 32


async def test_a_server_on_a_port(tmp_path: Path) -> None:
    config = ServerConfig(store_url=f"sqlite:///{tmp_path}/ff.db", single_node=True, port=0, hmac_secret=SECRET)
    engine = await open_engine(config)
    server = create_app(engine, config)
    running = Running(server, config, server)
    task = asyncio.create_task(running.run())
    try:
        await running.started()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.port}") as client:
            identity = await created(client)
            assert (await client.get(at(identity, "state"))).json() == "waiting"
            large = await client.post("/v1/executions", content=b" " * 2_000_000)
            assert large.status_code == 413
            kids = await engine.list_waitpoint_hmac_kids()
            assert kids.current_kid == "k1"
    finally:
        running.stop()
        await task
        await running.drain()
        await engine.close()
