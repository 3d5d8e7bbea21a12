"""Waitpoints: created ahead, listed without their tokens, closed by hand, expired unused."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric import (
    Contention,
    ContentionKind,
    Fresh,
    NotFound,
    State,
    StateKind,
    Suspended,
    Token,
    Validation,
    ValidationKind,
)
from flowfabric.conditions import AllOf, Count, CountKind, OperatorOnly, Single
from flowfabric.engine import Engine
from flowfabric.model.records.executions import SigningKey, Waitpoint
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, policy, refused, unchanged
from tests.contract.seeding import seed
from tests.contract.suspending import (
    KEY,
    SUSPENDED,
    asking,
    closings,
    credentials,
    effect,
    on_pending,
    signal,
    signals_of,
    suspended,
    suspension_of,
    waitpoint_of,
)

MISSING = "{fp:0}:33333333-3333-4333-8333-333333333333"


# -------------------------------------------------------------------------------------------------------------- created


async def test_a_pending_waitpoint(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    before = await probe.stored(id_of(handle))
    events = await probe.lease_events(id_of(handle))
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    row = await waitpoint_of(probe, handle, pending.waitpoint_id)
    assert (row.state, row.waitpoint_key, row.attempt_index) == ("pending", KEY, 0)
    assert (row.created_at_ms, row.expires_at_ms, row.activated_at_ms) == (START_MS, START_MS + 1_000, None)
    assert (row.token, row.token_kid) == (pending.hmac_token, "k1")
    assert await probe.stored(id_of(handle)) == before
    assert await probe.lease_events(id_of(handle)) == events


async def test_each_call_makes_a_new_one(engine: Engine) -> None:
    handle = await claimed(engine)
    made = [await engine.create_waitpoint(handle, KEY, timedelta(minutes=1)) for _ in range(3)]  # type: ignore[arg-type]
    assert len({each.waitpoint_id for each in made}) == len({each.hmac_token for each in made}) == 3
    entries = (await engine.list_pending_waitpoints(execution_id=id_of(handle))).entries
    assert {entry.expires_at for entry in entries} == {START_MS + 60_000}


async def test_times_do_not_wrap(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, KEY, 2**70)
    assert (await waitpoint_of(probe, handle, pending.waitpoint_id)).expires_at_ms == 2**63 - 1


async def test_a_key_must_not_be_empty(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    async with refused(probe, Validation, ValidationKind.INVALID_WAITPOINT_KEY):
        await engine.create_waitpoint(handle, "", 1_000)


async def test_the_first_key_is_made_when_it_is_needed(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    assert await probe.select(SigningKey, active=True) == []
    await engine.create_waitpoint(handle, KEY, 1_000)
    [key] = await probe.select(SigningKey, active=True)
    assert (key.kid, len(key.secret), key.rotated_at_ms, key.expires_at_ms) == ("k1", 32, START_MS, None)
    await engine.create_waitpoint(handle, KEY, 1_000)
    assert await probe.select(SigningKey, active=True) == [key]


# --------------------------------------------------------------------------------------------------------------- closed


@pytest.mark.parametrize("reason", [None, "", "no longer wanted"])
async def test_closing_by_hand(engine: Engine, probe: Probe, clock: ManualClock, reason: str | None) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    point = {"execution_id": id_of(handle), "waitpoint_id": pending.waitpoint_id}
    now = clock.advance(5)
    await engine.close_waitpoint(**point, **({} if reason is None else {"reason": reason}))  # type: ignore[arg-type]
    row = await waitpoint_of(probe, handle, pending.waitpoint_id)
    assert (row.state, row.closed_at_ms, row.close_reason) == ("closed", now, reason or "proactive_close")
    async with unchanged(probe):
        await engine.close_waitpoint(**point, reason="again")
    async with refused(probe, State, StateKind.WAITPOINT_CLOSED):
        await signal(engine, handle, pending)
    async with refused(probe, State, StateKind.WAITPOINT_NOT_PENDING):
        await engine.suspend(handle, on_pending(pending))
    clock.advance(10_000)
    assert await engine.run_timer("pending_wp_expiry") == 0


async def test_closing_what_somebody_waits_on(engine: Engine, probe: Probe) -> None:
    """The suspension stays open: it can still end by its other waitpoints, by an operator or by its timeout."""
    keys = ("a", "b")
    handle, details = await suspended(engine, Count(1, CountKind.DISTINCT_WAITPOINTS, keys), keys)
    first, second = credentials(details)
    await engine.close_waitpoint(execution_id=id_of(handle), waitpoint_id=first.waitpoint_id)
    assert await probe.stored(id_of(handle)) == SUSPENDED
    stored = await suspension_of(probe, handle)
    assert stored is not None
    assert stored.closed_at_ms is None
    async with refused(probe, State, StateKind.WAITPOINT_CLOSED):
        await signal(engine, handle, first)
    assert await effect(engine, handle, second) == "resume_condition_satisfied"
    assert await closings(probe, handle) == [("closed", "proactive_close"), ("closed", "resumed")]


async def test_what_cannot_be_closed(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    other = await create(engine, execution_id=f"{{fp:{id_of(handle).partition}}}:{uuid4()}")
    for point in ((id_of(handle), str(uuid4())), (other, pending.waitpoint_id), (MISSING, pending.waitpoint_id)):
        async with refused(probe, Contention, ContentionKind.WAITPOINT_NOT_FOUND):
            await engine.close_waitpoint(execution_id=point[0], waitpoint_id=point[1])
    odd = str(uuid4())
    await seed(engine, Waitpoint(id_of(handle).partition, odd, id_of(handle).uuid_text, "odd", None, None))
    async with refused(probe, State, StateKind.WAITPOINT_NOT_OPEN):
        await engine.close_waitpoint(execution_id=id_of(handle), waitpoint_id=odd)


# -------------------------------------------------------------------------------------------------------------- expired


async def test_a_waitpoint_nobody_suspended_on(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    short = [await engine.create_waitpoint(handle, f"short {n}", 1_000) for n in range(3)]
    long = await engine.create_waitpoint(handle, "long", 5_000)
    await effect(engine, handle, short[0])
    now = clock.advance(999)
    assert await engine.run_timer("pending_wp_expiry") == 0
    await effect(engine, handle, short[1])
    now = clock.advance(1)
    async with refused(probe, State, StateKind.PENDING_WAITPOINT_EXPIRED):
        await signal(engine, handle, short[0])
    assert await engine.run_timer("pending_wp_expiry") == 3
    row = await waitpoint_of(probe, handle, short[0].waitpoint_id)
    assert (row.state, row.close_reason, row.closed_at_ms) == ("expired", "never_committed", now)
    assert (await waitpoint_of(probe, handle, long.waitpoint_id)).state == "pending"
    async with refused(probe, State, StateKind.PENDING_WAITPOINT_EXPIRED):
        await signal(engine, handle, short[0])
    async with refused(probe, State, StateKind.WAITPOINT_NOT_PENDING):
        await engine.suspend(handle, on_pending(short[0], Single("short 0")))
    async with unchanged(probe):
        await engine.close_waitpoint(execution_id=id_of(handle), waitpoint_id=short[0].waitpoint_id)
        assert await engine.run_timer("pending_wp_expiry") == 0
    assert [each.effect for each in await signals_of(probe, handle)] == ["buffered_for_pending_waitpoint"] * 2


async def test_expiry_looks_at_the_namespace(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine, namespace="ours")
    await engine.create_waitpoint(handle, KEY, 1)
    clock.advance(1)
    assert await engine.run_timer("pending_wp_expiry", 1) == 1


# ---------------------------------------------------------------------------------------------------------------- reads


async def test_lists_show_no_token(engine: Engine) -> None:
    handle, details = await suspended(engine, AllOf((Single("a"), Single("b"))), ("a", "b"))
    page = await engine.list_pending_waitpoints(execution_id=id_of(handle))
    assert page.next_cursor is None
    shown = {entry.waitpoint_key: entry for entry in page.entries}
    assert shown.keys() == {"a", "b"}
    for each in credentials(details):
        entry = shown[each.waitpoint_key]
        kid, digest = each.waitpoint_token.reveal().split(":")
        assert (entry.token_kid, entry.token_fingerprint) == (kid, digest[:16])
        assert (entry.waitpoint_id, entry.state, entry.execution_id) == (each.waitpoint_id, "active", id_of(handle))
        assert (entry.created_at, entry.activated_at, entry.expires_at) == (START_MS, START_MS, None)
        assert digest not in repr(page)


async def test_pages(engine: Engine) -> None:
    handle = await claimed(engine)
    made = sorted([(await engine.create_waitpoint(handle, KEY, 1_000)).waitpoint_id for _ in range(5)])
    await engine.close_waitpoint(execution_id=id_of(handle), waitpoint_id=made.pop(2))
    seen: list[str] = []
    after = None
    for _ in range(4):
        page = await engine.list_pending_waitpoints(execution_id=id_of(handle), after=after, limit=1)
        seen += [entry.waitpoint_id for entry in page.entries]
        after = page.next_cursor
    assert seen == made
    assert after is None
    for limit in (0, -5):
        assert len((await engine.list_pending_waitpoints(execution_id=id_of(handle), limit=limit)).entries) == 1
    assert len((await engine.list_pending_waitpoints(execution_id=id_of(handle), limit=10**9)).entries) == 4
    with pytest.raises(NotFound) as caught:
        await engine.list_pending_waitpoints(execution_id=MISSING)
    assert caught.value.entity == "execution"


async def test_reading_a_token(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    where = id_of(handle).partition
    pending = await engine.create_waitpoint(handle, KEY, 1_000)
    token = await engine.read_waitpoint_token(where, pending.waitpoint_id)
    assert token == pending.hmac_token
    assert isinstance(token, Token)
    assert pending.hmac_token.reveal().split(":")[1] not in repr(token)
    own, other = id_of(handle), await create(engine, lane_id="third")
    assert await engine.read_waitpoint_token(where, pending.waitpoint_id, own) == token
    assert await engine.read_waitpoint_token(where, pending.waitpoint_id, other) is None
    assert await engine.read_waitpoint_token(where, str(uuid4())) is None
    clock.advance(1_000)
    assert await engine.read_waitpoint_token(where, pending.waitpoint_id) is None
    _, details = await suspended(engine, lane_id="second")
    assert details.waitpoint_token


async def test_a_closed_waitpoint_has_no_token(engine: Engine) -> None:
    handle, details = await suspended(engine)
    where = id_of(handle).partition
    assert await engine.read_waitpoint_token(where, details.waitpoint_id) == details.waitpoint_token
    await effect(engine, handle, details)
    assert await engine.read_waitpoint_token(where, details.waitpoint_id) is None


async def test_suspended_executions_longest_waiting_first(engine: Engine, clock: ManualClock) -> None:
    waiting: list[str] = []
    for number in range(4):
        name = f"{{fp:0}}:{uuid4()}"
        await create(engine, execution_id=name, lane_id=f"lane {number}")
        handle = await engine.claim(f"lane {number}", (), policy())
        assert handle is not None
        outcome = await engine.suspend(handle, asking(OperatorOnly(), waitpoints=[Fresh()], reason_code=f"{number}"))
        assert isinstance(outcome, Suspended)
        waiting.append(name)
        clock.advance(1)
    await engine.resume_execution(execution_id=waiting[1])
    first = await engine.list_suspended(0, limit=2)
    assert [(entry.execution_id, entry.reason) for entry in first.entries] == [(waiting[0], "0"), (waiting[2], "2")]
    assert first.next_cursor == f"{START_MS + 2}.{waiting[2]}"
    second = await engine.list_suspended(0, cursor=first.next_cursor, limit=2)
    assert [entry.execution_id for entry in second.entries] == [waiting[3]]
    assert second.next_cursor is None
    assert (await engine.list_suspended(0, limit=0)).entries == ()
