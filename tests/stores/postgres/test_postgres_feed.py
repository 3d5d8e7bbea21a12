"""Events on PostgreSQL, where a lower id may be committed after a higher one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from flowfabric import ScannerFilter
from flowfabric.engine import Engine
from flowfabric.model.reads.subscriptions import cursor_at, event_id_of
from flowfabric.stores.postgres import feed as subject

LONG_S = 30
INSERT = (
    "INSERT INTO ff_lease_event (execution_id, event_type, occurred_at_ms, partition_key, namespace) "
    "VALUES ($1, 'renewed', 5, 0, $2) RETURNING event_id"
)


@pytest.fixture
async def engine(postgres_dsn: str) -> AsyncIterator[Engine]:
    async with await Engine.open(postgres_dsn) as opened:
        yield opened


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        connection.terminate()


async def insert(connection: Any, namespace: str | None = None) -> int:
    """One event, committed if no transaction was begun."""
    event_id: int = await connection.fetchval(INSERT, str(uuid4()), namespace)
    return event_id


async def void(connection: Any, count: int = 1) -> None:
    """Ids that are handed out and never used."""
    for _ in range(count):
        await connection.execute("SELECT nextval(pg_get_serial_sequence('ff_lease_event', 'event_id'))")


async def ids(events: Any, count: int) -> list[int]:
    """The ids of the next events, each of which has to come."""
    async with asyncio.timeout(LONG_S):
        return [event_id_of((await anext(events)).cursor) for _ in range(count)]


async def nothing(events: Any) -> None:
    """No event is delivered, however often one looks."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(events), 0.3)


async def test_a_late_commit_is_waited_for(engine: Engine, postgres_dsn: str) -> None:
    events = await engine.subscribe_lease_history()
    async with connected(postgres_dsn) as slow, connected(postgres_dsn) as quick:
        transaction = slow.transaction()
        await transaction.start()
        assert await insert(slow) == 1
        assert await insert(quick) == 2
        await nothing(events)
        assert events.cursor == cursor_at(0)
        await transaction.commit()
        assert await ids(events, 2) == [1, 2]


async def test_what_comes_before_it_is_not(engine: Engine, postgres_dsn: str) -> None:
    events = await engine.subscribe_lease_history()
    async with connected(postgres_dsn) as slow, connected(postgres_dsn) as quick:
        assert await insert(quick) == 1
        transaction = slow.transaction()
        await transaction.start()
        assert await insert(slow) == 2
        assert await insert(quick) == 3
        assert await ids(events, 1) == [1]
        await nothing(events)
        await transaction.commit()
        assert await ids(events, 2) == [2, 3]


async def test_a_rolled_back_id_is_not_waited_for(engine: Engine, postgres_dsn: str) -> None:
    events = await engine.subscribe_lease_history()
    async with connected(postgres_dsn) as slow, connected(postgres_dsn) as quick:
        transaction = slow.transaction()
        await transaction.start()
        await insert(slow)
        await insert(quick)
        await nothing(events)
        await transaction.rollback()
        assert await ids(events, 1) == [2]


async def test_nor_is_the_id_of_a_writer_that_was_killed(engine: Engine, postgres_dsn: str) -> None:
    events = await engine.subscribe_lease_history()
    async with connected(postgres_dsn) as slow, connected(postgres_dsn) as quick:
        await slow.execute("BEGIN")
        await insert(slow)
        await insert(quick)
        await nothing(events)
        slow.terminate()
        assert await ids(events, 1) == [2]


