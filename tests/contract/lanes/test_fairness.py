"""Keys of a fair lane take turns among executions of equal priority, however long the queue of one of them is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import AlreadySatisfied, Handle, LaneFairnessChanged
from flowfabric.engine import Engine
from flowfabric.model.decisions import Get
from flowfabric.model.limits import RERANK_BATCH
from flowfabric.model.records.executions import Execution, Lane
from tests.contract.probe import ManualClock, Probe, create, id_of, needing, policy, shared_stores_only, unchanged

LANE = "lane"
FLOOD = 10_000


async def flood(engine: Engine, count: int, namespace: str = "loud", **more: Any) -> None:
    await engine.create_executions([{"lane_id": LANE, "namespace": namespace, **more} for _ in range(count)])


async def names_of(engine: Engine, handles: list[Handle]) -> list[str]:
    """The namespace of each claimed execution, in claim order."""
    view = await engine._view(*(Get(Execution, id_of(handle)) for handle in handles))
    rows = [view.execution(id_of(handle)) for handle in handles]
    return [row.namespace or "?" for row in rows if row is not None]


async def served(engine: Engine, count: int, *capabilities: str) -> str:
    """Claim one by one; the first letters of whose turn it was."""
    handles = []
    for _ in range(count):
        handle = await engine.claim(LANE, capabilities, policy())
        if handle is not None:
            handles.append(handle)
    return "".join(name[0] for name in await names_of(engine, handles))


async def settled(engine: Engine, clock: ManualClock) -> None:
    """Wait for the ranking that goes on by itself, then let the timer take the mark away."""
    while engine._going_on:
        await asyncio.gather(*engine._going_on)
        await asyncio.sleep(0)
    clock.advance(60_000)
    await engine.run_timer("lane_fairness")
    found = await engine.describe_lane(LANE)
    assert found is not None
    assert not found.fair_pending


# -- turns ---------------------------------------------------------------------------------------------------------


async def test_a_flood_does_not_delay_anybody_else(engine: Engine) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, FLOOD)
    await create(engine, lane_id=LANE, namespace="quiet")
    assert "q" in await served(engine, 2)
    await served(engine, 20)
    await create(engine, lane_id=LANE, namespace="quiet")
    assert "q" in await served(engine, 2), "later arrivals neither"


async def test_without_fairness_age_decides(engine: Engine, clock: ManualClock) -> None:
    await flood(engine, 5)
    clock.advance(1)
    await create(engine, lane_id=LANE, namespace="quiet")
    assert await served(engine, 6) == "lllllq"


async def test_turns_of_three(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    for name, count in (("a", 6), ("b", 3), ("c", 1)):
        await flood(engine, count, name)
        clock.advance(1)
    assert await served(engine, 10) == "abcababaaa"


async def test_nobody_saves_turns_up(engine: Engine, clock: ManualClock) -> None:
    """Who was away gets his turn at once, but not all those he might have had."""
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, 100, "a")
    await served(engine, 50)
    clock.advance(1)
    await flood(engine, 20, "b")
    assert await served(engine, 10) == "ababababab"


async def test_an_empty_lane_starts_anew(engine: Engine, probe: Probe) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    eids = [await create(engine, lane_id=LANE, namespace="a") for _ in range(3)]
    ranks = [(await probe.execution(eid)).fair_rank for eid in eids]
    assert ranks == sorted(set(ranks))
    await served(engine, 3)
    again = await create(engine, lane_id=LANE, namespace="a")
    assert (await probe.execution(again)).fair_rank == ranks[0]


async def test_priorities_stay_strict(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, 2, "low")
    await flood(engine, 3, "high", priority=5)
    clock.advance(1)
    await flood(engine, 1, "new", priority=5)
    assert await served(engine, 6) == "hnhhll"


async def test_turns_in_one_priority_do_not_count_in_another(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, 100, "a", priority=5)
    await flood(engine, 5, "b")
    clock.advance(1)
    await flood(engine, 5, "a")
    await served(engine, 100)
    assert await served(engine, 4) == "baba"


async def test_by_tag(engine: Engine, clock: ManualClock) -> None:
    assert await engine.set_lane_fairness(LANE, "tag:team") == LaneFairnessChanged(LANE, "tag:team")
    await flood(engine, 5, "x", tags={"team": "one"})
    clock.advance(1)
    await flood(engine, 2, "y", tags={"team": "two"})
    clock.advance(1)
    await flood(engine, 2, "z")
    clock.advance(1)
    await flood(engine, 1, "w", tags={"team": "t" * 60_000})
    assert await served(engine, 10) == "xyzwxyzxxx"


async def test_capabilities_and_turns(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, 50, "a", policy=needing("gpu"))
    clock.advance(1)
    await flood(engine, 2, "b")
    clock.advance(1)
    await flood(engine, 2, "c", policy=needing("gpu", "big"))
    assert await served(engine, 6, "gpu", "big") == "abcabc"
    assert await served(engine, 1) == "", "nothing is left for a worker without capabilities"


@pytest.mark.parametrize("many", [False, True])
async def test_one_call_or_many(engine: Engine, probe: Probe, many: bool) -> None:
    """Whether creations share a batch makes no difference to their ranks."""
    await engine.set_lane_fairness(LANE, "namespace")
    items = [{"lane_id": LANE, "namespace": name} for name in "aababcabcd"]
    if many:
        answers = await engine.create_executions(items)
    else:
        answers = [await engine.create_execution(**item) for item in items]
    ranks = [(await probe.execution(answer.execution_id)).fair_rank for answer in answers]
    assert [rank - ranks[0] for rank in ranks] == [0, 1, 0, 2, 1, 0, 3, 2, 1, 0]


async def test_claims_and_creations_in_one_batch(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, 30, "a")
    clock.advance(1)
    taken, *_ = await asyncio.gather(
        engine.claim_many(LANE, (), policy(), 10), *(create(engine, lane_id=LANE, namespace="b") for _ in range(3))
    )
    assert len(taken) == 10
    assert "b" not in await names_of(engine, taken)
    assert sorted(await served(engine, 6)) == sorted("ababab")


async def test_a_thousand_keys_in_one_call(engine: Engine) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await engine.create_executions([{"lane_id": LANE, "namespace": f"n{n % 1_000}"} for n in range(2_000)])
    handles = await engine.claim_many(LANE, (), policy(), 1_000)
    assert len(set(await names_of(engine, handles))) == 1_000


async def test_the_scan_shows_the_same_order(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, 5, "a")
    clock.advance(1)
    await flood(engine, 5, "b")
    seen = await engine.scan_eligible_executions(LANE)
    handles = await engine.claim_many(LANE, (), policy(), 10)
    assert seen == tuple(id_of(handle) for handle in handles)
    assert "".join(await names_of(engine, handles)) == "ababababab"


# -- what comes back -----------------------------------------------------------------------------------------------


async def test_what_comes_back_is_next_among_its_own(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    first = await create(engine, lane_id=LANE, namespace="a")
    clock.advance(1)
    await flood(engine, 100, "a")
    assert await engine.claim(LANE, (), policy()) is not None
    await engine.revoke_lease(execution_id=first)
    again = await engine.claim(LANE, (), policy())
    assert again is not None
    assert id_of(again) == first


async def test_many_that_come_back_delay_nobody(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, 300, "a")
    handles = await engine.claim_many(LANE, (), policy(), 100)
    clock.advance(1)
    await asyncio.gather(*(engine.revoke_lease(execution_id=id_of(handle)) for handle in handles))
    await create(engine, lane_id=LANE, namespace="b")
    assert "b" in await served(engine, 3)


async def test_a_promise_that_nobody_used_keeps_its_place(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    eids = []
    for _ in range(3):
        eids.append(await create(engine, lane_id=LANE, namespace="a"))
        clock.advance(1)
    before = (await probe.execution(eids[0])).fair_rank
    await engine.claim_for_worker(lane_id=LANE, worker_id="w", worker_instance_id="i", grant_ttl_ms=5)
    clock.advance(5)
    await engine.run_timer("grant_sweep")
    assert (await probe.execution(eids[0])).fair_rank == before
    assert id_of((await engine.claim_many(LANE, (), policy(), 1))[0]) == eids[0]


async def test_a_delay_joins_when_it_is_over(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, 50, "late", delay_until=clock.now_ms + 10)
    await flood(engine, 5, "a")
    clock.advance(10)
    await engine.run_timer("delayed_promoter")
    assert sorted(await served(engine, 10)) == sorted("alalalalal")


async def test_a_change_of_priority_is_a_new_place(engine: Engine, clock: ManualClock) -> None:
    await engine.set_lane_fairness(LANE, "namespace")
    await flood(engine, 5, "a", priority=5)
    clock.advance(1)
    late = [await create(engine, lane_id=LANE, namespace="b") for _ in range(3)]
    await engine.run_timer("intake")
    await engine.change_priority(execution_id=late[2], new_priority=5)
    assert await served(engine, 8) == "abaaaabb"


# -- switching -----------------------------------------------------------------------------------------------------


async def test_a_backlog_is_ranked_too(engine: Engine, clock: ManualClock) -> None:
    await flood(engine, 2 * RERANK_BATCH + 10, "a")
    clock.advance(1)
    await flood(engine, 5, "b")
    await flood(engine, 3, "c", policy=needing("gpu"))
    await flood(engine, 2, "a", priority=7)
    await flood(engine, 1, "d", priority=7)
    await engine.set_lane_fairness(LANE, "namespace")
    await settled(engine, clock)
    assert sorted(await served(engine, 2)) == ["a", "d"]
    assert sorted(await served(engine, 10, "gpu")) == sorted("aabcabcabc")


async def test_newcomers_do_not_wait_for_the_ranking(engine: Engine, clock: ManualClock, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine, "_go_on", lambda command: None)
    await flood(engine, 50, "a")
    await engine.set_lane_fairness(LANE, "namespace")
    clock.advance(1)
    await create(engine, lane_id=LANE, namespace="b")
    assert await served(engine, 1) == "b"
    found = await engine.describe_lane(LANE)
    assert found is not None
    assert found.fair_pending


async def test_the_timer_goes_on_where_a_process_was_lost(engine: Engine, clock: ManualClock, monkeypatch: Any) -> None:
    await flood(engine, RERANK_BATCH + 10, "a")
    clock.advance(1)
    await flood(engine, 10, "b")
    with monkeypatch.context() as lost:
        lost.setattr(engine, "_go_on", lambda command: None)
        await engine.set_lane_fairness(LANE, "namespace")
        assert await engine.run_timer("lane_fairness") == RERANK_BATCH
        assert await engine.run_timer("lane_fairness") == 20
        assert await engine.run_timer("lane_fairness") == 0
    await settled(engine, clock)
    assert await served(engine, 4) == "abab"


@pytest.mark.parametrize("tags", [{"team": "t"}, {}])
async def test_from_one_key_to_another_and_back_to_none(
    engine: Engine, clock: ManualClock, tags: dict[str, str]
) -> None:
    await flood(engine, 4, "a", tags=tags)
    clock.advance(1)
    await flood(engine, 4, "b", tags={"team": "u"})
    await engine.set_lane_fairness(LANE, "namespace")
    await settled(engine, clock)
    await engine.set_lane_fairness(LANE, "tag:team")
    await settled(engine, clock)
    assert await served(engine, 4) == "abab"
    assert await engine.set_lane_fairness(LANE, None) == LaneFairnessChanged(LANE, None)
    await settled(engine, clock)
    assert await served(engine, 4) == "aabb"


async def test_what_is_not_in_the_queue_when_it_changes(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id=LANE, namespace="a", tags={"team": "t"}, delay_until=clock.now_ms + 10)
    await engine.set_lane_fairness(LANE, "tag:team")
    clock.advance(10)
    await engine.run_timer("delayed_promoter")
    assert ((await probe.execution(eid)).fair_key or "").endswith("t")
    assert await engine.claim(LANE, (), policy()) is not None
    await engine.set_lane_fairness(LANE, None)
    await engine.revoke_lease(execution_id=eid)
    row = await probe.execution(eid)
    assert (row.fair_rank, row.fair_key) == (0, None)


async def test_the_same_setting_again(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    async with unchanged(probe):
        assert await engine.set_lane_fairness(LANE, None) == AlreadySatisfied("fairness_unchanged")
    await engine.set_lane_fairness(LANE, "namespace")
    await settled(engine, clock)
    async with unchanged(probe):
        assert await engine.set_lane_fairness(LANE, "namespace") == AlreadySatisfied("fairness_unchanged")
    found = await engine.describe_lane(LANE)
    assert found is not None
    assert found.fair_by == "namespace"


async def test_plain_lanes_have_no_rank(engine: Engine, probe: Probe) -> None:
    eid = await create(engine, lane_id=LANE)
    row = await probe.execution(eid)
    assert (row.fair_rank, row.fair_key) == (0, None)
    [lane] = await probe.select(Lane, lane_id=LANE)
    assert (lane.fair_by, lane.fair_pending) == (None, False)


@shared_stores_only
async def test_two_processes_give_each_rank_of_a_key_once(
    engine: Engine, probe: Probe, open_engine: Callable[..., Any]
) -> None:
    other = await open_engine()
    await engine.set_lane_fairness(LANE, "namespace")
    answers = await asyncio.gather(
        *(one.create_execution(lane_id=LANE, namespace="a") for one in (engine, other) for _ in range(100))
    )
    ranks = [(await probe.execution(answer.execution_id)).fair_rank for answer in answers]
    assert len(set(ranks)) == 200
    assert max(ranks) - min(ranks) == 199
