"""Calls about many things are decided and written out beside the event loop: others go on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowfabric.core.executions.create import CreateExecutions
from flowfabric.core.flows.submit import SubmitFlow
from flowfabric.core.rules import RULES
from flowfabric.engine import Engine
from flowfabric.engine.operations.flows import Flows
from flowfabric.engine.transact import _MANY
from flowfabric.model.limits import MAX_FLOW_NODES
from flowfabric.server import ServerConfig, create_app
from flowfabric.stores.beside import MOST_AT_ONCE
from flowfabric.stores.postgres import store as postgres
from flowfabric.stores.valkey.commit import Message
from tests.conftest import full_run
from tests.contract.conftest import STORES
from tests.contract.probe import ManualClock
from tests.server.attacks.test_loop_requests import CEILING_S
from tests.server.attacks.world.watching import Request, watching

SERVED = ("sqlite", "postgres", "valkey")
MANY = MAX_FLOW_NODES if full_run() else MOST_AT_ONCE + 1_000
#: What a batch does for each thing that it is about.
WORK: dict[str, list[tuple[Any, str]]] = {
    "sqlite": [],
    "postgres": [(postgres, "statement")],
    "valkey": [(Message, "add"), (Message, "arguments")],
}


@pytest.fixture(params=SERVED)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    return request.param, STORES[request.param](request, tmp_path)


def bulk(count: int) -> tuple[str, Any]:
    return "/v1/remote/calls", {"calls": [{"op": "create_executions", "arguments": {"executions": [{}] * count}}]}


def bulk_route(count: int) -> tuple[str, Any]:
    one = {
        "namespace": "default", "lane_id": "lane", "execution_kind": "op", "input_payload": "", "priority": 0,
        "creator_identity": "me",
    }  # fmt: skip
    return "/v1/executions/bulk", {"executions": [one] * count}


def flow(count: int) -> tuple[str, Any]:
    nodes = {str(number): {"execution_kind": "op", "lane_id": "lane"} for number in range(count // 2)}
    edges = [{"upstream": str(number - 1), "downstream": str(number)} for number in range(1, count // 2)]
    return "/v1/flows/submit", {"namespace": "default", "nodes": nodes, "edges": edges}


async def longest(engine: Engine, path: str, body: Any) -> float:
    """How long the loop was held by one callback."""
    request = Request("POST", path, body=msgspec.json.encode(body))
    with watching() as held:
        status, answer = await asyncio.create_task(request.ask(create_app(engine, ServerConfig())))
    assert status in (200, 201), answer
    assert b'"error"' not in answer[:1_000]
    return held.longest


class Threads:
    """On which threads something was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.seen: dict[str, set[int]] = {}

    def watch(self, owner: Any, name: str) -> None:
        self._monkeypatch.setattr(owner, name, self._watched(name, getattr(owner, name)))

    def watch_rule(self, kind: type) -> None:
        self._monkeypatch.setitem(RULES, kind, self._watched("rule", RULES[kind]))  # type: ignore[arg-type]

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any, **options: Any) -> Any:
            self.seen.setdefault(name, set()).add(threading.get_ident())
            return real(*given, **options)

        return watched


@pytest.mark.parametrize("made", [bulk, bulk_route, flow])
async def test_many_things_are_gone_through_beside_the_loop(
    store: tuple[str, str], made: Callable[[int], tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, url = store
    async with await Engine.open(url, clock=ManualClock(), single_node=True) as engine:
        threads = Threads(monkeypatch)
        for kind in (CreateExecutions, SubmitFlow):
            threads.watch_rule(kind)
        for owner, each in (*WORK[name], *([(Flows, "_submission")] if made is flow else [])):
            threads.watch(owner, each)
        assert await longest(engine, *made(MANY)) < CEILING_S
        assert "rule" in threads.seen
        # Small commits that come along are written out on the loop.
        assert {each for each, on in threads.seen.items() if on == {threading.get_ident()}} == set()
        assert threading.get_ident() not in threads.seen["rule"]
        assert len(threads.seen) == 1 + len(WORK[name]) + (made is flow)


@pytest.mark.parametrize("store", ["postgres", "valkey"], indirect=True)
async def test_nobody_waits_behind_them(store: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are sent at once, others commit meanwhile."""
    begun, going = asyncio.Event(), threading.Event()
    loop, rule = asyncio.get_running_loop(), RULES[CreateExecutions]

    def slow(*given: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        assert going.wait(60)
        return rule(*given)

    async with await Engine.open(store[1], clock=ManualClock()) as engine:
        monkeypatch.setitem(RULES, CreateExecutions, slow)
        large = [asyncio.create_task(engine.create_executions([{"lane_id": "large"}] * MANY)) for _ in range(3)]
        try:
            await begun.wait()
            await asyncio.gather(*(engine.create_execution(lane_id="small") for _ in range(10)))
            assert not any(each.done() for each in large)
        finally:
            going.set()
        assert [len(each) for each in await asyncio.gather(*large)] == [MANY] * 3


def test_whatever_lets_callers_bring_many_things_is_counted() -> None:
    brought = ("CreateExecution,", "NewEdge,")
    fields = [(kind, str(each.type)) for kind in RULES for each in msgspec.structs.fields(kind)]
    kinds = {kind for kind, hint in fields if any(name in hint for name in brought)}
    assert kinds == {*_MANY}
    assert len(kinds) >= 3
