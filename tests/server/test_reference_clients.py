"""Clients of the reference against this server, as a table of requests and answers.

``reference_exchanges.json`` holds requests as the reference's clients send them, with ids over 256 partitions, and what
this server answers to them, without the fields that they do not know. Both are checked against
``reference_requests`` and ``reference_answers``, which say what those clients serialise and decode.

A name with a dollar stands for an id of the table, or for something an earlier answer has said. In answers ``<ms>`` is
a time, ``<ms text>`` one as text, and ``<text>`` any text.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import httpx
import msgspec
import pytest

from flowfabric.conditions import ByName, Single
from flowfabric.engine import Engine
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import ClaimPolicy, StateVector
from flowfabric.model.operations.suspension import Fresh, SuspendArgs
from flowfabric.model.partitions import flow_partition, lane_partition
from flowfabric.model.streams.frames import Frame
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.routes import ROUTES
from flowfabric.server.serving import open_engine
from tests.server.conftest import client_of
from tests.server.reference_answers import ANSWERS, STATE_VECTOR, Problem, decoded
from tests.server.reference_requests import REQUESTS

TABLE: dict[str, Any] = json.loads(Path(__file__).with_name("reference_exchanges.json").read_text())
#: How many routes the reference has.
THEIRS = 29
PARTITIONS = 256
STORES: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "memory": lambda request, folder: "memory://",
    "sqlite": lambda request, folder: f"sqlite:///{folder}/ff.db",
    "postgres": lambda request, folder: request.getfixturevalue("prepared_postgres_dsn"),
    "valkey": lambda request, folder: request.getfixturevalue("valkey_url"),
}
MARKS: dict[str, Callable[[Any], bool]] = {
    "<ms>": lambda value: type(value) is int and value > 1_600_000_000_000,
    "<ms text>": lambda value: isinstance(value, str) and value.isdigit() and int(value) > 1_600_000_000_000,
    "<text>": lambda value: isinstance(value, str) and bool(value),
}


@pytest.fixture(params=STORES)
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Engine]:
    """The engine of a server that was told its store, its secret, and to leave for a while what workers have lost and
    what has just come: the table says when that moves on."""
    monkeypatch.setenv("FF_RECLAIM_GRACE_MS", "600000")
    monkeypatch.setenv("FF_INTAKE_INTERVAL_MS", "600000")
    url = STORES[request.param](request, tmp_path)
    async with await open_engine(ServerConfig(store_url=url, single_node=True, hmac_secret="ab" * 32)) as opened:
        yield opened


class Worker:
    """What the reference's workers do at the store itself, between two requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._handles: dict[str, Handle] = {}

    async def act(self, step: dict[str, Any]) -> None:
        """One step of the table."""
        acting: Callable[[dict[str, Any]], Awaitable[None]] = getattr(self, f"_{step['worker']}")
        await acting(step)

    async def _promote(self, step: dict[str, Any]) -> None:
        await self._engine.promote_submitted()

    async def _claim(self, step: dict[str, Any]) -> None:
        handle = await self._engine.claim(step["lane"], policy=ClaimPolicy("w", "w-1", lease_ttl_ms=60_000))
        assert handle is not None
        self._handles[step["lane"]] = handle

    async def _lose(self, step: dict[str, Any]) -> None:
        assert await self._engine.claim(step["lane"], policy=ClaimPolicy("w", "w-1", lease_ttl_ms=1)) is not None
        for _ in range(100_000):
            lost = (await self._engine.list_expired_leases()).entries
            if step["execution"] in [each.execution_id for each in lost]:
                return
            await asyncio.sleep(0)
        raise AssertionError("its lease never ended")

    async def _use_grant(self, step: dict[str, Any]) -> None:
        await self._engine.claim_execution(
            execution_id=step["execution"],
            worker_id="w",
            worker_instance_id="w-1",
            lane_id=step["lane"],
            lease_id=str(uuid.uuid4()),
            lease_ttl_ms=60_000,
            attempt_id=str(uuid.uuid4()),
        )

    async def _write(self, step: dict[str, Any]) -> None:
        await self._engine.append_frame(self._handles[step["lane"]], Frame(b"one", frame_type="log"))

    async def _complete(self, step: dict[str, Any]) -> None:
        await self._engine.complete(self._handles[step["lane"]], bytes(step["payload"]))

    async def _suspend(self, step: dict[str, Any]) -> None:
        await self._engine.suspend(
            self._handles[step["lane"]],
            SuspendArgs(
                waitpoints=[Fresh(waitpoint_id=step["waitpoint"], waitpoint_key="approval")],
                resume_condition=Single("approval", ByName("approved")),
            ),
        )


