"""An engine on a server that has a bad moment: every call is refused with a clear error, a refused call changes
nothing, and once the moment has passed the engine goes on with everything it had."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from flowfabric import FlowGraph, Frame, Handle, Transport, Validation
from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError, TransportKind
from flowfabric.model.ids import ExecutionId
from flowfabric.stores.valkey import commit, connection as connections, store as stores
from flowfabric.stores.valkey.commit import MOST_ARGUMENTS, Message
from tests.contract.probe import Probe, claimed, create, id_of, policy
from tests.ports import LOOPBACK, free_port
from tests.servers import Valkey
from tests.stores.valkey.test_failover import asked, whole
from tests.stores.valkey.test_foreign_values import everything

LANE = "lane"


class Work:
    """An engine with an execution that runs and one that waits."""

    def __init__(self, server: Valkey, engine: Engine, handle: Handle, waiting: ExecutionId) -> None:
        self.server, self.engine, self.handle, self.waiting = server, engine, handle, waiting

    async def digest(self) -> bytes:
        """What the server holds, as one number."""
        return await asked(self.server, "DEBUG", "DIGEST")

    def acts(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        """Calls of every kind that writes."""
        engine, handle = self.engine, self.handle
        return {
            "create": lambda: engine.create_execution(lane_id=LANE, input_payload=b"new"),
            "claim": lambda: engine.claim(LANE, (), policy("another")),
            "renew": lambda: engine.renew(handle),
            "append": lambda: engine.append_frame(handle, Frame(b"frame")),
            "cancel": lambda: engine.cancel_execution(execution_id=self.waiting),
            "complete": lambda: engine.complete(handle, b"out"),
        }

    async def refused(self, kind: TransportKind, said: str) -> None:
        """Every call is refused in these words, and nothing changes."""
        before = await self.digest()
        for name, act in self.acts().items():
            with pytest.raises(Transport, match=said) as caught:
                await act()
            assert (caught.value.kind, name) == (kind, name)
        # Callers that share a batch get the same answer.
        calls = [self.acts()["create"]() for _ in range(5)]
        assert all(isinstance(each, Transport) for each in await asyncio.gather(*calls, return_exceptions=True))
        assert await self.digest() == before

    async def goes_on(self) -> None:
        """What was there is there, and every call is answered."""
        probe = Probe(self.engine)
        running, waiting = await probe.execution(id_of(self.handle)), await probe.execution(self.waiting)
        assert (running.public_state, waiting.public_state) == ("running", "waiting")
        assert (await probe.execution(id_of(self.handle))).payload == b"in"
        for act in self.acts().values():
            await act()
        assert await probe.completions(id_of(self.handle)) == ["success"]
        assert (await probe.execution(id_of(self.handle))).result == b"out"
        assert await self.engine.store.losses() == []
        await whole(self.engine)


@contextlib.asynccontextmanager
async def working(*arguments: str) -> AsyncIterator[Work]:
    """A server of one's own, and work on it."""
    with Valkey("--enable-debug-command", "yes", *arguments) as server:
        async with await Engine.open(server.url) as engine:
            handle = await claimed(engine, lane_id=LANE, input_payload=b"in")
            yield Work(server, engine, handle, await create(engine, lane_id=LANE))


async def test_a_server_that_has_no_memory_left() -> None:
    async with working() as work:
        await asked(work.server, "CONFIG", "SET", "maxmemory", "1")
        await work.refused(TransportKind.OTHER, "nothing was written: the server is out of memory")
        info = await work.engine.read_execution_info(work.waiting)
        assert info is not None, "it can still be looked at"
        await asked(work.server, "CONFIG", "SET", "maxmemory", "0")
        await work.goes_on()


async def test_a_server_that_becomes_a_replica() -> None:
    async with working() as work:
        await asked(work.server, "REPLICAOF", LOOPBACK, str(free_port()))
        await work.refused(TransportKind.CLUSTER, "the server is a read-only replica: use the primary")
        await asked(work.server, "REPLICAOF", "NO", "ONE")
        await work.goes_on()


async def test_a_server_that_reads_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    async with working("--key-load-delay", "200") as work:
        engine, server = work.engine, work.server
        fill = (("SET", f"of somebody else {number}", "v") for number in range(3_000))
        await engine.store.connection.commands(*fill, read_only=False)
        server.stop()
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        with monkeypatch.context() as patched:
            patched.setattr(connections, "LOADING_TIMEOUT_S", 0.0)
            async with asyncio.timeout(60):
                while True:
                    with pytest.raises(EngineError) as caught:
                        await engine.renew(work.handle)
                    if isinstance(caught.value, Transport) and caught.value.kind is TransportKind.BUSY_LOADING:
                        break
        assert "still reading its data from the disk: wait for it" in str(caught.value)
        await engine.renew(work.handle)  # it is waited for
        await starting
        await work.goes_on()


