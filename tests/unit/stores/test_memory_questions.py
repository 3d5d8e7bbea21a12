"""The memory store: what can be asked of it, streams, events and purges."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.model import states as lit
from flowfabric.model.decisions import (
    Change,
    Drop,
    PurgeExecution,
    TrimStream,
    change,
)
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent
from flowfabric.model.records.executions import (
    Attempt,
    Binding,
    Execution,
    Lane,
    Suspension,
    Waitpoint,
    Worker,
    WorkerEvent,
)
from flowfabric.model.records.flows import CancelBacklogMember
from flowfabric.model.records.streams import FrameRow, StreamHead, StreamSummary
from flowfabric.stores import questions as ask
from flowfabric.stores.memory import MemoryStore
from tests.unit.stores.memory_rows import (
    FLOW,
    NOW,
    attempt,
    commit,
    due,
    execution,
    find,
    frame,
    grant,
    head,
    lease_event,
    running,
    select,
    uuid_of,
    wire,
    worker,
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=lambda: NOW)


# ------------------------------------------------------------------------------------------------------------ questions


async def test_listing_executions_and_lanes(store: MemoryStore) -> None:
    await commit(store, *(execution(number, 1) for number in (3, 1, 2)), execution(4, 2), Lane("b", 1, "x"))
    await commit(store, Lane("a", 1, "x"), Lane("ab", 1, "x"))
    assert await store.query(ask.ListExecutions(1, None, 2)) == [wire(1, 1), wire(2, 1)]
    assert await store.query(ask.ListExecutions(1, uuid_of(1), 9)) == [wire(2, 1), wire(3, 1)]
    assert await store.query(ask.ListExecutions(3, None, 9)) == []
    assert [lane.lane_id for lane in await store.query(ask.ListLanes(None, 2))] == ["a", "ab"]
    assert [lane.lane_id for lane in await store.query(ask.ListLanes("a", 9))] == ["ab", "b"]
    await commit(store, change(execution(1, 1), lifecycle_phase=lit.ACTIVE), execution(5, lane_id="z"))
    assert await store.query(ask.CountRows()) == {lit.RUNNABLE: 4, lit.ACTIVE: 1}


async def test_listing_suspensions(store: MemoryStore) -> None:
    rows = [Suspension(1, uuid_of(n), uuid_of(90 + n), at, None, why) for n, at, why in ((1, 9, "x"), (2, 5, None))]
    await commit(store, *rows, Suspension(1, uuid_of(3), uuid_of(93), 9, None, "y"))
    await commit(store, Suspension(2, uuid_of(4), uuid_of(94), 1, None, "z"))

    async def page(after: str | None, limit: int = 9) -> list[Any]:
        return [tuple(row[1:]) for row in await store.query(ask.ListSuspended(1, after, limit))]

    first = (await store.query(ask.ListSuspended(1, None, 1)))[0]
    assert first == (wire(2, 1), 5, "")
    assert await page(None) == [(5, ""), (9, "x"), (9, "y")]
    assert await page(None, 1) == [(5, "")]
    assert await page(uuid_of(2)) == [(9, "x"), (9, "y")]
    assert await page(uuid_of(1)) == [(9, "y")]
    await commit(store, Drop(rows[0]))
    assert await page(uuid_of(1)) == [(5, ""), (9, "y")]


async def test_workers(store: MemoryStore) -> None:
    await commit(store, worker("b", NOW - 9), worker("a", NOW - 10), worker("c", NOW), worker("d", NOW, "tenant"))

    def instances(workers: list[Worker]) -> list[str]:
        return [each.worker_instance_id for each in workers]

    assert instances(await store.query(ask.ListWorkers("main", None, 9, NOW))) == ["b", "c"]
    assert instances(await store.query(ask.ListWorkers("main", "b", 9, NOW))) == ["c"]
    assert instances(await store.query(ask.ListWorkers("main", None, 1, NOW))) == ["b"]
    assert instances(await store.query(ask.LiveWorkers(NOW, 9))) == ["b", "c", "d"]
    assert await store.query(ask.DueWorkers(NOW, 9)) == [("main", "a")]


async def test_expired_leases(store: MemoryStore) -> None:
    leased: dict[str, Any] = {"worker_instance_id": "w-1", "lease_expires_at_ms": NOW}
    await commit(
        store,
        running(1, attempt_index=1),
        attempt(1, 0, lease_epoch=6, **leased),
        attempt(1, 1, **leased),
        running(2, namespace="tenant"),
        attempt(2, **leased),
        running(3),
        attempt(3, worker_instance_id="w-1", lease_expires_at_ms=NOW - 5),
        running(4),
        attempt(4, worker_instance_id="", lease_expires_at_ms=NOW - 5),
        running(5),
        attempt(5, worker_instance_id="w-1", lease_expires_at_ms=NOW + 1),
        execution(6),
        attempt(6, **leased),
    )

    async def page(**fields: Any) -> list[str]:
        plain = {"as_of": NOW, "after_ms": None, "after_id": None, "limit": 9, "namespace": None}
        rows = await store.query(ask.ListExpiredLeases(**(plain | fields)))
        assert all(core.execution_id == held.execution_id for core, held in rows)
        assert all(core.attempt_index == held.attempt_index for core, held in rows)
        return [core.execution_id for core, _ in rows]

    assert await page() == [wire(3), wire(1), wire(2)]
    assert await page(limit=1) == [wire(3)]
    assert await page(after_ms=NOW - 5, after_id=wire(3)) == [wire(1), wire(2)]
    assert await page(after_ms=NOW, after_id=wire(1)) == [wire(2)]
    assert await page(namespace="tenant") == [wire(2)]
    rows = await store.query(ask.ListExpiredLeases(NOW, NOW - 5, wire(3), 1, None))
    assert rows[0][0].epoch_floor == 6


async def test_due_by_state_and_time(store: MemoryStore) -> None:
    ended: dict[str, Any] = {"lifecycle_phase": lit.TERMINAL, "eligibility_state": lit.NOT_APPLICABLE}
    await commit(
        store,
        execution(1, lifecycle_phase=lit.SUBMITTED, created_at_ms=9),
        execution(2, lifecycle_phase=lit.SUBMITTED, created_at_ms=3, delay_until_ms=NOW),
        execution(3, delay_until_ms=NOW - 1, deadline_at_ms=NOW),
        execution(4, delay_until_ms=NOW + 1, deadline_at_ms=NOW + 1),
        execution(5, deadline_at_ms=NOW - 3),
        execution(6, deadline_at_ms=NOW - 9, terminal_at_ms=NOW, **ended),
        execution(7, lane_id="other", terminal_at_ms=NOW - 4, **ended),
        execution(8, terminal_at_ms=NOW + 1, **ended),
        execution(9, eligibility_state=lit.BLOCKED_BY_ROUTE, created_at_ms=8),
        execution(10, eligibility_state=lit.BLOCKED_BY_ROUTE, created_at_ms=2),
        execution(11, eligibility_state=lit.BLOCKED_BY_QUOTA, created_at_ms=1),
        grant(1, b"a", NOW),
        grant(2, b"b", NOW - 5),
        grant(2, b"c", NOW),
        grant(3, b"d", NOW + 1),
        grant(4, b"e", 0),
        grant(5, b"f", NOW, lit.GRANT_RECLAIM),
        grant(99, b"g", NOW),
    )
    assert await due(store, "intake") == [wire(2), wire(1)]
    assert await due(store, "delayed_promoter") == [wire(3), wire(2)]
    assert await due(store, "execution_deadline") == [wire(5), wire(3)]
    assert await due(store, "retention") == [wire(7), wire(6)]
    assert await due(store, "retention", lane_id="other") == [wire(7)]
    assert await due(store, "retention", now=NOW - 1) == [wire(7)]
    assert await due(store, "unblock") == [wire(10), wire(9)]
    assert await due(store, "grant_sweep") == [wire(2), wire(1)]
    assert await due(store, "grant_sweep", limit=1) == [wire(2)]
    with pytest.raises(ValueError, match="nonsense"):
        await due(store, "nonsense")


async def test_due_attempts_are_the_current_ones(store: MemoryStore) -> None:
    await commit(
        store,
        running(1, attempt_index=1),
        attempt(1, 0, lease_expires_at_ms=NOW - 9, attempt_timeout_at_ms=NOW - 9),
        attempt(1, 1, lease_expires_at_ms=NOW, attempt_timeout_at_ms=NOW - 1),
        running(2),
        attempt(2, lease_expires_at_ms=NOW - 1, attempt_timeout_at_ms=NOW),
        running(3),
        attempt(3, lease_expires_at_ms=NOW + 1, attempt_timeout_at_ms=NOW + 1),
        attempt(4, lease_expires_at_ms=NOW - 20, attempt_timeout_at_ms=NOW - 20),
    )
    assert await due(store, "lease_expiry") == [wire(2), wire(1)]
    assert await due(store, "attempt_timeout") == [wire(1), wire(2)]
    assert await store.query(ask.NextDue()) == NOW - 1


async def test_due_filters(store: MemoryStore) -> None:
    def submitted(number: int, partition: int = 0, **fields: Any) -> Execution:
        return execution(number, partition, lifecycle_phase=lit.SUBMITTED, created_at_ms=number, **fields)

    await commit(
        store,
        submitted(1, raw_fields='{"tags":{"team":"red"}}'),
        submitted(2, namespace="tenant", raw_fields='{"tags":{"team":"blue"}}'),
        submitted(3, 1, lane_id="other", raw_fields='{"tags":null}'),
        submitted(4, raw_fields="[1]"),
        submitted(5, raw_fields="no document"),
        submitted(6, namespace=None),
    )
    assert len(await due(store, "intake")) == 6
    assert await due(store, "intake", limit=2) == [wire(1), wire(2)]
    assert await due(store, "intake", limit=2, skip=frozenset({wire(1)})) == [wire(2), wire(3, 1)]
    assert await due(store, "intake", namespace="tenant") == [wire(2)]
    assert await due(store, "intake", lane_id="other") == [wire(3, 1)]
    assert await due(store, "intake", partition=1) == [wire(3, 1)]
    assert await due(store, "intake", tag=("team", "red")) == [wire(1)]
    assert await due(store, "intake", tag=("team", "green")) == []
    assert await due(store, "intake", limit=0) == []


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ((), None),
        ((execution(1, delay_until_ms=7), execution(2, delay_until_ms=5)), 5),
        ((execution(1, deadline_at_ms=7), execution(2, deadline_at_ms=5, terminal_at_ms=6)), 7),
        ((running(1, 1), attempt(1, 0, lease_expires_at_ms=2), attempt(1, 1, lease_expires_at_ms=8)), 8),
        ((running(1), attempt(1, attempt_timeout_at_ms=3, lease_expires_at_ms=4)), 3),
    ],
)
async def test_what_falls_due_next(store: MemoryStore, records: tuple[Any, ...], expected: int | None) -> None:
    await commit(store, *records)
    assert await store.query(ask.NextDue()) == expected


async def test_scanning_the_queue(store: MemoryStore) -> None:
    await commit(store, execution(1), execution(2, 1, priority=3, required_capabilities=("gpu",)), execution(3, 1))
    assert await store.query(ask.ScanEligible("default", None, 9, NOW)) == [wire(2, 1), wire(1), wire(3, 1)]
    assert await store.query(ask.ScanEligible("default", 1, 9, NOW)) == [wire(2, 1), wire(3, 1)]
    assert await store.query(ask.ScanEligible("default", None, 1, NOW)) == [wire(2, 1)]


# -------------------------------------------------------------------------------------------------------------- streams


async def test_reading_frames(store: MemoryStore) -> None:
    await commit(
        store,
        *(frame(1, 0, ts, seq) for ts, seq in ((5, 0), (5, 1), (6, 0))),
        frame(1, 0, 7, 0, "best_effort"),
        frame(1, 1, 5, 0),
        frame(2, 0, 5, 0),
    )

    async def page(low: tuple[int, int], high: tuple[int, int], limit: int = 9, **fields: Any) -> list[Any]:
        rows = await store.query(ask.ReadFrames(0, uuid_of(1), 0, low, high, limit, **fields))
        return [row[:2] for row in rows]

    everything = ((0, 0), (2**63, 2**63))
    assert await page(*everything) == [(5, 0), (5, 1), (6, 0), (7, 0)]
    assert await page(*everything, limit=2) == [(5, 0), (5, 1)]
    assert await page((5, 1), (6, 0)) == [(5, 1), (6, 0)]
    assert await page(*everything, exclude_mode="best_effort") == [(5, 0), (5, 1), (6, 0)]
    assert await page((9, 0), (1, 0)) == []
    row = (await store.query(ask.ReadFrames(0, uuid_of(1), 0, (7, 0), (7, 0), 1)))[0]
    assert row == (7, 0, '{"n":7}', "best_effort")


async def test_a_stream_head_counts_as_stored_once_inserted(store: MemoryStore) -> None:
    assert await find(store, StreamHead, (wire(1), 0)) is None
    await commit(store, head(1, frame_count=1))
    stored = await find(store, StreamHead, (wire(1), 0))
    assert stored.stored
    await commit(store, change(stored, frame_count=2))
    assert await find(store, StreamHead, (wire(1), 0)) == replace(stored, frame_count=2)


async def test_trimming_keeps_the_newest_frames(store: MemoryStore) -> None:
    await commit(store, head(1, frame_count=4), *(frame(1, 0, ts, 0) for ts in range(4)))
    await commit(store, head(1, 1, frame_count=1), frame(1, 1, 9, 0))

    async def left(attempt_index: int = 0) -> list[int]:
        question = ask.ReadFrames(0, uuid_of(1), attempt_index, (0, 0), (99, 0), 99)
        return [row[0] for row in await store.query(question)]

    trim = TrimStream(wire(1), 0)
    await commit(store, trim)
    assert await left() == [0, 1, 2, 3]
    await commit(store, frame(1, 0, 4, 0), change(head(1), frame_count=3), trim)
    assert await left() == [2, 3, 4]
    assert await left(1) == [9]
    await commit(store, TrimStream(wire(8), 0))


# --------------------------------------------------------------------------------------------------------------- events


async def test_events_are_numbered_by_kind(store: MemoryStore) -> None:
    await commit(store, events=(lease_event(1), CompletionEvent(0, uuid_of(1), None, "success", None, None, 1, 1)))
    await commit(store, events=(lease_event(2), lease_event(3)))
    assert [(event_id, event.occurred_at_ms) for event_id, event in store.events(LeaseEvent)] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]
    assert [event_id for event_id, _ in store.events(LeaseEvent, after=1)] == [2, 3]
    assert [event_id for event_id, _ in store.events(CompletionEvent)] == [1]
    assert not store.events(OperatorEvent)
    assert not store.events(InstanceTagEvent)


async def test_history_is_trimmed_by_age(store: MemoryStore) -> None:
    def completion(at: int, dispatched_at_ms: int | None) -> CompletionEvent:
        return CompletionEvent(0, uuid_of(1), None, "success", None, None, at, dispatched_at_ms)

    await commit(
        store,
        *(WorkerEvent("main", "w-1", "heartbeat", at, None) for at in (1, 5, 6)),
        *(Binding("main", str(at), 0, uuid_of(at), 0, at) for at in (NOW - 1, NOW, NOW + 1)),
        events=(lease_event(9), lease_event(10), lease_event(3), completion(1, 1), completion(1, None)),
    )
    assert await store.query(ask.TrimHistory(10, 6, NOW, 1)) == 4
    store.check_indexes()
    assert await store.query(ask.TrimHistory(10, 6, NOW, 100)) == 3
    assert await store.query(ask.TrimHistory(10, 6, NOW, 100)) == 0
    store.check_indexes()
    assert [event_id for event_id, _ in store.events(LeaseEvent)] == [2]
    assert [event.dispatched_at_ms for _, event in store.events(CompletionEvent)] == [None]
    assert [each.event_at_ms for each in await select(store, WorkerEvent, namespace="main")] == [6]
    assert [each.expires_at_ms for each in await select(store, Binding, namespace="main")] == [NOW + 1]
    await commit(store, events=(lease_event(20),))
    assert [event_id for event_id, _ in store.events(LeaseEvent)] == [2, 4]


async def test_nobody_else_is_heard(store: MemoryStore) -> None:
    store.publish(["lane:default"])

    async def listen() -> list[str | None]:
        return [topic async for topic in store.heard()]

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    assert not listening.done()
    await store.close()
    assert await listening == []
    assert await listen() == []


# -------------------------------------------------------------------------------------------------------------- purging


def everything_of(number: int) -> list[Any]:
    uuid = uuid_of(number)
    return [
        execution(number, lifecycle_phase=lit.TERMINAL, terminal_at_ms=5, flow_id=FLOW),
        attempt(number, 0, lease_expires_at_ms=1),
        attempt(number, 1),
        grant(number, bytes([number]), NOW),
        frame(number, 0, 5, 0),
        frame(number, 1, 5, 0),
        head(number, 1, frame_count=1),
        StreamSummary(wire(number), 0, uuid, 1, "{}", 1, None, 5, 5),
        Suspension(0, uuid, uuid_of(900 + number), 5, None, None),
        Waitpoint(0, uuid_of(800 + number), uuid, "pending", None, None),
        CancelBacklogMember(0, FLOW, wire(number)),
    ]


def purge(number: int) -> PurgeExecution:
    return PurgeExecution(wire(number), 0, uuid_of(number))


async def test_a_purge_takes_everything_of_one_execution(store: MemoryStore) -> None:
    mine, others = everything_of(1), everything_of(2)
    await commit(store, *mine, *others)
    await commit(store, purge(1))
    assert [await find(store, type(record), record.key) for record in mine] == [None] * len(mine)
    assert None not in [await find(store, type(record), record.key) for record in others]
    await commit(store, purge(1))


async def test_an_idempotency_key_outlives_its_execution(store: MemoryStore) -> None:
    await commit(store, execution(1), Binding("main", "key-1", 0, uuid_of(1), 0, NOW))
    await commit(store, purge(1))
    assert await find(store, Binding, ("main", "key-1")) is not None


async def test_changes_made_before_a_purge_go_with_it(store: MemoryStore) -> None:
    rows = everything_of(1)
    await commit(store, *rows)
    late = (change(rows[0], priority=5), change(rows[1], lease_epoch=4), frame(1, 1, 6, 0), attempt(1, 2))
    await commit(store, *late, purge(1))
    assert [await find(store, type(record), record.key) for record in rows] == [None] * len(rows)
    assert await select(store, FrameRow, partition=0, uuid=uuid_of(1)) == []
    assert await find(store, Attempt, (wire(1), 2)) is None


async def test_an_execution_may_be_created_again_in_the_batch_that_purges_it(store: MemoryStore) -> None:
    rows = everything_of(1)
    await commit(store, *rows, Binding("main", "key-1", 0, uuid_of(1), 0, NOW))
    rebound = Change(Binding("main", "key-1", 0, uuid_of(2), 7, NOW + 9), ("uuid", "created_at_ms", "expires_at_ms"))
    await commit(store, purge(1), execution(1, priority=4), rebound)
    assert (await find(store, Execution, wire(1))).priority == 4
    assert await find(store, Attempt, (wire(1), 0)) is None
    assert (await find(store, Binding, ("main", "key-1"))).uuid == uuid_of(2)
