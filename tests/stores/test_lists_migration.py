"""A filled database of an earlier release keeps its questions, in the order in which they were asked."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.stores import migrate
from tests.stores.test_history_migration import run

#: The last migration before executions say when they were suspended.
BEFORE = 24
EXECUTION = (
    "INSERT INTO ff_exec_core (partition_key, execution_id, lane_id, attempt_index, lifecycle_phase, ownership_state, "
    "eligibility_state, public_state, attempt_state, created_at_ms, blocking_reason) "
    "VALUES (0, {}, 'lane', 0, '{}', 'unowned', 'not_applicable', 'suspended', 'attempt_interrupted', {}, '{}')"
)
SUSPENSION = (
    "INSERT INTO ff_suspension_current (partition_key, execution_id, suspension_id, suspended_at_ms, condition) "
    "VALUES (0, {}, {}, {}, '{{}}')"
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ff.db"
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


def shown(store: Any, identity: uuid.UUID) -> str:
    return f"X'{identity.hex}'" if store.label == "sqlite" else f"'{identity}'"


async def fill(store: Any, suspended_at: dict[int, int]) -> list[uuid.UUID]:
    """Executions that were created one after the other, and when each was suspended."""
    ids = []
    for created, at_ms in suspended_at.items():
        identity = uuid.uuid4()
        own, suspension = shown(store, identity), shown(store, uuid.uuid4())
        await run(store, EXECUTION.format(own, "suspended", created, "waiting_for_approval"))
        await run(store, SUSPENSION.format(own, suspension, at_ms))
        ids.append(identity)
    return ids


async def test_questions_stay_in_order(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrate.migrations("sqlite" if url.startswith("sqlite") else "postgres")
    with monkeypatch.context() as patching:
        patching.setattr(migrate, "migrations", lambda wanted: tuple(each for each in known if each.version <= BEFORE))
        async with await Engine.open(url, single_node=True) as engine:
            made = await fill(engine.store, {1: 30, 2: 10, 3: 20})
    async with await Engine.open(url, single_node=True) as engine:
        # A release that does not know the column goes on beside this one.
        [later] = await fill(engine.store, {15: 40})
        lines = (await engine.search_suspended()).executions
        assert [(each.execution_id.uuid, each.suspended_at) for each in lines] == [
            (made[0], 30), (made[2], 20), (later, 15), (made[1], 10)
        ]  # fmt: skip
        page = await engine.search_suspended(limit=2)
        rest = await engine.search_suspended(limit=2, cursor=page.next_cursor)
        assert [*page.executions, *rest.executions] == list(lines)


async def test_earlier_releases_can_live_with_it(url: str) -> None:
    known = migrate.migrations("sqlite" if url.startswith("sqlite") else "postgres")
    assert [each.backward_compatible for each in known if each.version == BEFORE + 1] == [True]
