"""Flows: create, fill, connect, cancel."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.executions import CancelFlowResult
from flowfabric.model.operations.flows import AddExecutionToFlowResult, ApplyDependencyResult, CreateFlowResult, Staged
from flowfabric.server.http.request import Count, Millis, arguments
from flowfabric.server.http.response import Answer, tagged
from flowfabric.server.operations import Call, Route, Variants

Policy = Literal["cancel_all", "cancel_pending", "flow_only"]
Ended: TypeAlias = CancelFlowResult.Cancelled | CancelFlowResult.CancellationScheduled


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
    call.told = {"policy": body.cancellation_policy}
    before = await call.engine.describe_flow(flow)
    found = await call.engine.cancel_flow(flow, body.cancellation_policy, 0, body.reason)
    if before is not None and before.cancelled_at is not None:
        return tagged(CancelFlowResult.Cancelled(found.cancellation_policy, found.member_execution_ids[:MAX_PAGE]))
    return tagged(found if _waits(call) else _unawaited(found))


def _waits(call: Call) -> bool:
    return call.query.wait in ("true", "1")


async def until_cancelled(call: Call) -> None:
    """Wait for the members, if that was asked for, as long as the client is there and may."""
    if _waits(call):
        await call.while_connected(call.engine.await_flow_cancelled(call.flow_id))
        await call.check_standing()


def _unawaited(found: Ended) -> Ended:
    """What clients that did not ask to wait are told.

    The engine answers ``Cancelled``, to programs and to remote calls alike, because it has cancelled the members by
    then. The reference's server has not: its clients are told how many members will be, and read that from the answer
    of this route. So the rule belongs to the route and to nothing below it.
    """
    members = found.member_execution_ids
    if found.cancellation_policy != "cancel_all" or not members:
        return found
    return CancelFlowResult.CancellationScheduled(found.cancellation_policy, len(members), members)


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

ROUTES = (
    Route(
        name="create_flow",
        method="POST",
        path="/v1/flows",
        summary="Create a flow; repeating it changes nothing",
        handler=create,
        body=CreateFlowBody,
        answers={201: Variants(CreateFlowResult.Created), 200: Variants(CreateFlowResult.AlreadySatisfied)},
    ),
    Route(
        name="add_execution_to_flow",
        method="POST",
        path=f"{_ID}/members",
        summary="Add an execution to a flow",
        handler=add_member,
        body=MemberBody,
        answers={
            201: Variants(AddExecutionToFlowResult.Added),
            200: Variants(AddExecutionToFlowResult.AlreadyMember),
        },
    ),
    Route(
        name="cancel_flow",
        method="POST",
        path=f"{_ID}/cancel",
        summary="Cancel a flow and the members its policy selects",
        handler=cancel,
        settled=until_cancelled,
        body=CancelFlowBody,
        query=CancelFlowQuery,
        answers={
            200: Variants(
                CancelFlowResult.Cancelled, CancelFlowResult.CancellationScheduled, CancelFlowResult.PartiallyCancelled
            )
        },
    ),
    Route(
        name="stage_dependency_edge",
        method="POST",
        path=f"{_ID}/edges",
        summary="Store an edge between two members",
        handler=stage_edge,
        body=StageEdgeBody,
        answers={201: Variants(Staged)},
    ),
    Route(
        name="apply_dependency_to_child",
        method="POST",
        path=f"{_ID}/edges/apply",
        summary="Apply a staged edge",
        handler=apply_edge,
        body=ApplyEdgeBody,
        answers={200: Variants(ApplyDependencyResult.Applied, ApplyDependencyResult.AlreadyApplied)},
    ),
)
