"""Seed 001: reprioritise, replay and cancel a flow, on rows that were put there by SQL."""

from __future__ import annotations

import json
import uuid

import pytest

from flowfabric import (
    CancelFlowHeader,
    Contention,
    ContentionKind,
    ExecutionId,
    FlowId,
    LaneId,
    PriorityChanged,
    PublicState,
    Replayed,
    State,
    StateKind,
)
from flowfabric.engine import Engine
from flowfabric.model.partitions import flow_partition
from tests.seeds.support import Database, is_number, now_ms


@pytest.fixture
def execution_id(engine: Engine) -> ExecutionId:
    """An id for which no row exists yet."""
    return ExecutionId.solo(LaneId("default"), engine.partitions)


async def insert_exec_core(
    database: Database,
    execution_id: ExecutionId,
    flow_id: uuid.UUID | None,
    *,
    lifecycle_phase: str,
    eligibility_state: str,
    ownership_state: str,
    public_state: str,
    attempt_state: str,
    attempt_index: int,
    priority: int,
) -> None:
    await database.execute(
        "INSERT INTO ff_exec_core "
        "(partition_key, execution_id, flow_id, lane_id, attempt_index, "
        "lifecycle_phase, ownership_state, eligibility_state, "
        "public_state, attempt_state, priority, created_at_ms, raw_fields) "
        "VALUES (?1, ?2, ?3, 'default', ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, '{}')",
        execution_id.partition,
        execution_id.uuid,
        flow_id,
        attempt_index,
        lifecycle_phase,
        ownership_state,
        eligibility_state,
        public_state,
        attempt_state,
        priority,
        now_ms(),
    )


async def insert_attempt(
    database: Database, execution_id: ExecutionId, attempt_index: int, outcome: str | None, lease_epoch: int
) -> None:
    await database.execute(
        "INSERT INTO ff_attempt (partition_key, execution_id, attempt_index, lease_epoch, outcome) "
        "VALUES (?1, ?2, ?3, ?4, ?5)",
        execution_id.partition,
        execution_id.uuid,
        attempt_index,
        lease_epoch,
        outcome,
    )


async def count_operator_events(database: Database, partition: int, subject: uuid.UUID, event_type: str) -> int:
    return await database.value(
        "SELECT COUNT(*) AS n FROM ff_operator_event "
        "WHERE partition_key = ?1 AND execution_id = ?2 AND event_type = ?3",
        partition,
        str(subject),
        event_type,
    )


async def replay_details(database: Database, execution_id: ExecutionId) -> dict[str, object]:
    return json.loads(
        await database.value(
            "SELECT details FROM ff_operator_event "
            "WHERE partition_key = ?1 AND execution_id = ?2 AND event_type = 'replayed'",
            execution_id.partition,
            str(execution_id.uuid),
        )
    )


# -- change_priority ---------------------------------------------------------------------------------------------------


async def test_change_priority_happy_path_emits_operator_event(
    engine: Engine, database: Database, execution_id: ExecutionId
) -> None:
    await insert_exec_core(
        database,
        execution_id,
        None,
        lifecycle_phase="runnable",
        eligibility_state="eligible_now",
        ownership_state="unowned",
        public_state="waiting",
        attempt_state="pending",
        attempt_index=0,
        priority=100,
    )

    answer = await engine.change_priority(
        execution_id=execution_id, new_priority=5000, lane_id=LaneId("default"), now=now_ms()
    )
    assert isinstance(answer, PriorityChanged)

    assert await database.column(execution_id, "priority") == 5000
    events = await count_operator_events(database, execution_id.partition, execution_id.uuid, "priority_changed")
    assert events == 1


async def test_change_priority_terminal_is_not_eligible(
    engine: Engine, database: Database, execution_id: ExecutionId
) -> None:
    await insert_exec_core(
        database,
        execution_id,
        None,
        lifecycle_phase="terminal",
        eligibility_state="not_applicable",
        ownership_state="unowned",
        public_state="success",
        attempt_state="terminated",
        attempt_index=0,
        priority=100,
    )

    with pytest.raises(Contention) as refused:
        await engine.change_priority(
            execution_id=execution_id, new_priority=5000, lane_id=LaneId("default"), now=now_ms()
        )
    assert refused.value.kind is ContentionKind.EXECUTION_NOT_ELIGIBLE

    events = await count_operator_events(database, execution_id.partition, execution_id.uuid, "priority_changed")
    assert events == 0


async def test_change_priority_wrong_eligibility_state_is_not_eligible(
    engine: Engine, database: Database, execution_id: ExecutionId
) -> None:
    await insert_exec_core(
        database,
        execution_id,
        None,
        lifecycle_phase="runnable",
        eligibility_state="blocked_by_dependencies",
        ownership_state="unowned",
        public_state="waiting_children",
        attempt_state="pending",
        attempt_index=0,
        priority=100,
    )

    with pytest.raises(Contention) as refused:
        await engine.change_priority(
            execution_id=execution_id, new_priority=7000, lane_id=LaneId("default"), now=now_ms()
        )
    assert refused.value.kind is ContentionKind.EXECUTION_NOT_ELIGIBLE


