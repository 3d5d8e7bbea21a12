"""What answers of stores by key cost: it follows from what is asked for, not from all that is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowfabric.core.batch.view import View
from flowfabric.model import states as lit
from flowfabric.model.decisions import Claimable, Descendants
from flowfabric.model.operations.flows import EdgeState
from flowfabric.model.operations.workflows import Step
from flowfabric.model.records.budgets import Budget
from flowfabric.model.records.executions import Execution, Lane
from flowfabric.model.records.flows import CancelBacklog, Edge, EdgeGroup, PendingCancelGroup
from flowfabric.stores import questions as ask
from flowfabric.stores.keyed.load import readings
from flowfabric.stores.keyed.questions import answer
from flowfabric.stores.keyed.reads import LARGEST_CHUNK, All, Range, Reading, Rows, Whole
from flowfabric.stores.memory import MemoryStore
from tests.unit.stores.memory_rows import FLOW, NOW, attempt, commit, execution, grant, running, uuid_of, wire

SMALL, LARGE = 20, 700
ENDED: dict[str, Any] = {
    "lifecycle_phase": lit.TERMINAL,
    "eligibility_state": lit.NOT_APPLICABLE,
    "terminal_at_ms": NOW,
}
WAITS: dict[str, Any] = {"eligibility_state": lit.BLOCKED_BY_DEPENDENCIES, "flow_id": FLOW}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=lambda: NOW)


class Cost:
    """How often something was asked for, and how much there was to read."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.trips = 0
        #: Records and entries, and the most of them that one trip brought.
        self.read = 0
        self.most = 0

    def carry_out(self, reading: Reading[Any]) -> Any:
        try:
            request = next(reading)
            while True:
                requests = request if type(request) is list else [request]
                answers = [self._store._ask(each) for each in requests]
                brought = sum(map(_amount, requests, answers))
                self.trips += 1
                self.read += brought
                self.most = max(self.most, brought)
                request = reading.send(answers if type(request) is list else answers[0])
        except StopIteration as stop:
            return stop.value


def _amount(request: Any, found: Any) -> int:
    return len(found) if type(request) in (Rows, Whole, Range, All) else 1


def asked(store: MemoryStore, question: Any) -> tuple[Any, Cost]:
    cost = Cost(store)
    return cost.carry_out(answer(question)), cost


async def assert_steady(question: Any, fill: Callable[[int], list[Any]], *also: Any) -> Any:
    """The answer to a question that costs the same with little and with much of something else in the store."""
    answers, costs = [], []
    for amount in (SMALL, LARGE):
        store = MemoryStore(clock=lambda: NOW)
        await commit(store, *also, *fill(amount))
        found, cost = asked(store, question)
        answers.append(found)
        costs.append((cost.trips, cost.read))
    assert answers[0] == answers[1]
    assert costs[0] == costs[1]
    return answers[0]


# ---------------------------------------------------------------------------------------------------------------- flows


def group(number: int, *, flag: bool) -> EdgeGroup:
    return EdgeGroup(0, FLOW, uuid_of(number), "any_of", cancel_siblings_pending_flag=flag)


def pending(number: int, at: int) -> PendingCancelGroup:
    return PendingCancelGroup(0, FLOW, uuid_of(number), at)


def keys(*numbers: int) -> list[tuple[int, str, str]]:
    return [(0, FLOW, uuid_of(number)) for number in numbers]


@pytest.mark.parametrize(("actionable", "expected"), [(True, (5, 2, 1)), (False, (5, 2, 4, 1, 3))])
async def test_groups_that_need_nothing_are_not_read(actionable: bool, expected: tuple[int, ...]) -> None:
    flagged = [group(1, flag=True), group(2, flag=True), group(3, flag=True)]
    work = [group(4, flag=False), pending(1, 9), pending(2, 7), pending(4, 8), pending(5, 3)]

    def at_rest(amount: int) -> list[Any]:
        return [group(100 + number, flag=False) for number in range(amount)]

    found = await assert_steady(ask.PendingGroups(actionable, 10), at_rest, *flagged, *work)
    assert found == keys(*expected)


