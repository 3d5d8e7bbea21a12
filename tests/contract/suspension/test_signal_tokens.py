"""Tokens: only the right one, unchanged, on its own waitpoint, and a bad one learns nothing."""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import Accepted, EngineError, Token, Validation, ValidationKind
from flowfabric.conditions import AllOf, OperatorOnly, Single
from flowfabric.engine import Engine
from flowfabric.model.records.executions import SigningKey
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, refused, unchanged
from tests.contract.seeding import seed
from tests.contract.suspending import KEY, addressed, asking, credentials, effect, signal, suspended

SECRET = bytes(range(32))


async def told(engine: Engine, **arguments: Any) -> tuple[str, str]:
    """Kind and detail of a refusal."""
    with pytest.raises(EngineError) as caught:
        await engine.deliver_signal(signal_name="x", **arguments)
    return str(caught.value.kind), caught.value.detail


REFUSED = ("invalid_token", "invalid_token")


async def test_what_a_token_is(engine: Engine) -> None:
    await engine.seed_waitpoint_hmac_secret(kid="one", secret_hex=SECRET.hex())
    handle, details = await suspended(engine)
    message = f"one:{id_of(handle)}:{details.waitpoint_id}"
    digest = hmac.new(SECRET, message.encode(), hashlib.sha256).hexdigest()
    assert details.waitpoint_token == f"one:{digest}"


async def test_every_bit_counts(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(engine)
    point = addressed(handle, details)
    genuine = point.pop("waitpoint_token").reveal().encode()
    async with unchanged(probe):
        for position in range(len(genuine)):
            for bit in range(8):
                flipped = bytearray(genuine)
                flipped[position] ^= 1 << bit
                token = flipped.decode("latin-1")
                assert await told(engine, **point, waitpoint_token=token) == REFUSED, (position, bit)
    assert await effect(engine, handle, details) == "resume_condition_satisfied"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1],
        lambda token: token + "0",
        lambda token: token.upper(),
        lambda token: " " + token,
        lambda token: token + "\n",
        lambda token: token.replace(":", "::"),
        lambda token: token.partition(":")[2],
        lambda token: ":" + token.partition(":")[2],
        lambda token: token.partition(":")[0],
        lambda token: token.partition(":")[0] + ":",
        lambda token: "k2:" + token.partition(":")[2],
        lambda token: "k1:" + "0" * 64,
        lambda token: "k1:" + "g" * 64,
        lambda token: "k1:" + "٣" * 64,
        lambda token: "k1\x00:" + token.partition(":")[2],
        lambda token: "\ud800:" + token.partition(":")[2],
        lambda token: "x" * 100_000 + ":" + token.partition(":")[2],
    ],
)
async def test_malformed_tokens(engine: Engine, probe: Probe, spoil: Any) -> None:
    handle, details = await suspended(engine)
    async with refused(probe, Validation, ValidationKind.INVALID_TOKEN, "invalid_token"):
        await signal(engine, handle, details, waitpoint_token=spoil(details.waitpoint_token.reveal()))


@pytest.mark.parametrize("absent", ["", None])
async def test_no_token_at_all(engine: Engine, probe: Probe, absent: str | None) -> None:
    handle, details = await suspended(engine)
    async with refused(probe, Validation, ValidationKind.INVALID_TOKEN, "missing_token"):
        await signal(engine, handle, details, waitpoint_token=absent)


