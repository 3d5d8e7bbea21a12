"""Routing by capabilities: nothing that some worker can run waits because of what others cannot."""

from __future__ import annotations

import random

from flowfabric.engine import Engine
from tests.contract.probe import ManualClock, create, id_of, needing, policy

LANE = "lane"
SKILLS = [f"skill-{number}" for number in range(10)]


async def test_everything_that_can_be_run_is_granted(engine: Engine, clock: ManualClock) -> None:
    """Whoever asks gets the first one in claim order that he can run; so nothing routable is ever passed over."""
    chance = random.Random(7)
    needs = {}
    for _ in range(120):
        wanted = frozenset(chance.sample(SKILLS, chance.randrange(4)))
        eid = await create(engine, lane_id=LANE, priority=chance.randrange(3), policy=needing(*wanted))
        needs[eid] = wanted
        clock.advance(1)
    order = list(await engine.scan_eligible_executions(LANE, limit=1_000))
    assert len(order) == 120
    workers = [frozenset(chance.sample(SKILLS, 5)) for _ in range(8)]
    while any(needs[eid] <= able for eid in order for able in workers):
        able = chance.choice(workers)
        first = next((eid for eid in order if needs[eid] <= able), None)
        handle = await engine.claim(LANE, able, policy())
        assert (None if handle is None else id_of(handle)) == first
        if first is not None:
            order.remove(first)
    assert await engine.scan_eligible_executions(LANE, limit=1_000) == tuple(order), "the rest is left as it is"


async def test_the_one_worker_that_can(engine: Engine, clock: ManualClock) -> None:
    """One of fifty workers covers the rare capability: its work comes first for it, whatever else there is."""
    await engine.create_executions([{"lane_id": LANE, "policy": needing(SKILLS[number % 10])} for number in range(500)])
    clock.advance(1)
    rare = await create(engine, lane_id=LANE, priority=1, policy=needing("rare"))
    for number in range(49):
        handle = await engine.claim(LANE, SKILLS, policy(f"i{number}"))
        assert handle is not None
        assert id_of(handle) != rare
    handle = await engine.claim(LANE, [*SKILLS, "rare"], policy("the one"))
    assert handle is not None
    assert id_of(handle) == rare


async def test_the_same_for_grants(engine: Engine, clock: ManualClock) -> None:
    for _ in range(50):
        await create(engine, lane_id=LANE, priority=9, policy=needing("gpu"))
    clock.advance(1)
    plain = await create(engine, lane_id=LANE)
    answer = await engine.claim_for_worker(lane_id=LANE, worker_id="w", worker_instance_id="i")
    assert answer.grant.execution_id == plain  # type: ignore[union-attr]
