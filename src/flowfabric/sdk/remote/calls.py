"""Calls on their way to a server: those that are made together travel together, and lost ones are made again."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from contextvars import Context
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from flowfabric.engine.wire.error_codec import NOT_BEGUN, error_from_wire
from flowfabric.engine.wire.protocol import NOT_UNDERSTOOD
from flowfabric.model.counting import counted
from flowfabric.model.errors import (
    ResourceExhausted,
    Transport,
    TransportKind,
    Unavailable,
    Validation,
    ValidationKind,
)
from flowfabric.sdk.backoff import Patience
from flowfabric.sdk.errors import ServerRefused
from flowfabric.sdk.remote.http_client import Lost, NotReached, Response, Servers

_log = logging.getLogger("flowfabric.remote")

#: Requests with calls that are under way at once, and what one of them carries at most.
IN_FLIGHT = 4
MAX_CALLS = 256
MAX_BYTES = 4_194_304
#: How long an answer may take, and for how long a call is tried again before it fails.
ANSWER_TIMEOUT_S = 60.0
PATIENCE_S = 30.0
LONGEST_PAUSE_S = 1.0
BACKEND = "server"
#: What servers answer, and proxies for them, when it is not known whether anything was done.
_UNKNOWN = frozenset({429, 502, 503, 504})


class _Said(Struct):
    ok: Raw | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class _Answers(Struct):
    answers: list[_Said]


_T = TypeVar("_T")
_answers = msgspec.json.Decoder(_Answers)
_problem = msgspec.json.Decoder(dict[str, Any])


class OneCall:
    """One call: what is asked, and who waits for it."""

    __slots__ = ("data", "future", "repeatable", "tries")

    def __init__(self, op: str, arguments: bytes, repeatable: bool) -> None:
        self.data = b'{"op":"' + op.encode() + b'","arguments":' + arguments + b"}"
        self.repeatable = repeatable
        self.future: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        #: How often it was sent.
        self.tries = 0


def out_of_reach(error: Exception) -> Transport:
    """What is raised when no server answers."""
    return Transport(BACKEND, TransportKind.TRANSPORT, str(error))


def problem_of(response: Response, what: str) -> Exception:
    """The error that an answer other than 200 is."""
    try:
        body = _problem.decode(response.body)
    except msgspec.DecodeError:
        body = {}
    return refusal_of(response.status, str(body.get("error", "")), what, body.get("kind"))


def is_refused_unbegun(response: Response) -> bool:
    """Whether a server says that it has not begun with what was asked. A proxy's refusal says nothing of the kind."""
    try:
        return _problem.decode(response.body).get("started") is False
    except msgspec.DecodeError:
        return False


def refusal_of(status: int, text: str, what: str, kind: object = None) -> Exception:
    """The error that a refusal of the server is."""
    if kind == NOT_UNDERSTOOD:
        return Transport(BACKEND, TransportKind.NOT_UNDERSTOOD, text or what)
    if status in (400, 422):
        return Validation(ValidationKind.INVALID_INPUT, text or what)
    if status == 429:
        return ResourceExhausted(BACKEND, 0)
    if status == 503:
        return Unavailable(what)
    if status >= 500:
        return Transport(BACKEND, TransportKind.PROTOCOL, f"{what}: {status} {text}")
    if status == 401:
        text = "the token is missing, wrong, expired or revoked; pass a valid one with App(…, token=…)"
    return ServerRefused(f"{what}: the server refuses it ({status}): {text}", operation=what, status=str(status))


