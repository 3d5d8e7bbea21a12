"""Several processes on one database: nothing lost, nothing doubled, nobody left asleep."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent
from flowfabric.model.ids import ExecutionId
from tests import valkey_rows
from tests.chaos.processes import Peer, peers
from tests.chaos.stored import Stored, payload_of, read_store, violations
from tests.chaos.stores import SHARED
from tests.conftest import full_run, valkey_place
from tests.contract.reads.test_examine import examined
from tests.servers import PostgreSQL, Valkey

LONG_WAIT_MS = 60_000
#: Rows that two hundred claimers in two processes share.
CLAIMED = 5_000 if full_run() else 800


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return f"sqlite:///{tmp_path}/ff.db"


@pytest.fixture
def own_server() -> Iterator[PostgreSQL]:
    """A server that this test may kill."""
    with PostgreSQL() as server:
        yield server


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """The same of Valkey."""
    with Valkey() as server:
        yield server


def at_once(processes: list[Peer], do: str, **arguments: Any) -> list[Any]:
    """Ask all of them at the same time; their answers."""
    for process in processes:
        process.tell(do, **arguments)
    return [process.hear() for process in processes]


def introduced(processes: list[Peer], url: str) -> list[Peer]:
    """The processes, ready and on the database."""
    assert [process.hear() for process in processes] == ["ready"] * len(processes)
    at_once(processes, "open", url=url)
    return processes


def check_lifecycles(stored: Stored, reports: list[dict[str, Any]], count: int) -> None:
    """Everything that was acknowledged is there, and each execution was completed by one process, once."""
    assert violations(stored) == []
    created = Counter(each for report in reports for each in report["created"])
    completed = Counter(each for report in reports for each in report["completed"])
    assert created == Counter(stored.executions.keys())
    assert len(created) == count
    assert completed.keys() <= created.keys()
    assert set(completed.values()) == {1}
    assert {row["public_state"] for row in stored.executions.values()} == {"completed"}


def check_wake_up(sleeper: Peer, waker: Peer) -> None:
    """A create in one process wakes a claim that waits in another; looking from time to time is switched off."""
    sleeper.tell("await_work", lane="wake-up", wait_ms=LONG_WAIT_MS)
    assert sleeper.hear() == "waiting"
    made = waker.ask("create", lane="wake-up")
    found = sleeper.hear()
    assert found is not None, "the claim slept through it"
    assert found["id"] == made["id"]


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that processes can share."""
    return SHARED[request.param](request, tmp_path)


async def test_claimers_in_two_processes_never_share_a_row(url: str) -> None:
    async with await Engine.open(url, single_node=True) as engine:
        given = [{"lane_id": "busy", "priority": number % 10} for number in range(CLAIMED)]
        made = [answer.execution_id for answer in await engine.create_executions(given)]
        with peers(2) as processes:
            introduced(processes, url)
            for process in processes:
                process.tell("claim_all", claimers=100, lane="busy")
            granted = [grants for process in processes for grants in await asyncio.to_thread(process.hear)]
            # Rows that one claimer's transaction had locked may have looked like an empty lane to another.
            granted += await asyncio.to_thread(processes[0].ask, "claim_all", claimers=1, lane="busy")
        assert Counter(each for grants in granted for each in grants) == Counter(made)
        order = dict(zip(made, (each["priority"] for each in given), strict=True))
        for grants in granted:
            priorities = [order[each] for each in grants]
            assert priorities == sorted(priorities, reverse=True)


# --------------------------------------------------------------------------------------------------------------- SQLite


async def test_three_processes_share_a_file(sqlite_url: str) -> None:
    with peers(3) as processes:
        introduced(processes, sqlite_url)
        reports = at_once(processes, "lifecycles", count=200, lane="shared", expected=600)
        check_lifecycles(await read_store(sqlite_url), reports, 600)
        assert [report["errors"] for report in reports] == [{}, {}, {}]
        assert all("locked" not in process.errors() for process in processes)
        assert all(report["completed"] for report in reports)


