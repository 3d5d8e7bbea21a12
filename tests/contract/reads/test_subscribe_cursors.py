"""Cursors: their bytes and text, which of them are refused, and those that are too old."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import (
    ScannerFilter,
    StreamGap,
    Validation,
    ValidationKind,
    cursor_from_text,
    cursor_to_text,
)
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent
from flowfabric.model.reads.subscriptions import cursor_at, event_id_of
from tests.contract.probe import ManualClock, Probe, claimed, refused, shared_stores_only
from tests.contract.seeding import lose_events
from tests.contract.subscribing import LONG_S, finished, many_finished, now, rest, take

DAY_MS = 24 * 3600 * 1000


async def trim(engine: Engine) -> None:
    """What the timer does with events that are too old."""
    await engine.run_timer("retention_trimmer")


def test_the_bytes() -> None:
    assert cursor_at(258) == b"\x02\x00\x00\x00\x00\x00\x00\x01\x02"
    assert event_id_of(cursor_at(2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize("event_id", [0, 1, 255, 256, 2**40, 2**63 - 1])
def test_text_and_back(event_id: int) -> None:
    text = cursor_to_text(cursor_at(event_id))
    assert len(text) == 12
    assert cursor_from_text(text) == cursor_at(event_id)


def test_the_empty_cursor_as_text() -> None:
    assert cursor_to_text(b"") == ""
    assert cursor_from_text("") == b""


@pytest.mark.parametrize(
    "text", ["x", "AgAAAAAAAAEC=", "AgAAAAAAAA", "AQAAAAAAAAEC", "Ag AAAAAAAEC", "żółw", 5, None, b"Ag"]
)
def test_what_is_no_cursor_text(text: Any) -> None:
    with pytest.raises(Validation) as caught:
        cursor_from_text(text)
    assert caught.value.kind is ValidationKind.INVALID_INPUT


@pytest.mark.parametrize(
    "cursor",
    [b"\x01" + bytes(16), b"\x01" + bytes(8), b"\x02" + bytes(7), b"\x02" + bytes(9), b"\x03\x00\x00", b"\x00"],
    ids=["valkey", "prefix", "short", "long", "composite", "one byte"],
)
async def test_cursors_of_other_stores(engine: Engine, probe: Probe, cursor: bytes) -> None:
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.subscribe_completion(cursor)


async def test_a_cursor_of_another_database(engine: Engine, probe: Probe) -> None:
    await finished(engine)
    await engine.subscribe_completion(cursor_at(1))
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
        await engine.subscribe_completion(cursor_at(2))
    assert "another store" in caught.value.detail


async def test_the_beginning_of_time(engine: Engine) -> None:
    made = [await finished(engine) for _ in range(3)]
    events = await engine.subscribe_completion(cursor_at(0))
    assert [event.execution_id for event in await take(events, 3)] == made


async def test_where_a_subscription_stands(engine: Engine) -> None:
    events = await engine.subscribe_completion(filter=ScannerFilter(namespace="a"))
    start = events.cursor
    await many_finished(engine, 10, namespace="b")
    mine = await finished(engine, namespace="a")
    later = await finished(engine, namespace="a")
    await finished(engine, namespace="b")
    assert events.cursor == start
    [first] = await take(events, 1)
    # Another one is waiting in the page, so the place is right behind the event delivered.
    assert events.cursor == first.cursor == cursor_at(11)
    await take(events, 1)
    # Nothing is: the place is behind what was passed over.
    assert events.cursor == cursor_at(13)
    resumed = await engine.subscribe_completion(first.cursor, ScannerFilter(namespace="a"))
    assert [event.execution_id for event in await take(resumed, 1)] == [later]
    assert mine != later


# -- too old -------------------------------------------------------------------------------------------------------


async def test_a_cursor_older_than_what_is_kept(engine: Engine, clock: ManualClock) -> None:
    begin = await now(engine, "lease_history")
    await finished(engine)
    last = await now(engine, "lease_history")
    clock.advance(8 * DAY_MS)
    kept = await claimed(engine, lane_id="kept")
    await trim(engine)
    for call in (engine.subscribe_lease_history(begin), engine.read_events("lease_history", begin)):
        with pytest.raises(StreamGap) as caught:
            await call
        assert caught.value.kind is ValidationKind.INVALID_INPUT
        assert caught.value.code == "invalid_input"
        assert caught.value.detail.startswith("cursor_expired")
        assert (caught.value.requested, caught.value.oldest) == (begin, last)
    # The oldest place that is left, and the place behind the last event that went, are the same.
    for cursor in (caught.value.oldest, last):
        [event] = await rest(engine, "lease_history", cursor)
        assert event.execution_id == kept.execution_id


async def test_also_when_nothing_is_left(engine: Engine, clock: ManualClock) -> None:
    begin = await now(engine, "completion")
    await finished(engine)
    clock.advance(8 * DAY_MS)
    await trim(engine)
    with pytest.raises(StreamGap):
        await engine.subscribe_completion(begin)
    # The end is where it was, so that nothing that comes is missed.
    events = await engine.subscribe_completion()
    assert events.cursor == cursor_at(1)
    eid = await finished(engine)
    assert [event.execution_id for event in await take(events, 1)] == [eid]


async def test_nothing_is_lost_by_looking_too_early(engine: Engine, clock: ManualClock) -> None:
    begin = await now(engine, "completion")
    eid = await finished(engine)
    clock.advance(7 * DAY_MS)
    await trim(engine)
    assert [event.execution_id for event in await rest(engine, "completion", begin)] == [eid]


async def test_a_subscriber_that_was_overtaken(engine: Engine, clock: ManualClock) -> None:
    events = await engine.subscribe_completion()
    await many_finished(engine, 300)
    await take(events, 1)
    clock.advance(8 * DAY_MS)
    await trim(engine)
    # What it has read already is delivered; then it is told, instead of going on behind a hole.
    await take(events, 255)
    with pytest.raises(StreamGap) as caught:
        await take(events, 1)
    assert caught.value.requested == cursor_at(256)
    assert [event async for event in events] == []


async def test_one_that_was_not_goes_on(engine: Engine, clock: ManualClock) -> None:
    events = await engine.subscribe_completion()
    await many_finished(engine, 5)
    await take(events, 5)
    clock.advance(8 * DAY_MS)
    await trim(engine)
    eid = await finished(engine)
    assert [event.execution_id for event in await take(events, 1)] == [eid]


async def test_old_events_go_however_many(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    await many_finished(engine, 3_000)
    clock.advance(8 * DAY_MS)
    await trim(engine)
    assert await rest(engine, "lease_history", await now(engine, "lease_history")) == []
    assert (await probe.snapshot())["ff_lease_event"] == []


@shared_stores_only
async def test_the_horizon_outlives_the_process(engine: Engine, clock: ManualClock, open_engine: Any) -> None:
    begin = await now(engine, "completion")
    await finished(engine)
    clock.advance(8 * DAY_MS)
    await trim(engine)
    again = await open_engine()
    with pytest.raises(StreamGap):
        await again.subscribe_completion(begin)


# -- lost ----------------------------------------------------------------------------------------------------------


async def test_a_subscriber_that_stands_behind_the_end(engine: Engine) -> None:
    """Events that it has read are lost, and others will get their numbers: it must not wait for what comes next."""
    events = await engine.subscribe_completion(cursor_at(0))
    first = await finished(engine)
    await finished(engine)
    seen = await take(events, 2)
    await lose_events(engine, CompletionEvent, 1)
    engine._events.stir()
    with pytest.raises(StreamGap) as caught:
        await take(events, 1)
    assert (caught.value.requested, caught.value.oldest) == (cursor_at(2), cursor_at(1))
    assert [event async for event in events] == [], "it is over"
    for call in (engine.read_events("completion", cursor_at(2)), engine.subscribe_completion(cursor_at(2))):
        with pytest.raises(Validation):
            await call
    other = await finished(engine)
    assert [event.execution_id for event in await rest(engine, "completion", cursor_at(0))] == [first, other]
    again = await engine.subscribe_completion(caught.value.oldest)
    [event] = await take(again, 1)
    assert (event.execution_id, event.cursor) == (other, seen[1].cursor)


async def test_a_subscriber_that_stands_at_the_end(engine: Engine) -> None:
    """What it has read is all there."""
    events = await engine.subscribe_completion(cursor_at(0))
    await finished(engine)
    await finished(engine)
    await take(events, 2)
    await finished(engine)
    await lose_events(engine, CompletionEvent, 2)
    eid = await finished(engine)
    assert [event.execution_id for event in await take(events, 1)] == [eid]


async def test_deleting_while_somebody_follows(engine: Engine, clock: ManualClock) -> None:
    """Whatever the moment: each event once, in order, or the word that some are gone."""
    begin = await now(engine, "lease_history")
    await many_finished(engine, 500)
    clock.advance(8 * DAY_MS)
    await many_finished(engine, 100, "young")
    events = await engine.subscribe_lease_history(begin)
    found: list[int] = []

    async def follow() -> bytes:
        try:
            async for event in events:
                found.append(event_id_of(event.cursor))
                if found[-1] == 1_200:
                    break
                await asyncio.sleep(0)
        except StreamGap as gap:
            return gap.oldest
        return cursor_at(1_000)

    task = asyncio.create_task(follow())
    await trim(engine)
    async with asyncio.timeout(LONG_S):
        oldest = await task
    assert found == list(range(1, len(found) + 1))
    assert [event_id_of(event.cursor) for event in await rest(engine, "lease_history", oldest)] == list(
        range(1_001, 1_201)
    )
