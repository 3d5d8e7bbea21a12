"""What happened is told in the order in which it happened: acts, signals, waitpoints, and the times of an execution."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import FailureClass, Suspended, Validation, ValidationKind
from flowfabric.conditions import AllOf, Single
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, LeaseEvent
from tests.contract.probe import (
    START_MS,
    ManualClock,
    Probe,
    claimed,
    create,
    id_of,
    policy,
    refused,
    shared_stores_only,
)
from tests.contract.reads.test_examine import examined
from tests.contract.suspending import asking, credentials, effect, signal, signals_of, suspended

#: How far two processes are apart.
BEHIND_MS = 50


async def acts(engine: Engine, size: int) -> list[str]:
    """Every act, newest first, page by page."""
    found: list[str] = []
    after = None
    while True:
        page = await engine.list_audit(after, size)
        found += [each.act for each in page.entries]
        after = page.next_cursor
        if after is None:
            return found


async def record(engine: Engine, act: str) -> None:
    await engine.record_act(who="ann", act=act, subject={}, status=200)


@pytest.fixture
async def behind(open_engine: Callable[..., Any], clock: ManualClock) -> Engine:
    """Another process on the same store, whose clock is behind."""
    found: Engine = await open_engine(clock=lambda: clock() - BEHIND_MS)
    return found


# -- the audit ---------------------------------------------------------------------------------------------------------


async def test_acts_of_one_millisecond(engine: Engine) -> None:
    for number in range(12):
        await record(engine, str(number))
    for size in (3, 5, 100):
        assert await acts(engine, size) == [str(number) for number in reversed(range(12))]
    assert (await engine.list_audit("no such act")).entries == ()


async def test_a_clock_that_is_set_back(engine: Engine, clock: ManualClock) -> None:
    for number in range(4):
        await record(engine, str(number))
        clock.advance(-1_000)
    assert await acts(engine, 2) == ["3", "2", "1", "0"]


@shared_stores_only
async def test_acts_at_two_servers(engine: Engine, behind: Engine) -> None:
    for number in range(8):
        await record(behind if number % 2 else engine, str(number))
    for one in (engine, behind):
        assert await acts(one, 3) == [str(number) for number in reversed(range(8))]
    numbers = [each.number for each in (await engine.list_audit()).entries]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) == 8


# -- times of one execution ----------------------------------------------------------------------------------------


@shared_stores_only
async def test_times_never_run_backwards_between_processes(engine: Engine, behind: Engine, probe: Probe) -> None:
    """Created by one process, claimed, suspended, resumed and ended by another whose clock is behind, by turns."""
    one, other = engine, behind
    for _ in range(2):
        eid = await create(one, lane_id="lane")
        handle = await other.claim("lane", (), policy())
        assert handle is not None
        outcome = await one.suspend(handle, asking())
        assert isinstance(outcome, Suspended)
        await signal(other, handle, outcome.details)
        again = await other.claim("lane", (), policy())
        assert again is not None
        await other.complete(again, b"")
        await other.replay_execution(execution_id=eid)
        last = await other.claim("lane", (), policy())
        assert last is not None
        await one.complete(last, b"")
        row, attempts = await probe.execution(eid), await probe.attempts(eid)
        assert row.started_at_ms is not None
        assert row.terminal_at_ms is not None
        assert row.created_at_ms <= row.started_at_ms <= row.terminal_at_ms
        assert all((each.started_at_ms or 0) <= (each.terminal_at_ms or 2**60) for each in attempts)
        events = [*await probe.events(LeaseEvent, eid), *await probe.events(CompletionEvent, eid)]
        for kind in (LeaseEvent, CompletionEvent):
            times = [each.occurred_at_ms for each in events if isinstance(each, kind)]
            assert times == sorted(times)
        one, other = other, one


async def test_a_clock_that_was_far_ahead_is_no_clue(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id="lane")
    clock.advance(-3_600_000)
    assert await engine.claim("lane", (), policy()) is not None
    assert (await probe.execution(eid)).started_at_ms == clock()


# -- signals and waitpoints --------------------------------------------------------------------------------------------


async def test_signals_after_a_replay(engine: Engine, probe: Probe) -> None:
    """Old ones first; each life may hear as many as the limit says."""
    handle = await claimed(engine, policy={"max_signals_per_execution": 3})
    names = []
    for life in range(3):
        pending = await engine.create_waitpoint(handle, "early", 60_000)
        for number in range(3):
            names.append(f"{life}.{number}")
            await effect(engine, handle, pending, names[-1])
        async with refused(probe, Validation, ValidationKind.SIGNAL_LIMIT_EXCEEDED):
            await signal(engine, handle, pending)
        await engine.complete(handle, b"")
        await engine.replay_execution(execution_id=id_of(handle))
        again = await engine.claim("lane-of-one", (), policy())
        assert again is not None
        handle = again
    assert [each.signal_name for each in (await engine.read_history(id_of(handle))).signals] == names
    assert [each.sequence for each in await signals_of(probe, handle)] == list(range(1, 10))
    assert (await probe.execution(id_of(handle))).signal_count is None


async def test_waitpoints_in_the_order_of_the_terms(engine: Engine) -> None:
    keys = tuple(random.Random(3).sample([f"k{number}" for number in range(8)], 8))
    handle, details = await suspended(engine, AllOf(tuple(map(Single, keys))), keys)
    history = await engine.read_history(id_of(handle))
    assert [each.waitpoint_key for each in history.waitpoints] == list(keys)
    assert history.suspension is not None
    assert history.suspension.waitpoints == tuple(each.waitpoint_id for each in credentials(details))
    for each in credentials(details)[:2]:
        await effect(engine, handle, each)
    heard = (await engine.read_history(id_of(handle))).signals
    assert [each.waitpoint_id for each in heard] == [each.waitpoint_id for each in credentials(details)[:2]]


# -- what an examination makes of it -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("limit", [1, 500])
async def test_ends_of_one_millisecond_and_times_that_callers_said(engine: Engine, limit: int) -> None:
    handle = await claimed(engine)
    eid = id_of(handle)
    await engine.fail(handle, "boom", FailureClass.PERMANENT)
    for now in (START_MS - 5_000, START_MS + 5_000, START_MS - 9_000):
        await engine.replay_execution(execution_id=eid, now=now)
        again = await engine.claim("lane-of-one", (), policy())
        assert again is not None
        await engine.complete(again, b"")
    assert (await examined(engine, limit))[1] == []
