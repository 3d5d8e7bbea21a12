"""The handle codec, byte for byte, and the first check of every handle operation."""

from __future__ import annotations

import copy
import pickle
import struct

import pytest
from hypothesis import given, strategies as st

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.handles import BackendTag, Handle, HandleKind, HandlePayload, decode, decode_for, encode
from flowfabric.model.ids import AttemptId, ExecutionId, LaneId, LeaseId, WorkerInstanceId

PAYLOAD = HandlePayload(
    ExecutionId("{fp:0}:11111111-1111-4111-8111-111111111111"),
    0,
    AttemptId("22222222-2222-4222-8222-222222222222"),
    LeaseId("33333333-3333-4333-8333-333333333333"),
    1,
    30_000,
    LaneId("default"),
    WorkerInstanceId("w1-i1"),
)
VECTOR = bytes.fromhex(
    "020103"
    "2b000000"
    "7b66703a307d3a31313131313131312d313131312d343131312d383131312d313131313131313131313131"
    "00000000"
    "24000000"
    "32323232323232322d323232322d343232322d383232322d323232323232323232323232"
    "24000000"
    "33333333333333332d333333332d343333332d383333332d333333333333333333333333"
    "0100000000000000"
    "3075000000000000"
    "07000000"
    "64656661756c74"
    "05000000"
    "77312d6931"
)


def refused(opaque: bytes) -> str:
    with pytest.raises(Validation) as caught:
        decode(opaque)
    assert caught.value.kind is ValidationKind.CORRUPTION
    return caught.value.detail


def test_the_vector() -> None:
    assert len(VECTOR) == 170
    assert encode(BackendTag.SQLITE, PAYLOAD) == VECTOR
    assert decode(VECTOR) == (BackendTag.SQLITE, PAYLOAD)


def test_tags() -> None:
    assert {tag: tag.byte for tag in BackendTag} == {"Valkey": 1, "Postgres": 2, "Sqlite": 3, "Memory": 4}
    for tag in BackendTag:
        opaque = encode(tag, PAYLOAD)
        assert opaque == VECTOR[:2] + bytes([tag.byte]) + VECTOR[3:]
        assert decode(opaque)[0] is tag


def test_version_one_is_read_as_valkey() -> None:
    assert decode(b"\x01" + VECTOR[3:]) == (BackendTag.VALKEY, PAYLOAD)


def test_decode_problems() -> None:
    for length in range(len(VECTOR)):
        assert refused(VECTOR[:length]) == "handle_codec: Truncated"
    for length in range(1, len(VECTOR) - 2):
        assert refused((b"\x01" + VECTOR[3:])[:length]) == "handle_codec: Truncated"
    assert refused(VECTOR + b"\x00") == "handle_codec: TrailingBytes"
    assert refused(b"\x02\x02" + VECTOR[2:]) == "handle_codec: BadWireVersion"
    assert refused(b"\x03" + VECTOR[1:]) == "handle_codec: BadV1Version"
    assert refused(b"\x00") == "handle_codec: BadV1Version"
    assert refused(b"\x02\x01\x09" + VECTOR[3:]) == "handle_codec: BadBackendTag"
    assert refused(VECTOR[:-1] + b"\xff") == "handle_codec: InvalidUtf8"
    assert refused(VECTOR.replace(b"{fp:0}", b"{xx:0}")) == "handle_codec: ParseField"
    assert refused(VECTOR.replace(b"22222222-", b"2222222z-")) == "handle_codec: ParseField"
    assert refused(VECTOR.replace(b"33333333-", b"3333333z-")) == "handle_codec: ParseField"
    assert refused(VECTOR[:3] + struct.pack("<I", 2**32 - 1) + VECTOR[7:]) == "handle_codec: Truncated"


