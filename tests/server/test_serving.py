"""A server on a real port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.model.errors import Validation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.suspension import AlreadySeeded
from flowfabric.model.partitions import PartitionCounts
from flowfabric.server import ServerConfig, create_app, serving
from flowfabric.server.serving import Running, open_engine
from tests.server.conftest import client_of
from tests.server.making import at, created, creation

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


@pytest.mark.parametrize("secret", [SECRET, "cd" * 33, "Ef" * 200])
async def test_a_longer_secret_signs_as_well(secret: str) -> None:
    given = {"FF_STORE_URL": "memory://", "FF_WAITPOINT_HMAC_SECRET": secret}
    async with await open_engine(ServerConfig.from_environment(given)) as engine:
        assert await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=secret) == AlreadySeeded("k1", True)


async def test_a_shutdown_has_one_grace_for_all_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LEAST_GRACE_S", 0.01)
    config = ServerConfig(store_url="memory://", port=0, hmac_secret=SECRET, grace_ms=60_000)
    engine = await open_engine(config)
    server = create_app(engine, config)
    running = Running(server, config, server)
    task = asyncio.create_task(running.run())
    await running.started()
    with server.stream_ops.one():
        running.stop()
        await task
        # Requests have taken all of it.
        assert running._listener.began is not None
        running._listener.began -= 60
        await asyncio.wait_for(running.drain(), 20)
    await engine.close()


async def test_a_server_starts_after_any_number_of_rotations(tmp_path: Path) -> None:
    config = ServerConfig(store_url=f"sqlite:///{tmp_path}/ff.db", single_node=True, hmac_secret=SECRET)
    for kid in ("k2", "k3", "k4"):
        async with await open_engine(config) as engine:
            await engine.rotate_waitpoint_hmac_secret_all(new_kid=kid, new_secret_hex="cd" * 32, grace_ms=0)
    async with await open_engine(config) as engine:
        kids = await engine.list_waitpoint_hmac_kids()
        assert (kids.current_kid, kids.verifying) == ("k4", ())


@pytest.mark.parametrize("store", ["sqlite:///{folder}/ff.db", "sqlite:///:memory:", "memory://"])
async def test_a_new_store_takes_the_ids_of_clients_that_spread_them_over_256(tmp_path: Path, store: str) -> None:
    config = ServerConfig(store_url=store.format(folder=tmp_path), single_node=True, hmac_secret=SECRET)
    async with await open_engine(config) as engine, client_of(create_app(engine, config)) as client:
        assert engine.partitions == PartitionCounts(256, 32, 32)
        for partition in (0, 1, 255):
            identity = ExecutionId.of(partition, f"11111111-1111-4111-8111-{partition:012}")
            assert await created(client, execution_id=identity) == identity


async def test_an_old_file_keeps_its_partitions_and_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ff.db"
    async with await Engine.open(url, single_node=True) as engine:
        assert engine.partitions == PartitionCounts(1, 1, 1)
    config = ServerConfig(store_url=url, single_node=True, hmac_secret=SECRET)
    async with await open_engine(config) as engine, client_of(create_app(engine, config)) as client:
        assert engine.partitions == PartitionCounts(1, 1, 1)
        identity = "{fp:7}:11111111-1111-4111-8111-111111111111"
        response = await client.post("/v1/executions", json=creation(execution_id=identity))
        expected = (
            "invalid_input: execution_id: there is no partition 7, this store has 1 (from 0 on): make ids for that "
            "many, leave the id out, or begin with a new store that has more"
        )
        assert (response.status_code, response.json()) == (400, {"error": expected})
        assert (await client.get(at(identity))).status_code == 404
        assert (await created(client)).startswith("{fp:0}:")
    configured = ServerConfig(store_url=url, single_node=True, hmac_secret=SECRET, partitions=PartitionCounts())
    with pytest.raises(Validation, match=r"partition_mismatch: the database has 1 flow.*and 256 flow"):
        await open_engine(configured)
