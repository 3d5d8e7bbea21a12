"""The memory store: commits, indexes and loading. Rules are not involved; views are, because they fill."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from flowfabric.core.batch.view import View
from flowfabric.model import states as lit
from flowfabric.model.decisions import (
    Change,
    Claimable,
    Decision,
    Drop,
    Get,
    GetFull,
    Need,
    Select,
    change,
    insert,
)
from flowfabric.model.errors import ResourceExhausted
from flowfabric.model.events import LeaseEvent
from flowfabric.model.handles import BackendTag
from flowfabric.model.partitions import PartitionCounts
from flowfabric.model.records.budgets import QuotaWindow
from flowfabric.model.records.executions import (
    EXECUTION_WIDE_FIELDS,
    Attempt,
    Execution,
    Grant,
    Lane,
    SigningKey,
    Waitpoint,
    WorkerEvent,
)
from flowfabric.model.records.flows import CancelBacklogMember, Edge, EdgeGroup, Flow, PendingCancelGroup
from flowfabric.model.records.past_leases import PastLease
from flowfabric.stores.keyed import load as loading
from flowfabric.stores.keyed.reads import Originals, Rows
from flowfabric.stores.memory import MemoryStore, sorted_list
from flowfabric.stores.memory.sorted_list import SortedRun
from flowfabric.stores.memory.tables import Tables
from flowfabric.stores.protocol import Conflict
from flowfabric.stores.sql.schema import TABLES
from tests.unit.stores.memory_rows import (
    FLOW,
    NO_VERSIONS,
    NOW,
    attempt,
    claim_ids,
    commit,
    execution,
    find,
    grant,
    lease_event,
    load,
    running,
    select,
    uuid_of,
    wire,
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=lambda: NOW)


# ---------------------------------------------------------------------------------------------------------- sorted runs


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=200), st.integers(0, 60), st.integers(0, 60))
def test_a_sorted_run_is_a_sorted_set(steps: list[tuple[bool, int]], low: int, high: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_list, "CHUNK_LIMIT", 4)
        run, model = SortedRun(), set[int]()
        for adds, value in steps:
            if adds and value not in model:
                run.add(value)
                model.add(value)
            elif not adds and value in model:
                run.remove(value)
                model.remove(value)
            elif not adds:
                with pytest.raises(KeyError):
                    run.remove(value)
        expected = sorted(model)
        assert list(run.between()) == expected
        assert (len(run), bool(run), run.first()) == (len(model), bool(model), min(model, default=None))
        between = [value for value in expected if low <= value < high]
        assert list(run.between(low, high)) == between
        assert run.count(low, high) == len(between)
        assert list(run.between(low)) == [value for value in expected if value >= low]
        assert list(run.between(None, high)) == [value for value in expected if value < high]


# -------------------------------------------------------------------------------------------------------------- commits


async def test_what_it_says_of_itself(store: MemoryStore) -> None:
    assert (store.tag, store.shown, store.label) == (BackendTag.MEMORY, "memory", "memory")
    assert (store.counts, store.holds, store.parallel) == (PartitionCounts(), False, 1)
    assert MemoryStore(PartitionCounts(4, 2, 1)).counts.flow == 4
    assert store.run_inline()
    assert await store.server_time_ms() == NOW
    await store.ping()

    async def batch() -> str:
        return "done"

    assert await store.run(batch) == "done"


async def test_the_clock_never_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    assert abs(await store.server_time_ms() - time.time_ns() // 1_000_000) < 60_000
    seen = await store.server_time_ms()
    monkeypatch.setattr(time, "time_ns", lambda: (seen - 5_000) * 1_000_000)
    assert await store.server_time_ms() == seen


async def test_a_transaction_has_one_time() -> None:
    ticks = iter(range(NOW, NOW + 10))
    store = MemoryStore(clock=lambda: next(ticks))
    async with store.transaction() as transaction:
        assert await transaction.now() == await transaction.now() == NOW


async def test_nothing_is_there_before_the_commit(store: MemoryStore) -> None:
    view = View()
    view.fold(Decision(None, (insert(execution(1)),), (lease_event(1),)))
    async with store.transaction():
        assert view.writes().records
    assert await find(store, Execution, wire(1)) is None
    assert store.events(LeaseEvent) == []
    async with store.transaction() as transaction:
        await transaction.commit(view.writes(), NO_VERSIONS)
    assert (await find(store, Execution, wire(1))).uuid == uuid_of(1)
    assert len(store.events(LeaseEvent)) == 1


async def test_a_row_that_appeared_refuses_the_whole_batch(store: MemoryStore) -> None:
    await commit(store, execution(1, priority=5))
    with pytest.raises(Conflict, match="appeared"):
        await commit(store, execution(2), execution(1, priority=9), events=(lease_event(1),))
    assert await find(store, Execution, wire(2)) is None
    assert (await find(store, Execution, wire(1))).priority == 5
    assert store.events(LeaseEvent) == []
    store.check_indexes()


async def test_a_row_that_vanished_refuses_the_whole_batch(store: MemoryStore) -> None:
    with pytest.raises(Conflict, match="vanished"):
        await commit(store, execution(2), change(execution(1), priority=9))
    assert await find(store, Execution, wire(2)) is None


async def test_repeatable_inserts_change_nothing(store: MemoryStore) -> None:
    assert {kind for kind, table in TABLES.items() if table.repeatable} == {
        WorkerEvent,
        PastLease,
        PendingCancelGroup,
        QuotaWindow,
    }
    event = WorkerEvent("main", "w-1", "heartbeat", 5, None)
    await commit(store, event)
    await commit(store, WorkerEvent("main", "w-1", "heartbeat", 5, "other"), execution(1))
    assert (await find(store, WorkerEvent, event.key)).reason is None
    assert await find(store, Execution, wire(1)) is not None


async def test_a_commit_by_somebody_else_refuses_what_was_loaded_before(store: MemoryStore) -> None:
    await commit(store, execution(1))
    view = View()
    async with store.transaction() as transaction:
        await transaction.load([Get(Execution, wire(1))], view)
        await commit(store, change(execution(1), priority=3))
        loaded = view.execution(wire(1))
        assert loaded is not None
        view.fold(Decision(None, (change(loaded, priority=loaded.priority + 1),)))
        with pytest.raises(Conflict):
            await transaction.commit(view.writes(), NO_VERSIONS)
    assert (await find(store, Execution, wire(1))).priority == 3


async def test_stored_records_are_private(store: MemoryStore) -> None:
    mine = execution(1)
    await commit(store, mine)
    mine.priority = 9
    assert (await find(store, Execution, wire(1))).priority == 0
    before = await find(store, Execution, wire(1))
    await commit(store, change(before, priority=4))
    assert before.priority == 0
    store.check_indexes()


async def test_only_named_fields_are_written(store: MemoryStore) -> None:
    await commit(store, execution(1, priority=1, retry_count=1))
    altered = execution(1, priority=2, retry_count=2, epoch_floor=8)
    await commit(store, Change(altered, ("priority", "epoch_floor")))
    stored = await find(store, Execution, wire(1))
    assert (stored.priority, stored.retry_count, stored.epoch_floor) == (2, 1, 0)


async def test_unset_fields_become_empty(store: MemoryStore) -> None:
    await commit(store, execution(1), execution(2, raw_fields='{"a":1}', payload=b"x", epoch_floor=4), attempt(1))
    stored = await find(store, Execution, wire(1))
    assert {field: getattr(stored, field) for field in EXECUTION_WIDE_FIELDS} == {
        **dict.fromkeys(EXECUTION_WIDE_FIELDS),
        "raw_fields": "{}",
    }
    other = (await load(store, GetFull(wire(2)))).full(wire(2))
    assert other is not None
    assert (other.raw_fields, other.payload, other.epoch_floor) == ('{"a":1}', b"x", 0)
    assert (await find(store, Attempt, (wire(1), 0))).policy is None


async def test_dropped_and_inserted_again_in_one_batch(store: MemoryStore) -> None:
    await commit(store, attempt(1, policy="{}", lease_epoch=3), grant(1, b"g", NOW))
    await commit(
        store,
        Drop(attempt(1)),
        attempt(1, lease_epoch=4),
        Drop(grant(1, b"g", NOW)),
        grant(1, b"g", NOW + 5),
        grant(1, b"h", NOW),
        Drop(grant(1, b"h", NOW)),
    )
    stored = await find(store, Attempt, (wire(1), 0))
    assert (stored.lease_epoch, stored.policy) == (4, None)
    assert [each.expires_at_ms for each in await select(store, Grant, partition=0, uuid=uuid_of(1))] == [NOW + 5]


async def test_dropping_what_is_gone_is_no_matter(store: MemoryStore) -> None:
    await commit(store, Drop(grant(1, b"g", NOW)), execution(1))
    assert await find(store, Execution, wire(1)) is not None


async def test_an_empty_batch(store: MemoryStore) -> None:
    await commit(store)


# -------------------------------------------------------------------------------------------------------------- loading


async def test_an_execution_brings_its_current_attempt(store: MemoryStore) -> None:
    await commit(store, execution(1, attempt_index=1, flow_id=FLOW), attempt(1, 0), attempt(1, 1, worker_id="w"))
    await commit(store, execution(2))
    needs: tuple[Need, ...] = (
        Get(Execution, wire(1)),
        GetFull(wire(1)),
        Select(Execution, ("partition", "flow_id"), (0, FLOW)),
        Claimable("default", frozenset(), 1),
    )
    for need in needs:
        view = await load(store, need)
        assert view.has(need)
        current = view.attempt(wire(1), 1)
        assert current is not None
        assert current.worker_id == "w"
    view = await load(store, Get(Execution, wire(2)), Get(Execution, wire(3)), GetFull(wire(4)))
    assert view.attempt(wire(2), 0) is None
    assert view.execution(wire(3)) is None
    assert view.full(wire(4)) is None


async def test_the_epoch_floor_is_the_highest_of_earlier_attempts(store: MemoryStore) -> None:
    await commit(store, execution(1, attempt_index=2, flow_id=FLOW), execution(2, attempt_index=1), execution(3))
    await commit(store, *(attempt(1, index, lease_epoch=epoch) for index, epoch in enumerate((3, 7, 2, 90))))
    await commit(store, attempt(3, 0, lease_epoch=5), attempt(3, 1, lease_epoch=6))

    async def floor(number: int) -> int:
        return int((await find(store, Execution, wire(number))).epoch_floor)

    assert [await floor(1), await floor(2), await floor(3)] == [7, 0, 0]
    assert [each.epoch_floor for each in await select(store, Execution, partition=0, flow_id=FLOW)] == [7]
    full = (await load(store, GetFull(wire(1)))).full(wire(1))
    assert full is not None
    assert full.epoch_floor == 7
    candidates = (await load(store, Claimable("default", frozenset(), 3))).claimable("default", frozenset(), 3)
    assert [each.epoch_floor for each in candidates] == [7, 0, 0]
    await commit(store, change(attempt(1, 0), lease_epoch=12))
    assert await floor(1) == 12


async def test_reading_beside_transactions(store: MemoryStore) -> None:
    await commit(store, execution(1))
    view = View()
    await store.read([Get(Execution, wire(1)), Get(Lane, "none")], view)
    assert view.execution(wire(1)) is not None
    assert view.get(Lane, "none") is None


async def test_selects_by_index_and_by_scan(store: MemoryStore) -> None:
    await commit(
        store,
        *(execution(number, 1, flow_id=FLOW if number % 2 else None) for number in (5, 3, 4, 1)),
        execution(9, 2, flow_id=FLOW),
        *(Edge(1, FLOW, uuid_of(100 + n), uuid_of(n), uuid_of(n + 1), "{}") for n in (3, 1, 2)),
        Edge(1, FLOW, uuid_of(200), uuid_of(1), uuid_of(4), "{}"),
        EdgeGroup(1, FLOW, uuid_of(2), "{}"),
        CancelBacklogMember(1, FLOW, wire(1, 1)),
        Waitpoint(1, uuid_of(50), uuid_of(1), "pending", None, None),
        SigningKey("k2", b"s", 2, True),
        SigningKey("k1", b"s", 1, True),
        SigningKey("k0", b"s", 0, False),
        Flow(1, FLOW, 0, "running", NOW, None, "{}"),
    )
    members = await select(store, Execution, partition=1, flow_id=FLOW)
    assert [each.execution_id for each in members] == [wire(number, 1) for number in (1, 3, 5)]
    # Fields in another order, fields beyond the index, fields without one, and None.
    assert await select(store, Execution, flow_id=FLOW, partition=1) == members
    assert await select(store, Execution, partition=1, flow_id=FLOW, uuid=uuid_of(3)) == members[1:2]
    assert len(await select(store, Execution, flow_id=FLOW)) == 4
    assert [each.uuid for each in await select(store, Execution, partition=1, flow_id=None)] == [uuid_of(4)]
    assert await select(store, Execution, partition=3) == []
    by_upstream = await select(store, Edge, partition=1, flow_id=FLOW, upstream=uuid_of(1))
    assert [each.edge_id for each in by_upstream] == [uuid_of(101), uuid_of(200)]
    by_downstream = await select(store, Edge, partition=1, flow_id=FLOW, downstream=uuid_of(4))
    assert [each.edge_id for each in by_downstream] == [uuid_of(103), uuid_of(200)]
    assert len(await select(store, EdgeGroup, partition=1, flow_id=FLOW, downstream=uuid_of(2))) == 1
    assert len(await select(store, CancelBacklogMember, partition=1, flow_id=FLOW)) == 1
    assert len(await select(store, Waitpoint, partition=1, uuid=uuid_of(1))) == 1
    assert [each.kid for each in await select(store, SigningKey, active=True)] == ["k1", "k2"]
    await commit(store, change(members[0], flow_id=uuid_of(78)))
    assert len(await select(store, Execution, partition=1, flow_id=FLOW)) == 2


async def test_a_select_is_bounded(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SELECT_LIMIT", 3)
    await commit(store, *(execution(number, flow_id=FLOW) for number in range(3)))
    assert len(await select(store, Execution, partition=0, flow_id=FLOW)) == 3
    await commit(store, execution(3, flow_id=FLOW))
    with pytest.raises(ResourceExhausted):
        await select(store, Execution, partition=0, flow_id=FLOW)


# ------------------------------------------------------------------------------------------------------------- claiming


async def test_claim_order_and_capabilities(store: MemoryStore) -> None:
    await commit(
        store,
        execution(1, priority=1, created_at_ms=5),
        execution(2, priority=1, created_at_ms=4, required_capabilities=("gpu",)),
        execution(3, priority=9, created_at_ms=9, required_capabilities=("disk", "gpu")),
        execution(5, priority=1, created_at_ms=5, lifecycle_phase=lit.SUBMITTED),
        execution(4, priority=1, created_at_ms=5, lifecycle_phase="pending"),
        execution(6, lane_id="other"),
        running(7),
        execution(8, eligibility_state=lit.BLOCKED_BY_ROUTE),
        execution(9, lifecycle_phase=lit.TERMINAL),
    )
    assert await claim_ids(store) == [wire(1), wire(4), wire(5)]
    assert await claim_ids(store, "gpu") == [wire(2), wire(1), wire(4), wire(5)]
    assert await claim_ids(store, "gpu", "disk", "x") == [wire(3), wire(2), wire(1), wire(4), wire(5)]
    assert await claim_ids(store, "gpu", limit=2) == [wire(2), wire(1)]
    assert await claim_ids(store, lane_id="other") == [wire(6)]
    assert await claim_ids(store, lane_id="nowhere") == []
    await commit(store, change(execution(5), priority=2), change(execution(1), lifecycle_phase=lit.ACTIVE))
    assert await claim_ids(store) == [wire(5), wire(4)]


async def test_rows_a_worker_cannot_run_cost_nothing(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await commit(store, *(execution(n, priority=9, required_capabilities=("gpu",)) for n in range(10_000)))
    await commit(store, *(execution(n, created_at_ms=n) for n in range(20_000, 20_003)))
    touched = 0
    plain_ask, plain_between = Tables.ask, SortedRun.between

    def ask_counted(tables: Tables, request: Any) -> Any:
        nonlocal touched
        touched += len(request.keys) if isinstance(request, Rows | Originals) else 0
        return plain_ask(tables, request)

    def between_counted(run: SortedRun, *bounds: Any) -> Any:
        nonlocal touched
        for entry in plain_between(run, *bounds):
            touched += 1
            yield entry

    monkeypatch.setattr(Tables, "ask", ask_counted)
    monkeypatch.setattr(SortedRun, "between", between_counted)
    assert await claim_ids(store, "disk", limit=2) == [wire(20_000), wire(20_001)]
    assert touched < 20


async def test_grants_nobody_used_hide_nothing(store: MemoryStore) -> None:
    pending: dict[str, Any] = {"eligibility_state": lit.PENDING_CLAIM}
    await commit(
        store,
        execution(1, created_at_ms=1),
        *(execution(number, created_at_ms=10 - number, **pending) for number in range(2, 7)),
        execution(7, lane_id="other", **pending),
        execution(8, required_capabilities=("gpu",), **pending),
        running(9, **pending),
        grant(2, b"2", NOW),
        grant(3, b"3", NOW + 1),
        grant(4, b"4a", NOW - 9),
        grant(4, b"4b", NOW + 1),
        grant(5, b"5a", NOW - 9),
        grant(5, b"5b", NOW),
        grant(5, b"5c", NOW + 1, lit.GRANT_RECLAIM),
        *(grant(number, bytes([number]), NOW) for number in (7, 8, 9, 99)),
        grant(6, b"6", 0),
    )
    assert await claim_ids(store) == [wire(1), wire(5), wire(2)]
    assert await claim_ids(store, limit=2) == [wire(1), wire(5)]
    assert await claim_ids(store, "gpu") == [wire(1), wire(5), wire(2), wire(8)]
    await commit(store, Drop(grant(2, b"2", NOW)))
    assert await claim_ids(store) == [wire(1), wire(5)]