def filled(value: Any, known: dict[str, str]) -> Any:
    """The same, with what names with a dollar stand for."""
    if isinstance(value, str):
        return re.sub(r"\$(\w+)", lambda found: known[found[1]], value)
    if isinstance(value, list):
        return [filled(each, known) for each in value]
    if isinstance(value, dict):
        return {key: filled(each, known) for key, each in value.items()}
    return value


def fit(found: Any, expected: Any, place: str) -> None:
    """An answer has these fields, of these kinds and values; a variant has no other name beside its own."""
    if isinstance(expected, str) and expected in MARKS:
        assert MARKS[expected](found), (place, found)
    elif isinstance(expected, dict):
        assert isinstance(found, dict), (place, found)
        assert found.keys() >= expected.keys(), (place, found)
        assert len(found) == 1 or not any(key[0].isupper() for key in expected), (place, found)
        for key, each in expected.items():
            fit(found[key], each, f"{place}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), (place, found)
        assert len(found) == len(expected), (place, found)
        for at, each in enumerate(expected):
            fit(found[at], each, f"{place}[{at}]")
    else:
        assert (type(found), found) == (type(expected), expected), place


async def exchanged(client: httpx.AsyncClient, step: dict[str, Any], known: dict[str, str]) -> httpx.Response:
    """Send a request of the table."""
    method, _, path = step["request"].partition(" ")
    path = re.sub(r"\$(\w+)", lambda found: quote(known[found[1]], safe=":"), path)
    body = {} if "body" not in step else {"json": filled(step["body"], known)}
    return await client.request(method, path, **body)


def answered(response: httpx.Response, step: dict[str, Any], known: dict[str, str]) -> None:
    """Check an answer of the table, and keep what later steps need of it."""
    place = step["request"]
    assert response.status_code == step["status"], (place, response.text)
    if "bytes" in step:
        assert (response.headers["content-type"], list(response.content)) == (step["media"], step["bytes"])
    elif "media" in step:
        assert response.headers["content-type"] == step["media"]
    elif "answer" in step:
        fit(response.json(), filled(step["answer"], known), place)
    else:
        assert response.content == b"", place
    for name, path in step.get("keep", {}).items():
        found = response.json()
        for key in path:
            found = found[key]
        known[name] = found


def understood(response: httpx.Response, route: str) -> None:
    """A client can decode what it gets."""
    if response.status_code >= 400:
        msgspec.convert(response.json(), Problem)
    elif route in ANSWERS and response.content:
        decoded(response.json(), ANSWERS[route])


async def test_the_reference_and_its_clients_understand_each_other(engine: Engine) -> None:
    known = dict(TABLE["ids"])
    worker = Worker(engine)
    async with client_of(create_app(engine, ServerConfig())) as client:
        for step in TABLE["steps"]:
            if "worker" in step:
                await worker.act(filled(step, known))
            else:
                response = await exchanged(client, step, known)
                answered(response, step, known)
                understood(response, step["route"])


def test_every_route_of_the_reference_is_in_the_table() -> None:
    asked = {step["route"] for step in TABLE["steps"] if "route" in step}
    assert len(asked) == THEIRS
    assert asked == ANSWERS.keys() | {"GET /metrics", "GET /v1/executions/{id}/result"}
    assert asked <= {f"{each.method} {each.path}" for each in ROUTES}
    for step in TABLE["steps"]:
        if "request" in step:
            method, _, path = step["route"].partition(" ")
            pattern = re.sub(r"\\\{\w+\\\}", "[^/?]+", re.escape(path))
            assert re.fullmatch(rf"{method} {pattern}(\?.*)?", step["request"]), step["request"]


def test_requests_are_what_clients_of_the_reference_send() -> None:
    for step in TABLE["steps"]:
        assert ("body" in step) is (step.get("route") in REQUESTS), step
        if "body" in step:
            body = filled(step["body"], {**TABLE["ids"], "token": "k1:00"})
            msgspec.convert(body, REQUESTS[step["route"]])


def test_every_state_has_a_name_that_the_reference_knows() -> None:
    for theirs in msgspec.structs.fields(STATE_VECTOR):
        [ours] = [each for each in msgspec.structs.fields(StateVector) if each.name == theirs.name]
        assert {each.value for each in ours.type} <= set(get_args(theirs.type)), theirs.name


def test_ids_are_made_as_the_reference_makes_them() -> None:
    """By the lane, or by the flow, over 256 partitions."""
    bodies = [step["body"] for step in TABLE["steps"] if step.get("route") == "POST /v1/executions"]
    flows = {flow_partition(each, PARTITIONS) for name, each in TABLE["ids"].items() if name.startswith("flow")}
    for body in bodies:
        identity = ExecutionId(TABLE["ids"][body["execution_id"][1:]])
        assert identity.partition == body["partition_id"]
        assert identity.partition in {lane_partition(body["lane_id"], PARTITIONS), *flows}
