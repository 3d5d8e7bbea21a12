"""Figures by kind: how much was created, how much failed, how long it took."""

from __future__ import annotations

import pytest

from flowfabric.engine import Engine
from flowfabric.engine.reads import overview
from flowfabric.model.reads.overview import KindFigures, KindLine
from tests.contract.probe import START_MS, ManualClock, create, policy

HOUR = 3_600_000


async def run(engine: Engine, clock: ManualClock, kind: str, took_ms: int, *, fails: bool = False) -> None:
    await create(engine, execution_kind=kind, namespace="ns", lane_id=f"lane-{kind}")
    handle = await engine.claim(f"lane-{kind}", policy=policy())
    assert handle is not None
    clock.advance(took_ms)
    await (engine.fail(handle, "no", "permanent") if fails else engine.complete(handle, None))


async def test_figures(engine: Engine, clock: ManualClock) -> None:
    await run(engine, clock, "old", 5)
    clock.advance(HOUR)
    for took in (10, 20, 30, 40, 1_000):
        await run(engine, clock, "mail", took)
    await run(engine, clock, "charge", 7, fails=True)
    await create(engine, execution_kind="charge", namespace="ns", lane_id="other")
    gone = await create(engine, execution_kind="charge", namespace="ns", lane_id="other")
    await engine.cancel_execution(execution_id=gone)
    await create(engine, execution_kind="mail", namespace="foreign", lane_id="other")
    found = await engine.read_kinds(namespaces=["ns"], window_ms=HOUR)
    assert found.kinds == (
        KindLine("mail", 5, 5, 0, 0, 0, 30, 1_000),
        KindLine("charge", 3, 0, 1, 1, 1, 7, 7),
    )
    assert (found.since_ms, found.until_ms, found.complete) == (clock.now_ms - HOUR, clock.now_ms, True)
    everything = await engine.read_kinds(window_ms=2 * HOUR)
    assert {each.execution_kind: each.created for each in everything.kinds} == {"mail": 6, "charge": 3, "old": 1}
    assert await engine.read_kinds(namespaces=[], window_ms=HOUR) == KindFigures(
        clock.now_ms - HOUR, clock.now_ms, True, ()
    )


async def test_the_newest_are_looked_at(engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MAX_KINDS_SAMPLED", 3)
    for _ in range(5):
        await create(engine, execution_kind="k", namespace="ns")
        clock.advance(10)
    found = await engine.read_kinds(window_ms=HOUR)
    assert [each.created for each in found.kinds] == [3]
    assert (found.since_ms, found.complete) == (START_MS + 20, False)
