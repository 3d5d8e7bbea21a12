"""Cancelling a flow: the header with its backlog, acknowledgements, and the three policies."""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple

import pytest

from flowfabric import (
    CancelFlowHeader,
    CancelFlowResult,
    Cancelled,
    Contention,
    ContentionKind,
    ExecutionId,
    Handle,
    NotFound,
    PublicState,
    State,
    StateKind,
    Timeout,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.engine.operations import operator
from flowfabric.model.events import CompletionEvent, LeaseEvent, OperatorEvent
from flowfabric.model.records.executions import Suspension, Waitpoint
from flowfabric.model.records.flows import CancelBacklog, CancelBacklogMember, Flow
from tests.contract.probe import START_MS, ManualClock, Probe, policy, refused, unchanged
from tests.contract.seeding import alter, bare_execution, flow_of, lane_of, member, member_id, seed

FLIPPED = "cancelled / unowned / cancelled / cancelled / cancelled"
NO_FLOW = "99999999-9999-4999-8999-999999999999"


class Family(NamedTuple):
    """A flow with a member in every state that matters."""

    flow: Flow
    submitted: ExecutionId
    granted: ExecutionId
    delayed: ExecutionId
    active: ExecutionId
    suspended: ExecutionId
    completed: ExecutionId
    cancelled: ExecutionId
    holder: Handle

    @property
    def pending(self) -> set[str]:
        return {self.submitted, self.granted, self.delayed}

    @property
    def live(self) -> set[str]:
        return self.pending | {self.active, self.suspended}

    @property
    def ended(self) -> set[str]:
        return {self.completed, self.cancelled}


async def _family(engine: Engine) -> Family:
    flow = flow_of(engine, namespace="acme", flow_kind="dag")
    await seed(engine, flow)
    ids = [await member(engine, flow) for _ in range(7)]
    _, granted, delayed, active, suspended, completed, cancelled = ids
    await engine.issue_claim_grant(
        execution_id=granted, lane_id=lane_of(granted), worker_id="w1", worker_instance_id="w1-i1"
    )
    handles = {
        each: await engine.claim(lane_of(each), (), policy()) for each in (delayed, active, suspended, completed)
    }
    await engine.delay(handles[delayed], START_MS + 60_000)  # type: ignore[arg-type]
    await engine.delay(handles[suspended], START_MS + 60_000)  # type: ignore[arg-type]
    waiting = {"lifecycle_phase": "suspended", "eligibility_state": "not_applicable", "public_state": "suspended"}
    await alter(engine, suspended, **waiting, delay_until_ms=None)
    where = (suspended.partition, suspended.uuid_text)
    await seed(
        engine,
        Suspension(*where, str(uuid.uuid4()), START_MS, None, "waiting_for_signal"),
        Waitpoint(where[0], str(uuid.uuid4()), where[1], "active", None, None),
    )
    await engine.complete(handles[completed], b"kept")  # type: ignore[arg-type]
    await engine.cancel_execution(execution_id=cancelled, reason="before")
    return Family(flow, *ids, handles[active])  # type: ignore[arg-type]


async def _flow(probe: Probe, flow: Flow) -> Flow:
    (found,) = await probe.select(Flow, partition=flow.partition, flow_id=flow.flow_id)
    assert isinstance(found, Flow)
    return found


async def _backlog(probe: Probe, flow: Flow) -> tuple[list[CancelBacklog], set[str]]:
    where = {"partition": flow.partition, "flow_id": flow.flow_id}
    members = await probe.select(CancelBacklogMember, **where)
    return await probe.select(CancelBacklog, **where), {each.execution_id for each in members}


async def _bystanders(probe: Probe, ids: set[str]) -> list[Any]:
    return [(await probe.execution(each), await probe.attempts(each)) for each in sorted(ids)]


async def _nothing_left_of_suspension(probe: Probe, family: Family, now: int) -> None:
    where = {"partition": family.suspended.partition, "uuid": family.suspended.uuid_text}
    assert await probe.select(Suspension, **where) == []
    (waitpoint,) = await probe.select(Waitpoint, **where)
    assert (waitpoint.state, waitpoint.closed_at_ms, waitpoint.close_reason) == ("closed", now, "cancelled")


# -- cancel_flow_header ----------------------------------------------------------------------------------------------


async def test_the_header_cancels_every_live_member(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    family = await _family(engine)
    untouched = await _bystanders(probe, family.ended)
    now = clock.advance(50)
    answer = await engine.cancel_flow_header(flow_id=family.flow.flow_id, reason="budget", cancellation_policy="any")
    assert answer == CancelFlowHeader.Cancelled("any", tuple(sorted(family.live)))
    flow = await _flow(probe, family.flow)
    assert (flow.public_flow_state, flow.terminal_at_ms, flow.graph_revision) == ("cancelled", now, 0)
    raw = json.loads(flow.raw_fields)
    assert (raw["cancellation_policy"], raw["cancel_reason"], raw["namespace"]) == ("any", "budget", "acme")
    header, members = await _backlog(probe, flow)
    assert header == [CancelBacklog(flow.partition, flow.flow_id, now, "", "budget", now + 30_000, "any", "pending")]
    assert members == family.live
    for each in family.live:
        assert await probe.state(each) == FLIPPED
        row = await probe.execution(each)
        assert (row.cancellation_reason, row.cancelled_by) == ("budget", "cancel_flow_header")
        assert (row.terminal_at_ms, row.delay_until_ms, row.terminal_outcome) == (now, None, "cancelled")
        assert await probe.grants(each) == []
    assert await _bystanders(probe, family.ended) == untouched
    await _nothing_left_of_suspension(probe, family, now)


async def test_the_header_fences_off_running_workers(engine: Engine, probe: Probe) -> None:
    family = await _family(engine)
    await engine.cancel_flow_header(flow_id=family.flow.flow_id, cancellation_policy="cancel_all")
    (attempt,) = await probe.attempts(family.active)
    assert (attempt.worker_id, attempt.worker_instance_id, attempt.lease_expires_at_ms) == ("w1", None, None)
    assert attempt.lease_epoch == 2
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.complete(family.holder)


async def test_the_header_is_one_operator_event_and_an_end_per_member(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    family = await _family(engine)
    leases = len(await probe.events(LeaseEvent))
    clock.advance(5)
    await engine.cancel_flow_header(flow_id=family.flow.flow_id, reason="why", cancellation_policy="p", now=321)
    details = {"flow_id": family.flow.flow_id, "cancellation_policy": "p", "reason": "why", "member_count": 5}
    assert await probe.operator_events(family.flow.flow_id) == [("flow_cancel_requested", details)]
    (event,) = await probe.events(OperatorEvent)
    assert (event.partition, event.subject, event.occurred_at_ms) == (family.flow.partition, family.flow.flow_id, 321)
    assert (event.namespace, event.instance_tag) == ("acme", None)
    assert len(await probe.events(LeaseEvent)) == leases
    for each in family.live:
        (end,) = await probe.events(CompletionEvent, each)
        assert (end.outcome, end.flow_id, end.occurred_at_ms) == ("cancelled", family.flow.flow_id, START_MS + 5)
        assert end.dispatched_at_ms is not None
    assert [await probe.completions(each) for each in (family.completed, family.cancelled)] == [
        ["success"],
        ["cancelled"],
    ]


async def test_the_header_again_tells_what_the_first_call_did(engine: Engine, probe: Probe) -> None:
    family = await _family(engine)
    await engine.cancel_flow_header(flow_id=family.flow.flow_id, reason="first", cancellation_policy="p1")
    async with unchanged(probe):
        again = await engine.cancel_flow_header(flow_id=family.flow.flow_id, reason="second", cancellation_policy="p2")
        assert again == CancelFlowHeader.AlreadyTerminal("p1", "first", tuple(sorted(family.live)))
        for each in family.live:
            answer = await engine.cancel_execution(execution_id=each)
            assert answer == Cancelled(ExecutionId(each), PublicState.CANCELLED)


@pytest.mark.parametrize("state", ["cancelled", "completed", "failed", "terminal"])
async def test_a_flow_that_has_ended(engine: Engine, probe: Probe, state: str) -> None:
    flow, empty = flow_of(engine, state), flow_of(engine, state, cancellation_policy="p", cancel_reason="r")
    await seed(engine, flow, empty)
    identity = await member(engine, flow)
    async with unchanged(probe):
        found = await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="x")
        assert found == CancelFlowHeader.AlreadyTerminal(None, None, (identity,))
        found = await engine.cancel_flow_header(flow_id=empty.flow_id, cancellation_policy="x")
        assert found == CancelFlowHeader.AlreadyTerminal("p", "r", ())


@pytest.mark.parametrize("state", ["open", "running", "blocked", "active"])
async def test_a_flow_without_members_still_has_a_backlog(engine: Engine, probe: Probe, state: str) -> None:
    flow = flow_of(engine, state)
    await seed(engine, flow)
    answer = await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="cancel_all")
    assert answer == CancelFlowHeader.Cancelled("cancel_all", ())
    header, members = await _backlog(probe, flow)
    assert (len(header), members) == (1, set())
    assert (await _flow(probe, flow)).public_flow_state == "cancelled"


async def test_what_is_there_already_stays(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = flow_of(engine)
    flow.terminal_at_ms = 77
    identity = member_id(engine, flow)
    row = bare_execution(engine, identity, flow_id=flow.flow_id, lifecycle_phase="pending", terminal_at_ms=88)
    earlier = CancelBacklog(flow.partition, flow.flow_id, 1, "who", "why", None, "old", "pending")
    known = CancelBacklogMember(flow.partition, flow.flow_id, str(identity))
    await seed(engine, flow, row, earlier, known)
    answer = await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="new")
    assert answer == CancelFlowHeader.Cancelled("new", (identity,))
    assert await _backlog(probe, flow) == ([earlier], {identity})
    assert (await _flow(probe, flow)).terminal_at_ms == 77
    assert (await probe.execution(identity)).terminal_at_ms == 88


async def test_flows_that_cannot_be_cancelled(engine: Engine, probe: Probe) -> None:
    broken = flow_of(engine)
    broken.raw_fields = "[]"
    await seed(engine, broken)
    for flow_id, family, kind in (
        (NO_FLOW, NotFound, "flow"),
        (broken.flow_id, Validation, ValidationKind.CORRUPTION),
    ):
        async with refused(probe, family, kind):
            await engine.cancel_flow_header(flow_id=flow_id, cancellation_policy="x")
        async with refused(probe, family, kind):
            await engine.cancel_flow(flow_id)


# -- ack_cancel_member -----------------------------------------------------------------------------------------------


async def test_the_backlog_is_acknowledged_member_by_member(engine: Engine, probe: Probe) -> None:
    family = await _family(engine)
    flow = family.flow
    await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="cancel_all")
    events = [len(await probe.events(kind)) for kind in (LeaseEvent, CompletionEvent, OperatorEvent)]
    left = set(family.live)
    for each in sorted(family.live):
        assert len((await _backlog(probe, flow))[0]) == 1
        assert await engine.ack_cancel_member(flow.flow_id, each) is None
        left.discard(each)
        assert (await _backlog(probe, flow))[1] == left
    assert await _backlog(probe, flow) == ([], set())
    async with unchanged(probe):
        await engine.ack_cancel_member(flow.flow_id, family.active)
    assert [len(await probe.events(kind)) for kind in (LeaseEvent, CompletionEvent, OperatorEvent)] == events


