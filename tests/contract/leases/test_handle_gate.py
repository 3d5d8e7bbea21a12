"""The gate every handle operation passes, gate by gate and in order, and handles as values."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import (
    BackendTag,
    Contention,
    ContentionKind,
    Frame,
    Granted,
    Handle,
    HandleKind,
    NotFound,
    Reclaimed,
    ResumeGrant,
    ResumeToken,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.handles import encode
from flowfabric.model.records.executions import Attempt, Execution
from tests.contract.probe import (
    START_MS,
    ManualClock,
    Probe,
    claimed,
    create,
    forged,
    id_of,
    payload_of,
    policy,
    refused,
    unchanged,
)
from tests.contract.seeding import alter, alter_attempt, remove

OPERATIONS: dict[str, Callable[[Engine, Handle], Awaitable[Any]]] = {
    "renew": lambda engine, handle: engine.renew(handle),
    "progress": lambda engine, handle: engine.progress(handle, 10, "on the way"),
    "progress of nothing": lambda engine, handle: engine.progress(handle),
    "append_frame": lambda engine, handle: engine.append_frame(handle, Frame(b"line")),
    "complete": lambda engine, handle: engine.complete(handle, b"result"),
    "fail": lambda engine, handle: engine.fail(handle, "boom"),
    "cancel": lambda engine, handle: engine.cancel(handle, "enough"),
    "delay": lambda engine, handle: engine.delay(handle, START_MS + 60_000),
    "wait_children": lambda engine, handle: engine.wait_children(handle),
    "decline": lambda engine, handle: engine.decline(handle, "unknown"),
}
FOREIGN_TO = {
    "memory": BackendTag.SQLITE,
    "sqlite": BackendTag.POSTGRES,
    "postgres": BackendTag.VALKEY,
    "valkey": BackendTag.MEMORY,
}
OTHER_ID = "00000000-0000-4000-8000-000000000000"


# Each case breaks its gate and every gate behind it, so that the order shows.


async def _foreign_outside(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await remove(engine, Attempt, (id_of(handle), 0))
    return Handle(FOREIGN_TO[engine.backend_label], handle.kind, b"")


async def _foreign_inside(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await remove(engine, Attempt, (id_of(handle), 0))
    foreign = FOREIGN_TO[engine.backend_label]
    return Handle(handle.backend, handle.kind, encode(foreign, payload_of(handle)))


async def _broken(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await remove(engine, Attempt, (id_of(handle), 0))
    return Handle(handle.backend, handle.kind, handle.opaque[:-1])


async def _no_attempt(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await remove(engine, Execution, str(id_of(handle)))
    return forged(handle, attempt_index=7, lease_epoch=99)


async def _attempt_beyond_32_bits(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    return forged(handle, attempt_index=2**32 - 1)


async def _unknown_partition(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    return forged(handle, execution_id=f"{{fp:65535}}:{id_of(handle).uuid_text}")


async def _other_epoch(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await remove(engine, Execution, str(id_of(handle)))
    return forged(handle, lease_epoch=2)


async def _epoch_beyond_63_bits(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    return forged(handle, lease_epoch=2**64 - 1)


async def _no_execution(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await remove(engine, Execution, str(id_of(handle)))
    clock.advance(30_000)
    return handle


async def _other_attempt(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await alter(engine, id_of(handle), attempt_index=1, lifecycle_phase="runnable", ownership_state="lease_revoked")
    clock.advance(30_000)
    return handle


async def _not_active(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await alter(engine, id_of(handle), lifecycle_phase="runnable", ownership_state="lease_revoked")
    clock.advance(30_000)
    return handle


async def _revoked(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await alter(engine, id_of(handle), ownership_state="lease_revoked")
    clock.advance(30_000)
    return forged(handle, lease_id=OTHER_ID)


async def _expired(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    clock.advance(30_000)
    return forged(handle, lease_id=OTHER_ID)


async def _no_expiry(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    await alter_attempt(engine, id_of(handle), lease_expires_at_ms=None)
    return forged(handle, lease_id=OTHER_ID)


async def _other_lease(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    return forged(handle, lease_id=OTHER_ID)


GATES: dict[str, tuple[Any, type[Exception], Any]] = {
    "1 foreign outside": (_foreign_outside, Validation, ValidationKind.HANDLE_FROM_OTHER_BACKEND),
    "1 foreign inside": (_foreign_inside, Validation, ValidationKind.HANDLE_FROM_OTHER_BACKEND),
    "1 broken": (_broken, Validation, ValidationKind.CORRUPTION),
    "2 no attempt": (_no_attempt, NotFound, "attempt"),
    "2 attempt beyond 32 bits": (_attempt_beyond_32_bits, NotFound, "attempt"),
    "2 unknown partition": (_unknown_partition, NotFound, "attempt"),
    "3 other epoch": (_other_epoch, Contention, ContentionKind.LEASE_CONFLICT),
    "3 epoch beyond 63 bits": (_epoch_beyond_63_bits, Contention, ContentionKind.LEASE_CONFLICT),
    "4 no execution": (_no_execution, NotFound, "execution"),
    "4 other attempt": (_other_attempt, Contention, ContentionKind.LEASE_CONFLICT),
    "5 not active": (_not_active, Contention, ContentionKind.EXECUTION_NOT_ACTIVE),
    "6 revoked": (_revoked, State, StateKind.LEASE_REVOKED),
    "7 expired": (_expired, State, StateKind.LEASE_EXPIRED),
    "7 no expiry": (_no_expiry, State, StateKind.LEASE_EXPIRED),
    "8 other lease": (_other_lease, Contention, ContentionKind.LEASE_CONFLICT),
}


@pytest.mark.parametrize("gate", GATES)
async def test_gates_refuse_in_order_and_leave_no_trace(
    engine: Engine, probe: Probe, clock: ManualClock, gate: str
) -> None:
    arrange, family, kind = GATES[gate]
    handle = await arrange(engine, clock, await claimed(engine))
    code = f"{kind}_not_found" if family is NotFound else str(kind)
    async with unchanged(probe):
        for name, operation in OPERATIONS.items():
            with pytest.raises(family) as caught:
                await operation(engine, handle)
            error: Any = caught.value
            assert (name, error.kind, error.code) == (name, kind, code)
            if kind is ContentionKind.EXECUTION_NOT_ACTIVE:
                facts = (error.lifecycle_phase, error.terminal_outcome, error.lease_epoch, error.attempt_id)
                assert (name, *facts) == (name, "runnable", "none", 1, payload_of(handle).attempt_id)


async def test_what_passes_the_gate(engine: Engine, clock: ManualClock) -> None:
    """The last millisecond of a lease; after a forged epoch was refused; and whatever names stand beside the ids."""
    for number, operation in enumerate(OPERATIONS.values()):
        handle = await claimed(engine, lane_id=f"lane-{number}")
        clock.advance(29_999)
        with pytest.raises(Contention):
            await operation(engine, forged(handle, lease_epoch=2))
        await operation(engine, forged(handle, worker_instance_id="another", lane_id="elsewhere"))


# -- what foreign and broken handles say ---------------------------------------------------------------------------


async def test_foreign_handles_name_both_backends(engine: Engine) -> None:
    handle = await claimed(engine)
    own, foreign = handle.backend, FOREIGN_TO[engine.backend_label]
    with pytest.raises(Validation) as caught:
        await engine.complete(Handle(foreign, handle.kind, handle.opaque))
    assert caught.value.detail == f"expected={own} actual={foreign}"
    with pytest.raises(Validation) as caught:
        await engine.complete(Handle(own, handle.kind, encode(foreign, payload_of(handle))))
    assert caught.value.detail == f"expected={own} actual={foreign} (embedded tag)"


async def test_a_handle_of_the_first_version_belongs_to_valkey(engine: Engine) -> None:
    handle = await claimed(engine)
    legacy = b"\x01" + handle.opaque[3:]
    if engine.backend_label == "valkey":
        await engine.complete(Handle(handle.backend, handle.kind, legacy))
        return
    with pytest.raises(Validation) as caught:
        await engine.complete(Handle(handle.backend, handle.kind, legacy))
    assert caught.value.kind is ValidationKind.HANDLE_FROM_OTHER_BACKEND
    assert caught.value.detail == f"expected={handle.backend} actual=Valkey (embedded tag)"


def _text(value: bytes) -> bytes:
    return len(value).to_bytes(4, "little") + value


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda opaque: b"", "Truncated"),
    "two bytes": (lambda opaque: opaque[:2], "Truncated"),
    "one byte short": (lambda opaque: opaque[:-1], "Truncated"),
    "head only": (lambda opaque: opaque[:3], "Truncated"),
    "huge length": (lambda opaque: opaque[:3] + b"\xff\xff\xff\xff" + opaque[7:], "Truncated"),
    "one byte more": (lambda opaque: opaque + b"\x00", "TrailingBytes"),
    "wire version": (lambda opaque: opaque[:1] + b"\x02" + opaque[2:], "BadWireVersion"),
    "magic": (lambda opaque: b"\x03" + opaque[1:], "BadV1Version"),
    "tag 0": (lambda opaque: opaque[:2] + b"\x00" + opaque[3:], "BadBackendTag"),
    "tag 5": (lambda opaque: opaque[:2] + b"\x05" + opaque[3:], "BadBackendTag"),
    "not UTF-8": (lambda opaque: opaque[:7] + b"\xff" + opaque[8:], "InvalidUtf8"),
    "not an id": (lambda opaque: opaque[:7] + b"x" + opaque[8:], "ParseField"),
    "not a UUID": (lambda opaque: opaque.replace(b"-4", b"-g"), "ParseField"),
}


@pytest.mark.parametrize("problem", BROKEN)
async def test_broken_handles_are_corruption(engine: Engine, probe: Probe, problem: str) -> None:
    handle = await claimed(engine)
    spoil, name = BROKEN[problem]
    async with refused(probe, Validation, ValidationKind.CORRUPTION, f"handle_codec: {name}"):
        await engine.complete(Handle(handle.backend, handle.kind, spoil(handle.opaque)))


# -- handles as values -----------------------------------------------------------------------------------------------


async def test_a_handle_can_be_stored_and_sent_back(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    sent = Handle(BackendTag(handle.backend.value), HandleKind(handle.kind.value), bytes(handle.opaque))
    kept = pickle.loads(pickle.dumps(handle))
    assert handle == sent == kept
    assert len({handle, sent, kept}) == 1
    assert handle != Handle(handle.backend, HandleKind.RESUMED, handle.opaque)
    await engine.renew(sent)
    await engine.complete(kept, b"done")
    assert (await probe.execution(id_of(handle))).result == b"done"


async def test_a_handle_says_what_was_claimed(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, instance="box-7", ttl_ms=12_345, lane_id="gpu")
    payload = payload_of(handle)
    (attempt,) = await probe.attempts(id_of(handle))
    assert handle.backend.value.lower() == engine.backend_label
    assert (payload.attempt_index, payload.lease_epoch, payload.lease_ttl_ms) == (0, 1, 12_345)
    assert (payload.lane_id, payload.worker_instance_id) == ("gpu", "box-7")
    assert (payload.attempt_id, payload.lease_id) == (attempt.attempt_id, attempt.lease_id)


async def test_kinds_tell_how_the_attempt_came_to_its_holder(engine: Engine, clock: ManualClock) -> None:
    fresh = await claimed(engine, lane_id="kinds")
    assert fresh.kind is HandleKind.FRESH
    execution_id = id_of(fresh)
    await engine.delay(fresh, START_MS)
    await engine.promote_delayed(execution_id=execution_id)
    resumed = await engine.claim("kinds", (), policy("w1-i2"))
    assert resumed is not None
    assert resumed.kind is HandleKind.RESUMED

    clock.advance(30_000)
    token = ResumeToken(ResumeGrant(str(execution_id), "{fp:0}", "any", 2**63 - 1, "kinds"), "w1", "w1-i3", 30_000)
    taken = await engine.claim_from_resume_grant(token)
    assert taken is not None
    assert taken.kind is HandleKind.RESUMED

    clock.advance(30_000)
    names = {"execution_id": execution_id, "worker_id": "w2", "worker_instance_id": "w2-i1", "lane_id": "kinds"}
    assert isinstance(await engine.issue_reclaim_grant(**names), Granted)
    answer = await engine.reclaim_execution(**names, lease_id=OTHER_ID, lease_ttl_ms=5_000, attempt_id=OTHER_ID)
    assert isinstance(answer, Reclaimed)
    assert answer.handle.kind is HandleKind.RECLAIMED
    for handle in (fresh, resumed, taken):
        with pytest.raises(Contention) as caught:
            await engine.complete(handle)
        assert caught.value.kind is ContentionKind.LEASE_CONFLICT
    await engine.complete(answer.handle)


async def test_granted_claims_mint_fresh_and_resumed_handles(engine: Engine) -> None:
    execution_id = await create(engine, lane_id="granted")
    names = {"execution_id": execution_id, "worker_id": "w1", "worker_instance_id": "w1-i1", "lane_id": "granted"}
    await engine.issue_claim_grant(**names)
    claim = await engine.claim_execution(**names, lease_id=OTHER_ID, lease_ttl_ms=5_000, attempt_id=OTHER_ID)
    assert claim.handle.kind is HandleKind.FRESH
    await engine.delay(claim.handle, START_MS)
    await engine.promote_delayed(execution_id=execution_id)
    again = await engine.claim_resumed_execution(**names, lease_id=OTHER_ID, lease_ttl_ms=5_000)
    assert again.handle.kind is HandleKind.RESUMED
    assert payload_of(again.handle).lease_epoch == 2
