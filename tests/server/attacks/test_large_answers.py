"""Answers that are large to make: however many ask for them and do not read, memory stays bounded and others are
answered."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.model.streams.frames import Frame
from tests.contract.conftest import STORES
from tests.server.attacks.test_connections import MIB, PROMISED, asking, files, settled, thousand
from tests.server.making import at
from tests.server.process import ServerProcess

__all__ = ["files"]

FRAMES = 120
INPUTS = 40
STEPS = 8


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](request, tmp_path)


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    async with await Engine.open(store_url, single_node=True) as opened:
        yield opened


@pytest.fixture
def process(files: None, engine: Engine, store_url: str, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(store_url, tmp_path, FF_MAX_CONCURRENT_STREAM_OPS="2000") as started:
        yield started


def posting(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return f"{head}\r\n\r\n".encode() + data


def calling(*calls: tuple[str, dict[str, Any]]) -> bytes:
    return posting("/v1/remote/calls", {"calls": [{"op": name, "arguments": each} for name, each in calls]})


async def remembering(engine: Engine, process: ServerProcess) -> tuple[str, str]:
    """An execution that remembers much, and its handle."""
    made = await engine.create_execution(namespace="acme", lane_id="remembers")
    claim = {"worker_id": "w", "worker_instance_id": "w-1", "lanes": {"remembers": 1}, "lease_ttl_ms": 600_000}
    async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
        [work] = (await client.post("/v1/remote/claim", json=claim)).json()["work"]
        value = base64.b64encode(b"x" * MIB).decode()
        for number in range(STEPS):
            arguments = {"handle": work["handle"], "steps": [{"name": str(number), "value": value}]}
            body = {"calls": [{"op": "advance", "arguments": {**arguments, "known_steps": number}}]}
            assert "ok" in (await client.post("/v1/remote/calls", json=body)).json()["answers"][0]
    return str(made.execution_id), work["handle"]


async def asked(engine: Engine, process: ServerProcess) -> list[bytes]:
    """The largest that can be asked for."""
    made = await engine.create_execution(namespace="acme", lane_id="default")
    handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1", 3_600_000))
    assert handle is not None
    for _ in range(FRAMES // 10):
        await engine.append_frames(handle, [Frame(b"x" * 60_000)] * 10)
    wide = [
        str((await engine.create_execution(namespace="acme", lane_id="wide", input_payload=b"x" * MIB)).execution_id)
        for _ in range(INPUTS)
    ]
    await engine.create_executions([{"namespace": "acme", "lane_id": "wide", "input_payload": b"x" * 100_000}] * INPUTS)
    stream = {"execution_id": str(made.execution_id), "attempt_index": 0, "count_limit": 10_000}
    claim = {"worker_id": "w", "worker_instance_id": "w-2", "lanes": {"wide": 1}, "limit": 5, "lease_ttl_ms": 600_000}
    remembers, held = await remembering(engine, process)
    naming = {"handle": held, "steps": [{"name": str(number)} for number in range(STEPS)], "known_steps": STEPS}
    tail = {**stream, "block_ms": 1_000}
    return [
        asking(at(remembers, "steps") + "?limit=1000"),
        calling(*[("advance", naming)] * 20),
        calling(
            ("read_stream", stream), *[("advance", naming)] * 20, *[("read_steps", {"execution_id": remembers})] * 9
        ),
        calling(("read_stream", stream), *[("tail_stream", tail)] * 990),
        asking(at(str(made.execution_id), "attempts", "0", "stream") + "?limit=1000"),
        asking(at(str(made.execution_id), "attempts", "0", "stream", "tail") + "?limit=1000&block_ms=1000"),
        posting("/v1/remote/claim", claim),
        calling(("read_execution_contexts", {"execution_ids": wide})),
        calling(*[("read_stream", stream)] * 100),
        calling(*[("read_execution_context", {"execution_id": each}) for each in wide] * 5),
        calling(("tail_stream", stream), ("ping", {}), *[("tail_stream", {**stream, "block_ms": 1_000})] * 5),
    ]


async def test_a_thousand_that_ask_for_much_and_do_not_read(engine: Engine, process: ServerProcess) -> None:
    wanted = await asked(engine, process)
    await settled(process)
    before = process.resident_bytes()
    with thousand(process.port, *wanted):
        await settled(process)
        await asyncio.sleep(1)
        await settled(process)
        assert process.resident_bytes(peak=True) - before < PROMISED
    async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
        assert (await client.get("/healthz")).status_code == 200
