"""What every store says of itself, and how an engine ends."""

from __future__ import annotations

import pytest

from flowfabric import Unavailable
from flowfabric.engine import Engine
from flowfabric.model.operations.executions import NoOp
from tests.contract.probe import ManualClock, create


async def test_a_store_offers_every_operation(engine: Engine) -> None:
    found = await engine.capabilities()
    assert found.family == engine.backend_label
    assert found.version
    assert {"create_execution", "claim_many", "cancel_flow", "tail_stream", "run_due"} <= found.operations.keys()
    assert all(found.operations.values())


async def test_preparing_an_open_store_changes_nothing(engine: Engine) -> None:
    assert await engine.prepare() == NoOp()


async def test_ping_and_time(engine: Engine, clock: ManualClock) -> None:
    await engine.ping()
    assert await engine.server_time_ms() == clock.now_ms


async def test_draining_finishes_what_is_queued_and_refuses_the_rest(engine: Engine) -> None:
    await create(engine)
    engine.start_timers()
    assert await engine.shutdown_prepare(5_000) == 0
    with pytest.raises(Unavailable):
        await create(engine)