async def test_a_server_that_is_busy() -> None:
    async with working("--busy-reply-threshold", "10") as work:
        reader, writer = await asyncio.open_connection(LOOPBACK, work.server.port)
        before = await work.digest()
        writer.write(b"EVAL 'while true do end' 0\r\n")
        await until_busy(work.server)
        for name, act in work.acts().items():
            with pytest.raises(Transport, match="nothing was done: a function or script keeps the server") as caught:
                await act()
            assert (caught.value.kind, name) == (TransportKind.TIMEOUT, name)
        await asked(work.server, "SCRIPT", "KILL")
        assert b"killed" in await reader.readline()
        writer.transport.abort()
        assert await work.digest() == before
        await work.goes_on()


async def test_a_commit_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody stops our own function, before it has written anything: later it could not be stopped."""
    library, prefix = stores._functions()
    begins = "local function commit(keys, list)\n"
    assert library.count(begins) == 1
    own = f"stalled_{secrets.token_hex(6)}_"
    stalled = library.replace(begins, f"{begins}  while redis.call('EXISTS', 'stall') == 1 do end\n")
    monkeypatch.setattr(stores, "_functions", lambda: (stalled.replace(prefix.rstrip("_"), own.rstrip("_")), own))
    async with working("--busy-reply-threshold", "10") as work:
        await asked(work.server, "SET", "stall", "1")
        before = await work.digest()
        completing = asyncio.create_task(work.engine.complete(work.handle, b"out"))
        await until_busy(work.server)
        await asked(work.server, "FUNCTION", "KILL")
        with pytest.raises(Transport, match="the function was stopped before it wrote anything: retry") as caught:
            await completing
        assert caught.value.kind is TransportKind.TIMEOUT
        assert await work.digest() == before
        await asked(work.server, "DEL", "stall")
        await work.goes_on()


async def until_busy(server: Valkey) -> None:
    async with asyncio.timeout(60):
        while not (await asked(server, "PING")).startswith(b"-BUSY"):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)


async def test_a_server_that_is_killed_and_comes_back() -> None:
    async with working() as work:
        work.server.kill9()
        for name, act in work.acts().items():
            with pytest.raises(EngineError) as caught:
                await act()
            assert caught.value.retryable, name
        work.server.start()
        await work.goes_on()


# ------------------------------------------------------------------------------------------------ too much at one time


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arguments each commit has."""
    found: list[int] = []
    arguments = Message.arguments

    def counted(self: Message, store_id: bytes, history: bytes) -> list[bytes]:
        made = arguments(self, store_id, history)
        found.append(len(made))
        return made

    monkeypatch.setattr(Message, "arguments", counted)
    return found


def many(count: int, tags: int = 0) -> list[dict[str, Any]]:
    return [{"lane_id": LANE, "tags": {f"tag{n}": f"{number}" for n in range(tags)}} for number in range(count)]


async def test_large_commits_stay_below_the_limit(valkey_url: str, sizes: list[int]) -> None:
    async with await Engine.open(valkey_url) as engine:
        assert len(await engine.create_executions(many(2_000, tags=20))) == 2_000
        nodes: dict[str, Any] = {f"n{number}": {} for number in range(10_000)}
        edges = [(f"n{number // 10}", f"n{number}") for number in range(1, 10_000)]
        assert len((await engine.submit_flow(FlowGraph(nodes, edges))).execution_ids) == 10_000
    assert max(sizes) < MOST_ARGUMENTS // 4


async def test_what_is_too_large_is_refused_whole(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "MOST_ARGUMENTS", 1_000)
    async with await Engine.open(valkey_url) as engine:
        await create(engine, lane_id=LANE)
        before = await everything(engine)
        nodes: dict[str, Any] = {f"n{number}": {} for number in range(200)}
        for call in (
            lambda: engine.create_executions(many(200, tags=3)),
            lambda: engine.submit_flow(FlowGraph(nodes, [("n0", "n1")])),
        ):
            with pytest.raises(Validation, match=r"too large for one commit on Valkey .* send it in parts"):
                await call()
        assert await everything(engine) == before
        # One that is too large spoils none that share its batch.
        large, *small = await asyncio.gather(
            engine.create_executions(many(200)), *(create(engine, lane_id=LANE) for _ in range(3)),
            return_exceptions=True,
        )  # fmt: skip
        assert isinstance(large, Validation)
        assert all(isinstance(each, ExecutionId) for each in small)
        assert len(await engine.create_executions(many(20))) == 20
        await whole(engine)
