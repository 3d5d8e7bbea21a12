"""Ends that move others: resolution under every policy, data, skips that ripple, and members that wait for children."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from flowfabric import (
    AllOf,
    AnyOf,
    CascadeOutcome,
    CompletionPayload,
    Contention,
    ContentionKind,
    ExecutionId,
    FlowEdge,
    HandleKind,
    NotFound,
    OnSatisfied,
    Quorum,
    ResolveDependencyResult,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.core.flows import cascade
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent
from flowfabric.model.records.executions import Suspension, Waitpoint
from tests.contract.graphs import Flowing, settle
from tests.contract.probe import START_MS, ManualClock, Probe, policy, refused, unchanged
from tests.contract.seeding import alter, seed

SKIPPED = ("terminal", "unowned", "not_applicable", "none", "skipped", None)
LET_RUN = OnSatisfied.LET_RUN


async def undispatched(probe: Probe) -> list[CompletionEvent]:
    return [event for event in await probe.events(CompletionEvent) if event.dispatched_at_ms is None]


# -- one end -----------------------------------------------------------------------------------------------------------


async def test_a_child_is_claimable_in_its_parents_commit(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = await Flowing.submit(engine, "abc", [("a", "c"), ("b", "c")])
    await flow.complete("a")
    assert await flow.counts(probe, "c") == (1, 0, 0, 1, "pending")
    assert not await flow.claimable("c")
    now = clock.advance(7)
    await flow.complete("b")
    assert await flow.counts(probe, "c") == (2, 0, 0, 0, "satisfied")
    assert (await flow.group(probe, "c")).satisfied_at_ms == now
    assert await probe.stored(flow.members["c"]) == (
        "runnable", "unowned", "eligible_now", "pending", "waiting", "waiting_for_worker",
    )  # fmt: skip
    row = await probe.execution(flow.members["c"])
    assert (row.blocking_detail, row.payload) == ("", b"in")
    assert {edge.edge_state for edge in await flow.edges(probe)} == {"satisfied"}
    assert {edge.resolved_at_ms for edge in await flow.edges(probe)} == {START_MS, now}
    assert await undispatched(probe) == []
    assert await probe.completions(flow.members["c"]) == []


async def test_a_worker_that_waits_is_woken(engine: Engine) -> None:
    flow = await Flowing.submit(engine, "ab", [("a", "b")])
    await flow.start("a")
    waiting = asyncio.create_task(engine.claim(await flow.lane("b"), (), policy(max_wait=20_000)))
    await asyncio.sleep(0)
    await flow.complete("a")
    async with asyncio.timeout(10):
        assert await waiting is not None


@pytest.mark.parametrize("end", ["fail", "cancel", "expire", "reclaim_cap"])
async def test_any_other_end_makes_all_of_impossible(
    engine: Engine, probe: Probe, clock: ManualClock, end: str
) -> None:
    more = {"execution_deadline_at": START_MS + 10} if end == "expire" else {}
    if end == "reclaim_cap":
        more = {"policy": {"max_reclaim_count": 0}}
    flow = await Flowing.submit(engine, "abc", [("a", "c"), ("b", "c")], a=more)
    await flow.start("a")
    now = clock.now_ms
    if end == "fail":
        await flow.fail("a")
    elif end == "cancel":
        await engine.cancel_execution(execution_id=flow.members["a"])
    else:
        now = clock.advance(100_000)
        await engine.run_due()
    assert await flow.state("c") == "skipped"
    assert await flow.counts(probe, "c") == (0, 1, 0, 1, "impossible")
    assert await probe.stored(flow.members["c"]) == SKIPPED
    row = await probe.execution(flow.members["c"])
    assert (row.terminal_at_ms, row.terminal_outcome, row.failure_reason) == (now, "skipped", "dependency_impossible")
    (event,) = await probe.events(CompletionEvent, flow.members["c"])
    assert (event.outcome, event.flow_id, event.dispatched_at_ms) == ("skipped", flow.flow_id, now)
    assert await probe.lease_events(flow.members["c"]) == []
    # The other parent is nobody's loser: it goes on, and is only counted.
    await flow.complete("b")
    assert await flow.counts(probe, "c") == (1, 1, 0, 0, "impossible")
    assert await probe.completions(flow.members["c"]) == ["skipped"]


async def test_a_skip_ripples_to_the_leaves(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "abcdef", [("a", "b"), ("b", "c"), ("b", "d"), ("c", "e"), ("d", "e")])
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", **dict.fromkeys("bcde", "skipped"), "f": "waiting"}
    assert await flow.counts(probe, "e") == (0, 0, 2, 0, "impossible")
    for name in "bcde":
        assert await probe.completions(flow.members[name]) == ["skipped"]
    assert await undispatched(probe) == []


async def test_parallel_edges_count_separately(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "ab", [("a", "b"), ("a", "b")])
    assert (await flow.group(probe, "b")).running_count == 2
    await flow.complete("a")
    assert await flow.counts(probe, "b") == (2, 0, 0, 0, "satisfied")


# -- policies ----------------------------------------------------------------------------------------------------------


CASES: list[Any] = [
    # policy, ends of a, b and c in this order, then the state of the child after each
    (AllOf(), "sss", ("pending", "pending", "satisfied")),
    (AllOf(), "sfs", ("pending", "impossible", "impossible")),
    (AnyOf(LET_RUN), "fsf", ("pending", "satisfied", "satisfied")),
    (AnyOf(LET_RUN), "fff", ("pending", "pending", "impossible")),
    (AnyOf(LET_RUN), "sff", ("satisfied", "satisfied", "satisfied")),
    (Quorum(2, LET_RUN), "sfs", ("pending", "pending", "satisfied")),
    (Quorum(2, LET_RUN), "ffs", ("pending", "impossible", "impossible")),
    (Quorum(2, LET_RUN), "ssf", ("pending", "satisfied", "satisfied")),
    (Quorum(3, LET_RUN), "fss", ("impossible", "impossible", "impossible")),
    (Quorum(4, LET_RUN), "sss", ("impossible", "impossible", "impossible")),
]


@pytest.mark.parametrize(("edge_policy", "ends", "states"), CASES, ids=str)
async def test_policies(engine: Engine, probe: Probe, edge_policy: Any, ends: str, states: tuple[str, ...]) -> None:
    flow = await Flowing.submit(engine, "abcd", [(name, "d") for name in "abc"], {"d": edge_policy})
    good = bad = 0
    for name, end, state in zip("abc", ends, states, strict=True):
        await (flow.complete(name) if end == "s" else flow.fail(name))
        good, bad = good + (end == "s"), bad + (end == "f")
        assert await flow.counts(probe, "d") == (good, bad, 0, 3 - good - bad, state)
        wanted = {"pending": "waiting_children", "satisfied": "waiting", "impossible": "skipped"}[state]
        assert await flow.state("d") == wanted
    assert len(await probe.completions(flow.members["d"])) == (states[-1] == "impossible")


async def test_a_fired_group_does_not_release_its_child_again(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "abc", [("a", "c"), ("b", "c")], {"c": AnyOf(LET_RUN)})
    await flow.complete("a")
    handle = await flow.start("c")
    await flow.complete("b")
    assert await flow.state("c") == "active"
    await engine.complete(handle, b"")
    assert await probe.lease_events(flow.members["c"]) == ["acquired", "revoked"]


async def test_a_running_child_only_counts(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    await flow.start("b")
    await flow.join("a", "b")
    assert await flow.state("b") == "active"
    await flow.complete("a")
    assert await flow.counts(probe, "b") == (1, 0, 0, 0, "satisfied")
    await flow.complete("b")


async def test_a_running_child_of_an_impossible_group_is_fenced_off(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    handle = await flow.start("b")
    await flow.join("a", "b")
    await flow.fail("a")
    assert await probe.state(flow.members["b"]) == "terminal / unowned / not_applicable / attempt_terminal / skipped"
    (attempt,) = await probe.attempts(flow.members["b"])
    assert (attempt.outcome, attempt.worker_instance_id, attempt.lease_epoch) == ("skipped", None, 2)
    assert await probe.lease_events(flow.members["b"]) == ["acquired", "revoked"]
    with pytest.raises(Contention) as caught:
        await engine.complete(handle, b"late")
    assert caught.value.kind is ContentionKind.LEASE_CONFLICT


async def test_a_suspended_child_of_an_impossible_group(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    handle = await flow.start("b")
    await flow.join("a", "b")
    await engine.delay(handle, START_MS + 60_000)
    child = flow.members["b"]
    waiting = {"lifecycle_phase": "suspended", "eligibility_state": "not_applicable", "public_state": "suspended"}
    await alter(engine, child, **waiting, delay_until_ms=None)
    where = (child.partition, child.uuid_text)
    await seed(
        engine,
        Suspension(*where, "11111111-1111-4111-8111-111111111111", START_MS, None, "waiting_for_signal"),
        Waitpoint(where[0], "22222222-2222-4222-8222-222222222222", where[1], "active", None, None),
    )
    await flow.fail("a")
    assert await flow.state("b") == "skipped"
    assert await probe.select(Suspension, partition=where[0], uuid=where[1]) == []
    (waitpoint,) = await probe.select(Waitpoint, partition=where[0], uuid=where[1])
    assert (waitpoint.state, waitpoint.close_reason) == ("closed", "skipped")


# -- data --------------------------------------------------------------------------------------------------------------


async def test_a_result_becomes_the_input(engine: Engine, probe: Probe) -> None:
    edges = [FlowEdge("a", "c", "ref"), FlowEdge("b", "c", "ref"), FlowEdge("a", "d")]
    flow = await Flowing.submit(engine, "abcd", edges)
    await flow.complete("a", b"\x00from a\xff")
    assert (await probe.execution(flow.members["c"])).payload == b"\x00from a\xff"
    await flow.complete("b", b"from b")
    assert (await probe.execution(flow.members["c"])).payload == b"from b"
    assert (await probe.execution(flow.members["d"])).payload == b"in"
    context = await engine.read_execution_context(flow.members["c"])
    assert context.input_payload == b"from b"


async def test_without_a_result_the_input_stays(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "ab", [FlowEdge("a", "b", "ref")])
    await flow.complete("a", None)
    assert (await probe.execution(flow.members["b"])).payload == b"in"
    assert await flow.claimable("b")


async def test_an_edge_applied_late_passes_data_too(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    edge_id = await flow.stage("a", "b", data_passing_ref="ref")
    await flow.complete("a", b"result")
    await flow.apply("a", "b", edge_id)
    assert (await probe.execution(flow.members["b"])).payload == b"result"


# -- wait_children -----------------------------------------------------------------------------------------------------


async def test_a_member_grows_its_flow_and_waits(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["parent"])
    handle = await flow.start("parent")
    for name in ("x", "y"):
        await flow.add(name)
        await flow.join(name, "parent")
    await engine.wait_children(handle)
    assert await probe.stored(flow.members["parent"]) == (
        "runnable", "unowned", "blocked_by_dependencies", "attempt_interrupted", "waiting_children",
        "waiting_for_children",
    )  # fmt: skip
    await flow.complete("x")
    assert not await flow.claimable("parent")
    await flow.complete("y")
    again = await flow.start("parent")
    assert again.kind is HandleKind.RESUMED
    # Once more, in the same attempt: all means all.
    await flow.add("z")
    await flow.join("z", "parent")
    await engine.wait_children(again)
    assert await flow.state("parent") == "waiting_children"
    await flow.complete("z")
    assert await flow.counts(probe, "parent") == (3, 0, 0, 0, "satisfied")
    await flow.start("parent")
    await flow.complete("parent")
    assert len(await probe.attempts(flow.members["parent"])) == 1


async def test_with_nothing_to_wait_for_it_goes_on(engine: Engine) -> None:
    flow = await Flowing.build(engine, ["parent", "x"])
    handle = await flow.start("parent")
    await flow.join("x", "parent")
    await flow.complete("x")
    await engine.wait_children(handle)
    assert await flow.claimable("parent")


async def test_losers_that_run_on_hold_nobody_up(engine: Engine) -> None:
    flow = await Flowing.build(engine, ["parent", "x", "y"])
    handle = await flow.start("parent")
    await engine.set_edge_group_policy(
        flow_id=flow.flow_id, downstream_execution_id=flow.members["parent"], policy=AnyOf(LET_RUN)
    )
    await flow.join("x", "parent")
    await flow.join("y", "parent")
    await flow.complete("x")
    await engine.wait_children(handle)
    assert await flow.claimable("parent")


# -- by hand -----------------------------------------------------------------------------------------------------------


async def test_an_edge_is_resolved_by_hand_once(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b", "c"])
    first, second = await flow.join("a", "c"), await flow.join("b", "c")

    def arguments(name: str, edge_id: str, outcome: str) -> dict[str, Any]:
        return {
            "flow_id": flow.flow_id,
            "edge_id": edge_id,
            "upstream_execution_id": flow.members[name],
            "downstream_execution_id": flow.members["c"],
            "upstream_outcome": outcome,
        }

    answer = await engine.resolve_dependency(**arguments("a", first, "success"))
    assert answer == ResolveDependencyResult.Satisfied()
    assert await flow.counts(probe, "c") == (1, 0, 0, 1, "pending")
    async with unchanged(probe):
        again = await engine.resolve_dependency(**arguments("a", first, "failed"))
        assert again == ResolveDependencyResult.AlreadyResolved()
    answer = await engine.resolve_dependency(**arguments("b", second, "anything else"))
    assert answer == ResolveDependencyResult.Impossible()
    assert await flow.counts(probe, "c") == (1, 1, 0, 0, "impossible")
    assert await flow.state("c") == "skipped"


async def test_what_cannot_be_resolved(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.build(engine, ["a", "b"])
    staged = await flow.stage("a", "b")
    good: dict[str, Any] = {
        "flow_id": flow.flow_id,
        "edge_id": staged,
        "upstream_execution_id": flow.members["a"],
        "downstream_execution_id": flow.members["b"],
        "upstream_outcome": "success",
    }
    stranger = ExecutionId.for_flow(flow.flow_id, engine.partitions)
    for wrong in (
        {},
        {"edge_id": "99999999-9999-4999-8999-999999999999"},
        {"upstream_execution_id": stranger},
        {"downstream_execution_id": stranger},
    ):
        async with refused(probe, Validation, ValidationKind.INVALID_DEPENDENCY):
            await engine.resolve_dependency(**{**good, **wrong})


async def test_cascading_by_hand(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "abc", [("a", "b"), ("a", "c")])
    async with refused(probe, State, StateKind.EXECUTION_NOT_TERMINAL):
        await engine.cascade_completion(CompletionPayload(flow.members["a"], "success", flow_id=flow.flow_id))
    stranger = ExecutionId.for_flow(flow.flow_id, engine.partitions)
    async with refused(probe, NotFound, "execution"):
        await engine.cascade_completion(CompletionPayload(stranger, "success", flow_id=flow.flow_id))
    await flow.complete("a")
    async with unchanged(probe):
        again = await engine.cascade_completion(CompletionPayload(flow.members["a"], "success", flow_id=flow.flow_id))
        assert again == CascadeOutcome(0, 0, True)
        assert await engine.cascade_completion(CompletionPayload(stranger)) == CascadeOutcome(0, 0, True)


# -- bounds, and what lies beyond them ---------------------------------------------------------------------------------


async def test_a_deep_skip_goes_on_by_itself(engine: Engine, probe: Probe) -> None:
    names = [f"n{number:03}" for number in range(60)]
    flow = await Flowing.submit(engine, names, list(itertools.pairwise(names)))
    await flow.fail(names[0])
    await settle(engine)
    assert set((await flow.states(*names[1:])).values()) == {"skipped"}
    assert await undispatched(probe) == []


async def test_a_wide_fan_out_and_in(engine: Engine, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "MAX_MOVES", 30)
    middle = [f"m{number:03}" for number in range(100)]
    flow = await Flowing.submit(
        engine, ["a", *middle, "z"], [("a", name) for name in middle] + [(name, "z") for name in middle]
    )
    await flow.complete("a")
    await settle(engine)
    assert await undispatched(probe) == []
    assert set((await flow.states(*middle)).values()) == {"waiting"}
    await asyncio.gather(*(flow.complete(name) for name in middle))
    assert await flow.counts(probe, "z") == (100, 0, 0, 0, "satisfied")
    assert await flow.claimable("z")


async def test_an_interrupted_dispatch_is_finished_by_a_timer(
    engine: Engine, probe: Probe, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "MAX_MOVES", 2)
    # The process dies after the commit: nothing that was to follow it is ever submitted.
    monkeypatch.setattr(engine, "_go_on", lambda command: None)
    flow = await Flowing.submit(engine, "abcdef", [("a", name) for name in "bcdef"])
    await flow.complete("a")
    assert sorted((await flow.states(*"bcdef")).values()) == ["waiting"] * 2 + ["waiting_children"] * 3
    assert [event.outcome for event in await undispatched(probe)] == ["success"]
    assert await engine.run_timer("retention_trimmer") == 0
    clock.advance(14_999)
    first = {name for name, state in (await flow.states(*"bcdef")).items() if state == "waiting"}
    for _ in range(3):
        clock.advance(15_000)
        await engine.run_timer("dependency_reconciler")
    assert set((await flow.states(*"bcdef")).values()) == {"waiting"}
    assert await undispatched(probe) == []
    assert len(first) == 2
    for name in "bcdef":
        assert await flow.counts(probe, name) == (1, 0, 0, 0, "satisfied")
    assert await engine.run_timer("dependency_reconciler") == 0


async def test_a_lost_release_is_made_up_for(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "abcd", [("a", "b"), ("a", "c")])
    await flow.complete("a")
    blocked = {
        "eligibility_state": "blocked_by_dependencies",
        "public_state": "waiting_children",
        "blocking_reason": "waiting_for_children",
        "lifecycle_phase": "runnable",
    }
    await alter(engine, flow.members["b"], **blocked)
    # One that waits for nothing at all.
    await alter(engine, flow.members["d"], **blocked)
    assert await engine.run_timer("dependency_reconciler") == 2
    assert await flow.states("b", "d") == {"b": "waiting", "d": "waiting"}
    assert await engine.run_timer("dependency_reconciler") == 0


async def test_the_reconciler_leaves_those_who_wait_with_reason(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "abc", [("a", "b"), ("b", "c")])
    await flow.start("a")
    async with unchanged(probe):
        assert await engine.run_timer("dependency_reconciler") == 0


# -- replay ------------------------------------------------------------------------------------------------------------


async def test_a_replayed_child_waits_for_what_had_not_succeeded(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "abc", [("a", "c"), ("b", "c")])
    await flow.complete("a")
    await flow.fail("b")
    assert await flow.state("c") == "skipped"
    await engine.replay_execution(execution_id=flow.members["b"])
    await engine.replay_execution(execution_id=flow.members["c"])
    await settle(engine)
    assert await flow.counts(probe, "c") == (1, 0, 0, 0, "pending")
    assert await flow.state("c") == "waiting_children"
    assert sorted(edge.edge_state for edge in await flow.edges(probe)) == ["applied", "satisfied"]
    assert await engine.run_timer("dependency_reconciler") == 0
    await flow.complete("b")
    assert await flow.counts(probe, "c") == (2, 0, 0, 0, "satisfied")
    assert await flow.claimable("c")


async def test_a_parent_that_succeeded_meanwhile_counts_at_once(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "ab", [("a", "b")])
    await flow.fail("a")
    await engine.replay_execution(execution_id=flow.members["a"])
    await flow.complete("a")
    assert await flow.state("b") == "skipped"
    await engine.replay_execution(execution_id=flow.members["b"])
    await settle(engine)
    assert await flow.claimable("b")


async def test_a_parent_that_is_still_failed_skips_the_child_again(engine: Engine, probe: Probe) -> None:
    flow = await Flowing.submit(engine, "ab", [("a", "b")])
    await flow.fail("a")
    await engine.replay_execution(execution_id=flow.members["b"])
    await settle(engine)
    assert await flow.state("b") == "waiting_children"
    assert await engine.run_timer("dependency_reconciler") == 1
    assert await flow.state("b") == "skipped"
    assert await probe.completions(flow.members["b"]) == ["skipped", "skipped"]
