"""An engine that was closed says so, on every store and in every method, to those who wait as well."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import Unavailable
from flowfabric.engine import Engine
from tests.contract.engine.test_bad_input import METHODS, call, make_world
from tests.contract.probe import claimed, id_of, policy, shared_stores_only

#: What ends an engine may be called again, nothing has to be stored when nothing is given, and some ask nobody.
HARMLESS = {"drain", "shutdown_prepare", "create_executions", "limited_to", "watch_credentials"}


async def test_every_method_is_unavailable(engine: Engine) -> None:
    world = await make_world(engine)
    await engine.close()
    await engine.close()
    for name in METHODS.keys() - HARMLESS:
        with pytest.raises(Unavailable) as caught:
            await call(engine, name, METHODS[name].good(world))
        assert (name, caught.value.op) == (name, "engine is closed")
    for closed in (engine, engine.limited_to(["default"])):
        with pytest.raises(Unavailable):
            await closed.create_executions([{}])


async def test_those_who_wait_are_told(engine: Engine) -> None:
    handle = await claimed(engine)
    waiting: list[Any] = [
        asyncio.create_task(engine.tail_stream(id_of(handle), block_ms=30_000)),
        asyncio.create_task(engine.claim("empty", (), policy(max_wait=30_000))),
    ]
    for _ in range(20):
        await asyncio.sleep(0.005)
    await engine.close()
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]


@shared_stores_only
async def test_what_was_under_way_is_finished(engine: Engine, open_engine: Any) -> None:
    calls = [asyncio.create_task(engine.create_execution(lane_id="under way")) for _ in range(50)]
    await asyncio.sleep(0)
    await engine.close()
    answers = await asyncio.gather(*calls)
    again = await open_engine()
    assert len(await again.scan_eligible_executions("under way")) == len(answers) == 50