async def test_four_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    with peers(4) as processes:
        for process in processes:
            assert process.hear() == "ready"
        for number in range(8):
            url = f"sqlite:///{tmp_path}/ff-{number}.db"
            at_once(processes, "open", url=url)
            made = {answer["id"] for answer in at_once(processes, "create", lane="first")}
            stored = await read_store(url)
            assert violations(stored) == []
            assert stored.executions.keys() == made
            assert len(made) == 4


def test_a_create_wakes_a_claim_in_another_process_on_the_file(sqlite_url: str) -> None:
    with peers(2) as processes:
        sleeper, waker = introduced(processes, sqlite_url)
        for _ in range(3):
            check_wake_up(sleeper, waker)


# ----------------------------------------------------------------------------------------------------------- PostgreSQL


async def test_two_processes_share_a_database(postgres_dsn: str) -> None:
    with peers(2) as processes:
        introduced(processes, postgres_dsn)
        reports = at_once(processes, "lifecycles", count=300, lane="shared", expected=600)
        check_lifecycles(await read_store(postgres_dsn), reports, 600)
        assert [report["errors"] for report in reports] == [{}, {}]
        assert all(report["completed"] for report in reports)


def test_a_create_wakes_a_claim_in_another_process_on_the_server(postgres_dsn: str) -> None:
    with peers(2) as processes:
        sleeper, waker = introduced(processes, postgres_dsn)
        for _ in range(3):
            check_wake_up(sleeper, waker)


async def cut_all_connections(dsn: str) -> int:
    """End every other connection to the database; how many there were."""
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    finally:
        await connection.close()


async def last_one(url: str, lane: str) -> dict[str, Any]:
    """Create the execution that keeps processes from ending before they were disturbed; a report, as they give."""
    async with await Engine.open(url) as engine:
        identity = str(ExecutionId.solo(lane, engine.partitions))
        await engine.create_execution(execution_id=identity, lane_id=lane, input_payload=payload_of(identity))
    return {"created": [identity], "completed": [], "errors": {}}


async def test_work_goes_on_after_every_connection_was_cut(postgres_dsn: str) -> None:
    with peers(2) as processes:
        introduced(processes, postgres_dsn)
        for process in processes:
            process.tell("lifecycles", count=150, lane="cut", expected=301, ttl_ms=1_000)
        for cut in range(1, 6):
            await ended(postgres_dsn, 40 * cut)
            assert await cut_all_connections(postgres_dsn) > 0
        last = await last_one(postgres_dsn, "cut")
        reports = [process.hear() for process in processes]
        check_lifecycles(await read_store(postgres_dsn), [*reports, last], 301)
        assert trouble(reports) <= PASSING


async def test_a_listener_comes_back_after_its_connection_was_cut(postgres_dsn: str) -> None:
    with peers(2) as processes:
        sleeper, waker = introduced(processes, postgres_dsn)
        sleeper.tell("await_work", lane="wake-up", wait_ms=LONG_WAIT_MS)
        assert sleeper.hear() == "waiting"
        assert await cut_all_connections(postgres_dsn) > 0
        made = waker.ask("create", lane="wake-up")
        found = sleeper.hear()
        assert found is not None, "the claim slept through it"
        assert found["id"] == made["id"]
        check_wake_up(sleeper, waker)


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed_under_load(own_server: PostgreSQL) -> None:
    with peers(2) as processes:
        introduced(processes, own_server.dsn)
        for process in processes:
            process.tell("lifecycles", count=300, lane="killed", expected=601, ttl_ms=1_000)
        for kill in range(1, 4):
            await ended(own_server.dsn, 100 * kill)
            own_server.kill9()
            own_server.start()
        last = await last_one(own_server.dsn, "killed")
        reports = [process.hear() for process in processes]
        check_lifecycles(await read_store(own_server.dsn), [*reports, last], 601)
        assert trouble(reports) <= PASSING


# --------------------------------------------------------------------------------------------------------------- Valkey


async def test_two_processes_share_a_place(valkey_url: str) -> None:
    with peers(2) as processes:
        introduced(processes, valkey_url)
        reports = at_once(processes, "lifecycles", count=200, lane="shared", expected=400)
        check_lifecycles(await read_store(valkey_url), reports, 400)
        assert [report["errors"] for report in reports] == [{}, {}]
        assert all(report["completed"] for report in reports)


