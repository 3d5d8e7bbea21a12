"""What opening a store says about its partitions and its tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flowfabric import App, Validation
from flowfabric.engine import Engine
from flowfabric.model.partitions import PartitionCounts
from flowfabric.stores.migration_plan import plan

#: Stores that are empty, with no table at all.
EMPTY: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "sqlite": lambda request, folder: f"sqlite:///{folder}/ff.db",
    "postgres": lambda request, folder: request.getfixturevalue("postgres_dsn"),
    "valkey": lambda request, folder: request.getfixturevalue("valkey_url"),
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


async def test_a_new_store_gets_what_an_old_one_need_not_have(url: str) -> None:
    wanted, other = PartitionCounts(16, 8, 4), PartitionCounts(4, 4, 4)
    for new in (wanted, other):
        async with await Engine.open(url, single_node=True, new_partitions=new) as engine:
            assert engine.partitions == wanted
    with pytest.raises(Validation, match="partition_mismatch"):
        await Engine.open(url, single_node=True, partitions=other, new_partitions=wanted)


async def test_what_must_be_goes_before_what_a_new_store_gets(url: str) -> None:
    mine = PartitionCounts(16, 8, 4)
    async with await Engine.open(url, single_node=True, partitions=mine, new_partitions=PartitionCounts()) as engine:
        assert engine.partitions == mine


async def test_tables_can_be_checked_instead_of_made(url: str) -> None:
    with pytest.raises(Validation, match="flowfabric db migrate"):
        await Engine.open(url, single_node=True, migrate="check")
    with pytest.raises(Validation, match="'apply', 'check' or 'take'"):
        await Engine.open(url, single_node=True, migrate="perhaps")
    async with await Engine.open(url, single_node=True) as engine:
        await engine.create_execution()
    async with await Engine.open(url, single_node=True, migrate="check") as engine:
        assert [each.waiting for each in await engine.queue_depths()] == [1]


async def test_the_environment_decides_for_every_process(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FF_MIGRATE", "check")
    with pytest.raises(Validation, match="flowfabric db migrate"):
        await Engine.open(url, single_node=True)
    async with await Engine.open(url, single_node=True, migrate="apply") as engine:
        await engine.ping()
    async with App(url) as app:
        await app.engine.ping()


@pytest.mark.parametrize("how", ["apply", "check"])
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
async def test_there_is_a_way_back_from_a_later_release(url: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    statement = "INSERT INTO ff_migration_annotation VALUES (9999, 'later', 0, {}, 'x')"
    async with await Engine.open(url, single_node=True) as engine:
        if engine.backend_label == "sqlite":
            engine.store._writer.execute(statement.format(1))
        else:
            async with engine.store.raw() as connection:
                await connection.execute(statement.format("true"))
    async with await Engine.open(url, single_node=True, migrate=how) as engine:
        await engine.create_execution()
    assert "a later release has migrated the database (9999)" in caplog.text
    assert (await plan(url)).pending == ()


@pytest.mark.parametrize("how", ["apply", "check"])
async def test_tables_of_a_later_release_are_refused(url: str, how: str) -> None:
    said = r"migration 9999.*upgrade flowfabric"
    async with await Engine.open(url, single_node=True) as engine:
        statement = "INSERT INTO ff_migration_annotation VALUES (9999, 'later', 0, {}, 'x')"
        if engine.backend_label == "sqlite":
            engine.store._writer.execute(statement.format(0))
        elif engine.backend_label == "valkey":
            await engine.store.connection.command("HSET", engine.store.keys.meta, "layout", "9999", read_only=False)
            said = r"has layout 9999, .*use the release that wrote it"
        else:
            async with engine.store._pool.acquire() as connection:
                await connection.execute(statement.format("false"))
    with pytest.raises(Validation, match=said):
        await Engine.open(url, single_node=True, migrate=how)
