"""The ways to a store: the engine itself, a server over HTTP, and a remote engine that knows two servers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from flowfabric.engine import Engine
from flowfabric.engine.operation_table import OPERATIONS
from flowfabric.model.errors import Contention, ContentionKind, EngineError
from flowfabric.model.ids import encode_hook
from flowfabric.sdk.remote.engine import RemoteEngine
from flowfabric.sdk.remote.http_client import Lost, NotReached, Response
from flowfabric.sdk.worker.renewal import is_passing
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.access.signed_handles import PURPOSE
from flowfabric.server.app import Server
from flowfabric.server.routes import ROUTES
from tests.contract.probe import ManualClock
from tests.disturbed.cases import Doing, Scene, operation_of
from tests.disturbed.faults import FaultyStore

#: What gives up the lease that it is called with: called again, it is told that the lease is gone.
PARKING = frozenset({"suspend", "advance~parks", "reserve_budget~asks"})
PARKED = "the lease is gone"
#: What answers each part of a request by itself.
MANY = frozenset(name for name, each in OPERATIONS.items() if each.many)
SEVERAL_ANSWERS = frozenset({"remote_calls", "remote_renew"})
BY_NAME = {each.name: each for each in ROUTES}
ENGINE, HTTP, REMOTE = "engine", "http", "remote"
TOKEN = "token-of-this-test"


class Unknown(Exception):
    """Whoever has called does not know what has come of it."""


def doors_of(name: str) -> list[str]:
    """The doors that an operation has."""
    operation = OPERATIONS[operation_of(name)]
    return [*([ENGINE, REMOTE] if operation.remote else []), *([HTTP] if operation.http else [])]


class World:
    """Two processes on one store, and those who call them. The first may be killed, or find the store away."""

    def __init__(self, engines: list[Engine], store: FaultyStore, clock: ManualClock) -> None:
        self.engines = engines
        self.store = store
        self.clock = clock
        self._servers: dict[int, Server] = {}
        self.wire = _Wire(self)
        self.remote = RemoteEngine("http://one,http://two", None)
        self.remote._servers = self.remote._calls._servers = self.wire  # type: ignore[assignment]
        self.remote.partitions = engines[0].partitions
        #: Whether the next answer of the first server is lost on its way, and whether a proxy says something instead.
        self.loses = self.proxied = False

    def server(self, place: int) -> Server:
        """The server of a process."""
        if place not in self._servers:
            self._servers[place] = create_app(self.engines[place], ServerConfig(api_token=TOKEN))
        return self._servers[place]

    def scene(self, door: str) -> Scene:
        """Where cases are set up."""
        return Scene(self.engines[0], self.remote if door == REMOTE else self.engines[0], self.remote, self.clock)

    async def call(self, door: str, name: str, doing: Doing, place: int, tries: int) -> str:
        """Call an operation in one of the processes; what it says. ``Unknown`` if that is not heard."""
        if door == HTTP:
            return await self._requested(operation_of(name), doing, place, tries)
        caller = self.remote if door == REMOTE else self.engines[place]
        arguments = {**doing.arguments, **({} if door == REMOTE else doing.own)}
        try:
            return _said(await getattr(caller, operation_of(name))(**arguments))
        except Contention as error:
            if name not in PARKING or error.kind is not ContentionKind.LEASE_CONFLICT:
                raise
            return PARKED
        except EngineError as error:
            if not is_passing(error):
                raise
            raise Unknown(str(error)) from error

    async def _requested(self, name: str, doing: Doing, place: int, tries: int) -> str:
        route = BY_NAME[name]
        path = re.sub(r"{(\w+)}", lambda found: quote(str(doing.path[found[1]]), safe=""), route.path)
        body = {**doing.body, **(doing.again if tries else {})} if isinstance(doing.body, dict) else doing.body
        headers = {"content-type": "application/json"} | ({} if route.method == "GET" else {"idempotency-key": "one"})
        content = None if body is None else msgspec.json.encode(body, enc_hook=encode_hook)
        response = await self.ask(place, route.method, path, content, headers, dict(doing.query))
        if response.status_code >= 500:
            raise Unknown(f"{response.status_code} {response.text}")
        assert response.status_code < 400, response.text
        if name in MANY and '"failed":[{' in response.text:
            raise Unknown(response.text)
        if name in SEVERAL_ANSWERS and '"family":"transport"' in response.text:
            raise Unknown(response.text)
        return f"{response.status_code} {response.text}"

    async def ask(self, place: int, method: str, path: str, body: bytes | None, headers: Any, query: Any) -> Any:
        """One request to one of the servers; ``Unknown`` if it does not answer."""
        if place == 0 and self.store.dead:
            raise Unknown("the server is dead")
        headers = {**headers, "authorization": f"Bearer {TOKEN}"}
        transport = httpx.ASGITransport(self.server(place), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            response = await client.request(method, path, content=body, headers=headers, params=query)
        if place == 0 and (self.store.dead or self.loses):
            self.loses = False
            raise Unknown("the answer was lost")
        if place == 0 and self.proxied:
            self.proxied = False
            return httpx.Response(503, text="<html>no server is available</html>")
        return response


class _Wire:
    """What a remote engine sends its requests with: straight to one of the servers, to the next if it has failed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.place = 0
        self.closed = False

    async def request(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Response:
        world = self._world
        if world.store.dead and self.place == 0:
            self.place = 1
            raise NotReached("it is dead")
        try:
            headers = {"content-type": "application/json"}
            response = await world.ask(self.place, method, path, body, headers, None)
        except Unknown as error:
            self.place = 1
            raise Lost(str(error)) from error
        return Response(response.status_code, response.content)

    def close(self) -> None:
        self.closed = True


def _said(answer: Any) -> str:
    return f"{type(answer).__name__} {answer!r}"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[World]:
    """Two processes on a new store."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(await Engine.open(url, single_node=True, clock=clock))
        store = FaultyStore(first.store)
        if store.label == "memory":
            other = Engine(first.store)
        else:
            other = await stack.enter_async_context(await Engine.open(url, single_node=True, clock=clock))
        engine = Engine(store)
        world = World([engine, other], store, clock)
        stack.push_async_callback(_let_go, world)
        # Every store has a key that handles are sealed with, from its first day on.
        await other.derived_keys(PURPOSE)
        yield world


async def _let_go(world: World) -> None:
    await world.remote.close()
    for engine in world.engines[: 1 if world.store.label != "memory" else 2]:
        # The store is closed by whoever has opened it.
        await engine._batcher.close()
