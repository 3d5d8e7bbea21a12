"""How flows end: cancelled in steps, finished by a timer, counted, and deleted once they are over."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from flowfabric import CancelFlowHeader, CancelFlowResult, Contention, ContentionKind, FlowProjection, NotFound
from flowfabric.core.flows import cancel
from flowfabric.core.flows.status import ProjectFlow
from flowfabric.engine import Engine
from flowfabric.engine.timers import executions
from flowfabric.model.events import CompletionEvent
from flowfabric.model.partitions import flow_partition
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import (
    CancelBacklog,
    CancelBacklogMember,
    Edge,
    EdgeGroup,
    Flow,
    FlowCounts,
    PendingCancelGroup,
)
from tests.contract.graphs import Flowing, settle
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, unchanged
from tests.contract.seeding import alter, seed

DAY_MS = 24 * 3600 * 1000


def where(flow: Flowing) -> dict[str, Any]:
    return {"partition": flow_partition(flow.flow_id, flow.engine.partitions), "flow_id": str(flow.flow_id)}


# -- cancel_flow -------------------------------------------------------------------------------------------------------


async def test_a_large_flow_is_cancelled_in_steps(
    engine: Engine, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel, "CANCEL_STEP", 4)
    names = [f"n{number}" for number in range(10)]
    flow = await Flowing.submit(engine, names, list(itertools.pairwise(names)))
    answer = await engine.cancel_flow(flow.flow_id)
    assert isinstance(answer, CancelFlowResult.Cancelled)
    assert set(answer.member_execution_ids) == set(flow.members.values())
    assert set((await flow.states()).values()) == {"cancelled"}
    assert await probe.select(CancelBacklog, **where(flow)) == []
    ends = await probe.events(CompletionEvent)
    assert [(end.outcome, end.dispatched_at_ms) for end in ends] == [("cancelled", START_MS)] * 10
    async with unchanged(probe):
        again = await engine.cancel_flow(flow.flow_id, "flow_only")
    assert isinstance(again, CancelFlowResult.Cancelled)
    assert again.cancellation_policy == "cancel_all"


async def test_a_timer_finishes_what_the_caller_could_not(
    engine: Engine, probe: Probe, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel, "CANCEL_STEP", 3)
    names = [f"n{number}" for number in range(8)]
    flow = await Flowing.submit(engine, names)
    submit = engine._submit

    async def once(command: Any) -> Any:
        if isinstance(command, cancel.CancelFlowMembers):
            raise Contention(ContentionKind.RETRY_EXHAUSTED, "busy")
        return await submit(command)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_submit", once)
        answer = await engine.cancel_flow(flow.flow_id, "cancel_all")
    assert isinstance(answer, CancelFlowResult.CancellationScheduled)
    assert (answer.cancellation_policy, answer.member_count, len(answer.member_execution_ids)) == ("cancel_all", 3, 3)
    (header,) = await probe.select(CancelBacklog, **where(flow))
    assert (header.status, header.grace_until_ms) == ("cancelling", START_MS + 30_000)
    assert await engine.run_timer("cancel_reconciler") == 0
    clock.advance(30_000)
    assert [await engine.run_timer("cancel_reconciler") for _ in range(3)] == [3, 2, 0]
    assert set((await flow.states()).values()) == {"cancelled"}
    assert await probe.select(CancelBacklog, **where(flow)) == []


async def test_the_same_call_again_goes_on(engine: Engine, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel, "CANCEL_STEP", 3)
    flow = await Flowing.submit(engine, [f"n{number}" for number in range(8)])
    partition = where(flow)["partition"]
    await engine._submit(cancel.CancelFlow(partition, str(flow.flow_id), "cancel_all"))
    assert sorted((await flow.states()).values()).count("cancelled") == 3
    answer = await engine.cancel_flow(flow.flow_id)
    assert set(answer.member_execution_ids) == set(flow.members.values())
    assert set((await flow.states()).values()) == {"cancelled"}


async def test_cancelling_the_pending_lets_the_others_finish(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "abcd", [("a", "b"), ("c", "d")])
    await flow.start("a")
    answer = await engine.cancel_flow(flow.flow_id, "cancel_pending")
    assert set(answer.member_execution_ids) == {flow.members[name] for name in "bcd"}
    assert await flow.states() == {"a": "active", "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    # Groups that still count are listed, so that their losers are looked at; there are none, so the list is cleared.
    assert len(await probe.select(PendingCancelGroup, **where(flow))) == 2
    assert await engine.run_timer("edge_cancel_dispatcher") == 0
    assert await engine.run_timer("edge_cancel_reconciler") == 2
    await flow.complete("a")
    assert await flow.counts(probe, "b") == (1, 0, 0, 0, "satisfied")
    assert await flow.state("b") == "cancelled"


async def test_the_flow_alone(engine: Engine) -> None:
    flow = await Flowing.submit(engine, "ab", [("a", "b")])
    answer = await engine.cancel_flow(flow.flow_id, "flow_only")
    assert answer == CancelFlowResult.Cancelled("flow_only", ())
    await flow.complete("a")
    assert await flow.claimable("b")


async def test_cancelling_an_unknown_flow(engine: Engine) -> None:
    with pytest.raises(NotFound):
        await engine.cancel_flow("99999999-9999-4999-8999-999999999999")


# -- the backlog -------------------------------------------------------------------------------------------------------


async def test_a_backlog_nobody_works_off_is_worked_off(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = await Flowing.submit(engine, "abc")
    answer = await engine.cancel_flow_header(flow_id=flow.flow_id, reason="stop", cancellation_policy="cancel_all")
    assert isinstance(answer, CancelFlowHeader.Cancelled)
    await engine.ack_cancel_member(flow.flow_id, flow.members["a"])
    assert len(await probe.select(CancelBacklogMember, **where(flow))) == 2
    # One is gone, and one came alive behind the engine's back.
    await alter(
        engine, flow.members["b"], lifecycle_phase="runnable", public_state="waiting", eligibility_state="eligible_now",
        terminal_at_ms=None, cancellation_reason=None, cancelled_by=None,
    )  # fmt: skip
    partition, flow_id = where(flow)["partition"], str(flow.flow_id)
    gone = f"{{fp:{partition}}}:99999999-9999-4999-8999-999999999999"
    await seed(engine, CancelBacklogMember(partition, flow_id, gone))
    assert await engine.run_timer("cancel_reconciler") == 0
    clock.advance(30_000)
    assert await engine.run_timer("cancel_reconciler") == 3
    assert await probe.select(CancelBacklogMember, **where(flow)) == []
    assert await probe.select(CancelBacklog, **where(flow)) == []
    row = await probe.execution(flow.members["b"])
    assert (row.lifecycle_phase, row.cancelled_by, row.cancellation_reason) == (
        "cancelled", "operator_override", "stop",
    )  # fmt: skip


async def test_a_header_without_members_goes(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, [])
    answer = await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="cancel_all")
    assert answer == CancelFlowHeader.Cancelled("cancel_all", ())
    assert len(await probe.select(CancelBacklog, **where(flow))) == 1
    partition, flow_id = where(flow)["partition"], str(flow.flow_id)
    await seed(engine, CancelBacklog(partition, NO_GRACE, START_MS, "", "", None, "cancel_all", "pending"))
    assert flow_id != NO_GRACE
    await engine.run_timer("cancel_reconciler")
    assert await probe.select(CancelBacklog, partition=partition, flow_id=NO_GRACE) == []
    assert len(await probe.select(CancelBacklog, **where(flow))) == 1


NO_GRACE = "88888888-8888-4888-8888-888888888888"


async def test_a_member_that_cannot_be_cancelled_is_given_up(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = await Flowing.submit(engine, "ab")
    await flow.complete("a")
    await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="cancel_all")
    partition, flow_id = where(flow)["partition"], str(flow.flow_id)
    await seed(engine, CancelBacklogMember(partition, flow_id, str.__str__(flow.members["a"])))
    clock.advance(30_000)
    assert await engine.run_timer("cancel_reconciler") == 2
    assert await flow.state("a") == "completed"
    assert await probe.select(CancelBacklog, **where(flow)) == []


async def test_many_acks_at_once_leave_nothing(engine: Engine, probe: Probe) -> None:
    import asyncio

    flow = await Flowing.submit(engine, [f"n{number}" for number in range(20)])
    await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="cancel_all")
    members = list(flow.members.values())
    await asyncio.gather(*(engine.ack_cancel_member(flow.flow_id, each) for each in members[:-1]))
    assert len(await probe.select(CancelBacklogMember, **where(flow))) == 1
    assert len(await probe.select(CancelBacklog, **where(flow))) == 1
    await engine.ack_cancel_member(flow.flow_id, members[-1])
    assert await probe.select(CancelBacklog, **where(flow)) == []


# -- the projection ----------------------------------------------------------------------------------------------------


async def summary(engine: Engine, flow: Flowing) -> tuple[Any, ...]:
    await engine.run_timer("flow_projector")
    found = await engine.get_flow_summary(flow.flow_id)
    assert isinstance(found, FlowProjection)
    assert found.sampled_members == found.total_members
    return found.public_flow_state, found.total_members, found.members_completed, found.members_active


async def test_members_are_counted_for_people(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = await Flowing.submit(engine, "abc", [("a", "b")])
    assert await engine.get_flow_summary(flow.flow_id) is None
    assert await summary(engine, flow) == ("blocked", 3, 0, 0)
    await flow.start("a")
    assert await summary(engine, flow) == ("running", 3, 0, 1)
    await flow.complete("a")
    assert await summary(engine, flow) == ("open", 3, 1, 0)
    async with unchanged(probe):
        assert await engine.run_timer("flow_projector") == 0
    await flow.complete("b")
    await flow.complete("c")
    now = clock.advance(3)
    assert await summary(engine, flow) == ("completed", 3, 3, 0)
    found = await engine.get_flow_summary(flow.flow_id)
    assert found is not None
    assert found.last_summary_update_at == now
    described = await engine.describe_flow(flow.flow_id)
    assert described is not None
    assert described.public_flow_state == "open"


@pytest.mark.parametrize(
    ("states", "derived"),
    [
        ([], "open"),
        (["completed", "skipped"], "completed"),
        (["completed", "failed"], "failed"),
        (["completed", "cancelled"], "failed"),
        (["expired"], "failed"),
        (["completed", "running", "suspended"], "running"),
        (["failed", "suspended"], "blocked"),
        (["waiting", "delayed"], "blocked"),
        (["waiting", "rate_limited"], "blocked"),
        (["waiting", "waiting_children"], "blocked"),
        (["completed", "waiting", "resumable"], "open"),
    ],
)
async def test_how_members_look_together(engine: Engine, states: list[str], derived: str) -> None:
    flow = await Flowing.build(engine, [str(number) for number in range(len(states))])
    for member, state in zip(flow.members.values(), states, strict=True):
        await alter(engine, member, public_state=state)
    assert (await summary(engine, flow))[:2] == (derived, len(states))


async def test_a_replayed_member_makes_the_flow_go_on(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "ab", [("a", "b")])
    await flow.fail("a")
    assert (await summary(engine, flow))[0] == "failed"
    await engine.replay_execution(execution_id=flow.members["a"])
    assert (await summary(engine, flow))[0] == "open"


async def test_every_flow_gets_its_turn(engine: Engine) -> None:
    flows = [await Flowing.submit(engine, "a") for _ in range(5)]
    for _ in range(3):
        await engine.run_timer("flow_projector", 2)
    assert all([await engine.get_flow_summary(flow.flow_id) for flow in flows])


# -- retention ---------------------------------------------------------------------------------------------------------


async def rows_of(probe: Probe, flow: Flowing) -> dict[str, int]:
    kinds: tuple[Any, ...] = (Execution, Edge, EdgeGroup, Flow, FlowCounts, CancelBacklog, PendingCancelGroup)
    return {kind.__name__: len(await probe.select(kind, **where(flow))) for kind in kinds}


async def test_members_stay_until_the_flow_is_over_and_then_all_of_it_goes(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    flow = await Flowing.submit(engine, "abc", [("a", "b"), ("b", "c")])
    await flow.complete("a")
    await flow.complete("b")
    clock.advance(2 * DAY_MS)
    await engine.run_due()
    assert (await rows_of(probe, flow))["Execution"] == 3
    await flow.complete("c")
    await engine.run_due()
    assert (await rows_of(probe, flow))["Execution"] == 1
    clock.advance(DAY_MS)
    await engine.run_due()
    await settle(engine)
    assert set((await rows_of(probe, flow)).values()) == {0}


async def test_a_stale_projection_deletes_nothing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = await Flowing.submit(engine, "ab")
    await flow.complete("a")
    partition, flow_id = where(flow)["partition"], str(flow.flow_id)
    await seed(engine, FlowCounts(partition, flow_id, 2, 2, 2, *[0] * 10, "completed", START_MS))
    clock.advance(2 * DAY_MS)
    assert await engine.trim_retention() == 0
    assert (await rows_of(probe, flow))["Execution"] == 2


async def test_a_member_that_joins_takes_back_what_was_counted(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    """A flow that looks as if it were over would keep its members, and everything that ended after them."""
    flow = await Flowing.build(engine, ["a"])
    await flow.complete("a")
    await engine.run_timer("flow_projector")
    (counts,) = await probe.select(FlowCounts, **where(flow))
    assert counts.public_flow_state == "completed"
    partition, flow_id = where(flow)["partition"], str(flow.flow_id)
    await flow.add("late")
    assert await probe.select(FlowCounts, **where(flow)) == []
    # Nor does a count from before that was on its way.
    await engine._submit(ProjectFlow(partition, flow_id, {"completed": 1}))
    assert await probe.select(FlowCounts, **where(flow)) == []


async def test_members_that_stay_hold_nothing_back(
    engine: Engine, probe: Probe, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executions, "MAX_LOOKS", 1)
    flow = await Flowing.submit(engine, "abcd")
    for name in "abc":
        await flow.complete(name)
    partition, flow_id = where(flow)["partition"], str(flow.flow_id)
    await seed(engine, FlowCounts(partition, flow_id, 4, 4, 4, *[0] * 10, "completed", START_MS))
    clock.advance(1)
    single = await claimed(engine, lane_id="single")
    await engine.complete(single, b"")
    clock.advance(2 * DAY_MS)
    assert [await engine.run_timer("retention_trimmer", 2) for _ in range(2)] == [0, 1]
    # From there it begins again at the front.
    await flow.complete("d")
    clock.advance(2 * DAY_MS)
    assert sum([await engine.run_timer("retention_trimmer", 2) for _ in range(4)]) == 4


async def test_a_cancelled_flow_without_members_goes_by_age(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    cancelled, kept = await Flowing.build(engine, []), await Flowing.build(engine, [])
    await engine.cancel_flow(cancelled.flow_id)
    await engine.run_due()
    assert (await rows_of(probe, cancelled))["Flow"] == 1
    clock.advance(DAY_MS)
    await engine.run_due()
    assert set((await rows_of(probe, cancelled)).values()) == {0}
    # One that never had a member may still be waiting for its first.
    assert (await rows_of(probe, kept))["Flow"] == 1


async def test_an_end_that_is_not_dispatched_keeps_its_member(
    engine: Engine, probe: Probe, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowfabric.core.flows import cascade

    monkeypatch.setattr(cascade, "MAX_MOVES", 1)
    monkeypatch.setattr(engine, "_go_on", lambda command: None)
    flow = await Flowing.submit(engine, "abc", [("a", "b"), ("a", "c")])
    await flow.complete("a")
    await engine.cancel_flow(flow.flow_id)
    clock.advance(2 * DAY_MS)
    assert await engine.trim_retention() == 2
    assert len(await probe.select(Execution, **where(flow))) == 1
    await engine.run_timer("dependency_reconciler")
    assert await engine.trim_retention() == 1
