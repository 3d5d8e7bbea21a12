"""Answers that are sent in pieces say the same as whole ones."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.model.handles import Handle
from flowfabric.model.streams.frames import Frame
from flowfabric.server.http.pieces import PIECE_BYTES, STEP_BYTES, behind
from tests.server.listening import listening
from tests.server.making import at

SIZES = [1, 60_000, 30_000, 10, 65_000, *[5] * 150, 40_000, 40_000, *[20_000] * 10]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with await Engine.open("memory://") as opened:
        yield opened


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with listening(engine) as opened:
        yield opened


async def streaming(engine: Engine) -> Handle:
    await engine.create_execution(namespace="acme", lane_id="default")
    handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1", 3_600_000))
    assert handle is not None
    for number, size in enumerate(SIZES):
        await engine.append_frame(handle, Frame(b"%d" % (number % 10) * size))
    return handle


async def called(client: httpx.AsyncClient, *calls: tuple[str, dict[str, Any]], **more: Any) -> Any:
    body = {"calls": [{"op": name, "arguments": each} for name, each in calls], **more}
    answer = await client.post("/v1/remote/calls", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 64, 100, len(SIZES) - 1, len(SIZES), 1_000])
async def test_pages_of_frames(engine: Engine, client: httpx.AsyncClient, limit: int) -> None:
    handle = await streaming(engine)
    await engine.complete(handle, b"")
    identity = str(handle.execution_id)
    whole = await engine.read_stream(identity, 0, "start", "end", limit)
    expected = [(each.id, dict(each.fields)) for each in whole.frames]
    assert len(expected) == min(limit, len(SIZES))
    arguments = {"execution_id": identity, "attempt_index": 0, "count_limit": limit}
    path = at(identity, "attempts", "0", "stream")
    for asked in (f"{path}?limit={limit}", f"{path}/tail?limit={limit}", f"{path}/tail?limit={limit}&block_ms=100"):
        page = (await client.get(asked)).json()
        assert page["count"] == len(expected)
        assert (page["closed_at"], page["closed_reason"]) == (whole.closed_at, "attempt_success")
        for found, (frame, fields) in zip(page["frames"], expected, strict=True):
            assert (found["id"], {key: found["fields"][key] for key in fields}) == (frame, fields)
    for name in ("read_stream", "tail_stream"):
        for answers in ((name, arguments),), ((name, arguments), ("ping", {}), (name, arguments)):
            found = (await called(client, *answers))["answers"]
            for said in found[::2]:
                assert [(each["id"], each["fields"]) for each in said["ok"]["frames"]] == expected
                assert said["ok"]["closed_at"] == whole.closed_at


async def test_tails_that_wait_side_by_side_lose_nothing(engine: Engine, client: httpx.AsyncClient) -> None:
    handle = await streaming(engine)
    await engine.complete(handle, b"")
    place, seen = "0-0", 0
    arguments = {"execution_id": str(handle.execution_id), "attempt_index": 0, "block_ms": 100}
    while True:
        one, other = (await called(client, *[("tail_stream", {**arguments, "after": place})] * 2))["answers"]
        assert one == other
        if not one["ok"]["frames"]:
            assert one["ok"]["closed_at"] is not None
            break
        assert one["ok"]["closed_at"] is None, "whoever reads on until it is closed must not stop here"
        seen += len(one["ok"]["frames"])
        place = one["ok"]["frames"][-1]["id"]
    assert seen == len(SIZES)


@pytest.mark.parametrize("count_limit", [0, -1, 2**31 + 1])
@pytest.mark.parametrize("name", ["read_stream", "tail_stream"])
async def test_what_is_refused_is_refused_as_ever(client: httpx.AsyncClient, name: str, count_limit: int) -> None:
    call = (name, {"execution_id": "{fp:0}:" + "0" * 8 + "-0000-4000-8000-" + "0" * 12, "count_limit": count_limit})
    for calls in ([call], [call, ("ping", {})]):
        said = (await called(client, *calls))["answers"][0]
        assert "count_limit" in json.dumps(said["error"])


async def test_claims_and_contexts(engine: Engine, client: httpx.AsyncClient) -> None:
    sizes = [1, STEP_BYTES, 3 * STEP_BYTES, 0, PIECE_BYTES, *[10] * 20, STEP_BYTES - 1, 5]
    made = []
    for number, size in enumerate(sizes):
        payload = b"%d" % (number % 10) * size
        created = await engine.create_execution(
            namespace="acme", lane_id="wide", priority=100 - number, input_payload=payload
        )
        made.append((str(created.execution_id), payload))
    ids = [each for each, _ in made]
    spelled = [ids[0].upper().replace("{FP", "{fp"), *ids[1:], ids[1]]
    [said] = (await called(client, ("read_execution_contexts", {"execution_ids": spelled})))["answers"]
    assert {each: b64decode(found["input_payload"]) for each, found in said["ok"].items()} == dict(made)
    [none] = (await called(client, ("read_execution_contexts", {"execution_ids": []})))["answers"]
    assert none == {"ok": {}}
    who = {"worker_id": "w", "worker_instance_id": "w-1", "lanes": {"wide": 1}}
    first = (await client.post("/v1/remote/claim", json={**who, "limit": 4, "wait_ms": 1_000})).json()["work"]
    then = await called(client, ("ping", {}), ("now_ms", {}), claim={**who, "limit": 100})
    assert len(then["answers"]) == 2
    work = [(each["execution_id"], b64decode(each["input_payload"])) for each in first + then["work"]]
    assert work == made, "in the order they were claimed"
    assert (await client.post("/v1/remote/claim", json=who)).json() == {"work": []}
    assert await called(client) == {"answers": []}
    assert await called(client, claim=who) == {"answers": [], "work": []}


def test_the_place_behind_a_frame() -> None:
    assert behind("5-0") == "5-1"
    assert behind(f"5-{2**31 - 1}") == "6-0"
