"""A claim whose caller stops waiting, at whatever moment, leaves no lease behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.model.states import PublicState
from tests.contract.probe import create, policy


@pytest.mark.parametrize("max_wait", [None, 60_000])
@pytest.mark.parametrize("lanes", [1, 2])
async def test_its_work_goes_back(engine: Engine, max_wait: int | None, lanes: int) -> None:
    def claim() -> Any:
        wanted = policy(max_wait=max_wait)
        if lanes == 1:
            return engine.claim("lane", (), wanted)
        return engine.claim_from_lanes({"lane": 1, "empty": 1}, (), wanted)

    made = await create(engine, lane_id="lane")
    for turns in range(10):
        claiming = asyncio.create_task(claim())
        for _ in range(turns):
            await asyncio.sleep(0)
        if claiming.done():
            break
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        async with asyncio.timeout(20):
            while engine._batcher._taken or engine._going_on:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert await engine.read_execution_state(made) is not PublicState.ACTIVE, turns
