"""The memory store: commits, indexes, loading and questions. Rules are not involved; views are, because they fill."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from flowfabric.core.view import View, claim_order
from flowfabric.model import literals as lit
from flowfabric.model.budget_records import QuotaWindow
from flowfabric.model.changes import (
    Act,
    Change,
    Claimable,
    Decision,
    Drop,
    Get,
    GetFull,
    Need,
    PurgeExecution,
    Select,
    TrimStream,
    change,
    insert,
)
from flowfabric.model.errors import ResourceExhausted
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent
from flowfabric.model.handles import BackendTag
from flowfabric.model.leases import PastLease
from flowfabric.model.partitions import PartitionCounts
from flowfabric.model.records import (
    EXECUTION_WIDE_FIELDS,
    Attempt,
    Binding,
    CancelBacklogMember,
    Edge,
    EdgeGroup,
    Execution,
    Flow,
    FrameRow,
    Grant,
    Lane,
    PendingCancelGroup,
    SigningKey,
    StreamHead,
    StreamSummary,
    Suspension,
    Waitpoint,
    Worker,
    WorkerEvent,
)
from flowfabric.stores import questions as ask
from flowfabric.stores.memory import MemoryStore, reading, runs
from flowfabric.stores.memory.runs import SortedRun
from flowfabric.stores.memory.tables import Tables
from flowfabric.stores.protocol import Conflict
from flowfabric.stores.schema import TABLES

NOW = 1_000_000
FLOW = str(UUID(int=77))


# --------------------------------------------------------------------------------------------------------------- makers


class NoVersions:
    def version(self, kind: Any, key: Any) -> int | None:
        return None


NO_VERSIONS = NoVersions()


def uuid_of(number: int) -> str:
    return str(UUID(int=number))


def wire(number: int, partition: int = 0) -> str:
    return f"{{fp:{partition}}}:{uuid_of(number)}"


def execution(number: int, partition: int = 0, **fields: Any) -> Execution:
    plain: dict[str, Any] = {
        "flow_id": None,
        "lane_id": "default",
        "required_capabilities": (),
        "attempt_index": 0,
        "lifecycle_phase": lit.RUNNABLE,
        "ownership_state": lit.UNOWNED,
        "eligibility_state": lit.ELIGIBLE_NOW,
        "public_state": lit.PUBLIC_WAITING,
        "attempt_state": lit.ATTEMPT_PENDING,
        "blocking_reason": None,
        "priority": 0,
        "created_at_ms": NOW,
        "terminal_at_ms": None,
        "deadline_at_ms": None,
        "started_at_ms": None,
        "lease_reclaim_count": 0,
        "delay_until_ms": None,
        "policy": None,
        "namespace": "main",
        "instance_tag": None,
        "last_mutation_at_ms": None,
        "total_attempt_count": 0,
        "retry_count": 0,
    }
    return Execution(wire(number, partition), partition, uuid_of(number), **(plain | fields))


def running(number: int, attempt_index: int = 0, **fields: Any) -> Execution:
    states: dict[str, Any] = {
        "lifecycle_phase": lit.ACTIVE,
        "eligibility_state": lit.NOT_APPLICABLE,
        "attempt_index": attempt_index,
    }
    return execution(number, **(states | fields))


def attempt(number: int, attempt_index: int = 0, partition: int = 0, **fields: Any) -> Attempt:
    return Attempt(wire(number, partition), partition, uuid_of(number), attempt_index, **fields)


def grant(number: int, grant_id: bytes, expires_at_ms: int, kind: str = lit.GRANT_CLAIM) -> Grant:
    return Grant(0, grant_id, uuid_of(number), kind, "w", "w-1", None, None, "[]", None, None, 10, NOW, expires_at_ms)


def frame(number: int, attempt_index: int, ts_ms: int, seq: int, mode: str = "durable") -> FrameRow:
    text = f'{{"n":{ts_ms}}}'
    return FrameRow(wire(number), 0, uuid_of(number), attempt_index, ts_ms, seq, text, mode, ts_ms)


def head(number: int, attempt_index: int = 0, **fields: Any) -> StreamHead:
    return StreamHead(wire(number), 0, uuid_of(number), attempt_index, **fields)


def worker(instance: str, heartbeat_ms: int, namespace: str = "main", ttl_ms: int = 10) -> Worker:
    return Worker(namespace, instance, "w", ("default",), "", heartbeat_ms, ttl_ms, 0)


def lease_event(at: int) -> LeaseEvent:
    return LeaseEvent(0, uuid_of(1), None, lit.LEASE_ACQUIRED, at, None, None)


# -------------------------------------------------------------------------------------------------------------- helpers


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=lambda: NOW)


async def commit(store: MemoryStore, *acts: Any, events: tuple[Any, ...] = ()) -> None:
    """Fold the acts as a batch would, and commit them; bare records are inserted."""
    decision = Decision(None, tuple(act if isinstance(act, Act) else insert(act) for act in acts), events)
    view = View()
    view.fold(decision)
    async with store.transaction() as transaction:
        assert await transaction.commit(view.writes(), NO_VERSIONS) is None
    store.check_indexes()


async def load(store: MemoryStore, *needs: Need) -> View:
    view = View()
    async with store.transaction() as transaction:
        await transaction.load(needs, view)
    return view


async def find(store: MemoryStore, kind: Any, key: Any) -> Any:
    return (await load(store, Get(kind, key))).get(kind, key)


class Catcher(View):
    """Shows what a store answered before the view makes anything of it."""

    keys: list[Any]

    def put_selected(self, need: Select, keys: list[Any]) -> None:
        self.keys = keys
        super().put_selected(need, keys)

    def put_claimable(self, need: Claimable, keys: list[str]) -> None:
        self.keys = keys
        super().put_claimable(need, keys)


async def caught(store: MemoryStore, need: Need) -> Catcher:
    view = Catcher()
    async with store.transaction() as transaction:
        await transaction.load([need], view)
    return view


async def select(store: MemoryStore, kind: Any, **equal: Any) -> list[Any]:
    view = await caught(store, Select(kind, tuple(equal), tuple(equal.values())))
    found = [view.get(kind, key) for key in view.keys]
    assert view.select(kind, **equal) == found
    return found


async def claim_ids(store: MemoryStore, *capabilities: str, lane_id: str = "default", limit: int = 10) -> list[str]:
    view = await caught(store, Claimable(lane_id, frozenset(capabilities), limit))
    for key in view.keys:
        core = view.execution(key)
        assert core is not None
        view.attempt(key, core.attempt_index)
    return view.keys


async def due(store: MemoryStore, what: str, now: int = NOW, limit: int = 100, **fields: Any) -> list[str]:
    answer: list[str] = await store.query(ask.Due(what, now, limit, **fields))
    return answer


# ---------------------------------------------------------------------------------------------------------- sorted runs


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=200), st.integers(0, 60), st.integers(0, 60))
def test_a_sorted_run_is_a_sorted_set(steps: list[tuple[bool, int]], low: int, high: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "CHUNK_LIMIT", 4)
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
    monkeypatch.setattr(reading, "SELECT_LIMIT", 3)
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
    plain_find, plain_between = Tables.find, SortedRun.between

    def find_counted(tables: Tables, kind: Any, key: Any) -> Any:
        nonlocal touched
        touched += 1
        return plain_find(tables, kind, key)

    def between_counted(run: SortedRun, low: Any = None, high: Any = None) -> Any:
        nonlocal touched
        for entry in plain_between(run, low, high):
            touched += 1
            yield entry

    monkeypatch.setattr(Tables, "find", find_counted)
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


# ------------------------------------------------------------------------------------------------------------ questions


async def test_listing_executions_and_lanes(store: MemoryStore) -> None:
    await commit(store, *(execution(number, 1) for number in (3, 1, 2)), execution(4, 2), Lane("b", 1, "x"))
    await commit(store, Lane("a", 1, "x"), Lane("ab", 1, "x"))
    assert await store.query(ask.ListExecutions(1, None, 2)) == [wire(1, 1), wire(2, 1)]
    assert await store.query(ask.ListExecutions(1, uuid_of(1), 9)) == [wire(2, 1), wire(3, 1)]
    assert await store.query(ask.ListExecutions(3, None, 9)) == []
    assert [lane.lane_id for lane in await store.query(ask.ListLanes(None, 2))] == ["a", "ab"]
    assert [lane.lane_id for lane in await store.query(ask.ListLanes("a", 9))] == ["ab", "b"]
    await commit(store, change(execution(1, 1), lifecycle_phase=lit.ACTIVE), execution(5, lane_id="z"))
    assert await store.query(ask.CountRows()) == {lit.RUNNABLE: 4, lit.ACTIVE: 1}


async def test_listing_suspensions(store: MemoryStore) -> None:
    rows = [Suspension(1, uuid_of(n), uuid_of(90 + n), at, None, why) for n, at, why in ((1, 9, "x"), (2, 5, None))]
    await commit(store, *rows, Suspension(1, uuid_of(3), uuid_of(93), 9, None, "y"))
    await commit(store, Suspension(2, uuid_of(4), uuid_of(94), 1, None, "z"))

    async def page(after: str | None, limit: int = 9) -> list[Any]:
        return [tuple(row[1:]) for row in await store.query(ask.ListSuspended(1, after, limit))]

    first = (await store.query(ask.ListSuspended(1, None, 1)))[0]
    assert first == (wire(2, 1), 5, "")
    assert await page(None) == [(5, ""), (9, "x"), (9, "y")]
    assert await page(None, 1) == [(5, "")]
    assert await page(uuid_of(2)) == [(9, "x"), (9, "y")]
    assert await page(uuid_of(1)) == [(9, "y")]
    await commit(store, Drop(rows[0]))
    assert await page(uuid_of(1)) == [(5, ""), (9, "y")]


async def test_workers(store: MemoryStore) -> None:
    await commit(store, worker("b", NOW - 9), worker("a", NOW - 10), worker("c", NOW), worker("d", NOW, "tenant"))

    def instances(workers: list[Worker]) -> list[str]:
        return [each.worker_instance_id for each in workers]

    assert instances(await store.query(ask.ListWorkers("main", None, 9, NOW))) == ["b", "c"]
    assert instances(await store.query(ask.ListWorkers("main", "b", 9, NOW))) == ["c"]
    assert instances(await store.query(ask.ListWorkers("main", None, 1, NOW))) == ["b"]
    assert instances(await store.query(ask.LiveWorkers(NOW, 9))) == ["b", "c", "d"]
    assert await store.query(ask.DueWorkers(NOW, 9)) == [("main", "a")]


async def test_expired_leases(store: MemoryStore) -> None:
    leased: dict[str, Any] = {"worker_instance_id": "w-1", "lease_expires_at_ms": NOW}
    await commit(
        store,
        running(1, attempt_index=1),
        attempt(1, 0, lease_epoch=6, **leased),
        attempt(1, 1, **leased),
        running(2, namespace="tenant"),
        attempt(2, **leased),
        running(3),
        attempt(3, worker_instance_id="w-1", lease_expires_at_ms=NOW - 5),
        running(4),
        attempt(4, worker_instance_id="", lease_expires_at_ms=NOW - 5),
        running(5),
        attempt(5, worker_instance_id="w-1", lease_expires_at_ms=NOW + 1),
        execution(6),
        attempt(6, **leased),
    )

    async def page(**fields: Any) -> list[str]:
        plain = {"as_of": NOW, "after_ms": None, "after_id": None, "limit": 9, "namespace": None}
        rows = await store.query(ask.ListExpiredLeases(**(plain | fields)))
        assert all(core.execution_id == held.execution_id for core, held in rows)
        assert all(core.attempt_index == held.attempt_index for core, held in rows)
        return [core.execution_id for core, _ in rows]

    assert await page() == [wire(3), wire(1), wire(2)]
    assert await page(limit=1) == [wire(3)]
    assert await page(after_ms=NOW - 5, after_id=wire(3)) == [wire(1), wire(2)]
    assert await page(after_ms=NOW, after_id=wire(1)) == [wire(2)]
    assert await page(namespace="tenant") == [wire(2)]
    rows = await store.query(ask.ListExpiredLeases(NOW, NOW - 5, wire(3), 1, None))
    assert rows[0][0].epoch_floor == 6


async def test_due_by_state_and_time(store: MemoryStore) -> None:
    ended: dict[str, Any] = {"lifecycle_phase": lit.TERMINAL, "eligibility_state": lit.NOT_APPLICABLE}
    await commit(
        store,
        execution(1, lifecycle_phase=lit.SUBMITTED, created_at_ms=9),
        execution(2, lifecycle_phase=lit.SUBMITTED, created_at_ms=3, delay_until_ms=NOW),
        execution(3, delay_until_ms=NOW - 1, deadline_at_ms=NOW),
        execution(4, delay_until_ms=NOW + 1, deadline_at_ms=NOW + 1),
        execution(5, deadline_at_ms=NOW - 3),
        execution(6, deadline_at_ms=NOW - 9, terminal_at_ms=NOW, **ended),
        execution(7, lane_id="other", terminal_at_ms=NOW - 4, **ended),
        execution(8, terminal_at_ms=NOW + 1, **ended),
        execution(9, eligibility_state=lit.BLOCKED_BY_ROUTE, created_at_ms=8),
        execution(10, eligibility_state=lit.BLOCKED_BY_ROUTE, created_at_ms=2),
        execution(11, eligibility_state=lit.BLOCKED_BY_QUOTA, created_at_ms=1),
        grant(1, b"a", NOW),
        grant(2, b"b", NOW - 5),
        grant(2, b"c", NOW),
        grant(3, b"d", NOW + 1),
        grant(4, b"e", 0),
        grant(5, b"f", NOW, lit.GRANT_RECLAIM),
        grant(99, b"g", NOW),
    )
    assert await due(store, "intake") == [wire(2), wire(1)]
    assert await due(store, "delayed_promoter") == [wire(3), wire(2)]
    assert await due(store, "execution_deadline") == [wire(5), wire(3)]
    assert await due(store, "retention") == [wire(7), wire(6)]
    assert await due(store, "retention", lane_id="other") == [wire(7)]
    assert await due(store, "retention", now=NOW - 1) == [wire(7)]
    assert await due(store, "unblock") == [wire(10), wire(9)]
    assert await due(store, "grant_sweep") == [wire(2), wire(1)]
    assert await due(store, "grant_sweep", limit=1) == [wire(2)]
    with pytest.raises(ValueError, match="nonsense"):
        await due(store, "nonsense")


async def test_due_attempts_are_the_current_ones(store: MemoryStore) -> None:
    await commit(
        store,
        running(1, attempt_index=1),
        attempt(1, 0, lease_expires_at_ms=NOW - 9, attempt_timeout_at_ms=NOW - 9),
        attempt(1, 1, lease_expires_at_ms=NOW, attempt_timeout_at_ms=NOW - 1),
        running(2),
        attempt(2, lease_expires_at_ms=NOW - 1, attempt_timeout_at_ms=NOW),
        running(3),
        attempt(3, lease_expires_at_ms=NOW + 1, attempt_timeout_at_ms=NOW + 1),
        attempt(4, lease_expires_at_ms=NOW - 20, attempt_timeout_at_ms=NOW - 20),
    )
    assert await due(store, "lease_expiry") == [wire(2), wire(1)]
    assert await due(store, "attempt_timeout") == [wire(1), wire(2)]
    assert await store.query(ask.NextDue()) == NOW - 1


async def test_due_filters(store: MemoryStore) -> None:
    def submitted(number: int, partition: int = 0, **fields: Any) -> Execution:
        return execution(number, partition, lifecycle_phase=lit.SUBMITTED, created_at_ms=number, **fields)

    await commit(
        store,
        submitted(1, raw_fields='{"tags":{"team":"red"}}'),
        submitted(2, namespace="tenant", raw_fields='{"tags":{"team":"blue"}}'),
        submitted(3, 1, lane_id="other", raw_fields='{"tags":null}'),
        submitted(4, raw_fields="[1]"),
        submitted(5, raw_fields="no document"),
        submitted(6, namespace=None),
    )
    assert len(await due(store, "intake")) == 6
    assert await due(store, "intake", limit=2) == [wire(1), wire(2)]
    assert await due(store, "intake", limit=2, skip=frozenset({wire(1)})) == [wire(2), wire(3, 1)]
    assert await due(store, "intake", namespace="tenant") == [wire(2)]
    assert await due(store, "intake", lane_id="other") == [wire(3, 1)]
    assert await due(store, "intake", partition=1) == [wire(3, 1)]
    assert await due(store, "intake", tag=("team", "red")) == [wire(1)]
    assert await due(store, "intake", tag=("team", "green")) == []
    assert await due(store, "intake", limit=0) == []


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ((), None),
        ((execution(1, delay_until_ms=7), execution(2, delay_until_ms=5)), 5),
        ((execution(1, deadline_at_ms=7), execution(2, deadline_at_ms=5, terminal_at_ms=6)), 7),
        ((running(1, 1), attempt(1, 0, lease_expires_at_ms=2), attempt(1, 1, lease_expires_at_ms=8)), 8),
        ((running(1), attempt(1, attempt_timeout_at_ms=3, lease_expires_at_ms=4)), 3),
    ],
)
async def test_what_falls_due_next(store: MemoryStore, records: tuple[Any, ...], expected: int | None) -> None:
    await commit(store, *records)
    assert await store.query(ask.NextDue()) == expected


async def test_scanning_the_queue(store: MemoryStore) -> None:
    await commit(store, execution(1), execution(2, 1, priority=3, required_capabilities=("gpu",)), execution(3, 1))
    assert await store.query(ask.ScanEligible("default", None, 9, NOW)) == [wire(2, 1), wire(1), wire(3, 1)]
    assert await store.query(ask.ScanEligible("default", 1, 9, NOW)) == [wire(2, 1), wire(3, 1)]
    assert await store.query(ask.ScanEligible("default", None, 1, NOW)) == [wire(2, 1)]


# -------------------------------------------------------------------------------------------------------------- streams


async def test_reading_frames(store: MemoryStore) -> None:
    await commit(
        store,
        *(frame(1, 0, ts, seq) for ts, seq in ((5, 0), (5, 1), (6, 0))),
        frame(1, 0, 7, 0, "best_effort"),
        frame(1, 1, 5, 0),
        frame(2, 0, 5, 0),
    )

    async def page(low: tuple[int, int], high: tuple[int, int], limit: int = 9, **fields: Any) -> list[Any]:
        rows = await store.query(ask.ReadFrames(0, uuid_of(1), 0, low, high, limit, **fields))
        return [row[:2] for row in rows]

    everything = ((0, 0), (2**63, 2**63))
    assert await page(*everything) == [(5, 0), (5, 1), (6, 0), (7, 0)]
    assert await page(*everything, limit=2) == [(5, 0), (5, 1)]
    assert await page((5, 1), (6, 0)) == [(5, 1), (6, 0)]
    assert await page(*everything, exclude_mode="best_effort") == [(5, 0), (5, 1), (6, 0)]
    assert await page((9, 0), (1, 0)) == []
    row = (await store.query(ask.ReadFrames(0, uuid_of(1), 0, (7, 0), (7, 0), 1)))[0]
    assert row == (7, 0, '{"n":7}', "best_effort")


async def test_a_stream_head_counts_as_stored_once_inserted(store: MemoryStore) -> None:
    assert await find(store, StreamHead, (wire(1), 0)) is None
    await commit(store, head(1, frame_count=1))
    stored = await find(store, StreamHead, (wire(1), 0))
    assert stored.stored
    await commit(store, change(stored, frame_count=2))
    assert await find(store, StreamHead, (wire(1), 0)) == replace(stored, frame_count=2)


async def test_trimming_keeps_the_newest_frames(store: MemoryStore) -> None:
    await commit(store, head(1, frame_count=4), *(frame(1, 0, ts, 0) for ts in range(4)))
    await commit(store, head(1, 1, frame_count=1), frame(1, 1, 9, 0))

    async def left(attempt_index: int = 0) -> list[int]:
        question = ask.ReadFrames(0, uuid_of(1), attempt_index, (0, 0), (99, 0), 99)
        return [row[0] for row in await store.query(question)]

    trim = TrimStream(wire(1), 0)
    await commit(store, trim)
    assert await left() == [0, 1, 2, 3]
    await commit(store, frame(1, 0, 4, 0), change(head(1), frame_count=3), trim)
    assert await left() == [2, 3, 4]
    assert await left(1) == [9]
    await commit(store, TrimStream(wire(8), 0))


# --------------------------------------------------------------------------------------------------------------- events


async def test_events_are_numbered_by_kind(store: MemoryStore) -> None:
    await commit(store, events=(lease_event(1), CompletionEvent(0, uuid_of(1), None, "success", None, None, 1, 1)))
    await commit(store, events=(lease_event(2), lease_event(3)))
    assert [(event_id, event.occurred_at_ms) for event_id, event in store.events(LeaseEvent)] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]
    assert [event_id for event_id, _ in store.events(LeaseEvent, after=1)] == [2, 3]
    assert [event_id for event_id, _ in store.events(CompletionEvent)] == [1]
    assert not store.events(OperatorEvent)
    assert not store.events(InstanceTagEvent)


async def test_history_is_trimmed_by_age(store: MemoryStore) -> None:
    def completion(at: int, dispatched_at_ms: int | None) -> CompletionEvent:
        return CompletionEvent(0, uuid_of(1), None, "success", None, None, at, dispatched_at_ms)

    await commit(
        store,
        *(WorkerEvent("main", "w-1", "heartbeat", at, None) for at in (1, 5, 6)),
        *(Binding("main", str(at), 0, uuid_of(at), 0, at) for at in (NOW - 1, NOW, NOW + 1)),
        events=(lease_event(9), lease_event(10), lease_event(3), completion(1, 1), completion(1, None)),
    )
    assert await store.query(ask.TrimHistory(10, 6, NOW, 1)) == 4
    store.check_indexes()
    assert await store.query(ask.TrimHistory(10, 6, NOW, 100)) == 3
    assert await store.query(ask.TrimHistory(10, 6, NOW, 100)) == 0
    store.check_indexes()
    assert [event_id for event_id, _ in store.events(LeaseEvent)] == [2]
    assert [event.dispatched_at_ms for _, event in store.events(CompletionEvent)] == [None]
    assert [each.event_at_ms for each in await select(store, WorkerEvent, namespace="main")] == [6]
    assert [each.expires_at_ms for each in await select(store, Binding, namespace="main")] == [NOW + 1]
    await commit(store, events=(lease_event(20),))
    assert [event_id for event_id, _ in store.events(LeaseEvent)] == [2, 4]


async def test_nobody_else_is_heard(store: MemoryStore) -> None:
    store.publish(["lane:default"])

    async def listen() -> list[str | None]:
        return [topic async for topic in store.heard()]

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    assert not listening.done()
    await store.close()
    assert await listening == []
    assert await listen() == []


# -------------------------------------------------------------------------------------------------------------- purging


def everything_of(number: int) -> list[Any]:
    uuid = uuid_of(number)
    return [
        execution(number, lifecycle_phase=lit.TERMINAL, terminal_at_ms=5, flow_id=FLOW),
        attempt(number, 0, lease_expires_at_ms=1),
        attempt(number, 1),
        grant(number, bytes([number]), NOW),
        frame(number, 0, 5, 0),
        frame(number, 1, 5, 0),
        head(number, 1, frame_count=1),
        StreamSummary(wire(number), 0, uuid, 1, "{}", 1, None, 5, 5),
        Suspension(0, uuid, uuid_of(900 + number), 5, None, None),
        Waitpoint(0, uuid_of(800 + number), uuid, "pending", None, None),
        Binding("main", f"key-{number}", 0, uuid, 0, NOW),
        CancelBacklogMember(0, FLOW, wire(number)),
    ]


def purge(number: int) -> PurgeExecution:
    return PurgeExecution(wire(number), 0, uuid_of(number))


async def test_a_purge_takes_everything_of_one_execution(store: MemoryStore) -> None:
    mine, others = everything_of(1), everything_of(2)
    await commit(store, *mine, *others)
    await commit(store, purge(1))
    assert [await find(store, type(record), record.key) for record in mine] == [None] * len(mine)
    assert None not in [await find(store, type(record), record.key) for record in others]
    await commit(store, purge(1))


async def test_changes_made_before_a_purge_go_with_it(store: MemoryStore) -> None:
    rows = everything_of(1)
    await commit(store, *rows)
    late = (change(rows[0], priority=5), change(rows[1], lease_epoch=4), frame(1, 1, 6, 0), attempt(1, 2))
    await commit(store, *late, purge(1))
    assert [await find(store, type(record), record.key) for record in rows] == [None] * len(rows)
    assert await select(store, FrameRow, partition=0, uuid=uuid_of(1)) == []
    assert await find(store, Attempt, (wire(1), 2)) is None


async def test_an_execution_may_be_created_again_in_the_batch_that_purges_it(store: MemoryStore) -> None:
    rows = everything_of(1)
    await commit(store, *rows)
    rebound = Change(Binding("main", "key-1", 0, uuid_of(2), 7, NOW + 9), ("uuid", "created_at_ms", "expires_at_ms"))
    await commit(store, purge(1), execution(1, priority=4), rebound)
    assert (await find(store, Execution, wire(1))).priority == 4
    assert await find(store, Attempt, (wire(1), 0)) is None
    assert (await find(store, Binding, ("main", "key-1"))).uuid == uuid_of(2)


# -------------------------------------------------------------------------------------------------- anything, any order

_PHASES = (lit.SUBMITTED, lit.RUNNABLE, lit.ACTIVE, lit.TERMINAL)
_ELIGIBILITY = (lit.ELIGIBLE_NOW, lit.PENDING_CLAIM, lit.BLOCKED_BY_ROUTE, lit.NOT_APPLICABLE)
_REQUIRED = ((), ("gpu",), ("disk", "gpu"))


def _some_state(chance: random.Random) -> dict[str, Any]:
    def some_time() -> int | None:
        return chance.choice((None, NOW - 1, NOW, NOW + 1))

    return {
        "lifecycle_phase": chance.choice(_PHASES),
        "eligibility_state": chance.choice(_ELIGIBILITY),
        "priority": chance.randrange(3),
        "lane_id": chance.choice(("default", "other")),
        "required_capabilities": chance.choice(_REQUIRED),
        "delay_until_ms": some_time(),
        "deadline_at_ms": some_time(),
        "terminal_at_ms": some_time(),
        "attempt_index": chance.randrange(2),
        "flow_id": chance.choice((None, FLOW)),
    }


def _some_act(chance: random.Random, records: dict[Any, Any]) -> Any:
    number = chance.randrange(1, 9)
    times: dict[str, Any] = {
        "lease_expires_at_ms": chance.choice((None, NOW, NOW + 1)),
        "lease_epoch": chance.randrange(9),
    }
    fresh: Any = chance.choice(
        (
            execution(number, created_at_ms=number % 3, **_some_state(chance)),
            attempt(number, chance.randrange(2), **times),
            grant(number, bytes([chance.randrange(4), number]), chance.choice((0, NOW - 1, NOW + 1))),
        )
    )
    known = records.get((type(fresh), fresh.key))
    if known is None:
        return insert(fresh)
    if chance.random() < 0.3:
        return Drop(known)
    if isinstance(known, Execution):
        if chance.random() < 0.1:
            return PurgeExecution(known.execution_id, 0, known.uuid)
        return change(known, **_some_state(chance))
    return change(known, **times) if isinstance(known, Attempt) else change(known, expires_at_ms=fresh.expires_at_ms)


def _fold(records: dict[Any, Any], act: Any) -> None:
    """What an act means, said as plainly as possible."""
    if isinstance(act, PurgeExecution):
        for key in [key for key, record in records.items() if record.uuid == act.uuid]:
            del records[key]
    elif isinstance(act, Drop):
        del records[type(act.record), act.record.key]
    else:
        records[type(act.record), act.record.key] = act.record


def _expected_claims(records: dict[Any, Any], capabilities: set[str]) -> list[str]:
    def is_open(each: Execution) -> bool:
        if lit.is_claimable(each.lifecycle_phase, each.eligibility_state):
            return True
        expiries = [r.expires_at_ms for r in records.values() if type(r) is Grant and r.uuid == each.uuid]
        waits = each.eligibility_state == lit.PENDING_CLAIM and each.lifecycle_phase in lit.WAITING_PHASES
        return waits and bool(expiries) and all(0 < expiry <= NOW for expiry in expiries)

    cores = [record for record in records.values() if type(record) is Execution]
    found = [
        each for each in cores if each.lane_id == "default" and capabilities.issuperset(each.required_capabilities)
    ]
    return [each.execution_id for each in sorted(filter(is_open, found), key=claim_order)]


def _expected_floor(records: dict[Any, Any], each: Execution) -> int:
    attempts = [r for r in records.values() if type(r) is Attempt and r.uuid == each.uuid]
    return max((r.lease_epoch for r in attempts if r.attempt_index < each.attempt_index), default=0)


async def _compare(store: MemoryStore, records: dict[Any, Any]) -> None:
    store.check_indexes()
    for capabilities in (set[str](), {"gpu"}, {"gpu", "disk"}):
        assert await claim_ids(store, *capabilities, limit=99) == _expected_claims(records, capabilities)
    cores = [record for record in records.values() if type(record) is Execution]
    for each in cores:
        stored = await find(store, Execution, each.execution_id)
        assert stored.epoch_floor == _expected_floor(records, each)
        assert (stored.priority, stored.delay_until_ms) == (each.priority, each.delay_until_ms)
    delayed = {each.execution_id for each in cores if each.delay_until_ms is not None and each.delay_until_ms <= NOW}
    assert set(await due(store, "delayed_promoter")) == delayed
    leased = {
        each.execution_id
        for each in cores
        if (held := records.get((Attempt, (each.execution_id, each.attempt_index)))) is not None
        and held.lease_expires_at_ms == NOW
    }
    assert set(await due(store, "lease_expiry")) == leased
    members = [each.execution_id for each in cores if each.flow_id == FLOW]
    assert [each.execution_id for each in await select(store, Execution, partition=0, flow_id=FLOW)] == sorted(members)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_any_sequence_of_batches_leaves_what_it_says(seed: int, batch_size: int) -> None:
    async def story() -> None:
        chance, records = random.Random(seed), dict[Any, Any]()
        store = MemoryStore(clock=lambda: NOW)
        for _ in range(15):
            acts: list[Any] = []
            for _ in range(batch_size):
                act = _some_act(chance, records)
                if any(isinstance(each, PurgeExecution) for each in acts):
                    break
                _fold(records, act)
                acts.append(act)
            await commit(store, *acts)
            await _compare(store, records)

    asyncio.run(story())


def test_unset_is_never_stored() -> None:
    async def story() -> None:
        store = MemoryStore(clock=lambda: NOW)
        await commit(store, execution(1), attempt(1))
        await commit(store, Change(execution(1), EXECUTION_WIDE_FIELDS), Change(attempt(1), ("policy",)))
        for record in (await find(store, Execution, wire(1)), await find(store, Attempt, (wire(1), 0))):
            assert all(getattr(record, field) is not UNSET for field in record.__struct_fields__)

    asyncio.run(story())
