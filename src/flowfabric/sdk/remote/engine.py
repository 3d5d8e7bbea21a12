"""``RemoteEngine``: the operations of an engine that runs behind a server, with the same names, answers and errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw, Struct

from flowfabric.ascending import ascending_uuid
from flowfabric.engine import Engine, forks
from flowfabric.engine.operation_table import REMOTE
from flowfabric.engine.own_loop import OwnLoop
from flowfabric.engine.wire.codec import Shapes, body_of, result_of
from flowfabric.model.errors import EngineError, Transport, TransportKind, Unavailable, Validation, ValidationKind
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_CLAIM
from flowfabric.model.operations.executions import (
    ClaimPolicy,
    Created,
    Duplicate,
    ExecutionContext,
    LeaseRenewal,
    ScannerFilter,
)
from flowfabric.model.operations.suspension import Accepted, DeliverSignalResult
from flowfabric.model.partitions import PartitionCounts
from flowfabric.model.policy import parse_policy
from flowfabric.model.records.past_leases import LeaseLook
from flowfabric.model.states import PublicState
from flowfabric.sdk.backoff import Patience
from flowfabric.sdk.errors import BadOptions, ServerRefused
from flowfabric.sdk.remote.answers import CLAIMED, HELLO, LOST, Work, check_protocol
from flowfabric.sdk.remote.calls import (
    BACKEND,
    LONGEST_PAUSE_S,
    PATIENCE_S,
    Calls,
    OneCall,
    decoded,
    is_refused_unbegun,
    out_of_reach,
    problem_of,
)
from flowfabric.sdk.remote.handles import sealed, unsealed
from flowfabric.sdk.remote.http_client import Lost, NotReached, Response, Servers
from flowfabric.sdk.remote.subscription import RemoteSubscription

_log = logging.getLogger("flowfabric.remote")

#: How long the server lets one claim wait, and how much longer we wait for its answer.
MAX_WAIT_MS = 60_000
SPARE_S = 15.0
#: Answers, of a server or a proxy, that do not say whether anything was done.
_UNTOLD = frozenset({408, 425, 429, *range(500, 600)})
#: How long the server may take to take back what was claimed for somebody who has stopped waiting.
GIVE_BACK_S = 5.0
CLAIM = "/v1/remote/claim"
#: Statuses of answers to what was done: as asked, and something created.
_DONE: Final = (200, 201)


class RemoteEngine:
    """An engine behind one of several servers (``url`` may name some, separated by commas)."""

    def __init__(self, url: str, token: str | None, patience_s: float = PATIENCE_S) -> None:
        try:
            self._servers = Servers(url, token)
        except ValueError as error:
            raise BadOptions(str(error), option="url") from None
        self._calls = Calls(self._servers, patience_s)
        self._patience_s = patience_s
        self._shapes = Shapes(sealed, unsealed)
        #: What was claimed with its context, until somebody asks for that.
        self._contexts: dict[str, ExecutionContext] = {}
        self._renewing: list[tuple[Handle, asyncio.Future[LeaseRenewal]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        #: Claims that were given up, until the server has taken back what they were given.
        self._giving_back: set[asyncio.Task[None]] = set()
        #: The one task that closes, no matter how many wait for it.
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._why_closed = "engine_closed"
        self._own_loop = OwnLoop()
        forks.remember(self)
        self.partitions = PartitionCounts()
        self.backend_label = ""
        self.store: Any = None

    @classmethod
    async def open(cls, url: str, token: str | None = None, **options: Any) -> Self:
        """Reach a server and hear what its store is."""
        engine = cls(url, token, **options)
        try:
            hello = decoded(HELLO, await engine._ask("GET", "/v1/remote", None, 30.0, True))
            check_protocol(hello)
        except BaseException:
            engine._servers.close()
            raise
        engine.partitions = PartitionCounts(hello.partitions.flow, hello.partitions.budget, hello.partitions.quota)
        engine.backend_label = hello.backend
        engine.store = SimpleNamespace(shown=hello.store, label=hello.backend, location=None)
        return engine

    def __repr__(self) -> str:
        return f"<remote engine {self.backend_label}>"

    def start_timers(self) -> None:
        """Nothing to do: the server runs them."""

    def leave_to_parent(self) -> None:
        """After a fork the connections are still the parent's."""
        self._closed, self._why_closed = True, forks.FORKED
        self._own_loop = OwnLoop()

    async def close(self) -> None:
        """Close all connections."""
        if self._why_closed == forks.FORKED:
            return
        self._own_loop.check()
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(
                self._close(), name="flowfabric-close", context=Context()
            )
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            self._servers.close()
            await asyncio.wait((self._closing,))
            raise

    async def _close(self) -> None:
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=GIVE_BACK_S)
        self._servers.close()
        for task in (*self._tasks, *self._giving_back):
            task.cancel()
        if tasks := (*self._tasks, *self._giving_back):
            await asyncio.wait(tasks)
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- asking --------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        again: bool,
        after_loss: bytes | None = None,
    ) -> Response:
        """One request, made again while no server can be reached or can take it, or the answer was lost and it may be
        repeated. ``after_loss`` is what is asked instead once something may have been done that nobody was told of."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_s
        patience = Patience(LONGEST_PAUSE_S)
        while True:
            self._check_open()
            try:
                response = await self._servers.request(method, path, body, timeout_s)
            except (NotReached, Lost) as error:
                if loop.time() >= until or (isinstance(error, Lost) and not again):
                    raise out_of_reach(error) from error
                if isinstance(error, Lost):
                    body = after_loss or body
            else:
                if response.status in _DONE:
                    return response
                problem = problem_of(response, path)
                is_passing = isinstance(problem, Unavailable)
                if not is_refused_unbegun(response):
                    body = after_loss or body
                    is_passing = is_passing or (after_loss is not None and response.status in _UNTOLD)
                if not is_passing or loop.time() >= until:
                    raise problem
            await patience.rest()

    def _check_open(self) -> None:
        self._own_loop.check()
        if self._closed:
            raise Unavailable(self._why_closed)

    def _written(self, name: str, options: Mapping[str, Any]) -> bytes:
        """Arguments as JSON."""
        by_hand = body_of(name).by_hand
        try:
            plain = {
                each: self._shapes.codec(by_hand[each]).write(_plain(each, value, name))
                if each in by_hand
                else _plain(each, value, name)
                for each, value in options.items()
            }
            return self._shapes.dump(plain)
        except (TypeError, ValueError, AttributeError, NotImplementedError, RecursionError) as error:
            raise Validation(ValidationKind.INVALID_INPUT, f"{name}: cannot be sent: {error}") from None

    async def call(self, name: str, options: Mapping[str, Any]) -> Any:
        """Perform an operation there."""
        return self._read(name, await self._called(name, options))

    async def _called(self, name: str, options: Mapping[str, Any], made: list[OneCall] | None = None) -> Raw:
        self._check_open()
        call = OneCall(name, self._written(name, options), REMOTE[name].may_repeat(options))
        if made is not None:
            made.append(call)
        return await self._calls.call(call)

    def _read(self, name: str, said: Raw | bytes) -> Any:
        try:
            return self._shapes.codec(result_of(name)).read(said)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Transport(BACKEND, TransportKind.PROTOCOL, f"{name}: its response cannot be read: {error}") from None

    # -- creating ------------------------------------------------------------------------------------------------

    async def create_execution(self, **options: Any) -> Created | Duplicate:
        """Create an execution. Its id is made here, so that asking again after a lost answer creates it once."""
        minted = self._minted(options)
        made: list[OneCall] = []
        answer = self._read("create_execution", await self._called("create_execution", minted, made))
        return _own(answer, minted, options, made[0].tries)

    async def create_executions(self, executions: Iterable[Mapping[str, Any]]) -> list[Created | Duplicate]:
        """Create many in one transaction."""
        given = list(executions)
        minted = [self._minted(each) for each in given]
        made: list[OneCall] = []
        answers = self._read("create_executions", await self._called("create_executions", {"executions": minted}, made))
        tries = made[0].tries
        return [_own(*each, tries) for each in zip(answers, minted, given, strict=True)]

    def _minted(self, options: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(options, Mapping):
            raise Validation(ValidationKind.INVALID_INPUT, f"executions: expected mappings, got {options!r:.80}")
        if options.get("execution_id") is not None:
            return dict(options)
        lane = options.get("lane_id", "default")
        if not isinstance(lane, str):
            return dict(options)
        return {**options, "execution_id": ExecutionId.solo(lane, self.partitions)}

    async def start_kind(self, namespace: str, kind: str, body: Mapping[str, Any]) -> str | None:
        """Create an execution as the code of its kind would, as workers have announced it; its id. ``None`` if none
        has. The same id (``idempotency_key``) gives the same execution, so only then it may be asked again."""
        path = f"/v1/kinds/{quote(kind, safe='')}/start?{urlencode({'namespace': namespace})}"
        again = body.get("idempotency_key") is not None
        try:
            response = await self._ask("POST", path, self._shapes.dump(body), 60.0, again)
        except ServerRefused as error:
            if error.ids.get("status") == "404":
                return None
            raise
        answer: dict[str, dict[str, str]] = msgspec.json.decode(response.body)
        return next(iter(answer.values()))["execution_id"]

    # -- signals -------------------------------------------------------------------------------------------------

    async def deliver_signal(self, **options: Any) -> Accepted | DeliverSignalResult.Duplicate:
        """Deliver a signal. Its id is made here, so that asking again after a lost answer delivers it once."""
        minted = options if options.get("signal_id") is not None else {**options, "signal_id": ascending_uuid()}
        made: list[OneCall] = []
        said = await self._called("deliver_signal", minted, made)
        answer: Accepted | DeliverSignalResult.Duplicate = self._read("deliver_signal", said)
        if made[0].tries == 1 or minted is options or not isinstance(answer, DeliverSignalResult.Duplicate):
            return answer
        is_own = answer.existing_signal_id == minted["signal_id"]
        return await self._delivered(answer, options.get("execution_id")) if is_own else answer

    async def _delivered(
        self, answer: DeliverSignalResult.Duplicate, execution_id: Any
    ) -> Accepted | DeliverSignalResult.Duplicate:
        """What the try said whose answer was lost, if the caller may know."""
        try:
            history = await self.call("read_history", {"execution_id": execution_id})
        except (EngineError, ServerRefused):
            return answer
        known = {each.signal_id: Accepted(each.signal_id, each.effect) for each in history.signals}
        return known.get(answer.existing_signal_id, answer)

    # -- claiming ------------------------------------------------------------------------------------------------

    async def claim(
        self,
        lane: str,
        capabilities: Iterable[str] | None = None,
        policy: ClaimPolicy | None = None,
        namespaces: Iterable[str] | None = None,
    ) -> Handle | None:
        """The next execution of a lane, or ``None``."""
        handles = await self.claim_from_lanes({lane: 1}, capabilities, policy, 1, namespaces)
        return handles[0] if handles else None

    async def claim_many(
        self,
        lane: str,
        capabilities: Iterable[str] | None = None,
        policy: ClaimPolicy | None = None,
        limit: int = 1,
        namespaces: Iterable[str] | None = None,
    ) -> list[Handle]:
        """Up to ``limit`` executions of a lane."""
        return await self.claim_from_lanes({lane: 1}, capabilities, policy, limit, namespaces)

    async def claim_from_lanes(
        self,
        lanes: Mapping[str, int],
        capabilities: Iterable[str] | None = None,
        policy: ClaimPolicy | None = None,
        limit: int = 1,
        namespaces: Iterable[str] | None = None,
    ) -> list[Handle]:
        """Up to ``limit`` executions of several lanes. What there is to do comes along with them."""
        if not isinstance(policy, ClaimPolicy):
            raise Validation(ValidationKind.INVALID_INPUT, f"policy: expected a ClaimPolicy, got {policy!r:.80}")
        wait = policy.max_wait
        left_ms = int(wait.total_seconds() * 1000) if hasattr(wait, "total_seconds") else wait or 0
        while True:
            wait_ms = min(left_ms, MAX_WAIT_MS)
            left_ms -= wait_ms
            body = {
                "worker_id": policy.worker_id,
                "worker_instance_id": policy.worker_instance_id,
                "lease_ttl_ms": policy.lease_ttl_ms,
                "lanes": dict(lanes),
                "capabilities": sorted(capabilities or ()),
                "namespaces": None if namespaces is None else sorted(namespaces),
                "limit": limit,
                "wait_ms": wait_ms,
                # If the answer is lost, asking again under the same key gives what it held.
                "key": policy.key or secrets.token_hex(16),
            }
            first = self._shapes.dump({**body, "again": policy.again})
            again = self._shapes.dump({**body, "again": True})
            try:
                response = await self._ask("POST", CLAIM, first, wait_ms / 1000 + SPARE_S, True, again)
            except asyncio.CancelledError:
                # What was given may be on its way, or be about to be.
                self._give_back(self._shapes.dump({**body, "wait_ms": 0, "give_back": True}))
                raise
            work = decoded(CLAIMED, response).work
            if work or left_ms <= 0:
                return [self._taken(each) for each in work]

    def _give_back(self, body: bytes) -> None:
        task = asyncio.get_running_loop().create_task(
            self._ask_briefly(body), name="flowfabric-given-back", context=Context()
        )
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def _ask_briefly(self, body: bytes) -> None:
        """Ask for what nobody waits for; if it is in vain, leases run out."""
        with contextlib.suppress(TimeoutError, NotReached, Lost):
            await self._servers.request("POST", CLAIM, body, GIVE_BACK_S)

    def _taken(self, work: Work) -> Handle:
        self._contexts[work.execution_id] = ExecutionContext(
            work.input_payload, work.execution_kind, work.tags, work.cancel_at, work.cancel_reason, work.replays
        )
        return unsealed(work.handle)

    async def read_execution_contexts(
        self,
        execution_ids: Iterable[ExecutionId | str],
        most_bytes: int | None = None,
        *,
        namespaces: Iterable[str] | None = None,
    ) -> dict[ExecutionId, ExecutionContext]:
        """What workers need to start. What was claimed just now is known already."""
        ids = list(execution_ids)
        known = {ExecutionId(each): found for each in ids if (found := self._contexts.pop(each, None)) is not None}
        left = [each for each in ids if each not in known]
        if left:
            wanted = {"execution_ids": left, "most_bytes": most_bytes}
            if namespaces is not None:
                wanted["namespaces"] = list(namespaces)
            known |= await self.call("read_execution_contexts", wanted)
        return known

    async def lost_leases(self, handles: Iterable[Handle]) -> list[Handle]:
        """Those whose lease was taken away or whose execution has ended."""
        return (await self.look_at_leases(handles)).lost

    async def look_at_leases(self, handles: Iterable[Handle]) -> LeaseLook:
        """Those that are lost, and those whose execution was asked to cancel."""
        given = list(handles)
        body = self._shapes.dump({"handles": given})
        response = await self._ask("POST", "/v1/remote/lost", body, SPARE_S, True)
        found = decoded(LOST, response)
        return LeaseLook([given[place] for place in found.lost], [given[place] for place in found.cancelling])

    async def renew(self, handle: Handle) -> LeaseRenewal:
        """Keep the lease. Renewals that are made together travel together."""
        self._check_open()
        future: asyncio.Future[LeaseRenewal] = asyncio.get_running_loop().create_future()
        self._renewing.append((handle, future))
        if len(self._renewing) == 1:
            asyncio.get_running_loop().call_soon(self._renew_all)
        return await future

    def _renew_all(self) -> None:
        waiting, self._renewing = self._renewing, []
        for start in range(0, len(waiting), MAX_CLAIM):
            some = waiting[start : start + MAX_CLAIM]
            task = asyncio.get_running_loop().create_task(self._renew(some), context=Context())
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._renewed, some))

    def _renewed(self, renewals: list[tuple[Handle, asyncio.Future[LeaseRenewal]]], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        for _, future in renewals:
            if not future.done():  # cancelled before it began
                future.set_exception(out_of_reach(Lost("closed")))

    async def _renew(self, renewals: list[tuple[Handle, asyncio.Future[LeaseRenewal]]]) -> None:
        try:
            body = self._shapes.dump({"handles": [handle for handle, _ in renewals]})
            response = await self._ask("POST", "/v1/remote/renew", body, SPARE_S, True)
            for (_, future), said in zip(renewals, self._calls.all_of(response, len(renewals)), strict=True):
                if future.done():
                    continue
                if isinstance(said, Exception):
                    future.set_exception(said)
                else:
                    future.set_result(self._read("renew", said))
        except BaseException as error:
            for _, future in renewals:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else out_of_reach(Lost("closed")))
            if not isinstance(error, Exception):
                raise

    async def fail(
        self,
        handle: Handle,
        reason: str,
        failure_class: Any = "transient",
        detail: bytes | str | None = None,
        **more: Any,
    ) -> Any:
        """Give up this attempt."""
        if isinstance(detail, bytes):
            detail = detail.decode(errors="replace")
        options = {"handle": handle, "reason": reason, "failure_class": failure_class, "detail": detail, **more}
        return await self.call("fail", options)

    # -- following -----------------------------------------------------------------------------------------------

    async def tail_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Frames after a cursor; one that waits has a connection of its own."""
        options = {**dict(zip(_TAIL, args, strict=False)), **kwargs}
        if "after" in options:
            options["after"] = str(options["after"])
        if not options.get("block_ms"):
            return await self.call("tail_stream", options)
        self._check_open()
        call = OneCall("tail_stream", self._written("tail_stream", options), True)
        body = b'{"calls":[' + call.data + b"]}"
        response = await self._ask("POST", "/v1/remote/calls", body, options["block_ms"] / 1000 + SPARE_S, True)
        return self._read("tail_stream", self._calls.only(response))

    async def subscribe_completion(
        self, cursor: bytes = b"", filter: ScannerFilter | None = None, **options: Any
    ) -> RemoteSubscription:
        """Ends of executions, behind a cursor, or from this call on."""
        self._check_open()
        return await RemoteSubscription(self._servers, cursor, filter).begun()

    # -- what needs the store itself -----------------------------------------------------------------------------

    def draft_request(self, arguments: Mapping[str, Any]) -> Any:
        """Refused: a transaction of the caller's database cannot reach the store behind a server."""
        raise BadOptions(
            "tx=: a run cannot join your transaction through a server; open the app on the store itself, "
            "or start the run after the commit",
            option="tx",
        )

    async def find_request(self, execution_id: ExecutionId | str) -> None:
        """Nothing is started by requests here."""
        return


