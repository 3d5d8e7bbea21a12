"""Lists, page by page: executions of a partition, lanes, suspended executions."""

from __future__ import annotations

import uuid

import pytest

from flowfabric import ExecutionId, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.model.operations.executions import SuspendedEntry
from flowfabric.model.records.executions import Lane, Suspension
from tests.contract.probe import START_MS, create
from tests.contract.seeding import overwrite, seed


async def test_pages_of_executions(engine: Engine) -> None:
    ids = sorted([await create(engine, lane_id="paged") for _ in range(5)], key=lambda each: each.uuid_text)
    partition = ids[0].partition
    first = await engine.list_executions(partition, limit=2)
    assert (list(first.executions), first.next_cursor) == (ids[:2], ids[1])
    second = await engine.list_executions(partition, first.next_cursor, 2)
    assert (list(second.executions), second.next_cursor) == (ids[2:4], ids[3])
    third = await engine.list_executions(partition, second.next_cursor, 2)
    assert (list(third.executions), third.next_cursor) == (ids[4:], None)
    for limit in (5, 6, 2**31):
        whole = await engine.list_executions(partition, limit=limit)
        assert (list(whole.executions), whole.next_cursor) == (ids, None)
    nothing = await engine.list_executions(partition, limit=0)
    assert (nothing.executions, nothing.next_cursor) == ((), None)
    assert (await engine.list_executions(partition, ids[-1])).executions == ()
    between = ExecutionId.of(partition, str(uuid.UUID(int=uuid.UUID(ids[1].uuid_text).int + 1)))
    assert list((await engine.list_executions(partition, between)).executions) == ids[2:]
    for elsewhere in (partition + 1, 65_535):
        assert (await engine.list_executions(elsewhere)).executions == ()


async def test_pages_of_lanes(engine: Engine) -> None:
    names = ["a", "B", "_z", "a-b", "a b", "aa", "ab"]
    for name in names:
        await create(engine, lane_id=name)
    await create(engine, lane_id="a")
    ordered = ["B", "_z", "a", "a b", "a-b", "aa", "ab"]
    assert sorted(names) == ordered
    found, cursor = [], None
    for _ in range(3):
        page = await engine.list_lanes(cursor, 3)
        found.append(list(page.lanes))
        cursor = page.next_cursor
    assert (found, cursor) == ([ordered[:3], ordered[3:6], ordered[6:]], None)
    assert (await engine.list_lanes("a", 1)).lanes == ("a b",)
    assert (await engine.list_lanes("aab")).lanes == ("ab",)
    assert (await engine.list_lanes(limit=0)).lanes == ()


async def test_a_lane_that_cannot_be_one_is_corruption(engine: Engine) -> None:
    await seed(engine, Lane("żółw", START_MS, "somebody"))
    with pytest.raises(Validation) as caught:
        await engine.list_lanes()
    assert caught.value.kind is ValidationKind.CORRUPTION


async def test_pages_of_suspended_executions(engine: Engine) -> None:
    ids = sorted(str(uuid.uuid4()) for _ in range(4))
    times = [START_MS + 2, START_MS + 1, START_MS + 2, START_MS]
    reasons = ["waiting_for_signal", None, "", "waiting_for_approval"]
    rows = [
        Suspension(0, each, str(uuid.uuid4()), at, None, why) for each, at, why in zip(ids, times, reasons, strict=True)
    ]
    await seed(engine, *rows, Suspension(1, ids[0], str(uuid.uuid4()), START_MS, None, None))
    order = [3, 1, 0, 2]
    entries = [SuspendedEntry(ExecutionId.of(0, ids[n]), times[n], reasons[n] or "") for n in order]
    page = await engine.list_suspended(0)
    assert (list(page.entries), page.next_cursor) == (entries, None)
    page = await engine.list_suspended(0, limit=3)
    assert (list(page.entries), page.next_cursor) == (entries[:3], f"{times[0]}.{entries[2].execution_id}")
    assert (await engine.list_suspended(0, entries[2].execution_id, 3)).entries == tuple(entries[3:])
    await overwrite(engine, Suspension, rows[0].key, suspended_at_ms=START_MS + 9)
    assert [each.execution_id for each in (await engine.list_suspended(0, page.next_cursor, 3)).entries] == [
        entries[3].execution_id,
        entries[2].execution_id,
    ], "it was suspended again, and hides nothing"
    await overwrite(engine, Suspension, rows[0].key, suspended_at_ms=times[0])
    page = await engine.list_suspended(0, page.next_cursor, 3)
    assert (list(page.entries), page.next_cursor) == (entries[3:], None)
    gone = ExecutionId.of(0, str(uuid.UUID(int=uuid.UUID(ids[1]).int + 1)))
    behind = await engine.list_suspended(0, gone)
    assert [each.execution_id for each in behind.entries] == [
        ExecutionId.of(0, ids[n]) for n in order if ids[n] > gone.uuid_text
    ]
    assert (await engine.list_suspended(0, limit=0)).entries == ()
    assert (await engine.list_suspended(65_535)).entries == ()
