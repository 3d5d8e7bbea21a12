"""Lanes, suspended executions, expired leases and live workers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric.model.ids import ExecutionId, ExecutionIdError
from flowfabric.model.limits import MAX_KINDS_WINDOW_MS, MAX_PAGE
from flowfabric.model.operations.executions import (
    AlreadySatisfied,
    ExpiredLeaseCursor,
    ExpiredLeasePage,
    LanePage,
    SuspendedPage,
    WorkerLoad,
    WorkerPage,
)
from flowfabric.model.operations.lanes import LaneFairnessChanged, LaneSnapshot, LaneStateChanged
from flowfabric.model.reads.overview import KindFigures
from flowfabric.model.reads.search import QueueDepth
from flowfabric.model.states import LaneState
from flowfabric.server.http.problems import refused
from flowfabric.server.http.request import U16, Millis
from flowfabric.server.http.response import Answer, plain, tagged
from flowfabric.server.operations import Call, Route, Variants, missing
from flowfabric.server.routes.search import namespaces_of

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]


class PageQuery(Struct, kw_only=True):
    """Which page."""

    cursor: str | None = None
    limit: Limit = 100


class SuspendedQuery(Struct, kw_only=True):
    """Which page of which partition."""

    partition: U16
    cursor: str | None = None
    limit: Limit = 100


class WorkersQuery(Struct, kw_only=True):
    """Which page of which namespace."""

    namespace: str = "default"
    after: str | None = None
    limit: Limit = 100


class ExpiredQuery(Struct, kw_only=True):
    """Which page; the two halves of the cursor go together."""

    namespace: str | None = None
    as_of: Millis | None = None
    after_expires_at_ms: Millis | None = None
    after_execution_id: str | None = None
    limit: Limit = 100


class StateBody(Struct, kw_only=True):
    """Whether the lane grants and accepts work, and why."""

    state: LaneState
    reason: str = ""


class FairnessBody(Struct):
    """Whose turns are taken: ``namespace``, ``tag:<key>``, or nobody's."""

    by: str | None


async def list_lanes(call: Call) -> Answer:
    """Every lane ever used, or those that the caller's namespaces use."""
    own = call.principal.namespaces
    return plain(await call.engine.list_lanes(call.query.cursor, call.query.limit, namespaces=own))


async def describe(call: Call) -> Answer:
    """One lane."""
    lane = call.path["lane_id"]
    found = await call.engine.describe_lane(lane, namespaces=call.principal.namespaces)
    if found is None:
        raise missing("lane", lane)
    return plain(found)


async def set_state(call: Call) -> Answer:
    """Open or close it."""
    return tagged(await call.engine.set_lane_state(call.path["lane_id"], call.body.state, call.body.reason))


async def set_fairness(call: Call) -> Answer:
    """Let keys take turns."""
    return tagged(await call.engine.set_lane_fairness(call.path["lane_id"], call.body.by))


async def suspended(call: Call) -> Answer:
    """Who waits for a signal."""
    cursor = call.query.cursor or None
    try:
        ExecutionId((cursor or "{fp:0}:00000000-0000-0000-0000-000000000000").rpartition(".")[2])
    except ExecutionIdError as error:
        raise refused(400, f"invalid cursor: {error}") from None
    return plain(await call.engine.list_suspended(call.query.partition, cursor, call.query.limit))


async def workers(call: Call) -> Answer:
    """Who is alive."""
    query: WorkersQuery = call.query
    call.check_namespace(query.namespace)
    return plain(await call.engine.list_workers(namespace=query.namespace, after=query.after, limit=query.limit))


async def expired(call: Call) -> Answer:
    """Leases past their time."""
    query: ExpiredQuery = call.query
    if query.namespace is not None:
        call.check_namespace(query.namespace)
    elif call.principal.namespaces is not None:
        raise refused(400, "invalid query: name one of your namespaces")
    after = None
    if query.after_expires_at_ms is not None and query.after_execution_id is not None:
        after = ExpiredLeaseCursor(query.after_expires_at_ms, query.after_execution_id)
    return plain(
        await call.engine.list_expired_leases(
            as_of=query.as_of, after=after, limit=query.limit, namespace=query.namespace
        )
    )