async def test_four_processes_begin_a_place_at_once(valkey_server: Any) -> None:
    with peers(4) as processes:
        for process in processes:
            assert process.hear() == "ready"
        for _ in range(4):
            with valkey_place(valkey_server.url) as url:
                at_once(processes, "open", url=url)
                made = {answer["id"] for answer in at_once(processes, "create", lane="first")}
                stored = await read_store(url)
                assert violations(stored) == []
                assert stored.executions.keys() == made
                assert len(made) == 4


def test_a_create_wakes_a_claim_in_another_process_on_valkey(valkey_url: str) -> None:
    with peers(2) as processes:
        sleeper, waker = introduced(processes, valkey_url)
        for _ in range(3):
            check_wake_up(sleeper, waker)


async def cut_all_clients(url: str) -> int:
    """End every other connection to a server of the test's own; how many there were."""
    async with valkey_rows.Looking(url) as looking:
        kinds = [await looking.commands(("CLIENT", "KILL", "TYPE", kind)) for kind in ("normal", "pubsub")]
    return sum(count for [count] in kinds)


async def test_work_goes_on_after_every_connection_to_valkey_was_cut(own_valkey: Valkey) -> None:
    with peers(2) as processes:
        introduced(processes, own_valkey.url)
        for process in processes:
            process.tell("lifecycles", count=150, lane="cut", expected=301, ttl_ms=1_000)
        for cut in range(1, 6):
            await ended(own_valkey.url, 40 * cut)
            assert await cut_all_clients(own_valkey.url) > 0
        last = await last_one(own_valkey.url, "cut")
        reports = [process.hear() for process in processes]
        check_lifecycles(await read_store(own_valkey.url), [*reports, last], 301)
        assert trouble(reports) <= PASSING


async def test_a_listener_on_valkey_comes_back_after_its_connection_was_cut(own_valkey: Valkey) -> None:
    with peers(2) as processes:
        sleeper, waker = introduced(processes, own_valkey.url)
        sleeper.tell("await_work", lane="wake-up", wait_ms=LONG_WAIT_MS)
        assert sleeper.hear() == "waiting"
        assert await cut_all_clients(own_valkey.url) > 0
        made = waker.ask("create", lane="wake-up")
        found = sleeper.hear()
        assert found is not None, "the claim slept through it"
        assert found["id"] == made["id"]
        check_wake_up(sleeper, waker)


async def test_nothing_acknowledged_is_lost_when_valkey_is_killed_under_load(own_valkey: Valkey) -> None:
    with peers(2) as processes:
        introduced(processes, own_valkey.url)
        for process in processes:
            process.tell("lifecycles", count=300, lane="killed", expected=601, ttl_ms=1_000)
        for kill in range(1, 4):
            await ended(own_valkey.url, 100 * kill)
            own_valkey.kill9()
            own_valkey.start()
        last = await last_one(own_valkey.url, "killed")
        reports = [process.hear() for process in processes]
        check_lifecycles(await read_store(own_valkey.url), [*reports, last], 601)
        assert trouble(reports) <= PASSING
    async with await Engine.open(own_valkey.url) as engine:
        assert (await examined(engine))[1] == []


# ---------------------------------------------------------------------------------------------------------- all servers


async def ended(dsn: str, least: int) -> None:
    """Wait until so many executions have ended."""
    if dsn.startswith("valkey"):
        async with valkey_rows.Looking(dsn) as looking:
            while (await looking.commands(("XLEN", looking.keys.log(CompletionEvent))))[0] < least:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return
    connection = await asyncpg.connect(dsn)
    try:
        while await connection.fetchval("SELECT count(*) FROM ff_completion_event") < least:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    finally:
        await connection.close()


#: What callers may meet while the store comes and goes: a typed error for the trouble, and leases that ran out.
PASSING = {
    "Transport(transport)",
    "Contention(retry_exhausted)",
    "Contention(lease_conflict)",
    "State(lease_conflict)",
    "State(lease_expired)",
}


def trouble(reports: list[dict[str, Any]]) -> set[str]:
    """The kinds of errors that processes met."""
    return {kind for report in reports for kind in report["errors"]}
