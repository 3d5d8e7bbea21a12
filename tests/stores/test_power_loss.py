"""What is asked of a store so that commits outlive more than the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Engine


@pytest.mark.parametrize(("options", "level"), [({}, 2), ({"synchronous": "FULL"}, 2), ({"synchronous": "NORMAL"}, 1)])
async def test_sqlite_forces_commits_to_the_disk_unless_told_otherwise(
    tmp_path: Path, options: dict[str, Any], level: int
) -> None:
    async with await Engine.open(f"sqlite:///{tmp_path}/ff.db", single_node=True, **options) as engine:
        store: Any = engine.store
        assert store._writer.execute("PRAGMA synchronous").fetchone()[0] == level
        assert store._writer.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


async def test_what_is_in_memory_goes_with_its_engine() -> None:
    async with await Engine.open("memory://") as engine:
        made = (await engine.create_execution()).execution_id
    async with await Engine.open("memory://") as engine:
        assert await engine.read_execution_state(made) is None
