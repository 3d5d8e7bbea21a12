"""A grant is unique: a store that has lost acknowledged writes grants an epoch again, but honours only the last holder.

A fail-over to a replica that lagged behind is played by putting rows back to what they were before a claim.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from msgspec import UNSET

from flowfabric import (
    AlreadySatisfied,
    CancelSource,
    Contention,
    ContentionKind,
    FailureClass,
    Frame,
    Handle,
    NotFound,
    Ok,
    Reserved,
    ResumeGrant,
    ResumeToken,
    State,
    StateKind,
    Suspended,
    UsageDimensions,
)
from flowfabric.engine import Engine
from flowfabric.model.operations.workflows import ChildWait, NewStep
from flowfabric.model.records.executions import Attempt, Grant, SuspendDedup, Suspension, Waitpoint
from flowfabric.model.records.past_leases import PastLease
from flowfabric.model.records.streams import StreamHead
from tests.contract import seeding
from tests.contract.admission.test_budgets import ONE, budget, usage
from tests.contract.leases.test_epochs import STEPS, TTL_MS
from tests.contract.probe import (
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
    unchanged,
)
from tests.contract.suspending import asking
from tests.contract.workflows.test_steps import child

LANE = "lane-of-one"
#: The same worker on both sides: its name is no proof either.
WORKER = {"worker_id": "w1", "worker_instance_id": "w1-i1", "lane_id": LANE}
OTHER_ID = "00000000-0000-4000-8000-000000000000"
LOST = "this lease was lost: the store no longer has it and granted its epoch to another worker"


class Rows(NamedTuple):
    """What a store holds of an execution and its leases."""

    execution: Any
    others: dict[Any, dict[Any, Any]]


async def rows_of(probe: Probe, execution_id: str) -> Rows:
    """How it stands now."""
    execution = await probe.execution(execution_id)
    own = {"partition": execution.partition, "uuid": execution.uuid}
    kinds = (Attempt, Grant, PastLease, Suspension, Waitpoint)
    return Rows(execution, {kind: {row.key: row for row in await probe.select(kind, **own)} for kind in kinds})


def _changed(before: Any, after: Any) -> dict[str, Any]:
    names = [name for name in before.__struct_fields__ if getattr(before, name) is not UNSET]
    return {name: getattr(before, name) for name in names if getattr(before, name) != getattr(after, name)}


async def rewind(engine: Engine, probe: Probe, before: Rows) -> None:
    """Put the rows back; what was written since is lost."""
    after = await rows_of(probe, before.execution.execution_id)
    await seeding.alter(engine, before.execution.execution_id, **_changed(before.execution, after.execution))
    for kind, was in before.others.items():
        now = after.others[kind]
        for key in now.keys() - was.keys():
            await seeding.remove(engine, kind, key)
        for key, row in was.items():
            if key not in now:
                await seeding.seed(engine, row)
            elif fields := _changed(row, now[key]):
                await seeding.overwrite(engine, kind, key, **fields)


# -- ways to a lease -------------------------------------------------------------------------------------------------


async def _fresh(engine: Engine, clock: ManualClock) -> str:
    return await create(engine, lane_id=LANE)


async def _promised(engine: Engine, clock: ManualClock) -> str:
    execution_id = await create(engine, lane_id=LANE)
    await engine.issue_claim_grant(execution_id=execution_id, grant_ttl_ms=60_000, **WORKER)
    return execution_id


async def _interrupted(engine: Engine, clock: ManualClock) -> str:
    handle = await claimed(engine)
    await engine.wait_children(handle)
    return id_of(handle)


async def _run_out(engine: Engine, clock: ManualClock) -> str:
    handle = await claimed(engine, ttl_ms=TTL_MS)
    clock.advance(TTL_MS)
    return id_of(handle)


async def _take_over_granted(engine: Engine, clock: ManualClock) -> str:
    execution_id = await _run_out(engine, clock)
    await engine.issue_reclaim_grant(execution_id=execution_id, grant_ttl_ms=60_000, **WORKER)
    return execution_id


async def _claim(engine: Engine, execution_id: str) -> Any:
    return await engine.claim(LANE, (), policy())


async def _claim_many(engine: Engine, execution_id: str) -> Any:
    [handle] = await engine.claim_many(LANE, (), policy(), 3)
    return handle


async def _claim_from_lanes(engine: Engine, execution_id: str) -> Any:
    [handle] = await engine.claim_from_lanes({LANE: 1, "other": 1}, (), policy(), 3)
    return handle


def _leasing(execution_id: str) -> dict[str, Any]:
    return {"execution_id": execution_id, "lease_id": str(uuid4()), "lease_ttl_ms": 30_000, **WORKER}


async def _claim_execution(engine: Engine, execution_id: str) -> Any:
    return (await engine.claim_execution(**_leasing(execution_id), attempt_id=str(uuid4()))).handle


async def _claim_for_worker(engine: Engine, execution_id: str) -> Any:
    await engine.claim_for_worker(**WORKER)
    return await _claim_execution(engine, execution_id)


async def _claim_resumed(engine: Engine, execution_id: str) -> Any:
    return (await engine.claim_resumed_execution(**_leasing(execution_id))).handle


async def _resume_grant(engine: Engine, execution_id: str) -> Any:
    grant = ResumeGrant(execution_id, "{fp:0}", "any", 2**63 - 1, LANE)
    return await engine.claim_from_resume_grant(ResumeToken(grant, "w1", "w1-i1", 30_000))


async def _reclaim(engine: Engine, execution_id: str) -> Any:
    answer: Any = await engine.reclaim_execution(**_leasing(execution_id), attempt_id=str(uuid4()))
    return answer.handle


#: How an execution stands before it is granted, and how it is granted.
GRANTS: dict[str, tuple[Callable[..., Awaitable[str]], Callable[..., Awaitable[Any]]]] = {
    "claim": (_fresh, _claim),
    "claim_many": (_fresh, _claim_many),
    "claim_from_lanes": (_fresh, _claim_from_lanes),
    "claim of an interrupted attempt": (_interrupted, _claim),
    "claim_for_worker": (_fresh, _claim_for_worker),
    "claim_execution": (_promised, _claim_execution),
    "claim_resumed_execution": (_interrupted, _claim_resumed),
    "claim_from_resume_grant": (_run_out, _resume_grant),
    "reclaim_execution": (_take_over_granted, _reclaim),
}
#: Two that matter most: a new attempt id beside the new lease id, and the same attempt id as before.
twice = pytest.mark.parametrize("how", ["claim", "claim_from_resume_grant"])


class Holders(NamedTuple):
    """Two holders of one epoch: the store has forgotten the old one."""

    old: Handle
    new: Handle


async def failed_over(engine: Engine, probe: Probe, clock: ManualClock, how: str = "claim") -> Holders:
    """The store grants a lease, loses the writes of the grant, and grants it again."""
    prepare, grant = GRANTS[how]
    execution_id = await prepare(engine, clock)
    before = await rows_of(probe, execution_id)
    old = await grant(engine, execution_id)
    await rewind(engine, probe, before)
    new = await grant(engine, execution_id)
    one, two = payload_of(old), payload_of(new)
    assert (one.attempt_index, one.lease_epoch) == (two.attempt_index, two.lease_epoch), "it has forgotten the first"
    return Holders(old, new)


@pytest.mark.parametrize("how", GRANTS)
async def test_every_grant_has_a_lease_id_of_its_own(
    engine: Engine, probe: Probe, clock: ManualClock, how: str
) -> None:
    old, new = await failed_over(engine, probe, clock, how)
    stored = (await probe.attempts(id_of(new)))[payload_of(new).attempt_index]
    assert payload_of(old).lease_id != payload_of(new).lease_id == stored.lease_id
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT, f"execution {id_of(old)}: {LOST}"):
        await engine.renew(old)
    await engine.renew(new)
    await engine.complete(new, b"done")


# -- what a holder does ----------------------------------------------------------------------------------------------


class Act(NamedTuple):
    """Something a holder does, and what it is answered with if its lease was lost."""

    call: Callable[[Engine, Handle], Awaitable[Any]]
    family: Any = Contention
    kind: Any = ContentionKind.LEASE_CONFLICT


def _named(handle: Handle, **more: Any) -> dict[str, Any]:
    held = payload_of(handle)
    given = {"execution_id": id_of(handle), "attempt_index": held.attempt_index, "fence": fence_of(handle)}
    return {**given, **more}


def _fenced(call: Callable[[Engine, Handle], Awaitable[Any]]) -> Act:
    return Act(call, State, StateKind.STALE_LEASE)


#: Everything that a holder, or whoever shows its fence, can do.
ACTS: dict[str, Act] = {
    "renew": Act(lambda e, h: e.renew(h)),
    "progress": Act(lambda e, h: e.progress(h, 10, "half")),
    "append_frame": Act(lambda e, h: e.append_frame(h, Frame(b"line"))),
    "append_frames": Act(lambda e, h: e.append_frames(h, [Frame(b"a"), Frame(b"b")], 1)),
    "complete": Act(lambda e, h: e.complete(h, b"result", steps=[NewStep("last", b"1")])),
    "fail": Act(lambda e, h: e.fail(h, "boom")),
    "cancel": Act(lambda e, h: e.cancel(h, "enough")),
    "delay": Act(lambda e, h: e.delay(h, START_MS + 60_000)),
    "decline": Act(lambda engine, handle: engine.decline(handle, "unknown")),
    "wait_children": Act(lambda e, h: e.wait_children(h)),
    "suspend": Act(lambda e, h: e.suspend(h, asking())),
    "create_waitpoint": Act(lambda e, h: e.create_waitpoint(h, "early", 1_000)),
    "observe_signals": Act(lambda e, h: e.observe_signals(h)),
    "advance": Act(
        lambda e, h: e.advance(
            h, steps=[NewStep("one", b"1")], children=[child(id_of(h), "more")], wait=ChildWait((), 0, 2**50)
        )
    ),
    "cancel_child": Act(lambda e, h: e.cancel_child(h, child(id_of(h), "first")["execution_id"])),
    "reserve_budget": Act(lambda e, h: e.reserve_budget(h, ONE, {"a": 1}, "key")),
    "renew_lease": _fenced(lambda e, h: e.renew_lease(**_named(h), lease_ttl_ms=60_000)),
    "complete_execution": _fenced(lambda e, h: e.complete_execution(**_named(h))),
    "fail_execution": _fenced(lambda e, h: e.fail_execution(**_named(h), failure_reason="boom")),
    "delay_execution": _fenced(lambda e, h: e.delay_execution(**_named(h), delay_until=START_MS + 1_000)),
    "move_to_waiting_children": _fenced(lambda e, h: e.move_to_waiting_children(**_named(h))),
    "suspend_by_triple": _fenced(lambda e, h: e.suspend_by_triple(id_of(h), fence_of(h), asking())),
    "cancel_execution": _fenced(
        lambda e, h: e.cancel_execution(
            execution_id=id_of(h),
            source=CancelSource.LEASE_HOLDER,
            lease_id=payload_of(h).lease_id,
            lease_epoch=payload_of(h).lease_epoch,
        )
    ),
}
#: These answer instead of raising; see below.
ANSWERING = {"give_back", "renew_many", "lost_leases", "look_at_leases"}
#: What was used was used, whoever holds the lease by now; a reservation is named by an id that only its maker knows.
UNFENCED = {"report_usage", "settle_reservation", "release_reservation"}
every_act = pytest.mark.parametrize("act", ACTS)


def test_no_operation_of_a_holder_is_missing() -> None:
    """Whatever takes a handle or a fence is one of them."""
    found = set()
    for name, method in inspect.getmembers(Engine, inspect.isfunction):
        for taken in inspect.signature(method).parameters.values():
            shows = taken.name == "lease_epoch" or re.search(r"\b(Handle|LeaseFence)\b", str(taken.annotation))
            if shows and not name.startswith("_"):
                found.add(name)
    assert found == ACTS.keys() | ANSWERING | UNFENCED


async def _equipped(engine: Engine, probe: Probe, clock: ManualClock) -> Holders:
    """With a budget and a child, so that everything can be done."""
    await budget(engine, ONE, {"a": 10})
    holders = await failed_over(engine, probe, clock)
    await engine.advance(holders.new, children=[child(id_of(holders.new), "first")])
    return holders


@every_act
async def test_a_forgotten_holder_is_refused_and_its_successor_goes_on(
    engine: Engine, probe: Probe, clock: ManualClock, act: str
) -> None:
    holders = await _equipped(engine, probe, clock)
    call, family, kind = ACTS[act]
    async with refused(probe, family, kind, f"execution {id_of(holders.old)}: {LOST}"):
        await call(engine, holders.old)
    await call(engine, holders.new)


async def test_renewing_many_leases_tells_which_was_forgotten(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    holders = await failed_over(engine, probe, clock)
    clock.advance(10)
    async with unchanged(probe):
        [error] = await engine.renew_many([holders.old])
    assert isinstance(error, Contention)
    assert (error.kind, error.detail) == (ContentionKind.LEASE_CONFLICT, f"execution {id_of(holders.old)}: {LOST}")
    renewed: Any = (await engine.renew_many(list(holders)))[1]
    assert renewed.lease_epoch == payload_of(holders.new).lease_epoch
    assert await engine.lost_leases(list(holders)) == [holders.old]


async def test_a_forgotten_holder_gives_nothing_back(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    holders = await failed_over(engine, probe, clock)
    async with unchanged(probe):
        assert await engine.give_back(holders.old) == AlreadySatisfied("lease_id_mismatch")
    await engine.give_back(holders.new)
    assert (await probe.execution(id_of(holders.new))).lifecycle_phase == "runnable"


async def test_what_was_used_is_charged_and_what_was_set_aside_is_gone(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    """A reservation is no row of the lease: only one that the store still knows can be settled or released."""
    holders = await _equipped(engine, probe, clock)
    mine = await engine.reserve_budget(holders.new, ONE, {"a": 3})
    assert isinstance(mine, Reserved)
    assert isinstance(await engine.report_usage(holders.old, ONE, UsageDimensions(custom={"a": 1})), Ok)
    async with unchanged(probe):
        with pytest.raises(NotFound):
            await engine.release_reservation(OTHER_ID, holders.old)
        with pytest.raises(NotFound):
            await engine.settle_reservation(OTHER_ID, {"a": 1}, holders.old)
    await engine.settle_reservation(mine.reservation_id, {"a": 2}, holders.new)
    assert await usage(engine) == {"a": 3}


async def test_a_fence_shows_its_lease_however_that_is_written(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    named, lease_id = _named(handle), payload_of(handle).lease_id
    for written in (lease_id.upper(), lease_id.replace("-", "")):
        await engine.renew_lease(**{**named, "fence": fence_of(handle, lease_id=written)}, lease_ttl_ms=60_000)
    for other in (OTHER_ID, "x", probe.lease_id(id_of(handle), 0, 1)):
        async with refused(probe, State, StateKind.STALE_LEASE):
            await engine.renew_lease(**{**named, "fence": fence_of(handle, lease_id=other)}, lease_ttl_ms=60_000)


# -- the order of the gates ------------------------------------------------------------------------------------------


@twice
async def test_the_lease_id_is_compared_last(engine: Engine, probe: Probe, clock: ManualClock, how: str) -> None:
    old, new = await failed_over(engine, probe, clock, how)
    clock.advance(30_000)
    for call in (engine.renew(old), engine.renew_lease(**_named(old), lease_ttl_ms=1)):
        async with refused(probe, State, StateKind.LEASE_EXPIRED):
            await call
    await seeding.alter(engine, id_of(new), ownership_state="lease_revoked")
    for call in (engine.renew(old), engine.renew_lease(**_named(old), lease_ttl_ms=1)):
        async with refused(probe, State, StateKind.LEASE_REVOKED):
            await call


@twice
async def test_a_forgotten_holder_cannot_take_the_end_for_its_own(
    engine: Engine, probe: Probe, clock: ManualClock, how: str
) -> None:
    """Epoch and attempt, by which callers recognise an end of theirs, are told only to the holder of the lease."""
    old, new = await failed_over(engine, probe, clock, how)
    await engine.complete(new, b"mine")
    for call in (engine.progress(old, 5), engine.complete_execution(**_named(old))):
        async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE) as caught:
            await call
        told: Any = caught.value
        assert told.detail == f"execution {id_of(old)} is completed; {LOST}"
        facts = (told.lifecycle_phase, told.terminal_outcome, told.lease_epoch, told.attempt_id)
        assert facts == ("terminal", "success", None, None)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE) as caught:
        await engine.progress(new, 5)
    own: Any = caught.value
    assert (own.lease_epoch, own.attempt_id) == (payload_of(new).lease_epoch, payload_of(new).attempt_id)


# -- repeated calls --------------------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[Engine, Handle], Awaitable[Any]]] = {
    "complete": lambda e, h: e.complete(h, b"result"),
    "fail": lambda e, h: e.fail(h, "boom", FailureClass.PERMANENT),
    "retry": lambda e, h: e.fail(h, "boom"),
    "cancel": lambda e, h: e.cancel(h, "enough"),
}


@twice
@pytest.mark.parametrize("end", ENDS)
async def test_an_end_repeated_by_a_forgotten_holder_is_no_repeat(
    engine: Engine, probe: Probe, clock: ManualClock, how: str, end: str
) -> None:
    old, new = await failed_over(engine, probe, clock, how)
    first = await ENDS[end](engine, new)
    for again in ENDS.values():
        async with refused(probe, Contention):
            await again(engine, old)
    async with unchanged(probe):
        assert await ENDS[end](engine, new) == first


async def test_an_append_of_a_forgotten_lease_does_not_count(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Frames may be kept where the grant was not: the number of the old lease is not the new one's."""
    execution_id = await create(engine, lane_id=LANE)
    before = await rows_of(probe, execution_id)
    old = await _claim(engine, execution_id)
    kept = await engine.append_frames(old, [Frame(b"old"), Frame(b"older")], 7)
    await rewind(engine, probe, before)
    new = await _claim(engine, execution_id)
    first = await engine.append_frame(new, Frame(b"new"), 1)
    async with unchanged(probe):
        assert await engine.append_frame(new, Frame(b"new"), 1) == first
    page = await engine.read_stream(execution_id)
    assert [each.id for each in page.frames] == [*(each.stream_id for each in kept), first.stream_id]


