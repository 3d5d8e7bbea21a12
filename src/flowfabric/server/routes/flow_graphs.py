"""Looking at flows: what they are made of, how far they are, their tags and the policies of their groups."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, structs

from flowfabric.model.ids import ExecutionId, FlowId, IdError
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.flows import (
    AnyOf,
    EdgeGroupSnapshot,
    EdgePolicy,
    EdgeSnapshot,
    FlowPage,
    FlowProjection,
    FlowSnapshot,
    GroupState,
    Incoming,
    OnSatisfied,
    Outgoing,
    Quorum,
    SetEdgeGroupPolicyResult,
)
from flowfabric.model.reads.overview import FlowTree
from flowfabric.server.http.problems import refused
from flowfabric.server.http.request import U16
from flowfabric.server.http.response import Answer, plain, tagged
from flowfabric.server.operations import Call, Route, Variants, missing
from flowfabric.server.routes.execution_detail import Tags
from flowfabric.server.routes.submit import PolicyBody, edge_policy

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]


class PartitionQuery(Struct, kw_only=True):
    """Which page of which partition."""

    partition: U16
    cursor: str | None = None
    limit: Limit = 100


class EdgesQuery(Struct, kw_only=True):
    """The outgoing or incoming edges of one member."""

    upstream: str | None = None
    downstream: str | None = None


class TreeQuery(Struct, kw_only=True):
    """All members of a flow, or those that one of them has started."""

    parent: str | None = None
    cursor: str | None = None
    limit: Limit = 200


class GroupBody(Struct):
    """Set the policy of the edges into a member."""

    policy: PolicyBody


class PolicyAnswer(Struct, frozen=True, omit_defaults=True):
    """How edges count."""

    kind: str
    k: int | None = None
    on_satisfied: OnSatisfied | None = None


class GroupAnswer(Struct, frozen=True, kw_only=True):
    """All edges into one member: their policy and how far they are."""

    downstream_execution_id: ExecutionId
    policy: PolicyAnswer
    total_deps: int
    satisfied_count: int
    failed_count: int
    skipped_count: int
    running_count: int
    group_state: GroupState


class FlowAnswer(Struct, frozen=True, kw_only=True):
    """A flow with its groups of edges."""

    flow_id: FlowId
    flow_kind: str
    namespace: str
    public_flow_state: str
    graph_revision: int
    node_count: int
    edge_count: int
    created_at: int
    last_mutation_at: int
    cancelled_at: int | None
    cancel_reason: str | None
    cancellation_policy: str | None
    tags: dict[str, str]
    edge_groups: tuple[GroupAnswer, ...]


def _policy(policy: EdgePolicy) -> PolicyAnswer:
    match policy:
        case AnyOf(on_satisfied=mode):
            return PolicyAnswer("any_of", None, mode)
        case Quorum(k=k, on_satisfied=mode):
            return PolicyAnswer("quorum", k, mode)
    return PolicyAnswer("all_of")


def _group(group: EdgeGroupSnapshot) -> GroupAnswer:
    return GroupAnswer(**{**structs.asdict(group), "policy": _policy(group.policy)})


class Edges(Struct, frozen=True):
    """Edges by id."""

    edges: tuple[EdgeSnapshot, ...]


async def list_flows(call: Call) -> Answer:
    """Flows of one partition."""
    try:
        cursor = FlowId(call.query.cursor) if call.query.cursor else None
    except IdError as error:
        raise refused(400, f"invalid cursor: {error}") from None
    return plain(await call.engine.list_flows(call.query.partition, cursor, call.query.limit))


async def _found(call: Call) -> FlowSnapshot:
    found = await call.engine.describe_flow(call.flow_id, namespaces=call.principal.namespaces)
    if found is None:
        raise missing("flow", call.flow_id)
    return found


async def describe(call: Call) -> Answer:
    """What a person asks first about a flow."""
    found = await _found(call)
    groups = tuple(map(_group, found.edge_groups))
    return plain(FlowAnswer(**{**structs.asdict(found), "edge_groups": groups}))


async def summary(call: Call) -> Answer:
    """Members counted by state."""
    await _found(call)
    found = await call.engine.get_flow_summary(call.flow_id)
    if found is None:
        raise missing("flow summary", call.flow_id)
    return plain(found)


async def tree(call: Call) -> Answer:
    """Who belongs to whom."""
    query: TreeQuery = call.query
    own = call.principal.namespaces
    parent = None if query.parent is None else call.parsed_execution(query.parent, "parent")
    found = await call.engine.read_flow_tree(
        call.flow_id, parent=parent, namespaces=own, cursor=query.cursor, limit=query.limit
    )
    return plain(found)


async def edges(call: Call) -> Answer:
    """Edges at one member."""
    query: EdgesQuery = call.query
    if (query.upstream is None) is (query.downstream is None):
        raise refused(400, "invalid query: name either upstream or downstream")
    direction: Outgoing | Incoming
    if query.upstream is not None:
        direction = Outgoing(call.parsed_execution(query.upstream, "upstream"))
    else:
        direction = Incoming(call.parsed_execution(query.downstream or "", "downstream"))
    own = call.principal.namespaces
    return plain(Edges(tuple(await call.engine.list_edges(call.flow_id, direction, namespaces=own))))


async def set_group(call: Call) -> Answer:
    """Say how the edges into a member count."""
    member = call.parsed_execution(call.path["execution_id"])
    policy = edge_policy(call.body.policy)
    return tagged(
        await call.engine.set_edge_group_policy(flow_id=call.flow_id, downstream_execution_id=member, policy=policy)
    )


async def get_tags(call: Call) -> Answer:
    """Its labels."""
    return plain(Tags((await _found(call)).tags))


async def set_tags(call: Call) -> Answer:
    """Set some labels; the others stay."""
    await call.engine.set_flow_tags(call.flow_id, call.body.tags)
    return await get_tags(call)


_ID = "/v1/flows/{id}"

ROUTES = (
    Route(
        name="list_flows",
        method="GET",
        path="/v1/flows",
        summary="Flows of one partition",
        handler=list_flows,
        query=PartitionQuery,
        answers={200: FlowPage},
    ),
    Route(
        name="describe_flow",
        method="GET",
        path=_ID,
        summary="A flow with its groups of edges",
        handler=describe,
        answers={200: FlowAnswer},
    ),
    Route(
        name="get_flow_summary",
        method="GET",
        path=f"{_ID}/summary",
        summary="Members of a flow counted by state",
        handler=summary,
        answers={200: FlowProjection},
    ),
    Route(
        name="read_flow_tree",
        method="GET",
        path=f"{_ID}/tree",
        summary="Members of a flow with their parents and step names, newest first",
        handler=tree,
        query=TreeQuery,
        answers={200: FlowTree},
    ),
    Route(
        name="list_edges",
        method="GET",
        path=f"{_ID}/edges",
        summary="The outgoing or incoming edges of one member",
        handler=edges,
        query=EdgesQuery,
        answers={200: Edges},
    ),
    Route(
        name="set_edge_group_policy",
        method="PUT",
        path=f"{_ID}/groups/{{execution_id}}",
        summary="Set the policy of the edges into a member",
        handler=set_group,
        body=GroupBody,
        answers={200: Variants(SetEdgeGroupPolicyResult.Set, SetEdgeGroupPolicyResult.AlreadySet)},
    ),
    Route(
        name="get_flow_tags",
        method="GET",
        path=f"{_ID}/tags",
        summary="Labels of a flow",
        handler=get_tags,
        answers={200: Tags},
    ),
    Route(
        name="set_flow_tags",
        method="PUT",
        path=f"{_ID}/tags",
        summary="Set some labels of a flow; the others stay",
        handler=set_tags,
        body=Tags,
        answers={200: Tags},
    ),
)
