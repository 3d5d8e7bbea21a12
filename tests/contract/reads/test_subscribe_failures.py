"""What goes wrong while events are followed: a store out of reach, rows that cannot be read, types nobody knows."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import EngineError, StreamDisconnected, Transport, TransportKind, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.engine.reads import subscriptions as subject
from flowfabric.model.events import InstanceTagEvent, LeaseEvent, OperatorEvent, SignalEvent
from flowfabric.model.reads.subscriptions import cursor_at
from flowfabric.stores.protocol import Conflict
from tests.contract.probe import claimed
from tests.contract.subscribing import LONG_S, finished, names, publish, rest, take


class Flaky:
    """A feed that fails now and then."""

    def __init__(self, feed: Any, failures: list[Exception]) -> None:
        self._feed = feed
        self.failures = failures
        self.calls = 0

    async def page(self, after: int, limit: int) -> Any:
        self.calls += 1
        if self.failures:
            raise self.failures.pop()
        return await self._feed.page(after, limit)


def lost() -> Exception:
    return Transport("store", TransportKind.TRANSPORT, "gone")


#: How long is waited in earnest, and how often.
IN_EARNEST = (subject.RETRY_FIRST_S, subject.RETRY_LAST_S, subject.RETRIES)


def test_the_pauses() -> None:
    assert IN_EARNEST == (0.2, 5.0, 10)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses, a hundred times shorter."""
    monkeypatch.setattr(subject, "RETRY_FIRST_S", 0.002)
    monkeypatch.setattr(subject, "RETRY_LAST_S", 0.05)


@pytest.mark.parametrize("failure", [lost(), Conflict("busy")], ids=["transport", "busy"])
async def test_an_interruption_is_not_noticed(engine: Engine, failure: Exception) -> None:
    events = await engine.subscribe_completion()
    made = [await finished(engine) for _ in range(2)]
    events._feed = flaky = Flaky(events._feed, [failure] * (subject.RETRIES - 1))
    assert [event.execution_id for event in await take(events, 2)] == made
    # A success forgets the failures before it.
    flaky.failures += [failure] * (subject.RETRIES - 1)
    eid = await finished(engine)
    assert [event.execution_id for event in await take(events, 1)] == [eid]


async def test_one_that_lasts_is(engine: Engine) -> None:
    events = await engine.subscribe_completion()
    made = [await finished(engine) for _ in range(2)]
    await take(events, 2)
    events._feed = flaky = Flaky(events._feed, [lost() for _ in range(100)])
    with pytest.raises(StreamDisconnected) as caught:
        await take(events, 1)
    assert flaky.calls == subject.RETRIES == 10
    assert caught.value.cursor == cursor_at(2)
    assert isinstance(caught.value.__cause__, Transport)
    assert [event async for event in events] == []
    resumed = await engine.subscribe_completion(caught.value.cursor)
    made.append(await finished(engine))
    assert [event.execution_id for event in await take(resumed, 1)] == made[2:]


async def test_closing_during_an_interruption(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "RETRY_LAST_S", 3_600)
    events = await engine.subscribe_completion()
    events._feed = Flaky(events._feed, [lost() for _ in range(9)])
    waiting = asyncio.create_task(anext(events, "end"))
    await asyncio.sleep(0.05)
    await events.aclose()
    async with asyncio.timeout(LONG_S):
        assert await waiting == "end"


