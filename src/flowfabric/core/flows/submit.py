"""A whole flow in one step: its row, its members, edges and groups, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, uuid_text
from flowfabric.core.executions.create import CreateExecution, create_execution
from flowfabric.core.flows import edges
from flowfabric.core.flows.build import CreateFlow, gate_fields, inherited, new_flow
from flowfabric.model.decisions import Act, Change, Decision, Get, Need, insert
from flowfabric.model.errors import Conflict, ConflictKind, Validation, ValidationKind
from flowfabric.model.events import Event
from flowfabric.model.ids import ExecutionId, FlowId
from flowfabric.model.operations.executions import Created
from flowfabric.model.operations.flows import ALL_OF, EdgePolicy, EdgeState, FlowSubmitted
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import Binding, Execution, Lane
from flowfabric.model.records.flows import Edge, Flow


class NewEdge(NamedTuple):
    """One dependency of the graph, by the UUIDs of its ends."""

    edge_id: str
    upstream: str
    downstream: str
    dependency_kind: str
    data_passing_ref: str | None


class SubmitFlow(Struct, gc=False):
    """A flow with everything that belongs to it. The graph has been found free of cycles."""

    flow: CreateFlow
    #: Names of the nodes, in the order of ``nodes``.
    names: tuple[str, ...]
    nodes: tuple[CreateExecution, ...]
    edges: tuple[NewEdge, ...]
    #: Policies by the UUID of the member the edges lead to.
    groups: dict[str, EdgePolicy]

    def needs(self) -> tuple[Need, ...]:
        lanes = [Get(Lane, lane_id) for lane_id in dict.fromkeys([item.lane_id for item in self.nodes])]
        cores = [Get(Execution, item.execution_id) for item in self.nodes]
        keys = [(item.namespace, item.idempotency_key) for item in self.nodes if item.idempotency_key]
        flow = Get(Flow, (self.flow.partition, self.flow.flow_id))
        return (*lanes, *cores, *[Get(Binding, key) for key in keys], flow)


def submit_flow(command: SubmitFlow, view: View, context: Context) -> Decision:
    """Members without incoming edges are claimable at once, the others wait. The same graph again changes nothing."""
    flow_id = FlowId.unchecked(command.flow.flow_id)
    if view.get(Flow, (command.flow.partition, command.flow.flow_id)) is not None:
        return Decision(FlowSubmitted(flow_id, _repeated(command, view)))
    waiting: dict[str, list[NewEdge]] = {}
    for edge in command.edges:
        waiting.setdefault(edge.downstream, []).append(edge)
    acts: list[Act] = [insert(new_flow(command.flow, context.now, len(command.nodes), len(command.edges)))]
    events: list[Event] = []
    lanes: set[str] = set()
    for name, node in zip(command.names, command.nodes, strict=True):
        decision = create_execution(node, view, context)
        if not isinstance(decision.result, Created):
            raise Validation(
                ValidationKind.INVALID_INPUT,
                f"node {quoted(name)}: its id or idempotency key belongs to execution {decision.result.execution_id}; "
                "use a new one for a new flow",
            )
        acts += joined(decision, command.flow, waiting.get(node.uuid), lanes)
        events += decision.events
    acts += _graph(command, waiting, context.now)
    ids = {
        name: ExecutionId.unchecked(node.execution_id) for name, node in zip(command.names, command.nodes, strict=True)
    }
    return Decision(FlowSubmitted(flow_id, ids), tuple(acts), tuple(events))


def _repeated(command: SubmitFlow, view: View) -> dict[str, ExecutionId]:
    """The members of a flow that is there. It must be this one: the call is repeated because its answer was lost."""
    former = _former_ids(command, view)
    view.require(Get(Execution, each) for each in former.values())
    ids: dict[str, ExecutionId] = {}
    for name, node in zip(command.names, command.nodes, strict=True):
        execution = view.execution(former.get(name, node.execution_id))
        if execution is None or execution.flow_id != command.flow.flow_id:
            raise Validation(
                ValidationKind.INVALID_INPUT,
                f"flow_id: {command.flow.flow_id} already exists without the node {quoted(name)}; "
                "submit a new flow, or add members to this one",
            )
        ids[name] = ExecutionId.unchecked(execution.execution_id)
    return ids


def _former_ids(command: SubmitFlow, view: View) -> dict[str, str]:
    """The ids that earlier releases gave to members, of those that are not there and had none from their caller."""
    space = UUID(command.flow.flow_id).bytes
    return {
        name: f"{{fp:{node.partition}}}:{name_uuid(space, name)}"
        for position, (name, node) in enumerate(zip(command.names, command.nodes, strict=True))
        if view.execution(node.execution_id) is None and node.uuid == member_uuid(space, position, name)
    }


def member_uuid(space: bytes, position: int, name: str) -> str:
    """The UUID of a flow's member: the flow's time and counter, the member's position, and what only its name gives,
    so that members are claimed in their order, behind those of flows made before in the same millisecond."""
    flow = int.from_bytes(space, "big")
    digest = int.from_bytes(blake2b(name.encode(), key=space, digest_size=8).digest(), "big")
    # 16 bits of the flow's counter, 17 of the position, 41 of the digest, around version 8 and the variant.
    place = (flow >> 36 & 0xFFFF) << 58 | position << 41 | digest & (1 << 41) - 1
    return str(UUID(int=flow >> 80 << 80 | 8 << 76 | place >> 62 << 64 | 2 << 62 | place & (1 << 62) - 1))


def name_uuid(space: bytes, name: str) -> str:
    """The UUID that follows from a flow and a name alone."""
    return uuid_text(blake2b(name.encode(), key=space, digest_size=16).digest())


def joined(
    decision: Decision,
    flow: CreateFlow,
    incoming: list[NewEdge] | None,
    lanes: set[str],
    parent: str | None = None,
) -> list[Act]:
    """What creates a member, with the member in its flow, waiting if it has to."""
    acts: list[Act] = []
    for act in decision.acts:
        assert isinstance(act, Change)
        record = act.record
        if isinstance(record, Execution):
            gate = gate_fields(len(incoming), incoming[-1].edge_id) if incoming else {}
            inherits = inherited(record, flow.budget_ids)
            acts.append(insert(replace(record, flow_id=flow.flow_id, parent=parent, **gate, **inherits)))
        elif not isinstance(record, Lane):
            acts.append(act)
        elif record.lane_id not in lanes:
            lanes.add(record.lane_id)
            acts.append(act)
    return acts


def _graph(command: SubmitFlow, waiting: dict[str, list[NewEdge]], now: int) -> list[Act]:
    partition, flow_id = command.flow.partition, command.flow.flow_id
    applied = str(EdgeState.APPLIED)

    @lru_cache(maxsize=256)
    def document(kind: str, reference: str | None) -> str:
        return edges.edge_document(kind, reference, now)

    acts: list[Act] = [
        insert(
            Edge(
                partition,
                flow_id,
                edge.edge_id,
                edge.upstream,
                edge.downstream,
                document(edge.dependency_kind, edge.data_passing_ref),
                0,
                applied,
                now,
            )
        )
        for edge in command.edges
    ]
    for uuid in dict.fromkeys((*waiting, *command.groups)):
        count = len(waiting.get(uuid, ()))
        acts.append(insert(edges.new_group(partition, flow_id, uuid, command.groups.get(uuid, ALL_OF), count)))
    return acts


def check_acyclic(names: Sequence[str], joined: Sequence[tuple[str, str]]) -> None:
    """Sort the graph topologically; what cannot be sorted is a cycle."""
    open_edges = dict.fromkeys(names, 0)
    following: dict[str, list[str]] = {name: [] for name in names}
    for upstream, downstream in joined:
        if upstream == downstream:
            raise Conflict(ConflictKind.SELF_REFERENCING_EDGE, f"self_referencing_edge: {quoted(upstream)}")
        open_edges[downstream] += 1
        following[upstream].append(downstream)
    ready = [name for name, count in open_edges.items() if not count]
    sorted_count = 0
    while ready:
        name = ready.pop()
        sorted_count += 1
        for downstream in following[name]:
            open_edges[downstream] -= 1
            if not open_edges[downstream]:
                ready.append(downstream)
    if sorted_count < len(names):
        stuck = min(name for name, count in open_edges.items() if count)
        raise Conflict(ConflictKind.CYCLE_DETECTED, f"cycle_detected: {quoted(stuck)} waits for itself")
