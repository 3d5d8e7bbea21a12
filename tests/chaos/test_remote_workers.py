"""Two servers and ten remote workers, one server killed every few seconds: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec
import pytest

from flowfabric import Run, seconds
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.operations.workflows import Step
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.streams import FrameRow
from flowfabric.model.states import LEASE_ACQUIRED, LEASE_RECLAIMED
from tests import valkey_rows
from tests.chaos.processes import Peer
from tests.chaos.remote_worker import application
from tests.chaos.stores import SHARED
from tests.ports import free_port

WORKERS = 10
#: Processes that the workers share.
HOSTS = 2
KILL_EVERY_S = 3.0
#: Runs that are under way at once.
UNDER_WAY = 24
_GRANTS = (LEASE_ACQUIRED, LEASE_RECLAIMED)


class Pair:
    """Two servers, of which one at a time may be dead."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ports = [free_port(), free_port()]
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


@pytest.fixture(params=["postgres", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that servers on several machines can share."""
    return SHARED[request.param](request, tmp_path)


@pytest.mark.timeout(400)
async def test_servers_are_killed_under_remote_workers(url: str, full: bool) -> None:
    async with await Engine.open(url):
        pass
    pair = Pair(url)
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        hosts = [
            stack.enter_context(Peer("tests.chaos.remote_worker", pair.addresses, str(WORKERS // HOSTS)))
            for _ in range(HOSTS)
        ]
        assert [host.hear() for host in hosts] == ["ready"] * HOSTS
        # What is killed here is the same on every store: one is enough for the longer of the samples. In both of them
        # each of the two servers dies.
        sample = 3 if url.startswith("postgres") else 2
        done = await _until_over(pair, *((120.0, 15) if full else (0.0, sample)))
        assert all(host.process.poll() is None for host in hosts), [host.errors() for host in hosts]
    await _check(url, done)


class Left(NamedTuple):
    """What is stored in the end, by UUID where nothing else is said."""

    kinds: Counter[tuple[str, str]]
    ends: Counter[str]
    #: ``(UUID, name, value)``.
    steps: list[tuple[str, str, bytes]]
    results: dict[str, bytes | None]
    frames: Counter[str]
    restarts: Counter[str]
    leases: Counter[str]


async def _left_on_postgres(url: str) -> Left:
    connection = await asyncpg.connect(url)
    try:
        kinds = await connection.fetch(
            "SELECT raw_fields->>'execution_kind', public_state, count(*) FROM ff_exec_core GROUP BY 1, 2"
        )
        ends = await connection.fetch("SELECT execution_id::text, count(*) FROM ff_completion_event GROUP BY 1")
        steps = await connection.fetch("SELECT execution_id::text, name, value FROM ff_step WHERE outcome = 'ok'")
        results = dict(await connection.fetch("SELECT execution_id::text, result FROM ff_exec_core"))
        written = "SELECT execution_id::text, count(*) FROM ff_stream_frame WHERE fields->>'source' = $1 GROUP BY 1"
        frames, restarts = [await connection.fetch(written, source) for source in ("worker", "engine")]
        given = "SELECT execution_id::text, count(*) FROM ff_lease_event WHERE event_type = ANY ($1) GROUP BY 1"
        leases = await connection.fetch(given, list(_GRANTS))
    finally:
        await connection.close()
    return Left(
        Counter({(kind, state): count for kind, state, count in kinds}),
        Counter(dict(ends)),
        [tuple(row) for row in steps],
        results,
        Counter(dict(frames)),
        Counter(dict(restarts)),
        Counter(dict(leases)),
    )


async def _left_on_valkey(url: str) -> Left:
    async with valkey_rows.Looking(url) as store:
        found = await valkey_rows.contents(store, Execution, Step, FrameRow)
        events = await valkey_rows.events(store, {CompletionEvent: 0, LeaseEvent: 0})
        assert await valkey_rows.wrong_indexes(store) == []
    executions = found[Execution].values()
    return Left(
        Counter((msgspec.json.decode(each.raw_fields)["execution_kind"], each.public_state) for each in executions),
        Counter(event.uuid for _, event in events[CompletionEvent]),
        [(each.uuid, each.name, each.value) for each in found[Step].values() if each.outcome == "ok"],
        {each.uuid: each.result for each in executions},
        *(
            Counter(each.uuid for each in found[FrameRow].values() if msgspec.json.decode(each.fields)["source"] == by)
            for by in ("worker", "engine")
        ),
        Counter(event.uuid for _, event in events[LeaseEvent] if event.event_type in _GRANTS),
    )


async def _check(url: str, done: list[tuple[Run[Any], list[str]]]) -> None:
    left = await (_left_on_valkey(url) if url.startswith("valkey") else _left_on_postgres(url))
    results = left.results
    # Each run and each of its children was created once and ended once.
    assert left.kinds == {("fulfil", "completed"): len(done), ("ship", "completed"): len(done)}
    assert Counter(left.ends.values()) == {1: 2 * len(done)}
    # Each child says one thing under each lease, however often an answer was lost.
    assert len(left.frames) == len(done)
    assert [uuid for uuid, count in left.frames.items() if count > left.leases[uuid]] == []
    # Whoever says it again says first that output starts over.
    assert left.restarts == Counter({uuid: count - 1 for uuid, count in left.frames.items() if count > 1})
    # What a run answers is what its steps are remembered by: no step counted twice, none was lost.
    remembered: dict[str, dict[str, str]] = {}
    for execution_id, name, value in left.steps:
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
