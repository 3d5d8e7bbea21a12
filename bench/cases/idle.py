"""What waiting costs a server: a thousand claims that find nothing, and a thousand readers of streams without news."""

from __future__ import annotations

import asyncio
import functools
from typing import Any
from urllib.parse import quote

import msgspec

from bench import goals
from bench.cases.http import Client
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.measure import server_cpu_s
from bench.processes import Worker
from bench.rows import Row, Series
from bench.shape import KIND
from flowfabric.sdk.remote.http_client import Address

WAITING = 1_000
_FEW = 100
#: How long idleness is looked at, at least.
LEAST_S = 5.0
WAIT_MS = 60_000


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"idle/{store}",
            f"{WAITING:,} claims and {WAITING:,} readers that wait at a server on {STORE_NAMES[store]}",
            functools.partial(run, store),
            windows=0,
        )
        for store in STORES
    ]


async def run(store: str, bench: Bench) -> list[Row]:
    """Once: nothing happens, so nothing varies."""
    count = _FEW if bench.quick else WAITING
    database = await bench.places.database(store)
    worker = await Worker.start("serve", database.url, "timers")
    address = Address.parse(f"http://127.0.0.1:{worker.greeting['port']}")
    clients: list[Client] = []
    try:
        for _ in range(20):  # everything is loaded and warm
            await _claim(await _client(clients, address), 0)
        bench.say("nobody")
        alone = await _used(worker, max(LEAST_S, bench.seconds))
        before = await worker.ask("so far")
        bench.say(f"{count:,} claims")
        tasks = [asyncio.create_task(_claim(await _client(clients, address), WAIT_MS)) for _ in range(count)]
        claiming = await worker.ask(count)
        bench.say(f"{count:,} readers")
        path = await _running(clients[0])
        tasks += [asyncio.create_task(_read(await _client(clients, address), path)) for _ in range(count)]
        await asyncio.sleep(2.0)
        reading = await worker.ask("so far")
        bench.say("idle")
        started, database_before = asyncio.get_running_loop().time(), server_cpu_s(database.server)
        used = await _used(worker, max(LEAST_S, bench.seconds))
        seconds = asyncio.get_running_loop().time() - started
        database_cpu = (server_cpu_s(database.server) - database_before) / seconds
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for client in clients:
            client.close()
        await worker.close()

    def row(label: str, unit: str, value: float, **more: Any) -> Row:
        return Row(
            case=f"idle/{store}",
            label=f"{STORE_NAMES[store]}, {label}",
            unit=unit,
            better="lower",
            ours=Series("server", [value]),
            **more,
        )

    each = 1024 / count
    return [
        row(
            f"processor used by {count:,} claims and {count:,} readers that wait",
            "of one",
            max(0.0, used - alone),
            target=goals.IDLE_CPU,
            extra={"server alone": [alone], **({} if database.server is None else {"database": [database_cpu]})},
        ),
        row("memory of a claim that waits", "KiB", (claiming["mib"] - before["mib"]) * each),
        row("memory of a reader that waits", "KiB", (reading["mib"] - claiming["mib"]) * each),
    ]


async def _used(worker: Worker, seconds: float) -> float:
    """How much of a processor the server uses."""
    began, before = asyncio.get_running_loop().time(), await worker.ask("cpu")
    await asyncio.sleep(seconds)
    after = await worker.ask("cpu")
    used: float = after["cpu"] - before["cpu"]
    return used / (asyncio.get_running_loop().time() - began)


async def _client(clients: list[Client], address: Address) -> Client:
    clients.append(await Client.open(address))
    return clients[-1]


async def _claim(client: Client, wait_ms: int) -> None:
    body = {"worker_id": "idle", "worker_instance_id": "idle-1", "lanes": {"idle": 1}, "wait_ms": wait_ms}
    await client.ask("POST", "/v1/remote/claim", msgspec.json.encode(body))


async def _running(client: Client) -> str:
    """The address of a stream that goes on and says nothing."""
    new = {"lane_id": "quiet", "execution_kind": KIND, "namespace": "default", "input_payload": b"", "priority": 0,
           "creator_identity": ""}  # fmt: skip
    made = msgspec.json.decode(await client.ask("POST", "/v1/executions", msgspec.json.encode(new)))
    identity = quote(made["Created"]["execution_id"], safe="")
    return f"/v1/executions/{identity}/attempts/0/stream/events"


async def _read(client: Client, path: str) -> None:
    await client.ask("GET", path)
