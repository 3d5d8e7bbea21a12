"""Seed 000: what operators do to executions and flows, with gates, fences and outboxes."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from flowfabric import (
    AlreadySatisfied,
    CancelFlowHeader,
    Cancelled,
    CancelSource,
    ClaimPolicy,
    Contention,
    ContentionKind,
    Created,
    ExecutionId,
    FlowId,
    Handle,
    LaneId,
    PriorityChanged,
    PublicState,
    Replayed,
    Revoked,
    State,
    StateKind,
    Validation,
)
from flowfabric.engine import Engine
from flowfabric.model.partitions import flow_partition
from tests.seeds.support import Database, creation, is_number, now_ms


def new_lane() -> LaneId:
    return LaneId(f"lane-{uuid.uuid4()}")


async def create_runnable(engine: Engine, database: Database) -> tuple[ExecutionId, LaneId]:
    """Create an execution and force it to the shape the original's claim looks for."""
    lane_id = new_lane()
    execution_id = ExecutionId.solo(lane_id, engine.partitions)
    assert isinstance(await engine.create_execution(**creation(execution_id, lane_id)), Created)
    await database.execute(
        "UPDATE ff_exec_core SET lifecycle_phase='runnable', public_state='pending', "
        "attempt_state='initial' WHERE partition_key = ?1 AND execution_id = ?2",
        execution_id.partition,
        execution_id.uuid,
    )
    return execution_id, lane_id


async def create_and_claim(engine: Engine, database: Database) -> tuple[ExecutionId, Handle]:
    execution_id, lane_id = await create_runnable(engine, database)
    handle = await engine.claim(lane_id, set(), ClaimPolicy("w1", "w1-i1", 30_000, None))
    assert handle is not None
    return execution_id, handle


async def create_complete_terminal(engine: Engine, database: Database) -> ExecutionId:
    """Drive an execution to its end, so that a replay has something to lift back."""
    execution_id, handle = await create_and_claim(engine, database)
    await engine.complete(handle, None)
    assert await database.column(execution_id, "lifecycle_phase") == "terminal"
    return execution_id


async def count_outbox(database: Database, table: str, execution_id: ExecutionId) -> int:
    return await database.value(
        f"SELECT COUNT(*) FROM {table} WHERE execution_id = ?1 AND partition_key = ?2",
        str(execution_id.uuid),
        execution_id.partition,
    )


# -- cancel_execution --------------------------------------------------------------------------------------------------


async def test_cancel_execution_happy_path(engine: Engine, database: Database) -> None:
    execution_id, _ = await create_and_claim(engine, database)

    answer = await engine.cancel_execution(
        execution_id=execution_id,
        reason="operator test",
        source=CancelSource.OPERATOR_OVERRIDE,
        lease_id=None,
        lease_epoch=None,
        attempt_id=None,
        now=now_ms(),
    )
    assert isinstance(answer, Cancelled)
    assert answer.public_state is PublicState.CANCELLED

    assert await database.column(execution_id, "lifecycle_phase") == "cancelled"
    # A cancellation is told in the lease history only, and only because a lease stood.
    assert await count_outbox(database, "ff_operator_event", execution_id) == 0
    assert await count_outbox(database, "ff_lease_event", execution_id) == 2, "acquired + revoked"


async def test_cancel_execution_idempotent_when_already_cancelled(engine: Engine, database: Database) -> None:
    execution_id, _ = await create_and_claim(engine, database)

    arguments = {
        "execution_id": execution_id,
        "reason": "first",
        "source": CancelSource.OPERATOR_OVERRIDE,
        "lease_id": None,
        "lease_epoch": None,
        "attempt_id": None,
        "now": now_ms(),
    }
    await engine.cancel_execution(**arguments)
    assert isinstance(await engine.cancel_execution(**arguments), Cancelled)


async def test_cancel_execution_lease_fence_required_when_not_operator_override(
    engine: Engine, database: Database
) -> None:
    execution_id, _ = await create_and_claim(engine, database)

    with pytest.raises(Validation):
        await engine.cancel_execution(
            execution_id=execution_id,
            reason="no fence",
            source=CancelSource.LEASE_HOLDER,
            lease_id=None,
            lease_epoch=None,
            attempt_id=None,
            now=now_ms(),
        )


