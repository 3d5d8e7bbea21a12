"""Flows: building graphs, submitting them whole, resolving by hand, and reading them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any
from uuid import UUID

from flowfabric.ascending import ascending_uuid
from flowfabric.core.flows.build import (
    AddExecutionToFlow,
    ApplyDependencyToChild,
    CreateFlow,
    SetEdgeGroupPolicy,
    StageDependencyEdge,
)
from flowfabric.core.flows.cascade import DispatchCompletion
from flowfabric.core.flows.edges import SUCCESS_ONLY
from flowfabric.core.flows.reconcile import ResolveDependency
from flowfabric.core.flows.submit import NewEdge, SubmitFlow, check_acyclic, member_uuid, name_uuid
from flowfabric.engine.checks import values
from flowfabric.engine.operations.create import Intake
from flowfabric.model.errors import Validation
from flowfabric.model.ids import EdgeId, ExecutionId, FlowId
from flowfabric.model.limits import MAX_FLOW_EDGES, MAX_FLOW_NODES, MAX_NAMED_BUDGETS
from flowfabric.model.operations.flows import (
    AddExecutionToFlowResult,
    ApplyDependencyResult,
    CascadeOutcome,
    CompletionPayload,
    CreateFlowResult,
    EdgePolicy,
    FlowEdge,
    FlowGraph,
    FlowSubmitted,
    ResolveDependencyResult,
    SetEdgeGroupPolicyResult,
    Staged,
)
from flowfabric.model.quoting import quoted
from flowfabric.stores.beside import worked


class Flows(Intake):
    """The part of the engine that knows graphs."""

    # -- building ------------------------------------------------------------------------------------------------

    async def create_flow(
        self,
        *,
        flow_id: FlowId | str | None = None,
        flow_kind: str = "dag",
        namespace: str = "default",
        budget_ids: Iterable[str] = (),
        now: int | None = None,
    ) -> CreateFlowResult.Created | CreateFlowResult.AlreadySatisfied:
        """An empty flow. Without an id one is minted; members inherit the flow's budgets."""
        answer: CreateFlowResult.Created | CreateFlowResult.AlreadySatisfied = await self._submit(
            self._new_flow(flow_id, flow_kind, namespace, budget_ids, now)
        )
        return answer

    def _new_flow(self, flow_id: Any, flow_kind: Any, namespace: Any, budget_ids: Any, now: Any) -> CreateFlow:
        flow = ascending_uuid() if flow_id is None else values.flow_id(flow_id)
        return CreateFlow(
            self._flow_partition(flow),
            flow,
            values.text(flow_kind, "flow_kind"),
            values.text(namespace, "namespace"),
            tuple(values.uuid(each, "budget_ids") for each in values.few(budget_ids, "budget_ids", MAX_NAMED_BUDGETS)),
            values.optional_time_ms(now, "now"),
        )

    async def add_execution_to_flow(
        self, *, flow_id: FlowId | str, execution_id: ExecutionId | str, now: int | None = None
    ) -> AddExecutionToFlowResult.Added | AddExecutionToFlowResult.AlreadyMember:
        """An execution joins a flow of its partition, for good. ``ExecutionId.for_flow`` mints ids that fit."""
        flow = values.flow_id(flow_id)
        answer: AddExecutionToFlowResult.Added | AddExecutionToFlowResult.AlreadyMember = await self._submit(
            AddExecutionToFlow(
                self._flow_partition(flow),
                flow,
                str.__str__(values.execution_id(execution_id)),
                values.optional_time_ms(now, "now"),
            )
        )
        return answer

    async def stage_dependency_edge(
        self,
        *,
        flow_id: FlowId | str,
        edge_id: EdgeId | str,
        upstream_execution_id: ExecutionId | str,
        downstream_execution_id: ExecutionId | str,
        dependency_kind: str = SUCCESS_ONLY,
        data_passing_ref: str | None = None,
        expected_graph_revision: int,
        now: int | None = None,
    ) -> Staged:
        """Write an edge down, if the flow is still at the revision the caller knows."""
        flow = values.flow_id(flow_id)
        answer: Staged = await self._submit(
            StageDependencyEdge(
                self._flow_partition(flow),
                flow,
                values.uuid(edge_id, "edge_id"),
                str.__str__(values.execution_id(upstream_execution_id, "upstream_execution_id")),
                str.__str__(values.execution_id(downstream_execution_id, "downstream_execution_id")),
                values.text(dependency_kind, "dependency_kind"),
                values.optional_text(data_passing_ref, "data_passing_ref"),
                values.integer(expected_graph_revision, "expected_graph_revision", 0, 2**63 - 1),
                values.optional_time_ms(now, "now"),
            )
        )
        return answer

    async def apply_dependency_to_child(
        self,
        *,
        flow_id: FlowId | str,
        edge_id: EdgeId | str,
        downstream_execution_id: ExecutionId | str,
        upstream_execution_id: ExecutionId | str,
        graph_revision: int = 0,
        dependency_kind: str = SUCCESS_ONLY,
        data_passing_ref: str | None = None,
        now: int | None = None,
    ) -> ApplyDependencyResult.Applied | ApplyDependencyResult.AlreadyApplied:
        """Make a staged edge count. Apply every edge of a member before its upstreams can finish."""
        flow = values.flow_id(flow_id)
        values.integer(graph_revision, "graph_revision", 0, 2**63 - 1)
        values.text(dependency_kind, "dependency_kind")
        answer: ApplyDependencyResult.Applied | ApplyDependencyResult.AlreadyApplied = await self._submit(
            ApplyDependencyToChild(
                self._flow_partition(flow),
                flow,
                values.uuid(edge_id, "edge_id"),
                str.__str__(values.execution_id(upstream_execution_id, "upstream_execution_id")),
                str.__str__(values.execution_id(downstream_execution_id, "downstream_execution_id")),
                values.optional_text(data_passing_ref, "data_passing_ref"),
                values.optional_time_ms(now, "now"),
            )
        )
        return answer

    async def set_edge_group_policy(
        self,
        *,
        flow_id: FlowId | str,
        downstream_execution_id: ExecutionId | str,
        policy: EdgePolicy,
        now: int | None = None,
    ) -> SetEdgeGroupPolicyResult.Set | SetEdgeGroupPolicyResult.AlreadySet:
        """Say how the edges into a member count, before there are any. Without a policy all have to succeed."""
        flow = values.flow_id(flow_id)
        answer: SetEdgeGroupPolicyResult.Set | SetEdgeGroupPolicyResult.AlreadySet = await self._submit(
            SetEdgeGroupPolicy(
                self._flow_partition(flow),
                flow,
                values.execution_id(downstream_execution_id, "downstream_execution_id").uuid_text,
                values.edge_policy(policy),
            )
        )
        return answer

    # -- whole graphs --------------------------------------------------------------------------------------------

    async def submit_flow(self, graph: FlowGraph) -> FlowSubmitted:
        """Store a whole flow in one transaction, or nothing of it.

        Ids follow from the flow's id and the nodes' names, so the same call with the same ``flow_id`` gives the same
        answer again and changes nothing.
        """
        answer: FlowSubmitted = await self._submit(await worked(_size_of(graph), lambda: self._submission(graph)))
        return answer

    def _submission(self, graph: Any) -> SubmitFlow:
        if not isinstance(graph, FlowGraph):
            raise values.invalid(f"graph: expected a FlowGraph, got {type(graph).__name__}")
        flow = self._new_flow(graph.flow_id, graph.flow_kind, graph.namespace, graph.budget_ids, None)
        if not isinstance(graph.nodes, Mapping):
            raise values.invalid(f"nodes: expected a mapping of names, got {type(graph.nodes).__name__}")
        if len(graph.nodes) > MAX_FLOW_NODES:
            raise values.invalid(f"nodes: {len(graph.nodes)}, at most {MAX_FLOW_NODES} are allowed")
        space = UUID(flow.flow_id).bytes
        nodes = {values.text(name, "node name", empty=False): node for name, node in graph.nodes.items()}
        items = []
        for position, (name, node) in enumerate(nodes.items()):
            if not isinstance(node, Mapping):
                raise values.invalid(f"node {quoted(name)}: expected a mapping of arguments, got {type(node).__name__}")
            uuid = member_uuid(space, position, name)
            own = {"execution_id": f"{{fp:{flow.partition}}}:{uuid}", "namespace": flow.namespace}
            try:
                item = self._creation_of({**own, **node})
            except Validation as error:
                raise Validation(error.kind, f"node {quoted(name)}: {error.detail}") from error
            if item.partition != flow.partition:
                raise values.invalid(f"node {quoted(name)}: partition_mismatch: its id is not in the flow's partition")
            items.append(item)
        uuids = {name: item.uuid for name, item in zip(nodes, items, strict=True)}
        _check_distinct(items)
        found = [_edge(edge, position) for position, edge in enumerate(values.sequence(graph.edges, "edges"))]
        joined = [
            (_known(edge.upstream, uuids, "edges.upstream"), _known(edge.downstream, uuids, "edges.downstream"))
            for edge in found
        ]
        check_acyclic(tuple(nodes), joined)
        edges = tuple(
            NewEdge(
                name_uuid(space, f"\x00edge {position}")
                if edge.edge_id is None
                else values.uuid(edge.edge_id, "edge_id"),
                uuids[edge.upstream],
                uuids[edge.downstream],
                values.text(edge.dependency_kind, "dependency_kind"),
                values.optional_text(edge.data_passing_ref, "data_passing_ref"),
            )
            for position, edge in enumerate(found)
        )
        if len({edge.edge_id for edge in edges}) < len(edges):
            raise values.invalid("edges: an edge_id is used twice")
        if not isinstance(graph.groups, Mapping):
            raise values.invalid(f"groups: expected a mapping of names, got {type(graph.groups).__name__}")
        groups = {
            uuids[_known(name, uuids, "groups")]: values.edge_policy(policy) for name, policy in graph.groups.items()
        }
        return SubmitFlow(flow, tuple(nodes), tuple(items), edges, groups)

    # -- by hand -------------------------------------------------------------------------------------------------

    async def resolve_dependency(
        self,
        *,
        flow_id: FlowId | str,
        downstream_execution_id: ExecutionId | str,
        upstream_execution_id: ExecutionId | str,
        edge_id: EdgeId | str,
        upstream_outcome: str,
        partition: int | None = None,
        lane_id: str | None = None,
        current_attempt_index: int | None = None,
        now: int | None = None,
    ) -> (
        ResolveDependencyResult.Satisfied | ResolveDependencyResult.Impossible | ResolveDependencyResult.AlreadyResolved
    ):
        """Count one edge with the outcome given. The engine does so by itself when the upstream ends."""
        flow = values.flow_id(flow_id)
        answer: (
            ResolveDependencyResult.Satisfied
            | ResolveDependencyResult.Impossible
            | ResolveDependencyResult.AlreadyResolved
        ) = await self._submit(
            ResolveDependency(
                self._flow_partition(flow),
                flow,
                values.uuid(edge_id, "edge_id"),
                str.__str__(values.execution_id(upstream_execution_id, "upstream_execution_id")),
                str.__str__(values.execution_id(downstream_execution_id, "downstream_execution_id")),
                values.text(upstream_outcome, "upstream_outcome", empty=False),
            )
        )
        return answer

    async def cascade_completion(self, completion: CompletionPayload) -> CascadeOutcome:
        """Resolve whatever an ended member still has to resolve. The engine does so by itself; this repeats it.

        The stored row tells how the member ended. Standalone executions have nothing to resolve.
        """
        if not isinstance(completion, CompletionPayload):
            raise values.invalid(f"completion: expected a CompletionPayload, got {type(completion).__name__}")
        execution_id = str.__str__(values.execution_id(completion.execution_id))
        self._check_open()
        if completion.flow_id is None:
            return CascadeOutcome(0, 0, True)
        values.flow_id(completion.flow_id)
        answer: CascadeOutcome = await self._submit(DispatchCompletion(execution_id, strict=True))
        return answer


