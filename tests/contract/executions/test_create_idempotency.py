"""Idempotency keys: bound to a namespace for a window, and never a reason to change what is stored."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric import Created, Duplicate, ExecutionId, LaneId
from flowfabric.engine import Engine
from flowfabric.model.records.executions import Binding
from tests.contract.probe import START_MS, ManualClock, Probe, create, shared_stores_only, unchanged

DAY_MS = 86_400_000
WINDOW = {"dedup_window_ms": 1_000}


async def binding_of(probe: Probe, key: str = "k", namespace: str = "default") -> Binding:
    [found] = await probe.select(Binding, namespace=namespace, idempotency_key=key)
    return found


async def test_a_bound_key_gives_the_first_execution(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    first = await create(engine, idempotency_key="k", lane_id="one")
    clock.advance(10)
    async with unchanged(probe):
        answer = await engine.create_execution(idempotency_key="k", lane_id="one", priority=9, input_payload=b"other")
    assert answer == Duplicate(first)
    # The key counts whatever lane, and so whatever partition, the second caller asks for.
    assert await engine.create_execution(idempotency_key="k", lane_id="another") == Duplicate(first)
    assert await binding_of(probe) == Binding(
        "default", "k", first.partition, first.uuid_text, START_MS, START_MS + DAY_MS
    )


async def test_the_key_goes_before_the_id(engine: Engine, probe: Probe) -> None:
    bound = await create(engine, idempotency_key="k")
    other = await create(engine)
    assert await engine.create_execution(execution_id=other, idempotency_key="k") == Duplicate(bound)


async def test_a_duplicate_id_binds_nothing(engine: Engine, probe: Probe) -> None:
    eid = await create(engine)
    async with unchanged(probe):
        assert await engine.create_execution(execution_id=eid, idempotency_key="k") == Duplicate(eid)
    assert isinstance(await engine.create_execution(idempotency_key="k"), Created)


async def test_scope_is_namespace_and_key(engine: Engine) -> None:
    made = [
        await create(engine, namespace=namespace, idempotency_key=key)
        for namespace, key in (("a", "k"), ("b", "k"), ("a", "K"), ("a", "k "))
    ]
    assert len(set(made)) == 4
    assert await engine.create_execution(namespace="b", idempotency_key="k") == Duplicate(made[1])


async def test_an_empty_key_binds_nothing(engine: Engine, probe: Probe) -> None:
    assert await create(engine, idempotency_key="") != await create(engine, idempotency_key="")
    assert await probe.select(Binding, namespace="default") == []


@pytest.mark.parametrize(("policy", "window"), [(None, DAY_MS), (WINDOW, 1_000)])
async def test_the_window_ends(
    engine: Engine, probe: Probe, clock: ManualClock, policy: dict[str, int] | None, window: int
) -> None:
    """Whatever falls due is due when its time has come: the last millisecond still counts, the next does not."""
    first = await create(engine, idempotency_key="k", policy=policy)
    clock.advance(window - 1)
    assert await engine.create_execution(idempotency_key="k", policy=policy) == Duplicate(first)
    now = clock.advance(1)
    second = await create(engine, idempotency_key="k", policy=policy)
    assert second != first
    assert await binding_of(probe) == Binding("default", "k", second.partition, second.uuid_text, now, now + window)
    assert await engine.create_execution(idempotency_key="k") == Duplicate(second)
    assert (await probe.raw_fields(first))["idempotency_key"] == "k"


async def test_a_window_of_nothing(engine: Engine) -> None:
    policy = {"dedup_window_ms": 0}
    first = await create(engine, idempotency_key="k", policy=policy)
    assert await create(engine, idempotency_key="k", policy=policy) != first


async def test_an_expired_key_still_meets_the_id(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """The id decides after the key: an expired binding is not replaced by a create that makes nothing."""
    eid = await create(engine, idempotency_key="k", policy=WINDOW)
    clock.advance(1_000)
    async with unchanged(probe):
        assert await engine.create_execution(execution_id=eid, idempotency_key="k") == Duplicate(eid)


async def test_concurrent_creates_under_one_key(engine: Engine, probe: Probe) -> None:
    answers = await asyncio.gather(
        *(engine.create_execution(idempotency_key="k", lane_id=f"lane-{n % 3}") for n in range(20))
    )
    assert sum(isinstance(answer, Created) for answer in answers) == 1
    [eid] = {answer.execution_id for answer in answers}
    assert (await binding_of(probe)).uuid == eid.uuid_text


@shared_stores_only
async def test_two_engines_on_one_store(engine: Engine, open_engine: object) -> None:
    """What another process has bound is seen, although this one never read it."""
    other = await open_engine()  # type: ignore[operator]
    first = await create(engine, idempotency_key="k")
    eid = ExecutionId.solo(LaneId("default"), engine.partitions)
    assert await other.create_execution(idempotency_key="k") == Duplicate(first)
    answers = await asyncio.gather(
        *(each.create_execution(execution_id=eid, idempotency_key="k2") for each in (engine, other) * 5)
    )
    assert sum(isinstance(answer, Created) for answer in answers) == 1
    assert {answer.execution_id for answer in answers} == {eid}
