"""Suspending: the gates in their order, what is written, and what comes back."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import (
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    Fresh,
    Handle,
    HandleKind,
    LeaseFence,
    NotFound,
    ResumePolicy,
    State,
    StateKind,
    SuspendArgs,
    Suspended,
    UsePending,
    Validation,
    ValidationKind,
)
from flowfabric.conditions import AllOf, ByName, Count, CountKind, OperatorOnly, Single, TimeoutOnly
from flowfabric.engine import Engine
from flowfabric.model.events import LeaseEvent
from flowfabric.model.handles import BackendTag, decode
from flowfabric.model.records.executions import SigningKey, Waitpoint
from tests.contract.probe import (
    RUNNING,
    START_MS,
    ManualClock,
    Probe,
    claimed,
    create,
    fence_of,
    forged,
    id_of,
    payload_of,
    policy,
    refused,
)
from tests.contract.seeding import alter, alter_attempt, seed
from tests.contract.suspending import (
    KEY,
    RESUMABLE,
    SUSPENDED,
    asking,
    closings,
    credentials,
    effect,
    suspended,
    suspension_of,
    waitpoint_of,
)

SOURCES, POINTS = CountKind.DISTINCT_SOURCES, CountKind.DISTINCT_WAITPOINTS


# ------------------------------------------------------------------------------------------------------ what is written


async def test_the_lease_is_given_up(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, namespace="tenant", tags={"cairn.instance_id": "tag"})
    eid, now = id_of(handle), clock.advance(5)
    outcome = await engine.suspend(handle, asking(timeout_at=now + 1_000, timeout_behavior="cancel"))
    assert isinstance(outcome, Suspended)
    assert await probe.stored(eid) == SUSPENDED
    row = await probe.execution(eid)
    assert (row.last_mutation_at_ms, row.attempt_index, row.signal_count) == (now, 0, 0)
    [attempt] = await probe.attempts(eid)
    assert (attempt.worker_id, attempt.worker_instance_id, attempt.lease_expires_at_ms) == (None, None, None)
    assert (attempt.outcome, attempt.lease_epoch, attempt.terminal_at_ms) == ("attempt_interrupted", 2, None)
    assert (await probe.events(LeaseEvent, eid))[-1] == LeaseEvent(
        eid.partition, eid.uuid_text, probe.lease_id(eid, 0, 1), "revoked", now, "tenant", "tag", "w1-i1", "backend"
    )
    assert await probe.completions(eid) == []
    stored = await suspension_of(probe, handle)
    assert stored is not None
    assert (stored.suspension_id, stored.suspended_at_ms, stored.attempt_index) == (
        outcome.details.suspension_id,
        now,
        0,
    )
    assert (stored.timeout_at_ms, stored.timeout_behavior, stored.reason_code) == (
        now + 1_000,
        "cancel",
        "waiting_for_signal",
    )
    assert (stored.closed_at_ms, stored.close_reason, stored.closer_signal_id) == (None, None, None)
    assert (json.loads(stored.member_map), json.loads(stored.satisfied_set)) == ({}, [])
    waitpoint = await waitpoint_of(probe, handle, outcome.details.waitpoint_id)
    assert (waitpoint.state, waitpoint.waitpoint_key, waitpoint.token) == (
        "active",
        KEY,
        outcome.details.waitpoint_token,
    )
    assert (waitpoint.created_at_ms, waitpoint.activated_at_ms, waitpoint.expires_at_ms) == (now, now, None)


async def test_the_handle_says_what_was_suspended(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    outcome = await engine.suspend(handle, asking())
    assert isinstance(outcome, Suspended)
    assert outcome.handle.kind is HandleKind.SUSPENDED
    told, before = payload_of(outcome.handle), payload_of(handle)
    assert (told.attempt_index, told.lease_epoch) == (0, 2)
    assert (told.execution_id, told.attempt_id, told.lease_id) == (
        before.execution_id,
        before.attempt_id,
        before.lease_id,
    )
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE):
        await engine.renew(outcome.handle)
    for call in (engine.renew(handle), engine.complete(handle), engine.create_waitpoint(handle, "k", 1)):
        async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
            await call


@pytest.mark.parametrize(
    ("reason", "blocking"),
    [
        ("waiting_for_signal", "waiting_for_signal"),
        ("waiting_for_approval", "waiting_for_approval"),
        ("waiting_for_callback", "waiting_for_callback"),
        ("waiting_for_tool_result", "waiting_for_tool_result"),
        ("waiting_for_operator_review", "paused_by_operator"),
        ("paused_by_policy", "paused_by_policy"),
        ("paused_by_budget", "waiting_for_budget"),
        ("step_boundary", "waiting_for_signal"),
        ("manual_pause", "paused_by_operator"),
        ("something of our own", "waiting_for_signal"),
    ],
)
async def test_reasons_say_what_blocks(engine: Engine, probe: Probe, reason: str, blocking: str) -> None:
    handle, _ = await suspended(engine, reason_code=reason)
    assert await probe.stored(id_of(handle)) == (*SUSPENDED[:5], blocking)
    assert await probe.vector(id_of(handle)) == (*SUSPENDED[:5], blocking, "none")
    [entry] = (await engine.list_suspended(id_of(handle).partition)).entries
    assert (entry.execution_id, entry.suspended_at_ms, entry.reason) == (id_of(handle), START_MS, reason)


async def test_several_waitpoints(engine: Engine, probe: Probe) -> None:
    ids = [str(uuid4()) for _ in range(3)]
    bindings = [Fresh(one, f"key {n}") for n, one in enumerate(ids)]
    condition = Count(2, POINTS, tuple(f"key {n}" for n in range(3)), ByName("yes"))
    handle = await claimed(engine)
    outcome = await engine.suspend(handle, SuspendArgs(waitpoints=bindings, resume_condition=condition))
    assert isinstance(outcome, Suspended)
    given = credentials(outcome.details)
    assert [(each.waitpoint_id, each.waitpoint_key) for each in given] == [
        (one, f"key {n}") for n, one in enumerate(ids)
    ]
    assert len({each.waitpoint_token for each in given}) == 3
    assert (await engine.describe_execution(id_of(handle))).current_waitpoint == ids[0]  # type: ignore[union-attr]
    fields = await engine.read_exec_core_fields(id_of(handle).partition, id_of(handle), ["current_waitpoint_id"])
    assert fields == {"current_waitpoint_id": ids[0]}
    page = await engine.list_pending_waitpoints(execution_id=id_of(handle))
    assert sorted(entry.waitpoint_id for entry in page.entries) == sorted(ids)
    assert {entry.required_signal_names for entry in page.entries} == {("yes",)}


async def test_ids_and_keys_are_made_up(engine: Engine) -> None:
    _, details = await suspended(engine, OperatorOnly(), waitpoints=[Fresh()])
    assert details.waitpoint_key == f"wpk:{details.waitpoint_id}"


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        (Single(KEY), ()),
        (Single(KEY, ByName("b")), ("b",)),
        (
            AllOf((Single(KEY, ByName("b")), Count(1, SOURCES, (KEY,), ByName("a")), Single(KEY, ByName("b")))),
            ("a", "b"),
        ),
        (OperatorOnly(), ("__operator_only__",)),
    ],
    ids=["wildcard", "one name", "several names", "operator"],
)
async def test_required_names(engine: Engine, condition: Any, names: tuple[str, ...]) -> None:
    handle, _ = await suspended(engine, condition)
    [entry] = (await engine.list_pending_waitpoints(execution_id=id_of(handle))).entries
    assert entry.required_signal_names == names


async def test_required_names_of_a_timeout(engine: Engine) -> None:
    handle, _ = await suspended(engine, TimeoutOnly(), timeout_at=START_MS + 5)
    [entry] = (await engine.list_pending_waitpoints(execution_id=id_of(handle))).entries
    assert entry.required_signal_names == ("__timeout_only__",)


async def test_the_policy_brings_a_timeout(engine: Engine, probe: Probe) -> None:
    own = {"suspension_policy": {"default_timeout_ms": 700, "timeout_behavior": "cancel"}}
    handle, _ = await suspended(engine, policy=own)
    stored = await suspension_of(probe, handle)
    assert stored is not None
    assert (stored.timeout_at_ms, stored.timeout_behavior) == (START_MS + 700, "cancel")
    handle, _ = await suspended(engine, policy=own, lane_id="other", timeout_at=START_MS + 5)
    stored = await suspension_of(probe, handle)
    assert stored is not None
    assert (stored.timeout_at_ms, stored.timeout_behavior) == (START_MS + 5, "fail")


async def test_the_same_attempt_goes_on(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle, details = await suspended(engine, lane_id="lane")
    eid = id_of(handle)
    assert await engine.claim("lane", (), policy()) is None
    assert await effect(engine, handle, details) == "resume_condition_satisfied"
    assert await probe.stored(eid) == RESUMABLE
    now = clock.advance(5)
    again = await engine.claim("lane", (), policy("w2-i1", "w2"))
    assert again is not None
    assert again.kind is HandleKind.RESUMED
    assert (payload_of(again).attempt_index, payload_of(again).lease_epoch) == (0, 3)
    assert await probe.stored(eid) == RUNNING
    [attempt] = await probe.attempts(eid)
    assert (attempt.outcome, attempt.started_at_ms) == (None, now)
    row = await probe.execution(eid)
    assert (row.started_at_ms, row.total_attempt_count) == (START_MS, 1)
    assert await probe.lease_events(eid) == ["acquired", "revoked", "acquired"]
    await engine.complete(again, b"done")
    assert await probe.completions(eid) == ["success"]


async def test_one_after_the_other(engine: Engine, probe: Probe) -> None:
    """An execution may suspend as often as it likes; the earlier waitpoints stay closed."""
    handle, details = await suspended(engine, lane_id="lane")
    for round_number in range(3):
        await effect(engine, handle, details)
        held = await engine.claim("lane", (), policy())
        assert held is not None
        assert [each.signal_name for each in await engine.observe_signals(held)] == ["go"]
        outcome = await engine.suspend(held, asking())
        assert isinstance(outcome, Suspended)
        details = outcome.details
        assert (await closings(probe, handle)).count(("closed", "resumed")) == round_number + 1
    assert (await probe.execution(id_of(handle))).signal_count == 3


# -------------------------------------------------------------------------------------------------------- what is asked

_TWO = ("a", "b")


@pytest.mark.parametrize(
    ("detail", "arguments"),
    [
        ("waitpoints_empty", {"waitpoints": []}),
        ("waitpoint_key_mismatch", {"condition": Single("other")}),
        (
            "additional_waitpoint_binding_empty_key at waitpoints[1]",
            {"waitpoints": [Fresh(waitpoint_key="a"), Fresh(waitpoint_key="")], "condition": Single("a")},
        ),
        (
            "additional_waitpoint_binding_must_be_fresh at waitpoints[1]",
            {"waitpoints": [Fresh(waitpoint_key="a"), UsePending(str(uuid4()))], "condition": Single("a")},
        ),
        ("referenced_waitpoint_key_missing_binding: c", {"keys": _TWO, "condition": Count(1, POINTS, (*_TWO, "c"))}),
        ("extra_binding_not_referenced_by_condition: b", {"keys": _TWO, "condition": Count(1, SOURCES, ("a",))}),
        ("extra_binding_not_referenced_by_condition: a", {"keys": _TWO, "condition": OperatorOnly()}),
        ("timeout_only_without_deadline", {"condition": TimeoutOnly()}),
        (
            "resume_condition: empty signal name (use Wildcard instead)",
            {"condition": AllOf((Single(KEY), Count(1, SOURCES, (KEY,), ByName(""))))},
        ),
        ("timeout_at_in_past", {"timeout_at": START_MS - 600_001}),
        ("allof_empty_members", {"condition": AllOf(())}),
        ("allof_empty_members", {"condition": AllOf((Single(KEY), AllOf(())))}),
        ("count_n_zero", {"condition": Count(0, SOURCES, (KEY,))}),
        ("count_waitpoints_empty", {"condition": Count(1, SOURCES, ())}),
        ("count_exceeds_waitpoint_set", {"keys": _TWO, "condition": Count(3, POINTS, _TWO)}),
        (
            "depth 5 exceeds cap 4 at members[0].members[1].members[0].members[0]",
            {"condition": AllOf((AllOf((Single(KEY), AllOf((AllOf((Single(KEY),)),)))),))},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_waited_for(engine: Engine, probe: Probe, detail: str, arguments: Any) -> None:
    handle = await claimed(engine)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, detail):
        await engine.suspend(handle, asking(**arguments))
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, detail):
        await engine.suspend_by_triple(id_of(handle), fence_of(handle), asking(**arguments))


async def test_the_limits_themselves_pass(engine: Engine) -> None:
    deepest = AllOf((AllOf((AllOf((Single(KEY),)),)),))
    await suspended(engine, deepest, timeout_at=START_MS - 600_000)
    await suspended(engine, Count(2, POINTS, _TWO), _TWO, lane_id="second")
    await suspended(engine, Count(9, SOURCES, (KEY,)), lane_id="third")


# ------------------------------------------------------------------------------------------------- gates in their order


async def test_a_suspended_handle_is_told_first_of_all(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    outcome = await engine.suspend(handle, asking())
    foreign = BackendTag.VALKEY if engine.store.tag is not BackendTag.VALKEY else BackendTag.SQLITE
    for told in (outcome.handle, Handle(foreign, HandleKind.SUSPENDED, b"")):
        async with refused(probe, State, StateKind.ALREADY_SUSPENDED):
            await engine.suspend(told, asking(waitpoints=[]))
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.suspend(handle, asking())


async def test_foreign_handles(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    other = BackendTag.SQLITE if handle.backend is BackendTag.VALKEY else BackendTag.VALKEY
    foreign = Handle(other, HandleKind.FRESH, handle.opaque)
    for call in (
        engine.suspend(foreign, asking()),
        engine.create_waitpoint(foreign, "k", 5),
        engine.observe_signals(foreign),
    ):
        async with refused(probe, Validation, ValidationKind.HANDLE_FROM_OTHER_BACKEND):
            await call


async def test_the_handle_gate(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=1_000)
    eid = id_of(handle)
    calls: list[Any] = [
        lambda each: engine.suspend(each, asking()),
        lambda each: engine.create_waitpoint(each, "k", 5),
        engine.observe_signals,
    ]
    for call in calls:
        async with refused(probe, NotFound, "attempt"):
            await call(forged(handle, attempt_index=7))
        async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
            await call(forged(handle, lease_epoch=7))
    await alter(engine, eid, ownership_state="lease_revoked")
    for call in calls:
        async with refused(probe, State, StateKind.LEASE_REVOKED):
            await call(handle)
    await alter(engine, eid, ownership_state="leased")
    clock.advance(1_000)
    for call in calls:
        async with refused(probe, State, StateKind.LEASE_EXPIRED):
            await call(handle)
    await alter(engine, eid, lifecycle_phase="runnable")
    for call in calls:
        async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE):
            await call(handle)


async def test_by_triple(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, ttl_ms=4_321)
    eid = id_of(handle)
    outcome = await engine.suspend_by_triple(eid, fence_of(handle), asking())
    assert isinstance(outcome, Suspended)
    told, before = decode(outcome.handle.opaque)[1], payload_of(handle)
    assert (told.lane_id, told.worker_instance_id, told.lease_ttl_ms) == (before.lane_id, "w1-i1", 4_321)
    assert (told.attempt_id, told.lease_id, told.lease_epoch) == (before.attempt_id, before.lease_id, 2)
    assert await probe.stored(eid) == SUSPENDED
    assert await effect(engine, handle, outcome.details) == "resume_condition_satisfied"


async def test_the_fence_gate(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=1_000)
    eid, fence = id_of(handle), fence_of(handle)
    for part in (LeaseFence(fence.lease_id), LeaseFence(None, 1), LeaseFence(None, 1, fence.attempt_id)):
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT, "partial_fence_triple"):
            await engine.suspend_by_triple(eid, part, asking())
    for none in (None, LeaseFence()):
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT, "fence_required"):
            await engine.suspend_by_triple(eid, none, asking())  # type: ignore[arg-type]
    async with refused(probe, NotFound, "execution"):
        await engine.suspend_by_triple(f"{{fp:0}}:{uuid4()}", fence, asking())
    async with refused(probe, State, StateKind.STALE_LEASE):
        await engine.suspend_by_triple(eid, fence_of(handle, lease_epoch=9), asking())
    clock.advance(1_000)
    async with refused(probe, State, StateKind.LEASE_EXPIRED):
        await engine.suspend_by_triple(eid, fence, asking())
    await engine.run_timer("lease_expiry")
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE):
        await engine.suspend_by_triple(eid, fence, asking())


async def test_an_open_suspension_stands_in_the_way(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    eid = id_of(handle)
    await engine.suspend(handle, asking())
    await alter(engine, eid, lifecycle_phase="active", ownership_state="leased")
    await alter_attempt(engine, eid, lease_epoch=1, lease_expires_at_ms=START_MS + 5)
    async with refused(probe, State, StateKind.ALREADY_SUSPENDED):
        await engine.suspend(handle, asking())


async def test_a_fresh_id_must_be_fresh(engine: Engine, probe: Probe) -> None:
    _, details = await suspended(engine)
    handle = await claimed(engine, lane_id="second")
    engine_partition = id_of(handle).partition
    known = str(uuid4())
    await seed(engine, Waitpoint(engine_partition, known, str(uuid4()), "closed", None, None))
    for taken in ([Fresh(known, KEY)], [Fresh(details.waitpoint_id, "a")] * 2):
        condition = Single(KEY) if len(taken) == 1 else Single("a")
        async with refused(probe, Conflict, ConflictKind.WAITPOINT_ALREADY_EXISTS):
            await engine.suspend(handle, SuspendArgs(waitpoints=taken, resume_condition=condition))


async def test_keys_without_a_current_one(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await seed(engine, SigningKey("old", b"o" * 32, 1, False))
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, "hmac_secret_not_initialized"):
        await engine.suspend(handle, asking())
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, "hmac_secret_not_initialized"):
        await engine.create_waitpoint(handle, "k", 1_000)


async def test_the_document_can_be_read_by_people(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(
        engine,
        Single(KEY, ByName("yes")),
        requested_by="operator",
        resume_policy=ResumePolicy(resume_delay_ms=5),
        continuation_metadata_pointer="s3://somewhere",
    )
    stored = await suspension_of(probe, handle)
    assert stored is not None
    document = json.loads(stored.condition)
    assert document["condition"] == {
        "type": "Single",
        "waitpoint_key": KEY,
        "matcher": {"type": "ByName", "name": "yes"},
    }
    assert document["requested_by"] == "operator"
    assert document["resume_policy"]["resume_delay_ms"] == 5
    assert document["continuation_metadata_pointer"] == "s3://somewhere"
    assert document["waitpoints"] == [details.waitpoint_id]


async def test_an_execution_that_never_waited_has_nothing_to_clean_up(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    assert (await probe.execution(id_of(handle))).signal_count is None
    fresh = await create(engine)
    assert (await probe.execution(fresh)).signal_count is None
