"""Executions: create, read, cancel, signal, replay, reprioritise, revoke, reclaim."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from flowfabric.model.ids import ExecutionId, ExecutionIdError
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.executions import (
    AlreadySatisfied,
    Cancelled,
    Cancelling,
    Created,
    Duplicate,
    ExecutionInfo,
    ExecutionPage,
    Granted,
    NotReclaimable,
    PriorityChanged,
    ReclaimCapExceeded,
    Replayed,
    Revoked,
)
from flowfabric.model.operations.suspension import Accepted, DeliverSignalResult, WaitpointEntry
from flowfabric.model.secrets import Discreet
from flowfabric.model.states import PublicState
from flowfabric.server.answer_checks import check_answer
from flowfabric.server.http.problems import refused
from flowfabric.server.http.request import I32, LARGE, MEDIUM, U16, Blob, Count, GrantTtl, Millis, Name, arguments
from flowfabric.server.http.response import BYTES, Answer, encode, plain, tagged
from flowfabric.server.operations import Call, Route, Variants, missing


class CreateBody(Struct, kw_only=True):
    """A new execution. Without an id the server mints one."""

    namespace: str
    lane_id: str
    execution_kind: str
    input_payload: Blob
    priority: I32
    creator_identity: str
    execution_id: str | None = None
    payload_encoding: str | None = None
    idempotency_key: str | None = None
    tags: dict[str, str] | None = None
    policy: dict[str, Any] | None = None
    delay_until: Millis | None = None
    execution_deadline_at: Millis | None = None
    partition_id: U16 | None = None
    now: Millis | None = None


class ListQuery(Struct, kw_only=True):
    """Which page of which partition."""

    partition: U16
    cursor: str = ""
    limit: Count = 50


class RequestCancelBody(Struct, kw_only=True):
    """Why."""

    reason: str = ""


class CancelBody(Struct, kw_only=True):
    """Why, and for whom."""

    reason: str
    execution_id: str | None = None
    source: str | None = None
    lease_id: str | None = None
    lease_epoch: Count | None = None
    attempt_id: str | None = None
    now: Millis | None = None


class SignalBody(Discreet, Struct, kw_only=True):
    """A signal and the token that allows it."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"waitpoint_token"})

    waitpoint_id: str
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    target_scope: str
    waitpoint_token: str
    execution_id: str | None = None
    signal_id: str | None = None
    payload: Blob | None = None
    payload_encoding: str | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    created_at: Millis | None = None
    dedup_ttl_ms: Millis | None = None
    resume_delay_ms: Millis | None = None
    max_signals_per_execution: Count | None = None
    signal_maxlen: Count | None = None
    now: Millis | None = None


class PriorityBody(Struct):
    """Higher goes first."""

    new_priority: I32


class ReclaimBody(Struct, kw_only=True):
    """Who takes over."""

    worker_id: Name
    worker_instance_id: Name
    lane_id: str
    grant_ttl_ms: GrantTtl
    capability_hash: str | None = None
    route_snapshot_json: str | None = None
    admission_summary: str | None = None
    worker_capabilities: list[str] | None = None


class WaitpointQuery(Struct, kw_only=True):
    """Which page."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


class WaitpointToken(Discreet, Struct, frozen=True):
    """The credential of a waitpoint."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"token"})

    token: str


