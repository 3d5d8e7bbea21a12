"""Many writers, slow ones among them, and followers that are killed and resumed: each event once, in order, none lost.

Ids are handed out before the commit, so this only holds because a follower waits for lower ids that may still come.
The same check is run on a follower that does not wait, and has to catch it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.engine.reads.subscriptions import Subscription
from flowfabric.model.events import LeaseEvent
from flowfabric.model.reads.subscriptions import cursor_at, event_id_of
from flowfabric.stores.event_questions import ReadEvents
from flowfabric.stores.feeds import EventPage
from tests import valkey_rows

WRITERS, FOLLOWERS, ENGINES = 8, 4, 2
#: How long a follower may take to come to the end once the writers have stopped.
CATCH_UP_S = 30
INSERT = (
    "INSERT INTO ff_lease_event (execution_id, event_type, occurred_at_ms, partition_key) "
    "SELECT $1, 'renewed', 5, 0 FROM generate_series(1, $2::int)"
)


class Naive:
    """A feed with the bug this is all about: whatever is behind the last id seen is next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def page(self, after: int, limit: int) -> EventPage:
        found = await self._engine._ask(ReadEvents(LeaseEvent, after, None, limit))
        position = found.rows[-1][0] if found.rows else after
        return EventPage(found.rows, position, len(found.rows) == limit, False, found.trimmed)


class Follower:
    """Notes every event it processes. Whoever kills it loses what was not noted, and it goes on from its notes."""

    def __init__(self, engines: list[Engine], chance: random.Random, naive: bool = False) -> None:
        self._engines = engines
        self._chance = chance
        self._naive = naive
        self.seen: list[int] = []
        self.resumed = -1

    async def run(self, start: int = 0) -> None:
        """Follow, be killed, resume; without end."""
        while True:
            self.resumed += 1
            engine = self._chance.choice(self._engines)
            events = await engine.subscribe_lease_history(cursor_at(self.seen[-1] if self.seen else start))
            if self._naive:
                events._feed = Naive(engine)
            life = self._chance.expovariate(2.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._follow(events), life)

    async def _follow(self, events: Subscription[Any]) -> None:
        async for event in events:
            self.seen.append(event_id_of(event.cursor))
            if self._chance.random() < 0.01:
                await asyncio.sleep(self._chance.random() * 0.02)


def problems(seen: list[int], stored: list[int]) -> list[str]:
    """What a follower of everything got wrong."""
    found = []
    if seen != sorted(seen):
        found.append("out of order")
    if len(set(seen)) != len(seen):
        found.append("repeated")
    if missing := set(stored) - set(seen):
        found.append(f"missing {len(missing)}, such as {min(missing)}")
    if invented := set(seen) - set(stored):
        found.append(f"never stored {len(invented)}")
    return found


async def write(dsn: str, chance: random.Random, stop: asyncio.Event) -> None:
    """Commit at once, after a while or not at all, as it comes."""
    connection = await asyncpg.connect(dsn)
    try:
        while not stop.is_set():
            name = str(uuid4())
            if chance.random() < 0.4:
                await connection.execute(INSERT, name, chance.randrange(1, 30))
                continue
            await connection.execute("BEGIN")
            for _ in range(chance.randrange(1, 4)):
                await connection.execute(INSERT, name, chance.randrange(1, 10))
                await asyncio.sleep(chance.choice((0, 0.005, 0.03, 0.2)))
            await connection.execute("ROLLBACK" if chance.random() < 0.3 else "COMMIT")
    finally:
        await connection.close()


async def work(engine: Engine, lane: str, stop: asyncio.Event) -> None:
    """Lifecycles through an engine, in batches that are under way at the same time."""
    policy = ClaimPolicy("w", lane)
    while not stop.is_set():
        await engine.create_executions([{"lane_id": lane}] * 40)
        handles = await engine.claim_many(lane, policy=policy, limit=40)
        await asyncio.gather(*(engine.renew(handle) for handle in handles))
        await asyncio.gather(*(engine.complete(handle) for handle in handles))


async def commit_behind(dsn: str, follower: Follower, stop: asyncio.Event) -> None:
    """Hold an id until a follower has gone past it, and commit then; give up on one that will not."""
    connection = await asyncpg.connect(dsn)
    try:
        for _ in range(3):
            await connection.execute("BEGIN")
            await connection.execute(INSERT, str(uuid4()), 1)
            held = await connection.fetchval("SELECT max(event_id) FROM ff_lease_event")
            for _ in range(100):
                if stop.is_set() or (follower.seen and follower.seen[-1] > held):
                    break
                await asyncio.sleep(0.01)
            await connection.execute("COMMIT")
    finally:
        await connection.close()


@pytest.fixture
async def engines(postgres_dsn: str) -> AsyncIterator[list[Engine]]:
    opened = [await Engine.open(postgres_dsn) for _ in range(ENGINES)]
    yield opened
    for engine in opened:
        await engine.close()


