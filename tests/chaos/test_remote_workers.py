"""Two servers and ten remote workers, one server killed every few seconds: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from typing import Any

import asyncpg
import msgspec
import pytest

from flowfabric import Run, seconds
from flowfabric.engine import Engine
from flowfabric.model.literals import LEASE_ACQUIRED, LEASE_RECLAIMED
from tests.chaos.processes import Peer
from tests.chaos.remote_worker import application

WORKERS = 10
#: Processes that the workers share.
HOSTS = 2
KILL_EVERY_S = 3.0
#: Runs that are under way at once.
UNDER_WAY = 24


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


class Pair:
    """Two servers, of which one at a time may be dead."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ports = free_ports(2)
        self._servers: list[Peer] = []
        self.killed = 0

    @property
    def addresses(self) -> str:
        return ",".join(f"http://127.0.0.1:{port}" for port in self._ports)

    def start(self) -> None:
        self._servers = [self._server(port) for port in self._ports]

    def _server(self, port: int) -> Peer:
        server = Peer("tests.chaos.remote_server", self._url, str(port))
        assert server.hear() == "ready"
        return server

    def kill_one(self) -> None:
        """Kill the next one without warning, and put another in its place."""
        place = self.killed % 2
        self._servers[place].close()
        self.killed += 1
        self._servers[place] = self._server(self._ports[place])

    def close(self) -> None:
        for server in self._servers:
            server.close()


async def _until_over(pair: Pair, duration_s: float, least: int) -> list[tuple[Run[Any], list[str]]]:
    """Start runs and wait for them, as long as servers are killed: for so long, and so many at least."""
    app = application(pair.addresses)
    fulfil = app.definitions["fulfil"]
    loop = asyncio.get_running_loop()
    over = loop.time() + duration_s
    killing = True
    done: list[tuple[Run[Any], list[str]]] = []
    number = 0

    async def one() -> None:
        nonlocal number
        while killing:
            number += 1
            run = await fulfil.start(number)  # type: ignore[attr-defined]
            done.append((run, await run.result(seconds(90))))

    async def kill() -> None:
        nonlocal killing
        while loop.time() < over or pair.killed < least:
            await asyncio.sleep(KILL_EVERY_S)
            await asyncio.to_thread(pair.kill_one)
        killing = False

    async with app:
        await asyncio.gather(kill(), *(one() for _ in range(UNDER_WAY)))
    assert len(done) == number
    return done


@pytest.mark.timeout(400)
async def test_servers_are_killed_under_remote_workers(postgres_dsn: str, full: bool) -> None:
    async with await Engine.open(postgres_dsn):
        pass
    pair = Pair(postgres_dsn)
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        hosts = [
            stack.enter_context(Peer("tests.chaos.remote_worker", pair.addresses, str(WORKERS // HOSTS)))
            for _ in range(HOSTS)
        ]
        assert [host.hear() for host in hosts] == ["ready"] * HOSTS
        done = await (_until_over(pair, 120.0, 15) if full else _until_over(pair, 20.0, 3))
        assert all(host.process.poll() is None for host in hosts), [host.errors() for host in hosts]
    await _check(postgres_dsn, done)


async def _check(url: str, done: list[tuple[Run[Any], list[str]]]) -> None:
    connection = await asyncpg.connect(url)
    try:
        kinds = await connection.fetch(
            "SELECT raw_fields->>'execution_kind', public_state, count(*) FROM ff_exec_core GROUP BY 1, 2"
        )
        ends = await connection.fetch("SELECT execution_id, count(*) FROM ff_completion_event GROUP BY 1")
        steps = await connection.fetch("SELECT execution_id::text, name, value FROM ff_step WHERE outcome = 'ok'")
        results = dict(await connection.fetch("SELECT execution_id::text, result FROM ff_exec_core"))
        frames = dict(await connection.fetch("SELECT execution_id::text, count(*) FROM ff_stream_frame GROUP BY 1"))
        given = "SELECT execution_id, count(*) FROM ff_lease_event WHERE event_type = ANY ($1) GROUP BY 1"
        leases = dict(await connection.fetch(given, [LEASE_ACQUIRED, LEASE_RECLAIMED]))
    finally:
        await connection.close()
    # Each run and each of its children was created once and ended once.
    assert {(kind, state): count for kind, state, count in kinds} == {
        ("fulfil", "completed"): len(done),
        ("ship", "completed"): len(done),
    }
    assert Counter(count for _, count in ends) == {1: 2 * len(done)}
    # Each child says one thing under each lease, however often an answer was lost.
    assert len(frames) == len(done)
    assert [uuid for uuid, count in frames.items() if count > leases[uuid]] == []
    # What a run answers is what its steps are remembered by: no step counted twice, none was lost.
    remembered: dict[str, dict[str, str]] = {}
    for execution_id, name, value in steps:
        if name.startswith("pay"):
            remembered.setdefault(execution_id, {})[name] = msgspec.json.decode(value)
    orders = set()
    for run, (paid, shipped, again) in done:
        uuid = run.id.partition("}:")[2]
        assert sorted(remembered[uuid].values()) == sorted([paid, again])
        order = paid.partition(":")[0]
        assert {order} == {each.partition(":")[0] for each in (shipped, again)}
        orders.add(order)
        assert msgspec.json.decode(results[uuid]) == [paid, shipped, again]
    assert len(orders) == len(done)
    shipped_once = Counter(
        msgspec.json.decode(result).partition(":")[0]
        for result in results.values()
        if result is not None and result.startswith(b'"')
    )
    assert set(shipped_once.values()) == {1}
    async with await Engine.open(url) as engine:
        cursor: str | None = None
        while True:
            page = await engine.examine(cursor)
            assert page.violations == ()
            cursor = page.next_cursor
            if cursor is None:
                break
