"""An execution that waits for years: what it has waited for is bounded, and it can end however much there is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric import Handle, Suspended
from flowfabric.conditions import Count, CountKind, Single
from flowfabric.core.invariants.waits import check_waits
from flowfabric.core.suspension import forgetting, pending_waitpoints
from flowfabric.engine import Engine
from flowfabric.model.errors import LimitReached
from flowfabric.model.records.executions import Signal, Waitpoint
from flowfabric.stores.keyed import load as keyed_load
from flowfabric.stores.postgres import load as postgres_load
from flowfabric.stores.sqlite import load as sqlite_load
from tests.contract.probe import ManualClock, Probe, claimed, id_of, policy, refused
from tests.contract.suspending import KEY, asking, credentials, signal, signals_of, suspension_of

KEPT, FEW = 4, 5
TIMED = {"timeout_behavior": "auto_resume_with_timeout_signal"}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few waitpoints are many, and whoever brings one looks."""
    monkeypatch.setattr(forgetting, "WAITPOINTS_KEPT", KEPT)
    monkeypatch.setattr("flowfabric.core.invariants.waits.WAITPOINTS_KEPT", KEPT)
    real = forgetting.forgotten
    for module in ("suspend", "pending_waitpoints"):
        name = f"flowfabric.core.suspension.{module}.forgotten"
        monkeypatch.setattr(name, lambda view, execution, _: real(view, execution, "0"))


@contextlib.contextmanager
def few_at_once() -> Iterator[None]:
    """No more than so many rows can be selected."""
    with pytest.MonkeyPatch.context() as patching:
        for module in (keyed_load, sqlite_load, postgres_load):
            patching.setattr(module, "SELECT_LIMIT", FEW)
        yield


async def waitpoints(probe: Probe, handle: Handle) -> list[Waitpoint]:
    eid = id_of(handle)
    return await probe.select(Waitpoint, partition=eid.partition, uuid=eid.uuid_text)


async def wait(engine: Engine, handle: Handle, *arguments: Any, **more: Any) -> Any:
    outcome = await engine.suspend(handle, asking(*arguments, **more))
    assert isinstance(outcome, Suspended)
    return outcome.details


async def again(engine: Engine) -> Handle:
    handle = await engine.claim("lane-of-one", (), policy())
    assert handle is not None
    return handle


async def sound(probe: Probe, handle: Handle) -> None:
    """What is kept fits together."""
    execution = await probe.execution(id_of(handle))
    [attempt] = await probe.attempts(id_of(handle))
    suspension = await suspension_of(probe, handle)
    found = await waitpoints(probe, handle), await signals_of(probe, handle)
    assert check_waits(execution, attempt, suspension, *found) == []


