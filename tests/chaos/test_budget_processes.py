"""Several processes under one budget: never more than it allows, and a killed holder gives back what it held."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowfabric import ClaimPolicy, HardBreach, Reserved
from flowfabric.core.invariants.budgets import check_budgets
from flowfabric.engine import Engine
from flowfabric.model.records.budgets import Budget, BudgetSpend, BudgetUsage, Reservation
from tests.chaos.processes import peers
from tests.chaos.stores import SHARED
from tests.chaos.test_processes import at_once, introduced
from tests.contract.probe import ManualClock, Probe

BUDGET = "11111111-1111-4111-8111-111111111111"
LIMIT = 150


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that processes can share."""
    return SHARED[request.param](request, tmp_path)


async def _check(engine: Engine) -> None:
    probe = Probe(engine)
    rows = [await probe.select(kind, budget_id=BUDGET) for kind in (Budget, BudgetUsage, Reservation, BudgetSpend)]
    assert check_budgets(*rows) == []


async def test_two_processes_at_the_edge_and_one_that_dies(url: str) -> None:
    async with await Engine.open(url, single_node=True) as engine:
        await engine.create_budget(budget_id=BUDGET, dimensions=["a"], hard_limits=[LIMIT], soft_limits=[0])
        with peers(2) as processes:
            introduced(processes, url)
            granted = []
            for process, lane, ttl_ms in zip(processes, ("one", "two"), (3_600_000, 600_000), strict=True):
                process.tell("reserve", budget_id=BUDGET, count=100, lane=lane, ttl_ms=ttl_ms)
            granted = [process.hear() for process in processes]
            assert sum(granted) == LIMIT
            assert (await engine.get_budget_status(BUDGET)).reserved == {"a": LIMIT}
            await _check(engine)
            processes[1].kill()
            # Once its leases have run out, and no others, the timer gives back what they held, and nothing else.
            later = ManualClock(await engine.server_time_ms() + 1_200_000)
            async with await Engine.open(url, single_node=True, clock=later) as ahead:
                while (await engine.get_budget_status(BUDGET)).reserved != {"a": granted[0]}:
                    await ahead.run_timer("lease_expiry")
            await _check(engine)
            assert at_once(processes[:1], "reserve", budget_id=BUDGET, count=100, lane="three", ttl_ms=3_600_000) == [
                min(100, LIMIT - granted[0])
            ]
            await _check(engine)


async def test_room_made_in_one_process_wakes_a_claim_in_another(url: str) -> None:
    async with await Engine.open(url, single_node=True) as engine:
        await engine.create_budget(budget_id=BUDGET, dimensions=["a"], hard_limits=[1], soft_limits=[0])
        await engine.report_usage_admin(budget_id=BUDGET, dimensions=["a"], deltas=[1])
        await engine.create_execution(lane_id="bound", execution_kind="op", policy={"budget_ids": [BUDGET]})
        with peers(1) as processes:
            [sleeper] = introduced(processes, url)
            sleeper.tell("await_work", lane="bound", wait_ms=20_000)
            assert sleeper.hear() == "waiting"
            await engine.reset_budget(budget_id=BUDGET)
            # What follows a commit needs this process: it must not sleep meanwhile.
            assert await asyncio.to_thread(sleeper.hear) is not None
        assert await engine.claim("bound", (), ClaimPolicy("w", "w-1")) is None


async def test_a_reservation_may_be_settled_by_another_process(url: str) -> None:
    async with await Engine.open(url, single_node=True) as one, await Engine.open(url, single_node=True) as two:
        await one.create_budget(budget_id=BUDGET, dimensions=["a"], hard_limits=[10], soft_limits=[0])
        await one.create_execution(lane_id="x", execution_kind="op")
        handle = await one.claim("x", (), ClaimPolicy("w", "w-1"))
        assert handle is not None
        found = await one.reserve_budget(handle, BUDGET, {"a": 10})
        assert isinstance(found, Reserved)
        assert isinstance(await two.reserve_budget(handle, BUDGET, {"a": 1}), HardBreach)
        await two.settle_reservation(found.reservation_id, {"a": 4})
        assert isinstance(await one.reserve_budget(handle, BUDGET, {"a": 6}), Reserved)
        await two.complete(handle, None)
        await _check(one)
        assert (await one.get_budget_status(BUDGET)).usage == {"a": 4}
