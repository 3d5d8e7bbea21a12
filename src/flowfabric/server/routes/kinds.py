"""Kinds that workers have announced: finding them, reading what they take, and starting them."""

from __future__ import annotations

from msgspec import Raw, Struct, field

from flowfabric.core.batch.notes import Note
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import Created, Duplicate
from flowfabric.model.operations.kinds import KindSnapshot, KnownKindPage
from flowfabric.model.quoting import quoted
from flowfabric.sdk.definitions.announce import OnlyByCode, Unfit, creation, taken
from flowfabric.server.http.problems import Refused, refused
from flowfabric.server.http.request import I32, LARGE, Millis
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
    delay_until: Millis | None = None


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
    own = body.idempotency_key
    try:
        given = creation(
            known,
            bytes(body.input),
            lane_id=body.lane_id,
            priority=body.priority,
            tags=body.tags,
            key=own,
            delay_until=body.delay_until,
        )
    except OnlyByCode as error:
        raise _by_code(known, str(error)) from None
    except Unfit as error:
        raise refused(422, f"invalid input: {error}", kind="validation", retryable=False) from None
    identity = None
    if call.key is not None:
        identity = ExecutionId.solo(given["lane_id"], call.engine.partitions, uuid=call.mint("execution"))
    # Budgets and limits are those of its namespace, no matter who starts it: a worker of one namespace must not have an
    # operator spend another's.
    engine = call.server.engine.limited_to((known.namespace,))
    if call.receipt is not None:
        engine = engine.noting(Note(receipt=call.receipt("create_execution")))
    result = await engine.create_execution(**given, execution_id=identity, creator_identity=call.principal.name)
    if isinstance(result, Duplicate) and result.execution_id != identity:
        info = await call.engine.read_execution_info(result.execution_id)
        if info is not None:
            key = given["idempotency_key"] or ""
            why = taken(known, key, result.execution_id, info.execution_kind, given=own is not None)
            if why is not None:
                raise refused(409, why, kind="id_conflict", retryable=False)
    return tagged(result, 201 if isinstance(result, Created) else 200)


def _by_code(known: KindSnapshot, reason: str) -> Refused:
    return refused(
        409,
        f"{known.kind} can be started only by its code: {reason}; start it from code, or with "
        f"`flowfabric submit APP {known.kind}`",
        kind="by_code",
        retryable=False,
    )


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
