"""Workers elsewhere: claims that wait, many renewals at once, any other operation of the engine, many in a request."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Raw, Struct, field

from flowfabric import __version__
from flowfabric.engine.operation_table import OPERATIONS, REMOTE
from flowfabric.engine.operations.claim import MIN_KEY, claimed_under
from flowfabric.engine.wire.error_codec import error_to_wire
from flowfabric.engine.wire.protocol import OLDEST, PROTOCOL
from flowfabric.model.errors import EngineError
from flowfabric.model.handles import Handle
from flowfabric.model.limits import MAX_BATCH, MAX_CLAIM, MAX_LANES, MAX_NAMESPACES, MAX_TTL_MS, MAX_WEIGHT
from flowfabric.model.operations.access import Scope
from flowfabric.model.operations.executions import ClaimPolicy, ExecutionContext
from flowfabric.model.secrets import Discreet
from flowfabric.server.http.limits import Made
from flowfabric.server.http.pieces import PIECE_BYTES, STEP_BYTES, Pieces, in_pieces, sliced
from flowfabric.server.http.problems import UNBEGUN, refused, unauthorized
from flowfabric.server.http.request import BULK, LARGE, Gone
from flowfabric.server.http.response import Answer, Streamed, encode, plain
from flowfabric.server.operations import Call, Route, check_caller, given_up
from flowfabric.server.remote_calls import own_of

#: How long one claim waits for work at most.
MAX_WAIT_MS = 60_000
NOBODY_WAITS = "its caller has stopped waiting"
#: Calls of one request.
MAX_CALLS = 1_000
#: Bytes that a call takes beyond its arguments, until the answer is sent.
CALL_BYTES = 512

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
    #: What this server speaks, and the oldest that it understands.
    protocol: int = PROTOCOL
    oldest_protocol: int = OLDEST


class OneCall(Struct, frozen=True):
    """An operation of the engine and its arguments by name."""

    op: str
    arguments: Raw = field(default_factory=lambda: Raw(b"{}"))


class ClaimBody(Discreet, Struct, kw_only=True):
    """Who claims, from which lanes and namespaces, how much, and how long to wait for it."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"key"})

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
    #: Claim nothing; whatever the claim under this key was given goes back, because nobody waits for it any more.
    give_back: bool = False


class Work(Discreet, Struct, frozen=True):
    """An execution in the worker's hands: the handle it is worked on with, and what there is to do."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"handle"})

    handle: str
    execution_id: str
    execution_kind: str
    attempt_index: int
    lease_ttl_ms: int
    input_payload: bytes
    tags: dict[str, str]
    cancel_at: int | None = None
    cancel_reason: str = ""
    replays: int = 0


class Claimed(Struct, frozen=True):
    """What was claimed."""

    work: list[Work]


class _Waiting(Struct):
    """How long a call waits."""

    block_ms: Any = 0
    wait_ms: Any = 0


_waiting = msgspec.json.Decoder(_Waiting)
#: What waits, and the argument that says how long.
WAITING = {"tail_stream": "block_ms", "cancel_flow": "wait_ms"}
_DONE = b'{"ok"'
#: What changes nothing although only those may call it who work on something.
_LOOKING = frozenset({"observe_signals"})


class CallsBody(Struct, kw_only=True):
    """Calls that are made side by side, and what to claim once they are done (without waiting)."""

    calls: Annotated[list[OneCall], Meta(max_length=MAX_CALLS)]
    claim: ClaimBody | None = None


class Answers(Struct, frozen=True, omit_defaults=True):
    """What came of each call, in the order of the calls: ``{"ok": …}`` or ``{"error": {"family", "code", …}}``; and
    what was claimed."""

    answers: list[dict[str, Any]]
    work: list[Work] | None = None


class RenewBody(Discreet, Struct, kw_only=True):
    """Leases to keep."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"handles"})

    handles: Annotated[list[str], Meta(max_length=MAX_CLAIM)]