@pytest.mark.usefixtures("soon")
async def test_signals_go_with_their_waitpoints(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    quorum = Count(n=2, count_kind=CountKind.DISTINCT_WAITPOINTS, waitpoints=("a", "b"))
    for _ in range(6):
        details = await wait(engine, handle, quorum, ("a", "b"))
        for point in credentials(details):
            await signal(engine, handle, point, "yes", payload=b"{}")
        await sound(probe, handle)
        handle = await again(engine)
    kept = {each.waitpoint_id for each in await waitpoints(probe, handle)}
    assert len(kept) <= KEPT + 2
    assert {each.waitpoint_id for each in await signals_of(probe, handle)} == kept
    assert [each.waitpoint_id for each in credentials(details)] == sorted(kept)[-2:]
    assert [each.signal_name for each in await engine.observe_signals(handle)] == ["yes", "yes"]
    assert [each.sequence for each in await signals_of(probe, handle)][-1] == 12, "numbers go on"


@pytest.mark.usefixtures("soon")
async def test_so_do_those_that_timeouts_make_up(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    for _ in range(10):
        keys = ("a", "b")
        condition = Count(n=2, count_kind=CountKind.DISTINCT_WAITPOINTS, waitpoints=keys)
        details = await wait(engine, handle, condition, keys, timeout_at=clock.now_ms + 1_000, **TIMED)
        await signal(engine, handle, details, "half")
        clock.advance(1_000)
        assert await engine.run_timer("suspension_timeout") == 1
        await sound(probe, handle)
        handle = await again(engine)
    assert len(await waitpoints(probe, handle)) <= KEPT + 2
    assert len(await signals_of(probe, handle)) <= KEPT + 2, "the signal and the timeout of each"


@pytest.mark.usefixtures("soon")
async def test_what_is_not_seen_at_once_goes_later(
    engine: Engine, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "SIGNALS_AT_ONCE", 3)
    handle = await claimed(engine)
    for _ in range(12):
        details = await wait(engine, handle, Single(KEY))
        await signal(engine, handle, details, "yes")
        await sound(probe, handle)
        handle = await again(engine)
    assert len(await waitpoints(probe, handle)) <= KEPT + 2
    assert len(await signals_of(probe, handle)) <= KEPT + 2


@pytest.mark.usefixtures("soon")
async def test_waitpoints_that_nobody_uses_go_too(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=10**7)
    for _ in range(10):
        pending = await engine.create_waitpoint(handle, KEY, 1_000)
        await signal(engine, handle, pending)
        clock.advance(1_000)
        assert await engine.run_timer("pending_wp_expiry") == 1
        await sound(probe, handle)
    assert len(await waitpoints(probe, handle)) <= KEPT + 1
    assert len(await signals_of(probe, handle)) <= KEPT + 1


async def test_only_so_many_wait_for_a_suspension(
    engine: Engine, probe: Probe, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_waitpoints, "MAX_PENDING_WAITPOINTS", 2)
    handle = await claimed(engine, ttl_ms=10**7)
    await engine.create_waitpoint(handle, KEY, 1_000)
    await engine.create_waitpoint(handle, KEY, 2_000)
    async with refused(probe, LimitReached):
        await engine.create_waitpoint(handle, KEY, 1_000)
    clock.advance(1_000)
    assert await engine.run_timer("pending_wp_expiry") == 1
    await engine.create_waitpoint(handle, KEY, 1_000)


@pytest.mark.parametrize("way", ["complete", "cancel", "reclaim", "timeout"])
async def test_it_ends_however_many_there_are(engine: Engine, probe: Probe, clock: ManualClock, way: str) -> None:
    """Only those that are open count."""
    handle = await claimed(engine, ttl_ms=10_000, policy={"max_reclaim_count": 0} if way == "reclaim" else None)
    with few_at_once():
        for _ in range(2 * FEW):
            pending = await engine.create_waitpoint(handle, KEY, 10)
            await signal(engine, handle, pending)
            clock.advance(10)
            assert await engine.run_timer("pending_wp_expiry") == 1
        await engine.create_waitpoint(handle, "spare", 60_000)
        await end(engine, clock, handle, way)
    found = await waitpoints(probe, handle)
    assert len(found) > 2 * FEW
    assert {each.state for each in found} == {"closed", "expired"}
    assert (await probe.execution(id_of(handle))).terminal_at_ms is not None


async def end(engine: Engine, clock: ManualClock, handle: Handle, way: str) -> None:
    if way == "timeout":
        await wait(engine, handle, Single(KEY), timeout_at=clock.now_ms + 100)
        clock.advance(100)
        assert await engine.run_timer("suspension_timeout") == 1
    elif way == "complete":
        await engine.complete(handle)
    elif way == "cancel":
        await engine.cancel_execution(execution_id=id_of(handle))
    else:
        clock.advance(10_000)
        assert await engine.run_timer("lease_expiry") == 1


async def test_what_is_kept_goes_with_the_execution(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    details = await wait(engine, handle, Single(KEY))
    await signal(engine, handle, details)
    await engine.cancel_execution(execution_id=id_of(handle))
    clock.advance(86_400_000)
    await engine.run_timer("retention_trimmer")
    assert await waitpoints(probe, handle) == []
    assert await probe.select(Signal, partition=id_of(handle).partition) == []