# -- replay_execution --------------------------------------------------------------------------------------------------


async def test_replay_execution_normal_branch_in_place_mutate(
    engine: Engine, database: Database, execution_id: ExecutionId
) -> None:
    await insert_exec_core(
        database,
        execution_id,
        None,
        lifecycle_phase="terminal",
        eligibility_state="not_applicable",
        ownership_state="unowned",
        public_state="success",
        attempt_state="terminated",
        attempt_index=0,
        priority=500,
    )
    await insert_attempt(database, execution_id, 0, "success", lease_epoch=3)

    answer = await engine.replay_execution(execution_id=execution_id, now=now_ms())
    assert answer == Replayed(PublicState.WAITING)

    phase, eligibility, public, attempt_index = await database.row(
        "SELECT lifecycle_phase, eligibility_state, public_state, attempt_index "
        "FROM ff_exec_core WHERE partition_key = ?1 AND execution_id = ?2",
        execution_id.partition,
        execution_id.uuid,
    )
    assert phase == "runnable"
    assert eligibility == "eligible_now"
    assert public == "waiting"
    assert attempt_index == 0, "a replay keeps the attempt index"

    raw_fields = json.loads(await database.column(execution_id, "raw_fields"))
    assert is_number(raw_fields["replay_count"], 1)

    # The attempt row itself starts over: outcome cleared, epoch raised, no row added.
    attempts = await database.rows(
        "SELECT attempt_index, outcome, lease_epoch FROM ff_attempt "
        "WHERE partition_key = ?1 AND execution_id = ?2 ORDER BY attempt_index",
        execution_id.partition,
        execution_id.uuid,
    )
    assert len(attempts) == 1
    assert attempts[0][0] == 0
    assert attempts[0][1] is None
    assert attempts[0][2] == 4

    assert (await replay_details(database, execution_id))["branch"] == "normal"


async def test_replay_execution_skipped_flow_member_resets_edge_group_counters(
    engine: Engine, database: Database, execution_id: ExecutionId
) -> None:
    flow = uuid.uuid4()
    await insert_exec_core(
        database,
        execution_id,
        flow,
        lifecycle_phase="terminal",
        eligibility_state="not_applicable",
        ownership_state="unowned",
        public_state="failed",
        attempt_state="terminated",
        attempt_index=0,
        priority=500,
    )
    await insert_attempt(database, execution_id, 0, "skipped", lease_epoch=5)
    await database.execute(
        "INSERT INTO ff_edge (partition_key, flow_id, edge_id, upstream_eid, downstream_eid, policy, policy_version) "
        "VALUES (?1, ?2, ?3, ?4, ?5, '{}', 0)",
        execution_id.partition,
        flow,
        uuid.uuid4(),
        uuid.uuid4(),
        execution_id.uuid,
    )
    await database.execute(
        "INSERT INTO ff_edge_group (partition_key, flow_id, downstream_eid, policy, "
        "k_target, success_count, fail_count, skip_count, running_count) "
        "VALUES (?1, ?2, ?3, '{}', 3, 2, 1, 1, 1)",
        execution_id.partition,
        flow,
        execution_id.uuid,
    )

    answer = await engine.replay_execution(execution_id=execution_id, now=now_ms())
    assert answer == Replayed(PublicState.WAITING_CHILDREN)

    success, fail, skip, running = await database.row(
        "SELECT success_count, fail_count, skip_count, running_count FROM ff_edge_group "
        "WHERE partition_key = ?1 AND flow_id = ?2 AND downstream_eid = ?3",
        execution_id.partition,
        flow,
        execution_id.uuid,
    )
    assert success == 2, "satisfied edges stay satisfied"
    assert fail == 0
    assert skip == 0
    assert running == 0

    phase, eligibility, public = await database.row(
        "SELECT lifecycle_phase, eligibility_state, public_state "
        "FROM ff_exec_core WHERE partition_key = ?1 AND execution_id = ?2",
        execution_id.partition,
        execution_id.uuid,
    )
    assert phase == "runnable"
    assert eligibility == "blocked_by_dependencies"
    assert public == "waiting_children"

    details = await replay_details(database, execution_id)
    assert details["branch"] == "skipped_flow_member"
    assert is_number(details["groups_reset"], 1)


