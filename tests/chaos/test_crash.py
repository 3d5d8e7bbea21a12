"""kill -9 at any moment: what was acknowledged is there, what was not is there wholly or not at all."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric import ClaimPolicy, Created, Duplicate, Handle, HandleKind
from flowfabric.engine import Engine
from flowfabric.model.handles import decode
from tests.chaos.ledger import Ledger
from tests.chaos.processes import Peer
from tests.chaos.stored import read_store, result_of, violations
from tests.chaos.stores import SHARED
from tests.chaos.writer import CRASH, CRASH_CODE, LANE, create
from tests.conftest import full_run
from tests.servers import PostgreSQL, Valkey

WRITER = "tests.chaos.writer"
SQLITE_KILLS = 200 if full_run() else 8
POSTGRES_KILLS = 50 if full_run() else 4
VALKEY_WRITER_KILLS = 200 if full_run() else 4
VALKEY_SERVER_KILLS = 50 if full_run() else 4
#: A store is left for a new one after this many kills, so that looking at all of it stays quick.
KILLS_PER_STORE = 25
DRAIN_TIMEOUT_S = 60.0
#: What writers must have done for their end to say anything; a sample may miss the rarer acts.
ACKNOWLEDGED = {"created", "claimed", "completed", "appended", "retried", "cancelled"} if full_run() else {"claimed"}


@pytest.fixture(scope="module")
def durable_server() -> Iterator[PostgreSQL]:
    """A server that forces its log to the disk, and that these tests may kill."""
    with PostgreSQL(durable=True) as server:
        yield server


@pytest.fixture(scope="module")
def durable_valkey() -> Iterator[Valkey]:
    """The same of Valkey."""
    with Valkey() as server:
        yield server


def kill_a_writer(url: str, journal: Path, chance: random.Random, server: PostgreSQL | Valkey | None = None) -> None:
    """Let a writer work for a moment and kill it; the server goes down first if it is given."""
    with Peer(WRITER, url, str(journal), str(chance.random())) as writer:
        assert writer.hear() == "ready"
        time.sleep(chance.uniform(0.005, 0.2))
        if server is not None:
            server.kill9()
            time.sleep(chance.uniform(0.0, 0.05))
        assert writer.process.poll() is None, writer.errors()
        writer.kill()
    if server is not None:
        server.start()


async def check(url: str, ledger: Ledger, *, server_killed: bool = False) -> None:
    """The store keeps its own rules and every word that was given."""
    stored = await read_store(url)
    assert violations(stored) == []
    assert ledger.losses(stored) == []
    assert ledger.unexpected(server_killed=server_killed) == []


async def drain(url: str) -> None:
    """A new process goes on where the dead ones stopped, until nothing is left to do."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    async with await Engine.open(url, single_node=True) as engine:
        while time.monotonic() < deadline:
            await engine.run_due()
            handles = await engine.claim_many(LANE, (), ClaimPolicy("drain", "drain", 30_000, max_wait=100), limit=500)
            ids = [decode(handle.opaque)[1] for handle in handles]
            await asyncio.gather(
                *(
                    engine.complete(handle, result_of(payload.execution_id, payload.lease_epoch))
                    for handle, payload in zip(handles, ids, strict=True)
                )
            )
            if not handles:
                stored = await read_store(url)
                if stored.ended() == len(stored.executions):
                    return
    pytest.fail("something is still not done")


async def test_a_killed_writer_loses_nothing_on_sqlite(tmp_path: Path) -> None:
    chance = random.Random(f"sqlite/{SQLITE_KILLS}")
    for start in range(0, SQLITE_KILLS, KILLS_PER_STORE):
        url, ledger = f"sqlite:///{tmp_path}/ff-{start}.db", Ledger()
        for number in range(start, min(start + KILLS_PER_STORE, SQLITE_KILLS)):
            journal = tmp_path / f"journal-{number}"
            kill_a_writer(url, journal, chance)
            ledger.read(journal)
            await check(url, ledger)
        await drain(url)
        await check(url, ledger)
        assert ledger.acknowledged().keys() >= ACKNOWLEDGED


async def test_a_killed_writer_or_server_loses_nothing_on_postgres(durable_server: PostgreSQL, tmp_path: Path) -> None:
    chance = random.Random(f"postgres/{POSTGRES_KILLS}")
    url, ledger = durable_server.dsn, Ledger()
    for number in range(POSTGRES_KILLS):
        journal = tmp_path / f"journal-{number}"
        kill_a_writer(url, journal, chance, durable_server if number % 2 else None)
        ledger.read(journal)
        await check(url, ledger, server_killed=True)
    await drain(url)
    await check(url, ledger, server_killed=True)
    assert ledger.acknowledged().keys() >= ACKNOWLEDGED


