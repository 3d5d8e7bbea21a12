"""Lanes as operators hold them."""

from __future__ import annotations

import pytest

from flowfabric import App, EngineError, seconds


async def test_a_paused_lane_waits(app: App) -> None:
    @app.task
    async def one() -> int:
        return 1

    lane = app.lane_control()
    await lane.pause("maintenance")
    async with app.worker():
        run = await one.start()
        assert "maintenance" in (await run.explain()).sentence
        await lane.resume()
        assert await run.result(seconds(30)) == 1
        await lane.close()
        with pytest.raises(EngineError):
            await one.start()
    info = await lane.info()
    assert info is not None
    assert info.state == "disabled"


async def test_keys_take_turns(app: App) -> None:
    order: list[str] = []

    @app.task
    async def work(tenant: str) -> None:
        order.append(tenant)

    await app.lane_control().share("tenant")
    for tenant in ("flood",) * 20 + ("small",) * 2:
        await work.using(tags={"tenant": tenant}).start(tenant)
    last = await work.using(tags={"tenant": "small"}).start("small")
    async with app.worker(concurrency=1):
        await last.result(seconds(30))
    assert order[:6].count("small") == 3, order
