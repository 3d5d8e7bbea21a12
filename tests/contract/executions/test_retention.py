"""Retention: what ended long ago goes with everything that is its own, and history by its own age."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import Created, DurableSummary, Frame, ScannerFilter, Validation, ValidationKind
from flowfabric.core.executions.retention import TrimExecution
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent
from flowfabric.model.ids import ExecutionId
from flowfabric.model.records.executions import Binding, Grant, Suspension, Waitpoint, WorkerEvent
from flowfabric.model.records.flows import CancelBacklogMember
from tests.contract import seeding
from tests.contract.probe import ManualClock, Probe, claimed, create, id_of, needing, policy, refused, unchanged

LANE = "lane"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS


async def ended(engine: Engine, **arguments: Any) -> ExecutionId:
    handle = await claimed(engine, **{"lane_id": LANE, **arguments})
    await engine.complete(handle, b"result")
    return id_of(handle)


async def there(engine: Engine, *ids: ExecutionId) -> list[bool]:
    return [await engine.read_execution_state(eid) is not None for eid in ids]


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled", "expired"])
async def test_every_end_ages(engine: Engine, probe: Probe, clock: ManualClock, how: str) -> None:
    handle = await claimed(engine, lane_id=LANE, execution_deadline_at=clock.now_ms + 5)
    eid = id_of(handle)
    if how == "completed":
        await engine.complete(handle, None)
    elif how == "failed":
        await engine.fail(handle, "boom", "permanent")
    elif how == "cancelled":
        await engine.cancel_execution(execution_id=eid)
    else:
        clock.advance(5)
        await engine.run_timer("execution_deadline")
    clock.advance(999)
    async with unchanged(probe):
        assert await engine.trim_retention(retention_ms=1_000) == 0
    clock.advance(1)
    assert await engine.trim_retention(retention_ms=1_000) == 1
    assert await there(engine, eid) == [False]


async def test_what_has_not_ended_stays(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await create(engine, lane_id="fresh")
    await create(engine, lane_id="delayed", delay_until=2**60)
    await claimed(engine, lane_id="running", ttl_ms=2**32 - 1)
    handle = await claimed(engine, lane_id="retried")
    await engine.fail(handle, "boom")
    replayed = await ended(engine, lane_id="replayed")
    await engine.replay_execution(execution_id=replayed)
    clock.advance(10 * DAY_MS)
    async with unchanged(probe):
        assert await engine.trim_retention(retention_ms=0) == 0


async def test_everything_of_its_own_goes(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await engine.create_execution(lane_id=LANE, idempotency_key="another", namespace="tenant")
    before = await probe.snapshot()
    eid = await create(
        engine,
        lane_id="wide",
        namespace="tenant",
        idempotency_key="key",
        policy=needing("gpu", "arm64"),
        tags={"cairn.instance_id": "i"},
    )
    handle = await engine.claim("wide", ("gpu", "arm64"), policy())
    assert handle is not None
    await engine.append_frame(handle, Frame(b"line"))
    await engine.append_frame(handle, Frame(b'{"a": 1}', mode=DurableSummary()))
    await engine.fail(handle, "boom")
    again = await engine.claim("wide", ("gpu", "arm64"), policy())
    assert again is not None
    await engine.complete(again, b"result")
    where = (eid.partition, eid.uuid_text)
    grant = (eid.partition, b"g" * 32, eid.uuid_text, "reclaim", "w", "i", LANE, None, "[]", None, None)
    await seeding.seed(
        engine,
        Grant(*grant, 5_000, 1, 2),
        Suspension(*where, str(uuid4()), 1, None, "left over"),
        Waitpoint(where[0], str(uuid4()), where[1], "closed", 1, "expired"),
        CancelBacklogMember(where[0], str(uuid4()), str.__str__(eid)),
    )
    clock.advance(DAY_MS)
    assert await engine.trim_retention() == 1
    after = await probe.snapshot()
    # A lane stays known, and outboxes and idempotency keys age on their own.
    changed = {table for table, rows in before.items() if after[table] != rows} - {"others"}
    events = {"ff_lease_event", "ff_completion_event", "ff_instance_tag_event"}
    assert changed == {"ff_lane_registry", "ff_exec_idempotency", *events}
    assert await probe.lease_events(eid) == ["acquired", "revoked", "acquired", "revoked"]
    assert await engine.describe_execution(eid) is None
    assert await engine.get_execution_result(eid) is None
    assert isinstance(await engine.create_execution(execution_id=eid, lane_id="wide"), Created)
    assert isinstance(await engine.create_execution(namespace="tenant", idempotency_key="key"), Created)


async def test_created_again_in_the_same_commit(open_engine: Callable[..., Any]) -> None:
    """Nothing of the old one shows in the new one."""
    engine: Engine = await open_engine()
    engine._batcher._parallel = 1
    eid = await ended(engine, policy={"retry_policy": {"max_retries": 1}}, tags={"a": "b"}, input_payload=b"old")
    calls = (engine._submit(TrimExecution(eid, 0)), engine.create_execution(execution_id=eid, lane_id=LANE))
    trimmed, made = await asyncio.gather(*calls)
    assert (trimmed, type(made)) == (True, Created)
    assert await engine.get_execution_result(eid) is None
    context = await engine.read_execution_context(eid)
    assert (context.input_payload, context.tags) == (b"", {})
    handle = await engine.claim(LANE, (), policy())
    assert handle is not None
    assert id_of(handle) == eid
    snapshot = await engine.describe_execution(eid)
    assert snapshot is not None
    assert snapshot.current_attempt is not None
    assert snapshot.current_attempt.attempt_index == 0
    await engine.complete(handle, None)
    assert await engine.get_execution_result(eid) is None


async def test_the_oldest_first(engine: Engine, clock: ManualClock) -> None:
    made = []
    for lane in ("a", "b", "c", "d"):
        made.append(await ended(engine, lane_id=lane))
        clock.advance(1)
    clock.advance(DAY_MS)
    assert await engine.trim_retention(batch_size=3) == 3
    assert await there(engine, *made) == [False, False, False, True]
    assert await engine.trim_retention(batch_size=3) == 1
    assert await engine.trim_retention(batch_size=3) == 0


async def test_age_is_counted_from_the_end(engine: Engine, clock: ManualClock) -> None:
    slow = await claimed(engine, lane_id=LANE, ttl_ms=2**32 - 1)
    clock.advance(HOUR_MS)
    quick = await ended(engine)
    clock.advance(HOUR_MS)
    await engine.complete(slow, None)
    clock.advance(HOUR_MS)
    assert await engine.trim_retention(retention_ms=2 * HOUR_MS) == 1
    assert await there(engine, id_of(slow), quick) == [True, False]


async def test_a_batch_has_a_limit(engine: Engine, clock: ManualClock) -> None:
    await engine.create_executions([{"lane_id": LANE}] * 25)
    for handle in await engine.claim_many(LANE, (), policy(), 25):
        await engine.complete(handle, None)
    clock.advance(DAY_MS)
    assert await engine.run_timer("retention_trimmer", 20) == 20
    assert await engine.run_timer("retention_trimmer", 20) == 5


async def test_the_pulse_says_how_late_it_is(engine: Engine, clock: ManualClock) -> None:
    await ended(engine)
    await ended(engine, policy={"stream_policy": {"retention_ttl_ms": HOUR_MS}})
    assert (await engine.read_pulse()).retention_late_ms == 0
    clock.advance(DAY_MS + 5_000)
    assert (await engine.read_pulse()).retention_late_ms == DAY_MS + 5_000 - HOUR_MS
    clock.advance(60_000)
    await engine.run_timer("retention_trimmer", 1)
    assert (await engine.read_pulse()).retention_late_ms == 65_000
    clock.advance(60_000)
    await engine.run_timer("retention_trimmer")
    assert (await engine.read_pulse()).retention_late_ms == 0


async def test_one_lane_partition_or_filter(engine: Engine, clock: ManualClock) -> None:
    one = await ended(engine, lane_id="one", namespace="a", tags={"zone.name": "x"})
    two = await ended(engine, lane_id="two", namespace="b", tags={"zone.name": "y"})
    clock.advance(DAY_MS)
    assert await engine.trim_retention(lane="three") == 0
    assert await engine.trim_retention(partition=max(one.partition, two.partition) + 1) == 0
    assert await engine.trim_retention(filter=ScannerFilter(namespace="c")) == 0
    assert await engine.trim_retention(filter=ScannerFilter(namespace="a", instance_tag=("zone.name", "y"))) == 0
    assert await engine.trim_retention(filter=ScannerFilter(instance_tag=("zone.name", "y"))) == 1
    assert await there(engine, one, two) == [True, False]
    assert await engine.trim_retention(partition=one.partition, lane="one", filter=ScannerFilter("a")) == 1


async def test_a_policy_may_keep_it_longer(engine: Engine, clock: ManualClock) -> None:
    kept = await ended(engine, policy={"stream_policy": {"retention_ttl_ms": 3 * DAY_MS}})
    plain = await ended(engine)
    clock.advance(2 * DAY_MS)
    assert await engine.trim_retention() == 1
    assert await there(engine, kept, plain) == [True, False]
    clock.advance(DAY_MS)
    assert await engine.trim_retention() == 1


@pytest.mark.parametrize(
    ("state", "purged"), [("open", 0), ("running", 0), ("blocked", 0), ("completed", 1), ("cancelled", 1), (None, 1)]
)
async def test_members_stay_while_their_flow_is_open(
    engine: Engine, clock: ManualClock, state: str | None, purged: int
) -> None:
    flow = seeding.flow_of(engine, state or "open")
    if state is not None:
        await seeding.seed(engine, flow)
    eid = await seeding.member(engine, flow)
    handle = await engine.claim(seeding.lane_of(eid), (), policy())
    assert handle is not None
    await engine.complete(handle, None)
    clock.advance(DAY_MS)
    assert await engine.trim_retention() == purged


async def test_bad_figures(engine: Engine, probe: Probe) -> None:
    await ended(engine)
    for bad in ({"batch_size": 0}, {"retention_ms": "a day"}):
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
            await engine.trim_retention(**bad)


# -------------------------------------------------------------------------------------------------------------- history


async def test_history_goes_by_its_own_age(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Seven days for events, the window for idempotency keys, whatever became of the execution."""
    eid = await create(
        engine,
        lane_id=LANE,
        idempotency_key="short",
        policy={"dedup_window_ms": 1},
        tags={"cairn.instance_id": "i"},
    )
    await create(engine, lane_id="other", idempotency_key="long", policy={"dedup_window_ms": 30 * DAY_MS})
    handle = await engine.claim(LANE, (), policy())
    assert handle is not None
    await engine.complete(handle, None)
    await engine.replay_execution(execution_id=eid)
    await engine.register_worker(worker_id="w", worker_instance_id="i", lanes=[LANE], liveness_ttl_ms=2**32 - 1)
    outboxes = (LeaseEvent, CompletionEvent, OperatorEvent, InstanceTagEvent)
    clock.advance(WEEK_MS)
    await engine.heartbeat_worker(worker_instance_id="i")
    await engine.run_timer("retention_trimmer")
    assert [len(await probe.events(kind)) for kind in outboxes] == [2, 1, 1, 1]
    assert [each.idempotency_key for each in await probe.select(Binding, namespace="default")] == ["long"]
    clock.advance(1)
    await engine.run_timer("retention_trimmer")
    assert [len(await probe.events(kind)) for kind in outboxes] == [0, 0, 0, 0]
    assert [each.event_kind for each in await probe.select(WorkerEvent, namespace="default")] == ["heartbeat"]
    assert await there(engine, eid) == [True]


async def test_what_waits_for_dispatch_is_no_history(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """A member's completion stays until its downstream edges are resolved, however old it is."""
    flow = seeding.flow_of(engine)
    await seeding.seed(engine, flow)
    member = await seeding.member(engine, flow)
    handle = await engine.claim(seeding.lane_of(member), (), policy())
    assert handle is not None
    await engine.complete(handle, None)
    [event] = await probe.events(CompletionEvent)
    clock.advance(2 * WEEK_MS)
    await engine.run_timer("retention_trimmer")
    assert await probe.events(CompletionEvent) == ([event] if event.dispatched_at_ms is None else [])