class ReclaimAnswer(Discreet, Struct, frozen=True, omit_defaults=True):
    """What came of a reclaim, by ``status``: ``granted``, ``not_reclaimable`` or ``reclaim_cap_exceeded``."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"grant_key"})

    status: str
    execution_id: str
    partition_key: str | None = None
    grant_key: str | None = None
    expires_at_ms: int | None = None
    lane_id: str | None = None
    detail: str | None = None
    reclaim_count: int | None = None


async def list_executions(call: Call) -> Answer:
    """Ids of one partition."""
    cursor = None
    if call.query.cursor:
        try:
            cursor = ExecutionId(call.query.cursor)
        except ExecutionIdError as error:
            raise refused(400, f"invalid cursor: {error}") from None
    size = min(call.query.limit, MAX_PAGE)
    return plain(await call.engine.list_executions(call.query.partition, cursor, size))


def creation(call: Call, body: CreateBody, position: int | None = None) -> dict[str, Any]:
    """What the engine is given for one execution; of many, for the one at this position."""
    given = arguments(body)
    if body.execution_id is None and call.key is not None:
        uuid = call.mint("execution", position)
        given["execution_id"] = ExecutionId.solo(body.lane_id, call.engine.partitions, uuid=uuid)
    return given


async def create(call: Call) -> Answer:
    """Store one execution."""
    body: CreateBody = call.body
    call.check_namespace(body.namespace)
    result = await call.engine.create_execution(**creation(call, body))
    return tagged(result, 201 if isinstance(result, Created) else 200)


async def info(call: Call) -> Answer:
    """State and identity."""
    found = await call.engine.read_execution_info(call.execution_id)
    if found is None:
        raise missing("execution", call.execution_id)
    return plain(found)


async def state(call: Call) -> Answer:
    """The public state."""
    found = await call.engine.read_execution_state(call.execution_id)
    if found is None:
        raise missing("execution", call.execution_id)
    return plain(found)


async def result(call: Call) -> Answer:
    """The bytes it was completed with."""
    identity = call.execution_id
    if await call.engine.read_execution_state(identity) == PublicState.COMPLETED:
        found = await call.engine.get_execution_result(identity)
        if found is not None:
            return Answer(200, found, BYTES)
    raise missing("execution result", identity)


async def pending_waitpoints(call: Call) -> Answer:
    """Open waitpoints, without their tokens."""
    identity = call.execution_id
    page = await call.engine.list_pending_waitpoints(
        execution_id=identity, after=call.query.after, limit=call.query.limit
    )
    return plain(page.entries)


async def waitpoint_token(call: Call) -> Answer:
    """The credential of an open waitpoint of this execution."""
    identity, wanted = call.execution_id, call.waitpoint_id
    after: str | None = None
    while True:
        page = await call.engine.list_pending_waitpoints(execution_id=identity, after=after, limit=MAX_PAGE)
        if any(entry.waitpoint_id == wanted for entry in page.entries):
            token = await call.engine.read_waitpoint_token(identity.partition, wanted)
            break
        after = page.next_cursor
        if after is None:
            token = None
            break
    if token is None:
        raise refused(404, f"waitpoint not found: {wanted}")
    return Answer(200, encode(WaitpointToken(token.reveal())))


async def cancel(call: Call) -> Answer:
    """Cancel."""
    identity, body = call.execution_id, call.body
    call.same("execution_id", body.execution_id, identity)
    return tagged(await call.engine.cancel_execution(execution_id=identity, **arguments(body, "execution_id")))


async def request_cancel(call: Call) -> Answer:
    """Ask it to end."""
    return tagged(await call.engine.request_cancel(execution_id=call.execution_id, reason=call.body.reason))


async def signal(call: Call) -> Answer:
    """Deliver a signal."""
    identity, body = call.execution_id, call.body
    call.same("execution_id", body.execution_id, identity)
    options = {"execution_id": identity, **arguments(body, "execution_id")}
    if call.key is not None:
        options.setdefault("signal_id", call.mint("signal"))
    options |= await check_answer(call, options)
    return tagged(await call.engine.deliver_signal(**options))


async def priority(call: Call) -> Answer:
    """Move it in its lane."""
    return tagged(
        await call.engine.change_priority(execution_id=call.execution_id, new_priority=call.body.new_priority)
    )


async def replay(call: Call) -> Answer:
    """Run it again."""
    return tagged(await call.engine.replay_execution(execution_id=call.execution_id))


async def revoke_lease(call: Call) -> Answer:
    """Take its lease away."""
    return tagged(await call.engine.revoke_lease(execution_id=call.execution_id, reason="operator_revoke"))


async def reclaim(call: Call) -> Answer:
    """Let a worker reclaim an execution whose lease was lost."""
    found = await call.engine.issue_reclaim_grant(execution_id=call.execution_id, **arguments(call.body))
    match found:
        case Granted(grant=grant):
            answer = ReclaimAnswer(
                "granted",
                str(grant.execution_id),
                grant.partition_key,
                grant.grant_key,
                grant.expires_at_ms,
                call.body.lane_id,
            )
        case NotReclaimable(execution_id=identity, detail=detail):
            answer = ReclaimAnswer("not_reclaimable", str(identity), detail=detail)
        case ReclaimCapExceeded(execution_id=identity, reclaim_count=count):
            answer = ReclaimAnswer("reclaim_cap_exceeded", str(identity), reclaim_count=count)
    return plain(answer)


_ID = "/v1/executions/{id}"

ROUTES = (
    Route(
        name="list_executions",
        method="GET",
        path="/v1/executions",
        summary="Ids of one partition",
        handler=list_executions,
        query=ListQuery,
        limit=LARGE,
        answers={200: ExecutionPage},
    ),
    Route(
        name="create_execution",
        method="POST",
        path="/v1/executions",
        summary="Create an execution; repeating it changes nothing",
        handler=create,
        body=CreateBody,
        limit=LARGE,
        answers={201: Variants(Created), 200: Variants(Duplicate)},
    ),
    Route(
        name="read_execution_info",
        method="GET",
        path=_ID,
        summary="State and identity of an execution",
        handler=info,
        answers={200: ExecutionInfo},
    ),
    Route(
        name="read_execution_state",
        method="GET",
        path=f"{_ID}/state",
        summary="The public state of an execution",
        handler=state,
        answers={200: PublicState},
    ),
    Route(
        name="list_pending_waitpoints",
        method="GET",
        path=f"{_ID}/pending-waitpoints",
        summary="Open waitpoints of an execution, without their tokens",
        handler=pending_waitpoints,
        query=WaitpointQuery,
        answers={200: tuple[WaitpointEntry, ...]},
    ),
    Route(
        name="read_waitpoint_token",
        method="GET",
        path=f"{_ID}/waitpoints/{{waitpoint_id}}/token",
        summary="The token of an open waitpoint",
        handler=waitpoint_token,
        answers={200: WaitpointToken},
    ),
    Route(
        name="get_execution_result",
        method="GET",
        path=f"{_ID}/result",
        summary="The result bytes of an execution",
        handler=result,
        answers={200: None},
        media="application/octet-stream",
    ),
    Route(
        name="cancel_execution",
        method="POST",
        path=f"{_ID}/cancel",
        summary="Cancel an execution",
        handler=cancel,
        body=CancelBody,
        answers={200: Variants(Cancelled)},
    ),
    Route(
        name="request_cancel",
        method="POST",
        path=f"{_ID}/request-cancel",
        summary="Ask an execution to cancel; it can clean up first if its policy gives it time",
        handler=request_cancel,
        body=RequestCancelBody,
        answers={200: Variants(Cancelled, Cancelling)},
    ),
    Route(
        name="deliver_signal",
        method="POST",
        path=f"{_ID}/signal",
        summary="Deliver a signal to a waitpoint",
        handler=signal,
        body=SignalBody,
        limit=MEDIUM,
        answers={200: Variants(Accepted, DeliverSignalResult.Duplicate)},
    ),
    Route(
        name="change_priority",
        method="PUT",
        path=f"{_ID}/priority",
        summary="Change the priority of a waiting execution",
        handler=priority,
        body=PriorityBody,
        answers={200: Variants(PriorityChanged)},
    ),
    Route(
        name="replay_execution",
        method="POST",
        path=f"{_ID}/replay",
        summary="Replay an ended execution",
        handler=replay,
        answers={200: Variants(Replayed)},
    ),
    Route(
        name="revoke_lease",
        method="POST",
        path=f"{_ID}/revoke-lease",
        summary="Revoke the lease of an execution",
        handler=revoke_lease,
        answers={200: Variants(Revoked, AlreadySatisfied)},
    ),
    Route(
        name="issue_reclaim_grant",
        method="POST",
        path=f"{_ID}/reclaim",
        summary="Let a worker reclaim an execution whose lease was lost",
        handler=reclaim,
        body=ReclaimBody,
        answers={200: ReclaimAnswer},
    ),
)
