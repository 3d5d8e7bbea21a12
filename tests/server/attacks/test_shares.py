"""Nobody takes all places: whoever has a credential leaves some to others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.model.errors import ResourceExhausted, Unavailable
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.access.principals import ANYBODY, HOLDER, Principal
from flowfabric.server.app import Server
from flowfabric.server.http.limits import Permits
from tests.contract.probe import id_of
from tests.server.attacks.world.asking import Asking, eventually
from tests.server.making import at, claimed

PLACES = 6
LONG_MS = 30_000


class Tenants:
    """Two credentials for one server, and a stream in which nothing happens."""

    def __init__(self, server: Server, stream: str, execution_id: str, tokens: list[str]) -> None:
        self.server = server
        self.stream = stream
        self.greedy, self.other = tokens
        arguments = {"execution_id": execution_id, "attempt_index": 0, "block_ms": LONG_MS}
        self.call = {"op": "tail_stream", "arguments": arguments}

    def ask(self, token: str, how: str) -> Asking:
        match how:
            case "tail":
                return Asking(self.server, "GET", f"{self.stream}/tail?block_ms={LONG_MS}", token)
            case "call":
                return Asking(self.server, "POST", "/v1/remote/calls", token, {"calls": [self.call]})
            case "frames":
                return Asking(self.server, "GET", f"{self.stream}/events", token)
        return Asking(self.server, "GET", self.stream, token)


@pytest.fixture
async def tenants(engine: Engine) -> Tenants:
    server = create_app(engine, ServerConfig(max_stream_ops=PLACES, max_followers=PLACES, require_credential=True))
    await engine.create_execution()
    execution_id = str(id_of(await claimed(engine)))
    made = [await engine.create_credential(name=name, scopes=["read"]) for name in ("greedy", "other")]
    stream = at(execution_id, "attempts", "0", "stream")
    return Tenants(server, stream, execution_id, [each.token.reveal() for each in made])


@contextlib.asynccontextmanager
async def holding(asked: list[Asking]) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for each in asked:
            await stack.enter_async_context(each)
        yield


async def refusal_of(asking: Asking) -> Any:
    async with asking:
        await asking.end()
        said = json.loads(asking.text)
        return said["answers"][0].get("error") if "answers" in said else said if asking.status == 429 else None


@pytest.mark.parametrize("how", ["tail", "call", "frames"])
async def test_others_find_a_place(tenants: Tenants, how: str) -> None:
    pool = tenants.server.stream_ops if how == "tail" else tenants.server.followers
    async with holding([tenants.ask(tenants.greedy, how) for _ in range(PLACES // 2)]):
        await eventually(lambda: pool.taken == PLACES // 2)
        refused = await refusal_of(tenants.ask(tenants.greedy, how))
        assert refused["kind"] == "resource_exhausted"
        assert await refusal_of(tenants.ask(tenants.other, "page")) is None
        async with holding([tenants.ask(tenants.other, how)]):
            await eventually(lambda: pool.taken == PLACES // 2 + 1)
    await eventually(lambda: pool.taken == 0)
    assert not pool._shares


async def test_many_tails_of_one_request_leave_places_too(tenants: Tenants) -> None:
    body = {"calls": [tenants.call] * 3 * PLACES}
    pool = tenants.server.followers
    async with Asking(tenants.server, "POST", "/v1/remote/calls", tenants.greedy, body) as asking:
        await eventually(lambda: pool.taken == PLACES // 2)
        async with holding([tenants.ask(tenants.other, "call")]):
            await eventually(lambda: pool.taken == PLACES // 2 + 1)
        assert not asking.task.done()


def test_shares() -> None:
    permits = Permits("some", 4)
    mine, yours = (Principal(name, credential_id=name) for name in ("mine", "yours"))
    with contextlib.ExitStack() as held:
        for _ in range(2):
            held.enter_context(permits.one(mine))
        with pytest.raises(ResourceExhausted):
            permits.check(mine)
        for who in (yours, HOLDER):
            held.enter_context(permits.one(who))
        for who in (yours, ANYBODY, None):
            with pytest.raises(ResourceExhausted):
                permits.check(who)
    assert (permits.taken, permits._shares) == (0, {})
    with contextlib.ExitStack() as held:
        for _ in range(4):
            held.enter_context(permits.one(HOLDER))
    with Permits("one", 1).one(mine):
        pass
    permits.closed = True
    with pytest.raises(Unavailable):
        permits.check(mine)