async def ids_of(engine: Engine) -> list[int]:
    """What is stored in the end."""
    async with engine.store.raw() as connection:
        rows = await connection.fetch("SELECT event_id FROM ff_lease_event ORDER BY event_id")
    return [row[0] for row in rows]


async def caught_up(follower: Follower, last: int) -> None:
    """Wait until a follower has come to the end."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CATCH_UP_S):
            while not follower.seen or follower.seen[-1] < last:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.timeout(180)
async def test_each_once_in_order_none_missing(postgres_dsn: str, engines: list[Engine], full: bool) -> None:
    chance = random.Random(20_261_116)
    stop = asyncio.Event()
    followers = [Follower(engines, random.Random(n)) for n in range(FOLLOWERS)]
    naive = Follower(engines, random.Random(99), naive=True)
    following = [asyncio.create_task(each.run()) for each in (*followers, naive)]
    writing = [asyncio.create_task(write(postgres_dsn, random.Random(chance.random()), stop)) for _ in range(WRITERS)]
    writing += [asyncio.create_task(work(engine, f"lane-{n}", stop)) for n, engine in enumerate(engines)]
    writing.append(asyncio.create_task(commit_behind(postgres_dsn, naive, stop)))
    half = 3_000 if full else 600

    async def written(count: int) -> None:
        while len(await ids_of(engines[0])) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    await written(half)
    # One that begins in the middle, with writers under way.
    late = Follower(engines, random.Random(50))
    beginning = await engines[0].subscribe_lease_history()
    at_the_beginning = set(await ids_of(engines[0]))
    middle = asyncio.create_task(late._follow(beginning))
    await written(2 * half)
    # Until each has been interrupted, something was rolled back, and the naive one has passed over something.
    while True:
        stored = await ids_of(engines[0])
        passed = {each for each in stored if naive.seen and each < naive.seen[-1]} - set(naive.seen)
        if passed and stored[-1] > len(stored) and all(each.resumed > 0 for each in followers):
            break
        await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*writing)
    stored = await ids_of(engines[0])
    for follower in (*followers, naive, late):
        await caught_up(follower, stored[-1])
    for task in (*following, middle):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert len(stored) > 1_000
    assert stored[-1] > len(stored), "no transaction was rolled back"
    for follower in followers:
        assert problems(follower.seen, stored) == []
        assert follower.resumed > 0
    # Whatever was committed after the subscription had begun, however low its id.
    assert problems(late.seen, sorted(set(late.seen) | (set(stored) - at_the_beginning))) == []
    assert any("missing" in each for each in problems(naive.seen, stored)), "the check would not notice a loss"


@pytest.mark.timeout(180)
async def test_each_once_in_order_none_missing_on_valkey(valkey_url: str, full: bool) -> None:
    """Numbers are given out as commits happen: nothing to wait for, and nothing may be passed over all the same."""
    engines = [await Engine.open(valkey_url) for _ in range(ENGINES)]
    stop = asyncio.Event()
    followers = [Follower(engines, random.Random(n)) for n in range(FOLLOWERS)]
    following = [asyncio.create_task(each.run()) for each in followers]
    writing = [
        asyncio.create_task(work(engine, f"lane-{n}-{m}", stop)) for n, engine in enumerate(engines) for m in range(3)
    ]

    async def written(count: int) -> list[int]:
        while True:
            found = await valkey_rows.events(engines[0].store, {LeaseEvent: 0})
            if len(found[LeaseEvent]) >= count:
                return [number for number, _ in found[LeaseEvent]]
            await asyncio.sleep(0.05)

    half = 15_000 if full else 3_000
    await written(half)
    late = Follower(engines, random.Random(50))
    beginning = await engines[0].subscribe_lease_history()
    before = set(await written(0))
    middle = asyncio.create_task(late._follow(beginning))
    await written(2 * half)
    stop.set()
    await asyncio.gather(*writing)
    stored = await written(0)
    for follower in (*followers, late):
        await caught_up(follower, stored[-1])
    for task in (*following, middle):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    for engine in engines:
        await engine.close()
    assert stored == list(range(1, len(stored) + 1)), "no number was passed over"
    for follower in followers:
        assert problems(follower.seen, stored) == []
    assert sum(follower.resumed for follower in followers) > 0
    assert problems(late.seen, sorted(set(late.seen) | (set(stored) - before))) == []


def test_the_check_notices() -> None:
    assert problems([1, 2, 3], [1, 2, 3]) == []
    assert problems([1, 3], [1, 2, 3]) == ["missing 1, such as 2"]
    assert problems([1, 3, 2], [1, 2, 3]) == ["out of order"]
    assert problems([1, 1, 2], [1, 2]) == ["repeated"]
    assert problems([1, 2, 4], [1, 2]) == ["never stored 1"]
