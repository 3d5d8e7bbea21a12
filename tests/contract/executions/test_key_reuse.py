"""A bound idempotency key may be bound anew when its execution has ended, if the caller says so."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric import Created, Duplicate, ExecutionId
from flowfabric.engine import Engine
from flowfabric.model.policy import WHILE_KEPT_MS
from tests.contract.probe import ManualClock, Probe, create, shared_stores_only, unchanged

DAY_MS = 86_400_000


async def cancelled(engine: Engine, execution_id: ExecutionId) -> None:
    await engine.cancel_execution(execution_id=execution_id)


@pytest.mark.parametrize("reuse", ["never", "ended"])
async def test_a_key_leads_to_what_is_under_way(engine: Engine, probe: Probe, reuse: str) -> None:
    first = await create(engine, idempotency_key="k", key_reuse=reuse)
    async with unchanged(probe):
        assert await engine.create_execution(idempotency_key="k", key_reuse=reuse) == Duplicate(first)


async def test_a_key_leads_to_what_has_ended(engine: Engine, probe: Probe) -> None:
    first = await create(engine, idempotency_key="k")
    await cancelled(engine, first)
    async with unchanged(probe):
        assert await engine.create_execution(idempotency_key="k", key_reuse="never") == Duplicate(first)


async def test_a_key_is_bound_anew_after_an_end(engine: Engine) -> None:
    made = [await create(engine, idempotency_key="k")]
    for _ in range(3):
        await cancelled(engine, made[-1])
        answer = await engine.create_execution(idempotency_key="k", key_reuse="ended")
        assert isinstance(answer, Created)
        made.append(answer.execution_id)
        # From now on the key leads to the new one, for everybody.
        assert await engine.create_execution(idempotency_key="k") == Duplicate(made[-1])
    assert len(set(made)) == 4


@pytest.mark.parametrize("reuse", ["never", "ended"])
async def test_a_key_outlives_what_was_deleted(engine: Engine, clock: ManualClock, reuse: str) -> None:
    """Neither a window beyond retention nor a retention below the window does the order twice."""
    long = {"dedup_window_ms": 10 * DAY_MS}
    short = {"dedup_window_ms": DAY_MS + 2, "stream_policy": {"retention_ttl_ms": 1}}
    made = {key: await create(engine, idempotency_key=key, policy=each) for key, each in (("l", long), ("s", short))}
    for each in made.values():
        await cancelled(engine, each)
    clock.advance(DAY_MS + 1)
    assert await engine.trim_retention() == 2
    assert not (await engine.read_execution_contexts(list(made.values()))), "both are gone"
    for key, each in made.items():
        answer = await engine.create_execution(idempotency_key=key, key_reuse=reuse)
        assert answer == Duplicate(each) if reuse == "never" else isinstance(answer, Created)
    clock.advance(10 * DAY_MS)
    await engine.run_timer("retention_trimmer")
    for key in made:
        assert isinstance(await engine.create_execution(idempotency_key=key), Created), "their time is over"


@pytest.mark.parametrize("reuse", ["never", "ended"])
async def test_a_key_bound_while_its_execution_is_kept_goes_with_it(
    engine: Engine, clock: ManualClock, reuse: str
) -> None:
    policy = {"dedup_window_ms": WHILE_KEPT_MS}
    first = await create(engine, idempotency_key="k", policy=policy)
    await cancelled(engine, first)
    clock.advance(DAY_MS + 1)
    assert await engine.trim_retention() == 1
    second = await create(engine, idempotency_key="k", key_reuse=reuse, policy=policy)
    assert second != first
    assert await engine.create_execution(idempotency_key="k") == Duplicate(second)


async def test_of_many_callers_one_binds_anew(engine: Engine) -> None:
    first = await create(engine, idempotency_key="k")
    await cancelled(engine, first)
    answers = await asyncio.gather(
        *(engine.create_execution(idempotency_key="k", key_reuse="ended", lane_id=f"l{n % 3}") for n in range(20))
    )
    assert sum(isinstance(answer, Created) for answer in answers) == 1
    [again] = {answer.execution_id for answer in answers}
    assert again != first


@shared_stores_only
async def test_of_two_engines_one_binds_anew(engine: Engine, open_engine: object) -> None:
    other = await open_engine()  # type: ignore[operator]
    for key in ("a", "b", "c"):
        first = await create(engine, idempotency_key=key)
        await cancelled(other, first)
        answers = await asyncio.gather(
            *(each.create_execution(idempotency_key=key, key_reuse="ended") for each in (engine, other) * 5)
        )
        assert sum(isinstance(answer, Created) for answer in answers) == 1
        assert len({answer.execution_id for answer in answers}) == 1


async def test_many_at_once(engine: Engine) -> None:
    first = await create(engine, idempotency_key="a")
    going_on = await create(engine, idempotency_key="b")
    await cancelled(engine, first)
    again = {"key_reuse": "ended"}
    one, two, three = await engine.create_executions(
        [{"idempotency_key": "a", **again}, {"idempotency_key": "a", **again}, {"idempotency_key": "b", **again}]
    )
    assert isinstance(one, Created)
    assert two == Duplicate(one.execution_id)
    assert three == Duplicate(going_on)