async def test_a_suspension_of_another_lease_is_not_answered(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """The answer holds tokens: it is for whoever was suspended."""
    old, new = await failed_over(engine, probe, clock)
    args = asking(idempotency_key="step 1")
    first = await engine.suspend(new, args)
    async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
        await engine.suspend(old, args)
    async with refused(probe, Contention, ContentionKind.EXECUTION_NOT_ACTIVE):
        await engine.suspend_by_triple(id_of(old), fence_of(old), args)
    async with unchanged(probe):
        assert await engine.suspend(new, args) == first
        assert await engine.suspend_by_triple(id_of(new), fence_of(new), args) == first


async def test_a_remembered_suspension_of_a_forgotten_lease_is_made_anew(engine: Engine, probe: Probe) -> None:
    execution_id = await create(engine, lane_id=LANE)
    before = await rows_of(probe, execution_id)
    args = asking(idempotency_key="step 1")
    lost = await engine.suspend(await _claim(engine, execution_id), args)
    await rewind(engine, probe, before)
    new = await _claim(engine, execution_id)
    answer = await engine.suspend(new, args)
    assert isinstance(answer, Suspended)
    assert answer.details.waitpoint_id != lost.details.waitpoint_id
    async with unchanged(probe):
        assert await engine.suspend(new, args) == answer


async def test_what_was_remembered_without_a_lease_id_belongs_to_its_epoch(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    first = await engine.append_frame(handle, Frame(b"a"), 1)
    key = (str.__str__(id_of(handle)), 0)
    await seeding.overwrite(engine, StreamHead, key, last_numbered=f"1.1.{START_MS}.0.1")
    async with unchanged(probe):
        assert await engine.append_frame(handle, Frame(b"a"), 1) == first
    args = asking(idempotency_key="step 1")
    told = await engine.suspend(handle, args)
    [row] = await probe.select(SuspendDedup, partition=id_of(handle).partition)
    document = json.loads(row.outcome_json)
    del document["lease"]
    await seeding.overwrite(engine, SuspendDedup, row.key, outcome_json=json.dumps(document))
    async with unchanged(probe):
        assert await engine.suspend(forged(handle, lease_id=OTHER_ID), args) == told


# -- the id of a lease, while it stands and afterwards ---------------------------------------------------------------


async def test_a_lease_keeps_its_id(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    for step in ("renew", "progress", "append_frame", "create_waitpoint", "renew_lease"):
        clock.advance(1)
        await ACTS[step].call(engine, handle)
        [attempt] = await probe.attempts(id_of(handle))
        assert attempt.lease_id == payload_of(handle).lease_id
    await engine.complete(handle, None)
    [attempt] = await probe.attempts(id_of(handle))
    assert attempt.lease_id == payload_of(handle).lease_id, "a repeated call is recognised by it"


async def _suspend(engine: Engine, clock: ManualClock, handle: Handle) -> None:
    await engine.suspend(handle, asking())
    await engine.resume_execution(execution_id=id_of(handle))


#: What ends a lease while the execution goes on, and the policy it needs.
RELEASES: dict[str, tuple[Any, Any]] = {
    "suspend": (_suspend, None),
    "give back": (lambda engine, clock, handle: engine.give_back(handle), None),
    **{
        name: STEPS[name][:2]
        for name in (
            *("fail, retried", "delay", "wait_children", "revoke"),
            *("lease expiry", "attempt timeout, retried", "replay"),
        )
    },
}


@pytest.mark.parametrize("how", RELEASES)
async def test_the_id_of_a_lease_that_is_over_fits_nobody(
    engine: Engine, probe: Probe, clock: ManualClock, how: str
) -> None:
    """Whatever ended it, and even if the counters of the store went back."""
    release, own = RELEASES[how]
    handle = await claimed(engine, ttl_ms=TTL_MS, policy=own)
    execution_id = id_of(handle)
    await release(engine, clock, handle)
    await engine.run_timer("delayed_promoter")
    successor = await engine.claim(LANE, (), policy())
    assert successor is not None
    assert payload_of(successor).lease_id != payload_of(handle).lease_id
    index, epoch = payload_of(successor).attempt_index, payload_of(handle).lease_epoch
    await seeding.alter_attempt(engine, execution_id, index, lease_epoch=epoch)
    for stale in (handle, forged(handle, attempt_index=index)):
        async with refused(probe, Contention, ContentionKind.LEASE_CONFLICT):
            await engine.renew(stale)
    await engine.renew(forged(successor, lease_epoch=epoch))


# -- rows that people wrote ------------------------------------------------------------------------------------------


@every_act
async def test_without_a_stored_lease_id_the_epoch_decides(engine: Engine, probe: Probe, act: str) -> None:
    await budget(engine, ONE, {"a": 10})
    handle = await claimed(engine)
    await engine.advance(handle, children=[child(id_of(handle), "first")])
    await seeding.alter_attempt(engine, id_of(handle), lease_id=None)
    call, family, kind = ACTS[act]
    async with refused(probe, family, kind):
        await call(engine, forged(handle, lease_epoch=2))
    await call(engine, forged(handle, lease_id=OTHER_ID))


@pytest.mark.parametrize("end", ENDS)
async def test_without_a_stored_lease_id_the_epoch_tells_a_repeat(engine: Engine, probe: Probe, end: str) -> None:
    handle = await claimed(engine)
    await seeding.alter_attempt(engine, id_of(handle), lease_id=None)
    first = await ENDS[end](engine, handle)
    async with unchanged(probe):
        assert await ENDS[end](engine, forged(handle, lease_id=OTHER_ID)) == first


async def test_without_a_stored_lease_id_a_holder_can_give_back(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await seeding.alter_attempt(engine, id_of(handle), lease_id=None)
    await engine.give_back(forged(handle, lease_id=OTHER_ID))
    assert (await probe.execution(id_of(handle))).lifecycle_phase == "runnable"


# -- cancelling by id ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["stored", "upper case", "shown", "none"])
async def test_a_lease_can_be_shown_in_every_way_it_is_known(engine: Engine, probe: Probe, written: str) -> None:
    handle = await claimed(engine)
    held = payload_of(handle)
    shown = {
        "stored": held.lease_id,
        "upper case": held.lease_id.upper(),
        "shown": probe.lease_id(id_of(handle), 0, 1),
        "none": None,
    }[written]
    given: dict[str, Any] = {"execution_id": id_of(handle), "source": "lease_holder", "lease_epoch": 1}
    for other in (OTHER_ID, "x", probe.lease_id(id_of(handle), 0, 2)):
        async with refused(probe, State, StateKind.STALE_LEASE):
            await engine.cancel_execution(**given, lease_id=other)
    await engine.cancel_execution(**given, lease_id=shown)
    assert (await probe.execution(id_of(handle))).lifecycle_phase == "cancelled"


async def test_an_operator_cancels_whatever_lease_it_shows(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.cancel_execution(execution_id=id_of(handle), lease_id=OTHER_ID, lease_epoch=99)
    assert (await probe.execution(id_of(handle))).lifecycle_phase == "cancelled"
