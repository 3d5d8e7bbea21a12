"""What opening a store says about its partitions and its tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flowfabric import Validation
from flowfabric.engine import Engine
from flowfabric.model.partitions import PartitionCounts

#: Stores that are empty, with no table at all.
EMPTY: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "sqlite": lambda request, folder: f"sqlite:///{folder}/ff.db",
    "postgres": lambda request, folder: request.getfixturevalue("postgres_dsn"),
}


@pytest.fixture(params=EMPTY)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that nobody has opened yet."""
    return EMPTY[request.param](request, tmp_path)


async def counts(url: str, given: PartitionCounts | None = None) -> PartitionCounts:
    async with await Engine.open(url, single_node=True, partitions=given) as engine:
        return engine.partitions


async def test_the_first_start_decides_the_partitions(url: str) -> None:
    mine = PartitionCounts(16, 8, 4)
    assert await counts(url, mine) == mine
    assert await counts(url, mine) == mine
    assert await counts(url) == mine
    with pytest.raises(Validation, match=r"partition_mismatch: .*16 flow.*32 flow.*fixed at deployment time"):
        await counts(url, PartitionCounts(32, 8, 4))
    assert await counts(url) == mine


async def test_tables_can_be_checked_instead_of_made(url: str) -> None:
    with pytest.raises(Validation, match="flowfabric db migrate"):
        await Engine.open(url, single_node=True, migrate="check")
    with pytest.raises(Validation, match="'apply', 'check' or 'take'"):
        await Engine.open(url, single_node=True, migrate="perhaps")
    async with await Engine.open(url, single_node=True) as engine:
        await engine.create_execution()
    async with await Engine.open(url, single_node=True, migrate="check") as engine:
        assert [each.waiting for each in await engine.queue_depths()] == [1]


@pytest.mark.parametrize("how", ["apply", "check"])
async def test_tables_of_a_later_release_are_refused(url: str, how: str) -> None:
    async with await Engine.open(url, single_node=True) as engine:
        statement = "INSERT INTO ff_migration_annotation VALUES (9999, 'later', 0, {}, 'x')"
        if engine.backend_label == "sqlite":
            engine.store._writer.execute(statement.format(1))
        else:
            async with engine.store._pool.acquire() as connection:
                await connection.execute(statement.format("true"))
    with pytest.raises(Validation, match=r"migration 9999.*upgrade flowfabric"):
        await Engine.open(url, single_node=True, migrate=how)
