"""The guide says of every table when its rows go."""

from __future__ import annotations

import re
from pathlib import Path

from flowfabric.engine import Engine
from flowfabric.stores.migrate import migrations

GUIDE = Path(__file__).parents[2] / "docs" / "operating.md"


def told() -> list[str]:
    section = GUIDE.read_text().split("### Every table")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(ff_\w+)`", row)]


def test_no_table_is_told_of_twice() -> None:
    assert len(set(told())) == len(told())


async def test_every_table_of_sqlite() -> None:
    async with await Engine.open("sqlite:///:memory:", single_node=True) as engine:
        found = engine.store.raw().execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'ff%'")
        assert {row[0] for row in found} == set(told())


def test_every_table_of_postgresql() -> None:
    script = "\n".join(each.sql for each in migrations("postgres"))
    made = set(re.findall(r"CREATE TABLE (\w+)", script)) - set(re.findall(r"DROP TABLE (\w+)", script))
    assert set(told()) - made == {"ff_migration_annotation", "ff_execution_capabilities"}
    assert made <= set(told())
