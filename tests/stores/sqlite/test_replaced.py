"""A SQLite file that is replaced under a process that has it open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowfabric import Transport
from flowfabric.engine import Engine


@pytest.mark.parametrize("how", ["replaced", "deleted"])
async def test_nothing_more_is_written_into_a_file_that_is_not_there(tmp_path: Path, how: str) -> None:
    path, backup = tmp_path / "ff.db", tmp_path / "backup.db"
    async with await Engine.open(f"sqlite:///{path}", single_node=True) as engine:
        await engine.create_execution()
        shutil.copy(path, backup)
        if how == "replaced":
            backup.replace(path)
        else:
            path.unlink()
        for call in (engine.create_execution, engine.ping):
            with pytest.raises(Transport, match="was replaced or deleted while it was open"):
                await call()
