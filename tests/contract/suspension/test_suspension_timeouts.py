"""Going on without a signal: an operator resumes, or nobody signals in time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric import (
    HandleKind,
    NotFound,
    PublicState,
    Resumed,
    ScannerFilter,
    State,
    StateKind,
)
from flowfabric.conditions import AllOf, ByName, Count, CountKind, OperatorOnly, Single, TimeoutOnly
from flowfabric.engine import Engine
from flowfabric.model.records.executions import Suspension
from tests.contract.probe import (
    RUNNING,
    START_MS,
    ManualClock,
    Probe,
    claimed,
    create,
    id_of,
    payload_of,
    policy,
    refused,
    unchanged,
)
from tests.contract.seeding import alter, remove, seed
from tests.contract.suspending import (
    KEY,
    RESUMABLE,
    SUSPENDED,
    asking,
    closings,
    effect,
    signal,
    signals_of,
    suspended,
    suspension_of,
)

MISSING = "{fp:0}:33333333-3333-4333-8333-333333333333"
LEASE = "33333333-3333-4333-8333-333333333333"
TIMER = "suspension_timeout"


# ------------------------------------------------------------------------------------------------------------ operators

CONDITIONS = {
    "single": Single(KEY, ByName("never")),
    "all of": AllOf((Single(KEY), OperatorOnly())),
    "count": Count(9, CountKind.DISTINCT_SIGNALS, (KEY,)),
    "operator": OperatorOnly(),
    "timeout": TimeoutOnly(),
}


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
async def test_an_operator_resumes_whatever_it_waits_for(
    engine: Engine, probe: Probe, clock: ManualClock, condition: Any
) -> None:
    handle, details = await suspended(engine, condition, timeout_at=START_MS + 1_000)
    eid, now = id_of(handle), clock.advance(5)
    assert await engine.resume_execution(execution_id=eid, trigger_type="operator") == Resumed(PublicState.RESUMABLE)
    assert await probe.stored(eid) == RESUMABLE
    assert await closings(probe, handle) == [("closed", "resumed")]
    stored = await suspension_of(probe, handle)
    assert stored is not None
    assert (stored.closed_at_ms, stored.close_reason, stored.closer_signal_id) == (now, "resumed", None)
    assert await probe.completions(eid) == []
    async with refused(probe, State, StateKind.EXECUTION_NOT_SUSPENDED):
        await engine.resume_execution(execution_id=eid)
    async with refused(probe, State, StateKind.WAITPOINT_CLOSED):
        await signal(engine, handle, details)
    clock.advance(10_000)
    assert await engine.run_timer(TIMER) == 0
    held = await engine.claim("lane-of-one", (), policy())
    assert held is not None
    assert await engine.observe_signals(held) == ()


async def test_resuming_after_a_delay(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, _ = await suspended(engine)
    eid = id_of(handle)
    answer = await engine.resume_execution(execution_id=eid, trigger_type="auto_resume", resume_delay_ms=50)
    assert answer == Resumed(PublicState.DELAYED)
    row = await probe.execution(eid)
    assert (row.blocking_reason, row.delay_until_ms) == ("waiting_for_resume_delay", START_MS + 50)
    clock.advance(50)
    await engine.run_timer("delayed_promoter")
    assert await probe.stored(eid) == RESUMABLE


async def test_what_cannot_be_resumed(engine: Engine, probe: Probe) -> None:
    async with refused(probe, NotFound, "execution"):
        await engine.resume_execution(execution_id=MISSING)
    handle = await claimed(engine)
    async with refused(probe, State, StateKind.EXECUTION_NOT_SUSPENDED):
        await engine.resume_execution(execution_id=id_of(handle))


async def test_resuming_a_row_without_a_suspension(engine: Engine, probe: Probe) -> None:
    handle, _ = await suspended(engine)
    stored = await suspension_of(probe, handle)
    assert stored is not None
    await remove(engine, Suspension, stored.key)
    await engine.resume_execution(execution_id=id_of(handle))
    assert await probe.stored(id_of(handle)) == RESUMABLE
    assert await closings(probe, handle) == [("closed", "resumed")]


async def test_a_resumed_execution_is_claimed_by_name(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    own = {"timeout_policy": {"attempt_timeout_ms": 500}}
    handle, _ = await suspended(engine, policy=own)
    eid = id_of(handle)
    [attempt] = await probe.attempts(eid)
    assert attempt.attempt_timeout_at_ms is None
    await engine.resume_execution(execution_id=eid)
    now = clock.advance(5)
    answer = await engine.claim_resumed_execution(
        execution_id=eid, worker_id="w2", worker_instance_id="w2-i", lane_id="lane-of-one", lease_id=LEASE,
        lease_ttl_ms=1_000, remaining_attempt_timeout_ms=70,
    )  # fmt: skip
    assert (answer.attempt_index, answer.lease_epoch, answer.lease_id) == (0, 3, LEASE)
    assert answer.handle.kind is HandleKind.RESUMED
    assert payload_of(answer.handle).attempt_id == payload_of(handle).attempt_id
    assert await probe.stored(eid) == RUNNING
    [attempt] = await probe.attempts(eid)
    assert (attempt.attempt_timeout_at_ms, attempt.outcome) == (now + 70, None)
    assert (await probe.execution(eid)).started_at_ms == START_MS


# ------------------------------------------------------------------------------------------------------------- timeouts


@pytest.mark.parametrize(
    ("behavior", "outcome", "state", "attempt_outcome"),
    [
        ("fail", "failed", ("terminal", "unowned", "not_applicable", "attempt_terminal", "failed", None), "failed"),
        (
            "cancel",
            "cancelled",
            ("cancelled", "unowned", "not_applicable", "cancelled", "cancelled", None),
            "cancelled",
        ),
        (
            "expire",
            "expired",
            ("terminal", "unowned", "not_applicable", "attempt_terminal", "expired", None),
            "expired",
        ),
        ("odd", "failed", ("terminal", "unowned", "not_applicable", "attempt_terminal", "failed", None), "failed"),
        (None, "failed", ("terminal", "unowned", "not_applicable", "attempt_terminal", "failed", None), "failed"),
    ],
)
async def test_timeouts_that_end(
    engine: Engine,
    probe: Probe,
    clock: ManualClock,
    behavior: str | None,
    outcome: str,
    state: Any,
    attempt_outcome: str,
) -> None:
    known = behavior in ("fail", "cancel", "expire")
    chosen = {"timeout_behavior": behavior} if known else {}
    handle, details = await suspended(engine, timeout_at=START_MS + 1_000, **chosen)
    eid = id_of(handle)
    if not known:
        stored = await suspension_of(probe, handle)
        assert stored is not None
        await remove(engine, Suspension, stored.key)
        stored.timeout_behavior = behavior
        await seed(engine, stored)
    clock.advance(999)
    async with unchanged(probe):
        assert await engine.run_timer(TIMER) == 0
    now = clock.advance(1)
    assert await engine.run_timer(TIMER) == 1
    assert await probe.stored(eid) == state
    row = await probe.execution(eid)
    word = behavior if known else "fail"
    reason = row.cancellation_reason if behavior == "cancel" else row.failure_reason
    assert (reason, row.terminal_at_ms, row.terminal_outcome) == (f"suspension_timeout:{word}", now, outcome)
    [attempt] = await probe.attempts(eid)
    assert (attempt.outcome, attempt.lease_epoch, attempt.terminal_at_ms) == (attempt_outcome, 3, now)
    assert await suspension_of(probe, handle) is None
    assert await closings(probe, handle) == [("closed", f"timed_out_{word}")]
    assert await probe.completions(eid) == [outcome]
    assert await probe.lease_events(eid) == ["acquired", "revoked"]
    async with refused(probe, State, StateKind.TARGET_NOT_SIGNALABLE):
        await signal(engine, handle, details)
    async with unchanged(probe):
        assert await engine.run_timer(TIMER) == 0


async def test_a_timeout_that_wakes(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, details = await suspended(
        engine,
        AllOf((Single("a"), Single("b"))),
        ("a", "b"),
        timeout_at=START_MS + 1_000,
        timeout_behavior="auto_resume_with_timeout_signal",
    )
    eid = id_of(handle)
    await effect(engine, handle, details, "half", source_identity="alice")
    now = clock.advance(1_000)
    assert await engine.run_timer(TIMER) == 1
    assert await probe.stored(eid) == RESUMABLE
    assert await closings(probe, handle) == [("closed", "timed_out_auto_resume")] * 2
    stored = await suspension_of(probe, handle)
    assert stored is not None
    assert (stored.closed_at_ms, stored.close_reason) == (now, "timed_out_auto_resume")
    [entry] = json.loads(stored.member_map)["__timeout__"]
    assert {name: entry[name] for name in ("signal_id", "signal_name", "source_identity", "accepted_at")} == {
        "signal_id": stored.closer_signal_id,
        "signal_name": "timeout",
        "source_identity": "suspension_timeout",
        "accepted_at": now,
    }
    assert await probe.completions(eid) == []
    held = await engine.claim("lane-of-one", (), policy())
    assert held is not None
    first, second = await engine.observe_signals(held)
    assert (first.signal_name, first.source_identity) == ("half", "alice")
    assert (second.signal_name, second.signal_category, second.source_type) == ("timeout", "timeout", "system")
    assert (second.source_identity, second.payload, second.accepted_at) == ("suspension_timeout", None, now)
    assert [each.sequence for each in await signals_of(probe, handle)] == [1, 2]


async def test_a_timeout_that_asks_an_operator(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, details = await suspended(engine, timeout_at=START_MS + 1_000, timeout_behavior="escalate")
    eid = id_of(handle)
    clock.advance(1_000)
    assert await engine.run_timer(TIMER) == 1
    assert await probe.stored(eid) == (*SUSPENDED[:5], "paused_by_operator")
    stored = await suspension_of(probe, handle)
    assert stored is not None
    assert (stored.reason_code, stored.timeout_at_ms, stored.timeout_behavior) == (
        "waiting_for_operator_review",
        None,
        None,
    )
    assert str(START_MS + 1_000) in ((await engine.describe_execution(eid)).blocking_detail or "")  # type: ignore[union-attr]
    [entry] = (await engine.list_suspended(eid.partition)).entries
    assert entry.reason == "waiting_for_operator_review"
    clock.advance(100_000)
    async with unchanged(probe):
        assert await engine.run_timer(TIMER) == 0
    assert await effect(engine, handle, details) == "resume_condition_satisfied"
    assert await probe.stored(eid) == RESUMABLE


async def test_only_the_timeout_goes_on(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, details = await suspended(engine, TimeoutOnly(), timeout_at=START_MS + 5)
    assert await effect(engine, handle, details) == "no_op"
    clock.advance(5)
    assert (await engine.run_due())[TIMER] == 1
    assert (await probe.execution(id_of(handle))).public_state == "failed"


async def test_the_timer_looks_again(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """A row that is no longer suspended, or not yet due, is left alone."""
    handle, _ = await suspended(engine, timeout_at=START_MS + 1_000)
    clock.advance(1_000)
    await alter(engine, id_of(handle), lifecycle_phase="runnable")
    async with unchanged(probe):
        assert await engine.run_timer(TIMER) == 0


async def test_the_timer_takes_a_filter(open_engine: Any, clock: ManualClock) -> None:
    engine = await open_engine()
    ours, _ = await suspended(engine, namespace="ours", lane_id="a", timeout_at=START_MS)
    theirs, _ = await suspended(engine, namespace="theirs", lane_id="b", timeout_at=START_MS)
    engine._filter = ScannerFilter(namespace="ours")
    assert await engine.run_timer(TIMER) == 1
    states = [await engine.read_execution_state(id_of(each)) for each in (ours, theirs)]
    assert states == [PublicState.FAILED, PublicState.SUSPENDED]


async def test_the_loop_sleeps_until_a_suspension_times_out(open_engine: Any) -> None:
    """No interval has to pass: the loop knows when the next one is due, and a new one wakes it."""
    engine = await open_engine(clock=None)
    engine.start_timers(dict.fromkeys(("lease_expiry", TIMER), 3_600_000))
    for number in range(2):
        await create(engine, lane_id=f"lane {number}")
        # A timer may be looking at the row at this moment.
        handle = await engine.claim(f"lane {number}", (), policy(max_wait=20_000))
        assert handle is not None
        due = await engine.now_ms() + 150
        behavior = "auto_resume_with_timeout_signal"
        await engine.suspend(handle, asking(timeout_at=due, timeout_behavior=behavior))
        held = await engine.claim(f"lane {number}", (), policy(max_wait=20_000))
        assert held is not None
        assert await engine.now_ms() >= due
