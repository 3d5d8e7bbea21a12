"""The timer loop on real time: take-over and wake-ups come by themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import HandleKind
from flowfabric.engine.timers.loop import TIMERS
from tests.contract.probe import RUNNING, Probe, claimed, create, id_of, policy

LANE = "lane"
#: Nobody waits that long unless the loop has failed.
PATIENCE = policy("w2-i1", "w2", max_wait=20_000)


async def test_a_lost_lease_is_taken_over(open_engine: Any) -> None:
    """The default interval is 1.5 s; the loop does not sleep past what falls due before."""
    engine = await open_engine(clock=None, timers=True)
    probe = Probe(engine)
    eid = id_of(await claimed(engine, lane_id=LANE, ttl_ms=50))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    handle = await engine.claim(LANE, (), PATIENCE)
    assert handle is not None
    assert (id_of(handle), handle.kind) == (eid, HandleKind.RESUMED)
    assert loop.time() - begun < 5
    assert await probe.lease_events(eid) == ["acquired", "expired", "acquired"]


async def test_a_delay_ends(open_engine: Any) -> None:
    engine = await open_engine(clock=None, timers=True)
    now = await engine.server_time_ms()
    eid = await create(engine, lane_id=LANE, delay_until=now + 80)
    handle = await engine.claim(LANE, (), PATIENCE)
    assert handle is not None
    assert id_of(handle) == eid
    assert await engine.server_time_ms() >= now + 80


@pytest.mark.parametrize(
    ("what", "after"),
    [("delay", "waiting"), ("deadline", "expired"), ("attempt timeout", "expired"), ("lease", "waiting")],
)
async def test_a_commit_wakes_the_loop_for_what_falls_due(open_engine: Any, what: str, after: str) -> None:
    """With these intervals it would sleep for an hour."""
    engine = await open_engine(clock=None)
    engine.start_timers({timer.name: 3_600_000 for timer in TIMERS if timer.by_itself})
    async with asyncio.timeout(60):
        while engine._timer._prompt._planned_ms is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        soon = await engine.server_time_ms() + 50
        if what == "delay":
            eid = await create(engine, lane_id=LANE, delay_until=soon)
        elif what == "deadline":
            eid = await create(engine, lane_id=LANE, execution_deadline_at=soon)
        elif what == "lease":
            eid = id_of(await claimed(engine, lane_id=LANE, ttl_ms=50))
        else:
            limit = {"timeout_policy": {"attempt_timeout_ms": 50}}
            eid = id_of(await claimed(engine, lane_id=LANE, ttl_ms=3_600_000, policy=limit))
        while await engine.read_execution_state(eid) != after:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_interval_of_zero_switches_a_timer_off(open_engine: Any) -> None:
    engine = await open_engine(clock=None)
    engine.start_timers({"lease_expiry": 0})
    probe = Probe(engine)
    eid = id_of(await claimed(engine, lane_id="lost", ttl_ms=1))
    for _ in range(3):
        await create(engine, lane_id=LANE, delay_until=await engine.server_time_ms() + 30)
        assert await engine.claim(LANE, (), PATIENCE) is not None
    assert await probe.stored(eid) == RUNNING
    assert await engine.run_timer("lease_expiry") == 1


async def test_without_timers_nothing_moves(open_engine: Any) -> None:
    engine = await open_engine(clock=None)
    eid = id_of(await claimed(engine, lane_id=LANE, ttl_ms=1))
    assert await engine.claim(LANE, (), policy(max_wait=50)) is None
    assert await Probe(engine).stored(eid) == RUNNING
