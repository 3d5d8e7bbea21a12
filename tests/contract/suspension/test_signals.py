"""Delivering signals: the checks in their order, what is recorded, and what each signal does."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import (
    Accepted,
    Contention,
    ContentionKind,
    DeliverSignalResult,
    NotFound,
    ResumePolicy,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.conditions import AllOf, ByName, Count, CountKind, OperatorOnly, Single
from flowfabric.engine import Engine
from flowfabric.model.events import SignalEvent
from flowfabric.model.records.executions import Signal, Suspension, Waitpoint
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, id_of, policy, refused, unchanged
from tests.contract.seeding import alter, overwrite, remove, seed
from tests.contract.suspending import (
    KEY,
    RESUMABLE,
    SUSPENDED,
    addressed,
    closings,
    credentials,
    effect,
    signal,
    signals_of,
    suspended,
    suspension_of,
    used_keys,
    waitpoint_of,
)

SOURCES, POINTS, EACH = CountKind.DISTINCT_SOURCES, CountKind.DISTINCT_WAITPOINTS, CountKind.DISTINCT_SIGNALS
SATISFIED, APPENDED = "resume_condition_satisfied", "appended_to_waitpoint"
REPEATED, BUFFERED = "appended_to_waitpoint_duplicate", "buffered_for_pending_waitpoint"
MISSING = "{fp:0}:33333333-3333-4333-8333-333333333333"


LATER = (
    '{"type":"Sometime"}',
    '{"type":"Single","waitpoint_key":"wpk:a","unless":"no"}',
    '{"type":"AllOf","members":[{"type":"Single","waitpoint_key":"wpk:a","matcher":{"type":"ByName","name":"a","x":1}}]}',
)


@pytest.mark.parametrize("condition", LATER)
async def test_a_condition_that_cannot_be_read_refuses_signals(engine: Engine, probe: Probe, condition: str) -> None:
    """A later release has stored it, whose processes take the signal; here it would count for nothing."""
    handle, details = await suspended(engine, Single(KEY))
    eid = id_of(handle)
    before = (await suspension_of(probe, handle)).condition
    known = json.loads(before)
    later = json.dumps({**known, "condition": json.loads(condition)})
    await overwrite(engine, Suspension, (eid.partition, eid.uuid_text), condition=later)
    async with refused(probe, Validation, ValidationKind.CORRUPTION):
        await signal(engine, handle, details, "yes")
    await overwrite(engine, Suspension, (eid.partition, eid.uuid_text), condition=before)
    answer = await signal(engine, handle, details, "yes")
    assert isinstance(answer, Accepted)
    assert answer.effect == SATISFIED


# ----------------------------------------------------------------------------------------------------- what is recorded


async def test_everything_said_is_kept(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, details = await suspended(engine, OperatorOnly(), namespace="tenant", tags={"cairn.instance_id": "tag"})
    eid, name, now = id_of(handle), str(uuid4()), clock.advance(5)
    told = {
        "signal_category": "approval",
        "source_type": "user",
        "source_identity": "alice",
        "payload": b"\x00\xff",
        "payload_encoding": "raw",
        "correlation_id": "c",
        "idempotency_key": "i",
        "target_scope": "execution",
    }
    answer = await signal(engine, handle, details, "yes", signal_id=name, created_at=7, now=9, **told)
    assert answer == Accepted(name, "no_op")
    [row] = await signals_of(probe, handle)
    assert row == Signal(
        eid.partition, eid.uuid_text, name, 1, details.waitpoint_id, KEY, "yes", "approval", "user", "alice", "c", "i",
        b"\x00\xff", "raw", "execution", 7, now, "no_op",
    )  # fmt: skip
    waitpoint = await waitpoint_of(probe, handle, details.waitpoint_id)
    assert (waitpoint.signal_count, waitpoint.matched_signal_count, waitpoint.last_signal_at_ms) == (1, 0, now)
    assert await probe.events(SignalEvent, eid) == [
        SignalEvent(eid.partition, eid.uuid_text, name, details.waitpoint_id, "alice", now, "tenant", "tag", "no_op")
    ]
    assert (await probe.execution(eid)).signal_count == 1
    assert await probe.completions(eid) == []


async def test_a_satisfying_signal_resumes(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, details = await suspended(engine, Single(KEY, ByName("yes")), timeout_at=START_MS + 60_000)
    eid = id_of(handle)
    assert await effect(engine, handle, details, "no") == "no_op"
    assert await probe.stored(eid) == SUSPENDED
    now = clock.advance(5)
    answer = await signal(engine, handle, details, "yes", payload=b"{}")
    assert answer.effect == SATISFIED
    assert await probe.stored(eid) == RESUMABLE
    assert await probe.vector(eid) == (*RESUMABLE, "none")
    stored = await suspension_of(probe, handle)
    assert stored is not None
    assert (stored.closed_at_ms, stored.close_reason, stored.closer_signal_id) == (now, "resumed", answer.signal_id)
    assert json.loads(stored.satisfied_set) == [answer.signal_id]
    assert await closings(probe, handle) == [("closed", "resumed")]
    assert [event.effect for event in await probe.events(SignalEvent, eid)] == ["no_op", SATISFIED]
    assert await probe.completions(eid) == []
    assert (await engine.list_suspended(eid.partition)).entries == ()
    clock.advance(100_000)
    assert await engine.run_timer("suspension_timeout") == 0
    held = await engine.claim("lane-of-one", (), policy())
    assert held is not None
    [seen] = await engine.observe_signals(held)
    assert (seen.signal_id, seen.signal_name, seen.payload, seen.accepted_at) == (answer.signal_id, "yes", b"{}", now)


# -------------------------------------------------------------------------------------------------------------- effects


async def test_effects_of_a_count(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(engine, Count(2, SOURCES, (KEY,), ByName("ok")))
    assert await effect(engine, handle, details, "hm", source_identity="alice") == "signal_ignored_matcher_failed"
    assert await effect(engine, handle, details, "ok", source_identity="alice") == APPENDED
    assert await effect(engine, handle, details, "ok", source_identity="alice") == REPEATED
    assert await probe.stored(id_of(handle)) == SUSPENDED
    assert await effect(engine, handle, details, "ok", source_type="x", source_identity="alice") == SATISFIED
    waitpoint = await waitpoint_of(probe, handle, details.waitpoint_id)
    assert (waitpoint.signal_count, waitpoint.matched_signal_count) == (4, 3)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_all_of_two_waitpoints(engine: Engine, probe: Probe, order: tuple[int, int]) -> None:
    handle, details = await suspended(engine, AllOf((Single("a"), Single("b", ByName("ok")))), ("a", "b"))
    points = credentials(details)
    assert await effect(engine, handle, points[order[0]], "ok") == APPENDED
    assert await effect(engine, handle, points[order[0]], "ok") == REPEATED
    assert await probe.stored(id_of(handle)) == SUSPENDED
    assert await effect(engine, handle, points[order[1]], "ok") == SATISFIED
    assert await closings(probe, handle) == [("closed", "resumed")] * 2
    held = await engine.claim("lane-of-one", (), policy())
    assert held is not None
    assert [each.signal_name for each in await engine.observe_signals(held)] == ["ok"] * 3


async def test_any_of_three(engine: Engine, probe: Probe) -> None:
    keys = ("a", "b", "c")
    handle, details = await suspended(engine, Count(1, POINTS, keys), keys)
    assert await effect(engine, handle, credentials(details)[2]) == SATISFIED
    assert await closings(probe, handle) == [("closed", "resumed")] * 3
    async with refused(probe, State, StateKind.WAITPOINT_CLOSED):
        await signal(engine, handle, credentials(details)[0])


async def test_distinct_signals_and_waitpoints(engine: Engine) -> None:
    handle, details = await suspended(engine, Count(3, EACH, (KEY,)))
    assert [await effect(engine, handle, details) for _ in range(3)] == [APPENDED, APPENDED, SATISFIED]
    keys = ("a", "b")
    handle, details = await suspended(engine, Count(2, POINTS, keys), keys, lane_id="second")
    first, second = credentials(details)
    found = [await effect(engine, handle, point) for point in (first, first, second)]
    assert found == [APPENDED, REPEATED, SATISFIED]


async def test_a_waitpoint_outside_the_condition(engine: Engine, probe: Probe) -> None:
    """Nobody can suspend like this; rows written by hand may be like this."""
    handle, details = await suspended(engine, AllOf((Single("a"), Single("b"))), ("a", "b"))
    stored = await suspension_of(probe, handle)
    assert stored is not None
    document = json.loads(stored.condition)
    document["condition"]["members"] = [{"type": "Single", "waitpoint_key": "b", "matcher": {"type": "Wildcard"}}]
    await remove(engine, Suspension, stored.key)
    stored.condition = json.dumps(document)
    await seed(engine, stored)
    first, second = credentials(details)
    assert await effect(engine, handle, first) == "signal_ignored_not_in_condition"
    assert await effect(engine, handle, second) == SATISFIED


@pytest.mark.parametrize("condition", ["{}", '{"condition": {"type": "Later"}}', '{"condition": 5}', "[]"])
async def test_what_waits_for_an_unknown_condition_is_resumed_by_hand(
    engine: Engine, probe: Probe, condition: str
) -> None:
    handle, details = await suspended(engine)
    stored = await suspension_of(probe, handle)
    assert stored is not None
    await remove(engine, Suspension, stored.key)
    stored.condition = condition
    await seed(engine, stored)
    async with refused(probe, Validation, ValidationKind.CORRUPTION):
        await signal(engine, handle, details, "yes")
    assert await probe.stored(id_of(handle)) == SUSPENDED
    await engine.resume_execution(execution_id=id_of(handle))
    assert await closings(probe, handle) == [("closed", "resumed")]


# ------------------------------------------------------------------------------------------------ checks in their order


async def test_size_comes_first(engine: Engine, probe: Probe) -> None:
    async with refused(probe, Validation, ValidationKind.PAYLOAD_TOO_LARGE):
        await engine.deliver_signal(
            execution_id=MISSING, waitpoint_id=str(uuid4()), waitpoint_token="", signal_name="x", payload=b"x" * 65_537
        )
    async with refused(probe, NotFound, "execution"):
        await engine.deliver_signal(
            execution_id=MISSING, waitpoint_id=str(uuid4()), waitpoint_token="", signal_name="x", payload=b"x" * 65_536
        )


async def test_a_repeat_is_told_before_the_state(engine: Engine, probe: Probe) -> None:
    """A signal whose reply was lost is a duplicate, also when it closed the waitpoint or its execution has ended."""
    handle, details = await suspended(engine)
    name = str(uuid4())
    assert await effect(engine, handle, details, signal_id=name, idempotency_key="k") == SATISFIED

    async def repeats() -> None:
        for again in ({"signal_id": name}, {"idempotency_key": "k"}, {"signal_id": name, "dedup_ttl_ms": 0}):
            async with unchanged(probe):
                answer = await signal(engine, handle, details, **again)
                assert answer == DeliverSignalResult.Duplicate(name)

    await repeats()
    async with refused(probe, State, StateKind.WAITPOINT_CLOSED):
        await signal(engine, handle, details)
    await engine.cancel_execution(execution_id=id_of(handle))
    await repeats()
    async with refused(probe, State, StateKind.TARGET_NOT_SIGNALABLE):
        await signal(engine, handle, details)


async def test_the_token_comes_before_the_state(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(engine)
    await engine.cancel_execution(execution_id=id_of(handle))
    async with refused(probe, Validation, ValidationKind.INVALID_TOKEN, "invalid_token"):
        await signal(engine, handle, details, waitpoint_token="k1:" + "0" * 64)


async def test_idempotency_keys_run_out(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, details = await suspended(engine, OperatorOnly())
    first = await signal(engine, handle, details, idempotency_key="k", dedup_ttl_ms=1_000)
    clock.advance(999)
    assert await signal(engine, handle, details, idempotency_key="k") == DeliverSignalResult.Duplicate(first.signal_id)
    clock.advance(1)
    second = await signal(engine, handle, details, idempotency_key="k", dedup_ttl_ms=500)
    assert isinstance(second, Accepted)
    assert await signal(engine, handle, details, idempotency_key="k") == DeliverSignalResult.Duplicate(second.signal_id)
    [row] = await used_keys(probe, handle, details.waitpoint_id)
    assert (row.signal_id, row.expires_at_ms) == (second.signal_id, clock.now_ms + 500)
    clock.advance(499)
    await engine.run_timer("retention_trimmer")
    assert len(await used_keys(probe, handle, details.waitpoint_id)) == 1
    clock.advance(1)
    await engine.run_timer("retention_trimmer")
    assert await used_keys(probe, handle, details.waitpoint_id) == []


async def test_without_a_time_to_live_a_key_is_nothing(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(engine, OperatorOnly())
    for _ in range(2):
        assert await effect(engine, handle, details, idempotency_key="k", dedup_ttl_ms=0) == "no_op"
    assert await used_keys(probe, handle, details.waitpoint_id) == []


async def test_a_key_counts_for_one_waitpoint(engine: Engine) -> None:
    handle, details = await suspended(engine, AllOf((Single("a"), Single("b"))), ("a", "b"))
    first, second = credentials(details)
    assert await effect(engine, handle, first, idempotency_key="k") == APPENDED
    assert await effect(engine, handle, second, idempotency_key="k") == SATISFIED


async def test_a_signal_id_counts_for_one_execution(engine: Engine) -> None:
    name = str(uuid4())
    for lane in ("one", "two"):
        handle, details = await suspended(engine, lane_id=lane)
        assert await effect(engine, handle, details, signal_id=name) == SATISFIED


@pytest.mark.parametrize("where", ["call", "policy"])
async def test_the_limit_of_signals(engine: Engine, probe: Probe, where: str) -> None:
    own: dict[str, Any] = {"policy": {"max_signals_per_execution": 2}} if where == "policy" else {}
    limit: dict[str, Any] = {"max_signals_per_execution": 2} if where == "call" else {}
    handle, details = await suspended(engine, AllOf((Single("a"), OperatorOnly())), ("a",), **own)
    for _ in range(2):
        await effect(engine, handle, details, **limit)
    async with refused(probe, Validation, ValidationKind.SIGNAL_LIMIT_EXCEEDED):
        await signal(engine, handle, details, **limit)
    assert await effect(engine, handle, details, max_signals_per_execution=0) == REPEATED
    async with refused(probe, Validation, ValidationKind.SIGNAL_LIMIT_EXCEEDED):
        await signal(engine, handle, details, max_signals_per_execution=3)


async def test_the_limit_counts_all_waitpoints(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    for number in range(2):
        pending = await engine.create_waitpoint(handle, f"k{number}", 1_000)
        assert await effect(engine, handle, pending) == BUFFERED
    async with refused(probe, Validation, ValidationKind.SIGNAL_LIMIT_EXCEEDED):
        await signal(engine, handle, pending, max_signals_per_execution=2)


async def test_odd_rows(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(engine)
    stored = await suspension_of(probe, handle)
    assert stored is not None
    await remove(engine, Suspension, stored.key)
    async with refused(probe, Contention, ContentionKind.WAITPOINT_NOT_FOUND):
        await signal(engine, handle, details)
    stored.member_map = '{"__timeout__": {"status": "odd"}}'
    await seed(engine, stored)
    async with refused(probe, Validation, ValidationKind.CORRUPTION):
        await signal(engine, handle, details)
    row = await waitpoint_of(probe, handle, details.waitpoint_id)
    await remove(engine, Waitpoint, row.key)
    row.state = "odd"
    await seed(engine, row)
    async with refused(probe, State, StateKind.WAITPOINT_NOT_OPEN):
        await signal(engine, handle, details)


async def test_an_open_condition_of_an_execution_that_runs(engine: Engine, probe: Probe) -> None:
    """The condition closes; an execution that is not suspended is not resumed."""
    handle, details = await suspended(engine)
    await alter(engine, id_of(handle), lifecycle_phase="runnable", public_state="waiting")
    before = await probe.stored(id_of(handle))
    assert await effect(engine, handle, details) == SATISFIED
    assert await probe.stored(id_of(handle)) == before
    assert await closings(probe, handle) == [("closed", "resumed")]


# --------------------------------------------------------------------------------------------------------------- delays


@pytest.mark.parametrize(("given", "own", "delay"), [(70, 30, 70), (0, 30, 30), (70, None, 70)])
async def test_a_resume_may_be_delayed(
    engine: Engine, probe: Probe, clock: ManualClock, given: int, own: int | None, delay: int
) -> None:
    handle, details = await suspended(engine, resume_policy=ResumePolicy(resume_delay_ms=own))
    eid = id_of(handle)
    assert await effect(engine, handle, details, resume_delay_ms=given) == SATISFIED
    late = ("not_eligible_until_time", "attempt_interrupted", "delayed", "waiting_for_resume_delay")
    assert await probe.stored(eid) == ("runnable", "unowned", *late)
    assert (await probe.execution(eid)).delay_until_ms == START_MS + delay
    clock.advance(delay - 1)
    assert await engine.run_timer("delayed_promoter") == 0
    assert await engine.claim("lane-of-one", (), policy()) is None
    clock.advance(1)
    assert await engine.run_timer("delayed_promoter") == 1
    assert await probe.stored(eid) == RESUMABLE
    assert await engine.claim("lane-of-one", (), policy()) is not None


# ------------------------------------------------------------------------------------------------------------ operators


async def test_an_operator_needs_no_token(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(engine, Single(KEY, ByName("approve")))
    arguments: dict[str, Any] = {
        "execution_id": id_of(handle),
        "lane_id": "lane-of-one",
        "waitpoint_id": details.waitpoint_id,
        "signal_name": "approve",
        "idempotency_suffix": "1",
    }
    async with refused(probe, NotFound, "execution"):
        await engine.deliver_approval_signal(**{**arguments, "execution_id": MISSING})
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
        await engine.deliver_approval_signal(**{**arguments, "lane_id": "other"})
    assert caught.value.detail.startswith("lane_mismatch: ")
    async with refused(probe, NotFound, "waitpoint"):
        await engine.deliver_approval_signal(**{**arguments, "waitpoint_id": str(uuid4())})
    answer = await engine.deliver_approval_signal(**arguments)
    assert isinstance(answer, Accepted)
    assert answer.effect == SATISFIED
    [row] = await signals_of(probe, handle)
    assert (row.signal_category, row.source_type, row.source_identity) == ("approval", "operator", "")
    assert (row.target_scope, row.idempotency_key) == ("execution", "approval:approve:1")
    async with unchanged(probe):
        again = await engine.deliver_approval_signal(**arguments)
        assert again == DeliverSignalResult.Duplicate(answer.signal_id)
    async with refused(probe, State, StateKind.WAITPOINT_CLOSED):
        await engine.deliver_approval_signal(**{**arguments, "idempotency_suffix": "2"})


async def test_an_operator_and_a_waitpoint_of_another(engine: Engine, probe: Probe) -> None:
    handle, _ = await suspended(engine)
    where = id_of(handle).partition
    bare, foreign = str(uuid4()), str(uuid4())
    await seed(
        engine,
        Waitpoint(where, bare, id_of(handle).uuid_text, "active", None, None, waitpoint_key=KEY),
        Waitpoint(where, foreign, str(uuid4()), "active", None, None, waitpoint_key=KEY),
    )
    arguments: dict[str, Any] = {"execution_id": id_of(handle), "lane_id": "lane-of-one", "signal_name": "x"}
    async with refused(probe, Validation, ValidationKind.WAITPOINT_NOT_TOKEN_BOUND):
        await engine.deliver_approval_signal(**arguments, waitpoint_id=bare, idempotency_suffix="1")
    async with refused(probe, NotFound, "waitpoint"):
        await engine.deliver_approval_signal(**arguments, waitpoint_id=foreign, idempotency_suffix="1")


async def test_arguments_that_name_a_waitpoint(engine: Engine) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    assert addressed(handle, pending)["waitpoint_token"] == pending.hmac_token
    assert await engine.observe_signals(handle) == ()
