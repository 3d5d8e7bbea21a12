"""What an execution's history tells of its leases, on every store."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from flowfabric import ClaimPolicy, Fresh, Handle, Replayed, SuspendArgs
from flowfabric.conditions import ByName, Single
from flowfabric.core.leases import lease
from flowfabric.engine import Engine
from flowfabric.model.operations.suspension import SuspensionReason, TimeoutBehavior
from flowfabric.model.records.past_leases import PastLease
from tests.contract.probe import ManualClock, Probe, claimed, create, id_of

_WAIT = SuspendArgs(
    waitpoints=[Fresh(None, "ann")],
    resume_condition=Single("ann", ByName("go")),
    reason_code=SuspensionReason.WAITING_FOR_APPROVAL,
)


async def past(probe: Probe, handle: Handle) -> list[str]:
    """How the leases ended that have rows of their own."""
    identity = id_of(handle)
    rows = await probe.select(PastLease, partition=identity.partition, uuid=identity.uuid_text)
    return [row.ended for row in rows]


async def test_history_tells_every_lease(engine: Engine, clock: ManualClock) -> None:
    """Suspended, stepped back, revoked, expired, taken over, failed, completed and replayed: each with its worker."""
    policy = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 10}}}
    identity = await create(engine, policy=policy)
    begun = []

    async def take(instance: str) -> Handle:
        begun.append(clock.advance(5))
        handle = await engine.claim("default", policy=ClaimPolicy("w", instance, 1_000))
        assert handle is not None
        assert id_of(handle) == identity
        clock.advance(2)
        return handle

    await engine.suspend(await take("w-1"), _WAIT)
    [waitpoint] = (await engine.read_history(identity)).waitpoints
    token = await engine.read_waitpoint_token(identity.partition, waitpoint.waitpoint_id)
    assert token is not None
    clock.advance(7)
    await engine.deliver_signal(
        execution_id=identity, waitpoint_id=waitpoint.waitpoint_id, waitpoint_token=token, signal_name="go"
    )
    await engine.delay(await take("w-2"), clock() + 1)
    clock.advance(1)
    await engine.run_due()
    await take("w-3")
    await engine.revoke_lease(execution_id=identity, reason="it hangs")
    await take("w-4")
    clock.advance(100_000)
    await engine.run_due()
    await engine.fail(await take("w-5"), reason="broken")
    clock.advance(10)
    await engine.run_due()
    await engine.complete(await take("w-6"), b"x")
    await engine.replay_execution(execution_id=identity)
    await take("w-7")
    leases = (await engine.read_history(identity)).leases
    assert [each.began_at for each in leases] == begun
    assert [(each.attempt_index, each.worker_instance_id, each.ended, each.reason) for each in leases] == [
        (0, "w-1", "suspended", "waiting_for_approval"),
        (0, "w-2", "delayed", None),
        (0, "w-3", "revoked", "it hangs"),
        (0, "w-4", "expired", None),
        (0, "w-5", "failed", None),
        (1, "w-6", "completed", None),
        (1, "w-7", None, None),
    ]
    assert [each.worker_id for each in leases] == ["w"] * 7
    lasted = [None if each.ended_at is None else each.ended_at - each.began_at for each in leases]
    assert lasted == [2, 2, 2, 1_000, 2, 2, None]
    assert leases[-1].expires_at == begun[-1] + 1_000


async def test_history_of_a_lease_that_was_taken_over(engine: Engine, clock: ManualClock) -> None:
    """The attempt that lost it is over; another one goes on."""
    handle = await claimed(engine, "old", ttl_ms=1_000, lane_id="default")
    identity = id_of(handle)
    clock.advance(5_000)
    await engine.issue_reclaim_grant(execution_id=identity, worker_id="w2", worker_instance_id="new", lane_id="default")
    await engine.reclaim_execution(
        execution_id=identity,
        worker_id="w2",
        worker_instance_id="new",
        lane_id="default",
        lease_id="11111111-1111-4111-8111-111111111111",
        lease_ttl_ms=1_000,
        attempt_id="22222222-2222-4222-8222-222222222222",
    )
    first, second = (await engine.read_history(identity)).leases
    assert (first.attempt_index, first.ended, first.ended_at) == (0, "reclaimed", clock())
    assert (second.attempt_index, second.worker_instance_id, second.ended) == (1, "new", None)
    await engine.cancel_execution(execution_id=identity, reason="enough")
    assert [each.ended for each in (await engine.read_history(identity)).leases] == ["reclaimed", "cancelled"]


async def test_what_ends_while_nobody_holds_it_adds_no_lease(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine, lane_id="default")
    await engine.suspend(handle, replace(_WAIT, timeout_at=clock() + 10, timeout_behavior="fail"))
    clock.advance(10)
    await engine.run_due()
    assert [each.ended for each in (await engine.read_history(id_of(handle))).leases] == ["suspended"]
    await engine.replay_execution(execution_id=id_of(handle))
    assert [each.ended for each in (await engine.read_history(id_of(handle))).leases] == ["suspended"]


async def test_what_ends_while_it_is_delayed_can_be_replayed(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    """Its last lease is told of when it steps back, and not once more when it starts over."""
    handle = await claimed(engine, execution_deadline_at=clock() + 1_000)
    await engine.delay(handle, clock() + 10_000)
    clock.advance(2_000)
    await engine.run_due()
    assert isinstance(await engine.replay_execution(execution_id=id_of(handle)), Replayed)
    assert await past(probe, handle) == ["delayed"]
    assert [each.ended for each in (await engine.read_history(id_of(handle))).leases] == ["delayed"]


async def test_a_lease_lost_once_too_often_has_expired(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=1_000, lane_id="default", policy={"max_reclaim_count": 0})
    clock.advance(100_000)
    await engine.run_due()
    history = await engine.read_history(id_of(handle))
    assert (history.failure_reason, [each.ended for each in history.leases]) == ("max_reclaims_exceeded", ["expired"])


async def test_what_runs_through_leaves_no_row_and_what_goes_takes_its_rows_along(
    engine: Engine, clock: ManualClock, probe: Probe
) -> None:
    plain = await claimed(engine, lane_id="plain")
    await engine.complete(plain, b"x")
    handle = await claimed(engine, lane_id="default")
    await engine.suspend(handle, _WAIT)
    await engine.cancel_execution(execution_id=id_of(handle))
    left = [await past(probe, each) for each in (plain, handle)]
    assert left == [[], ["suspended"]]
    clock.advance(1_000)
    assert await engine.trim_retention(retention_ms=0) == 2
    assert await past(probe, handle) == []


async def test_an_execution_that_never_ends_keeps_the_latest_leases(
    engine: Engine, probe: Probe, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "MAX_LEASES_SHOWN", 4)
    handle = await claimed(engine, lane_id="lane")
    for turn in range(15):
        if turn % 3:
            await engine.delay(handle, clock())
        else:
            await engine.suspend(
                handle, replace(_WAIT, timeout_at=clock() + 1, timeout_behavior=TimeoutBehavior.AUTO_RESUME)
            )
        clock.advance(1)
        await engine.run_due()
        again = await engine.claim("lane", policy=ClaimPolicy("w", f"w-{turn}", 1_000))
        assert again is not None
        handle = again
    assert 4 <= len(await past(probe, handle)) <= 9
    await engine.complete(handle, b"")
