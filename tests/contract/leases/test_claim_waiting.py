"""A claim with ``max_wait`` sleeps until there is work for it. What becomes claimable wakes who can take it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import ExecutionId, Handle, Unavailable
from flowfabric.core.leases.claim import Claim
from flowfabric.engine import Engine
from flowfabric.engine.operations import claim
from tests.contract.probe import ManualClock, claimed, create, id_of, needing, policy, shared_stores_only, until

LANE = "lane"
#: Long enough for a slow machine; nobody who is woken waits that long.
SOON_S = 20
LONG_MS = 60_000


@pytest.fixture(autouse=True)
def only_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safety poll, a wake-up that is lost is a test that fails."""
    monkeypatch.setattr(claim, "SAFETY_POLL_S", 3600.0)


class Sleeper:
    """A waiting claim that has looked once and found nothing."""

    def __init__(self, engine: Engine, *capabilities: str, limit: int = 1) -> None:
        self._looks = 0
        self._looked = asyncio.Event()
        submit = engine._submit

        async def counting(command: Any, *more: Any) -> Any:
            answer = await submit(command, *more)
            if isinstance(command, Claim):
                self._looks += 1
                self._looked.set()
            return answer

        engine._submit = counting  # type: ignore[method-assign]
        claim = engine.claim_many(LANE, capabilities, policy(max_wait=LONG_MS), limit)
        self.task = asyncio.ensure_future(claim)
        self._restore = lambda: setattr(engine, "_submit", submit)

    async def asleep(self) -> Sleeper:
        async with asyncio.timeout(SOON_S):
            await self._looked.wait()
        self._restore()
        assert not self.task.done()
        return self

    async def found(self) -> list[Handle]:
        async with asyncio.timeout(SOON_S):
            return await self.task

    async def give_up(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_nothing_in_time(engine: Engine) -> None:
    loop = asyncio.get_running_loop()
    for wait in (30, timedelta(milliseconds=30)):
        begun = loop.time()
        assert await engine.claim(LANE, (), policy(max_wait=wait)) is None
        assert 0.025 <= loop.time() - begun < SOON_S
    assert len(engine._lanes) == 0


async def test_work_that_is_there_is_taken_at_once(engine: Engine) -> None:
    eid = await create(engine, lane_id=LANE)
    async with asyncio.timeout(SOON_S):
        handle = await engine.claim(LANE, (), policy(max_wait=LONG_MS))
    assert handle is not None
    assert id_of(handle) == eid
    assert len(engine._lanes) == 0


async def test_a_create_wakes(engine: Engine) -> None:
    sleeper = await Sleeper(engine).asleep()
    eid = await create(engine, lane_id=LANE)
    [handle] = await sleeper.found()
    assert id_of(handle) == eid
    assert len(engine._lanes) == 0


async def delayed(engine: Engine, clock: ManualClock) -> Callable[[], Awaitable[Any]]:
    await create(engine, lane_id=LANE, delay_until=clock.now_ms + 5)
    clock.advance(5)
    return lambda: engine.run_timer("delayed_promoter")


async def blocked(engine: Engine, clock: ManualClock) -> Callable[[], Awaitable[Any]]:
    eid = await create(engine, lane_id=LANE)
    await engine.block_execution_for_admission(execution_id=eid, reason="paused_by_operator")
    return lambda: engine.unblock_execution(execution_id=eid)


async def unroutable(engine: Engine, clock: ManualClock) -> Callable[[], Awaitable[Any]]:
    eid = await create(engine, lane_id=LANE)
    await engine.block_route(execution_id=eid)
    return lambda: engine.register_worker(worker_id="w", worker_instance_id="i", lanes=[LANE])


async def expired(engine: Engine, clock: ManualClock) -> Callable[[], Awaitable[Any]]:
    await claimed(engine, lane_id=LANE, ttl_ms=5)
    clock.advance(5)
    return lambda: engine.run_timer("lease_expiry")


async def timed_out(engine: Engine, clock: ManualClock) -> Callable[[], Awaitable[Any]]:
    given = {"timeout_policy": {"attempt_timeout_ms": 5}, "retry_policy": {"max_retries": 1}}
    await claimed(engine, lane_id=LANE, policy=given)
    clock.advance(5)
    return lambda: engine.run_timer("attempt_timeout")


async def failing(engine: Engine, clock: ManualClock) -> Callable[[], Awaitable[Any]]:
    handle = await claimed(engine, lane_id=LANE)
    return lambda: engine.fail(handle, "again")


async def held(engine: Engine, clock: ManualClock) -> Callable[[], Awaitable[Any]]:
    handle = await claimed(engine, lane_id=LANE)
    return lambda: engine.revoke_lease(execution_id=id_of(handle))


async def ended(engine: Engine, clock: ManualClock) -> Callable[[], Awaitable[Any]]:
    handle = await claimed(engine, lane_id=LANE)
    await engine.complete(handle, None)
    return lambda: engine.replay_execution(execution_id=id_of(handle))


async def promised(engine: Engine, clock: ManualClock) -> Callable[[], Awaitable[Any]]:
    await create(engine, lane_id=LANE)
    await engine.claim_for_worker(lane_id=LANE, worker_id="w", worker_instance_id="i", grant_ttl_ms=5)

    def sweep() -> Awaitable[Any]:
        clock.advance(5)
        return engine.run_timer("grant_sweep")

    return sweep


@pytest.mark.parametrize(
    "state",
    [delayed, blocked, unroutable, expired, timed_out, failing, held, ended, promised],
    ids=lambda f: f.__name__,
)
async def test_whatever_becomes_claimable_wakes(engine: Engine, clock: ManualClock, state: Any) -> None:
    free = await state(engine, clock)
    sleeper = await Sleeper(engine).asleep()
    await free()
    assert len(await sleeper.found()) == 1


async def test_only_who_can_take_it_is_woken(engine: Engine) -> None:
    plain = await Sleeper(engine).asleep()
    able = await Sleeper(engine, "gpu").asleep()
    eid = await create(engine, lane_id=LANE, policy=needing("gpu"))
    await create(engine, lane_id="another")
    [handle] = await able.found()
    assert id_of(handle) == eid
    assert not plain.task.done()
    # It may be looking at this moment, because it has just begun to hear other processes.
    await until(lambda: len(engine._lanes) == 1)
    assert not plain.task.done()
    await plain.give_up()
    assert len(engine._lanes) == 0


async def test_each_execution_wakes_one(engine: Engine) -> None:
    sleepers = [await Sleeper(engine).asleep() for _ in range(3)]
    await engine.create_executions([{"lane_id": LANE}] * 2)
    async with asyncio.timeout(SOON_S):
        done, waiting = await asyncio.wait([each.task for each in sleepers], return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            done, waiting = await asyncio.wait([each.task for each in sleepers], timeout=0.01)
    assert (len(done), len(waiting)) == (2, 1)
    await create(engine, lane_id=LANE)
    found = [id_of(handle) for each in sleepers for handle in await each.found()]
    assert len(set(found)) == 3


async def test_a_wake_up_outlives_the_caller_it_was_meant_for(engine: Engine) -> None:
    first = await Sleeper(engine).asleep()
    second = await Sleeper(engine).asleep()
    eid = await create(engine, lane_id=LANE)
    await first.give_up()
    assert first.task.cancelled()
    [handle] = await second.found()
    assert id_of(handle) == eid


@shared_stores_only
async def test_another_process_wakes(engine: Engine, open_engine: Any) -> None:
    other = await open_engine()
    sleeper = await Sleeper(engine).asleep()
    # The listener may only just be connecting: what it missed, the next commit tells again.
    async with asyncio.timeout(SOON_S):
        while not sleeper.task.done():
            await create(other, lane_id=LANE)
            await asyncio.wait([sleeper.task], timeout=0.2)
    assert len(await sleeper.found()) == 1


async def test_closing_ends_the_wait(open_engine: Any) -> None:
    engine = await open_engine()
    sleeper = await Sleeper(engine).asleep()
    await engine.close()
    with pytest.raises(Unavailable):
        await sleeper.found()


async def test_a_claim_given_up_while_it_looks_leaves_no_lease_behind(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit may be under way and cannot be taken back: what it brought goes to the queue again."""
    identity = await create(engine, lane_id=LANE)
    run = engine._batcher._run
    committed, answered = asyncio.Event(), asyncio.Event()

    async def held_back(commands: list[Any]) -> Any:
        outcome = await run(commands)
        committed.set()
        await answered.wait()
        return outcome

    with monkeypatch.context() as patched:
        patched.setattr(engine._batcher, "_run", held_back)
        task = asyncio.ensure_future(engine.claim(LANE, (), policy("gone", max_wait=LONG_MS)))
        await committed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    answered.set()
    await _claimable_again(engine, identity)


@pytest.mark.parametrize("wait_ms", [None, LONG_MS])
async def test_a_claim_given_up_while_its_answer_is_on_the_way(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, wait_ms: int | None
) -> None:
    identity = await create(engine, lane_id=LANE)
    told = engine._batcher._committed

    def give_up(*arguments: Any) -> None:
        task.cancel()
        told(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(engine._batcher, "_committed", give_up)
        task = asyncio.ensure_future(engine.claim(LANE, (), policy("gone", max_wait=wait_ms)))
        with pytest.raises(asyncio.CancelledError):
            await task
    await _claimable_again(engine, identity)


async def _claimable_again(engine: Engine, identity: ExecutionId) -> None:
    async with asyncio.timeout(SOON_S):
        handle = await engine.claim(LANE, (), policy(max_wait=LONG_MS))
    assert handle is not None
    assert id_of(handle) == identity
