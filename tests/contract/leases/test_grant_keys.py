"""What a grant key is worth: its signature is judged before anything that is stored."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from flowfabric import GrantCheck, Granted
from flowfabric.engine import Engine
from tests.contract.probe import ManualClock, Probe, claimed, create, id_of, unchanged

WORKER = {"worker_id": "w1", "worker_instance_id": "w1-i1"}


async def promised(engine: Engine, **terms: Any) -> tuple[Any, str]:
    eid = await create(engine, lane_id="lane")
    answer = await engine.issue_claim_grant(execution_id=eid, lane_id="lane", **WORKER, **terms)
    return eid, answer.grant.grant_key


async def test_a_good_key(engine: Engine, probe: Probe) -> None:
    _, key = await promised(engine)
    async with unchanged(probe):
        assert await engine.verify_grant(key, **WORKER) is GrantCheck.VALID


async def test_a_reclaim_key(engine: Engine, clock: ManualClock) -> None:
    eid = id_of(await claimed(engine, ttl_ms=10))
    clock.advance(10)
    answer = await engine.issue_reclaim_grant(execution_id=eid, lane_id="lane-of-one", **WORKER)
    assert isinstance(answer, Granted)
    assert await engine.verify_grant(answer.grant.grant_key, **WORKER) is GrantCheck.VALID
    plain = answer.grant.grant_key.replace(":reclaim:", ":", 1)
    assert await engine.verify_grant(plain, **WORKER) is GrantCheck.SIGNATURE_MISMATCH


async def test_another_worker(engine: Engine) -> None:
    _, key = await promised(engine)
    for worker in ({**WORKER, "worker_id": "w2"}, {**WORKER, "worker_instance_id": "w1-i2"}):
        assert await engine.verify_grant(key, **worker) is GrantCheck.SIGNATURE_MISMATCH


async def test_changed_keys(engine: Engine, clock: ManualClock) -> None:
    _, key = await promised(engine)
    front, uuid, expires, kid, digest = key.rsplit(":", 4)
    changed = "0" if digest[-1] != "0" else "1"
    for forged in (
        f"{front}:{uuid4()}:{expires}:{kid}:{digest}",
        f"{front}:{uuid}:{int(expires) + 1}:{kid}:{digest}",
        f"{front}:{uuid}:{expires}:{kid}:{digest[:-1]}{changed}",
        f"{front[:-2]}9}}:{uuid}:{expires}:{kid}:{digest}",
    ):
        assert await engine.verify_grant(forged, **WORKER) is GrantCheck.SIGNATURE_MISMATCH
    other = f"{front}:{uuid}:{expires}:nobody:{digest}"
    assert await engine.verify_grant(other, **WORKER) is GrantCheck.UNKNOWN_KID


async def test_no_keys_at_all(engine: Engine) -> None:
    text = f"{engine.store.shown}:{{fp:0}}:{uuid4()}:1:{'k1'}:{'0' * 64}"
    assert await engine.verify_grant(text, **WORKER) is GrantCheck.UNKNOWN_KID


@pytest.mark.parametrize(
    "text",
    ["", "x", "a:b:c:d:e", "other:{fp:0}:UUID:1:k1:HEX", "STORE:{fp:x}:UUID:1:k1:HEX", "STORE:{fp:0}:x:1:k1:HEX",
     "STORE:{fp:0}:UUID:-1:k1:HEX", "STORE:{fp:0}:UUID:1::HEX", "STORE:{fp:0}:UUID:1:k1:abc",
     "STORE:{fp:0}:UUID:1:k1:HEX ", "STORE:{fp:0}:UUID:\u0661:k1:HEX"],
)  # fmt: skip
async def test_what_is_no_key(engine: Engine, text: str) -> None:
    filled = text.replace("STORE", engine.store.shown).replace("UUID", str(uuid4())).replace("HEX", "0" * 64)
    assert await engine.verify_grant(filled, **WORKER) is GrantCheck.MALFORMED


async def test_time(engine: Engine, clock: ManualClock) -> None:
    _, key = await promised(engine, grant_ttl_ms=500)
    clock.advance(499)
    assert await engine.verify_grant(key, **WORKER) is GrantCheck.VALID
    clock.advance(1)
    assert await engine.verify_grant(key, **WORKER) is GrantCheck.EXPIRED


async def test_used_keys(engine: Engine) -> None:
    eid, key = await promised(engine)
    await engine.claim_execution(
        execution_id=eid, lane_id="lane", lease_id=str(uuid4()), attempt_id=str(uuid4()), lease_ttl_ms=1_000, **WORKER
    )
    assert await engine.verify_grant(key, **WORKER) is GrantCheck.UNKNOWN_GRANT


async def test_former_signing_keys_verify_while_in_grace(engine: Engine, clock: ManualClock) -> None:
    _, key = await promised(engine, grant_ttl_ms=100_000)
    await engine.rotate_waitpoint_hmac_secret_all(new_kid="k2", new_secret_hex="ab" * 32, grace_ms=1_000)
    assert await engine.verify_grant(key, **WORKER) is GrantCheck.VALID
    clock.advance(1_000)
    assert await engine.verify_grant(key, **WORKER) is GrantCheck.UNKNOWN_KID
