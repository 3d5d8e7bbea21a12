"""Holding a lease: renewing it by handle and by fence, and saying how far the work is."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import Contention, LeaseRenewal, Renewed, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.model.events import LeaseEvent
from tests.contract.probe import (
    START_MS,
    ManualClock,
    Probe,
    claimed,
    fence_of,
    forged,
    id_of,
    refused,
    unchanged,
)
from tests.contract.seeding import alter

RUNNING = "active / leased / not_applicable / running_attempt / running"


async def test_renew_extends_by_the_time_in_the_handle(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=10_000)
    (before,) = await probe.attempts(id_of(handle))
    row = await probe.execution(id_of(handle))
    clock.advance(4_000)
    assert await engine.renew(handle) == LeaseRenewal(START_MS + 14_000, 1)
    (after,) = await probe.attempts(id_of(handle))
    assert (before.lease_expires_at_ms, after.lease_expires_at_ms) == (START_MS + 10_000, START_MS + 14_000)
    after.lease_expires_at_ms, after.renewed_at_ms = before.lease_expires_at_ms, before.renewed_at_ms
    assert after == before
    assert await probe.execution(id_of(handle)) == row
    assert await probe.state(id_of(handle)) == RUNNING


async def test_renew_is_an_event(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, instance="box-1", namespace="acme", tags={"cairn.instance_id": "blue"})
    clock.advance(5)
    await engine.renew(handle)
    assert await probe.lease_events(id_of(handle)) == ["acquired", "renewed"]
    event: LeaseEvent = (await probe.events(LeaseEvent, id_of(handle)))[1]
    assert event == LeaseEvent(
        id_of(handle).partition,
        id_of(handle).uuid_text,
        probe.lease_id(id_of(handle), 0, 1),
        "renewed",
        START_MS + 5,
        "acme",
        "blue",
        "box-1",
        None,
    )


async def test_renew_without_time_passing_changes_no_expiry(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, ttl_ms=10_000)
    assert await engine.renew(handle) == LeaseRenewal(START_MS + 10_000, 1)
    assert await engine.renew(handle) == LeaseRenewal(START_MS + 10_000, 1)
    assert await probe.lease_events(id_of(handle)) == ["acquired", "renewed", "renewed"]


async def test_a_renewal_never_moves_an_expiry_back(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=30_000)
    named = {"execution_id": id_of(handle), "attempt_index": 0, "fence": fence_of(handle)}
    assert await engine.renew_lease(**named, lease_ttl_ms=1) == Renewed(START_MS + 30_000)
    clock.advance(-5_000)
    assert await engine.renew(handle) == LeaseRenewal(START_MS + 30_000, 1)
    (attempt,) = await probe.attempts(id_of(handle))
    assert attempt.lease_expires_at_ms == START_MS + 30_000


async def test_an_expiry_stops_at_the_end_of_time(engine: Engine) -> None:
    handle = await claimed(engine)
    assert await engine.renew(forged(handle, lease_ttl_ms=2**64 - 1)) == LeaseRenewal(2**63 - 1, 1)


async def test_a_renewal_takes_back_what_a_clock_gave_that_was_ahead(engine: Engine, clock: ManualClock) -> None:
    clock.advance(3_600_000)
    handle = await claimed(engine, ttl_ms=30_000)
    clock.advance(-3_600_000)
    assert (await engine.renew(handle)).expires_at_ms == START_MS + 30_000


async def test_renew_lease_takes_its_own_time(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=10_000)
    clock.advance(9_999)
    named = {"execution_id": id_of(handle), "attempt_index": 0, "fence": fence_of(handle)}
    assert await engine.renew_lease(**named, lease_ttl_ms=90_000) == Renewed(START_MS + 99_999)
    assert await probe.lease_events(id_of(handle)) == ["acquired", "renewed"]
    assert await probe.state(id_of(handle)) == RUNNING


async def test_readers_see_the_renewal(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine, instance="box-1", ttl_ms=10_000)
    clock.advance(3_000)
    await engine.renew(handle)
    snapshot = await engine.describe_execution(id_of(handle))
    assert snapshot is not None
    assert snapshot.current_lease is not None
    assert (snapshot.current_lease.expires_at, snapshot.current_lease.last_heartbeat_at) == (
        START_MS + 13_000,
        START_MS + 3_000,
    )
    assert snapshot.last_mutation_at == START_MS + 3_000


# -- progress --------------------------------------------------------------------------------------------------------


async def test_progress_merges_what_is_given(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine, namespace="acme", tags={"a.b": "c"})
    fields = await probe.raw_fields(id_of(handle))
    assert fields.keys().isdisjoint({"progress_pct", "progress_message"})

    clock.advance(10)
    assert await engine.progress(handle, 10) is None
    assert await probe.raw_fields(id_of(handle)) == {**fields, "progress_pct": 10}
    await engine.progress(handle, message="half way")
    assert await probe.raw_fields(id_of(handle)) == {**fields, "progress_pct": 10, "progress_message": "half way"}
    await engine.progress(handle, 60, "further")
    assert await probe.raw_fields(id_of(handle)) == {**fields, "progress_pct": 60, "progress_message": "further"}
    snapshot = await engine.describe_execution(id_of(handle))
    assert snapshot is not None
    assert (snapshot.namespace, snapshot.tags, snapshot.last_mutation_at) == ("acme", {"a.b": "c"}, START_MS + 10)


async def test_progress_only_with_a_message_leaves_the_number_absent(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.progress(handle, message="")
    fields = await probe.raw_fields(id_of(handle))
    assert fields["progress_message"] == ""
    assert "progress_pct" not in fields


@pytest.mark.parametrize("percent", [0, 1, 100])
async def test_progress_is_a_number_not_a_text(engine: Engine, probe: Probe, percent: int) -> None:
    handle = await claimed(engine)
    await engine.progress(handle, percent)
    stored = (await probe.raw_fields(id_of(handle)))["progress_pct"]
    assert (stored, type(stored)) == (percent, int)


async def test_progress_of_nothing_changes_nothing(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    async with unchanged(probe):
        assert await engine.progress(handle) is None


@pytest.mark.parametrize("percent", [-1, 101, 2**70, True, 1.5, "50"])
async def test_percent_is_between_0_and_100(engine: Engine, probe: Probe, percent: Any) -> None:
    handle = await claimed(engine)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.progress(handle, percent)


async def test_progress_is_no_event_and_no_frame(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.progress(handle, 10, "here")
    assert await probe.lease_events(id_of(handle)) == ["acquired"]
    assert await probe.completions(id_of(handle)) == []
    assert await probe.operator_events(id_of(handle)) == []
    assert (await engine.read_stream(id_of(handle))).frames == ()
    assert await probe.state(id_of(handle)) == RUNNING


async def test_progress_on_an_unreadable_document_is_corruption(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await alter(engine, id_of(handle), raw_fields="[]")
    async with refused(probe, Validation, ValidationKind.CORRUPTION, "raw_fields: not a JSON object"):
        await engine.progress(handle, 5)
    assert (await engine.renew(handle)).lease_epoch == 1


async def test_many_leases_are_renewed_at_once_and_each_is_answered(engine: Engine, clock: ManualClock) -> None:
    handles = [await claimed(engine) for _ in range(3)]
    await engine.complete(handles[1])
    clock.advance(1_000)
    first, ended, last = await engine.renew_many(handles)
    for renewed in (first, last):
        assert isinstance(renewed, LeaseRenewal)
        assert renewed.expires_at_ms == clock() + 30_000
    assert isinstance(ended, Contention)
    assert await engine.renew_many([]) == []
