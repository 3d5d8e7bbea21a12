"""Server-sent events: frames and what happens, continued where they were left."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import httpx
import msgspec
import pytest

from flowfabric.engine import Engine
from flowfabric.model.streams.frames import Frame, Opening
from flowfabric.server import ServerConfig
from tests.server.listening import events, listening
from tests.server.making import at, claimed, created


async def test_frames_are_followed_until_the_attempt_ends(engine: Engine) -> None:
    async with listening(engine) as client:
        identity = await created(client)
        handle = await claimed(engine)
        await engine.append_frame(handle, Frame(b"one"))
        path = at(identity, "attempts", "0", "stream", "events")
        async with aclosing(events(client, path)) as following:
            first = await anext(following)
            assert (first.name, first.data["fields"]["payload"]) == ("frame", "one")
            await engine.append_frame(handle, Frame(b"two"))
            assert (await anext(following)).data["fields"]["payload"] == "two"
        await engine.append_frame(handle, Frame(b"three"))
        await engine.complete(handle)
        rest = [each async for each in events(client, path, last=first.identity)]
        assert [each.data["fields"]["payload"] for each in rest[:-1]] == ["two", "three"]
        assert (rest[-1].name, rest[-1].data["closed_reason"]) == ("closed", "attempt_success")


async def test_output_that_starts_over_is_an_event_of_its_own(engine: Engine) -> None:
    async with listening(engine) as client:
        identity = await created(client)
        for _ in range(2):
            handle = await claimed(engine)
            await engine.append_frames(handle, [Frame(b"a", opens=Opening.START), Frame(b"b")], 1)
            await engine.give_back(handle, "the worker stops")
        await engine.complete(await claimed(engine))
        path = at(identity, "attempts", "0", "stream", "events")
        found = [each async for each in events(client, path)]
        assert [each.name for each in found] == ["frame", "frame", "restart", "frame", "frame", "closed"]
        said = msgspec.json.decode(found[2].data["fields"]["payload"])
        assert said == {"attempt": 1, "step": None, "reason": "given_back"}
        rest = [each async for each in events(client, path, last=found[2].identity)]
        assert [each.name for each in rest] == ["frame", "frame", "closed"]


async def test_ends_are_told_and_nothing_is_lost_over_a_restart(tmp_path: Path) -> None:
    path = "/v1/events/completion?namespace=acme"
    ended: list[str] = []
    told: list[str] = []
    last: str | None = None
    for _ in range(3):
        async with (
            await Engine.open(f"sqlite:///{tmp_path}/ff.db", single_node=True) as engine,
            listening(engine) as client,
        ):
            async with aclosing(events(client, path, last)) as following:
                begin = await anext(following)
                last = last or begin.identity
                for _ in range(2):
                    ended.append(await created(client))
                    await engine.complete(await claimed(engine))
                await created(client, namespace="other")
                await engine.complete(await claimed(engine))
                event = await anext(following)
                assert (event.name, event.data["outcome"]) == ("completion", "Success")
                told.append(event.data["execution_id"])
                last = event.identity
            # Nobody listens to these.
            ended.append(await created(client))
            await engine.complete(await claimed(engine))
    async with (
        await Engine.open(f"sqlite:///{tmp_path}/ff.db", single_node=True) as engine,
        listening(engine) as client,
        aclosing(events(client, path, last)) as following,
    ):
        await anext(following)
        while len(told) < len(ended):
            told.append((await anext(following)).data["execution_id"])
    assert told == ended


async def test_what_cannot_be_followed(engine: Engine) -> None:
    async with listening(engine, ServerConfig(port=0, max_followers=1)) as client:
        assert (await client.get("/v1/events/weather")).status_code == 404
        assert (await client.get("/v1/events/completion?cursor=x")).status_code == 400
        identity = await created(client)
        path = at(identity, "attempts", "0", "stream", "events")
        assert (await client.get(f"{path}?after=start")).status_code == 400
        async with aclosing(events(client, "/v1/events/lease_history")) as following:
            assert (await anext(following)).name == "begin"
            assert (await client.get(path)).status_code == 429
            await claimed(engine)
            assert (await anext(following)).name == "Acquired"


async def test_followers_leave_and_shutdowns_end_them(engine: Engine) -> None:
    async with listening(engine) as client:
        following = events(client, "/v1/events/operator_event")
        await anext(following)
    # The server is gone, and did not wait for its follower.
    with pytest.raises((StopAsyncIteration, httpx.HTTPError)):
        await asyncio.wait_for(anext(following), 10)
    await following.aclose()  # type: ignore[attr-defined]