async def test_a_writer_that_has_an_id_and_nothing_else_yet(engine: Engine, postgres_dsn: str) -> None:
    """Between being given an id and writing the row a transaction has no number of its own. It holds the table."""
    events = await engine.subscribe_lease_history()
    async with connected(postgres_dsn) as slow, connected(postgres_dsn) as quick:
        # The server notes ids down by the dozen, and whoever makes it do so gets a number: let that be this one.
        assert await insert(quick) == 1
        assert await ids(events, 1) == [1]
        await slow.execute("BEGIN")
        await slow.execute("LOCK TABLE ff_lease_event IN ROW EXCLUSIVE MODE")
        await void(slow)
        assert await slow.fetchval("SELECT pg_current_xact_id_if_assigned() IS NULL")
        assert await insert(quick) == 3
        await nothing(events)
        await slow.execute(
            "INSERT INTO ff_lease_event (event_id, execution_id, event_type, occurred_at_ms, partition_key) "
            "VALUES (2, $1, 'renewed', 5, 0)",
            str(uuid4()),
        )
        await slow.execute("COMMIT")
        assert await ids(events, 2) == [2, 3]


async def test_writers_elsewhere_hold_nobody_up(engine: Engine, postgres_dsn: str) -> None:
    events = await engine.subscribe_lease_history()
    async with connected(postgres_dsn) as busy, connected(postgres_dsn) as quick:
        await busy.execute("BEGIN")
        await busy.execute("INSERT INTO ff_lane_registry VALUES ('busy', 1, 'me')")
        await void(quick)
        await insert(quick)
        assert await ids(events, 1) == [2]


async def test_later_writers_do_not_prolong_the_wait(engine: Engine, postgres_dsn: str) -> None:
    """Somebody always writes; what was under way when the break was seen is what counts."""
    events = await engine.subscribe_lease_history()
    async with connected(postgres_dsn) as one, connected(postgres_dsn) as two, connected(postgres_dsn) as quick:
        await one.execute("BEGIN")
        await insert(one)
        await insert(quick)
        await nothing(events)
        await two.execute("BEGIN")
        await insert(two)
        await one.execute("ROLLBACK")
        assert await ids(events, 1) == [2]


# -- where to begin ------------------------------------------------------------------------------------------------


async def test_what_is_under_way_at_the_beginning_comes_later(engine: Engine, postgres_dsn: str) -> None:
    async with connected(postgres_dsn) as slow, connected(postgres_dsn) as other, connected(postgres_dsn) as quick:
        assert await insert(quick) == 1
        await slow.execute("BEGIN")
        assert await insert(slow) == 2
        assert await insert(quick) == 3
        await other.execute("BEGIN")
        assert await insert(other) == 4
        assert await insert(slow) == 5
        assert await insert(quick) == 6
        async with asyncio.timeout(LONG_S):
            events = await engine.subscribe_lease_history()
        assert await insert(quick) == 7
        await nothing(events)
        await slow.execute("COMMIT")
        await other.execute("ROLLBACK")
        # Ids 1, 3 and 6 were there when it began; 4 never came.
        assert await ids(events, 3) == [2, 5, 7]


