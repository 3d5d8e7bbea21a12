"""One claim over several lanes: each is served as often as its weight says, and none starves."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from flowfabric import Handle
from flowfabric.core.leases.claim import ClaimFromLanes
from flowfabric.engine import Engine
from flowfabric.engine.operations import claim
from flowfabric.model.decisions import Get
from flowfabric.model.records.executions import Execution
from tests.contract.probe import Probe, create, id_of, needing, policy, shared_stores_only, unchanged

SOON_S = 20
LONG_MS = 60_000


async def fill(engine: Engine, **counts: int) -> None:
    await engine.create_executions([{"lane_id": lane} for lane, count in counts.items() for _ in range(count)])


async def lanes_of(engine: Engine, handles: list[Handle]) -> str:
    view = await engine._view(*(Get(Execution, id_of(handle)) for handle in handles))
    rows = [view.execution(id_of(handle)) for handle in handles]
    return "".join(row.lane_id for row in rows if row is not None)


async def one_by_one(engine: Engine, weights: dict[str, int], count: int) -> str:
    handles = []
    for _ in range(count):
        handles += await engine.claim_from_lanes(weights, (), policy())
    return await lanes_of(engine, handles)


@pytest.mark.parametrize("at_once", [False, True])
async def test_weights(engine: Engine, at_once: bool) -> None:
    await fill(engine, a=40, b=40, c=40)
    weights = {"a": 5, "b": 1, "c": 1}
    if at_once:
        served = await lanes_of(engine, await engine.claim_from_lanes(weights, (), policy(), 14))
    else:
        served = await one_by_one(engine, weights, 14)
    assert Counter(served) == {"a": 10, "b": 2, "c": 2}
    assert Counter(served[:7]) == {"a": 5, "b": 1, "c": 1}, "smoothly, not one lane after the other"


async def test_equal_weights_take_turns(engine: Engine) -> None:
    await fill(engine, a=3, b=3)
    assert await one_by_one(engine, {"a": 1, "b": 1}, 6) == "ababab"


async def test_a_lane_without_work_gives_its_turns_away(engine: Engine) -> None:
    weights = {"a": 100, "b": 2, "c": 1}
    await fill(engine, b=20, c=20)
    assert Counter(await one_by_one(engine, weights, 15)) == {"b": 10, "c": 5}
    await fill(engine, a=10)
    assert Counter(await one_by_one(engine, weights, 5))["a"] >= 4, "and has them again as soon as it has work"


async def test_no_lane_starves_however_much_the_others_have(engine: Engine) -> None:
    await fill(engine, a=300, b=1)
    assert "b" in await one_by_one(engine, {"a": 100, "b": 1}, 101)


async def test_everything_there_is(engine: Engine) -> None:
    await fill(engine, a=3, b=1, c=2)
    handles = await engine.claim_from_lanes({"a": 1, "b": 1, "c": 1, "d": 9}, (), policy(), 100)
    assert Counter(await lanes_of(engine, handles)) == {"a": 3, "b": 1, "c": 2}
    assert len({id_of(handle) for handle in handles}) == 6
    for handle in handles:
        await engine.complete(handle)
    assert await engine.claim_from_lanes({"a": 1, "b": 1}, (), policy(), 100) == []


async def test_the_order_within_a_lane_stays(engine: Engine) -> None:
    low = await create(engine, lane_id="a", priority=1)
    high = await create(engine, lane_id="a", priority=9)
    handles = await engine.claim_from_lanes({"a": 1, "b": 1}, (), policy(), 2)
    assert [id_of(handle) for handle in handles] == [high, low]


async def test_capabilities(engine: Engine) -> None:
    await create(engine, lane_id="a", policy=needing("gpu"))
    plain = await create(engine, lane_id="b")
    assert [id_of(each) for each in await engine.claim_from_lanes({"a": 9, "b": 1}, (), policy(), 5)] == [plain]
    assert len(await engine.claim_from_lanes({"a": 9, "b": 1}, ("gpu",), policy(), 5)) == 1


@pytest.mark.parametrize("state", ["paused", "disabled"])
async def test_lanes_that_grant_nothing_are_passed_over(engine: Engine, probe: Probe, state: str) -> None:
    await fill(engine, a=2, b=1)
    await engine.set_lane_state("a", state)
    assert await one_by_one(engine, {"a": 5, "b": 1}, 3) == "b"
    async with unchanged(probe):
        assert await engine.claim_from_lanes({"a": 1}, (), policy(), 5) == []


async def test_claims_at_the_same_time_share_by_weight(engine: Engine) -> None:
    await fill(engine, a=100, b=100)
    found = await asyncio.gather(*(engine.claim_from_lanes({"a": 3, "b": 1}, (), policy()) for _ in range(40)))
    served = await lanes_of(engine, [handle for handles in found for handle in handles])
    assert Counter(served) == {"a": 30, "b": 10}


async def test_one_transaction(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = {f"lane {n}": 1 for n in range(50)}
    await fill(engine, **lanes)
    batches: list[int] = []
    run = engine._batcher._run

    async def counting(commands: list[Any]) -> Any:
        batches.append(len(commands))
        return await run(commands)

    monkeypatch.setattr(engine._batcher, "_run", counting)
    handles = await engine.claim_from_lanes(lanes, (), policy(), 50)
    assert (len(handles), batches) == (50, [1])


# -- waiting -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def only_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safety poll, a wake-up that is lost is a test that fails."""
    monkeypatch.setattr(claim, "SAFETY_POLL_S", 3600.0)


