"""Giving an attempt up: classes, policies, backoffs, categories, and the end of retrying."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric import (
    ExecutionPolicy,
    ExponentialBackoff,
    FailureClass,
    FixedBackoff,
    Handle,
    HandleKind,
    RetryPolicy,
    RetryScheduled,
    TerminalFailed,
    TerminalOutcome,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent
from flowfabric.model.states import legal
from tests.contract.probe import (
    START_MS,
    ManualClock,
    Probe,
    claimed,
    fence_of,
    id_of,
    payload_of,
    policy,
    refused,
)

QUEUED = "runnable / unowned / eligible_now / pending_retry_attempt / waiting"
PAUSED = "runnable / unowned / not_eligible_until_time / pending_retry_attempt / delayed"
ENDED = "terminal / unowned / not_applicable / attempt_terminal / failed"
FINAL = (FailureClass.PERMANENT, FailureClass.TIMEOUT, FailureClass.CANCELLED)


def retry(max_retries: int = 3, **members: Any) -> dict[str, Any]:
    """An execution policy that only says how to retry."""
    return {"retry_policy": {"max_retries": max_retries, **members}}


def fixed(delay_ms: int) -> dict[str, Any]:
    return {"type": "fixed", "delay_ms": delay_ms}


async def _next(engine: Engine, clock: ManualClock, handle: Handle, lane: str = "lane-of-one") -> Handle:
    """Claim the retry, waiting for its time if need be."""
    row = (await engine.read_exec_core_fields(id_of(handle).partition, id_of(handle), ["delay_until_ms"])).values()
    for wake in row:
        if wake is not None:
            clock.now_ms = int(wake)
            await engine.promote_delayed(execution_id=id_of(handle))
    following = await engine.claim(lane, (), policy())
    assert following is not None
    return following


# -- without a policy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [FailureClass.TRANSIENT, FailureClass.INFRA_CRASH, "transient", "from the future"])
async def test_without_a_policy_a_failure_is_tried_again_at_once(engine: Engine, probe: Probe, how: Any) -> None:
    handle = await claimed(engine)
    assert await engine.fail(handle, "boom", how) == RetryScheduled(START_MS, 1)
    assert await probe.state(id_of(handle)) == QUEUED
    row = await probe.execution(id_of(handle))
    assert (row.attempt_index, row.retry_count, row.delay_until_ms, row.terminal_at_ms) == (1, 0, None, None)
    assert (row.failure_reason, row.last_failure_message, row.pending_retry_reason) == ("boom", "boom", "boom")
    assert (row.pending_previous_attempt_index, row.blocking_reason) == (0, "waiting_for_worker")
    (attempt,) = await probe.attempts(id_of(handle))
    assert (attempt.outcome, attempt.terminal_at_ms, attempt.lease_expires_at_ms) == ("retry", START_MS, None)
    assert (attempt.lease_epoch, attempt.worker_id, attempt.worker_instance_id) == (1, "w1", None)
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]
    assert await probe.completions(id_of(handle)) == []
    info = await engine.read_execution_info(id_of(handle))
    assert info is not None
    assert legal(info.state_vector)
    assert info.state_vector.is_consistent()


async def test_the_retry_is_the_next_attempt(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.fail(handle, "boom")
    following = await _next(engine, clock, handle)
    assert following.kind is HandleKind.FRESH
    assert (payload_of(following).attempt_index, payload_of(following).lease_epoch) == (1, 2)
    first, second = await probe.attempts(id_of(handle))
    assert (first.attempt_type, first.outcome, second.attempt_type, second.outcome) == (
        "initial",
        "retry",
        "retry",
        None,
    )
    assert await engine.read_total_attempt_count(id_of(handle)) == 2
    row = await probe.execution(id_of(handle))
    assert (row.pending_retry_reason or "", row.pending_previous_attempt_index) == ("", None)
    assert (row.last_failure_message, row.started_at_ms) == ("boom", START_MS)


async def test_without_a_policy_there_is_no_cap(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    for attempt in range(1, 8):
        assert await engine.fail(handle, "boom") == RetryScheduled(START_MS, attempt)
        handle = await _next(engine, clock, handle)
    assert (await probe.execution(id_of(handle))).retry_count == 0


@pytest.mark.parametrize("how", FINAL)
@pytest.mark.parametrize(
    "limits", [None, retry(9), retry(9, retryable_categories=["permanent", "timeout", "cancelled"])]
)
async def test_final_classes_end_whatever_the_policy_says(
    engine: Engine, probe: Probe, clock: ManualClock, how: FailureClass, limits: Any
) -> None:
    handle = await claimed(engine, policy=limits, namespace="acme")
    clock.advance(40)
    assert await engine.fail(handle, "broken", how) == TerminalFailed()
    assert await probe.state(id_of(handle)) == ENDED
    row = await probe.execution(id_of(handle))
    assert (row.terminal_at_ms, row.terminal_outcome, row.attempt_index) == (START_MS + 40, "failed", 0)
    assert (row.failure_reason, row.last_failure_message, row.result) == ("broken", "broken", None)
    (attempt,) = await probe.attempts(id_of(handle))
    assert (attempt.outcome, attempt.terminal_at_ms, attempt.lease_expires_at_ms) == ("failed", START_MS + 40, None)
    assert (attempt.lease_epoch, attempt.worker_instance_id) == (1, None)
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]
    (end,) = await probe.events(CompletionEvent, id_of(handle))
    assert (end.outcome, end.occurred_at_ms, end.namespace) == ("failed", START_MS + 40, "acme")
    info = await engine.read_execution_info(id_of(handle))
    assert info is not None
    assert legal(info.state_vector)
    assert info.state_vector.terminal_outcome is TerminalOutcome.FAILED


# -- with a policy ---------------------------------------------------------------------------------------------------


async def test_a_backoff_delays_the_retry(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, policy=retry(1, backoff=fixed(5_000)))
    clock.advance(100)
    assert await engine.fail(handle, "boom") == RetryScheduled(START_MS + 5_100, 1)
    assert await probe.state(id_of(handle)) == PAUSED
    row = await probe.execution(id_of(handle))
    assert (row.retry_count, row.delay_until_ms) == (1, START_MS + 5_100)
    assert row.blocking_reason == "waiting_for_retry_backoff"
    (attempt,) = await probe.attempts(id_of(handle))
    assert attempt.retry_at_ms == START_MS + 5_100
    assert await engine.claim("lane-of-one", (), policy()) is None
    clock.advance(5_000)
    await engine.promote_delayed(execution_id=id_of(handle))
    assert await probe.state(id_of(handle)) == QUEUED
    assert await engine.claim("lane-of-one", (), policy()) is not None


async def test_retries_are_counted_until_they_are_used_up(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, policy=retry(2, backoff=fixed(0)))
    for attempt in (1, 2):
        assert await engine.fail(handle, "boom") == RetryScheduled(START_MS, attempt)
        assert (await probe.execution(id_of(handle))).retry_count == attempt
        assert await probe.state(id_of(handle)) == QUEUED
        handle = await _next(engine, clock, handle)
    assert await engine.fail(handle, "boom again") == TerminalFailed()
    row = await probe.execution(id_of(handle))
    assert (row.retry_count, row.attempt_index, row.failure_reason) == (2, 2, "boom again")
    assert [attempt.outcome for attempt in await probe.attempts(id_of(handle))] == ["retry", "retry", "failed"]
    assert await probe.completions(id_of(handle)) == ["failed"]
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"] * 3


async def test_no_retries_means_none(engine: Engine) -> None:
    assert await engine.fail(await claimed(engine, policy=retry(0)), "boom") == TerminalFailed()


BACKOFFS: list[tuple[str, Any, list[int]]] = [
    ("default", None, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]),
    ("exponential", {"type": "exponential", "initial_delay_ms": 10, "max_delay_ms": 300, "multiplier": 3.0},
     [10, 30, 90, 270, 300, 300]),
    ("truncated", {"type": "exponential", "multiplier": 1.5}, [1_000, 1_500, 2_250, 3_375, 5_062]),
    ("shrinking", {"type": "exponential", "multiplier": 0.1}, [1_000, 100, 10, 1, 0, 0]),
    ("only a type", {"type": "exponential"}, [1_000, 2_000]),
    ("a cap below the start", {"type": "exponential", "initial_delay_ms": 900, "max_delay_ms": 5}, [5, 5]),
    ("overflowing", {"type": "exponential", "initial_delay_ms": 1, "multiplier": 1e308, "max_delay_ms": 7}, [1, 7, 7]),
    ("fixed", {"type": "fixed", "delay_ms": 42}, [42, 42, 42]),
    ("fixed by default", {"type": "fixed"}, [1_000, 1_000]),
    ("unknown", {"type": "fibonacci", "delay_ms": 5}, [1_000, 1_000]),
    ("without a type", {"delay_ms": 5}, [1_000, 1_000]),
    ("typed", ExponentialBackoff(5, 20, 4.0), [5, 20, 20]),
    ("typed and fixed", FixedBackoff(9), [9, 9]),
]  # fmt: skip


@pytest.mark.parametrize(("backoff", "delays"), [case[1:] for case in BACKOFFS], ids=[case[0] for case in BACKOFFS])
async def test_backoffs(engine: Engine, clock: ManualClock, backoff: Any, delays: list[int]) -> None:
    if isinstance(backoff, (FixedBackoff, ExponentialBackoff)):
        limits: Any = ExecutionPolicy(retry_policy=RetryPolicy(99, backoff))
    else:
        limits = retry(99, **({} if backoff is None else {"backoff": backoff}))
    handle = await claimed(engine, policy=limits)
    found = []
    for _ in delays:
        answer = await engine.fail(handle, "boom")
        assert isinstance(answer, RetryScheduled)
        found.append(answer.delay_until - clock.now_ms)
        handle = await _next(engine, clock, handle)
    assert found == delays


async def test_a_pause_stops_at_the_end_of_time(engine: Engine) -> None:
    handle = await claimed(engine, policy=retry(1, backoff=fixed(2**64 - 1)))
    assert await engine.fail(handle, "boom") == RetryScheduled(2**63 - 1, 1)


async def test_jitter_shortens_a_pause_to_half_at_most(engine: Engine) -> None:
    jittered = {"type": "exponential", "initial_delay_ms": 10_000, "multiplier": 1.0, "jitter": True}
    pauses = set()
    for number in range(20):
        handle = await claimed(engine, lane_id=f"lane-{number}", policy=retry(1, backoff=jittered))
        answer = await engine.fail(handle, "boom")
        assert isinstance(answer, RetryScheduled)
        pauses.add(answer.delay_until - START_MS)
    assert min(pauses) >= 5_000
    assert max(pauses) <= 10_000
    assert len(pauses) > 1


@pytest.mark.parametrize(
    ("categories", "how", "detail", "again"),
    [
        ([], FailureClass.TRANSIENT, None, True),
        (["transient"], FailureClass.TRANSIENT, None, True),
        (["transient"], FailureClass.INFRA_CRASH, None, False),
        (["infra_crash"], FailureClass.INFRA_CRASH, None, True),
        (["transient"], "from the future", None, True),
        (["from the future"], "from the future", None, False),
        (["rate_limit"], FailureClass.TRANSIENT, "rate_limit", True),
        (["rate_limit"], FailureClass.TRANSIENT, b"rate_limit", True),
        (["rate_limit"], FailureClass.TRANSIENT, None, False),
        (["transient"], FailureClass.TRANSIENT, "rate_limit", False),
        (["transient"], FailureClass.TRANSIENT, "", True),
        (["transient"], FailureClass.TRANSIENT, b"", True),
        (["transient"], FailureClass.TRANSIENT, b"\xff\xfe", True),
        (["żółw 🐢"], FailureClass.TRANSIENT, "żółw 🐢", True),
        (["rate_limit"], FailureClass.PERMANENT, "rate_limit", False),
    ],
)
async def test_categories(engine: Engine, categories: list[str], how: Any, detail: Any, again: bool) -> None:
    handle = await claimed(engine, policy=retry(5, retryable_categories=categories, backoff=fixed(0)))
    answer = await engine.fail(handle, "boom", how, detail)
    assert answer == (RetryScheduled(START_MS, 1) if again else TerminalFailed())


async def test_a_replay_may_retry_again(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine, policy=retry(1, backoff=fixed(0)))
    await engine.fail(handle, "boom")
    handle = await _next(engine, clock, handle)
    assert await engine.fail(handle, "boom") == TerminalFailed()
    await engine.replay_execution(execution_id=id_of(handle))
    handle = await _next(engine, clock, handle)
    assert payload_of(handle).attempt_index == 1
    assert await engine.fail(handle, "boom") == RetryScheduled(START_MS, 2)


# -- fail_execution --------------------------------------------------------------------------------------------------


def _named(handle: Handle) -> dict[str, Any]:
    return {
        "execution_id": id_of(handle),
        "attempt_index": payload_of(handle).attempt_index,
        "fence": fence_of(handle),
        "failure_reason": "boom",
    }


@pytest.mark.parametrize("limits", [None, retry(9)])
async def test_by_fence_an_empty_policy_means_no_retries(engine: Engine, probe: Probe, limits: Any) -> None:
    handle = await claimed(engine, policy=limits)
    assert await engine.fail_execution(**_named(handle), failure_category="transient") == TerminalFailed()
    assert await probe.state(id_of(handle)) == ENDED
    assert (await probe.execution(id_of(handle))).failure_reason == "boom"
    assert [attempt.outcome for attempt in await probe.attempts(id_of(handle))] == ["failed"]
    assert await probe.completions(id_of(handle)) == ["failed"]
    assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]


async def test_by_fence_the_given_policy_decides(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, policy=retry(0))
    given = json.dumps({"max_retries": 1, "backoff": fixed(2_000), "retryable_categories": ["flaky"]})
    answer = await engine.fail_execution(**_named(handle), failure_category="flaky", retry_policy_json=given)
    assert answer == RetryScheduled(START_MS + 2_000, 1)
    assert await probe.state(id_of(handle)) == PAUSED
    row = await probe.execution(id_of(handle))
    assert (row.attempt_index, row.retry_count, row.pending_retry_reason) == (1, 1, "boom")
    assert [attempt.outcome for attempt in await probe.attempts(id_of(handle))] == ["retry"]
    handle = await _next(engine, clock, handle)
    answer = await engine.fail_execution(**_named(handle), failure_category="flaky", retry_policy_json=given)
    assert answer == TerminalFailed()


async def test_by_fence_another_category_is_final(engine: Engine) -> None:
    handle = await claimed(engine)
    given = json.dumps({"retryable_categories": ["flaky"]})
    assert await engine.fail_execution(**_named(handle), retry_policy_json=given) == TerminalFailed()


async def test_by_fence_a_policy_has_defaults(engine: Engine) -> None:
    handle = await claimed(engine)
    answer = await engine.fail_execution(**_named(handle), retry_policy_json="{}")
    assert answer == RetryScheduled(START_MS + 1_000, 1)


@pytest.mark.parametrize("given", ["not json", "[]", "1", '"x"', "null", '{"max_retries":', "[" * 30_000])
async def test_by_fence_a_policy_is_a_json_object(engine: Engine, probe: Probe, given: str) -> None:
    handle = await claimed(engine)
    async with refused(probe, Validation, ValidationKind.INVALID_POLICY_JSON):
        await engine.fail_execution(**_named(handle), retry_policy_json=given)
