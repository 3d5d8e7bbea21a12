"""Ids that ascend, whatever the clock does."""

from __future__ import annotations

import uuid

import pytest

from flowfabric import ascending
from flowfabric.ascending import ascending_bytes, ascending_uuid
from flowfabric.core.context import uuid_text
from flowfabric.core.flows.submit import member_uuid
from flowfabric.model.operations.schedules import former_slot_uuid, slot_uuid

_MS = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time in nanoseconds, moved by hand."""
    at = [1_900_000_000_000 * _MS]
    monkeypatch.setattr(ascending, "_last", [0])
    monkeypatch.setattr(ascending.time, "time_ns", lambda: at[0])
    return at


def test_a_bulk_within_one_millisecond(clock: list[int]) -> None:
    ids = [ascending_uuid() for _ in range(100_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {each[:13] for each in ids} == {f"{1_900_000_000_000:012x}"[:8] + "-" + f"{1_900_000_000_000:012x}"[8:]}


def test_time_goes_on_and_back(clock: list[int]) -> None:
    ids = []
    for step in (0, 1, 0, -5_000, 1, 1, 10_000):
        clock[0] += step * _MS
        ids += [ascending_uuid(), ascending_uuid()]
    assert ids == sorted(ids)
    assert uuid.UUID(ids[-1]).int >> 80 == clock[0] // _MS


def test_the_form(clock: list[int]) -> None:
    made = [uuid.UUID(ascending_uuid()) for _ in range(200)]
    assert {(each.version, each.variant) for each in made} == {(7, uuid.RFC_4122)}
    assert len({each.int & 0xFFFFFFFFF for each in made}) == len(made), "36 bits of chance"


def test_as_bytes_for_rules(clock: list[int]) -> None:
    text = [uuid_text(ascending_bytes(300), n) for n in range(300)]
    assert text == sorted(text)
    assert text[-1] < uuid_text(ascending_bytes())


def test_members_of_a_flow() -> None:
    """In their order, behind those of flows made before, and never the same for two flows or names."""
    flows = [uuid.UUID(ascending_uuid()).bytes for _ in range(20)]
    ids = [member_uuid(flow, n, f"node {n}") for flow in flows for n in (*range(50), 99_999)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {(each.version, each.variant) for each in map(uuid.UUID, ids)} == {(8, uuid.RFC_4122)}
    assert member_uuid(flows[0], 3, "a") != member_uuid(flows[0], 3, "b")
    assert member_uuid(flows[0], 3, "a") == member_uuid(flows[0], 3, "a")


def test_slots() -> None:
    ids = [slot_uuid("n", "s", slot) for slot in (0, 5, 1_900_000_000_000, 1_900_000_000_001)]
    assert ids == sorted(ids)
    assert slot_uuid("n", "s", 5)[13:] == former_slot_uuid("n", "s", 5)[13:]
    assert uuid.UUID(slot_uuid("n", "s", 2**53)).version == 8
