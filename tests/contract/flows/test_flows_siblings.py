"""Losers of a group that has fired: cancelled in its commit up to a bound, the rest from the list it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import AnyOf, Contention, FlowEdge, OnSatisfied, Quorum
from flowfabric.core.flows import cascade
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent
from flowfabric.model.records.flows import EdgeGroup, PendingCancelGroup
from tests.contract.graphs import Flowing, settle
from tests.contract.probe import START_MS, Probe, unchanged
from tests.contract.seeding import remove, seed


async def race(engine: Engine, count: int, policy: Any) -> tuple[Flowing, list[str]]:
    names = [f"n{number:03}" for number in range(count)]
    return await Flowing.submit(engine, [*names, "z"], [(name, "z") for name in names], {"z": policy}), names


async def items(probe: Probe, flow: Flowing) -> list[PendingCancelGroup]:
    partition = flow.members["z"].partition
    return await probe.select(PendingCancelGroup, partition=partition, flow_id=str(flow.flow_id))


async def test_losers_are_cancelled_in_the_firing_commit(engine: Engine, probe: Probe) -> None:
    flow, names = await race(engine, 5, AnyOf())
    running = await flow.start(names[1])
    await flow.complete(names[0])
    assert await flow.states() == {names[0]: "completed", **dict.fromkeys(names[1:], "cancelled"), "z": "waiting"}
    assert await flow.counts(probe, "z") == (1, 4, 0, 0, "satisfied")
    group = await flow.group(probe, "z")
    assert (group.cancel_siblings_pending_flag, group.cancel_siblings_pending_members) == (False, ())
    assert await items(probe, flow) == []
    for name in names[1:]:
        row = await probe.execution(flow.members[name])
        assert (row.lifecycle_phase, row.cancelled_by, row.cancellation_reason) == (
            "cancelled", "engine", "sibling_quorum_satisfied",
        )  # fmt: skip
        (event,) = await probe.events(CompletionEvent, flow.members[name])
        assert (event.outcome, event.dispatched_at_ms) == ("cancelled", START_MS)
    assert await probe.lease_events(flow.members[names[1]]) == ["acquired", "revoked"]
    assert await probe.lease_events(flow.members[names[2]]) == []
    with pytest.raises(Contention):
        await engine.complete(running, b"late")


async def test_an_impossible_quorum_cancels_too(engine: Engine, probe: Probe) -> None:
    flow, names = await race(engine, 4, Quorum(3))
    await flow.fail(names[0])
    assert await flow.state("z") == "waiting_children"
    await flow.fail(names[1])
    assert await flow.states("z", *names[2:]) == {"z": "skipped", names[2]: "cancelled", names[3]: "cancelled"}
    row = await probe.execution(flow.members[names[2]])
    assert row.cancellation_reason == "sibling_quorum_impossible"
    assert await flow.counts(probe, "z") == (0, 4, 0, 0, "impossible")


async def test_let_run_lets_them_run(engine: Engine, probe: Probe) -> None:
    flow, names = await race(engine, 3, Quorum(1, OnSatisfied.LET_RUN))
    await flow.complete(names[0])
    assert set((await flow.states(*names[1:])).values()) == {"waiting"}
    assert not (await flow.group(probe, "z")).cancel_siblings_pending_flag
    await flow.complete(names[1])
    await flow.fail(names[2])
    assert await flow.counts(probe, "z") == (2, 1, 0, 0, "satisfied")


async def test_a_loser_that_feeds_others_is_cancelled_all_the_same(engine: Engine) -> None:
    flow = await Flowing.submit(
        engine, "abxyz", [("a", "z"), ("b", "z"), ("b", "y"), FlowEdge("y", "x")], {"z": AnyOf()}
    )
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "cancelled", "x": "skipped", "y": "skipped", "z": "waiting"}


async def test_beyond_the_bound_the_rest_is_written_down_and_follows(
    engine: Engine, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "MAX_MOVES", 12)
    flow, names = await race(engine, 40, AnyOf())
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_go_on", lambda command: None)
        await flow.complete(names[0])
    states = await flow.states(*names[1:])
    left = {flow.members[name].uuid_text for name, state in states.items() if state == "waiting"}
    assert 0 < len(left) < 39
    group = await flow.group(probe, "z")
    assert group.cancel_siblings_pending_flag
    assert set(group.cancel_siblings_pending_members) == left
    assert group.cancel_siblings_reason == "sibling_quorum_satisfied"
    (item,) = await items(probe, flow)
    assert item.enqueued_at_ms == START_MS
    # A loser that is quicker than the dispatcher keeps its success.
    quick = next(name for name, state in states.items() if state == "waiting")
    await flow.complete(quick)
    assert await engine.run_timer("edge_cancel_dispatcher") > 0
    await settle(engine)
    states = await flow.states(*names[1:])
    assert states.pop(quick) == "completed"
    assert set(states.values()) == {"cancelled"}
    group = await flow.group(probe, "z")
    assert (group.cancel_siblings_pending_flag, group.cancel_siblings_pending_members) == (False, ())
    assert await items(probe, flow) == []
    # Ends beyond the bound are dispatched by the commands that follow, or by the reconciler.
    while await engine.run_timer("dependency_reconciler"):
        await settle(engine)
    await flow.claimable("z")
    assert (await flow.group(probe, "z")).success_count == 2


async def test_a_work_item_without_a_group_goes(engine: Engine, probe: Probe) -> None:
    flow, _ = await race(engine, 2, AnyOf())
    where = (flow.members["z"].partition, str(flow.flow_id))
    await seed(engine, PendingCancelGroup(*where, flow.members["n000"].uuid_text, START_MS))
    await engine.run_timer("edge_cancel_dispatcher")
    assert await items(probe, flow) == []


async def test_a_work_item_whose_flag_is_down_is_left_to_the_reconciler(engine: Engine, probe: Probe) -> None:
    flow, _ = await race(engine, 2, AnyOf())
    where = (flow.members["z"].partition, str(flow.flow_id), flow.members["z"].uuid_text)
    await seed(engine, PendingCancelGroup(*where, START_MS))
    async with unchanged(probe):
        assert await engine.run_timer("edge_cancel_dispatcher") == 0
    assert await engine.run_timer("edge_cancel_reconciler") == 1
    assert await items(probe, flow) == []
    assert await engine.run_timer("edge_cancel_reconciler") == 0


async def flagged(engine: Engine, flow: Flowing, probe: Probe, member: str) -> None:
    """The group of z as if its losers had been listed."""
    group = await flow.group(probe, "z")
    await remove(engine, EdgeGroup, group.key)
    group.cancel_siblings_pending_flag = True
    group.cancel_siblings_pending_members = (flow.members[member].uuid_text,)
    group.cancel_siblings_reason = "sibling_quorum_satisfied"
    await seed(engine, group)


async def test_a_flag_without_a_work_item_is_enqueued_again(engine: Engine, probe: Probe) -> None:
    flow, names = await race(engine, 2, AnyOf(OnSatisfied.LET_RUN))
    await flagged(engine, flow, probe, names[1])
    assert await engine.run_timer("edge_cancel_reconciler") == 1
    (item,) = await items(probe, flow)
    assert item.downstream == flow.members["z"].uuid_text
    async with unchanged(probe):
        assert await engine.run_timer("edge_cancel_reconciler") == 0
    assert await engine.run_timer("edge_cancel_dispatcher") == 1
    assert await flow.state(names[1]) == "cancelled"


async def test_a_group_whose_losers_have_ended_is_drained(engine: Engine, probe: Probe) -> None:
    flow, names = await race(engine, 2, AnyOf(OnSatisfied.LET_RUN))
    await flow.complete(names[1])
    await flagged(engine, flow, probe, names[1])
    assert await engine.run_timer("edge_cancel_reconciler") == 1
    assert not (await flow.group(probe, "z")).cancel_siblings_pending_flag
    assert await flow.state(names[1]) == "completed"
