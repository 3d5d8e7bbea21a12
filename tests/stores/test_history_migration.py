"""A filled database of an earlier release keeps its history: acts are numbered as they stand, signals go on."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.stores import migrate

#: The last migration before acts had numbers.
BEFORE = 23
SIGNAL = (
    "INSERT INTO ff_signal (partition_key, execution_id, signal_id, waitpoint_id, sequence, accepted_at_ms, "
    "waitpoint_key, signal_name, signal_category, source_type, source_identity, payload_encoding, target_scope, "
    "created_at_ms, effect) VALUES (0, {}, {}, {}, {}, {}, 'k', 'go', 'c', 's', 'ann', 'json', 'waitpoint', 1, 'e')"
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ff.db"
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


async def run(store: Any, statement: str) -> list[Any]:
    if store.label == "sqlite":
        return list(store.raw().execute(statement))
    async with store.raw() as connection:
        return list(await connection.fetch(statement))


async def test_what_is_there_stays_in_order(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = "sqlite" if url.startswith("sqlite") else "postgres"
    known = migrate.migrations(dialect)
    identity = uuid.uuid4()
    own = f"X'{identity.hex}'" if dialect == "sqlite" else f"'{identity}'"
    with monkeypatch.context() as patching:
        patching.setattr(migrate, "migrations", lambda wanted: tuple(each for each in known if each.version <= BEFORE))
        async with await Engine.open(url, single_node=True) as engine:
            store = engine.store
            for number in (3, 1, 2):
                await run(
                    store,
                    "INSERT INTO ff_audit (audit_id, at_ms, who, act, subject, status) "
                    f"VALUES ('{number:015d}-ab', {number}, 'ann', 'act {number}', '{{}}', 200)",
                )
            # It heard three signals, was replayed, and has heard one since.
            await run(
                store,
                "INSERT INTO ff_exec_core (partition_key, execution_id, lane_id, attempt_index, lifecycle_phase, "
                "ownership_state, eligibility_state, public_state, attempt_state, created_at_ms, signal_count) "
                f"VALUES (0, {own}, 'lane', 0, 'runnable', 'unowned', 'eligible_now', 'waiting', 'pending', 1, 1)",
            )
            for number, sequence in enumerate((1, 2, 3, 1)):
                signal, point = ((uuid.uuid4()) for _ in range(2))
                shown = [f"X'{each.hex}'" if dialect == "sqlite" else f"'{each}'" for each in (signal, point)]
                await run(store, SIGNAL.format(own, *shown, sequence, number))
    async with await Engine.open(url, single_node=True) as engine:
        await engine.record_act(who="ann", act="act 4", subject={}, status=200)
        assert [each.act for each in (await engine.list_audit()).entries] == ["act 4", "act 3", "act 2", "act 1"]
        page = await engine.list_audit(limit=3)
        assert [each.act for each in (await engine.list_audit(page.next_cursor)).entries] == ["act 1"]
        [row] = await run(engine.store, "SELECT earlier_signals FROM ff_exec_core")
        assert row[0] == 2, "the next one is the fourth"
