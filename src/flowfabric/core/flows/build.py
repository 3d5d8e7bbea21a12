"""Building a flow step by step: the flow, its members, edges, and the policies of groups.

An edge counts in two steps. Staging writes it down under the flow's revision; applying makes its child wait. An edge
from a member that has ended is decided when it is applied.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.documents import dump_document, parse_document
from flowfabric.core.flows import edges
from flowfabric.core.flows.cascade import Cascade, End
from flowfabric.core.flows.reconcile import outcome_of
from flowfabric.core.leases.grants import dropped_grants
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Change, Decision, Descendants, Drop, Get, Need, change, insert
from flowfabric.model.errors import (
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    LimitReached,
    NotFound,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.model.ids import EdgeId, ExecutionId, FlowId
from flowfabric.model.limits import MAX_FLOW_NODES
from flowfabric.model.operations.flows import (
    ALL_OF,
    AddExecutionToFlowResult,
    AllOf,
    ApplyDependencyResult,
    CreateFlowResult,
    EdgePolicy,
    EdgeSnapshot,
    EdgeState,
    GroupState,
    SetEdgeGroupPolicyResult,
    Staged,
    k_target,
    policy_text,
    read_edge_policy,
)
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Edge, EdgeGroup, Flow, FlowCounts

OPEN = "open"


class CreateFlow(Struct, gc=False):
    """A flow to create."""

    partition: int
    flow_id: str
    flow_kind: str
    namespace: str
    budget_ids: tuple[str, ...]
    recorded_at_ms: int | None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Flow, (self.partition, self.flow_id)),)


def create_flow(command: CreateFlow, view: View, context: Context) -> Decision:
    """A new, empty flow; or the one that was there before, unchanged."""
    shown = FlowId.unchecked(command.flow_id)
    if view.get(Flow, (command.partition, command.flow_id)) is not None:
        return Decision(CreateFlowResult.AlreadySatisfied(shown))
    return Decision(CreateFlowResult.Created(shown), (insert(new_flow(command, context.now)),))


#: Where a flow's document names the execution that has founded it for its children.
FOUNDER = "founder"


def new_flow(command: CreateFlow, now: int, nodes: int = 0, edge_count: int = 0, founder: str | None = None) -> Flow:
    """The row of a new flow. One that an execution founds for its children names it."""
    document: dict[str, Any] = {
        "flow_kind": command.flow_kind,
        "namespace": command.namespace,
        "node_count": nodes,
        "edge_count": edge_count,
        "last_mutation_at_ms": now if command.recorded_at_ms is None else command.recorded_at_ms,
    }
    if command.budget_ids:
        document["budget_ids"] = ",".join(command.budget_ids)
    if founder is not None:
        document[FOUNDER] = founder
    return Flow(command.partition, command.flow_id, nodes + edge_count, OPEN, now, None, dump_document(document))


def open_flow(view: View, partition: int, flow_id: str) -> Flow:
    """A flow that may still be changed."""
    flow = view.get(Flow, (partition, flow_id))
    if flow is None:
        raise NotFound("flow", f"flow_not_found: {flow_id}")
    if flow.public_flow_state in lit.ENDED_FLOW_STATES:
        raise State(StateKind.FLOW_ALREADY_TERMINAL, f"flow_already_terminal: {flow_id}")
    return flow


def grown(flow: Flow, now: int, counter: str, more: int = 1) -> tuple[Change, int]:
    """The flow with more nodes or edges, and how many there are now."""
    raw = parse_document(flow.raw_fields, "ff_flow_core.raw_fields")
    count = number(raw.get(counter)) + more
    raw[counter] = count
    raw["last_mutation_at_ms"] = now
    return change(flow, graph_revision=flow.graph_revision + more, raw_fields=dump_document(raw)), count


def number(value: object) -> int:
    """A count in a document, which people may have written."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


class AddExecutionToFlow(Struct, gc=False):
    """An execution joins a flow, for good."""

    partition: int
    flow_id: str
    execution_id: str
    recorded_at_ms: int | None

    def needs(self) -> tuple[Need, ...]:
        flow = (self.partition, self.flow_id)
        return (Get(Flow, flow), Get(FlowCounts, flow), Get(Execution, self.execution_id))


