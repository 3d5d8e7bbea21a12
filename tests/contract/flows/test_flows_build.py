"""Building graphs step by step: flows, members, edges, policies of groups, and reading them back."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from flowfabric import (
    AddExecutionToFlowResult,
    AllOf,
    AnyOf,
    ApplyDependencyResult,
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    CreateFlowResult,
    EdgeGroupSnapshot,
    EdgeState,
    ExecutionId,
    FlowId,
    FlowStatus,
    GroupState,
    Incoming,
    NotFound,
    OnSatisfied,
    Outgoing,
    Quorum,
    SetEdgeGroupPolicyResult,
    Staged,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.partitions import flow_partition
from flowfabric.model.records.flows import Edge, EdgeGroup, Flow
from tests.contract.graphs import Flowing
from tests.contract.probe import START_MS, ManualClock, Probe, create, policy, refused, unchanged
from tests.contract.seeding import flow_of, seed

MOST = 2**31 - 1
NO_FLOW = "99999999-9999-4999-8999-999999999999"


# -- create_flow -----------------------------------------------------------------------------------------------------


async def test_a_flow_is_created_once(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow_id = FlowId.new()
    answer = await engine.create_flow(flow_id=flow_id, flow_kind="pipeline", namespace="acme")
    assert answer == CreateFlowResult.Created(flow_id)
    partition = flow_partition(flow_id, engine.partitions)
    (row,) = await probe.select(Flow, partition=partition, flow_id=str(flow_id))
    assert (row.graph_revision, row.public_flow_state, row.created_at_ms, row.terminal_at_ms) == (
        0, "open", START_MS, None,
    )  # fmt: skip
    assert json.loads(row.raw_fields) == {
        "flow_kind": "pipeline",
        "namespace": "acme",
        "node_count": 0,
        "edge_count": 0,
        "last_mutation_at_ms": START_MS,
    }
    clock.advance(5)
    async with unchanged(probe):
        again = await engine.create_flow(flow_id=flow_id, flow_kind="other", namespace="other")
    assert again == CreateFlowResult.AlreadySatisfied(flow_id)


async def test_a_flow_without_an_id_gets_one(engine: Engine) -> None:
    answer = await engine.create_flow()
    assert isinstance(answer, CreateFlowResult.Created)
    found = await engine.describe_flow(answer.flow_id)
    assert found is not None
    assert found.public_flow_state == "open"


async def test_now_is_recorded_and_decides_nothing(engine: Engine, probe: Probe) -> None:
    answer = await engine.create_flow(now=77)
    found = await engine.describe_flow(answer.flow_id)
    assert found is not None
    assert (found.created_at, found.last_mutation_at) == (START_MS, 77)


# -- add_execution_to_flow -------------------------------------------------------------------------------------------


async def test_members_are_counted(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, [])
    ids = [ExecutionId.for_flow(flow.flow_id, engine.partitions) for _ in range(2)]
    for number, identity in enumerate(ids, 1):
        await create(engine, execution_id=identity)
        answer = await engine.add_execution_to_flow(flow_id=flow.flow_id, execution_id=identity)
        assert answer == AddExecutionToFlowResult.Added(identity, number)
        assert (await probe.execution(identity)).flow_id == flow.flow_id
        assert await engine.resolve_execution_flow_id(identity) == flow.flow_id
    assert await flow.revision() == 2
    async with unchanged(probe):
        answer = await engine.add_execution_to_flow(flow_id=flow.flow_id, execution_id=ids[0])
    assert answer == AddExecutionToFlowResult.AlreadyMember(ids[0], 2)


async def test_a_running_execution_may_join(engine: Engine) -> None:
    flow = await Flowing.build(engine, [])
    identity = ExecutionId.for_flow(flow.flow_id, engine.partitions)
    await create(engine, execution_id=identity, lane_id="joins")
    handle = await engine.claim("joins", (), policy())
    assert handle is not None
    await engine.add_execution_to_flow(flow_id=flow.flow_id, execution_id=identity)
    await engine.complete(handle, b"x")


async def test_who_may_not_join(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a"])
    other = await Flowing.build(engine, [])
    identity = ExecutionId.for_flow(flow.flow_id, engine.partitions)
    async with refused(probe, NotFound) as caught:
        await engine.add_execution_to_flow(flow_id=NO_FLOW, execution_id=identity)
    assert (caught.value.kind, caught.value.detail) == ("flow", f"flow_not_found: {NO_FLOW}")
    async with refused(probe, NotFound) as caught:
        await engine.add_execution_to_flow(flow_id=flow.flow_id, execution_id=identity)
    assert (caught.value.kind, caught.value.detail) == ("execution", f"execution_not_found: {identity}")
    await engine.cancel_flow(other.flow_id)
    async with refused(probe, State, StateKind.FLOW_ALREADY_TERMINAL, f"flow_already_terminal: {other.flow_id}"):
        await engine.add_execution_to_flow(flow_id=other.flow_id, execution_id=flow.members["a"])


async def test_a_member_stays_in_its_flow(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a"])
    other = str(uuid.uuid4())
    while flow_partition(other, engine.partitions) != flow.members["a"].partition:
        other = str(uuid.uuid4())
    await engine.create_flow(flow_id=other)
    detail = f"already_member_of_different_flow:{flow.flow_id}"
    async with refused(probe, Conflict, ConflictKind.EXECUTION_ALREADY_IN_FLOW, detail):
        await engine.add_execution_to_flow(flow_id=other, execution_id=flow.members["a"])


async def test_members_share_the_partition(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, [])
    identity = ExecutionId.of((flow_partition(flow.flow_id, engine.partitions) + 1) % 256, uuid.uuid4())
    if engine.partitions.flow == 1:
        async with refused(probe, NotFound, "execution"):
            await engine.add_execution_to_flow(flow_id=flow.flow_id, execution_id=identity)
        return
    await create(engine, execution_id=identity)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
        await engine.add_execution_to_flow(flow_id=flow.flow_id, execution_id=identity)
    assert caught.value.detail.startswith("partition_mismatch: ")


# -- stage_dependency_edge -------------------------------------------------------------------------------------------


async def test_a_staged_edge_gates_nothing(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    edge_id = str(uuid.uuid4())
    answer = await engine.stage_dependency_edge(
        flow_id=flow.flow_id,
        edge_id=edge_id,
        upstream_execution_id=flow.members["a"],
        downstream_execution_id=flow.members["b"],
        expected_graph_revision=2,
        data_passing_ref="result",
    )
    assert answer == Staged(edge_id, 3)  # type: ignore[arg-type]
    (edge,) = await flow.edges(probe)
    assert (edge.edge_state, edge.applied_at_ms, edge.resolved_at_ms) == ("pending", None, None)
    assert json.loads(edge.policy) == {
        "dependency_kind": "success_only",
        "satisfaction_condition": "all_required",
        "data_passing_ref": "result",
        "created_at_ms": START_MS,
        "created_by": "engine",
        "staged_at_ms": START_MS,
    }
    found = await engine.describe_flow(flow.flow_id)
    assert found is not None
    assert (found.graph_revision, found.node_count, found.edge_count) == (3, 2, 1)
    assert await flow.claimable("b")
    await flow.complete("a")
    (edge,) = await flow.edges(probe)
    assert edge.edge_state == "pending"


async def test_a_stale_revision_is_refused_and_a_fresh_one_succeeds(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    async with refused(probe, Contention, ContentionKind.STALE_GRAPH_REVISION):
        await flow.stage("a", "b", revision=1)
    await flow.stage("a", "b", revision=2)
    assert await flow.revision() == 3


async def test_of_two_with_one_revision_one_succeeds(engine: Engine) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    answers = await asyncio.gather(*(flow.stage("a", "b", revision=2) for _ in range(8)), return_exceptions=True)
    lost = [answer for answer in answers if isinstance(answer, Contention)]
    assert len(lost) == 7
    assert {error.kind for error in lost} == {ContentionKind.STALE_GRAPH_REVISION}
    assert await flow.revision() == 3


async def test_edges_that_may_not_be(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    outside = await create(engine, execution_id=ExecutionId.for_flow(flow.flow_id, engine.partitions))
    edge_id = await flow.stage("a", "b")
    good: dict[str, Any] = {
        "flow_id": flow.flow_id,
        "edge_id": str(uuid.uuid4()),
        "upstream_execution_id": flow.members["a"],
        "downstream_execution_id": flow.members["b"],
        "expected_graph_revision": 3,
    }
    async with refused(probe, Conflict, ConflictKind.SELF_REFERENCING_EDGE):
        await engine.stage_dependency_edge(**{**good, "upstream_execution_id": flow.members["b"], "flow_id": NO_FLOW})
    async with refused(probe, NotFound, "flow"):
        await engine.stage_dependency_edge(**{**good, "flow_id": NO_FLOW})
    for end in ("upstream_execution_id", "downstream_execution_id"):
        for stranger in (outside, ExecutionId.for_flow(flow.flow_id, engine.partitions)):
            async with refused(probe, State, StateKind.EXECUTION_NOT_IN_FLOW):
                await engine.stage_dependency_edge(**{**good, end: stranger})
    async with refused(probe, Conflict, ConflictKind.DEPENDENCY_ALREADY_EXISTS) as caught:
        await engine.stage_dependency_edge(**{**good, "edge_id": edge_id})
    assert caught.value.existing == await engine.describe_edge(flow.flow_id, edge_id)  # type: ignore[attr-defined]
    # Another edge between the same two is fine.
    await engine.stage_dependency_edge(**good)
    await engine.cancel_flow(flow.flow_id)
    async with refused(probe, State, StateKind.FLOW_ALREADY_TERMINAL):
        await engine.stage_dependency_edge(**{**good, "edge_id": str(uuid.uuid4()), "expected_graph_revision": 0})


async def test_a_cycle_is_refused(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, "abcd")
    await flow.stage("a", "b")
    await flow.stage("b", "c")
    async with refused(probe, Conflict, ConflictKind.CYCLE_DETECTED):
        await flow.stage("c", "a")
    await flow.stage("a", "c")
    await flow.stage("d", "a")
    async with refused(probe, Conflict, ConflictKind.CYCLE_DETECTED):
        await flow.stage("c", "d")


async def test_a_cycle_made_by_one_batch_is_refused(engine: Engine) -> None:
    flow = await Flowing.build(engine, "abc")
    start = await flow.revision()
    pairs = [("a", "b"), ("b", "c"), ("c", "a")]
    answers = await asyncio.gather(
        *(flow.stage(*pair, revision=start + step) for step, pair in enumerate(pairs)), return_exceptions=True
    )
    refusals = [answer for answer in answers if isinstance(answer, Exception)]
    assert refusals
    assert all(isinstance(each, Conflict | Contention) for each in refusals)
    assert await flow.revision() - start == len(pairs) - len(refusals)


# -- apply_dependency_to_child ---------------------------------------------------------------------------------------


async def test_an_applied_edge_makes_the_child_wait(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = await Flowing.build(engine, ["a", "b", "c"])
    first, second = await flow.stage("a", "c"), await flow.stage("b", "c")
    now = clock.advance(10)
    assert await flow.apply("a", "c", first) == ApplyDependencyResult.Applied(1)
    assert await flow.apply("b", "c", second) == ApplyDependencyResult.Applied(2)
    assert await probe.stored(flow.members["c"]) == (
        "runnable", "unowned", "blocked_by_dependencies", "pending", "waiting_children", "waiting_for_children",
    )  # fmt: skip
    row = await probe.execution(flow.members["c"])
    assert row.blocking_detail == f"2 dep(s) unresolved incl {second}"
    group = await flow.group(probe, "c")
    assert json.loads(group.policy) == {"kind": "all_of"}
    assert (group.k_target, group.running_count, group.applied_count, group.group_state) == (0, 2, 2, "pending")
    edge = await engine.describe_edge(flow.flow_id, first)
    assert edge is not None
    assert edge.edge_state is EdgeState.APPLIED
    assert {each.applied_at_ms for each in await flow.edges(probe)} == {now}
    assert not await flow.claimable("c")
    async with unchanged(probe):
        assert await flow.apply("a", "c", first) == ApplyDependencyResult.AlreadyApplied()


async def test_what_cannot_be_applied(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    edge_id = await flow.stage("a", "b")
    stranger = ExecutionId.for_flow(flow.flow_id, engine.partitions)
    good: dict[str, Any] = {
        "flow_id": flow.flow_id,
        "edge_id": edge_id,
        "upstream_execution_id": flow.members["a"],
        "downstream_execution_id": flow.members["b"],
    }
    async with refused(probe, NotFound, "execution"):
        await engine.apply_dependency_to_child(**{**good, "downstream_execution_id": stranger})
    async with refused(probe, Conflict, ConflictKind.EXECUTION_ALREADY_IN_FLOW):
        await engine.apply_dependency_to_child(**{**good, "flow_id": NO_FLOW})
    for wrong in ({"edge_id": str(uuid.uuid4())}, {"downstream_execution_id": flow.members["a"]}):
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
            await engine.apply_dependency_to_child(**{**good, **wrong})
        assert caught.value.detail.startswith("edge_not_found")


@pytest.mark.parametrize(
    ("end", "state", "counts"),
    [
        ("complete", "waiting", (1, 0, 0, 0, "satisfied")),
        ("fail", "skipped", (0, 1, 0, 0, "impossible")),
        ("cancel", "skipped", (0, 1, 0, 0, "impossible")),
    ],
)
async def test_an_edge_from_an_ended_member_is_decided_at_once(
    engine: Engine, probe: Probe, end: str, state: str, counts: Any
) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    edge_id = await flow.stage("a", "b")
    if end == "cancel":
        await engine.cancel_execution(execution_id=flow.members["a"])
    else:
        await getattr(flow, end)("a")
    assert await flow.apply("a", "b", edge_id) == ApplyDependencyResult.Applied(0)
    assert await flow.state("b") == state
    assert await flow.counts(probe, "b") == counts


async def test_a_delayed_child_keeps_its_delay(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = await Flowing.build(engine, ["a"])
    await flow.add("b", delay_until=START_MS + 1_000)
    await flow.join("a", "b")
    assert await flow.state("b") == "waiting_children"
    await engine.run_due()
    await flow.complete("a")
    assert await probe.stored(flow.members["b"]) == (
        "runnable", "unowned", "not_eligible_until_time", "pending", "delayed", "waiting_for_delay",
    )  # fmt: skip
    clock.advance(1_000)
    await engine.run_due()
    assert await flow.claimable("b")


async def test_a_delay_that_passes_meanwhile_is_over(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = await Flowing.build(engine, ["a"])
    await flow.add("b", delay_until=START_MS + 1_000)
    await flow.join("a", "b")
    clock.advance(5_000)
    assert (await engine.run_due())["delayed_promoter"] == 0
    await flow.complete("a")
    assert await flow.claimable("b")
    assert (await probe.execution(flow.members["b"])).delay_until_ms is None


async def test_a_granted_child_loses_its_grant(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    lane = await flow.lane("b")
    await engine.issue_claim_grant(
        execution_id=flow.members["b"], lane_id=lane, worker_id="w1", worker_instance_id="w1-i1"
    )
    await flow.join("a", "b")
    assert await probe.grants(flow.members["b"]) == []
    assert await flow.state("b") == "waiting_children"


async def test_a_hold_and_a_dependency_are_both_kept(engine: Engine) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    held = flow.members["b"]
    await engine.block_execution_for_admission(execution_id=held, reason="paused_by_operator")
    await flow.join("a", "b")
    assert not await flow.claimable("b")
    await engine.unblock_execution(execution_id=held)
    assert await flow.state("b") == "waiting_children"
    await engine.block_execution_for_admission(execution_id=held, reason="paused_by_operator")
    await flow.complete("a")
    assert not await flow.claimable("b")
    await engine.unblock_execution(execution_id=held)
    assert await flow.claimable("b")


async def test_intake_honours_a_group_that_waits(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    identity = flow.members["b"]
    where = (identity.partition, str(flow.flow_id), identity.uuid_text)
    await seed(engine, EdgeGroup(*where, "{}", running_count=1))
    assert await engine.promote_submitted() == 2
    assert await flow.states() == {"a": "waiting", "b": "waiting_children"}


# -- set_edge_group_policy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edge_policy", "document", "target"),
    [
        (AllOf(), {"kind": "all_of"}, 0),
        (AnyOf(), {"kind": "any_of", "on_satisfied": "cancel_remaining"}, 1),
        (AnyOf(OnSatisfied.LET_RUN), {"kind": "any_of", "on_satisfied": "let_run"}, 1),
        (Quorum(3), {"kind": "quorum", "k": 3, "on_satisfied": "cancel_remaining"}, 3),
        (Quorum(MOST, OnSatisfied.LET_RUN), {"kind": "quorum", "k": MOST, "on_satisfied": "let_run"}, MOST),
    ],
)  # fmt: skip
async def test_policies_are_stored(engine: Engine, probe: Probe, edge_policy: Any, document: Any, target: int) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    arguments = {"flow_id": flow.flow_id, "downstream_execution_id": flow.members["b"], "policy": edge_policy}
    assert await engine.set_edge_group_policy(**arguments) == SetEdgeGroupPolicyResult.Set()
    group = await flow.group(probe, "b")
    assert (json.loads(group.policy), group.k_target, group.running_count) == (document, target, 0)
    async with unchanged(probe):
        assert await engine.set_edge_group_policy(**arguments) == SetEdgeGroupPolicyResult.AlreadySet()
    changed = {**arguments, "policy": Quorum(7)}
    assert await engine.set_edge_group_policy(**changed) == SetEdgeGroupPolicyResult.Set()
    await flow.stage("a", "b")
    async with unchanged(probe):
        assert await engine.set_edge_group_policy(**changed) == SetEdgeGroupPolicyResult.AlreadySet()
    fixed = "edge_group_policy_already_fixed: dependencies already staged"
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, fixed):
        await engine.set_edge_group_policy(**arguments)


async def test_a_policy_needs_its_flow(engine: Engine, probe: Probe) -> None:
    identity = ExecutionId.for_flow(NO_FLOW, engine.partitions)
    async with refused(probe, NotFound, "flow"):
        await engine.set_edge_group_policy(flow_id=NO_FLOW, downstream_execution_id=identity, policy=AnyOf())


# -- reads -----------------------------------------------------------------------------------------------------------


async def test_a_flow_is_described(engine: Engine, clock: ManualClock) -> None:
    assert await engine.describe_flow(NO_FLOW) is None
    flow = await Flowing.build(engine, ["a", "b"])
    await engine.set_flow_tag(flow.flow_id, "b.tag", "2")
    await engine.set_flow_tag(flow.flow_id, "a.tag", "1")
    now = clock.advance(9)
    await flow.join("a", "b")
    found = await engine.describe_flow(flow.flow_id)
    assert found is not None
    assert (found.flow_id, found.flow_kind, found.namespace, found.public_flow_state) == (
        flow.flow_id, "dag", "default", "open",
    )  # fmt: skip
    assert (found.graph_revision, found.node_count, found.edge_count) == (3, 2, 1)
    assert (found.created_at, found.last_mutation_at, found.cancelled_at) == (START_MS, now, None)
    assert list(found.tags.items()) == [("a.tag", "1"), ("b.tag", "2")]
    assert found.edge_groups == (EdgeGroupSnapshot(flow.members["b"], AllOf(), 1, 0, 0, 0, 1, GroupState.PENDING),)
    await engine.cancel_flow(flow.flow_id)
    found = await engine.describe_flow(flow.flow_id)
    assert found is not None
    assert (found.public_flow_state, found.cancelled_at, found.cancel_reason, found.cancellation_policy) == (
        "cancelled", now, "flow_cancelled", "cancel_all",
    )  # fmt: skip


async def test_flows_are_listed_in_pages(engine: Engine) -> None:
    made = {}
    for state in ("open", "running", "blocked", "active", "completed", "failed", "cancelled", "odd"):
        flow = flow_of(engine, state)
        await seed(engine, flow)
        made.setdefault(flow.partition, {})[flow.flow_id] = state
    partition, flows = max(made.items(), key=lambda item: len(item[1]))
    seen: list[Any] = []
    cursor = None
    while True:
        page = await engine.list_flows(partition, cursor, 2)
        seen += page.flows
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [each.flow_id for each in seen] == sorted(flows)
    statuses = {"completed": "completed", "failed": "failed", "cancelled": "cancelled", "odd": "unknown"}
    assert [each.status for each in seen] == [FlowStatus(statuses.get(flows[each.flow_id], "active")) for each in seen]
    empty = await engine.list_flows(partition, limit=0)
    assert (empty.flows, empty.next_cursor) == ((), None)


async def test_edges_are_listed_by_direction(engine: Engine) -> None:
    flow = await Flowing.build(engine, "abc")
    out = sorted([await flow.stage("a", "b"), await flow.stage("a", "c")])
    into = await flow.stage("b", "c", data_passing_ref="x")
    outgoing = await engine.list_edges(flow.flow_id, Outgoing(flow.members["a"]))
    assert [edge.edge_id for edge in outgoing] == out
    incoming = await engine.list_edges(flow.flow_id, Incoming(flow.members["c"]))
    assert {edge.edge_id for edge in incoming} == {into, *(set(out) & {edge.edge_id for edge in incoming})}
    assert len(incoming) == 2
    assert await engine.list_edges(flow.flow_id, Incoming(flow.members["a"])) == []
    assert await engine.list_edges(NO_FLOW, Outgoing(flow.members["a"])) == []
    edge = await engine.describe_edge(flow.flow_id, into)
    assert edge is not None
    assert (edge.upstream_execution_id, edge.downstream_execution_id) == (flow.members["b"], flow.members["c"])
    assert (edge.dependency_kind, edge.satisfaction_condition, edge.data_passing_ref, edge.edge_state) == (
        "success_only", "all_required", "x", EdgeState.PENDING,
    )  # fmt: skip
    assert (edge.created_at, edge.created_by, edge.flow_id) == (START_MS, "engine", flow.flow_id)
    assert await engine.describe_edge(flow.flow_id, str(uuid.uuid4())) is None


async def test_rows_written_by_hand_are_read(engine: Engine) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    a, b = flow.members["a"], flow.members["b"]
    edge = Edge(a.partition, str(flow.flow_id), str(uuid.uuid4()), a.uuid_text, b.uuid_text, "{}")
    await seed(engine, edge, EdgeGroup(a.partition, str(flow.flow_id), b.uuid_text, "{}", success_count=1))
    found = await engine.describe_edge(flow.flow_id, edge.edge_id)
    assert found is not None
    assert (found.edge_state, found.dependency_kind) == (EdgeState.PENDING, "success_only")
    described = await engine.describe_flow(flow.flow_id)
    assert described is not None
    assert described.edge_groups[0].policy == AllOf()


async def test_what_cannot_be_read_names_its_column(engine: Engine) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    a, b = flow.members["a"], flow.members["b"]
    group = EdgeGroup(a.partition, str(flow.flow_id), b.uuid_text, '{"kind": "odd"}')
    edge = Edge(a.partition, str(flow.flow_id), str(uuid.uuid4()), a.uuid_text, b.uuid_text, "{}", edge_state="odd")
    await seed(engine, group, edge)
    for call, column in (
        (engine.describe_flow(flow.flow_id), "ff_edge_group.policy"),
        (engine.describe_edge(flow.flow_id, edge.edge_id), "edge_state"),
    ):
        with pytest.raises(Validation) as caught:
            await call
        assert caught.value.kind is ValidationKind.CORRUPTION
        assert column in caught.value.detail


async def test_eligibility_in_one_word(engine: Engine) -> None:
    flow = await Flowing.build(engine, ["a", "b", "c"])
    ask = engine.evaluate_flow_eligibility
    assert await ask(ExecutionId.for_flow(flow.flow_id, engine.partitions)) == "not_found"
    await flow.join("a", "b")
    assert (await ask(flow.members["a"]), await ask(flow.members["b"])) == ("eligible", "blocked_by_dependencies")
    await flow.start("a")
    assert await ask(flow.members["a"]) == "not_runnable"
    await flow.complete("a")
    assert (await ask(flow.members["a"]), await ask(flow.members["b"])) == ("terminal", "eligible")
    identity = flow.members["c"]
    where = (identity.partition, str(flow.flow_id), identity.uuid_text)
    await seed(engine, EdgeGroup(*where, "{}", fail_count=1, group_state="impossible"))
    assert await ask(identity) == "impossible"
