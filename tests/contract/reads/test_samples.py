"""Samples of the whole: one of every minute, for everybody, for a day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from flowfabric.engine import Engine
from flowfabric.model.limits import MAX_SAMPLED
from flowfabric.model.reads.overview import Pulse
from flowfabric.model.reads.samples import SAMPLE_MS, SAMPLES_KEPT_MS, SampleRow
from flowfabric.model.reads.search import QueueDepth
from tests.contract.probe import ManualClock, Probe, create, unchanged
from tests.contract.seeding import seed

BUDGET = "11111111-1111-4111-8111-111111111111"


def pulse(at_ms: int, active: int = 1, *queues: QueueDepth) -> Pulse:
    return Pulse(at_ms, active, 2, 3, 4, 5, 6, 7, queues)


def at_a_minute(clock: ManualClock) -> int:
    clock.advance(SAMPLE_MS - clock() % SAMPLE_MS)
    return clock()


async def test_the_first_of_a_minute_stays(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    begun = at_a_minute(clock)
    clock.advance(5_000)
    given = pulse(clock(), 1, QueueDepth("mail", 9, 8))
    first = await engine.record_sample(pulse=given, budgets={BUDGET: 0.25})
    assert (first.pulse, first.budgets, first.lanes) == (given, {BUDGET: 0.25}, 1)
    clock.advance(54_999)
    async with unchanged(probe):
        assert await engine.record_sample(pulse=pulse(clock(), 2)) == first
    clock.advance(1)
    second = await engine.record_sample(pulse=pulse(clock(), 3))
    assert (second.pulse.active, second.budgets, second.lanes) == (3, {}, 0)
    page = await engine.list_samples()
    assert (page.samples, page.next_since) == ((first, second), None)
    [row] = await probe.select(SampleRow, minute_ms=begun)
    assert len(row.document) < 300


async def test_the_real_pulse(engine: Engine) -> None:
    await create(engine, lane_id="mail")
    kept = await engine.record_sample(pulse=await engine.read_pulse())
    assert kept.waiting("mail")[0] == 1
    assert kept.waiting("other") == (0, 0)
    assert (await engine.list_samples()).samples == (kept,)


async def test_the_engine_knows_which_minute_it_is(engine: Engine, clock: ManualClock) -> None:
    """What a caller says is recorded as far as it lies in the minute, and decides nothing."""
    begun = at_a_minute(clock)
    clock.advance(10_000)
    early = await engine.record_sample(pulse=pulse(begun - 1))
    assert early.pulse.at_ms == begun
    clock.advance(SAMPLE_MS)
    late = await engine.record_sample(pulse=pulse(2**60))
    assert late.pulse.at_ms == clock()
    assert [each.pulse.at_ms for each in (await engine.list_samples()).samples] == [begun, clock()]


async def test_pages(engine: Engine, clock: ManualClock) -> None:
    begun = at_a_minute(clock)
    for number in range(5):
        await engine.record_sample(pulse=pulse(clock(), number))
        clock.advance(SAMPLE_MS)

    async def read(**options: Any) -> tuple[list[int], int | None]:
        page = await engine.list_samples(**options)
        return [each.pulse.active for each in page.samples], page.next_since

    assert await read(limit=2) == ([0, 1], begun + 2 * SAMPLE_MS)
    assert await read(since=begun + 2 * SAMPLE_MS, limit=2) == ([2, 3], begun + 4 * SAMPLE_MS)
    assert await read(since=begun + 4 * SAMPLE_MS, limit=2) == ([4], None)
    assert await read(since=begun + 3 * SAMPLE_MS + 1) == ([4], None)
    assert await read(since=begun + 5 * SAMPLE_MS) == ([], None)
    assert await read(limit=5) == ([0, 1, 2, 3, 4], None)


async def test_many_at_once_keep_one(
    engine: Engine, open_engine: Callable[..., Any], probe: Probe, clock: ManualClock
) -> None:
    # In memory another engine has a store of its own.
    other = engine if engine.backend_label == "memory" else await open_engine()
    kept = await asyncio.gather(
        *((engine, other)[number % 2].record_sample(pulse=pulse(clock(), number)) for number in range(20))
    )
    assert len({each.pulse.active for each in kept}) == 1
    assert (await engine.list_samples()).samples == (kept[0],)
    assert (await other.list_samples()).samples == (kept[0],)


async def test_a_sample_is_bounded(engine: Engine, clock: ManualClock) -> None:
    """The deepest lanes and the fullest budgets are kept; of other lanes nothing is known then."""
    queues = [QueueDepth(f"lane-{number:04}", number, 1) for number in range(1_000)]
    levels = {f"{number:04}": number / 3 for number in range(1_000)}
    await engine.record_sample(pulse=pulse(clock(), 1, *queues), budgets=levels)
    [sample] = (await engine.list_samples()).samples
    assert [each.waiting for each in sample.pulse.queues] == list(range(999, 999 - MAX_SAMPLED, -1))
    assert list(sample.budgets) == [f"{number:04}" for number in range(999, 999 - MAX_SAMPLED, -1)]
    assert sample.budgets["0998"] == 332.6667
    assert sample.lanes == 1_000
    assert sample.waiting("lane-0999") == (999, 1)
    assert sample.waiting("lane-0001") == (None, None)


async def test_old_ones_go(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    begun = at_a_minute(clock)
    for number in range(3):
        await engine.record_sample(pulse=pulse(clock(), number))
        clock.advance(SAMPLE_MS)
    clock.advance(begun + SAMPLES_KEPT_MS - clock())
    async with unchanged(probe):
        await engine.run_timer("retention_trimmer")
    clock.advance(SAMPLE_MS + 1)
    await engine.run_timer("retention_trimmer")
    assert [each.pulse.active for each in (await engine.list_samples()).samples] == [2]


async def test_documents_that_nobody_can_read_are_gaps(engine: Engine, clock: ManualClock) -> None:
    begun = at_a_minute(clock)
    good = await engine.record_sample(pulse=pulse(clock()))
    odd = ("", "[]", "nonsense", '{"pulse": {}}')
    await seed(engine, *(SampleRow(begun + (1 + place) * SAMPLE_MS, text) for place, text in enumerate(odd)))
    assert (await engine.list_samples()).samples == (good,)
    page = await engine.list_samples(limit=2)
    assert (page.samples, page.next_since) == ((good,), begun + 2 * SAMPLE_MS)
    clock.advance(SAMPLE_MS)
    now = pulse(clock(), 5)
    assert (await engine.record_sample(pulse=now)).pulse == replace(now, queues=())