class Calls:
    """Sends calls to one of several servers, many in a request."""

    def __init__(self, servers: Servers, patience_s: float = PATIENCE_S) -> None:
        self._servers = servers
        self._patience_s = patience_s
        self._queue: deque[OneCall] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._closed = False

    async def call(self, call: OneCall) -> Raw:
        """Make a call; what the operation says."""
        self._queue.append(call)
        if not self._scheduled:
            self._scheduled = True
            # Whatever else is called before the loop turns goes along.
            asyncio.get_running_loop().call_soon(self._pump)
        return await call.future

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            self._fail_queued()
            return
        while self._queue and len(self._under_way) < IN_FLIGHT:
            batch: list[OneCall] = []
            size = 0
            while self._queue and len(batch) < MAX_CALLS:
                following = self._queue[0]
                if batch and size + len(following.data) > MAX_BYTES:
                    break
                self._queue.popleft()
                if following.future.done():  # nobody waits any more
                    continue
                size += len(following.data)
                batch.append(following)
            if not batch:
                return
            task = asyncio.get_running_loop().create_task(self._send(batch), context=Context())
            self._under_way.add(task)
            task.add_done_callback(functools.partial(self._sent, batch))

    def _sent(self, batch: list[OneCall], task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        # Cancelled because the engine closes, in a pause or before it began: nobody waits for what will not come.
        _fail(batch, out_of_reach(Lost("the engine was closed")))
        if self._queue:
            self._pump()

    async def _send(self, batch: list[OneCall]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_s
        patience = Patience(LONGEST_PAUSE_S)
        while batch:
            try:
                found = await self._ask(batch)
            except NotReached as error:
                if loop.time() >= until or self._servers.closed:
                    _fail(batch, out_of_reach(error))
                    return
            except Lost as error:
                over = loop.time() >= until or self._servers.closed
                again = [each for each in batch if each.repeatable and not over]
                lost = f"{error}; the outcome is unknown"
                _fail([each for each in batch if each not in again], out_of_reach(Lost(lost)))
                batch = again
            except Exception as error:
                if not isinstance(error, Unavailable | ResourceExhausted) or loop.time() >= until:
                    _fail(batch, error)
                    return
            else:
                batch = _told(batch, found, again=loop.time() < until and not self._servers.closed)
                if not batch:
                    return
            _log.debug("retrying %d calls", len(batch))
            await patience.rest()

    async def _ask(self, batch: list[OneCall]) -> list[_Said]:
        body = b'{"calls":[' + b",".join([each.data for each in batch]) + b"]}"
        for each in batch:
            each.tries += 1
        response = await self._servers.request("POST", "/v1/remote/calls", body, ANSWER_TIMEOUT_S)
        if response.status in _UNKNOWN and not is_refused_unbegun(response):
            raise Lost(f"the answer was {response.status}")
        if response.status != 200:
            raise problem_of(response, "calls")
        return _answers_to(len(batch), response)

    def all_of(self, response: Response, calls: int) -> list[Raw | Exception]:
        """What each part of a request came to."""
        found: list[Raw | Exception] = []
        for said in _answers_to(calls, response):
            if said.error is not UNSET:
                found.append(said_error(said.error, "the call"))
            else:
                found.append(said.ok if said.ok is not UNSET else Raw(b"null"))
        return found

    def only(self, response: Response) -> Raw:
        """What the single call of a request of its own came to."""
        (said,) = _answers_to(1, response)
        if said.error is not UNSET:
            raise said_error(said.error, "the call")
        assert said.ok is not UNSET
        return said.ok

    async def close(self) -> None:
        """Let nobody wait for what will not come."""
        self._closed = True
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._fail_queued()

    def _fail_queued(self) -> None:
        _fail(list(self._queue), out_of_reach(Lost("the engine was closed")))
        self._queue.clear()


def _answers_to(calls: int, response: Response) -> list[_Said]:
    found = decoded(_answers, response).answers
    if len(found) != calls:
        raise Transport(
            BACKEND, TransportKind.PROTOCOL, f"{counted(len(found), 'response')} to {counted(calls, 'call')}"
        )
    return found


def decoded(decoder: msgspec.json.Decoder[_T], response: Response) -> _T:
    """What a response says. A 200 that is not the server's own, of a proxy in between, says nothing that is known."""
    try:
        return decoder.decode(response.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Transport(BACKEND, TransportKind.PROTOCOL, f"the response cannot be read: {error}") from None


def said_error(said: dict[str, Any], what: str) -> Exception:
    """The error that an answer tells of."""
    if said.get("family") == "refused":
        return refusal_of(int(said.get("status", 403)), str(said.get("error", "")), what, said.get("kind"))
    return error_from_wire(said)


def _told(batch: list[OneCall], found: list[_Said], *, again: bool) -> list[OneCall]:
    """Tell everybody what came of their calls, but for those that were not begun and may be made again."""
    left: list[OneCall] = []
    for each, said in zip(batch, found, strict=True):
        if each.future.done():
            continue
        if again and said.error is not UNSET and said.error.get("pool") == NOT_BEGUN:
            left.append(each)
        elif said.error is not UNSET:
            each.future.set_exception(said_error(said.error, "the call"))
        elif said.ok is not UNSET:
            each.future.set_result(said.ok)
        else:
            each.future.set_exception(Transport(BACKEND, TransportKind.PROTOCOL, "an empty response"))
    return left


def _fail(batch: list[OneCall], error: Exception) -> None:
    for each in batch:
        if not each.future.done():
            each.future.set_exception(error)
            each.future.exception()
