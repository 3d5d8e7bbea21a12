"""Finding executions, and doing the same to all that fit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from flowfabric.core.batch.notes import Note
from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError, Transport
from flowfabric.model.ids import ExecutionId, decode_hook
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.reads.search import FailureGroups, SearchPage, StateCounts
from flowfabric.model.states import PublicState
from flowfabric.server.http.problems import as_sent, refused, told
from flowfabric.server.http.request import Millis
from flowfabric.server.http.response import Answer, encode, plain
from flowfabric.server.operations import Call, Route, missing
from flowfabric.server.routes.flow_graphs import Edges

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
_ENDED = {
    PublicState.COMPLETED,
    PublicState.FAILED,
    PublicState.CANCELLED,
    PublicState.EXPIRED,
    PublicState.SKIPPED,
}
_UNENDED = tuple(each for each in PublicState if each not in _ENDED)
#: What is replayed unless the filter says otherwise.
_REPLAYED = (PublicState.FAILED, PublicState.EXPIRED)


class SearchQuery(Struct, kw_only=True):
    """What fits: ``q`` is a search as people type it (``charge tag:team=red error:"timed out" since:2h``), ``state``
    may name several with commas between, ``tag`` is ``key=value``, ``parent`` the id of the run that started them;
    ``roots`` leaves out what others started."""

    q: str = ""
    roots: bool = False
    ended_from: Millis | None = None
    ended_before: Millis | None = None

    namespace: str | None = None
    lane_id: str | None = None
    state: str | None = None
    kind: str | None = None
    tag: str | None = None
    flow_id: str | None = None
    parent: str | None = None
    created_from: Millis | None = None
    created_before: Millis | None = None
    cursor: str | None = None
    limit: Limit = 100


class CountQuery(Struct, kw_only=True):
    """What is counted; ``q`` is a search as people type it."""

    namespace: str | None = None
    q: str = ""
    roots: bool = False
    created_from: Millis | None = None
    created_before: Millis | None = None
    ended_from: Millis | None = None
    ended_before: Millis | None = None


class FailuresQuery(Struct, kw_only=True):
    """Whose failures; ``q`` is a search as people type it."""

    namespace: str | None = None
    q: str = ""
    created_from: Millis | None = None
    created_before: Millis | None = None
    limit: Limit = 100


class MembersQuery(Struct, kw_only=True):
    """Which page."""

    state: str | None = None
    cursor: str | None = None
    limit: Limit = 100


class Filter(Struct, kw_only=True):
    """What fits all that is given; ``q`` is a search as people type it."""

    q: str | None = None
    parent: str | None = None
    roots: bool | None = None
    ended_from: Millis | None = None
    ended_before: Millis | None = None
    namespace: str | None = None
    lane_id: str | None = None
    states: tuple[PublicState, ...] | None = None
    kind: str | None = None
    tag: tuple[str, str] | None = None
    flow_id: str | None = None
    created_from: Millis | None = None
    created_before: Millis | None = None


class BulkBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whom it is done to: at most ``limit`` of them, newest first; repeat with ``next_cursor`` for the rest."""

    filter: Filter
    reason: str = ""
    limit: Limit = 100
    cursor: str | None = None
    #: Only say who would be affected.
    dry_run: bool = False


class Failure(Struct, frozen=True):
    """One that could not be helped, and why."""

    execution_id: ExecutionId
    error: str


class BulkDone(Struct, frozen=True):
    """Who fitted, who is done, who is not; more may wait behind the cursor."""

    matched: int
    done: tuple[ExecutionId, ...]
    failed: tuple[Failure, ...]
    next_cursor: str | None


class PlacesQuery(Struct, kw_only=True):
    """Of one namespace, or of all that can be seen."""

    namespace: str | None = None
    cursor: str | None = None
    limit: Limit = 100


#: What the engine calls fields of a query, and of a filter inside a body.
SENT = {"states": "state", "execution_kind": "kind", "flow_kind": "kind", "query": "q"}
_FILTERED = {"execution_kind": "filter.kind", "query": "filter.q"} | {
    name: f"filter.{name}" for name in Filter.__struct_fields__ if name not in ("namespace", "kind", "q")
}


