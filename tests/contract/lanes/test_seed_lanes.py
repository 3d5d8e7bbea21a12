"""Lanes that are known before anything is created in them."""

from __future__ import annotations

from flowfabric.engine import Engine
from tests.contract.probe import Probe, unchanged


async def test_lanes_are_made_once(engine: Engine, probe: Probe) -> None:
    assert await engine.seed_lanes(["b", "a", "b"]) == 2
    assert (await engine.list_lanes()).lanes == ("a", "b")
    await engine.set_lane_state("a", "paused")
    async with unchanged(probe):
        assert await engine.seed_lanes(["a", "b"]) == 0
        assert await engine.seed_lanes([]) == 0
    assert await engine.seed_lanes(["a", "c"]) == 1
    found = await engine.describe_lane("a")
    assert found is not None
    assert found.state == "paused"