async def test_cancel_execution_stale_lease_fence_rejects(engine: Engine, database: Database) -> None:
    execution_id, _ = await create_and_claim(engine, database)

    with pytest.raises(State) as refused:
        await engine.cancel_execution(
            execution_id=execution_id,
            reason="bad fence",
            source=CancelSource.LEASE_HOLDER,
            lease_id=None,
            lease_epoch=999_999,
            attempt_id=None,
            now=now_ms(),
        )
    assert refused.value.kind is StateKind.STALE_LEASE


# -- revoke_lease ------------------------------------------------------------------------------------------------------


async def test_revoke_lease_happy_path(engine: Engine, database: Database) -> None:
    execution_id, _ = await create_and_claim(engine, database)

    answer = await engine.revoke_lease(
        execution_id=execution_id,
        expected_lease_id=None,
        worker_instance_id="w1-i1",
        reason="operator revoke",
    )
    assert isinstance(answer, Revoked)

    assert await count_outbox(database, "ff_lease_event", execution_id) == 2, "acquired + revoked"
    assert await database.column(execution_id, "lifecycle_phase") == "runnable"


async def test_revoke_lease_no_active_lease_returns_already_satisfied(engine: Engine, database: Database) -> None:
    execution_id, _ = await create_runnable(engine, database)

    answer = await engine.revoke_lease(
        execution_id=execution_id, expected_lease_id=None, worker_instance_id="w1-i1", reason="no lease"
    )
    assert isinstance(answer, AlreadySatisfied)
    assert answer.reason == "no_active_lease"


async def test_revoke_lease_different_worker_returns_already_satisfied(engine: Engine, database: Database) -> None:
    execution_id, _ = await create_and_claim(engine, database)

    answer = await engine.revoke_lease(
        execution_id=execution_id, expected_lease_id=None, worker_instance_id="w2-i1", reason="wrong worker"
    )
    assert isinstance(answer, AlreadySatisfied)
    assert answer.reason == "different_worker_instance_id"


# -- change_priority ---------------------------------------------------------------------------------------------------


async def test_change_priority_happy_path(engine: Engine, database: Database) -> None:
    execution_id, _ = await create_runnable(engine, database)
    await database.execute(
        "UPDATE ff_exec_core SET eligibility_state='eligible_now' WHERE partition_key = ?1 AND execution_id = ?2",
        execution_id.partition,
        execution_id.uuid,
    )

    answer = await engine.change_priority(
        execution_id=execution_id, new_priority=42, lane_id="lane-ignored-on-sqlite", now=now_ms()
    )
    assert isinstance(answer, PriorityChanged)

    assert await database.column(execution_id, "priority") == 42
    assert await count_outbox(database, "ff_operator_event", execution_id) == 1


async def test_change_priority_ineligible_execution_returns_not_eligible(engine: Engine) -> None:
    lane_id = new_lane()
    execution_id = ExecutionId.solo(lane_id, engine.partitions)
    await engine.create_execution(**creation(execution_id, lane_id))

    # The row is left as create made it.
    with pytest.raises(Contention) as refused:
        await engine.change_priority(execution_id=execution_id, new_priority=10, lane_id=lane_id, now=now_ms())
    assert refused.value.kind is ContentionKind.EXECUTION_NOT_ELIGIBLE


# -- replay_execution --------------------------------------------------------------------------------------------------


async def test_replay_execution_normal_branch(engine: Engine, database: Database) -> None:
    execution_id = await create_complete_terminal(engine, database)

    answer = await engine.replay_execution(execution_id=execution_id, now=now_ms())
    assert isinstance(answer, Replayed)
    assert answer.public_state is PublicState.WAITING

    assert await database.column(execution_id, "lifecycle_phase") == "runnable"
    assert is_number(await database.raw_field(execution_id, "replay_count"), 1)
    assert await count_outbox(database, "ff_operator_event", execution_id) == 1


