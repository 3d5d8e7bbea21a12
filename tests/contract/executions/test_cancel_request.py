"""Asking an execution to end: remembered once, heard wherever it is, and bounded by the time its policy gives."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from flowfabric import (
    Cancelled,
    Cancelling,
    Contention,
    ExecutionId,
    FailureClass,
    Handle,
    NotFound,
    PublicState,
    Validation,
)
from flowfabric.engine import Engine
from flowfabric.model.operations.workflows import CANCEL_MARK, ChildWait, NewStep
from flowfabric.model.records.executions import Suspension
from tests.contract.graphs import settle
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, policy, refused, unchanged
from tests.contract.workflows.test_steps import LANE, child, state, take

GRACE_MS = 10_000
GRACE = {"cancel_grace_ms": GRACE_MS}


async def running(engine: Engine, **arguments: Any) -> Handle:
    """An execution that may clean up, held by somebody."""
    return await claimed(engine, policy=GRACE, **arguments)


async def parked(engine: Engine, *names: str, until_ms: int | None = None, **more: Any) -> ExecutionId:
    """One that waits for its children."""
    handle = await running(engine)
    parent = id_of(handle)
    children = [child(parent, name, **more) for name in names]
    wait = ChildWait(tuple(each["execution_id"] for each in children), 1 if names else 0, until_ms)
    assert (await engine.advance(handle, children=children, wait=wait)).parked
    return parent


# -- the request -----------------------------------------------------------------------------------------------------


async def test_one_that_is_parked_goes_on_at_once(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "a")
    answer = await engine.request_cancel(execution_id=parent, reason="too dear")
    assert answer == Cancelling(parent, START_MS + GRACE_MS)
    assert await state(probe, parent) == "resumable"
    handle = await take(engine)
    context = (await engine.read_execution_contexts([parent]))[parent]
    assert (context.cancel_at, context.cancel_reason) == (START_MS + GRACE_MS, "too dear")
    assert await engine.read_execution_context(parent) == context
    assert await engine.cancel(handle, "") == Cancelled(parent, PublicState.CANCELLED)
    assert await engine.cancel(handle, "") == Cancelled(parent, PublicState.CANCELLED)
    row = await probe.execution(parent)
    assert (row.public_state, row.cancellation_reason, row.cancelled_by) == (
        "cancelled",
        "too dear",
        "operator_override",
    )
    assert await probe.completions(parent) == ["cancelled"]


async def test_asking_again_changes_nothing(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    parent = await parked(engine, "a")
    first = await engine.request_cancel(execution_id=parent, reason="first")
    clock.advance(1_000)
    async with unchanged(probe):
        assert await engine.request_cancel(execution_id=parent, reason="second") == first
    handle = await take(engine)
    await engine.cancel(handle)
    await settle(engine)
    async with unchanged(probe):
        assert await engine.request_cancel(execution_id=parent) == Cancelled(parent, PublicState.CANCELLED)
    assert (await probe.execution(parent)).cancellation_reason == "first"


async def test_what_cannot_be_asked_ends_at_once(engine: Engine, probe: Probe) -> None:
    plain = id_of(await claimed(engine))
    assert await engine.request_cancel(execution_id=plain, reason="now") == Cancelled(plain, PublicState.CANCELLED)
    never_begun = await create(engine, policy=GRACE)
    assert isinstance(await engine.request_cancel(execution_id=never_begun, reason="now"), Cancelled)
    no_time = id_of(await claimed(engine, policy={"cancel_grace_ms": 0}))
    assert isinstance(await engine.request_cancel(execution_id=no_time), Cancelled)
    assert [await state(probe, each) for each in (plain, never_begun, no_time)] == ["cancelled"] * 3


async def test_what_has_ended_otherwise_is_refused(engine: Engine, probe: Probe) -> None:
    handle = await running(engine)
    await engine.complete(handle, b"done")
    async with refused(probe, Validation):
        await engine.request_cancel(execution_id=id_of(handle))
    async with refused(probe, NotFound):
        await engine.request_cancel(execution_id="{fp:0}:00000000-0000-4000-8000-000000000000")


async def test_a_pause_before_a_retry_is_over(engine: Engine, probe: Probe) -> None:
    backoff = {"type": "fixed", "delay_ms": 3_600_000}
    handle = await claimed(engine, policy={**GRACE, "retry_policy": {"max_retries": 3, "backoff": backoff}})
    await engine.fail(handle, "no luck")
    assert await state(probe, id_of(handle)) == "delayed"
    assert isinstance(await engine.request_cancel(execution_id=id_of(handle)), Cancelling)
    assert id_of(await take(engine)) == id_of(handle)


# -- whoever holds it ------------------------------------------------------------------------------------------------


async def test_a_holder_hears_of_it_and_is_not_parked(engine: Engine, probe: Probe) -> None:
    handle = await running(engine)
    other = await claimed(engine, lane_id="other")
    assert (await engine.look_at_leases([handle, other])) == ([], [])
    await engine.request_cancel(execution_id=id_of(handle), reason="enough")
    look = await engine.look_at_leases([handle, other])
    assert (look.lost, look.cancelling) == ([], [handle])
    assert (await engine.advance(handle, steps=[NewStep("a", b"1")])).cancelling
    wait = ChildWait((), 0, START_MS + 60_000)
    answer = await engine.advance(handle, steps=[NewStep("b", b"2")], known_steps=1, wait=wait)
    assert (answer.parked, answer.cancelling, [step.name for step in answer.steps]) == (False, True, ["b"])
    assert await state(probe, id_of(handle)) == "running"
    assert (await engine.advance(handle, wait=wait, known_steps=2, cancel_known=True)).parked
    assert await state(probe, id_of(handle)) == "suspended"


async def test_it_may_end_as_it_likes(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await running(engine)
    await engine.request_cancel(execution_id=id_of(handle), reason="enough")
    await engine.complete(handle, b"done all the same")
    assert await state(probe, id_of(handle)) == "completed"
    clock.advance(GRACE_MS)
    await engine.run_due()
    assert await state(probe, id_of(handle)) == "completed"


# -- the limit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [True, False])
async def test_when_its_time_is_over_it_ends(engine: Engine, probe: Probe, clock: ManualClock, held: bool) -> None:
    parent = await parked(engine, "a", lane_id="children", policy=GRACE)
    started = ExecutionId.parse(child(parent, "a")["execution_id"])
    await take(engine, "children")
    await engine.request_cancel(execution_id=parent, reason="too dear")
    assert await engine.next_due_ms() == START_MS + GRACE_MS
    handle = await take(engine) if held else None
    clock.advance(GRACE_MS - 1)
    await engine.run_timer("execution_deadline")
    assert await state(probe, parent) == ("running" if held else "resumable")
    clock.advance(1)
    await engine.run_timer("execution_deadline")
    row = await probe.execution(parent)
    assert (row.public_state, row.cancellation_reason) == ("cancelled", "too dear")
    assert await probe.completions(parent) == ["cancelled"]
    # What it had started is not asked any more.
    await settle(engine)
    assert await state(probe, started) == "cancelled"
    if handle is not None:
        async with refused(probe, Contention):
            await engine.advance(handle, steps=[NewStep("late")])


async def test_an_earlier_deadline_stays(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await running(engine, execution_deadline_at=START_MS + 4_000)
    answer = await engine.request_cancel(execution_id=id_of(handle), reason="enough")
    assert answer == Cancelling(id_of(handle), START_MS + 4_000)
    clock.advance(4_000)
    await engine.run_timer("execution_deadline")
    assert await state(probe, id_of(handle)) == "cancelled"


async def test_a_claim_does_not_prolong_it(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, policy={**GRACE, "retry_policy": {"max_retries": 3}})
    identity = id_of(handle)
    await engine.fail(handle, "no luck")
    await engine.request_cancel(execution_id=identity)
    worker = {"worker_id": "w1", "worker_instance_id": "w1-i1", "lane_id": LANE}
    await engine.issue_claim_grant(execution_id=identity, **worker)
    await engine.claim_execution(
        execution_id=identity,
        **worker,
        lease_id=str(uuid.uuid4()),
        lease_ttl_ms=1_000,
        attempt_id=str(uuid.uuid4()),
        expected_attempt_index=1,
        execution_deadline_at=START_MS + 10 * GRACE_MS,
    )
    row = await probe.execution(identity)
    assert (row.public_state, row.deadline_at_ms) == ("running", START_MS + GRACE_MS)


async def test_cancelling_at_once_stays_possible(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "a", policy=GRACE)
    started = ExecutionId.parse(child(parent, "a")["execution_id"])
    await take(engine, "children")
    await engine.request_cancel(execution_id=parent, reason="please")
    await engine.cancel_execution(execution_id=parent, reason="now")
    await settle(engine)
    row = await probe.execution(parent)
    assert (row.public_state, row.cancellation_reason, row.cancel_at_ms) == ("cancelled", "now", None)
    assert await state(probe, started) == "cancelled"
    assert await probe.select(Suspension, partition=parent.partition, uuid=parent.uuid_text) == []


# -- children --------------------------------------------------------------------------------------------------------


async def test_a_child_that_is_given_up_is_asked(engine: Engine, probe: Probe) -> None:
    parent = await parked(engine, "plain")
    await engine.request_cancel(execution_id=parent)
    handle = await take(engine)
    kinds = {"asked": GRACE, "task": None}
    children = {name: child(parent, name, policy=each) for name, each in kinds.items()}
    await engine.advance(handle, children=list(children.values()))
    begun = [await take(engine, "children") for _ in range(3)]
    assert len(begun) == 3
    asked, task = (ExecutionId.parse(children[name]["execution_id"]) for name in kinds)
    first = await engine.cancel_child(handle, asked, "given up")
    assert first == Cancelling(asked, START_MS + GRACE_MS)
    async with unchanged(probe):
        assert await engine.cancel_child(handle, asked, "again") == first
    assert await engine.cancel_child(handle, task, "given up") == Cancelled(task, PublicState.CANCELLED)
    assert (await probe.execution(asked)).cancelled_by == "parent"


async def test_children_of_one_that_ends_as_asked_are_asked(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    parent = await parked(engine, "a", "b", policy=GRACE)
    a, b = (ExecutionId.parse(child(parent, name)["execution_id"]) for name in ("a", "b"))
    held = await take(engine, "children")
    await engine.request_cancel(execution_id=parent)
    await engine.cancel(await take(engine))
    await settle(engine)
    assert await state(probe, parent) == "cancelled"
    begun, waiting = (a, b) if id_of(held) == a else (b, a)
    assert (await state(probe, begun), await state(probe, waiting)) == ("running", "cancelled")
    assert (await probe.execution(begun)).cancel_at_ms == START_MS + GRACE_MS
    # The timer that looks for what was left behind leaves it in peace, and it may start others.
    await engine.run_timer("orphan_reconciler")
    tidying = child(begun, "tidy")
    await engine.advance(held, children=[tidying])
    assert await state(probe, ExecutionId.parse(tidying["execution_id"])) == "waiting"
    clock.advance(GRACE_MS)
    await engine.run_timer("execution_deadline")
    await settle(engine)
    assert await state(probe, begun) == "cancelled"
    assert await state(probe, ExecutionId.parse(tidying["execution_id"])) == "cancelled"


# -- afterwards ------------------------------------------------------------------------------------------------------


async def test_a_replay_is_not_asked_any_more(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await running(engine)
    await engine.request_cancel(execution_id=id_of(handle), reason="enough")
    await engine.fail(handle, "cannot tidy up", FailureClass.PERMANENT)
    assert await state(probe, id_of(handle)) == "failed"
    clock.advance(GRACE_MS)
    await engine.replay_execution(execution_id=id_of(handle))
    await engine.run_due()
    assert id_of(await take(engine)) == id_of(handle)
    context = await engine.read_execution_context(id_of(handle))
    assert (context.cancel_at, context.cancel_reason) == (None, "")


async def test_a_fork_does_not_remember_the_end(engine: Engine) -> None:
    handle = await running(engine)
    done = [NewStep("a", b"1"), NewStep(f"{CANCEL_MARK}0"), NewStep("tidied", b"2")]
    await engine.advance(handle, steps=done)
    forked = await engine.fork_execution(execution_id=id_of(handle))
    assert [step.name for step in await engine.read_steps(forked.execution_id)] == ["a"]
    named = await engine.fork_execution(execution_id=id_of(handle), at="tidied")
    assert named.steps == 2


async def test_it_is_explained(engine: Engine, clock: ManualClock) -> None:
    parent = await parked(engine, "a")
    await engine.request_cancel(execution_id=parent)
    clock.advance(4_000)
    sentence = (await engine.explain(parent)).sentence
    assert sentence.startswith("It was asked to cancel and has 6 s")
    assert "It is waiting for a worker" in sentence
    await engine.claim(LANE, None, policy())
    assert (await engine.explain(parent)).sentence.endswith("It is running on worker w1-i1.")


async def test_it_is_explained_with_what_it_waits_for(engine: Engine) -> None:
    handle = await running(engine)
    parent = id_of(handle)
    await engine.request_cancel(execution_id=parent)
    cleanup = child(parent, "b", execution_kind="release", lane_id="elsewhere")
    wait = ChildWait((cleanup["execution_id"],), 1)
    assert (await engine.advance(handle, children=[cleanup], wait=wait, cancel_known=True)).parked
    found = await engine.explain(parent)
    asked = "It was asked to cancel and has 10 s left to clean up. "
    assert [each.sentence.startswith(asked) for each in found.chain] == [True, False]
    assert found.sentence == (
        f"{asked}It is waiting for release: it is waiting for a worker; none is registered for lane elsewhere, "
        "none are ahead of it."
    )
