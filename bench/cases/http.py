"""The server over HTTP with 64 connections, against the same calls on the engine itself."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import msgspec

from bench import goals
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database
from bench.measure import Window, closed_loop, percentile
from bench.processes import Worker
from bench.rows import Row, Series
from bench.shape import INSTANCE, KIND, LANE, LEASE_MS, PAYLOAD, RESULT, WORKER
from bench.system import POLICY, open_engine
from flowfabric.engine import Engine
from flowfabric.sdk.remote.http_client import Address, Connection

CONNECTIONS = 64
BULK = 1_000
LEASES = 1_000
#: Executions that a remote worker takes and ends with one request.
AT_ONCE = 1
_encode = msgspec.json.Encoder().encode
_ONE = {
    "lane_id": LANE,
    "execution_kind": KIND,
    "input_payload": PAYLOAD,
    "namespace": "default",
    "priority": 0,
    "creator_identity": "",
}
#: What is always the same is written once: the server is measured, not the client.
_NEW = _encode(_ONE)
_MANY = _encode({"executions": [_ONE] * BULK})


def cases() -> list[Case]:
    """By store."""
    return [
        Case(
            f"http/{store}",
            f"the server on {STORE_NAMES[store]} with {CONNECTIONS} connections, against the engine itself",
            functools.partial(run, store),
            windows=11,
        )
        for store in STORES
    ]


@functools.lru_cache(1_000)
def _head(method: str, path: str, length: int) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode()


class Client:
    """A connection that asks one thing after the other."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, address: Address) -> Client:
        """Connect."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(address), address.host, address.port)
        return cls(connection)

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of the answer."""
        answer = await self._connection.ask(_head(method, path, len(body)), body)
        if answer.status not in (200, 201):
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body!r:.200}")
        return answer.body

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class Clients:
    """All connections of a case, and the server they talk to."""

    def __init__(self, worker: Worker, clients: list[Client]) -> None:
        self.worker = worker
        self.clients = clients
        self._held: dict[int, list[str]] = {}

    @classmethod
    async def open(cls, url: str) -> Clients:
        """Start a server and connect to it."""
        worker = await Worker.start("serve", url)
        port = worker.greeting["port"]
        address = Address.parse(f"http://127.0.0.1:{port}")
        return cls(worker, [await Client.open(address) for _ in range(CONNECTIONS)])

    async def close(self) -> None:
        """Stop everything."""
        for client in self.clients:
            client.close()
        await self.worker.close()

    # -- what is asked -------------------------------------------------------------------------------------------

    async def create(self, number: int) -> int:
        """One execution."""
        await self.clients[number].ask("POST", "/v1/executions", _NEW)
        return 1

    async def create_many(self, number: int) -> int:
        """Many at once."""
        await self.clients[number].ask("POST", "/v1/executions/bulk", _MANY)
        return BULK

    async def work(self, number: int) -> int:
        """End what is held, and claim the next, in one request."""
        held = self._held.get(number, [])
        calls = [{"op": "complete", "arguments": {"handle": each, "payload": RESULT}} for each in held]
        claim = {"worker_id": WORKER, "worker_instance_id": INSTANCE, "lanes": {LANE: 1}, "limit": AT_ONCE,
                 "lease_ttl_ms": LEASE_MS}  # fmt: skip
        body = await self.clients[number].ask("POST", "/v1/remote/calls", _encode({"calls": calls, "claim": claim}))
        found = msgspec.json.decode(body)
        if any("error" in each for each in found["answers"]):
            raise RuntimeError(str(found["answers"]))
        self._held[number] = [each["handle"] for each in found["work"]]
        return len(held)

    def reading(self, ids: list[str]) -> Callable[[int], Awaitable[int]]:
        """The states of executions, one after the other."""
        paths = [f"/v1/executions/{quote(each, safe='')}/state" for each in ids]

        async def read(number: int) -> int:
            await self.clients[number].ask("GET", paths[number % len(paths)])
            return 1

        return read

    def renewing(self, handles: list[str]) -> Callable[[int], Awaitable[int]]:
        """All leases in one request."""
        body = _encode({"handles": handles})

        async def renew(number: int) -> int:
            await self.clients[number].ask("POST", "/v1/remote/renew", body)
            return len(handles)

        return renew

    async def claim(self, limit: int) -> list[str]:
        """Handles of executions that are claimed."""
        body = {"worker_id": WORKER, "worker_instance_id": INSTANCE, "limit": limit, "lease_ttl_ms": LEASE_MS}
        found = msgspec.json.decode(await self.clients[0].ask("POST", "/v1/remote/claim", _encode(body)))
        return [each["handle"] for each in found["work"]]


