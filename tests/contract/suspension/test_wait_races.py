"""Signals, timeouts, operators and ends at the same moment: one of them wins, and rows, answers and events agree."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import (
    Accepted,
    Cancelled,
    EngineError,
    Handle,
    Resumed,
    State,
    StateKind,
    Suspended,
    SuspendOutcome,
    Validation,
)
from flowfabric.conditions import AllOf, ByName, Count, CountKind, OperatorOnly, Single
from flowfabric.core.invariants.waits import check_waits
from flowfabric.engine import Engine
from flowfabric.model.events import SignalEvent
from flowfabric.model.records.executions import Signal, SigningKey, Suspension, Waitpoint
from tests.conftest import full_run
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, id_of, policy
from tests.contract.suspending import KEY, addressed, asking, credentials, on_pending, signal, signals_of, suspended

Rivals = tuple[Engine, Engine]
SATISFIED = "resume_condition_satisfied"


@pytest.fixture
async def rivals(engine: Engine, open_engine: Callable[..., Any]) -> Rivals:
    """Two engines on one store, as two processes would be; in memory the engine races with itself."""
    return engine, engine if engine.store.label == "memory" else await open_engine()


async def outcomes(*calls: Awaitable[Any]) -> list[Any]:
    """What each of these concurrent calls answered or raised, in their order."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


async def violations(probe: Probe, handle: Handle) -> list[Any]:
    """Broken promises about one execution."""
    identity = id_of(handle)
    where = {"partition": identity.partition, "uuid": identity.uuid_text}
    execution = await probe.execution(identity)
    attempts = await probe.attempts(identity)
    suspensions = await probe.select(Suspension, **where)
    waitpoints, signals = await probe.select(Waitpoint, **where), await probe.select(Signal, **where)
    return check_waits(execution, attempts[-1], suspensions[0] if suspensions else None, waitpoints, signals)


async def test_one_of_two_satisfying_signals(rivals: Rivals, probe: Probe) -> None:
    for number in range(20):
        handle, details = await suspended(rivals[0], lane_id=f"lane {number}")
        found = await outcomes(*(signal(rivals[each % 2], handle, details) for each in range(4)))
        accepted = [each for each in found if isinstance(each, Accepted)]
        assert [each.effect for each in accepted] == [SATISFIED]
        late = [each for each in found if isinstance(each, State)]
        assert [each.kind for each in late] == [StateKind.WAITPOINT_CLOSED] * 3
        assert len(await signals_of(probe, handle)) == len(await probe.events(SignalEvent, id_of(handle))) == 1
        assert await violations(probe, handle) == []


async def test_signals_that_satisfy_together(rivals: Rivals, probe: Probe) -> None:
    keys = ("a", "b", "c", "d")
    for number in range(10):
        handle, details = await suspended(
            rivals[0], Count(3, CountKind.DISTINCT_WAITPOINTS, keys), keys, lane_id=f"lane {number}"
        )
        points = credentials(details)
        found = await outcomes(*(signal(rivals[each % 2], handle, point) for each, point in enumerate(points)))
        effects = Counter(each.effect for each in found if isinstance(each, Accepted))
        assert effects == {"appended_to_waitpoint": 2, SATISFIED: 1}
        assert sum(isinstance(each, State) for each in found) == 1
        assert await violations(probe, handle) == []


async def test_the_same_signal_twice_at_once(rivals: Rivals, probe: Probe) -> None:
    for number in range(10):
        handle, details = await suspended(rivals[0], OperatorOnly(), lane_id=f"lane {number}")
        found = await outcomes(*(signal(rivals[each % 2], handle, details, idempotency_key="k") for each in range(4)))
        [accepted] = [each for each in found if isinstance(each, Accepted)]
        others = [each.existing_signal_id for each in found if each is not accepted]
        assert others == [accepted.signal_id] * 3
        assert len(await signals_of(probe, handle)) == 1


