"""Identities: the texts they accept, the texts they become, and the bounds of capability and tag texts."""

from __future__ import annotations

import json
import pickle
import uuid

import msgspec
import pytest
from hypothesis import given, strategies as st

from flowfabric.model import ids
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import (
    CancelSource,
    ExecutionId,
    ExecutionIdError,
    FlowId,
    IdError,
    LaneId,
    LaneIdError,
    LeaseFence,
    check_capabilities,
    check_tag_key,
)
from flowfabric.model.partitions import PartitionCounts

ONES = "11111111-1111-4111-8111-111111111111"


def test_parse_gives_the_parts() -> None:
    eid = ExecutionId.parse(f"{{fp:191}}:{ONES}")
    assert (eid.partition, eid.uuid, eid.uuid_text) == (191, uuid.UUID(ONES), ONES)
    assert str(eid) == f"{{fp:191}}:{ONES}"
    assert type(str(eid)) is str
    assert type(eid.uuid_text) is str
    assert json.dumps({"id": eid}) == f'{{"id": "{{fp:191}}:{ONES}"}}'
    assert {eid: 1}[str(eid)] == 1  # type: ignore[index]


def test_parse_normalises() -> None:
    upper = ExecutionId("{fp:7}:AAAAAAAA-AAAA-4AAA-8AAA-AAAAAAAAAAAA")
    assert upper == "{fp:7}:aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
    assert ExecutionId("{fp:7}:" + ONES.replace("-", "")) == f"{{fp:7}}:{ONES}"
    assert ExecutionId(f"{{fp:007}}:{ONES}") == f"{{fp:7}}:{ONES}"
    assert ExecutionId(f"{{fp:65535}}:{ONES}").partition == 65535


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "MissingTag"),
        (ONES, "MissingTag"),
        (f"fp:0:{ONES}", "MissingTag"),
        (f"{{b:0}}:{ONES}", "MissingTag"),
        (f"{{fp:0}}{ONES}", "MissingTag"),
        (f"{{fp:}}:{ONES}", "InvalidPartitionIndex"),
        (f"{{fp:65536}}:{ONES}", "InvalidPartitionIndex"),
        (f"{{fp:-1}}:{ONES}", "InvalidPartitionIndex"),
        (f"{{fp:+1}}:{ONES}", "InvalidPartitionIndex"),
        (f"{{fp: 1}}:{ONES}", "InvalidPartitionIndex"),
        (f"{{fp:1_0}}:{ONES}", "InvalidPartitionIndex"),
        (f"{{fp:٣}}:{ONES}", "InvalidPartitionIndex"),
        (f"{{fp:{'9' * 9000}}}:{ONES}", "InvalidPartitionIndex"),
        ("{fp:0}:", "InvalidUuid"),
        ("{fp:0}:nope", "InvalidUuid"),
        (f"{{fp:0}}:{ONES}\n", "InvalidUuid"),
        ("{fp:0}:1111-1111111111114111811111111111111", "InvalidUuid"),
    ],
)
def test_parse_errors(text: str, problem: str) -> None:
    with pytest.raises(ExecutionIdError) as caught:
        ExecutionId.parse(text)
    assert caught.value.problem == problem
    assert isinstance(caught.value, ValueError)
    assert pickle.loads(pickle.dumps(caught.value)).problem == problem


def test_mint_follows_lane_and_flow() -> None:
    counts = PartitionCounts()
    solo = ExecutionId.solo(LaneId("default"), counts)
    assert solo.partition == 86
    assert solo.uuid.version == 7
    assert solo != ExecutionId.solo("default", 256)
    assert ExecutionId.solo("gpu", counts, uuid=ONES) == f"{{fp:144}}:{ONES}"
    assert ExecutionId.solo("gpu", 1, uuid=uuid.UUID(ONES)) == f"{{fp:0}}:{ONES}"
    assert ExecutionId.for_flow(FlowId(ONES), counts).partition == 191
    assert ExecutionId.for_flow(uuid.UUID(ONES), counts, uuid=ONES) == f"{{fp:191}}:{ONES}"
    assert ExecutionId.of(5, ONES) == f"{{fp:5}}:{ONES}"
    with pytest.raises(ExecutionIdError):
        ExecutionId.of(65536, ONES)
    with pytest.raises(ExecutionIdError):
        ExecutionId.of(0, "x")


@given(st.integers(0, 65535), st.uuids())
def test_execution_ids_round_trip(partition: int, value: uuid.UUID) -> None:
    eid = ExecutionId.of(partition, value)
    assert ExecutionId.parse(str(eid)) == eid
    assert (eid.partition, eid.uuid) == (partition, value)
    assert pickle.loads(pickle.dumps(eid)) == eid


@given(st.text())
def test_parse_raises_only_its_own_error(text: str) -> None:
    for candidate in (text, "{fp:" + text, "{fp:1}:" + text):
        try:
            parsed = ExecutionId.parse(candidate)
        except ExecutionIdError:
            continue
        assert ExecutionId.parse(parsed) == parsed


