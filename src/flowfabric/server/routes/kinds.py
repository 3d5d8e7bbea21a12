"""Kinds that workers have announced: finding them, reading what they take, and starting them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import Created, Duplicate
from flowfabric.model.operations.kinds import KindSnapshot, KnownKindPage
from flowfabric.model.quoting import quoted
from flowfabric.sdk.asks.answer_checks import check_against
from flowfabric.sdk.definitions.announce import id_for
from flowfabric.server.http.problems import Refused, refused
from flowfabric.server.http.request import I32, LARGE
from flowfabric.server.http.response import Answer, plain, tagged
from flowfabric.server.operations import Call, Route, Variants
from flowfabric.server.routes.schedules import NamespaceQuery
from flowfabric.server.routes.search import PlacesQuery, namespaces_of


class StartBody(Struct, kw_only=True):
    """What it is started with: ``input`` is an object with its arguments by name. The rest is as announced unless it is
    given; tags are added to those announced."""

    input: Raw = field(default_factory=lambda: Raw(b"{}"))
    lane_id: str | None = None
    priority: I32 | None = None
    tags: dict[str, str] | None = None
    idempotency_key: str | None = None


async def list_kinds(call: Call) -> Answer:
    """Names of kinds."""
    query: PlacesQuery = call.query
    own = namespaces_of(call, query.namespace)
    return plain(await call.engine.list_kind_definitions(namespaces=own, cursor=query.cursor, limit=query.limit))


async def _known(call: Call) -> KindSnapshot:
    namespace: str = call.query.namespace
    call.check_namespace(namespace)
    kind = call.path["kind"]
    found = await call.engine.read_kind_definition(namespace, kind)
    if found is None:
        text = f"kind not found: {quoted(kind)}: no worker of this namespace has announced it"
        raise refused(404, text)
    return found


async def describe(call: Call) -> Answer:
    """One kind as it was announced."""
    return plain(await _known(call))


async def start(call: Call) -> Answer:
    """Create an execution as the code of its kind would."""
    known = await _known(call)
    body: StartBody = call.body
    definition = known.definition
    if definition.by_code is not None:
        raise _by_code(known, definition.by_code)
    value = msgspec.json.decode(body.input)
    flaw = check_against(definition.input, value, whose="kind", what="input")
    if flaw is not None:
        raise refused(422, f"invalid input: {flaw}", kind="validation", retryable=False)
    lane = definition.lane_id if body.lane_id is None else body.lane_id
    identity = None
    if call.key is not None:
        identity = ExecutionId.solo(lane, call.engine.partitions, uuid=call.mint("execution"))
    bound = body.idempotency_key is None
    key = _id(known, value) if bound else body.idempotency_key
    given: dict[str, Any] = {
        "execution_id": identity,
        "namespace": known.namespace,
        "lane_id": lane,
        "execution_kind": known.kind,
        "input_payload": bytes(body.input),
        "payload_encoding": "json",
        "priority": definition.priority if body.priority is None else body.priority,
        "tags": {**definition.tags, **(body.tags or {})} or None,
        "policy": definition.policy,
        "creator_identity": call.principal.name,
        "idempotency_key": key,
    }
    if bound and key is not None and definition.reuse == "after_completion":
        given["key_reuse"] = "ended"
    # Budgets and limits are those of its namespace, no matter who starts it: a worker of one namespace must not have an
    # operator spend another's.
    result = await call.server.engine.limited_to((known.namespace,)).create_execution(**given)
    if isinstance(result, Duplicate) and result.execution_id != identity:
        await _check_taken(call, known, result, key or "", bound=bound)
    return tagged(result, 201 if isinstance(result, Created) else 200)


def _by_code(known: KindSnapshot, reason: str) -> Refused:
    return refused(
        409,
        f"{known.kind} can be started only by its code: {reason}; start it from code, or with "
        f"`flowfabric submit APP {known.kind}`",
        kind="by_code",
        retryable=False,
    )


def _id(known: KindSnapshot, value: Any) -> str | None:
    try:
        return id_for(known.definition, value)
    except ValueError as error:
        raise _by_code(known, f"its id {quoted(known.definition.id)} cannot be worked out: {error}") from None


async def _check_taken(call: Call, known: KindSnapshot, taken: Duplicate, key: str, *, bound: bool) -> None:
    """An id that is taken is an error if the kind says so, and if it is another kind's execution that has it."""
    info = await call.engine.read_execution_info(taken.execution_id)
    if info is not None and info.execution_kind != known.kind:
        text = f"the id {quoted(key)} belongs to an execution of {quoted(info.execution_kind)}: {taken.execution_id}"
        raise refused(409, text, kind="id_conflict", retryable=False)
    if bound and known.definition.reuse == "reject":
        text = f"an execution with the id {quoted(key)} exists: {taken.execution_id}"
        raise refused(409, text, kind="id_conflict", retryable=False)


_ONE = "/v1/kinds/{kind}"

ROUTES = (
    Route(
        name="list_kind_definitions",
        method="GET",
        path="/v1/search/kinds",
        summary="Kinds that workers have announced, by namespace and name",
        handler=list_kinds,
        query=PlacesQuery,
        answers={200: KnownKindPage},
    ),
    Route(
        name="read_kind_definition",
        method="GET",
        path=_ONE,
        summary="A kind as workers have announced it: what it takes, and how it is started",
        handler=describe,
        query=NamespaceQuery,
        answers={200: KindSnapshot},
    ),
    Route(
        name="start_kind",
        method="POST",
        path=f"{_ONE}/start",
        summary="Start an execution of an announced kind, with its lane, priority, tags, policy and id",
        handler=start,
        query=NamespaceQuery,
        body=StartBody,
        limit=LARGE,
        answers={201: Variants(Created), 200: Variants(Duplicate)},
    ),
)