async def test_acknowledging_strangers_is_silent(engine: Engine, probe: Probe) -> None:
    family = await _family(engine)
    await engine.cancel_flow_header(flow_id=family.flow.flow_id, cancellation_policy="cancel_all")
    async with unchanged(probe):
        await engine.ack_cancel_member(family.flow.flow_id, family.completed)
        await engine.ack_cancel_member(family.flow.flow_id, f"{{fp:65535}}:{NO_FLOW}")
        await engine.ack_cancel_member(NO_FLOW, family.active)


async def test_the_execution_may_lie_in_another_partition_than_its_flow(engine: Engine, probe: Probe) -> None:
    flow = flow_of(engine)
    stranger = f"{{fp:{flow.partition + 1}}}:{NO_FLOW}"
    header = CancelBacklog(flow.partition, flow.flow_id, 1, "", "", None, "p", "pending")
    await seed(engine, header, CancelBacklogMember(flow.partition, flow.flow_id, stranger))
    await engine.ack_cancel_member(flow.flow_id, stranger)
    assert await _backlog(probe, flow) == ([], set())


# -- cancel_flow -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy_name", ["cancel_all", "cancel_pending", "flow_only"])
async def test_the_policy_names_the_members(engine: Engine, probe: Probe, clock: ManualClock, policy_name: str) -> None:
    family = await _family(engine)
    chosen = {"cancel_all": family.live, "cancel_pending": family.pending, "flow_only": set()}[policy_name]
    untouched = (family.live | family.ended) - chosen
    before, leases = await _bystanders(probe, untouched), len(await probe.events(LeaseEvent))
    now = clock.advance(50)
    answer = await engine.cancel_flow(family.flow.flow_id, policy_name)
    assert answer == CancelFlowResult.Cancelled(policy_name, tuple(sorted(chosen)))
    flow = await _flow(probe, family.flow)
    assert (flow.public_flow_state, flow.terminal_at_ms) == ("cancelled", now)
    raw = json.loads(flow.raw_fields)
    assert (raw["cancellation_policy"], raw["cancel_reason"]) == (policy_name, "flow_cancelled")
    assert await _bystanders(probe, untouched) == before
    for each in chosen:
        assert await probe.state(each) == FLIPPED
        row = await probe.execution(each)
        assert (row.cancellation_reason, row.cancelled_by, row.terminal_at_ms) == ("flow_cancelled", "cancel_flow", now)
        assert [attempt.outcome for attempt in await probe.attempts(each)] in ([], [None])
        assert await probe.grants(each) == []
        (end,) = await probe.events(CompletionEvent, each)
        assert (end.outcome, end.flow_id, end.dispatched_at_ms is not None) == ("cancelled", flow.flow_id, True)
    assert await probe.events(OperatorEvent) == []
    assert await _backlog(probe, flow) == ([], set())
    assert len(await probe.events(LeaseEvent)) == leases + (policy_name == "cancel_all")
    if policy_name == "cancel_all":
        await _nothing_left_of_suspension(probe, family, now)
    else:
        await engine.complete(family.holder, b"went on")