async def test_breaks_far_back_are_not_looked_for(
    engine: Engine, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the outbox is, a beginning looks at its newest part only."""
    monkeypatch.setattr(subject, "LATE_IDS", 3)
    async with connected(postgres_dsn) as oldest, connected(postgres_dsn) as slow, connected(postgres_dsn) as quick:
        await oldest.execute("BEGIN")
        assert await insert(oldest) == 1
        for _ in range(5):
            await insert(quick)
        await slow.execute("BEGIN")
        assert await insert(slow) == 7
        assert await insert(quick) == 8
        events = await engine.subscribe_lease_history()
        assert event_id_of(events.cursor) == 6
        await slow.execute("COMMIT")
        await oldest.execute("COMMIT")
        assert await ids(events, 1) == [7]


async def test_a_writer_that_is_quick_is_waited_for(engine: Engine, postgres_dsn: str) -> None:
    async with connected(postgres_dsn) as slow, connected(postgres_dsn) as quick:
        await slow.execute("BEGIN")
        await insert(slow)
        await insert(quick)
        beginning = asyncio.create_task(engine.subscribe_lease_history())
        await asyncio.sleep(0.05)
        await slow.execute("COMMIT")
        events = await beginning
        # It was committed during the call: before or after it, as one likes, but nothing later is missed.
        assert event_id_of(events.cursor) == 2
        await insert(quick)
        assert await ids(events, 1) == [3]


async def test_a_beginning_behind_ids_nobody_used(engine: Engine, postgres_dsn: str) -> None:
    async with connected(postgres_dsn) as quick:
        await void(quick, 5)
        await insert(quick)
        events = await engine.subscribe_lease_history()
        assert event_id_of(events.cursor) == 6
        await void(quick, 5)
        await insert(quick)
        assert await ids(events, 1) == [12]


# -- far behind ----------------------------------------------------------------------------------------------------


async def fill(connection: Any, count: int, every: int) -> list[int]:
    """Many events with breaks in their ids; the ids of those in namespace "rare"."""
    await connection.execute(
        "INSERT INTO ff_lease_event (event_id, execution_id, event_type, occurred_at_ms, partition_key, namespace) "
        "SELECT n, gen_random_uuid()::text, 'renewed', 5, 0, CASE WHEN n % 97 = 0 THEN 'rare' ELSE 'common' END "
        "FROM generate_series(1, $1::int) n WHERE n % $2::int <> 0",
        count,
        every,
    )
    await connection.execute("SELECT setval(pg_get_serial_sequence('ff_lease_event', 'event_id'), $1)", count)
    return [n for n in range(1, count + 1) if n % every and n % 97 == 0]


async def test_old_breaks_are_passed_quickly(engine: Engine, postgres_dsn: str) -> None:
    async with connected(postgres_dsn) as quick:
        rare = await fill(quick, 5_000, 10)
        events = await engine.subscribe_lease_history(cursor_at(0))
        assert await ids(events, 4_500) == [n for n in range(1, 5_001) if n % 10]
        chosen = await engine.subscribe_lease_history(cursor_at(0), ScannerFilter(namespace="rare"))
        assert await ids(chosen, len(rare)) == rare
        # At the end it follows on, one by one and past a break.
        last = await insert(quick, "rare")
        await void(quick)
        later = await insert(quick, "rare")
        assert await ids(chosen, 2) == [last, later]
        assert await ids(events, 2) == [last, later]


async def test_also_while_somebody_writes(engine: Engine, postgres_dsn: str) -> None:
    async with connected(postgres_dsn) as slow, connected(postgres_dsn) as quick:
        rare = await fill(quick, 2_000, 10)
        await slow.execute("BEGIN")
        held = await insert(slow, "rare")
        after = await insert(quick, "rare")
        events = await engine.subscribe_lease_history(cursor_at(0), ScannerFilter(namespace="rare"))
        waiting = asyncio.create_task(ids(events, len(rare) + 2))
        await asyncio.sleep(0.1)
        await slow.execute("COMMIT")
        assert await waiting == [*rare, held, after]


async def test_a_bounded_read_holds_back_too(
    engine: Engine, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.engine.reads.subscriptions.READ_PATIENCE_S", 0.1)
    async with connected(postgres_dsn) as slow, connected(postgres_dsn) as quick:
        await slow.execute("BEGIN")
        await insert(slow)
        await insert(quick)
        held = await engine.read_events("lease_history", cursor_at(0))
        assert (held.events, held.cursor, held.more) == ((), cursor_at(0), True)
        await slow.execute("ROLLBACK")
        batch = await engine.read_events("lease_history", held.cursor)
        assert [event_id_of(event.cursor) for event in batch.events] == [2]


async def test_writers_are_asked_for_only_at_breaks_that_last(engine: Engine, postgres_dsn: str) -> None:
    """Looking at locks is not free, so nobody does it while everything is in order."""
    events = await engine.subscribe_lease_history()
    asked = 0
    take_mark = subject.PostgresFeed._take_mark

    async def counted(feed: subject.PostgresFeed) -> None:
        nonlocal asked
        asked += 1
        await take_mark(feed)

    events._feed._take_mark = lambda: counted(events._feed)  # type: ignore[attr-defined,method-assign]
    async with connected(postgres_dsn) as quick:
        for n in range(50):
            assert await insert(quick) == n + 1
        assert await ids(events, 50) == list(range(1, 51))
        assert asked == 0
        await void(quick)
        await insert(quick)
        assert await ids(events, 1) == [52]
        assert asked == 1