def add_execution_to_flow(command: AddExecutionToFlow, view: View, context: Context) -> Decision:
    """A member, whatever state it is in; one that was a member stays as it is."""
    flow = open_flow(view, command.partition, command.flow_id)
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution", f"execution_not_found: {command.execution_id}")
    if execution.partition != flow.partition:
        raise Validation(
            ValidationKind.INVALID_INPUT,
            f"partition_mismatch: execution {execution.execution_id} is not in the flow's partition "
            f"{{fp:{flow.partition}}}; mint its id with ExecutionId.for_flow",
        )
    shown = ExecutionId.unchecked(execution.execution_id)
    raw = parse_document(flow.raw_fields, "ff_flow_core.raw_fields")
    if execution.flow_id == flow.flow_id:
        return Decision(AddExecutionToFlowResult.AlreadyMember(shown, number(raw.get("node_count"))))
    if execution.flow_id is not None:
        raise Conflict(ConflictKind.EXECUTION_ALREADY_IN_FLOW, f"already_member_of_different_flow:{execution.flow_id}")
    if number(raw.get("node_count")) >= MAX_FLOW_NODES:
        raise LimitReached("MAX_FLOW_NODES", MAX_FLOW_NODES)
    added, count = grown(flow, _recorded(command, context), "node_count")
    joined = change(
        execution,
        flow_id=flow.flow_id,
        last_mutation_at_ms=context.now,
        **inherited(execution, listed(raw.get("budget_ids"))),
    )
    # The flow goes on: what was counted as its end is not.
    counts = view.get(FlowCounts, flow.key)
    counted = () if counts is None else (Drop(counts),)
    return Decision(AddExecutionToFlowResult.Added(shown, count), (joined, added, *counted))


def inherited(execution: Execution, budget_ids: tuple[str, ...]) -> dict[str, Any]:
    """The budgets a member pays from: its own, and those of its flow."""
    if not budget_ids:
        return {}
    own = listed(execution.budget_ids)
    return {"budget_ids": ",".join(dict.fromkeys((*own, *budget_ids)))}


def budgets_of(flow: Flow) -> tuple[str, ...]:
    """The budgets every member of a flow pays from."""
    return listed(parse_document(flow.raw_fields, "ff_flow_core.raw_fields").get("budget_ids"))


def listed(value: object) -> tuple[str, ...]:
    """Names that are stored in one text, separated by commas."""
    return tuple(value.split(",")) if isinstance(value, str) and value else ()


def _recorded(command: Any, context: Context) -> int:
    return context.now if command.recorded_at_ms is None else int(command.recorded_at_ms)


class StageDependencyEdge(Struct, gc=False):
    """An edge to write down."""

    partition: int
    flow_id: str
    edge_id: str
    upstream_execution_id: str
    downstream_execution_id: str
    dependency_kind: str
    data_passing_ref: str | None
    expected_graph_revision: int
    recorded_at_ms: int | None

    def needs(self) -> tuple[Need, ...]:
        return (
            Get(Flow, (self.partition, self.flow_id)),
            Get(Execution, self.upstream_execution_id),
            Get(Execution, self.downstream_execution_id),
            Get(Edge, (self.partition, self.flow_id, self.edge_id)),
        )


def stage_dependency_edge(command: StageDependencyEdge, view: View, context: Context) -> Decision:
    """The edge is stored and the revision moves on; nothing happens to the members yet."""
    where = f"edge {command.edge_id}"
    if command.upstream_execution_id == command.downstream_execution_id:
        raise Conflict(ConflictKind.SELF_REFERENCING_EDGE, f"self_referencing_edge: {where}")
    flow = open_flow(view, command.partition, command.flow_id)
    if flow.graph_revision != command.expected_graph_revision:
        raise Contention(
            ContentionKind.STALE_GRAPH_REVISION,
            f"stale_graph_revision: flow {flow.flow_id} is at {flow.graph_revision}, "
            f"not {command.expected_graph_revision}",
        )
    upstream, downstream = map(view.execution, (command.upstream_execution_id, command.downstream_execution_id))
    for execution in (upstream, downstream):
        if execution is None or execution.flow_id != flow.flow_id or execution.partition != flow.partition:
            raise State(StateKind.EXECUTION_NOT_IN_FLOW, f"execution_not_in_flow: {where}")
    assert upstream is not None and downstream is not None
    existing = view.get(Edge, (flow.partition, flow.flow_id, command.edge_id))
    if existing is not None:
        raise Conflict(ConflictKind.DEPENDENCY_ALREADY_EXISTS, where, existing=edge_snapshot(existing))
    # Asked for once the flow is locked: no other edge can appear between this look and the commit.
    view.require((Descendants(flow.partition, flow.flow_id, downstream.uuid),))
    if upstream.uuid in view.descendants(flow.partition, flow.flow_id, downstream.uuid):
        raise Conflict(ConflictKind.CYCLE_DETECTED, f"cycle_detected: {where}")
    now = _recorded(command, context)
    document = edges.edge_document(command.dependency_kind, command.data_passing_ref, now)
    edge = Edge(flow.partition, flow.flow_id, command.edge_id, upstream.uuid, downstream.uuid, document)
    added, _ = grown(flow, now, "edge_count")
    answer = Staged(EdgeId.unchecked(command.edge_id), flow.graph_revision + 1)
    return Decision(answer, (insert(edge), added))