def namespaces_of(call: Call, wanted: str | None) -> tuple[str, ...] | None:
    """Those that are asked for and may be seen; a foreign one is as good as an empty one."""
    own = call.principal.namespaces
    if wanted is None:
        return None if own is None else tuple(sorted(own))
    return (wanted,) if call.principal.owns(wanted) else ()


def states_of(text: str | None) -> tuple[str, ...]:
    """States with commas between."""
    return () if not text else tuple(text.split(","))


async def search(call: Call) -> Answer:
    """Executions that fit."""
    query: SearchQuery = call.query
    tag = None
    if query.tag is not None:
        key, equals, value = query.tag.partition("=")
        if not equals:
            raise refused(400, "invalid query: tag: expected key=value")
        tag = (key, value)
    with as_sent(SENT):
        found = await call.engine.search_executions(
            namespaces=namespaces_of(call, query.namespace),
            lane_id=query.lane_id,
            states=states_of(query.state),
            execution_kind=query.kind,
            tag=tag,
            flow_id=query.flow_id,
            parent=query.parent,
            created_from=query.created_from,
            created_before=query.created_before,
            query=query.q,
            roots=query.roots,
            ended_from=query.ended_from,
            ended_before=query.ended_before,
            cursor=query.cursor,
            limit=query.limit,
        )
    return plain(found)


async def counts(call: Call) -> Answer:
    """How many are in each state."""
    query: CountQuery = call.query
    with as_sent(SENT):
        found = await call.engine.count_states(
            namespaces=namespaces_of(call, query.namespace),
            query=query.q,
            roots=query.roots,
            created_from=query.created_from,
            created_before=query.created_before,
            ended_from=query.ended_from,
            ended_before=query.ended_before,
        )
    return plain(found)


async def failures(call: Call) -> Answer:
    """Failures by error."""
    query: FailuresQuery = call.query
    with as_sent(SENT):
        found = await call.engine.group_failures(
            namespaces=namespaces_of(call, query.namespace),
            query=query.q,
            created_from=query.created_from,
            created_before=query.created_before,
            limit=query.limit,
        )
    return plain(found)


async def members(call: Call) -> Answer:
    """Members of a flow."""
    query: MembersQuery = call.query
    flow = call.flow_id
    if await call.engine.describe_flow(flow) is None:
        raise missing("flow", flow)
    with as_sent(SENT):
        found = await call.engine.search_executions(
            namespaces=namespaces_of(call, None),
            flow_id=flow,
            states=states_of(query.state),
            cursor=query.cursor,
            limit=query.limit,
        )
    return plain(found)


async def graph(call: Call) -> Answer:
    """All edges of a flow."""
    flow = call.flow_id
    if await call.engine.describe_flow(flow) is None:
        raise missing("flow", flow)
    return plain(Edges(tuple(await call.engine.list_flow_edges(flow, namespaces=call.principal.namespaces))))


async def _to_all(call: Call, states: tuple[PublicState, ...], act: Callable[[ExecutionId], Awaitable[Any]]) -> Answer:
    body: BulkBody = call.body
    wanted = body.filter
    with as_sent(_FILTERED):
        page = await call.engine.search_executions(
            namespaces=namespaces_of(call, wanted.namespace),
            lane_id=wanted.lane_id,
            states=states if wanted.states is None else wanted.states,
            execution_kind=wanted.kind,
            tag=wanted.tag,
            flow_id=wanted.flow_id,
            created_from=wanted.created_from,
            created_before=wanted.created_before,
            parent=wanted.parent,
            query=wanted.q or "",
            roots=bool(wanted.roots),
            ended_from=wanted.ended_from,
            ended_before=wanted.ended_before,
            cursor=body.cursor,
            limit=body.limit,
        )
    ids, following = [each.execution_id for each in page.executions], page.next_cursor
    if call.receipt is not None and not body.dry_run:
        ids, following = await _planned(call, ids, following)
    answers = [] if body.dry_run else await asyncio.gather(*(_tried(call, act, each) for each in ids))
    failed = tuple(each for each in answers if each is not None)
    unhelped = {each.execution_id for each in failed}
    done = () if body.dry_run else tuple(each for each in ids if each not in unhelped)
    call.told = {**_named(wanted), "done": str(len(done))}
    return plain(BulkDone(len(ids), done, failed, following))


