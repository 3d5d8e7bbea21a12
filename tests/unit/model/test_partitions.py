"""Partition arithmetic against the vectors of the specification."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.partitions import (
    PartitionCounts,
    PartitionFamily,
    PartitionKey,
    PartitionKeyError,
    budget_partition,
    crc16,
    flow_partition,
    fnv1a64,
    lane_partition,
    log_digest,
    quota_partition,
    scan_start,
    worker_registry_partition,
)

ONES = UUID("11111111-1111-4111-8111-111111111111")
NIL = UUID(int=0)


def test_crc16_vectors() -> None:
    assert crc16(b"123456789") == 0x31C3
    assert crc16(b"default") == 0xD656
    assert crc16(ONES.bytes) == 0x76BF
    assert crc16(NIL.bytes) == 0


def test_partition_vectors() -> None:
    counts = PartitionCounts()
    lanes = {"default": 86, "a": 135, "gpu": 144, "worker-pool-1": 77}
    assert {lane: lane_partition(lane, counts) for lane in lanes} == lanes
    assert flow_partition(ONES, counts) == flow_partition(str(ONES), 256) == 191
    assert flow_partition(NIL, counts) == 0
    assert budget_partition(ONES, counts) == quota_partition(ONES, counts) == 31
    assert budget_partition(str(ONES), 32) == quota_partition(str(ONES), 32) == 31
    assert lane_partition("default", 1) == 0


def test_fnv_vectors() -> None:
    assert fnv1a64(b"") == 0xCBF29CE484222325
    assert fnv1a64(b"w1-i1") == 0xECED60DF90417156
    assert worker_registry_partition("w1-i1") == 86
    assert log_digest("w1-i1") == "7cac1189"
    assert scan_start("w1-i1", 256) == 0x7156 % 256


def test_counts() -> None:
    assert PartitionCounts() == PartitionCounts(256, 32, 32)
    for make in (
        lambda: PartitionCounts(flow=0),
        lambda: PartitionCounts(budget=0),
        lambda: PartitionCounts(quota=-1),
        lambda: PartitionCounts(flow=65537),
        lambda: flow_partition(ONES, 0),
        lambda: lane_partition("a", 0),
        lambda: flow_partition("no uuid", 256),
    ):
        with pytest.raises(Validation) as caught:
            make()
        assert caught.value.kind is ValidationKind.INVALID_INPUT


@given(st.sampled_from(list(PartitionFamily)), st.integers(0, 65535))
def test_partition_keys_round_trip(family: PartitionFamily, index: int) -> None:
    key = PartitionKey.parse(str(PartitionKey(family, index)))
    assert key.index == index
    assert key.family is (PartitionFamily.FLOW if family is PartitionFamily.EXECUTION else family)


def test_partition_key_texts() -> None:
    assert str(PartitionKey(PartitionFamily.EXECUTION, 7)) == "{fp:7}"
    assert str(PartitionKey(PartitionFamily.BUDGET, 0)) == "{b:0}"
    assert str(PartitionKey(PartitionFamily.QUOTA, 31)) == "{q:31}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "MissingBraces"),
        ("{", "MissingBraces"),
        ("fp:7", "MissingBraces"),
        ("{fp:7", "MissingBraces"),
        ("{}", "MalformedBody"),
        ("{fp}", "MalformedBody"),
        ("{fp:}", "MalformedBody"),
        ("{:7}", "MalformedBody"),
        ("{x:7}", "UnknownFamilyPrefix"),
        ("{FP:7}", "UnknownFamilyPrefix"),
        ("{fp:x}", "InvalidIndex"),
        ("{fp:65536}", "InvalidIndex"),
        ("{b:-1}", "InvalidIndex"),
        ("{fp:1:2}", "InvalidIndex"),
    ],
)
def test_partition_key_errors(text: str, problem: str) -> None:
    with pytest.raises(PartitionKeyError) as caught:
        PartitionKey.parse(text)
    assert caught.value.problem == problem
