"""What other processes tell is followed as far as it is understood."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from flowfabric.engine import Engine


async def test_an_odd_notification_does_not_deafen_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await Engine.open("memory://") as engine:
        heard = asyncio.Event()

        async def topics() -> AsyncIterator[str | None]:
            for topic in ("stream:odd", "stream:", "events:?", "nonsense", "enqueue"):
                yield topic

        monkeypatch.setattr(engine.store, "heard", topics)
        monkeypatch.setattr(engine, "_hasten_requests", heard.set)
        engine._listen()
        await asyncio.wait_for(heard.wait(), 20)