_TAIL = tuple(inspect.signature(Engine.tail_stream).parameters)[1:]


def _plain(name: str, value: Any, operation: str = "") -> Any:
    """An argument as it can be written: policies of executions as their JSON, whatever can be gone through as a
    list."""
    if name == "policy" and operation != "cancel_flow":
        return parse_policy(value)
    if name in ("executions", "children"):
        return [{each: _plain(each, one) for each, one in creation.items()} for creation in value]
    if name == "execution":
        return {each: _plain(each, one) for each, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | memoryview | Mapping | Struct):
        return list(value)
    return value


def _own(
    answer: Created | Duplicate, minted: Mapping[str, Any], given: Mapping[str, Any], tries: int
) -> Created | Duplicate:
    """An execution that an earlier try created is new to the caller."""
    ours = tries > 1 and isinstance(answer, Duplicate) and given.get("execution_id") is None
    if ours and answer.execution_id == minted["execution_id"]:
        delayed = minted.get("delay_until") is not None
        return Created(answer.execution_id, PublicState.DELAYED if delayed else PublicState.WAITING)
    return answer


def _operation(name: str) -> Callable[..., Any]:
    method = getattr(Engine, name)
    signature = inspect.signature(method)
    names = tuple(signature.parameters)[1:]

    async def operation(self: RemoteEngine, *args: Any, **kwargs: Any) -> Any:
        if args:
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        return await self.call(name, kwargs)

    operation.__name__ = name
    operation.__qualname__ = f"RemoteEngine.{name}"
    operation.__doc__ = method.__doc__
    operation.__signature__ = signature  # type: ignore[attr-defined]
    return operation


for _name in REMOTE:
    if _name not in vars(RemoteEngine):
        setattr(RemoteEngine, _name, _operation(_name))
