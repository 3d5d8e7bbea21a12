"""Workers elsewhere: claims that wait, many renewals at once, any other operation of the engine, many in a request."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, field

from flowfabric import __version__
from flowfabric.engine.claiming import MIN_KEY
from flowfabric.engine.wire_errors import error_to_wire
from flowfabric.model.errors import EngineError
from flowfabric.model.handles import Handle
from flowfabric.model.limits import MAX_CLAIM, MAX_LANES, MAX_NAMESPACES, MAX_TTL_MS, MAX_WEIGHT
from flowfabric.model.results import ClaimPolicy
from flowfabric.server.access import Scope
from flowfabric.server.answers import Answer, encode, plain
from flowfabric.server.operations import Call, Operation
from flowfabric.server.problems import refused
from flowfabric.server.requests import BULK, LARGE

#: How long one claim waits for work at most.
MAX_WAIT_MS = 60_000
#: Calls of one request.
MAX_CALLS = 1_000

Name = Annotated[str, Meta(min_length=1, max_length=1_024)]
Weight = Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]


class Partitions(Struct, frozen=True):
    """How many partitions ids are spread over."""

    flow: int
    budget: int
    quota: int


class Hello(Struct, frozen=True):
    """What a caller elsewhere has to know of the store."""

    version: str
    store: str
    backend: str
    partitions: Partitions


class OneCall(Struct, frozen=True):
    """An operation of the engine and its arguments by name."""

    op: str
    arguments: Raw = field(default_factory=lambda: Raw(b"{}"))


class ClaimBody(Struct, kw_only=True):
    """Who claims, from which lanes and namespaces, how much, and how long to wait for it."""

    worker_id: Name
    worker_instance_id: Name
    lanes: Annotated[dict[str, Weight], Meta(max_length=MAX_LANES)] = {}
    capabilities: list[str] = []
    namespaces: Annotated[list[str], Meta(max_length=MAX_NAMESPACES)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_CLAIM)] = 1
    lease_ttl_ms: Annotated[int, Meta(ge=1, le=MAX_TTL_MS)] = 30_000
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 0
    #: Another one for each claim, made by chance. If the answer is lost, the same request with ``again`` gives what it
    #: held.
    key: Annotated[str, Meta(min_length=MIN_KEY, max_length=128)] | None = None
    again: bool = False


class Work(Struct, frozen=True):
    """An execution in the worker's hands: the handle it is worked on with, and what there is to do."""

    handle: str
    execution_id: str
    execution_kind: str
    attempt_index: int
    lease_ttl_ms: int
    input_payload: bytes
    tags: dict[str, str]


class Claimed(Struct, frozen=True):
    """What was claimed."""

    work: list[Work]


class CallsBody(Struct, kw_only=True):
    """Calls that are made side by side, and what to claim once they are done (without waiting)."""

    calls: Annotated[list[OneCall], Meta(max_length=MAX_CALLS)]
    claim: ClaimBody | None = None


class Answers(Struct, frozen=True, omit_defaults=True):
    """What came of each call, in the order of the calls: ``{"ok": …}`` or ``{"error": {"family", "code", …}}``; and
    what was claimed."""

    answers: list[dict[str, Any]]
    work: list[Work] | None = None


class RenewBody(Struct, kw_only=True):
    """Leases to keep."""

    handles: Annotated[list[str], Meta(max_length=MAX_CLAIM)]


class LostBody(Struct, kw_only=True):
    """Leases to look at."""

    handles: Annotated[list[str], Meta(max_length=MAX_CLAIM)]


class Lost(Struct, frozen=True):
    """Places in the list of those that were taken away or whose execution has ended."""

    lost: list[int]


async def hello(call: Call) -> Answer:
    """What the store is."""
    engine = call.engine
    counts = engine.partitions
    return plain(
        Hello(
            __version__,
            engine.store.shown,
            engine.backend_label,
            Partitions(counts.flow, counts.budget, counts.quota),
        )
    )


async def calls(call: Call) -> Answer:
    """Make calls side by side, so that they share commits."""
    wanted: list[OneCall] = call.body.calls
    performer = call.server.performer
    if len(wanted) == 1:
        found = [await performer.answer(call, wanted[0].op, wanted[0].arguments)]
    else:
        found = await asyncio.gather(*(performer.answer(call, each.op, each.arguments) for each in wanted))
    if call.body.claim is None:
        return Answer(200, encode({"answers": found}))
    if not call.principal.may(Scope.WORKER):
        raise refused(403, "this credential lacks the scope 'worker'", kind="forbidden", retryable=False)
    return Answer(200, encode({"answers": found, "work": await _claimed(call, call.body.claim, 0)}))


async def claim(call: Call) -> Answer:
    """Claim, now or as soon as there is something; the caller gets what to do along with its handles."""
    return Answer(200, encode(Claimed(await _claimed(call, call.body, call.body.wait_ms))))