async def test_a_token_fits_one_waitpoint_of_one_execution(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(engine, AllOf((Single("a"), Single("b"))), ("a", "b"))
    first, second = credentials(details)
    neighbour = f"{{fp:{id_of(handle).partition}}}:{uuid4()}"
    await create(engine, execution_id=neighbour, lane_id="neighbour")
    other, others = await suspended(engine, lane_id="other")
    eid = id_of(handle)
    point = {"execution_id": eid, "waitpoint_id": first.waitpoint_id, "waitpoint_token": first.waitpoint_token}
    async with unchanged(probe):
        for swapped in (
            {"waitpoint_id": second.waitpoint_id},
            {"waitpoint_token": second.waitpoint_token},
            {"waitpoint_token": others.waitpoint_token},
            {"waitpoint_id": others.waitpoint_id, "waitpoint_token": others.waitpoint_token},
            {"execution_id": neighbour},
            {"execution_id": id_of(other)},
            {"execution_id": id_of(other), "waitpoint_id": others.waitpoint_id},
        ):
            assert await told(engine, **{**point, **swapped}) == REFUSED, swapped
    assert isinstance(await engine.deliver_signal(signal_name="x", **point), Accepted)


async def test_nobody_can_tell_which_waitpoints_exist(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Whatever an outsider shows, an existing waitpoint, a closed one and none at all answer the same."""
    await engine.seed_waitpoint_hmac_secret(kid="old", secret_hex=SECRET.hex())
    handle, details = await suspended(engine)
    closed, closing = await suspended(engine, lane_id="closed")
    await effect(engine, closed, closing)
    ended, ending = await suspended(engine, lane_id="ended")
    await engine.cancel_execution(execution_id=id_of(ended))
    await engine.rotate_waitpoint_hmac_secret_all(new_kid="new", new_secret_hex="ab" * 32, grace_ms=10)

    async def answers(token: str) -> set[tuple[str, str]]:
        found = set()
        for where, point in (
            (handle, details.waitpoint_id),
            (handle, str(uuid4())),
            (closed, closing.waitpoint_id),
            (ended, ending.waitpoint_id),
            (ended, str(uuid4())),
        ):
            found.add(await told(engine, execution_id=id_of(where), waitpoint_id=point, waitpoint_token=token))
        return found

    async with unchanged(probe):
        for token in ("old:" + "0" * 64, "new:" + "0" * 64, "none:" + "0" * 64, "junk"):
            assert await answers(token) == {REFUSED}
        assert await answers("") == {("invalid_token", "missing_token")}
        clock.advance(10)
        assert await answers("old:" + "0" * 64) == {("invalid_token", "token_expired")}


async def test_a_genuine_token_of_a_waitpoint_that_is_gone(engine: Engine, probe: Probe) -> None:
    await seed(engine, SigningKey("k", SECRET, START_MS, True))
    handle = await claimed(engine)
    gone = str(uuid4())
    digest = hmac.new(SECRET, f"k:{id_of(handle)}:{gone}".encode(), hashlib.sha256).hexdigest()
    async with unchanged(probe):
        found = await told(engine, execution_id=id_of(handle), waitpoint_id=gone, waitpoint_token=f"k:{digest}")
    assert found == REFUSED


# ------------------------------------------------------------------------------------------------------------- rotation


async def test_tokens_outlive_a_rotation_by_its_grace(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """A→B→C within the grace: each key's tokens are good until that key's own time is over."""
    points = []
    for kid in ("a", "b", "c"):
        await engine.rotate_waitpoint_hmac_secret_all(new_kid=kid, new_secret_hex=kid.encode().hex() * 32, grace_ms=100)
        handle, details = await suspended(engine, OperatorOnly(), lane_id=kid)
        assert details.waitpoint_token.startswith(f"{kid}:")
        points.append((handle, details))
        clock.advance(40)
    # a ends at 140, b at 180 after the beginning; it is 120 now.
    outcomes = []
    for _ in range(4):
        outcomes.append([await _delivers(engine, *point) for point in points])
        clock.advance(20)
    assert outcomes == [
        ["accepted", "accepted", "accepted"],
        ["token_expired", "accepted", "accepted"],
        ["token_expired", "accepted", "accepted"],
        ["token_expired", "token_expired", "accepted"],
    ]
    await engine.rotate_waitpoint_hmac_secret_all(new_kid="d", new_secret_hex="dd" * 32, grace_ms=0)
    assert [await _delivers(engine, *point) for point in points] == ["invalid_token", "invalid_token", "token_expired"]


async def _delivers(engine: Engine, handle: Any, details: Any) -> str:
    try:
        await signal(engine, handle, details)
    except Validation as error:
        return error.detail
    return "accepted"


async def test_another_secret_under_the_same_id(engine: Engine, probe: Probe) -> None:
    handle, details = await suspended(engine)
    digest = hmac.new(SECRET, f"k1:{id_of(handle)}:{details.waitpoint_id}".encode(), hashlib.sha256).hexdigest()
    async with refused(probe, Validation, ValidationKind.INVALID_TOKEN, "invalid_token"):
        await signal(engine, handle, details, waitpoint_token=f"k1:{digest}")


async def test_a_rotation_does_not_touch_waiting_executions(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, KEY, 60_000)
    await engine.rotate_waitpoint_hmac_secret_all(new_kid="k2", new_secret_hex="ab", grace_ms=1_000)
    assert await effect(engine, handle, pending, "early") == "buffered_for_pending_waitpoint"
    clock.advance(1_000)
    assert (await _delivers(engine, handle, pending)) == "token_expired"
    outcome = await engine.suspend(handle, asking())
    assert outcome.details.waitpoint_token.startswith("k2:")


# ------------------------------------------------------------------------------------------------------------ redaction


async def test_no_secret_is_ever_shown(engine: Engine, probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=SECRET.hex())
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, "early", 1_000)
    outcome = await engine.suspend(handle, asking(AllOf((Single("a"), Single("b"))), ("a", "b"), idempotency_key="k"))
    shown = [repr(pending), repr(outcome), str(outcome), repr(credentials(outcome.details))]
    shown.append(repr(await engine.suspend(handle, asking(idempotency_key="k"))))
    shown.append(repr(await engine.read_waitpoint_token(id_of(handle).partition, pending.waitpoint_id)))
    shown.append(repr(await engine.list_pending_waitpoints(execution_id=id_of(handle))))
    shown.append(repr(await engine.list_waitpoint_hmac_kids()))
    for bad in (pending.hmac_token.reveal(), outcome.details.waitpoint_token.reveal().upper()):
        with pytest.raises(Validation) as caught:
            await signal(engine, handle, outcome.details, waitpoint_token=bad)
        shown += [str(caught.value), repr(caught.value)]
    with pytest.raises(Validation) as caught:
        await engine.seed_waitpoint_hmac_secret(kid="k9", secret_hex="ee" * 32)
    shown.append(repr(caught.value))
    with pytest.raises(Validation) as caught:
        await engine.rotate_waitpoint_hmac_secret_all(new_kid="k9", new_secret_hex="zz" + SECRET.hex())
    shown.append(repr(caught.value))
    shown.append(repr(await probe.select(SigningKey, active=True)))
    text = "\n".join([*shown, caplog.text])
    digests = [each.reveal().partition(":")[2] for each in (pending.hmac_token, outcome.details.waitpoint_token)]
    digests += [each.waitpoint_token.reveal().partition(":")[2] for each in outcome.details.additional_waitpoints]
    for secret in (*digests, SECRET.hex(), "ee" * 32):
        assert secret not in text.lower()
    assert "k1:<REDACTED:len=64>" in text
    assert "signal refused: invalid_token" in caplog.text
    assert repr(Token("junk")) == "<REDACTED:len=4>"
