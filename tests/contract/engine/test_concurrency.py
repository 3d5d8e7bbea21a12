"""Many callers at once: every race has one winner, and events, rows and answers agree on who it was."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from flowfabric import (
    Cancelled,
    Contention,
    ContentionKind,
    Created,
    Duplicate,
    ExecutionId,
    Frame,
    Handle,
    LeaseRenewal,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.engine.operations import claim as engine_claiming
from tests.conftest import full_run
from tests.contract.probe import ManualClock, Probe, claimed, create, id_of, policy, until

Rivals = tuple[Engine, Engine]


@pytest.fixture
async def rivals(engine: Engine, open_engine: Callable[..., Any]) -> Rivals:
    """Two engines on one store, as two processes would be; in memory the engine races with itself."""
    return engine, engine if engine.store.label == "memory" else await open_engine()


async def outcomes(*calls: Awaitable[Any]) -> list[Any]:
    """What each of these concurrent calls answered or raised, in their order."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


# ------------------------------------------------------------------------------------------------------------- claiming


async def test_claimers_never_share_a_row(rivals: Rivals) -> None:
    chance = random.Random(1)
    given = [chance.randrange(10) for _ in range(5_000 if full_run() else 1_500)]
    made = await rivals[0].create_executions({"lane_id": "busy", "priority": priority} for priority in given)
    priorities = {answer.execution_id: priority for answer, priority in zip(made, given, strict=True)}
    results = await asyncio.gather(*(drain(rivals[number % 2], number) for number in range(200)))
    # Rows that one claimer's transaction had locked may have looked like an empty lane to another.
    results.append(await drain(rivals[0], 200))
    granted = Counter(id_of(handle) for result in results for grants in result for handle in grants)
    assert granted == Counter(priorities.keys())
    for result in results:
        order = [priorities[id_of(handle)] for grants in result for handle in grants]
        assert order == sorted(order, reverse=True)


async def drain(engine: Engine, number: int) -> list[list[Handle]]:
    """Claim until the lane looks empty: some one by one, some in handfuls. What each call granted."""
    mine = policy(f"w-{number}")
    granted: list[list[Handle]] = []
    while True:
        if number % 2:
            handle = await engine.claim("busy", (), mine)
            handles = [] if handle is None else [handle]
        else:
            handles = await engine.claim_many("busy", (), mine, limit=2 + number % 9)
        if not handles:
            return granted
        granted.append(handles)


async def test_one_create_feeds_one_of_a_thousand_parked_claims(open_engine: Callable[..., Any]) -> None:
    engine = await open_engine(clock=None)
    waiting = policy(max_wait=timedelta(minutes=5))
    claims = [asyncio.create_task(engine.claim("lane", (), waiting)) for _ in range(1_000)]
    await until(lambda: len(engine._lanes) == 1_000 and not engine._batcher._queue)
    made = await create(engine, lane_id="lane")
    async with asyncio.timeout(60):
        await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
    for claim in claims:
        claim.cancel()
    answers = await asyncio.gather(*claims, return_exceptions=True)
    handles = [answer for answer in answers if not isinstance(answer, asyncio.CancelledError)]
    assert [id_of(handle) for handle in handles if handle is not None] == [made]
    assert await Probe(engine).lease_events(made) == ["acquired"]
    assert len(engine._lanes) == 0


async def test_a_create_wakes_one_parked_claim_only(
    open_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_claiming, "SAFETY_POLL_S", 60.0)
    engine = await open_engine(clock=None)
    await listening(engine)
    looks = count_commands(engine)
    claims = [asyncio.create_task(engine.claim("lane", (), policy(max_wait=2_500))) for _ in range(300)]
    await until(lambda: looks["Claim"] == 300 and len(engine._lanes) == 300)
    await create(engine, lane_id="lane")
    await asyncio.gather(*claims)
    # Everybody looks when it starts and when its time is up; the create wakes one, who needs no last look.
    assert looks["Claim"] == 300 + 1 + 299


async def test_however_many_wait_for_the_same_one_of_them_looks_now_and_then(
    open_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_claiming, "SAFETY_POLL_S", 0.02)
    engine = await open_engine(clock=None)
    await listening(engine)
    looks = count_commands(engine)
    rounds = 0
    turn = engine._lanes.rounds._look

    def count() -> bool:
        nonlocal rounds
        rounds += 1
        return bool(turn())

    monkeypatch.setattr(engine._lanes.rounds, "_look", count)
    claims = [asyncio.create_task(engine.claim("lane", (), policy(max_wait=60_000))) for _ in range(300)]
    await until(lambda: looks["Claim"] >= 300 and len(engine._lanes) == 300)
    before, first = looks["Claim"], rounds
    await until(lambda: rounds >= first + 20)
    assert looks["Claim"] - before <= rounds - first + 1, "one look for each round, not one for each claim"
    for claim in claims:
        claim.cancel()
    await asyncio.gather(*claims, return_exceptions=True)