def edge_snapshot(edge: Edge) -> EdgeSnapshot:
    """An edge as people see it."""
    document = parse_document(edge.policy, "ff_edge.policy")
    try:
        state = EdgeState(edge.edge_state)
    except ValueError:
        raise Validation(ValidationKind.CORRUPTION, f"edge_state: unknown value {edge.edge_state!r}") from None
    reference = document.get("data_passing_ref")
    return EdgeSnapshot(
        EdgeId.unchecked(edge.edge_id),
        FlowId.unchecked(edge.flow_id),
        ExecutionId.of(edge.partition, edge.upstream),
        ExecutionId.of(edge.partition, edge.downstream),
        str(document.get("dependency_kind") or edges.SUCCESS_ONLY),
        str(document.get("satisfaction_condition") or "all_required"),
        reference if isinstance(reference, str) else None,
        state,
        number(document.get("created_at_ms")),
        str(document.get("created_by") or "engine"),
    )


class ApplyDependencyToChild(Struct, gc=False):
    """A staged edge is to count from now on."""

    partition: int
    flow_id: str
    edge_id: str
    upstream_execution_id: str
    downstream_execution_id: str
    data_passing_ref: str | None
    recorded_at_ms: int | None

    def needs(self) -> tuple[Need, ...]:
        child = self.downstream_execution_id
        return (
            Get(Execution, child),
            Get(Execution, self.upstream_execution_id),
            Get(Edge, (self.partition, self.flow_id, self.edge_id)),
            Get(EdgeGroup, (self.partition, self.flow_id, child[child.index(":", 4) + 1 :])),
        )


def apply_dependency_to_child(command: ApplyDependencyToChild, view: View, context: Context) -> Decision:
    """The edge counts in its child's group and the child waits; an upstream that has ended is counted at once."""
    child = view.execution(command.downstream_execution_id)
    if child is None:
        raise NotFound("execution", f"execution_not_found: {command.downstream_execution_id}")
    if child.flow_id is not None and child.flow_id != command.flow_id:
        raise Conflict(ConflictKind.EXECUTION_ALREADY_IN_FLOW, f"already_member_of_different_flow:{child.flow_id}")
    edge = view.get(Edge, (command.partition, command.flow_id, command.edge_id))
    if edge is None or edge.downstream != child.uuid or edge.partition != child.partition:
        raise Validation(ValidationKind.INVALID_INPUT, f"edge_not_found: {command.edge_id}")
    if edge.edge_state != EdgeState.PENDING:
        return Decision(ApplyDependencyResult.AlreadyApplied())
    upstream = view.execution(f"{{fp:{edge.partition}}}:{edge.upstream}")
    key = (edge.partition, edge.flow_id, edge.downstream)
    acts, group = _applied(edge, view.get(EdgeGroup, key), command, _recorded(command, context))
    if group.group_state == GroupState.PENDING:
        acts += _gated(view, context, child, group.running_count, edge.edge_id)
    ends = upstream is not None and upstream.lifecycle_phase in lit.ENDED_PHASES
    if upstream is not None and not ends:
        # Somebody may just be ending the upstream without having seen this edge. A new version of its row stops them.
        acts.append(change(upstream, last_mutation_at_ms=context.now))
    answer = ApplyDependencyResult.Applied(group.running_count)
    if not ends:
        return Decision(answer, tuple(acts))
    assert upstream is not None
    outcome = outcome_of(view, upstream)
    view.fold(Decision(None, tuple(acts)))
    counted = view.get(Edge, edge.key)
    assert counted is not None
    cascade = Cascade(view, context)
    cascade.resolve(counted, End(upstream, outcome, UNSET))
    cascade.run()
    moved = cascade.moved()
    left = view.get(EdgeGroup, key)
    answer = ApplyDependencyResult.Applied(0 if left is None else left.running_count)
    return Decision(answer, (), moved.events, moved.wakes, moved.then)


