"""A holder whose code does not know what it was given leaves it to others, and no try is counted."""

from __future__ import annotations

from flowfabric import Declined, Gate, Handle, HandleKind
from flowfabric.engine import Engine
from flowfabric.model.limits import DECLINED_MOST_MS, DECLINED_MS, DECLINED_PAUSE_MS
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, id_of, payload_of, policy, unchanged

LANE = "lane-of-one"


async def _register(engine: Engine, *instances: str, **more: object) -> None:
    given = {"lanes": [LANE], "capabilities": (), "namespace": "default", "liveness_ttl_ms": DECLINED_MOST_MS * 2}
    for each in instances:
        await engine.register_worker(worker_id="w", worker_instance_id=each, **given | more)  # type: ignore[arg-type]


async def _again(engine: Engine, clock: ManualClock, answer: Declined, instance: str) -> Handle:
    assert answer.until_ms is not None
    clock.advance(answer.until_ms - clock())
    assert await engine.run_timer("delayed_promoter") == 1
    handle = await engine.claim(LANE, (), policy(instance))
    assert handle is not None
    return handle


async def test_what_a_worker_does_not_know_goes_on_in_another_one(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    handle = await claimed(engine, instance="old-1")
    first = await engine.decline(handle, "no task or workflow 'new'")
    assert first == Declined(START_MS + 250, ("old-1",))
    row = await probe.execution(id_of(handle))
    assert (row.public_state, row.blocking_reason) == ("delayed", "waiting_for_capable_worker")
    assert await engine.claim(LANE, (), policy("old-1")) is None
    second = await engine.decline(await _again(engine, clock, first, "old-2"), "no task or workflow 'new'")
    assert second == Declined(START_MS + 250 + 500, ("old-1", "old-2"))
    told = await engine.explain(id_of(handle))
    assert told.gate is Gate.DELAYED
    for part in ("2 workers", "old-1, old-2", "no task or workflow 'new'"):
        assert part in told.sentence
    handle = await _again(engine, clock, second, "new-1")
    assert (handle.kind, payload_of(handle).attempt_index) == (HandleKind.RESUMED, 0)
    assert await engine.read_total_attempt_count(id_of(handle)) == 1
    assert (await probe.execution(id_of(handle))).lease_reclaim_count in (None, 0)
    await engine.complete(handle, b"done")


async def test_it_is_to_fail_when_all_who_are_there_have_declined_it_for_minutes(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    handle = await claimed(engine, instance="old-1")
    await _register(engine, "old-1", "old-2")
    await _register(engine, "elsewhere", lanes=["other"])
    await _register(engine, "of-others", namespace="others")
    answer = await engine.decline(handle)
    instance = "old-1"
    while answer.until_ms is not None:
        assert answer.until_ms - clock() <= DECLINED_PAUSE_MS
        instance = "old-2" if instance == "old-1" else "old-1"
        handle = await _again(engine, clock, answer, instance)
        if clock() - START_MS < DECLINED_MS:
            answer = await engine.decline(handle)
        else:
            async with unchanged(probe):
                answer = await engine.decline(handle)
    assert sorted(answer.workers) == ["old-1", "old-2"]
    assert clock() - START_MS >= DECLINED_MS
    await engine.fail(handle, "unknown", "permanent")
    # Run again, it is offered as long again.
    await engine.replay_execution(execution_id=id_of(handle))
    handle = await engine.claim(LANE, (), policy("old-1"))  # type: ignore[assignment]
    assert (await engine.decline(handle)) == Declined(clock() + 250, ("old-1",))


async def test_a_worker_that_has_not_been_asked_is_waited_for(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine, instance="old-1")
    await _register(engine, "old-1", "busy")
    answer = await engine.decline(handle)
    clock.advance(DECLINED_MS)
    answer = await engine.decline(await _again(engine, clock, Declined(clock(), ()), "old-1"))
    assert answer == Declined(clock() + 500, ("old-1",))
    clock.advance(DECLINED_MOST_MS)
    answer = await engine.decline(await _again(engine, clock, Declined(clock(), ()), "old-1"))
    assert answer == Declined(None, ("old-1",))
