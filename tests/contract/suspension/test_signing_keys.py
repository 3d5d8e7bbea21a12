"""The key store: seeding, rotating, listing. It signs waitpoint tokens and grants alike."""

from __future__ import annotations

import pytest

from flowfabric import (
    AlreadySeeded,
    Conflict,
    ConflictKind,
    PartitionRotation,
    RotateSecret,
    Seeded,
    Validation,
    ValidationKind,
    VerifyingKid,
    WaitpointKids,
)
from flowfabric.engine import Engine
from flowfabric.model.records.executions import SigningKey
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, refused, unchanged
from tests.contract.seeding import seed

ONE, TWO, THREE = "11" * 32, "22" * 32, "33" * 32


async def rotate(
    engine: Engine, kid: str, secret: str, grace_ms: int = 100
) -> RotateSecret.Rotated | RotateSecret.Noop:
    [entry] = await engine.rotate_waitpoint_hmac_secret_all(new_kid=kid, new_secret_hex=secret, grace_ms=grace_ms)
    assert isinstance(entry, PartitionRotation)
    assert entry.partition == 0
    return entry.result


async def test_nothing_is_seeded_before_it_is_needed(engine: Engine, probe: Probe) -> None:
    await claimed(engine)
    assert await engine.list_waitpoint_hmac_kids() == WaitpointKids(None, ())
    assert await probe.select(SigningKey, active=True) == []


async def test_seeding(engine: Engine, probe: Probe) -> None:
    assert await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=ONE) == Seeded("k1")
    assert await probe.select(SigningKey, active=True) == [SigningKey("k1", bytes.fromhex(ONE), START_MS, True)]
    async with unchanged(probe):
        assert await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=ONE.upper()) == AlreadySeeded("k1", True)
        assert await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=TWO) == AlreadySeeded("k1", False)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.seed_waitpoint_hmac_secret(kid="k2", secret_hex=TWO)


async def test_seeding_a_longer_secret(engine: Engine, probe: Probe) -> None:
    for short in (ONE[:-2], ONE + "0"):
        async with refused(probe, Validation, ValidationKind.INVALID_SECRET_HEX):
            await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=short)
    assert await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=ONE + TWO) == Seeded("k1")
    assert await probe.select(SigningKey, active=True) == [SigningKey("k1", bytes.fromhex(ONE + TWO), START_MS, True)]
    assert await engine.list_waitpoint_hmac_kids() == WaitpointKids("k1", ())


async def test_seeding_where_no_key_signs(engine: Engine, probe: Probe) -> None:
    await seed(engine, SigningKey("old", b"o", 1, False))
    assert await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=ONE) == Seeded("k1")
    assert await engine.list_waitpoint_hmac_kids() == WaitpointKids("k1", (VerifyingKid("old", None),))


async def test_rotating(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    assert await rotate(engine, "a", ONE) == RotateSecret.Rotated(None, "a", 0)
    assert await engine.list_waitpoint_hmac_kids() == WaitpointKids("a", ())
    assert await rotate(engine, "b", TWO) == RotateSecret.Rotated("a", "b", 0)
    assert await engine.list_waitpoint_hmac_kids() == WaitpointKids("b", (VerifyingKid("a", START_MS + 100),))
    clock.advance(50)
    assert await rotate(engine, "c", THREE) == RotateSecret.Rotated("b", "c", 0)
    both = (VerifyingKid("a", START_MS + 100), VerifyingKid("b", START_MS + 150))
    assert await engine.list_waitpoint_hmac_kids() == WaitpointKids("c", both)
    clock.advance(50)
    assert await engine.list_waitpoint_hmac_kids() == WaitpointKids("c", both[1:])
    assert await rotate(engine, "d", "44") == RotateSecret.Rotated("c", "d", 1)
    assert {key.kid for key in await probe.select(SigningKey, active=False)} == {"b", "c"}
    [current] = await probe.select(SigningKey, active=True)
    assert (current.kid, current.secret, current.expires_at_ms) == ("d", b"\x44", None)


async def test_rotating_again(engine: Engine, probe: Probe) -> None:
    await rotate(engine, "a", ONE)
    await rotate(engine, "b", TWO)
    async with unchanged(probe):
        assert await rotate(engine, "b", TWO) == RotateSecret.Noop("b")
        assert await rotate(engine, "a", ONE) == RotateSecret.Noop("a")
    for kid in ("a", "b"):
        async with refused(probe, Conflict, ConflictKind.ROTATION_CONFLICT) as caught:
            await rotate(engine, kid, THREE)
        assert caught.value.kid == kid  # type: ignore[attr-defined]


async def test_two_rotations_in_one_moment_have_an_order(engine: Engine) -> None:
    for kid in ("b", "a", "c"):
        await rotate(engine, kid, kid.encode().hex())
    assert (await engine.list_waitpoint_hmac_kids()).current_kid == "c"


async def test_without_a_grace_a_day(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FF_WAITPOINT_HMAC_GRACE_MS", raising=False)
    await rotate(engine, "a", ONE)
    await engine.rotate_waitpoint_hmac_secret_all(new_kid="b", new_secret_hex=TWO)
    assert (await engine.list_waitpoint_hmac_kids()).verifying == (VerifyingKid("a", START_MS + 86_400_000),)
    monkeypatch.setenv("FF_WAITPOINT_HMAC_GRACE_MS", "5")
    await engine.rotate_waitpoint_hmac_secret_all(new_kid="c", new_secret_hex=THREE)
    assert (await engine.list_waitpoint_hmac_kids()).verifying[1] == VerifyingKid("b", START_MS + 5)
    monkeypatch.setenv("FF_WAITPOINT_HMAC_GRACE_MS", "soon")
    with pytest.raises(Validation) as caught:
        await engine.rotate_waitpoint_hmac_secret_all(new_kid="d", new_secret_hex=THREE)
    assert "FF_WAITPOINT_HMAC_GRACE_MS" in caught.value.detail


async def test_several_active_rows(engine: Engine) -> None:
    """People may have written them: the latest signs, the others verify, and a rotation puts an end to it."""
    await seed(engine, SigningKey("x", b"x", 5, True), SigningKey("y", b"y", 9, True))
    assert await engine.list_waitpoint_hmac_kids() == WaitpointKids("y", (VerifyingKid("x", None),))
    assert await rotate(engine, "z", ONE) == RotateSecret.Rotated("y", "z", 0)
    kids = await engine.list_waitpoint_hmac_kids()
    assert kids == WaitpointKids("z", (VerifyingKid("x", START_MS + 100), VerifyingKid("y", START_MS + 100)))


async def test_grants_are_signed_by_the_same_key(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """A grant that a former key signed is redeemed like any other, in its grace and after it."""
    await rotate(engine, "a", ONE)
    eid = await create(engine, lane_id="lane")
    granted = await engine.issue_claim_grant(
        execution_id=eid, lane_id="lane", worker_id="w", worker_instance_id="i", grant_ttl_ms=10_000
    )
    assert ":a:" in granted.grant.grant_key
    await rotate(engine, "b", TWO, grace_ms=5)
    clock.advance(10)
    lease = "33333333-3333-4333-8333-333333333333"
    claimed_by_grant = await engine.claim_execution(
        execution_id=eid, worker_id="w", worker_instance_id="i", lane_id="lane", lease_id=lease, lease_ttl_ms=1_000,
        attempt_id=lease,
    )  # fmt: skip
    assert claimed_by_grant.lease_epoch == 1