def _applied(
    edge: Edge, group: EdgeGroup | None, command: ApplyDependencyToChild, now: int
) -> tuple[list[Act], EdgeGroup]:
    marked: dict[str, Any] = {"edge_state": str(EdgeState.APPLIED), "applied_at_ms": now}
    if command.data_passing_ref is not None:
        document = parse_document(edge.policy, "ff_edge.policy")
        marked["policy"] = dump_document({**document, "data_passing_ref": command.data_passing_ref})
    acts: list[Act] = [change(edge, **marked)]
    if group is None:
        group = edges.new_group(edge.partition, edge.flow_id, edge.downstream, ALL_OF, 1)
        return [*acts, insert(group)], group
    fields: dict[str, Any] = {
        "running_count": group.running_count + 1,
        "applied_count": edges.applied_total(group) + 1,
    }
    if group.group_state == GroupState.SATISFIED and isinstance(read_edge_policy(group.policy), AllOf):
        # All of them means all of them: a member that adds work for itself waits again.
        fields |= {"group_state": str(GroupState.PENDING), "satisfied_at_ms": None}
    grown = change(group, **fields)
    return [*acts, grown], grown.record  # type: ignore[return-value]


def gate_fields(count: int, edge_id: str) -> dict[str, Any]:
    """What a member that waits for others looks like."""
    return {
        "lifecycle_phase": lit.RUNNABLE,
        "eligibility_state": lit.BLOCKED_BY_DEPENDENCIES,
        "public_state": lit.PUBLIC_WAITING_CHILDREN,
        "blocking_reason": lit.WAITING_FOR_CHILDREN,
        "blocking_detail": f"{count} dep(s) unresolved incl {edge_id}",
    }


def _gated(view: View, context: Context, child: Execution, count: int, edge_id: str) -> list[Act]:
    """A member in the queue leaves it. One that was taken out of the queue for another reason stays as it is: it will
    be asked about its dependencies when it is let go."""
    if (
        child.lifecycle_phase not in lit.WAITING_PHASES
        or child.ownership_state not in lit.UNOWNED_STATES
        or child.eligibility_state in lit.ADMISSION_BLOCKS
    ):
        return []
    gate = change(child, **gate_fields(count, edge_id), last_mutation_at_ms=context.now)
    return [*dropped_grants(view, child), gate]


class SetEdgeGroupPolicy(Struct, gc=False):
    """How the edges into one member are to count."""

    partition: int
    flow_id: str
    downstream: str
    policy: EdgePolicy

    def needs(self) -> tuple[Need, ...]:
        where = (self.partition, self.flow_id)
        return (Get(Flow, where), Get(EdgeGroup, (*where, self.downstream)))


def set_edge_group_policy(command: SetEdgeGroupPolicy, view: View, context: Context) -> Decision:
    """Stored while no edge leads to the member; the same policy again is fine at any time."""
    where = (command.partition, command.flow_id)
    if view.get(Flow, where) is None:
        raise NotFound("flow", f"flow_not_found: {command.flow_id}")
    group = view.get(EdgeGroup, (*where, command.downstream))
    if group is not None and read_edge_policy(group.policy) == command.policy:
        return Decision(SetEdgeGroupPolicyResult.AlreadySet())
    # Asked for once the flow is locked: no edge can be staged between this look and the commit.
    incoming = view.select(Edge, partition=command.partition, flow_id=command.flow_id, downstream=command.downstream)
    if incoming:
        raise Validation(ValidationKind.INVALID_INPUT, "edge_group_policy_already_fixed: dependencies already staged")
    fields = {"policy": policy_text(command.policy), "k_target": k_target(command.policy)}
    stored = (
        insert(edges.new_group(*where, command.downstream, command.policy))
        if group is None
        else change(group, **fields)
    )
    return Decision(SetEdgeGroupPolicyResult.Set(), (stored,))