@pytest.mark.parametrize("behavior", ["fail", "auto_resume_with_timeout_signal"])
async def test_signal_timeout_operator_and_cancel(
    rivals: Rivals, probe: Probe, clock: ManualClock, behavior: str
) -> None:
    chance = random.Random(behavior)
    won: Counter[str] = Counter()
    for number in range(25):
        handle, details = await suspended(
            rivals[0], lane_id=f"lane {number}", timeout_at=clock.now_ms, timeout_behavior=behavior
        )
        eid = id_of(handle)
        calls: dict[str, Callable[[Engine], Awaitable[Any]]] = {
            "signal": lambda engine, to=(handle, details): signal(engine, *to),
            "timeout": lambda engine: engine.run_timer("suspension_timeout"),
            "operator": lambda engine, eid=eid: engine.resume_execution(execution_id=eid),
            "cancel": lambda engine, eid=eid: engine.cancel_execution(execution_id=eid),
        }
        names = list(calls)
        chance.shuffle(names)
        found = dict(
            zip(names, await outcomes(*(calls[name](rivals[n % 2]) for n, name in enumerate(names))), strict=True)
        )
        winners = {
            "signal": isinstance(found["signal"], Accepted),
            "timeout": found["timeout"] == 1,
            "operator": isinstance(found["operator"], Resumed),
        }
        # A cancel also works on what another one has resumed.
        resumed = [name for name, has_won in winners.items() if has_won]
        assert len(resumed) <= 1, found
        assert resumed or isinstance(found["cancel"], Cancelled), found
        assert all(isinstance(each, EngineError | Accepted | Resumed | Cancelled | int) for each in found.values())
        won.update(resumed or ["cancel"])
        ends = await probe.completions(eid)
        assert len(ends) == ((await probe.execution(eid)).terminal_at_ms is not None)
        assert await violations(probe, handle) == []
    assert len(won) > 1, won


async def test_early_signals_and_the_suspension(rivals: Rivals, probe: Probe) -> None:
    """Whether a signal comes just before or just after the suspension, it counts."""
    for number in range(20):
        handle = await claimed(rivals[0], lane_id=f"lane {number}")
        pending = await rivals[0].create_waitpoint(handle, KEY, 60_000)
        told, outcome = await outcomes(
            signal(rivals[1], handle, pending), rivals[0].suspend(handle, on_pending(pending))
        )
        assert isinstance(told, Accepted)
        if isinstance(outcome, SuspendOutcome.AlreadySatisfied):
            assert told.effect == "buffered_for_pending_waitpoint"
            await rivals[0].complete(outcome.handle)
        else:
            assert isinstance(outcome, Suspended)
            assert told.effect == SATISFIED
            assert await rivals[1].claim(f"lane {number}", (), policy()) is not None
        assert await violations(probe, handle) == []


async def test_a_repeated_suspend_races_itself(rivals: Rivals, probe: Probe) -> None:
    for number in range(10):
        handle = await claimed(rivals[0], lane_id=f"lane {number}")
        found = await outcomes(*(rivals[n % 2].suspend(handle, asking(idempotency_key="k")) for n in range(4)))
        assert all(isinstance(each, Suspended) for each in found), found
        assert len({each.details.suspension_id for each in found}) == 1
        assert (await probe.lease_events(id_of(handle))) == ["acquired", "revoked"]
        assert await violations(probe, handle) == []


async def test_one_first_key(rivals: Rivals, probe: Probe) -> None:
    handles = [await claimed(rivals[0], lane_id=f"lane {number}") for number in range(8)]
    made = await asyncio.gather(*(rivals[n % 2].create_waitpoint(each, KEY, 60_000) for n, each in enumerate(handles)))
    assert len(await probe.select(SigningKey, active=True)) == 1
    for handle, pending in zip(handles, made, strict=True):
        assert isinstance(await rivals[1].deliver_signal(**addressed(handle, pending), signal_name="x"), Accepted)


async def test_a_rotation_elsewhere_is_noticed(rivals: Rivals, clock: ManualClock) -> None:
    """A process keeps keys in mind; what another one does to them counts at once."""
    handle, details = await suspended(rivals[0], OperatorOnly())
    for _ in range(2):
        assert isinstance(await signal(rivals[0], handle, details), Accepted)
    await rivals[1].rotate_waitpoint_hmac_secret_all(new_kid="k2", new_secret_hex="ab" * 32, grace_ms=5)
    assert isinstance(await signal(rivals[0], handle, details), Accepted)
    clock.advance(5)
    for engine in rivals:
        with pytest.raises(Validation) as caught:
            await signal(engine, handle, details)
        assert caught.value.detail == "token_expired"
    await rivals[0].rotate_waitpoint_hmac_secret_all(new_kid="k3", new_secret_hex="cd" * 32, grace_ms=0)
    for engine in rivals:
        with pytest.raises(Validation) as caught:
            await signal(engine, handle, details)
        assert caught.value.detail == "invalid_token"
    outcome = await rivals[1].suspend(await claimed(rivals[1], lane_id="next"), asking())
    assert outcome.details.waitpoint_token.startswith("k3:")


