"""The machine must find every planted bug: a checker that finds nothing proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import full_run
from tests.simulation.mutants import mutants_leases, mutants_queue
from tests.simulation.mutants.hunting import found
from tests.simulation.mutants.mutating import MUTANTS, forgets_fields
from tests.simulation.test_model import machine_on
from tests.simulation.world import World

#: Bugs that a plain run hunts on Valkey too: those that its known seeds find soon.
SAMPLE = (
    "epoch_not_compared",
    "lease_id_is_used_again",
    "capabilities_ignored",
    "idempotency_key_ignored",
    "cancel_is_not_announced",
    "retry_categories_ignored",
)
#: All that a store which writes records whole can have.
ON_VALKEY = [name for name, plant in MUTANTS.items() if not forgets_fields(plant)]


def machine_for(name: str, world: World) -> Any:
    """The machine that hunts this bug."""
    return machine_on(world)


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
    planted = {name for module in (mutants_leases, mutants_queue) for name in vars(module)}
    assert len(MUTANTS) >= 45
    assert planted >= MUTANTS.keys()
    assert set(SAMPLE) <= set(ON_VALKEY)
    assert len(ON_VALKEY) >= 38