async def _claimed(call: Call, body: ClaimBody, wait_ms: int) -> list[Work]:
    within = _within(call, body.namespaces)
    lanes = body.lanes or {"default": 1}
    who = (body.worker_id, body.worker_instance_id, body.lease_ttl_ms)
    policy = ClaimPolicy(*who, wait_ms or None, body.key, body.again)
    engine = call.engine
    if len(lanes) == 1:
        claiming = engine.claim_many(next(iter(lanes)), body.capabilities, policy, body.limit, within)
    else:
        claiming = engine.claim_from_lanes(lanes, body.capabilities, policy, body.limit, within)
    handles = await (_while_open(call, claiming) if wait_ms else claiming)
    return await _work(call, handles, within)


def _within(call: Call, wanted: list[str] | None) -> list[str] | None:
    """The namespaces to claim in: those that are named, or those of the credential."""
    own = call.principal.namespaces
    if wanted is None:
        return None if own is None else sorted(own)
    for each in wanted:
        call.check_namespace(each)
    return wanted


async def _while_open(call: Call, claiming: Any) -> list[Handle]:
    """Wait as long as the client is there and the server stays: whoever is given up leaves no lease behind."""
    task: asyncio.Future[list[Handle]] = asyncio.ensure_future(call.while_connected(claiming))
    closing = asyncio.ensure_future(call.server.closing.wait())
    try:
        await asyncio.wait((task, closing), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise refused(503, "the server is shutting down; claim from another one", kind="unavailable", retryable=True)
    finally:
        closing.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # nobody is left to hear of it


async def _work(call: Call, handles: list[Handle], within: list[str] | None) -> list[Work]:
    if not handles:
        return []
    envelopes = call.server.performer.envelopes
    await envelopes.ready()
    contexts = await call.engine.read_execution_contexts([handle.execution_id for handle in handles])
    work = []
    for handle in handles:
        held = handle.payload
        context = contexts.get(handle.execution_id)
        if context is None:
            continue
        work.append(
            Work(
                envelopes.seal(handle, within),
                held.execution_id,
                context.execution_kind,
                held.attempt_index,
                held.lease_ttl_ms,
                context.input_payload,
                context.tags,
            )
        )
    return work


async def renew(call: Call) -> Answer:
    """Keep many leases in one commit."""
    performer = call.server.performer
    answers: list[dict[str, Any]] = [{} for _ in call.body.handles]
    held: list[tuple[dict[str, Any], Handle]] = []
    for answer, envelope in zip(answers, call.body.handles, strict=True):
        try:
            held.append((answer, (await performer.opened(call, envelope))[0]))
        except EngineError as error:
            answer["error"] = error_to_wire(error)
    found = await call.engine.renew_many([handle for _, handle in held])
    for (answer, _), said in zip(held, found, strict=True):
        if isinstance(said, EngineError):
            answer["error"] = error_to_wire(said)
        else:
            answer["ok"] = said
    return Answer(200, encode({"answers": answers}))


async def lost(call: Call) -> Answer:
    """Which leases are gone."""
    performer = call.server.performer
    handles = [(await performer.opened(call, each))[0] for each in call.body.handles]
    gone = {id(handle) for handle in await call.engine.lost_leases(handles)}
    return plain(Lost([place for place, handle in enumerate(handles) if id(handle) in gone]))


OPERATIONS = (
    Operation(
        name="remote_hello",
        method="GET",
        path="/v1/remote",
        scope=Scope.READ,
        each_scope=True,
        summary="What callers elsewhere have to know of the store",
        handler=hello,
        answers={200: Hello},
    ),
    Operation(
        name="remote_calls",
        method="POST",
        path="/v1/remote/calls",
        # Each call asks for its own; see the table of remote calls.
        scope=Scope.READ,
        each_scope=True,
        summary="Operations of the engine, many in one request",
        handler=calls,
        body=CallsBody,
        limit=BULK,
        answers={200: Answers},
        # What may not be done twice is said by each call; whole answers are not kept.
        kept=False,
    ),
    Operation(
        name="remote_claim",
        method="POST",
        path="/v1/remote/claim",
        scope=Scope.WORKER,
        summary="Claim work, waiting for it if there is none",
        handler=claim,
        body=ClaimBody,
        answers={200: Claimed},
        kept=False,
    ),
    Operation(
        name="remote_renew",
        method="POST",
        path="/v1/remote/renew",
        scope=Scope.WORKER,
        summary="Keep many leases at once",
        handler=renew,
        body=RenewBody,
        limit=LARGE,
        answers={200: Answers},
        kept=False,
    ),
    Operation(
        name="remote_lost",
        method="POST",
        path="/v1/remote/lost",
        scope=Scope.WORKER,
        summary="Which leases were taken away",
        handler=lost,
        body=LostBody,
        limit=LARGE,
        answers={200: Lost},
        kept=False,
    ),
)
