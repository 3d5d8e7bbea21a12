"""The server as an ASGI application: one request in, one answer out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError
from flowfabric.server import accesslog, audit, console, problems, repeating
from flowfabric.server.access import ANYBODY, Gate, Principal
from flowfabric.server.accesslog import Asked
from flowfabric.server.answers import Answer, Streamed, plain
from flowfabric.server.changes import Changes
from flowfabric.server.config import EMBEDDED, ServerConfig, is_loopback
from flowfabric.server.envelopes import Envelopes
from flowfabric.server.limits import BodyRoom, RateLimits, check_headers
from flowfabric.server.metrics import ServerMetrics
from flowfabric.server.operations import Call, Operation, Routes
from flowfabric.server.permits import Permits
from flowfabric.server.problems import Refused, refused
from flowfabric.server.remote import Performer
from flowfabric.server.requests import Gone, Receive, check_length, check_type, decode, read_body, read_query
from flowfabric.server.sampling import Sampler
from flowfabric.telemetry.logs import request_id
from flowfabric.telemetry.spans import span, telemetry

_log = logging.getLogger("flowfabric.server")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_WITHOUT_METRICS = "/metrics"
#: What machines ask every few seconds is never refused for being asked too often.
_UNLIMITED = frozenset({"healthz", "readyz", "metrics"})
#: Client closed the request: nobody reads it, but the metrics tell.
_GONE = 499


class Server:
    """The operations of an engine over HTTP. Make one with ``create_app``."""

    def __init__(self, engine: Engine, config: ServerConfig, operations: tuple[Operation, ...]) -> None:
        self.engine = engine
        self.config = config
        self.operations = operations
        self.metrics = ServerMetrics()
        if config.metrics and getattr(engine, "observer", None) is None:
            engine.observer = self.metrics.engine
        self.gate = Gate(engine, config.api_token, config.require_credential)
        self.rates = RateLimits(config.rate_limit, config.rate_burst) if config.rate_limit else None
        self.bodies = BodyRoom(config.max_body_bytes)
        self.stream_ops = Permits("stream_ops", config.max_stream_ops)
        self.followers = Permits("event_streams", config.max_followers)
        self.sampler = Sampler(engine)
        self.changes = Changes(engine)
        self.rotations = Permits("admin_rotate", 1)
        #: Keys of requests that are being worked on.
        self.keys_at_work: set[str] = set()
        #: Set once a shutdown has begun: whatever waits for others to do something stops waiting.
        self.closing = asyncio.Event()
        self.performer = Performer(Envelopes(engine))
        self._routes = Routes(operations)

    def close(self) -> None:
        """Take no more reads of streams, and end those that only wait."""
        self.stream_ops.closed = True
        self.closing.set()

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
        operation = None if found is None else found[0].get("GET" if method == "HEAD" else method)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        asked = Asked(
            method if method in _METHODS else "OTHER",
            "unknown" if operation is None else operation.path,
            _GONE,
            accesslog.identity_of(headers),
        )
        token = request_id.set(asked.identity)
        try:
            trace = accesslog.trace_of(headers)
            if trace is None and telemetry() is None:
                await self._reply(asked, scope, receive, send, headers, found, operation)
            else:
                facts = {"http.request.method": asked.method, "http.route": asked.route}
                with span(f"{asked.method} {asked.route}", trace, facts, kind="SERVER") as opened:
                    try:
                        await self._reply(asked, scope, receive, send, headers, found, operation)
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
        operation: Operation | None,
    ) -> None:
        with contextlib.suppress(Gone):
            answer = await self._answer(asked, scope, receive, headers, found, operation)
            asked.status = answer.status
            named = (b"x-request-id", asked.identity.encode())
            if isinstance(answer, Answer):
                await _send(send, answer, scope["method"], named)
            else:
                await _stream(send, answer, named)

    async def _answer(
        self,
        asked: Asked,
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        found: Any,
        operation: Operation | None,
    ) -> Answer | Streamed:
        try:
            check_headers(len(scope["headers"]))
            page = None if found is not None else self._page(scope, headers)
            if page is not None:
                asked.route = "console"
                return page
            if operation is not None and operation.scope is None:
                principal: Principal | None = ANYBODY
            else:
                principal = await self.gate.principal(headers.get(b"authorization"))
            if self.rates is not None and (operation is None or operation.name not in _UNLIMITED):
                known = principal is not None and principal is not ANYBODY
                self._check_rate(principal.name if known and principal else f"from {_address(scope)}")
            if principal is None:
                unknown = ((b"www-authenticate", b"Bearer"),)
                return plain({"error": "missing or invalid Authorization header"}, 401, unknown)
            if principal is ANYBODY and self.config.guard_host:
                _check_host(headers.get(b"host"))
            if operation is None:
                return _lost(found)
            asked.who = principal.name
            call = Call(self, operation, principal, found[1], headers, receive)
            return await self._perform(call, scope)
        except Refused as refusal:
            return refusal.answer
        except EngineError as error:
            return problems.answer_of(error)
        except Gone:
            raise
        except Exception:
            _log.exception("%s %s failed", scope["method"], "?" if operation is None else operation.path)
            return plain({"error": "internal error", "retryable": False}, 500)

    def _page(self, scope: Scope, headers: dict[bytes, bytes]) -> Answer | None:
        """A file of the console, if the path names one."""
        if not self.config.console or scope["method"] not in ("GET", "HEAD"):
            return None
        path = "/".join(_segments(scope))
        return console.page(path, headers.get(b"if-none-match"), headers.get(b"accept-encoding"))

    async def _perform(self, call: Call, scope: Scope) -> Answer | Streamed:
        operation, headers = call.operation, call.headers
        if operation.scope is not None and not operation.each_scope and not call.principal.may(operation.scope):
            text = f"this credential lacks the scope {operation.scope.value!r}"
            raise refused(403, text, kind="forbidden", retryable=False)
        if operation.everywhere and call.principal.namespaces is not None:
            text = "this credential is limited to namespaces, and this is about all of them"
            raise refused(403, text, kind="forbidden", retryable=False)
        check_length(headers.get(b"content-length"), operation.limit, operation.path)
        data = b""
        if operation.query is not None:
            call.query = read_query(scope.get("query_string", b""), operation.query)
        if operation.body is not None:
            check_type(headers.get(b"content-type"))
            data = await read_body(
                call.receive, operation.limit, operation.path, self.bodies, self.config.body_timeout_s
            )
        try:
            if operation.body is not None:
                call.body = decode(data, operation.body)
            if operation.owner is not None:
                await _check_owner(call)
            if repeating.KEY in headers:
                return await repeating.once(call, scope, data, self._acted)
            return await (self._acted(call) if operation.audited else operation.handler(call))
        finally:
            self.bodies.give(len(data))

    def _check_rate(self, caller: str) -> None:
        assert self.rates is not None
        try:
            self.rates.check(caller)
        except Refused:
            self.metrics.limited.add(("rate",))
            raise

    async def _acted(self, call: Call) -> Answer | Streamed:
        answer = await call.operation.handler(call)
        if call.operation.audited:
            await audit.account(call, answer.status)
        return answer


def create_app(engine: Engine, config: ServerConfig | None = None) -> Server:
    """The server of an open engine. It runs no timers and closes nothing: whoever opened the engine does."""
    from flowfabric.server.routes import OPERATIONS

    return Server(engine, EMBEDDED if config is None else config, OPERATIONS)


async def _check_owner(call: Call) -> None:
    match call.operation.owner:
        case "execution":
            await call.check_execution(call.execution_id)
        case "flow":
            await call.check_flow(call.flow_id)
        case "budget":
            await call.check_budget(call.budget_id)


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
        text = "this server asks for no credential and answers only to names of this machine"
        raise refused(403, text, kind="forbidden", retryable=False)


def _lost(found: Any) -> Answer:
    if found is None:
        return plain({"error": "not found"}, 404)
    allowed = ", ".join(sorted(found[0])).encode()
    return plain({"error": "method not allowed"}, 405, ((b"allow", allowed),))


async def _send(send: Send, answer: Answer, method: str, named: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", answer.media), *answer.headers] if answer.body else [*answer.headers]
    headers.append(named)
    if answer.status not in (204, 304):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    body = b"" if method == "HEAD" else answer.body
    respond = getattr(getattr(send, "__self__", None), "respond", None)
    if respond is not None:
        respond(answer.status, headers, body)
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Send, answer: Streamed, named: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", answer.media), *answer.headers, named]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    async with contextlib.aclosing(answer.chunks) as chunks:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