async def test_a_killed_writer_loses_nothing_on_valkey(durable_valkey: Valkey, tmp_path: Path) -> None:
    chance = random.Random(f"valkey/{VALKEY_WRITER_KILLS}")
    for start in range(0, VALKEY_WRITER_KILLS, KILLS_PER_STORE):
        url, ledger = f"{durable_valkey.url}?prefix=writers-{start}", Ledger()
        for number in range(start, min(start + KILLS_PER_STORE, VALKEY_WRITER_KILLS)):
            journal = tmp_path / f"journal-{number}"
            kill_a_writer(url, journal, chance)
            ledger.read(journal)
            await check(url, ledger)
        await drain(url)
        await check(url, ledger)
        await examine(url)
        assert ledger.acknowledged().keys() >= ACKNOWLEDGED


async def test_a_killed_server_loses_nothing_on_valkey(durable_valkey: Valkey, tmp_path: Path) -> None:
    """Every commit is on its disk before it is acknowledged."""
    chance = random.Random(f"valkey server/{VALKEY_SERVER_KILLS}")
    for start in range(0, VALKEY_SERVER_KILLS, KILLS_PER_STORE):
        url, ledger = f"{durable_valkey.url}?prefix=servers-{start}", Ledger()
        for number in range(start, min(start + KILLS_PER_STORE, VALKEY_SERVER_KILLS)):
            journal = tmp_path / f"journal-{number}"
            kill_a_writer(url, journal, chance, durable_valkey)
            ledger.read(journal)
            await check(url, ledger, server_killed=True)
        await drain(url)
        await check(url, ledger, server_killed=True)
        await examine(url)
        assert ledger.acknowledged().keys() >= ACKNOWLEDGED


async def examine(url: str) -> None:
    """Every promise that the engine knows of is kept."""
    async with await Engine.open(url, single_node=True) as engine:
        cursor: str | None = None
        while True:
            page = await engine.examine(cursor)
            assert page.violations == ()
            cursor = page.next_cursor
            if cursor is None:
                return


# --------------------------------------------------------------------------------------------------------- crash points


@pytest.fixture(params=SHARED)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store that lasts."""
    return SHARED[request.param](request, tmp_path)


async def crashed(url: str, journal: Path, point: str) -> Ledger:
    """What a writer was told that died at a certain point."""
    with Peer(WRITER, url, str(journal), "0", **{CRASH: point}) as writer:
        assert writer.wait() == CRASH_CODE, writer.errors()
    ledger = Ledger()
    ledger.read(journal)
    await check(url, ledger)
    return ledger


@pytest.mark.parametrize("point", ["before", "after"])
async def test_crash_around_the_commit_of_a_create(store_url: str, tmp_path: Path, point: str) -> None:
    ledger = await crashed(store_url, tmp_path / "journal", f"{point}:create")
    (identity,) = (line["id"] for line in ledger.about("creating"))
    stored = await read_store(store_url)
    assert list(stored.executions) == ([identity] if point == "after" else [])
    assert stored.bindings == ({"only one": identity} if point == "after" else {})
    async with await Engine.open(store_url, single_node=True) as engine:
        answer = await create(engine, identity, idempotency_key="only one")
        assert type(answer) is (Duplicate if point == "after" else Created)
        assert answer.execution_id == identity
    await check(store_url, ledger)


@pytest.mark.parametrize("point", ["before", "after"])
async def test_crash_around_the_commit_of_a_claim(store_url: str, tmp_path: Path, point: str) -> None:
    ledger = await crashed(store_url, tmp_path / "journal", f"{point}:claim")
    (identity,) = (line["id"] for line in ledger.about("created"))
    stored = await read_store(store_url)
    assert stored.leases[identity] == ([("acquired", 0, 1)] if point == "after" else [])
    async with await Engine.open(store_url, single_node=True) as engine:
        handle = None
        for _ in range(200):
            await engine.run_due()
            handle = await engine.claim(LANE, (), ClaimPolicy("next", "next", 30_000, max_wait=50))
            if handle is not None:
                break
        assert handle is not None, "the dead writer's lease never ran out"
        epoch = decode(handle.opaque)[1].lease_epoch
        assert (handle.kind, epoch) == ((HandleKind.RESUMED, 3) if point == "after" else (HandleKind.FRESH, 1))
        await engine.complete(handle, result_of(identity, epoch))
    await check(store_url, ledger)


@pytest.mark.parametrize("point", ["before", "after"])
async def test_crash_around_the_commit_of_a_complete(store_url: str, tmp_path: Path, point: str) -> None:
    ledger = await crashed(store_url, tmp_path / "journal", f"{point}:complete")
    (line,) = ledger.about("claimed")
    identity, result = line["id"], result_of(line["id"], line["epoch"])
    before = await read_store(store_url)
    assert before.completions[identity] == (["success"] if point == "after" else [])
    async with await Engine.open(store_url, single_node=True) as engine:
        # Whoever still has the handle may repeat the call, and gets the answer that was lost.
        handle = Handle(engine.store.tag, HandleKind(line["kind"]), bytes.fromhex(line["opaque"]))
        await engine.complete(handle, result)
    await check(store_url, ledger)
    after = await read_store(store_url)
    assert (after.completions[identity], after.executions[identity]["result"]) == (["success"], result)
