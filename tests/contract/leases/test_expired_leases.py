"""``list_expired_leases``: data for whoever wants to take over by name. Listing reclaims nothing."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from flowfabric import ExecutionId, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.model.operations.executions import ExpiredLease, ExpiredLeaseCursor
from tests.contract import seeding
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, policy, unchanged

LANE = "lane"


async def test_what_an_entry_says(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, instance="w7-i7", lane_id=LANE, ttl_ms=1_000)
    eid = id_of(handle)
    clock.advance(999)
    assert (await engine.list_expired_leases()).entries == ()
    now = clock.advance(1)
    async with unchanged(probe):
        page = await engine.list_expired_leases()
    assert page.entries == (ExpiredLease(eid, probe.lease_id(eid, 0, 1), 1, "w7-i7", now, 0),)
    assert page.cursor is None


async def test_as_of_is_the_callers_choice(engine: Engine) -> None:
    await claimed(engine, lane_id=LANE, ttl_ms=1_000)
    assert len((await engine.list_expired_leases(as_of=START_MS + 1_000)).entries) == 1
    assert (await engine.list_expired_leases(as_of=START_MS + 999)).entries == ()


async def test_pages_by_time_then_id_text(engine: Engine, clock: ManualClock) -> None:
    """Ids are compared as the texts they are: partition 10 comes before partition 9."""
    rng = random.Random(3)
    expected = []
    for n in range(12):
        partition = (9, 10, 100)[n % 3] % engine.partitions.flow
        eid = ExecutionId.of(partition, str(UUID(int=rng.getrandbits(128))))
        await create(engine, execution_id=eid, lane_id=LANE)
        ttl_ms = rng.choice([100, 200])
        assert await engine.claim(LANE, (), policy(ttl_ms=ttl_ms)) is not None
        expected.append((START_MS + ttl_ms, str(eid)))
    expected.sort()
    clock.advance(200)
    found: list[tuple[int, str]] = []
    cursor = None
    for size in (5, 5, 2):
        page = await engine.list_expired_leases(after=cursor, limit=5)
        assert len(page.entries) == size
        found += [(entry.expires_at_ms, str(entry.execution_id)) for entry in page.entries]
        cursor = page.cursor
    assert cursor is None
    assert found == expected
    exact = ExpiredLeaseCursor(*expected[3])
    page = await engine.list_expired_leases(after=exact, limit=1)
    assert [(entry.expires_at_ms, str(entry.execution_id)) for entry in page.entries] == [expected[4]]
    assert page.cursor == ExpiredLeaseCursor(*expected[4])
    behind = ExpiredLeaseCursor(expected[-1][0], expected[-1][1])
    assert (await engine.list_expired_leases(after=behind)).entries == ()


async def test_one_namespace(engine: Engine, clock: ManualClock) -> None:
    mine = id_of(await claimed(engine, lane_id=LANE, ttl_ms=5, namespace="mine"))
    await claimed(engine, lane_id=LANE, ttl_ms=5, namespace="theirs")
    clock.advance(5)
    page = await engine.list_expired_leases(namespace="mine")
    assert [entry.execution_id for entry in page.entries] == [mine]
    assert len((await engine.list_expired_leases()).entries) == 2


@pytest.mark.parametrize("why", ["ended", "requeued", "suspended", "left behind", "nameless"])
async def test_what_is_no_lease(engine: Engine, clock: ManualClock, why: str) -> None:
    handle = await claimed(engine, lane_id=LANE, ttl_ms=5)
    eid = id_of(handle)
    if why == "ended":
        await engine.complete(handle, None)
    clock.advance(5)
    if why == "requeued":
        await engine.run_timer("lease_expiry")
    elif why == "suspended":
        await seeding.alter(engine, eid, lifecycle_phase="suspended")
    elif why == "left behind":
        await seeding.alter(engine, eid, attempt_index=1)
    elif why == "nameless":
        await seeding.alter_attempt(engine, eid, worker_instance_id="")
    assert (await engine.list_expired_leases()).entries == ()


async def test_limits(engine: Engine) -> None:
    assert (await engine.list_expired_leases(limit=10_001, max_partitions_per_call=1)).entries == ()
    with pytest.raises(Validation) as caught:
        await engine.list_expired_leases(limit=-1)
    assert caught.value.kind is ValidationKind.INVALID_INPUT
