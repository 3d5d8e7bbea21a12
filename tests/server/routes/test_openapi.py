"""Requests made from the served OpenAPI document: no answer is a 5xx, and every answer is one that the document says.

The document says which texts are ids and which numbers are bounded, not every rule there is; so what is good by the
document may still be refused, and that one check is left out.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from flowfabric import ClaimPolicy, FlowEdge, FlowGraph
from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.openapi import document
from flowfabric.server.routes import ROUTES
from flowfabric.server.serving import Running
from tests.conftest import full_run

TOKEN = "token-of-this-test"
EXAMPLES = 200 if full_run() else 6
EXCLUDED = [positive_data_acceptance]
#: Bounds on how long a request may wait for something to happen.
WAITS = ("block_ms", "wait_ms", "max_wait_ms", "max_wait", "timeout_ms")
EVENTS = "text/event-stream"


class Known:
    """Things that exist, so that requests can be about something."""

    def __init__(self) -> None:
        self.executions: list[str] = []
        self.texts: dict[str, list[str]] = {"namespace": ["acme"], "lane_id": ["a"], "name": ["a"]}

    async def make(self, engine: Engine) -> None:
        graph = FlowGraph({"a": {"lane_id": "f"}, "b": {"lane_id": "f"}}, [FlowEdge("a", "b")], namespace="acme")
        flow = await engine.submit_flow(graph)
        budget = "aaaaaaaa-0000-4000-8000-000000000001"
        await engine.create_budget(
            budget_id=budget,
            scope_type="namespace",
            scope_id="acme",
            dimensions=["tokens"],
            hard_limits=[10],
            soft_limits=[5],
        )
        made = [await engine.create_execution(namespace="acme", lane_id="a") for _ in range(5)]
        policy = ClaimPolicy("w", "w-1", 3_600_000)
        ended, failed = await engine.claim_many("a", (), policy, 2)
        await engine.complete(ended, b"{}")
        await engine.fail(failed, "no")
        self.executions = [str(each.execution_id) for each in made] + [
            str(each) for each in flow.execution_ids.values()
        ]
        self.texts |= {"flow_id": [str(flow.flow_id)], "budget_id": [budget], "execution_id": self.executions}


@pytest.fixture(scope="module")
def known() -> Known:
    """Things that exist."""
    return Known()


@pytest.fixture(scope="module")
def url(known: Known) -> Iterator[str]:
    """A server on a thread of its own."""
    ready = threading.Event()
    told: dict[str, Any] = {}

    async def serve() -> None:
        async with await Engine.open("memory://") as engine:
            await known.make(engine)
            config = ServerConfig(port=0, api_token=TOKEN)
            server = create_app(engine, config)
            running = Running(server, config, server)
            task = asyncio.create_task(running.run())
            await running.started()
            told.update(running=running, loop=asyncio.get_running_loop(), port=running.port)
            ready.set()
            await task

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    yield f"http://127.0.0.1:{told['port']}"
    told["loop"].call_soon_threadsafe(told["running"].stop)
    thread.join(60)
    assert not thread.is_alive()


SCHEMA = schemathesis.openapi.from_dict(document(ROUTES))
FOUND = {(each.ok().method.upper(), each.ok().path): each.ok() for each in SCHEMA.get_all_operations()}


def test_the_document_is_served_as_it_is_made(url: str) -> None:
    assert httpx.get(f"{url}/openapi.json").json() == json.loads(json.dumps(document(ROUTES)))
    assert set(FOUND) == {(each.method, each.path) for each in ROUTES}


def about_something(draw: st.DataObject, case: Any, known: Known, owner: str | None) -> None:
    """Put names of things that exist in place of some that do not, and keep waits short."""
    ids = {"execution": "execution_id", "flow": "flow_id", "budget": "budget_id"}
    if owner in ids and "id" in (case.path_parameters or {}) and draw.draw(st.booleans()):
        case.path_parameters["id"] = draw.draw(st.sampled_from(known.texts[ids[owner]]))
    for holder in (case.query, case.body):
        if isinstance(holder, dict):
            for name in holder:
                if name in WAITS:
                    holder[name] = 0
                elif name in known.texts and draw.draw(st.booleans()):
                    holder[name] = draw.draw(st.sampled_from(known.texts[name]))


@pytest.mark.parametrize("operation", ROUTES, ids=lambda each: each.name)
def test_every_answer_is_one_that_the_document_says(operation: Any, url: str, known: Known) -> None:
    found = FOUND[operation.method, operation.path]
    follows = operation.media == EVENTS

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=not full_run(),
        phases=[Phase.generate, Phase.shrink] if full_run() else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=found.as_strategy(), draw=st.data())
    def look(case: Any, draw: st.DataObject) -> None:
        about_something(draw, case, known, operation.owner)
        headers = {"authorization": f"Bearer {TOKEN}"}
        if follows:
            # It goes on for as long as somebody listens: only how it begins is looked at.
            asked = case.as_transport_kwargs(base_url=url, headers=headers)
            with requests.request(**asked, timeout=30, stream=True) as begun:
                assert begun.status_code < 500
            return
        response = case.call(base_url=url, headers=headers, timeout=30)
        case.validate_response(response, excluded_checks=EXCLUDED, headers=headers)

    look()


def test_the_server_is_well_after_all_that(url: str) -> None:
    assert requests.get(f"{url}/readyz", timeout=30).json() == {"status": "ready"}
