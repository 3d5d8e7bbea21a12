"""Many at once: executions in bulk, and whole flows."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from flowfabric.model.operations.flows import (
    AllOf,
    AnyOf,
    EdgePolicy,
    FlowEdge,
    FlowGraph,
    FlowSubmitted,
    OnSatisfied,
    Quorum,
)
from flowfabric.server.http.problems import refused
from flowfabric.server.http.request import BULK, I32, Blob, Count, Millis, arguments
from flowfabric.server.http.response import Answer, plain, variant
from flowfabric.server.operations import Call, Route
from flowfabric.server.routes.executions import CreateBody, creation
from flowfabric.stores.beside import others_turn, worked


class BulkBody(Struct):
    """Executions to be stored together: all of them, or none."""

    executions: list[CreateBody]


class BulkAnswer(Struct, frozen=True):
    """``Created`` or ``Duplicate`` for each, in the order given."""

    results: list[dict[str, Any]]


class NodeBody(Struct, kw_only=True):
    """A member of a flow that does not exist yet."""

    execution_kind: str
    lane_id: str | None = None
    input_payload: Blob | None = None
    payload_encoding: str | None = None
    priority: I32 | None = None
    creator_identity: str | None = None
    idempotency_key: str | None = None
    execution_id: str | None = None
    tags: dict[str, str] | None = None
    policy: dict[str, Any] | None = None
    delay_until: Millis | None = None
    execution_deadline_at: Millis | None = None


class EdgeBody(Struct, kw_only=True):
    """Which node waits for which."""

    upstream: str
    downstream: str
    data_passing_ref: str | None = None
    dependency_kind: str | None = None
    edge_id: str | None = None


class PolicyBody(Struct, kw_only=True):
    """How the edges into a member count: ``all_of``, ``any_of`` or ``quorum`` of ``k``."""

    kind: str
    k: Count | None = None
    on_satisfied: OnSatisfied = OnSatisfied.CANCEL_REMAINING


class FlowBody(Struct, kw_only=True):
    """A whole flow: nodes by name, edges between them, and policies of groups by node."""

    namespace: str
    nodes: dict[str, NodeBody]
    edges: list[EdgeBody] = []
    groups: dict[str, PolicyBody] = {}
    flow_id: str | None = None
    flow_kind: str = "dag"
    budget_ids: list[str] = []


def edge_policy(body: PolicyBody) -> EdgePolicy:
    """The policy that a body stands for."""
    if body.kind == "all_of":
        return AllOf()
    if body.kind == "any_of":
        return AnyOf(body.on_satisfied)
    if body.kind == "quorum" and body.k is not None:
        return Quorum(body.k, body.on_satisfied)
    raise refused(400, "invalid_input: policy: expected kind all_of, any_of, or quorum with k")


async def create_many(call: Call) -> Answer:
    """Store many executions in one transaction."""
    for each in call.body.executions:
        call.check_namespace(each.namespace)
    wanted = []
    for position, each in enumerate(call.body.executions):
        wanted.append(creation(call, each, position))
        await others_turn(position)
    found = await call.engine.create_executions(wanted)
    return plain({"results": [variant(each) for each in found]})


async def submit_flow(call: Call) -> Answer:
    """Store a whole flow in one transaction."""
    body: FlowBody = call.body
    call.check_namespace(body.namespace)
    flow_id = call.mint("flow") if body.flow_id is None else body.flow_id
    graph = await worked(len(body.nodes) + len(body.edges) + len(body.groups), lambda: _graph(body, flow_id))
    return plain(await call.engine.submit_flow(graph), 201)


def _graph(body: FlowBody, flow_id: str) -> FlowGraph:
    return FlowGraph(
        {name: arguments(node) for name, node in body.nodes.items()},
        [FlowEdge(**arguments(edge)) for edge in body.edges],
        {name: edge_policy(policy) for name, policy in body.groups.items()},
        flow_id,
        body.flow_kind,
        body.namespace,
        tuple(body.budget_ids),
    )


ROUTES = (
    Route(
        name="create_executions",
        method="POST",
        path="/v1/executions/bulk",
        summary="Create many executions in one transaction",
        handler=create_many,
        body=BulkBody,
        limit=BULK,
        answers={200: BulkAnswer},
    ),
    Route(
        name="submit_flow",
        method="POST",
        path="/v1/flows/submit",
        summary="Create a whole flow in one transaction; repeating it with its id changes nothing",
        handler=submit_flow,
        body=FlowBody,
        limit=BULK,
        answers={201: FlowSubmitted},
    ),
)
