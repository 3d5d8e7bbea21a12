"""One look at the outboxes serves all who listen, and nobody looks once the last of them has left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.server.changes import Changes


def looking() -> int:
    return sum("_look" in repr(task) for task in asyncio.all_tasks())


async def test_those_who_come_together_share_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await Engine.open("memory://") as engine:
        read_events = engine.read_events

        async def slow(*arguments: Any) -> Any:
            await asyncio.sleep(0)
            return await read_events(*arguments)

        monkeypatch.setattr(engine, "read_events", slow)
        changes = Changes(engine)

        async def listen() -> None:
            async with changes.listening():
                assert looking() == 1

        for _ in range(2):
            await asyncio.gather(*(listen() for _ in range(5)))
            assert looking() == 0


async def test_who_could_not_begin_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: Any) -> Any:
        raise Transport("postgres", TransportKind.TRANSPORT, "gone")

    async with await Engine.open("memory://") as engine:
        monkeypatch.setattr(engine, "read_events", gone)
        changes = Changes(engine)
        with pytest.raises(Transport):
            async with changes.listening():
                raise AssertionError
        assert looking() == 0
