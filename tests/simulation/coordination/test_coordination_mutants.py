"""The machine of coordination must find every planted bug."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.coordination import mutants_budgets, mutants_flows, mutants_signals
from tests.simulation.coordination.mutating import MUTANTS
from tests.simulation.coordination.test_coordination import machine_on
from tests.simulation.hunting import found
from tests.simulation.world import World


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


def test_there_are_enough() -> None:
    """Never fewer than these."""
    planted = {name for module in (mutants_budgets, mutants_flows, mutants_signals) for name in vars(module)}
    assert len(MUTANTS) >= 70
    assert planted >= MUTANTS.keys()