def _size_of(graph: Any) -> int:
    """How many nodes and edges there are, as far as they can be counted without going through them."""
    parts = (getattr(graph, name, None) for name in ("nodes", "edges"))
    return sum(len(each) for each in parts if isinstance(each, Sized))


def _edge(value: Any, position: int) -> FlowEdge:
    if position >= MAX_FLOW_EDGES:
        raise values.invalid(f"edges: at most {MAX_FLOW_EDGES} are allowed")
    if isinstance(value, tuple) and len(value) == 2:
        return FlowEdge(*value)
    if not isinstance(value, FlowEdge):
        raise values.invalid(f"edges: expected a FlowEdge or a pair of names, got {type(value).__name__}")
    return value


def _known(name: Any, uuids: Mapping[str, str], where: str) -> str:
    if not isinstance(name, str) or name not in uuids:
        raise values.invalid(f"{where}: {quoted(name)} is not the name of a node")
    return name


def _check_distinct(items: list[Any]) -> None:
    if len({item.uuid for item in items}) < len(items):
        raise values.invalid("nodes: an execution_id is used twice")
    keys = [(item.namespace, item.idempotency_key) for item in items if item.idempotency_key]
    if len(set(keys)) < len(keys):
        raise values.invalid("nodes: an idempotency_key is used twice")
