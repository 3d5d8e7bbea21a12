"""Bodies that stop: whoever sends half of one and waits keeps nobody else from sending theirs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.http.limits import LARGEST_BODY, MOVED_BYTES, OPEN_PART, Body, BodyRoom
from flowfabric.server.http.problems import Refused
from flowfabric.server.http.request import MEDIUM
from flowfabric.server.serving import Running
from tests.server.attacks.world.asking import PATIENCE_S, eventually
from tests.server.making import creation

MIB = 1_048_576
HALF = 200_000
TOKEN = "token-of-this-server"


@contextlib.asynccontextmanager
async def running(config: ServerConfig) -> AsyncIterator[Running]:
    async with await Engine.open("memory://") as engine:
        server = create_app(engine, config)
        made = Running(server, config, server)
        task = asyncio.create_task(made.run())
        await made.started()
        try:
            yield made
        finally:
            made.stop()
            await task


class Upload:
    """A connection that sends a body in its own time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def begin(cls, port: int, path: str, size: int, token: str | None = None) -> Upload:
        upload = cls(*await asyncio.open_connection("127.0.0.1", port))
        lines = [
            f"POST {path} HTTP/1.1",
            "host: localhost",
            "content-type: application/json",
            f"content-length: {size}",
        ]
        if token is not None:
            lines.append(f"authorization: Bearer {token}")
        await upload.send("\r\n".join([*lines, "", ""]).encode())
        return upload

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return int((await self._reader.readline()).split()[1])


async def stalled(port: int, path: str, count: int, token: str | None = None) -> list[Upload]:
    """Uploads that have sent most of what they said they would, and send no more."""
    uploads = []
    for _ in range(count):
        uploads.append(await Upload.begin(port, path, MEDIUM, token))
        await uploads[-1].send(b" " * HALF)
    return uploads


async def whole(port: int, path: str, body: object, token: str | None = None) -> int:
    data = json.dumps(body).encode()
    upload = await Upload.begin(port, path, len(data), token)
    try:
        # In two pieces, so that it has to wait for the second.
        await upload.send(data[:10])
        await asyncio.sleep(0)
        await upload.send(data[10:])
        return await upload.status()
    finally:
        upload.writer.close()


async def test_nobody_without_a_credential_takes_the_room_of_others() -> None:
    config = ServerConfig(port=0, api_token=TOKEN, body_timeout_s=600)
    async with running(config) as server:
        bodies, few = server.server.bodies, server.server.open_bodies
        assert few.most == config.max_body_bytes // OPEN_PART
        uploads = await stalled(server.port, "/v1/answers", 2 * few.most // HALF)
        await eventually(lambda: few.held > few.most - HALF)
        assert (bodies.held, few.held <= few.most) == (0, True)
        assert await whole(server.port, "/v1/executions", creation(input_payload=[7] * 300_000), TOKEN) == 201
        # Others without one still get through: whoever has stopped makes way.
        assert await whole(server.port, "/v1/answers/look", {"link": "x" * 60_000}) != 503
        assert await uploads[0].status() == 503
        for each in uploads:
            each.writer.close()
        await eventually(lambda: few.held == 0)


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_who_has_stopped_makes_way_for_who_goes_on(token: str | None) -> None:
    config = ServerConfig(port=0, max_body_bytes=MIB, body_timeout_s=600, api_token=token)
    async with running(config) as server:
        bodies = server.server.bodies
        uploads = await stalled(server.port, "/v1/remote/calls", 12, token)
        await eventually(lambda: bodies.held > MIB - HALF)
        assert bodies.held <= MIB
        assert await whole(server.port, "/v1/executions", creation(input_payload=[7] * 200_000), token) == 201
        assert [await each.status() for each in uploads[:2]] == [503, 503]
        # The one that came last has been cut off by nobody, and goes on.
        await uploads[-1].send(b" " * (MEDIUM - HALF - 12) + b'{"calls":[]}')
        assert await uploads[-1].status() == 200
        for each in uploads:
            each.writer.close()
        await eventually(lambda: bodies.held == 0)


def arriving(room: BodyRoom, size: int, caller: str | None = None) -> Body:
    body = Body(room, caller)
    body.arriving(lambda: None)
    body.take(size)
    return body


def test_single_bytes_are_no_movement() -> None:
    room = BodyRoom(10 * MOVED_BYTES + 1_000)
    slow, quick = (arriving(room, 4 * MOVED_BYTES) for _ in range(2))
    for _ in range(100):
        slow.take(1)
    quick.take(MOVED_BYTES)
    late = arriving(room, MOVED_BYTES)
    assert not slow.was_cut
    late.take(MOVED_BYTES)
    assert (slow.was_cut, quick.was_cut, slow.held) == (True, False, 0)
    assert room.held == quick.held + late.held


def test_what_is_there_is_not_given_up() -> None:
    room = BodyRoom(10)
    there, coming = Body(room), arriving(room, 2)
    there.take(6)
    coming.arrived()
    with pytest.raises(Refused) as refused:
        arriving(room, 3)
    assert refused.value.answer.status == 503
    assert room.held == 8
    for each in (there, coming, there):
        each.close()
    assert room.held == 0


def test_no_caller_has_more_than_half() -> None:
    room = BodyRoom(4 * LARGEST_BODY)
    mine = [arriving(room, LARGEST_BODY, "me") for _ in range(2)]
    another = arriving(room, LARGEST_BODY, "me")
    assert [each.was_cut for each in mine] == [True, False], "one's own is given up first"
    for each in (mine[1], another):
        each.arrived()
    with pytest.raises(Refused):
        arriving(room, 1, "me")
    others = [arriving(room, LARGEST_BODY, "you") for _ in range(2)]
    for each in (*mine, another, *others):
        each.close()
    assert (room.held, room._shares) == (0, {})
    assert arriving(BodyRoom(LARGEST_BODY), LARGEST_BODY, "me").held == LARGEST_BODY, "the largest always fits"