async def test_a_lost_wake_up_costs_time_and_no_work(
    open_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_claiming, "SAFETY_POLL_S", 0.05)
    engine = await open_engine(clock=None)
    await listening(engine)
    monkeypatch.setattr(engine._lanes, "feed", lambda work, since: None)
    claims = [asyncio.create_task(engine.claim("lane", (), policy(max_wait=60_000))) for _ in range(50)]
    await until(lambda: len(engine._lanes) == 50)
    await engine.create_executions([{"lane_id": "lane"} for _ in range(50)])
    async with asyncio.timeout(30):
        handles = await asyncio.gather(*claims)
    assert len({id_of(handle) for handle in handles}) == 50


async def test_a_wake_up_is_not_lost_with_a_claim_that_was_served_already(
    open_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_claiming, "SAFETY_POLL_S", 60.0)
    engine = await open_engine(clock=None)
    waiting = policy(max_wait=600_000)
    # One batch: the first claim takes the first row, the second finds nothing, then the second row appears.
    async with asyncio.timeout(50):
        first, one, two, second = await asyncio.gather(
            create(engine, lane_id="lane"),
            engine.claim("lane", (), waiting),
            engine.claim("lane", (), waiting),
            create(engine, lane_id="lane"),
        )
    assert {id_of(one), id_of(two)} == {first, second}


async def listening(engine: Engine) -> None:
    """Have the engine listen to other processes; everybody may be woken once when it starts to."""
    await engine.claim("another lane", (), policy())
    if engine.backend_label not in ("postgres", "valkey"):
        return
    connected, stir = asyncio.Event(), engine._lanes.stir
    engine._lanes.stir = lambda *lanes: (stir(*lanes), connected.set())
    engine._listen()
    await connected.wait()


def count_commands(engine: Engine) -> Counter[str]:
    """Counts the commands of every batch from now on, by type."""
    seen: Counter[str] = Counter()
    run = engine._batcher._run

    async def counting(commands: list[Any]) -> Any:
        seen.update(type(command).__name__ for command in commands)
        return await run(commands)

    engine._batcher._run = counting
    return seen


# --------------------------------------------------------------------------------------------------------------- ending


async def test_cancel_against_complete_has_one_winner(rivals: Rivals, probe: Probe) -> None:
    chance = random.Random(2)
    handles = [await claimed(rivals[0]) for _ in range(60)]
    calls = [(number, which) for number in range(60) for which in ("complete", "cancel")]
    chance.shuffle(calls)

    async def call(number: int, which: str) -> Any:
        engine = rivals[chance.randrange(2)]
        if which == "complete":
            return await engine.complete(handles[number], b"done")
        return await engine.cancel_execution(execution_id=id_of(handles[number]), reason="race")

    answers = dict(zip(calls, await outcomes(*(call(*each) for each in calls)), strict=True))
    for number, handle in enumerate(handles):
        completed, cancelled = answers[number, "complete"], answers[number, "cancel"]
        row = await probe.execution(id_of(handle))
        assert await probe.lease_events(id_of(handle)) == ["acquired", "revoked"]
        if completed is None:
            assert (type(cancelled), cancelled.kind) == (Validation, ValidationKind.INVALID_INPUT)
            assert (row.public_state, row.result) == ("completed", b"done")
            assert await probe.completions(id_of(handle)) == ["success"]
        else:
            assert (type(completed), completed.kind) == (Contention, ContentionKind.LEASE_CONFLICT)
            assert isinstance(cancelled, Cancelled)
            assert (row.public_state, row.result) == ("cancelled", None)
            assert await probe.completions(id_of(handle)) == ["cancelled"]


async def test_concurrent_cancels_all_succeed_and_write_once(rivals: Rivals, probe: Probe) -> None:
    for _ in range(10):
        identity = id_of(await claimed(rivals[0]))
        answers = await asyncio.gather(
            *(rivals[number % 2].cancel_execution(execution_id=identity, reason=f"r{number}") for number in range(4))
        )
        assert all(isinstance(answer, Cancelled) for answer in answers)
        assert await probe.completions(identity) == ["cancelled"]
        assert await probe.lease_events(identity) == ["acquired", "revoked"]
        assert [attempt.lease_epoch for attempt in await probe.attempts(identity)] == [2]


async def test_renewal_against_expiry_has_one_winner(rivals: Rivals, probe: Probe, clock: ManualClock) -> None:
    """Which of them come in time depends on what shares a commit: as many rounds until both have won."""
    won: set[str] = set()
    while not won >= {"renewed", "requeued"}:
        won |= await renewals_against_expiry(rivals, probe, clock)