async def test_whoever_waits_is_woken(rivals: Rivals) -> None:
    """A parked claim gets a resumed execution without waiting for a timer or a poll."""
    handle, details = await suspended(rivals[0], lane_id="lane")
    waiting = asyncio.create_task(rivals[1].claim("lane", (), policy("w2-i", "w2", max_wait=20_000)))
    await asyncio.sleep(0.05)
    await signal(rivals[0], handle, details)
    held = await waiting
    assert held is not None
    assert id_of(held) == id_of(handle)


# ------------------------------------------------------------------------------------------------------------ at random


class Walk:
    """One execution at a time, moved at random; every promise is looked at after every step."""

    def __init__(self, engine: Engine, probe: Probe, clock: ManualClock, seed: int) -> None:
        self.engine, self.probe, self.clock = engine, probe, clock
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()

    async def run(self, rounds: int) -> None:
        for number in range(rounds):
            self.lane = f"lane {number}"
            self.handle = await claimed(self.engine, lane_id=self.lane, ttl_ms=10**9)
            self.points: list[Any] = []
            for _ in range(self.chance.randrange(4, 16)):
                step = self.chance.choice(("suspend", "pending", "signal", "signal", "signal", "claim", "time", "end"))
                if step == "end" and self.chance.random() < 0.7:
                    step = "signal"
                with_luck = await outcomes(getattr(self, f"_{step}")())
                assert not isinstance(with_luck[0], BaseException) or isinstance(with_luck[0], EngineError), with_luck
                self.done[f"{step} {type(with_luck[0]).__name__}"] += 1
                assert await violations(self.probe, self.handle) == [], (self.lane, step, with_luck)

    def _condition(self) -> Any:
        matcher = self.chance.choice((None, ByName("go")))
        kind = self.chance.choice(tuple(CountKind))
        n = self.chance.randrange(1, 3)
        one = Single("a", ByName("go"))
        two = Count(n, kind, ("a", "b"), matcher)
        return self.chance.choice(
            ((one, ("a",)), (two, ("a", "b")), (AllOf((one, two)), ("a", "b")), (OperatorOnly(), ("a",)))
        )

    async def _suspend(self) -> Any:
        condition, keys = self._condition()
        timing: dict[str, Any] = {}
        if self.chance.random() < 0.4:
            behaviors = ("fail", "cancel", "expire", "auto_resume_with_timeout_signal", "escalate")
            timing = {"timeout_at": self.clock.now_ms + 5, "timeout_behavior": self.chance.choice(behaviors)}
        arguments = asking(condition, keys, **timing)
        pending = [point for point in self.points if hasattr(point, "hmac_token")]
        if pending and len(keys) == 1:
            arguments = on_pending(self.chance.choice(pending), condition, **timing)
        outcome = await self.engine.suspend(self.handle, arguments)
        self.points += credentials(outcome.details)
        return outcome

    async def _pending(self) -> Any:
        self.points.append(await self.engine.create_waitpoint(self.handle, "a", 20))

    async def _signal(self) -> Any:
        if not self.points:
            return None
        name, source = self.chance.choice(("go", "no")), self.chance.choice(("alice", "bob"))
        point = self.chance.choice(self.points[-4:])
        return await signal(self.engine, self.handle, point, name, source_identity=source)

    async def _claim(self) -> Any:
        if self.chance.random() < 0.3:
            await outcomes(self.engine.resume_execution(execution_id=id_of(self.handle)))
        held = await self.engine.claim(self.lane, (), policy(ttl_ms=10**9))
        self.handle = held or self.handle
        return held

    async def _time(self) -> Any:
        self.clock.advance(7)
        return await self.engine.run_due()

    async def _end(self) -> Any:
        end = self.chance.choice(
            (
                lambda: self.engine.complete(self.handle),
                lambda: self.engine.fail(self.handle, "boom"),
                lambda: self.engine.cancel_execution(execution_id=id_of(self.handle)),
                lambda: self.engine.replay_execution(execution_id=id_of(self.handle)),
            )
        )
        return await end()


@pytest.mark.parametrize("seed", range(3 if full_run() else 1))
async def test_any_order_of_things(engine: Engine, probe: Probe, clock: ManualClock, full: bool, seed: int) -> None:
    walk = Walk(engine, probe, clock, seed)
    await walk.run(400 if full else 40)
    for step in ("suspend Suspended", "signal Accepted", "signal State", "claim Handle", "time dict"):
        assert walk.done[step] > 5, walk.done
    assert clock.now_ms > START_MS
