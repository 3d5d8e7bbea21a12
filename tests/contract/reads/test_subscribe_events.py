"""What subscribers are told: every change, its events, and each of their fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import (
    CancelSource,
    CompletionOutcome,
    FailureClass,
    Handle,
    InstanceTagEvent,
    LeaseHistoryEvent,
    OperatorEvent,
    ScannerFilter,
    SignalDeliveryEffect,
    SignalDeliveryEvent,
)
from flowfabric.engine import Engine
from flowfabric.model import events as rows
from flowfabric.model.reads.subscriptions import cursor_at
from flowfabric.model.records.flows import Flow
from tests.contract import seeding
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, fence_of, id_of, policy
from tests.contract.subscribing import finished, names, now, outcome_name, publish, rest, take
from tests.contract.suspending import signal, suspended

TTL_MS = 1_000
TAGS = {"cairn.instance_id": "blue"}


async def _complete(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.complete(handle)


async def _complete_by_name(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.complete_execution(execution_id=id_of(handle), attempt_index=0, fence=fence_of(handle))


async def _fail_for_good(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.fail(handle, "boom", FailureClass.PERMANENT)


async def _retry(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.fail(handle, "boom")


async def _delay(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.delay(handle, START_MS + 5)


async def _wait_children(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.wait_children(handle)


async def _cancel(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.cancel(handle, "enough")


async def _cancel_by_operator(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.cancel_execution(execution_id=id_of(handle), reason="enough")


async def _cancel_by_cascade(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.cancel_execution(execution_id=id_of(handle), source=CancelSource.FLOW_CASCADE, lease_epoch=1)


async def _cancel_by_timeout(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.cancel_execution(execution_id=id_of(handle), source=CancelSource.SYSTEM_TIMEOUT, lease_epoch=1)


async def _cancel_by_holder(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.cancel_execution(execution_id=id_of(handle), source=CancelSource.LEASE_HOLDER, lease_epoch=1)


async def _revoke(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.revoke_lease(execution_id=id_of(handle), reason="maintenance")


async def _expire(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    clock.advance(TTL_MS)
    await engine.run_timer("lease_expiry")
    await engine.run_timer("lease_expiry")


async def _renew(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.renew(handle)


async def _progress(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.progress(handle, 5)


Act = Callable[[Engine, ManualClock, Handle], Awaitable[None]]

#: What is done to a running execution -> lease events after the claim (with who ended the lease), completion outcomes.
MATRIX: list[tuple[Act, list[str], list[str]]] = [
    (_complete, ["Revoked backend"], ["Success"]),
    (_complete_by_name, ["Revoked backend"], ["Success"]),
    (_fail_for_good, ["Revoked backend"], ["Failure"]),
    (_retry, ["Revoked backend"], []),
    (_delay, ["Revoked backend"], []),
    (_wait_children, ["Revoked backend"], []),
    (_cancel, ["Revoked backend"], ["Cancelled"]),
    (_cancel_by_holder, ["Revoked backend"], ["Cancelled"]),
    (_cancel_by_operator, ["Revoked operator"], ["Cancelled"]),
    (_cancel_by_cascade, ["Revoked reconciler"], ["Cancelled"]),
    (_cancel_by_timeout, ["Revoked reconciler"], ["Cancelled"]),
    (_revoke, ["Revoked operator"], []),
    (_expire, ["Expired w1-i1"], []),
    (_renew, ["Renewed w1-i1"], []),
    (_progress, [], []),
]


def _told(event: Any) -> str:
    match event:
        case LeaseHistoryEvent.Revoked():
            return f"Revoked {event.revoked_by}"
        case LeaseHistoryEvent.Expired():
            return f"Expired {event.prev_owner}"
        case LeaseHistoryEvent.Reclaimed():
            return f"Reclaimed {event.new_owner}"
    return f"{type(event).__name__} {event.worker_instance_id}"


@pytest.mark.parametrize(("act", "leases", "ends"), MATRIX, ids=[row[0].__name__ for row in MATRIX])
async def test_a_running_execution(
    engine: Engine, clock: ManualClock, act: Act, leases: list[str], ends: list[str]
) -> None:
    wanted = ScannerFilter("acme", ("cairn.instance_id", "blue"))
    begin = {name: await now(engine, name) for name in ("lease_history", "completion", "operator_event")}
    handle = await claimed(engine, ttl_ms=TTL_MS, namespace="acme", tags=TAGS)
    await act(engine, clock, handle)
    # Read through the filter: it sees everything only if the filter columns are always filled.
    found = (await engine.read_events("lease_history", begin["lease_history"], wanted)).events
    assert [_told(event) for event in found] == ["Acquired w1-i1", *leases]
    completions = (await engine.read_events("completion", begin["completion"], wanted)).events
    assert [outcome_name(event.outcome) for event in completions] == ends
    assert await rest(engine, "operator_event", begin["operator_event"]) == []
    assert {event.execution_id for event in (*found, *completions)} == {id_of(handle)}


async def test_every_field_of_a_lease_event(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    events = await engine.subscribe_lease_history()
    handle = await claimed(engine, ttl_ms=TTL_MS)
    eid, lease = id_of(handle), probe.lease_id(id_of(handle), 0, 1)
    clock.advance(10)
    await engine.renew(handle)
    clock.advance(TTL_MS)
    await engine.run_timer("lease_expiry")
    again = await engine.claim("lane-of-one", policy=policy("w2-i1"))
    assert again is not None
    await engine.revoke_lease(execution_id=eid, reason="maintenance")
    second = probe.lease_id(eid, 0, (await probe.attempts(eid))[0].lease_epoch - 1)
    late = START_MS + 10 + TTL_MS
    assert await take(events, 5) == [
        LeaseHistoryEvent.Acquired(cursor_at(1), eid, START_MS, lease, "w1-i1"),
        LeaseHistoryEvent.Renewed(cursor_at(2), eid, START_MS + 10, lease, "w1-i1"),
        LeaseHistoryEvent.Expired(cursor_at(3), eid, late, lease, "w1-i1"),
        LeaseHistoryEvent.Acquired(cursor_at(4), eid, late, second, "w2-i1"),
        LeaseHistoryEvent.Revoked(cursor_at(5), eid, late, second, "operator"),
    ]


async def test_a_reclaimed_lease(open_engine: Any, clock: ManualClock) -> None:
    engine = await open_engine(reclaim_grace_ms=60_000)
    events = await engine.subscribe_lease_history()
    handle = await claimed(engine, ttl_ms=TTL_MS)
    clock.advance(TTL_MS)
    await engine.run_timer("lease_expiry")
    who = {"execution_id": id_of(handle), "worker_id": "w2", "worker_instance_id": "w2-i1", "lane_id": "lane-of-one"}
    await engine.issue_reclaim_grant(**who)
    ids = {"lease_id": str(uuid4()), "attempt_id": str(uuid4())}
    await engine.reclaim_execution(**who, **ids, lease_ttl_ms=TTL_MS)
    found = await take(events, 3)
    assert [_told(event) for event in found] == ["Acquired w1-i1", "Expired w1-i1", "Reclaimed w2-i1"]
    assert found[2].new_lease_id != found[1].lease_id


async def test_a_deadline(engine: Engine, clock: ManualClock) -> None:
    leases, ends = await engine.subscribe_lease_history(), await engine.subscribe_completion()
    handle = await claimed(engine, execution_deadline_at=START_MS + 5)
    clock.advance(5)
    await engine.run_timer("execution_deadline")
    assert [_told(event) for event in await take(leases, 2)] == ["Acquired w1-i1", "Expired w1-i1"]
    [end] = await take(ends, 1)
    assert (end.execution_id, end.outcome, end.at) == (id_of(handle), CompletionOutcome.Other("expired"), START_MS + 5)


async def test_an_attempt_timeout(engine: Engine, clock: ManualClock) -> None:
    ends, leases = await engine.subscribe_completion(), await engine.subscribe_lease_history()
    await claimed(engine, policy={"timeout_policy": {"attempt_timeout_ms": 5}})
    clock.advance(5)
    await engine.run_timer("attempt_timeout")
    assert names(await take(leases, 2)) == ["Acquired", "Expired"]
    assert [outcome_name(event.outcome) for event in await take(ends, 1)] == ["expired"]


async def test_the_reclaim_cap_at_lease_expiry(engine: Engine, clock: ManualClock) -> None:
    ends, leases = await engine.subscribe_completion(), await engine.subscribe_lease_history()
    await claimed(engine, ttl_ms=TTL_MS, policy={"max_reclaim_count": 0})
    clock.advance(TTL_MS)
    await engine.run_timer("lease_expiry")
    assert names(await take(leases, 2)) == ["Acquired", "Expired"]
    assert [event.outcome for event in await take(ends, 1)] == [CompletionOutcome.Failure()]
    assert await rest(engine, "lease_history", leases.cursor) == []


async def test_cancelling_what_nobody_runs(engine: Engine) -> None:
    begin = await now(engine, "lease_history")
    ends = await engine.subscribe_completion()
    eid = await create(engine)
    await engine.cancel_execution(execution_id=eid)
    await engine.cancel_execution(execution_id=eid)
    [end] = await take(ends, 1)
    assert end.outcome == CompletionOutcome.Cancelled()
    assert await rest(engine, "completion", ends.cursor) == []
    assert await rest(engine, "lease_history", begin) == []


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        ("success", CompletionOutcome.Success()),
        ("failed", CompletionOutcome.Failure()),
        ("failure", CompletionOutcome.Failure()),
        ("cancelled", CompletionOutcome.Cancelled()),
        ("expired", CompletionOutcome.Other("expired")),
        ("skipped", CompletionOutcome.Other("skipped")),
        ("resumable", CompletionOutcome.Other("resumable")),
        ("of the future", CompletionOutcome.Other("of the future")),
    ],
)
async def test_outcomes(engine: Engine, stored: str, seen: Any) -> None:
    events = await engine.subscribe_completion()
    await publish(engine, rows.CompletionEvent(7, str(uuid4()), None, stored, None, None, 5, 5))
    assert [event.outcome for event in await take(events, 1)] == [seen]


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        ("satisfied", SignalDeliveryEffect.Satisfied()),
        ("resume_condition_satisfied", SignalDeliveryEffect.Satisfied()),
        ("buffered", SignalDeliveryEffect.Buffered()),
        ("buffered_for_pending_waitpoint", SignalDeliveryEffect.Buffered()),
        ("deduped", SignalDeliveryEffect.Deduped()),
        ("appended_to_waitpoint", SignalDeliveryEffect.Other("appended_to_waitpoint")),
        ("no_op", SignalDeliveryEffect.Other("no_op")),
    ],
)
async def test_signals(engine: Engine, stored: str, seen: Any) -> None:
    events = await engine.subscribe_signal_delivery()
    eid, signal, waitpoint = (str(uuid4()) for _ in range(3))
    row = rows.SignalEvent(7, eid, signal, waitpoint, "bank", 5, "acme", "blue", stored)
    await publish(engine, row)
    assert await take(events, 1) == [
        SignalDeliveryEvent(cursor_at(1), f"{{fp:7}}:{eid}", signal, waitpoint, "bank", seen, 5)  # type: ignore[arg-type]
    ]


async def test_a_signal_that_resumes(engine: Engine) -> None:
    wanted = ScannerFilter("acme", ("cairn.instance_id", "blue"))
    events = await engine.subscribe_signal_delivery(filter=wanted)
    leases = await engine.subscribe_lease_history(filter=wanted)
    handle, details = await suspended(engine, namespace="acme", tags=TAGS)
    sent = await signal(engine, handle, details, source_identity="bank")
    again = await engine.claim("lane-of-one", policy=policy("w2-i1"))
    assert again is not None
    assert await take(events, 1) == [
        SignalDeliveryEvent(
            cursor_at(1),
            id_of(handle),
            sent.signal_id,
            details.waitpoint_id,
            "bank",
            SignalDeliveryEffect.Satisfied(),
            START_MS,
        )
    ]
    assert [_told(event) for event in await take(leases, 3)] == ["Acquired w1-i1", "Revoked backend", "Acquired w2-i1"]


async def test_signals_by_filter(engine: Engine) -> None:
    events = await engine.subscribe_signal_delivery(filter=ScannerFilter("acme", ("cairn.instance_id", "blue")))
    for namespace, tag in ((None, None), ("acme", None), (None, "blue"), ("acme", "blue")):
        await publish(engine, rows.SignalEvent(7, str(uuid4()), "s", None, None, 5, namespace, tag, "satisfied"))
    [event] = await take(events, 1)
    assert event.cursor == cursor_at(4)
    assert (event.waitpoint_id, event.source_identity) == (None, None)


async def test_without_a_namespace_no_namespace_matches(engine: Engine) -> None:
    events = await engine.subscribe_completion(filter=ScannerFilter(namespace=""))
    for namespace in (None, ""):
        await publish(engine, rows.CompletionEvent(7, str(uuid4()), None, "success", namespace, None, 5, 5))
    [event] = await take(events, 1)
    assert event.cursor == cursor_at(2)


# -- operators and tags --------------------------------------------------------------------------------------------


async def test_operators(engine: Engine, clock: ManualClock) -> None:
    events = await engine.subscribe_operator_event(filter=ScannerFilter(namespace="acme"))
    waiting = await create(engine, lane_id="waiting", namespace="acme", priority=1)
    await engine.promote_submitted()
    await engine.change_priority(execution_id=waiting, new_priority=5)
    ended = await finished(engine, namespace="acme")
    await engine.replay_execution(execution_id=ended, now=START_MS + 7)
    changed, replayed = await take(events, 2)
    assert changed == OperatorEvent(
        cursor_at(1), waiting, None, None, "priority_changed", {"old_priority": 1, "new_priority": 5}, START_MS
    )
    assert replayed == OperatorEvent(cursor_at(2), ended, None, None, "replayed", {"branch": "normal"}, START_MS + 7)


async def test_a_flow(engine: Engine) -> None:
    events = await engine.subscribe_operator_event(filter=ScannerFilter(namespace="acme"))
    ends = await engine.subscribe_completion()
    flow = seeding.flow_of(engine)
    flow.raw_fields = '{"namespace": "acme"}'
    await seeding.seed(engine, flow)
    await engine.cancel_flow_header(flow_id=flow.flow_id, reason="enough", cancellation_policy="cancel_all")
    [event] = await take(events, 1)
    assert isinstance(flow, Flow)
    assert (event.execution_id, event.flow_id, event.lane_id) == (None, flow.flow_id, None)
    assert event.event_type == "flow_cancel_requested"
    assert event.details == {
        "flow_id": flow.flow_id,
        "cancellation_policy": "cancel_all",
        "reason": "enough",
        "member_count": 0,
    }
    assert await rest(engine, "completion", ends.cursor) == []


async def test_a_lane(engine: Engine) -> None:
    events = await engine.subscribe_operator_event()
    await engine.set_lane_state("billing", "paused", "closing time")
    [event] = await take(events, 1)
    assert (event.execution_id, event.flow_id, event.lane_id) == (None, None, "billing")
    assert (event.event_type, event.at) == ("lane_paused", START_MS)


async def test_a_lane_as_stored(engine: Engine) -> None:
    events = await engine.subscribe_operator_event()
    await publish(engine, rows.OperatorEvent(0, "billing", "lane_paused", '{"by": "me"}', 5, None, None))
    assert await take(events, 1) == [OperatorEvent(cursor_at(1), None, None, "billing", "lane_paused", {"by": "me"}, 5)]


async def test_tags(engine: Engine, clock: ManualClock) -> None:
    events = await engine.subscribe_instance_tags()
    eid = await create(engine, tags={"cairn.instance_id": "one", "a.b": "c"})
    await create(engine, tags={"a.b": "c"})
    clock.advance(1)
    await engine.set_execution_tag(eid, "a.b", "d")
    await engine.set_execution_tag(eid, "cairn.instance_id", "two")
    await engine.set_execution_tag(eid, "cairn.instance_id", "")
    await engine.set_execution_tag(eid, "cairn.instance_id", "")
    await engine.set_execution_tags(eid, {"a.b": "e", "cairn.instance_id": "three"})
    later = START_MS + 1
    assert await take(events, 4) == [
        InstanceTagEvent.Attached(cursor_at(1), eid, "one", START_MS),
        InstanceTagEvent.Attached(cursor_at(2), eid, "two", later),
        InstanceTagEvent.Cleared(cursor_at(3), eid, "two", later),
        InstanceTagEvent.Attached(cursor_at(4), eid, "three", later),
    ]


async def test_a_cleared_tag_fills_no_column(engine: Engine, probe: Probe) -> None:
    eid = await create(engine, lane_id="tagged", tags={"cairn.instance_id": "one"})
    await engine.set_execution_tag(eid, "cairn.instance_id", "")
    await engine.claim("tagged", policy=policy())
    [event] = await probe.events(rows.LeaseEvent, eid)
    assert event.instance_tag is None
    assert await engine.get_execution_tag(eid, "cairn.instance_id") == ""
    # An empty tag at creation is none.
    await create(engine, tags={"cairn.instance_id": ""})
    assert len(await probe.events(rows.InstanceTagEvent)) == 2