class _Plan(Struct, array_like=True):
    ids: list[ExecutionId]
    following: str | None


_plan = msgspec.json.Decoder(_Plan, dec_hook=decode_hook)


async def _planned(call: Call, ids: list[ExecutionId], following: str | None) -> tuple[list[ExecutionId], str | None]:
    """What a request is about that is made again under its key: what it found the first time. Much of that is done
    since, and would not be found again."""
    assert call.receipt is not None
    key = call.receipt("request_cancel", "plan")
    kept = await call.server.engine.keep_answer(
        owner=key.owner,
        idempotency_key=key.idempotency_key,
        fingerprint=key.fingerprint,
        status=200,
        media="",
        body=encode(_Plan(ids, following)),
    )
    found = _plan.decode(kept.body or b"")
    return found.ids, found.following


def _noting(call: Call, operation: str, identity: ExecutionId) -> Engine:
    """The engine for one of many acts, which is made once under the key of the request."""
    receipt = None if call.receipt is None else call.receipt(operation, identity)
    return call.engine.noting(Note(receipt=receipt))


def _named(wanted: Filter) -> dict[str, str]:
    """What a filter narrows, in words for the audit."""
    told = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name)) is not None}
    if wanted.tag is not None:
        told["tag"] = "=".join(wanted.tag)
    if wanted.states is not None:
        told["states"] = ", ".join(wanted.states)
    return {name: str(value) for name, value in told.items()}


async def _tried(call: Call, act: Callable[[ExecutionId], Awaitable[Any]], identity: ExecutionId) -> Failure | None:
    try:
        await act(identity)
    except EngineError as error:
        # Asked again under its key, the request goes on with what the store was not there for.
        call.unfinished = call.unfinished or isinstance(error, Transport)
        return Failure(identity, told(error)[1]["error"])
    return None


async def cancel_all(call: Call) -> Answer:
    """Cancel those that fit and have not ended; workflows clean up first."""
    reason = call.body.reason

    def cancel(each: ExecutionId) -> Awaitable[Any]:
        return _noting(call, "request_cancel", each).request_cancel(execution_id=each, reason=reason)

    return await _to_all(call, _UNENDED, cancel)


async def replay_all(call: Call) -> Answer:
    """Run again those that fit and have failed or expired, and nothing that has gone on since it was found."""
    wanted = call.body.filter.states
    states = _REPLAYED if wanted is None else wanted

    def replay(each: ExecutionId) -> Awaitable[Any]:
        return _noting(call, "replay_execution", each).replay_execution(execution_id=each, states=states)

    return await _to_all(call, _REPLAYED, replay)


ROUTES = (
    Route(
        name="search_executions",
        method="GET",
        path="/v1/search/executions",
        summary="Executions by namespace, lane, state, kind, tag, flow, time and words, newest first",
        handler=search,
        query=SearchQuery,
        answers={200: SearchPage},
    ),
    Route(
        name="count_states",
        method="GET",
        path="/v1/search/states",
        summary="How many executions are in each state, among the newest",
        handler=counts,
        query=CountQuery,
        answers={200: StateCounts},
    ),
    Route(
        name="group_failures",
        method="GET",
        path="/v1/search/failures",
        summary="Failed executions grouped by kind and error, among the newest",
        handler=failures,
        query=FailuresQuery,
        answers={200: FailureGroups},
    ),
    Route(
        name="list_flow_members",
        method="GET",
        path="/v1/flows/{id}/members",
        summary="Members of a flow, newest first",
        handler=members,
        query=MembersQuery,
        answers={200: SearchPage},
    ),
    Route(
        name="list_flow_edges",
        method="GET",
        path="/v1/flows/{id}/graph",
        summary="All edges of a flow",
        handler=graph,
        answers={200: Edges},
    ),
    Route(
        name="cancel_executions",
        method="POST",
        path="/v1/bulk/cancel",
        summary="Cancel all executions that match a filter; workflows clean up first",
        handler=cancel_all,
        body=BulkBody,
        answers={200: BulkDone},
    ),
    Route(
        name="replay_executions",
        method="POST",
        path="/v1/bulk/replay",
        summary="Replay all executions that match a filter",
        handler=replay_all,
        body=BulkBody,
        answers={200: BulkDone},
    ),
)