@given(
    st.sampled_from(list(BackendTag)),
    st.integers(0, 65535),
    st.uuids(),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.text(),
    st.text(),
)
def test_round_trip(
    tag: BackendTag, partition: int, uuid: object, index: int, epoch: int, ttl: int, lane: str, instance: str
) -> None:
    text = str(uuid)
    payload = HandlePayload(f"{{fp:{partition}}}:{text}", index, text, text, epoch, ttl, lane, instance)
    assert decode(encode(tag, payload)) == (tag, payload)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_corruption(data: bytes) -> None:
    for opaque in (data, b"\x02\x01\x03" + data, b"\x01" + data):
        problem = None
        try:
            tag, payload = decode(opaque)
        except Validation as error:
            problem = error.detail
        else:
            assert decode(encode(tag, payload)) == (tag, payload)
        assert problem is None or problem.startswith("handle_codec: ")


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Validation):
        encode(BackendTag.SQLITE, HandlePayload("", 2**32, "", "", 0, 0, "", ""))
    with pytest.raises(Validation):
        encode(BackendTag.SQLITE, HandlePayload("", 0, "", "", -1, 0, "", ""))


def test_a_handle_is_a_value() -> None:
    minted = Handle.of(BackendTag.SQLITE, HandleKind.FRESH, PAYLOAD)
    received = Handle(BackendTag.SQLITE, HandleKind.FRESH, VECTOR)
    assert minted == received
    assert hash(minted) == hash(received)
    assert minted.opaque == VECTOR
    assert minted != Handle(BackendTag.SQLITE, HandleKind.RESUMED, VECTOR)
    assert minted != Handle(BackendTag.POSTGRES, HandleKind.FRESH, VECTOR)
    assert minted != "handle"
    for twin in (copy.copy(minted), copy.deepcopy(minted), pickle.loads(pickle.dumps(minted))):
        assert twin == minted
    with pytest.raises(AttributeError):
        minted.kind = HandleKind.RESUMED  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del minted.kind
    assert len(repr(minted)) < 120
    assert "33333333" not in repr(minted)
    assert "170 bytes" in repr(received)


def test_decode_for_accepts_own_handles_and_remembers() -> None:
    minted = Handle.of(BackendTag.MEMORY, HandleKind.FRESH, PAYLOAD)
    assert decode_for(minted, BackendTag.MEMORY) is PAYLOAD
    received = Handle(BackendTag.SQLITE, HandleKind.FRESH, VECTOR)
    first = decode_for(received, BackendTag.SQLITE)
    assert first == PAYLOAD
    assert decode_for(received, BackendTag.SQLITE) is first
    assert received == Handle(BackendTag.SQLITE, HandleKind.FRESH, VECTOR)


@pytest.mark.parametrize(
    ("handle", "detail"),
    [
        (Handle(BackendTag.VALKEY, HandleKind.FRESH, b"junk"), "expected=Sqlite actual=Valkey"),
        (Handle.of(BackendTag.POSTGRES, HandleKind.FRESH, PAYLOAD), "expected=Sqlite actual=Postgres"),
        (
            Handle(BackendTag.SQLITE, HandleKind.FRESH, encode(BackendTag.VALKEY, PAYLOAD)),
            "expected=Sqlite actual=Valkey (embedded tag)",
        ),
        (
            Handle(BackendTag.SQLITE, HandleKind.FRESH, b"\x01" + VECTOR[3:]),
            "expected=Sqlite actual=Valkey (embedded tag)",
        ),
    ],
)
def test_foreign_handles(handle: Handle, detail: str) -> None:
    for _ in range(2):
        with pytest.raises(Validation) as caught:
            decode_for(handle, BackendTag.SQLITE)
        assert caught.value.kind is ValidationKind.HANDLE_FROM_OTHER_BACKEND
        assert caught.value.detail == detail


def test_a_broken_handle_is_corruption() -> None:
    with pytest.raises(Validation) as caught:
        decode_for(Handle(BackendTag.SQLITE, HandleKind.FRESH, b""), BackendTag.SQLITE)
    assert caught.value.kind is ValidationKind.CORRUPTION
    assert caught.value.detail == "handle_codec: Truncated"
