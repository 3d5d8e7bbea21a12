"""The server as an ASGI application: one request in, one answer out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from flowfabric.core.batch.notes import Note, Receipt
from flowfabric.engine import Engine
from flowfabric.engine.operation_table import Subject
from flowfabric.model.errors import EngineError
from flowfabric.server import console, openapi
from flowfabric.server.access import audit
from flowfabric.server.access.principals import ANYBODY, Gate, Principal
from flowfabric.server.access.signed_handles import Envelopes
from flowfabric.server.changes import Changes
from flowfabric.server.config import EMBEDDED, ServerConfig, is_loopback
from flowfabric.server.http import idempotency, problems
from flowfabric.server.http.cross_site import SAFE, check_page
from flowfabric.server.http.limits import (
    LEAST_OPEN,
    OPEN_PART,
    AnswerRoom,
    Body,
    BodyRoom,
    Permits,
    RateLimits,
    check_headers,
)
from flowfabric.server.http.pieces import MOST_CALLS, MOST_STEPS, Loads, Turns
from flowfabric.server.http.problems import Refused, refused
from flowfabric.server.http.request import Gone, Receive, check_length, check_type, read_body, read_json, read_query
from flowfabric.server.http.response import EVENTS, HTML, Answer, Streamed, plain
from flowfabric.server.operations import Call, Route, Routes, check_caller
from flowfabric.server.remote_calls import Performer
from flowfabric.server.telemetry import access_log
from flowfabric.server.telemetry.access_log import Asked
from flowfabric.server.telemetry.metrics import ServerMetrics
from flowfabric.server.telemetry.samples import Sampler
from flowfabric.telemetry.logs import request_id
from flowfabric.telemetry.spans import span, telemetry

_log = logging.getLogger("flowfabric.server")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_WITHOUT_METRICS = "/metrics"
#: What machines ask every few seconds is never refused for being asked too often.
_UNLIMITED = frozenset({"livez", "healthz", "readyz", "metrics"})
#: Client closed the request: nobody reads it, but the metrics tell.
_GONE = 499


class Server:
    """The operations of an engine over HTTP. Make one with ``create_app``."""

    def __init__(self, engine: Engine, config: ServerConfig, routes: tuple[Route, ...]) -> None:
        self.engine = engine
        self.config = config
        self.routes = routes
        self.metrics = ServerMetrics()
        if config.metrics and getattr(engine, "observer", None) is None:
            engine.observer = self.metrics.engine
        self.gate = Gate(engine, config.api_token, config.require_credential)
        self.rates = RateLimits(config.rate_limit, config.rate_burst) if config.rate_limit else None
        self.bodies = BodyRoom(config.max_body_bytes)
        self.open_bodies = BodyRoom(max(config.max_body_bytes // OPEN_PART, LEAST_OPEN))
        self.stream_ops = Permits("stream_ops", config.max_stream_ops)
        self.followers = Permits("event_streams", config.max_followers)
        self.turns = Turns()
        self.steps_at_once = Loads(MOST_STEPS)
        self.calls_at_once = Loads(MOST_CALLS)
        self.answers = AnswerRoom(config.max_answer_bytes)
        self.sampler = Sampler(engine)
        self.changes = Changes(engine)
        self.rotations = Permits("admin_rotate", 1)
        #: Keys of requests that are being worked on.
        self.keys_at_work: set[str] = set()
        #: Set once a shutdown has begun: whatever waits for others to do something stops waiting.
        self.closing = asyncio.Event()
        self.performer = Performer(Envelopes(engine))
        self._routes = Routes(routes)

    def close(self) -> None:
        """Take no more reads of streams, and end those that only wait."""
        self.stream_ops.closed = True
        self.closing.set()

    @cached_property
    def description(self) -> Answer:
        """What can be called, as an OpenAPI document: made once, since anybody may ask for it."""
        return plain(openapi.document(self.routes))

    @cached_property
    def description_page(self) -> Answer:
        """The same for people."""
        return Answer(200, openapi.page(self.routes), HTML, policy=openapi.POLICY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event, as ASGI has it."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        literal = self._routes.literal.get(scope.get("raw_path") or b"")
        found = self._routes.find(_segments(scope)) if literal is None or scope.get("root_path") else (literal, {})
        method = scope["method"]
        route = None if found is None else found[0].get("GET" if method == "HEAD" else method)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        asked = Asked(
            method if method in _METHODS else "OTHER",
            "unknown" if route is None else route.path,
            _GONE,
            access_log.identity_of(headers),
        )
        token = request_id.set(asked.identity)
        try:
            trace = access_log.trace_of(headers)
            if trace is None and telemetry() is None:
                await self._reply(asked, scope, receive, send, headers, found, route)
            else:
                facts = {"http.request.method": asked.method, "http.route": asked.route}
                with span(f"{asked.method} {asked.route}", trace, facts, kind="SERVER") as opened:
                    try:
                        await self._reply(asked, scope, receive, send, headers, found, route)
                    finally:
                        if opened is not None:
                            opened.set_attribute("http.response.status_code", asked.status)
                        self._told(asked)
        finally:
            self._told(asked)
            request_id.reset(token)

    def _told(self, asked: Asked) -> None:
        """Write its line and count it, once; while its trace is the current one, if it has any."""
        if asked.told:
            return
        asked.told = True
        seconds = asked.tell()
        if asked.route != _WITHOUT_METRICS:
            labels = (asked.method, asked.route, str(asked.status))
            self.metrics.requests.add(labels)
            self.metrics.durations.observe(seconds, labels)

    async def _reply(
        self,
        asked: Asked,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: dict[bytes, bytes],
        found: Any,
        route: Route | None,
    ) -> None:
        with contextlib.suppress(Gone):
            answer = await self._answer(asked, scope, receive, headers, found, route)
            asked.status = answer.status
            named = (b"x-request-id", asked.identity.encode())
            if isinstance(answer, Answer):
                await _send(send, answer, scope["method"], named)
                return
            try:
                await _stream(send, answer, named)
            finally:
                for each in (answer.body, answer.made):
                    if each is not None:
                        each.close()

    async def _answer(
        self,
        asked: Asked,
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        found: Any,
        route: Route | None,
    ) -> Answer | Streamed:
        method = scope["method"]
        try:
            check_headers(headers, scope["headers"])
            if method not in SAFE or (route is not None and route.costly):
                check_page(headers, self.config.cors_origins)
            page = None if found is not None else self._page(scope, headers)
            if page is not None:
                asked.route = "console"
                return page
            if route is not None and not route.operation.scopes:
                principal: Principal | None = ANYBODY
            else:
                principal = await self.gate.principal(headers.get(b"authorization"))
            if self.rates is not None and (route is None or route.name not in _UNLIMITED):
                known = principal is not None and principal is not ANYBODY
                self._check_rate(principal.name if known and principal else f"from {_address(scope)}")
            if principal is None:
                raise problems.unauthorized()
            if principal is ANYBODY and self.config.guard_host:
                _check_host(headers.get(b"host"))
            if route is None:
                return _lost(found)
            asked.who = principal.name
            call = Call(self, route, principal, found[1], headers, receive)
            return await self._perform(call, scope)
        except Refused as refusal:
            return refusal.answer
        except EngineError as error:
            return problems.answer_of(error)
        except Gone:
            raise
        except Exception:
            _log.exception("%s %s failed", method, "?" if route is None else route.path)
            return plain({"error": "internal error", "retryable": False}, 500)

    def _page(self, scope: Scope, headers: dict[bytes, bytes]) -> Answer | None:
        """A file of the console, if the path names one."""
        if not self.config.console or scope["method"] not in ("GET", "HEAD"):
            return None
        path = "/".join(_segments(scope))
        return console.page(path, headers.get(b"if-none-match"), headers.get(b"accept-encoding"))

    async def _perform(self, call: Call, scope: Scope) -> Answer | Streamed:
        route, headers = call.route, call.headers
        check_caller(call.principal, call.operation)
        check_length(headers.get(b"content-length"), route.limit, route.path)
        data = b""
        if route.query is not None:
            call.query = read_query(scope.get("query_string", b""), route.query)
        # What anybody may send must not take the room of those who have shown who they are.
        body = Body(self.bodies if route.operation.scopes else self.open_bodies, call.principal.credential_id)
        try:
            if route.body is not None:
                check_type(headers.get(b"content-type"))
                data = await read_body(call.receive, route.limit, route.path, body, self.config.body_timeout_s)
                # A body may take its time to arrive.
                await call.check_standing()
                call.body = await read_json(data, route.body)
            if route.owner is not None:
                await _check_owner(call)
            if idempotency.KEY in headers:
                answer = await idempotency.once(call, scope, data, self._acted)
            else:
                answer = await (self._acted(call) if call.operation.audited else route.handler(call))
            if isinstance(answer, Streamed):
                answer.chunks = _while_standing(call, answer, answer.chunks)
                # What is still to be sent is made from the body.
                answer.body, body = body, Body(self.bodies)
            return answer
        finally:
            body.close()

    def _check_rate(self, caller: str) -> None:
        assert self.rates is not None
        try:
            self.rates.check(caller)
        except Refused:
            self.metrics.limited.add(("rate",))
            raise

    async def _acted(self, call: Call) -> Answer | Streamed:
        operation, account = call.operation, audit.account_of(call)
        note = Note(None if account is None or operation.many else account.of, _receipt(call))
        if note.account is not None or note.receipt is not None:
            call.engine = call.engine.noting(note)
        answer = await call.route.handler(call)
        if account is not None:
            await account.settle(note)
        if call.route.settled is not None:
            await call.route.settled(call)
        return answer


def create_app(engine: Engine, config: ServerConfig | None = None) -> Server:
    """The server of an open engine. It runs no timers and closes nothing: the opener of the engine does."""
    from flowfabric.server.routes import ROUTES

    return Server(engine, EMBEDDED if config is None else config, ROUTES)


#: Operations whose result is not that of one commit. Made again they find out how far they are.
_SEVERAL_COMMITS = frozenset({"cancel_flow"})


def _receipt(call: Call) -> Receipt | None:
    """What keeps the result of a call in its own commit, if it has a key."""
    operation = call.operation
    if call.receipt is None or operation.name in _SEVERAL_COMMITS or not hasattr(Engine, operation.name):
        return None
    receipt = call.receipt(operation.name)
    receipt.most_bytes = idempotency.MAX_KEPT_BYTES if operation.repeatable else None
    return receipt


async def _check_owner(call: Call) -> None:
    match call.route.owner:
        case Subject.EXECUTION:
            await call.check_execution(call.execution_id)
        case Subject.FLOW:
            await call.check_flow(call.flow_id)


def _segments(scope: Scope) -> list[str]:
    """The path below where the application is mounted, segment by segment, each decoded by itself."""
    root = scope.get("root_path", "")
    raw = scope.get("raw_path")
    path: str = scope["path"] if raw is None else raw.decode("latin-1")
    if root and path.startswith(root):
        path = path[len(root) :]
    parts = path.partition("?")[0].strip("/").split("/")
    return parts if raw is None else [unquote(part) for part in parts]


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "nowhere"


def _check_host(host: bytes | None) -> None:
    """Refuse a page of another site whose name was made to point to this machine."""
    name = (host or b"").decode("latin-1")
    bare = name.partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
    if not is_loopback(bare.strip("[]")):
        text = "this server asks for no credential and serves this machine only"
        raise refused(403, text, kind="forbidden", retryable=False)


def _lost(found: Any) -> Answer:
    if found is None:
        return plain({"error": "not found"}, 404)
    allowed = ", ".join(sorted(found[0])).encode()
    return plain({"error": "method not allowed"}, 405, ((b"allow", allowed),))


async def _send(send: Send, answer: Answer, method: str, named: tuple[bytes, bytes]) -> None:
    headers = [*answer.policy, *answer.headers, named]
    if answer.body:
        headers.append((b"content-type", answer.media))
    if answer.status not in (204, 304):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    body = b"" if method == "HEAD" else answer.body
    respond = getattr(getattr(send, "__self__", None), "respond", None)
    if respond is not None:
        respond(answer.status, headers, body, shared=answer.shared)
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Send, answer: Streamed, named: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", answer.media), *answer.policy, *answer.headers, named]
    keep = getattr(getattr(send, "__self__", None), "keep", None)
    if keep is not None:
        keep(answer.made)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    async with contextlib.aclosing(answer.chunks) as chunks:
        async for chunk in chunks:
            message = {"type": "http.response.body", "body": chunk, "more_body": True}
            # While it waits for its reader nobody but the connection holds it.
            del chunk
            await send(message)
    await send({"type": "http.response.body", "body": b""})


async def _while_standing(
    call: Call, answer: Streamed, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Nothing more is sent once the credential is good no more, whatever the stream itself looks at."""
    drop = None if answer.media == EVENTS else getattr(getattr(call.receive, "__self__", None), "drop", None)
    ready: list[bytes] = []

    def fall(_: object) -> None:
        # A reader that takes its time would get what waits for it, and keep others from what it was given.
        if drop is not None:
            drop()

    async with contextlib.aclosing(chunks), call.holding() as standing:
        standing.gone.add_done_callback(fall)
        try:
            async for chunk in chunks:
                if standing.fell:
                    break
                ready.append(chunk)
                del chunk
                yield ready.pop()
        finally:
            standing.gone.remove_done_callback(fall)
            if standing.fell and answer.fallen is not None:
                await answer.fallen()
        if standing.fell and answer.media != EVENTS:
            raise Gone  # half an answer must not look like a whole one


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
