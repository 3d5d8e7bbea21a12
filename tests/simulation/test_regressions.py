"""Every disagreement that the machine or the batching test found, as the smallest story that shows it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from flowfabric import Admitted, Created, Duplicate, ExecutionId, RetryScheduled
from flowfabric.engine import Engine
from flowfabric.model.operations.executions import ResumeGrant, ResumeToken
from flowfabric.model.records.executions import Grant
from tests.contract.graphs import Flowing
from tests.contract.probe import ManualClock, Probe, claimed, create, id_of, policy

LANE = "lane-of-one"


def resume(execution_id: str) -> ResumeToken:
    """A token that takes over the newest attempt."""
    return ResumeToken(ResumeGrant(execution_id, "", "any", 2**62, LANE), "w2", "w2-a", 5_000)


async def test_a_blocked_row_has_no_wake_time(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    """It stayed behind when the row was let go, and timers kept looking at it for ever."""
    execution_id = await create(engine, lane_id=LANE, delay_until=clock.now_ms + 1_000)
    await engine.block_execution_for_admission(execution_id=execution_id, reason="paused_by_operator")
    await engine.unblock_execution(execution_id=execution_id)
    row = await probe.execution(execution_id)
    assert (row.eligibility_state, row.delay_until_ms) == ("eligible_now", None)


async def test_taking_over_a_delayed_row_clears_its_wake_time(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    """The running row kept it, and was delayed as soon as it waited again."""
    handle = await claimed(engine)
    await engine.delay(handle, clock.now_ms + 1_000)
    assert await engine.claim_from_resume_grant(resume(id_of(handle))) is not None
    row = await probe.execution(id_of(handle))
    assert (row.lifecycle_phase, row.delay_until_ms) == ("active", None)


async def test_taking_over_a_promised_row_voids_the_promise(engine: Engine, probe: Probe) -> None:
    """The grant outlived it: a row that nobody was promised could not be promised to anybody."""
    handle = await claimed(engine)
    execution_id = id_of(handle)
    await engine.wait_children(handle)
    promise: dict[str, Any] = {"lane_id": LANE, "worker_id": "w1", "worker_instance_id": "w1-a"}
    await engine.issue_claim_grant(execution_id=execution_id, **promise)
    taken = await engine.claim_from_resume_grant(resume(execution_id))
    assert taken is not None
    assert await probe.select(Grant, uuid=execution_id.uuid_text) == []
    await engine.wait_children(taken)
    await engine.issue_claim_grant(execution_id=execution_id, **promise)


async def test_an_attempt_taken_over_keeps_its_type(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    """A retry whose lease had run out was called an initial attempt afterwards."""
    first = await claimed(engine)
    await engine.fail(first, "no")
    second = await engine.claim(LANE, (), policy(ttl_ms=1_000))
    assert second is not None
    clock.advance(1_000)
    assert await engine.claim_from_resume_grant(resume(id_of(first))) is not None
    assert [attempt.attempt_type for attempt in await probe.attempts(id_of(first))] == ["initial", "retry"]


async def test_a_bound_key_is_looked_up_even_for_an_id_that_was_just_created(engine: Engine) -> None:
    """Creates hope that keys are free and let the insert prove it; a duplicate id inserts nothing."""
    bound = await create(engine, lane_id=LANE, idempotency_key="key")
    other = ExecutionId.solo(LANE, engine.partitions)
    answers = await engine.create_executions(
        [
            {"execution_id": other, "lane_id": LANE},
            {"execution_id": other, "lane_id": LANE, "idempotency_key": "key"},
        ]
    )
    assert isinstance(answers[0], Created)
    assert answers[1] == Duplicate(bound)


async def test_a_tag_does_not_hide_a_row_whose_promise_has_run_out(engine: Engine, clock: ManualClock) -> None:
    """Set in the same batch as the claim, it did."""
    execution_id = await create(engine, lane_id=LANE)
    await engine.claim_for_worker(
        lane_id=LANE, worker_id="w1", worker_instance_id="w1-a", worker_capabilities=(), grant_ttl_ms=1_000
    )
    clock.advance(1_000)
    _, handle = await asyncio.gather(
        engine.set_execution_tag(execution_id, "team.name", "a"), engine.claim(LANE, (), policy())
    )
    assert handle is not None
    assert id_of(handle) == execution_id


async def test_a_promise_made_in_the_batch_hides_the_row(engine: Engine, clock: ManualClock) -> None:
    """The other side of the same rule."""
    execution_id = await create(engine, lane_id=LANE)
    promise: dict[str, Any] = {"lane_id": LANE, "worker_id": "w1", "worker_instance_id": "w1-a"}
    await engine.issue_claim_grant(execution_id=execution_id, grant_ttl_ms=1_000, **promise)
    clock.advance(1_000)
    _, handle = await asyncio.gather(
        engine.issue_claim_grant(execution_id=execution_id, grant_ttl_ms=1_000, **promise),
        engine.claim(LANE, (), policy()),
    )
    assert handle is None


async def test_a_failure_repeated_gets_the_same_answer(engine: Engine) -> None:
    """Its next attempt was missing from the second answer."""
    handle = await claimed(engine)
    first = await engine.fail(handle, "no")
    assert isinstance(first, RetryScheduled)
    assert await engine.fail(handle, "no") == first


async def test_a_row_whose_promise_has_run_out_is_listed_as_eligible(engine: Engine, clock: ManualClock) -> None:
    """It could be claimed but was not listed until the sweeper had been there."""
    execution_id = await create(engine, lane_id=LANE)
    promise: dict[str, Any] = {"lane_id": LANE, "worker_id": "w1", "worker_instance_id": "w1-a"}
    await engine.issue_claim_grant(execution_id=execution_id, grant_ttl_ms=1_000, **promise)
    assert await engine.scan_eligible_executions(LANE) == ()
    clock.advance(1_000)
    assert await engine.scan_eligible_executions(LANE) == (execution_id,)


async def test_a_lost_lease_is_announced_once(open_engine: Any, clock: ManualClock) -> None:
    """Marked as expired, then timed out: the second step announced the expiry again."""
    engine = await open_engine(reclaim_grace_ms=60_000)
    handle = await claimed(engine, ttl_ms=1_000, policy={"timeout_policy": {"attempt_timeout_ms": 2_000}})
    clock.advance(2_000)
    await engine.run_timer("lease_expiry")
    await engine.run_timer("attempt_timeout")
    assert await Probe(engine).lease_events(id_of(handle)) == ["acquired", "expired"]


async def test_room_in_a_budget_does_not_free_a_member_that_waits_for_others(engine: Engine, probe: Probe) -> None:
    """Blocked by a budget when the edge was applied, it was let go as soon as there was room, parents or not."""
    flow = await Flowing.build(engine, ("parent",))
    budget = str(uuid.uuid4())
    await engine.create_budget(budget_id=budget, dimensions=("calls",), hard_limits=(1,), soft_limits=(0,))
    await engine.report_usage_admin(budget_id=budget, dimensions=("calls",), deltas=(1,))
    child = await flow.add("child", lane_id=LANE, policy={"budget_ids": [budget]})
    assert await engine.claim(LANE, (), policy()) is None
    await flow.join("parent", "child")
    await engine.reset_budget(budget_id=budget)
    await engine.run_timer("unblock")
    row = await probe.execution(child)
    assert (row.eligibility_state, row.public_state) == ("blocked_by_dependencies", "waiting_children")
    assert await engine.claim(LANE, (), policy()) is None


async def test_a_slot_that_was_never_taken_is_not_given_back(engine: Engine) -> None:
    """Admitted by numbers without a cap, the execution freed the slot of another one when it ended."""
    quota = str(uuid.uuid4())
    await engine.create_quota_policy(quota_policy_id=quota, window_seconds=60, max_concurrent=1)
    bound = {"quota_policy_id": quota}
    first = await create(engine, lane_id=LANE, policy=bound)
    assert await engine.claim(LANE, (), policy()) is not None
    second = await create(engine, lane_id=LANE, policy=bound)
    assert isinstance(await engine.check_admission(quota, execution_id=second, window_seconds=60), Admitted)
    await engine.cancel_execution(execution_id=second)
    (found,) = (await engine.list_quota_policies()).policies
    assert found.active_concurrency == 1
    await engine.cancel_execution(execution_id=first)
    (found,) = (await engine.list_quota_policies()).policies
    assert found.active_concurrency == 0


async def test_what_names_a_budget_is_claimed_in_the_batch_that_created_it(engine: Engine) -> None:
    """Looking ahead at what its own batch had made claimable, the claim fell over."""
    budget = str(uuid.uuid4())
    await engine.create_budget(budget_id=budget, dimensions=("calls",), hard_limits=(5,), soft_limits=(0,))
    bound = {"budget_ids": [budget]}
    await create(engine, lane_id=LANE, policy=bound, priority=1)
    created, *handles = await asyncio.gather(
        engine.create_execution(lane_id=LANE, policy=bound),
        *(engine.claim(LANE, (), policy()) for _ in range(2)),
    )
    assert isinstance(created, Created)
    assert None not in handles


async def test_a_key_that_is_bound_does_not_change_the_order_of_claims(engine: Engine, clock: ManualClock) -> None:
    """The create lost a race that was none, and claims thought of others who wanted the head of the queue."""
    await create(engine, lane_id="elsewhere", idempotency_key="key")
    made = []
    for _ in range(6):
        made.append(await create(engine, lane_id=LANE))
        clock.advance(1)
    again, first = await asyncio.gather(
        engine.create_execution(lane_id="elsewhere", idempotency_key="key"), engine.claim(LANE, (), policy())
    )
    assert isinstance(again, Duplicate)
    handles = [first, *[await engine.claim(LANE, (), policy()) for _ in range(5)]]
    assert [id_of(handle) for handle in handles if handle is not None] == made
