"""The machine of coordination must find every planted bug."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import full_run
from tests.simulation.coordination import mutants_budgets, mutants_flows, mutants_signals
from tests.simulation.coordination.mutating import MUTANTS
from tests.simulation.coordination.test_coordination import machine_on
from tests.simulation.mutants.hunting import found
from tests.simulation.mutants.mutating import forgets_fields
from tests.simulation.world import World

#: Bugs that a plain run hunts on Valkey too: those that its known seeds find soon.
SAMPLE = (
    "hard_limit_off_by_one",
    "one_slot_too_many",
    "applied_child_stays_claimable",
    "quorum_one_short",
    "digest_not_compared",
    "suspending_in_silence",
)
#: All that a store which writes records whole can have.
ON_VALKEY = [name for name, plant in MUTANTS.items() if not forgets_fields(plant)]


def machine_for(name: str, world: World) -> Any:
    """The machine that hunts this bug: about flows, signals or budgets, by the module the bug is written in."""
    return machine_on(world, MUTANTS[name].__module__.rpartition("_")[2])


@pytest.fixture
def memory() -> Iterator[World]:
    """A world in memory."""
    opened = World("memory://")
    yield opened
    opened.close()


@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_finds(name: str, memory: World, monkeypatch: Any) -> None:
    """Soon enough, and because something differs, not because the bug makes the engine fall over."""
    MUTANTS[name](monkeypatch)
    assert found(name, machine_for(name, memory)) is not None


@pytest.mark.parametrize("name", ON_VALKEY if full_run() else SAMPLE)
def test_the_machine_finds_it_on_valkey(name: str, valkey_url: str, monkeypatch: Any) -> None:
    """A store that lasts has two engines, which see each other's bugs: in a full run all of them, otherwise some."""
    MUTANTS[name](monkeypatch)
    world = World(valkey_url)
    try:
        assert found(name, machine_for(name, world)) is not None
    finally:
        world.close()


def test_there_are_enough() -> None:
    """Never fewer than these."""
    planted = {name for module in (mutants_budgets, mutants_flows, mutants_signals) for name in vars(module)}
    assert len(MUTANTS) >= 70
    assert planted >= MUTANTS.keys()
    assert set(SAMPLE) <= set(ON_VALKEY)
    assert len(ON_VALKEY) >= 65
