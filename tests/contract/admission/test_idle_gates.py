"""Quotas and budgets that apps made are deleted when nothing uses them any more, and only then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric import CreateBudgetResult, CreateQuotaPolicyResult, ExecutionId
from flowfabric.engine import Engine
from flowfabric.model.limits import BUDGET_IDLE_MS, GATE_KNOWN_MS, QUOTA_IDLE_MS, RETENTION_MS
from flowfabric.model.ownership import owned_name
from flowfabric.model.records.starts import EnqueueRequest
from tests.conftest import full_run
from tests.contract.admission.test_budgets import ONE, THREE, TWO
from tests.contract.probe import ManualClock, Probe, create, policy, unchanged
from tests.contract.seeding import seed

FOUR = ONE[:-1] + "4"
HOUR, DAY = 3_600_000, 86_400_000


async def quota(engine: Engine, id: str = ONE, **numbers: Any) -> Any:
    """A quota as an app makes it."""
    numbers = {"max_concurrent": 1, "namespace": "n", "kept": False, **numbers}
    return await engine.create_quota_policy(quota_policy_id=id, **numbers)


async def budget(engine: Engine, id: str = ONE, **more: Any) -> Any:
    """A budget as an app makes it."""
    terms = {"dimensions": ["usd"], "hard_limits": [100], "soft_limits": [0], "namespace": "n", "kept": False}
    return await engine.create_budget(budget_id=id, **{**terms, **more})


async def left(engine: Engine, clock: ManualClock, passed_ms: int) -> set[str]:
    """The quotas and budgets that are there some time later, once the timer has looked."""
    clock.advance(passed_ms)
    await engine.run_timer("idle_gates")
    quotas = {each.quota_policy_id for each in (await engine.list_quota_policies()).policies}
    return quotas | {each.budget_id for each in (await engine.list_budgets()).budgets}


async def named(engine: Engine, **names: Any) -> ExecutionId:
    """An execution that names something."""
    return await create(engine, namespace="n", lane_id="one", policy=names)


async def ended(engine: Engine) -> None:
    """Somebody runs the next execution to its end."""
    handle = await engine.claim("one", None, policy())
    assert handle is not None
    await engine.complete(handle, b"")


async def nothing_is_left_of_what_nothing_uses(engine: Engine, clock: ManualClock) -> None:
    """A quota and a budget come and go."""
    await quota(engine, ONE)
    await budget(engine, TWO, reset_interval_ms=DAY)
    assert await left(engine, clock, QUOTA_IDLE_MS - 1) == {ONE, TWO}
    assert await left(engine, clock, 1) == {TWO}
    assert await left(engine, clock, BUDGET_IDLE_MS) == set()


async def test_what_nothing_uses_is_deleted(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    async with unchanged(probe):
        await nothing_is_left_of_what_nothing_uses(engine, clock)
    assert isinstance(await quota(engine, ONE), CreateQuotaPolicyResult.Created)
    assert isinstance(await budget(engine, TWO), CreateBudgetResult.Created)


async def test_what_is_kept_stays(engine: Engine, clock: ManualClock) -> None:
    await quota(engine, ONE, kept=True)
    await budget(engine, TWO, kept=True)
    # Others may make the same one without a wish to keep it, before or after.
    await quota(engine, ONE)
    await budget(engine, THREE)
    await budget(engine, THREE, kept=True)
    assert await left(engine, clock, 2 * BUDGET_IDLE_MS) == {ONE, TWO, THREE}


async def test_who_makes_it_again_puts_its_end_off(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await quota(engine, ONE)
    clock.advance(GATE_KNOWN_MS // 2)
    async with unchanged(probe):
        await quota(engine, ONE)  # too early to be worth a write
    assert await left(engine, clock, QUOTA_IDLE_MS - HOUR) == {ONE}
    await quota(engine, ONE)
    assert await left(engine, clock, QUOTA_IDLE_MS - 1) == {ONE}
    assert await left(engine, clock, 1) == set()


@pytest.mark.parametrize("name", [ONE, owned_name(ONE, "n")], ids=["plain", "owned"])
async def test_what_a_kept_execution_names_stays(engine: Engine, clock: ManualClock, name: str) -> None:
    await quota(engine, ONE)
    await budget(engine, TWO)
    await budget(engine, THREE)
    own = [name.replace(ONE, each) for each in (FOUR, THREE)]
    await budget(engine, FOUR)
    await named(engine, quota_policy_id=name, budget_ids=own)
    await named(engine, budget_ids=[name.replace(ONE, TWO)])
    assert await left(engine, clock, 2 * BUDGET_IDLE_MS) == {ONE, TWO, THREE, FOUR}
    await ended(engine)
    await ended(engine)
    # It may run again, by hand, as long as it is there.
    assert await left(engine, clock, RETENTION_MS // 2) == {ONE, TWO, THREE, FOUR}
    clock.advance(RETENTION_MS)
    await engine.run_timer("retention_trimmer")
    assert await left(engine, clock, 2 * BUDGET_IDLE_MS) == set()


async def test_an_admission_that_counts_is_not_lost(engine: Engine, clock: ManualClock) -> None:
    await quota(engine, ONE, max_concurrent=0, max_requests_per_window=1, window_seconds=10 * DAY // 1000)
    await named(engine, quota_policy_id=ONE)
    await ended(engine)
    clock.advance(2 * RETENTION_MS)
    await engine.run_timer("retention_trimmer")
    assert await left(engine, clock, QUOTA_IDLE_MS) == {ONE}
    await named(engine, quota_policy_id=ONE)
    assert await engine.claim("one", None, policy()) is None
    # The window slides on, and the second one runs and ends.
    clock.advance(8 * DAY)
    await engine.run_timer("quota_window")
    await ended(engine)
    clock.advance(2 * RETENTION_MS)
    await engine.run_timer("retention_trimmer")
    clock.advance(11 * DAY)
    await engine.run_timer("quota_reconciler")
    assert await left(engine, clock, QUOTA_IDLE_MS) == set()


async def test_a_balance_is_not_lost(engine: Engine, clock: ManualClock) -> None:
    await budget(engine, ONE)
    await budget(engine, TWO, reset_interval_ms=40 * DAY)
    for each in (ONE, TWO):
        await engine.report_usage_admin(budget_id=each, dimensions=["usd"], deltas=[7], namespace="n")
    assert await left(engine, clock, BUDGET_IDLE_MS) == {ONE, TWO}
    clock.advance(10 * DAY)
    await engine.run_timer("budget_reset")
    assert await left(engine, clock, BUDGET_IDLE_MS) == {ONE}
    assert await left(engine, clock, 10 * BUDGET_IDLE_MS) == {ONE}


async def test_what_can_be_given_back_is_not_lost(engine: Engine, clock: ManualClock) -> None:
    await budget(engine, ONE)
    execution = await named(engine)
    await engine.record_spend(budget_id=ONE, execution_id=execution, deltas={"usd": 7})
    await engine.report_usage_admin(budget_id=ONE, dimensions=["usd"], deltas=[0], namespace="n")
    await engine.reset_budget(budget_id=ONE, namespace="n")
    assert await left(engine, clock, BUDGET_IDLE_MS) == {ONE}
    await engine.release_budget(budget_id=ONE, execution_id=execution)
    assert await left(engine, clock, BUDGET_IDLE_MS) == set()


async def test_budgets_go_after_those_below_them(engine: Engine, clock: ManualClock) -> None:
    await budget(engine, ONE)
    await budget(engine, TWO, parent_budget_id=ONE)
    await budget(engine, THREE, parent_budget_id=TWO)
    await named(engine, budget_ids=[THREE])
    assert await left(engine, clock, BUDGET_IDLE_MS) == {ONE, TWO, THREE}
    await ended(engine)
    clock.advance(2 * RETENTION_MS)
    await engine.run_timer("retention_trimmer")
    assert await left(engine, clock, BUDGET_IDLE_MS) == {ONE, TWO}
    assert await left(engine, clock, BUDGET_IDLE_MS) == {ONE}
    assert await left(engine, clock, BUDGET_IDLE_MS) == set()


async def test_a_new_budget_keeps_those_above_it(engine: Engine, clock: ManualClock) -> None:
    await budget(engine, ONE)
    clock.advance(BUDGET_IDLE_MS - 1)
    await budget(engine, TWO, parent_budget_id=ONE)
    assert await left(engine, clock, 1) == {ONE, TWO}


async def test_what_is_changed_by_hand_stays(engine: Engine, clock: ManualClock) -> None:
    await quota(engine, ONE)
    await engine.check_admission(
        ONE, execution_id=await named(engine), window_seconds=60, concurrency_cap=1, namespace="n"
    )
    await budget(engine, TWO)
    await engine.set_budget_limits(budget_id=TWO, hard_limits={"usd": 5}, namespace="n")
    assert await left(engine, clock, 2 * BUDGET_IDLE_MS) == {ONE, TWO}


async def test_a_start_that_was_written_down_long_ago_finds_its_limit(engine: Engine, clock: ManualClock) -> None:
    """Nothing has made executions of requests for two days, and the first timer that runs again is this one."""
    await quota(engine, ONE)
    wanted = json.dumps({"lane_id": "one", "namespace": "n", "policy": {"quota_policy_id": ONE}})
    await seed(engine, EnqueueRequest(FOUR, clock.now_ms, None, wanted))
    assert await left(engine, clock, 2 * QUOTA_IDLE_MS) == {ONE}
    await engine.run_timer("enqueue_requests")
    assert await left(engine, clock, 2 * QUOTA_IDLE_MS) == {ONE}
    await ended(engine)
    clock.advance(2 * RETENTION_MS)
    await engine.run_timer("retention_trimmer")
    assert await left(engine, clock, QUOTA_IDLE_MS) == set()


async def test_each_is_looked_at_once_in_a_while(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, those that are used cost a turn of the timer nothing until they are looked at again."""
    number = 100_000 if full_run() and engine.backend_label == "memory" else 300
    for start in range(0, number, 100):
        for each in range(start, start + 100):
            await quota(engine, f"{each:08d}{ONE[8:]}")
    await named(engine, quota_policy_id=f"{7:08d}{ONE[8:]}")
    clock.advance(QUOTA_IDLE_MS)
    commands: list[Any] = []
    submit = Engine._submit

    async def counted(self: Any, command: Any, *more: Any) -> Any:
        commands.append(command)
        return await submit(self, command, *more)

    monkeypatch.setattr(Engine, "_submit", counted)
    done = [await engine.run_timer("idle_gates", 200) for _ in range(number // 200 + 2)]
    assert sum(done) == len(commands) == number
    [rest] = (await engine.list_quota_policies()).policies
    assert rest.quota_policy_id == f"{7:08d}{ONE[8:]}"
    for timer in ("idle_gates", "quota_reconciler", "budget_reconciler", "budget_reset", "quota_window"):
        await engine.run_timer(timer)
    assert len(commands) == number
