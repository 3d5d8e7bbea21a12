"""Statements about flows go through their indexes, whatever the tables hold."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import FlowGraph
from flowfabric.engine import Engine
from flowfabric.model.records.flows import Edge
from flowfabric.stores import questions as ask
from flowfabric.stores.postgres import load_downstream, load_sql
from flowfabric.stores.sqlite import store as sqlite_store
from flowfabric.stores.sqlite.load import _LIVE_MEMBERS, DESCENDANTS, DOWNSTREAM, _select_by
from tests.stores.conftest import Filled, FilledFiles, planner_of, sqlite_of
from tests.stores.test_plans import plan, steps

FLOW = str(uuid4())
QUESTIONS = (
    ask.StuckMembers(None, 100),
    ask.StuckMembers(f"{{fp:0}}:{FLOW}", 100),
    ask.CountMembers(((0, FLOW), (1, FLOW))),
    ask.EmptyFlows((0, FLOW), 100),
    ask.OpenFlows((0, FLOW), 100),
    ask.BacklogMembers(0, FLOW, 100),
    ask.Due("undispatched", 1, 100),
    ask.Due("retention", 1, 100),
    ask.Due("purge", 1, 100),
)


async def fill(engine: Engine) -> None:
    names = [f"n{number}" for number in range(1_000)]
    for _ in range(3):
        await engine.submit_flow(FlowGraph({key: {} for key in names}, list(itertools.pairwise(names))))


@pytest.fixture
async def postgres(filled_databases: Filled) -> AsyncIterator[Any]:
    """A connection with the settings of a writer, to the filled database: it plans and changes nothing."""
    async with planner_of(filled_databases, fill) as connection:
        yield connection


@pytest.fixture
async def sqlite(filled_files: FilledFiles, tmp_path: Path) -> AsyncIterator[Any]:
    """A connection to a filled database."""
    async with sqlite_of(filled_files, fill, tmp_path) as connection:
        yield connection


@pytest.mark.parametrize("locked", [False, True])
async def test_what_waits_for_ended_members_is_looked_up(postgres: Any, locked: bool) -> None:
    uuids = [str(uuid4()) for _ in range(50)]
    found = await plan(postgres, load_downstream.downstream(locked), [0] * 50, [FLOW] * 50, uuids)
    assert "Seq Scan" not in found
    for name in ("ff_edge_upstream_idx", "ff_edge_pkey", "ff_edge_group_pkey", "ff_exec_core_pkey", "ff_attempt_pkey"):
        assert name in found


async def test_members_and_descendants_are_looked_up(postgres: Any) -> None:
    members = await plan(postgres, load_sql.LIVE_MEMBERS, 0, FLOW, None, 100)
    assert "ff_exec_core_flow_idx" in members
    assert "Seq Scan" not in members
    descendants = await plan(postgres, load_downstream.DESCENDANTS, 0, FLOW, FLOW)
    assert "ff_edge_upstream_idx" in descendants
    assert "Seq Scan" not in descendants


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: type(question).__name__)
async def test_questions_go_by_index(postgres: Any, question: Any) -> None:
    from flowfabric.stores.postgres import store

    asked = store._QUESTIONS.compile(question)
    found = await plan(postgres, store._dollars(asked.sql), *asked.params)
    assert "Seq Scan" not in found


async def test_sqlite_looks_up_what_waits(sqlite: Any) -> None:
    found = steps(sqlite, DOWNSTREAM, 0, b"", b"")
    assert "ff_edge_upstream_idx (partition_key=? AND flow_id=? AND upstream_eid=?)" in found
    assert "SEARCH g USING PRIMARY KEY" in found
    assert "SCAN" not in found
    assert "TEMP B-TREE" not in found
    for end in ("upstream", "downstream"):
        found = steps(sqlite, _select_by(Edge, ("partition", "flow_id", end)), 0, b"", b"")
        assert f"ff_edge_{end}_idx (partition_key=? AND flow_id=? AND {end}_eid=?)" in found
    for sql, arguments in ((DESCENDANTS, (0, b"", b"")), (_LIVE_MEMBERS, (0, b"", b"", 10))):
        found = steps(sqlite, sql, *arguments)
        assert "_idx" in found
        assert "SCAN ff" not in found
        assert "SCAN e" not in found
        assert "SCAN t" not in found


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: type(question).__name__)
async def test_sqlite_questions_go_by_index(sqlite: Any, question: Any) -> None:
    asked = sqlite_store._QUESTIONS.compile(question)
    found = steps(sqlite, asked.sql, *asked.params)
    for alias in ("e", "t", "u"):
        assert f"SCAN {alias}" not in found.replace(f"SCAN {alias} USING", "")
