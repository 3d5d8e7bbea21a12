"""Whole graphs in one call: all or nothing, and the same answer when the call is repeated."""

from __future__ import annotations

import asyncio
import itertools
import uuid

import pytest

from flowfabric import (
    AllOf,
    AnyOf,
    Conflict,
    ConflictKind,
    ExecutionId,
    FlowEdge,
    FlowGraph,
    FlowId,
    FlowSubmitted,
    GroupState,
    NotFound,
    Quorum,
    State,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.partitions import flow_partition
from flowfabric.model.records.executions import Execution, Lane
from flowfabric.model.records.flows import Edge
from tests.contract.probe import START_MS, Probe, create, refused, unchanged


async def test_a_graph_is_stored_as_it_would_be_step_by_step(engine: Engine, probe: Probe) -> None:
    graph = FlowGraph(
        nodes={
            "a": {"lane_id": "x", "input_payload": b"1", "priority": 7, "tags": {"k": "v"}, "execution_kind": "first"},
            "b": {"lane_id": "x", "namespace": "other", "delay_until": START_MS + 50},
            "c": {"policy": {"retry_policy": {"max_retries": 2, "backoff": {"fixed": {"delay_ms": 5}}}}},
        },
        edges=[("a", "c"), FlowEdge("b", "c", "rows")],
        groups={"c": Quorum(2)},
        flow_kind="report",
        namespace="acme",
    )
    answer = await engine.submit_flow(graph)
    found = await engine.describe_flow(answer.flow_id)
    assert found is not None
    assert (found.flow_kind, found.namespace, found.public_flow_state) == ("report", "acme", "open")
    assert (found.graph_revision, found.node_count, found.edge_count) == (5, 3, 2)
    (group,) = found.edge_groups
    assert (group.policy, group.total_deps, group.running_count, group.group_state) == (
        Quorum(2), 2, 2, GroupState.PENDING,
    )  # fmt: skip
    rows = {name: await probe.execution(each) for name, each in answer.execution_ids.items()}
    assert {row.flow_id for row in rows.values()} == {answer.flow_id}
    assert {row.partition for row in rows.values()} == {flow_partition(answer.flow_id, engine.partitions)}
    assert (rows["a"].priority, rows["a"].payload, rows["a"].namespace) == (7, b"1", "acme")
    assert rows["b"].namespace == "other"
    stored = {name: await probe.stored(each) for name, each in answer.execution_ids.items()}
    assert stored["a"] == ("submitted", "unowned", "eligible_now", "pending", "waiting", None)
    assert stored["b"] == (
        "submitted", "unowned", "not_eligible_until_time", "pending", "delayed", "waiting_for_delay",
    )  # fmt: skip
    assert stored["c"] == (
        "runnable", "unowned", "blocked_by_dependencies", "pending", "waiting_children", "waiting_for_children",
    )  # fmt: skip
    edges = await probe.select(Edge, partition=rows["a"].partition, flow_id=str(answer.flow_id))
    assert rows["c"].blocking_detail in {f"2 dep(s) unresolved incl {edge.edge_id}" for edge in edges}
    assert {(edge.edge_state, edge.applied_at_ms) for edge in edges} == {("applied", START_MS)}
    assert {lane.lane_id for lane in await probe.select(Lane, state="active")} >= {"x", "default"}


async def test_the_same_call_gives_the_same_answer(engine: Engine, probe: Probe) -> None:
    graph = FlowGraph({"a": {}, "b": {}}, [("a", "b")], flow_id=FlowId.new())
    first = await engine.submit_flow(graph)
    async with unchanged(probe):
        assert await engine.submit_flow(graph) == first
    answers = await asyncio.gather(*(engine.submit_flow(graph) for _ in range(5)))
    assert all(answer == first for answer in answers)
    again = await engine.submit_flow(FlowGraph({"a": {}, "b": {}}, [("a", "b")]))
    assert again.flow_id != first.flow_id
    assert set(again.execution_ids.values()).isdisjoint(first.execution_ids.values())


async def test_another_graph_under_the_same_id_is_refused(engine: Engine, probe: Probe) -> None:
    flow_id = FlowId.new()
    await engine.submit_flow(FlowGraph({"a": {}}, flow_id=flow_id))
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
        await engine.submit_flow(FlowGraph({"a": {}, "b": {}}, flow_id=flow_id))
    assert f"{flow_id} already exists" in caught.value.detail


async def test_a_flow_created_before_is_not_filled(engine: Engine, probe: Probe) -> None:
    flow_id = FlowId.new()
    await engine.create_flow(flow_id=flow_id)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.submit_flow(FlowGraph({"a": {}}, flow_id=flow_id))


async def test_a_node_must_be_new(engine: Engine, probe: Probe) -> None:
    flow_id = FlowId.new()
    taken = await create(engine, execution_id=ExecutionId.for_flow(flow_id, engine.partitions), idempotency_key="k")
    for node in ({"execution_id": taken}, {"idempotency_key": "k"}):
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
            await engine.submit_flow(FlowGraph({"first": {}, "a": node}, flow_id=flow_id))
        assert caught.value.detail.startswith("node 'a': ")


async def test_a_node_may_bring_its_id_and_key(engine: Engine) -> None:
    flow_id = FlowId.new()
    own = ExecutionId.for_flow(flow_id, engine.partitions)
    answer = await engine.submit_flow(
        FlowGraph({"a": {"execution_id": own, "idempotency_key": "mine"}, "b": {}}, [("a", "b")], flow_id=flow_id)
    )
    assert answer.execution_ids["a"] == own
    duplicate = await engine.create_execution(idempotency_key="mine")
    assert duplicate.execution_id == own


@pytest.mark.parametrize(
    ("edges", "kind"),
    [
        ([("a", "b"), ("b", "c"), ("c", "a")], ConflictKind.CYCLE_DETECTED),
        ([("a", "a")], ConflictKind.SELF_REFERENCING_EDGE),
    ],
)
async def test_a_cycle_stores_nothing(
    engine: Engine, probe: Probe, edges: list[tuple[str, str]], kind: ConflictKind
) -> None:
    async with refused(probe, Conflict, kind):
        await engine.submit_flow(FlowGraph({"a": {}, "b": {}, "c": {}}, edges))


async def test_a_lane_that_accepts_nothing_refuses_the_graph(engine: Engine, probe: Probe) -> None:
    await create(engine, lane_id="full")
    await engine.set_lane_state("full", "draining")
    async with refused(probe, State):
        await engine.submit_flow(FlowGraph({"a": {}, "b": {"lane_id": "full"}}, [("a", "b")]))


async def test_an_empty_graph_is_an_empty_flow(engine: Engine) -> None:
    answer = await engine.submit_flow(FlowGraph({}))
    assert answer == FlowSubmitted(answer.flow_id, {})
    assert await engine.describe_flow(answer.flow_id) is not None


async def test_groups_without_edges_wait_for_nothing(engine: Engine) -> None:
    answer = await engine.submit_flow(FlowGraph({"a": {"lane_id": "free"}}, groups={"a": AnyOf()}))
    assert await engine.scan_eligible_executions("free") == (answer.execution_ids["a"],)


async def test_members_pay_from_the_budgets_of_their_flow(engine: Engine, probe: Probe) -> None:
    ours, own = str(uuid.uuid4()), str(uuid.uuid4())
    answer = await engine.submit_flow(
        FlowGraph({"a": {}, "b": {"policy": {"budget_ids": [own]}}, "c": {"policy": {"budget_ids": [ours]}}},
                  budget_ids=(ours,))
    )  # fmt: skip
    rows = {name: await probe.execution(each) for name, each in answer.execution_ids.items()}
    assert {name: row.budget_ids for name, row in rows.items()} == {"a": ours, "b": f"{own},{ours}", "c": ours}
    joins = await create(engine, execution_id=ExecutionId.for_flow(answer.flow_id, engine.partitions))
    await engine.add_execution_to_flow(flow_id=answer.flow_id, execution_id=joins)
    assert (await probe.execution(joins)).budget_ids == ours


async def test_ten_thousand_nodes_in_one_call(engine: Engine, probe: Probe) -> None:
    names = [f"n{number:05}" for number in range(10_000)]
    edges = [pair for start in range(0, 10_000, 100) for pair in itertools.pairwise(names[start : start + 100])]
    answer = await engine.submit_flow(FlowGraph({key: {"lane_id": "many"} for key in names}, edges))
    found = await engine.describe_flow(answer.flow_id)
    assert found is not None
    assert (found.node_count, found.edge_count, len(found.edge_groups)) == (10_000, 9_900, 9_900)
    assert {group.policy for group in found.edge_groups} == {AllOf()}
    assert len(await engine.scan_eligible_executions("many", limit=1_000)) == 100
    cancelled = await engine.cancel_flow(answer.flow_id)
    assert len(cancelled.member_execution_ids) == 10_000
    where = {"partition": flow_partition(answer.flow_id, engine.partitions), "flow_id": str(answer.flow_id)}
    assert {row.lifecycle_phase for row in await probe.select(Execution, **where)} == {"cancelled"}


async def test_members_of_an_unknown_flow(engine: Engine) -> None:
    with pytest.raises(NotFound):
        await engine.cancel_flow(FlowId.new())
