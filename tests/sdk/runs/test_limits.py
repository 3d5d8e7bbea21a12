"""Keyed limits hold exactly, whatever workers do."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from flowfabric import App, Limit, Rate, minutes


async def test_never_more_at_once_than_the_limit(app: App) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @app.task(limits=[Limit(2, key="tenant")])
    async def task(tenant: str, n: int) -> int:
        running[tenant] += 1
        most[tenant] = max(most[tenant], running[tenant])
        await asyncio.sleep(0.01)
        running[tenant] -= 1
        return n

    calls = [("a", n) for n in range(20)] + [("b", n) for n in range(5)]
    async with app.worker(concurrency=16), app.worker(concurrency=16):
        runs = await task.start_many(calls)
        results = await asyncio.gather(*(run.result(timeout=minutes(1)) for run in runs))
    assert results == [n for _, n in calls]
    assert most == {"a": 2, "b": 2}


async def test_limits_that_nothing_uses_are_deleted_and_made_again() -> None:
    app = App("limited", namespace="own")
    running: set[str] = set()

    @app.task(limits=[Limit(1, key="tenant")])
    async def task(tenant: str) -> None:
        assert tenant not in running
        running.add(tenant)
        await asyncio.sleep(0)
        running.discard(tenant)

    @app.task(limits=[Limit(1)])
    async def single() -> None: ...

    async def there(days: int) -> int:
        """How many quotas are there so many days later, once nothing is left of ended runs."""
        for _ in range(days):
            t.clock.move_to(t.clock.now_ms + 86_400_000)
            await app.engine.run_timer("retention_trimmer")
            await app.engine.run_timer("idle_gates")
        return len((await app.engine.list_quota_policies()).policies)

    async with app.testing() as t:
        tenants = [f"tenant {n}" for n in range(5)]
        for _ in range(3):
            runs = await task.start_many([(each,) for each in tenants * 2])
            runs.append(await single.start())
            assert await there(0) == 6
            for run in runs:
                await run.result()
            # The one that is there once and for all stays.
            assert await there(5) == 1


async def test_a_limit_of_a_schedule_stays() -> None:
    app = App("limited", namespace="own")

    @app.task(limits=[Limit(1, key="tenant")])
    async def task(tenant: str) -> None: ...

    app.schedule(task, name="weekly", every=timedelta(days=7), arguments=("a",))
    async with app.testing() as t:
        for _ in range(10):
            t.clock.move_to(t.clock.now_ms + 86_400_000)
            await app.engine.run_timer("idle_gates")
        assert len((await app.engine.list_quota_policies()).policies) == 1


async def test_one_limit_for_all(app: App) -> None:
    running = most = 0

    @app.task(limits=[Limit(3)])
    def task(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1

    async with app.worker(concurrency=16):
        runs = await task.start_many(range(20))
        await asyncio.gather(*(run.result(timeout=minutes(1)) for run in runs))
    assert 1 <= most <= 3


async def test_a_rate_holds_back(app: App) -> None:
    done = []

    @app.task(limits=[Rate(3, per=minutes(10), key="tenant")])
    async def task(tenant: str, n: int) -> None:
        done.append(tenant)

    async with app.worker(concurrency=16):
        runs = await task.start_many([("a", n) for n in range(6)] + [("b", n) for n in range(3)])
        ends = [asyncio.create_task(run.result()) for run in runs]
        await asyncio.wait_for(asyncio.gather(*ends[6:]), 60)
        ended: set[asyncio.Task[None]] = set()
        while len(ended) < 6:
            ended, _ = await asyncio.wait(
                [end for end in ends if end not in ended], return_when=asyncio.FIRST_COMPLETED
            )
            ended = {end for end in ends if end.done()}
        late = [run for run, end in zip(runs, ends, strict=True) if end not in ended]
        assert len(late) == 3
        assert "quota" in (await late[0].explain()).gate
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
    assert Counter(done) == {"a": 3, "b": 3}


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_a_full_key_holds_up_no_other(app: App, concurrency: int) -> None:
    free = asyncio.Event()

    @app.task(limits=[Limit(1, key="tenant")])
    async def task(tenant: str) -> str:
        if tenant == "slow" and concurrency > 1:
            await free.wait()
        return tenant

    async with app.worker(concurrency=concurrency):
        slow = await task.start_many(["slow"] * 5)
        quick = await task.start_many(["quick"] * 5)
        assert [await run.result(timeout=minutes(1)) for run in quick] == ["quick"] * 5
        free.set()
        assert [await run.result(timeout=minutes(1)) for run in slow] == ["slow"] * 5
