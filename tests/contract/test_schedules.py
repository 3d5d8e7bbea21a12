"""Schedules: kept, changed, paused, and exactly one start for each slot however many look after them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric import (
    AlreadySatisfied,
    CatchUp,
    Contention,
    Cron,
    Every,
    ExecutionId,
    FireResult,
    NotFound,
    Overlap,
    PutScheduleResult,
    ScannerFilter,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSnapshot,
    SkipReason,
    Validation,
)
from flowfabric.engine import Engine
from flowfabric.model.operations.schedules import slot_jitter_ms, slot_uuid
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.starts import Schedule
from tests.contract import seeding
from tests.contract.probe import START_MS, ManualClock, Probe, policy, refused, shared_stores_only, unchanged

HOUR = 3_600_000
#: The first whole hour behind the clock's start.
SLOT = START_MS - START_MS % HOUR + HOUR
HOURLY = {"spec": Every(HOUR), "execution_kind": "report", "lane_id": "lane"}
SOON_S = 20


async def put(engine: Engine, name: str = "s", **changes: Any) -> Any:
    return await engine.put_schedule(name, **{**HOURLY, **changes})


async def shown(engine: Engine, name: str = "s", namespace: str = "default") -> ScheduleSnapshot:
    found = await engine.get_schedule(name, namespace)
    assert found is not None
    return found


async def started(probe: Probe) -> list[Execution]:
    """Every execution of the lane, by slot."""
    found = await probe.select(Execution, lane_id="lane")
    rows = [await probe.execution(each.execution_id) for each in found]
    slots = [(int((await probe.raw_fields(row.execution_id))["tags"]["flowfabric.slot_ms"]), row) for row in rows]
    return [row for _, row in sorted(slots, key=lambda each: each[0])]


def due_at(clock: ManualClock, at_ms: int) -> None:
    clock.now_ms = at_ms


# -- keeping them --------------------------------------------------------------------------------------------------


async def test_a_schedule_is_kept(engine: Engine, clock: ManualClock) -> None:
    answer = await engine.put_schedule(
        "nightly",
        spec=Cron("0  6 * * mon-fri", "Europe/Paris"),
        execution_kind="report",
        namespace="n",
        lane_id="lane",
        input_payload=b"{}",
        payload_encoding="json",
        priority=5,
        tags={"team": "docs"},
        policy={"priority": 5, "routing_requirements": {"required_capabilities": ["gpu"]}},
        overlap="replace",
        catch_up=CatchUp.ALL,
        catch_up_limit=7,
        jitter_ms=1_000,
        source="text 1",
    )
    kept = await shown(engine, "nightly", "n")
    assert answer == PutScheduleResult.Created("nightly", kept.next_at_ms)
    assert kept.next_at_ms is not None
    assert kept.next_at_ms > clock.now_ms
    assert kept.spec == Cron("0 6 * * mon-fri", "Europe/Paris")
    assert (kept.overlap, kept.catch_up, kept.catch_up_limit) == (Overlap.REPLACE, CatchUp.ALL, 7)
    assert (kept.lane_id, kept.execution_kind, kept.input_payload, kept.payload_encoding) == (
        "lane", "report", b"{}", "json",
    )  # fmt: skip
    assert (kept.priority, kept.tags, kept.jitter_ms, kept.source) == (5, {"team": "docs"}, 1_000, "text 1")
    assert (kept.paused, kept.revision, kept.created_at_ms, kept.started_count) == (False, 1, clock.now_ms, 0)
    assert await engine.get_schedule("nightly") is None, "names belong to a namespace"


async def test_the_same_again_changes_nothing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    content = {"tags": {"b": "2", "a": "1"}, "policy": {"priority": 3, "dedup_window": None}}
    await put(engine, **content)
    clock.advance(2 * HOUR)
    async with unchanged(probe):
        assert await put(engine, **content) == PutScheduleResult.Unchanged("s", 1)


@pytest.mark.parametrize(
    "changes",
    [{"spec": Every(2 * HOUR)}, {"spec": Every(HOUR, 60_000)}, {"spec": Cron("0 * * * *")}, {"execution_kind": "other"},
     {"lane_id": "elsewhere"}, {"input_payload": b"x"}, {"input_payload": None}, {"priority": 1}, {"tags": {"a": "b"}},
     {"policy": {"priority": 1}}, {"overlap": "queue"}, {"catch_up": "none"}, {"catch_up_limit": 1}, {"jitter_ms": 1},
     {"payload_encoding": "json"}],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
async def test_a_change(engine: Engine, probe: Probe, clock: ManualClock, changes: dict[str, Any]) -> None:
    await put(engine)
    before = await shown(engine)
    clock.advance(10)
    answer = await put(engine, **changes)
    after = await shown(engine)
    assert answer == PutScheduleResult.Changed("s", 2, after.next_at_ms)
    assert (after.revision, after.updated_at_ms, after.created_at_ms) == (2, clock.now_ms, before.created_at_ms)
    for name, value in changes.items():
        assert name == "policy" or getattr(after, name) == value
    assert await put(engine, **changes) == PutScheduleResult.Unchanged("s", 2)


async def test_a_change_of_what_keeps_when(engine: Engine, clock: ManualClock) -> None:
    """A slot that is due and not started yet is not lost by a change of the payload, but by one of the times."""
    await put(engine)
    due_at(clock, SLOT + 5)
    await put(engine, input_payload=b"new")
    assert (await shown(engine)).next_at_ms == SLOT
    await put(engine, spec=Every(2 * HOUR))
    assert (await shown(engine)).next_at_ms > clock.now_ms


async def test_programs_do_not_undo_what_operators_change(engine: Engine, probe: Probe) -> None:
    await put(engine, source="one")
    await put(engine, spec=Every(5 * HOUR))
    async with unchanged(probe):
        assert await put(engine, source="one") == PutScheduleResult.Unchanged("s", 2)
    await engine.pause_schedule("s")
    answer = await put(engine, source="two", priority=1)
    assert answer == PutScheduleResult.Changed("s", 4, None), "a pause outlives a new program"
    after = await shown(engine)
    assert (after.spec, after.priority, after.paused, after.source) == (Every(HOUR), 1, True, "two")


async def test_pages(engine: Engine) -> None:
    for name in ("b", "a", "c", "ż"):
        await put(engine, name)
    await put(engine, "other", namespace="n")
    page = await engine.list_schedules(limit=3)
    assert ([each.schedule_id for each in page.schedules], page.next_cursor) == (["a", "b", "c"], "c")
    page = await engine.list_schedules(cursor=page.next_cursor, limit=3)
    assert ([each.schedule_id for each in page.schedules], page.next_cursor) == (["ż"], None)
    assert [each.schedule_id for each in (await engine.list_schedules("n")).schedules] == ["other"]
    assert (await engine.list_schedules(limit=0)).schedules == ()


async def test_pausing_and_resuming(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine)
    assert await engine.pause_schedule("s") == SchedulePaused("s", 2)
    assert await engine.pause_schedule("s") == AlreadySatisfied("schedule_is_paused")
    due_at(clock, SLOT + 10 * HOUR + 1)
    assert await engine.run_timer("schedules") == 0
    assert await engine.resume_schedule("s") == ScheduleResumed("s", 3, SLOT + 11 * HOUR)
    assert await engine.resume_schedule("s") == AlreadySatisfied("schedule_is_active")
    assert await engine.run_timer("schedules") == 0, "what passed is not caught up"
    due_at(clock, SLOT + 11 * HOUR)
    assert await engine.run_timer("schedules") == 1
    assert len(await started(probe)) == 1
    told = [what for what, _ in await probe.operator_events("s")]
    assert told == ["schedule_created", "schedule_paused", "schedule_resumed"]


async def test_deleting(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine)
    due_at(clock, SLOT)
    await engine.run_timer("schedules")
    assert await engine.delete_schedule("s") == ScheduleDeleted("s")
    assert await engine.delete_schedule("s") == AlreadySatisfied("schedule_is_gone")
    assert await engine.get_schedule("s") is None
    due_at(clock, SLOT + HOUR)
    assert await engine.run_timer("schedules") == 0
    assert len(await started(probe)) == 1, "what it started goes on"


@pytest.mark.parametrize("verb", ["pause_schedule", "resume_schedule", "trigger_schedule"])
async def test_what_is_not_there(engine: Engine, probe: Probe, verb: str) -> None:
    async with refused(probe, NotFound, "schedule"):
        await getattr(engine, verb)("s")
    async with refused(probe, NotFound, "schedule"):
        await engine.fire_schedule("s", SLOT, None)


async def test_operators_are_told_to_subscribers(engine: Engine) -> None:
    begin = (await engine.read_events("operator_event")).cursor
    await put(engine)
    [event] = (await engine.read_events("operator_event", begin)).events
    assert (event.event_type, event.schedule_id, event.execution_id) == ("schedule_created", "s", None)


# -- starting ------------------------------------------------------------------------------------------------------


async def test_a_slot_is_started(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine, input_payload=b"in", priority=7, tags={"team": "docs"}, policy={"priority": 7})
    due_at(clock, SLOT - 1)
    assert await engine.run_timer("schedules") == 0
    due_at(clock, SLOT)
    assert await engine.run_timer("schedules") == 1
    assert await engine.run_timer("schedules") == 0
    [row] = await started(probe)
    after = await shown(engine)
    assert row.uuid == slot_uuid("default", "s", SLOT)
    assert (after.next_at_ms, after.last_slot_ms, after.last_execution_id) == (SLOT + HOUR, SLOT, row.execution_id)
    assert (after.started_count, after.last_started_at_ms, after.revision) == (1, SLOT, 1)
    assert (row.payload, row.priority, row.namespace) == (b"in", 7, "default")
    document = await probe.raw_fields(row.execution_id)
    assert document["execution_kind"] == "report"
    assert document["tags"] == {"team": "docs", "flowfabric.schedule": "s", "flowfabric.slot_ms": str(SLOT)}
    handle = await engine.claim("lane", (), policy())
    assert handle is not None
    assert handle.execution_id == row.execution_id


async def test_firing_by_hand(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine, overlap="queue")
    due_at(clock, SLOT + 2 * HOUR)
    answer = await engine.fire_schedule("s", SLOT, SLOT + HOUR)
    assert isinstance(answer, FireResult.Started)
    assert (len(answer.execution_ids), answer.next_at_ms) == (1, SLOT + HOUR)
    async with unchanged(probe):
        assert await engine.fire_schedule("s", SLOT, SLOT + HOUR) == FireResult.NotDue(SLOT + HOUR)
    several = await engine.fire_schedule("s", SLOT + HOUR, SLOT + 3 * HOUR, starts=[SLOT + HOUR, SLOT + 2 * HOUR])
    assert isinstance(several, FireResult.Started)
    assert len(several.execution_ids) == 2
    async with unchanged(probe):
        assert await engine.fire_schedule("s", SLOT + 3 * HOUR, None) == FireResult.NotDue(SLOT + 3 * HOUR)
    assert len(await started(probe)) == 3


@pytest.mark.parametrize(
    ("following", "starts"),
    [(SLOT, None), (SLOT - 1, None), (SLOT + HOUR, [SLOT - 1]), (SLOT + HOUR, [SLOT + HOUR]), (None, [SLOT, SLOT]),
     (None, [SLOT + 2, SLOT + 1]), (None, [SLOT + 9 * HOUR])],
)  # fmt: skip
async def test_slots_that_cannot_be(
    engine: Engine, probe: Probe, clock: ManualClock, following: int | None, starts: list[int] | None
) -> None:
    await put(engine)
    due_at(clock, SLOT + 8 * HOUR)
    async with refused(probe, Validation):
        await engine.fire_schedule("s", SLOT, following, starts=starts)


async def test_a_slot_without_a_next_is_the_last(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine)
    due_at(clock, SLOT)
    await engine.fire_schedule("s", SLOT, None)
    assert (await shown(engine)).next_at_ms is None
    due_at(clock, SLOT + 9 * HOUR)
    assert await engine.run_timer("schedules") == 0


@pytest.mark.parametrize(
    ("catch_up", "limit", "expected"),
    [("none", 1, []), ("last", 1, [SLOT + 9 * HOUR]), ("all", 3, [SLOT + (7 + n) * HOUR for n in range(3)]),
     ("all", 100, [SLOT + n * HOUR for n in range(10)])],
)  # fmt: skip
async def test_catching_up(
    engine: Engine, probe: Probe, clock: ManualClock, catch_up: str, limit: int, expected: list[int]
) -> None:
    await put(engine, overlap="queue", catch_up=catch_up, catch_up_limit=limit)
    due_at(clock, SLOT + 9 * HOUR + HOUR // 2)
    assert await engine.run_timer("schedules") == 1
    assert await engine.run_timer("schedules") == 0
    assert [each.uuid for each in await started(probe)] == [slot_uuid("default", "s", slot) for slot in expected]
    after = await shown(engine)
    assert (after.next_at_ms, after.started_count) == (SLOT + 10 * HOUR, len(expected))
    if not expected:
        assert (after.last_skip_reason, after.last_skipped_ms) == (SkipReason.MISSED, SLOT)
    due_at(clock, SLOT + 10 * HOUR)
    await engine.run_timer("schedules")
    assert len(await started(probe)) == len(expected) + 1


async def test_skipping(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine, overlap="skip")
    due_at(clock, SLOT)
    await engine.run_timer("schedules")
    handle = await engine.claim("lane", (), policy(ttl_ms=10 * HOUR))
    assert handle is not None
    for n in (1, 2):
        due_at(clock, SLOT + n * HOUR)
        assert await engine.run_timer("schedules") == 1
    after = await shown(engine)
    assert (after.skipped_count, after.last_skipped_ms) == (2, SLOT + 2 * HOUR)
    assert (after.last_skip_reason, after.last_slot_ms) == (SkipReason.OVERLAP, SLOT + 2 * HOUR)
    assert len(await started(probe)) == 1
    await engine.complete(handle)
    due_at(clock, SLOT + 3 * HOUR)
    await engine.run_timer("schedules")
    assert len(await started(probe)) == 2


async def test_queueing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine, overlap="queue")
    for n in range(3):
        due_at(clock, SLOT + n * HOUR)
        await engine.run_timer("schedules")
    assert [row.public_state for row in await started(probe)] == ["waiting"] * 3


@pytest.mark.parametrize("running", [False, True])
async def test_replacing(engine: Engine, probe: Probe, clock: ManualClock, running: bool) -> None:
    await put(engine, overlap="replace", catch_up="all")
    due_at(clock, SLOT)
    await engine.run_timer("schedules")
    handle = await engine.claim("lane", (), policy(ttl_ms=10 * HOUR)) if running else None
    due_at(clock, SLOT + 2 * HOUR)
    await engine.run_timer("schedules")
    first, second = await started(probe)
    assert (first.public_state, first.cancelled_by) == ("cancelled", "schedule")
    assert (second.public_state, second.uuid) == ("waiting", slot_uuid("default", "s", SLOT + 2 * HOUR))
    assert await probe.completions(first.execution_id) == ["cancelled"]
    if handle is not None:
        assert await probe.lease_events(first.execution_id) == ["acquired", "revoked"]
        with pytest.raises(Contention):
            await engine.complete(handle)


async def test_skipping_while_catching_up_everything(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """No two at once, whatever was missed: the first one is started and the others are skipped."""
    await put(engine, overlap="skip", catch_up="all")
    due_at(clock, SLOT + 3 * HOUR)
    await engine.run_timer("schedules")
    assert [row.uuid for row in await started(probe)] == [slot_uuid("default", "s", SLOT)]
    assert (await shown(engine)).skipped_count == 3


async def test_what_was_purged_has_ended(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine, overlap="skip")
    due_at(clock, SLOT)
    await engine.run_timer("schedules")
    handle = await engine.claim("lane", (), policy())
    assert handle is not None
    await engine.complete(handle)
    due_at(clock, SLOT + HOUR - 1)
    assert await engine.trim_retention(retention_ms=0) == 1
    due_at(clock, SLOT + HOUR)
    await engine.run_timer("schedules")
    assert len(await started(probe)) == 1


async def test_a_closed_lane(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine)
    await engine.set_lane_state("lane", "draining")
    due_at(clock, SLOT)
    assert await engine.run_timer("schedules") == 1
    after = await shown(engine)
    assert (after.last_skip_reason, after.next_at_ms) == (SkipReason.LANE_CLOSED, SLOT + HOUR)
    await engine.set_lane_state("lane", "active")
    due_at(clock, SLOT + HOUR)
    await engine.run_timer("schedules")
    assert len(await started(probe)) == 1


async def test_triggering(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine, overlap="skip")
    await engine.pause_schedule("s")
    answer = await engine.trigger_schedule("s")
    assert isinstance(answer, FireResult.Started)
    [eid] = answer.execution_ids
    assert isinstance(eid, ExecutionId)
    assert await engine.trigger_schedule("s") == FireResult.Skipped(SkipReason.OVERLAP, None)
    other = await engine.trigger_schedule("s", overlap="queue")
    assert isinstance(other, FireResult.Started)
    assert other.execution_ids != answer.execution_ids
    after = await shown(engine)
    assert (after.started_count, after.paused, after.next_at_ms, after.skipped_count) == (2, True, None, 1)
    assert len(await started(probe)) == 2


async def test_jitter(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine, overlap="queue", jitter_ms=60_000)
    waits = []
    for n in range(3):
        due_at(clock, SLOT + n * HOUR)
        await engine.run_timer("schedules")
        expected = slot_jitter_ms("default", "s", clock.now_ms, 60_000)
        row = (await started(probe))[-1]
        assert row.delay_until_ms == clock.now_ms + expected
        waits.append(expected)
    assert len(set(waits)) == 3
    assert all(0 < wait <= 60_000 for wait in waits)
    await engine.trigger_schedule("s")
    assert [row.delay_until_ms for row in await started(probe)].count(None) == 1, "what is triggered starts now"


async def test_a_namespace_that_timers_are_narrowed_to(engine: Engine, clock: ManualClock) -> None:
    await put(engine)
    await put(engine, namespace="n")
    due_at(clock, SLOT)
    engine._filter = ScannerFilter("n")
    assert await engine.run_timer("schedules") == 1
    assert (await shown(engine, namespace="n")).started_count == 1
    assert (await shown(engine)).started_count == 0


async def test_a_row_nobody_can_read_holds_up_nobody(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """A time zone that is gone from this machine, say."""
    await put(engine, "good")
    [row] = await probe.select(Schedule, namespace="default", schedule_id="good")
    await seeding.seed(engine, replace(row, schedule_id="bad", every_ms=None, cron="0 * * * *", time_zone="Nowhere"))
    due_at(clock, SLOT)
    assert await engine.run_timer("schedules") == 1
    assert (await shown(engine, "good")).started_count == 1


# -- many at once --------------------------------------------------------------------------------------------------


@shared_stores_only
async def test_one_start_for_each_slot(
    engine: Engine, probe: Probe, clock: ManualClock, open_engine: Callable[..., Any]
) -> None:
    engines = [engine, *[await open_engine() for _ in range(3)]]
    names = [f"s{n}" for n in range(5)]
    await asyncio.gather(*(put(each, name, overlap="queue") for name in names for each in engines))
    for n in range(10):
        due_at(clock, SLOT + n * HOUR)
        await asyncio.gather(*(each.run_timer("schedules") for each in engines for _ in range(2)))
    found = [row.uuid for row in await started(probe)]
    assert sorted(found) == sorted(slot_uuid("default", name, SLOT + n * HOUR) for name in names for n in range(10))
    for name in names:
        assert (await shown(engine, name)).started_count == 10


@shared_stores_only
async def test_catching_up_by_many(
    engine: Engine, probe: Probe, clock: ManualClock, open_engine: Callable[..., Any]
) -> None:
    engines = [engine, *[await open_engine() for _ in range(3)]]
    await put(engine, overlap="queue", catch_up="all", catch_up_limit=50)
    due_at(clock, SLOT + 29 * HOUR)
    await asyncio.gather(*(each.run_timer("schedules") for each in engines for _ in range(3)))
    assert len(await started(probe)) == 30


async def test_the_timer_loop_fires_when_due(open_engine: Callable[..., Any]) -> None:
    """A slot that a commit brings is not slept past."""
    engine = await open_engine(clock=None, timers=True)
    now = await engine.server_time_ms()
    await engine.put_schedule(
        "s", spec=Every(2**40, (now + 300) % 2**40), execution_kind="op", lane_id="lane", overlap="queue"
    )
    handle = await engine.claim("lane", (), policy(max_wait=SOON_S * 1_000))
    assert handle is not None
    assert await engine.server_time_ms() >= now + 300


async def test_what_a_clock_planned_that_was_ahead_is_planned_again(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    await put(engine, overlap="queue")
    due_at(clock, SLOT + 24 * HOUR)
    assert await engine.run_timer("schedules") == 1
    assert (await shown(engine)).next_at_ms == SLOT + 25 * HOUR
    # The clock is set right.
    due_at(clock, SLOT + 5)
    await engine.run_timer("schedules")
    assert (await shown(engine)).next_at_ms == SLOT + HOUR
    due_at(clock, SLOT + HOUR)
    assert await engine.run_timer("schedules") == 1
    assert len(await started(probe)) == 2
    assert (await shown(engine)).next_at_ms == SLOT + 2 * HOUR


async def test_a_change_of_what_was_read_is_refused_if_somebody_was_quicker(engine: Engine, probe: Probe) -> None:
    async with refused(probe, Contention):
        await put(engine, revision=1)
    assert isinstance(await put(engine), PutScheduleResult.Created)
    assert isinstance(await put(engine, priority=2, revision=1), PutScheduleResult.Changed)
    async with unchanged(probe):
        again = await put(engine, priority=2, revision=1)
        assert again == PutScheduleResult.Unchanged("s", 2), "repeated after a lost reply"
    async with refused(probe, Contention, detail="schedule s is no longer at revision 1"):
        await put(engine, priority=3, revision=1)
    await put(engine, priority=3, revision=2)
    await engine.delete_schedule("s")
    async with refused(probe, Contention):
        await put(engine, priority=4, revision=3)
