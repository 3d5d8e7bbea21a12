"""Hot statements must go through their indexes, whatever the tables hold."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import ClaimPolicy, Every, Fresh, SuspendArgs
from flowfabric.conditions import TimeoutOnly
from flowfabric.engine import Engine
from flowfabric.model.records.budgets import (
    Budget,
    BudgetDedup,
    BudgetUsage,
    QuotaAdmitted,
    QuotaPolicy,
    Reservation,
)
from flowfabric.model.records.executions import Signal, SignalDedup, SuspendDedup, Suspension, Waitpoint
from flowfabric.model.records.starts import EnqueueRequest
from flowfabric.stores.event_questions import ReadEvents
from flowfabric.stores.postgres import load_ranks, load_sql
from flowfabric.stores.postgres.commit import Statement
from flowfabric.stores.postgres.store import WRITER_SETTINGS, Replanning
from flowfabric.stores.questions import (
    CountStates,
    Due,
    DueSchedules,
    IdleGates,
    ListGates,
    ListLanes,
    ListSamples,
    ListSchedules,
    NextDue,
    PendingRequests,
    ReadContexts,
    SearchEdge,
    SearchExecutions,
    SearchFlows,
    SearchSuspended,
    TrimHistory,
    WaitedFor,
)
from flowfabric.stores.sql.events import old_events
from flowfabric.stores.sql.questions import SqlQuestions, trims
from flowfabric.stores.sql.schema import OUTBOXES, TABLES
from flowfabric.stores.sqlite import store as sqlite_store
from flowfabric.stores.sqlite.load import _CANDIDATES, _CANDIDATES_WITHIN, _SETS, _SETS_WITHIN
from flowfabric.stores.tables.executions import ATTEMPT, EXECUTION
from tests.contract.seeding import seed
from tests.stores.conftest import Filled, FilledFiles, planner_of, sqlite_of, writer_of

TIMERS = (
    "intake",
    "delayed_promoter",
    "lease_expiry",
    "attempt_timeout",
    "execution_deadline",
    "grant_sweep",
    "suspension_timeout",
    "pending_wp_expiry",
)
COMPLETE_FIELDS = (
    "lifecycle_phase",
    "ownership_state",
    "eligibility_state",
    "public_state",
    "attempt_state",
    "terminal_at_ms",
    "terminal_outcome",
    "last_mutation_at_ms",
    "result",
)


async def fill(engine: Engine) -> None:
    """Leased, waiting and ended rows, so that no table is small enough for a scan to look cheap."""
    policy = ClaimPolicy("w", "w-1")
    for lane, count in (("ended", 200), ("leased", 600), ("waiting", 1200)):
        await engine.create_executions([{"lane_id": lane, "execution_kind": "op"} for _ in range(count)])
    for handle in await engine.claim_many("ended", policy=policy, limit=200):
        await engine.complete(handle)
    held = await engine.claim_many("leased", policy=policy, limit=600)
    args = SuspendArgs(waitpoints=[Fresh()], resume_condition=TimeoutOnly(), timeout_at=2**62)
    await asyncio.gather(*(engine.suspend(handle, args) for handle in held[:200]))
    pending = [await engine.create_waitpoint(handle, "k", 2**60) for handle in held[200:300]]
    await asyncio.gather(
        *(
            engine.deliver_signal(
                execution_id=handle.execution_id,
                waitpoint_id=point.waitpoint_id,
                waitpoint_token=point.hmac_token,
                signal_name="early",
            )
            for handle, point in zip(held[200:300], pending, strict=True)
        )
    )
    budgets = [str(uuid4()) for _ in range(20)]
    for each in budgets:
        await engine.create_budget(budget_id=each, dimensions=["a"], hard_limits=[10], soft_limits=[0])
    await asyncio.gather(
        *(engine.reserve_budget(held[300 + number], budgets[number % 20], {"a": 1}) for number in range(200))
    )
    await engine.create_executions(
        [{"lane_id": "bound", "policy": {"budget_ids": [budgets[number % 20]]}} for number in range(400)]
    )
    assert await engine.claim_many("bound", policy=policy, limit=10) == []
    for number in range(300):
        await engine.put_schedule(f"s{number}", spec=Every(3_600_000), execution_kind="op")
    requests = [EnqueueRequest(str(uuid4()), number, None, "{}") for number in range(1_000)]
    await seed(engine, *requests)
    needs_gpu = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    await engine.create_executions([{"lane_id": "waiting", "policy": needs_gpu} for _ in range(300)])


# ----------------------------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture
async def postgres(filled_databases: Filled) -> AsyncIterator[Any]:
    """A connection with the settings of a writer, to the filled database: it plans and changes nothing."""
    async with planner_of(filled_databases, fill) as connection:
        yield connection


@pytest.fixture
async def own_postgres(filled_databases: Filled) -> AsyncIterator[Any]:
    """The same on a database of its own, which the test may change."""
    async with writer_of(filled_databases, fill) as connection:
        yield connection


async def plan(connection: Any, sql: str, *arguments: Any) -> str:
    """The plan of a prepared statement, as it is made for any argument."""
    rows = await connection.fetch(f"EXPLAIN (FORMAT JSON) {sql}", *arguments)
    return json.dumps(json.loads(rows[0][0]))


async def test_claims_walk_the_claim_index(postgres: Any) -> None:
    plain = await plan(postgres, load_sql.CLAIM_PLAIN, "waiting", 10, 1)
    able = await plan(postgres, load_sql.CLAIM_ABLE, "waiting", ["gpu"], 74, 10, 1)
    for found in (plain, able):
        assert "ff_exec_core_claim_idx" in found
        assert "Seq Scan" not in found
    assert '"Sort"' not in plain, "rows must come from the index in claim order"


@pytest.mark.parametrize("limit", [1, 50])
async def test_claims_from_a_queue_of_a_million_start_no_helpers(own_postgres: Any, limit: int) -> None:
    """With statistics of a large table, and helpers that seem to cost nothing."""
    await own_postgres.execute(
        "UPDATE pg_class SET reltuples = 1000000 WHERE relname LIKE 'ff_exec_core%'; "
        "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_index_scan_size = 0; "
        "SET min_parallel_table_scan_size = 0"
    )
    # A claim that is alone locks nothing, which is what lets a plan be parallel.
    alone = load_sql.CLAIM_PLAIN.removesuffix(load_sql.SKIPPING)
    assert "Gather" not in await plan(own_postgres, alone, "waiting", limit, 1)
    await own_postgres.execute("SET max_parallel_workers_per_gather = 2")
    assert "Gather" in await plan(own_postgres, f"/* again */ {alone}", "waiting", limit, 1), (
        "the setting is what counts"
    )


async def test_claims_within_namespaces_walk_an_index_of_their_own(postgres: Any) -> None:
    plain = await plan(postgres, load_sql.CLAIM_WITHIN, "waiting", 10, 1, "default")
    able = await plan(postgres, load_sql.CLAIM_ABLE_WITHIN, "waiting", ["gpu"], 74, 10, 1, ["default", "other"])
    for found in (plain, able):
        assert "ff_exec_core_claim_within_idx" in found
        assert "ff_exec_core_claim_idx" not in found, "however much of other namespaces stands in front"
        assert "Seq Scan" not in found
    assert '"Sort"' not in plain, "rows must come from the index in claim order"


async def test_ranks_of_fair_lanes_come_from_their_indexes(postgres: Any) -> None:
    asked = (["waiting"] * 3, [0] * 3, ["a", "b", "c"], [4] * 3)
    last, front = await plan(postgres, load_ranks.LAST, *asked), await plan(postgres, load_ranks.FRONT, *asked)
    assert "ff_exec_core_fair_key_idx" in last
    assert re.search(r"fair_key = k.f", last.split('"Index Cond"')[1]), "the key is looked up, not filtered"
    assert "ff_exec_core_fair_idx" in front
    for found in (last, front):
        assert "Seq Scan" not in found
        assert '"Sort"' not in found
    stray = await plan(postgres, load_ranks.STRAY, "waiting", 10, None, "namespace")
    unranked = await plan(postgres, load_ranks.UNRANKED, "waiting", 10, None)
    assert "ff_exec_core_fair_key_idx" in stray
    assert "ff_exec_core_claim_idx" in unranked
    assert "Seq Scan" not in stray + unranked


@pytest.mark.parametrize("count", [1, 200])
async def test_a_batch_of_completions_goes_by_primary_key(postgres: Any, count: int) -> None:
    rows = await postgres.fetch(
        "SELECT partition_key, execution_id::text AS uuid, xmin FROM ff_exec_core WHERE lane_id = 'leased' LIMIT $1",
        count,
    )
    records = [_Row(0, row["uuid"]) for row in rows]
    statement = Statement()
    versions = [row["xmin"] for row in rows]
    statement.update(EXECUTION, _columns(EXECUTION, COMPLETE_FIELDS), records, versions)
    statement.update(
        ATTEMPT, _columns(ATTEMPT, ("worker_instance_id", "lease_expires_at_ms", "outcome")), records, versions
    )
    text, arguments = statement.compiled()
    found = await plan(postgres, text, *arguments)
    assert "ff_exec_core_pkey" in found
    assert "ff_attempt_pkey" in found
    assert "Seq Scan" not in found
    assert "ff_exec_core_claim_idx" not in found, "a state predicate must never drive an update"
    for condition in re.findall(r'"Index Cond": "([^"]*)"', found):
        assert "execution_id" in condition, "the whole key must be looked up, not a part of it"


@pytest.mark.parametrize("statistics", ["none", "of empty tables"])
async def test_plans_hold_on_a_fresh_database(postgres_dsn: str, statistics: str) -> None:
    """Plans made while tables are empty may be bad, so they are made anew as the tables fill; statistics or not."""
    async with await Engine.open(postgres_dsn) as engine, engine.store.raw() as connection:
        if statistics != "none":
            await connection.execute("VACUUM ANALYZE")
        await fill(engine)
        for name, value in WRITER_SETTINGS.items():
            await connection.execute(f"SET {name} = '{value}'")
        records = [_Row(0, str(uuid4())) for _ in range(200)]
        statement = Statement()
        released = _columns(ATTEMPT, ("worker_instance_id", "lease_expires_at_ms", "outcome"))
        statement.update(EXECUTION, _columns(EXECUTION, COMPLETE_FIELDS), records, [1] * 200)
        statement.update(ATTEMPT, released, records, [1] * 200)
        text, arguments = statement.compiled()
        found = await plan(connection, text, *arguments)
    conditions = re.findall(r'"Index Cond": "([^"]*)"', found)
    assert len(conditions) == 2
    assert all("execution_id" in condition for condition in conditions)
    assert "Seq Scan" not in found


#: What starts executions, and the index that finds it.
STARTS = {
    "ff_schedule_due_idx": DueSchedules(1, 100),
    "ff_schedule_pkey": ListSchedules("default", "a", 100),
    "ff_enqueue_request_due_idx": PendingRequests(100),
}


@pytest.mark.parametrize("index", STARTS)
async def test_what_starts_executions_is_found_by_index(postgres: Any, index: str) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(STARTS[index])
    assert index in await plan(postgres, store._dollars(asked.sql), *asked.params)


#: A page of a namespace, from its middle.
SEARCH = SearchExecutions(100, (1, str(uuid4()), 1), ("default",), "waiting", ("waiting",), "op")


async def test_lists_of_a_namespace_come_from_an_index_in_order(postgres: Any) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(SEARCH)
    found = await plan(postgres, store._dollars(asked.sql), *asked.params)
    assert "ff_exec_core_search_idx" in found
    assert '"Sort"' not in found


#: Pages of flows and of questions, from their middles.
LISTS = {
    "ff_flow_core_created_idx": SearchFlows(100, (1, str(uuid4()), 1)),
    "ff_exec_core_suspended_idx": SearchSuspended(100, ("waiting_for_approval", "none"), (1, str(uuid4()), 1)),
}


@pytest.mark.parametrize("index", LISTS)
async def test_flows_and_questions_come_from_an_index_in_order(postgres: Any, index: str) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(LISTS[index])
    found = await plan(postgres, store._dollars(asked.sql), *asked.params)
    assert f'"Index Name": "{index}"' in found
    assert "Seq Scan" not in found


#: A page of what is sought in texts, how far such a search looks, and counts that end there.
PLACE = (1, str(uuid4()), 1)
WALKED = SearchExecutions(100, PLACE, ("default",), errors=("x",), workers=("w",), kind_parts=("op",), down_to=PLACE)
EDGE = SearchEdge(SearchExecutions(1, PLACE, ("default",)), 10_000)
COUNTED = CountStates(SearchExecutions(1, None, ("default",), down_to=PLACE))


@pytest.mark.parametrize("question", [WALKED, EDGE, COUNTED])
async def test_searches_in_texts_look_at_a_stretch_of_the_index(postgres: Any, question: Any) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(question)
    found = await plan(postgres, store._dollars(asked.sql), *asked.params)
    assert "ff_exec_core_search_idx" in found
    assert "Seq Scan" not in found
    if question is not COUNTED:
        assert '"Sort"' not in found


async def test_beginnings_of_ids_are_found_by_the_primary_key(postgres: Any) -> None:
    from flowfabric.stores.postgres import store

    low, high = "1f0c0000-0000-0000-0000-000000000000", "1f0cffff-ffff-ffff-ffff-ffffffffffff"
    search = SearchExecutions(100, None, ("default",), ids=(tuple(range(256)), low, high))
    for question in (search, CountStates(search)):
        asked = store._QUESTIONS.compile(question)
        found = await plan(postgres, store._dollars(asked.sql), *asked.params)
        assert "Seq Scan" not in found
        assert "ff_exec_core_search_idx" not in found


#: A page of the lanes that two of many namespaces use, from its middle.
VISIBLE = ListLanes("a", 101, ("default", "other"), 1)


async def test_visible_lanes_are_found_by_jumping_through_an_index(postgres: Any) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(VISIBLE)
    found = await plan(postgres, store._dollars(asked.sql), *asked.params)
    looks = re.findall(r'"Relation Name": "ff_exec_core".*?"Index Cond": "(.*?)"[,}]', found)
    assert len(looks) >= 2, "to the first lane, and from each to the next"
    assert len(looks) == found.count('"ff_exec_core_open_idx"') == found.count('"ff_exec_core"')
    for condition in looks:
        assert "namespace = " in condition
        assert "lane_id" in condition, "a lane is jumped over, however many executions it has"


async def test_samples_are_read_and_deleted_by_their_minute(own_postgres: Any) -> None:
    from flowfabric.stores.postgres import store

    await own_postgres.execute("INSERT INTO ff_sample SELECT m * 60000, '{}' FROM generate_series(1, 1500) m")
    await own_postgres.execute("ANALYZE ff_sample")
    asked = store._QUESTIONS.compile(ListSamples(60_000 * 1_400, 1_001))
    page = await plan(own_postgres, store._dollars(asked.sql), *asked.params)
    [(old, before)] = [each for each in trims(TrimHistory(1, 1, 1, 10, 1)) if each[0].startswith("ff_sample ")]
    gone = await plan(own_postgres, store._dollars(f"SELECT ctid FROM {old} LIMIT 10"), before)
    for found in (page, gone):
        assert "ff_sample_pkey" in found
        assert "Seq Scan" not in found
        assert '"Sort"' not in found


@pytest.mark.parametrize("table", ["ff_worker_registry_event", "ff_enqueue_request", "ff_audit", "ff_kept_answer"])
async def test_what_goes_by_age_is_found_by_index(postgres: Any, table: str) -> None:
    from flowfabric.stores.postgres import store

    [(old, before)] = [each for each in trims(TrimHistory(1, 1, 1, 10, 1)) if each[0].startswith(f"{table} ")]
    assert "Seq Scan" not in await plan(postgres, store._dollars(f"SELECT ctid FROM {old} LIMIT 10"), before)


@pytest.mark.parametrize("timer", TIMERS)
async def test_timers_find_what_is_due_by_index(postgres: Any, timer: str) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(Due(timer, 1, 100))
    found = await plan(postgres, store._dollars(asked.sql), *asked.params)
    assert "Seq Scan" not in found
    assert "_idx" in found


async def test_the_next_due_time_is_read_from_indexes(postgres: Any) -> None:
    from flowfabric.stores.postgres import store

    found = await plan(postgres, store._QUESTIONS.compile(NextDue()).sql)
    assert "Seq Scan" not in found


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("kind", [Waitpoint, Suspension, Signal, SignalDedup, SuspendDedup])
async def test_what_signals_look_at_is_found_by_key(postgres: Any, kind: Any, count: int) -> None:
    uuid, number = str(uuid4()), 0
    for fields in {TABLES[kind].key, _EXECUTION if kind in (Waitpoint, Signal) else TABLES[kind].key}:
        columns = [[number if field == "partition" else uuid] * count for field in fields]
        found = await plan(postgres, load_sql.select_by(kind, fields, True), *columns)
        assert "Seq Scan" not in found
        for condition in re.findall(r'"Index Cond": "([^"]*)"', found):
            assert condition.count("=") == len(fields), "the whole key must be looked up, not a part of it"


async def test_who_waits_for_room_is_found_by_index(postgres: Any) -> None:
    from flowfabric.stores.postgres import store

    blocked = await plan(postgres, load_sql.LISTS["blocked"] + " FOR UPDATE OF e SKIP LOCKED", "x", 33)
    assert "ff_exec_core_waiting_idx" in blocked
    assert '"Sort"' not in blocked, "rows must come from the index in claim order"
    naming = await plan(postgres, load_sql.LISTS["naming"] + " FOR UPDATE OF e SKIP LOCKED", "x", 100)
    assert "ff_exec_core_budget_idx" in naming
    recent = ""
    for statement in (load_sql.RECENTLY, load_sql.RECENTLY_ONE_BY_ONE):
        found = await plan(postgres, statement, [0], [0], ["x"], [""], [1])
        assert "ff_quota_window_pkey" in found
        assert '"Sort"' not in found
        recent += found
    slots = await plan(postgres, load_sql.SLOTS_TAKEN, ["x"])
    assert "ff_exec_core_slots_idx" in slots
    asked = store._QUESTIONS.compile(WaitedFor(("x",)))
    waited_for = await plan(postgres, store._dollars(asked.sql), *asked.params)
    for found in (blocked, naming, recent, slots, waited_for):
        assert "Seq Scan" not in found


@pytest.mark.parametrize("what", ["budget_reset", "quota_room", "blocked", "budgets", "quotas"])
async def test_gates_are_listed_by_index(postgres: Any, what: str) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(ListGates(what, 1, None, 100))
    assert "Seq Scan" not in await plan(postgres, store._dollars(asked.sql), *asked.params)


@pytest.mark.parametrize("what", ["quotas", "budgets"])
async def test_what_uses_gates_is_found_by_index(postgres: Any, what: str) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(IdleGates(what, 1, 100))
    found = await plan(postgres, store._dollars(asked.sql), *asked.params)
    assert "Seq Scan" not in found
    expected = ["ff_quota_policy_idle_idx", "ff_exec_core_slots_idx"]
    if what == "budgets":
        expected = ["ff_budget_policy_idle_idx", "ff_exec_core_budgets_idx", "ff_exec_core_several_budgets_idx"]
    assert [each for each in expected if each not in found] == []


@pytest.mark.parametrize("kind", [Budget, BudgetUsage, BudgetDedup, Reservation, QuotaPolicy, QuotaAdmitted])
async def test_what_budgets_look_at_is_found_by_key(postgres: Any, kind: Any) -> None:
    table = TABLES[kind]
    types = {"partition": 0, "reservation_id": str(uuid4())}
    columns = [[types.get(field, "x")] * 50 for field in table.key]
    found = await plan(postgres, load_sql.select_by(kind, table.key, True), *columns)
    assert "Seq Scan" not in found
    for condition in re.findall(r'"Index Cond": "([^"]*)"', found):
        assert condition.count("=") == len(table.key), "the whole key must be looked up, not a part of it"


async def test_reservations_of_an_execution_are_found_by_index(postgres: Any) -> None:
    fields = ("partition", "uuid", "state")
    found = await plan(postgres, load_sql.select_by(Reservation, fields, True), [0], [str(uuid4())], ["open"])
    assert "ff_budget_reservation_execution_idx" in found


def test_statements_are_planned_anew_while_tables_grow() -> None:
    replanning = Replanning()
    texts = {replanning.mark("SELECT 1")}
    for _ in range(2_000):
        replanning.note(100)
        texts.add(replanning.mark("SELECT 1"))
    assert 10 < len(texts) < 20, "often enough while small, and not for ever"


_EXECUTION = ("partition", "uuid")


class _Row:
    """A record with just what an update statement asks for."""

    def __init__(self, partition: int, uuid: str) -> None:
        self.partition = partition
        self.uuid = uuid
        self.attempt_index = 0
        self.terminal_at_ms = self.last_mutation_at_ms = 1
        self.lease_expires_at_ms = None
        self.result = uuid.encode()

    def __getattr__(self, name: str) -> str:
        return "text"


def _columns(table: Any, fields: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(table.column(field) for field in fields)


# --------------------------------------------------------------------------------------------------------------- SQLite


@pytest.fixture
async def sqlite(filled_files: FilledFiles, tmp_path: Path) -> AsyncIterator[Any]:
    """A connection to a filled database."""
    async with sqlite_of(filled_files, fill, tmp_path) as connection:
        yield connection


def steps(connection: Any, sql: str, *arguments: Any) -> str:
    """The plan SQLite makes."""
    return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", arguments))


async def test_sqlite_claims_walk_the_claim_index(sqlite: Any) -> None:
    found = steps(sqlite, _CANDIDATES, "waiting", "", 10)
    assert "USING INDEX ff_exec_core_claim_idx (lane_id=? AND requirement_key=?)" in found
    assert "TEMP B-TREE" not in found, "rows must come from the index in claim order"
    assert "SCAN ff_exec_core" not in found
    sets = steps(sqlite, _SETS, "waiting")
    assert "ff_exec_core_claim_idx" in sets
    assert "SCAN ff_exec_core" not in sets


@pytest.mark.parametrize("what", ["quotas", "budgets"])
async def test_sqlite_finds_what_uses_gates_by_index(sqlite: Any, what: str) -> None:
    asked = sqlite_store._QUESTIONS.compile(IdleGates(what, 1, 100))
    found = steps(sqlite, asked.sql, *asked.params)
    expected = ["ff_quota_policy_idle_idx", "ff_exec_core_slots_idx"]
    if what == "budgets":
        expected = ["ff_budget_policy_idle_idx", "ff_exec_core_budgets_idx", "ff_exec_core_several_budgets_idx"]
    assert [each for each in expected if each not in found] == []
    assert not re.search(r"SCAN (?!several|s\b)(?!.*(INDEX|CONSTANT))", found.replace("; ", "\n")), found


async def test_sqlite_claims_within_namespaces_walk_an_index_of_their_own(sqlite: Any) -> None:
    found = steps(sqlite, _CANDIDATES_WITHIN, "waiting", "", 10, "default")
    assert "USING INDEX ff_exec_core_claim_within_idx (lane_id=? AND namespace=? AND requirement_key=?)" in found
    assert "TEMP B-TREE" not in found, "rows must come from the index in claim order"
    sets = steps(sqlite, _SETS_WITHIN, "waiting", "default")
    assert "ff_exec_core_claim_within_idx (lane_id=? AND namespace=?" in sets
    assert "ff_exec_core_claim_idx" not in sets
    assert "SCAN ff_exec_core" not in sets


@pytest.mark.parametrize("index", STARTS)
async def test_sqlite_finds_what_starts_executions_by_index(sqlite: Any, index: str) -> None:
    asked = sqlite_store._QUESTIONS.compile(STARTS[index])
    found = steps(sqlite, asked.sql, *asked.params)
    assert (index if index.endswith("_idx") else "USING PRIMARY KEY") in found
    assert "TEMP B-TREE" not in found


async def test_sqlite_visible_lanes_are_found_by_jumping_through_an_index(sqlite: Any) -> None:
    asked = sqlite_store._QUESTIONS.compile(VISIBLE)
    found = steps(sqlite, asked.sql, *asked.params)
    jump = "SEARCH e USING INDEX ff_exec_core_open_idx (namespace=? AND lane_id>?)"
    assert found.count(jump) >= 2, "to the first lane, and from each to the next"
    assert "SCAN e" not in found
    for table in ("s", "w"):
        assert f"SCAN {table} " not in found + " "


async def test_sqlite_samples_are_read_and_deleted_by_their_minute(sqlite: Any) -> None:
    asked = sqlite_store._QUESTIONS.compile(ListSamples(60_000, 1_001))
    [(old, before)] = [each for each in trims(TrimHistory(1, 1, 1, 10, 1)) if each[0].startswith("ff_sample ")]
    for found in (steps(sqlite, asked.sql, *asked.params), steps(sqlite, f"SELECT rowid FROM {old}", before)):
        assert "USING INTEGER PRIMARY KEY (rowid" in found
        assert "TEMP B-TREE" not in found


@pytest.mark.parametrize("timer", TIMERS)
async def test_sqlite_timers_find_what_is_due_by_index(sqlite: Any, timer: str) -> None:
    questions: SqlQuestions = sqlite_store._QUESTIONS
    asked = questions.compile(Due(timer, 1, 100))
    found = steps(sqlite, asked.sql, *asked.params)
    assert "_idx" in found
    assert "SCAN e" not in found.replace("SCAN e USING INDEX", "")
    assert "SCAN a" not in found.replace("SCAN a USING INDEX", "")


# -------------------------------------------------------------------------------------------------------------- events


@pytest.mark.parametrize("kind", OUTBOXES, ids=lambda kind: kind.__name__)
async def test_events_are_read_in_the_order_of_their_key(postgres: Any, kind: Any) -> None:
    from flowfabric.stores.postgres import store

    for question in (ReadEvents(kind, 5, None, 256), ReadEvents(kind, 5, 2_000, 256, "default", "blue")):
        asked = store._QUESTIONS.compile(question)
        found = await plan(postgres, store._dollars(asked.sql), *asked.params)
        assert f"{OUTBOXES[kind].name}_pkey" in found
        assert "Seq Scan" not in found


@pytest.mark.parametrize("kind", OUTBOXES, ids=lambda kind: kind.__name__)
async def test_sqlite_events_are_read_in_the_order_of_their_key(sqlite: Any, kind: Any) -> None:
    name = OUTBOXES[kind].name
    for question in (ReadEvents(kind, 5, None, 256), ReadEvents(kind, 5, 2_000, 256, "default", "blue")):
        asked = sqlite_store._QUESTIONS.compile(question)
        found = steps(sqlite, asked.sql, *asked.params)
        assert f"SEARCH {name} USING INTEGER PRIMARY KEY (rowid>?" in found
        assert f"SCAN {name}" not in found
    old = steps(sqlite, old_events(name, 1_000), 5)
    assert "TEMP B-TREE" not in old, "the first rows come from the key, however many there are"


# ------------------------------------------------------------------------------------------------------------ contexts


def _some(count: int) -> ReadContexts:
    return ReadContexts(tuple(f"{{fp:0}}:{uuid4()}" for _ in range(count)))


@pytest.mark.parametrize("count", [1, 64, 1_000])
async def test_what_workers_start_from_is_found_by_key(postgres: Any, count: int) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(_some(count))
    found = await plan(postgres, store._dollars(asked.sql), *asked.params)
    assert "Seq Scan" not in found


@pytest.mark.parametrize("count", [1, 64, 1_000])
async def test_sqlite_finds_what_workers_start_from_by_key(sqlite: Any, count: int) -> None:
    asked = sqlite_store._QUESTIONS.compile(_some(count))
    found = steps(sqlite, asked.sql, *asked.params)
    assert "SEARCH e USING INDEX sqlite_autoindex_ff_exec_core_1 (partition_key=? AND execution_id=?)" in found
    assert "SCAN e" not in found


async def test_sqlite_lists_of_a_namespace_come_from_an_index_in_order(sqlite: Any) -> None:
    asked = sqlite_store._QUESTIONS.compile(SEARCH)
    found = steps(sqlite, asked.sql, *asked.params)
    assert "ff_exec_core_search_idx (namespace=? AND (created_at_ms,execution_id)<(?,?))" in found
    assert "TEMP B-TREE" not in found


@pytest.mark.parametrize("index", LISTS)
async def test_sqlite_flows_and_questions_come_from_an_index_in_order(sqlite: Any, index: str) -> None:
    asked = sqlite_store._QUESTIONS.compile(LISTS[index])
    found = steps(sqlite, asked.sql, *asked.params)
    # Nothing is sorted but what two stretches of the index begin with.
    place = "((created_at_ms,flow_id)<(?,?))" if "flow" in index else "(blocking_reason=? AND <expr><?); SCAN n0"
    assert f"USING INDEX {index} {place}" in found
