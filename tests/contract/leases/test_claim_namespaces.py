"""Claims that take work of some namespaces only; those that name none take all of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import Granted, Handle, NoWork
from flowfabric.engine import Engine
from flowfabric.engine.operations import claim
from flowfabric.model.limits import MAX_NAMESPACES
from tests.contract.probe import ManualClock, create, id_of, needing, policy

LANE = "default"
SOON_S = 20
LONG_MS = 60_000


async def taken(engine: Engine, limit: int = 100, lane: str = LANE, **options: Any) -> list[str]:
    return [id_of(each) for each in await engine.claim_many(lane, policy=policy(), limit=limit, **options)]


async def test_only_work_of_the_namespaces_that_are_named(engine: Engine) -> None:
    ours = {await create(engine, namespace="ours") for _ in range(3)}
    theirs = {await create(engine, namespace="theirs") for _ in range(3)}
    others = await create(engine, namespace="others")
    assert await taken(engine, namespaces=["nobody's"]) == []
    assert await taken(engine, namespaces=[]) == []
    first = set(await taken(engine, limit=2, namespaces=["ours"]))
    assert len(first) == 2
    assert first < ours
    assert set(await taken(engine, namespaces={"ours", "theirs"})) == (ours - first) | theirs
    assert await taken(engine) == [others]


async def test_however_much_of_others_stands_in_front(engine: Engine) -> None:
    await engine.create_executions([{"namespace": "theirs", "priority": 9} for _ in range(300)])
    ours = await create(engine, namespace="ours")
    handle = await engine.claim(LANE, policy=policy(), namespaces=["ours"])
    assert handle is not None
    assert handle.execution_id == ours


async def test_the_order_of_the_lane_holds_within_and_across_namespaces(engine: Engine) -> None:
    low = await create(engine, namespace="a", priority=1)
    high = await create(engine, namespace="b", priority=5)
    middle = await create(engine, namespace="a", priority=3)
    await create(engine, namespace="c", priority=9)
    assert await taken(engine, namespaces=["a", "b"]) == [high, middle, low]


async def test_together_with_capabilities(engine: Engine) -> None:
    plain = await create(engine, namespace="ours")
    gpu = await create(engine, namespace="ours", priority=3, policy=needing("gpu"))
    arm = await create(engine, namespace="ours", priority=2, policy=needing("arm64"))
    foreign = await create(engine, namespace="theirs", priority=9, policy=needing("gpu"))
    assert await taken(engine, namespaces=["ours"]) == [plain]
    assert await taken(engine, capabilities=["gpu"], namespaces=["ours"]) == [gpu]
    assert await taken(engine, capabilities=["gpu", "arm64"], namespaces=["ours", "theirs"]) == [foreign, arm]


async def test_from_several_lanes(engine: Engine) -> None:
    for lane in ("a", "b"):
        await create(engine, lane_id=lane, namespace="theirs", priority=9)
    ours = {await create(engine, lane_id=lane, namespace="ours") for lane in ("a", "b")}
    handles = await engine.claim_from_lanes({"a": 1, "b": 1}, policy=policy(), limit=10, namespaces=["ours"])
    assert {each.execution_id for each in handles} == ours
    assert await engine.claim_from_lanes({"a": 1, "b": 1}, policy=policy(), namespaces=["ours"]) == []


async def test_grants_for_workers(engine: Engine) -> None:
    await create(engine, namespace="theirs", priority=9)
    ours = await create(engine, namespace="ours")
    worker = {"lane_id": LANE, "worker_id": "w", "worker_instance_id": "w-1"}
    found = await engine.claim_for_worker(**worker, namespaces=["ours"])
    assert isinstance(found, Granted)
    assert found.grant.execution_id == ours
    assert await engine.claim_for_worker(**worker, namespaces=["ours"]) == NoWork()


async def test_a_promise_that_ran_out_is_good_for_its_own_namespace(engine: Engine, clock: ManualClock) -> None:
    eid = await create(engine, namespace="ours")
    await engine.claim_for_worker(lane_id=LANE, worker_id="w", worker_instance_id="w-1", grant_ttl_ms=1_000)
    clock.advance(2_000)
    assert await taken(engine, namespaces=["theirs"]) == []
    assert await taken(engine, namespaces=["ours"]) == [eid]


async def test_claims_of_one_batch_share_what_there_is(engine: Engine) -> None:
    made = {name: {await create(engine, namespace=name) for _ in range(4)} for name in ("ours", "theirs")}

    async def one(**options: Any) -> list[Handle]:
        return await engine.claim_many(LANE, policy=policy(), limit=2, **options)

    found = await asyncio.gather(one(), one(namespaces=["ours"]), one(namespaces=["theirs"]), one(), one())
    ids = [each.execution_id for handles in found for each in handles]
    assert len(ids) == len(set(ids)) == 8, "nothing is given out twice, and nothing is left"
    assert {each.execution_id for each in found[1]} <= made["ours"]
    assert {each.execution_id for each in found[2]} <= made["theirs"]


async def test_created_and_claimed_in_one_batch(engine: Engine) -> None:
    _, foreign, ours = await asyncio.gather(
        engine.claim_many(LANE, policy=policy(), limit=1, namespaces=["ours"]),
        create(engine, namespace="theirs"),
        create(engine, namespace="ours"),
    )
    left = await taken(engine)
    assert foreign in left
    assert set(left) <= {foreign, ours}


async def test_who_waits_is_woken_by_its_own_work(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "SAFETY_POLL_S", 3_600.0)
    waits = policy(max_wait=LONG_MS)
    theirs = asyncio.create_task(engine.claim(LANE, policy=waits, namespaces=["theirs"]))
    await asyncio.sleep(0.05)
    ours = asyncio.create_task(engine.claim(LANE, policy=waits, namespaces=["ours"]))
    await asyncio.sleep(0.05)
    eid = await create(engine, namespace="ours")
    async with asyncio.timeout(SOON_S):
        handle = await ours
    assert handle is not None
    assert handle.execution_id == eid
    assert not theirs.done(), "work of others is no reason to wake up"
    theirs.cancel()


async def test_too_many_namespaces(engine: Engine) -> None:
    with pytest.raises(Exception, match=f"namespaces: at most {MAX_NAMESPACES} at once, got {MAX_NAMESPACES + 1}"):
        await taken(engine, namespaces=[f"n{number}" for number in range(MAX_NAMESPACES + 1)])
