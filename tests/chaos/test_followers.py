"""Followers in processes of their own, killed and started again: each event once, in order, none missing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from flowfabric import cursor_to_text
from flowfabric.model.reads.subscriptions import cursor_at
from tests.chaos.processes import Peer, peers
from tests.chaos.stored import read_store
from tests.chaos.stores import SHARED

WRITERS, EACH = 2, 150
COUNT = WRITERS * EACH


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that several processes can share."""
    return SHARED[request.param](request, tmp_path)


def started(process: Peer, url: str, cursor: str, until: int) -> Peer:
    """A process that follows from a cursor on."""
    assert process.hear() == "ready"
    process.ask("open", url=url)
    process.tell("follow", cursor=cursor, until=until)
    assert process.hear() == "following"
    return process


async def test_a_follower_that_is_killed_goes_on_where_it_was(url: str) -> None:
    chance = random.Random(7)
    seen: list[Any] = []
    cursor = cursor_to_text(cursor_at(0))
    with peers(WRITERS) as writers:
        for writer in writers:
            assert writer.hear() == "ready"
        # One creates the database, then all begin.
        for writer in writers:
            writer.ask("open", url=url)
        for writer in writers:
            writer.tell("lifecycles", count=EACH, lane="followed", expected=COUNT)
        while len(seen) < COUNT:
            with peers(1) as [follower]:
                started(follower, url, cursor, COUNT - len(seen))
                for _ in range(min(chance.randrange(1, 120), COUNT - len(seen))):
                    cursor, execution_id = follower.hear()
                    seen.append((cursor, execution_id))
                follower.kill()
        for writer in writers:
            writer.hear()
    stored = await read_store(url)
    cursors = [each[0] for each in seen]
    assert len(set(cursors)) == len(cursors) == COUNT
    assert cursors == [cursor_to_text(cursor_at(event_id)) for event_id in range(1, COUNT + 1)]
    assert {each[1] for each in seen} == stored.executions.keys()


def test_a_follower_is_woken_by_another_process(url: str) -> None:
    with peers(2) as processes:
        follower, writer = processes
        assert writer.hear() == "ready"
        writer.ask("open", url=url)
        started(follower, url, "", 3)
        for ended in range(1, 4):
            [eid] = writer.ask("lifecycles", count=1, lane="woken", expected=ended)["completed"]
            assert follower.hear()[1] == eid