class LostBody(Discreet, Struct, kw_only=True):
    """Leases to look at."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"handles"})

    handles: Annotated[list[str], Meta(max_length=MAX_CLAIM)]


class Lost(Struct, frozen=True):
    """Places in the list: of those that were taken away or whose execution has ended, and of those whose execution was
    asked to cancel."""

    lost: list[int]
    cancelling: list[int]


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


async def calls(call: Call) -> Answer | Streamed:
    """Make calls side by side, so that they share commits. What is only read is read when its turn to be sent comes."""
    body: CallsBody = call.body
    claiming = None
    if body.claim is not None:
        # A caller that may not claim is told before anything is done.
        check_caller(call.principal, OPERATIONS["remote_claim"])
        claiming = _Claiming(call, body.claim)
    made = Made(call.server.answers, call.principal.credential_id)
    try:
        made.begin(CALL_BYTES * len(body.calls))
        acted, watched = await _acted(call, made)
        if len(acted) == len(body.calls) and claiming is None and sum(map(len, acted.values())) <= PIECE_BYTES:
            made.close()
            return Answer(200, b'{"answers":[%b]}' % b",".join(acted.values()))
        pieces = _answered(call, acted, watched, made, claiming)
        if claiming is None:
            return await in_pieces(pieces, made)
        return await in_pieces(_taken_whole(pieces, claiming), made, claiming.give_back)
    except BaseException:
        made.close()
        raise


async def _acted(call: Call, made: Made) -> tuple[dict[int, bytes], set[int]]:
    """What came of the calls that do something, by their places; and which tails were waited for afterwards."""
    wanted: list[OneCall] = call.body.calls
    performer = call.server.performer
    acting = [at for at, each in enumerate(wanted) if not _is_read(each)]
    said: dict[int, bytes] = {}
    for start in range(0, len(acting), MAX_BATCH):
        some = acting[start : start + MAX_BATCH]
        async with call.server.calls_at_once.some(len(some)):
            making = [performer.answer(call, wanted[at].op, wanted[at].arguments, made) for at in some]
            found = [await making[0]] if len(making) == 1 else await asyncio.gather(*making)
        said.update(zip(some, found, strict=True))
    # A single tail waits when its turn to be sent comes.
    tails = {at for at, each in enumerate(wanted) if each.op == "tail_stream" and _waits(each) and len(wanted) > 1}
    flows = {at for at in acting if _waits(wanted[at]) and said[at].startswith(_DONE)}
    if tails or flows:
        said.update(await _waited(call, sorted(tails | flows)))
    return {at: said[at] for at in sorted(said)}, tails - said.keys()


async def _waited(call: Call, places: list[int]) -> dict[int, bytes]:
    """Wait for what calls wait for, side by side; what those say that have waited in vain."""
    server, said = call.server, dict[int, bytes]()
    admitted: list[int] = []
    with contextlib.ExitStack() as permits:
        for at in places:
            try:
                permits.enter_context(server.followers.one(call.principal))
                admitted.append(at)
            except EngineError as error:
                # There are no more for the others either.
                refusal = server.performer.failed(error)
                said = dict.fromkeys(places[len(admitted) :], refusal)
                break
        wanted = [call.body.calls[at] for at in admitted]
        found = await asyncio.gather(*(server.performer.watch(call, each.op, each.arguments) for each in wanted))
    return said | {at: data for at, data in zip(admitted, found, strict=True) if data is not None}


def _is_read(call: OneCall) -> bool:
    """Whether it changes nothing and may be made after others."""
    operation = REMOTE.get(call.op)
    return operation is not None and (Scope.READ in operation.scopes or call.op in _LOOKING)


def _waits(call: OneCall) -> bool:
    field = WAITING.get(call.op)
    if field is None:
        return False
    try:
        return bool(getattr(_waiting.decode(call.arguments), field) != 0)
    except msgspec.MsgspecError:
        return False  # the call itself reports what is wrong with it


async def _answered(
    call: Call, acted: dict[int, bytes], watched: set[int], made: Made, claiming: _Claiming | None
) -> Pieces:
    """What came of all calls, and what is claimed once they are done."""
    body: CallsBody = call.body
    begun = b'{"answers":['
    ready: list[bytes] = []
    try:
        for at, each in enumerate(body.calls):
            yield begun
            begun = b","
            if at in acted:
                said = acted.pop(at)
                for part in sliced(said):
                    yield part
                made.give(len(said))
                del said
                continue
            async for piece in call.server.performer.pieces(call, each.op, each.arguments, watched=at in watched):
                ready.append(piece)
                del piece
                yield ready.pop()
        yield b"]" if body.calls else begun + b"]"
    finally:
        made.close()
    if claiming is None:
        yield b"}"
        return
    # Some calls wait; what all of them have done is told even to somebody who may claim no more.
    handles = await claiming.claim(0) if await call.stands() else []
    async for piece in _work(call, handles, claiming.within, b","):
        ready.append(piece)
        del piece
        yield ready.pop()


class _Claiming:
    """A claim, and what was given to it."""

    def __init__(self, call: Call, body: ClaimBody) -> None:
        self._call = call
        self._body = body
        self.within = own_of(call, body.namespaces)
        self.handles: list[Handle] = []

    def _policy(self, wait_ms: int = 0) -> ClaimPolicy:
        body = self._body
        who = (body.worker_id, body.worker_instance_id, body.lease_ttl_ms)
        return ClaimPolicy(*who, wait_ms or None, body.key, body.again)

    async def claim(self, wait_ms: int) -> list[Handle]:
        """Claim, now or within some time."""
        body, engine = self._body, self._call.engine
        lanes = body.lanes or {"default": 1}
        policy = self._policy(wait_ms)
        if len(lanes) == 1:
            lane = next(iter(lanes))
            self.handles = await engine.claim_many(lane, body.capabilities, policy, body.limit, self.within)
        else:
            self.handles = await engine.claim_from_lanes(lanes, body.capabilities, policy, body.limit, self.within)
        return self.handles

    async def give_back(self) -> None:
        """Leave no lease with somebody who may not have it."""
        await _given_back(self._call, self.handles, "the credential it was claimed with is no longer valid")

    async def leave(self) -> None:
        """Leave no lease with somebody who has stopped waiting."""
        await _given_back(self._call, self.handles, NOBODY_WAITS)

    async def undo(self) -> None:
        """The same for what an earlier request with the same key was given."""
        self.handles = await claimed_under(self._call.engine, self._policy(), self._body.limit, self.within)
        await self.leave()


async def _given_back(call: Call, handles: list[Handle], why: str) -> None:
    """Leases that nobody is told of. One that cannot be given back now runs out."""
    await asyncio.gather(*(call.engine.give_back(each, why) for each in handles), return_exceptions=True)


async def claim(call: Call) -> Answer | Streamed:
    """Claim, now or as soon as there is something; the caller gets what to do along with its handles."""
    body: ClaimBody = call.body
    claiming = _Claiming(call, body)
    if body.give_back:
        await claiming.undo()
        return await in_pieces(_work(call, [], claiming.within, b"{"))
    try:
        answer = await _claimed(call, claiming)
    except BaseException:
        await claiming.leave()
        raise
    if call.is_gone:
        await claiming.leave()
        raise Gone
    return answer


async def _claimed(call: Call, claiming: _Claiming) -> Answer | Streamed:
    wait_ms = call.body.wait_ms
    if not wait_ms:
        work = _work(call, await claiming.claim(0), claiming.within, b"{")
        return await in_pieces(_taken_whole(work, claiming), fallen=claiming.give_back)
    async with call.holding() as standing:
        handles = await _while_open(call, claiming.claim(wait_ms))
        work = _taken_whole(_work(call, handles, claiming.within, b"{"), claiming)
        answer = await in_pieces(work, fallen=claiming.give_back)
        if not await call.server.gate.stands(standing):
            await claiming.give_back()
            await work.aclose()
            raise unauthorized()
        return answer


async def _taken_whole(pieces: Pieces, claiming: _Claiming) -> Pieces:
    """These pieces; if not all of them are taken the work in them goes back."""
    try:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                yield piece
    except BaseException:
        await claiming.leave()
        raise


async def _while_open(call: Call, claiming: Any) -> list[Handle]:
    """Wait as long as the client is there and the server stays: a call that is given up leaves no lease behind."""
    task: asyncio.Future[list[Handle]] = asyncio.ensure_future(call.while_connected(claiming))
    closing = asyncio.ensure_future(call.server.closing.wait())
    try:
        await asyncio.wait((task, closing), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        text = "the server is shutting down; claim from another one"
        raise refused(503, text, kind="unavailable", retryable=True, **UNBEGUN)
    finally:
        closing.cancel()
        await given_up(task)


async def _work(call: Call, handles: list[Handle], within: list[str] | None, before: bytes) -> Pieces:
    """The field ``work`` and the end of the answer, as many inputs at a time as may be held."""
    envelopes = call.server.performer.envelopes
    begun, left = before + b'"work":[', handles
    while left:
        ids = [handle.execution_id for handle in left]
        try:
            await envelopes.ready()
            # A single one is read whatever its size.
            if len(ids) == 1:
                found = await call.engine.read_execution_contexts(ids)
            else:
                async with call.server.turns.one():
                    found = await call.engine.read_execution_contexts(ids, STEP_BYTES)
        except EngineError:
            await _given_back(call, left, "its input could not be read")
            raise
        if not found:
            break
        work = b",".join(
            [
                encode(_taken(envelopes.seal(handle, within), handle, found[handle.execution_id]))
                for handle in left
                if handle.execution_id in found
            ]
        )
        left = [handle for handle in left if handle.execution_id not in found]
        ready = [begun + work]
        begun = b","
        del found, work
        yield ready.pop()
    yield b"]}" if begun == b"," else begun + b"]}"


def _taken(envelope: str, handle: Handle, context: ExecutionContext) -> Work:
    held = handle.payload
    return Work(
        envelope,
        held.execution_id,
        context.execution_kind,
        held.attempt_index,
        held.lease_ttl_ms,
        context.input_payload,
        context.tags,
        context.cancel_at,
        context.cancel_reason,
        context.replays,
    )


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
    look = await call.engine.look_at_leases(handles)
    gone, asked = ({id(handle) for handle in some} for some in look)
    return plain(
        Lost(
            [place for place, handle in enumerate(handles) if id(handle) in gone],
            [place for place, handle in enumerate(handles) if id(handle) in asked],
        )
    )


ROUTES = (
    Route(
        name="remote_hello",
        method="GET",
        path="/v1/remote",
        summary="Facts about the store for remote workers",
        handler=hello,
        answers={200: Hello},
    ),
    Route(
        name="remote_calls",
        method="POST",
        path="/v1/remote/calls",
        summary="A batch of engine operations in one request",
        handler=calls,
        body=CallsBody,
        limit=BULK,
        answers={200: Answers},
        # What may not be done twice is said by each call; whole answers are not kept.
        kept=False,
    ),
    Route(
        name="remote_claim",
        method="POST",
        path="/v1/remote/claim",
        summary="Claim work, waiting for it if there is none",
        handler=claim,
        body=ClaimBody,
        answers={200: Claimed},
        kept=False,
    ),
    Route(
        name="remote_renew",
        method="POST",
        path="/v1/remote/renew",
        summary="Renew many leases at once",
        handler=renew,
        body=RenewBody,
        limit=LARGE,
        answers={200: Answers},
        kept=False,
    ),
    Route(
        name="remote_lost",
        method="POST",
        path="/v1/remote/lost",
        summary="Which leases were lost",
        handler=lost,
        body=LostBody,
        limit=LARGE,
        answers={200: Lost},
        kept=False,
    ),
)
