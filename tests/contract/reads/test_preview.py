"""What an act would do, told before it is done: the preview agrees with the act, and changes nothing."""

from __future__ import annotations

import pytest

from flowfabric import Cancelled, Cancelling, EngineError, ExecutionId, FailureClass, NotFound, Replayed
from flowfabric.engine import Engine
from flowfabric.model.operations.workflows import ChildWait, NewStep, StepOutcome
from tests.contract.probe import Probe, claimed, create, id_of, policy, unchanged
from tests.contract.workflows.test_steps import child

GRACE = {"cancel_grace_ms": 10_000}


async def failed_workflow(engine: Engine) -> ExecutionId:
    """Two calls were made, one of them failed, and with it the run."""
    handle = await claimed(engine, policy={"max_replay_count": 1})
    done = NewStep("charge", b"1")
    broken = NewStep("ship!0", b"no", StepOutcome.ERROR)
    await engine.advance(handle, steps=[done, broken, NewStep("!failed 0", b"")])
    await engine.fail(handle, "no courier", FailureClass.PERMANENT)
    return id_of(handle)


async def test_a_workflow_that_failed_continues(engine: Engine, probe: Probe) -> None:
    run = await failed_workflow(engine)
    async with unchanged(probe):
        told = await engine.preview_actions(run)
    assert told.replay.possible
    assert told.replay.sentence == (
        "It continues where it stopped: 1 recorded step is kept and not run again. Replay 1 of 1."
    )
    assert told.fork_at == "ship!0"
    assert told.fork.possible
    assert (told.cancel.possible, told.cancel.sentence) == (False, "It has already ended: failed.")
    assert not told.terminate.possible
    assert not told.revoke_lease.possible
    assert not told.change_priority.possible
    assert isinstance(await engine.replay_execution(execution_id=run), Replayed)
    assert [step.name for step in await engine.read_steps(run)][:1] == ["charge"]
    assert not (await engine.preview_actions(run)).replay.possible
    handle = await engine.claim("lane-of-one", policy=policy())
    assert handle is not None
    await engine.fail(handle, "no courier", FailureClass.PERMANENT)
    told = await engine.preview_actions(run)
    assert told.replay.sentence == "No replays left: it has used all 1. Fork it, or start a new run."
    with pytest.raises(EngineError):
        await engine.replay_execution(execution_id=run)


async def test_who_may_clean_up(engine: Engine, probe: Probe) -> None:
    held = id_of(await claimed(engine, policy=GRACE))
    async with unchanged(probe):
        told = await engine.preview_actions(held)
    assert told.cancel.sentence == "It gets 10 s to clean up. Then it is cancelled, whether or not it is done."
    assert told.terminate.sentence == (
        "It ends now, without cleaning up. It is running on w1-i1, whose result will be ignored."
    )
    assert told.revoke_lease.sentence.startswith(
        "w1-i1 loses the lease, and its result will be ignored. It goes back to lane"
    )
    assert isinstance(await engine.request_cancel(execution_id=held), Cancelling)
    told = await engine.preview_actions(held)
    assert told.cancel.sentence == "It was already asked to cancel and has 10 s left to clean up."
    plain = id_of(await claimed(engine, lane_id="other"))
    assert (await engine.preview_actions(plain)).cancel.sentence.startswith("It ends now. It is running on w1-i1")
    assert isinstance(await engine.request_cancel(execution_id=plain), Cancelled)
    again = (await engine.preview_actions(plain)).replay
    assert (again.possible, again.sentence[:39]) == (False, "A cancelled execution cannot be replaye")


async def test_one_that_waits_for_children(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    parent = id_of(handle)
    children = [child(parent, name) for name in ("one", "two")]
    wait = ChildWait(tuple(each["execution_id"] for each in children), 2)
    assert (await engine.advance(handle, steps=[NewStep("a", b"1")], children=children, wait=wait)).parked
    async with unchanged(probe):
        told = await engine.preview_actions(parent)
    # Deciding about a family takes several looks; each of them is at what is stored.
    assert (told.cancel.possible, told.cancel.sentence) == (
        True,
        "It ends now, without cleaning up. 2 children that it started are cancelled too.",
    )
    assert told.terminate == told.cancel
    assert (told.replay.possible, told.replay.sentence) == (False, "It has not ended yet.")


async def test_one_that_waits(engine: Engine, probe: Probe) -> None:
    run = await create(engine, lane_id="orders", priority=3)
    await engine.run_timer("intake")
    async with unchanged(probe):
        told = await engine.preview_actions(run)
    assert told.change_priority.possible
    assert told.change_priority.sentence == "It waits in lane orders with priority 3. Higher priorities run first."
    assert told.cancel.sentence == "It ends now. It has not started, so there is nothing to clean up."
    assert (told.replay.possible, told.replay.sentence) == (False, "It has not ended yet.")
    assert (told.fork.possible, told.fork_at) == (False, None)
    assert (told.revoke_lease.possible, told.revoke_lease.sentence) == (False, "No worker holds it.")
    await engine.change_priority(execution_id=run, new_priority=5)
    assert "priority 5" in (await engine.preview_actions(run)).change_priority.sentence


async def test_what_is_unknown_is_refused(engine: Engine) -> None:
    with pytest.raises(NotFound):
        await engine.preview_actions("{fp:1}:00000000-0000-4000-8000-000000000000")
