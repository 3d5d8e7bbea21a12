"""Samples for the charts are taken as long as the server runs."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.engine import Engine
from flowfabric.server.telemetry import samples


async def test_an_accident_does_not_end_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "STEP_MS", 1)
    closing = asyncio.Event()
    taken = 0

    async def latest() -> None:
        nonlocal taken
        taken += 1
        if taken == 1:
            raise RuntimeError("not an error of the engine")
        closing.set()

    async with await Engine.open("memory://") as engine:
        sampler = samples.Sampler(engine)
        monkeypatch.setattr(sampler, "latest", latest)
        await asyncio.wait_for(sampler.run(closing), 20)
    assert taken == 2