async def test_replay_execution_skipped_flow_member_resets_edge_group_counters(
    engine: Engine, database: Database
) -> None:
    execution_id = await create_complete_terminal(engine, database)
    partition = execution_id.partition

    # Make it a skipped member: a flow nobody stored, an outcome, and one inbound edge with a group that has counted.
    fake_flow = uuid.uuid4()
    await database.execute(
        "UPDATE ff_exec_core SET flow_id = ?1 WHERE partition_key = ?2 AND execution_id = ?3",
        fake_flow,
        partition,
        execution_id.uuid,
    )
    await database.execute(
        "UPDATE ff_attempt SET outcome='skipped' WHERE partition_key = ?1 AND execution_id = ?2",
        partition,
        execution_id.uuid,
    )
    await database.execute(
        "INSERT INTO ff_edge (partition_key, flow_id, edge_id, upstream_eid, downstream_eid, policy, policy_version) "
        "VALUES (?1, ?2, ?3, ?4, ?5, '{}', 0)",
        partition,
        fake_flow,
        uuid.uuid4(),
        uuid.uuid4(),
        execution_id.uuid,
    )
    await database.execute(
        "INSERT INTO ff_edge_group (partition_key, flow_id, downstream_eid, "
        "policy, k_target, success_count, fail_count, skip_count, running_count) "
        "VALUES (?1, ?2, ?3, '{}', 1, 3, 5, 7, 2)",
        partition,
        fake_flow,
        execution_id.uuid,
    )

    answer = await engine.replay_execution(execution_id=execution_id, now=now_ms())
    assert isinstance(answer, Replayed)
    assert answer.public_state is PublicState.WAITING_CHILDREN

    success, fail, skip, running = await database.row(
        "SELECT success_count, fail_count, skip_count, running_count "
        "FROM ff_edge_group WHERE partition_key = ?1 AND flow_id = ?2 AND downstream_eid = ?3",
        partition,
        fake_flow,
        execution_id.uuid,
    )
    assert success == 3, "satisfied edges stay satisfied"
    assert fail == 0
    assert skip == 0
    assert running == 0

    details = await database.value(
        "SELECT details FROM ff_operator_event WHERE execution_id = ?1 AND event_type='replayed'",
        str(execution_id.uuid),
    )
    assert "skipped_flow_member" in details


async def test_replay_execution_non_terminal_returns_not_terminal(engine: Engine, database: Database) -> None:
    execution_id, _ = await create_runnable(engine, database)

    with pytest.raises(State) as refused:
        await engine.replay_execution(execution_id=execution_id, now=now_ms())
    assert refused.value.kind is StateKind.EXECUTION_NOT_TERMINAL


# -- concurrent cancel -------------------------------------------------------------------------------------------------


async def test_concurrent_cancel_serialization(engine: Engine, database: Database) -> None:
    execution_id, _ = await create_and_claim(engine, database)

    arguments = {
        "execution_id": execution_id,
        "reason": "concurrent",
        "source": CancelSource.OPERATOR_OVERRIDE,
        "lease_id": None,
        "lease_epoch": None,
        "attempt_id": None,
        "now": now_ms(),
    }
    first, second = await asyncio.gather(engine.cancel_execution(**arguments), engine.cancel_execution(**arguments))
    assert isinstance(first, Cancelled)
    assert isinstance(second, Cancelled)


# -- cancel_flow_header and ack_cancel_member --------------------------------------------------------------------------


async def seed_flow_with_members(engine: Engine, database: Database, flow_id: FlowId, count: int) -> list[ExecutionId]:
    """A flow and members that run, without attempts, past every operation that would make them."""
    partition = flow_partition(flow_id, engine.partitions)
    await database.execute(
        "INSERT INTO ff_flow_core "
        "(partition_key, flow_id, graph_revision, public_flow_state, created_at_ms, raw_fields) "
        "VALUES (?1, ?2, 0, 'open', ?3, '{}')",
        partition,
        flow_id.uuid,
        now_ms(),
    )
    members = []
    for _ in range(count):
        member = ExecutionId.for_flow(flow_id, engine.partitions)
        await database.execute(
            "INSERT INTO ff_exec_core "
            "(partition_key, execution_id, flow_id, lane_id, attempt_index, "
            "lifecycle_phase, ownership_state, eligibility_state, "
            "public_state, attempt_state, priority, created_at_ms, raw_fields) "
            "VALUES (?1, ?2, ?3, 'default', 0, "
            "'active', 'leased', 'eligible_now', 'running', 'running_attempt', "
            "0, ?4, '{}')",
            partition,
            member.uuid,
            flow_id.uuid,
            now_ms(),
        )
        members.append(member)
    return members


