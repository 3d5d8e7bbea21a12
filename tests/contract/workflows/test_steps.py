"""What durable functions stand on: steps remembered once under a fence, children that tell, parking without a gap."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from flowfabric import (
    Cancelled,
    Contention,
    ContentionKind,
    EngineError,
    ExecutionId,
    Handle,
    HandleKind,
    LimitReached,
    NotFound,
    PublicState,
    State,
    Validation,
)
from flowfabric.core.workflows import steps as rules
from flowfabric.engine import Engine
from flowfabric.model.operations.workflows import ChildWait, NewStep, Step, StepOutcome, StepPlace
from flowfabric.model.reads.explain import OpenChildren
from flowfabric.model.records.executions import Execution, Suspension
from flowfabric.model.records.flows import Flow
from tests.contract.graphs import settle
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, payload_of, policy, refused

LANE = "lane-of-one"


def child(parent: ExecutionId, name: str, **more: Any) -> dict[str, Any]:
    """A child of an execution, the same each time it is named."""
    own = uuid.uuid5(uuid.UUID(parent.uuid_text), name)
    return {"execution_id": f"{{fp:{parent.partition}}}:{own}", "execution_kind": name, "lane_id": "children", **more}


async def state(probe: Probe, execution_id: ExecutionId) -> str:
    return (await probe.execution(execution_id)).public_state


async def take(engine: Engine, lane: str = LANE) -> Handle:
    handle = await engine.claim(lane, None, policy())
    assert handle is not None
    return handle


async def parked(
    engine: Engine, *names: str, wake_after: int = 1, until_ms: int | None = None, or_failure: bool = False
) -> ExecutionId:
    """A parent that waits for some children it has just started."""
    handle = await claimed(engine)
    parent = id_of(handle)
    children = [child(parent, name) for name in names]
    wait = ChildWait(tuple(each["execution_id"] for each in children), wake_after if names else 0, until_ms, or_failure)
    assert (await engine.advance(handle, children=children, wait=wait)).parked
    return parent


# -- steps -----------------------------------------------------------------------------------------------------------


async def test_a_step_is_remembered_once(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    first = await engine.advance(handle, steps=[NewStep("a", b"1"), NewStep("b", b"2", StepOutcome.ERROR)])
    assert [(step.name, step.value, step.outcome, step.sequence) for step in first.steps] == [
        ("a", b"1", StepOutcome.OK, 1),
        ("b", b"2", StepOutcome.ERROR, 2),
    ]
    again = await engine.advance(handle, steps=[NewStep("a", b"other"), NewStep("c", None)], known_steps=2)
    assert [(step.name, step.value, step.sequence) for step in again.steps] == [("a", b"1", 1), ("c", None, 3)]
    assert [step.name for step in await engine.read_steps(id_of(handle))] == ["a", "b", "c"]
    rows = await probe.select(Step, partition=id_of(handle).partition)
    assert {row.lease_epoch for row in rows} == {payload_of(handle).lease_epoch}
    assert await state(probe, id_of(handle)) == "running"


async def test_steps_of_one_millisecond_are_in_the_order_they_were_remembered(engine: Engine) -> None:
    """Also if the caller does not say how many there are."""
    handle = await claimed(engine)
    names = ["n", "c", "z", "a", "k", "b", "y", "d"]
    for name in names[:3]:
        await engine.advance(handle, steps=[NewStep(name, b"1")])
    await engine.advance(handle, steps=[NewStep(name, b"1") for name in names[1:6]])
    await asyncio.gather(*(engine.advance(handle, steps=[NewStep(name, b"1")]) for name in names[6:]))
    assert [(each.name, each.sequence) for each in await engine.read_steps(id_of(handle))] == [
        (name, number + 1) for number, name in enumerate(names)
    ]
    assert [each.name for each in await engine.list_steps(id_of(handle))] == names
    await engine.complete(handle, b"", steps=[NewStep("e", b"1")])
    assert (await engine.list_steps(id_of(handle)))[-1].sequence == 9


async def test_a_zombie_remembers_nothing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    old = await claimed(engine, ttl_ms=1_000)
    clock.advance(1_001)
    async with refused(probe, State):
        await engine.advance(old, steps=[NewStep("a", b"late")])
    await engine.run_due()
    clock.advance(1)
    fresh = await take(engine)
    await engine.advance(fresh, steps=[NewStep("a", b"new")])
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.advance(old, steps=[NewStep("a", b"late"), NewStep("b", b"late")])
    assert [(step.name, step.value) for step in await engine.read_steps(id_of(fresh))] == [("a", b"new")]


async def test_steps_of_many_at_once(engine: Engine) -> None:
    handles = [await claimed(engine) for _ in range(20)]
    await asyncio.gather(*[engine.advance(handle, steps=[NewStep("a", b"1")]) for handle in handles for _ in range(3)])
    for handle in handles:
        assert [step.name for step in await engine.read_steps(id_of(handle))] == ["a"]


async def test_an_unknown_execution_remembers_nothing(engine: Engine) -> None:
    assert await engine.read_steps(ExecutionId.of(0, str(uuid.uuid4()))) == []


# -- children --------------------------------------------------------------------------------------------------------


async def test_children_join_the_flow_their_parent_founds(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    parent = id_of(handle)
    await engine.advance(handle, children=[child(parent, "one"), child(parent, "two")])
    await engine.advance(handle, children=[child(parent, "two"), child(parent, "three")])
    rows = {row.uuid: row for row in await probe.select(Execution, partition=parent.partition)}
    (flow,) = await probe.select(Flow, partition=parent.partition)
    assert len(rows) == 4
    assert {row.flow_id for row in rows.values()} == {flow.flow_id}
    assert {row.parent for row in rows.values()} == {None, parent.uuid_text}
    snapshot = await engine.describe_flow(flow.flow_id)
    assert snapshot is not None
    assert snapshot.node_count == 4


async def test_children_pay_from_their_parents_budgets(engine: Engine, probe: Probe) -> None:
    budget_id = str(uuid.uuid4())
    await engine.create_budget(budget_id=budget_id, dimensions=["tokens"], hard_limits=[100], soft_limits=[0])
    handle = await claimed(engine, policy={"budget_ids": [budget_id]})
    parent = id_of(handle)
    await engine.advance(handle, children=[child(parent, "one")])
    (own,) = [row for row in await probe.select(Execution, partition=parent.partition) if row.parent]
    assert own.budget_ids == budget_id
    grandchild = child(ExecutionId.parse(own.execution_id), "two")
    await engine.advance(await take(engine, "children"), children=[grandchild])
    assert {row.budget_ids for row in await probe.select(Execution, partition=parent.partition)} == {budget_id}


async def test_cancelling_the_flow_cancels_parent_and_children(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "one", "two")
    (flow,) = await probe.select(Flow, partition=parent.partition)
    await engine.cancel_flow(flow.flow_id, "cancel_all")
    assert {row.public_state for row in await probe.select(Execution, partition=parent.partition)} == {"cancelled"}
    assert await state(probe, parent) == "cancelled"
    assert await probe.select(Suspension, partition=parent.partition) == []


async def test_cancelling_what_waits_wakes_the_parents(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "one", "two", "three", wake_after=3)
    flow = (await probe.execution(parent)).flow_id
    assert flow is not None
    running = await take(engine, "children")
    await engine.cancel_flow(flow, "cancel_pending")
    assert await state(probe, parent) == "suspended"
    await engine.complete(running, b"")
    assert await state(probe, parent) == "resumable"


async def test_a_cancelled_flow_takes_no_more_children(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    parent = id_of(handle)
    await engine.advance(handle, children=[child(parent, "one")])
    (flow,) = await probe.select(Flow, partition=parent.partition)
    await engine.cancel_flow(flow.flow_id, "flow_only")
    async with refused(probe, State):
        await engine.advance(handle, children=[child(parent, "two")])


# -- parking ---------------------------------------------------------------------------------------------------------


async def test_a_child_that_ends_wakes_its_parent(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "one", "two")
    assert await state(probe, parent) == "suspended"
    assert await engine.claim(LANE, None, policy()) is None
    await engine.complete(await take(engine, "children"), b"42")
    assert await state(probe, parent) == "resumable"
    handle = await take(engine)
    assert handle.kind is HandleKind.RESUMED
    assert payload_of(handle).attempt_index == 0
    ends = await engine.read_ends([child(parent, name)["execution_id"] for name in ("one", "two", "none")])
    assert sorted((end.state, end.result) for end in ends) == [
        (PublicState.COMPLETED, b"42"),
        (PublicState.WAITING, None),
    ]
    await take(engine, "children")
    (running,) = await engine.read_ends([end.execution_id for end in ends if end.result is None])
    assert running.state is PublicState.ACTIVE
    await engine.complete(handle, b"done")
    assert await state(probe, parent) == "completed"
    assert await probe.select(Suspension, partition=parent.partition) == []


async def test_waiting_for_several_children(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "one", "two", "three", wake_after=3)
    for _ in range(2):
        await engine.complete(await take(engine, "children"), b"")
        assert await state(probe, parent) == "suspended"
    failing = await take(engine, "children")
    await engine.fail(failing, "broken", "permanent")
    assert await state(probe, parent) == "resumable"


@pytest.mark.parametrize("how", ["complete", "fail", "cancel", "operator", "flow"])
async def test_the_first_failure_of_several_wakes_who_asks_for_it(engine: Engine, probe: Probe, how: str) -> None:
    parent = await parked(engine, "one", "two", "three", wake_after=3, or_failure=True)
    await engine.complete(await take(engine, "children"), b"")
    assert await state(probe, parent) == "suspended"
    waits_for = (await engine.explain(parent)).detail
    assert isinstance(waits_for, OpenChildren)
    assert waits_for.more_needed == 2
    second = await take(engine, "children")
    if how == "complete":
        await engine.complete(second, b"")
        assert await state(probe, parent) == "suspended"
        await engine.complete(await take(engine, "children"), b"")
    elif how == "fail":
        await engine.fail(second, "broken", "permanent")
    elif how == "cancel":
        await engine.cancel(second, "no more")
    elif how == "operator":
        await engine.cancel_execution(execution_id=id_of(second), reason="stop", source="operator_override")
    else:
        flow = (await probe.execution(parent)).flow_id
        assert flow is not None
        await engine.cancel_flow(flow, "cancel_pending")
    assert await state(probe, parent) == "resumable"


async def test_who_asks_for_failures_is_told_of_every_end_that_was_there(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    parent = id_of(handle)
    names = ("one", "two", "three")
    await engine.advance(handle, children=[child(parent, name) for name in names])
    first = await take(engine, "children")
    await engine.fail(first, "broken", "permanent")
    ids = tuple(child(parent, name)["execution_id"] for name in names)
    answer = await engine.advance(handle, wait=ChildWait(ids, 3, None, True))
    assert (answer.parked, answer.ended) == (False, (id_of(first),))
    left = tuple(each for each in ids if each != id_of(first))
    assert (await engine.advance(handle, wait=ChildWait(left, 2, None, True))).parked
    for _ in left:
        assert await state(probe, parent) == "suspended"
        await engine.complete(await take(engine, "children"), b"")
    assert await state(probe, parent) == "resumable"


@pytest.mark.parametrize("how", ["cancel", "deadline", "operator"])
async def test_every_kind_of_end_wakes(engine: Engine, probe: Probe, clock: ManualClock, how: str) -> None:
    handle = await claimed(engine)
    parent = id_of(handle)
    one = child(parent, "one", execution_deadline_at=START_MS + 50)
    wait = ChildWait((one["execution_id"],), 1)
    assert (await engine.advance(handle, children=[one], wait=wait)).parked
    if how == "cancel":
        await engine.cancel(await take(engine, "children"), "no more")
    elif how == "operator":
        await engine.cancel_execution(execution_id=one["execution_id"], reason="stop", source="operator_override")
    else:
        clock.advance(60)
        await engine.run_due()
    assert await state(probe, parent) == "resumable"


async def test_a_parent_gives_up_its_children(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    parent = id_of(handle)
    ids = [ExecutionId(child(parent, name)["execution_id"]) for name in ("runs", "waits", "done")]
    await engine.advance(handle, children=[child(parent, "done")])
    await engine.complete(await take(engine, "children"), b"")
    await engine.advance(handle, children=[child(parent, "runs")])
    running = await take(engine, "children")
    await engine.advance(handle, children=[child(parent, "waits")])
    for each in (*ids[:2], *ids[:2]):
        assert await engine.cancel_child(handle, each, "enough") == Cancelled(each, PublicState.CANCELLED)
    assert [await state(probe, each) for each in ids] == ["cancelled", "cancelled", "completed"]
    told = await probe.execution(ids[0])
    assert (told.cancellation_reason, told.cancelled_by) == ("enough", "parent")
    for lost in (engine.complete(running, b""), engine.cancel(running)):
        with pytest.raises(EngineError):
            await lost
    with pytest.raises(Validation, match="already terminal in state 'completed'"):
        await engine.cancel_child(handle, ids[2])
    assert await state(probe, parent) == "running"


async def test_nobody_but_the_holder_of_its_parent_gives_up_a_child(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    parent = id_of(handle)
    one, two = child(parent, "one"), child(parent, "two")
    await engine.advance(handle, children=[one])
    nested = await take(engine, "children")
    await engine.advance(nested, children=[two])
    stranger = await create(engine)
    for foreign in (two["execution_id"], stranger, parent, ExecutionId.of(0, str(uuid.uuid4()))):
        with pytest.raises(NotFound):
            await engine.cancel_child(handle, foreign)
    with pytest.raises(NotFound):
        await engine.cancel_child(nested, one["execution_id"])
    await engine.revoke_lease(execution_id=parent)
    with pytest.raises(EngineError) as caught:
        await engine.cancel_child(handle, one["execution_id"])
    assert isinstance(caught.value, Contention | State)
    states = [await state(probe, ExecutionId(each["execution_id"])) for each in (one, two)]
    assert not {"cancelled"} & {*states, await state(probe, stranger)}


async def test_a_child_that_has_ended_is_not_waited_for(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    parent = id_of(handle)
    one, two = child(parent, "one"), child(parent, "two")
    await engine.advance(handle, children=[one, two])
    first = await take(engine, "children")
    await engine.complete(first, b"1")
    ids = (one["execution_id"], two["execution_id"])
    answer = await engine.advance(handle, steps=[NewStep("kept", b"1")], wait=ChildWait(ids, 1))
    assert (answer.parked, answer.ended) == (False, (id_of(first),))
    assert await state(probe, parent) == "running"
    assert [step.name for step in await engine.read_steps(parent)] == ["kept"]
    assert (await engine.advance(handle, wait=ChildWait(ids, 2))).parked
    await engine.complete(await take(engine, "children"), b"2")
    assert await state(probe, parent) == "resumable"


async def test_time_wakes_a_sleeper(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    parent = await parked(engine, until_ms=START_MS + 3_600_000)
    clock.advance(3_599_999)
    await engine.run_due()
    assert await state(probe, parent) == "suspended"
    clock.advance(1)
    await engine.run_due()
    assert await state(probe, parent) == "resumable"
    handle = await take(engine)
    answer = await engine.advance(handle, wait=ChildWait((), 0, START_MS))
    assert not answer.parked, "a time that has passed is not waited for"


async def test_time_wakes_whoever_waits_for_children_too(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    parent = await parked(engine, "one", until_ms=START_MS + 10)
    clock.advance(10)
    await engine.run_due()
    assert await state(probe, parent) == "resumable"
    await engine.complete(await take(engine, "children"), b"")
    assert await state(probe, parent) == "resumable"


async def test_a_child_that_ends_before_its_parent_waits_is_not_missed(engine: Engine, probe: Probe) -> None:
    """Ends and parking meet in every order, also in one batch: the parent goes on every time."""
    for _ in range(25):
        handle = await claimed(engine)
        parent = id_of(handle)
        one = child(parent, "one")
        await engine.advance(handle, children=[one])
        working = await take(engine, "children")
        wait = ChildWait((one["execution_id"],), 1)
        answer, _ = await asyncio.gather(engine.advance(handle, wait=wait), engine.complete(working, b""))
        expected = "resumable" if answer.parked else "running"
        assert await state(probe, parent) == expected
        await engine.complete(await take(engine) if answer.parked else handle, b"")


async def test_a_parent_that_ended_is_left_alone(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    parent = id_of(handle)
    await engine.advance(handle, children=[child(parent, "one")])
    await engine.complete(handle, b"early")
    await engine.complete(await take(engine, "children"), b"")
    assert await state(probe, parent) == "completed"


async def test_an_operator_can_wake_a_parked_execution(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "one")
    await engine.resume_execution(execution_id=parent)
    assert (await take(engine)).kind is HandleKind.RESUMED


async def test_getting_on_forgives_lost_workers(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=1_000)
    parent = id_of(handle)
    clock.advance(1_001)
    await engine.run_due()
    again = await take(engine)
    assert (await probe.execution(parent)).lease_reclaim_count == 1
    await engine.advance(again, wait=ChildWait((), 0, clock.now_ms + 10))
    assert (await probe.execution(parent)).lease_reclaim_count == 0


async def test_so_does_a_step(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """A function of nothing but steps lives through many deploys; one that is lost before its first step does not."""
    handle = await claimed(engine, policy={"max_reclaim_count": 2})
    run = id_of(handle)
    for number in range(6):
        clock.advance(30_001)
        await engine.run_due()
        handle = await take(engine)
        assert (await probe.execution(run)).lease_reclaim_count == 1
        await engine.advance(handle, steps=[NewStep(f"s{number}")], known_steps=number)
        assert (await probe.execution(run)).lease_reclaim_count == 0
    for known in range(1, 4):
        clock.advance(30_001)
        await engine.run_due()
        if known < 3:
            # What is remembered already is no news.
            await engine.advance(await take(engine), steps=[NewStep("s0")], known_steps=6)
            assert (await probe.execution(run)).lease_reclaim_count == known
    assert (await probe.execution(run)).failure_reason == "max_reclaims_exceeded"


# -- forking ---------------------------------------------------------------------------------------------------------


async def test_a_fork_remembers_what_came_before_a_step(engine: Engine, probe: Probe) -> None:
    of_a_child = {"ff.run": "{fp:1}:the-root", "ff.step": "review"}
    handle = await claimed(engine, tags={"app.team": "docs", **of_a_child}, execution_kind="review")
    source = id_of(handle)
    await engine.advance(handle, steps=[NewStep("a", b"1"), NewStep("b", b"2"), NewStep("c", b"3")])
    await engine.complete(handle, b"old")
    forked = await engine.fork_execution(execution_id=source, at="b")
    assert forked.steps == 1
    assert [(step.name, step.value) for step in await engine.read_steps(forked.execution_id)] == [("a", b"1")]
    context = await engine.read_execution_context(forked.execution_id)
    assert (context.execution_kind, context.input_payload) == ("review", b"in")
    assert context.tags == {"app.team": "docs", "ff.forked_from": source}
    again = await take(engine)
    assert id_of(again) == forked.execution_id
    await engine.advance(again, steps=[NewStep("b", b"new")], known_steps=1)
    assert [step.name for step in await engine.read_steps(source)] == ["a", "b", "c"]
    async with refused(probe, NotFound):
        await engine.fork_execution(execution_id=source, at="nothing")
    whole = await engine.fork_execution(execution_id=source, input_payload=b"other")
    assert whole.steps == 3


async def test_a_fork_from_a_step_that_failed_takes_the_name_of_its_call(engine: Engine, probe: Probe) -> None:
    """Its errors are kept per trial; the last one is where it stands, unless it has succeeded since."""
    handle = await claimed(engine)
    source = id_of(handle)

    def failed(name: str) -> NewStep:
        return NewStep(name, b"no", StepOutcome.ERROR)

    trials = [
        [NewStep("pay", b"1"), NewStep("ship", b"2"), failed("mail!0"), NewStep("!failed 0")],
        [NewStep("pack", b"3"), failed("mail!1"), NewStep("a!b", b"4")],
        [failed("ask:go?!1"), failed("pack!1")],
        [NewStep("left>post"), failed("right#2>post!1"), NewStep("left>sort"), NewStep("sort[a>b]")],
    ]
    known = 0
    for steps in trials:
        await engine.advance(handle, steps=steps, known_steps=known)
        known += len(steps)
    await engine.complete(handle, b"")

    async def before(at: str) -> str:
        forked = await engine.fork_execution(execution_id=source, at=at)
        return " ".join(step.name for step in await engine.read_steps(forked.execution_id))

    assert await before("mail") == "pay ship mail!0 !failed 0 pack"
    assert await before("mail!0") == "pay ship"
    assert await before("pack") == "pay ship mail!0 !failed 0"
    assert await before("ask:go?") == "pay ship mail!0 !failed 0 pack mail!1 a!b"
    assert (await before("sort")).endswith("pack!1 left>post right#2>post!1"), "there is one, whichever branch makes it"
    assert (await before("right#2>post")).endswith("pack!1 left>post")
    for at, known in (
        ("post", "left>post, right#2>post"),
        ("a", "pay, ship, mail, pack, a!b, ask:go?, left>post, right#2>post, left>sort, sort[a>b]"),
        ("b]", "pay, ship, mail"),
    ):
        async with refused(probe, NotFound) as error:
            await engine.fork_execution(execution_id=source, at=at)
        assert f"remembers: {known}" in str(error.value)


async def test_a_purged_execution_takes_its_steps_along(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.advance(handle, steps=[NewStep("a", b"1")])
    await engine.complete(handle, b"")
    clock.advance(10**10)
    await engine.trim_retention()
    assert await probe.select(Step, partition=id_of(handle).partition) == []
    assert await create(engine)


async def test_steps_of_executions_that_live_are_listed(engine: Engine) -> None:
    handles = [await claimed(engine) for _ in range(3)]
    for handle in handles:
        await engine.advance(handle, steps=[NewStep(name) for name in ("b", "a", "c[é]")])
    await engine.complete(handles[0], b"")
    listed = []
    after = None
    while page := await engine.list_live_steps(after, 2):
        listed += page
        after = page[-1]
    assert sorted((str(step.execution_id), step.name) for step in listed) == sorted(
        (str(id_of(handle)), name) for handle in handles[1:] for name in ("a", "b", "c[é]")
    )
    assert len(listed) == len(set(listed))


async def test_steps_are_listed_without_their_values(engine: Engine) -> None:
    """In the order they were remembered, and by name where somebody has counted wrongly."""
    handle = await claimed(engine)
    await engine.advance(handle, steps=[NewStep("b", b"12"), NewStep("a"), NewStep("c[é]", b"x" * 5_000)])
    await engine.advance(handle, steps=[NewStep("B", b""), NewStep("z", b"123")], known_steps=0)
    other = await claimed(engine)
    await engine.advance(other, steps=[NewStep("a", b"123456")])
    expected = [(1, "B", 0), (1, "b", 2), (2, "a", 0), (2, "z", 3), (3, "c[é]", 5_000)]
    listed: list[StepPlace] = []
    while page := await engine.list_steps(id_of(handle), listed[-1] if listed else None, 2):
        assert len(page) <= 2
        listed += page
    assert listed == [StepPlace(*each) for each in expected]
    assert await engine.list_steps(id_of(handle), limit=0) == []
    assert await engine.list_steps(ExecutionId.of(0, str(uuid.uuid4()))) == []


async def test_some_steps_are_read_by_name(engine: Engine) -> None:
    handle = await claimed(engine)
    await engine.advance(handle, steps=[NewStep("b", b"12"), NewStep("a", b"1"), NewStep("c", b"x" * 5_000)])
    found = await engine.read_steps(id_of(handle), ["a", "none", "b", "a"])
    assert [(each.name, each.value) for each in found] == [("b", b"12"), ("a", b"1")]
    assert await engine.read_steps(id_of(handle), []) == []
    assert await engine.remembered_bytes(id_of(handle), ["a", "c", "none"]) == 5_001
    assert await engine.remembered_bytes(id_of(handle), [*map(str, range(2_500)), "b"]) == 2
    assert await engine.remembered_bytes(id_of(handle), []) == 0


# -- what a cancelled parent leaves behind ----------------------------------------------------------------------------


async def test_children_of_a_cancelled_founder_and_their_flow_end_with_it(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "one", "two")
    await engine.advance(await take(engine, "children"), children=[child(parent, "grandchild")])
    await engine.cancel_execution(execution_id=parent)
    await settle(engine)
    rows = await probe.select(Execution, partition=parent.partition)
    assert [row.public_state for row in rows] == ["cancelled"] * 4
    (flow,) = await probe.select(Flow, partition=parent.partition)
    assert flow.public_flow_state == "cancelled"


async def test_a_cancelled_child_leaves_its_parents_flow_open(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "one", "two", wake_after=2)
    handle = await take(engine, "children")
    await engine.advance(handle, children=[child(parent, "grandchild")])
    await engine.cancel_execution(execution_id=id_of(handle))
    await settle(engine)
    states = sorted(row.public_state for row in await probe.select(Execution, partition=parent.partition))
    assert states == ["cancelled", "cancelled", "suspended", "waiting"]
    (flow,) = await probe.select(Flow, partition=parent.partition)
    assert flow.public_flow_state == "open"


async def test_children_left_behind_by_a_crash_are_found(
    engine: Engine, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await parked(engine, "one", "two")
    with monkeypatch.context() as lost:
        lost.setattr("flowfabric.core.workflows.orphans.left_behind", lambda *_: ())
        await engine.cancel_execution(execution_id=parent)
    children = [row for row in await probe.select(Execution, partition=parent.partition) if row.parent]
    assert [row.public_state for row in children] == ["waiting", "waiting"]
    assert await engine.run_timer("orphan_reconciler") == 2
    children = [row for row in await probe.select(Execution, partition=parent.partition) if row.parent]
    assert [row.public_state for row in children] == ["cancelled", "cancelled"]
    assert await engine.run_timer("orphan_reconciler") == 0


# -- the last steps ---------------------------------------------------------------------------------------------------


async def test_the_end_brings_the_last_steps(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.advance(handle, steps=[NewStep("a", b"1")])
    for _ in range(2):  # repeated after a lost reply, the same answer
        await engine.complete(handle, b"done", steps=[NewStep("b", b"2"), NewStep("c", None)], known_steps=1)
    assert [(step.name, step.sequence) for step in await engine.read_steps(id_of(handle))] == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
    ]
    assert await engine.get_execution_result(id_of(handle)) == b"done"


async def test_a_zombies_end_brings_nothing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=1_000)
    clock.advance(1_000)
    async with refused(probe, State):
        await engine.complete(handle, None, steps=[NewStep("a", b"1")])
    assert await engine.read_steps(id_of(handle)) == []


async def test_last_steps_are_checked(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    for steps in ([NewStep("a", None), NewStep("a", None)], [NewStep("", None)], ["a"]):
        async with refused(probe, Validation):
            await engine.complete(handle, None, steps=steps)  # type: ignore[arg-type]


@pytest.mark.parametrize("failure_class", ["transient", "permanent"])
async def test_a_failure_brings_the_last_steps(engine: Engine, probe: Probe, failure_class: str) -> None:
    retries = {"retry_policy": {"max_retries": 1, "backoff": {"Fixed": {"delay_ms": 1_000}}}}
    handle = await claimed(engine, policy=retries)
    await engine.advance(handle, steps=[NewStep("a", b"1")])
    answers = [
        await engine.fail(handle, "no", failure_class, steps=[NewStep("b", b"2"), NewStep("end", None)], known_steps=1)
        for _ in range(2)
    ]
    assert answers[0] == answers[1], "repeated after a lost reply, the same answer"
    remembered = [(step.name, step.sequence) for step in await engine.read_steps(id_of(handle))]
    assert remembered == [("a", 1), ("b", 2), ("end", 3)]
    assert await state(probe, id_of(handle)) == ("delayed" if failure_class == "transient" else "failed")


async def test_a_failure_whose_steps_are_refused_is_none(
    engine: Engine, probe: Probe, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await claimed(engine, ttl_ms=1_000)
    async with refused(probe, Validation):
        await engine.fail(handle, "no", steps=[NewStep("a"), NewStep("a")])
    with monkeypatch.context() as patch:
        patch.setattr(rules, "MAX_STEPS_PER_EXECUTION", 1)
        async with refused(probe, LimitReached):
            await engine.fail(handle, "no", steps=[NewStep("a"), NewStep("b")])
    clock.advance(1_000)
    async with refused(probe, State):
        await engine.fail(handle, "no", steps=[NewStep("a")])
