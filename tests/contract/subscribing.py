"""Help for tests that follow events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

from flowfabric import CompletionOutcome, ExecutionId
from flowfabric.core.batch.view import View
from flowfabric.engine import Engine
from flowfabric.engine.record_cache import HeldRecords
from flowfabric.model.decisions import Decision
from flowfabric.model.events import Event
from tests.contract.probe import claimed, id_of, policy

#: How long a test waits for something that has to come. Only a failure takes this long.
LONG_S = 30
_EventType = TypeVar("_EventType")


async def take(events: AsyncIterator[_EventType], count: int) -> list[_EventType]:
    """The next events, each of which has to come."""
    async with asyncio.timeout(LONG_S):
        return [await anext(events) for _ in range(count)]


async def rest(engine: Engine, family: str, cursor: bytes, limit: int = 1_000) -> list[Any]:
    """Everything behind a cursor that is there now."""
    found: list[Any] = []
    while True:
        batch = await engine.read_events(family, cursor, limit=limit)
        found += batch.events
        cursor = batch.cursor
        if not batch.more:
            return found


async def now(engine: Engine, family: str) -> bytes:
    """The cursor that means "from now on"."""
    return (await engine.read_events(family)).cursor


async def publish(engine: Engine, *events: Event) -> None:
    """Write events as they are, without the change they tell of."""

    async def batch() -> None:
        view = View()
        view.fold(Decision(None, (), events))
        async with engine.store.transaction() as transaction:
            await transaction.load([], view)
            await transaction.commit(view.writes(), HeldRecords())

    await engine.store.run(batch)
    engine._events.stir()


async def finished(engine: Engine, **arguments: Any) -> ExecutionId:
    """A new execution that completed."""
    handle = await claimed(engine, **arguments)
    await engine.complete(handle, b"")
    return id_of(handle)


async def many_finished(engine: Engine, count: int, lane: str = "many", **arguments: Any) -> list[ExecutionId]:
    """Many executions that completed."""
    for start in range(0, count, 1_000):
        size = min(1_000, count - start)
        await engine.create_executions([{"lane_id": lane, **arguments}] * size)
    ids = []
    while len(ids) < count:
        handles = await engine.claim_many(lane, policy=policy(), limit=1_000)
        await asyncio.gather(*(engine.complete(handle) for handle in handles))
        ids += [id_of(handle) for handle in handles]
    return ids


def outcome_name(outcome: Any) -> str:
    """The variant's name, or the text of one that has none."""
    return outcome.text if isinstance(outcome, CompletionOutcome.Other) else type(outcome).__name__


def names(events: Iterable[Any]) -> list[str]:
    """The variants of events, in order."""
    return [type(event).__name__ for event in events]
