"""Batching is not semantics: a batch of n commands does what n batches of one do, in the same order.

Both sides start from the same content, built by the same commands one at a time. Then the same commands run once as one
batch and once one by one; answers, every row of every table and all events must be equal. Random bytes are part of
commands, so nothing differs by chance. Commands are made to meet: few executions, one or two lanes, guessed handles.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st

from flowfabric.stores.sql.schema import TABLES
from tests import valkey_rows
from tests.conftest import full_run, valkey_place
from tests.contract.conftest import STORES
from tests.simulation.commands import commands
from tests.simulation.situations import SITUATIONS, enter, meetings, position, run_batch_on
from tests.simulation.test_model import PATIENCE_S
from tests.simulation.world import World

#: Examples of a plain run by store, and of a full one.
EXAMPLES = {"memory": 100, "sqlite": 24, "postgres": 8, "valkey": 10}
FULL_EXAMPLES = {"memory": 5_000, "sqlite": 1_200, "postgres": 400, "valkey": 500}
#: Of all pairs of commands in all situations, every how many-th is run.
STRIDE = {"memory": 67, "sqlite": 449, "postgres": 2_999, "valkey": 1_499}
FULL_STRIDE = {"memory": 1, "sqlite": 7, "postgres": 23, "valkey": 11}


@pytest.fixture(params=STORES)
def worlds(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[tuple[World, World]]:
    """Two worlds on stores of the same kind."""
    store = request.param
    if store in ("postgres", "valkey"):
        urls = request.getfixturevalue("two_databases" if store == "postgres" else "two_places")
    else:
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        urls = [STORES[store](request, tmp_path / name) for name in ("one", "two")]
    opened = [World(url) for url in urls]
    yield opened[0], opened[1]
    for world in opened:
        world.close()


@pytest.fixture
def two_databases(postgres_dsn: str, postgres_administrator: Any) -> Iterator[list[str]]:
    """This test's database and a second one beside it."""
    name = postgres_dsn.rpartition("/")[2].partition("?")[0]
    postgres_administrator.execute(f"CREATE DATABASE {name}_b TEMPLATE template0")
    yield [postgres_dsn, postgres_dsn.replace(name, f"{name}_b")]
    postgres_administrator.execute(f"DROP DATABASE {name}_b WITH (FORCE)")


@pytest.fixture
def two_places(valkey_server: Any) -> Iterator[list[str]]:
    """Two places on this worker's Valkey."""
    with valkey_place(valkey_server.url) as one, valkey_place(valkey_server.url) as two:
        yield [one, two]


@pytest.mark.timeout(PATIENCE_S)
def test_every_pair_of_commands(worlds: tuple[World, World], request: pytest.FixtureRequest) -> None:
    """Two commands in one batch and in two, in every situation an execution can be in."""
    store = request.node.callspec.params["worlds"]
    stride = (FULL_STRIDE if full_run() else STRIDE)[store]
    places = {}
    for situation in SITUATIONS:
        worlds[0].reset(2_000)
        enter(worlds[0], situation)
        places[situation] = position(worlds[0])
    names = list(meetings(0, 1))
    for situation, first, second in list(product(SITUATIONS, names, names))[::stride]:
        known = meetings(*places[situation])
        for world in worlds:
            world.reset(2_000)
            enter(world, situation)
        compare(worlds, [known[first], known[second]], f"{situation}: {first}, then {second}")


@pytest.mark.timeout(PATIENCE_S)
def test_random_batches(worlds: tuple[World, World], request: pytest.FixtureRequest) -> None:
    """Longer batches after longer histories."""
    store = request.node.callspec.params["worlds"]

    @settings(
        max_examples=(FULL_EXAMPLES if full_run() else EXAMPLES)[store],
        derandomize=not full_run(),
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        situation=st.sampled_from(list(SITUATIONS)),
        before=commands(0, 8),
        wait_ms=st.sampled_from((0, 0, 1, 500, 1_000, 5_000)),
        batch=commands(2, 8),
        grace_ms=st.sampled_from((0, 2_000)),
    )
    def check(situation: str, before: list[Any], wait_ms: int, batch: list[Any], grace_ms: int) -> None:
        event(situation)
        for world in worlds:
            world.reset(grace_ms)
            enter(world, situation)
            for command in before:
                run_batch_on(world, [command])
            world.clock.advance(wait_ms)
        compare(worlds, batch, situation)

    check()


def compare(worlds: tuple[World, World], batch: list[Any], headline: str) -> None:
    """Run a batch as one and one by one, and compare everything."""
    together, apart = worlds
    answers = run_batch_on(together, batch)
    assert answers == [run_batch_on(apart, [command])[0] for command in batch], headline
    rows, others = contents(together), contents(apart)
    for table in rows:
        assert rows[table] == others[table], f"{headline}: {table}"
    assert together.look([])[1] == apart.look([])[1], f"{headline}: events"


def contents(world: World) -> dict[str, Any]:
    """Every row of every table, by table."""
    tables = list(TABLES.values())
    if world.label == "memory":
        return {table.name: dict(sorted(world.store._tables.all(table.kind).items())) for table in tables}
    if world.label == "valkey":
        found = world.run(valkey_rows.contents(world.store))
        return {kind.__name__: records for kind, records in found.items()}
    return world.run(_rows(world, [table.name for table in tables]))


async def _rows(world: World, tables: list[str]) -> dict[str, Any]:
    found = {}
    for table in tables:
        sql = f"SELECT * FROM {table}"
        if world.label == "sqlite":
            found[table] = sorted(map(repr, world.raw.execute(sql).fetchall()))
        else:
            async with world.store.raw() as connection:
                found[table] = sorted(repr(tuple(row)) for row in await connection.fetch(sql))
    return found