async def test_a_store_out_of_reach_at_the_beginning(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def query(question: Any) -> Any:
        raise lost()

    async def fetch(*arguments: Any) -> Any:
        raise lost()

    monkeypatch.setattr(engine.store, "query", query)
    monkeypatch.setattr(engine.store, "_fetch", fetch, raising=False)
    for cursor in (b"", cursor_at(0)):
        with pytest.raises(Transport):
            await engine.subscribe_completion(cursor)


# -- rows that cannot be read --------------------------------------------------------------------------------------

#: The call, a row that cannot be read, and one that can.
UNREADABLE: dict[str, tuple[Any, Any]] = {
    "subscribe_lease_history": (
        LeaseEvent(7, "no id", None, "acquired", 5, None, None),
        LeaseEvent(7, str(uuid4()), None, "acquired", 5, None, None),
    ),
    "subscribe_signal_delivery": (
        SignalEvent(7, "no id", "s", None, None, 5, None, None, "satisfied"),
        SignalEvent(7, str(uuid4()), "s", None, None, 5, None, None, "satisfied"),
    ),
    "subscribe_operator_event": (
        OperatorEvent(7, str(uuid4()), "replayed", "[]", 5, None, None),
        OperatorEvent(7, str(uuid4()), "replayed", None, 5, None, None),
    ),
    "subscribe_instance_tags": (
        InstanceTagEvent(70_000, str(uuid4()), "t", "attached", 5, None),
        InstanceTagEvent(7, str(uuid4()), "t", "attached", 5, None),
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_row_that_cannot_be_read_is_told_and_passed_over(engine: Engine, name: str) -> None:
    bad, good = UNREADABLE[name]
    told: list[EngineError] = []
    events = await getattr(engine, name)(on_gap=told.append)
    await publish(engine, good, bad, bad, good)
    assert [event.cursor for event in await take(events, 2)] == [cursor_at(1), cursor_at(4)]
    assert [type(error) for error in told] == [Validation, Validation]
    assert [error.kind for error in told] == [ValidationKind.CORRUPTION] * 2
    assert ["event_id=2:" in error.detail for error in told] == [True, False]
    assert "event_id=3:" in told[1].detail


@pytest.mark.parametrize("name", UNREADABLE)
async def test_strictly_it_is_raised(engine: Engine, name: str) -> None:
    bad, good = UNREADABLE[name]
    events = await getattr(engine, name)(strict=True, on_gap=lambda error: pytest.fail("told and raised"))
    await publish(engine, good, bad, good)
    assert [event.cursor for event in await take(events, 1)] == [cursor_at(1)]
    assert events.cursor == cursor_at(1)
    with pytest.raises(Validation) as caught:
        await take(events, 1)
    assert caught.value.kind is ValidationKind.CORRUPTION
    assert "event_id=2:" in caught.value.detail
    assert [event async for event in events] == []


async def test_without_anybody_to_tell_it_is_logged(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = UNREADABLE["subscribe_lease_history"]
    events = await engine.subscribe_lease_history()
    with caplog.at_level(logging.WARNING, "flowfabric.engine"):
        await publish(engine, bad, good)
        assert [event.cursor for event in await take(events, 1)] == [cursor_at(2)]
    assert "event_id=1" in caplog.text
    assert names(await rest(engine, "lease_history", cursor_at(0))) == ["Acquired"]


@pytest.mark.parametrize("blob", [b"short", b"x" * 17, "text", 5, 1.5])
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_ids_written_by_hand(engine: Engine, blob: Any) -> None:
    told: list[EngineError] = []
    events = await engine.subscribe_completion(on_gap=told.append)
    raw = engine.store.raw()
    raw.execute(
        "INSERT INTO ff_completion_event (partition_key, execution_id, outcome, occurred_at_ms) VALUES (0, ?, 'x', 5)",
        (blob,),
    )
    eid = await finished(engine)
    assert [event.execution_id for event in await take(events, 1)] == [eid]
    assert ["event_id=1:" in error.detail for error in told] == [True]


async def test_types_nobody_knows(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    told: list[EngineError] = []
    leases = await engine.subscribe_lease_history(on_gap=told.append, strict=True)
    tags = await engine.subscribe_instance_tags(on_gap=told.append, strict=True)
    with caplog.at_level(logging.WARNING, "flowfabric.engine"):
        await publish(engine, LeaseEvent(7, str(uuid4()), None, "teleported", 5, None, None))
        await publish(engine, InstanceTagEvent(7, str(uuid4()), "t", "teleported", 5, None))
        handle = await claimed(engine, tags={"cairn.instance_id": "t"})
        assert names(await take(leases, 1)) == ["Acquired"]
        assert names(await take(tags, 1)) == ["Attached"]
    assert caplog.text.count("teleported") == 2
    assert told == []
    assert handle is not None


async def test_a_callback_that_fails_is_heard_and_nothing_is_lost(engine: Engine) -> None:
    bad, good = UNREADABLE["subscribe_lease_history"]
    calls: list[EngineError] = []

    def once(error: EngineError) -> None:
        calls.append(error)
        if len(calls) == 1:
            raise KeyError("mine")

    events = await engine.subscribe_lease_history(on_gap=once)
    await publish(engine, good, bad, good)
    with pytest.raises(KeyError):
        await take(events, 1)
    assert [event.cursor for event in await take(events, 2)] == [cursor_at(1), cursor_at(3)]