async def test_a_flag_that_goes_down_leaves_nothing_behind(store: MemoryStore) -> None:
    lost, done = group(1, flag=True), group(2, flag=True)
    await commit(store, lost, done)
    assert await store.query(ask.PendingGroups(False, 1)) == keys(1)
    store._tables.store(group(1, flag=False))
    store.check_indexes()
    assert await store.query(ask.PendingGroups(False, 10)) == keys(2)


async def test_only_as_much_of_a_backlog_is_read_as_is_wanted(store: MemoryStore) -> None:
    def header(number: int, grace: int | None) -> CancelBacklog:
        return CancelBacklog(0, uuid_of(number), 1_000 - number, "", "", grace, "cancel_all", "cancelling")

    await commit(store, *(header(number, None if number % 2 else NOW + number % 4 - 1) for number in range(LARGE)))
    found, cost = asked(store, ask.BacklogDue(NOW, 4))
    assert found == [(0, uuid_of(number)) for number in (699, 697, 696, 695)]
    assert cost.read < 40


def waiting(amount: int) -> list[Any]:
    """Members that wait for one that runs."""
    rows: list[Any] = [running(9_000, flow_id=FLOW)]
    for number in range(amount):
        rows += [execution(number, **WAITS), edge(9_000, number)]
    return rows


def edge(upstream: int, downstream: int, state: str = EdgeState.APPLIED) -> Edge:
    name = uuid_of(100_000 + upstream * 1_000 + downstream)
    return Edge(0, FLOW, name, uuid_of(upstream), uuid_of(downstream), "{}", edge_state=state)


async def test_a_look_at_waiting_members_is_bounded_by_its_window(store: MemoryStore) -> None:
    stuck = [3, 250, 699]
    await commit(store, execution(9_001, flow_id=FLOW, **ENDED), *waiting(LARGE))
    for number in stuck[:2]:
        store._tables.store(edge(9_001, number))
    store._tables.delete(Edge, edge(9_000, stuck[2]).key)
    found: list[str] = []
    after, looks = None, 0
    while True:
        (some, after), cost = asked(store, ask.StuckMembers(after, 100))
        found += some
        looks += 1
        assert cost.trips <= 5
        assert cost.read <= 5 * 100 + 5
        if after is None:
            break
    assert found == [wire(number) for number in stuck]
    assert looks == 8


async def test_many_edges_of_a_member_are_read_until_one_is_left_behind(store: MemoryStore) -> None:
    await commit(store, execution(1, **WAITS), execution(9_001, flow_id=FLOW, **ENDED))
    for number in range(2, LARGE):
        store._tables.store(running(number, flow_id=FLOW))
        store._tables.store(edge(number, 1))
    assert (await store.query(ask.StuckMembers(None, 10)))[0] == []
    store._tables.store(edge(9_001, 1))
    assert (await store.query(ask.StuckMembers(None, 10)))[0] == [wire(1)]


async def test_waiting_members_of_a_namespace_or_with_a_tag(store: MemoryStore) -> None:
    tagged: dict[str, Any] = {"raw_fields": '{"tags":{"team":"a"}}'}
    await commit(
        store, execution(1, **WAITS), execution(2, namespace="theirs", **WAITS), execution(3, **WAITS, **tagged)
    )
    assert (await store.query(ask.StuckMembers(None, 9)))[0] == [wire(1), wire(2), wire(3)]
    assert (await store.query(ask.StuckMembers(None, 9, "theirs")))[0] == [wire(2)]
    assert (await store.query(ask.StuckMembers(None, 9, None, ("team", "a"))))[0] == [wire(3)]


async def test_members_of_many_flows_are_counted_together(store: MemoryStore) -> None:
    trips = []
    for flows in (1, 16):
        for flow in range(flows):
            for number in range(5):
                store._tables.store(execution(100 * flow + number, flow_id=uuid_of(flow)))
        found, cost = asked(store, ask.CountMembers(tuple((0, uuid_of(flow)) for flow in range(flows))))
        assert found == {(0, uuid_of(flow)): {lit.PUBLIC_WAITING: 5} for flow in range(flows)}
        trips.append(cost.trips)
    assert trips[0] == trips[1]


