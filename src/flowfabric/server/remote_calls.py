"""Performing operations of the engine for callers elsewhere: who may, on what, and what they are told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from flowfabric.core.batch.notes import Note
from flowfabric.engine.checks import values
from flowfabric.engine.operation_table import REMOTE, Operation, Subject
from flowfabric.engine.wire.codec import Shapes, body_of, given, placed, result_of
from flowfabric.engine.wire.error_codec import error_to_wire
from flowfabric.engine.wire.protocol import NOT_UNDERSTOOD
from flowfabric.model.errors import EngineError, LimitReached, NotFound, State, StateKind
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId, ExecutionIdError, FlowId, decode_hook
from flowfabric.model.limits import MAX_BULK, MAX_PAGE, MAX_PAYLOAD_BYTES
from flowfabric.model.streams.frames import MAX_STREAM_READ_COUNT, StreamFrames
from flowfabric.sdk.errors import AlreadyAnswered
from flowfabric.server.access import audit
from flowfabric.server.access.signed_handles import Envelopes
from flowfabric.server.answer_checks import check_answer
from flowfabric.server.http.limits import MADE_BYTES, Made
from flowfabric.server.http.pieces import MOST_STEPS, STEP_BYTES, Pieces, behind, frame_pieces, list_pieces
from flowfabric.server.http.problems import Refused, refused
from flowfabric.server.http.validation import flaw_of
from flowfabric.server.operations import Call, check_caller
from flowfabric.server.remembered_steps import all_steps

#: Bytes that the answer to an act has for each thing that it is about, more or less.
RESULT_BYTES = 300
#: Steps that an act may bring without being asked how many of them are remembered.
SURE_STEPS = 8
#: Ends of executions that are read at a time.
ENDS = 8
#: Frames of a page if nobody says how many.
_FRAMES = 100
#: What changes who may call: the server looks credentials up again afterwards.
_ADMITTING = frozenset({"create_credential", "revoke_credential"})


def _unopened(text: str) -> Handle:
    raise AssertionError("handles are opened before anything else is read")


class Performer:
    """Performs calls on the engine of one server."""

    def __init__(self, envelopes: Envelopes) -> None:
        self.envelopes = envelopes
        self._within: frozenset[str] | None = None
        self.shapes = Shapes(self._seal, _unopened)

    def _seal(self, handle: Handle) -> str:
        return self.envelopes.seal(handle, self._within)

    async def answer(self, call: Call, name: str, arguments: Raw | bytes, made: Made) -> bytes:
        """``{"ok": …}`` with what the operation says, or ``{"error": …}`` with why it did not. It counts as made until
        it is sent; an operation whose answer may find no room is not begun, and says so."""
        taken = 0
        try:
            options, within = await self._checked(call, name, arguments)
            expected = _expected(arguments, options)
            async with call.server.steps_at_once.some(await _weight(call, name, options)):
                made.take(expected)
                taken = expected
                data = b'{"ok":%b}' % await self._performed(call, name, options, within)
                made.correct(taken - len(data))
            return data
        except (EngineError, Refused) as error:
            data = self.failed(error)
            made.correct(taken - len(data))
            return data

    async def watch(self, call: Call, name: str, arguments: Raw | bytes) -> bytes | None:
        """Wait until a tail has something to tell, or until nothing is left of a flow that was cancelled; what is to be
        said instead, if it was in vain."""
        try:
            options, _ = await self._checked(call, name, arguments)
            if name == "tail_stream":
                _count(options)
                one = {**options, "count_limit": 1}
                if not await self._has_frames(call, one):
                    await call.while_connected(call.engine.tail_stream(**one))
            else:
                wait_ms = options["wait_ms"]
                await call.while_connected(call.engine.await_flow_cancelled(options["flow_id"], wait_ms))
            await call.check_standing()
        except (EngineError, Refused) as error:
            return self.failed(error)
        return None

    async def _has_frames(self, call: Call, options: dict[str, Any]) -> bool:
        """Whether there is something to read already: found out in turn, since each look brings a frame."""
        async with call.server.turns.one():
            return bool((await call.engine.tail_stream(**{**options, "block_ms": 0})).frames)

    def failed(self, error: EngineError | Refused) -> bytes:
        """What is answered to a call that failed."""
        return self.shapes.dump({"error": error_to_wire(error)} if isinstance(error, EngineError) else _refusal(error))

    async def pieces(self, call: Call, name: str, arguments: Raw | bytes, *, watched: bool = False) -> Pieces:
        """The answer of an operation that changes nothing, made piece by piece. Of a tail that was ``watched`` it is
        the next frame."""
        try:
            making = await self._making(call, name, arguments, watched)
            first = await anext(making)
        except (EngineError, Refused) as error:
            yield self.failed(error)
            return
        ready = [b'{"ok":' + first]
        del first
        yield ready.pop()
        async for piece in making:
            ready.append(piece)
            del piece
            yield ready.pop()
        yield b"}"

    async def _making(self, call: Call, name: str, arguments: Raw | bytes, watched: bool) -> Pieces:
        options, within = await self._checked(call, name, arguments)
        making = _LONG.get(name)
        if making is not None and not watched:
            return making(self, call, name, options)
        async with call.server.turns.one():
            if watched:
                found = self.shapes.dump(await self._next_frame(call, options))
            else:
                found = await self._performed(call, name, options, within)
        return _one([found])

    async def _contexts(self, call: Call, name: str, options: dict[str, Any]) -> Pieces:
        ids, begun, own = options["execution_ids"], b"{", options.get("namespaces")
        most = options.get("most_bytes")
        step = STEP_BYTES if most is None else min(most, STEP_BYTES)
        while begun == b"{" or ids:
            async with call.server.turns.one():
                found = await call.engine.read_execution_contexts(ids, step, namespaces=own)
            ids = [] if most is not None or not found else [each for each in map(ExecutionId, ids) if each not in found]
            ready = [(begun if found or begun == b"{" else b"") + self.shapes.dump(found)[1:-1]]
            begun = b","
            del found
            yield ready.pop()
        yield b"}"

    async def _ends(self, call: Call, name: str, options: dict[str, Any]) -> Pieces:
        """Few at a time: each may have a large result."""
        ids, own = options["execution_ids"], options.get("namespaces")
        if len(ids) > MAX_BULK:
            raise LimitReached("MAX_BULK", MAX_BULK)

        async def found() -> AsyncGenerator[bytes, None]:
            for start in range(0, len(ids), ENDS):
                async with call.server.turns.one():
                    ready = [self.shapes.dump(await call.engine.read_ends(ids[start : start + ENDS], namespaces=own))]
                yield ready.pop()

        async for piece in list_pieces(found()):
            yield piece

    async def _steps(self, call: Call, name: str, options: dict[str, Any]) -> Pieces:
        """As many values at a time as may be held."""
        names = options.get("names")

        async def found() -> AsyncGenerator[bytes, None]:
            wanted = None if names is None else frozenset(names)
            async for steps in all_steps(call, options["execution_id"], wanted):
                ready = [self.shapes.dump(steps)]
                del steps
                yield ready.pop()

        async for piece in list_pieces(found()):
            yield piece

    def _frames(self, call: Call, name: str, options: dict[str, Any]) -> Pieces:
        is_tail = name == "tail_stream"
        limit = _count(options)

        async def read(after: str | None, count: int) -> StreamFrames:
            wanted = {**options, "count_limit": count}
            if after is None:
                return await self._first(call, name, wanted)
            wanted.update({"after": after, "block_ms": 0} if is_tail else {"from_cursor": behind(after)})
            async with call.server.turns.one():
                following: StreamFrames = await getattr(call.engine, name)(**wanted)
            return following

        def finish(_: int, page: StreamFrames) -> bytes:
            return self.shapes.dump(replace(page, frames=()))

        return frame_pieces(read, limit, self.shapes.dump, finish)

    async def _first(self, call: Call, name: str, options: dict[str, Any]) -> StreamFrames:
        found: StreamFrames
        if options.get("block_ms"):
            # Whether there is anything is found out with one frame; only then a turn is taken.
            found = await self._done(call, name, {**options, "count_limit": 1})
            if not found.frames:
                return found
            options["block_ms"] = 0
        async with call.server.turns.one():
            found = await self._done(call, name, options)
        return found

    async def _next_frame(self, call: Call, options: dict[str, Any]) -> StreamFrames:
        """The next frame of a stream among others that were waited for; that it is closed is told behind the last."""
        found: StreamFrames = await call.engine.tail_stream(**{**options, "block_ms": 0, "count_limit": 1})
        return replace(found, closed_at=None, closed_reason=None) if found.frames else found

    async def _performed(self, call: Call, name: str, options: dict[str, Any], within: frozenset[str] | None) -> bytes:
        """What the operation says, written out."""
        if name == "cancel_flow":
            # What is done is done and told to the audit before anybody waits for it.
            options = {**options, "wait_ms": _checked_wait(options)}
        # Before anything is done: a store that is away afterwards must not turn it into an error.
        await self.envelopes.ready()
        operation, account, note = REMOTE[name], None, Note()
        if operation.audited:
            account = audit.Account(call, operation, lambda: options, lambda _: 200)
            note.account = account.of
        found = await self._done(call, name, options, note)
        if name in _ADMITTING:
            call.server.gate.forget()
        if account is not None and not (name == "read_waitpoint_token" and found is None):
            await account.settle(note)
        # No other call comes in between: a result that holds a handle is sealed for its holder.
        self._within = within
        return self.shapes.dump(self.shapes.codec(result_of(name)).write(found))

    async def _checked(
        self, call: Call, name: str, arguments: Raw | bytes
    ) -> tuple[dict[str, Any], frozenset[str] | None]:
        """The arguments of a call that may be made."""
        operation = REMOTE.get(name)
        if operation is None:
            raise refused(422, f"unknown operation {name[:64]!r}", kind=NOT_UNDERSTOOD)
        check_caller(call.principal, operation)
        options, within = await self._read(call, name, arguments)
        if operation.subject is Subject.SCHEDULE:
            options.setdefault("namespace", "default")
        await _check(call, operation, options)
        if name == "deliver_signal":
            options |= await _check_answer(call, options)
        return options, within

    async def _done(self, call: Call, name: str, options: Mapping[str, Any], note: Note | None = None) -> Any:
        own = call.principal.namespaces
        if name == "list_namespaces" and own is not None:
            return tuple(each for each in sorted(own) if each > (options.get("after") or ""))
        if name == "tail_stream" and options.get("block_ms"):
            with call.server.followers.one(call.principal):
                found = await call.while_connected(call.engine.tail_stream(**options))
                await call.check_standing()
                return found
        engine = call.engine if note is None or note.account is None else call.engine.noting(note)
        return await getattr(engine, name)(**options)

    async def _read(
        self, call: Call, name: str, arguments: Raw | bytes
    ) -> tuple[dict[str, Any], frozenset[str] | None]:
        body = body_of(name)
        try:
            decoded = _decoder(body.kind).decode(arguments)
            options = {
                each: value for each in decoded.__struct_fields__ if (value := getattr(decoded, each)) is not UNSET
            }
            for each, hint in body.by_hand.items():
                if each in options:
                    options[each] = placed(each, self.shapes.codec(hint).read, options[each])
        except msgspec.ValidationError as error:
            flaw = flaw_of(error, body.kind)
            more: dict[str, Any] = {"kind": NOT_UNDERSTOOD} if flaw.is_unknown else {}
            raise refused(400 if flaw.of_value else 422, f"{name}: {flaw}", **more) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise refused(422, f"{name}: the arguments are not JSON that can be read") from None
        for each in body.creations & options.keys():
            value = options[each]
            if isinstance(value, list) and len(value) > MAX_BULK:
                raise values.invalid(f"{each}: {len(value)}, at most {MAX_BULK} are allowed")
            options[each] = [given(one) for one in value] if isinstance(value, list) else given(value)
        within: frozenset[str] | None = None
        for each in body.handles & options.keys():
            value = options[each]
            if isinstance(value, list):
                options[each] = [(await self.opened(call, text))[0] for text in value]
            elif value is not None:
                options[each], within = await self.opened(call, value)
        return options, within

    async def opened(self, call: Call, envelope: str) -> tuple[Handle, frozenset[str] | None]:
        """A handle that the caller may use; others look as if there were no such execution."""
        handle, within = await self.envelopes.open(envelope)
        own = call.principal.namespaces
        if own is not None and (within is None or not within <= own):
            namespace = await call.engine.get_execution_namespace(handle.execution_id)
            if not call.principal.owns(namespace):
                raise NotFound("execution")
        return handle, within


#: What is answered piece by piece.
_LONG: Mapping[str, Callable[[Performer, Call, str, dict[str, Any]], Pieces]] = {
    "read_stream": Performer._frames,
    "tail_stream": Performer._frames,
    "read_execution_contexts": Performer._contexts,
    "read_ends": Performer._ends,
    "read_steps": Performer._steps,
}


def _expected(arguments: Raw | bytes, options: Mapping[str, Any]) -> int:
    """About how many bytes the answer to an act has: some for each thing that it is about."""
    listed = sum(len(each) for each in options.values() if isinstance(each, list))
    return RESULT_BYTES * (listed or min(bytes(arguments).count(b"{"), MAX_PAGE))


async def _weight(call: Call, name: str, options: Mapping[str, Any]) -> int:
    """How many remembered steps an act reads, as if each were as large as can be."""
    if name == "fork_execution":
        return MOST_STEPS
    names = [each.name for each in options.get("steps", ())]
    if len(names) <= SURE_STEPS:
        return len(names)
    # A call with so many may name others than it brings.
    size = await call.engine.remembered_bytes(options["handle"].execution_id, names)
    if size > MADE_BYTES:
        raise refused(413, f"these steps hold more than {MADE_BYTES} bytes: send fewer at a time")
    return 1 + size // MAX_PAYLOAD_BYTES


def _checked_wait(options: Mapping[str, Any]) -> int:
    """Not to wait, if the time that is given is one."""
    if options.get("wait_ms") is not None:
        values.time_ms(options["wait_ms"], "wait_ms")
    return 0


def _count(options: Mapping[str, Any]) -> int:
    """How many frames a page may have."""
    return min(values.integer(options.get("count_limit", _FRAMES), "count_limit", 1, 2**31), MAX_STREAM_READ_COUNT)


def _refusal(refusal: Refused) -> dict[str, Any]:
    return {"error": {"family": "refused", "status": refusal.answer.status, **refusal.body}}


async def _one(ready: list[bytes]) -> Pieces:
    yield ready.pop()


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[Struct]) -> msgspec.json.Decoder[Any]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=decode_hook)
    return found


async def _check_answer(call: Call, options: dict[str, Any]) -> Mapping[str, Any]:
    """As the doors for signals do it; that an approver has given another answer has a place among the engine's errors,
    so that apps elsewhere can tell it from other refusals."""
    try:
        return await check_answer(call, options)
    except Refused as error:
        if error.body.get("kind") != AlreadyAnswered.code:
            raise
        raise State(StateKind.DUPLICATE_SIGNAL, error.body["error"]) from None


async def _check(call: Call, operation: Operation, options: dict[str, Any]) -> None:
    """Keep a caller to its namespaces."""
    if call.principal.namespaces is None:
        return
    if "namespaces" in body_of(operation.name).kind.__struct_fields__:
        options["namespaces"] = own_of(call, options.get("namespaces"))
    match operation.subject:
        case Subject.HANDLE:
            if options.get("handle") is None:
                raise _unnamed("the handle of the execution")
            for child in options.get("children", ()):
                call.check_namespace(child.get("namespace", "default"))
        case Subject.EXECUTION:
            await _check_executions(call, options)
        case Subject.NAMESPACE | Subject.SCHEDULE | Subject.LANE:
            for namespace in _namespaces_of(operation.name, options):
                call.check_namespace(namespace)
        case Subject.FLOW:
            await call.check_flow(FlowId(values.flow_id(options["flow_id"])))
        case Subject.BUDGET | Subject.QUOTA:
            if options.get("namespace") is not None:
                call.check_namespace(options["namespace"])


def _unnamed(what: str) -> Refused:
    text = f"this credential is limited to some namespaces: pass {what}"
    return refused(403, text, kind="forbidden", retryable=False)


async def _check_executions(call: Call, options: dict[str, Any]) -> None:
    if options.get("execution_id") is not None:
        if not await _owns(call, options["execution_id"]):
            raise NotFound("execution")
    elif "namespaces" not in options:  # of many, the engine leaves out those of others as it reads
        raise _unnamed("the id of the execution")


def own_of(call: Call, wanted: Sequence[str] | None) -> list[str] | None:
    """The namespaces that are named, or all of the caller's."""
    if wanted is None:
        return None if call.principal.namespaces is None else sorted(call.principal.namespaces)
    for each in wanted:
        call.check_namespace(each)
    return list(wanted)


async def _owns(call: Call, text: str) -> bool:
    try:
        identity = ExecutionId(text)
    except ExecutionIdError:
        return True  # the engine says what is wrong with it
    return call.principal.owns(await call.engine.get_execution_namespace(identity))


def _namespaces_of(name: str, options: Mapping[str, Any]) -> list[str]:
    """The namespaces that a call is about."""
    if "executions" in options:
        return [each.get("namespace", "default") for each in options["executions"]]
    if "execution" in options:
        return [options["execution"].get("namespace", "default")]
    if name == "list_namespaces" or "namespaces" in options:
        return []  # it answers with those of the credential, or they are checked already
    if name == "list_expired_leases" and options.get("namespace") is None:
        raise refused(403, "name a namespace of this credential", kind="forbidden", retryable=False)
    return [options.get("namespace", "default")]