async def renewals_against_expiry(rivals: Rivals, probe: Probe, clock: ManualClock) -> set[str]:
    """One round, which is looked at; who has won."""
    handles = [await claimed(rivals[0], ttl_ms=1_000) for _ in range(60)]
    clock.advance(999)
    answered = asyncio.Event()

    async def pass_the_deadline() -> None:
        # However long a commit takes: one of them is in time, and those behind it are not.
        await answered.wait()
        clock.advance(1)

    async def renew(handle: Handle) -> LeaseRenewal:
        try:
            return await rivals[0].renew(handle)
        finally:
            answered.set()

    async def step(number: int, call: Callable[[], Awaitable[Any]]) -> Any:
        for _ in range(number):
            await asyncio.sleep(0)
        return await call()

    renewals = [step(number, lambda each=handle: renew(each)) for number, handle in enumerate(handles)]
    marks = [
        step(number, lambda each=handle: rivals[1].mark_lease_expired_if_due(None, id_of(each)))
        for number, handle in enumerate(handles)
    ]
    answers = await outcomes(*renewals, *marks, pass_the_deadline())
    for handle, renewed, mark in zip(handles, answers[:60], answers[60:120], strict=True):
        row, events = await probe.execution(id_of(handle)), await probe.lease_events(id_of(handle))
        if isinstance(renewed, LeaseRenewal):
            assert (mark.status, row.lifecycle_phase, events) == ("not_yet_expired", "active", ["acquired", "renewed"])
            continue
        assert (type(renewed), renewed.kind) in (
            (State, StateKind.LEASE_EXPIRED),
            (Contention, ContentionKind.LEASE_CONFLICT),
        )
        if mark.status == "requeued":
            assert (row.lifecycle_phase, events) == ("runnable", ["acquired", "expired"])
        else:
            assert (mark.status, row.lifecycle_phase, events) == ("not_yet_expired", "active", ["acquired"])
    in_time = {"renewed" for answer in answers[:60] if isinstance(answer, LeaseRenewal)}
    return in_time | {mark.status for mark in answers[60:120]}


# ------------------------------------------------------------------------------------------------- creating, appending


async def test_one_id_is_created_once(rivals: Rivals, probe: Probe) -> None:
    for _ in range(5):
        identity = ExecutionId.solo("default", rivals[0].partitions)
        answers = await asyncio.gather(
            *(
                rivals[number % 2].create_execution(execution_id=identity, input_payload=b"%d" % number)
                for number in range(20)
            )
        )
        winners = [number for number, answer in enumerate(answers) if isinstance(answer, Created)]
        assert len(winners) == 1
        assert {answer.execution_id for answer in answers} == {identity}
        assert (await probe.execution(identity)).payload == b"%d" % winners[0]


async def test_one_idempotency_key_creates_once(rivals: Rivals) -> None:
    for key in range(5):
        answers = await asyncio.gather(
            *(rivals[number % 2].create_execution(idempotency_key=f"key-{key}") for number in range(20))
        )
        assert Counter(map(type, answers)) == {Created: 1, Duplicate: 19}
        assert len({answer.execution_id for answer in answers}) == 1
    stored = [
        each
        for partition in range(rivals[0].partitions.flow)
        for each in (await rivals[0].list_executions(partition)).executions
    ]
    assert len(stored) == 5


async def test_concurrent_appends_keep_one_order(rivals: Rivals) -> None:
    handle = await claimed(rivals[0])
    answers = await asyncio.gather(
        *(rivals[number % 2].append_frame(handle, Frame(b"%d" % number)) for number in range(200))
    )
    page = await rivals[0].read_stream(id_of(handle), count_limit=1_000)
    positions = [tuple(map(int, frame.id.split("-"))) for frame in page.frames]
    assert all(earlier < later for earlier, later in pairwise(positions))
    # Every caller was told the id of its own frame, and how many there were then.
    assert {frame.id: frame.fields["payload"] for frame in page.frames} == {
        answer.stream_id: str(number) for number, answer in enumerate(answers)
    }
    assert sorted(answer.frame_count for answer in answers) == list(range(1, 201))


async def test_claims_at_the_same_time_find_all_there_is(engine: Engine) -> None:
    for amount in (2, 7, 40, 150):
        await engine.create_executions([{"lane_id": "shared"} for _ in range(amount)])
        claims = []
        for number in range(amount):
            claims.append(asyncio.create_task(engine.claim("shared", (), policy())))
            # Another batch is on its way when each of them looks at the queue.
            for _ in range(number % 4):
                await asyncio.sleep(0)
        assert None not in await asyncio.gather(*claims)
