"""Starts that fall together share one execution: pushed back by each, bounded, the last payload counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import Debounced, State
from flowfabric.engine import Engine
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.starts import Burst
from tests.contract.probe import START_MS, ManualClock, Probe, policy, refused, shared_stores_only

WAIT, MOST = 5_000, 60_000


async def start(engine: Engine, payload: bytes, key: str = "k", **more: Any) -> Debounced:
    times = {name: more.pop(name) for name in ("wait_ms", "at_most_ms") if name in more}
    execution = {"execution_kind": "op", "lane_id": "lane", "input_payload": payload, **more}
    return await engine.debounce_execution(key, execution, **{"wait_ms": WAIT, "at_most_ms": MOST, **times})


async def runs(probe: Probe) -> list[Execution]:
    return [await probe.execution(each.execution_id) for each in await probe.select(Execution, lane_id="lane")]


async def test_a_burst(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    first = await start(engine, b"1", tags={"a": "1"}, priority=3)
    assert (first.delay_until_ms, first.first) == (START_MS + WAIT, True)
    clock.advance(4_000)
    second = await start(engine, b"2", tags={"a": "2"}, priority=9)
    assert second == Debounced(first.execution_id, clock.now_ms + WAIT, False)
    [row] = await runs(probe)
    assert (row.payload, row.delay_until_ms, row.priority, row.public_state) == (
        b"2", clock.now_ms + WAIT, 3, "delayed",
    )  # fmt: skip
    clock.advance(WAIT - 1)
    await engine.run_due()
    assert await engine.claim("lane", (), policy()) is None
    clock.advance(1)
    await engine.run_due()
    handle = await engine.claim("lane", (), policy())
    assert handle is not None
    assert (await engine.read_execution_context(handle.execution_id)).input_payload == b"2"


async def test_at_most(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """However many come, the first one's bound holds."""
    answers = []
    for n in range(15):
        answers.append(await start(engine, b"%d" % n))
        clock.advance(4_000)
        await engine.run_due()
    assert len({each.execution_id for each in answers}) == 1
    assert max(each.delay_until_ms for each in answers) == START_MS + MOST
    later = await start(engine, b"later")
    assert later.first
    assert [row.payload for row in sorted(await runs(probe), key=lambda row: row.created_at_ms)] == [b"14", b"later"]


async def test_a_wait_longer_than_the_bound(engine: Engine) -> None:
    assert (await start(engine, b"1", wait_ms=10_000, at_most_ms=2_000)).delay_until_ms == START_MS + 2_000


@pytest.mark.parametrize("how", ["promoted", "running", "cancelled", "ended", "retried", "purged"])
async def test_what_has_begun_is_left_alone(engine: Engine, probe: Probe, clock: ManualClock, how: str) -> None:
    retrying = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 9_000}}}
    first = await start(engine, b"1", policy=retrying if how == "retried" else None)
    clock.advance(WAIT)
    if how == "cancelled":
        await engine.cancel_execution(execution_id=first.execution_id)
    else:
        await engine.run_due()
    if how not in ("promoted", "cancelled"):
        handle = await engine.claim("lane", (), policy())
        assert handle is not None
        if how == "retried":
            await engine.fail(handle, "boom")
        elif how != "running":
            await engine.complete(handle)
    if how == "purged":
        assert await engine.trim_retention(retention_ms=0) == 1
        assert await probe.select(Burst, namespace="default", debounce_key="k") == []
    second = await start(engine, b"2")
    assert second.first
    assert second.execution_id != first.execution_id
    if how != "purged":
        assert (await probe.execution(first.execution_id)).payload == b"1"


async def test_keys_and_namespaces_are_apart(engine: Engine, probe: Probe) -> None:
    await start(engine, b"1")
    assert (await start(engine, b"2", key="other")).first
    assert (await start(engine, b"3", namespace="n")).first
    assert len(await runs(probe)) == 3


async def test_a_closed_lane(engine: Engine, probe: Probe) -> None:
    await engine.set_lane_state("lane", "draining")
    async with refused(probe, State):
        await start(engine, b"1")


async def test_fifty_at_once(engine: Engine, probe: Probe) -> None:
    answers = await asyncio.gather(*(start(engine, b"%d" % n) for n in range(50)))
    [row] = await runs(probe)
    assert {each.execution_id for each in answers} == {row.execution_id}
    assert sum(each.first for each in answers) == 1
    assert row.payload in [b"%d" % n for n in range(50)]
    await start(engine, b"last")
    assert [each.payload for each in await runs(probe)] == [b"last"]


@shared_stores_only
async def test_fifty_at_once_in_many_processes(engine: Engine, probe: Probe, open_engine: Callable[..., Any]) -> None:
    engines = [engine, *[await open_engine() for _ in range(4)]]
    done: list[bytes] = []

    async def one(n: int) -> Debounced:
        answer = await start(engines[n % 5], b"%d" % n)
        done.append(b"%d" % n)
        return answer

    answers = await asyncio.gather(*(one(n) for n in range(50)))
    [row] = await runs(probe)
    assert {each.execution_id for each in answers} == {row.execution_id}
    assert sum(each.first for each in answers) == 1
    for engine_now in engines:
        await start(engine_now, b"last of %d" % id(engine_now))
    assert [each.payload for each in await runs(probe)] == [b"last of %d" % id(engines[-1])]
