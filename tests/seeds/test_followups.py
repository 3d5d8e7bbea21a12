"""Seed 003: the first claim sets the start once; cancelling a flow clears stale outcomes."""

from __future__ import annotations

import asyncio

from flowfabric import CancelFlowResult, ClaimPolicy, ExecutionId, FlowId, LaneId
from flowfabric.engine import Engine
from flowfabric.model.partitions import flow_partition
from tests.seeds.support import Database, creation, now_ms, uuid_like


async def create_runnable(engine: Engine, database: Database, lane_id: LaneId, execution_id: ExecutionId) -> None:
    """Create an execution and force it to the shape the original's claim looks for."""
    await engine.create_execution(**creation(execution_id, lane_id))
    await database.execute(
        "UPDATE ff_exec_core SET lifecycle_phase='runnable', eligibility_state='eligible_now', "
        "attempt_state='initial' WHERE partition_key = ?1 AND execution_id = ?2",
        execution_id.partition,
        execution_id.uuid,
    )


async def test_sqlite_first_claim_populates_started_at_ms_set_once(engine: Engine, database: Database) -> None:
    lane_id = LaneId(f"wave9-356-{uuid_like()}")
    execution_id = ExecutionId.solo(lane_id, engine.partitions)
    await create_runnable(engine, database, lane_id, execution_id)

    assert await database.column(execution_id, "started_at_ms") is None

    policy = ClaimPolicy("w356", "w356-i1", 30_000, None)
    assert await engine.claim(lane_id, set(), policy) is not None
    first = await database.column(execution_id, "started_at_ms")
    assert first is not None

    # Back to the queue under the next attempt, behind the engine's back.
    await database.execute(
        "UPDATE ff_exec_core SET lifecycle_phase='runnable', ownership_state='unowned', "
        "eligibility_state='eligible_now', attempt_state='initial', "
        "attempt_index=attempt_index+1 "
        "WHERE partition_key = ?1 AND execution_id = ?2",
        execution_id.partition,
        execution_id.uuid,
    )
    # The clock has to move, or an overwritten start could look like the first one.
    await asyncio.sleep(0.005)

    assert await engine.claim(lane_id, set(), policy) is not None
    second = await database.column(execution_id, "started_at_ms")
    assert second is not None
    assert first == second


async def test_sqlite_cancel_flow_clears_member_attempt_outcome(engine: Engine, database: Database) -> None:
    lane_id = LaneId("wave9-355-cancel-flow")
    flow_id = FlowId.new()
    execution_id = ExecutionId.for_flow(flow_id, engine.partitions)
    await create_runnable(engine, database, lane_id, execution_id)

    await database.execute(
        "INSERT INTO ff_flow_core (partition_key, flow_id, graph_revision, public_flow_state, created_at_ms) "
        "VALUES (?1, ?2, 0, 'open', ?3)",
        flow_partition(flow_id, engine.partitions),
        flow_id.uuid,
        now_ms(),
    )
    await database.execute(
        "UPDATE ff_exec_core SET flow_id = ?1 WHERE partition_key = ?2 AND execution_id = ?3",
        flow_id.uuid,
        execution_id.partition,
        execution_id.uuid,
    )
    await database.execute(
        "INSERT INTO ff_attempt (partition_key, execution_id, attempt_index, lease_epoch, outcome) "
        "VALUES (?1, ?2, 0, 1, 'retry')",
        execution_id.partition,
        execution_id.uuid,
    )
    assert await database.attempt_column(execution_id, 0, "outcome") == "retry"

    answer = await engine.cancel_flow(flow_id, "cancel_all", wait_ms=0)
    assert isinstance(answer, CancelFlowResult.Cancelled)

    assert await database.attempt_column(execution_id, 0, "outcome") is None