class Direct:
    """The same on an engine of this process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._held: dict[int, Any] = {}

    async def create(self, number: int) -> int:
        """One execution."""
        await self.engine.create_execution(lane_id=LANE, execution_kind=KIND, input_payload=PAYLOAD)
        return 1

    async def create_many(self, number: int) -> int:
        """Many at once."""
        await self.engine.create_executions(
            [{"lane_id": LANE, "execution_kind": KIND, "input_payload": PAYLOAD} for _ in range(BULK)]
        )
        return BULK

    async def work(self, number: int) -> int:
        """Claim and complete, with what there is to do read in between."""
        handles = await self.engine.claim_many(LANE, None, POLICY, AT_ONCE)
        await self.engine.read_execution_contexts([handle.execution_id for handle in handles])
        for handle in handles:
            await self.engine.complete(handle, RESULT)
        return len(handles)

    def reading(self, ids: list[str]) -> Callable[[int], Awaitable[int]]:
        """The states of executions."""

        async def read(number: int) -> int:
            await self.engine.read_execution_state(ids[number % len(ids)])
            # SQLite answers on the spot: without this, nobody else would ever run, not even the clock of the window.
            await asyncio.sleep(0)
            return 1

        return read

    def renewing(self, handles: list[Any]) -> Callable[[int], Awaitable[int]]:
        """All leases at once."""

        async def renew(number: int) -> int:
            await asyncio.gather(*(self.engine.renew(each) for each in handles))
            return len(handles)

        return renew


async def run(store: str, bench: Bench) -> list[Row]:
    """One kind of request after the other, over HTTP and directly in turns."""
    ours, other = await bench.places.database(store), await bench.places.database(store)
    backlog = 3_000 if bench.quick else int(12_000 * bench.seconds * bench.repeat)
    for database in (ours, other):
        await database.fill(backlog)
        await database.settle()
    clients = await Clients.open(ours.url)
    engine = await open_engine(other.url)
    rows = []
    try:
        direct = Direct(engine)
        leases = LEASES // 10 if bench.quick else LEASES
        remote_held, held = await clients.claim(leases), await engine.claim_many(LANE, None, POLICY, leases)
        ids = [str(each.execution_id) for each in held]
        remote_ids = await _ids(ours, clients)
        pairs: dict[str, tuple[Any, Any, int, str]] = {
            "claim and complete": (clients.work, direct.work, CONNECTIONS, "executions/s"),
            "create": (clients.create, direct.create, CONNECTIONS, "requests/s"),
            "read": (clients.reading(remote_ids), direct.reading(ids), CONNECTIONS, "requests/s"),
            f"create {BULK:,} at once": (clients.create_many, direct.create_many, 1, "executions/s"),
            f"renew {leases:,} at once": (clients.renewing(remote_held), direct.renewing(held), 1, "renewals/s"),
        }
        for what, (over_http, directly, callers, unit) in pairs.items():
            bench.say(what)
            rows.append(await _compared(store, bench, (ours, other), what, over_http, directly, callers, unit))
        creates = next(row for row in rows if row.label.endswith(", create")).ours.median
        bench.say("half load")
        rows.append(await _half_load(store, bench, clients, creates / 2))
    finally:
        await clients.close()
        await engine.close()
    return rows


async def _ids(database: Database, clients: Clients) -> list[str]:
    found = msgspec.json.decode(await clients.clients[0].ask("GET", "/v1/search/executions?limit=100"))
    return [each["execution_id"] for each in found["executions"]]


async def _compared(
    store: str,
    bench: Bench,
    databases: tuple[Database, Database],
    what: str,
    over_http: Callable[[int], Awaitable[int]],
    directly: Callable[[int], Awaitable[int]],
    callers: int,
    unit: str,
) -> Row:
    async def window(work: Callable[[int], Awaitable[int]], database: Database) -> Window:
        await database.tidy()
        return await closed_loop(work, callers, bench.seconds, database.server)

    found = await bench.interleaved(
        {
            "http": lambda: window(over_http, databases[0]),
            "engine": lambda: window(directly, databases[1]),
        }
    )
    return Row(
        case=f"http/{store}",
        label=f"{STORE_NAMES[store]}, {what}",
        unit=unit,
        better="higher",
        ours=Series("over HTTP", [each.per_second for each in found["http"]]),
        yardstick=Series("engine", [each.per_second for each in found["engine"]]),
        target=goals.HTTP if store == "postgres" else None,
        extra={"client µs": [each.client_us for each in found["http"]]},
    )


async def _half_load(store: str, bench: Bench, clients: Clients, per_second: float) -> Row:
    """Creations at an even pace, each on the next free connection: how long they take."""
    seconds = max(bench.seconds, 1.0)
    shares, halves, last = [], [], []
    for _ in range(bench.repeat):
        took = await _paced(clients, per_second, seconds)
        bench.tick()
        halves.append(1000 * percentile(took, 0.5))
        last.append(1000 * percentile(took, 0.99))
        shares.append(last[-1] / halves[-1])
    return Row(
        case=f"http/{store}",
        label=f"{STORE_NAMES[store]}, create at half load: p99 by p50",
        unit="×",
        better="lower",
        ours=Series("over HTTP", shares),
        target=goals.HTTP_TAIL if store == "postgres" else None,
        extra={"p50 ms": halves, "p99 ms": last, "requests/s": [per_second] * bench.repeat},
    )


async def _paced(clients: Clients, per_second: float, seconds: float) -> list[float]:
    free: asyncio.Queue[int] = asyncio.Queue()
    for number in range(CONNECTIONS):
        free.put_nowait(number)
    took: list[float] = []

    async def one(due: float) -> None:
        number = await free.get()
        try:
            await clients.create(number)
        finally:
            free.put_nowait(number)
        took.append(time.perf_counter() - due)

    began = time.perf_counter()
    tasks = []
    sent = 0
    while (elapsed := time.perf_counter() - began) < seconds:
        for _ in range(int(elapsed * per_second) - sent):
            # Counted from when it should have been sent: a stall delays all that come behind it.
            tasks.append(asyncio.create_task(one(began + sent / per_second)))
            sent += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    return took
