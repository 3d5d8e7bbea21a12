"""Terminal calls repeated after a lost reply: the first answer again, no second write, no second event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import (
    Cancelled,
    Contention,
    ContentionKind,
    FailureClass,
    Handle,
    PublicState,
    RetryScheduled,
    TerminalFailed,
)
from flowfabric.engine import Engine
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, forged, id_of, policy, refused, unchanged
from tests.contract.seeding import alter_attempt

OTHER_ID = "00000000-0000-4000-8000-000000000000"
BACKOFF = {"retry_policy": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 7_000}}}


async def test_complete_again(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.complete(handle, b"first")
    async with unchanged(probe):
        assert await engine.complete(handle, b"first") is None
        clock.advance(60_000)
        assert await engine.complete(handle, b"another result") is None
    assert await engine.get_execution_result(id_of(handle)) == b"first"
    assert await probe.completions(id_of(handle)) == ["success"]
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]


async def test_complete_of_another_attempt_id_is_no_repeat(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.complete(handle)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE) as caught:
        await engine.complete(forged(handle, attempt_id=OTHER_ID))
    assert (caught.value.terminal_outcome, caught.value.lifecycle_phase) == ("success", "terminal")


async def test_an_attempt_id_that_is_not_stored_is_not_compared(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.complete(handle)
    await alter_attempt(engine, id_of(handle), attempt_id=None)
    async with unchanged(probe):
        await engine.complete(forged(handle, attempt_id=OTHER_ID))


async def test_complete_after_a_replay_is_stale(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.complete(handle)
    await engine.replay_execution(execution_id=id_of(handle))
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.complete(handle)


@pytest.mark.parametrize("how", list(FailureClass))
async def test_a_final_failure_again(engine: Engine, probe: Probe, clock: ManualClock, how: FailureClass) -> None:
    handle = await claimed(engine)
    assert await engine.fail(handle, "broken", FailureClass.PERMANENT) == TerminalFailed()
    clock.advance(60_000)
    async with unchanged(probe):
        assert await engine.fail(handle, "told differently", how) == TerminalFailed()
    assert (await probe.execution(id_of(handle))).failure_reason == "broken"
    assert await probe.completions(id_of(handle)) == ["failed"]


async def test_a_retry_again_before_the_next_claim(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, policy=BACKOFF)
    first = await engine.fail(handle, "boom")
    assert first == RetryScheduled(START_MS + 7_000, 1)
    async with unchanged(probe):
        assert await engine.fail(handle, "boom") == first
    clock.advance(7_000)
    await engine.promote_delayed(execution_id=id_of(handle))
    async with unchanged(probe):
        assert await engine.fail(handle, "boom", FailureClass.PERMANENT) == first
    assert (await probe.execution(id_of(handle))).retry_count == 1


async def test_a_retry_whose_time_is_unknown_says_zero(engine: Engine) -> None:
    handle = await claimed(engine)
    await engine.fail(handle, "boom")
    await alter_attempt(engine, id_of(handle), retry_at_ms=None)
    assert await engine.fail(handle, "boom") == RetryScheduled(0, 1)


async def test_a_retry_again_after_the_next_claim(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, lane_id="retried")
    assert await engine.fail(handle, "boom") == RetryScheduled(START_MS, 1)
    following = await engine.claim("retried", (), policy("w1-i2"))
    assert following is not None
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.fail(handle, "boom")
    await engine.complete(following)
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.fail(handle, "boom")


async def test_a_retry_again_after_the_execution_was_cancelled(engine: Engine, probe: Probe) -> None:
    """The next attempt was never claimed, so the first answer still describes what the call did."""
    handle = await claimed(engine)
    first = await engine.fail(handle, "boom")
    await engine.cancel_execution(execution_id=id_of(handle))
    async with unchanged(probe):
        assert await engine.fail(handle, "boom") == first


async def test_cancel_again(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    first = await engine.cancel(handle, "enough")
    assert first == Cancelled(id_of(handle), PublicState.CANCELLED)
    clock.advance(60_000)
    async with unchanged(probe):
        assert await engine.cancel(handle, "other words") == first
    assert (await probe.execution(id_of(handle))).cancellation_reason == "enough"
    assert await probe.completions(id_of(handle)) == ["cancelled"]


async def test_cancel_of_what_an_operator_cancelled_is_a_conflict(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.cancel_execution(execution_id=id_of(handle), reason="operator")
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.cancel(handle, "worker")


async def test_cancel_with_another_attempt_id_is_no_repeat(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.cancel(handle)
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.cancel(forged(handle, attempt_id=OTHER_ID))


@pytest.mark.parametrize("end", ["complete", "fail", "retry", "cancel"])
async def test_another_epoch_is_no_repeat(engine: Engine, probe: Probe, end: str) -> None:
    handle = await claimed(engine)
    calls: dict[str, Callable[[Handle], Awaitable[Any]]] = {
        "complete": engine.complete,
        "fail": lambda held: engine.fail(held, "no", FailureClass.PERMANENT),
        "retry": lambda held: engine.fail(held, "no"),
        "cancel": engine.cancel,
    }
    await calls[end](handle)
    for epoch in (0, 7):
        async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
            await calls[end](forged(handle, lease_epoch=epoch))


@pytest.mark.parametrize(
    ("end", "repeat", "kind", "outcome"),
    [
        ("complete", "fail", ContentionKind.EXECUTION_NOT_ACTIVE, "success"),
        ("complete", "cancel", ContentionKind.EXECUTION_NOT_ACTIVE, "success"),
        ("fail", "complete", ContentionKind.EXECUTION_NOT_ACTIVE, "failed"),
        ("fail", "cancel", ContentionKind.EXECUTION_NOT_ACTIVE, "failed"),
        ("cancel", "complete", ContentionKind.LEASE_CONFLICT, None),
        ("cancel", "fail", ContentionKind.LEASE_CONFLICT, None),
    ],
)
async def test_another_ending_is_never_a_repeat(
    engine: Engine, probe: Probe, end: str, repeat: str, kind: ContentionKind, outcome: str | None
) -> None:
    handle = await claimed(engine)
    calls = {
        "complete": lambda: engine.complete(handle, b""),
        "fail": lambda: engine.fail(handle, "no", FailureClass.PERMANENT),
        "cancel": lambda: engine.cancel(handle, "no"),
    }
    await calls[end]()
    async with refused(probe, Contention, kind) as caught:
        await calls[repeat]()
    assert caught.value.terminal_outcome == outcome


@pytest.mark.parametrize("repeat", ["complete", "fail", "cancel"])
async def test_a_lease_that_was_taken_away_has_nothing_to_repeat(engine: Engine, probe: Probe, repeat: str) -> None:
    handle = await claimed(engine)
    await engine.revoke_lease(execution_id=id_of(handle))
    arguments = {"complete": (), "fail": ("boom",), "cancel": ()}[repeat]
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await getattr(engine, repeat)(handle, *arguments)


async def test_steps_that_are_not_endings_do_not_repeat(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.delay(handle, START_MS + 1_000)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE) as caught:
        await engine.delay(handle, START_MS + 1_000)
    assert caught.value.lifecycle_phase == "runnable"