async def test_what_follows_a_member_is_found_level_by_level(store: MemoryStore) -> None:
    for number in range(1, 101):
        store._tables.store(edge(0, number))
        store._tables.store(edge(number, 200))
        store._tables.store(edge(number, 201))
    view, cost = View(), Cost(store)
    need = Descendants(0, FLOW, uuid_of(0))
    for reading in readings([need], view, NOW):
        cost.carry_out(reading)
    assert view.descendants(*need) == frozenset(map(uuid_of, [*range(1, 101), 200, 201]))
    assert cost.trips <= 8


async def test_many_forgotten_grants_are_looked_at_together(store: MemoryStore) -> None:
    for number in range(100):
        store._tables.store(execution(number, eligibility_state=lit.PENDING_CLAIM))
        store._tables.store(grant(number, b"%d" % number, NOW - 1))
    view, cost = View(), Cost(store)
    for reading in readings([Claimable("default", frozenset(), 10)], view, NOW):
        cost.carry_out(reading)
    assert cost.trips <= 10


# ---------------------------------------------------------------------------------------------------------------- lists

LANES = [Lane(name, 1, "x") for name in ("a", "b", "c", "d", "e")]
ABSENT: dict[str, Any] = {"lifecycle_phase": lit.SUSPENDED, "eligibility_state": lit.NOT_APPLICABLE}


async def test_lanes_of_a_namespace_are_found_without_its_history() -> None:
    live = [
        execution(1, lane_id="a", required_capabilities=("gpu",)),
        execution(2, lane_id="b", **ABSENT),
        running(3, lane_id="c", ownership_state=lit.LEASED),
        attempt(3, worker_instance_id="w", lease_expires_at_ms=NOW),
        running(4, lane_id="e", ownership_state=lit.LEASE_REVOKED),
        execution(5, lane_id="d", namespace="theirs"),
    ]

    def history(amount: int) -> list[Any]:
        return [execution(100 + number, lane_id="d", **ENDED) for number in range(amount)]

    question = ask.ListLanes(None, 10, ("main", "nobody's"), NOW)
    found = await assert_steady(question, history, *LANES, *live)
    assert [lane.lane_id for lane in found] == ["a", "b", "c", "e"]


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_the_first_lanes_of_a_namespace(store: MemoryStore, limit: int) -> None:
    await commit(
        store, *LANES, running(1, lane_id="b", ownership_state=lit.LEASED), execution(2, lane_id="d"),
        execution(3, lane_id="e"), attempt(1, worker_instance_id="w", lease_expires_at_ms=NOW),
    )  # fmt: skip
    found = await store.query(ask.ListLanes(None, limit, ("main",), NOW))
    assert [lane.lane_id for lane in found] == ["b", "d", "e"][:limit]
    behind = await store.query(ask.ListLanes("b", limit, ("main",), NOW))
    assert [lane.lane_id for lane in behind] == ["d", "e"][:limit]


async def test_depths_of_many_queues_are_read_together() -> None:
    trips = []
    for lanes in (1, 100):
        store = MemoryStore(clock=lambda: NOW)
        for number in range(lanes):
            store._tables.store(Lane(f"{number:03}", 1, "x"))
            store._tables.store(execution(number, lane_id=f"{number:03}", created_at_ms=number))
        found, cost = asked(store, ask.QueueDepths())
        assert found == [(f"{number:03}", 1, number) for number in range(lanes)]
        trips.append(cost.trips)
    assert trips[0] == trips[1]


def steps_of(number: int, amount: int) -> list[Step]:
    return [Step(0, uuid_of(number), f"s{place:04}", place, 0, 1, "ok", None, NOW) for place in range(amount)]