async def count_of_flow(database: Database, table: str, flow_id: FlowId) -> int:
    return await database.value(f"SELECT COUNT(*) FROM {table} WHERE flow_id = ?1", flow_id.uuid)


async def test_cancel_flow_header_happy_path_creates_backlog_and_flips_members(
    engine: Engine, database: Database
) -> None:
    flow_id = FlowId.new()
    await seed_flow_with_members(engine, database, flow_id, 3)

    answer = await engine.cancel_flow_header(
        flow_id=flow_id, reason="op-shutdown", cancellation_policy="cancel_all", now=now_ms()
    )
    assert isinstance(answer, CancelFlowHeader.Cancelled)
    assert answer.cancellation_policy == "cancel_all"
    assert len(answer.member_execution_ids) == 3

    assert await count_of_flow(database, "ff_cancel_backlog", flow_id) == 1
    assert await count_of_flow(database, "ff_cancel_backlog_member", flow_id) == 3

    cancelled = await database.value(
        "SELECT COUNT(*) FROM ff_exec_core WHERE flow_id = ?1 AND lifecycle_phase='cancelled'", flow_id.uuid
    )
    assert cancelled == 3

    flow_state = await database.value("SELECT public_flow_state FROM ff_flow_core WHERE flow_id = ?1", flow_id.uuid)
    assert flow_state == "cancelled"

    events = await database.value(
        "SELECT COUNT(*) FROM ff_operator_event WHERE event_type='flow_cancel_requested' AND execution_id = ?1",
        str(flow_id.uuid),
    )
    assert events == 1


async def test_cancel_flow_header_already_terminal_is_idempotent(engine: Engine, database: Database) -> None:
    flow_id = FlowId.new()
    await database.execute(
        "INSERT INTO ff_flow_core "
        "(partition_key, flow_id, graph_revision, public_flow_state, created_at_ms, raw_fields) "
        "VALUES (?1, ?2, 0, 'cancelled', ?3, ?4)",
        flow_partition(flow_id, engine.partitions),
        flow_id.uuid,
        now_ms(),
        json.dumps({"cancellation_policy": "flow_only", "cancel_reason": "prior"}),
    )

    answer = await engine.cancel_flow_header(
        flow_id=flow_id, reason="retry", cancellation_policy="cancel_all", now=now_ms()
    )
    assert isinstance(answer, CancelFlowHeader.AlreadyTerminal)
    assert answer.stored_cancellation_policy == "flow_only"
    assert answer.stored_cancel_reason == "prior"
    assert len(answer.member_execution_ids) == 0


async def test_ack_cancel_member_drains_and_deletes_parent_when_last(engine: Engine, database: Database) -> None:
    flow_id = FlowId.new()
    await seed_flow_with_members(engine, database, flow_id, 2)

    answer = await engine.cancel_flow_header(
        flow_id=flow_id, reason="test", cancellation_policy="cancel_all", now=now_ms()
    )
    assert isinstance(answer, CancelFlowHeader.Cancelled)
    first, second = map(ExecutionId.parse, answer.member_execution_ids)

    await engine.ack_cancel_member(flow_id, first)
    assert await count_of_flow(database, "ff_cancel_backlog", flow_id) == 1
    assert await count_of_flow(database, "ff_cancel_backlog_member", flow_id) == 1

    await engine.ack_cancel_member(flow_id, second)
    assert await count_of_flow(database, "ff_cancel_backlog", flow_id) == 0, "the header goes with the last member"
    assert await count_of_flow(database, "ff_cancel_backlog_member", flow_id) == 0


async def test_ack_cancel_member_idempotent_on_missing(engine: Engine) -> None:
    missing = ExecutionId.parse(f"{{fp:0}}:{uuid.uuid4()}")
    await engine.ack_cancel_member(FlowId.new(), missing)
