"""Flows: create, fill, connect, cancel."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric.model.flows import AddExecutionToFlowResult, ApplyDependencyResult, CreateFlowResult, Staged
from flowfabric.model.results import CancelFlowResult
from flowfabric.server.access import Scope
from flowfabric.server.answers import Answer, tagged
from flowfabric.server.operations import Call, Operation, Variants
from flowfabric.server.requests import Count, Millis, arguments

Policy = Annotated[str, Meta(pattern="^(cancel_all|cancel_pending|flow_only)$")]


class CreateFlowBody(Struct, kw_only=True):
    """A new flow. Without an id the server mints one."""

    flow_kind: str
    namespace: str
    flow_id: str | None = None
    now: Millis | None = None


class MemberBody(Struct, kw_only=True):
    """Who joins."""

    execution_id: str
    flow_id: str | None = None
    now: Millis | None = None


class CancelFlowBody(Struct, kw_only=True):
    """Why, and whom it reaches."""

    reason: str
    cancellation_policy: Policy
    flow_id: str | None = None
    now: Millis | None = None


class CancelFlowQuery(Struct, kw_only=True):
    """Whether to wait until all is done: ``true`` or ``1``."""

    wait: str = ""


class StageEdgeBody(Struct, kw_only=True):
    """An edge between two members, and the revision of the graph it was made for."""

    upstream_execution_id: str
    downstream_execution_id: str
    expected_graph_revision: Count
    flow_id: str | None = None
    edge_id: str | None = None
    dependency_kind: str | None = None
    data_passing_ref: str | None = None
    now: Millis | None = None


class ApplyEdgeBody(Struct, kw_only=True):
    """A staged edge that is to count."""

    edge_id: str
    upstream_execution_id: str
    downstream_execution_id: str
    graph_revision: Count
    flow_id: str | None = None
    dependency_kind: str | None = None
    data_passing_ref: str | None = None
    now: Millis | None = None


async def create(call: Call) -> Answer:
    """Make a flow."""
    call.check_namespace(call.body.namespace)
    result = await call.engine.create_flow(**{"flow_id": call.mint("flow"), **arguments(call.body)})
    return tagged(result, 201 if isinstance(result, CreateFlowResult.Created) else 200)


async def add_member(call: Call) -> Answer:
    """An execution joins."""
    flow, body = call.flow_id, call.body
    call.same("flow_id", body.flow_id, flow)
    if call.principal.namespaces is not None:
        await call.check_execution(call.parsed_execution(body.execution_id))
    result = await call.engine.add_execution_to_flow(flow_id=flow, **arguments(body, "flow_id"))
    return tagged(result, 201 if isinstance(result, AddExecutionToFlowResult.Added) else 200)


async def cancel(call: Call) -> Answer:
    """Cancel it, with the members its policy names."""
    flow, body = call.flow_id, call.body
    call.same("flow_id", body.flow_id, flow)
    wait_ms = None if call.query.wait in ("true", "1") else 0
    return tagged(await call.engine.cancel_flow(flow, body.cancellation_policy, wait_ms, body.reason))


async def stage_edge(call: Call) -> Answer:
    """Store an edge."""
    flow, body = call.flow_id, call.body
    call.same("flow_id", body.flow_id, flow)
    given = {"edge_id": call.mint("edge"), **arguments(body, "flow_id")}
    return tagged(await call.engine.stage_dependency_edge(flow_id=flow, **given), 201)


async def apply_edge(call: Call) -> Answer:
    """Make an edge count."""
    flow, body = call.flow_id, call.body
    call.same("flow_id", body.flow_id, flow)
    return tagged(await call.engine.apply_dependency_to_child(flow_id=flow, **arguments(body, "flow_id")))


_ID = "/v1/flows/{id}"

OPERATIONS = (
    Operation(
        name="create_flow",
        method="POST",
        path="/v1/flows",
        scope=Scope.SUBMIT,
        summary="Create a flow; repeating it changes nothing",
        handler=create,
        body=CreateFlowBody,
        answers={201: Variants(CreateFlowResult.Created), 200: Variants(CreateFlowResult.AlreadySatisfied)},
    ),
    Operation(
        name="add_execution_to_flow",
        method="POST",
        path=f"{_ID}/members",
        scope=Scope.SUBMIT,
        summary="Let an execution join a flow",
        handler=add_member,
        body=MemberBody,
        owner="flow",
        answers={
            201: Variants(AddExecutionToFlowResult.Added),
            200: Variants(AddExecutionToFlowResult.AlreadyMember),
        },
    ),
    Operation(
        name="cancel_flow",
        method="POST",
        path=f"{_ID}/cancel",
        scope=Scope.OPERATOR,
        summary="Cancel a flow with the members its policy names",
        handler=cancel,
        body=CancelFlowBody,
        query=CancelFlowQuery,
        owner="flow",
        answers={
            200: Variants(
                CancelFlowResult.Cancelled, CancelFlowResult.CancellationScheduled, CancelFlowResult.PartiallyCancelled
            )
        },
        audited=True,
    ),
    Operation(
        name="stage_dependency_edge",
        method="POST",
        path=f"{_ID}/edges",
        scope=Scope.SUBMIT,
        summary="Store an edge between two members",
        handler=stage_edge,
        body=StageEdgeBody,
        owner="flow",
        answers={201: Variants(Staged)},
    ),
    Operation(
        name="apply_dependency_to_child",
        method="POST",
        path=f"{_ID}/edges/apply",
        scope=Scope.SUBMIT,
        summary="Make a staged edge count",
        handler=apply_edge,
        body=ApplyEdgeBody,
        owner="flow",
        answers={200: Variants(ApplyDependencyResult.Applied, ApplyDependencyResult.AlreadyApplied)},
    ),
)
