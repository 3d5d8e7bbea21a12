"""Databases that were restored from a backup: nobody passes over events in silence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.model.errors import StreamGap, Transport, Validation
from flowfabric.stores.restored import go_on_behind
from tests.contract.probe import claimed


async def end(url: str, count: int, cursor: bytes | None = None) -> Any:
    """Some executions end; what a subscriber reads afterwards behind its cursor."""
    async with await Engine.open(url, single_node=True) as engine:
        begun = (await engine.read_events("completion")).cursor
        for _ in range(count):
            await engine.complete(await claimed(engine), b"")
        found = await engine.read_events("completion", begun if cursor is None else cursor)
        cursorless: str | None = ""
        while cursorless is not None:
            looked = await engine.examine(cursorless or None)
            assert looked.violations == ()
            cursorless = looked.next_cursor
        return found


async def test_subscribers_of_a_restored_file_are_told_of_a_gap(tmp_path: Path) -> None:
    path, url = tmp_path / "ff.db", f"sqlite:///{tmp_path}/ff.db"
    await end(url, 2)
    shutil.copy(path, tmp_path / "backup")
    known = await end(url, 3)
    shutil.copy(tmp_path / "backup", path)
    await go_on_behind(url)
    with pytest.raises(StreamGap) as caught:
        await end(url, 5, known.cursor)
    after = await end(url, 1, caught.value.oldest)
    assert len(after.events) == 6


async def test_subscribers_of_a_restored_database_are_told_of_a_gap(postgres_dsn: str) -> None:
    """It is restored by hand: events are taken away, and their numbers are given again."""
    before = await end(postgres_dsn, 2)
    known = await end(postgres_dsn, 3)
    async with await Engine.open(postgres_dsn) as engine, engine.store.raw() as connection:
        await connection.execute("DELETE FROM ff_exec_core WHERE created_at_ms > $1", before.events[-1].at)
        await connection.execute("DELETE FROM ff_completion_event WHERE event_id > 2")
        await connection.execute("SELECT setval(pg_get_serial_sequence('ff_completion_event', 'event_id'), 2)")
    await go_on_behind(postgres_dsn)
    with pytest.raises(StreamGap) as caught:
        await end(postgres_dsn, 5, known.cursor)
    after = await end(postgres_dsn, 1, caught.value.oldest)
    assert len(after.events) == 6


async def test_what_cannot_be_told(tmp_path: Path) -> None:
    with pytest.raises(Validation, match="never restored"):
        await go_on_behind("memory://")
    with pytest.raises(Transport):
        await go_on_behind(f"sqlite:///{tmp_path}/nothing.db")
    assert not (tmp_path / "nothing.db").exists()