async def asleep(engine: Engine, weights: dict[str, int], *capabilities: str) -> asyncio.Task[list[Handle]]:
    """A claim that has looked once and found nothing."""
    looked = asyncio.Event()
    submit = engine._submit

    async def noticing(command: Any, *more: Any) -> Any:
        answer = await submit(command, *more)
        if isinstance(command, ClaimFromLanes):
            looked.set()
        return answer

    engine._submit = noticing  # type: ignore[method-assign]
    task = asyncio.ensure_future(engine.claim_from_lanes(weights, capabilities, policy(max_wait=LONG_MS)))
    async with asyncio.timeout(SOON_S):
        await looked.wait()
    engine._submit = submit  # type: ignore[method-assign]
    assert not task.done()
    return task


@pytest.mark.parametrize("lane", ["a", "b", "c"])
async def test_work_on_any_of_them_wakes(engine: Engine, lane: str) -> None:
    task = await asleep(engine, {"a": 5, "b": 1, "c": 1})
    eid = await create(engine, lane_id=lane)
    async with asyncio.timeout(SOON_S):
        [handle] = await task
    assert id_of(handle) == eid
    assert len(engine._lanes) == 0


async def test_a_lane_that_is_opened_wakes(engine: Engine) -> None:
    await fill(engine, b=1)
    await engine.set_lane_state("b", "paused")
    task = await asleep(engine, {"a": 5, "b": 1})
    await engine.set_lane_state("b", "active")
    async with asyncio.timeout(SOON_S):
        assert len(await task) == 1


async def test_nothing_in_time(engine: Engine) -> None:
    assert await engine.claim_from_lanes({"a": 1, "b": 1}, (), policy(max_wait=30)) == []
    assert len(engine._lanes) == 0


async def test_a_wake_up_outlives_the_caller_it_was_meant_for(engine: Engine) -> None:
    first, second = await asleep(engine, {"a": 1, "b": 1}), await asleep(engine, {"b": 1, "c": 1})
    eid = await create(engine, lane_id="b")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled()
    async with asyncio.timeout(SOON_S):
        [handle] = await second
    assert id_of(handle) == eid
    assert len(engine._lanes) == 0


@shared_stores_only
async def test_another_process_wakes(engine: Engine, open_engine: Any) -> None:
    other = await open_engine()
    task = await asleep(engine, {"a": 1, "b": 1})
    # The listener may only just be connecting: what it missed, the next commit tells again.
    async with asyncio.timeout(SOON_S):
        while not task.done():
            await create(other, lane_id="b")
            await asyncio.wait([task], timeout=0.2)
    assert len(await task) == 1