UUID_TYPES = [
    ids.FlowId, ids.LeaseId, ids.AttemptId, ids.SignalId, ids.WaitpointId, ids.SuspensionId, ids.EdgeId, ids.BudgetId,
    ids.QuotaPolicyId,
]  # fmt: skip


@pytest.mark.parametrize("kind", UUID_TYPES)
def test_uuid_identities(kind: type[FlowId]) -> None:
    minted = kind.new()
    assert isinstance(minted, kind)
    assert minted.uuid.version == 7
    assert kind(minted) is minted
    assert kind(ONES.upper()) == kind(uuid.UUID(ONES)) == kind.parse(ONES) == ONES
    for bad in ("", "x", "{" + ONES + "}", "urn:uuid:" + ONES, ONES + "\n"):
        with pytest.raises(IdError) as caught:
            kind(bad)
        assert kind.__name__ in str(caught.value)


def test_lane_ids() -> None:
    assert LaneId("a b~") == "a b~"
    assert sorted([LaneId("b"), LaneId("a")]) == ["a", "b"]
    assert LaneId("x" * 64)
    assert LaneId.unchecked("") == ""
    for text, problem, index in [
        ("", "Empty", None),
        ("x" * 65, "TooLong", None),
        ("é" * 33, "TooLong", None),
        ("ab\x1f", "NonPrintable", 2),
        ("é", "NonPrintable", 0),
        ("ok\x7f", "NonPrintable", 2),
        ("\ud800", "NonPrintable", 0),
    ]:
        with pytest.raises(LaneIdError) as caught:
            LaneId(text)
        assert (caught.value.problem, caught.value.index) == (problem, index)


def test_cancel_sources() -> None:
    assert [str(source) for source in CancelSource] == [
        "operator_override", "lease_holder", "flow_cascade", "system_timeout",
    ]  # fmt: skip


def test_a_fence_is_all_or_nothing() -> None:
    assert LeaseFence("l", 0, "a").complete
    assert not LeaseFence("l", 0, "a").partial
    assert not LeaseFence().complete
    assert not LeaseFence().partial
    for fence in (LeaseFence("l"), LeaseFence(lease_epoch=0), LeaseFence("l", 1), LeaseFence("", 1, "a")):
        assert fence.partial
        assert not fence.complete


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([1], "non_string_token"),
        ([None], "non_string_token"),
        ([b"gpu"], "non_string_token"),
        ([""], "empty_token"),
        (["a,b"], "comma_in_token"),
        (["a b"], "control_or_whitespace"),
        (["a\x00"], "control_or_whitespace"),
        (["a\x7f"], "control_or_whitespace"),
        ([str(number) for number in range(257)], "too_many_tokens"),
        (["x" * 4097], "too_many_bytes"),
        (["é" * 2049], "too_many_bytes"),
        ("gpu", "not_array"),
        ({"gpu": 1}, "not_array"),
        (7, "not_array"),
    ],
)
def test_bad_capabilities(tokens: object, problem: str) -> None:
    for side in ("required", "worker"):
        with pytest.raises(Validation) as caught:
            check_capabilities(tokens, side)  # type: ignore[arg-type]
        assert caught.value.kind is ValidationKind.INVALID_CAPABILITIES
        assert caught.value.detail == f"{side}:{problem}"


def test_good_capabilities_are_sorted_and_distinct_and_bounds_are_inclusive() -> None:
    assert check_capabilities([], "worker") == ()
    assert check_capabilities({"gpu", "arm"}, "worker") == ("arm", "gpu")
    assert check_capabilities(["b", "a", "b", "é"], "required") == ("a", "b", "é")
    assert len(check_capabilities([f"{number:03}" for number in range(256)] * 2, "worker")) == 256
    assert check_capabilities(["x" * 4096], "worker")
    assert check_capabilities(["x" * 2047, "y" * 2048], "worker")


def test_tag_keys() -> None:
    for good in ("a.b", "cairn.instance_id", "a_1.0", "a.b.c", "a._", "a.b."):
        check_tag_key(good)
    for bad in ("", "a", ".a", "a.", "A.b", "1a.b", "a.B", "a..b", "a.b\n", "a-b.c"):
        with pytest.raises(Validation) as caught:
            check_tag_key(bad)
        assert caught.value.kind is ValidationKind.INVALID_INPUT
        assert repr(bad) in caught.value.detail


class _Document(msgspec.Struct):
    execution_id: ExecutionId
    lane_id: LaneId


def test_msgspec_hooks() -> None:
    document = _Document(ExecutionId.of(0, ONES), LaneId("default"))
    text = msgspec.json.encode(document, enc_hook=ids.encode_hook)
    again = msgspec.json.decode(text, type=_Document, dec_hook=ids.decode_hook)
    assert again == document
    assert isinstance(again.execution_id, ExecutionId)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"execution_id":"x","lane_id":"y"}', type=_Document, dec_hook=ids.decode_hook)