async def test_a_page_of_live_steps_reads_no_more_than_itself(store: MemoryStore) -> None:
    await commit(store, running(1), running(2), execution(3, **ENDED), *steps_of(3, 5))
    await commit(store, *steps_of(1, LARGE), *steps_of(2, 3))
    found: list[Any] = []
    after = None
    while True:
        page, cost = asked(store, ask.LiveSteps(after, 100))
        found += page
        assert cost.read <= 2 * 100 + 3 * 8
        if len(page) < 100:
            break
        after = (0, page[-1][0].rpartition(":")[2], page[-1][1])
    assert found == [(wire(n), each.name) for n, amount in ((1, LARGE), (2, 3)) for each in steps_of(n, amount)]


async def test_a_page_of_budgets_reads_no_more_than_itself(store: MemoryStore) -> None:
    def budget(number: int) -> Budget:
        return Budget(0, f"b{number:04}", "{}", NOW, NOW, namespace="main" if number % 2 else None)

    await commit(store, *map(budget, range(LARGE)))
    found, cost = asked(store, ask.ListGates("budgets", 0, "b0004", 3))
    assert found == ["b0005", "b0006", "b0007"]
    assert cost.read == 3
    found, cost = asked(store, ask.ListGates("budgets", 0, "b0004", 3, frozenset({"main"})))
    assert found == ["b0005", "b0007", "b0009"]
    assert cost.read < 20


# ------------------------------------------------------------------------------------------------------------- searches


def crowd(amount: int) -> list[Execution]:
    return [
        execution(number, flow_id=FLOW, created_at_ms=number * 7_919 % amount, namespace=f"n{number % 20}")
        for number in range(amount)
    ]


@pytest.mark.parametrize("namespaces", [None, ("n1",), ("n1", "n2", "n3")])
async def test_a_search_without_a_match_reads_in_bounded_parts(
    store: MemoryStore, namespaces: tuple[str, ...] | None
) -> None:
    amount = 4 * LARGEST_CHUNK
    for each in crowd(amount):
        store._tables.store(each)
    found, cost = asked(store, ask.SearchExecutions(10, namespaces=namespaces, lane_id="none"))
    assert found == []
    assert cost.most <= 2 * LARGEST_CHUNK
    assert cost.trips <= 60


@pytest.mark.parametrize("namespaces", [None, ("n3", "n1")])
async def test_pages_over_several_namespaces_are_in_order(
    store: MemoryStore, namespaces: tuple[str, ...] | None
) -> None:
    rows = crowd(LARGE)
    await commit(store, *rows)
    wanted = [each for each in rows if namespaces is None or each.namespace in namespaces]
    expected = sorted(((each.created_at_ms, each.uuid, 0) for each in wanted), reverse=True)
    for limit in (1, 7, 50):
        found: list[Any] = []
        while True:
            page = await store.query(ask.SearchExecutions(limit, found[-1] if found else None, namespaces))
            found += [(each.created_at_ms, each.uuid, each.partition) for each in page]
            if len(page) < limit:
                break
        assert found == expected


async def test_the_newest_members_of_a_large_flow(store: MemoryStore) -> None:
    rows = crowd(3 * LARGEST_CHUNK)
    for each in rows:
        store._tables.store(each)
    newest = sorted(rows, key=lambda each: (each.created_at_ms, each.uuid), reverse=True)
    found, cost = asked(store, ask.SearchExecutions(10, flow=(0, FLOW)))
    assert [each.uuid for each in found] == [each.uuid for each in newest[:10]]
    assert cost.most <= LARGEST_CHUNK
    last = newest[9]
    behind = ask.SearchExecutions(10, (last.created_at_ms, last.uuid, 0), ("n3",), flow=(0, FLOW))
    own = [each.uuid for each in newest[10:] if each.namespace == "n3"]
    assert [each.uuid for each in asked(store, behind)[0]] == own[:10]


async def test_phases_are_counted_in_bounded_parts(store: MemoryStore) -> None:
    for each in crowd(3 * LARGEST_CHUNK):
        store._tables.store(each)
    found, cost = asked(store, ask.CountRows())
    assert found == {lit.RUNNABLE: 3 * LARGEST_CHUNK}
    assert cost.most <= LARGEST_CHUNK
