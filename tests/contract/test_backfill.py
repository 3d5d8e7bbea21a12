"""Past runs of a schedule: started once each, however often they are asked for, and what became of them."""

from __future__ import annotations

import asyncio

from flowfabric import (
    BackfillResult,
    Cron,
    Every,
    NotFound,
    ScheduleRun,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError
from flowfabric.model.operations.schedules import slot_uuid
from flowfabric.model.records.executions import Execution
from tests.contract.probe import START_MS, ManualClock, Probe, refused, unchanged

HOUR = 3_600_000
SLOT = START_MS - START_MS % HOUR + HOUR
DAY_BEFORE = SLOT - 24 * HOUR


async def put(engine: Engine, name: str = "s", **changes: object) -> None:
    await engine.put_schedule(name, **{"spec": Every(HOUR), "execution_kind": "report", "lane_id": "lane", **changes})  # type: ignore[arg-type]


async def slots_of(probe: Probe) -> list[int]:
    rows = await probe.select(Execution, lane_id="lane")
    return sorted([int((await probe.raw_fields(row.execution_id))["tags"]["flowfabric.slot_ms"]) for row in rows])


async def test_a_preview_starts_nothing(engine: Engine, probe: Probe) -> None:
    await put(engine)
    async with unchanged(probe):
        answer = await engine.backfill_schedule("s", DAY_BEFORE, SLOT, dry_run=True)
    assert answer == BackfillResult.Previewed(24, 0, DAY_BEFORE, SLOT - HOUR)
    async with unchanged(probe):
        nothing = await engine.backfill_schedule("s", DAY_BEFORE + 1, DAY_BEFORE + 2, dry_run=True)
    assert nothing == BackfillResult.Previewed(0, 0, None, None)


async def test_every_slot_once(engine: Engine, probe: Probe) -> None:
    """Overlap does not count: whoever asks for past runs wants all of them. The schedule goes on as before."""
    await put(engine, overlap="skip", jitter_ms=60_000)
    before = await engine.get_schedule("s")
    answer = await engine.backfill_schedule("s", DAY_BEFORE, DAY_BEFORE + 3 * HOUR)
    assert isinstance(answer, BackfillResult.Started)
    wanted = [DAY_BEFORE, DAY_BEFORE + HOUR, DAY_BEFORE + 2 * HOUR]
    assert [each.uuid_text for each in answer.execution_ids] == [slot_uuid("default", "s", slot) for slot in wanted]
    assert await slots_of(probe) == wanted
    assert {(await probe.execution(each)).public_state for each in answer.execution_ids} == {"waiting"}, "not delayed"
    after = await engine.get_schedule("s")
    assert after is not None
    assert before is not None
    assert after.started_count == 3
    assert (after.next_at_ms, after.last_slot_ms, after.last_execution_id, after.revision) == (
        before.next_at_ms, None, None, before.revision,
    )  # fmt: skip
    async with unchanged(probe):
        again = await engine.backfill_schedule("s", DAY_BEFORE, DAY_BEFORE + 3 * HOUR)
    assert again == BackfillResult.Started((), 3)
    wider = await engine.backfill_schedule("s", DAY_BEFORE, DAY_BEFORE + 5 * HOUR)
    assert isinstance(wider, BackfillResult.Started)
    assert (len(wider.execution_ids), wider.existing) == (2, 3)


async def test_many_ask_at_once(engine: Engine, probe: Probe) -> None:
    await put(engine)
    answers = await asyncio.gather(*(engine.backfill_schedule("s", DAY_BEFORE, SLOT) for _ in range(4)))
    made = [len(each.execution_ids) for each in answers if isinstance(each, BackfillResult.Started)]
    assert sorted(made) == [0, 0, 0, 24]
    assert len(await slots_of(probe)) == 24
    found = await engine.get_schedule("s")
    assert found is not None
    assert found.started_count == 24


async def test_what_is_due_is_left_to_the_schedule(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """And nothing lies in the future. What the schedule has started itself is not started again."""
    await put(engine)
    clock.now_ms = SLOT + HOUR + 5
    assert await engine.backfill_schedule("s", SLOT, SLOT + 9 * HOUR) == BackfillResult.Started((), 0)
    await engine.run_timer("schedules")
    started = await slots_of(probe)
    answer = await engine.backfill_schedule("s", SLOT, SLOT + 9 * HOUR)
    assert isinstance(answer, BackfillResult.Started)
    assert (len(answer.execution_ids), answer.existing) == (2 - len(started), len(started))
    assert await slots_of(probe) == [SLOT, SLOT + HOUR]


async def test_a_paused_schedule(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """What passed during a pause can be started, on the clock of the schedule's time zone."""
    await put(engine, spec=Cron("30 6 * * *", "Europe/Paris"))
    await engine.pause_schedule("s")
    clock.advance(72 * HOUR)
    answer = await engine.backfill_schedule("s", START_MS, clock.now_ms)
    assert isinstance(answer, BackfillResult.Started)
    assert len(answer.execution_ids) == 3
    found = await engine.get_schedule("s")
    assert found is not None
    assert (found.paused, found.next_at_ms) == (True, None)


async def test_what_is_refused(engine: Engine, probe: Probe) -> None:
    async with refused(probe, NotFound, "schedule"):
        await engine.backfill_schedule("s", 0, 1)
    await put(engine)
    for first, end in ((5, 5), (5, 4), (0, START_MS)):
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
            await engine.backfill_schedule("s", first, end)
    await engine.set_lane_state("lane", "disabled")
    async with refused(probe, EngineError):
        await engine.backfill_schedule("s", DAY_BEFORE, SLOT)


async def test_runs(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await put(engine, overlap="queue", catch_up="none")
    assert (await engine.list_schedule_runs("s", limit=3)).next == (SLOT, SLOT + HOUR, SLOT + 2 * HOUR)
    assert (await engine.list_schedule_runs("s")).past == (), "slots from before it was made"
    [early] = (await engine.backfill_schedule("s", SLOT - HOUR, SLOT)).execution_ids  # type: ignore[union-attr]
    clock.now_ms = SLOT + 3 * HOUR + 60_000
    await engine.run_timer("schedules")
    clock.now_ms = SLOT + 4 * HOUR
    await engine.run_timer("schedules")
    [extra] = (await engine.trigger_schedule("s")).execution_ids  # type: ignore[union-attr]
    found = await engine.list_schedule_runs("s", limit=10)
    assert [(each.slot_ms, each.public_state) for each in found.past] == [
        (SLOT + 4 * HOUR, "waiting"), (None, "waiting"), (SLOT + 3 * HOUR, None), (SLOT + 2 * HOUR, None),
        (SLOT + HOUR, None), (SLOT, None), (SLOT - HOUR, "waiting"),
    ]  # fmt: skip
    assert found.past[1].execution_id == extra
    assert found.past[-1] == ScheduleRun(SLOT - HOUR, early, found.past[0].public_state, START_MS, None, None)
    assert found.next[0] == SLOT + 5 * HOUR
    await engine.pause_schedule("s")
    assert (await engine.list_schedule_runs("s")).next == ()
    async with refused(probe, NotFound, "schedule"):
        await engine.list_schedule_runs("s", "elsewhere")