class LoadQuery(Struct, kw_only=True):
    """Of one namespace, or of all that can be seen."""

    namespace: str | None = None


async def load(call: Call) -> Answer:
    """What workers hold, and who has gone."""
    return plain(await call.engine.read_worker_load(namespaces=namespaces_of(call, call.query.namespace)))


class Queues(Struct, frozen=True):
    """Lanes where something waits."""

    queues: tuple[QueueDepth, ...]


class QueuesQuery(Struct, kw_only=True):
    """Of one namespace, or of all that can be seen."""

    namespace: str | None = None


async def queues(call: Call) -> Answer:
    """What waits in each lane."""
    own = namespaces_of(call, call.query.namespace)
    return plain(Queues(await call.engine.queue_depths(namespaces=own)))


class KindsQuery(Struct, kw_only=True):
    """Of one namespace, or of all that can be seen; how far back."""

    namespace: str | None = None
    window_ms: Annotated[int, Meta(ge=1_000, le=MAX_KINDS_WINDOW_MS)] = 3_600_000


async def kinds(call: Call) -> Answer:
    """Rate, failures and durations by kind."""
    own = namespaces_of(call, call.query.namespace)
    return plain(await call.engine.read_kinds(namespaces=own, window_ms=call.query.window_ms))


ROUTES = (
    Route(
        name="read_kinds",
        method="GET",
        path="/v1/kinds",
        summary="Executions of a time window by kind: rate, failures, durations",
        costly=True,
        handler=kinds,
        query=KindsQuery,
        answers={200: KindFigures},
    ),
    Route(
        name="queue_depths",
        method="GET",
        path="/v1/queues",
        summary="Queue depth and oldest age of each lane",
        handler=queues,
        query=QueuesQuery,
        answers={200: Queues},
    ),
    Route(
        name="list_lanes",
        method="GET",
        path="/v1/lanes",
        summary="Lanes by name, with their states",
        handler=list_lanes,
        query=PageQuery,
        answers={200: LanePage},
    ),
    Route(
        name="describe_lane",
        method="GET",
        path="/v1/lanes/{lane_id}",
        summary="The state of a lane",
        handler=describe,
        answers={200: LaneSnapshot},
    ),
    Route(
        name="set_lane_state",
        method="PUT",
        path="/v1/lanes/{lane_id}/state",
        summary="Set the state of a lane",
        handler=set_state,
        body=StateBody,
        answers={200: Variants(LaneStateChanged, AlreadySatisfied)},
    ),
    Route(
        name="set_lane_fairness",
        method="PUT",
        path="/v1/lanes/{lane_id}/fairness",
        summary="Let namespaces or tags take turns in a lane",
        handler=set_fairness,
        body=FairnessBody,
        answers={200: Variants(LaneFairnessChanged, AlreadySatisfied)},
    ),
    Route(
        name="list_suspended",
        method="GET",
        path="/v1/suspended",
        summary="Suspended executions of one partition, longest waiting first",
        handler=suspended,
        query=SuspendedQuery,
        answers={200: SuspendedPage},
    ),
    Route(
        name="list_workers",
        method="GET",
        path="/v1/workers",
        summary="Live workers of a namespace",
        handler=workers,
        query=WorkersQuery,
        answers={200: WorkerPage},
    ),
    Route(
        name="read_worker_load",
        method="GET",
        path="/v1/workers/load",
        summary="Executions that each worker holds, and workers that have gone",
        handler=load,
        query=LoadQuery,
        answers={200: WorkerLoad},
    ),
    Route(
        name="list_expired_leases",
        method="GET",
        path="/v1/leases/expired",
        summary="Expired leases, oldest first",
        handler=expired,
        query=ExpiredQuery,
        answers={200: ExpiredLeasePage},
    ),
)