async def test_replay_execution_non_terminal_is_not_terminal(
    engine: Engine, database: Database, execution_id: ExecutionId
) -> None:
    await insert_exec_core(
        database,
        execution_id,
        None,
        lifecycle_phase="active",
        eligibility_state="eligible_now",
        ownership_state="leased",
        public_state="running",
        attempt_state="running_attempt",
        attempt_index=0,
        priority=500,
    )

    with pytest.raises(State) as refused:
        await engine.replay_execution(execution_id=execution_id, now=now_ms())
    assert refused.value.kind is StateKind.EXECUTION_NOT_TERMINAL


# -- cancel_flow_header and ack_cancel_member --------------------------------------------------------------------------


async def insert_flow_core(database: Database, partition: int, flow_id: FlowId, state: str) -> None:
    await database.execute(
        "INSERT INTO ff_flow_core (partition_key, flow_id, graph_revision, public_flow_state, created_at_ms) "
        "VALUES (?1, ?2, 0, ?3, ?4)",
        partition,
        flow_id.uuid,
        state,
        now_ms(),
    )


async def insert_members(database: Database, engine: Engine, flow_id: FlowId) -> list[ExecutionId]:
    """Two members that run; they share the flow's partition."""
    members = [ExecutionId.for_flow(flow_id, engine.partitions) for _ in range(2)]
    for member in members:
        await insert_exec_core(
            database,
            member,
            flow_id.uuid,
            lifecycle_phase="active",
            eligibility_state="eligible_now",
            ownership_state="leased",
            public_state="running",
            attempt_state="running_attempt",
            attempt_index=0,
            priority=100,
        )
    return members


async def count_of_flow(database: Database, table: str, partition: int, flow_id: FlowId) -> int:
    return await database.value(
        f"SELECT COUNT(*) FROM {table} WHERE partition_key = ?1 AND flow_id = ?2", partition, flow_id.uuid
    )


async def test_cancel_flow_header_creates_backlog_rows(engine: Engine, database: Database) -> None:
    flow_id = FlowId.new()
    partition = flow_partition(flow_id, engine.partitions)
    await insert_flow_core(database, partition, flow_id, "active")
    await insert_members(database, engine, flow_id)

    answer = await engine.cancel_flow_header(
        flow_id=flow_id, reason="op-shutdown", cancellation_policy="cancel_all", now=now_ms()
    )
    assert isinstance(answer, CancelFlowHeader.Cancelled)
    assert answer.cancellation_policy == "cancel_all"
    assert len(answer.member_execution_ids) == 2

    assert await count_of_flow(database, "ff_cancel_backlog", partition, flow_id) == 1
    assert await count_of_flow(database, "ff_cancel_backlog_member", partition, flow_id) == 2
    assert await count_operator_events(database, partition, flow_id.uuid, "flow_cancel_requested") == 1

    cancelled = await database.value(
        "SELECT COUNT(*) FROM ff_exec_core WHERE partition_key = ?1 AND flow_id = ?2 AND lifecycle_phase = 'cancelled'",
        partition,
        flow_id.uuid,
    )
    assert cancelled == 2


async def test_cancel_flow_header_already_terminal_is_idempotent(engine: Engine, database: Database) -> None:
    flow_id = FlowId.new()
    await database.execute(
        "INSERT INTO ff_flow_core "
        "(partition_key, flow_id, graph_revision, public_flow_state, created_at_ms, raw_fields) "
        "VALUES (?1, ?2, 0, 'cancelled', ?3, "
        f"{database.json_object}('cancellation_policy', 'flow_only', 'cancel_reason', 'prior'))",
        flow_partition(flow_id, engine.partitions),
        flow_id.uuid,
        now_ms(),
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
    partition = flow_partition(flow_id, engine.partitions)
    await insert_flow_core(database, partition, flow_id, "active")
    inserted = await insert_members(database, engine, flow_id)

    answer = await engine.cancel_flow_header(
        flow_id=flow_id, reason="test", cancellation_policy="cancel_all", now=now_ms()
    )
    assert isinstance(answer, CancelFlowHeader.Cancelled)
    first, second = map(ExecutionId.parse, answer.member_execution_ids)

    await engine.ack_cancel_member(flow_id, first)
    assert await count_of_flow(database, "ff_cancel_backlog_member", partition, flow_id) == 1
    assert await count_of_flow(database, "ff_cancel_backlog", partition, flow_id) == 1, "one member remains"

    await engine.ack_cancel_member(flow_id, second)
    assert await count_of_flow(database, "ff_cancel_backlog_member", partition, flow_id) == 0
    assert await count_of_flow(database, "ff_cancel_backlog", partition, flow_id) == 0, "gone with the last member"

    silent = await database.value(
        "SELECT COUNT(*) FROM ff_operator_event WHERE partition_key = ?1 AND execution_id IN (?2, ?3)",
        partition,
        *(str(member.uuid) for member in inserted),
    )
    assert silent == 0


async def test_ack_cancel_member_idempotent_on_missing(engine: Engine, execution_id: ExecutionId) -> None:
    await engine.ack_cancel_member(FlowId.new(), execution_id)