async def test_a_leased_member_loses_its_lease_with_its_flow(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    family = await _family(engine)
    clock.advance(50)
    await engine.cancel_flow(family.flow.flow_id)
    (attempt,) = await probe.attempts(family.active)
    assert (attempt.worker_instance_id, attempt.lease_expires_at_ms, attempt.lease_epoch) == (None, None, 2)
    assert await probe.lease_events(family.active) == ["acquired", "revoked"]
    event: LeaseEvent = (await probe.events(LeaseEvent, family.active))[-1]
    assert (event.lease_id, event.occurred_at_ms) == (probe.lease_id(family.active, 0, 1), START_MS + 50)
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.complete(family.holder)


async def test_cancelling_a_cancelled_flow_again(engine: Engine, probe: Probe) -> None:
    family = await _family(engine)
    await engine.cancel_flow(family.flow.flow_id, "cancel_pending")
    async with unchanged(probe):
        again = await engine.cancel_flow(family.flow.flow_id, "cancel_all")
    assert again.cancellation_policy == "cancel_pending"


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_a_flow_that_ended_otherwise_is_not_cancelled(engine: Engine, probe: Probe, state: str) -> None:
    flow = flow_of(engine, state)
    await seed(engine, flow)
    await member(engine, flow)
    async with refused(probe, State, StateKind.FLOW_ALREADY_TERMINAL):
        await engine.cancel_flow(flow.flow_id)


@pytest.mark.parametrize("phase", ["pending", "eligible", "blocked"])
async def test_old_words_for_runnable_are_pending_too(engine: Engine, probe: Probe, phase: str) -> None:
    flow = flow_of(engine)
    identity = member_id(engine, flow)
    await seed(engine, flow, bare_execution(engine, identity, flow_id=flow.flow_id, lifecycle_phase=phase))
    answer = await engine.cancel_flow(flow.flow_id, "cancel_pending")
    assert answer == CancelFlowResult.Cancelled("cancel_pending", (identity,))
    assert await probe.state(identity) == FLIPPED


@pytest.mark.parametrize("policy_name", ["", "CancelAll", "cancel_flow_only", "all", None, 5])
async def test_policies_are_known_by_name(engine: Engine, probe: Probe, policy_name: Any) -> None:
    flow = flow_of(engine)
    await seed(engine, flow)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.cancel_flow(flow.flow_id, policy_name)


@pytest.mark.parametrize("wait_ms", [0, 1, 60_000, None])
async def test_waiting_ends_with_the_cancellation(engine: Engine, probe: Probe, wait_ms: int | None) -> None:
    flow = flow_of(engine)
    await seed(engine, flow)
    assert await engine.cancel_flow(flow.flow_id, wait_ms=wait_ms) == CancelFlowResult.Cancelled("cancel_all", ())
    assert (await _flow(probe, flow)).public_flow_state == "cancelled"


async def test_waiting_ends_with_its_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a flow that somebody opened again could be waited for in vain."""
    monkeypatch.setattr(operator, "CANCEL_POLL_S", 0.001)
    flow = flow_of(engine)
    await seed(engine, flow)
    with pytest.raises(Timeout) as caught:
        await engine._until_cancelled(flow.partition, flow.flow_id, 5)
    assert (caught.value.op, caught.value.elapsed_ms) == ("cancel_flow", 5)
